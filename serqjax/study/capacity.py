"""How much a deployment can take: the largest value of a parameter at which all targets are met.

The search goes up the range in few steps, refines the first crossing, and then asks three values close together with as
many seeds as the precision needs. The same seeds run at every value (common random numbers), so that the curves of one
seed at neighbouring values differ by the value and not by luck. The answer is where the line through the log of the
miss share crosses what is allowed; its interval comes from leaving out one seed after the other. Replays of a recorded
trace are searched in `capacity_replay.py`.

**Source:** `docs/capacity.md`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, final

import numpy as np

from .. import ir
from ..api import check, run_all
from ..extras import needs
from ..overrides import with_span
from ..progress import AbstractProgress, NoProgress
from ..report.censoring import Estimate
from ..report.raw import RawRun
from ..report.units import dumps, plain
from ..results import Run
from .parts import RATE_SCALE, Probe, Repeats, at, draws, replays, window_count
from .precision import (
    FIRST_SEEDS,
    check_confidence,
    jackknife,
    leave_one_out,
    mean_interval,
    more_seeds,
    widened,
)
from .slo import Slo, slo

#: Values of the first look over the range, and how many of them run together on the way up.
POINTS, TOGETHER = 12, 2
COARSE_SEEDS, INNER_SEEDS = 8, 16
#: The bracket is refined until its ends are so close; the last three values lie so far apart.
CLOSE, SPACING = 1.10, 0.03
INSIDE = 4


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Capacity:
    """The answer of `serqjax.capacity`.

    - `value`: the largest value that meets the targets; NaN where there is none. `interval`: at `confidence`.
    - `verdict`: `found`; `unstable` (the backlog grows even at the lowest value: `cause` gives the drift); `missed`
      (the lowest value misses a target); `met` (the highest value still meets all: the capacity is above it);
      `not_monotone` (a higher value meets what a lower one misses; `table` shows where).
    - `notes`: what else is to be known. `binding`: the target that is missed first.
    - `rows`: one per probed value, ascending.
    """

    program: ir.Program
    over: str
    slos: tuple[Slo, ...]
    confidence: float
    value: float
    interval: tuple[float, float]
    verdict: str
    cause: str
    binding: str
    notes: tuple[str, ...]
    parts: str
    runs: int
    rows: tuple[dict[str, Any], ...]

    @property
    def table(self) -> Any:
        """The probed values as a polars table: per target its ratio to what is allowed (`excess`; met below 0)."""
        import polars

        return polars.DataFrame(list(self.rows), infer_schema_length=None, nan_to_null=True)

    def to_polars(self) -> Any:
        return self.table

    def to_document(self) -> dict[str, Any]:
        """What `serqjax capacity --json` prints."""
        return plain({
            "program": self.program.name, "over": self.over, "slo": [s.text for s in self.slos],
            "confidence": self.confidence, "value": self.value, "interval": list(self.interval),
            "verdict": self.verdict, "cause": self.cause, "binding": self.binding, "notes": list(self.notes),
            "parts": self.parts, "runs": self.runs, "rows": list(self.rows),
        })  # fmt: skip

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The curve of each target with the answer: a matplotlib figure, also written to `path` if given."""
        with needs("plot", "a picture"):
            from ..plot.frame import write
            from ..plot.studies import capacity_figure

            fig = capacity_figure(self)
        if path is not None:
            write(fig, os.fspath(path))
        return fig

    def to_html(self) -> str:
        """A self-contained page."""
        from .page import capacity_page

        return capacity_page([self], f"Capacity: {self.program.name}")

    def to_json(self) -> str:
        return dumps(self.to_document())

    def __str__(self) -> str:
        from .text import capacity_text

        return capacity_text(self)

    def __repr__(self) -> str:
        return f"Capacity({self.over}={self.value:.6g}, {self.interval}, {self.verdict!r})"

    def _repr_html_(self) -> str:
        from .text import as_html

        return as_html(str(self))


def find(
    programs: Sequence[ir.Program], *, over: str, between: tuple[float, float], slo: Sequence[str] | str,
    confidence: float, precision: float, seed: int, max_seeds: int, horizon_s: float | None, warmup_s: float | None,
    window_s: float | None, progress: AbstractProgress | None,
) -> list[Capacity]:
    """See `serqjax.capacity`; the searches of all programs go on side by side."""
    from .capacity_replay import ReplaySearch

    low, high = _range(over, between)
    slos = _targets(slo)
    check_confidence(confidence)
    if not 0 < precision < 1:
        raise ValueError(f"precision={precision:g}: a share above 0 is needed, for example 0.02 for 2 %")
    if max_seeds < FIRST_SEEDS:
        raise ValueError(f"max_seeds={max_seeds}: at least {FIRST_SEEDS} are needed for an interval")
    searches = []
    for prog in programs:
        prog = with_span(prog, horizon_s=horizon_s, warmup_s=warmup_s)
        check(at(prog, over, low))
        recorded = replays(prog)
        if not recorded and not draws(prog):
            raise ValueError(f"{prog.name} draws nothing and replays no recorded times: there is nothing to repeat")
        windows = window_count(prog, window_s) if recorded or window_s is not None else 0
        repeats = Repeats(prog, over, slos, seed, windows)
        kind = ReplaySearch if windows else Search
        searches.append(kind(repeats, low, high, confidence, precision, max_seeds))
    return side_by_side(searches, progress or NoProgress())


#: See `engine.host.Enough`.
Enough = Callable[[int, RawRun], bool]
#: What a search asks for: values, and with how many seeds at least; it gets the probes.
Asked = tuple[list[float], int]
Steps = Generator[Asked, list[Probe], Any]


def side_by_side(searches: Sequence[Search], progress: AbstractProgress) -> list[Capacity]:
    """Run searches together: what they ask for at a time is one batch of runs."""
    from ..engine.host import teaches_no_slots

    steps = [search.answer() for search in searches]
    answers: list[Capacity | None] = [None] * len(steps)
    asked = {k: next(step) for k, step in enumerate(steps)}
    while asked:
        todo = {k: searches[k].repeats.wanted(*request) for k, request in asked.items()}
        flat = [row for rows in todo.values() for row in rows]
        # values that turn out far too high need large tables, which are not for the runs that follow
        with teaches_no_slots():
            runs = run_all([program for _, program, _ in flat], [s for _, _, s in flat], progress=progress,
                           enough=enough_of(searches, todo))
        place = 0
        for k, rows in todo.items():
            probes = searches[k].repeats.take(asked[k][0], rows, runs[place : place + len(rows)])
            place += len(rows)
            try:
                asked[k] = steps[k].send(probes)
            except StopIteration as end:
                answers[k] = end.value
                del asked[k]
    return [answer for answer in answers if answer is not None]


def enough_of(searches: Sequence[Search], todo: dict[int, list[tuple[float, ir.Program, int]]]) -> Enough:
    """Whether a run of the batch says enough although a full table has ended it, by its place in the batch."""
    flat = [(searches[k].repeats, value, program) for k, rows in todo.items() for value, program, _ in rows]

    def enough(place: int, raw: RawRun) -> bool:
        repeats, value, program = flat[place]
        return repeats.enough(value, Run(program, raw))

    return enough


def _targets(texts: Sequence[str] | str) -> tuple[Slo, ...]:
    words = [texts] if isinstance(texts, str) else list(texts)
    if not words:
        raise ValueError("slo: give at least one target, for example ttft.p99<500ms")
    return tuple(slo(word) for word in words)


def _range(over: str, between: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(x) for x in between)
    if not (0 < low < high < math.inf):
        raise ValueError(f"{over}={low:g}:{high:g}: two numbers above 0 are needed, the smaller one first")
    return low, high


@dataclasses.dataclass
class Search:
    """One search; `answer` does the steps in their order."""

    repeats: Repeats
    low: float
    high: float
    confidence: float
    precision: float
    max_seeds: int
    notes: list[str] = dataclasses.field(default_factory=list)

    # ------------------------------------------------------------ what a probe says

    def weights(self, parts: int) -> np.ndarray:
        return leave_one_out(parts)

    def interval(self, values: np.ndarray, parts: int) -> Estimate:
        return jackknife(values, self.confidence)

    def excess(self, probes: Sequence[Probe], index: int) -> np.ndarray:
        """`(weights, probes)` of target `index`; the probes have equal parts."""
        parts = min(p.parts for p in probes)
        top = np.array([p.top[index][:parts] for p in probes])
        bottom = np.array([p.bottom[index][:parts] for p in probes])
        return self.repeats.slos[index].excess(top, bottom, self.weights(parts))

    def single(self, probe: Probe, index: int) -> Estimate:
        """Excess of target `index` at one value: the ratio of all parts together, and its interval.

        Its value is not freed of bias: where one seed of a few has nearly all misses, the correction of a logarithm
        is larger than the logarithm.
        """
        values = self.excess([probe], index)[:, 0]
        return dataclasses.replace(self.interval(values, probe.parts), value=float(values[0]))

    def worst(self, probe: Probe) -> tuple[float, float, float]:
        """Excess of the target that is missed most, with its interval; infinite for an unstable probe."""
        if probe.is_unstable:
            return math.inf, math.inf, math.inf
        found = [self.single(probe, k) for k in range(len(self.repeats.slos))]
        e = max(found, key=lambda e: -math.inf if math.isnan(e.value) else e.value)
        if math.isnan(e.value):
            raise ValueError(f"{self.repeats.over}={probe.at:g}: no request was measured: give a longer horizon")
        return e.value, e.low, e.high

    # ------------------------------------------------------------ the steps

    def answer(self) -> Steps:
        probes = yield from self.look()
        states = [self.worst(p) for p in probes]
        if probes[0].is_unstable:
            d = mean_interval(probes[0].drift, self.confidence)
            return self.end("unstable", f"even at {self.repeats.over}={self.low:g} the number of unfinished requests "
                            f"grows by {d.value:.4g} [{d.low:.4g}, {d.high:.4g}] requests/s")
        misses = [s[0] > 0 for s in states]
        # a difference that chance explains is no second crossing
        surely_missed = [k for k, s in enumerate(states) if s[1] > 0]
        surely_met = [k for k, s in enumerate(states) if s[2] < 0]
        if surely_missed and surely_met and max(surely_met) > min(surely_missed):
            a, b = probes[min(surely_missed)].at, probes[max(surely_met)].at
            return self.end("not_monotone", f"the targets are missed at {self.repeats.over}={a:.6g} and met at the "
                            f"higher {b:.6g}: there is no single largest value; the table shows all that were tried")
        if not any(misses):
            return self.end("met", f"every target is met at the largest value, {self.high:g}: "
                            "the capacity is above it; widen the range")
        first_miss = misses.index(True)
        if first_miss == 0:
            return self.end("missed", f"a target is missed at the lowest value, {self.low:g}: widen the range down")
        last_met = max(k for k, m in enumerate(misses) if not m)
        a, b = probes[first_miss - 1], probes[max(last_met + 1, first_miss)]
        return (yield from self.refine(a, b))

    def look(self) -> Steps:
        """Up the range. Of a rate, until a value is unstable or most requests miss: above it all do, and cost most."""
        values = np.geomspace(self.low, self.high, POINTS).tolist()
        values[0], values[-1] = self.low, self.high
        probes: list[Probe] = []
        for k in range(0, POINTS, TOGETHER):
            probes += yield values[k : k + TOGETHER], COARSE_SEEDS
            if self.repeats.of_rate and any(self.hopeless(p) for p in probes[-TOGETHER:]):
                break
        return probes

    def hopeless(self, probe: Probe) -> bool:
        shares = [k for k, target in enumerate(self.repeats.slos) if target.of_shares]
        return probe.is_unstable or probe.cut or any(2 * probe.top[k].sum() > probe.bottom[k].sum() for k in shares)

    def refine(self, a: Probe, b: Probe) -> Steps:
        """Narrow the bracket by signs."""
        while b.at / a.at > CLOSE:
            inner = np.geomspace(a.at, b.at, INSIDE + 2)[1:-1].tolist()
            row = [a, *(yield inner, INNER_SEEDS), b]
            misses = [self.worst(p)[0] > 0 for p in row]
            first = max(misses.index(True) if any(misses) else len(row) - 1, 1)
            last = max([k for k, m in enumerate(misses) if not m], default=0)
            if last + 1 < len(row) and last >= first:  # between both, chance decides: keep it all, once
                a, b = row[first - 1], row[last + 1]
                break
            a, b = row[first - 1], row[first]
        if b.is_unstable and all(self.excess([b], k)[0, 0] < 0 for k in range(len(self.repeats.slos))):
            return self.at_stability(a, b)
        return (yield from self.settle(a, b))

    def at_stability(self, a: Probe, b: Probe) -> Capacity:
        """The targets hold up to where the backlog begins to grow."""
        d = mean_interval(b.drift, self.confidence)
        cause = (f"the targets are met as long as the program is stable: at {b.at:.6g} the unfinished requests grow by "
                 f"{d.value:.4g} requests/s; the interval is the last stable and the first unstable value tried")
        return self.end("found", cause, a.at, (a.at, b.at), "stability")

    def settle(self, a: Probe, b: Probe) -> Steps:
        """Three values around the crossing, with as many seeds as the precision needs."""
        centre = math.sqrt(a.at * b.at)
        seeds, spread = FIRST_SEEDS, 0.0
        for _ in range(5):
            values = [centre * (1 - SPACING), centre, centre * (1 + SPACING)]
            probes = yield values, seeds
            root, binding = self.root(probes)
            if not math.isfinite(root.value) or abs(root.value / centre - 1) <= 1.5 * SPACING:
                break
            centre = min(max(root.value, a.at * 0.9), b.at * 1.1)
        while True:
            root, spread = widened(root, spread, self.confidence)
            half = (root.high - root.low) / 2
            wanted = more_seeds(seeds, FIRST_SEEDS, half, self.precision * root.value, self.max_seeds)
            if wanted <= seeds:
                return self.conclude(root, binding, probes)
            seeds = wanted
            probes = yield values, seeds
            root, binding = self.root(probes)

    def root(self, probes: Sequence[Probe]) -> tuple[Estimate, str]:
        """Where the first target is missed: the least of the targets' crossings, and of the ends of their intervals."""
        found: list[tuple[Estimate, str]] = []
        x = np.array([p.at for p in probes])
        for k, target in enumerate(self.repeats.slos):
            y = self.excess(probes, k)
            # a target that is far from its limit here has no crossing to speak of
            if np.all(y[0] < 0) and y[0].max() < -2.0:
                continue
            e = self.interval(crossings(x, y), min(p.parts for p in probes))
            bent = bend(x, y[0])
            found.append((dataclasses.replace(e, low=e.low - bent, high=e.high + bent), target.text))
        known = [(e, name) for e, name in found if math.isfinite(e.value)]
        if not known:
            return Estimate(value=math.nan), ""
        first, binding = min(known, key=lambda pair: pair[0].value)
        low, high = min(e.low for e, _ in known), min(e.high for e, _ in known)
        return dataclasses.replace(first, low=low, high=high), binding

    def conclude(self, root: Estimate, binding: str, probes: Sequence[Probe]) -> Capacity:
        if not math.isfinite(root.value) or not math.isfinite(root.low):
            self.notes.append("the targets do not change with the value near their limit: no line can be laid through")
            a, b = probes[0].at, probes[-1].at
            return self.end("found", "the answer lies between two values that were tried", math.sqrt(a * b), (a, b))
        half = (root.high - root.low) / 2
        if half > 1.1 * self.precision * root.value:
            self.notes.append(f"the half-width is {half / root.value:.2%} of the value: that is what "
                              f"max_seeds={self.max_seeds} seeds give")
        grows = mean_interval(probes[1].drift, 0.999)
        if grows.low > 0:
            self.notes.append(
                f"at {probes[1].at:.6g} the backlog still grows by {grows.value:.3g} requests/s on the mean: "
                "the runs are short for this load and the value is too high; lengthen warm-up and horizon"
            )
        return self.end("found", "", root.value, (root.low, root.high), binding)

    # ------------------------------------------------------------ the report

    def end(self, verdict: str, cause: str, value: float = math.nan,
            interval: tuple[float, float] = (math.nan, math.nan), binding: str = "") -> Capacity:
        if verdict == "met":
            interval = (self.high, math.inf)
        repeats = self.repeats
        rows = tuple(self.row(p) for _, p in sorted(repeats.done.items()))
        return Capacity(repeats.program, repeats.over, repeats.slos, self.confidence, value, interval, verdict, cause,
                        binding, tuple(self.notes), self.repeated(), repeats.runs, rows)

    def repeated(self) -> str:
        """What the interval is made of."""
        most = max(p.parts for p in self.repeats.done.values())
        return f"{most} seeds at the answer, Student's t, jackknife"

    def row(self, probe: Probe) -> dict[str, Any]:
        runs = len(probe.drift)
        out: dict[str, Any] = {
            self.repeats.over: probe.at, "seeds": runs, "requests": probe.requests,
            "unfinished": probe.unfinished, "unstable": probe.unstable, "drift_per_s": float(probe.drift.mean()),
            "cut": probe.cut,
        }
        for k, target in enumerate(self.repeats.slos):
            e = self.single(probe, k)
            top, bottom = probe.top[k].sum(), probe.bottom[k].sum()
            ratio = top / bottom if bottom else math.nan
            shown = ratio if target.metric.kind != "goodput" else 1.0 - ratio
            name = target.text if target.metric.kind != "quantile" else f"share above: {target.text}"
            if target.of_shares:
                out[f"misses {target.text}"] = int(top)
            out |= {name: shown, f"excess {target.text}": e.value, f"excess low {target.text}": e.low,
                    f"excess high {target.text}": e.high}
        return out




def crossings(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where the least-squares line through `y` over `x` is 0, for each row of `y` `(weights, values)`; NaN where it
    does not rise."""
    mean = x.mean()
    centred = x - mean
    slope = y @ centred / float(centred @ centred)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(slope > 0, mean - y.mean(axis=1) / slope, np.nan)


def bend(x: np.ndarray, y: np.ndarray) -> float:
    """How far the points lie from the line through them at the most, along `x`, half of it: the curve is no line."""
    slope, start = np.polyfit(x, y, 1)
    return float(np.abs(y - start - slope * x).max() / slope) / 2 if slope > 0 else math.nan


__all__ = ["RATE_SCALE", "Capacity", "find"]
