"""What the array engine cannot run yet: refused by name and place, never ignored.

The program is valid; `oracle/` or a later version may run it.

**Source:** `design.md`, section 4; the fragment is listed in the project's documentation.
"""

from __future__ import annotations

from ..errors import Problem
from ..ir.expr import Member, PoolState, Price, Sample, StageState
from ..ir.program import ProcessorSharing, Program
from .facts import erlang_stages
from .index import Index, Problems, spell
from .positions import nodes, positions, references

DEEPEST = 4
MOST_ERLANG = 64
MOST_BLOCKS = 1 << 20
_ESTIMATES = ("EstLambda", "EstRho", "EstWait")


def unsupported(program: Program) -> list[Problem]:
    """What the array engine does not run in this (valid) program; empty: it runs it all."""
    index, problems = Index(program), Problems()
    for i, pool in enumerate(program.pools):
        if pool.reserve_held:
            _refuse(problems, f"$.pools[{i}].reserve_held", f"pool `{pool.name}`", "holds that keep their reserve")
        if pool.sharing == "content":
            _refuse_sharing(index, problems, i)
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
    for reference in references(program):
        if isinstance(reference.resource, Member):
            computed = index.number(reference.resource.index) is None
            text = f"a {'computed member' if computed else 'member by index'} of `{spell(reference.resource)}`"
            _refuse(problems, f"{reference.path}.index", reference.owner, text)
    for position in positions(program):
        where = f"{position.owner}: {position.what}"
        for path, node in nodes(position):
            if isinstance(node, Price):
                _refuse(problems, path, where, "`Price`")
            elif isinstance(node, StageState) and node.fun in _ESTIMATES:
                _refuse(problems, path, where, f"`{node.fun}`")
            elif isinstance(node, PoolState) and position.moment == "release":
                _refuse(problems, path, where, f"`{node.fun}` in `keep` (the pool is being given back)")
            elif isinstance(node, PoolState) and position.moment not in ("session", "admit") and _looks_up(index, node):
                _refuse(problems, path, where, "`CachedIn` of blocks shared by content outside statements and headers")
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


def _refuse_sharing(index: Index, problems: Problems, i: int) -> None:
    """What a pool that shares its blocks by content cannot have yet."""
    pool, owner = index.program.pools[i], f"pool `{index.program.pools[i].name}`"
    cap, block = index.number(pool.cap), index.number(pool.block)
    if cap is not None and block is not None and cap / block >= MOST_BLOCKS:
        what = f"{cap / block:.0f} blocks shared by content (below {MOST_BLOCKS})"
        _refuse(problems, f"$.pools[{i}].cap", owner, what)
    for s, scope in enumerate(index.program.scopes):
        holds = [
            other.name for other in index.chain(scope.name)
            if any(i in index.pool_members(take.pool) for take in other.takes)
        ]  # fmt: skip
        if len(holds) > 1 and scope.name in holds:
            what = f"two holds inside each other of blocks shared by content (`{pool.name}`)"
            _refuse(problems, f"$.scopes[{s}]", f"scope `{scope.name}`", what)


def _looks_up(index: Index, node: PoolState) -> bool:
    """Whether an expression looks for blocks shared by content."""
    pools = index.program.pools
    return node.fun == "CachedIn" and any(pools[p].sharing == "content" for p in index.pool_members(node.pool))


def _refuse(problems: Problems, path: str, owner: str, what: str) -> None:
    text = f"{owner}: the array engine does not run {what} yet"
    problems.add(path, text, "leave it out, or run the program with `--engine pyserq` or the oracle")
