"""What the array engine cannot run yet: refused by name and place, never ignored.

The program is valid; `oracle/` or a later version may run it.

**Source:** `design.md`, section 4; the fragment is listed in the project's documentation.
"""

from __future__ import annotations

from ..errors import Problem
from ..ir.expr import Ctx, Inf, Num, PoolState, Sample, StageState, Unary
from ..ir.fabric import shared_stages
from ..ir.program import Choose, Load, ProcessorSharing, Program, Release, Shrink, Step
from .facts import draws, erlang_stages
from .flow import legs
from .index import Index, Problems
from .values import chosen_from

DEEPEST = 4
MOST_ERLANG = 64
MOST_LINKS = 62
MOST_CHOICES, MOST_DRAWS = 4096, 512
MOST_BLOCKS = 1 << 20


def unsupported(program: Program) -> list[Problem]:
    """What the array engine does not run in this (valid) program; empty: it runs it all."""
    index, problems = Index(program), Problems()
    for i, pool in enumerate(program.pools):
        if pool.sharing == "content":
            _refuse_sharing(index, problems, i)
        if pool.spill is not None:
            _refuse_spill(index, problems, i)
    shared = shared_stages(program)
    if len(shared) > MOST_LINKS:
        _refuse(problems, "$.stages", "the program", f"{len(shared)} shared stages (at most {MOST_LINKS})")
    if any(isinstance(stage.kind, ProcessorSharing) for stage in program.stages):
        _refuse_retries(index, problems, "stages whose jobs share")
        for i, pool in enumerate(program.pools):
            if pool.queue_every is not None:
                what = "a line with times of its own beside stages whose jobs share"
                _refuse(problems, f"$.pools[{i}].queue_every", f"pool `{pool.name}`", what)
    elif any(scope.lease is not None and scope.lease.after_s != Inf() for scope in program.scopes):
        _refuse_retries(index, problems, "leases that expire")
    _refuse_loose(index, problems)
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
        for j, op in enumerate(state.ops):
            if isinstance(op, Choose):
                _choice(problems, f"$.states[{i}].ops[{j}].count", f"state `{state.name}`", op)
    for position in index.positions:
        where = f"{position.owner}: {position.what}"
        for path, node in position.nodes:
            if isinstance(node, PoolState | StageState) and position.path.endswith(".lease.after_s"):
                _refuse(problems, path, where, f"`{node.fun}` in the time of a lease (the hold is being given back)")
            elif isinstance(node, PoolState) and position.moment == "release":
                _refuse(problems, path, where, f"`{node.fun}` in `keep` (the pool is being given back)")
            elif isinstance(node, PoolState) and position.moment not in ("session", "admit") and _looks_up(index, node):
                _refuse(problems, path, where, "`CachedIn` of blocks shared by content outside statements and headers")
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


def _choice(problems: Problems, path: str, owner: str, op: Choose) -> None:
    """Members are compared at once, so that their number must be known when a program is compiled."""
    drawn = draws(op.keys)
    if not isinstance(op.count, Num):
        if drawn:
            _refuse(problems, path, owner, "a computed count of a choice whose keys draw")
        elif not chosen_from(op):
            _refuse(problems, path, owner, "a computed count of a choice whose keys index no array")
    elif op.count.value > MOST_CHOICES:
        _refuse(problems, path, owner, f"a choice among {op.count.value:g} (at most {MOST_CHOICES})")
    elif op.count.value * drawn > MOST_DRAWS:
        _refuse(problems, path, owner, f"a choice that draws {op.count.value * drawn:g} times (at most {MOST_DRAWS})")


def _refuse_retries(index: Index, problems: Problems, beside: str) -> None:
    """What is tried again at every event and may then come out otherwise, though nothing has happened.

    Where jobs share, a finish that is overtaken is an event of the language all the same, and so is the end of a lease
    that has ended before: at its time lines and idle engines are tried again. The array engine has no such events.
    """
    for position in index.positions:
        if position.moment not in ("admit", "select", "budget", "serve") or position.what == "the reuse":
            continue
        if position.path.endswith(".queue.keys[0]") and position.expr == Unary("Neg", Ctx("Waited")):
            continue  # everybody waits equally much longer: their order stays
        for path, node in position.nodes:
            clock = node in (Ctx("Now"), Ctx("Waited")) or (isinstance(node, StageState) and node.fun == "Work")
            if clock or isinstance(node, Sample):
                what = "the clock" if clock else "a draw"
                text = f"{position.what} with {what} beside {beside}"
                _refuse(problems, path, position.owner, text)


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


def _refuse_spill(index: Index, problems: Problems, i: int) -> None:
    """Tiers of blocks of another size, and jobs of nobody that share a capacity."""
    pool = index.program.pools[i]
    spill = pool.spill
    assert spill is not None
    tier = index.program.pools[index.pools[spill.to]]
    if tier.block is not None and index.number(tier.block) != index.number(pool.block):
        what = f"a spill into `{tier.name}`, whose blocks are of another size"
        _refuse(problems, f"$.pools[{i}].spill.to", f"pool `{pool.name}`", what)
    if isinstance(index.program.stages[index.stages[spill.via]].kind, ProcessorSharing):
        what = f"a spill over `{spill.via}`, whose jobs share"
        _refuse(problems, f"$.pools[{i}].spill.via", f"pool `{pool.name}`", what)


def _refuse_loose(index: Index, problems: Problems) -> None:
    """Leases and what gives back in part: of members and in legs that only the run knows."""
    program = index.program
    computed = [
        (s, scope.name, k)
        for s, scope in enumerate(program.scopes)
        for k, take in enumerate(scope.takes)
        if not isinstance(take.pool, str)
    ]
    of_legs = {index.states[name].scope for name in legs(index)}
    loose = any(scope.lease is not None for scope in program.scopes)
    for i, state in enumerate(program.states):
        parts: list[tuple[str, Load | Shrink | Release]]
        parts = [(f"$.states[{i}].ops[{j}].pool", op) for j, op in enumerate(state.ops) if isinstance(op, Load)]
        if isinstance(state.exit, Shrink | Release):
            parts.append((f"$.states[{i}].exit.pool", state.exit))
            loose |= isinstance(state.exit, Release)
        for path, part in parts:
            if not isinstance(part.pool, str):
                what = f"`{type(part).__name__}` of a computed member"
                _refuse(problems, path, f"state `{state.name}`", what)
    reserving = any(pool.reserve_held for pool in program.pools)
    for s, name, k in computed:
        if loose or reserving:
            beside = "leases or `Release`" if loose else "holds that keep their reserve"
            _refuse(problems, f"$.scopes[{s}].takes[{k}].pool", f"scope `{name}`", f"a computed member beside {beside}")
    for s, scope in enumerate(program.scopes):
        if scope.lease is None:
            continue
        if not isinstance(scope.lease.pool, str):
            _refuse(problems, f"$.scopes[{s}].lease.pool", f"scope `{scope.name}`", "a lease of a computed member")
        if scope.name in of_legs:
            _refuse(problems, f"$.scopes[{s}].lease", f"scope `{scope.name}`", "a lease that a leg takes")


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
