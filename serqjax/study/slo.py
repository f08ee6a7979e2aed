"""Targets: `ttft.p99 < 500ms`, `goodput(ttft<500ms,tpot<50ms) >= 0.99`.

Every target is turned into the same question about a ratio of two sums over independent parts (seeds or windows):

- a percentile below a limit: the share of requests above the limit is at most 1 - q. So no percentile is estimated,
  and a request that has not finished is simply one that misses;
- a goodput of at least f: the share of requests that miss is at most 1 - f;
- a mean below a limit: the sum of the latencies (unfinished requests with their age) over their number;
- anything else: the mean of the runs' own values.

`excess` is the logarithm of that ratio over what is allowed: below 0 the target is met.

**Source:** `docs/capacity.md`.
"""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np

from ..report.latency import gap_sample
from ..report.raw import RequestStatus
from ..results import Run
from .metrics import Condition, Metric, end_s, metric, positive_time, quantity


@dataclasses.dataclass(frozen=True)
class Slo:
    """A target: `metric` below (`<`, `<=`) or above (`>`, `>=`) `bound` (seconds for latencies)."""

    text: str
    metric: Metric
    upper: bool
    bound: float

    @property
    def of_shares(self) -> bool:
        """Whether the ratio is a share of requests (or gaps) that miss."""
        return self.metric.kind in ("quantile", "goodput", "share")

    @property
    def allowed(self) -> float:
        """What the ratio may be at most (`upper`), or at least."""
        if self.metric.kind == "quantile":
            return 1.0 - self.metric.q
        if self.metric.kind == "goodput":
            return 1.0 - self.bound
        return self.bound

    @property
    def is_deadline(self) -> bool:
        """Whether a request misses it for good as soon as it has waited for the limit."""
        return self.metric.kind == "quantile" and self.metric.base in ("ttft", "e2e")

    @property
    def cooldown_s(self) -> float:
        """Requests sent so shortly before the end cannot have shown yet whether they miss a time limit."""
        if self.is_deadline:
            return self.bound
        return max([c.limit_s for c in self.metric.conditions if c.latency != "tpot"], default=0.0)

    def sums(self, run: Run, part_of: np.ndarray | None, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """The two sums of one run, `(parts,)` each; `part_of`: the part of each request (None: all are part 0)."""
        above, counted = self._rows(run)
        if above is None or counted is None:
            return self._whole(run)
        place = np.zeros(len(counted), dtype=np.int64) if part_of is None else part_of
        top = np.bincount(place, weights=above.astype(np.float64), minlength=parts)
        return top, np.bincount(place, weights=counted.astype(np.float64), minlength=parts)

    def _rows(self, run: Run) -> tuple[np.ndarray | None, np.ndarray | None]:
        """What each request adds to the two sums; None for what is not a sum over requests."""
        which = self.metric
        if not which.of_requests:
            return None, None
        if which.kind == "goodput":
            good, counted = which.hits(run, self.cooldown_s)
            return counted & ~good, counted
        if which.kind == "share":
            return which.hits(run, 0.0)
        which.sample(run)  # refuses what the program does not have
        table = run.requests
        status, values = table["status"], table[f"{which.base}_s"]
        finished = status == RequestStatus.finished
        counted = table["measured"] & (status != RequestStatus.rejected) & which.part.of(table)
        counted = counted & ~(finished & np.isnan(values))  # a single token has no TPOT
        if which.kind == "quantile":
            counted = counted & (table["sent_s"] <= end_s(run.raw) - self.cooldown_s)
            with np.errstate(invalid="ignore"):
                return counted & ~(values < self.bound), counted
        age = np.nan_to_num(table["age_s"]) if which.base != "tpot" else 0.0
        return np.where(counted, np.where(np.isnan(values), age, values), 0.0), counted

    def _whole(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        which = self.metric
        if which.base == "itl" and which.kind in ("quantile", "mean"):
            gaps = gap_sample(run.raw)
            count = np.array([float(gaps.known)])
            if which.kind == "mean":
                return np.array([gaps.mean if gaps.known else 0.0]) * count, count
            weights = np.zeros(0) if gaps.weights is None else gaps.weights
            return np.array([float(weights[gaps.values >= self.bound].sum())]), count
        return np.array([which.value(run).value]), np.ones(1)

    def excess(self, top: np.ndarray, bottom: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Log of the ratio over what is allowed, `(weights, rates)`; above 0 the target is missed.

        **Arguments:** `top`, `bottom`: sums `(rates, parts)`; `weights`: how often each part counts, `(weights,
        parts)`.
        Shares get half a miss more, so that none at all has a logarithm too.
        """
        above, below = weights @ top.T, weights @ bottom.T
        if self.of_shares:
            above, below = above + 0.5, below + 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            out = np.log(above / below / self.allowed)
        return out if self.upper or self.metric.kind == "goodput" else -out


_SLO = re.compile(r"(.+?)\s*(<=|>=|<|>)\s*([^<>=()\[\]]+)")


def slo(text: str | Slo) -> Slo:
    """Read a target: a metric, `<` or `>=`, and a number with its unit.

    **Raises:** `ValueError` that quotes the text and says what to write.
    """
    if isinstance(text, Slo):
        return text
    match = _SLO.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"slo `{text}`: write METRIC < NUMBER, for example ttft.p99<500ms or goodput(ttft<1s)>=0.99")
    which, upper = metric(match[1]), match[2].startswith("<")
    place = f"slo `{text}`"
    timed = which.unit == "s"
    bound = positive_time(match[3], place) if timed else quantity(match[3], place)
    if which.kind == "quantile" and not upper:
        raise ValueError(f"{place}: a latency has an upper limit, write {which.name}<{match[3].strip()}")
    if which.kind == "mean" and not upper:
        raise ValueError(f"{place}: a latency has an upper limit, write {which.name}<{match[3].strip()}")
    if which.kind == "goodput" and (upper or not 0.0 < bound < 1.0):
        raise ValueError(f"{place}: write goodput(...)>=0.99, a share above 0 and below 1 (1 cannot be measured)")
    if which.kind == "share" and (not upper or not 0.0 < bound < 1.0):
        raise ValueError(f"{place}: write {which.name}<0.01, a share above 0 and below 1")
    if bound <= 0 or not math.isfinite(bound):
        raise ValueError(f"{place}: a limit above 0 is needed")
    return Slo("".join(text.split()), which, upper, bound)


__all__ = ["Condition", "Slo", "slo"]
