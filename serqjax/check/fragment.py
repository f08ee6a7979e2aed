"""What the array engine cannot run yet: refused by name and place, never ignored.

The program is valid; `oracle/` or a later version may run it.

**Source:** `design.md`, section 4; the fragment is listed in the project's documentation.
"""

from __future__ import annotations

from ..errors import Problem
from ..ir.expr import Ctx, Num, PoolState, Sample, StageState, Unary
from ..ir.fabric import shared_stages
from ..ir.program import Choose, ProcessorSharing, Program
from .facts import draws, erlang_stages
from .index import Index, Problems
from .positions import nodes, positions
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
        if pool.reserve_held:
            _refuse(problems, f"$.pools[{i}].reserve_held", f"pool `{pool.name}`", "holds that keep their reserve")
        if pool.sharing == "content":
            _refuse_sharing(index, problems, i)
    shared = shared_stages(program)
    if len(shared) > MOST_LINKS:
        _refuse(problems, "$.stages", "the program", f"{len(shared)} shared stages (at most {MOST_LINKS})")
    if any(isinstance(stage.kind, ProcessorSharing) for stage in program.stages):
        _refuse_retries(problems, program)
    for i, scope in enumerate(program.scopes):
        depth = len(index.chain(scope.name))
        if depth > DEEPEST:
            what = f"{depth} scopes inside each other (at most {DEEPEST})"
            _refuse(problems, f"$.scopes[{i}]", f"scope `{scope.name}`", what)
    for i, state in enumerate(program.states):
        for j, op in enumerate(state.ops):
            if isinstance(op, Choose):
                _choice(problems, f"$.states[{i}].ops[{j}].count", f"state `{state.name}`", op)
    for position in positions(program):
        where = f"{position.owner}: {position.what}"
        for path, node in nodes(position):
            if isinstance(node, PoolState) and position.moment == "release":
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


def _refuse_retries(problems: Problems, program: Program) -> None:
    """What is tried again at every event and may then come out otherwise, though nothing has happened.

    Where jobs share, a finish that is overtaken is an event of the language all the same: at its time lines and idle
    engines are tried again. The array engine has no such events.
    """
    for position in positions(program):
        if position.moment not in ("admit", "select", "budget", "serve") or position.what == "the reuse":
            continue
        if position.path.endswith(".queue.keys[0]") and position.expr == Unary("Neg", Ctx("Waited")):
            continue  # everybody waits equally much longer: their order stays
        for path, node in nodes(position):
            clock = node in (Ctx("Now"), Ctx("Waited")) or (isinstance(node, StageState) and node.fun == "Work")
            if clock or isinstance(node, Sample):
                what = "the clock" if clock else "a draw"
                text = f"{position.what} with {what} beside stages whose jobs share"
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


def _refuse(problems: Problems, path: str, owner: str, what: str) -> None:
    text = f"{owner}: the array engine does not run {what} yet"
    problems.add(path, text, "leave it out, or run the program with `--engine pyserq` or the oracle")
