"""Memory of a worker: output buffers that are used again and again, and room for results.

Fresh memory costs more for each of its small pages than what is written to it. So buffers stay when a batch is over,
for the next one, and results are written into large pieces.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .layout import Layout

#: Bytes of the first and of the largest pieces for results; numpy asks for large pages from 4 MiB on.
FIRST_PIECE_BYTES, PIECE_BYTES = 1 << 18, 1 << 22
#: Buffers of more bytes are not kept.
MOST_KEPT_BYTES = 1 << 26


class Workspace:
    """One worker's. The results in it belong to whoever has them; the buffers are written over by its next unit."""

    def __init__(self) -> None:
        self.spare = np.empty((0,), np.uint8)
        self.piece, self.used = np.empty((FIRST_PIECE_BYTES,), np.uint8), 0

    def buffers(self, layout: Layout, lanes: int) -> dict[str, np.ndarray]:
        """Output buffers, `[lanes, *shape]` each, with anything in them."""
        sizes = [lanes * math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in layout.buffers]
        if sum(sizes) > len(self.spare):
            self.spare = np.empty((sum(sizes),), np.uint8)
        found, start = {}, 0
        for (name, dtype, shape), size in zip(layout.buffers, sizes):
            found[name] = self.spare[start : start + size].view(dtype).reshape(lanes, *shape)
            start += size
        return found

    def empty(self, n: int, dtype: Any) -> np.ndarray:
        """Room for `n` numbers of 8 bytes of a result."""
        if self.used + 8 * n > len(self.piece):
            self.piece, self.used = np.empty((max(8 * n, min(2 * len(self.piece), PIECE_BYTES)),), np.uint8), 0
        start, self.used = self.used, self.used + 8 * n
        return self.piece[start : self.used].view(dtype)

    def kept(self, values: np.ndarray, dtype: Any, order: np.ndarray | None = None) -> np.ndarray:
        """A copy of one quantity of a result, its numbers in this `order`."""
        out = self.empty(len(values), dtype)
        if order is None:
            out[:] = values
        else:
            np.take(values, order, out=out, mode="clip")  # the mode that needs no further copy
        return out


#: Of workers that are done.
_idle: list[Workspace] = []


@contextlib.contextmanager
def workspace() -> Iterator[Workspace]:
    """A workspace that nobody else has meanwhile."""
    try:
        found = _idle.pop()
    except IndexError:
        found = Workspace()
    try:
        yield found
    finally:
        if len(found.spare) <= MOST_KEPT_BYTES:
            _idle.append(found)
