"""The requests of runs as a table, in the definitions of `vllm bench serve`.

A *request* is a turn, or a whole session where the program has no turns. All times are the
client's, in seconds of simulated time:

- `ttft_s`: first token minus sent. `e2e_s`: last token minus sent; for a request without tokens
  (programs without an engine) end of the response minus sent.
- `tpot_s`: (E2E - TTFT) / (output tokens - 1), requests of at least two tokens: the mean gap of
  one request. Gaps of all requests pooled are *ITL* and come from the stages' histograms.

A request that is refused has no latency; one that has not finished, or that its client gave up, has a lower bound,
`age_s`. Where the program tells what stands between client and engine (facts.py), these times are still the client's,
and `engine_ttft_s` is the engine's own: first token made minus reached the engine.

**Source:** `formats.md` (`vllm bench serve`); semantics.md section 12.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.program import Program
from .facts import class_names, facts, may_abandon
from .raw import RawRun, RequestStatus
from .units import seconds

if TYPE_CHECKING:
    import polars

STATUS_NAMES = tuple(status.name for status in RequestStatus)

#: Columns of the table, in order, with what they hold.
COLUMNS: dict[str, str] = {
    "run": "place of the run in the batch, from 0",
    "seed": "seed of the run",
    "session": "serial number of the session",
    "turn": "number of the turn, from 1; 0: the session is one request",
    "class": "class of the request, a number from 0 (as a frame: its name); null where the workload has none",
    "priority": "priority of the request; null where the workload has none",
    "status": "finished, running, queued, rejected or abandoned (the client gave it up), at the end of the run",
    "measured": "sent in the measured window [warmup, end]",
    "sent_s": "when the client sent it",
    "first_token_s": "when the client had the first token",
    "last_token_s": "when the client had the last token so far",
    "end_s": "when the response ended",
    "output_tok": "tokens so far",
    "ttft_s": "first token - sent",
    "engine_ttft_s": "first token made - reached the engine; null where the program does not tell the two apart",
    "tpot_s": "(e2e - ttft) / (tokens - 1), at least two tokens",
    "e2e_s": "last token - sent; without tokens: response end - sent",
    "age_s": "unfinished requests: end of the run - sent; abandoned ones: given up - sent",
}


@dataclasses.dataclass(frozen=True)
class RequestTable:
    """One row per request; columns are numpy arrays of one length, NaN where a time does not exist.

    `columns` holds those of `COLUMNS`; `status` is a number of `RequestStatus`, `class` one of `class_names`.
    `may_abandon`: its program has clients that give requests up. `to_polars()` gives names and nulls instead.
    """

    columns: dict[str, np.ndarray]
    class_names: tuple[str, ...] = ()
    may_abandon: bool = False

    def __len__(self) -> int:
        return len(self.columns["run"])

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"the requests table has no column {name!r}: it has {', '.join(self.columns)}")
        return self.columns[name]

    @property
    def counts(self) -> dict[str, int]:
        """`in, finished, running, queued, rejected`, which add up to `in`; with `abandoned` where clients give up."""
        return count_status(self.columns["status"], self.may_abandon)

    def to_polars(self) -> polars.DataFrame:
        """The table as a polars frame: `status` and `class` as text, what does not exist as null."""
        import polars

        data: dict[str, Any] = dict(self.columns)
        data["status"] = [STATUS_NAMES[s] for s in self.columns["status"]]
        names = dict(enumerate(self.class_names))
        classes = [None if np.isnan(c) else names.get(int(c), f"{c:g}") for c in self.columns["class"]]
        data["class"] = polars.Series(classes, dtype=polars.String)
        return polars.DataFrame(data, nan_to_null=True)

    def _repr_html_(self) -> str:
        return self.to_polars()._repr_html_()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return f"RequestTable({parts})"


def count_status(status: np.ndarray, abandons: bool = False) -> dict[str, int]:
    """Requests by status, whole run; `in` is their sum. `abandons`: count those given up, 0 included."""
    counts = np.bincount(np.asarray(status, dtype=np.int64), minlength=len(STATUS_NAMES))
    shown = [s for s in RequestStatus if abandons or s != RequestStatus.abandoned]
    return {"in": int(counts.sum())} | {s.name: int(counts[s]) for s in shown}


def request_counts(raws: RawRun | Sequence[RawRun], program: Program | None = None) -> dict[str, int]:
    """`in, finished, running, queued, rejected` of one run, or of all runs together; `abandoned` where clients give up.

    `program`: what was run; without it nobody knows of requests given up, and they count as finished.
    """
    many = [raws] if isinstance(raws, RawRun) else list(raws)
    parts = [_status(raw, facts(program, raw).gave_up) for raw in many]
    return count_status(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64), may_abandon(program))


def requests_table(raws: RawRun | Sequence[RawRun], program: Program | None = None) -> RequestTable:
    """The requests of one run or of several (in the order of the runs, then of sending).

    `program`: what was run; it tells the classes and priorities of requests, and which were given up.
    """
    many = [raws] if isinstance(raws, RawRun) else list(raws)
    tables = [_columns(run, raw, program) for run, raw in enumerate(many)]
    names = class_names(program)
    if not tables:
        empty = {name: np.zeros(0) for name in COLUMNS} | {"status": np.zeros(0, dtype=np.int64)}
        return RequestTable(empty, names, may_abandon(program))
    columns = tables[0] if len(tables) == 1 else {n: np.concatenate([t[n] for t in tables]) for n in COLUMNS}
    return RequestTable(columns, names, may_abandon(program))


def answered(raw: RawRun, table: RequestTable) -> np.ndarray:
    """Requests of one run that were finished in its measured window, bool; `table`: its requests."""
    return (table["status"] == RequestStatus.finished) & (raw.request_responded >= raw.warmup_tick)


def measured_s(raw: RawRun) -> float:
    """Seconds of the measured window of a run."""
    return float(seconds(max(raw.end_tick - raw.warmup_tick, 0), raw.tick_s))


def _status(raw: RawRun, gave_up: np.ndarray) -> np.ndarray:
    status = np.asarray(raw.request_status, dtype=np.int64)
    return np.where((status == RequestStatus.finished) & gave_up, int(RequestStatus.abandoned), status)


def _columns(run: int, raw: RawRun, program: Program | None) -> dict[str, np.ndarray]:
    n = len(raw.request_serial)
    said = facts(program, raw)
    status = _status(raw, said.gave_up)
    sent, tokens = raw.request_sent, np.asarray(raw.request_tokens, dtype=np.int64)
    finished = status == RequestStatus.finished
    open_ = np.isin(status, (RequestStatus.running, RequestStatus.queued, RequestStatus.abandoned))
    # a first token counts once it is confirmed; before that a later prefill may replace it
    has_first = raw.request_confirmed >= 0
    has_last = has_first & (raw.request_last >= 0)
    last = np.where(has_last, raw.request_last, raw.request_responded)
    first_s = _when(raw.request_first, has_first, raw.tick_s) + said.api_after_s
    last_s = _when(raw.request_last, has_last, raw.tick_s) + said.api_after_s
    ttft = _when(raw.request_first - sent, has_first, raw.tick_s) + said.api_after_s
    of_engine = _when(raw.request_first - said.engine_tick, has_first & (said.engine_tick >= 0), raw.tick_s)
    # the end of the response is the client's already
    e2e = _when(last - sent, finished, raw.tick_s) + np.where(has_last, said.api_after_s, 0.0)
    ends = np.where(status == RequestStatus.abandoned, raw.request_responded, raw.end_tick)
    several = finished & has_last & (tokens >= 2)
    tpot = _when(raw.request_last - raw.request_first, several, raw.tick_s) / np.maximum(tokens - 1, 1)
    return {
        "run": np.full(n, run, dtype=np.int64),
        "seed": np.full(n, raw.seed, dtype=np.uint64),
        "session": np.asarray(raw.request_serial, dtype=np.int64),
        "turn": np.asarray(raw.request_turn, dtype=np.int64),
        "class": said.class_,
        "priority": said.priority,
        "status": status,
        "measured": (sent >= raw.warmup_tick) & (sent <= raw.end_tick),
        "sent_s": seconds(np.asarray(sent), raw.tick_s),
        "first_token_s": first_s,
        "last_token_s": last_s,
        "end_s": _when(raw.request_responded, raw.request_responded >= 0, raw.tick_s),
        "output_tok": tokens,
        "ttft_s": ttft,
        "engine_ttft_s": of_engine,
        "tpot_s": tpot,
        "e2e_s": e2e,
        "age_s": _when(ends - np.asarray(sent), open_, raw.tick_s),
    }


def _when(tick: np.ndarray, exists: np.ndarray, tick_s: float) -> np.ndarray:
    return np.where(exists, seconds(np.asarray(tick, dtype=np.int64), tick_s), np.nan)
