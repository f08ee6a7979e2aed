"""Step costs in fixed point: integers shared by every engine.

A cost that is affine in the iteration's variables (or a max/min of such) has a *form*: a
tree of `Affine`, `MaxOf` and `MinOf` whose coefficients are constant expressions. `resolve` turns the
coefficients into integers of 2**-20 ticks per unit, `evaluate` gives the cost of an iteration as
one integer. An engine carries the sub-tick remainder from one iteration to the next:

    cost = max(0, evaluate(form, variables))
    end  = now + ((rest + cost) >> FIXED_BITS);  rest = (rest + cost) & (2**FIXED_BITS - 1)

and `rest` is 0 when an idle engine starts (its previous iteration did not end at this tick). A
cost without a form is evaluated in float64 seconds and rounded to ticks, with rest 0.

`attention` has halves, so its integer variable is 2 * Attn (`VARIABLE_SCALE`).

**Source:** `design.md`, section 4, Time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .expr import Binary, Call, Cond, Ctx, Expr, Inf, Num, Param, PoolState, StageState, Unary
from .program import Program, Step

FIXED_BITS = 20
#: Context variables that a form may read; the rest send a cost to the float path.
VARIABLES = ("Nres", "Ndec", "Kvb", "Kvp", "Ntok", "Npre", "Attn", "DecodePositions")
#: What an engine multiplies a variable by to have an integer.
VARIABLE_SCALE = {name: 2 if name == "Attn" else 1 for name in VARIABLES}
#: Adding two maxima distributes them; a form with more leaves than this goes to the float path.
MAX_LEAVES = 64


@dataclass(frozen=True)
class Affine:
    """`constant + sum(coefficient * variable)`, seconds; coefficients are constant expressions."""

    constant: Expr
    terms: tuple[tuple[str, Expr], ...] = ()


@dataclass(frozen=True)
class MaxOf:
    parts: tuple[Form, ...]


@dataclass(frozen=True)
class MinOf:
    parts: tuple[Form, ...]


Form = Affine | MaxOf | MinOf


@dataclass(frozen=True)
class IntAffine:
    """An `Affine` with integers of 2**-20 ticks per unit of each scaled variable."""

    constant: int
    terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class IntMax:
    parts: tuple[IntForm, ...]


@dataclass(frozen=True)
class IntMin:
    parts: tuple[IntForm, ...]


IntForm = IntAffine | IntMax | IntMin


# ---------------------------------------------------------------- constants


def is_constant(expr: Expr) -> bool:
    """Whether the value depends on numbers and parameters alone."""
    match expr:
        case Num() | Param():
            return True
        case Unary(a=a):
            return is_constant(a)
        case Binary(a=a, b=b):
            return is_constant(a) and is_constant(b)
        case Call(args=args):
            return all(map(is_constant, args))
        case Cond(test=test, then=then, orelse=orelse):
            return is_constant(test) and is_constant(then) and is_constant(orelse)
        case _:
            return False


def evaluate_constant(expr: Expr, params: Mapping[str, float]) -> float:
    """Value of a constant expression in float64 (semantics section 14). KeyError: unknown parameter."""
    match expr:
        case Num(value=value):
            return float(value)
        case Param(name=name):
            return float(params[name])
        case Unary(op=op, a=a):
            x = evaluate_constant(a, params)
            return -x if op == "Neg" else float(x == 0.0)
        case Cond(test=test, then=then, orelse=orelse):
            return evaluate_constant(then if evaluate_constant(test, params) != 0.0 else orelse, params)
        case Binary(op=op, a=a, b=b):
            x = evaluate_constant(a, params)
            if op == "And":
                return float(x != 0.0 and evaluate_constant(b, params) != 0.0)
            if op == "Or":
                return float(x != 0.0 or evaluate_constant(b, params) != 0.0)
            return binary(op, x, evaluate_constant(b, params))
        case Call(fun=fun, args=args):
            return function(fun, *(evaluate_constant(a, params) for a in args))
    raise TypeError(f"{type(expr).__name__} is not a constant expression")


def binary(op: str, x: float, y: float) -> float:
    """IEEE double arithmetic; comparisons give 1 or 0."""
    match op:
        case "Add":
            return x + y
        case "Sub":
            return x - y
        case "Mul":
            return x * y
        case "Div":
            if y == 0.0:
                if x == 0.0 or x != x:
                    return math.nan
                return math.copysign(math.inf, x) * math.copysign(1.0, y)
            return x / y
        case "Pow":
            return power(x, y)
        case "Lt":
            return float(x < y)
        case "Le":
            return float(x <= y)
        case "Gt":
            return float(x > y)
        case "Ge":
            return float(x >= y)
        case "Eq":
            return float(x == y)
        case "Ne":
            return float(x != y)
    raise ValueError(op)


def power(x: float, y: float) -> float:
    try:
        value = math.pow(x, y)
    except OverflowError:
        return math.inf if x > 0 or y % 2 == 0 else -math.inf
    except ValueError:  # 0 to a negative power, or a negative base with a fractional exponent
        if x != 0.0:
            return math.nan
        return math.copysign(math.inf, x) if y % 2 == 1 else math.inf
    return value


def function(fun: str, x: float, y: float = 0.0) -> float:
    """The pure functions; Min and Max ignore a NaN operand."""
    match fun:
        case "Min":
            return y if x != x else x if y != y else min(x, y)
        case "Max":
            return y if x != x else x if y != y else max(x, y)
        case "Abs":
            return abs(x)
        case "Floor":
            return float(math.floor(x)) if math.isfinite(x) else x
        case "Ceil":
            return float(math.ceil(x)) if math.isfinite(x) else x
        case "Sqrt":
            return math.sqrt(x) if x >= 0 else math.nan
        case "Exp":
            try:
                return math.exp(x)
            except OverflowError:
                return math.inf
        case "Ln":
            return math.log(x) if x > 0 else (-math.inf if x == 0 else math.nan)
    raise ValueError(fun)


# ---------------------------------------------------------------- forms


def cost_form(expr: Expr) -> Form | None:
    """The form of a cost, or None where it has none (then it is evaluated in float64).

    A product with a maximum needs a literal factor, because the sign decides between max and min.
    """
    form = _form(expr)
    return form if form is not None and _leaves(form) <= MAX_LEAVES else None


def _form(expr: Expr) -> Form | None:
    if is_constant(expr):
        return Affine(expr)
    match expr:
        case Ctx(name=name) if name in VARIABLES:
            return Affine(Num(0.0), ((name, Num(1.0)),))
        case Unary(op="Neg", a=a):
            return _scaled(_form(a), Num(-1.0))
        case Binary(op="Add", a=a, b=b):
            return _sum(_form(a), _form(b))
        case Binary(op="Sub", a=a, b=b):
            return _sum(_form(a), _scaled(_form(b), Num(-1.0)))
        case Binary(op="Mul", a=a, b=b) if is_constant(a):
            return _scaled(_form(b), a)
        case Binary(op="Mul", a=a, b=b) if is_constant(b):
            return _scaled(_form(a), b)
        case Binary(op="Div", a=a, b=b) if is_constant(b):
            return _scaled(_form(a), b, divide=True)
        case Call(fun="Max" | "Min" as fun, args=(a, b)):
            parts = _form(a), _form(b)
            if parts[0] is None or parts[1] is None:
                return None
            return _extreme(MaxOf if fun == "Max" else MinOf, parts[0], parts[1])
    return None


def _extreme(kind: type[MaxOf] | type[MinOf], *parts: Form) -> Form:
    flat: list[Form] = []
    for part in parts:
        if isinstance(part, MaxOf | MinOf) and isinstance(part, kind):
            flat.extend(part.parts)
        else:
            flat.append(part)
    return kind(tuple(flat))


def _scaled(form: Form | None, factor: Expr, divide: bool = False) -> Form | None:
    if form is None:
        return None
    if isinstance(form, Affine):
        op = "Div" if divide else "Mul"

        def times(a: Expr) -> Expr:
            if a == Num(0.0):
                return a
            return factor if a == Num(1.0) and not divide else Binary(op, a, factor)

        return Affine(times(form.constant), tuple((name, times(a)) for name, a in form.terms))
    if not _is_literal(factor):
        return None
    sign = evaluate_constant(factor, {})
    if not math.isfinite(sign) or sign == 0.0:
        return None
    parts = [p for p in (_scaled(part, factor, divide) for part in form.parts) if p is not None]
    if len(parts) < len(form.parts):
        return None
    return _extreme(MaxOf if isinstance(form, MaxOf) == (sign > 0) else MinOf, *parts)


def _is_literal(expr: Expr) -> bool:
    match expr:
        case Num():
            return True
        case Unary(a=a):
            return _is_literal(a)
        case Binary(a=a, b=b):
            return _is_literal(a) and _is_literal(b)
    return False


def _sum(a: Form | None, b: Form | None) -> Form | None:
    if a is None or b is None or _leaves(a) * _leaves(b) > MAX_LEAVES:
        return None
    if isinstance(a, Affine) and isinstance(b, Affine):
        terms = dict(a.terms)
        for name, k in b.terms:
            terms[name] = _plus(terms[name], k) if name in terms else k
        return Affine(_plus(a.constant, b.constant), tuple(sorted(terms.items(), key=lambda term: term[0])))
    if isinstance(a, Affine):
        a, b = b, a
    assert not isinstance(a, Affine)
    parts = [p for p in (_sum(part, b) for part in a.parts) if p is not None]
    return _extreme(type(a), *parts) if len(parts) == len(a.parts) else None


def _plus(a: Expr, b: Expr) -> Expr:
    return b if a == Num(0.0) else a if b == Num(0.0) else Binary("Add", a, b)


def _leaves(form: Form) -> int:
    return 1 if isinstance(form, Affine) else sum(map(_leaves, form.parts))


# ---------------------------------------------------------------- integers


def to_fixed(seconds: float, tick_s: float) -> int:
    """Seconds as an integer of 2**-20 ticks, half to even. ValueError: not finite."""
    if not math.isfinite(seconds):
        raise ValueError(f"a cost coefficient is {seconds}: give a finite number of seconds")
    return round(seconds / tick_s * (1 << FIXED_BITS))


def resolve(form: Form, params: Mapping[str, float], tick_s: float) -> IntForm:
    """The form with its coefficients as integers. ValueError: a coefficient is not finite."""
    if isinstance(form, Affine):
        terms = tuple(
            (name, to_fixed(evaluate_constant(k, params) / VARIABLE_SCALE[name], tick_s)) for name, k in form.terms
        )
        return IntAffine(to_fixed(evaluate_constant(form.constant, params), tick_s), terms)
    parts = tuple(resolve(part, params, tick_s) for part in form.parts)
    return IntMax(parts) if isinstance(form, MaxOf) else IntMin(parts)


def evaluate(form: IntForm, variables: Mapping[str, int]) -> int:
    """Value in 2**-20 ticks (may be negative); `variables`: integers, each times its `VARIABLE_SCALE`."""
    if isinstance(form, IntAffine):
        return form.constant + sum(k * variables[name] for name, k in form.terms)
    values = [evaluate(part, variables) for part in form.parts]
    return max(values) if isinstance(form, IntMax) else min(values)


def reads(form: Form | IntForm) -> frozenset[str]:
    """Names of the variables that the form reads."""
    if isinstance(form, Affine | IntAffine):
        return frozenset(name for name, _ in form.terms)
    return frozenset().union(*(reads(part) for part in form.parts))


# ---------------------------------------------------------------- when the variables are integers


def stage_form(program: Program, step: Step) -> Form | None:
    """The form of the cost of a step stage, or None: float path.

    The variables must be integers. Tokens are: work on a step stage is whole by the language's rule;
    budget, chunk and the tokens of a decode must be provably whole (below). `Kvb`, `Kvp` are where the memory pool has
    a whole block (units are then multiples of it); with a pool without blocks the cost takes the float path.
    """
    form = cost_form(step.cost)
    if form is None:
        return None
    params = {p.name: p.value for p in program.params}
    if not all(expr is None or is_whole(expr, params) for expr in (step.budget, step.chunk, step.decode, step.verify)):
        return None
    if step.memory is not None and reads(form) & {"Kvb", "Kvp"}:
        pool = next(p for p in program.pools if p.name == step.memory)
        if pool.block is None or not is_whole(pool.block, params):
            return None
    return form


def is_whole(expr: Expr, params: Mapping[str, float]) -> bool:
    """Whether a number of tokens or units is provably whole (or infinite)."""
    if is_constant(expr):
        value = evaluate_constant(expr, params)
        return value == math.inf or value.is_integer()
    match expr:
        case Ctx(name=name):
            return name in ("Nres", "Ndec")
        case Unary(op="Neg", a=a):
            return is_whole(a, params)
        case Unary(op="Not"):
            return True
        case Binary(op="Add" | "Sub" | "Mul", a=a, b=b):
            return is_whole(a, params) and is_whole(b, params)
        case Binary(op=op):
            return op not in ("Div", "Pow")
        case Call(fun="Floor" | "Ceil"):
            return True
        case Call(fun="Min" | "Max" | "Abs", args=args):
            return all(is_whole(a, params) for a in args)
        case Cond(then=then, orelse=orelse):
            return is_whole(then, params) and is_whole(orelse, params)
        case Inf():
            return True
        case PoolState(fun=fun):  # counts of sessions are whole, units need not be
            return fun in ("Holders", "Queued")
        case StageState(fun=fun):
            return fun in ("Queue", "Busy")
    return False
