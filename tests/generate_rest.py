"""Generated serQ IR 14 programs for what the other generators have no need of: small, most of them without an engine.

See `generate.py` for what a structure is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from generate import engine
from ir14_builder import (
    CACHED,
    DELAY,
    SERIAL,
    Body,
    Builder,
    Json,
    S,
    W,
    add,
    at,
    call,
    ctx,
    draw,
    hold,
    mul,
    neg,
    num,
    of_pool,
    op,
    put,
    see,
    stage_state,
    sub,
    work,
)


def curves(rng: Random) -> Json:
    """Work and units by powers, roots, logarithms and exponentials; an attribute that is an amount of a pool, another
    one that no scheduler may read."""
    b = Builder()
    x, secret, need = b.attr("x", "Size"), b.attr("secret", "Size"), b.attr("need")
    mem = b.pool("mem", float(rng.randint(4, 9)))
    b.types[need] = {"Cost": {"Pool": {"base": mem, "count": 1}}}
    desk, tool = b.stage("desk", {"Fifo": rng.randint(1, 3)}), b.stage("tool", DELAY)
    seen, done = b.observe("seen"), b.observe("done")
    power = op("Pow", add(at(x), num(0.1)), num(rng.choice([0.5, 1.5, 2.0])))
    pause = call("Abs", sub(at(x), num(rng.uniform(0.3, 1.5))))
    body = [(S, see(seen, power)), (S, work(desk, power)), (S, see(seen, call("Ln", add(at(secret), num(1)))))]
    held = hold([(mem, num(0), None)], body)
    held["Hold"]["pools"][0][1] = at(need)
    session = [
        (W, work(tool, call("Sqrt", at(x)))),
        (S, put(need, of_pool(mem, call("Ceil", call("Min", add(at(x), num(1)), num(4)))))),
        (S, held),
        (W, work(tool, mul(call("Exp", neg(at(x))), pause))),
        (S, see(done, ctx("Now"))),
    ]
    init = [put(x, draw("Exp", rng.uniform(0.4, 1.2))), put(secret, draw("Uniform", 0, 2))]
    program = b.finish(rng, {"Poisson": rng.uniform(0.4, 1.2)}, session, init=init, horizon=40)
    return program | {"hidden": [secret]}


def nobody(rng: Random) -> Json:
    """No session ever comes."""
    return _desk(rng) | {"arrival": "None"}


def _desk(rng: Random) -> Json:
    b = Builder()
    desk, seen = b.stage("desk", {"Fifo": rng.randint(1, 3)}), b.observe("seen")
    session = [(W, "Turn"), (S, work(desk, draw("Exp", 1.0))), (S, see(seen, ctx("Now")))]
    return b.finish(rng, {"Poisson": 1.0}, session, horizon=20, warmup=rng.choice([0.0, 5.0]))


def requeued(rng: Random) -> Json:
    """Who comes back after a preemption takes some more, so that it is not the next to go."""
    program = engine(rng)
    ((kind, step),) = program["stages"][0]["kind"].items()
    assert kind == "Step"
    for take in step["request"]["pools"]:
        if take[1] == ctx("Known"):
            take[1] = add(ctx("Known"), mul(ctx("Requeued"), num(rng.choice([1, 8]))))
    return program


def held_chain(rng: Random, *, shared: Sequence[int] = (8, 12, 16)) -> Json:
    """Holds that keep a chain of contents, one session after the other: parts that all share, parts of their own.

    `shared`: what the length of the common part is drawn from, in units (a block has 4).
    """
    b = Builder()
    start, n = b.attr("start", "Size"), b.attr("n", "Size")
    mem = b.pool("mem", 400.0, 4.0)
    tool, seen = b.stage("tool", DELAY), b.observe("seen")
    prefix = [[num(7), num(rng.choice(shared))], [at(SERIAL), {"Num": "inf"}]]
    held = hold([(mem, at(n), None)], [(S, see(seen, at(CACHED))), (S, work(tool, num(1)))], at(n), at(n))
    held["Hold"]["prefix"] = prefix
    session = [(S, work(tool, at(start))), (S, held), (S, work(tool, num(1))), (S, held), (S, see(seen, ctx("Now")))]
    rows = [{"attrs": [[start, 10.0 * k], [n, float(rng.randint(1, 40))]]} for k in range(rng.randint(2, 6))]
    return b.finish(rng, {"Sessions": rows}, session, horizon=100)


# ---------------------------------------------------------------- desks: networks of stages without a pool


def desks(rng: Random, *, arrival: str = "poisson", kind: str = "fifo", way: str = "straight") -> Json:
    """Sessions between a delay and a stage of some kind, by different ways through their program.

    `arrival`: how sessions come; `kind`: of the second stage; `way`: what a session does there.
    """
    b = Builder()
    x, k, left = b.attr("x", "Size"), b.attr("k", "Size"), b.attr("left")
    rate = num(rng.uniform(0.8, 2))
    kinds: dict[str, Json] = {
        "fifo": {"Fifo": rng.randint(1, 3)},
        "delay": DELAY,
        "ps": {"Ps": rate},
        "limited": {"Ps": mul(call("Min", ctx("N"), num(rng.randint(2, 4))), rate)},
    }
    desk, tool = b.stage("desk", kinds[kind]), b.stage("tool", DELAY)
    seen, done = b.observe("seen"), b.observe("done")
    pause = (S, work(tool, add(num(rng.uniform(0.1, 0.4)), mul(at(x), num(rng.uniform(0.2, 1))))))
    serve = (S, work(desk, at(x)))
    look = [(S, see(seen, stage_state(fun, desk))) for fun in ("Queue", "Busy", "Work")]
    again = Body([pause, (S, put(left, sub(at(left), num(1)))), serve])
    ways: dict[str, list[Json]] = {
        "straight": [pause, *look, serve],
        "turns": [(W, "Turn"), serve, pause, (W, "Turn"), *look, serve],
        "branch": [(S, {"Branch": [op("Gt", at(x), num(0.7)), Body([*look, serve]), Body([pause])]}), serve],
        "while": [(S, put(left, at(k))), serve, (S, {"While": [op("Gt", at(left), num(0)), again]}), *look],
        "nothing": [(S, work(desk, mul(at(x), op("Gt", at(k), num(1))))), *look, (S, work(tool, num(0))), serve],
    }
    session = [*ways[way], (S, see(done, ctx("Now")))]
    if arrival == "closed":
        session = [(S, {"Loop": Body([pause, *session])})]
    init = [put(x, draw("Exp", rng.uniform(0.4, 1.0))), put(k, call("Floor", draw("Uniform", 0, 4)))]
    gap = draw("Erlang", 2, rng.uniform(0.5, 1.5))
    laws: dict[str, Json] = {
        "poisson": {"Poisson": rng.uniform(0.4, 1.5)}, "renewal": {"Renewal": gap}, "drain": {"Renewal": gap},
        "closed": {"Closed": rng.randint(1, 6)}, "batch": {"Batch": rng.randint(2, 12)},
    }  # fmt: skip
    if arrival == "sessions":
        listed = [{"attrs": [[x, float(rng.randint(1, 6)) / 2], [k, float(rng.randint(0, 3))]]} for _ in range(6)]
        return b.finish(rng, {"Sessions": listed}, session, horizon=60)
    drains = arrival == "drain"
    return b.finish(rng, laws[arrival], session, init=init, warmup=rng.choice([0.0, 3.0]),
                    horizon=400.0 if drains else 30.0, arrivals=rng.randint(5, 25) if drains else None)  # fmt: skip


#: Arrival, kind of the stage, way through the program. No `drain limited`: where a job keeps its rate when another one
#: leaves, an event that is out of date falls on the last event or an ulp beside it, and may be counted or not.
DESKS = """
    poisson fifo straight  poisson fifo turns  poisson fifo branch  poisson fifo while  poisson delay nothing
    poisson limited while  renewal fifo while  renewal ps straight  renewal delay turns  drain fifo straight
    drain fifo branch  drain ps turns  closed fifo straight  closed ps branch  closed limited nothing
    batch fifo while  batch limited straight  batch ps nothing  sessions fifo branch  sessions ps while
    sessions limited straight  renewal limited turns  batch delay turns""".split()

REST: dict[str, Callable[[Random], Json]] = {
    **{
        f"desk_{arrival}_{kind}_{way}": partial(desks, arrival=arrival, kind=kind, way=way)
        for arrival, kind, way in zip(DESKS[::3], DESKS[1::3], DESKS[2::3])
    },
    "curves": curves,
    "nobody": nobody,
    "requeued": requeued,
    "held_chain": held_chain,
}
