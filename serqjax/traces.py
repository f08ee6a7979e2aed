"""Recorded requests: what people have in files, read with care.

`read(path)` recognises a file by its header:

- **Azure LLM inference 2023**: `TIMESTAMP,ContextTokens,GeneratedTokens`, seven fraction digits; one request a row.
- **serQ**: `session,turn,new,out,think[,forced]`; consecutive rows of one session id are its turns; no arrival times.

**Source:** `formats.md`; `spec/ir14.md`, section Arrivals and sessions.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from .errors import ProgramError

AZURE_2023 = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SERQ = ("session", "turn", "new", "out", "think")

#: Headers of formats that are known but not read yet, by a column that tells them.
OTHER = {
    "NumImages": "Azure 2025 multimodal", "Request tokens": "BurstGPT", "hash_ids": "Mooncake",
    "arrival_timestamp": "Splitwise-sim", "num_prefill_tokens": "Vidur", "input_toks": "LLMServingSim",
    "StartTimeOffset": "APEX+", "prefix_group": "BLIS TraceV2",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """One timed request: seconds after the first one, tokens of the prompt and of the answer."""

    at_s: float
    input_tok: int
    output_tok: int


@dataclasses.dataclass(frozen=True)
class SessionTurn:
    """One turn: new prompt tokens, output tokens, seconds of thinking after it, forced value (0 if absent)."""

    new_tok: int
    output_tok: int
    think_s: float
    forced: float = 0.0


@dataclasses.dataclass(frozen=True)
class TraceFile:
    """What a file held.

    - `kind`: `"azure_2023"` (timed requests in `rows`) or `"serq"` (sessions in `sessions`).
    - `dropped`: rows left out, by the reason: `zero_output` (nothing generated: a failed request),
      `zero_input` (an empty prompt: no server takes it).
    """

    path: str
    kind: Literal["azure_2023", "serq"]
    rows: tuple[Request, ...] = ()
    sessions: tuple[tuple[SessionTurn, ...], ...] = ()
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)


def read(path: str | Path) -> TraceFile:
    """Read a trace file.

    **Raises:** `ProgramError` for a missing, empty or unknown file, and for a row that cannot be read
    (with its line number): a missing or extra field, null, NaN, a negative, infinite or fractional
    number of tokens, a time before the row above it.
    """
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ProgramError.at(name, "there is no such file") from None
    except IsADirectoryError:
        raise ProgramError.at(name, "is a folder, not a file") from None
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read ({error.__class__.__name__})"
        raise ProgramError.at(name, problem, "give a CSV file in UTF-8") from None
    if "\0" in text:
        raise ProgramError.at(name, "is not a text file", "give a CSV file in UTF-8")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ProgramError.at(name, "the file is empty", "give a trace with a header and rows")
    first = lines[0][1]
    header = tuple(field.strip() for field in next(csv.reader([first])))
    if header == AZURE_2023:
        return _azure(name, lines[1:])
    if header[:5] == SERQ or _serq_row(first) or first.startswith("#"):
        return _serq(name, lines)
    for column, form in OTHER.items():
        if column in first:
            raise ProgramError.at(name, f"{form} traces are not read yet", "use an Azure 2023 or a serQ CSV file")
    if first.lstrip().startswith(("{", "[")):
        raise ProgramError.at(name, "JSON traces are not read yet", "use an Azure 2023 or a serQ CSV file")
    raise ProgramError.at(name, f"unknown columns `{first[:100]}`",
                          f"known: `{','.join(AZURE_2023)}` (Azure 2023) and `{','.join(SERQ)}` (serQ)")


def _serq_row(line: str) -> bool:
    """A serQ file may come without a header: five or six numbers."""
    fields = line.split(",")
    return len(fields) in (5, 6) and all(re.fullmatch(r"\s*-?[\d.eE+-]+\s*", f) for f in fields)


class _Row:
    """Fields of one line, and errors that name it."""

    def __init__(self, name: str, line_number: int, row_number: int, line: str, columns: tuple[str, ...],
                 optional: int = 0) -> None:
        self.place = f"{name}:{line_number}"
        self.row = row_number
        self.columns = columns
        self.fields = [field.strip() for field in next(csv.reader([line]))]
        if not len(columns) - optional <= len(self.fields) <= len(columns):
            raise self.bad(f"{len(self.fields)} fields instead of {len(columns)}", f"columns: {','.join(columns)}")

    def bad(self, problem: str, hint: str = "") -> ProgramError:
        return ProgramError.at(self.place, f"row {self.row}: {problem}", hint)

    def number(self, column: int) -> float:
        text, name = self.fields[column], self.columns[column]
        try:
            value = float(text)
        except ValueError:
            raise self.bad(f"{name} is {text!r}, not a number" if text else f"{name} is missing",
                           "repair or remove the row") from None
        if not math.isfinite(value):
            raise self.bad(f"{name} is {text}", "repair or remove the row")
        if value < 0:
            raise self.bad(f"{name} is {text}, below 0", "repair or remove the row")
        return value

    def tokens(self, column: int) -> int:
        value = self.number(column)
        if value != int(value) or value > 2**31:
            raise self.bad(f"{self.columns[column]} is {self.fields[column]}, not a whole number of tokens",
                           "repair or remove the row")
        return int(value)


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


def _azure(name: str, lines: list[tuple[int, str]]) -> TraceFile:
    rows: list[Request] = []
    dropped: dict[str, int] = {}
    origin = last = None
    for row_number, (line_number, line) in enumerate(lines, 1):
        row = _Row(name, line_number, row_number, line, AZURE_2023)
        stamp = row.fields[0]
        time = nanoseconds(stamp)
        if time is None:
            raise row.bad(f"TIMESTAMP is {stamp!r}, not a time" if stamp else "TIMESTAMP is missing",
                          "write it as 2023-11-16 18:17:03.9799600")
        if last is not None and time < last:
            raise row.bad(f"TIMESTAMP {stamp} is before the row above it",
                          "sort the rows by time, and do not mix traces with different origins")
        origin, last = time if origin is None else origin, time
        input_tok, output_tok = row.tokens(1), row.tokens(2)
        reason = "zero_output" if output_tok == 0 else "zero_input" if input_tok == 0 else None
        if reason is not None:
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        rows.append(Request((time - origin) / 1e9, input_tok, output_tok))
    if not rows:
        raise ProgramError.at(name, "the trace has no rows to replay")
    return TraceFile(name, "azure_2023", rows=tuple(rows), dropped=dropped)


def _serq(name: str, lines: list[tuple[int, str]]) -> TraceFile:
    sessions: list[list[SessionTurn]] = []
    dropped: dict[str, int] = {}
    current: float | None = None
    row_number = 0
    for line_number, line in lines:
        if line.startswith(("#", "session")):
            continue
        row_number += 1
        row = _Row(name, line_number, row_number, line, (*SERQ, "forced"), optional=1)
        session = row.number(0)
        new_tok, output_tok, think_s = row.tokens(2), row.tokens(3), row.number(4)
        forced = row.number(5) if len(row.fields) == 6 else 0.0
        if session != current:
            sessions.append([])
            current = session
        reason = "zero_output" if output_tok == 0 else "zero_input" if new_tok == 0 and not sessions[-1] else None
        if reason is not None:
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        sessions[-1].append(SessionTurn(new_tok, output_tok, think_s, forced))
    kept = tuple(tuple(turns) for turns in sessions if turns)
    if not kept:
        raise ProgramError.at(name, "the trace has no rows to replay")
    return TraceFile(name, "serq", sessions=kept, dropped=dropped)
