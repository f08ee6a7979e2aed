"""What is known of an expression without running it: its constant value, its range, its wholeness.

**Source:** `spec/semantics.md`, section 14 (arithmetic); `spec/ir14.md` (whole numbers).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from ..ir.expr import (
    ARITY,
    Attr,
    Binary,
    Call,
    Cond,
    Ctx,
    Expr,
    Inf,
    Member,
    Num,
    Param,
    PoolState,
    Reg,
    Sample,
    StageState,
    Table,
    Unary,
)
from ..ir.fixed import binary, function
from ..ir.program import Assign, Choose, Listed, Program, Set
from ..ir.structure import walk
from .index import Index

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
NOT_NEGATIVE: Range = (0.0, math.inf)


def constant(index: Index, expr: Expr | None) -> float | None:
    """The value of an expression of numbers alone, else None; IEEE doubles, nan where they give nan."""
    if expr is None:
        return None
    if isinstance(expr, Num | Inf | Param):
        return index.number(expr)
    if isinstance(expr, Sample):
        return constant(index, expr.args[0]) if expr.dist == "Det" and len(expr.args) == 1 else None
    if isinstance(expr, Cond):
        test = constant(index, expr.test)
        return None if test is None else constant(index, expr.then if test != 0 else expr.orelse)
    if isinstance(expr, Unary):
        a = constant(index, expr.a)
        return None if a is None else (-a if expr.op == "Neg" else float(a == 0))
    if isinstance(expr, Binary):
        a = constant(index, expr.a)
        if a is not None and expr.op == "And" and a == 0:
            return 0.0
        if a is not None and expr.op == "Or" and a != 0:
            return 1.0
        b = constant(index, expr.b)
        if a is None or b is None:
            return None
        return float(a != 0 and b != 0) if expr.op in ("And", "Or") else binary(expr.op, a, b)
    if isinstance(expr, Call):
        args = [constant(index, a) for a in expr.args]
        if None in args or len(args) != ARITY[expr.fun]:
            return None
        return function(expr.fun, *args)  # type: ignore[arg-type]
    return None


# ---------------------------------------------------------------- ranges


def span(index: Index, expr: Expr | None, contexts: Mapping[str, Range], attrs: Mapping[str, Range]) -> Range:
    """Least and greatest value that the expression can take, as far as known (`ANY` where it is not).

    `contexts`, `attrs`: ranges of context variables and attributes; what is absent is unknown.
    """
    value = constant(index, expr)
    if value is not None:
        return ANY if math.isnan(value) else (value, value)

    def sub(e: Expr) -> Range:
        return span(index, e, contexts, attrs)

    match expr:
        case Ctx(name=name):
            return contexts.get(name, ANY)
        case Attr(name=name):
            return attrs.get(name, ANY)
        case PoolState() | StageState():
            return NOT_NEGATIVE if expr.fun != "Free" else ANY
        case Unary(op="Neg", a=a):
            low, high = sub(a)
            return -high, -low
        case Unary():
            return 0.0, 1.0
        case Cond(then=then, orelse=orelse):
            a, b = sub(then), sub(orelse)
            return min(a[0], b[0]), max(a[1], b[1])
        case Binary(op=op, a=a, b=b):
            return _span_binary(op, sub(a), sub(b))
        case Call(fun=fun, args=args):
            return _span_call(fun, [sub(a) for a in args])
        case Table():
            return NOT_NEGATIVE  # a line may go on without end
        case Sample(dist=dist, args=args):
            return _span_sample(dist, [sub(a) for a in args])
    return ANY


def _span_binary(op: str, a: Range, b: Range) -> Range:
    if op == "Add":
        return _clean(a[0] + b[0], a[1] + b[1])
    if op == "Sub":
        return _clean(a[0] - b[1], a[1] - b[0])
    if op == "Mul":
        ends = [0.0 if x == 0 or y == 0 else x * y for x in a for y in b]
        return _clean(min(ends), max(ends))
    if op == "Div" and b[0] > 0:
        ends = [x / y if math.isfinite(y) else 0.0 for x in a for y in b if not (math.isinf(x) and math.isinf(y))]
        return _clean(min(ends), max(ends)) if len(ends) == 4 else ANY
    if op in ("Div", "Pow"):
        return ANY
    return 0.0, 1.0


def _span_call(fun: str, args: list[Range]) -> Range:
    match fun, args:
        case "Min", [a, b]:
            return min(a[0], b[0]), min(a[1], b[1])
        case "Max", [a, b]:
            return max(a[0], b[0]), max(a[1], b[1])
        case "Abs", [(low, high)]:
            return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
        case ("Floor" | "Ceil" | "Exp") as name, [(low, high)]:
            low = -math.inf if math.isinf(low) and name != "Exp" else function(name, low)
            return low, (math.inf if math.isinf(high) else function(name, high))
        case "Sqrt", [(low, high)] if low >= 0:
            return math.sqrt(low), (math.inf if math.isinf(high) else math.sqrt(high))
    return ANY


def _span_sample(dist: str, args: list[Range]) -> Range:
    match dist, args:
        case "Bernoulli", _:
            return 0.0, 1.0
        case "Uniform", [a, b]:
            return min(a[0], b[0]), max(a[1], b[1])
        case "Exp" | "Erlang" | "H2", _ if args and all(a[0] >= 0 for a in args):
            return NOT_NEGATIVE
        case "Det", [a]:
            return a
    return ANY


def _clean(low: float, high: float) -> Range:
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


# ---------------------------------------------------------------- whole numbers


class Wholeness:
    """Which attributes and registers always hold whole numbers, and which expressions give them.

    An attribute starts at 0 and is whole unless something writes a value into it that may not be.
    `cached`, `computed` and the state of pools count as whole: what a hold takes in tokens is checked itself.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.attrs = {name: True for name in index.attrs}
        program = index.program
        for name, column in columns(index).items():
            self.attrs[name] = self.attrs.get(name, False) and column.whole
        self.registers = {r.name: True for r in program.registers}
        written = [(self.attrs, name, value) for name, value in writes(program)]
        written += [(self.registers, r.name, r.init) for r in program.registers]
        written += [(self.registers, c.register, c.value) for c in assignments(program)]
        changed = True
        while changed:
            changed = False
            for table, name, value in written:
                if table.get(name, False) and not self.whole(value):
                    table[name] = False
                    changed = True

    def whole(self, expr: Expr | None) -> bool:
        """Whether the expression is provably a whole number (infinity passes)."""
        if expr is None:
            return True
        value = constant(self.index, expr)
        if value is not None:
            return math.isinf(value) or value == math.floor(value) if not math.isnan(value) else False
        match expr:
            case Attr(name=name):
                return self.attrs.get(name, False)
            case Reg(name=name):
                return self.registers.get(name, False)
            case Ctx(name=name):
                return name not in ("Now", "Waited", "Age", "Last", "Attn")
            case PoolState():
                return True
            case StageState(fun=fun):
                return fun in ("Queue", "Busy", "BudgetLeft")
            case Unary(op="Neg", a=a):
                return self.whole(a)
            case Unary():
                return True
            case Cond(then=a, orelse=b):
                return self.whole(a) and self.whole(b)
            case Binary(op=op, a=a, b=b):
                return op not in ("Div", "Pow") and (op not in ("Add", "Sub", "Mul") or self.whole(a) and self.whole(b))
            case Call(fun=fun, args=args):
                return fun in ("Floor", "Ceil") or (fun in ("Min", "Max", "Abs") and all(self.whole(a) for a in args))
            case Sample(dist=dist, args=args):
                return dist == "Bernoulli" or (dist == "Det" and all(self.whole(a) for a in args))
        return False


def writes(program: Program) -> list[tuple[str, Expr]]:
    """Every (attribute, expression) that the program sets."""
    found = [(let.attr, let.value) for scope in program.scopes for let in scope.lets]
    for ops in (program.init, program.turn, *(state.ops for state in program.states)):
        found += [(op.attr, op.value) for op in ops if isinstance(op, Set)]
        # what is chosen is a whole number below the count
        found += [(op.attr, Call("Floor", (op.count,))) for op in ops if isinstance(op, Choose)]
    return found


def chosen_from(op: Choose) -> list[tuple[str, Member]]:
    """References of a choice's keys that the chosen attribute indexes, with their kind (`pool`, `stage`)."""
    found: list[tuple[str, Member]] = []
    for _, node in walk(op.keys):
        for kind in ("pool", "stage"):
            ref = getattr(node, kind, None)
            if isinstance(ref, Member) and ref.index == Attr(op.attr):
                found.append((kind, ref))
    return found


def assignments(program: Program) -> list[Assign]:
    """Every command of an iteration that assigns a register."""
    return [node for _, node in walk(program.stages) if isinstance(node, Assign)]


def _columns(program: Program) -> Iterator[tuple[str, float]]:
    """Every (attribute, number) that the data of the program sets."""
    tables: list[tuple[tuple[str, ...], tuple]] = []
    if isinstance(program.arrival, Listed):
        tables.append((program.arrival.attrs, program.arrival.values))
        tables += [(program.arrival.turn_attrs, rows) for rows in program.arrival.turns]
    if program.trace is not None:
        tables += [(program.trace.attrs, rows) for rows in program.trace.turns]
    for names, rows in tables:
        for row in rows:
            for name, value in zip(names, row):
                if value is not None:
                    yield name, value


@dataclasses.dataclass(frozen=True)
class Column:
    """The numbers that data set an attribute to: least, greatest, and whether all are whole."""

    low: float
    high: float
    whole: bool


def columns(index: Index) -> dict[str, Column]:
    """The attributes that the data of the program set (kept on the index: tables can be long)."""
    if index.columns is None:
        values: dict[str, list[float]] = {}
        for name, value in _columns(index.program):
            values.setdefault(name, []).append(value)
        index.columns = {
            name: Column(min(v), max(v), all(math.isfinite(x) and x == math.floor(x) for x in v))
            for name, v in values.items()
        }
    return index.columns
