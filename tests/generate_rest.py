"""Generated serQ IR 14 programs for what the other generators have no need of: small, most of them without an engine.

See `generate.py` for what a structure is.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from generate import engine
from ir14_builder import (
    CACHED,
    DELAY,
    SERIAL,
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


def held_chain(rng: Random) -> Json:
    """Holds that keep a chain of contents, one session after the other: parts that all share, parts of their own."""
    b = Builder()
    start, n = b.attr("start", "Size"), b.attr("n", "Size")
    mem = b.pool("mem", 400.0, 4.0)
    tool, seen = b.stage("tool", DELAY), b.observe("seen")
    prefix = [[num(7), num(rng.choice([8, 12, 16]))], [at(SERIAL), {"Num": "inf"}]]
    held = hold([(mem, at(n), None)], [(S, see(seen, at(CACHED))), (S, work(tool, num(1)))], at(n), at(n))
    held["Hold"]["prefix"] = prefix
    session = [(S, work(tool, at(start))), (S, held), (S, work(tool, num(1))), (S, held), (S, see(seen, ctx("Now")))]
    rows = [{"attrs": [[start, 10.0 * k], [n, float(rng.randint(1, 40))]]} for k in range(rng.randint(2, 6))]
    return b.finish(rng, {"Sessions": rows}, session, horizon=100)


REST: dict[str, Callable[[Random], Json]] = {
    "curves": curves,
    "nobody": nobody,
    "requeued": requeued,
    "held_chain": held_chain,
}
