"""The state of many instances as a few flat arrays, as it crosses the edge between host and compiled loop.

An instance has a hundred small arrays; handed over one by one, each costs some microseconds a call. A `Layout`
says where each stands in one row a dtype. The output buffers are no part of it: a call begins with empty ones.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

#: Output buffers whose entries are columns (each quantity is looked at by itself later), and those with rows.
COLUMN_BUFFERS, ROW_BUFFERS = ("samples", "requests", "points"), ("gaps", "actions")
#: `NAME_n` counts the entries of each.
BUFFERS = COLUMN_BUFFERS + ROW_BUFFERS


@dataclasses.dataclass(frozen=True)
class Layout:
    """Name, dtype and shape of every array of an instance, in order; those in `BUFFERS` apart."""

    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    buffers: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, state: dict[str, np.ndarray]) -> Layout:
        """The layout of one instance's arrays (`state.fields`)."""
        made = [(name, str(x.dtype), x.shape) for name, x in state.items()]
        return cls(tuple(x for x in made if x[0] not in BUFFERS), tuple(x for x in made if x[0] in BUFFERS))

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.arrays, self.buffers))

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def places(self) -> dict[str, tuple[str, slice, tuple[int, ...]]]:
        """Dtype, elements and shape of each array."""
        ends: dict[str, int] = {}
        made = {}
        for name, dtype, shape in self.arrays:
            start = ends.get(dtype, 0)
            ends[dtype] = start + math.prod(shape)
            made[name] = (dtype, slice(start, ends[dtype]), shape)
        return made

    def row(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One row `[elements]` a dtype of one instance's arrays (host)."""
        rows: dict[str, list[np.ndarray]] = {}
        for name, dtype, _ in self.arrays:
            rows.setdefault(dtype, []).append(state[name].reshape(-1))
        return {dtype: np.concatenate(parts) for dtype, parts in rows.items()}

    def view(self, rows: dict[str, np.ndarray], name: str) -> np.ndarray:
        """The array `name` `[instances, *shape]` as a view of the rows (host)."""
        dtype, where, shape = self.places[name]
        return rows[dtype][:, where].reshape(-1, *shape)

    def lane(self, rows: dict[str, np.ndarray], lane: int) -> Mapping[str, np.ndarray]:
        """All arrays of one instance as views of the rows (host)."""
        return LaneArrays(self, {dtype: x[lane] for dtype, x in rows.items()})

    def unpack(self, rows: dict[str, Array]) -> dict[str, Array]:
        """The arrays of one instance, with empty buffers and no stall (traced)."""
        state = {name: rows[dtype][where].reshape(shape) for name, (dtype, where, shape) in self.places.items()}
        for name, dtype, shape in self.buffers:
            state[name] = jnp.zeros(shape, dtype)
        return opened(state)

    def pack(self, state: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Rows and buffers of one instance (traced)."""
        rows: dict[str, list[Array]] = {}
        for name, dtype, _ in self.arrays:
            rows.setdefault(dtype, []).append(state[name].reshape(-1))
        return {d: jnp.concatenate(parts) for d, parts in rows.items()}, {n: state[n] for n, _, _ in self.buffers}


class LaneArrays(Mapping[str, np.ndarray]):
    """The arrays of one instance by name; a view is made where one is looked at."""

    def __init__(self, layout: Layout, rows: dict[str, np.ndarray]):
        self.places, self.rows = layout.places, rows

    def __getitem__(self, name: str) -> np.ndarray:
        dtype, where, shape = self.places[name]
        return self.rows[dtype][where].reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places


def opened(state: dict[str, Array]) -> dict[str, Array]:
    """The arrays of an instance when a call begins: nothing in the buffers, no stall (traced)."""
    counts = {f"{name}_n": jnp.zeros_like(state[f"{name}_n"]) for name in BUFFERS if name in state}
    return state | counts | {"stall": jnp.bool_(False)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Packed:
    """Many instances: `rows` by dtype, `[instances, elements]`; `buffers`: where native code writes its output."""

    rows: dict[str, Any]
    layout: Layout = dataclasses.field(metadata={"static": True})
    buffers: dict[str, Any] = dataclasses.field(default_factory=dict)
