"""Generated serQ IR 14 programs around processor sharing: total rates, flows over several stages, latencies.

Where jobs share, times are no multiples of anything: programs here draw continuous times, or start equal jobs
together, which then end together. See `generate.py` for what a structure is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from ir14_builder import (
    DELAY,
    LIFO,
    Body,
    Builder,
    Json,
    S,
    W,
    add,
    at,
    by,
    call,
    cond,
    ctx,
    draw,
    hold,
    mul,
    neg,
    num,
    of_pool,
    op,
    put,
    ref,
    see,
    stage_state,
    sub,
    work,
)


def transfer(stages: list[int], amount: Json, share: str | None = None, latency: Json = None) -> Json:
    """A run over one or several stages."""
    cost = [{"Stage": {"base": stage, "count": 1}} for stage in sorted(stages)]
    fields: Json = {
        "stage": ref(stages[0]), "mode": "Plain", "growing": None,
        "work": {"Cost": [{"Joint": cost} if len(cost) > 1 else cost[0], amount]},
    }  # fmt: skip
    if len(stages) > 1:
        fields |= {"also": [ref(stage) for stage in stages[1:]], "share": share}
    if latency is not None:
        fields["latency"] = latency
    return {"Run": fields}


def rates(rng: Random, kind: str) -> Json:
    """Total rates as functions of the number of jobs."""
    some = num(rng.uniform(0.5, 2.0))
    return {
        "constant": lambda: some,
        "limited": lambda: mul(call("Min", ctx("N"), num(rng.randint(1, 4))), some),
        "stops": lambda: mul(op("Ne", ctx("N"), num(rng.randint(2, 4))), some),
        "waits": lambda: mul(op("Gt", ctx("N"), num(1)), some),
        "backwards": lambda: sub(num(rng.randint(2, 4) + 0.5), ctx("N")),
        "drawn": lambda: draw("Uniform", 0.5, rng.uniform(1, 3)),
        "clock": lambda: add(some, op("Gt", ctx("Now"), num(rng.uniform(5, 20)))),
        "square": lambda: mul(mul(ctx("N"), ctx("N")), num(rng.uniform(0.2, 0.6))),
    }[kind]()


def ps_open(
    rng: Random, *, kinds: tuple[str, str], closed: bool = False, warm: bool = False, drains: bool = False
) -> Json:
    """Two sharing stages between a delay and a fifo stage, routed by draws."""
    b = Builder()
    pick = b.attr("pick")
    a, c = (b.stage(name, {"Ps": rates(rng, kind)}) for name, kind in zip("ac", kinds))
    desk, think = b.stage("desk", {"Fifo": 1}), b.stage("think", DELAY)
    done, seen = b.observe("done"), b.observe("seen")

    def visit(stage: int) -> Json:
        look = [(S, see(seen, stage_state(fun, stage))) for fun in ("Queue", "Busy", "Work")]
        return Body([*look, (S, work(stage, draw("Exp", rng.uniform(0.3, 1.2)))), (S, see(done, ctx("Now"))), *look])

    once = [(S, put(pick, draw("Bernoulli", 0.5))), (S, {"Branch": [at(pick), visit(a), visit(c)]}),
            (S, work(desk, draw("Uniform", 0.0, 0.4)))]
    if closed:
        session = [(S, {"Loop": Body([(S, work(think, draw("Exp", 2.0))), *once])})]
        arrival: Json = {"Closed": rng.randint(2, 9)}
    else:
        session, arrival = [(W, "Turn"), *once, (W, work(think, draw("Exp", 0.5)))], {"Poisson": rng.uniform(0.5, 2)}
    return b.finish(rng, arrival, session, horizon=400 if drains else 40, warmup=5.0 if warm else 0.0,
                    arrivals=rng.randint(10, 30) if drains else None)


def ps_waves(rng: Random) -> Json:
    """Equal jobs that start and end together, and then share the iterations of an engine."""
    b = Builder()
    wave, n = b.attr("wave", "Size"), b.attr("n", "Size")
    size = float(2 ** rng.randint(-2, 2))
    p = b.stage("p", {"Ps": num(2.0 ** rng.randint(-1, 1))})
    e = b.stage("E", {"Step": {"budget": num(rng.choice([4, 8])), "cost": num(0.25), "chunk": num(0),
                               "serve": {"By": []}, "memory": None}})
    think = b.stage("think", DELAY)
    done = b.observe("done")
    session = [(S, work(think, mul(at(wave), num(200)))), (S, work(p, num(size))), (S, see(done, ctx("Now"))),
               (S, work(e, at(n), "Prefill")), (S, see(done, ctx("Now"))), (S, work(p, num(size)))]
    rows = [{"attrs": [[wave, float(k)], [n, float(rng.randint(1, 6))]]} for k in range(3) for _ in range(2**k)]
    return b.finish(rng, {"Sessions": rows}, session, horizon=900)


def flows(
    rng: Random, *, share: str, routes: tuple[tuple[int, ...], ...], latency: str | None = None, split: bool = False,
    warm: bool = False,
) -> Json:
    """Transfers over the links of a fabric (and, `split`, of a second one with the other policy)."""
    b = Builder()
    links = [b.stage(f"link{i}", {"Ps": num(rng.uniform(0.5, 3))}) for i in range(1 + max(max(r) for r in routes))]
    other = [b.stage(f"other{i}", {"Ps": num(rng.uniform(0.5, 3))}) for i in range(2)] if split else []
    think = b.stage("think", DELAY)
    pick, size = b.attr("pick", "Size"), b.attr("size", "Size")
    done, seen = b.observe("done"), b.observe("seen")
    wait: Json = {None: None, "constant": num(rng.uniform(0.05, 0.4)), "drawn": draw("Exp", 0.3),
                  "some": cond(op("Lt", at(pick), num(1)), num(0), num(rng.uniform(0.1, 0.6)))}[latency]
    arms: list[Json] = []
    for k, route in enumerate(routes):
        look = [(S, see(seen, stage_state(fun, links[route[0]]))) for fun in ("Queue", "Busy", "Work")]
        amount = at(size) if latency != "some" else mul(at(size), op("Lt", at(size), num(1.5)))  # some without work
        there = transfer([links[i] for i in route], amount, share, wait)
        arms.append((S, {"Branch": [op("Eq", at(pick), num(k)), Body([*look, (S, there)]), Body()]}))
    back = [(S, transfer(other, at(size), "Bottleneck" if share == "MaxMin" else "MaxMin"))] if split else []
    session = [(W, "Turn"), *arms, (S, see(done, ctx("Now"))), *back, (S, see(done, ctx("Now"))),
               (W, work(think, draw("Exp", 1.0)))]
    init = [put(size, draw("Exp", rng.uniform(0.4, 1.0))),
            put(pick, call("Floor", draw("Uniform", 0, len(routes))))]
    return b.finish(rng, {"Poisson": rng.uniform(0.6, 2.0)}, session, init=init, horizon=40,
                    warmup=4.0 if warm else 0.0)


def flow_waves(rng: Random, *, share: str) -> Json:
    """Equal transfers that start together, between stages with queues of their own."""
    b = Builder()
    wave, side = b.attr("wave", "Size"), b.attr("side", "Size")
    cap = 2.0 ** rng.randint(-1, 2)
    out, into, far = (b.stage(name, {"Ps": num(c)}) for name, c in (("out", cap), ("into", 2 * cap), ("far", 2 * cap)))
    desk, think = b.stage("desk", {"Fifo": 1}), b.stage("think", DELAY)
    done = b.observe("done")
    amount = num(cap * rng.choice([0.5, 1, 3]))
    session = [(S, work(think, mul(at(wave), num(100)))),
               (S, {"Branch": [op("Eq", at(side), num(0)), Body([(S, transfer([out, into], amount, share))]),
                               Body([(S, transfer([out, far], amount, share))])]}),
               (S, see(done, ctx("Now"))), (S, work(desk, num(0.5))), (S, transfer([into], amount)),
               (S, see(done, ctx("Now")))]
    rows = [{"attrs": [[wave, float(k)], [side, float(rng.randint(0, 1))]]} for k in range(4) for _ in range(2**k // 2)]
    return b.finish(rng, {"Sessions": rows}, session, horizon=600)


def latencies(rng: Random) -> Json:
    """Latencies before every kind of stage, with and without work behind them."""
    b = Builder()
    desk, lane, think, s = b.stage("desk", {"Fifo": rng.randint(1, 2)}), b.stage("lane", {"Fifo": 1}), \
        b.stage("think", DELAY), b.stage("s", {"Ps": num(rng.uniform(0.7, 2))})  # fmt: skip
    x, lag = b.attr("x", "Size"), b.attr("lag")
    done, seen = b.observe("done"), b.observe("seen")
    session: list[Json] = [(W, "Turn")]
    for stage in (desk, think, s, lane):
        look = [(S, see(seen, stage_state(fun, stage))) for fun in ("Queue", "Busy", "Work")]
        amount = mul(at(x), op("Gt", at(x), num(rng.uniform(0.1, 0.3))))
        session += [*look, (S, transfer([stage], amount, latency=at(lag))), (S, see(done, ctx("Now")))]
        session.append((S, put(lag, draw("Uniform", 0.0, 0.5))))
    init = [put(x, draw("Exp", rng.uniform(0.3, 0.6)))]
    return b.finish(rng, {"Poisson": rng.uniform(0.5, 1.5)}, session, init=init, horizon=40,
                    warmup=rng.choice([0.0, 4.0]))


def preempted(rng: Random, *, tail: bool = False) -> Json:
    """Holds that grow and preempt others while they share a stage, move over links, or wait for their latency."""
    b = Builder()
    mem = b.pool("mem", float(rng.randint(5, 9)), preempt=by(neg(ctx("Admission")), tail=True) if tail else LIFO)
    s = b.stage("s", {"Ps": num(rng.uniform(0.5, 2))})
    out, into = (b.stage(name, {"Ps": num(rng.uniform(0.5, 2))}) for name in ("out", "into"))
    desk, think = b.stage("desk", {"Fifo": 1}), b.stage("think", DELAY)
    done = b.observe("done")
    x, u = b.attr("x", "Size"), b.attr("u", "Size")
    grow: Callable[[], Json] = lambda: (S, {"Grow": [ref(mem), of_pool(mem, num(1))]})  # noqa: E731
    body = [(S, work(s, at(x))), grow(), (S, transfer([out, into], at(x), "MaxMin", num(rng.uniform(0.1, 0.5)))),
            grow(), (S, transfer([desk], num(0.3), latency=num(rng.uniform(0.1, 0.5)))), (S, see(done, ctx("Now")))]
    session = [(S, work(think, draw("Exp", 1.0))), (S, hold([(mem, at(u), None)], body)), (S, see(done, ctx("Now")))]
    init = [put(x, draw("Exp", rng.uniform(0.4, 0.9))), put(u, call("Floor", draw("Uniform", 1, 4)))]
    return b.finish(rng, {"Poisson": rng.uniform(0.4, 1.2)}, session, init=init, horizon=40)


def ps_engine(rng: Random, *, drawn: bool = False) -> Json:
    """An engine whose sessions share a tool and move their cache over links between iterations."""
    b = Builder()
    n, o, again = b.attr("n", "Size"), b.attr("o", "Size"), b.attr("again", "Size")
    kv = b.pool("kv", 96.0, 8.0, preempt=LIFO)
    slots = b.pool("slots", float(rng.randint(2, 5)), admit_via=1)
    tool = b.stage("tool", {"Ps": rates(rng, "drawn" if drawn else "limited")})
    base = draw("Uniform", 0.02, 0.1) if drawn else num(rng.uniform(0.02, 0.1))
    e = b.stage("E", {"Step": {"budget": num(rng.choice([8, 16, 24])), "cost": add(base, mul(num(0.01), ctx("Ntok"))),
                               "chunk": num(0), "serve": {"By": []}, "memory": kv}})
    out, into = (b.stage(name, {"Ps": num(rng.uniform(20, 90))}) for name in ("out", "into"))
    done, seen = b.observe("done"), b.observe("seen")
    serving = hold([(slots, num(1), None), (kv, at(n), None)], [
        (S, work(e, at(n), "Prefill", kv)), (S, transfer([out, into], at(n), "MaxMin")),
        (S, see(done, ctx("Now"))), (S, work(e, at(o), "Decode", kv))])
    session = [(W, "Turn"), (S, serving), (S, see(done, ctx("Now"))), (S, see(seen, stage_state("Work", tool))),
               (W, work(tool, draw("Exp", 0.5))),
               (W, {"While": [at(again), Body([(W, "Turn"), (S, serving), (W, work(tool, draw("Exp", 0.2)))])]})]
    turn = [put(n, call("Ceil", draw("Uniform", 1, 40))), put(o, call("Ceil", draw("Uniform", 1, 12))),
            put(again, draw("Bernoulli", 0.4))]
    return b.finish(rng, {"Poisson": rng.uniform(0.3, 1.0)}, session, turn=turn, horizon=30,
                    warmup=rng.choice([0.0, 3.0]))


CHAIN = ((0, 1), (1, 2), (2,))
STAR = ((0, 1), (0, 2), (0, 3), (1, 2, 3), (3,))

SHARING: dict[str, Callable[[Random], Json]] = {
    "ps_constant": partial(ps_open, kinds=("constant", "limited"), warm=True),
    "ps_stops": partial(ps_open, kinds=("stops", "waits")),
    "ps_drains": partial(ps_open, kinds=("limited", "constant"), drains=True),
    "ps_square": partial(ps_open, kinds=("square", "backwards")),
    "ps_drawn": partial(ps_open, kinds=("drawn", "clock")),
    "ps_closed": partial(ps_open, kinds=("constant", "square"), closed=True, warm=True),
    "ps_waves": ps_waves,
    "flows_chain": partial(flows, share="MaxMin", routes=CHAIN, warm=True),
    "flows_star": partial(flows, share="MaxMin", routes=STAR, latency="some"),
    "flows_narrow": partial(flows, share="Bottleneck", routes=STAR),
    "flows_two_fabrics": partial(flows, share="Bottleneck", routes=CHAIN, latency="drawn", split=True),
    "flows_late": partial(flows, share="MaxMin", routes=CHAIN, latency="constant", split=True),
    "flow_waves": partial(flow_waves, share="MaxMin"),
    "flow_waves_narrow": partial(flow_waves, share="Bottleneck"),
    "latencies": latencies,
    "preempted_sharers": preempted,
    "preempted_sharers_tail": partial(preempted, tail=True),
    "ps_engine": ps_engine,
    "ps_engine_drawn": partial(ps_engine, drawn=True),
}
