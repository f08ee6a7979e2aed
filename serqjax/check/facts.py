"""What the engines, the packer and the reports read of a program, found once.

`Facts` is hashable. Nearly all fields depend on the program's structure alone (names, orders, states), so that programs
which differ in numbers share it; numbers decide only draws of an Erlang (its literal k), `whole_attrs` and
`fixed_point` (are block and budget whole?). `bounds` and `most_live` do not count in equality and hash.
Indices are places in `Program.pools`, `.stages`, `.scopes`, `.states`; -1 stands for none.

**Source:** `design.md`, sections 3 and 4.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ..ir.expr import Attr, Binary, Call, Cond, Ctx, Expr, Inf, Num, PoolState, Price, Sample, StageState, Table, Unary
from ..ir.fabric import shared_stages
from ..ir.fixed import stage_form
from ..ir.program import (
    Branch,
    Choose,
    Delay,
    Drop,
    Fifo,
    Grow,
    Order,
    ProcessorSharing,
    Program,
    Require,
    Respond,
    Run,
    Step,
    Turn,
    is_lru,
)
from ..ir.structure import skeleton, walk
from .bounds import Bound, bounds, most_live
from .flow import ends, reachable
from .index import Index
from .licence import Licence, licence
from .values import Wholeness

EvictKind = Literal["lru", "keyed"]
PreemptKind = Literal["none", "lifo", "general"]
StageKind = Literal["fifo", "delay", "ps", "step"]

#: The victim order of "last admitted first".
LIFO_KEYS = (Unary("Neg", Ctx("Admission")),)


@dataclasses.dataclass(frozen=True)
class PoolFacts:
    """A pool.

    - `finite`: has a cap, hence a fit test. `blocked`: has a block, units are whole blocks.
    - `queued_by`: scopes whose first pool it is (they wait in its line). `taken_by`: all that take it.
    - `cached`: some take of it has `keep`, or another pool spills into it, so it has cache entries. `consumed`: some
      scope with a `keep` on it limits `reuse`, so that dead remainders can arise. `dropped`: some state drops entries.
    - `evict`: `lru` (keys `Last` or none) or `keyed`; `evict_attrs`: attributes that keys and spill read (entries
      carry a snapshot of them); `evict_reads_size`: the keys change as an entry shrinks.
    - `grown_by_runs`, `grown_by_states`: growth by tokens of a stage, by `Grow` exits.
    - `preempts`: `none`, `lifo` (victim order exactly `-Admission`), or `general`. `requeue`: where victims wait.
    - `has_growers`: growth can wait in the pool's grower list (preempt none and growth possible, or growth
      that finds no victim; False only where nothing grows it).
    - `admit_via`: step stage that admits its line, or -1. `memory_of`: step stages whose memory it is.
    - `queue_keyed`: its line has keys (re-evaluated at every selection).
    - `in_order`: `uncached` is `in_order`. `frees_on_end`: `on_end` is `free`.
    - `reads`: pool functions (`CachedIn`, ...) that some expression reads of it.
    """

    name: str
    finite: bool
    blocked: bool
    queued_by: tuple[int, ...]
    taken_by: tuple[int, ...]
    cached: bool
    consumed: bool
    dropped: bool
    evict: EvictKind
    evict_attrs: tuple[str, ...]
    evict_reads_size: bool
    grown_by_runs: bool
    grown_by_states: bool
    preempts: PreemptKind
    requeue: Literal["head", "tail"]
    has_growers: bool
    admit_via: int
    memory_of: tuple[int, ...]
    queue_keyed: bool
    in_order: bool
    frees_on_end: bool
    reads: tuple[str, ...]

    @property
    def can_grow(self) -> bool:
        """Whether a hold of it can grow after admission."""
        return self.grown_by_runs or self.grown_by_states

    @property
    def can_preempt(self) -> bool:
        """Whether a preemption can happen on it."""
        return self.can_grow and self.finite and self.preempts != "none"


@dataclasses.dataclass(frozen=True)
class StageFacts:
    """A stage.

    - `kind`: `fifo`, `delay`, `ps`, `step`. `run_by`: states that run it. `shared`: some run holds it with others.
    - step stages: `memory` pool or -1; `admits`: pools whose line it admits, in index order;
      `fixed_point`: its cost runs in integers of 2^-20 ticks, else `float_reason` says why not;
      `serve_keyed`: some order in which it serves has keys; `chunked`: declares a chunk;
      `prefills`, `decodes`: modes that run on it;
      `cost_reads`, `budget_reads`, `chunk_reads`: context variables of each expression;
      `cost_draws`, `budget_draws`, `chunk_draws`: uniforms that one evaluation takes at most;
      `licence`: what may be coalesced (None for other stages).
    - `reads`: stage functions (`Queue`, `Work`, ...) that some expression reads of it.
    """

    name: str
    kind: StageKind
    shared: bool
    run_by: tuple[int, ...]
    memory: int
    admits: tuple[int, ...]
    fixed_point: bool
    float_reason: str
    serve_keyed: bool
    chunked: bool
    prefills: bool
    decodes: bool
    cost_reads: tuple[str, ...]
    budget_reads: tuple[str, ...]
    chunk_reads: tuple[str, ...]
    cost_draws: int
    budget_draws: int
    chunk_draws: int
    licence: Licence | None
    reads: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ScopeFacts:
    """A scope.

    - `depth` from 0; `parent` or -1; `reentry`: state. `inside`: states that lie directly in it.
    - `pools`: in the order of its takes, -1 for a computed member; `may_take`: all that they may mean.
    - `lets`: their number. `reuses`, `reserves`, `caches`, `rejects`: some take (or the scope) declares it.
    - `preemptible`: some pool of it, or of a scope around it, declares `preempt`.
    """

    name: str
    depth: int
    parent: int
    pools: tuple[int, ...]
    may_take: tuple[int, ...]
    reentry: int
    lets: int
    reuses: bool
    caches: bool
    reserves: bool
    rejects: bool
    preemptible: bool
    inside: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class StateFacts:
    """A state.

    - `scope`: the innermost open scope or -1. `reached`: something leads to it.
    - `draws`: uniforms of the session's stream that one visit takes at most (-1: not bounded);
      `branching_draws`: some of them depend on a test (`Cond`, `And`, `Or`).
    - `blocks`: its exit can block (`Enter`, `Run`, `Grow`, `Join`).
    """

    name: str
    scope: int
    draws: int
    branching_draws: bool
    blocks: bool
    reached: bool


@dataclasses.dataclass(frozen=True)
class Facts:
    """Of a whole program.

    - `max_depth`: most scopes open at once. `has_turn`, `has_respond`, `has_require`: such an op is reached.
    - `can_end`: a session can reach `End`. `unreached`: names of states that nothing leads to.
    - `init_draws`, `turn_draws`, `gap_draws`: uniforms that the `init` and `turn` blocks and one gap take at
      most (-1: not bounded).
    - `workload_reads_state`: `init` or `turn` reads the clock or the state of a pool or stage.
    - `contexts`, `functions`: all context variables and state functions that the program reads.
    - `maintained`: of `serial`, `turn_no`, `cached`, `computed`, `more`, those declared.
    - `whole_attrs`: attributes that always hold whole numbers.
    - `bounds`, `most_live`: see bounds.py; they depend on numbers and do not count in equality or hash.
    """

    pools: tuple[PoolFacts, ...]
    stages: tuple[StageFacts, ...]
    scopes: tuple[ScopeFacts, ...]
    states: tuple[StateFacts, ...]
    max_depth: int
    has_turn: bool
    has_respond: bool
    has_require: bool
    can_end: bool
    unreached: tuple[str, ...]
    init_draws: int
    turn_draws: int
    gap_draws: int
    workload_reads_state: bool
    contexts: frozenset[str]
    functions: frozenset[str]
    maintained: frozenset[str]
    whole_attrs: frozenset[str]
    bounds: tuple[Bound, ...] = dataclasses.field(compare=False)
    most_live: int = dataclasses.field(compare=False)


def facts_of(program: Program) -> Facts:
    """The facts of a valid program."""
    index = Index(program)
    rules = tuple(position.expr for position in index.positions)
    reached = reachable(index)
    states = [s for s in program.states if s.name in reached]
    ops = [op for state in states for op in state.ops]
    workload = (program.init, program.turn)
    scopes = tuple(_scope(index, i) for i in range(len(program.scopes)))
    functions = {n.fun for _, n in walk(rules) if isinstance(n, PoolState | StageState)}
    functions |= {"Price" for _, n in walk(rules) if isinstance(n, Price)}
    whole = Wholeness(index)
    return Facts(
        pools=tuple(_pool(index, i, rules) for i in range(len(program.pools))),
        stages=tuple(_stage(index, i, rules) for i in range(len(program.stages))),
        scopes=scopes,
        states=tuple(_state(index, i, reached) for i in range(len(program.states))),
        max_depth=max((s.depth + 1 for s in scopes), default=0),
        has_turn=any(isinstance(op, Turn) for op in ops),
        has_respond=any(isinstance(op, Respond) for op in ops),
        has_require=any(isinstance(op, Require) for op in ops),
        can_end=ends(index),
        unreached=tuple(s.name for s in program.states if s.name not in reached),
        init_draws=draws(program.init),
        turn_draws=draws(program.turn),
        gap_draws=draws(getattr(program.arrival, "gap", None)),
        workload_reads_state=any(isinstance(n, Ctx | PoolState | StageState | Price) for _, n in walk(workload)),
        contexts=frozenset(n.name for _, n in walk(rules) if isinstance(n, Ctx)),
        functions=frozenset(functions),
        maintained=frozenset({"serial", "turn_no", "cached", "computed", "more"} & set(index.attrs)),
        whole_attrs=frozenset(name for name, is_whole in whole.attrs.items() if is_whole),
        bounds=tuple(bounds(index)),
        most_live=most_live(index),
    )


def draws(node: Any) -> int:
    """Uniforms that one evaluation of everything in `node` takes at most; -1: a number of them is computed."""
    total = 0
    for _, part in walk(node):
        if isinstance(part, Sample):
            k = erlang_stages(part)
            if k < 0:
                return -1
            total += k
        elif isinstance(part, Choose) and (each := draws(part.keys)):
            if each < 0 or not isinstance(part.count, Num) or not 0.0 <= part.count.value < 2.0**31:
                return -1
            total += each * (int(part.count.value) - 1)  # its keys are walked once anyway
    return total


def erlang_stages(draw: Sample) -> int:
    """Uniforms of one draw: k of an Erlang with a literal k, else 1 (`Det`: 0); -1: k is computed."""
    if draw.dist != "Erlang":
        return 0 if draw.dist == "Det" else 1
    k = draw.args[0]
    value = getattr(k, "value", None)
    return max(1, int(value)) if type(k).__name__ == "Num" and value is not None else -1


def read_contexts(node: Any) -> tuple[str, ...]:
    """Context variables read below `node`, sorted."""
    return tuple(sorted({n.name for _, n in walk(node) if isinstance(n, Ctx)}))


def _pool(index: Index, i: int, rules: tuple[Expr, ...]) -> PoolFacts:
    program, pool = index.program, index.program.pools[i]
    takes = [(s, t) for s, scope in enumerate(program.scopes) for t in scope.takes if i in index.pool_members(t.pool)]
    first = [
        s for s, scope in enumerate(program.scopes) if scope.takes and i in index.pool_members(scope.takes[0].pool)
    ]
    cached = any(t.keep is not None for _, t in takes)
    cached |= any(other.spill is not None and other.spill.to == pool.name for other in program.pools)
    exits = [state.exit for state in program.states]
    by_runs = any(isinstance(e, Run) and i in index.pool_members(e.grows) for e in exits)
    by_states = any(isinstance(e, Grow) and i in index.pool_members(e.pool) for e in exits)
    keys = (pool.evict.keys, pool.spill)
    preempts: PreemptKind = "none"
    if pool.preempt is not None:
        preempts = "lifo" if pool.preempt.order.keys == LIFO_KEYS else "general"
    reads = {n.fun for _, n in walk(rules) if isinstance(n, PoolState) and i in index.pool_members(n.pool)}
    stages = program.stages
    return PoolFacts(
        name=pool.name,
        finite=not isinstance(pool.cap, Inf),
        blocked=pool.block is not None,
        queued_by=tuple(first),
        taken_by=tuple(dict.fromkeys(s for s, _ in takes)),
        cached=cached,
        consumed=any(t.keep is not None and program.scopes[s].reuse is not None for s, t in takes),
        dropped=any(
            isinstance(op, Drop) and i in index.pool_members(op.pool) for state in program.states for op in state.ops
        ),
        evict="lru" if is_lru(pool.evict) else "keyed",
        evict_attrs=tuple(sorted({n.name for _, n in walk(keys) if isinstance(n, Attr)})),
        evict_reads_size="Size" in read_contexts(pool.evict.keys),
        grown_by_runs=by_runs,
        grown_by_states=by_states,
        preempts=preempts,
        requeue="head" if pool.preempt is None else pool.preempt.requeue,
        has_growers=by_runs or by_states,
        admit_via=-1 if pool.admit_via is None else index.stages[pool.admit_via],
        memory_of=tuple(s for s, st in enumerate(stages) if isinstance(st.kind, Step) and st.kind.memory == pool.name),
        queue_keyed=bool(pool.queue.keys),
        in_order=pool.uncached == "in_order",
        frees_on_end=pool.on_end == "free",
        reads=tuple(sorted(reads)),
    )


def _stage(index: Index, i: int, rules: tuple[Expr, ...]) -> StageFacts:
    program, stage = index.program, index.program.stages[i]
    kind = stage.kind
    runs = [
        (s, state.exit)
        for s, state in enumerate(program.states)
        if isinstance(state.exit, Run)
        and any(i in index.stage_members(resource) for resource in (state.exit.stage, *state.exit.also))
    ]
    names: dict[type, StageKind] = {Fifo: "fifo", Delay: "delay", ProcessorSharing: "ps", Step: "step"}
    step = kind if isinstance(kind, Step) else None
    reason = float_reason(program, step) if step is not None else ""
    reads = {
        getattr(n, "fun", "Price")
        for _, n in walk(rules)
        if isinstance(n, StageState | Price) and i in index.stage_members(n.stage)
    }
    return StageFacts(
        name=stage.name,
        kind=names[type(kind)],
        shared=i in shared_stages(program),
        run_by=tuple(s for s, _ in runs),
        memory=-1 if step is None or step.memory is None else index.pools[step.memory],
        admits=tuple(p for p, pool in enumerate(program.pools) if pool.admit_via == stage.name),
        fixed_point=step is not None and not reason,
        float_reason=reason,
        serve_keyed=step is not None and any(
            isinstance(node, Order) and bool(node.keys) for _, node in walk((step.serve, step.iteration))
        ),
        chunked=step is not None and step.chunk is not None,
        prefills=any(e.mode == "Prefill" for _, e in runs),
        decodes=any(e.mode == "Decode" for _, e in runs),
        cost_reads=read_contexts(step.cost) if step else (),
        budget_reads=read_contexts(step.budget) if step else (),
        chunk_reads=read_contexts(step.chunk) if step else (),
        cost_draws=draws(step.cost) if step else 0,
        budget_draws=draws(step.budget) if step else 0,
        chunk_draws=draws(step.chunk) if step else 0,
        # of the skeleton, which has the same places: numbers do not matter, and a long trace need not be hashed
        licence=licence(skeleton(program)[0], i, not reason) if step else None,
        reads=tuple(sorted(reads)),
    )


def float_reason(program: Program, step: Step) -> str:
    """Why the cost of a step stage is evaluated in float64; "" if it runs in fixed point."""
    if stage_form(program, step) is not None:
        return ""
    blame = _not_affine(step.cost)
    if blame:
        return blame
    for name in ("budget", "chunk", "decode", "verify"):
        if any(isinstance(n, Sample) for _, n in walk(getattr(step, name))):
            return f"`{name}` draws, so that tokens may not be whole"
    if step.memory is not None and {"Kvb", "Kvp"} & set(read_contexts(step.cost)):
        pool = next(p for p in program.pools if p.name == step.memory)
        if pool.block is None:
            return f"it reads units of the pool `{pool.name}`, which has no block"
    return "budget, chunk or the tokens of a decode may not be whole, or the cost has too many pieces"


def _not_affine(expr: Expr) -> str:
    """The first thing in a cost that is not affine, in words."""
    for _, node in walk(expr):
        if isinstance(node, Sample):
            return f"it draws `{node.dist}`"
        if isinstance(node, Ctx) and node.name == "Now":
            return "it reads the clock `Now`"
        if isinstance(node, PoolState | StageState | Price):
            return f"it reads `{getattr(node, 'fun', 'Price')}`, the state of a pool or stage"
        if isinstance(node, Table):
            return f"it reads the table `{node.table}`"
        if isinstance(node, Cond):
            return "it has a condition (`Cond`)"
        if isinstance(node, Call) and node.fun not in ("Min", "Max") and read_contexts(node):
            return f"it takes `{node.fun}` of {_listed(node)}"
        if isinstance(node, Binary) and node.op == "Mul" and read_contexts(node.a) and read_contexts(node.b):
            return f"it multiplies {_listed(node.a)} by {_listed(node.b)}"
        if isinstance(node, Binary) and node.op == "Div" and read_contexts(node.b):
            return f"it divides by {_listed(node.b)}"
        if isinstance(node, Binary) and node.op not in ("Add", "Sub", "Mul", "Div") and read_contexts(node):
            return f"it has `{node.op}` of {_listed(node)}"
        if isinstance(node, Unary) and node.op == "Not":
            return "it has a `Not`"
    return ""


def _listed(node: Expr) -> str:
    return ", ".join(f"`{name}`" for name in read_contexts(node))


def _scope(index: Index, i: int) -> ScopeFacts:
    program, scope = index.program, index.program.scopes[i]
    chain = index.chain(scope.name)
    members = [index.pool_members(t.pool) for t in scope.takes]
    around = {m for s in chain for t in s.takes for m in index.pool_members(t.pool)}
    return ScopeFacts(
        name=scope.name,
        depth=len(chain) - 1,
        parent=-1 if scope.parent is None else index.scope_places[scope.parent],
        pools=tuple(m[0] if len(m) == 1 else -1 for m in members),
        may_take=tuple(sorted({p for m in members for p in m})),
        reentry=index.state_places[scope.reentry],
        lets=len(scope.lets),
        reuses=scope.reuse is not None,
        caches=any(t.keep is not None for t in scope.takes),
        reserves=any(t.reserve is not None for t in scope.takes),
        rejects=any(t.oversize != "wait" for t in scope.takes),
        preemptible=any(program.pools[m].preempt is not None for m in around),
        inside=tuple(s for s, state in enumerate(program.states) if state.scope == scope.name),
    )


def _state(index: Index, i: int, reached: set[str]) -> StateFacts:
    state = index.program.states[i]
    exit_ = state.exit
    asked = exit_.test if isinstance(exit_, Branch) else getattr(exit_, "work", getattr(exit_, "units", None))
    content = (state.ops, asked)
    branching = any(
        isinstance(n, Sample)
        for _, node in walk(content)
        if isinstance(node, Cond) or (isinstance(node, Binary) and node.op in ("And", "Or"))
        for part in ((node.then, node.orelse) if isinstance(node, Cond) else (node.b,))
        for _, n in walk(part)
    )
    return StateFacts(
        name=state.name,
        scope=-1 if state.scope is None else index.scope_places[state.scope],
        draws=draws(content),
        branching_draws=branching,
        blocks=type(exit_).__name__ in ("Enter", "Run", "Grow", "Join"),
        reached=state.name in reached,
    )
