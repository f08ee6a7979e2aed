"""Quantiles and means of samples of which some are known only to exceed a bound.

A request that has not finished when the run ends has a latency above its age. The rule: it is
counted as longer than every finished one. A quantile that then falls among the unfinished is not a
number but `> x`, where x is the same quantile with every unfinished request at its age: the true
value cannot be smaller. A mean cannot be bounded above, so it is taken over the finished ones and
says how many are missing.

Quantiles follow numpy's linear rule. **Source:** `cases.md`, rows 16 and 17.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Sample:
    """Values of one run.

    - `values`: known values, shape `(n,)`, float64, any order.
    - `at_least`: lower bounds of the censored ones, shape `(c,)`.
    - `weights`: how often each value occurs (None: once), int64.
    - `mean`: of the known values, exact where `values` are rounded (histograms).
    """

    values: np.ndarray
    at_least: np.ndarray
    mean: float
    weights: np.ndarray | None = None

    @property
    def known(self) -> int:
        return len(self.values) if self.weights is None else int(self.weights.sum())

    @property
    def censored(self) -> int:
        return len(self.at_least)

    @classmethod
    def of(cls, values: np.ndarray, at_least: np.ndarray | None = None) -> Sample:
        values = np.asarray(values, dtype=np.float64)
        bounds = np.zeros(0) if at_least is None else np.asarray(at_least, dtype=np.float64)
        return cls(values=values, at_least=bounds, mean=float(values.mean()) if len(values) else math.nan)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty; NaN where something does not exist.

    - `value`: the estimate, NaN if it is only known to exceed `lower_bound`.
    - `se`: standard error. `low`, `high`: ends of the 95 % interval (`high` infinite: not bounded).
    - `lower_bound`: given only when `value` is not known.
    - `seeds`: runs that entered. `unfinished`: censored requests that a mean leaves out.
    """

    value: float
    se: float = math.nan
    low: float = math.nan
    high: float = math.nan
    lower_bound: float = math.nan
    seeds: int = 1
    unfinished: int = 0

    @property
    def text(self) -> str:
        """`0.0953 [0.0931, 0.0975]`, `> 12.3`, or `-` when there is nothing to estimate from."""
        return self.format()

    def format(self, scale: float = 1.0) -> str:
        """`text` with values multiplied by `scale` (1000: milliseconds)."""
        if math.isnan(self.value):
            return "-" if math.isnan(self.lower_bound) else f"> {self.lower_bound * scale:.4g}"
        out = f"{self.value * scale:.4g}"
        if not math.isnan(self.low):
            high = "inf" if math.isinf(self.high) else f"{self.high * scale:.4g}"
            out += f" [{self.low * scale:.4g}, {high}]"
        if self.unfinished:
            out += f" ({self.unfinished} unfinished left out)"
        return out

    def to_dict(self) -> dict[str, object]:
        """JSON data; `ci95` is null when there is no interval, its upper end null when not bounded."""
        interval = None if math.isnan(self.low) else [self.low, self.high]
        out: dict[str, object] = {"value": self.value, "se": self.se, "ci95": interval}
        out |= {"lower_bound": self.lower_bound, "seeds": self.seeds}
        if self.unfinished:
            out["unfinished"] = self.unfinished
        return out | {"text": self.text}


class Ordered:
    """A sorted weighted sample that answers quantiles and counts."""

    def __init__(self, values: np.ndarray, weights: np.ndarray | None = None):
        values = np.asarray(values, dtype=np.float64)
        if weights is None:
            self.values, self.upto, self.total = np.sort(values), None, len(values)
            return
        order = np.argsort(values)
        self.values, self.upto = values[order], np.cumsum(np.asarray(weights, dtype=np.int64)[order])
        self.total = int(self.upto[-1]) if len(values) else 0

    def quantile(self, q: float) -> float:
        """Linear rule (position q (n - 1)); NaN of nothing; infinite as soon as an infinite value enters."""
        if not self.total:
            return math.nan
        place = min(max(q, 0.0), 1.0) * (self.total - 1)
        below = math.floor(place)
        part = place - below
        low = self._at(below)
        if part == 0.0:
            return low
        high = self._at(min(below + 1, self.total - 1))
        return high if math.isinf(high) else low + (high - low) * part

    def count_upto(self, x: float) -> int:
        """How many are at most `x`."""
        place = int(self.values.searchsorted(x, side="right"))
        return place if self.upto is None or not place else int(self.upto[place - 1])

    def _at(self, rank: int) -> float:
        return float(self.values[rank if self.upto is None else self.upto.searchsorted(rank, side="right")])


class Censored:
    """One or several runs' samples, sorted twice: the censored on top, and at their lower bounds."""

    def __init__(self, samples: Sequence[Sample]):
        values = np.concatenate([s.values for s in samples]) if samples else np.zeros(0)
        bounds = np.concatenate([s.at_least for s in samples]) if samples else np.zeros(0)
        weights = None
        if any(s.weights is not None for s in samples):
            each = [np.ones(len(s.values), dtype=np.int64) if s.weights is None else s.weights for s in samples]
            weights = np.concatenate([*each, np.ones(len(bounds), dtype=np.int64)])
        self.high = Ordered(np.concatenate([values, np.full(len(bounds), np.inf)]), weights)
        self.low = Ordered(np.concatenate([values, bounds]), weights) if len(bounds) else self.high

    def quantile(self, q: float) -> Estimate:
        """The quantile, or its lower bound when it falls among the censored."""
        value = self.high.quantile(q)
        if math.isinf(value):
            return Estimate(value=math.nan, lower_bound=self.low.quantile(q))
        return Estimate(value=value)


@functools.lru_cache(maxsize=16)
def t_factor(seeds: int) -> float:
    """Quantile of Student's t for a two-sided 95 % interval from `seeds` independent runs."""
    if seeds < 2:
        return math.nan
    from scipy import stats

    return float(stats.t.ppf(0.5 + LEVEL / 2, seeds - 1))


def over_seeds(values: Sequence[float] | np.ndarray) -> Estimate:
    """Mean, standard error and 95 % t interval of one value per independent run; NaN values do not enter.

    The interval needs two runs; it is NaN (null in JSON) with one.
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    n = len(array)
    if n == 0:
        return Estimate(value=math.nan, seeds=0)
    mean = float(array.mean())
    if n == 1:
        return Estimate(value=mean, seeds=1)
    se = float(array.std(ddof=1)) / math.sqrt(n)
    half = t_factor(n) * se
    return Estimate(value=mean, se=se, low=mean - half, high=mean + half, seeds=n)


def pooled_quantile(pool: Censored, runs: Sequence[Censored], q: float) -> Estimate:
    """Quantile of all requests of all runs together, with an interval clustered by run.

    Woodruff's interval: the fraction of requests at or below the quantile is a ratio of sums over
    runs, whose standard error (linearised, runs being the independent units; on the logit scale, which
    keeps fractions between 0 and 1) gives the fractions whose quantiles are the ends. Requests of one run
    may depend on each other in any way. An upper end past the largest request is not bounded (infinite).

    **Arguments:** `pool` holds what `runs` hold, together; `q` in (0, 1).

    **Source:** R. S. Woodruff, Confidence intervals for medians and other position measures,
    J. Am. Stat. Assoc. 47 (1952).
    """
    point = pool.quantile(q)
    used = [run for run in runs if run.high.total]
    n = len(used)
    if n < 2:
        return dataclasses.replace(point, seeds=n)
    lower = pool.low.quantile(q)
    se_low = _fraction_error([r.low for r in used], lower)
    low = pool.low.quantile(_shifted(q, -t_factor(n) * se_low))
    if math.isnan(point.value):
        # only bounded below: the bound itself is uncertain, its interval's lower end is what is safe
        return dataclasses.replace(point, seeds=n, low=low, high=math.inf)
    upper = _shifted(q, t_factor(n) * _fraction_error([r.high for r in used], point.value))
    high = pool.high.quantile(upper) if (1.0 - upper) * pool.high.total >= 0.5 else math.inf
    return dataclasses.replace(point, seeds=n, low=min(low, point.value), high=high)


def mean_of_quantiles(runs: Sequence[Censored], q: float) -> Estimate:
    """Mean over runs of each run's own quantile; `> x` if it is unknown in one of them."""
    each = [run.quantile(q) for run in runs if run.high.total]
    if any(math.isnan(e.value) for e in each):
        bounds = [run.low.quantile(q) for run in runs if run.high.total]
        bound = over_seeds(bounds)
        return Estimate(value=math.nan, lower_bound=bound.value, low=bound.low, high=math.inf, seeds=bound.seeds)
    return over_seeds([e.value for e in each])


def _shifted(q: float, by: float) -> float:
    """`q` moved by `by` to first order, on the logit scale: stays in (0, 1)."""
    return 1.0 / (1.0 + math.exp(-(math.log(q / (1.0 - q)) + by / (q * (1.0 - q)))))


def _fraction_error(runs: Sequence[Ordered], x: float) -> float:
    """Standard error of the pooled fraction of values at most `x`, clustered by run."""
    counts = np.array([run.count_upto(x) for run in runs], dtype=np.float64)
    sizes = np.array([run.total for run in runs], dtype=np.float64)
    fraction = counts.sum() / sizes.sum()
    rest = counts - fraction * sizes
    n = len(runs)
    return math.sqrt(n / (n - 1) * float((rest**2).sum())) / float(sizes.sum())
