"""Generated programs with deadlines: the structure says where sessions may lose patience, the rng draws the numbers.

Times of the programs without draws are multiples of half a second, and iterations last whole and half seconds, so that
deadlines meet admissions, completions, ends of iterations and each other at one tick.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

from serqjax import ir
from serqjax.ir.expr import Attr, Binary, Call, Cond, Ctx, Expr, Num, PoolState, StageState, Unary
from serqjax.ir.program import Deadline, Enter, Goto, Grow, Leave, Program, Run, State

LIFO = ir.Order(keys=(Unary("Neg", Ctx("Admission")),), tie="latest")
FIFO = ir.Order(keys=(Ctx("Admission"),), tie="latest")


def add(a: Expr, b: Expr) -> Expr:
    return Binary("Add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return Binary("Sub", a, b)


def less(a: Expr, b: Expr) -> Expr:
    return Binary("Lt", a, b)


def count(name: str) -> ir.Set:
    return ir.Set(name, add(Attr(name), Num(1.0)))


def half(rng: Random, low: float, high: float) -> float:
    """A multiple of 0.5 s."""
    return rng.randint(round(2 * low), round(2 * high)) / 2


def attributes(names: str) -> tuple[ir.Attribute, ...]:
    return tuple(ir.Attribute(name=name) for name in names.split())


#: Seconds left of the patience that began at `t0`.
LEFT = Call("Max", (sub(add(Attr("t0"), Attr("patience")), Ctx("Now")), Num(0.0)))


def retries(rng: Random, again: str, pause: Expr | None = None) -> tuple[State, ...]:
    """`late`: try again at the state `again`, some times, after a pause; then give up. `done`: a last observation."""
    first = "wait" if pause is not None else again
    waits = () if pause is None else (State(name="wait", exit=Run("think", "Plain", pause, again)),)
    return (
        State(
            name="late", ops=(ir.Observe("late", Attr("tries")), count("tries")),
            exit=ir.Branch(less(Attr("tries"), Num(float(rng.randint(0, 3)))), first, "gone"),
        ),
        *waits,
        State(name="gone", ops=(ir.Observe("gone", Ctx("Now")),), exit=ir.End()),
        State(name="done", ops=(ir.Observe("done", sub(Ctx("Now"), Attr("t0"))),), exit=ir.End()),
    )  # fmt: skip


def listed(rng: Random, most: int, spread: float, columns: dict[str, Callable[[], float]]) -> ir.Listed:
    n = rng.randint(3, most)
    at = sorted(half(rng, 0, spread) for _ in range(n))
    values = tuple(tuple(float(draw()) for draw in columns.values()) for _ in range(n))
    return ir.Listed(at=tuple(at), attrs=tuple(columns), values=values)


# ---------------------------------------------------------------- stages without an engine


def desk(rng: Random, *, closed: bool = False, stochastic: bool = False) -> Program:
    """A fifo stage where jobs lose patience, waiting or served, and come back; no pool."""
    servers = float(rng.randint(1, 3))
    work: Expr = Attr("work")
    states = (
        State(name="start", ops=(ir.Set("t0", Ctx("Now")),), exit=Goto("ask")),
        State(name="ask", exit=Run("desk", "Plain", work, "think", deadline=Deadline(after=Attr("patience"),
                                                                                   target="late"))),
        State(name="think", exit=Run("think", "Plain", Num(half(rng, 0, 1)), "done",
                                     deadline=Deadline(after=Num(half(rng, 0.5, 1.5)), target="late"))),
        *retries(rng, "ask", Num(half(rng, 0, 2))),
    )  # fmt: skip
    arrival: ir.Arrival
    init: tuple[ir.Set, ...] = ()
    if stochastic:
        draw = ir.Sample("Exp", (Num(rng.uniform(0.5, 2)),))
        init = (ir.Set("work", draw), ir.Set("patience", ir.Sample("Exp", (Num(rng.uniform(0.5, 4)),))))
        arrival = ir.Poisson(Num(rng.uniform(0.3, 2)))
    elif closed:
        init = (ir.Set("work", add(Num(0.5), Binary("Mul", Num(0.5), Attr("serial")))),
                ir.Set("patience", Num(half(rng, 1, 4))))  # fmt: skip
        arrival = ir.Closed(Num(float(rng.randint(2, 6))))
    else:
        arrival = listed(rng, 12, 6, {"work": lambda: half(rng, 0, 3), "patience": lambda: half(rng, 0, 4)})
    return Program(
        attrs=attributes("serial t0 work patience tries"), observes=("done", "late", "gone"),
        stages=(ir.Stage(name="desk", kind=ir.Fifo(Num(servers))), ir.Stage(name="think", kind=ir.Delay())),
        states=states, start="start", arrival=arrival, init=init, seed=rng.randrange(1 << 31),
        horizon_s=Num(20.0 if closed else 60.0), warmup_s=Num(rng.choice([0.0, 5.0])),
    )  # fmt: skip


def memory(rng: Random, *, preempt: ir.Order | None = None, requeue: Literal["head", "tail"] = "head",
           block: bool = False) -> Program:
    """Two pools, one hold inside the other, growth: patience in both lines, on the stages and among the growers.

    Some jump out of both holds, some out of the inner one, some stay inside.
    """
    cap = float(rng.randint(5, 14))
    outer = ir.Scope(name="outer", takes=(ir.Take(pool="mem", units=Attr("u"), keep=Attr("u"), oversize=Attr("u")),),
                     reentry="first", reuse=Num(float(rng.randint(0, 4))))  # fmt: skip
    inner = ir.Scope(
        name="inner", takes=(ir.Take(pool="room", units=Num(1.0)), ir.Take(pool="mem2", units=Num(2.0))),
        reentry="second", parent="outer",
    )  # fmt: skip

    def late(target: str, low: float, high: float) -> Deadline:
        return Deadline(after=Num(half(rng, low, high)), target=target)

    states = (
        State(name="start", ops=(ir.Set("t0", Ctx("Now")),), exit=Enter("outer", Deadline(after=LEFT, target="late"))),
        State(name="first", scope="outer",
              exit=Run("desk", "Plain", Attr("work"), "more", deadline=late("late", 1, 5))),
        State(name="more", scope="outer", exit=Grow("mem", Attr("g"), "ask", late("ask", 0.5, 3))),
        State(name="ask", scope="outer", exit=Enter("inner", late("skip", 0.5, 4))),
        State(name="second", scope="inner", exit=Run("think", "Plain", Attr("work"), "grow",
                                                     deadline=Deadline(after=LEFT, target="late"))),
        State(name="grow", scope="inner",
              exit=Grow("mem2", Num(float(rng.randint(0, 2))), "third", late("skip", 0.5, 2))),
        State(name="third", scope="inner", exit=Run("desk", "Plain", Num(half(rng, 0.5, 1.5)), "out",
                                                    deadline=late("skip", 0.5, 3))),
        State(name="out", scope="inner", exit=Leave("skip")),
        State(name="skip", scope="outer", ops=(ir.Observe("held", PoolState("Allocated", "mem")),), exit=Leave("done")),
        *retries(rng, "start", Num(half(rng, 0, 1))),
    )  # fmt: skip
    size = Num(2.0) if block else None
    victims = None if preempt is None else ir.Preempt(order=preempt, requeue=requeue)
    return Program(
        attrs=attributes("serial cached computed t0 work patience tries u g"),
        observes=("done", "late", "gone", "held"),
        pools=(
            ir.Pool(name="mem", cap=Num(cap), block=size, preempt=victims),
            ir.Pool(name="room", cap=Num(float(rng.randint(1, 2)))),
            ir.Pool(name="mem2", cap=Num(float(rng.randint(4, 8))), preempt=victims),
        ),
        stages=(ir.Stage(name="desk", kind=ir.Fifo(Num(float(rng.randint(1, 2))))),
                ir.Stage(name="think", kind=ir.Delay())),
        scopes=(outer, inner), states=states, start="start", seed=rng.randrange(1 << 31),
        arrival=listed(rng, 9, 6, {
            "work": lambda: half(rng, 0, 3), "patience": lambda: half(rng, 0.5, 8), "u": lambda: rng.randint(1, 6),
            "g": lambda: rng.randint(0, 5)}),
        horizon_s=Num(60.0),
    )  # fmt: skip


# ---------------------------------------------------------------- engines


def engine(
    rng: Random, *, preempt: ir.Order | None = LIFO, requeue: Literal["head", "tail"] = "head", slots: bool = True,
    chunk: bool = False, cached: bool = True, cut: bool = False, each: bool = False, stochastic: bool = False,
    roomy: bool = False, block: bool = True, cost: Expr | None = None, keyed: bool = False,
) -> Program:
    """Requests on one engine whose clients lose patience: in the line, in prefill, in decode, preempted, growing.

    `each`: every blocking state has a patience of its own, else one for the whole request. `cut`: patience with the
    answer's length stays inside the hold and ends it early.
    """
    size = float(rng.choice([1, 2, 4, 4, 8])) if block else 1.0
    longest = 60 if roomy else 16
    most = rng.choice([2, 6]) if roomy else rng.choice([1.0, 1.2, 2.0])
    cap = size * -(-rng.randint(longest, int(most * longest)) // int(size))
    known = Attr("known")

    def late(low: float, high: float, target: str = "late") -> Deadline:
        return Deadline(after=Num(half(rng, low, high)) if each else LEFT, target=target)

    hit = Binary("Mul", Call("Floor", (Binary("Div", sub(known, Num(1.0)), Num(size)),)), Num(size))
    first = add(PoolState("CachedIn", "kv"), StageState("BudgetLeft", "E"))
    units: Expr = Call("Min", (known, first)) if chunk else known
    keep = Call("Min", (add(Attr("n"), Attr("o")), add(Ctx("HoldPosition"), Ctx("Finished")))) if cached else None
    kv = ir.Take(pool="kv", units=units, keep=keep)
    request = ir.Scope(
        name="request", takes=(ir.Take(pool="slots", units=Num(1.0)), kv) if slots else (kv,), reentry="prefill",
        lets=(ir.Let(attr="known", value=Cond(less(Attr("computed"), Attr("n")), Attr("n"),
                                              add(Attr("computed"), Num(1.0)))),),
        reuse=hit if cached else None,
    )  # fmt: skip
    done_before = sub(known, Attr("n"))
    states = (
        State(name="start", ops=(ir.Turn(), ir.Set("t0", Ctx("Now"))), exit=Goto("ask")),
        State(name="ask", exit=Enter("request", late(0.5, 6))),
        State(name="prefill", scope="request", ops=(ir.Observe("hit", Attr("cached")),),
              exit=Run("E", "Prefill", sub(known, Attr("cached")), "decode", "kv", late(1, 6))),
        State(name="decode", scope="request",
              exit=Run("E", "Decode", sub(sub(Attr("o"), Num(1.0)), done_before), "out", "kv",
                       late(1, 8, "out" if cut else "late"))),
        State(name="out", scope="request", exit=Leave("answered")),
        State(name="answered", ops=(ir.Respond(),), exit=Goto("done")),
        *retries(rng, "ask" if not each else "start", Num(half(rng, 0, 1))),
    )  # fmt: skip
    init: tuple[ir.Set, ...] = ()
    arrival: ir.Arrival
    if stochastic:
        def whole(low: float, high: float) -> Expr:
            return Call("Floor", (ir.Sample("Uniform", (Num(low), Num(high))),))

        init = (ir.Set("n", whole(1, longest / 2)), ir.Set("o", whole(1, longest / 2)),
                ir.Set("patience", ir.Sample("Exp", (Num(rng.uniform(2, 10)),))))  # fmt: skip
        arrival = ir.Poisson(Num(rng.uniform(0.2, 1)))
    else:
        arrival = listed(rng, 10, 8, {
            "n": lambda: rng.randint(1, longest // 2), "o": lambda: rng.randint(1, longest // 2),
            "patience": lambda: half(rng, 0.5, rng.choice([8, 14, 60]))})  # fmt: skip
    if cost is None:
        cost = add(Num(rng.choice([0.5, 1.0])), Binary("Mul", Num(rng.choice([0, 0.5])), Ctx("Ndec")))
        if stochastic:
            cost = add(Num(rng.uniform(0.02, 0.4)), Binary("Mul", Num(rng.uniform(0, 0.01)), Ctx("Kvb")))
    serve = ir.Order(keys=(Ctx("Remaining"),), tie="admitted") if keyed else ir.SERVE_ADMITTED
    victims = None if preempt is None else ir.Preempt(order=preempt, requeue=requeue)
    pools = (ir.Pool(name="kv", cap=Num(cap), block=Num(size) if block else None, preempt=victims,
                     admit_via=None if slots else "E"),)  # fmt: skip
    if slots:
        pools += (ir.Pool(name="slots", cap=Num(float(rng.randint(2, 6))), admit_via="E"),)
    return Program(
        attrs=attributes("serial turn_no cached computed n o t0 patience tries known"),
        observes=("done", "late", "gone", "hit"), pools=pools,
        stages=(ir.Stage(name="E", kind=ir.Step(budget=Num(float(rng.choice([4, 8, 16]))), cost=cost, memory="kv",
                                                serve=serve)),
                ir.Stage(name="think", kind=ir.Delay())),
        scopes=(request,), states=states, start="start", arrival=arrival, init=init, seed=rng.randrange(1 << 31),
        horizon_s=Num(80.0), warmup_s=Num(rng.choice([0.0, 10.0])),
    )  # fmt: skip


Make = Callable[[Random], Program]

STRUCTURES: dict[str, Make] = {
    "desk": desk,
    "desk_closed": lambda rng: desk(rng, closed=True),
    "desk_stochastic": lambda rng: desk(rng, stochastic=True),
    "memory": memory,
    "memory_lifo": lambda rng: memory(rng, preempt=LIFO),
    "memory_tail": lambda rng: memory(rng, preempt=FIFO, requeue="tail", block=True),
    "engine": engine,
    "engine_each": lambda rng: engine(rng, each=True, cut=True),
    "engine_none": lambda rng: engine(rng, preempt=None, chunk=True, each=True),
    "engine_tail": lambda rng: engine(rng, preempt=FIFO, requeue="tail", chunk=True, cached=False, keyed=True),
    "engine_kv_only": lambda rng: engine(rng, slots=False, cut=True, block=False),
    "engine_stochastic": lambda rng: engine(rng, stochastic=True, chunk=True),
    "engine_roomy": lambda rng: engine(rng, roomy=True, cut=True),
    "engine_roomy_bare": lambda rng: engine(rng, roomy=True, stochastic=True, cached=False, preempt=None),
    "engine_roomy_stochastic": lambda rng: engine(rng, roomy=True, stochastic=True, each=True),
}


def programs_of(name: str, number: int) -> list[Program]:
    """The k-th depends on the name and k alone."""
    return [STRUCTURES[name](Random(f"deadlines/{name}/{k}")) for k in range(number)]
