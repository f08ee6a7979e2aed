"""Operations of JAX on scalars as instructions, with XLA's meaning of the corner cases.

**Source:** XLA's operation semantics: shifts by the width or more, division by zero, conversions out of range, NaN in
`max`, the total order of floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .emitter import Emitter, constant, is_float, wrapped
from .values import Scalar

#: `(emitter, parameters, dtypes of the operands, dtype of the result, operands) -> result`.
Rule = Callable[[Emitter, dict[str, Any], Sequence[np.dtype], np.dtype, Sequence[Scalar]], Scalar]

BOOL = np.dtype(bool)


def known(values: Sequence[Scalar]) -> bool:
    return not any(isinstance(v, str) for v in values)


def arithmetic(name: str, fold: Callable[[Any, Any], Any]) -> Rule:
    def rule(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
        a, b = args
        if not is_float(out):
            if known(args):
                return wrapped(fold(int(a), int(b)), out)
            if name in ("add", "sub") and b == 0:
                return a
            if name == "add" and a == 0:
                return b
            if name == "mul" and (a == 1 or b == 1):
                return b if a == 1 else a
        return em.binary(f"f{name}" if is_float(out) else name, out, a, b)

    return rule


def extreme(how: str) -> Rule:
    """`max` and `min`; NaN where either is."""

    def rule(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
        a, b = args
        if known(args) and not is_float(out):
            return max(a, b) if how == "gt" else min(a, b)
        if out.kind == "b":
            return logic("or" if how == "gt" else "and")(em, params, kinds, out, args)
        if not is_float(out):
            name = ("s" if out.kind == "i" else "u") + ("max" if how == "gt" else "min")
            return em.intrinsic(f"llvm.{name}", out, [out, out], args)
        first = em.compare(how, a, b, out)
        if isinstance(a, str):
            first = em.binary("or", BOOL, first, em.unordered(a, out))
        return em.select(first, a, b, out)

    return rule


def logic(name: str) -> Rule:
    def rule(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
        a, b = args
        if known(args):
            both = {"and": int(a) & int(b), "or": int(a) | int(b), "xor": int(a) ^ int(b)}[name]
            return bool(both) if out.kind == "b" else both
        if out.kind == "b":
            for one, other in ((a, b), (b, a)):
                if not isinstance(one, str):
                    if name == "and":
                        return other if one else False
                    if name == "or":
                        return True if one else other
                    if not one:
                        return other
        return em.binary(name, out, a, b)

    return rule


def negation(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    (a,) = args
    if isinstance(a, str):
        return em.binary("xor", out, a, True if out.kind == "b" else -1)
    return not a if out.kind == "b" else wrapped(~int(a), out)


def negative(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    (a,) = args
    if not isinstance(a, str):
        return -a if is_float(out) else wrapped(-int(a), out)
    return em.unary("fneg", out, a) if is_float(out) else em.binary("sub", out, 0, a)


def comparison(how: str) -> Rule:
    def rule(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
        if kinds[0].kind == "b" and how not in ("eq", "ne"):
            args = [convert(em, {}, [BOOL], np.dtype("uint8"), [a]) for a in args]
            return em.compare(how, args[0], args[1], np.dtype("uint8"))
        return em.compare(how, args[0], args[1], kinds[0])

    return rule


def less_in_total_order(
    em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]
) -> Scalar:
    if not is_float(kinds[0]):
        return em.compare("lt", args[0], args[1], kinds[0])
    if kinds[0].itemsize != 8:
        raise NotImplementedError(f"total order of {kinds[0]}")
    keys = []
    long = np.dtype("int64")
    for a in args:
        bits = em.cast("bitcast", kinds[0], long, a)
        sign = em.binary("ashr", long, bits, 63)
        keys.append(em.binary("xor", long, bits, em.binary("and", long, sign, (1 << 63) - 1)))
    return em.compare("lt", keys[0], keys[1], long)


def shift(name: str) -> Rule:
    """Left: 0 from the width on; right: the sign, or 0."""

    def rule(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
        a, b = args
        bits = out.itemsize * 8
        if known(args):
            a, b = int(a), int(b)
            if name == "shl":
                return wrapped(a << b, out) if 0 <= b < bits else 0
            if name == "lshr":
                return wrapped((a & ((1 << bits) - 1)) >> b, out) if 0 <= b < bits else 0
            return wrapped(a >> min(b, bits - 1), out)
        if b == 0:
            return a
        if not isinstance(b, str) and 0 < int(b) < bits:
            return em.binary(name, out, a, b)
        inside = em.compare("lt", b, bits, np.dtype(f"uint{bits}"))
        if name == "ashr":
            return em.binary("ashr", out, a, em.select(inside, b, bits - 1, out))
        return em.select(inside, em.binary(name, out, a, em.select(inside, b, 0, out)), 0, out)

    return rule


def division(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    """Towards zero; by zero: all bits set; the least by -1: the least."""
    a, b = args
    if is_float(out):
        return em.binary("fdiv", out, a, b)
    name = "udiv" if out.kind == "u" else "sdiv"
    if not isinstance(b, str) and b not in (0, -1):
        if known(args):
            return int(math.copysign(1, int(a) * int(b))) * (abs(int(a)) // abs(int(b)))
        return em.binary(name, out, a, b)
    zero = em.compare("eq", b, 0, out)
    if out.kind == "u":
        return em.select(zero, -1, em.binary(name, out, a, em.select(zero, 1, b, out)), out)
    minus = em.compare("eq", b, -1, out)
    found = em.binary(name, out, a, em.select(zero, 1, em.select(minus, 1, b, out), out))
    return em.select(zero, -1, em.select(minus, em.binary("sub", out, 0, a), found, out), out)


def remainder(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    """With the sign of the dividend; by zero: the dividend; by -1: 0."""
    a, b = args
    if is_float(out):
        return em.c_function("fmod", args)
    name = "urem" if out.kind == "u" else "srem"
    if not isinstance(b, str) and b not in (0, -1):
        return em.binary(name, out, a, b)
    zero = em.compare("eq", b, 0, out)
    trivial = zero if out.kind == "u" else logic("or")(em, {}, [], BOOL, [zero, em.compare("eq", b, -1, out)])
    return em.select(zero, a, em.binary(name, out, a, em.select(trivial, 1, b, out)), out)


def convert(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    """To an integer: towards zero, clamped, NaN to 0."""
    (a,), (kind,) = args, kinds
    if kind == out:
        return a
    if out.kind == "b":
        return em.compare("ne", a, constant(0, kind), kind)
    if not isinstance(a, str):
        if is_float(out):
            return float(a)
        if not is_float(kind):
            return wrapped(int(a), out)
    if is_float(out):
        if is_float(kind):
            return em.cast("fpext" if out.itemsize > kind.itemsize else "fptrunc", kind, out, a)
        return em.cast("sitofp" if kind.kind == "i" else "uitofp", kind, out, a)
    if is_float(kind):
        name = "llvm.fptosi.sat" if out.kind == "i" else "llvm.fptoui.sat"
        return em.intrinsic(name, out, [kind], [a], out, kind)
    before, after = (1 if kind.kind == "b" else 8 * kind.itemsize), 8 * out.itemsize
    if before == after:
        return a
    if before > after:
        return em.cast("trunc", kind, out, a)
    return em.cast("sext" if kind.kind == "i" else "zext", kind, out, a)


def same_bits(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    (a,), (kind,) = args, kinds
    if kind.itemsize != out.itemsize:
        raise NotImplementedError(f"bits of {kind} as {out}")
    if is_float(kind) == is_float(out):
        return a if isinstance(a, str) else wrapped(int(a), out)
    return em.cast("bitcast", kind, out, a)


def function(name: str) -> Rule:
    """A function of floats: an LLVM intrinsic or one of the C library."""

    def rule(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
        if out.itemsize != 8 or not is_float(out):
            raise NotImplementedError(f"{name} of {out}")
        return em.intrinsic(name, out, kinds, args) if name.startswith("llvm.") else em.c_function(name, args)

    return rule


def absolute(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    if is_float(out):
        return em.intrinsic("llvm.fabs", out, kinds, args)
    negated = negative(em, params, kinds, out, args)
    return em.select(em.compare("lt", args[0], 0, out), negated, args[0], out)


def sign(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    (a,) = args
    zero = constant(0, out)
    below = em.select(em.compare("lt", a, zero, out), constant(-1, out), a if is_float(out) else 0, out)
    return em.select(em.compare("gt", a, zero, out), constant(1, out), below, out)  # of NaN and zeros themselves


def finite(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    size = absolute(em, params, kinds, kinds[0], args)
    return em.compare("lt", size, math.inf, kinds[0])


def rounded(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    even = params["rounding_method"].name == "TO_NEAREST_EVEN"
    return function("llvm.roundeven" if even else "llvm.round")(em, params, kinds, out, args)


def chosen(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    which, *cases = args
    if kinds[0].kind == "b":
        return em.select(which, cases[1], cases[0], out)
    found = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        found = em.select(em.compare("le", which, i, kinds[0]), cases[i], found, out)
    return found


def square(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    return RULES["mul"](em, params, kinds, out, [args[0], args[0]])


def clamped(em: Emitter, params: Any, kinds: Sequence[np.dtype], out: np.dtype, args: Sequence[Scalar]) -> Scalar:
    low, x, high = args
    return RULES["min"](em, params, kinds, out, [RULES["max"](em, params, kinds, out, [x, low]), high])


RULES: dict[str, Rule] = {
    "add": arithmetic("add", lambda a, b: a + b),
    "add_any": arithmetic("add", lambda a, b: a + b),
    "sub": arithmetic("sub", lambda a, b: a - b),
    "mul": arithmetic("mul", lambda a, b: a * b),
    "div": division,
    "rem": remainder,
    "max": extreme("gt"),
    "min": extreme("lt"),
    "and": logic("and"),
    "or": logic("or"),
    "xor": logic("xor"),
    "not": negation,
    "neg": negative,
    "sign": sign,
    "abs": absolute,
    "square": square,
    "clamp": clamped,
    "floor": function("llvm.floor"),
    "ceil": function("llvm.ceil"),
    "round": rounded,
    "sqrt": function("llvm.sqrt"),
    "log": function("log"),
    "exp": function("exp"),
    "log1p": function("log1p"),
    "expm1": function("expm1"),
    "pow": function("pow"),
    "is_finite": finite,
    "eq": comparison("eq"),
    "ne": comparison("ne"),
    "lt": comparison("lt"),
    "le": comparison("le"),
    "gt": comparison("gt"),
    "ge": comparison("ge"),
    "lt_to": less_in_total_order,
    "shift_left": shift("shl"),
    "shift_right_logical": shift("lshr"),
    "shift_right_arithmetic": shift("ashr"),
    "convert_element_type": convert,
    "bitcast_convert_type": same_bits,
    "select_n": chosen,
    "copy": lambda em, params, kinds, out, args: args[0],
    "copy_p": lambda em, params, kinds, out, args: args[0],
}
#: Functions of `serqjax/tape/rounding.py`, by name. They are written so that other compilers leave them as they are;
#: here each is one instruction.
OURS: dict[str, Rule] = {"product": RULES["mul"], "quotient": RULES["div"], "rint": function("llvm.roundeven")}
