"""What acts on a pool or stage is in a position to: inside a hold, on a stage of the right kind.

**Source:** `spec/ir14.md`, section What validation rejects (holds, stages).
"""

from __future__ import annotations

from ..ir.expr import Resource
from ..ir.program import Grow, Load, Program, Release, Run, Shrink
from .index import Index, Problems, spell


def check_reach(index: Index, problems: Problems) -> None:
    """Report growth outside a hold, modes on the wrong stages, and stages without work."""
    program = index.program
    for i, pool in enumerate(program.pools):
        for member in index.stage_members(pool.admit_via):
            if not index.is_step(member):
                text = f"pool `{pool.name}`: its line is admitted by `{pool.admit_via}`, which is not a step stage"
                problems.add(f"$.pools[{i}].admit_via", text, "name a stage of kind Step, or null")
        if pool.queue_every is not None and pool.admit_via is not None:
            text = f"pool `{pool.name}`: the stage `{pool.admit_via}` admits its line, so `queue_every` means nothing"
            problems.add(f"$.pools[{i}].queue_every", text, "leave one of them out")
    _check_spills(index, problems)
    _check_leases(index, problems)
    for i, state in enumerate(program.states):
        here, owner, exit_ = f"$.states[{i}].exit", f"state `{state.name}`", state.exit
        for j, op in enumerate(state.ops):
            if isinstance(op, Load):
                _check_hold(index, problems, f"$.states[{i}].ops[{j}].pool", owner, "loads", op.pool, state.scope)
        if isinstance(exit_, Grow):
            _check_hold(index, problems, f"{here}.pool", owner, "grows", exit_.pool, state.scope)
        elif isinstance(exit_, Shrink):
            _check_hold(index, problems, f"{here}.pool", owner, "shrinks", exit_.pool, state.scope)
        elif isinstance(exit_, Release) and not set(index.pool_members(exit_.pool)) & leased(index):
            _check_hold(index, problems, f"{here}.pool", owner, "releases", exit_.pool, state.scope)
        if not isinstance(exit_, Run):
            continue
        members = index.stage_members(exit_.stage)
        steps = {index.is_step(m) for m in members}
        stage = spell(exit_.stage)
        if len(steps) > 1:
            text = f"{owner}: the members of `{stage}` are stages of different kinds"
            problems.add(f"{here}.stage", text, "the members of an array that one `Run` may use are of one kind")
        elif steps == {True} and exit_.mode == "Plain":
            text = f"{owner}: runs `Plain` work on `{stage}`, a step stage"
            problems.add(f"{here}.mode", text, "a step stage takes `Prefill` or `Decode`")
        elif steps == {False} and exit_.mode != "Plain":
            text = f"{owner}: runs `{exit_.mode}` on `{stage}`, which is not a step stage"
            problems.add(f"{here}.mode", text, "only a step stage takes `Prefill` and `Decode`: write `Plain`")
        if exit_.grows is not None:
            if steps == {False}:
                text = f"{owner}: work on `{stage}` grows a pool, but it is not a step stage"
                problems.add(f"{here}.grows", text, "only tokens of a step stage grow a pool: remove `grows`")
            _check_hold(index, problems, f"{here}.grows", owner, "grows", exit_.grows, state.scope)
    used: set[int] = set()
    for reference in index.references:
        if reference.kind == "stage":
            used.update(index.stage_members(reference.resource))
    for i, stage in enumerate(program.stages):
        if i not in used:
            problems.add(f"$.stages[{i}]", f"stage `{stage.name}`: no state runs it", "run it, or remove it")


def leased(index: Index) -> set[int]:
    """Pools that some scope leases."""
    return {m for s in index.program.scopes if s.lease is not None for m in index.pool_members(s.lease.pool)}


def _check_spills(index: Index, problems: Problems) -> None:
    """What is spilled ends somewhere, over a stage that works in seconds."""
    program = index.program
    for i, pool in enumerate(program.pools):
        if pool.spill is None:
            continue
        way = [pool.name]
        while (after := _spills_to(program, way[-1])) is not None and after not in way:
            way.append(after)
        if after == pool.name:
            names = " -> ".join(f"`{name}`" for name in [*way, after])
            problems.add(f"$.pools[{i}].spill.to", f"pool `{pool.name}`: spills back into itself ({names})",
                         "the last tier spills nowhere")  # fmt: skip
        for member in index.stage_members(pool.spill.via):
            if index.is_step(member):
                text = f"pool `{pool.name}`: spills over `{pool.spill.via}`, a step stage"
                problems.add(f"$.pools[{i}].spill.via", text, "name a stage that works in seconds")


def _spills_to(program: Program, name: str) -> str | None:
    spill = next((pool.spill for pool in program.pools if pool.name == name), None)
    return None if spill is None else spill.to


def _check_leases(index: Index, problems: Problems) -> None:
    for i, scope in enumerate(index.program.scopes):
        if scope.lease is not None and all(take.pool != scope.lease.pool for take in scope.takes):
            text = f"scope `{scope.name}`: leases `{spell(scope.lease.pool)}`, which it does not take"
            problems.add(f"$.scopes[{i}].lease.pool", text, "lease a pool of its takes")


def _check_hold(
    index: Index, problems: Problems, path: str, owner: str, does: str, pool: Resource, scope: str | None
) -> None:
    members = set(index.pool_members(pool))
    if not members:
        return
    held: set[int] = set()
    for open_scope in index.chain(scope):
        for take in open_scope.takes:
            held.update(index.pool_members(take.pool))
    if not members & held:
        text = f"{owner}: {does} `{spell(pool)}` outside a hold of it"
        where = "the state lies in no scope" if scope is None else f"the scope `{scope}` and its parents do not take it"
        problems.add(path, text, f"{where}: take it in a scope that is open there")
