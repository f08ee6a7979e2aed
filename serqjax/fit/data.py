"""What a real engine did: request times of a run, read from the files that benchmarks write.

A `RunData` holds each request's sending, first token and last token on one clock, in seconds from the first sending,
and its tokens. Rows that cannot be used are set aside with their reason, or the file is refused; nothing is dropped in
silence.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ProgramError

#: A median above this many seconds per output token means milliseconds that were given as seconds.
SLOWEST_TPOT_S = 5.0


@dataclasses.dataclass(frozen=True, eq=False)
class RunData:
    """The request times of one run; rows in the order of sending.

    - `sent_s`, `first_s`, `last_s`: seconds since the first sending, float64 `[requests]`; equal first times mark one
      step of the engine. `input_tok`, `output_tok`: tokens served, int64 `[requests]`.
    - `set_aside`: what was left out, as (row of the file, reason). `place`: the row of each request.
    - `settings`: of the engine, by vLLM's flag names, where the caller or the file knows them.
    - `gaps_s`: per request the seconds between its tokens, `output_tok - 1` of them; empty for a request whose chunks
      held several tokens, and () for a file that has none.
    """

    name: str
    sent_s: np.ndarray
    input_tok: np.ndarray
    output_tok: np.ndarray
    first_s: np.ndarray
    last_s: np.ndarray
    place: np.ndarray
    set_aside: tuple[tuple[int, str], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    gaps_s: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return len(self.sent_s)

    def __str__(self) -> str:
        tokens = f"{self.input_tok.sum()} input and {self.output_tok.sum()} output tokens"
        text = f"{self.name}: {len(self)} requests, {tokens}"
        if self.gaps_s:
            text += f"; each gap between tokens known of {self.with_gaps.sum()} requests"
        rows = "".join(f"\n  row {row} set aside: {reason}" for row, reason in self.set_aside)
        return text + rows

    @property
    def ttft_s(self) -> np.ndarray:
        """Seconds from sending to the first token."""
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> np.ndarray:
        """Seconds per output token after the first, NaN for one token."""
        many = self.output_tok > 1
        return np.where(many, (self.last_s - self.first_s) / np.maximum(self.output_tok - 1, 1), np.nan)

    @property
    def with_gaps(self) -> np.ndarray:
        """Whether each gap between the tokens of a request is known, `[requests]`; of one token there are none."""
        return np.asarray([len(gaps) > 0 for gaps in self.gaps_s or ((),) * len(self)], bool)

    @property
    def e2e_s(self) -> np.ndarray:
        """Seconds from sending to the last token."""
        return self.last_s - self.sent_s


@dataclasses.dataclass(frozen=True, eq=False)
class SummaryData:
    """Means and percentiles of a run whose single requests nobody kept: the trace of the run gives them.

    - `values`: seconds by metric and statistic: `ttft_mean`, `tpot_p50`, `e2e_p99.9`. `requests`: how many there were,
      where it is known. `settings`: as in `RunData`.
    """

    name: str
    values: dict[str, float]
    requests: int | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    set_aside: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.values:
            raise ProgramError.at(self.name, "holds no mean or percentile", "give for example ttft_mean, in seconds")
        for key, value in self.values.items():
            metric, _, what = key.partition("_")
            share = what[1:].replace(".", "", 1)
            known = what == "mean" or (what[:1] == "p" and share.isdecimal() and 0.0 < float(what[1:]) < 100.0)
            if metric not in ("ttft", "tpot", "e2e") or not known:
                raise ProgramError.at(self.name, f"`{key}` is not known", "use ttft, tpot or e2e with _mean or _p50")
            if not (isinstance(value, (int, float)) and 0.0 < value < math.inf):
                raise ProgramError.at(self.name, f"`{key}` is {value!r}", "give seconds above 0")

    def __str__(self) -> str:
        return f"{self.name}: summaries of {self.requests or 'all'} requests: {', '.join(self.values)}"


@dataclasses.dataclass(frozen=True)
class _Row:
    place: int
    sent_s: float
    first_s: float
    last_s: float
    input_tok: float
    output_tok: float
    gaps_s: tuple[float, ...] = ()


def run_data(name: str, rows: Iterable[_Row], set_aside: Iterable[tuple[int, str]] = ()) -> RunData:
    """A run from rows of seconds on one clock.

    **Raises:** `ProgramError` if nothing is left, or the times cannot be seconds.
    """
    aside, good = list(set_aside), []
    for row in rows:
        reason = _fault(row)
        if reason:
            aside.append((row.place, reason))
        else:
            good.append(row)
    if not good:
        first = f": row {aside[0][0]}: {aside[0][1]}" if aside else ""
        raise ProgramError.at(name, f"no request can be used{first}", "is it the file of a run that served requests?")
    good.sort(key=lambda row: row.sent_s)  # stable: equal stamps stay in the order of the file
    columns = {f: np.asarray([getattr(r, f) for r in good]) for f in ("sent_s", "first_s", "last_s")}
    start = columns["sent_s"][0]
    gaps = tuple(np.asarray(r.gaps_s if len(r.gaps_s) == r.output_tok - 1 else ()) for r in good)
    data = RunData(
        name=name,
        **{f: c - start for f, c in columns.items()},
        input_tok=np.asarray([int(r.input_tok) for r in good]),
        output_tok=np.asarray([int(r.output_tok) for r in good]),
        place=np.asarray([r.place for r in good]),
        set_aside=tuple(sorted(aside)),
        gaps_s=gaps if any(len(gap) for gap in gaps) else (),
    )
    tpot_s = data.tpot_s[~np.isnan(data.tpot_s)]
    if len(tpot_s) and np.median(tpot_s) > SLOWEST_TPOT_S:
        text = f"an output token takes {np.median(tpot_s):g} s in the median: milliseconds that are given as seconds?"
        raise ProgramError.at(name, text, "divide the times by 1,000")
    return data


def _fault(row: _Row) -> str:
    values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row) if field.name != "gaps_s"}
    for field, value in values.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            return f"`{field}` is {value!r}"
    if row.output_tok < 1 or row.output_tok != int(row.output_tok):
        return f"{row.output_tok:g} output tokens"
    if row.input_tok < 1 or row.input_tok != int(row.input_tok):
        return f"{row.input_tok:g} input tokens"
    if row.first_s < row.sent_s:
        return f"its first token comes {row.sent_s - row.first_s:g} s before it was sent"
    if row.last_s < row.first_s:
        return f"its last token comes {row.first_s - row.last_s:g} s before its first"
    if row.output_tok > 1 and row.last_s == row.first_s:
        return f"{row.output_tok:g} output tokens at one time"
    return ""


def read(path: str | os.PathLike[str]) -> RunData:
    """Read the request times of a run, as `read_data` does.

    **Raises:** `ProgramError` with the file, the row and what is missing; for a file of summaries alone.
    """
    found = read_data(path)
    if isinstance(found, SummaryData):
        raise ProgramError.at(found.name, "holds summaries, and no request", "save details, or use `read_data`")
    return found


def read_data(path: str | os.PathLike[str]) -> RunData | SummaryData:
    """Read the request times of a run: `vllm bench serve --save-detailed` JSON, AIPerf's `profile_export.jsonl`, or
    JSON lines with `queued_ts`, `first_token_ts`, `last_token_ts`, `input_toks`, `output_toks`. The JSON of `vllm bench
    serve` without `--save-detailed` gives its summaries.

    **Raises:** `ProgramError` with the file, the row and what is missing.
    """
    path = Path(path)
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError.at(name, f"cannot be read: {error}", "give a JSON or JSON lines file of a run") from None
    if not text.strip():
        raise ProgramError.at(name, "the file is empty")
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "mean_ttft_ms" in whole and "ttfts" not in whole:
        return _summaries(name, whole)
    if isinstance(whole, dict) and ("ttfts" in whole or "request_throughput" in whole):
        return _bench_serve(name, whole)
    lines: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ProgramError.at(f"{name}:{number}", f"not JSON: {error}", "give one JSON object a line") from None
        if not isinstance(row, dict):
            raise ProgramError.at(f"{name}:{number}", "is no JSON object", "give one JSON object a line")
        lines.append((number, row))
    known: dict[str, Callable[[str, list[tuple[int, dict[str, Any]]]], RunData]] = {
        "queued_ts": _timestamps, "first_token_ts": _timestamps, "metadata": _aiperf,
    }
    reader = next((r for key, r in known.items() if key in lines[0][1]), None)
    if reader is None:
        hint = "known: vllm bench serve --save-detailed, AIPerf profile_export.jsonl, rows with queued_ts"
        raise ProgramError.at(name, f"no known format: its first row has {sorted(lines[0][1])[:8]}", hint)
    return reader(name, lines)


def _timestamps(name: str, lines: list[tuple[int, dict[str, Any]]]) -> RunData:
    """Rows with absolute seconds of one monotonic clock; `arrival_time`, of another clock, is not used."""
    needed = {"sent_s": "queued_ts", "first_s": "first_token_ts", "last_s": "last_token_ts",
              "input_tok": "input_toks", "output_tok": "output_toks"}  # fmt: skip
    rows, aside = [], []
    missing = [key for key in needed.values() if not any(key in row for _, row in lines)]
    if missing:
        hint = "needed: " + ", ".join(needed.values())
        raise ProgramError.at(name, f"the field `{missing[0]}` is missing in every row", hint)
    for number, row in lines:
        absent = [key for key in needed.values() if row.get(key) is None]
        if absent:
            aside.append((number, f"`{absent[0]}` is missing"))
        else:
            rows.append(_Row(number, **{field: row[key] for field, key in needed.items()}))
    return run_data(name, rows, aside)


def _bench_serve(name: str, whole: dict[str, Any]) -> RunData:
    columns = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
    missing = [c for c in columns if not isinstance(whole.get(c), list)]
    if missing:
        hint = "run `vllm bench serve --save-result --save-detailed`"
        if missing == ["start_times"]:
            hint = "run a version of vllm bench serve that saves `start_times`: when each request was sent"
        raise ProgramError.at(name, f"the field `{missing[0]}` is missing", hint)
    size = len(whole["start_times"])
    if any(len(whole[c]) != size for c in columns):
        rows_of = ", ".join(str(len(whole[c])) for c in columns)
        raise ProgramError.at(name, f"its lists have {rows_of} rows", "is it cut?")
    errors = whole.get("errors") or [""] * size
    rows, aside = [], []
    for i in range(size):
        if errors[i]:
            aside.append((i, f"the request failed: {str(errors[i]).splitlines()[-1][:80]}"))
            continue
        try:
            sent, ttft = float(whole["start_times"][i]), float(whole["ttfts"][i])
            gaps = tuple(map(float, whole["itls"][i]))
        except (TypeError, ValueError):
            aside.append((i, "a time is no number"))
            continue
        if ttft < 0 or any(gap < 0 for gap in gaps):
            aside.append((i, "a duration is negative"))
            continue
        tokens = whole["input_lens"][i], whole["output_lens"][i]
        rows.append(_Row(i, sent, sent + ttft, sent + ttft + math.fsum(gaps), *tokens, gaps_s=gaps))
    return run_data(name, rows, aside)


def _summaries(name: str, whole: dict[str, Any]) -> SummaryData:
    """Means, medians and percentiles of `vllm bench serve`, milliseconds there."""
    values = {}
    for metric, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2el")):
        for key, value in whole.items():
            found = re.fullmatch(rf"(mean|median|p[\d.]+)_{theirs}_ms", key)
            if found and isinstance(value, (int, float)) and value > 0.0:
                what = "p50" if found[1] == "median" else found[1]
                values[f"{metric}_{what}"] = value / 1000.0
    done = whole.get("completed")
    return SummaryData(name, values, requests=done if isinstance(done, int) else None)


_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def _aiperf(name: str, lines: list[tuple[int, dict[str, Any]]]) -> RunData:
    """Records of AIPerf; times in `metrics` carry their unit."""
    rows, aside = [], []
    for number, row in lines:
        if row.get("error"):
            aside.append((number, "the request failed"))
            continue
        try:
            sent_ns = row["metadata"]["request_start_ns"]
            metrics = row["metrics"]
            ttft, latency = (
                metrics[key]["value"] * _SECONDS[metrics[key]["unit"]] for key in ("time_to_first_token",
                "request_latency")
            )
            tokens = [metrics[key]["value"] for key in ("input_sequence_length", "output_sequence_length")]
            chunks = metrics.get("inter_chunk_latency") or {"value": (), "unit": "s"}
            gaps = tuple(_SECONDS[chunks["unit"]] * gap for gap in chunks["value"])
        except (KeyError, TypeError) as error:
            aside.append((number, f"{error} is missing or of an unknown unit"))
            continue
        sent_s = (sent_ns - lines[0][1]["metadata"]["request_start_ns"]) * 1e-9  # exact before it is made a float
        rows.append(_Row(number, sent_s, sent_s + ttft, sent_s + latency, *tokens, gaps_s=gaps))
    return run_data(name, rows, aside)
