"""Operations of JAX that move elements: slices, shapes, reductions, updates.

A rule gets the lowering, the equation and its operands; it returns the value of the (only) result.

**Source:** the documentation of `jax.lax`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .emitter import NotWide, Steps, constant, is_float
from .scalars import OURS, convert
from .scalars import RULES as SCALAR_RULES
from .values import FEW, ROW, Array, Buffer, Cells, Formula, Place, Scalar, Value, flat_place, in_registers, roots_of

if TYPE_CHECKING:
    from .lowering import Lowering

INDEX = np.dtype("int64")

Rule = Callable[["Lowering", Any, list[Value]], Value]


def shape_and_dtype(eqn: Any) -> tuple[tuple[int, ...], np.dtype]:
    aval = eqn.outvars[0].aval
    return tuple(aval.shape), np.dtype(aval.dtype)


def dtype_of(variable: Any) -> np.dtype:
    return np.dtype(variable.aval.dtype)


def element(low: Lowering, value: Value, place: Place) -> Scalar:
    return low.em.element(value, place) if isinstance(value, Array) else value


def moved(
    low: Lowering, value: Value, shape: Sequence[int], dtype: np.dtype, back: Callable[[Place], Place]
) -> Formula:
    """The array whose element at a place is the one of `value` at `back(place)`."""
    cheap = value.cheap if isinstance(value, Formula) else True
    return Formula(
        tuple(shape), dtype, lambda place: element(low, value, back(place)), others=roots_of(value), cheap=cheap,
        registers=in_registers(value),
    )  # fmt: skip


# ---------------------------------------------------------------- elementwise


def stretched(low: Lowering, value: Array, shape: tuple[int, ...]) -> Array:
    """An operand whose axes of one element go along with axes of the result that have more."""
    old = value.shape
    assert len(old) == len(shape) and all(a in (1, b) for a, b in zip(old, shape)), (old, shape)
    return moved(low, value, shape, value.dtype, lambda place: [0 if n == 1 else i for n, i in zip(old, place)])


def elementwise(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    rule = (SCALAR_RULES | OURS)[called(eqn)]
    kinds = [dtype_of(v) for v in eqn.invars]
    shape, dtype = shape_and_dtype(eqn)
    em, params = low.em, eqn.params
    if not shape:
        return rule(em, params, kinds, dtype, [a for a in args if not isinstance(a, Array)])
    if any(isinstance(a, Array) and a.shape != shape for a in args):
        args = low.all_steady(args)
        args = [stretched(low, a, shape) if isinstance(a, Array) and a.shape != shape else a for a in args]

    def one(place: Place) -> Scalar:
        return rule(em, params, kinds, dtype, [element(low, a, place) for a in args])

    aligned, others = frozenset(), frozenset()
    for a in args:
        if isinstance(a, Formula):
            aligned, others = aligned | a.aligned, others | a.others
        elif isinstance(a, Buffer):
            if a.whole:
                aligned |= a.roots
            else:
                others |= a.roots
    return Formula(shape, dtype, one, aligned - others, others, registers=any(map(in_registers, args)))


def called(eqn: Any) -> str:
    """What an equation does: its primitive, or the function of ours that it calls."""
    name = str(eqn.primitive.name)
    return str(eqn.params["name"]) if name in ("jit", "pjit") and eqn.params["name"] in OURS else name


# ---------------------------------------------------------------- shapes


def iota(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    shape, dtype = shape_and_dtype(eqn)
    axis = eqn.params["dimension"]

    def one(place: Place) -> Scalar:
        return convert(low.em, {}, [INDEX], dtype, [low.em.numbers(place[axis])])

    return Formula(shape, dtype, one, cheap=True)


def broadcast(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    shape, dtype = shape_and_dtype(eqn)
    (value,) = args[:1]
    if not isinstance(value, Array):
        return Formula(shape, dtype, lambda place: value, cheap=True)
    axes = eqn.params["broadcast_dimensions"]
    old = value.shape

    def back(place: Place) -> Place:
        return [0 if old[i] == 1 else place[axis] for i, axis in enumerate(axes)]

    return moved(low, low.steady(value), shape, dtype, back)


def reshape(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    shape, dtype = shape_and_dtype(eqn)
    value = args[0]
    if not isinstance(value, Array):
        return Cells(shape, dtype, [value])
    if not shape:
        return element(low, value, (0,) * len(value.shape))
    if isinstance(value, Formula) and [n for n in value.shape if n > 1] != [n for n in shape if n > 1]:
        value = low.in_memory(value)
    if isinstance(value, Cells | Buffer):
        return dataclasses.replace(value, shape=shape)
    assert isinstance(value, Formula)
    old = value.shape
    places = [i for i, n in enumerate(shape) if n > 1]

    def back(place: Place) -> Place:
        given = iter([place[i] for i in places])
        return [0 if n == 1 else next(given) for n in old]

    return moved(low, value, shape, dtype, back)


def transpose(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    shape, dtype = shape_and_dtype(eqn)
    order = eqn.params["permutation"]

    def back(place: Place) -> Place:
        old: list[Scalar] = [0] * len(order)
        for axis, source in enumerate(order):
            old[source] = place[axis]
        return old

    return moved(low, args[0], shape, dtype, back)


def reverse(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    shape, dtype = shape_and_dtype(eqn)
    axes, em = eqn.params["dimensions"], low.em

    def back(place: Place) -> Place:
        return [em.minus(shape[k] - 1, i) if k in axes else i for k, i in enumerate(place)]

    return moved(low, args[0], shape, dtype, back)


def slice_of(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    shape, dtype = shape_and_dtype(eqn)
    value = args[0]
    assert isinstance(value, Array)
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    if isinstance(value, Buffer) and all(s == 1 for s in strides):
        # consecutive: nothing but the first axis longer than one is cut
        cut = [i for i, n in enumerate(shape) if n != value.shape[i]]
        if not cut or all(n == 1 for n in shape[: cut[-1]]):
            number = low.em.flat(value.shape, starts)
            return Buffer(shape, dtype, value.root, value.offset + int(number))
    em = low.em

    def back(place: Place) -> Place:
        return [em.plus(em.times(i, step), first) for i, step, first in zip(place, strides, starts)]

    return moved(low, value, shape, dtype, back)


def clamped_starts(
    low: Lowering, eqn: Any, starts: Sequence[Value], extents: Sequence[int], sizes: Sequence[int]
) -> list[Scalar]:
    """Places at which a window of `sizes` lies inside `extents`."""
    found: list[Scalar] = []
    for variable, start, extent, size in zip(eqn.invars[-len(starts) :], starts, extents, sizes):
        assert not isinstance(start, Array)
        if extent == size:
            found.append(0)
            continue
        start = convert(low.em, {}, [dtype_of(variable)], INDEX, [start])
        start = SCALAR_RULES["max"](low.em, {}, [INDEX] * 2, INDEX, [start, 0])
        found.append(SCALAR_RULES["min"](low.em, {}, [INDEX] * 2, INDEX, [start, extent - size]))
    return found


def dynamic_slice(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    shape, dtype = shape_and_dtype(eqn)
    value, *starts = args
    assert isinstance(value, Array)
    em = low.em
    first = clamped_starts(low, eqn, starts, value.shape, shape)

    def back(place: Place) -> Place:
        return [em.plus(i, start) for i, start in zip(place, first)]

    found = moved(low, value, shape, dtype, back)
    return Cells(shape, dtype, em.elements(found)) if found.size <= ROW else found


def dynamic_update_slice(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    shape, dtype = shape_and_dtype(eqn)
    value, update, *starts = args
    assert isinstance(value, Array) and isinstance(update, Array)
    em = low.em
    first = clamped_starts(low, eqn, starts, shape, update.shape)
    if isinstance(value, Cells):
        if update.size == 1:
            (new,) = em.elements(update)
            number = em.flat(shape, first)
            here = [em.compare("eq", number, i, INDEX) for i in range(value.size)]
            cells = [em.select(at, new, old, dtype) for at, old in zip(here, value.elements)]
            return Cells(shape, dtype, cells)
        value = low.in_memory(value)
    update = low.apart(update, value)
    target = low.writable(value)

    def one(place: Place) -> None:
        number = em.flat(shape, [em.plus(i, start) for i, start in zip(place, first)])
        em.store(target.root, em.plus(number, target.offset), em.element(update, place))

    if isinstance(update, Cells):
        for i in range(update.size):
            one(flat_place(update.shape, i))
    else:
        em.everywhere(update.shape, one)
    return target


def pieces(low: Lowering, eqn: Any, parts: list[Array], axis: int) -> Value:
    """Arrays one after the other along an axis."""
    shape, dtype = shape_and_dtype(eqn)
    if math.prod(shape) <= ROW and axis == 0:
        return Cells(shape, dtype, [x for part in parts for x in low.em.elements(part)])
    target, em, start = low.em.fresh(shape, dtype), low.em, 0
    for part in parts:

        def one(place: Place, part: Array = part, start: int = start) -> None:
            there = [em.plus(i, start) if k == axis else i for k, i in enumerate(place)]
            em.store(target.root, em.flat(shape, there), em.element(part, place))

        em.everywhere(part.shape, one)
        start += part.shape[axis]
    return target


def concatenate(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    return pieces(low, eqn, [a for a in args if isinstance(a, Array)], int(eqn.params["dimension"]))


def stack(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    axis = int(eqn.params["axis"])
    parts: list[Array] = []
    for value, variable in zip(args, eqn.invars):
        shape, dtype = tuple(variable.aval.shape), dtype_of(variable)
        longer = (*shape[:axis], 1, *shape[axis:])
        if not isinstance(value, Array):
            parts.append(Cells((1,), dtype, [value]))
        elif isinstance(value, Cells | Buffer):
            parts.append(dataclasses.replace(value, shape=longer))
        else:

            def back(place: Place) -> Place:
                return [*place[:axis], *place[axis + 1 :]]

            parts.append(moved(low, value, longer, dtype, back))
    return pieces(low, eqn, parts, axis)


# ---------------------------------------------------------------- reductions


def reduction(name: str, first: Callable[[np.dtype], Any]) -> Rule:
    def rule(low: Lowering, eqn: Any, args: list[Value]) -> Value:
        shape, dtype = shape_and_dtype(eqn)
        (value,) = args
        if not isinstance(value, Array):
            return value
        axes = eqn.params["axes"]
        inner = [value.shape[axis] for axis in axes]
        step = SCALAR_RULES[name]
        start = constant(first(dtype), dtype)

        def reduced(kept: Place) -> Scalar:
            def at(place: Place) -> Scalar:
                given, moving = iter(kept), iter(place)
                there = [next(moving) if axis in axes else next(given) for axis in range(len(value.shape))]
                return element(low, value, there)

            def add(a: Scalar, b: Scalar) -> Scalar:
                return step(low.em, {}, [dtype] * 2, dtype, [a, b])

            if any(isinstance(i, Steps) for i in kept):
                raise NotWide  # better the elements that are combined
            if math.prod(inner) > FEW:
                return low.em.reduce(inner, dtype, start, add, at)
            found: Scalar = start
            for i in range(math.prod(inner)):
                found = add(found, at(flat_place(inner, i)))
            return found

        if not shape:
            return reduced(())
        return low.in_memory(Formula(shape, dtype, reduced, others=roots_of(value)))

    return rule


def limit(sign: int) -> Callable[[np.dtype], Any]:
    """The greatest (1) or least (-1) value of a dtype."""

    def found(dtype: np.dtype) -> Any:
        if dtype.kind == "b":
            return sign > 0
        if is_float(dtype):
            return sign * math.inf
        info = np.iinfo(dtype)
        return info.max if sign > 0 else info.min

    return found


def place_of_extreme(how: str) -> Rule:
    def rule(low: Lowering, eqn: Any, args: list[Value]) -> Value:
        shape, out = shape_and_dtype(eqn)
        (value,) = args
        assert isinstance(value, Array)
        (axis,) = eqn.params["axes"]
        em, kind, flag = low.em, value.dtype, np.dtype(bool)
        compared = np.dtype("uint8") if kind.kind == "b" else kind
        start = [(limit(-1 if how == "gt" else 1)(compared), compared), (0, INDEX)]

        def found(kept: Place) -> Scalar:
            if any(isinstance(i, Steps) for i in kept):
                raise NotWide  # each place has a search of its own

            def better(place: Place, state: list[Scalar]) -> list[Scalar]:
                best, where = state
                there = [*kept[:axis], place[0], *kept[axis:]]
                x = convert(em, {}, [kind], compared, [em.element(value, there)])
                more = em.compare(how, x, best, compared)
                if is_float(kind):  # the first NaN, if there is one
                    nan = em.compare("ne", x, x, kind) if isinstance(x, str) else False
                    first = SCALAR_RULES["and"](em, {}, [], flag, [nan, em.compare("eq", best, best, kind)])
                    more = SCALAR_RULES["or"](em, {}, [], flag, [more, first])
                return [em.select(more, x, best, compared), em.select(more, place[0], where, INDEX)]

            where = em.fold((value.shape[axis],), start, better)[1]
            return convert(em, {}, [INDEX], out, [where])

        if not shape:
            return found(())
        return low.in_memory(Formula(shape, out, found, others=roots_of(value)))

    return rule


# ---------------------------------------------------------------- gathers and scatters


def gather(low: Lowering, eqn: Any, args: list[Value]) -> Value:
    """Single elements at computed places."""
    shape, dtype = shape_and_dtype(eqn)
    value, indices = args
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"].name
    if not (isinstance(value, Array) and isinstance(indices, Array)):
        raise NotImplementedError("gather of scalars")
    # axes along which a row of places reads its own part of the array alone
    apart = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims))
    sizes = eqn.params["slice_sizes"]
    single = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [axis for axis in range(len(value.shape)) if axis not in single]
    assert all(sizes[axis] == 1 for axis in single)
    value, indices = low.all_steady([value, indices])
    assert isinstance(value, Array) and isinstance(indices, Array)
    em, kind = low.em, indices.dtype
    batch = [axis for axis in range(len(shape)) if axis not in numbers.offset_dims]

    def one(place: Place) -> Scalar:
        row = [place[axis] for axis in batch]
        there: list[Scalar] = [0] * len(value.shape)
        for axis, i in zip(window, [place[axis] for axis in numbers.offset_dims]):
            there[axis] = i
        for axis, own in apart:
            there[axis] = row[own]
        inside: Scalar = True
        for k, axis in enumerate(numbers.start_index_map):
            start = convert(em, {}, [kind], INDEX, [em.element(indices, [*row, k])])
            last = value.shape[axis] - sizes[axis]
            safe = SCALAR_RULES["max"](em, {}, [INDEX] * 2, INDEX, [start, 0])
            safe = SCALAR_RULES["min"](em, {}, [INDEX] * 2, INDEX, [safe, last])
            if mode == "FILL_OR_DROP":
                fits = em.compare("eq", start, safe, INDEX)
                inside = SCALAR_RULES["and"](em, {}, [], np.dtype(bool), [inside, fits])
            there[axis] = em.plus(there[axis], safe)
        found = em.element(value, there)
        if mode != "FILL_OR_DROP" or inside is True:
            return found
        fill = eqn.params["fill_value"]
        if fill is None:
            fill = math.nan if is_float(dtype) else limit(-1 if dtype.kind == "i" else 1)(dtype)
        return em.select(inside, found, constant(fill, dtype), dtype)

    if not shape:
        return one(())
    return Formula(shape, dtype, one, others=roots_of(value) | roots_of(indices))


def scatter(combine: str | None) -> Rule:
    """One row, or one element of a vector, at a computed place of the first axis; nothing where it lies outside."""

    def rule(low: Lowering, eqn: Any, args: list[Value]) -> Value:
        shape, dtype = shape_and_dtype(eqn)
        value, indices, update = args
        numbers = eqn.params["dimension_numbers"]
        assert isinstance(value, Array) and isinstance(indices, Array)
        simple = (
            numbers.scatter_dims_to_operand_dims == (0,) and numbers.inserted_window_dims == (0,)
            and numbers.update_window_dims == tuple(range(len(shape) - 1)) and indices.shape == (1,)
            and not numbers.operand_batching_dims
        )  # fmt: skip
        if not simple:
            raise NotImplementedError(f"{eqn.primitive.name} of several rows")
        em = low.em
        index = convert(em, {}, [indices.dtype], INDEX, em.elements(indices))
        rest = shape[1:]

        def new(old: Scalar, place: Place) -> Scalar:
            x = element(low, update, place)
            return x if combine is None else SCALAR_RULES[combine](em, {}, [dtype] * 2, dtype, [old, x])

        if isinstance(value, Cells):
            width = math.prod(rest)
            cells = []
            for i, old in enumerate(value.elements):
                here = em.compare("eq", index, i // width, INDEX)
                x = old if here is False else new(old, flat_place(rest, i % width))
                cells.append(em.select(here, x, old, dtype))
            return Cells(shape, dtype, cells)
        update = low.apart(update, value) if isinstance(update, Array) else update
        target = low.writable(value)
        safe = SCALAR_RULES["max"](em, {}, [INDEX] * 2, INDEX, [index, 0])
        safe = SCALAR_RULES["min"](em, {}, [INDEX] * 2, INDEX, [safe, shape[0] - 1])
        inside = em.compare("eq", index, safe, INDEX)

        def one(place: Place) -> None:
            number = em.plus(em.flat(shape, [safe, *place]), target.offset)
            old = em.load(target.root, number)
            em.store(target.root, number, em.select(inside, new(old, place), old, dtype))

        em.everywhere(rest, one)
        return target

    return rule


RULES: dict[str, Rule] = {
    **{name: elementwise for name in (*SCALAR_RULES, *OURS)},
    "iota": iota,
    "broadcast_in_dim": broadcast,
    "reshape": reshape,
    "squeeze": reshape,
    "expand_dims": reshape,
    "transpose": transpose,
    "rev": reverse,
    "slice": slice_of,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "concatenate": concatenate,
    "stack": stack,
    "reduce_sum": reduction("add", lambda dtype: 0),
    "reduce_min": reduction("min", limit(1)),
    "reduce_max": reduction("max", limit(-1)),
    "reduce_or": reduction("or", lambda dtype: 0),
    "reduce_and": reduction("and", lambda dtype: -1),
    "argmax": place_of_extreme("gt"),
    "argmin": place_of_extreme("lt"),
    "gather": gather,
    "scatter": scatter(None),
    "scatter-add": scatter("add"),
}
