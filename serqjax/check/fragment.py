"""What the array engine cannot run yet: refused by name and place, never ignored.

The program is valid; `oracle/` or a later version may run it.

**Source:** `design.md`, section 4; the fragment is listed in the project's documentation.
"""

from __future__ import annotations

from ..errors import Problem
from ..ir.expr import Member, PoolState, Price, Sample, StageState
from ..ir.program import ProcessorSharing, Program, Step
from .facts import erlang_stages
from .index import Index, Problems, spell
from .positions import nodes, positions, references

DEEPEST = 4
MOST_ERLANG = 64
_ESTIMATES = ("EstLambda", "EstRho", "EstWait")


def unsupported(program: Program) -> list[Problem]:
    """What the array engine does not run in this (valid) program; empty: it runs it all."""
    index, problems = Index(program), Problems()
    for i, pool in enumerate(program.pools):
        if pool.spill is not None:
            tier = program.pools[index.pools[pool.spill.to]]
            if tier.block is not None and index.number(tier.block) != index.number(pool.block):
                what = f"a spill into `{tier.name}`, whose blocks are of another size"
                _refuse(problems, f"$.pools[{i}].spill.to", f"pool `{pool.name}`", what)
    for i, stage in enumerate(program.stages):
        if isinstance(stage.kind, ProcessorSharing):
            _refuse(problems, f"$.stages[{i}].kind", f"stage `{stage.name}`", "processor sharing")
    engines = {stage.kind.memory for stage in program.stages if isinstance(stage.kind, Step)}
    for i, scope in enumerate(program.scopes):
        if scope.lease is not None:
            for member in index.pool_members(scope.lease.pool):
                pool = program.pools[member]
                if pool.preempt is not None and pool.name not in engines:
                    what = f"leases of `{pool.name}`, a pool that preempts and is no engine's memory"
                    _refuse(problems, f"$.scopes[{i}].lease", f"scope `{scope.name}`", what)
        taken = {member for take in scope.takes for member in index.pool_members(take.pool)}
        for member in sorted(taken):
            for tier in tiers_of(index, member):
                if tier in taken:
                    pool, below = program.pools[member].name, program.pools[tier].name
                    what = f"a hold of `{pool}` and of `{below}`, into which it spills"
                    _refuse(problems, f"$.scopes[{i}].takes", f"scope `{scope.name}`", what)
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
            elif isinstance(node, PoolState | StageState) and position.path.endswith(".lease.after_s"):
                _refuse(problems, path, where, f"`{node.fun}` in the time of a lease (the hold is being given back)")
            elif isinstance(node, PoolState) and position.moment == "release":
                _refuse(problems, path, where, f"`{node.fun}` in `keep` (the pool is being given back)")
            elif isinstance(node, StageState) and position.moment == "evict" and node.fun == "BudgetLeft":
                _refuse(problems, path, where, "`BudgetLeft` in eviction keys")
            elif isinstance(node, PoolState) and position.path.endswith(".spill.work"):
                _refuse(problems, path, where, f"`{node.fun}` in the work of a spill")
            elif isinstance(node, Sample):
                if position.moment == "evict" and ".spill." not in position.path:
                    _refuse(problems, path, where, "draws in eviction keys")
                elif position.moment == "evict" and spills_on(index, position.path):
                    _refuse(problems, path, where, "draws of a spill into a pool that spills itself")
                elif position.moment == "release":
                    _refuse(problems, path, where, "draws in `keep`")
                k = erlang_stages(node)
                if k < 0:
                    _refuse(problems, path, where, "an Erlang draw whose number of stages is computed")
                elif k > MOST_ERLANG:
                    _refuse(problems, path, where, f"an Erlang draw of {k} stages (at most {MOST_ERLANG})")
    return list(problems)


def tiers_of(index: Index, pool: int) -> list[int]:
    """The pools that units evicted from a pool may come to."""
    found: list[int] = []
    while (spill := index.program.pools[pool].spill) is not None:
        pool = index.pools[spill.to]
        found.append(pool)
    return found


def spills_on(index: Index, path: str) -> bool:
    """Whether the pool that the spill at a place goes to spills itself."""
    spill = index.program.pools[int(path.split("[")[1].split("]")[0])].spill
    return spill is not None and any(p.name == spill.to and p.spill is not None for p in index.program.pools)


def _refuse(problems: Problems, path: str, owner: str, what: str) -> None:
    text = f"{owner}: the array engine does not run {what} yet"
    problems.add(path, text, "leave it out, or run the program with `--engine pyserq` or the oracle")
