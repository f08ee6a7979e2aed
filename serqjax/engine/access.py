"""The access layer: the only way in which phases touch tables.

A table is an array whose first axis (or last, where it says so) is the slot. All functions are written for one
instance and may be batched by `vmap`; a masked access reads some row or writes nothing.

**Source:** `design.md`, section 4; `measurements.md`, points 3 and 5.
"""

from __future__ import annotations

import abc
from typing import Any, final

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

LANES = "lanes"
#: Greater than every key and tick.
FAR = 1 << 62
#: Bits of the slot in a packed key `(sequence << SLOT_BITS) | slot`.
SLOT_BITS = 20


def load(table: Array, index: Array) -> Array:
    """Row `index` of a table (clamped: a masked access may carry -1)."""
    return lax.dynamic_index_in_dim(table, index, keepdims=False, allow_negative_indices=False)


def load_column(table: Array, index: Array) -> Array:
    """`table[:, index]` of a table whose slots are on the last axis."""
    return lax.dynamic_index_in_dim(table, index, axis=1, keepdims=False, allow_negative_indices=False)


def store(table: Array, index: Array, value: Any, mask: Array) -> Array:
    """The table with row `index` replaced where `mask`."""
    new = jnp.where(mask, value, load(table, index))
    return lax.dynamic_update_index_in_dim(table, new, index, 0, allow_negative_indices=False)


def store_column(table: Array, index: Array, value: Any, mask: Array) -> Array:
    """The table with `table[:, index]` replaced where `mask`."""
    new = jnp.where(mask, value, load_column(table, index))
    return lax.dynamic_update_index_in_dim(table, new, index, 1, allow_negative_indices=False)


def load_at(table: Array, row: Array, column: Array) -> Array:
    """One element of a table."""
    return lax.dynamic_slice(table, (row, column), (1, 1), allow_negative_indices=False)[0, 0]


def store_at(table: Array, row: Array, column: Array, value: Any, mask: Array) -> Array:
    """The table with one element replaced where `mask`."""
    new = jnp.where(mask, jnp.asarray(value).astype(table.dtype), load_at(table, row, column))
    return lax.dynamic_update_slice(table, new.reshape(1, 1), (row, column), allow_negative_indices=False)


def append_rows(table: Array, n: Array, rows: Array, mask: Array) -> tuple[Array, Array]:
    """Append the rows `rows[i]` with `mask[i]` to a buffer that holds `n`; the buffer and its new count."""

    def one(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        out, k = carry
        return store(out, k, load(rows, i), mask[i]), k + mask[i]

    return lax.fori_loop(0, mask.shape[0], one, (table, n))


def pack(sequence: Array, slot: Array) -> Array:
    """A key that sorts by sequence number and names its slot."""
    return (sequence << SLOT_BITS) | slot.astype(jnp.int64)


def unpack_slot(key: Array) -> Array:
    return (key & ((1 << SLOT_BITS) - 1)).astype(jnp.int32)


def least(keys: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """The least packed key and its slot; the key is `FAR` where there is none."""
    masked = keys if mask is None else jnp.where(mask, keys, FAR)
    key = jnp.min(masked, initial=FAR)
    return key, unpack_slot(key)


class AbstractLanes(abc.ABC):
    """How the instances of a batch share the hardware: whether a phase is needed by any of them."""

    @abc.abstractmethod
    def any(self, mask: Array) -> Array:
        """Whether a phase has to run, a scalar that is not batched."""


@final
class OneByOne(AbstractLanes):
    """Each instance runs its own loop: a phase runs when it is needed (CPU, Pallas)."""

    def any(self, mask: Array) -> Array:
        return mask


@final
class Together(AbstractLanes):
    """All instances take each turn together under `vmap` (accelerators)."""

    def any(self, mask: Array) -> Array:
        return lax.pmax(mask.astype(jnp.int32), LANES) > 0
