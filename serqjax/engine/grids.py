"""Tables as array code: the value at a point, the same as `ir.grids.reader` gives to the last bit.

**Source:** `serqjax.ir.grids`; oracle: `oracle/expressions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from ..ir.grids import Axis
from ..tape.rounding import product, quotient
from .lane import Lane


def read_table(w: Lane) -> Callable[[str, list[Any]], Any]:
    """The value of a table of the program at a point (scalars)."""

    def read(name: str, point: list[Any]) -> Array:
        tables = w.plan.skeleton.tables
        place = next(i for i, grid in enumerate(tables) if grid.name == name)
        axes, data, which = tables[place].axes, w.data.grids[place], w.job.which
        point = [jnp.asarray(x, jnp.float64) for x in point]
        steps = [_neighbours(axis, c[which], x) for axis, c, x in zip(axes, data.coordinates, point)]

        def value(k: int, index: tuple[Array, ...]) -> Array:
            if k == len(axes):
                return data.values[(which, *index)]
            low, weight = steps[k]
            first = value(k + 1, (*index, low))
            if axes[k].between != "linear":
                return jnp.where(weight, first, jnp.nan)
            second = value(k + 1, (*index, jnp.minimum(low + 1, data.values.shape[k + 1] - 1)))
            # an axis of one coordinate has no second
            return jnp.where(jnp.isnan(second), first, first + product(weight, second - first))

        found = value(0, ())
        unknown = jnp.isnan(jnp.stack(point)).any()
        return jnp.where(unknown, jnp.nan, jnp.where(jnp.isnan(found), data.missing[which], found))

    return read


def _neighbours(axis: Axis, at: Array, x: Array) -> tuple[Array, Array]:
    """Place of the lower neighbour and the weight of the other; of a step axis its place and whether there is one."""
    count = jnp.sum(at < jnp.inf)
    if axis.between != "linear":
        i = jnp.sum(at < x)
        fine = i < count
        i = jnp.minimum(i, at.shape[0] - 1)
        return i, fine & (at[i] == x) if axis.between == "exact" else fine
    low = jnp.clip(jnp.sum(at <= x) - 1, 0, jnp.maximum(count - 2, 0))
    start, end = at[low], at[jnp.minimum(low + 1, at.shape[0] - 1)]
    alone = count < 2
    weight = jnp.where(alone, 0.0, quotient(x - start, jnp.where(alone, 1.0, end - start)))
    if axis.below == "clamp":
        weight = jnp.maximum(weight, 0.0)
    if axis.above == "clamp":
        weight = jnp.minimum(weight, 1.0)
    return low, weight
