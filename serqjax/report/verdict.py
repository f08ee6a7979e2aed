"""The verdict of a run as the report gives it: `unstable` is decided here, from the backlog.

**The rule.** Only a run that reached its horizon can be unstable. Its measured window
[warmup, end] is cut into 20 equal parts, and the change of the number of unfinished requests over
each part is taken. The run is unstable if these 20 changes have a mean above 0 (one-sided t test at
level 0.001), if the second half of the window grew too, and if the backlog grew by at least 10
requests in all. A stable system returns, so that its changes cancel and the test is conservative
there; a backlog that drifts by d requests a second with variance v a second is found once the
window is longer than about 13 v / d**2 seconds (M/M/1 at rho 1.2: some 700 services).

A run whose measured window is shorter than its own start-up looks the same: the cause says so.

**Source:** `design.md`, section 2.7.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..ir.program import Program
from .raw import RawRun, RequestStatus, Verdict
from .units import seconds

WINDOWS = 20
LEVEL = 0.001
LEAST_GROWTH = 10


@dataclasses.dataclass(frozen=True)
class FinalVerdict:
    """How a run ended, and why in one sentence ("" where there is nothing to say)."""

    verdict: Verdict
    cause: str

    @property
    def name(self) -> str:
        return self.verdict.name

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "cause": self.cause}


def final_verdict(program: Program, raw: RawRun) -> FinalVerdict:
    """The run's own verdict, or `unstable` if it reached the horizon with a growing backlog."""
    if raw.verdict != Verdict.horizon:
        return FinalVerdict(Verdict(raw.verdict), raw.cause)
    backlog = backlog_at(raw, _edges(raw))
    if not grows(backlog):
        return FinalVerdict(Verdict.horizon, raw.cause)
    start, end = int(backlog[0]), int(backlog[-1])
    span = seconds(raw.end_tick - raw.warmup_tick, raw.tick_s)
    cause = (
        f"the unfinished requests grew from {start} to {end} over the measured {span:.6g} s: "
        "more arrives than the program serves (or the warm-up is shorter than its start-up); "
        "lower the arrival rate, add capacity, or lengthen warm-up and horizon"
    )
    return FinalVerdict(Verdict.unstable, cause)


def _edges(raw: RawRun) -> np.ndarray:
    return np.linspace(raw.warmup_tick, raw.end_tick, WINDOWS + 1)


def backlog_at(raw: RawRun, ticks: np.ndarray) -> np.ndarray:
    """Requests sent and not answered at each of `ticks` (refused ones never count), int64."""
    counted = raw.request_status != RequestStatus.rejected
    sent = np.sort(raw.request_sent[counted])
    ended = np.sort(raw.request_responded[counted & (raw.request_responded >= 0)])
    return np.searchsorted(sent, ticks, side="right") - np.searchsorted(ended, ticks, side="right")


def grows(backlog: np.ndarray) -> bool:
    """The rule above, on the backlog at the 21 edges of the windows."""
    changes = np.diff(backlog).astype(np.float64)
    growth = backlog[-1] - backlog[0]
    if growth < LEAST_GROWTH or backlog[-1] <= backlog[len(backlog) // 2]:
        return False
    spread = float(changes.std(ddof=1))
    if spread == 0.0:
        return True
    from scipy import stats

    t = float(changes.mean()) / (spread / len(changes) ** 0.5)
    return t > float(stats.t.ppf(1.0 - LEVEL, len(changes) - 1))
