"""Statistics of one run, in the definitions of the reference report.

**Source:** `spec/semantics.md`, section 13 (Observe; itl).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from ..ir import itl

#: Batches of a batch-means interval, the least number of samples, and t(0.975, 19).
BATCHES = 20
LEAST_SAMPLES = 40
T_BATCHES = 2.093


def nearest_rank(sorted_values: np.ndarray, q: float) -> float:
    """The ceil(q n)-th smallest of `sorted_values` (shape `(n,)`, ascending); NaN of nothing."""
    n = len(sorted_values)
    if n == 0:
        return math.nan
    return float(sorted_values[max(math.ceil(q * n), 1) - 1])


def batch_means(values: np.ndarray) -> float:
    """Half width of the 95 % interval of the mean of `values` in the order they were made.

    20 batches of floor(n/20) consecutive samples, the rest ignored; NaN below 40 samples.
    """
    if len(values) < LEAST_SAMPLES:
        return math.nan
    size = len(values) // BATCHES
    means = values[: BATCHES * size].reshape(BATCHES, size).mean(axis=1)
    return T_BATCHES * math.sqrt(float(means.var(ddof=1)) / BATCHES)


def describe(values: np.ndarray) -> dict[str, float | int]:
    """`count, mean, ci, cv2, p99` of samples in the order they were made; NaN where undefined."""
    n = len(values)
    if n == 0:
        return {"count": 0, "mean": math.nan, "ci": math.nan, "cv2": math.nan, "p99": math.nan}
    mean = float(values.mean())
    cv2 = float(values.var(ddof=1)) / mean**2 if n >= 2 and mean != 0 else math.nan
    p99 = nearest_rank(np.sort(values), 0.99)
    return {"count": n, "mean": mean, "ci": batch_means(values), "cv2": cv2, "p99": p99}


Buckets = Mapping[int, tuple[int, int, int]]


def merge_buckets(histograms: Iterable[Buckets]) -> dict[int, tuple[int, int, int]]:
    """One histogram of gaps out of several (counts add, least and greatest are kept)."""
    out: dict[int, tuple[int, int, int]] = {}
    for buckets in histograms:
        for k, (count, least, greatest) in buckets.items():
            if k in out:
                had = out[k]
                out[k] = (had[0] + count, min(had[1], least), max(had[2], greatest))
            else:
                out[k] = (count, least, greatest)
    return out


def bucket_quantile(buckets: Buckets, q: float, tick_s: float) -> float:
    """Seconds at rank ceil(q n) of a gap histogram: the geometric middle of its bucket.

    Clamped to the least and greatest gap seen in that bucket, hence within 0.5 % of the exact
    order statistic; NaN of an empty histogram.
    """
    total = sum(count for count, _, _ in buckets.values())
    if total == 0:
        return math.nan
    rank = max(math.ceil(q * total), 1)
    seen = 0
    for k in sorted(buckets):
        count, least, greatest = buckets[k]
        seen += count
        if seen >= rank:
            middle = math.exp((k + 0.5) * math.log(itl.RATIO))
            return float(min(max(middle, least * tick_s), greatest * tick_s))
    raise AssertionError("ranks exceed the histogram")
