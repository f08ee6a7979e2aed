"""What a traced value is while machine code is written for it.

A scalar is a Python number (a constant) or the name of an LLVM value (a string). An array is one of

- `Cells`: few elements, each a scalar in a register;
- `Buffer`: consecutive memory, all or a part of a `Root`;
- `Formula`: elements that are computed where they are used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

#: Elements up to which an array lives in registers, and a reduction is written out.
FEW = 4
#: Elements up to which a row of scalars stays in registers.
ROW = 16

Scalar = str | int | float | bool
Place = Sequence[Scalar]


@dataclasses.dataclass(eq=False)
class Root:
    """A piece of memory.

    - `pointer`: its LLVM name; `alias`: metadata that says it overlaps with no other root.
    - `fixed`: never written to (constants and arguments).
    - `holders`: live values that read it. Without any it may be written over.
    """

    pointer: str
    alias: str
    elements: int
    dtype: np.dtype
    fixed: bool = False
    holders: int = 0


class Array:
    """Shape and dtype of an array, and the roots that it reads."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def roots(self) -> frozenset[Root]:
        return frozenset()


@dataclasses.dataclass(eq=False)
class Cells(Array):
    """Elements in registers, the last axis fastest."""

    shape: tuple[int, ...]
    dtype: np.dtype
    elements: list[Scalar]


@dataclasses.dataclass(eq=False)
class Buffer(Array):
    """Elements `offset` to `offset + size` of a root, the last axis fastest."""

    shape: tuple[int, ...]
    dtype: np.dtype
    root: Root
    offset: int = 0

    @property
    def roots(self) -> frozenset[Root]:
        return frozenset((self.root,))

    @property
    def whole(self) -> bool:
        return self.size == self.root.elements


@dataclasses.dataclass(eq=False)
class Formula(Array):
    """`element(place)` writes the code of one element.

    - `aligned`: roots read at the place itself alone, as an array of this shape; `others`: all others it reads.
    - `cheap`: as good as a load; computed again at each use.
    - `registers`: it reads `Cells`, which have no place that is computed at run time.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    element: Callable[[Place], Scalar]
    aligned: frozenset[Root] = frozenset()
    others: frozenset[Root] = frozenset()
    cheap: bool = False
    registers: bool = False

    @property
    def roots(self) -> frozenset[Root]:
        return self.aligned | self.others


Value = Scalar | Array


def in_registers(value: Value) -> bool:
    """Whether elements of an array come from registers."""
    return isinstance(value, Cells) or (isinstance(value, Formula) and value.registers)


def roots_of(value: Value) -> frozenset[Root]:
    return value.roots if isinstance(value, Array) else frozenset()


def hold(value: Value) -> None:
    """One more live value reads these roots."""
    for root in roots_of(value):
        root.holders += 1


def drop(value: Value) -> None:
    for root in roots_of(value):
        root.holders -= 1


@contextmanager
def held(values: Iterable[Value]) -> Iterator[None]:
    """What is written inside does not write over what `values` read."""
    values = list(values)
    for value in values:
        hold(value)
    try:
        yield
    finally:
        for value in values:
            drop(value)


def changed(values: Iterable[Any], change: Callable[[int, Any], Any]) -> list[Any]:
    """`change(i, value)` of each value in turn; none is written over while another one reads it."""
    found = list(values)
    for value in found:
        hold(value)
    for i, value in enumerate(found):
        drop(value)
        found[i] = change(i, value)
        hold(found[i])
    for value in found:
        drop(value)
    return found


def flat_place(shape: Sequence[int], number: int) -> tuple[int, ...]:
    """The place of an element by its number, the last axis fastest."""
    place = []
    for extent in reversed(shape):
        place.append(number % extent)
        number //= extent
    return tuple(reversed(place))
