"""Tables of one instance as memory of a Pallas kernel, and where each stands in its rows.

The second implementation of the engine's access layer (`serqjax/engine/access.py`): the state of an instance lies in
one row a dtype, and a `RefTable` is a window into such a row that phases read and change in place. Triton has no
gather, scatter, slice or join of values, but loads and stores at computed places; vectors must have a power of two of
elements, so each vector is followed by unused elements up to the next one.

**Source:** `design.md`, section 4; `measurements.md`, "GPU, on paper only".
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array

from serqjax.engine.access import AbstractTable
from serqjax.engine.layout import Layout


def power_of_two(n: int) -> int:
    """The least power of two that is not less than `n`."""
    return 1 << max(0, n - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the arrays of an instance stand in the rows of a kernel.

    - `where`: name, dtype, first element and shape of each array of a `Layout` (output buffers are apart).
    - `sizes`: elements of the row of each dtype.
    """

    where: tuple[tuple[str, str, int, tuple[int, ...]], ...]
    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, layout: Layout) -> Places:
        """The places of a layout's arrays."""
        ends: dict[str, int] = {}
        where = []
        for name, dtype, shape in layout.arrays:
            start = ends.get(dtype, 0)
            where.append((name, dtype, start, shape))
            ends[dtype] = start + power_of_two(math.prod(shape))
        return cls(tuple(where), tuple(ends.items()))

    def rows(self, state: dict[str, Array]) -> dict[str, Array]:
        """One row `[elements]` a dtype of one instance's arrays (traced)."""
        parts: dict[str, list[Array]] = {dtype: [] for dtype, _ in self.sizes}
        for name, dtype, _, shape in self.where:
            flat = state[name].reshape(-1)
            parts[dtype].append(jnp.pad(flat, (0, power_of_two(math.prod(shape)) - flat.shape[0])))
        return {dtype: jnp.concatenate(found) for dtype, found in parts.items()}

    def state(self, rows: dict[str, Array]) -> dict[str, Array]:
        """The arrays of one instance (traced)."""
        return {
            name: rows[dtype][start : start + math.prod(shape)].reshape(shape)
            for name, dtype, start, shape in self.where
        }


@final
class RefTable(AbstractTable):
    """A table `shape` that begins at element `start` of a flat Pallas ref.

    It stands for the vector it holds in arithmetic and in `jax.numpy`, and takes the index forms of the phases. A
    vector whose length is no power of two is read with unused elements behind it. A masked access may carry an index
    outside the table: loads are clamped, stores write nothing.

    `barriers`: a barrier on both sides of each store, for programs of more than one warp.
    """

    def __init__(self, ref: Any, start: int, shape: tuple[int, ...], dtype: Any, barriers: bool = False):
        self.ref, self.start, self.shape, self.dtype = ref, start, shape, jnp.dtype(dtype)
        self.barriers = barriers

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def _element(self, place: Sequence[Any]) -> Any:
        """Where the element, or the first one of the part, at `place` stands in the ref: int or int32."""
        at: Any = self.start
        for axis, index in enumerate(place):
            if isinstance(index, (int, np.integer)):
                index = min(max(int(index), 0), self.shape[axis] - 1)
            else:
                index = jnp.clip(jnp.asarray(index).astype(jnp.int32), 0, self.shape[axis] - 1)
            stride = math.prod(self.shape[axis + 1 :])
            at = at + index * stride
        return at

    def _part(self, place: Sequence[Any]) -> Any:
        """The index of the ref for `place`."""
        length = math.prod(self.shape[len(place) :])
        at = self._element(place)
        return at if len(place) == len(self.shape) else pl.ds(at, length)

    # -------------------------------------------------------- AbstractTable

    def read(self) -> Array:
        n = power_of_two(self.size)
        value = self.ref[pl.ds(self.start, n)]
        return value if len(self.shape) == 1 else value.reshape(self.shape)

    def write(self, value: Any) -> None:
        n = power_of_two(self.size)
        value = jnp.asarray(value).astype(self.dtype)
        self._put(pl.ds(self.start, n), jnp.broadcast_to(value.reshape(-1) if value.ndim else value, (n,)), True)

    def load(self, *place: Any) -> Array:
        return self.ref[self._part(place)]

    def store(self, place: tuple[Any, ...], value: Any, mask: Any) -> RefTable:
        value = jnp.asarray(value).astype(self.dtype)
        if len(place) < len(self.shape):
            value = jnp.broadcast_to(value, self.shape[len(place) :]).reshape(-1)
        self._put(self._part(place), value, mask)
        return self

    def stacked(self, values: Sequence[Any]) -> Array:
        n = power_of_two(self.size)
        if n == 1:
            return jnp.broadcast_to(jnp.asarray(values[0]).astype(self.dtype), (1,))
        lanes = jnp.arange(n, dtype=jnp.int32)
        made = jnp.zeros((n,), self.dtype)
        for i, value in enumerate(values):
            made = jnp.where(lanes == i, jnp.asarray(value).astype(self.dtype), made)
        return made

    def _put(self, place: Any, value: Array, mask: Any) -> None:
        if isinstance(place, int):
            place = jnp.int32(place)
        if self.barriers:
            plgpu.debug_barrier()
        plgpu.store(self.ref.at[place], value, mask=None if mask is True else jnp.broadcast_to(mask, value.shape))
        if self.barriers:
            plgpu.debug_barrier()

    # -------------------------------------------------------- as the vector it holds

    def __jax_array__(self) -> Array:
        return self.read()

    def __getitem__(self, key: Any) -> Array:
        key = key if isinstance(key, tuple) else (key,)
        if isinstance(key[0], slice):
            assert key[0] == slice(None) and len(key) == len(self.shape) == 2
            return self.ref[pl.ds(self._element((0, key[1])), self.shape[0], stride=self.shape[1])]
        if all(np.ndim(index) == 0 for index in key):
            return self.load(*key)
        return self.ref[self._element(key)]


def _as_value(name: str, swapped: bool) -> Any:
    work = getattr(operator, name)
    if swapped:
        return lambda self, other: work(other, self.read())
    return lambda self, *other: work(self.read(), *(x.read() if isinstance(x, RefTable) else x for x in other))


for _name in ("add", "sub", "mul", "truediv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    _plain = _name.rstrip("_")
    setattr(RefTable, f"__{_plain}__", _as_value(_name, False))
    setattr(RefTable, f"__r{_plain}__", _as_value(_name, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "invert"):
    setattr(RefTable, f"__{_name}__", _as_value(_name, False))
