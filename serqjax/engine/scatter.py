"""Many elements of a table written at once.

XLA's own scatter cannot be compiled into the one function that the loop of an instance is on a CPU (`xla.py`): a
program with a scatter anywhere in its loop would run operation by operation. There it is a loop of stores. Where all
instances take each turn together it stays a scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .access import AbstractLanes, OneByOne, load_at, store_at


def set_at(lanes: AbstractLanes, table: Array, row: int, places: Array, values: Any) -> Array:
    """The table `[rows, n]` with the elements `places` of a row replaced; places past the end are left out."""
    if isinstance(lanes, OneByOne):
        return _one_after_the_other(table, row, places, values, lambda old, new: new)
    return table.at[row, places].set(jnp.asarray(values, table.dtype), mode="drop")


def add_at(lanes: AbstractLanes, table: Array, row: int, places: Array, value: int) -> Array:
    """As `set_at`, with a number added to each element."""
    if isinstance(lanes, OneByOne):
        return _one_after_the_other(table, row, places, value, lambda old, new: old + new)
    return table.at[row, places].add(value, mode="drop")


def min_at(lanes: AbstractLanes, table: Array, row: int, places: Array, values: Array) -> Array:
    """As `set_at`, where the value is less than what is there."""
    if isinstance(lanes, OneByOne):
        return _one_after_the_other(table, row, places, values, jnp.minimum)
    return table.at[row, places].min(jnp.asarray(values, table.dtype), mode="drop")


def _one_after_the_other(
    table: Array, row: int, places: Array, values: Any, new: Callable[[Array, Array], Array]
) -> Array:
    some = jnp.broadcast_to(jnp.asarray(values, table.dtype), places.shape)
    inside = (places >= 0) & (places < table.shape[1])
    count = jnp.max(jnp.where(inside, jnp.arange(1, places.shape[0] + 1), 0))
    at = jnp.int32(row)

    def one(i: Array, table: Array) -> Array:
        place = jnp.clip(places[i], 0, table.shape[1] - 1).astype(jnp.int32)
        return store_at(table, at, place, new(load_at(table, at, place), some[i]), inside[i])

    return lax.fori_loop(jnp.zeros_like(count), count, one, table)
