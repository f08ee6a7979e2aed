"""Writing serQ IR 14 by hand in tests: expressions, statements and a `Builder` of whole programs."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

Json = Any
W, S = "Workload", "Server"
BUILT_IN = ["cached", "serial", "turn_no", "new", "out", "think", "more", "forced", "computed"]
CACHED, SERIAL, TURN_NO, NEW, OUT, THINK, MORE, FORCED, COMPUTED = range(9)


# ---------------------------------------------------------------- expressions


def num(x: float) -> Json:
    return {"Num": float(x)}


def at(slot: int) -> Json:
    return {"Attr": slot}


def ctx(name: str) -> Json:
    return {"Ctx": name}


def op(name: str, a: Json, b: Json) -> Json:
    return {"Binary": [name, a, b]}


def add(*terms: Json) -> Json:
    total = terms[0]
    for term in terms[1:]:
        total = op("Add", total, term)
    return total


def sub(a: Json, b: Json) -> Json:
    return op("Sub", a, b)


def mul(a: Json, b: Json) -> Json:
    return op("Mul", a, b)


def neg(a: Json) -> Json:
    return {"Unary": ["Neg", a]}


def no(a: Json) -> Json:
    return {"Unary": ["Not", a]}


def cond(test: Json, a: Json, b: Json) -> Json:
    return {"Cond": [test, a, b]}


def call(fun: str, *args: Json) -> Json:
    return {"Call": [fun, [{"Expr": a} for a in args]]}


def ref(base: int) -> Json:
    return {"base": base, "count": 1, "index": None}


def pool_state(fun: str, pool: int) -> Json:
    return {"Call": [fun, [{"Pool": ref(pool)}]]}


def stage_state(fun: str, stage: int) -> Json:
    return {"Call": [fun, [{"Stage": ref(stage)}]]}


def draw(dist: str, *args: float | Json) -> Json:
    return {"Sample": [dist, [a if isinstance(a, dict) else num(a) for a in args]]}


def of_pool(pool: int, expr: Json) -> Json:
    return {"Cost": [{"Pool": {"base": pool, "count": 1}}, expr]}


def of_stage(stage: int, expr: Json) -> Json:
    return {"Cost": [{"Stage": {"base": stage, "count": 1}}, expr]}


def of_pools(pools: list[int], expr: Json) -> Json:
    if len(pools) == 1:
        return of_pool(pools[0], expr)
    return {"Cost": [{"Joint": [{"Pool": {"base": p, "count": 1}} for p in sorted(pools)]}, expr]}


# ---------------------------------------------------------------- programs


class Body(list):
    """A nested block of statements."""


class Builder:
    """Collects the parts of one program; `finish` gives the dict."""

    def __init__(self) -> None:
        self.attrs = list(BUILT_IN)
        self.types: list[Json] = ["Value", *["Size"] * 7, "Value"]
        self.observes: list[str] = []
        self.pools: list[Json] = []
        self.stages: list[Json] = []
        self.registers: list[Json] = []
        self.blocks: list[list[Json]] = []
        self.sides: list[list[str]] = []

    def attr(self, name: str, kind: str = "Value") -> int:
        if name not in self.attrs:
            self.attrs.append(name)
            self.types.append(kind)
        return self.attrs.index(name)

    def observe(self, name: str) -> int:
        if name not in self.observes:
            self.observes.append(name)
        return self.observes.index(name)

    def pool(
        self,
        name: str,
        cap: Json,
        block: float | None = None,
        evict: Json = "Lru",
        preempt: Json = "None",
        queue: list[Json] | None = None,
        admit_via: int | None = None,
        reserve_held: bool = False,
    ) -> int:
        row = {
            "name": name,
            "cap": cap,
            "block": block,
            "evict": evict,
            "preempt": preempt,
            "queue": queue,
            "spill": None,
            "admit_via": admit_via,
        }
        if reserve_held:
            row["reserve_held"] = True
        self.pools.append(row)
        return len(self.pools) - 1

    def stage(self, name: str, kind: Json) -> int:
        self.stages.append({"name": name, "kind": kind})
        return len(self.stages) - 1

    def register(self, name: str, stage: int, init: float = 0.0) -> int:
        self.registers.append({"name": name, "stage": stage, "init": init})
        return len(self.registers) - 1

    def block(self, body: list[Json]) -> int:
        stmts, sides = [], []
        for side, stmt in body:
            sides.append(side)
            stmts.append(self._nested(stmt))
        self.blocks.append(stmts)
        self.sides.append(sides)
        return len(self.blocks) - 1

    def _nested(self, node: Json) -> Json:
        if isinstance(node, Body):
            return self.block(node)
        if isinstance(node, dict):
            return {k: self._nested(v) for k, v in node.items()}
        if isinstance(node, list):
            return [self._nested(v) for v in node]
        return node

    def finish(
        self,
        rng: Random,
        arrival: Json,
        session: list[Json],
        init: list[Json] | None = None,
        turn: list[Json] | None = None,
        horizon: float = 400.0,
        warmup: float = 0.0,
        arrivals: int | None = None,
        trace: str | None = None,
        ordered: bool = False,
    ) -> Json:
        first = self.block([(W, s) for s in init or []])
        second = self.block([(W, s) for s in turn or []])
        third = self.block(session)
        program = {
            "version": 14,
            "attrs": self.attrs,
            "attr_types": self.types,
            "sides": self.sides,
            "observes": self.observes,
            "pools": self.pools,
            "stages": self.stages,
            "arrival": arrival,
            "trace": trace,
            "trace_ordered": ordered,
            "init": first,
            "turn": second,
            "session": third,
            "blocks": self.blocks,
            "horizon": float(horizon),
            "warmup": float(warmup),
            "seed": rng.randrange(1, 1 << 31),
            **{f"slot_{name}": i for i, name in enumerate(["cached", "serial", "turn", *BUILT_IN[3:]])},
            "hidden": [],
        }
        if arrivals is not None:
            program["arrivals"] = arrivals
        if self.registers:
            program["registers"] = self.registers
        # shared sub-dicts would be one object in memory: a shrinker that edits one place must not edit two
        return copy.deepcopy(program)


def put(slot: int, value: Json) -> Json:
    return {"Set": [slot, value]}


def see(observe: int, value: Json) -> Json:
    return {"Observe": [observe, value]}


def work(stage: int, amount: Json, mode: str = "Plain", growing: int | None = None) -> Json:
    return {
        "Run": {
            "stage": ref(stage),
            "mode": mode,
            "work": of_stage(stage, amount),
            "growing": None if growing is None else ref(growing),
        }
    }


def hold(takes: list[tuple[int, Json, Json | None]], body: list[Json], reuse: Json = None, cache: Json = None) -> Json:
    pools = [p for p, _, _ in takes]
    return {
        "Hold": {
            "pools": [[ref(p), of_pool(p, u), None if r is None else of_pool(p, r)] for p, u, r in takes],
            "reuse": None if reuse is None else of_pools(pools, reuse),
            "body": Body(body),
            "cache": None if cache is None else of_pools(pools, cache),
            "lease": None,
        }
    }


def by(*keys: Json, tail: bool = False) -> Json:
    return {"By": {"keys": list(keys), **({"tail": True} if tail else {})}}


LIFO = by(neg(ctx("Admission")))
DELAY = {"Ps": {"Ctx": "N"}}
