"""How sure a study is: intervals from independent parts, when to stop, where to begin to measure.

The parts (*clusters*) are seeds, or windows of arrivals of one recorded trace. Everything estimated is a ratio of two
sums over them, or a function of such ratios.

**Source:** B. Efron and C. Stein, The jackknife estimate of variance, Ann. Stat. 9 (1981); C. Stein, A two-sample test
for a linear hypothesis whose power is independent of the variance, Ann. Math. Stat. 16 (1945); K. P. White, An
effective truncation heuristic for bias reduction in simulation output, Simulation 69 (1997) (MSER-5).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ..report.censoring import Estimate

#: Seeds of the first look that decides how many are needed (below that a spread says little), and resamples of a
#: bootstrap.
FIRST_SEEDS = 32
#: A first spread is uncertain: never more than so many times the seeds that there are.
MOST_GROWTH = 8
RESAMPLES = 2000
#: MSER takes the mean of so many successive values, and removes at most half of them.
MSER_BATCH = 5


def t_quantile(confidence: float, parts: int) -> float:
    """Factor of a two-sided interval by Student's t from `parts` independent parts; NaN below two."""
    if parts < 2:
        return math.nan
    from scipy import stats

    return float(stats.t.ppf(0.5 + confidence / 2, parts - 1))


def check_confidence(confidence: float) -> float:
    if not 0.5 <= confidence < 1.0:
        raise ValueError(f"confidence={confidence:g}: a share from 0.5 to below 1 is needed, for example 0.95")
    return confidence


def mean_interval(values: Sequence[float] | np.ndarray, confidence: float, unfinished: int = 0) -> Estimate:
    """Mean, standard error and Student's interval of one value per independent part."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    if not n:
        return Estimate(value=math.nan, seeds=0, unfinished=unfinished)
    mean = float(array.mean())
    if n == 1:
        return Estimate(value=mean, seeds=1, unfinished=unfinished)
    se = float(array.std(ddof=1)) / math.sqrt(n)
    half = t_quantile(confidence, n) * se
    return Estimate(value=mean, se=se, low=mean - half, high=mean + half, seeds=n, unfinished=unfinished)


def leave_one_out(parts: int) -> np.ndarray:
    """Weights `(parts + 1, parts)`: all parts, then all but each one."""
    return np.vstack([np.ones(parts), 1.0 - np.eye(parts)])


def resamples(parts: int, seed: int = 0) -> np.ndarray:
    """Weights `(1 + RESAMPLES, parts)`: all parts once, then as many draws of them with replacement."""
    rng = np.random.default_rng(seed)
    return np.vstack([np.ones(parts), rng.multinomial(parts, np.full(parts, 1.0 / parts), size=RESAMPLES)])


def jackknife(values: np.ndarray, confidence: float) -> Estimate:
    """Student's interval from the value of all parts, `values[0]`, and those without each one, `values[1:]`.

    The estimate is freed of the bias that goes with one over the number of parts (Quenouille).
    """
    rest = values[1:]
    n = len(rest)
    se = math.sqrt((n - 1) / n * float(((rest - rest.mean()) ** 2).sum())) if n >= 2 else math.nan
    half = t_quantile(confidence, n) * se
    value = float(n * values[0] - (n - 1) * rest.mean()) if n >= 2 else float(values[0])
    return Estimate(value=value, se=se, low=value - half, high=value + half, seeds=n)


def percentile_bootstrap(values: np.ndarray, confidence: float, parts: int) -> Estimate:
    """The percentiles of `values[1:]` as the interval about `values[0]`."""
    rest = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(rest, [0.5 - confidence / 2, 0.5 + confidence / 2]) if len(rest) else (math.nan, math.nan)
    return Estimate(value=float(values[0]), se=float(rest.std(ddof=1)) if len(rest) > 1 else math.nan,
                    low=float(low), high=float(high), seeds=parts)


def more_seeds(done: int, first: int, half: float, wanted: float, most: int) -> int:
    """How many seeds in all, for the half-width `half` of `done` seeds to come down to `wanted`; `done`: enough.

    **The rule.** After the `first` seeds: as many as their spread asks for if it is underestimated as far as one
    time in ten (Stein's first stage, with the upper end for the variance), at least twice as many. So the seeds that
    decide how many there are, are a small part of those that are used, and stopping favours no lucky spread. Later:
    as many as are still missing and a tenth on top. Never more than `MOST_GROWTH` times as many at once, and at most
    `most`.
    """
    if not math.isfinite(half) or (done > first and half <= wanted):
        return done
    factor, least = 1.1, math.ceil(1.3 * done)
    if done == first:
        from scipy import stats

        factor, least = (first - 1) / float(stats.chi2.ppf(0.1, first - 1)), 2 * done
    return min(most, MOST_GROWTH * done, max(least, math.ceil(factor * done * (half / wanted) ** 2)))


def widened(estimate: Estimate, spread: float, confidence: float) -> tuple[Estimate, float]:
    """The estimate with the larger of its own spread and `spread`, that of earlier looks; and that spread.

    A spread is a standard error times the root of the number of parts. Having stopped where the spread looked small is
    paid for in this way, and by a quantile of Student's t for the seeds of the first look, which decided how many there
    are (Stein).
    """
    if not math.isfinite(estimate.se):
        return estimate, spread
    n = estimate.seeds
    largest = max(spread, estimate.se * math.sqrt(n))
    se = largest / math.sqrt(n)
    half = t_quantile(confidence, min(n, FIRST_SEEDS)) * se
    return dataclasses.replace(estimate, se=se, low=min(estimate.low, estimate.value - half),
                               high=max(estimate.high, estimate.value + half)), largest


def mser5(values: np.ndarray) -> int:
    """How many leading values of a series to leave out: those whose removal makes the mean's error least.

    The series is cut into means of five; the d with the least variance of the rest over the square of its length is
    taken, at most half of the series (White's MSER-5).
    """
    count = len(values) // MSER_BATCH
    if count < 4:
        return 0
    means = np.asarray(values[: count * MSER_BATCH], dtype=np.float64).reshape(count, MSER_BATCH).mean(axis=1)
    scores = [float(means[d:].var()) / (count - d) for d in range(count // 2 + 1)]
    return int(np.argmin(scores)) * MSER_BATCH
