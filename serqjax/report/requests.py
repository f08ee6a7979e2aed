"""The requests of runs as a table, in the definitions of `vllm bench serve`.

A *request* is a turn, or a whole session where the program has no turns. All times are the
client's, in seconds of simulated time:

- `ttft_s`: first token minus sent. `e2e_s`: last token minus sent; for a request without tokens
  (programs without an engine) end of the response minus sent.
- `tpot_s`: (E2E - TTFT) / (output tokens - 1), requests of at least two tokens: the mean gap of
  one request. Gaps of all requests pooled are *ITL* and come from the stages' histograms.

A request that is refused has no latency; one that has not finished has a lower bound, `age_s`.

**Source:** `formats.md` (`vllm bench serve`); semantics.md section 12.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

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
    "status": "finished, running, queued or rejected, at the end of the run",
    "measured": "sent in the measured window [warmup, end]",
    "sent_s": "when the client sent it",
    "first_token_s": "when the first token was there",
    "last_token_s": "when the last token so far was there",
    "end_s": "when the response ended",
    "output_tok": "tokens so far",
    "ttft_s": "first token - sent",
    "tpot_s": "(e2e - ttft) / (tokens - 1), at least two tokens",
    "e2e_s": "last token - sent; without tokens: response end - sent",
    "age_s": "unfinished requests: end of the run - sent",
}


@dataclasses.dataclass(frozen=True)
class RequestTable:
    """One row per request; columns are numpy arrays of one length, NaN where a time does not exist.

    `columns` holds those of `COLUMNS`; `status` is a number of `RequestStatus`. `to_polars()` gives
    names and nulls instead.
    """

    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["run"])

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"the requests table has no column {name!r}: it has {', '.join(self.columns)}")
        return self.columns[name]

    @property
    def counts(self) -> dict[str, int]:
        """`in, finished, running, queued, rejected`; the four parts add up to `in`."""
        return count_status(self.columns["status"])

    def to_polars(self) -> polars.DataFrame:
        """The table as a polars frame: `status` as text, times that do not exist as null."""
        import polars

        data: dict[str, Any] = dict(self.columns)
        data["status"] = [STATUS_NAMES[s] for s in self.columns["status"]]
        return polars.DataFrame(data, nan_to_null=True)

    def _repr_html_(self) -> str:
        return self.to_polars()._repr_html_()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return f"RequestTable({parts})"


def count_status(status: np.ndarray) -> dict[str, int]:
    """Requests by status, whole run; `in` is their sum."""
    counts = np.bincount(np.asarray(status, dtype=np.int64), minlength=len(STATUS_NAMES))
    return {"in": int(counts.sum())} | {name: int(counts[i]) for i, name in enumerate(STATUS_NAMES)}


def request_counts(raws: RawRun | Sequence[RawRun]) -> dict[str, int]:
    """`in, finished, running, queued, rejected` of one run, or of all runs together."""
    many = [raws] if isinstance(raws, RawRun) else list(raws)
    parts = [raw.request_status for raw in many]
    return count_status(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64))


def requests_table(raws: RawRun | Sequence[RawRun]) -> RequestTable:
    """The requests of one run or of several (in the order of the runs, then of sending)."""
    many = [raws] if isinstance(raws, RawRun) else list(raws)
    tables = [_columns(run, raw) for run, raw in enumerate(many)]
    if not tables:
        return RequestTable({name: np.zeros(0) for name in COLUMNS} | {"status": np.zeros(0, dtype=np.int64)})
    return RequestTable({name: np.concatenate([t[name] for t in tables]) for name in COLUMNS})


def _columns(run: int, raw: RawRun) -> dict[str, np.ndarray]:
    n = len(raw.request_serial)
    status = np.asarray(raw.request_status, dtype=np.int64)
    sent, tokens = raw.request_sent, np.asarray(raw.request_tokens, dtype=np.int64)
    finished = status == RequestStatus.finished
    open_ = (status == RequestStatus.running) | (status == RequestStatus.queued)
    # a first token counts once it is confirmed; before that a later prefill may replace it
    has_first = raw.request_confirmed >= 0
    has_last = has_first & (raw.request_last >= 0)
    last = np.where(has_last, raw.request_last, raw.request_responded)
    first_s = _when(raw.request_first, has_first, raw.tick_s)
    last_s = _when(raw.request_last, has_last, raw.tick_s)
    ttft = _when(raw.request_first - sent, has_first, raw.tick_s)
    several = finished & has_last & (tokens >= 2)
    tpot = _when(raw.request_last - raw.request_first, several, raw.tick_s) / np.maximum(tokens - 1, 1)
    return {
        "run": np.full(n, run, dtype=np.int64),
        "seed": np.full(n, raw.seed, dtype=np.uint64),
        "session": np.asarray(raw.request_serial, dtype=np.int64),
        "turn": np.asarray(raw.request_turn, dtype=np.int64),
        "status": status,
        "measured": (sent >= raw.warmup_tick) & (sent <= raw.end_tick),
        "sent_s": seconds(np.asarray(sent), raw.tick_s),
        "first_token_s": first_s,
        "last_token_s": last_s,
        "end_s": _when(raw.request_responded, raw.request_responded >= 0, raw.tick_s),
        "output_tok": tokens,
        "ttft_s": ttft,
        "tpot_s": tpot,
        "e2e_s": _when(last - sent, finished, raw.tick_s),
        "age_s": _when(raw.end_tick - np.asarray(sent), open_, raw.tick_s),
    }


def _when(tick: np.ndarray, exists: np.ndarray, tick_s: float) -> np.ndarray:
    return np.where(exists, seconds(np.asarray(tick, dtype=np.int64), tick_s), np.nan)
