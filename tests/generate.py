"""Generated serQ IR 14 programs: many *structures*, each with numbers drawn from an rng.

`STRUCTURES[i](rng)` builds a program dict that the reference accepts. Which statements, pools, keys
and draws exist is fixed by the structure; numbers, sizes, seeds, arrival times and session scripts vary,
so that a structure is compiled once and its programs run as one batch.

Times of deterministic programs are multiples of 2^-9 s: exact in doubles and in 1 ns ticks, so that ties
are ties on both clocks. Stochastic programs draw continuous times, where ties do not happen by accident.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from generate_parts import (
    cost_dyadic,
    cost_piecewise,
    cost_product,
    cost_real,
    cost_unit,
    explicit,
    grains,
    trace_file,
)
from generate_sharing import SHARING
from ir14_builder import (
    CACHED,
    COMPUTED,
    DELAY,
    LIFO,
    MORE,
    NEW,
    OUT,
    SERIAL,
    THINK,
    TURN_NO,
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
    no,
    num,
    of_pool,
    op,
    pool_state,
    put,
    ref,
    see,
    stage_state,
    sub,
    work,
)

# ---------------------------------------------------------------- engines


def engine(
    rng: Random, *, form: str = "request", arrival: str = "sessions", cost: Callable[..., Json] = cost_dyadic,
    multi: bool = False, cache: str | None = None, reuse: str | None = None, taking: str = "known",
    reserve: str | None = None, chunk: bool = False, serve: str = "admitted", queue: str | None = None,
    evict: str = "lru", preempt: str = "lifo", tail: bool = False, block: bool = True, tight: bool = True,
    slots_first: bool = False, extra_pool: bool = False, reserve_held: bool = False, slots: bool = True,
    draws: str = "uniform", oversize: bool = False, warm: bool = False, budget: str = "number", history: bool = True,
    alike: bool = False, granule: str | None = None, alone: bool = False, body: str | None = None,
) -> Json:
    """A program of one engine with a request pool and a KV pool, in many variations.

    `multi`: several turns; `history`: a turn's prompt is all that was said before and the new part. `alike`: few
    different sizes and times, so that much happens at one instant. `granule`: `some` or `all`; `alone`: prefills go
    alone; `body`: one of `iteration_body`.
    """
    b = Builder()
    b_size = rng.choice([1, 2, 4, 8, 16, 16, 32, 64]) if block else None
    n, o, start, t0 = b.attr("n", "Size"), b.attr("o", "Size"), b.attr("start", "Size"), b.attr("t0")
    hist, again = b.attr("hist", "Size"), b.attr("again", "Size")
    stochastic = arrival in ("poisson", "renewal", "drain", "poisson_drain", "closed_random")
    traced = arrival.startswith("trace")
    if stochastic and cost in (cost_dyadic,):
        cost = cost_real
    prompt_most, output_most = rng.choice([(60, 30), (80, 40), (30, 50), (20, 30), (160, 10)])
    unit = b_size or 1
    longest = (prompt_most + output_most) * (2 if multi else 1)
    if traced:
        longest = 100 * (2 if cache else 1)
    think = b.attr("pause", "Size")
    sessions: Json = None
    if arrival == "sessions":
        spread = rng.choice([0, 2, 8, 40])
        if alike:
            sizes = [rng.randint(4, 12) for _ in range(2)]
            lengths = [size + rng.randint(2, 4) for size in range(3)]
            sessions = explicit(
                rng, rng.randint(6, 14), [(start, lambda: float(rng.randint(0, 3))), (again, lambda: 0)],
                [(n, lambda: rng.choice(sizes)), (o, lambda: rng.choice(lengths)),
                 (think, lambda: rng.randint(0, 2))], 4)
        sessions = sessions or explicit(
            rng, rng.randint(3, 14),
            [(start, lambda: rng.choice([0, float(rng.randint(0, spread)), grains(rng, 0, spread)])),
             (again, lambda: 0)],
            [(n, lambda: rng.randint(1, prompt_most)),
             (o, lambda: rng.choice([1, rng.randint(1, output_most), rng.randint(output_most // 2, output_most)])),
             (think, lambda: rng.choice([0, grains(rng, 0, 8)]))], 3 if multi else 1)
        totals = [[dict(map(tuple, turn)) for turn in row["turns"]] for row in sessions["Sessions"]]
        longest = int(max(sum(t[n] + t[o] for t in turns) if multi and history else max(t[n] + t[o] for t in turns)
                          for turns in totals))
    room = (rng.uniform(0.6, 1.2) if oversize else rng.uniform(3, 6) if not tight
            else rng.choice([1, 1, rng.uniform(1, 1.3), rng.uniform(1.3, 2)]))
    if alike:  # several entries are kept, fewer than there are sessions
        room = rng.uniform(2, 5)
    if not sessions and tight:  # sizes are drawn: most are far below the longest
        room *= rng.choice([0.75, 1])
    cap = max(unit, -(-int(room * longest) // unit) * unit)

    # indices are known before the parts exist: kv and slots are pools 0 and 1 in the order of the structure
    kv_at, slots_at = (1, 0) if slots_first and slots else (0, 1)
    engine_at = 0
    commands = iteration_body(b, rng, body, engine_at) if body else []
    register = {"Reg": 0} if b.registers else num(0)
    evictions: dict[str, Json] = {
        "lru": "Lru", "size": {"By": [neg(ctx("Size")), ctx("Last")]}, "age": {"By": [neg(ctx("Age")), ctx("Size")]},
        "attr": {"By": [at(n), ctx("Queued"), ctx("Last")]}, "last": {"By": [neg(ctx("Last"))]},
        "mixed": {"By": [ctx("Queued"), mul(ctx("Size"), num(rng.choice([-1, 1]))), at(TURN_NO)]},
    }
    victims: dict[str, Json] = {
        "none": "None", "lifo": by(neg(ctx("Admission")), tail=tail), "fifo": by(ctx("Admission"), tail=tail),
        "position": by(neg(ctx("Position")), tail=tail), "least": by(ctx("Position"), neg(ctx("Admission")), tail=tail),
        "decoding": by(ctx("Decoding"), neg(ctx("Admission")), tail=tail), "attr": by(at(n), tail=tail),
        "ties": by(num(rng.choice([0, 1])), tail=tail),
    }
    queues: dict[str | None, Json] = {
        None: None, "attr": [at(n)], "waited": [neg(ctx("Waited")), at(SERIAL)],
        "aging": [sub(at(n), mul(num(rng.choice([1, 2, 4])), ctx("Waited")))], "turn": [at(TURN_NO), neg(at(o))],
        "state": [mul(at(n), op("Gt", pool_state("Used", kv_at), num(cap / 2)))],
        "register": [mul(at(n), register), at(SERIAL)],
    }
    serves: dict[str, list[Json]] = {
        "admitted": [], "decode_first": [cond(ctx("Decoding"), num(0), num(1))], "srpt": [ctx("Remaining")],
        "attr": [at(n)], "general": [op("Gt", ctx("Remaining"), num(rng.randint(2, 12))), neg(ctx("Admission"))],
        "state": [mul(op("Gt", ctx("Ndec"), num(rng.randint(1, 3))), ctx("Decoding")), neg(ctx("Remaining"))],
        "late": [neg(ctx("Admission"))],
    }
    kv_row = dict(name="kv", cap=float(cap), block=float(b_size) if b_size else None, evict=evictions[evict],
                  preempt=victims[preempt], queue=queues[queue] if not slots else None,
                  admit_via=None if slots else engine_at, reserve_held=reserve_held)
    slot_row = dict(name="reqs", cap=float(rng.choice([2, 3, 4, 6, 8])), queue=queues[queue], admit_via=engine_at)
    rows = [kv_row] if not slots else [slot_row, kv_row] if slots_first else [kv_row, slot_row]
    for row in rows:
        b.pool(**row)
    adapter = b.pool("adapter", "inf") if extra_pool else None

    budget_value = float(rng.choice([8, 16, 24, 32, 48, 64]))
    spec_known = ctx("Known") if form == "request" else b_known(b, n)
    unit_num = num(unit)
    hit_cap = mul(call("Floor", op("Div", sub(spec_known, num(1)), unit_num)), unit_num)
    hit = call("Min", ctx("Hit") if form == "request" else pool_state("CachedIn", kv_at), hit_cap)
    takings: dict[str, Json] = {
        "known": spec_known,
        "chunk": call("Min", spec_known, add(hit, stage_state("BudgetLeft", engine_at))),
        "chunk_cold": call("Min", spec_known, stage_state("BudgetLeft", engine_at)),
        "state": call("Min", spec_known, add(num(1), call("Floor", op("Div", pool_state("Free", kv_at), num(2))))),
        "crowd": cond(op("Gt", pool_state("Holders", kv_at), num(1)), spec_known,
                      add(spec_known, call("Min", num(unit), pool_state("Queued", slots_at if slots else kv_at)))),
        "used": call("Max", num(1), call("Min", spec_known, sub(num(cap), pool_state("Used", kv_at)))),
        "wait": add(spec_known, mul(num(0), pool_state("Used", kv_at))),
        "register": call("Min", spec_known, add(stage_state("BudgetLeft", engine_at), register)),
    }
    reserves: dict[str | None, Json] = {
        None: None, "known": spec_known,
        "whole": add(ctx("Input"), ctx("Output")) if form == "request" else add(at(n), at(o)),
        "watermark": add(spec_known, cond(op("Gt", pool_state("Holders", kv_at), num(0)), num(unit), num(0))),
    }
    caches: dict[str | None, Json] = {
        None: None, "all": add(ctx("Input"), ctx("Output")) if form == "request" else add(at(n), at(o)),
        "prompt": ctx("Input") if form == "request" else at(n),
        "finished": mul(add(ctx("Input"), ctx("Output")), ctx("Finished")) if form == "request" else at(n),
    }
    reuses: dict[str | None, Json] = {None: None, "known": hit_cap, "over": spec_known,
                                      "fixed": num(rng.randint(1, 40))}
    takes = []
    if slots:
        takes.append((slots_at, num(1), None))
    takes.append((kv_at, takings[taking], reserves[reserve]))
    if adapter is not None:
        takes.append((adapter, num(rng.randint(1, 3)), None))
    request = None
    budgets: dict[str, Json] = {
        "number": num(budget_value),
        "state": sub(num(budget_value), mul(num(rng.choice([0, 1])), ctx("Ndec"))),
    }
    if form == "request":
        request = {"pools": [[ref(p), u, r] for p, u, r in takes],
                   "records": {"reused": b.observe("reused"), "prefill": b.observe("prefill"),
                               "admitted": b.attr("adm"), "first": b.attr("first"),
                               "last_reused": b.attr("lr"), "last_prefill": b.attr("lp")}}
        if reuse:
            request["reuse"] = reuses[reuse]
        if cache:
            request["cache"] = caches[cache]
    step = {"budget": budgets[budget], "cost": cost(rng), "chunk": num(rng.choice([4, 8, 12, 24]) if chunk else 0),
            "serve": {"By": serves[serve]}, "memory": kv_at}
    if request:
        step["request"] = request
    if granule:
        step["granule"] = num(rng.choice([2, 4] if chunk else [2, 4, 8, 16])) if granule == "some" else {"Num": "inf"}
    if alone:
        step["serve"] = "ExclusivePrefill"
    if body:
        step["iteration"] = commands
    if b.registers:
        step["budget"] = add(step["budget"], register)
        step["cost"] = add(step["cost"], mul(num(1 / 128), register))
    e = b.stage("E", {"Step": step})
    tool = b.stage("tool", DELAY)
    ttft, response, seen = b.observe("ttft"), b.observe("response"), b.observe("seen")

    def serving() -> list[Json]:
        prompt = add(at(hist), at(n)) if multi and history else at(n)
        if form == "request":
            return [(S, {"Request": {"stage": ref(e), "input": prompt, "output": at(o)}}),
                    (S, see(ttft, sub(at(b.attr("first")), at(t0)))), (S, see(response, sub(ctx("Now"), at(t0))))]
        known, c = b.attr("known"), b.attr("c")
        body = [(S, put(known, b_known(b, n))),
                (S, put(c, call("Min", at(CACHED), hit_now(known, unit_num)) if cache else num(0))),
                (S, see(seen, sub(at(known), at(c)))),
                (S, work(e, sub(at(known), at(c)), "Prefill", kv_at)),
                (S, {"Branch": [op("Eq", at(known), at(n)), Body([(S, see(ttft, sub(ctx("Now"), at(t0))))]), Body()]}),
                (S, work(e, sub(sub(at(o), num(1)), sub(at(known), at(n))), "Decode", kv_at))]
        return [(S, hold(takes, body, reuses[reuse], caches[cache])), (S, see(response, sub(ctx("Now"), at(t0))))]

    after = [(W, put(hist, add(at(hist), add(at(n), at(o)))))]
    scripted = arrival in ("sessions", "closed", "batch") or traced
    one_turn: Callable[[], list[Json]] = lambda: [(W, "Turn"), (S, put(t0, ctx("Now"))), *serving()]  # noqa: E731
    kwargs: Json = dict(warmup=float(rng.choice([0, 5, 20])) if warm else 0.0)
    if scripted:
        kwargs["horizon"] = rng.choice([150, 300])
        if traced:
            turn = [put(n, at(NEW)), put(o, at(OUT))]
            session = [(W, work(tool, mul(at(SERIAL), num(grains(rng, 0, 3))))), *one_turn(),
                       (W, {"While": [at(MORE), Body([*(after if multi else []), (W, work(tool, at(THINK))),
                                                      *one_turn()])]}), (W, "End")]
            path = trace_file(rng, 5, 2)
            kind = {"trace_batch": {"Batch": rng.randint(4, 9)}, "trace_poisson": {"Poisson": rng.uniform(0.05, 0.3)},
                    "trace_random": {"Poisson": rng.uniform(0.05, 0.3)}, "trace_closed": {"Closed": rng.randint(1, 4)}}
            return b.finish(rng, kind[arrival], session, turn=turn, trace=path, ordered=arrival != "trace_random",
                            **kwargs)
        if sessions:
            session = [(W, work(tool, at(start))), *one_turn(), (W, {"While": [at(MORE), Body(
                [*(after if multi else []), (W, work(tool, at(think))), *one_turn()])]}), (W, "End")]
            return b.finish(rng, sessions, session, **kwargs)
        # closed and batch populations without draws: sizes from the serial number
        turn = [put(n, add(num(rng.randint(1, 20)), call("Floor", mul(num(rng.randint(1, 9)), at(SERIAL))))),
                put(o, add(num(1), at(TURN_NO))), put(again, op("Lt", at(TURN_NO), num(rng.randint(1, 3))))]
        turn[0] = put(n, call("Min", turn[0]["Set"][1], num(prompt_most)))
        session = [*one_turn(), (W, {"While": [at(again), Body(
            [*(after if multi else []), (W, work(tool, num(grains(rng, 0, 4)))), *one_turn()])]}), (W, "End")]
        kwargs["horizon"] = 60 if arrival == "closed" else 200
        return b.finish(rng, {"Closed": rng.randint(2, 6)} if arrival == "closed" else {"Batch": rng.randint(3, 14)},
                        session, turn=turn, **kwargs)
    sizes: dict[str, tuple[Json, Json]] = {
        "uniform": (draw("Uniform", 1, prompt_most), draw("Uniform", 1, output_most)),
        "exp": (draw("Exp", prompt_most / 3), draw("Exp", output_most / 3)),
        "erlang": (draw("Erlang", 3, prompt_most / 3), draw("H2", output_most / 4, rng.choice([1, 2, 5]))),
        "det": (draw("Det", rng.randint(1, prompt_most)), draw("Exp", output_most / 4)),
    }
    first_draw, second_draw = sizes[draws]
    turn = [put(n, call("Ceil", first_draw)), put(o, add(call("Floor", second_draw), num(1))),
            put(again, draw("Bernoulli", rng.uniform(0.2, 0.6)))]
    turn[0] = put(n, call("Min", add(turn[0]["Set"][1], num(1)), num(prompt_most)))
    turn[1] = put(o, call("Min", turn[1]["Set"][1], num(output_most)))
    init = [put(start, draw("Exp", rng.uniform(0.2, 3))), put(hist, num(0))]
    think_draw = draw("Exp", rng.uniform(0.5, 5))
    limit = op("Lt", add(at(hist), at(n), at(o)), num(longest - prompt_most - output_most))
    more = op("And", at(again), limit) if multi else at(again)
    session = [(W, work(tool, at(start))), *one_turn(), (W, {"While": [more, Body(
        [*(after if multi else []), (W, work(tool, think_draw)), *one_turn()])]}), (W, "End")]
    rate = rng.uniform(0.1, 0.6)
    kinds: dict[str, Json] = {"poisson": {"Poisson": rate}, "poisson_drain": {"Poisson": rate},
                              "renewal": {"Renewal": draw("Erlang", 2, 1 / rate)},
                              "drain": {"Renewal": add(num(rng.uniform(0.1, 1)), draw("Uniform", 0, 1 / rate))},
                              "closed_random": {"Closed": rng.randint(2, 6)}}
    kwargs["horizon"] = rng.choice([40, 80])
    if arrival in ("drain", "poisson_drain"):
        kwargs.update(arrivals=rng.randint(4, 15), horizon=5000, warmup=0.0)
    return b.finish(rng, kinds[arrival], session, init=init, turn=turn, **kwargs)


def iteration_body(b: Builder, rng: Random, name: str, engine: int) -> list[Json]:
    """Iteration bodies by name; thresholds are drawn."""
    decoding, prefilling = ctx("Decoding"), no(ctx("Decoding"))
    calm = no(ctx("Preempted")) if name == "phase" else op("Le", ctx("Preempted"), num(rng.randint(0, 2)))
    if name == "phase":  # prefills and decodes never share an iteration
        phase = cond(op("Gt", ctx("Ndec"), num(0)), decoding, prefilling)
        return [{"Serve": {"only": phase}}, {"Admit": {"only": phase, "gate": calm}}]
    since = b.register("since", engine, float(rng.randint(0, 2)))  # iterations since the last admission, at most 4
    idle = op("Or", op("Ge", {"Reg": since}, num(rng.randint(0, 2))), op("Eq", ctx("Nres"), num(0)))
    count = cond(op("Gt", ctx("Admitted"), num(0)), num(0), call("Min", add({"Reg": since}, num(1)), num(4)))
    if name == "patient":  # as TGI: after an admission some iterations without one
        return [{"Serve": {"by": [prefilling, ctx("Remaining")]}},
                {"Branch": [idle, [{"Admit": {"gate": op("Lt", ctx("Npre"), num(rng.randint(4, 40)))}}], []]},
                {"Set": [since, count]}]
    crowd = b.register("crowd", engine)
    full = op("Gt", ctx("Nres"), add({"Reg": crowd}, num(rng.randint(0, 3))))
    some = op("Le", ctx("Remaining"), add(num(rng.randint(2, 20)), mul(num(4), ctx("Nres"))))
    return [{"Set": [crowd, op("Gt", add(ctx("Kvb"), ctx("Kvp")), num(rng.randint(4, 60)))]},
            {"Branch": [full, [{"Serve": {"only": decoding, "by": []}}, {"Serve": {"only": some}}],
                        [{"Admit": {"only": some, "gate": op("And", calm, op("Lt", ctx("Admitted"), num(2)))}},
                         {"Serve": {"by": [neg(ctx("Admission"))]}}]]},
            {"Branch": [idle, [{"Admit": {"gate": op("Lt", ctx("Ntok"), num(rng.randint(2, 30)))}}, {"Serve": {}}],
                        [{"Serve": {"only": prefilling}}]]},
            {"Set": [since, count]}]


def b_known(b: Builder, n: int) -> Json:
    return cond(op("Lt", at(COMPUTED), at(n)), at(n), add(at(COMPUTED), num(1)))


def hit_now(known: int, unit: Json) -> Json:
    return mul(call("Floor", op("Div", sub(at(known), num(1)), unit)), unit)


# ---------------------------------------------------------------- other programs


def memory_queue(rng: Random, *, queue: str | None = None, oversize: str = "reject", block: bool = False,
                 stochastic: bool = True, cached: bool = False) -> Json:
    """Holds of one pool around a fifo stage; some ask more than the cap."""
    b = Builder()
    k, w, t0 = b.attr("k", "Size"), b.attr("w", "Size"), b.attr("t0")
    cap = rng.randint(8, 24)
    size = rng.choice([2, 4]) if block else None
    keys = {None: None, "size": [at(k)], "waited": [neg(ctx("Waited")), at(k)],
            "aging": [sub(at(k), mul(num(0.5), ctx("Waited"))), at(SERIAL)]}[queue]
    mem = b.pool("mem", float(cap), size, queue=keys)
    desk = b.stage("desk", {"Fifo": rng.randint(1, 3)})
    tool = b.stage("tool", DELAY) if cached or not stochastic else -1
    wait, done, found = b.observe("wait"), b.observe("done"), b.observe("found")
    units = add(at(k), mul(num(0), ctx("Now"))) if oversize == "wait" else at(k)
    reserve = {"reject": None, "wait": None, "reserve": add(at(k), num(rng.randint(0, 6)))}[oversize]
    body = [(S, see(wait, sub(ctx("Now"), at(t0)))), (S, see(found, at(CACHED))), (S, work(desk, at(w)))]
    inner = (S, hold([(mem, units, reserve)], body, None, at(k) if cached else None))
    most = cap + (0 if oversize == "wait" and rng.random() < 0.7 else 2)
    if stochastic:
        init = [put(k, call("Ceil", call("Min", draw("Exp", cap / 3), num(most)))), put(w, draw("H2", 1.0, 3.0))]
        session = [(S, put(t0, ctx("Now"))), inner, (S, see(done, sub(ctx("Now"), at(t0))))]
        if cached:
            session += [(S, work(tool, draw("Exp", 2.0))), (S, hold([(mem, at(k), None)], list(body), at(k), at(k))),
                        (S, {"Drop": ref(mem)}), (S, see(found, pool_state("CachedIn", mem)))]
        return b.finish(rng, {"Poisson": rng.uniform(0.3, 1.5)}, session, init=init, horizon=60,
                        warmup=rng.choice([0.0, 5.0]))
    start = b.attr("start", "Size")
    session = [(S, work(tool, at(start))), (S, put(t0, ctx("Now"))), inner, (S, see(done, ctx("Now")))]
    if cached:
        session += [(S, work(tool, num(grains(rng, 0, 4)))), (S, hold([(mem, at(k), None)], list(body), at(k), at(k))),
                    (S, {"Drop": ref(mem)}), (S, see(found, pool_state("CachedIn", mem)))]
    arrivals = explicit(rng, rng.randint(4, 14), [
        (start, lambda: float(rng.randint(0, 12))), (k, lambda: rng.randint(1, most)),
        (w, lambda: rng.choice([0, grains(rng, 0, 6)]))], [], 0)
    return b.finish(rng, arrivals, session, horizon=200)


def nested(rng: Random) -> Json:
    """Nested holds of two pools, a fifo stage, a zero-work run between."""
    b = Builder()
    mem, slots = b.pool("mem", float(rng.randint(8, 16))), b.pool("slots", float(rng.randint(1, 3)))
    a, tool = b.stage("a", {"Fifo": rng.randint(1, 2)}), b.stage("tool", DELAY)
    inner_seen, done = b.observe("inner"), b.observe("done")
    inner = [(S, work(a, add(num(grains(rng, 0, 1)), mul(at(SERIAL), num(rng.choice([0, 0.5])))))),
             (S, see(inner_seen, ctx("Now"))), (S, see(inner_seen, pool_state("Allocated", mem)))]
    outer = [(S, work(a, num(rng.choice([0.25, 0.5, 1])))), (S, hold([(mem, num(rng.randint(1, 8)), None)], inner)),
             (S, work(tool, num(0))), (S, work(tool, num(rng.choice([0.5, 1.5])))),
            (S, see(inner_seen, pool_state("Holders", slots)))]
    session = [(S, hold([(slots, num(1), None)], outer)), (S, see(done, ctx("Now")))]
    return b.finish(rng, {"Batch": rng.randint(3, 12)}, session, horizon=100)


def growing(rng: Random, *, preempt: Json, block: bool, memoryless: bool = True) -> Json:
    """`Grow` statements on a pool that is no engine's memory."""
    b = Builder()
    start, u, g, w = b.attr("start", "Size"), b.attr("u", "Size"), b.attr("g", "Size"), b.attr("w", "Size")
    cap = rng.randint(12, 24)
    mem = b.pool("mem", float(cap), float(rng.choice([2, 4])) if block else None, preempt=preempt)
    tool, desk = b.stage("tool", DELAY), b.stage("desk", {"Fifo": rng.randint(1, 2)})
    done, position = b.observe("done"), b.observe("position")
    body = [(S, work(tool, at(w))), (S, see(position, at(COMPUTED))), (S, {"Grow": [ref(mem), of_pool(mem, at(g))]}),
            (S, see(position, pool_state("Allocated", mem))), (S, work(desk, at(w))),
            (S, {"Grow": [ref(mem), of_pool(mem, num(rng.randint(0, 3)))]}), (S, work(tool, num(grains(rng, 0, 2))))]
    session = [(S, work(tool, at(start))), (S, hold([(mem, at(u), None)], body)), (S, see(done, ctx("Now")))]
    arrivals = explicit(rng, rng.randint(3, 8), [
        (start, lambda: float(rng.randint(0, 6))), (u, lambda: rng.randint(1, 6)), (g, lambda: rng.randint(0, 6)),
        (w, lambda: rng.choice([0.5, grains(rng, 0, 4)]))], [], 0)
    return b.finish(rng, arrivals, session, horizon=60)


def control(rng: Random) -> Json:
    """Loop, While and Branch, a Loop left by End, zero-work runs."""
    b = Builder()
    i, j = b.attr("i"), b.attr("j")
    a, tool = b.stage("a", {"Fifo": rng.randint(1, 2)}), b.stage("tool", DELAY)
    step, late = b.observe("step"), b.observe("late")
    inner = {"While": [op("Lt", at(j), at(i)), Body([
        (S, put(j, add(at(j), num(1)))), (S, work(a, mul(at(j), num(grains(rng, 0, 1))))), (S, see(step, at(j)))])]}
    rounds = rng.randint(2, 4)
    loop = Body([
        (S, put(i, add(at(i), num(1)))), (S, put(j, num(0))), (S, inner), (S, work(tool, num(grains(rng, 0.5, 2)))),
        (S, {"Branch": [op("Ge", at(i), add(num(rounds), op("Gt", at(SERIAL), num(2)))),
                        Body([(S, see(late, ctx("Now"))), (S, "End")]),
                        Body([(S, work(a, num(0))), (S, see(late, at(SERIAL)))])]})])
    return b.finish(rng, {"Batch": rng.randint(3, 9)}, [(S, {"Loop": loop})], horizon=80)


def zero_work(rng: Random) -> Json:
    """Runs of no work among sessions that are ready at the same instants."""
    b = Builder()
    i, w, u, start = b.attr("i"), b.attr("w", "Size"), b.attr("u", "Size"), b.attr("start", "Size")
    mem = b.pool("mem", float(rng.randint(2, 5)))
    tool = b.stage("tool", DELAY)
    order = b.observe("order")
    inner = [(S, work(tool, sub(at(w), num(1)))), (S, see(order, at(SERIAL))), (S, work(tool, num(1)))]
    rounds = Body([(S, put(i, add(at(i), num(1)))), (S, work(tool, mul(at(w), op("Gt", at(i), num(1))))),
                   (S, see(order, add(at(SERIAL), num(100)))), (S, hold([(mem, at(u), None)], inner))])
    session = [(S, work(tool, at(start))), (S, {"While": [op("Lt", at(i), num(rng.randint(2, 4))), rounds]})]
    arrivals = explicit(rng, rng.randint(4, 10), [
        (start, lambda: float(rng.randint(0, 2))), (w, lambda: rng.choice([1, 1, 2])), (u, lambda: rng.randint(0, 2)),
    ], [], 0)
    return b.finish(rng, arrivals, session, horizon=60)


def draws(rng: Random) -> Json:
    """Every distribution, on both session streams, and short-circuits that skip draws."""
    b = Builder()
    names = ["Exp", "Det", "Uniform", "Erlang", "H2", "Bernoulli"]
    args = {"Exp": [rng.uniform(0.1, 2)], "Det": [rng.uniform(0.1, 2)], "Uniform": [0.5, rng.uniform(1, 3)],
            "Erlang": [3, rng.uniform(0.2, 2)], "H2": [rng.uniform(0.2, 2), rng.uniform(0.5, 6)],
            "Bernoulli": [rng.uniform(0.2, 0.8)]}
    x = [b.attr(f"x{i}", "Size") for i in range(6)]
    y, z, more = b.attr("y", "Size"), b.attr("z"), b.attr("again", "Size")
    tool, desk = b.stage("tool", DELAY), b.stage("desk", {"Fifo": rng.randint(1, 3)})
    lag = b.stage("lag", DELAY)
    value = b.observe("value")
    init = [put(x[i], draw(d, *args[d])) for i, d in enumerate(names[:3])]
    turn = [put(x[3 + i], draw(d, *args[d])) for i, d in enumerate(names[3:])]
    turn += [put(more, draw("Bernoulli", rng.uniform(0.3, 0.7))),
             put(y, op("And", at(x[5]), op("Gt", draw("Uniform", 0, 1), num(0.5))))]
    stat = [(S, see(value, at(s))) for s in x] + [
        (S, put(z, cond(at(x[5]), draw("Exp", 1.0), draw("Uniform", 0, at(x[2]))))),
        (S, see(value, add(add(at(y), at(z)), draw("Erlang", 2, draw("Exp", 0.5))))),
        (S, work(lag, draw("Exp", at(x[4])))),
        (S, work(desk, draw("H2", 0.5, 2.0))),
        (S, {"Branch": [op("Or", at(x[5]), draw("Bernoulli", 0.5)), Body([(S, work(desk, draw("Uniform", 0, 1)))]),
                        Body([(S, see(value, draw("Exp", 3.0)))])]})]
    session = [(W, "Turn"), *stat,
               (W, {"While": [at(more), Body([(W, work(tool, draw("Exp", 1.0))), (W, "Turn"), *stat])]})]
    return b.finish(rng, {"Renewal": draw("H2", rng.uniform(0.5, 1.5), 3.0)}, session, init=init, turn=turn, horizon=30,
                    warmup=rng.choice([0.0, 3.0]))


def closed_network(rng: Random, *, servers: bool = True) -> Json:
    """A closed population between a delay and two fifo stages, routed by draws."""
    b = Builder()
    cpu, disk, tool = b.stage("cpu", {"Fifo": rng.randint(1, 2)}), b.stage("disk", {"Fifo": 1}), b.stage("tool", DELAY)
    cycle, gone = b.observe("cycle"), b.observe("gone")
    body = Body([(S, work(tool, draw("Exp", rng.uniform(0.5, 3)))), (S, work(cpu, draw("Exp", rng.uniform(0.2, 1)))),
                 (S, {"Branch": [draw("Bernoulli", 0.4), Body([(S, work(disk, draw("Erlang", 3, 0.5)))]), Body()]}),
                 (S, see(cycle, stage_state("Queue", cpu))), (S, see(cycle, stage_state("Busy", cpu))),
                 (S, {"Branch": [draw("Bernoulli", 0.3), Body([(S, see(gone, ctx("Now"))), (S, "End")]), Body()]})])
    return b.finish(rng, {"Closed": rng.randint(2, 8)}, [(S, {"Loop": body})], horizon=40,
                    warmup=rng.choice([0.0, 4.0]))


def bare_engine(rng: Random, *, body: str | None = None) -> Json:
    """An engine without pools: every run joins at once; adm is infinite for all."""
    b = Builder()
    n, o, start = b.attr("n", "Size"), b.attr("o", "Size"), b.attr("start", "Size")
    step = {"budget": num(rng.choice([4, 8, 16])), "cost": cost_piecewise(rng), "chunk": num(rng.choice([2, 5])),
            "serve": {"By": [ctx("Remaining")]}, "memory": None}
    if body:
        step["iteration"] = iteration_body(b, rng, body, 0)
    e = b.stage("E", {"Step": step})
    tool = b.stage("tool", DELAY)
    done = b.observe("done")
    session = [(S, work(tool, at(start))), (S, work(e, at(n), "Prefill")), (S, see(done, ctx("Now"))),
               (S, work(e, at(o), "Decode")), (S, see(done, ctx("Now"))), (S, work(e, at(n), "Prefill"))]
    arrivals = explicit(rng, rng.randint(3, 10), [
        (start, lambda: float(rng.randint(0, 6))), (n, lambda: rng.randint(0, 20)), (o, lambda: rng.randint(0, 8)),
    ], [], 0)
    return b.finish(rng, arrivals, session, horizon=200)


def two_engines(rng: Random, *, split: bool, ways: bool = False) -> Json:
    """Two engines with their own KV pools: routed by a branch, or prefill on one and decode on the other.

    `ways`: each plans in its own way, one with a body and a granule, the other with prefills that go alone.
    """
    b = Builder()
    size = float(rng.choice([2, 4, 8, 16]))
    n, o, start, w = (b.attr(name, "Size") for name in ("n", "o", "start", "w"))
    t0 = b.attr("t0")
    cap = [float(int(rng.uniform(64, 100) / size + 1) * size) for _ in range(2)]
    kv = [b.pool("kvP", cap[0], size, preempt=by(neg(ctx("Admission")))),
          b.pool("kvD", cap[1], size, preempt=by(ctx("Position"), tail=True))]
    slots = [b.pool("rP", float(rng.randint(1, 4)), admit_via=0), b.pool("rD", float(rng.randint(1, 4)), admit_via=1)]
    engines = []
    for i in range(2):
        step = {"budget": num(rng.choice([8, 16, 32])), "cost": cost_dyadic(rng), "chunk": num(0),
                "serve": {"By": []}, "memory": kv[i]}
        if ways and i == 0:
            step["iteration"], step["granule"] = iteration_body(b, rng, "crowd", 0), num(rng.choice([2, 4, 8]))
        elif ways:
            step["serve"] = "ExclusivePrefill"
        if not split:
            chunk = call("Min", ctx("Known"), add(ctx("Hit"), stage_state("BudgetLeft", i)))
            units = chunk if ways else ctx("Known")
            step["request"] = {"pools": [[ref(slots[i]), num(1), None], [ref(kv[i]), units, None]],
                               "reuse": ctx("Known"), "cache": ctx("Input"),
                               "records": {"reused": b.observe(f"reused{i}"), "prefill": b.observe(f"prefill{i}"),
                                           "admitted": b.attr(f"adm{i}"), "first": b.attr(f"first{i}"),
                                           "last_reused": b.attr(f"lr{i}"), "last_prefill": b.attr(f"lp{i}")}}
        engines.append(b.stage("PD"[i], {"Step": step}))
    tool = b.stage("tool", DELAY)
    done = b.observe("done")
    if split:
        known = b_known(b, n)
        serving = [(S, hold([(slots[0], num(1), None), (kv[0], at(n), None)],
                            [(S, work(engines[0], at(n), "Prefill", kv[0]))])),
                   (S, work(b.stage("wire", DELAY), at(w))),
                   (S, hold([(slots[1], num(1), None), (kv[1], known, None)], [
                       (S, work(engines[1], known, "Prefill", kv[1])),
                       (S, work(engines[1], sub(sub(at(o), num(1)), sub(known, at(n))), "Decode", kv[1]))])),
                   (S, see(done, sub(ctx("Now"), at(t0))))]
    else:
        route = op("Lt", at(w), num(1))
        serving = [(S, {"Branch": [route, *[Body([(S, {"Request": {"stage": ref(e), "input": at(n), "output": at(o)}})])
                                            for e in engines]]}), (S, see(done, sub(ctx("Now"), at(t0))))]
    turn: Callable[[], list[Json]] = lambda: [(W, "Turn"), (S, put(t0, ctx("Now"))), *serving]  # noqa: E731
    session = [(W, work(tool, at(start))), *turn(), (W, {"While": [at(MORE), Body([(W, work(tool, at(w))), *turn()])]})]
    arrivals = explicit(rng, rng.randint(3, 10), [(start, lambda: float(rng.randint(0, 10)))], [
        (n, lambda: rng.randint(1, 50)), (o, lambda: rng.choice([1, rng.randint(1, 25)])),
        (w, lambda: rng.choice([0, 0.5, 2]))], 2)
    return b.finish(rng, arrivals, session, horizon=200)


def grow_in_engine(rng: Random) -> Json:
    """A hold that grows by a statement between its prefill and its decode, on the engine's own memory."""
    b = Builder()
    size = float(rng.choice([2, 4, 8]))
    n, o, g, start = b.attr("n", "Size"), b.attr("o", "Size"), b.attr("g", "Size"), b.attr("start", "Size")
    kv = b.pool("kv", float(int(rng.uniform(46, 70) / size + 1) * size), size, preempt=LIFO, admit_via=0)
    e = b.stage("E", {"Step": {"budget": num(rng.choice([8, 16, 32])), "cost": cost_dyadic(rng, False), "chunk": num(0),
                               "serve": {"By": [cond(ctx("Decoding"), num(0), num(1))]}, "memory": kv}})
    tool = b.stage("tool", DELAY)
    done = b.observe("done")
    known = b_known(b, n)
    body = [(S, work(e, known, "Prefill", kv)), (S, {"Grow": [ref(kv), of_pool(kv, at(g))]}),
            (S, work(e, at(o), "Decode", kv))]
    session = [(W, work(tool, at(start))), (S, hold([(kv, known, add(at(n), at(o)))], body)),
               (S, see(done, ctx("Now")))]
    arrivals = explicit(rng, rng.randint(3, 8), [
        (start, lambda: float(rng.randint(0, 10))), (n, lambda: rng.randint(1, 30)), (o, lambda: rng.randint(1, 15)),
        (g, lambda: rng.choice([0, rng.randint(0, 20)]))], [], 0)
    return b.finish(rng, arrivals, session, horizon=120)


def variant(build: Callable[..., Json], **fixed: Any) -> Callable[[Random], Json]:
    return lambda rng: build(rng, **fixed)


#: name -> builder; a structure's place in this order is its index.
STRUCTURES: dict[str, Callable[[Random], Json]] = {
    # engines with `Request`
    "sessions": variant(engine),
    "poisson": variant(engine, arrival="poisson", warm=True),
    "poisson_roomy": variant(engine, arrival="poisson", tight=False, draws="exp", cost=cost_piecewise),
    "two_turns_cached": variant(engine, multi=True, cache="all", reuse="known"),
    "two_turns_stochastic": variant(engine, arrival="poisson", multi=True, cache="all", reuse="known", taking="chunk",
                                    draws="erlang"),
    "over_reuse": variant(engine, multi=True, history=False, cache="all", reuse="over", cost=cost_unit),
    "shorter_turns": variant(engine, multi=True, history=False, cache="all", reuse="known", taking="chunk"),
    "evict_ties": variant(engine, multi=True, history=False, cache="all", reuse="known", alike=True, cost=cost_unit),
    "fixed_reuse_cached_prompt": variant(engine, multi=True, cache="prompt", reuse="fixed", evict="last"),
    "unbounded_reuse": variant(engine, multi=True, cache="finished", evict="mixed", preempt="fifo"),
    "chunk_reserve": variant(engine, chunk=True, taking="chunk_cold", reserve="whole"),
    "chunk_tail": variant(engine, chunk=True, taking="chunk_cold", tail=True, serve="srpt"),
    "decode_first_position": variant(engine, serve="decode_first", preempt="position", taking="chunk_cold"),
    "srpt_decoding": variant(engine, serve="srpt", chunk=True, preempt="decoding", cost=cost_unit),
    "serve_general": variant(engine, serve="general", preempt="least", tail=True, taking="chunk_cold"),
    "serve_state": variant(engine, serve="state", preempt="attr", budget="state"),
    "serve_late_ties": variant(engine, serve="late", preempt="ties", arrival="batch", taking="chunk_cold"),
    "preempt_none": variant(engine, preempt="none", taking="chunk_cold"),
    "preempt_none_cached": variant(engine, preempt="none", multi=True, cache="all", reuse="known", taking="chunk"),
    "no_block": variant(engine, block=False, multi=True, cache="all", reuse="over"),
    "evict_size": variant(engine, multi=True, cache="all", reuse="known", evict="size", tight=True),
    "evict_age": variant(engine, multi=True, cache="all", reuse="known", evict="age", arrival="poisson"),
    "evict_attr": variant(engine, multi=True, cache="all", reuse="known", evict="attr", preempt="position"),
    "queue_attr_closed": variant(engine, queue="attr", arrival="closed"),
    "queue_waited": variant(engine, queue="waited", taking="chunk_cold"),
    "queue_aging": variant(engine, queue="aging", arrival="poisson", taking="chunk_cold"),
    "queue_state": variant(engine, queue="state", serve="attr", arrival="sessions"),
    "queue_turn_closed": variant(engine, queue="turn", arrival="closed", multi=True, cache="all", reuse="known"),
    "header_state": variant(engine, taking="state"),
    "header_crowd": variant(engine, taking="crowd", reserve="watermark", slots_first=True),
    "header_used": variant(engine, taking="used", extra_pool=True),
    "waiting_oversize": variant(engine, taking="wait", oversize=True, cost=cost_product),
    "rejected_oversize": variant(engine, oversize=True, arrival="batch", cost=cost_unit),
    "kv_only": variant(engine, slots=False, taking="chunk_cold", queue="attr"),
    "renewal_drain": variant(engine, arrival="drain", multi=True, cache="all", reuse="known"),
    "poisson_drain": variant(engine, arrival="poisson_drain", taking="chunk_cold", draws="det"),
    "renewal": variant(engine, arrival="renewal", slots_first=True, cache="all", reuse="known", multi=True, warm=True),
    "closed_random": variant(engine, arrival="closed_random", taking="chunk_cold", preempt="least"),
    "trace_batch": variant(engine, arrival="trace_batch", cache="all", reuse="known", multi=True),
    "trace_poisson": variant(engine, arrival="trace_poisson"),
    "trace_random": variant(engine, arrival="trace_random", taking="chunk_cold"),
    "trace_closed": variant(engine, arrival="trace_closed", chunk=True),
    # engines written by hand
    "hold_plain": variant(engine, form="hold", taking="chunk_cold"),
    "hold_tail": variant(engine, form="hold", tail=True, arrival="poisson"),
    "hold_cached": variant(engine, form="hold", cache="all", reuse="known", taking="chunk", arrival="poisson"),
    "hold_cached_tight": variant(engine, form="hold", cache="all", reuse="known", taking="chunk"),
    "hold_none": variant(engine, form="hold", preempt="none", taking="chunk_cold", reserve="known"),
    "hold_reserve": variant(engine, form="hold", taking="chunk_cold", reserve="whole", serve="decode_first"),
    "bare_engine": bare_engine,
    # engines that plan in ways of their own
    "granule": variant(engine, granule="some", chunk=True, taking="chunk_cold"),
    "granule_state": variant(engine, granule="some", serve="state", budget="state", multi=True, cache="all",
                             reuse="known", taking="chunk"),
    "granule_all": variant(engine, granule="all", arrival="poisson", preempt="none"),
    "alone": variant(engine, alone=True, taking="chunk_cold"),
    "alone_cached": variant(engine, alone=True, multi=True, cache="all", reuse="known", taking="chunk", chunk=True,
                            form="hold", arrival="poisson"),
    "alone_none": variant(engine, alone=True, preempt="none", taking="crowd", queue="waited"),
    "body_phase": variant(engine, body="phase", taking="chunk_cold"),
    "body_phase_stochastic": variant(engine, body="phase", arrival="poisson", multi=True, cache="all", reuse="known"),
    "body_patient": variant(engine, body="patient", serve="decode_first", taking="register", tail=True),
    "body_crowd": variant(engine, body="crowd", serve="srpt", taking="register", queue="register", granule="some",
                          preempt="position"),
    "body_crowd_cached": variant(engine, body="crowd", form="hold", multi=True, cache="all", reuse="known",
                                 taking="chunk", preempt="none"),
    "bare_body": variant(bare_engine, body="crowd"),
    "two_engines_routed": variant(two_engines, split=False),
    "two_engines_ways": variant(two_engines, split=False, ways=True),
    "two_engines_split": variant(two_engines, split=True),
    "grow_in_engine": grow_in_engine,
    # pools and stages without an engine
    "memory_fifo": variant(memory_queue),
    "memory_size": variant(memory_queue, queue="size", block=True),
    "memory_waited": variant(memory_queue, queue="waited", stochastic=False),
    "memory_aging": variant(memory_queue, queue="aging", oversize="reserve"),
    "memory_wait": variant(memory_queue, oversize="wait", stochastic=False),
    "memory_cached": variant(memory_queue, cached=True, block=True),
    "memory_cached_det": variant(memory_queue, cached=True, stochastic=False),
    "nested": nested,
    "grow_lifo": variant(growing, preempt=LIFO, block=False),
    "grow_tail": variant(growing, preempt=by(neg(ctx("Admission")), tail=True), block=True),
    "grow_none": variant(growing, preempt="None", block=True),
    "control": control,
    "zero_work": zero_work,
    "draws": draws,
    "closed_network": closed_network,
    **SHARING,
}
from generate_control import CONTROL  # noqa: E402

STRUCTURES |= CONTROL
NAMES = list(STRUCTURES)


def generate(structure: int | str, rng: Random) -> Json:
    """A program of the structure (index or name), its numbers drawn from `rng`."""
    return STRUCTURES[NAMES[structure] if isinstance(structure, int) else structure](rng)


def main() -> None:
    """Print one program: `python tests/generate.py STRUCTURE SEED`."""
    import sys

    name, seed = sys.argv[1], int(sys.argv[2])
    print(json.dumps(generate(int(name) if name.isdigit() else name, Random(seed)), indent=1))


if __name__ == "__main__":
    main()
