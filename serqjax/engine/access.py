"""The access layer: the only way in which phases touch tables.

A table is an array whose first axis (or last, where it says so) is the slot. All functions are written for one
instance and may be batched by `vmap`; a masked access reads some row or writes nothing.

A table is either a JAX array, replaced by each store (XLA), or an `AbstractTable`, memory that a store changes in
place (`kernels/tables.py`). A phase that works on both keeps no table in a variable across a store to it.

**Source:** `design.md`, section 4; `measurements.md`, points 3 and 5.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

LANES = "lanes"
#: Greater than every key and tick.
FAR = 1 << 62
#: Bits of the slot in a packed key `(sequence << SLOT_BITS) | slot`.
SLOT_BITS = 20


class AbstractTable(abc.ABC):
    """A table in memory: stores change it in place and return it. Subclasses also have `shape`, `dtype`, and behave
    in arithmetic and under an index as the vector they hold."""

    shape: tuple[int, ...]
    dtype: Any

    @abc.abstractmethod
    def read(self) -> Array:
        """The whole table as a value."""

    @abc.abstractmethod
    def write(self, value: Any) -> None:
        """Replace the whole table."""

    @abc.abstractmethod
    def load(self, *place: Any) -> Array:
        """The element at `place`, an index for each axis, clamped."""

    @abc.abstractmethod
    def store(self, place: tuple[Any, ...], value: Any, mask: Any) -> Any:
        """Replace the element at `place` where `mask`."""

    @abc.abstractmethod
    def stacked(self, values: Sequence[Any]) -> Array:
        """Scalars as a value of the shape of `read`."""


def whole(table: Array) -> Array:
    """The table as a value, where a function of `jax.numpy` takes all of it."""
    return table.read() if isinstance(table, AbstractTable) else table


def load(table: Array, index: Array) -> Array:
    """Row `index` of a table (clamped: a masked access may carry -1)."""
    if isinstance(table, AbstractTable):
        return table.load(index)
    return lax.dynamic_index_in_dim(table, index, keepdims=False, allow_negative_indices=False)


def load_column(table: Array, index: Array) -> Array:
    """`table[:, index]` of a table whose slots are on the last axis."""
    return lax.dynamic_index_in_dim(table, index, axis=1, keepdims=False, allow_negative_indices=False)


def load_row(table: Array, index: Array) -> list[Array]:
    """Row `index` of a table as scalars."""
    if isinstance(table, AbstractTable):
        return [table.load(index, i) for i in range(table.shape[1])]
    row = load(table, index)
    return [row[i] for i in range(row.shape[0])]


def store_row(table: Array, index: Array, values: Sequence[Any], mask: Array) -> Array:
    """The table with row `index` replaced by scalars where `mask`."""
    if isinstance(table, AbstractTable):
        for i, value in enumerate(values):
            table.store((index, i), value, mask)
        return table
    return store(table, index, jnp.stack([jnp.asarray(v).astype(table.dtype) for v in values]), mask)


def stack_like(table: Array, values: Sequence[Any]) -> Array:
    """Scalars as a vector that can be combined with the vector `table`."""
    if isinstance(table, AbstractTable):
        return table.stacked(values)
    return jnp.stack(list(values))


def store(table: Array, index: Array, value: Any, mask: Array) -> Array:
    """The table with row `index` replaced where `mask`."""
    if isinstance(table, AbstractTable):
        return table.store((index,), value, mask)
    new = jnp.where(mask, value, load(table, index))
    return lax.dynamic_update_index_in_dim(table, new, index, 0, allow_negative_indices=False)


def store_column(table: Array, index: Array, value: Any, mask: Array) -> Array:
    """The table with `table[:, index]` replaced where `mask`."""
    new = jnp.where(mask, value, load_column(table, index))
    return lax.dynamic_update_index_in_dim(table, new, index, 1, allow_negative_indices=False)


def store_across(table: Array, index: Array, values: Sequence[Any]) -> Array:
    """The table with `table[:, index]` replaced by scalars."""
    always = jnp.bool_(True)
    if isinstance(table, AbstractTable):
        for i, value in enumerate(values):
            table.store((i, index), value, always)
        return table
    return store_column(table, index, jnp.stack([jnp.asarray(v).astype(table.dtype) for v in values]), always)


def load_at(table: Array, row: Array, column: Array) -> Array:
    """One element of a table."""
    if isinstance(table, AbstractTable):
        return table.load(row, column)
    return lax.dynamic_slice(table, (row, column), (1, 1), allow_negative_indices=False)[0, 0]


def store_at(table: Array, row: Array, column: Array, value: Any, mask: Array) -> Array:
    """The table with one element replaced where `mask`."""
    if isinstance(table, AbstractTable):
        return table.store((row, column), value, mask)
    new = jnp.where(mask, jnp.asarray(value).astype(table.dtype), load_at(table, row, column))
    return lax.dynamic_update_slice(table, new.reshape(1, 1), (row, column), allow_negative_indices=False)


def append_rows(table: Array, n: Array, rows: Array, mask: Array) -> tuple[Array, Array]:
    """Append the rows `rows[i]` with `mask[i]` to a buffer that holds `n`; the buffer and its new count."""

    def one(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        out, k = carry
        return store(out, k, load(rows, i), mask[i]), k + mask[i]

    return lax.fori_loop(0, mask.shape[0], one, (table, n))


def choose(values: Sequence[Any], index: Array) -> Array:
    """`values[index]` of a few scalars: the first below 0, the last past the end."""
    chosen = jnp.asarray(values[-1])
    for i in reversed(range(len(values) - 1)):
        chosen = jnp.where(index <= i, values[i], chosen)
    return chosen


#: Rows up to which a constant table is a chain of selects (a kernel has no constant arrays).
CHAIN = 32


def lookup(rows: np.ndarray, index: Array) -> Array:
    """Row `index` (0 or more, scalar) of a constant vector."""
    if len(rows) > CHAIN:
        return jnp.asarray(rows)[index]
    kinds, counts = np.unique(rows, return_counts=True)
    common = kinds[counts.argmax()]
    found = jnp.asarray(common)
    for i in np.flatnonzero(rows != common):
        found = jnp.where(index == int(i), rows[i], found)
    return found


def either(mask: Array, yes: int, no: int) -> Array:
    """One of two constants (a kernel cannot select between them)."""
    return no + (yes - no) * jnp.asarray(mask).astype(jnp.int32)


def any_of(masks: Sequence[Array]) -> Array:
    """Whether any of the scalars is true."""
    some = masks[0]
    for mask in masks[1:]:
        some = some | mask
    return some


def pack(sequence: Array, slot: Array) -> Array:
    """A key that sorts by sequence number and names its slot."""
    return (sequence << SLOT_BITS) | slot.astype(jnp.int64)


def unpack_slot(key: Array) -> Array:
    return (key & ((1 << SLOT_BITS) - 1)).astype(jnp.int32)


def least(keys: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """The least packed key and its slot; the key is `FAR` where there is none."""
    masked = whole(keys) if mask is None else jnp.where(mask, whole(keys), FAR)
    key = jnp.min(masked, initial=FAR)
    return key, unpack_slot(key)


class AbstractLanes(abc.ABC):
    """How the instances of a batch share the hardware: whether a phase is needed by any of them."""

    @abc.abstractmethod
    def any(self, mask: Array) -> Array:
        """Whether a phase has to run, a scalar that is not batched."""

    @abc.abstractmethod
    def perhaps(self, behind_a_branch: Callable[[], object], masked: Callable[[], object]) -> None:
        """Write a few operations that are seldom needed in the form that takes less time: one of the two."""


@final
class OneByOne(AbstractLanes):
    """Each instance runs its own loop: a phase runs when it is needed (CPU, Pallas)."""

    def any(self, mask: Array) -> Array:
        return mask

    def perhaps(self, behind_a_branch: Callable[[], object], masked: Callable[[], object]) -> None:
        behind_a_branch()


@final
class Together(AbstractLanes):
    """All instances take each turn together under `vmap` (accelerators)."""

    def any(self, mask: Array) -> Array:
        return lax.pmax(mask.astype(jnp.int32), LANES) > 0

    def perhaps(self, behind_a_branch: Callable[[], object], masked: Callable[[], object]) -> None:
        masked()
