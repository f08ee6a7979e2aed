"""Iteration bodies of step stages, and the registers that they assign.

**Source:** `spec/ir14.md`, Claims, gauges, registers, and What validation rejects; `spec/semantics.md`, section 8.
"""

from __future__ import annotations

from ..ir.expr import Reg
from ..ir.program import Admit, Assign, Command, If, Serve, Step
from .index import Index, Problems, known
from .positions import command_positions, commands
from .values import constant


def check_iteration(index: Index, problems: Problems) -> None:
    """Report bodies that may do nothing, tests that are no tests, and registers that nothing or the wrong one reads."""
    _check_registers(index, problems)
    for i, stage in enumerate(index.program.stages):
        if not isinstance(stage.kind, Step) or not stage.kind.iteration:
            continue
        here, owner = f"$.stages[{i}].kind", f"stage `{stage.name}`"
        if stage.kind.prefills == "alone":
            text = f"{owner}: has an iteration of its own, and prefills that go alone take back what it has given"
            problems.add(f"{here}.prefills", text, "write one of the two")
        if stage.kind.after_own_preemption == "go_on":
            text = f"{owner}: has an iteration of its own, whose commands end when a grower preempts itself"
            problems.add(f"{here}.after_own_preemption", text, "leave it out, or write another `Serve` after that one")
        if _may_do_nothing(stage.kind.iteration):
            text = f"{owner}: a way through the iteration neither serves nor admits anybody"
            problems.add(f"{here}.iteration", text, "put a `Serve` or an `Admit` on every way")
        for at, command in commands(stage.kind.iteration, f"{here}.iteration"):
            if isinstance(command, Assign):
                _check_assigned(index, problems, f"{at}.register", owner, stage.name, command.register)
            for position in command_positions(at, owner, command):
                value = constant(index, position.expr)
                is_test = position.moment == "plan" and not isinstance(command, Assign)
                if is_test and value is not None and value not in (0.0, 1.0):
                    text = f"{owner}: {position.what} is {value:g}"
                    problems.add(position.path, text, "it is 0 or 1: compare, as in `Gt` of it and 0")


def _may_do_nothing(body: tuple[Command, ...]) -> bool:
    """Whether there is a way through a body without `Serve` and `Admit`."""
    for command in body:
        if isinstance(command, Serve | Admit):
            return False
        if isinstance(command, If) and not _may_do_nothing(command.then) and not _may_do_nothing(command.orelse):
            return False
    return True


def _check_assigned(index: Index, problems: Problems, path: str, owner: str, stage: str, name: str) -> None:
    register = index.registers.get(name)
    if register is None:
        text = f"{owner}: assigns the register `{name}`, which is not declared"
        problems.add(path, text, known(name, index.registers))
    elif register.stage != stage:
        text = f"{owner}: assigns the register `{name}` of the stage `{register.stage}`"
        problems.add(path, text, "a stage assigns its own registers")


def _check_registers(index: Index, problems: Problems) -> None:
    for i, register in enumerate(index.program.registers):
        here, owner = f"$.registers[{i}].stage", f"register `{register.name}`"
        at = index.stages.get(register.stage)
        if at is None:
            problems.add(here, f"{owner}: there is no stage `{register.stage}`", known(register.stage, index.stages))
            continue
        stage = index.program.stages[at]
        if not isinstance(stage.kind, Step) or not stage.kind.iteration:
            text = f"{owner}: the stage `{stage.name}` has no iteration that could assign it"
            problems.add(here, text, "name a step stage with an `iteration`")
        elif stage.array is not None:
            text = f"{owner}: the stage `{stage.name}` is a member of an array"
            problems.add(here, text, "a register belongs to one stage")
    for position in index.positions:
        for path, node in position.nodes:
            if not isinstance(node, Reg):
                continue
            where = f"{position.owner}: {position.what} reads the register `{node.name}`"
            register = index.registers.get(node.name)
            if register is None:
                problems.add(path, f"{where}, which is not declared", known(node.name, index.registers))
            elif not _reaches(index, register.stage, path, position.moment):
                problems.add(
                    path,
                    f"{where}, which the stage `{register.stage}` sets in its own iterations",
                    "it is read by that stage, by the queue keys and hold headers of the lines that the stage admits, "
                    "by gauges and by claims",
                )


def _reaches(index: Index, stage: str, path: str, moment: str) -> bool:
    """Whether a register of `stage` may be read at a place."""
    if path.startswith(("$.gauges", "$.claims")):
        return True
    program = index.program
    if path.startswith(f"$.stages[{index.stages.get(stage)}]."):
        return True
    admitted = {i for i, pool in enumerate(program.pools) if pool.admit_via == stage}
    if any(path.startswith(f"$.pools[{i}].queue.") for i in admitted):
        return True
    headers = [
        i for i, scope in enumerate(program.scopes)
        if scope.takes and set(index.pool_members(scope.takes[0].pool)) <= admitted
    ]  # fmt: skip
    return moment == "admit" and any(path.startswith(f"$.scopes[{i}].") for i in headers)
