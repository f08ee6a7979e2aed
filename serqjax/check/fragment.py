"""What the array engine cannot run yet: refused by name and place, never ignored.

The program is valid; `oracle/` or a later version may run it.

**Source:** `design.md`, section 4; the fragment is listed in the project's documentation.
"""

from __future__ import annotations

from ..errors import Problem
from ..ir.expr import Num, PoolState, Sample, StageState
from ..ir.program import Choose, ProcessorSharing, Program
from ..ir.structure import walk
from .facts import erlang_stages
from .index import Index, Problems
from .positions import nodes, positions
from .values import chosen_from

DEEPEST = 4
MOST_ERLANG = 64


def unsupported(program: Program) -> list[Problem]:
    """What the array engine does not run in this (valid) program; empty: it runs it all."""
    index, problems = Index(program), Problems()
    for i, pool in enumerate(program.pools):
        if pool.reserve_held:
            _refuse(problems, f"$.pools[{i}].reserve_held", f"pool `{pool.name}`", "holds that keep their reserve")
    for i, stage in enumerate(program.stages):
        if isinstance(stage.kind, ProcessorSharing):
            _refuse(problems, f"$.stages[{i}].kind", f"stage `{stage.name}`", "processor sharing")
    for i, scope in enumerate(program.scopes):
        depth = len(index.chain(scope.name))
        if depth > DEEPEST:
            what = f"{depth} scopes inside each other (at most {DEEPEST})"
            _refuse(problems, f"$.scopes[{i}]", f"scope `{scope.name}`", what)
    for i, state in enumerate(program.states):
        if getattr(state.exit, "deadline", None) is not None:
            _refuse(problems, f"$.states[{i}].exit.deadline", f"state `{state.name}`", "deadlines")
        for j, op in enumerate(state.ops):
            if isinstance(op, Choose) and not isinstance(op.count, Num):
                where, path = f"state `{state.name}`", f"$.states[{i}].ops[{j}]"
                if not chosen_from(op):
                    _refuse(problems, f"{path}.count", where, "a computed count of a choice whose keys index no array")
                elif any(isinstance(node, Sample) for key in op.keys for _, node in walk(key)):
                    _refuse(problems, f"{path}.count", where, "a computed count of a choice whose keys draw")
    for position in positions(program):
        where = f"{position.owner}: {position.what}"
        for path, node in nodes(position):
            if isinstance(node, PoolState) and position.moment == "release":
                _refuse(problems, path, where, f"`{node.fun}` in `keep` (the pool is being given back)")
            elif isinstance(node, PoolState) and position.moment == "evict" and node.fun in ("CachedIn", "Allocated"):
                _refuse(problems, path, where, f"`{node.fun}` of an entry's owner")
            elif isinstance(node, StageState) and position.moment == "evict" and node.fun == "BudgetLeft":
                _refuse(problems, path, where, "`BudgetLeft` in eviction keys")
            elif isinstance(node, Sample):
                if position.moment == "evict":
                    _refuse(problems, path, where, "draws in eviction keys")
                elif position.moment == "release":
                    _refuse(problems, path, where, "draws in `keep`")
                k = erlang_stages(node)
                if k < 0:
                    _refuse(problems, path, where, "an Erlang draw whose number of stages is computed")
                elif k > MOST_ERLANG:
                    _refuse(problems, path, where, f"an Erlang draw of {k} stages (at most {MOST_ERLANG})")
    return list(problems)


def _refuse(problems: Problems, path: str, owner: str, what: str) -> None:
    text = f"{owner}: the array engine does not run {what} yet"
    problems.add(path, text, "leave it out, or run the program with `--engine pyserq` or the oracle")
