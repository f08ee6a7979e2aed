"""Tables of numbers over several variables: what was measured, as data, and how it is read between the points.

A `Grid` holds rows `(coordinate of each axis..., value)`. The grid may be ragged. `dense` fills it to a full grid that
reads the same everywhere; `reader` gives its values. Both engines work from the dense form.

**Source:** `data/README.md`, the closed loop (rules of look-up).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import numpy as np


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One axis of a table.

    - `between`: `linear` between two coordinates; `next`: the value at the next greater coordinate (buckets by their
      upper ends; above the last there is none); `exact`: a value stands at a coordinate alone.
    - `below`, `above`: outside of a linear axis the value of its end, or the line through its last two points.
    - `holes`: where a coordinate of the axis has no value in a slice that another slice has: read `linear`ly from the
      slice's own coordinates, or from the `nearest` of them.
    """

    name: str
    between: Literal["linear", "next", "exact"] = "linear"
    below: Literal["clamp", "extrapolate"] = "clamp"
    above: Literal["clamp", "extrapolate"] = "extrapolate"
    holes: Literal["linear", "nearest"] = "linear"


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A table by name. `rows`: coordinates in the order of `axes`, then the value, in any order.

    `missing`: the value where an axis that is not linear has none; it must be given where that can happen.
    Rows are data, not structure: another table over the same axes costs no compilation.
    """

    name: str
    axes: tuple[Axis, ...]
    rows: tuple[tuple[float, ...], ...]
    missing: float | None = None


@dataclass(frozen=True, eq=False)
class Dense:
    """A full grid: `coordinates` of each axis, ascending, and `values` over them, NaN where there is none."""

    coordinates: tuple[np.ndarray, ...]
    values: np.ndarray


def dense(grid: Grid) -> Dense:
    """The full grid. **Raises:** `ValueError` without rows, for a row of another length, or two rows of one point."""
    import numpy as np

    width = len(grid.axes) + 1
    if not grid.rows:
        raise ValueError("a table needs rows")
    if any(len(row) != width for row in grid.rows):
        bad = next(i for i, row in enumerate(grid.rows) if len(row) != width)
        raise ValueError(f"row {bad} has {len(grid.rows[bad])} numbers: {width} are needed")
    rows = np.asarray(grid.rows, np.float64)
    coordinates = tuple(np.unique(rows[:, k]) for k in range(width - 1))
    places = tuple(np.searchsorted(c, rows[:, k]) for k, c in enumerate(coordinates))
    values = np.full([len(c) for c in coordinates], np.nan)
    values[places] = rows[:, -1]
    if np.count_nonzero(~np.isnan(values)) < len(rows):
        raise ValueError("two rows are of one point")
    for k in reversed(range(width - 1)):
        if grid.axes[k].between == "linear":
            _fill(values, coordinates[k], k, grid.axes[k])
    return Dense(coordinates, values)


def _fill(values: np.ndarray, coordinates: np.ndarray, k: int, axis: Axis) -> None:
    """Fill the holes along axis `k`; those inside a slice that has nothing at all stay."""
    import numpy as np

    first = values.reshape(*values.shape[: k + 1], -1)  # what lies inside is full, or empty
    for outer in np.ndindex(*values.shape[:k]):
        line = first[outer]
        known = np.flatnonzero(~np.isnan(line[:, 0]))
        for i in np.flatnonzero(np.isnan(line[:, 0])) if len(known) else ():
            x, at = coordinates[i], coordinates[known]
            if axis.holes == "nearest":
                line[i] = line[known[np.argmin(np.abs(at - x))]]
            else:
                low, weight = bracket(at.tolist(), float(x), axis)
                high = min(low + 1, len(known) - 1)
                line[i] = line[known[low]] + weight * (line[known[high]] - line[known[low]])


def bracket(coordinates: Sequence[float], x: float, axis: Axis) -> tuple[int, float]:
    """The lower of two neighbours on a linear axis, and how far `x` is from it to the other."""
    if len(coordinates) == 1:
        return 0, 0.0
    low = min(max(bisect_right(coordinates, x) - 1, 0), len(coordinates) - 2)
    weight = (x - coordinates[low]) / (coordinates[low + 1] - coordinates[low])
    if axis.below == "clamp":
        weight = max(weight, 0.0)
    if axis.above == "clamp":
        weight = min(weight, 1.0)
    return low, weight


def reader(grid: Grid) -> Callable[[Sequence[float]], float]:
    """The value at a point; NaN at what is no number, or where there is none and `missing` says nothing."""
    import numpy as np

    full = dense(grid)
    coordinates, values = [c.tolist() for c in full.coordinates], full.values.ravel().tolist()
    strides = [int(np.prod(full.values.shape[k + 1 :])) for k in range(full.values.ndim)]

    def read(k: int, place: int, point: Sequence[float]) -> float:
        if k == len(coordinates):
            return values[place]
        axis, at, x = grid.axes[k], coordinates[k], point[k]
        if axis.between == "linear":
            low, weight = bracket(at, x, axis)
            first = read(k + 1, place + low * strides[k], point)
            if len(at) == 1:
                return first
            second = read(k + 1, place + (low + 1) * strides[k], point)
            return first + weight * (second - first)
        i = bisect_left(at, x)
        if i == len(at) or (axis.between == "exact" and at[i] != x):
            return math.nan
        return read(k + 1, place + i * strides[k], point)

    def value(point: Sequence[float]) -> float:
        if any(x != x for x in point):
            return math.nan
        found = read(0, 0, point)
        return grid.missing if found != found and grid.missing is not None else found

    return value
