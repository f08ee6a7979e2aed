"""Which of two programs is better, and how sure is that: the same seeds under both.

Seed s of A and seed s of B have the same arrivals, lengths and think times wherever both programs draw them (common
random numbers), so the difference within a seed varies much less than either value. The difference is the mean over
seeds of each
seed's own difference, with Student's interval. Seeds are added until the half-width is small enough: after 32 the
number needed is foretold from their spread, run, and looked at again (`precision.more_seeds` states the rule).

Replays of one recorded trace draw nothing: there is one difference and no interval, unless windows of arrivals are
drawn anew
(`window_s`).

**Source:** A. M. Law, *Simulation Modeling and Analysis*, 5th ed. (2015), sections 10.2 and 11.2; `docs/capacity.md`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from .. import ir
from ..api import check, run_many
from ..overrides import with_span
from ..progress import AbstractProgress, NoProgress
from ..report.censoring import Estimate
from ..report.raw import RequestStatus, Verdict
from ..report.units import dumps, plain
from ..results import Run
from .metrics import Metric, metric
from .parts import draws, replays, usable, window_count, window_of
from .precision import (
    FIRST_SEEDS,
    check_confidence,
    mean_interval,
    more_seeds,
    mser5,
    percentile_bootstrap,
    resamples,
    widened,
)

#: The warm-up that is found from the runs themselves.
MSER5 = "mser5"


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The answer of `serqjax.compare`; differences are B - A, in the unit of the metric.

    - `a`, `b`: the metric of each program. `difference`: with `.low`, `.high` at `confidence`.
    - `relative`: the difference over A's value.
    - `verdict`: `b_lower`, `b_higher`, `no_difference` (the interval holds 0), `no_interval` (nothing is random),
      `unknown`
      (the value lies among unfinished requests; `cause` says in which program).
    - `warmup_s`: seconds that were not measured. `correlation`: of A and B over the seeds.
    - `per_seed`: the pairs, `(seeds, 2)`.
    """

    names: tuple[str, str]
    metric: Metric
    confidence: float
    a: Estimate
    b: Estimate
    difference: Estimate
    verdict: str
    cause: str
    notes: tuple[str, ...]
    parts: str
    warmup_s: float | None
    correlation: float
    per_seed: np.ndarray

    @property
    def interval(self) -> tuple[float, float]:
        return self.difference.low, self.difference.high

    @property
    def relative(self) -> Estimate:
        by = self.a.value
        d = self.difference
        if not math.isfinite(by) or by == 0:
            return Estimate(value=math.nan)
        low, high = sorted((d.low / by, d.high / by)) if math.isfinite(d.low) else (math.nan, math.nan)
        return Estimate(value=d.value / by, se=d.se / abs(by), low=low, high=high, seeds=d.seeds)

    def to_polars(self) -> Any:
        """One row per seed: `seed_index, a, b, difference`; null where a value is not known."""
        import polars

        a, b = self.per_seed.T
        columns = {"seed_index": np.arange(len(a)), "a": a, "b": b, "difference": b - a}
        return polars.DataFrame(columns, nan_to_null=True)

    def to_document(self) -> dict[str, Any]:
        """What `serqjax compare --json` prints."""
        return plain({
            "a": self.names[0], "b": self.names[1], "metric": self.metric.name, "unit": self.metric.unit,
            "confidence": self.confidence, "values": {"a": _dict(self.a), "b": _dict(self.b)},
            "difference": _dict(self.difference), "relative": _dict(self.relative), "verdict": self.verdict,
            "cause": self.cause, "notes": list(self.notes), "parts": self.parts, "warmup_s": self.warmup_s,
            "correlation": self.correlation, "per_seed": self.per_seed.tolist(),
        })  # fmt: skip

    def to_json(self) -> str:
        return dumps(self.to_document())

    def __str__(self) -> str:
        from .text import comparison_text

        return comparison_text(self)

    def __repr__(self) -> str:
        return f"Comparison({self.metric.name!r}, {self.difference.text}, {self.verdict!r})"

    def _repr_html_(self) -> str:
        from .text import as_html

        return as_html(str(self))


def _dict(e: Estimate) -> dict[str, Any]:
    return {"value": e.value, "se": e.se, "low": e.low, "high": e.high, "lower_bound": e.lower_bound, "parts": e.seeds}


def paired(
    a: ir.Program, b: ir.Program, *, metric: str, precision: float, confidence: float, seed: int, max_seeds: int,
    horizon_s: float | None, warmup_s: float | str | None, window_s: float | None, progress: AbstractProgress | None,
) -> Comparison:
    """See `serqjax.compare`."""
    which = _metric(metric)
    check_confidence(confidence)
    if not 0 < precision < math.inf:
        raise ValueError(f"precision={precision:g}: a share above 0 is needed, for example 0.02 for 2 %")
    if max_seeds < FIRST_SEEDS:
        raise ValueError(f"max_seeds={max_seeds}: at least {FIRST_SEEDS} are needed for an interval")
    if isinstance(warmup_s, str) and warmup_s != MSER5:
        raise ValueError(f"warmup_s={warmup_s}: give seconds, or {MSER5}")
    pair = tuple(with_span(p, horizon_s=horizon_s) for p in (a, b))
    notes: list[str] = []
    progress = progress or NoProgress()
    if isinstance(warmup_s, str):
        warmup_s = _found_warmup(pair, which, seed, notes, progress)
    pair = tuple(with_span(p, warmup_s=warmup_s) for p in pair)
    for program in pair:
        check(program)
    names = _names(a, b)
    if window_s is not None:
        return _windows(pair, names, which, confidence, seed, window_s, warmup_s, notes, progress)
    if not any(draws(program) for program in pair):
        return _single(pair, names, which, confidence, seed, warmup_s, notes, progress)
    pairs: list[tuple[Run, Run]] = []
    seeds, spread = FIRST_SEEDS, 0.0
    while True:
        pairs += _run(pair, range(seed + len(pairs), seed + seeds), progress)
        values = [(which.value(x), which.value(y)) for x, y in pairs]
        found = _paired(values, confidence)
        if found is None:
            return _unknown(names, which, confidence, values, pairs, warmup_s, notes)
        first, second, difference = found
        difference, spread = widened(difference, spread, confidence)
        half = difference.high - difference.value
        wanted = more_seeds(seeds, FIRST_SEEDS, half, precision * abs(first.value), max_seeds)
        if wanted <= seeds:
            break
        seeds = wanted
    if half > 1.1 * precision * abs(first.value):
        notes.append(f"the half-width is {half / abs(first.value):.2%} of A's value after {seeds} seeds, more than the "
                     f"{precision:.2%} asked for: raise max_seeds or lengthen the runs")
    notes += _unstable(pairs)
    array = np.array([(x.value, y.value) for x, y in values])
    return Comparison(names, which, confidence, first, second, difference, _verdict(difference), "", tuple(notes),
                      f"{seeds} paired seeds, Student's t", warmup_s, _correlation(array), array)


_metric = metric


def _names(a: ir.Program, b: ir.Program) -> tuple[str, str]:
    return (a.name, b.name) if a.name != b.name else (f"A: {a.name}", f"B: {b.name}")


def _run(pair: Sequence[ir.Program], seeds: range, progress: AbstractProgress) -> list[tuple[Run, Run]]:
    """Both programs under each seed, in one call."""
    n = len(seeds)
    runs = run_many([pair[0]] * n + [pair[1]] * n, [*seeds, *seeds], progress=progress)
    return [(usable(x), usable(y)) for x, y in zip(runs[:n], runs[n:])]


def _paired(
    values: Sequence[tuple[Estimate, Estimate]], confidence: float
) -> tuple[Estimate, Estimate, Estimate] | None:
    """A, B and B - A over the seeds; None if a value is not known."""
    array = np.array([(x.value, y.value) for x, y in values])
    if np.isnan(array).any():
        return None
    out = [mean_interval(column, confidence) for column in (array[:, 0], array[:, 1], array[:, 1] - array[:, 0])]
    return out[0], out[1], out[2]


def _verdict(d: Estimate) -> str:
    if math.isnan(d.low):
        return "no_interval"
    return "no_difference" if d.low <= 0 <= d.high else "b_lower" if d.high < 0 else "b_higher"


def _correlation(array: np.ndarray) -> float:
    if len(array) < 2 or np.any(array.std(axis=0) == 0):
        return math.nan
    return float(np.corrcoef(array.T)[0, 1])


def _unstable(pairs: Sequence[tuple[Run, Run]]) -> list[str]:
    notes = []
    for k, name in enumerate("AB"):
        count = sum(pair[k].final.verdict == Verdict.unstable for pair in pairs)
        if count:
            notes.append(f"{name} is unstable in {count} of {len(pairs)} seeds: its value grows with the horizon")
    return notes


def _unknown(names: tuple[str, str], which: Metric, confidence: float, values: Sequence[tuple[Estimate, Estimate]],
             pairs: Sequence[tuple[Run, Run]], warmup_s: float | None, notes: list[str]) -> Comparison:
    """A value that lies among unfinished requests is bounded below; their difference is not known."""
    sides, words = [], []
    for k, name in enumerate("AB"):
        each = [v[k] for v in values]
        missing = sum(math.isnan(e.value) for e in each)
        bounds = [e.lower_bound if math.isnan(e.value) else e.value for e in each]
        known = [x for x in bounds if not math.isnan(x)]
        mean = mean_interval(known, confidence)
        sides.append(mean if not missing else Estimate(value=math.nan, lower_bound=mean.value, seeds=mean.seeds))
        if missing:
            bound = f": above {mean.value:.4g} {which.unit}" if known else " and has no bound"
            words.append(f"{which.name} of {name} is not known in {missing} of {len(each)} seeds{bound}")
    cause = "; ".join(words) + "; lengthen the horizon, or lower the load"
    array = np.array([(x.value, y.value) for x, y in values])
    return Comparison(names, which, confidence, sides[0], sides[1], Estimate(value=math.nan), "unknown", cause,
                      tuple(notes + _unstable(pairs)), f"{len(values)} paired seeds", warmup_s, math.nan, array)


# ---------------------------------------------------------------- replays


def _single(pair: Sequence[ir.Program], names: tuple[str, str], which: Metric, confidence: float, seed: int,
            warmup_s: float | None, notes: list[str], progress: AbstractProgress) -> Comparison:
    """Nothing is drawn: one run of each, and no interval."""
    pairs = _run(pair, range(seed, seed + 1), progress)
    values = [(which.value(pairs[0][0]), which.value(pairs[0][1]))]
    if np.isnan([e.value for e in values[0]]).any():
        return _unknown(names, which, confidence, values, pairs, warmup_s, notes)
    x, y = values[0]
    cause = "no interval: nothing is random in either program"
    if all(replays(program) for program in pair):
        cause += "; window_s (--window) draws windows of the trace's arrivals anew"
    difference = Estimate(value=y.value - x.value)
    array = np.array([(x.value, y.value)])
    return Comparison(names, which, confidence, x, y, difference, "no_interval", cause, tuple(notes), "one run of each",
                      warmup_s, math.nan, array)


def _windows(pair: Sequence[ir.Program], names: tuple[str, str], which: Metric, confidence: float, seed: int,
             window_s: float, warmup_s: float | None, notes: list[str], progress: AbstractProgress) -> Comparison:
    """The same windows of arrivals are drawn for both, with what became of their requests in the one replay."""
    if not which.of_requests:
        raise ValueError(f"{which.name}: windows of a trace have none; use a metric of requests")
    a, b = pair
    at = [prog.arrival.at if isinstance(prog.arrival, ir.Listed) else () for prog in pair]
    if not (replays(a) and replays(b)) or at[0] != at[1]:
        raise ValueError("window_s: both programs are to replay the same recorded times, to pair their windows")
    count = window_count(a, window_s)
    runs = _run(pair, range(seed, seed + 1), progress)[0]
    weights = resamples(count)
    series = [over_windows(run, which, window_of(run, run.program, count), weights) for run in runs]
    if any(not math.isfinite(s[0]) for s in series):
        values = [(which.value(runs[0]), which.value(runs[1]))]
        return _unknown(names, which, confidence, values, [runs], warmup_s, notes)
    sides = [percentile_bootstrap(s, confidence, count) for s in series]
    with np.errstate(invalid="ignore"):
        difference = percentile_bootstrap(series[1] - series[0], confidence, count)
    array = np.array([(series[0][0], series[1][0])])
    return Comparison(names, which, confidence, sides[0], sides[1], difference, _verdict(difference), "", tuple(notes),
                      f"block bootstrap of {count} arrival windows of {window_s:g} s", warmup_s, math.nan, array)


def over_windows(run: Run, which: Metric, part_of: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The metric with every request counted as often as its window was drawn, `(weights,)`.

    Percentiles are the least value with at least the share q of the weight at or below it; unfinished requests are
    above all.
    """
    parts = weights.shape[1]
    if which.kind in ("goodput", "share"):
        good, counted = which.hits(run, 0.0)
        top, bottom = (np.bincount(part_of, weights=rows.astype(float), minlength=parts) for rows in (good, counted))
        return _over(weights @ top, weights @ bottom)
    which.sample(run)  # refuses what the program does not have
    table = run.requests
    values, status = table[f"{which.base}_s"], table["status"]
    finished = status == RequestStatus.finished
    counted = table["measured"] & (status != RequestStatus.rejected) & which.part.of(table)
    counted &= ~(finished & np.isnan(values))
    values, part_of = np.where(np.isnan(values), np.inf, values)[counted], part_of[counted]
    if which.kind == "mean":
        known = np.isfinite(values)
        top = np.bincount(part_of[known], weights=values[known], minlength=parts)
        return _over(weights @ top, weights @ np.bincount(part_of[known], minlength=parts))
    order = np.argsort(values, kind="stable")
    values, part_of = values[order], part_of[order]
    out = np.empty(len(weights))
    for k, row in enumerate(weights):
        upto = np.cumsum(row[part_of])
        out[k] = values[np.searchsorted(upto, which.q * upto[-1])] if len(upto) and upto[-1] else np.nan
    return out


def _over(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return top / bottom


# ---------------------------------------------------------------- warm-up


def _found_warmup(pair: Sequence[ir.Program], which: Metric, seed: int, notes: list[str],
                  progress: AbstractProgress) -> float:
    """The longer of both programs' warm-ups by MSER-5."""
    runs = _run([with_span(p, warmup_s=0.0) for p in pair], range(seed, seed + FIRST_SEEDS), progress)
    base = which.base if which.base in ("ttft", "tpot", "e2e") else "e2e"
    found = [mser5_s([one[k] for one in runs], base) for k in range(2)]
    if any(late for _, late in found):
        notes.append("MSER-5 takes away half of the runs: they are too short for their start-up, lengthen the horizon")
    return max(s for s, _ in found)


def mser5_s(runs: Sequence[Run], base: str = "e2e") -> tuple[float, bool]:
    """Seconds of start-up by MSER-5, and whether the rule took all it may.

    The series is the latency of the n-th request, averaged over the runs (`e2e` where a request has no other).
    """
    tables = [run.requests for run in runs]
    count = min(len(t) for t in tables)
    values = np.array([t[f"{base}_s"][:count] for t in tables])
    if np.isnan(values).all():
        values = np.array([t["e2e_s"][:count] for t in tables])
    known = ~np.isnan(values)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    kept = known.any(axis=0)
    sent = np.array([t["sent_s"][:count] for t in tables]).mean(axis=0)[kept]
    left_out = mser5(mean[kept])
    most = len(mean[kept]) // 5 // 2 * 5
    return (float(sent[left_out]) if left_out else 0.0), left_out >= most > 0


__all__ = ["Comparison", "mser5_s", "paired"]
