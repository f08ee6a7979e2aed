"""Generated serQ IR 14 programs of control: choices by keys, computed members of arrays, legs, online estimates.

Structures as in `generate.py`, which takes them into its table.
"""

from __future__ import annotations

from random import Random
from typing import Any

from ir14_builder import (
    CACHED,
    COMPUTED,
    DELAY,
    LIFO,
    MORE,
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
    sub,
    work,
)

GRAIN = 1 / 512

# ---------------------------------------------------------------- members of arrays


class Array:
    """An array of pools or stages: `at(index)` is a member, `state(fun, index)` reads one."""

    def __init__(self, kind: str, base: int, count: int):
        self.kind, self.base, self.count = kind, base, count

    def at(self, index: Json) -> Json:
        return {"base": self.base, "count": self.count, "index": index}

    def state(self, fun: str, index: Json) -> Json:
        return {"Call": [fun, [{self.kind: self.at(index)}]]}

    def cost(self, amount: Json) -> Json:
        return {"Cost": [self.target, amount]}

    @property
    def target(self) -> Json:
        return {self.kind: {"base": self.base, "count": self.count}}

    def price(self, index: Json, service: Json, delay: Json) -> Json:
        return {"Call": ["Price", [{self.kind: self.at(index)}, {"Expr": service}, {"Expr": delay}]]}


def stages(b: Builder, name: str, kinds: list[Json]) -> Array:
    base = len(b.stages)
    for i, kind in enumerate(kinds):
        b.stages.append({"name": name, "index": i, "kind": kind})
    return Array("Stage", base, len(kinds))


def pools(b: Builder, name: str, count: int, caps: list[float], **fields: Any) -> Array:
    base = len(b.pools)
    for i in range(count):
        own: Json = {k: v(i) if callable(v) else v for k, v in fields.items()}
        b.pools[b.pool(name, caps[i], **own)]["index"] = i
    return Array("Pool", base, count)


def work_at(array: Array, index: Json, amount: Json, mode: str = "Plain", growing: Json | None = None) -> Json:
    return {"Run": {"stage": array.at(index), "mode": mode, "work": array.cost(amount), "growing": growing}}


def hold_at(takes: list[tuple[Array, Json, Json, Json | None]], body: list[Json], reuse: Json = None,
            cache: Json = None) -> Json:
    """Takes are (array, index, units, reserve)."""
    targets = sorted((a.target for a, *_ in takes), key=lambda t: t["Pool"]["base"])
    joint = targets[0] if len(targets) == 1 else {"Joint": targets}
    return {"Hold": {
        "pools": [[a.at(i), a.cost(u), None if r is None else a.cost(r)] for a, i, u, r in takes],
        "reuse": None if reuse is None else {"Cost": [joint, reuse]}, "body": Body(body),
        "cache": None if cache is None else {"Cost": [joint, cache]}, "lease": None,
    }}  # fmt: skip


def choose(slot: int, count: Json | int, *keys: Json) -> Json:
    return {"Choose": {"var": slot, "count": num(count) if isinstance(count, int) else count, "key": list(keys)}}


def grains(rng: Random, low: float, high: float) -> float:
    return rng.randint(round(low / GRAIN), round(high / GRAIN)) * GRAIN


def sessions(
    rng: Random, count: int, attrs: dict[int, Any], turns: dict[int, Any] | None = None, most: int = 1
) -> Json:
    rows = []
    for _ in range(count):
        row: Json = {"attrs": [[slot, float(value())] for slot, value in attrs.items()]}
        if turns:
            row["turns"] = [[[slot, float(value())] for slot, value in turns.items()]
                            for _ in range(rng.randint(1, most))]
        rows.append(row)
    return {"Sessions": rows}


# ---------------------------------------------------------------- routing


def routed(rng: Random, *, keys: str, kind: str = "fifo", stochastic: bool = True) -> Json:
    """Replicas without memory; the router reads queues, work, servers, draws or estimates."""
    b = Builder()
    n = 4 if keys == "draws" else 3
    s, j, k, t0 = b.attr("s", "Size"), b.attr("j"), b.attr("k"), b.attr("t0")
    kinds = [DELAY if kind == "delay" else {"Fifo": rng.randint(1, 2)} for _ in range(n)]
    rep, tool = stages(b, "rep", kinds), b.stage("tool", DELAY)
    chosen, took, seen = b.observe("chosen"), b.observe("took"), b.observe("seen")
    # a structure has the same numbers of servers: they decide nothing that is compiled
    table: dict[str, list[Json]] = {
        "queue": [rep.state("Queue", at(j)), neg(at(j))],
        "work": [rep.state("Work", at(j))],
        "busy": [op("Gt", rep.state("Busy", at(j)), num(0)), mul(rep.state("Work", at(j)), num(rng.choice([1, -1])))],
        "draws": [cond(op("Gt", at(j), num(1)), draw("Uniform", 0, 1), num(0.5)), draw("Bernoulli", 0.5)],
        "estimates": [add(rep.state("EstWait", at(j)), rep.state("EstRho", at(j)),
                          mul(num(0.1), rep.state("EstLambda", at(j))))],
        "price": [rep.price(at(j), at(s), num(rng.choice([0.25, 1.0])))],
        "ties": [num(1.0)],
    }
    count: Json | int = n if keys != "work" else add(num(n - 1), op("Gt", at(SERIAL), num(rng.randint(2, 9))))
    route = [(S, choose(j, count, *table[keys])), (S, see(chosen, at(j))),
             (S, put(k, sub(num(n - 1), at(j)))), (S, see(seen, rep.state("Queue", at(k)))),
             (S, see(seen, rep.state("Work", sub(num(n - 1), at(j))))),
             (S, work_at(rep, at(j), at(s))), (S, see(took, sub(ctx("Now"), at(t0)))),
             (S, see(seen, rep.state("EstWait", at(k)) if keys in ("estimates", "price") else at(k)))]
    if stochastic:
        turn = [put(s, draw("H2", 1.0, rng.choice([1.0, 3.0])))]
        session = [(W, "Turn"), (S, put(t0, ctx("Now"))), *route, (S, work(tool, draw("Exp", 0.5))), *route, (W, "End")]
        return b.finish(rng, {"Poisson": rng.uniform(0.4, 1.4)}, session, turn=turn, horizon=60,
                        warmup=rng.choice([0.0, 10.0]))
    start = b.attr("start", "Size")
    session = [(S, work(tool, at(start))), (S, put(t0, ctx("Now"))), *route, *route]
    arrivals = sessions(rng, rng.randint(4, 14), {start: lambda: rng.randint(0, 8),
                                                  s: lambda: rng.choice([0, 1, grains(rng, 0.25, 4)])})
    return b.finish(rng, arrivals, session, horizon=100)


def members(rng: Random, *, cached: bool = False, grow: bool = False, preempt: Json = "None") -> Json:
    """Holds of computed members of two arrays of pools, nested or together, around a replica chosen by their state."""
    b = Builder()
    n = 3
    w, u, g, start = b.attr("w", "Size"), b.attr("u", "Size"), b.attr("g", "Size"), b.attr("start", "Size")
    i, j = b.attr("i"), b.attr("j")
    size = float(rng.choice([1, 2, 4]))
    caps = [float(rng.randint(3, 6) * size) for _ in range(n)]
    mem = pools(b, "mem", n, caps, block=size, preempt=preempt)
    slots = pools(b, "slot", 2, [float(rng.randint(1, 3)) for _ in range(2)])
    rep, tool = stages(b, "rep", [{"Fifo": 1}] * 2), b.stage("tool", DELAY)
    seen, done = b.observe("seen"), b.observe("done")
    most = int(min(caps))
    largest = most if preempt == "None" else most - most // 2  # growth fits beside it, or it would never pass
    body: list[Json] = [(S, see(seen, at(CACHED))), (S, see(seen, mem.state("Allocated", at(i)))),
                        (S, work_at(rep, at(j), at(w))), (S, see(seen, mem.state("Used", sub(num(2), at(i)))))]
    if grow:
        body += [(S, {"Grow": [mem.at(at(i)), mem.cost(at(g))]}), (S, work(tool, num(grains(rng, 0.25, 2)))),
                 (S, see(seen, mem.state("Allocated", at(i))))]
    inner = (S, hold_at([(mem, at(i), at(u), add(at(u), num(1)) if not grow else None)], body,
                        at(u) if cached else None, call("Ceil", mul(num(2), at(w))) if cached else None))
    if preempt == "None":
        outer = [(S, work(tool, num(rng.choice([0.5, 1])))), inner, (S, see(seen, slots.state("Holders", at(j))))]
        held = (S, hold_at([(slots, at(j), num(1), None)], outer))
    else:
        held = (S, hold_at([(slots, at(j), num(1), None), (mem, at(i), at(u), None)], body))
    affinity = neg(mem.state("CachedIn", at(i))) if cached else mem.state("Queued", at(i))
    round_ = [(S, choose(i, n, affinity, neg(mem.state("Free", at(i))))),
              (S, choose(j, 2, add(slots.state("Queued", at(j)), slots.state("Holders", at(j))))),
              held, (S, see(done, add(mul(num(10), at(i)), at(j))))]
    session = [(S, work(tool, at(start))), *round_, (S, work(tool, num(grains(rng, 0, 3)))), *round_]
    if cached:
        session += [(S, {"Drop": mem.at(at(i))}), (S, see(seen, mem.state("CachedIn", at(i)))), *round_]
    arrivals = sessions(rng, rng.randint(4, 12), {
        start: lambda: rng.randint(0, 6), w: lambda: rng.choice([0, 1, grains(rng, 0.25, 4)]),
        u: lambda: rng.randint(0, largest), g: lambda: rng.randint(0, max(1, most // 2))})
    return b.finish(rng, arrivals, session, horizon=120)


def fleet(rng: Random, *, form: str, router: str = "queue", stochastic: bool = False, cached: bool = False,
          preempt: Json = LIFO, slots_first: bool = True) -> Json:
    """Replica engines with slots and KV of their own. `form`: `hold` of computed members, `chunk` likewise (no more
    than the budget left at first, the rest reserved), `request`."""
    b = Builder()
    n = 2 if form == "request" else 3
    size = float(rng.choice([2, 4, 8, 16]))
    p, o, start, think = (b.attr(name, "Size") for name in ("n", "o", "start", "pause"))
    t0, j, known, c = b.attr("t0"), b.attr("j"), b.attr("known"), b.attr("c")
    caps = [float(int(rng.uniform(1.0, 2.2) * 90 / size + 1) * size) for _ in range(n)]
    first_pools = [lambda: pools(b, "slot", n, [float(rng.randint(1, 4)) for _ in range(n)], admit_via=lambda i: i),
                   lambda: pools(b, "kv", n, caps, block=size, preempt=preempt)]
    slot, kv = (first_pools[0](), first_pools[1]()) if slots_first else (first_pools[1](), first_pools[0]())[::-1]
    step: list[Json] = []
    records = {"reused": b.observe("reused"), "prefill": b.observe("prefill"), "admitted": b.attr("adm"),
               "first": b.attr("first"), "last_reused": b.attr("lr"), "last_prefill": b.attr("lp")}
    for r in range(n):
        cost = add(num(grains(rng, 0.25, 1.0)), mul(num(rng.randint(0, 8) / 64), ctx("Ndec")),
                   mul(num(rng.randint(0, 2) / 512), ctx("Kvb")), mul(num(rng.randint(0, 4) / 128), ctx("Npre")))
        row: Json = {"budget": num(rng.choice([8, 16, 32])), "cost": cost, "chunk": num(0), "serve": {"By": []},
                     "memory": kv.base + r}
        if form == "request":
            unit = num(size)
            bound = mul(call("Floor", op("Div", sub(ctx("Known"), num(1)), unit)), unit)
            row["request"] = {"pools": [[ref(slot.base + r), num(1), None], [ref(kv.base + r), ctx("Known"), None]],
                              "records": records}
            if cached:
                row["request"] |= {"reuse": bound, "cache": add(ctx("Input"), ctx("Output"))}
        step.append({"Step": row})
    e, tool = stages(b, "E", step), b.stage("tool", DELAY)
    chosen, done, seen = b.observe("chosen"), b.observe("done"), b.observe("seen")
    routers: dict[str, list[Json]] = {
        "queue": [add(e.state("Queue", at(j)), slot.state("Queued", at(j))), neg(kv.state("Free", at(j)))],
        "work": [e.state("Work", at(j)), e.state("Busy", at(j))],
        "kv": [op("Div", kv.state("Used", at(j)), add(kv.state("Used", at(j)), kv.state("Free", at(j))))],
        "affinity": [neg(kv.state("CachedIn", at(j))), slot.state("Holders", at(j))],
        "random": [draw("Uniform", 0, 1)],
        "estimates": [add(e.state("EstWait", at(j)), e.state("EstRho", at(j)))],
        "price": [e.price(at(j), at(o), num(1.0)), e.state("EstLambda", at(j))],
    }
    if form == "request":
        serving = [(S, {"Request": {"stage": e.at(at(j)), "input": at(p), "output": at(o)}})]
    else:
        whole = cond(op("Lt", at(COMPUTED), at(p)), at(p), add(at(COMPUTED), num(1)))
        taken = whole if form == "hold" else call("Min", whole, e.state("BudgetLeft", at(j)))
        hit = call("Min", at(CACHED), mul(call("Floor", op("Div", sub(at(known), num(1)), num(size))), num(size)))
        body = [(S, put(known, whole)), (S, put(c, hit if cached else num(0))),
                (S, see(seen, sub(at(known), at(c)))),
                (S, work_at(e, at(j), sub(at(known), at(c)), "Prefill", kv.at(at(j)))),
                (S, work_at(e, at(j), sub(sub(at(o), num(1)), sub(at(known), at(p))), "Decode", kv.at(at(j))))]
        reuse = mul(call("Floor", op("Div", sub(whole, num(1)), num(size))), num(size)) if cached else None
        serving = [(S, hold_at([(slot, at(j), num(1), None), (kv, at(j), taken, whole if form != "hold" else None)],
                               body, reuse, add(at(p), at(o)) if cached else None))]

    def turn() -> list[Json]:
        return [(W, "Turn"), (S, put(t0, ctx("Now"))), (S, choose(j, n, *routers[router])), (S, see(chosen, at(j))),
                *serving, (S, see(done, sub(ctx("Now"), at(t0))))]

    if stochastic:
        again = b.attr("again", "Size")
        draws = [put(p, add(call("Floor", draw("Uniform", 0, 40)), num(1))),
                 put(o, add(call("Floor", draw("Uniform", 0, 20)), num(1))), put(again, draw("Bernoulli", 0.4))]
        session = [*turn(), (W, {"While": [at(again), Body([(W, work(tool, draw("Exp", 3.0))), *turn()])]}), (W, "End")]
        return b.finish(rng, {"Poisson": rng.uniform(0.1, 0.4)}, session, turn=draws, horizon=80,
                        warmup=rng.choice([0.0, 10.0]))
    again_ = Body([(W, work(tool, at(think))), *turn()])
    session = [(W, work(tool, at(start))), *turn(), (W, {"While": [at(MORE), again_]})]
    arrivals = sessions(rng, rng.randint(4, 12), {start: lambda: rng.choice([0, rng.randint(0, 10)])}, {
        p: lambda: rng.randint(1, 50), o: lambda: rng.choice([1, rng.randint(1, 25)]),
        think: lambda: rng.choice([0, 0.5, 2])}, 3)
    return b.finish(rng, arrivals, session, horizon=200)


# ---------------------------------------------------------------- legs


def legs(rng: Random, *, memory: bool = False, cached: bool = False, engine: bool = False, rejects: bool = False,
         stochastic: bool = True, looped: bool = False) -> Json:
    """A session forks legs that draw, wait, hold and observe; it joins them, twice in a loop."""
    b = Builder()
    s, k, w, i, t0 = b.attr("s", "Size"), b.attr("k", "Size"), b.attr("w"), b.attr("i"), b.attr("t0")
    start = b.attr("start", "Size")
    cap = float(rng.randint(6, 10))
    mem = b.pool("mem", cap, queue=[neg(ctx("Waited")), at(w)] if rejects and not cached else None)
    cpu, tool = b.stage("cpu", {"Fifo": rng.randint(1, 3)}), b.stage("tool", DELAY)
    leg_seen, done, found = b.observe("leg"), b.observe("done"), b.observe("found")
    e = b.stage("E", {"Step": {"budget": num(rng.choice([4, 8])), "cost": add(num(0.5), mul(num(1 / 16), ctx("Ntok"))),
                               "chunk": num(0), "serve": {"By": []}, "memory": None}}) if engine else -1

    def time(mean: float) -> Json:
        return draw("Exp", mean) if stochastic else num(grains(rng, 0.25, 2 * mean))

    def leg(mean: float, units: Json) -> Body:
        inside = [(S, put(w, add(at(w), time(mean)))), (S, work(cpu, at(w))),
                  (S, see(leg_seen, sub(ctx("Now"), at(t0))))]
        if engine:
            inside += [(S, work(e, at(k), "Prefill")), (S, see(leg_seen, at(w))),
                       (S, work(e, add(at(k), num(1)), "Decode"))]
        if memory:
            units = of_pool(mem, units)
            inside = [(S, {"Hold": {"pools": [[ref(mem), units, None]], "body": Body(inside), "lease": None,
                                    "reuse": of_pool(mem, at(k)) if cached else None,
                                    "cache": of_pool(mem, add(at(k), num(1))) if cached else None}}),
                      (S, see(found, at(CACHED))), (S, see(leg_seen, mul(num(100), at(w))))]
        return Body(inside)

    least = num(rng.randint(1, 3))
    forks = [(S, {"Fork": leg(0.5, least)}), (S, {"Fork": leg(0.8, call("Min", add(at(k), num(1)), num(cap)))})]
    if rejects:
        forks.append((S, {"Fork": leg(0.3, add(at(k if cached else w), num(rng.randint(3, 8))))}))
    waits = [(S, work(tool, time(0.6))), *([(S, work(e, at(k), "Prefill"))] if engine else []), (S, "Join"),
             (S, see(done, sub(ctx("Now"), at(t0)))), (S, see(done, at(w)))]
    once = [*forks, *waits]
    if looped:
        forks_in = [(S, put(i, add(at(i), num(1)))), *forks, *waits]
        once = [(S, {"While": [op("Lt", at(i), num(2)), Body(forks_in)]})]
    if cached:
        once.append((S, see(found, {"Call": ["CachedIn", [{"Pool": ref(mem)}]]})))
    if stochastic:
        turn = [put(s, draw("Exp", 1.0)), put(k, call("Floor", draw("Uniform", 0, 4)))]
        session = [(W, "Turn"), (S, put(t0, ctx("Now"))), *once, (W, "End")]
        return b.finish(rng, {"Poisson": rng.uniform(0.2, 0.6)}, session, turn=turn, horizon=60,
                        warmup=rng.choice([0.0, 10.0]))
    think = b.stage("think", DELAY)
    session = [(W, work(think, at(start))), (W, "Turn"), (S, put(t0, ctx("Now"))), (S, put(w, at(s))), *once]
    arrivals = sessions(rng, rng.randint(3, 9), {start: lambda: rng.randint(0, 8), s: lambda: rng.choice([0, 0.5, 4])},
                        {k: lambda: rng.randint(0, 3)})
    return b.finish(rng, arrivals, session, horizon=80)


def cycle(rng: Random) -> Json:
    """Legs that wait for what their session holds: some runs end with sessions that wait for each other."""
    b = Builder()
    u, v, start = b.attr("u", "Size"), b.attr("v", "Size"), b.attr("start", "Size")
    mem, other = b.pool("mem", float(rng.randint(4, 9))), b.pool("other", float(rng.randint(2, 4)))
    tool = b.stage("tool", DELAY)
    seen = b.observe("seen")
    inside = [(S, see(seen, at(v))), (S, work(tool, num(grains(rng, 0.5, 3))))]
    leg = Body([(S, hold([(mem, at(v), None), (other, num(1), None)], inside))])
    body = [(S, {"Fork": leg}), (S, work(tool, num(grains(rng, 0.5, 2)))), (S, "Join"), (S, see(seen, ctx("Now")))]
    session = [(S, work(tool, at(start))), (S, hold([(mem, at(u), None)], body))]
    arrivals = sessions(rng, rng.randint(1, 5), {start: lambda: rng.randint(0, 8), u: lambda: rng.randint(0, 4),
                                                 v: lambda: rng.randint(0, 3)})
    return b.finish(rng, arrivals, session, horizon=60)


def variant(build: Any, **fixed: Any) -> Any:
    return lambda rng: build(rng, **fixed)


CONTROL = {
    "route_queue": variant(routed, keys="queue"),
    "route_queue_det": variant(routed, keys="queue", stochastic=False),
    "route_work": variant(routed, keys="work"),
    "route_busy_delay": variant(routed, keys="busy", kind="delay", stochastic=False),
    "route_draws": variant(routed, keys="draws"),
    "route_estimates": variant(routed, keys="estimates"),
    "route_price": variant(routed, keys="price", stochastic=False),
    "route_ties": variant(routed, keys="ties", stochastic=False),
    "members": members,
    "members_cached": variant(members, cached=True),
    "members_grow": variant(members, grow=True),
    "members_preempt": variant(members, grow=True, preempt=by(neg(ctx("Admission")))),
    "fleet_hold": variant(fleet, form="hold"),
    "fleet_hold_cached": variant(fleet, form="hold", cached=True, router="affinity"),
    "fleet_hold_chunk": variant(fleet, form="chunk", router="work", preempt=by(ctx("Position"), tail=True)),
    "fleet_hold_poisson": variant(fleet, form="hold", router="random", stochastic=True, slots_first=False),
    "fleet_hold_none": variant(fleet, form="chunk", router="kv", preempt="None"),
    "fleet_request": variant(fleet, form="request", router="kv"),
    "fleet_request_cached": variant(fleet, form="request", cached=True, router="affinity", stochastic=True),
    "fleet_estimates": variant(fleet, form="hold", router="estimates"),
    "fleet_price": variant(fleet, form="hold", router="price", stochastic=True),
    "legs": legs,
    "legs_looped": variant(legs, looped=True, stochastic=False),
    "legs_memory": variant(legs, memory=True),
    "legs_cached": variant(legs, memory=True, cached=True, stochastic=False, looped=True),
    "legs_rejected": variant(legs, memory=True, rejects=True, stochastic=False),
    "legs_rejected_cached": variant(legs, memory=True, rejects=True, cached=True),
    "legs_engine": variant(legs, engine=True, stochastic=False),
    "legs_engine_memory": variant(legs, engine=True, memory=True),
    "legs_cycle": cycle,
}
