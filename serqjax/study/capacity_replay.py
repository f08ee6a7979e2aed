"""How much faster a recorded trace may be replayed: a search whose parts are windows of arrivals.

A replay draws nothing, so every value is simulated once. Values are added where they are needed: between the last that
meets the targets and the first that misses one, then around both ends of the interval. The interval is a block
bootstrap of arrival windows: windows are drawn with replacement, the same ones at every value, each with what became of
the requests sent in it; the crossings of the drawn curves are interpolated between the values that were simulated.

**Source:** H. R. Kuensch, Ann. Stat. 17 (1989); `docs/capacity.md`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ..report.censoring import Estimate
from .capacity import Capacity, Search, Steps
from .parts import Probe
from .precision import percentile_bootstrap, resamples

#: Values inside a bracket at a time, the closeness of the last two, and of those that hold an end of the interval.
INSIDE = 4
CLOSE, END_CLOSE = 1.015, 1.05
#: Times that values are added for the interval's ends.
ROUNDS = 6


@dataclasses.dataclass
class ReplaySearch(Search):
    """A search over the one replay of each value."""

    def weights(self, parts: int) -> np.ndarray:
        return resamples(parts)

    def interval(self, values: np.ndarray, parts: int) -> Estimate:
        return percentile_bootstrap(values, self.confidence, parts)

    def repeated(self) -> str:
        return f"block bootstrap of {self.repeats.windows} arrival windows"

    def refine(self, a: Probe, b: Probe) -> Steps:
        """Narrow the bracket to the first crossing, then simulate what the interval needs."""
        while b.at / a.at > CLOSE:
            inner = np.geomspace(a.at, b.at, INSIDE + 2)[1:-1].tolist()
            row = [a, *(yield inner, 1), b]
            first = next(k for k in range(1, len(row)) if k == len(row) - 1 or self.worst(row[k])[0] > 0)
            a, b = row[first - 1], row[first]
        for _ in range(ROUNDS):
            root, binding, curve = self.crossing()
            missing = self.lacking(root, curve)
            if not missing:
                break
            self.repeats.to_the_end(missing)
            yield missing, 1
        return self.found(root, binding, curve)

    # ------------------------------------------------------------ the crossing

    def crossing(self) -> tuple[Estimate, str, list[Probe]]:
        """Where the first target is missed first, with its interval; the probes that the curves go through."""
        curve = sorted(self.repeats.done.values(), key=lambda p: p.at)
        x = np.array([p.at for p in curve])
        each = [first_crossings(x, self.excess(curve, k)) for k in range(len(self.repeats.slos))]
        roots = np.min(each, axis=0)
        binding = self.repeats.slos[int(np.argmin([roots_of[0] for roots_of in each]))].text
        low, high = np.quantile(roots[1:], [0.5 - self.confidence / 2, 0.5 + self.confidence / 2], method="nearest")
        return Estimate(value=float(roots[0]), low=float(low), high=float(high), seeds=curve[0].parts), binding, curve

    def lacking(self, root: Estimate, curve: Sequence[Probe]) -> list[float]:
        """Values to be simulated: cut ones beside the crossing or an end of the interval, and some between far ones."""
        wanted: list[float] = []
        for end, close in ((root.value, CLOSE), (root.low, END_CLOSE), (root.high, END_CLOSE)):
            if not curve[0].at < end <= curve[-1].at:
                continue
            k = next(k for k in range(1, len(curve)) if end <= curve[k].at)
            a, b = curve[k - 1], curve[k]
            if b.at / a.at > close:
                wanted += np.geomspace(a.at, b.at, 4)[1:-1].tolist()
            wanted += [p.at for p in (a, b) if p.cut and b.at / a.at <= close]
        return list(dict.fromkeys(wanted))

    def found(self, root: Estimate, binding: str, curve: Sequence[Probe]) -> Capacity:
        """The answer, with what the interval could not say."""
        low, high = root.low, root.high
        if low <= curve[0].at:
            self.notes.append(f"some resamples miss at the lowest value, {curve[0].at:.6g}, already: the interval "
                              "goes below it; widen the range down")
        if not math.isfinite(high) or high >= curve[-1].at:
            high = math.inf
            self.notes.append(f"some resamples meet the targets at {curve[-1].at:.6g}, the largest value that was "
                              "tried: the interval has no upper end; widen the range")
        met_above = [p.at for p in curve if p.at > root.value and not p.cut and self.worst(p)[0] <= 0]
        if met_above:
            self.notes.append(f"the targets are met again at {met_above[-1]:.6g}: single requests decide here")
        half = (high - low) / 2
        if half > 1.1 * self.precision * root.value:
            self.notes.append(f"the half-width is {half / root.value:.2%} of the value: that is what windows of the "
                              "trace give")
        return self.end("found", "", root.value, (low, high), binding)


def first_crossings(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where the line through the points first comes above 0, for each row of `y` `(weights, values)`.

    `x[0]` where it begins above, infinite where it never does.
    """
    above = y > 0
    k = np.argmax(above, axis=1)
    rows = np.arange(len(y))
    before = np.maximum(k - 1, 0)
    a, b = y[rows, before], y[rows, k]
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = x[before] + (x[k] - x[before]) * (-a / (b - a))
    return np.where(~above.any(axis=1), np.inf, np.where(k == 0, x[0], inside))


__all__ = ["ReplaySearch", "first_crossings"]
