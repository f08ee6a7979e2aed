"""What a trace file holds, and how one row of it is read: every value is checked, every message names the row.

**Source:** `docs/traces.md`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from ..errors import ProgramError

Kind = Literal[
    "azure_2023", "azure_2024", "azure_2025", "mooncake", "burstgpt", "vllm_bench", "aiperf", "guidellm", "vidur",
    "splitwise", "llmservingsim", "apex", "sharegpt", "serq", "serqjax_requests", "serqjax_sessions",
]  # fmt: skip

#: Tokens that one id of `hash_ids` stands for.
SPAN_TOK = 512
#: A silence of so many seconds between two rows is no silence: their times have different origins.
LONGEST_SILENCE_S = 30 * 86_400.0


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One timed request: seconds after the first one, tokens of the prompt and of the answer.

    `hash_ids`: names of what the prompt begins with, each of `SPAN_TOK` tokens (the last may have fewer): equal names
    after equal names are equal tokens. Whole numbers from 0 in the order of their first appearance in the file.
    """

    at_s: float
    input_tok: int
    output_tok: int
    hash_ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SessionTurn:
    """One turn: new prompt tokens, output tokens, seconds of thinking after it, forced value (0 if absent)."""

    new_tok: int
    output_tok: int
    think_s: float
    forced: float = 0.0


@dataclasses.dataclass(frozen=True)
class TraceFile:
    """What a file held: timed requests in `rows`, or `sessions` of turns, which may have no times of their own.

    - `kind`: the format that was recognised.
    - `starts_s`: when each session starts, seconds ((): the file does not say).
    - `dropped`: rows left out, by the reason: `zero_output` (nothing generated: a failed request), `zero_input` (an
      empty prompt: no server takes it), `failed`, `cancelled`, `warmup` (of a benchmark), `rejected` (by the run).
    - `reordered`: rows of a benchmark's results that were not in the order of sending and were sorted by it.
    - `columns`: what else the file says of each row of `rows`, by the file's own name: a class, a tenant, a model.
    """

    path: str
    kind: Kind
    rows: tuple[Request, ...] = ()
    sessions: tuple[tuple[SessionTurn, ...], ...] = ()
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    starts_s: tuple[float, ...] = ()
    reordered: int = 0
    columns: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    @property
    def has_prefixes(self) -> bool:
        """Whether rows say which of their blocks they share (`hash_ids`)."""
        return any(row.hash_ids for row in self.rows)

    def scaled(self, rate: float) -> TraceFile:
        """The same requests at `rate` times the rate: every time divided by it, fractions kept, think times as they
        are. **Raises:** `ValueError` unless `rate` is a finite number above 0."""
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.0 < rate < math.inf:
            raise ValueError(f"rate {rate!r}: a finite number above 0 is needed (2 is twice as fast)")
        if not self.rows and not self.starts_s:
            raise ValueError(f"{self.path}: this trace has no times to scale: give `session_rate` to `from_trace`")
        rows = tuple(dataclasses.replace(row, at_s=row.at_s / rate) for row in self.rows)
        return dataclasses.replace(self, rows=rows, starts_s=tuple(at / rate for at in self.starts_s))

    def first(self, n: int) -> TraceFile:
        """The first `n` rows (or sessions). **Raises:** `ValueError` unless `n` is a whole number above 0."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"first({n!r}): a whole number above 0 is needed")
        return dataclasses.replace(
            self, rows=self.rows[:n], sessions=self.sessions[:n], starts_s=self.starts_s[:n],
            columns={name: values[:n] for name, values in self.columns.items()},
        )  # fmt: skip

    def __str__(self) -> str:
        """What was understood, and what was left out."""
        if self.rows:
            n = len(self.rows)
            mean_in, mean_out = (sum(getattr(r, k) for r in self.rows) / n for k in ("input_tok", "output_tok"))
            what = (f"{n} requests over {self.rows[-1].at_s - self.rows[0].at_s:.6g} s, mean {mean_in:.6g} tokens in, "
                    f"{mean_out:.6g} out")
            if self.has_prefixes:
                ids = {i for row in self.rows for i in row.hash_ids}
                what += f", {sum(len(r.hash_ids) for r in self.rows)} hash_ids, {len(ids)} distinct"
        else:
            timed = "" if self.starts_s else " without times"
            what = f"{len(self.sessions)} sessions{timed}, {sum(map(len, self.sessions))} turns"
        gone = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items()) or "nothing"
        more = f"; {self.reordered} rows sorted by the time of sending" if self.reordered else ""
        return f"{self.kind}: {what}; left out: {gone}{more}"


# ---------------------------------------------------------------- one row


class Row:
    """The fields of one row by name, and errors that name the row."""

    __slots__ = ("fields", "number", "place")

    def __init__(self, place: str, number: int, fields: Mapping[str, Any]) -> None:
        self.place, self.number, self.fields = place, number, fields

    def bad(self, problem: str, hint: str = "repair or remove the row") -> ProgramError:
        return ProgramError.at(self.place, f"row {self.number}: {problem}", hint)

    def value(self, name: str) -> float:
        """A finite number of at least 0."""
        found = self.fields.get(name)
        if type(found) is int or type(found) is float:
            value = found
        elif isinstance(found, str) and found:
            try:
                value = float(found)
            except ValueError:
                raise self.bad(f"{name} is {found[:40]!r}, not a number") from None
        elif found is None or found == "":
            raise self.bad(f"{name} is missing" if name not in self.fields or found == "" else f"{name} is null")
        else:
            raise self.bad(f"{name} is {str(found)[:40]!r}, not a number")
        if not -math.inf < value < math.inf:
            raise self.bad(f"{name} is {found}")
        if value < 0:
            raise self.bad(f"{name} is {found}, below 0")
        return value

    def tokens(self, name: str) -> int:
        value = self.value(name)
        if value != int(value) or value > 2**31:
            raise self.bad(f"{name} is {self.fields[name]}, not a whole number of tokens")
        return int(value)

    def whole_ids(self, name: str) -> list[int]:
        """A list of whole numbers of 64 bits."""
        found = self.fields.get(name)
        if not isinstance(found, list):
            raise self.bad(f"{name} is {'missing' if found is None else 'no list'}")
        for item in found:
            if type(item) is not int or not -(2**63) <= item < 2**64:
                raise self.bad(f"{name} has {str(item)[:40]!r}, which is no whole number of 64 bits")
        return found


def nanoseconds(text: str) -> int | None:
    """Exact nanoseconds of a timestamp like `2023-11-16 18:17:03.9799600` (up to nine fraction digits), or None."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", text)
    if match is None:
        return None
    zone = "+0000" if match[4] in (None, "Z") else match[4].replace(":", "")
    try:
        whole = datetime.strptime(f"{match[1]} {match[2]} {zone}", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return None
    since = whole - datetime(2000, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + int((match[3] or "").ljust(9, "0"))


# ---------------------------------------------------------------- tables of rows


@dataclasses.dataclass(frozen=True)
class Clock:
    """How a format tells the time: the column, the units of it in a second, and whether its first row is time 0.

    `stamp`: the column is a date and a time, not a number. `sorts`: the rows are results, in the order in which they
    were written, and are sorted by the time; else a time before the row above it is refused.
    """

    column: str
    per_s: int = 1
    stamp: bool = False
    sorts: bool = False
    from_first: bool = True


@dataclasses.dataclass(frozen=True)
class Table:
    """A format of timed requests, one row each: which columns say what.

    - `keep`: columns carried along where the file has them. `ids`: the column of hash ids.
    - `drop`: the reason to leave a row out before its numbers are looked at, or None.
    - `check`: refuses a row for what only this format knows.
    """

    kind: Kind
    clock: Clock
    input: str
    output: str
    keep: tuple[str, ...] = ()
    ids: str | None = None
    drop: Callable[[Row], str | None] | None = None
    check: Callable[[Row], None] | None = None


def read_table(path: str, table: Table, rows: Iterator[Row], columns: tuple[str, ...] | None = None) -> TraceFile:
    """Timed requests of a file in a known format. `columns`: those of the file, if it has a header."""
    clock = table.clock
    keep = [name for name in table.keep if columns is None or name in columns]
    found: list[tuple[float | int, Request, tuple[Any, ...]]] = []
    dropped: dict[str, int] = {}
    interned: dict[int, int] = {}
    origin = last = None
    for row in rows:
        reason = table.drop(row) if table.drop is not None else None
        if reason is not None:
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        time = _time(row, clock)
        if last is not None and not clock.sorts:
            if time < last:
                raise row.bad(f"{clock.column} {row.fields[clock.column]} is before the row above it",
                              "sort the rows by time, and do not mix traces with different origins")
            if time - last > LONGEST_SILENCE_S * clock.per_s:
                raise row.bad(f"{clock.column} {row.fields[clock.column]} comes "
                              f"{(time - last) / clock.per_s / 86_400:.0f} days after the row above it",
                              "do not mix traces with different origins")
        origin, last = time if origin is None else origin, time
        if table.check is not None:
            table.check(row)
        input_tok, output_tok = row.tokens(table.input), row.tokens(table.output)
        reason = "zero_output" if output_tok == 0 else "zero_input" if input_tok == 0 else None
        if reason is not None:
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        named = table.ids is not None and (columns is None or table.ids in columns)
        ids = _intern(row, str(table.ids), input_tok, interned) if named else ()
        found.append((time, Request(0.0, input_tok, output_tok, ids), tuple(row.fields.get(name) for name in keep)))
    if not found:
        raise nothing(path, dropped)
    reordered = 0
    if clock.sorts:
        reordered = sum(a[0] > b[0] for a, b in zip(found, found[1:]))
        found.sort(key=lambda item: item[0])  # equal times keep the order of the file
        origin = found[0][0]
        _same_origin(path, found, clock)
    start = origin if clock.from_first and origin is not None else 0
    requests = tuple(
        Request((time - start) / clock.per_s, r.input_tok, r.output_tok, r.hash_ids) for time, r, _ in found
    )  # fmt: skip
    kept = {name: tuple(extra[k] for _, _, extra in found) for k, name in enumerate(keep)}
    kept = {name: values for name, values in kept.items() if any(v is not None for v in values)}
    return TraceFile(path, table.kind, rows=requests, dropped=dropped, reordered=reordered, columns=kept)


def _time(row: Row, clock: Clock) -> float | int:
    if not clock.stamp:
        return row.value(clock.column)
    stamp = str(row.fields.get(clock.column) or "")
    time = nanoseconds(stamp)
    if time is None:
        raise row.bad(f"{clock.column} is {stamp[:40]!r}, not a time" if stamp else f"{clock.column} is missing",
                      "write it as 2023-11-16 18:17:03.9799600")
    return time


def _same_origin(path: str, found: list[tuple[float | int, Request, tuple[Any, ...]]], clock: Clock) -> None:
    for a, b in zip(found, found[1:]):
        if b[0] - a[0] > LONGEST_SILENCE_S * clock.per_s:
            raise ProgramError.at(path, f"{clock.column} leaps by {(b[0] - a[0]) / clock.per_s / 86_400:.0f} days "
                                  f"from {a[0]} to {b[0]}", "do not mix traces with different origins")


def _intern(row: Row, column: str, input_tok: int, interned: dict[int, int]) -> tuple[int, ...]:
    """Small numbers for ids of 64 bits, which are numbers without a meaning."""
    ids = row.whole_ids(column)
    if ids and len(ids) != -(-input_tok // SPAN_TOK):
        raise row.bad(f"{len(ids)} {column} for {input_tok} tokens of input, one for every {SPAN_TOK} would be "
                      f"{-(-input_tok // SPAN_TOK)}", f"write one id for every {SPAN_TOK} tokens, or an empty list")
    return tuple([interned.setdefault(i, len(interned)) for i in ids])


def nothing(path: str, dropped: Mapping[str, int]) -> ProgramError:
    """The error of a file of which no row is left."""
    gone = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    return ProgramError.at(path, "the trace has no rows to replay" + (f" (left out: {gone})" if gone else ""))
