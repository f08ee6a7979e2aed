"""Programs of `generate.py` with gauges and claims: the structure says which, the rng draws their numbers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from generate import STRUCTURES
from ir14_builder import SERIAL, Json, add, at, call, cond, ctx, mul, num, op, pool_state, stage_state, sub


def with_measures(program: Json, rng: Random) -> Json:
    """The program with gauges of its pools and stages, claims over the iterations of its engines and at its end."""
    pools, stages = range(len(program["pools"])), range(len(program["stages"]))
    engines = [i for i in stages if "Step" in program["stages"][i]["kind"]]
    gauges: list[Json] = []
    for p in pools:
        gauges += [pool_state("Used", p), add(pool_state("Queued", p), pool_state("Holders", p))]
    for s in stages:
        gauges += [stage_state("Queue", s), op("Gt", stage_state("Busy", s), num(rng.randint(0, 2)))]
    if pools:
        gauges.append(op("Div", pool_state("Free", 0), add(num(rng.choice([0, 1, 3])), pool_state("Holders", 0))))
        gauges.append(cond(pool_state("Queued", 0), stage_state("Queue", 0), num(0.1)))
    claims: list[Json] = []

    def claim(kind: Any, expr: Json, given: Json | None = None) -> None:
        row = {"name": f"claim {len(claims)}", "kind": kind, "expr": expr}
        claims.append(row if given is None else row | {"given": given})

    late = op("Lt", at(SERIAL), num(rng.choice([2, 5, 100])))
    for s in engines:
        every, some = {"EveryIteration": s}, {"SomeIteration": s}
        claim(every, op("Le", ctx("Ntok"), ctx("Demand")))
        claim(every, op("Lt", ctx("Served"), num(rng.randint(0, 400))))
        claim(some, op("Ge", ctx("Ndec"), num(rng.randint(1, 4))))
        claim(some, op("And", op("Gt", ctx("Npre"), num(0)), op("Gt", add(ctx("Kvb"), ctx("Kvp")), num(20))), late)
        claim(every, sub(ctx("Arrived"), mul(ctx("Nres"), num(rng.randint(1, 3)))), late)
        claim(every, op("Lt", mul(ctx("Now"), num(rng.choice([0.01, 0.1]))), add(num(1), ctx("Attn"))))
        claim(every, sub(call("Max", stage_state("Queue", s), stage_state("Busy", s)), num(rng.randint(1, 3))))
        for p in pools:
            claim(some, op("Lt", pool_state("Free", p), num(rng.randint(1, 30))))
    for o in range(len(program["observes"])):
        total, count = {"Agg": ["Total", o]}, {"Agg": ["Count", o]}
        claim("AtEnd", op("Lt", total, mul(num(rng.choice([1, 10, 100])), count)))
        claim("AtEnd", sub({"Agg": ["Largest", o]}, {"Agg": ["Smallest", o]}), late)
        claim("AtEnd", op("Gt", {"Agg": ["PrefixTotal", o]}, mul(ctx("Now"), num(rng.choice([1, 10])))))
    rows = [{"name": f"gauge {i}", "expr": expr} for i, expr in enumerate(gauges)]
    return program | {"gauges": rows, "claims": claims}


#: Engines with caches, preemption and waiting growth, two engines, drained runs, stages without an engine.
BASES = [
    "two_turns_cached", "preempt_none", "poisson_drain", "chunk_tail", "hold_cached", "two_engines_split",
    "memory_fifo", "nested", "grow_tail", "closed_network", "poisson",
]  # fmt: skip


def _measured(base: str) -> Callable[[Random], Json]:
    return lambda rng: with_measures(STRUCTURES[base](rng), rng)


MEASURED: dict[str, Callable[[Random], Json]] = {f"measured_{base}": _measured(base) for base in BASES}
