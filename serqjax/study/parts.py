"""What a study repeats: seeds of a program that draws, windows of arrivals of one that replays a trace.

Seeds are independent runs. A replay has nothing random, so its arrival windows are the independent parts: a *block
bootstrap* draws windows with replacement, each with all that became of the requests sent in it. A queue that reaches
over the end of a window belongs to the window in which its requests were sent; windows are to be longer than such
queues.

**Source:** H. R. Kuensch, The jackknife and the bootstrap for general stationary observations, Ann. Stat. 17 (1989).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np

from .. import ir
from ..errors import nearest
from ..ir.expr import Param, Sample
from ..ir.structure import walk
from ..overrides import with_params
from ..report.raw import Verdict
from ..report.requests import measured_s
from ..report.verdict import backlog_at
from ..results import Run
from .slo import Slo

#: The name under which the times of a recorded trace are divided: 2 replays it twice as fast.
RATE_SCALE = "rate_scale"
#: Windows of a trace, unless their length is given.
WINDOWS = 60
FEWEST_WINDOWS = 8


def draws(program: ir.Program) -> bool:
    """Whether two seeds of the program can differ: something is drawn."""
    if isinstance(program.arrival, ir.Poisson) or (program.trace is not None and not program.trace.ordered):
        return True
    parts = (program.arrival if not isinstance(program.arrival, ir.Listed) else None, program.params, program.pools,
             program.stages, program.registers, program.scopes, program.states, program.init, program.turn)
    return any(isinstance(node, Sample) and node.dist != "Det" for part in parts for _, node in walk(part))


def at(program: ir.Program, over: str, value: float) -> ir.Program:
    """`program` with the parameter `over` at `value`; `rate_scale` divides the times of a recorded trace.

    **Raises:** `ValueError` for a name that the program does not have.
    """
    if over != RATE_SCALE:
        known = [p.name for p in program.params] + ([RATE_SCALE] if replays(program) else [])
        if over not in known:
            raise ValueError(f"over={over}: {program.name} has no such parameter: {nearest(over, known)}")
        return with_params(program, {over: value})
    arrival = program.arrival
    if not isinstance(arrival, ir.Listed):
        raise ValueError(f"over={RATE_SCALE}: {program.name} replays no recorded times; name its rate parameter")
    listed = msgspec.structs.replace(arrival, at=tuple(t / value for t in arrival.at))
    return msgspec.structs.replace(program, arrival=listed)


def replays(program: ir.Program) -> bool:
    """Whether its sessions arrive at recorded times."""
    return isinstance(program.arrival, ir.Listed) and len(program.arrival.at) > 1


def drift(run: Run) -> float:
    """Growth of the number of unfinished requests over the measured window, requests per second."""
    raw = run.raw
    start, end = backlog_at(raw, np.array([raw.warmup_tick, raw.end_tick]))
    span = measured_s(raw)
    return float(end - start) / span if span else 0.0


def usable(run: Run) -> Run:
    """**Raises:** `VerdictError` for a run that stopped outside the program's meaning, or is stuck."""
    run.raise_for_verdict()
    return run


@dataclasses.dataclass
class Probe:
    """One value of the parameter: what its runs gave, part by part.

    - `top`, `bottom`: the two sums of each target, lists over targets of `(parts,)`.
    - `drift`: requests per second, of each run. `unstable`: runs with that verdict. `unfinished`, `requests`: counts.
    - `cut`: the replay was ended when a target could no longer be met: `top` is what was missed until then.
    """

    at: float
    top: list[np.ndarray]
    bottom: list[np.ndarray]
    drift: np.ndarray
    unstable: int = 0
    unfinished: int = 0
    requests: int = 0
    cut: bool = False

    @property
    def parts(self) -> int:
        return len(self.top[0])

    @property
    def is_unstable(self) -> bool:
        """More than half of the runs say so."""
        return 2 * self.unstable > len(self.drift)


@dataclasses.dataclass
class Repeats:
    """Runs a program at values of a parameter and keeps the sums of the targets.

    - `windows`: 0: the parts are seeds, from `first_seed` on; else so many windows of the trace.
    """

    program: ir.Program
    over: str
    slos: tuple[Slo, ...]
    first_seed: int
    windows: int
    done: dict[float, Probe] = dataclasses.field(default_factory=dict)
    runs: int = 0
    whole: set[float] = dataclasses.field(default_factory=set)

    def to_the_end(self, values: Sequence[float]) -> None:
        """Replays at `values` are not cut; those that were, run again when they are wanted."""
        self.whole |= set(values)
        for value in values:
            if value in self.done and self.done[value].cut:
                del self.done[value]

    def wanted(self, values: Sequence[float], parts: int) -> list[tuple[float, ir.Program, int]]:
        """What is to run for probes at `values` with at least so many seeds, equal ones at every value (windows: once).

        **Returns:** value, program and seed of each run that is not there yet.
        """
        out: list[tuple[float, ir.Program, int]] = []
        for value in values:
            have = self.done[value].parts if value in self.done else 0
            end = 1 if self.windows else parts
            if have < end:
                program = at(self.program, self.over, value)
                out += [(value, program, self.first_seed + k) for k in range(have, end)]
        return out

    def take(self, values: Sequence[float], todo: Sequence[tuple[float, ir.Program, int]], runs: Sequence[Run]
             ) -> list[Probe]:
        """The probes at `values`, with the runs of `todo` added."""
        self.runs += len(runs)
        for value in dict.fromkeys(v for v, _, _ in todo):
            self._add(value, [run for (v, _, _), run in zip(todo, runs) if v == value])
        return [self.done[value] for value in values]

    @property
    def of_rate(self) -> bool:
        """Whether the parameter is what the arrivals come by, so that above an overload there is only more of it."""
        if self.over == RATE_SCALE:
            return True
        return any(isinstance(node, Param) and node.name == self.over for _, node in walk(self.program.arrival))

    def enough(self, value: float, run: Run) -> bool:
        """Whether a replay that was ended by a full table has missed a percentile already, whatever would follow."""
        if not self.windows or value in self.whole:
            return False
        whole = self._recorded(run)
        if whole is None:
            return False
        return any(
            slo.is_deadline and slo.sums(run, None, 1)[0].sum() > slo.allowed * whole.sum() for slo in self.slos
        )

    def _recorded(self, run: Run) -> np.ndarray | None:
        """Recorded requests of each window; None if a session of the run has sent others than the recorded ones."""
        arrival = self.program.arrival
        assert isinstance(arrival, ir.Listed)
        each = np.array([max(1, len(turns)) for turns in arrival.turns] or [1] * len(arrival.at))
        seen = np.bincount(run.requests["session"], minlength=len(each))
        if (seen > each).any():
            return None
        return np.bincount(window_at(self.program, np.arange(len(each)), self.windows), weights=each,
                           minlength=self.windows)

    def _add(self, value: float, runs: list[Run]) -> None:
        cut = bool(self.windows) and any(run.verdict == "capacity" and self.enough(value, run) for run in runs)
        if not cut:
            runs = [usable(run) for run in runs]
        sums = [[self._sums(slo, run) for run in runs] for slo in self.slos]
        new = Probe(
            at=value, top=[np.concatenate([s[0] for s in row]) for row in sums],
            bottom=[np.concatenate([s[1] for s in row]) for row in sums],
            drift=np.array([drift(run) for run in runs]),
            unstable=sum(run.final.verdict == Verdict.unstable for run in runs),
            unfinished=sum(run.request_counts["running"] + run.request_counts["queued"] for run in runs),
            requests=sum(run.request_counts["in"] for run in runs),
            cut=cut,
        )
        if cut:  # all that was still to come counts as met
            whole = self._recorded(runs[0])
            assert whole is not None
            new.bottom = [np.maximum(sums, whole) for sums in new.bottom]
        old = self.done.get(value)
        if old is not None:
            new = Probe(value, [np.concatenate(p) for p in zip(old.top, new.top)],
                        [np.concatenate(p) for p in zip(old.bottom, new.bottom)],
                        np.concatenate([old.drift, new.drift]), old.unstable + new.unstable,
                        old.unfinished + new.unfinished, old.requests + new.requests)
        self.done[value] = new

    def _sums(self, slo: Slo, run: Run) -> tuple[np.ndarray, np.ndarray]:
        if not self.windows:
            return slo.sums(run, None, 1)
        if not slo.metric.of_requests:
            raise ValueError(f"slo `{slo.text}`: windows of a trace have no {slo.metric.name}; use one of its requests")
        return slo.sums(run, window_of(run, self.program, self.windows), self.windows)


def window_of(run: Run, program: ir.Program, windows: int) -> np.ndarray:
    """The arrival window of each request, `(requests,)`: that of its session's time in the trace, unscaled."""
    return window_at(program, run.requests["session"], windows)


def window_at(program: ir.Program, sessions: np.ndarray, windows: int) -> np.ndarray:
    """The window in which each of `sessions` of the trace comes."""
    arrival = program.arrival
    assert isinstance(arrival, ir.Listed)
    when = np.asarray(arrival.at)[sessions]
    first, last = arrival.at[0], arrival.at[-1]
    place = np.floor((when - first) / (last - first) * windows).astype(np.int64)
    return np.clip(place, 0, windows - 1)


def window_count(program: ir.Program, window_s: float | None) -> int:
    """How many windows of `window_s` seconds (None: `WINDOWS` of them) a recorded trace has.

    **Raises:** `ValueError` if that leaves too few to draw from.
    """
    if not replays(program):
        raise ValueError(f"window_s: {program.name} replays no recorded times, its seeds are what is repeated")
    if window_s is None:
        return WINDOWS
    arrival = program.arrival
    assert isinstance(arrival, ir.Listed)
    span = arrival.at[-1] - arrival.at[0]
    if not 0 < window_s < np.inf or span / window_s < FEWEST_WINDOWS:
        few = f"the trace of {span:.6g} s is to have at least {FEWEST_WINDOWS} windows"
        raise ValueError(f"window_s={window_s:g}: {few}")
    return int(np.ceil(span / window_s - 1e-9))


__all__ = ["Probe", "Repeats", "at", "draws", "drift", "replays", "window_count", "window_of"]
