"""Expressions of serQ IR 14 as nodes of the automaton form.

`Cost` wrappers are types and disappear; array members with a constant index become names; the
names of an engine request (`Input`, `Known`, ...) are replaced by what the caller gives.

**Source:** `spec/ir14.md`, Expressions; `spec/semantics.md`, sections 4 (moves) and 8 (Request).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast, get_args

from .. import ir
from ..ir.codec import describe
from ..ir.expr import (
    ARITY,
    COST_ONLY,
    DRAW_ARITY,
    Aggregate,
    BinaryOp,
    ContextName,
    Distribution,
    MathFunction,
    PoolFunction,
    StageFunction,
)
from ..ir.structure import walk
from .source import Source

#: Context variables that an engine request defines.
REQUEST_NAMES = ("Input", "Output", "Known", "Hit", "Loaded", "Requeued", "Finished")
#: Context variables of IR 14 that keep their names.
CONTEXT = tuple(
    name
    for name in get_args(ContextName)
    if name not in ("DecodePositions", "Requeued", "Finished", "HoldPosition", *COST_ONLY)
)
_BINARY = get_args(BinaryOp)
_POOL = tuple(name for name in get_args(PoolFunction) if name != "Joined")  # which is no function of IR 14
_STAGE = get_args(StageFunction)
_AGGREGATES = get_args(Aggregate)


@dataclasses.dataclass(frozen=True)
class Array:
    """Names of the pools or stages of a program, by index; `array` is None outside arrays."""

    what: str
    names: tuple[str, ...]
    array: tuple[str | None, ...]
    member: tuple[int, ...]


class Expressions:
    """Reader of expressions: `attrs` are the attribute names by slot.

    `aggregates`: the observations by index where aggregates of them may be read, None where not.

    Where an engine's request is read, a mapping from the request's names to expressions is given; elsewhere
    these names are errors.
    """

    def __init__(
        self, source: Source, attrs: tuple[str, ...], pools: Array, stages: Array,
        aggregates: tuple[str, ...] | None = None,
    ) -> None:  # fmt: skip
        self.source = source
        self.attrs = attrs
        self.pools = pools
        self.stages = stages
        self.registers: tuple[str, ...] = ()  # names by index
        self.aggregates = aggregates

    def read(self, value: Any, place: str, request: Mapping[str, ir.Expr] | None = None) -> ir.Expr:
        """One expression (recursive)."""
        source = self.source
        tag, payload = source.tag(value, place)
        inner = f"{place}.{tag}"

        def sub(item: Any, where: str) -> ir.Expr:
            return self.read(item, where, request)

        if tag == "Cost":
            items = source.list(payload, inner, 2)
            return sub(items[1], f"{inner}[1]") if items else ir.Num(0.0)
        if tag == "Num":
            if payload == "-inf":
                return ir.Unary("Neg", ir.Inf())
            number = source.number(payload, inner, infinite=True)
            return ir.Inf() if number == float("inf") else ir.Num(number)
        if tag == "Attr":
            return ir.Attr(self.attr(payload, inner))
        if tag == "Ctx":
            return self._context(payload, inner, request)
        if tag == "Sample":
            return self._sample(payload, inner, request)
        if tag == "Call":
            return self._call(payload, inner, request)
        if tag == "Unary":
            items = source.list(payload, inner, 2)
            if not items:
                return ir.Num(0.0)
            if items[0] not in ("Neg", "Not"):
                source.fail(f"{inner}[0]", f"unknown operator {describe(items[0])}", 'need "Neg" or "Not"')
                return ir.Num(0.0)
            return ir.Unary(items[0], sub(items[1], f"{inner}[1]"))
        if tag == "Binary":
            items = source.list(payload, inner, 3)
            if not items:
                return ir.Num(0.0)
            a, b = sub(items[1], f"{inner}[1]"), sub(items[2], f"{inner}[2]")
            if items[0] not in _BINARY:
                source.fail(f"{inner}[0]", f"unknown operator {describe(items[0])}", f"need one of {_words(_BINARY)}")
                return a
            return ir.Binary(items[0], a, b)
        if tag == "Cond":
            items = source.list(payload, inner, 3)
            return ir.Cond(*(sub(x, f"{inner}[{i}]") for i, x in enumerate(items))) if items else ir.Num(0.0)
        if tag == "Reg":
            return ir.Reg(self.register(payload, inner))
        if tag == "Agg":
            return self._aggregate(payload, inner)
        elif tag:
            tags = "Num Attr Ctx Sample Call Unary Binary Cond Cost Reg Agg"
            source.fail(place, f"unknown expression {describe(tag)}", f"need one of {tags}")
        return ir.Num(0.0)

    def _aggregate(self, payload: Any, place: str) -> ir.Expr:
        source, observes = self.source, self.aggregates
        if observes is None:
            source.fail(place, "an aggregate cannot be read here", "it belongs to a claim at the end of the run")
            return ir.Num(0.0)
        items = source.list(payload, place, 2)
        if not items:
            return ir.Num(0.0)
        if items[0] not in _AGGREGATES:
            source.fail(f"{place}[0]", f"unknown aggregate {describe(items[0])}", f"need one of {_words(_AGGREGATES)}")
            return ir.Num(0.0)
        i = source.index(items[1], f"{place}[1]", len(observes), "observations")
        return ir.Agg(cast(Aggregate, items[0]), observes[i] if observes else "?")

    def attr(self, value: Any, place: str) -> str:
        """The attribute name of a slot."""
        slot = self.source.index(value, place, len(self.attrs), "attributes")
        return self.attrs[slot] if self.attrs else "?"

    def register(self, value: Any, place: str) -> str:
        """The name of a register."""
        i = self.source.index(value, place, len(self.registers), "registers")
        return self.registers[i] if self.registers else "?"

    def resource(self, value: Any, place: str, kind: Array) -> ir.Resource:
        """A CRef: the name of a pool or stage, or a computed member of an array."""
        base, count, index = self.reference(value, place, kind)
        if index is None:
            return kind.names[base] if kind.names else "?"
        array = kind.array[base]
        members = range(base, base + count)
        if array is None or any(kind.array[i] != array or kind.member[i] != i - base for i in members):
            self.source.fail(f"{place}.index", f"the {kind.what} from {base} on are no array of {count}")
            return "?"
        return ir.Member(array, index)

    def reference(self, value: Any, place: str, kind: Array) -> tuple[int, int, ir.Expr | None]:
        """A CRef as (base, count, index); a constant index is resolved into the base."""
        source = self.source
        fields = source.object(value, place)
        size = len(kind.names)
        if not fields:
            return 0, 1, None
        base = source.index(source.get(fields, "base", place), f"{place}.base", size, kind.what)
        most = max(1, size - base)
        count = source.integer(source.get(fields, "count", place), f"{place}.count", 1, most)
        raw = source.get(fields, "index", place, None)
        if raw is None:
            return base, 1, None
        index = self.read(raw, f"{place}.index")
        if isinstance(index, ir.Num):
            if index.value != int(index.value) or not 0 <= index.value < count:
                source.fail(f"{place}.index", f"index {index.value:g} is out of range", f"need 0 to {count - 1}")
                return base, 1, None
            return base + int(index.value), 1, None
        return base, count, index

    def pool(self, value: Any, place: str) -> ir.Resource:
        return self.resource(value, place, self.pools)

    def stage(self, value: Any, place: str) -> ir.Resource:
        return self.resource(value, place, self.stages)

    def keys(self, value: Any, place: str) -> tuple[ir.Expr, ...]:
        return tuple(self.read(key, f"{place}[{i}]") for i, key in enumerate(self.source.list(value, place)))

    def _context(self, payload: Any, place: str, request: Mapping[str, ir.Expr] | None) -> ir.Expr:
        source = self.source
        if not isinstance(payload, str):
            source.fail(place, f"{describe(payload)} is not allowed", "need the name of a context variable")
        elif payload in REQUEST_NAMES:
            if payload == "Loaded":
                source.refuse(place, "request.loaded (a KV connector)")
            elif request is not None and payload in request:
                return request[payload]
            else:
                source.fail(place, f"{payload} cannot be read here", "it belongs to an engine's request")
        elif payload in CONTEXT:
            return ir.Ctx(cast(ContextName, payload))
        else:
            source.fail(place, f"unknown context variable {describe(payload)}", f"need one of {_words(CONTEXT)}")
        return ir.Num(0.0)

    def _sample(self, payload: Any, place: str, request: Mapping[str, ir.Expr] | None) -> ir.Expr:
        source = self.source
        items = source.list(payload, place, 2)
        if not items:
            return ir.Num(0.0)
        dist = items[0]
        if not isinstance(dist, str) or dist not in DRAW_ARITY:
            source.fail(f"{place}[0]", f"unknown distribution {describe(dist)}", f"need one of {_words(DRAW_ARITY)}")
            return ir.Num(0.0)
        args = source.list(items[1], f"{place}[1]", DRAW_ARITY[dist])
        return ir.Sample(
            cast(Distribution, dist), tuple(self.read(a, f"{place}[1][{i}]", request) for i, a in enumerate(args))
        )

    def _call(self, payload: Any, place: str, request: Mapping[str, ir.Expr] | None) -> ir.Expr:
        source = self.source
        items = source.list(payload, place, 2)
        if not items:
            return ir.Num(0.0)
        fun = items[0]

        def argument(args: list[Any], i: int, kind: str) -> tuple[Any, str]:
            where = f"{place}[1][{i}]"
            tag, value = source.tag(args[i], where)
            if tag and tag != kind:
                source.fail(where, f"{fun} takes no {describe(tag)} here", f'need {{"{kind}": ...}}')
                return None, ""
            return value, f"{where}.{kind}" if tag else ""

        def args(kinds: tuple[str, ...]) -> list[tuple[Any, str]] | None:
            values = source.list(items[1], f"{place}[1]", len(kinds))
            found = [argument(values, i, kind) for i, kind in enumerate(kinds)] if values else []
            return found if found and all(where for _, where in found) else None

        if fun == "Pow":  # a function in version 12
            found = args(("Expr", "Expr"))
            return ir.Binary("Pow", *(self.read(v, w, request) for v, w in found)) if found else ir.Num(0.0)
        if fun in ARITY:
            found = args(("Expr",) * ARITY[fun])
            if found:
                return ir.Call(cast(MathFunction, fun), tuple(self.read(v, w, request) for v, w in found))
        elif fun in _POOL:
            found = args(("Pool",))
            if found:
                return ir.PoolState(cast(PoolFunction, fun), self.pool(*found[0]))
        elif fun == "Price":
            found = args(("Stage", "Expr", "Expr"))
            if found:
                stage, service, delay = found
                return ir.Price(self.stage(*stage), self.read(*service, request), self.read(*delay, request))
        elif fun in _STAGE:
            found = args(("Stage",))
            if found:
                return ir.StageState(cast(StageFunction, fun), self.stage(*found[0]))
        else:
            known = (*ARITY, *_POOL, *_STAGE, "Price")
            source.fail(f"{place}[0]", f"unknown function {describe(fun)}", f"need one of {_words(known)}")
        return ir.Num(0.0)


def moves(expr: ir.Expr) -> bool:
    """True if it may change while a session waits: it reads a context variable, a register, state, or draws."""
    changing = (ir.Ctx, ir.Reg, ir.Sample, ir.PoolState, ir.StageState, ir.Price)
    return any(isinstance(node, changing) for _, node in walk(expr))


def at_least_zero(amount: ir.Expr) -> ir.Expr:
    """An amount where the reference takes negative values as 0 (cache and reuse clauses)."""
    return amount if _never_negative(amount) else ir.Call("Max", (amount, ir.Num(0.0)))


def _never_negative(expr: ir.Expr) -> bool:
    """Whether an expression is a number of tokens or units by its form (tokens of requests are checked)."""
    if isinstance(expr, ir.Num):
        return expr.value >= 0
    if isinstance(expr, ir.Attr):
        return expr.name == "cached" or expr.name.endswith((".input", ".output", ".known", ".hit"))
    if isinstance(expr, ir.Ctx):
        return expr.name in ("HoldPosition", "Finished")
    if isinstance(expr, ir.Cond):
        return _never_negative(expr.then) and _never_negative(expr.orelse)
    if isinstance(expr, ir.Call):
        together = any if expr.fun == "Max" else all
        return expr.fun in ("Min", "Max", "Floor", "Ceil") and together(_never_negative(a) for a in expr.args)
    if isinstance(expr, ir.Binary):
        return expr.op in ("Add", "Mul") and _never_negative(expr.a) and _never_negative(expr.b)
    return isinstance(expr, ir.PoolState) and expr.fun == "CachedIn"


def _words(names: Any) -> str:
    return " ".join(names)
