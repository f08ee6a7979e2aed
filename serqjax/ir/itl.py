"""Buckets of inter-token gaps: ratio 1.01, found by integer comparison, the same everywhere.

Bucket k holds gaps x (seconds) with floor(ln x / ln 1.01) = k. `edges(tick_s)[i]` is the least tick count of
bucket `FIRST_BUCKET + i`, so that the bucket of a gap is a search among integers and no logarithm
of a run-time value is taken. Index 0 also holds gaps of 0 ticks (the reference's lowest bucket).

**Source:** `spec/semantics.md`, section 13 (itl).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

RATIO = 1.01
LONGEST_TICK = 1 << 47


@functools.lru_cache(maxsize=8)
def first_bucket(tick_s: float) -> int:
    """The bucket of one tick."""
    return math.floor(math.log(tick_s) / math.log(RATIO))


@functools.lru_cache(maxsize=8)
def edges(tick_s: float) -> np.ndarray:
    """Least tick count of each bucket from `first_bucket` on, ascending, int64; the first is 0."""
    import numpy as np  # here, because reading and checking a program needs no arrays

    first = first_bucket(tick_s)
    last = math.floor(math.log(LONGEST_TICK * tick_s) / math.log(RATIO))
    ratio = math.log(RATIO)
    lower = [0] + [math.ceil(math.exp(k * ratio) / tick_s - 1e-9) for k in range(first + 1, last + 1)]
    return np.asarray(lower, dtype=np.int64)


def bucket(gap_tick: int, tick_s: float) -> int:
    """Bucket number (the reference's k) of a gap in ticks."""
    return first_bucket(tick_s) + int(edges(tick_s).searchsorted(gap_tick, side="right")) - 1
