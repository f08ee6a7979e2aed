"""Generated structures in which holds are given back in part, reserve, lease, spill, or wait for times of their own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from generate import engine, variant
from generate_parts import GRAIN, cost_dyadic, explicit, grains
from ir14_builder import (
    CACHED,
    COMPUTED,
    DELAY,
    LIFO,
    SERIAL,
    Body,
    Builder,
    Json,
    S,
    W,
    add,
    at,
    by,
    call,
    ctx,
    draw,
    hold,
    mul,
    neg,
    num,
    of_pool,
    op,
    pool_state,
    ref,
    see,
    sub,
    work,
)


def leased(statement: Json, pool: int, after: Json) -> Json:
    """A hold whose scope leaves a lease of `pool`."""
    statement["Hold"]["lease"] = [ref(pool), after]
    return statement


def rows(rng: Random, start: int, *slots: tuple[int, Callable[[], float]], most: int = 9) -> Json:
    arrivals = [(start, lambda: rng.choice([0, float(rng.randint(0, 6)), grains(rng, 0, 6)])), *slots]
    return explicit(rng, rng.randint(3, most), arrivals, [], 0)


def looks(b: Builder, *pools: int) -> Callable[[], list[Json]]:
    """Statements that observe what a session sees of its pools."""
    seen = b.observe("seen")
    functions = ("Allocated", "CachedIn", "Used", "Holders", "Free")
    return lambda: [(S, see(seen, pool_state(f, p))) for p in pools for f in functions] + [(S, see(seen, ctx("Now")))]


def held_reserves(rng: Random, *, preempt: Json) -> Json:
    """Nested holds that keep their reserve, growth and shrinking beside them."""
    b = Builder()
    start, u, g, w = (b.attr(name, "Size") for name in ("start", "u", "g", "w"))
    cap = rng.randint(12, 26)
    mem = b.pool("mem", float(cap), float(rng.choice([1, 2, 4])), preempt=preempt, reserve_held=True)
    slots = b.pool("slots", float(rng.randint(2, 6)), reserve_held=True)
    tool, desk = b.stage("tool", DELAY), b.stage("desk", {"Fifo": rng.randint(1, 2)})
    look, done = looks(b, mem, slots), b.observe("done")
    inner = [(S, work(tool, at(w))), (S, {"Grow": [ref(mem), of_pool(mem, at(g))]}), *look(), (S, work(desk, at(w)))]
    outer = [
        (S, work(tool, num(grains(rng, GRAIN, 2)))),
        (S, {"Grow": [ref(mem), of_pool(mem, at(g))]}),
        (S, {"Shrink": [ref(mem), of_pool(mem, num(rng.randint(0, 5)))]}),
        *look(),
        (S, hold([(slots, num(1), num(rng.randint(1, 2))), (mem, at(u), add(at(u), num(rng.randint(0, 3))))], inner)),
        (S, work(tool, at(w))),
    ]
    session = [
        (S, work(tool, at(start))),
        (S, hold([(mem, at(u), add(at(u), at(g)))], outer, None, num(rng.randint(0, 6)))),
        (S, see(done, ctx("Now"))),
    ]
    arrivals = rows(
        rng,
        start,
        (u, lambda: rng.randint(1, 4)),
        (g, lambda: rng.randint(0, 5)),
        (w, lambda: rng.choice([0.5, grains(rng, 0, 3)])),
    )
    return b.finish(rng, arrivals, session, horizon=60)


def give_parts(rng: Random, *, preempt: Json = "None", keyed: bool = False) -> Json:
    """Shrink, load and release in nested holds with caches."""
    b = Builder()
    start, u, g, w = (b.attr(name, "Size") for name in ("start", "u", "g", "w"))
    evict: Json = {"By": [pool_state("Allocated", 0), neg(ctx("Size"))]} if keyed else "Lru"
    mem = b.pool("mem", float(rng.randint(14, 30)), float(rng.choice([1, 2, 4])), preempt=preempt, evict=evict)
    disk = b.pool("disk", float(rng.randint(8, 20)), None, queue=[at(u)])
    tool, desk = b.stage("tool", DELAY), b.stage("desk", {"Fifo": rng.randint(1, 2)})
    look, done = looks(b, mem, disk), b.observe("done")
    load = (S, {"Load": [ref(mem), of_pool(mem, call("Min", at(g), num(rng.randint(0, 2))))]})
    inner = [
        (S, work(tool, at(w))),
        (S, {"Release": ref(mem)}),
        *look(),
        (S, work(desk, at(w))),
        (S, {"Release": ref(disk)}),
        (S, work(tool, num(grains(rng, GRAIN, 1)))),
    ]
    outer = [
        load,
        (S, work(tool, at(w))),
        (S, {"Shrink": [ref(mem), of_pool(mem, at(g))]}),
        *look(),
        (S, hold([(disk, at(g), None), (mem, num(rng.randint(1, 4)), None)], inner, at(u), num(rng.randint(0, 4)))),
        (S, work(tool, num(grains(rng, GRAIN, 2)))),
        (S, {"Release": ref(mem)}),
        *look(),
        (S, work(desk, at(w))),
    ]
    if preempt == "None":
        outer.insert(-1, (S, {"Branch": [op("Gt", at(SERIAL), num(2)), Body([(S, {"Release": ref(mem)})]), Body()]}))
    again = hold([(mem, at(u), None)], [(S, see(done, at(CACHED))), (S, work(desk, at(w)))], at(u), at(u))
    session = [
        (S, work(tool, at(start))),
        (S, hold([(mem, add(at(u), num(3)), None)], outer, None, at(g))),
        (S, work(tool, at(w))),
        (S, again),
        (S, see(done, ctx("Now"))),
        (S, see(done, at(COMPUTED))),
    ]
    arrivals = rows(
        rng,
        start,
        (u, lambda: rng.randint(1, 6)),
        (g, lambda: rng.randint(0, 6)),
        (w, lambda: rng.choice([0, 0.5, grains(rng, 0, 3)])),
    )
    return b.finish(rng, arrivals, session, horizon=60)


def leases(rng: Random, *, draws: bool = False, infinite: bool = False) -> Json:
    """Leases that expire, are released, or end with their session; their caches are taken up again."""
    b = Builder()
    start, u, w, life = (b.attr(name, "Size") for name in ("start", "u", "w", "life"))
    mem = b.pool("mem", float(rng.randint(12, 30)), float(rng.choice([1, 2, 4])))
    slots = b.pool("slots", float(rng.randint(2, 5)), reserve_held=True)
    tool, desk = b.stage("tool", DELAY), b.stage("desk", {"Fifo": rng.randint(1, 2)})
    look, done = looks(b, mem, slots), b.observe("done")
    after = draw("Exp", rng.uniform(0.5, 3)) if draws else at(life)
    first = leased(
        hold([(slots, num(1), num(2)), (mem, at(u), None)], [(S, work(desk, at(w)))], at(u), at(u)), mem, after
    )
    second = hold([(mem, call("Min", at(u), num(3)), None)], [*look(), (S, work(tool, at(w)))], at(u), num(2))
    second = leased(second, mem, {"Num": "inf"} if infinite else num(grains(rng, GRAIN, 3)))
    session = [
        (S, work(tool, at(start))),
        (S, first),
        *look(),
        (S, work(tool, at(w))),
        *look(),
        (S, {"Branch": [op("Lt", at(w), num(1)), Body([(S, {"Release": ref(mem)}), *look()]), Body()]}),
        (S, work(tool, num(grains(rng, GRAIN, 2)))),
        (S, second),
        *look(),
        (S, work(tool, num(grains(rng, GRAIN, 3)))),
        (S, {"Drop": ref(mem)}),
        (S, see(done, ctx("Now"))),
    ]
    arrivals = rows(
        rng,
        start,
        (u, lambda: rng.randint(1, 7)),
        (w, lambda: rng.choice([0, 1, grains(rng, 0, 3)])),
        (life, lambda: rng.choice([0, 1, 2, grains(rng, 0, 4)])),
    )
    return b.finish(rng, arrivals, session, horizon=60)


def shared_leases(rng: Random) -> Json:
    """The same beside a stage whose jobs share its rate."""
    program = leases(rng)
    desk = next(stage for stage in program["stages"] if stage["name"] == "desk")
    desk["kind"] = {"Ps": num(rng.choice([1, 2]))}
    return program


def forked_leases(rng: Random, *, by_legs: bool = False) -> Json:
    """Leases of a session, whose legs hold units of the same pool and release them (`by_legs`: and lease them too)."""
    b = Builder()
    start, u, w = (b.attr(name, "Size") for name in ("start", "u", "w"))
    mem = b.pool("mem", float(rng.randint(8, 16)), float(rng.choice([1, 2, 4])))
    disk = b.pool("disk", float(rng.randint(6, 12)))
    tool, desk = b.stage("tool", DELAY), b.stage("desk", {"Fifo": rng.randint(1, 2)})
    look, done = looks(b, mem, disk), b.observe("done")

    def pause() -> tuple[str, Json]:
        return S, work(tool, num(grains(rng, 0, 2)))

    def lease(after: Json) -> tuple[str, Json]:
        body = [(S, work(desk, at(w))), *look()]
        return S, leased(hold([(mem, at(u), None), (disk, num(1), None)], body, None, at(u)), mem, after)

    def leg() -> tuple[str, Json]:
        release = (S, {"Release": ref(mem)})
        if by_legs:
            body = [pause(), lease(num(grains(rng, 0, 6))), *look(), pause(), *look()]
        else:
            inside = [(S, work(desk, at(w))), *look(), release, *look(), pause()]
            body = [pause(), (S, hold([(mem, num(rng.randint(1, 5)), None)], inside, None, at(u))), *look()]
        return S, {"Fork": Body(body)}

    session = [
        (S, work(tool, at(start))),
        lease(num(grains(rng, 0, 4))),
        leg(),
        leg(),
        *look(),
        lease(at(w)),
        (S, "Join"),
        *look(),
        (S, {"Release": ref(mem)}),
        *look(),
        (S, work(tool, at(w))),
        (S, see(done, ctx("Now"))),
    ]
    arrivals = rows(
        rng, start, (u, lambda: rng.randint(1, 4)), (w, lambda: rng.choice([0, 0.5, grains(rng, 0, 3)])), most=6
    )
    return b.finish(rng, arrivals, session, horizon=80)


def split_leases(rng: Random, *, cached: bool = False) -> Json:
    """Prefill on one engine, a lease during the copy, decode on another that loads what was copied."""
    b = Builder()
    size = float(rng.choice([2, 4, 8]))
    n, o, start, moved, t0 = (
        b.attr("n", "Size"),
        b.attr("o", "Size"),
        b.attr("start", "Size"),
        b.attr("moved"),
        b.attr("t0"),
    )
    kv = [
        b.pool("kvP", float(int(rng.uniform(32, 90) / size + 1) * size), size, admit_via=0),
        b.pool("kvD", float(int(rng.uniform(48, 110) / size + 1) * size), size, preempt=LIFO, admit_via=1),
    ]
    engines = [
        b.stage(
            name,
            {
                "Step": {
                    "budget": num(rng.choice([8, 16, 32])),
                    "cost": cost_dyadic(rng),
                    "chunk": num(0),
                    "serve": {"By": []},
                    "memory": kv[i],
                }
            },
        )
        for i, name in enumerate("PD")
    ]
    link, tool = b.stage("link", {"Fifo": 1}), b.stage("tool", DELAY)
    first, arrived, response = b.observe("first"), b.observe("arrived"), b.observe("response")
    prefill = [(S, work(engines[0], at(n), "Prefill", kv[0])), (S, see(first, sub(ctx("Now"), at(t0))))]
    copies = hold([(kv[0], at(n), None)], prefill, at(n) if cached else None, at(n) if cached else None)
    copies = leased(copies, kv[0], num(rng.choice([100, rng.randint(1, 6) / 2])))
    takes = [(kv[1], call("Max", at(n), at(COMPUTED)), None)]
    lost = [(S, work(engines[1], at(COMPUTED), "Prefill", kv[1]))]
    copy = [
        (S, work(link, mul(num(rng.randint(1, 8) / 64), at(n)))),
        (S, {"Load": [ref(kv[1]), of_pool(kv[1], at(n))]}),
        (S, {"Release": ref(kv[0])}),
        (S, {"Set": [moved, num(1)]}),
        (S, see(arrived, sub(ctx("Now"), at(t0)))),
    ]
    decode = [
        (S, {"Branch": [op("Gt", at(moved), num(0)), Body(lost), Body(copy)]}),
        (S, work(engines[1], sub(at(o), num(1)), "Decode", kv[1])),
    ]
    session = [
        (W, work(tool, at(start))),
        (W, "Turn"),
        (S, {"Set": [t0, ctx("Now")]}),
        (S, {"Set": [moved, num(0)]}),
        (S, copies),
        (S, hold(takes, decode)),
        (S, see(response, sub(ctx("Now"), at(t0)))),
        (W, "End"),
    ]
    arrivals = explicit(
        rng,
        rng.randint(3, 8),
        [(start, lambda: float(rng.randint(0, 12))), (n, lambda: rng.randint(2, 30)), (o, lambda: rng.randint(1, 20))],
        [],
        0,
    )
    return b.finish(rng, arrivals, session, horizon=200)


def spills(rng: Random, *, draws: bool = False, chain: bool = False) -> Json:
    """Caches that spill into a tier over a stage, and a session that takes from the tier too."""
    b = Builder()
    start, u, w = b.attr("start", "Size"), b.attr("u", "Size"), b.attr("w", "Size")
    evict: Json = {"By": [neg(ctx("Size")), ctx("Last")]} if chain else "Lru"
    block = float(rng.choice([1, 2, 4]))
    mem = b.pool("mem", float(rng.randint(8, 16)), block)
    host = b.pool("host", float(rng.randint(3, 10)), block if chain else None, evict=evict)
    disk = b.pool("disk", float(rng.randint(3, 9)))
    tool, desk = b.stage("tool", DELAY), b.stage("desk", {"Fifo": rng.randint(1, 2)})
    link = b.stage("link", {"Fifo": 1} if chain else rng.choice([DELAY, DELAY]))
    when = op("Gt", add(ctx("Size"), mul(num(rng.choice([0, 1])), ctx("Age"))), num(rng.randint(0, 2)))
    if draws:
        when = draw("Bernoulli", rng.uniform(0.3, 0.9))
    moved = add(num(grains(rng, GRAIN, 0.5)), mul(num(rng.randint(0, 8) / 32), add(ctx("Size"), at(u))))
    b.pools[mem]["spill"] = {
        "to": host,
        "via": link,
        "when": when,
        "work": draw("Exp", rng.uniform(0.1, 1)) if draws else moved,
    }
    if chain:
        b.pools[host]["spill"] = {
            "to": disk,
            "via": link,
            "work": mul(num(rng.randint(0, 8) / 32), ctx("Size")),
            "when": op("Lt", pool_state("CachedIn", disk), num(rng.randint(1, 6))),
        }
    look, done = looks(b, mem, host, disk), b.observe("done")
    second = [(S, work(desk, at(w))), *look()]
    session = [
        (S, work(tool, at(start))),
        (S, work(link, num(0.125))),
        (S, hold([(mem, at(u), None)], [(S, work(desk, at(w)))], at(u), at(u))),
        (S, work(tool, at(w))),
        (S, hold([(mem, call("Min", at(u), num(4)), None)], [(S, work(tool, at(w)))], num(rng.randint(0, 4)), at(u))),
        *look(),
        (S, hold([(host, num(rng.randint(0, 2)), None)], second, None, at(u))),
        (S, hold([(disk, num(rng.randint(0, 2)), None)], second, None, at(u))),
        (S, work(tool, num(grains(rng, GRAIN, 3)))),
        (S, hold([(mem, at(u), None)], [(S, work(desk, at(w)))], at(u), at(u))),
        *look(),
        (S, see(done, ctx("Now"))),
    ]
    arrivals = rows(
        rng, start, (u, lambda: rng.randint(1, 8)), (w, lambda: rng.choice([0, 1, grains(rng, 0, 3)])), most=12
    )
    return b.finish(rng, arrivals, session, horizon=60)


def timed_lines(rng: Random, *, keyed: bool = False, nested: bool = False) -> Json:
    """Lines that are admitted at times of their own, beside one that is not."""
    b = Builder()
    start, u, w = b.attr("start", "Size"), b.attr("u", "Size"), b.attr("w", "Size")
    mem = b.pool("mem", float(rng.randint(8, 16)), 2.0, queue=[at(u), neg(ctx("Waited"))] if keyed else None)
    slots = b.pool("slots", float(rng.randint(1, 4)))
    b.pools[mem]["queue_every"] = rng.choice([1.0, 1.5, 3.0])
    if nested:
        b.pools[slots]["queue_every"] = rng.choice([1.0, 2.0])
    tool, desk = b.stage("tool", DELAY), b.stage("desk", {"Fifo": rng.randint(1, 2)})
    look, began, done = looks(b, mem, slots), b.observe("began"), b.observe("done")
    inner = [(S, see(began, ctx("Now"))), *look(), (S, work(desk, at(w))), (S, work(tool, num(0))), *look()]
    first = (S, hold([(mem, at(u), None)], inner, None, at(u)))
    second = (S, hold([(slots, num(1), None)], [*look(), (S, work(tool, at(w)))]))
    session = [
        (S, work(tool, at(start))),
        first,
        second,
        (S, work(tool, at(w))),
        (S, hold([(mem, at(u), None)], [second])),
        (S, see(done, ctx("Now"))),
    ]
    arrivals = rows(rng, start, (u, lambda: rng.randint(1, 7)), (w, lambda: rng.choice([0, 1, 3, grains(rng, 0, 3)])))
    return b.finish(rng, arrivals, session, horizon=60)


#: name -> builder.
STRUCTURES: dict[str, Callable[[Random], Json]] = {
    "held_reserves": variant(held_reserves, preempt="None"),
    "held_reserves_lifo": variant(held_reserves, preempt=LIFO),
    "held_reserves_tail": variant(held_reserves, preempt=by(ctx("Position"), tail=True)),
    "engine_reserve_held": variant(engine, taking="chunk_cold", reserve="whole", reserve_held=True),
    "engine_reserve_held_poisson": variant(
        engine, arrival="poisson", taking="chunk_cold", reserve="known", reserve_held=True, preempt="position"
    ),
    "give_parts": variant(give_parts),
    "give_parts_keyed": variant(give_parts, keyed=True),
    "give_parts_lifo": variant(give_parts, preempt=LIFO),
    "leases": variant(leases),
    "leases_drawn": variant(leases, draws=True),
    "leases_endless": variant(leases, infinite=True),
    "shared_leases": variant(shared_leases),
    "forked_leases": variant(forked_leases),
    "split_leases": variant(split_leases),
    "spills": variant(spills),
    "spills_drawn": variant(spills, draws=True),
    "spills_chain": variant(spills, chain=True),
    "timed_lines": variant(timed_lines),
    "timed_lines_keyed": variant(timed_lines, keyed=True),
    "timed_lines_nested": variant(timed_lines, nested=True),
    "split_leases_cached": variant(split_leases, cached=True),
}
NAMES = list(STRUCTURES)


def generate(name: str, rng: Random) -> Json:
    """A program of the structure, its numbers drawn from `rng`."""
    return STRUCTURES[name](rng)
