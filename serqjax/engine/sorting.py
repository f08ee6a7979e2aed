"""Sorting inside the loop.

XLA's own sort cannot be compiled into the one function that the loop of an instance is on a CPU (`xla.py`): a program
with a sort anywhere in its loop would run operation by operation. A bitonic network of gathers can.

**Source:** Batcher, *Sorting networks and their applications* (1968).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .access import FAR


def order_of(keys: Array) -> Array:
    """Rows in the order of their keys (int64, at most `FAR`), equal keys by row: as a stable `argsort`."""
    n = keys.shape[0]
    size = 1 << max(0, n - 1).bit_length()
    stages = [(1 << high, 1 << low) for high in range(1, size.bit_length()) for low in reversed(range(high))]
    if not stages:
        return jnp.zeros((n,), jnp.int32)
    runs, steps = (jnp.asarray(np.asarray(part, np.int32)) for part in zip(*stages))
    place = jnp.arange(size, dtype=jnp.int32)

    def stage(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        key, row = carry
        other = place ^ steps[i]
        its_key, its_row = key[other], row[other]
        less = (key < its_key) | ((key == its_key) & (row < its_row))
        ascending = (place & runs[i]) == 0
        stays = jnp.where((other > place) == ascending, less, ~less)
        return jnp.where(stays, key, its_key), jnp.where(stays, row, its_row)

    padded = jnp.concatenate([keys, jnp.full((size - n,), FAR, jnp.int64)]) if size > n else keys
    return lax.fori_loop(0, len(stages), stage, (padded, place))[1][:n]
