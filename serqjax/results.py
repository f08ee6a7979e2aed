"""What a run gives back: one seed (`Run`) or many (`Runs`), everything computed from the raw runs when asked for.

Both have the same faces: `summary()`, `requests`, `request_counts`, `samples`, `plot`, `to_document()`,
`raise_for_verdict()`; text on a terminal and a table in a notebook.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from .extras import needs
from .ir.program import Program

if TYPE_CHECKING:
    import polars

    from .report.actions import ActionTable
    from .report.raw import RawRun
    from .report.requests import RequestTable
    from .report.summary import Summary
    from .report.verdict import FinalVerdict
    from .traces import TraceFile

# The report is imported where it is made: reading and checking a program needs no arrays, and the
# command line is quick to say what it can do.

#: Verdicts that fail a run; the first two are accepted where a study expects them.
STUCK = ("deadlock", "livelock")
FAILED = (*STUCK, "capacity", "error")


class VerdictError(RuntimeError):
    """A run failed. `result` is what there is of it, with its report and samples so far."""

    def __init__(self, message: str, result: Run | Runs):
        super().__init__(message)
        self.result = result


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in `run_many`. `runs`: those that had finished, by their places among the programs."""

    def __init__(self, message: str, runs: dict[int, Run]):
        super().__init__(message)
        self.runs = runs


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One seed of a program.

    - `program`: what was run, with its own horizon, warm-up and parameters. `raw`: what it left behind.

    **Source:** `docs/metrics.md` holds the definitions of everything reported.
    """

    program: Program
    raw: RawRun

    unfinished_seeds = ()  # of a single run: it is there, or the interrupt was raised

    @property
    def seed(self) -> int:
        return self.raw.seed

    @cached_property
    def final(self) -> FinalVerdict:
        """The verdict with its cause."""
        from .report.verdict import final_verdict

        return final_verdict(self.program, self.raw)

    @property
    def verdict(self) -> str:
        """`drained`, `horizon`, `deadlock`, `livelock`, `unstable`, `capacity` or `error`."""
        return self.final.name

    @property
    def cause(self) -> str:
        """Why, in one sentence ("" where there is nothing to say)."""
        return self.final.cause

    @cached_property
    def report(self) -> dict[str, Any]:
        """The reference report: its field names and definitions."""
        from .report.reference import reference_report

        return reference_report(self.program, self.raw)

    @cached_property
    def requests(self) -> RequestTable:
        """One row per request (`.to_polars()`); seconds of simulated time."""
        from .report.requests import requests_table

        return requests_table(self.raw, self.program)

    @cached_property
    def request_counts(self) -> dict[str, int]:
        """`in, finished, running, queued, rejected`, and `abandoned` where clients give up: they add up to `in`."""
        from .report.requests import request_counts

        return request_counts(self.raw, self.program)

    @cached_property
    def actions(self) -> ActionTable:
        """Everything that was done, in order: `tick, time_s, kind, session, place, amount` (`.to_polars()`).

        **Raises:** `ValueError` unless the run was made with `trace=True`.
        """
        from .report.actions import action_table

        return action_table(self.program, self.raw)

    @property
    def samples(self) -> polars.DataFrame:
        """Columns `run, observation, time_s, session, turn, value`, after warm-up."""
        return _samples(self.program, [self.raw])

    def write_samples(self, path: str | os.PathLike[str]) -> None:
        """Write `samples` to a Parquet file."""
        _samples(self.program, [self.raw], path)

    def to_trace(self) -> TraceFile:
        """The requests of this run as a trace, for `workloads.from_trace` or `traces.write`: replayed on the same
        deployment it gives the same counts and times.

        **Raises:** `ValueError` unless all requests were served and measured from 0, by one engine, without deadlines.
        """
        from .report.as_trace import trace_of

        return trace_of(self.program, self.raw)

    def summary(self) -> Summary:
        """The tables of `Runs.summary`, of this seed alone (no intervals over seeds)."""
        from .report.summary import summarize

        return summarize(self.program, [self.raw])

    def failures(self, *, allow_stuck: bool = False) -> list[str]:
        """One sentence if the verdict fails the run, else nothing. `allow_stuck` accepts deadlock and livelock."""
        return _failures([self], allow_stuck)

    def raise_for_verdict(self, *, allow_stuck: bool = False) -> Run:
        """This run, unless its verdict fails it. **Raises:** `VerdictError` with the cause."""
        return _raise(self, allow_stuck)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The latency distributions: a matplotlib figure, also written to `path` (.png, .pdf or .svg) if given."""
        return _plot(self, path)

    def to_document(self) -> dict[str, Any]:
        """What `serqjax run --json` prints: `report`, `verdict`, `requests`, `latency`."""
        from .report import document

        return document.run_document(self.program, self.raw)

    def to_json(self) -> str:
        """`to_document()` as text: equal runs give equal bytes."""
        from .report import document

        return document.dumps(self.to_document())

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return f"Run({self.program.name!r}, seed={self.seed}, verdict={self.verdict!r})"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Runs:
    """Many seeds of a program, in the order of the seeds.

    - `raws`: what each finished seed left behind. `unfinished_seeds`: those an interrupt (Ctrl-C) left out.
    """

    program: Program
    raws: tuple[RawRun, ...]
    unfinished_seeds: tuple[int, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(raw.seed for raw in self.raws)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Each seed by itself."""
        return tuple(Run(self.program, raw) for raw in self.raws)

    def __len__(self) -> int:
        return len(self.raws)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Of each seed."""
        return tuple(run.verdict for run in self.runs)

    @cached_property
    def requests(self) -> RequestTable:
        """The requests of all seeds; column `run` is the place in `runs`."""
        from .report.requests import requests_table

        return requests_table(self.raws, self.program)

    @cached_property
    def request_counts(self) -> dict[str, int]:
        """`in, finished, running, queued, rejected`, and `abandoned` where clients give up, of all seeds together."""
        from .report.requests import request_counts

        return request_counts(self.raws, self.program)

    @property
    def samples(self) -> polars.DataFrame:
        """Columns `run, observation, time_s, session, turn, value`, after warm-up."""
        return _samples(self.program, self.raws)

    def write_samples(self, path: str | os.PathLike[str]) -> None:
        """Write `samples` to a Parquet file."""
        _samples(self.program, self.raws, path)

    @cached_property
    def _summary(self) -> Summary:
        from .report.summary import summarize

        return summarize(self.program, self.raws)

    def summary(self) -> Summary:
        """Means and quantiles with 95 % intervals, verdicts, counts; printable, `.to_polars()`, `.per_seed()`."""
        return self._summary

    def failures(self, *, allow_stuck: bool = False) -> list[str]:
        """One sentence per seed whose verdict fails it. `allow_stuck` accepts deadlock and livelock."""
        return _failures(self.runs, allow_stuck)

    def raise_for_verdict(self, *, allow_stuck: bool = False) -> Runs:
        """These runs, unless the verdict of one fails it. **Raises:** `VerdictError` with the first cause."""
        return _raise(self, allow_stuck)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The latency distributions: a matplotlib figure, also written to `path` (.png, .pdf or .svg) if given."""
        return _plot(self, path)

    def to_document(self) -> dict[str, Any]:
        """What `serqjax run --seeds A:B --json` prints: `summary`, `runs`, `requests`."""
        from .report import document

        whole = document.batch_document(self.program, self.raws, self._summary)
        return whole | ({"unfinished_seeds": list(self.unfinished_seeds)} if self.unfinished_seeds else {})

    def to_json(self) -> str:
        """`to_document()` as text: equal runs give equal bytes."""
        from .report import document

        return document.dumps(self.to_document())

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return f"Runs({self.program.name!r}, {len(self.raws)} seeds)"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def _failures(runs: tuple[Run, ...] | list[Run], allow_stuck: bool) -> list[str]:
    accepted = STUCK if allow_stuck else ()
    bad = [run for run in runs if run.verdict in FAILED and run.verdict not in accepted]
    return [f"seed {run.seed}: {run.verdict}" + (f": {run.cause}" if run.cause else "") for run in bad]


def _raise(result: Any, allow_stuck: bool) -> Any:
    if failures := result.failures(allow_stuck=allow_stuck):
        more = f" (and {len(failures) - 1} more seeds)" if len(failures) > 1 else ""
        raise VerdictError(failures[0] + more, result)
    return result


def _samples(program: Program, raws: Any, path: str | os.PathLike[str] | None = None) -> Any:
    from .report.samples import samples_frame, write_samples

    with needs("tables", "a table of samples"):
        if path is None:
            return samples_frame(program, list(raws))
        write_samples(os.fspath(path), program, list(raws))


def _plot(result: Run | Runs, path: str | os.PathLike[str] | None) -> Any:
    raws = result.raws if isinstance(result, Runs) else [result.raw]
    with needs("plot", "a picture"):
        from .plot.latency import latency_figure

        return latency_figure(result.program, raws, None if path is None else os.fspath(path))


def _text(result: Run | Runs) -> str:
    with needs("cli", "a table as text"):
        return str(result.summary())
