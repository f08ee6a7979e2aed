"""Traces in CSV: timed requests, and sessions of turns.

**Source:** `docs/traces.md`; `spec/ir14.md`, section Arrivals and sessions.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from ..errors import ProgramError
from .rows import Clock, Row, SessionTurn, Table, TraceFile, nothing, read_table

SERQ = ("session", "turn", "new", "out", "think")
#: Columns of an exported run of sessions.
SESSIONS = ("session", "turn", "at_s", "new_tok", "output_tok", "think_s")

#: Lines with their numbers.
Lines = Iterator[tuple[int, str]]


def _one_prompt(row: Row) -> None:
    if row.fields.get("batch_size") not in (None, "") and row.value("batch_size") != 1:
        raise row.bad(f"batch_size is {row.fields['batch_size']}: rows of several prompts are not read",
                      "write one row a prompt")


#: Formats by the columns that tell them; all columns are found by their names.
TABLES: tuple[tuple[tuple[str, ...], Table], ...] = (
    (("TIMESTAMP", "NumImages", "ContextTokens", "GeneratedTokens"),
     Table("azure_2025", Clock("TIMESTAMP", 10**9, stamp=True), "ContextTokens", "GeneratedTokens", ("NumImages",))),
    (("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
     Table("azure_2023", Clock("TIMESTAMP", 10**9, stamp=True), "ContextTokens", "GeneratedTokens")),
    (("Timestamp", "Request tokens", "Response tokens"),
     Table("burstgpt", Clock("Timestamp"), "Request tokens", "Response tokens",
           ("Session ID", "Model", "Log Type"))),
    (("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
     Table("vidur", Clock("arrived_at"), "num_prefill_tokens", "num_decode_tokens")),
    (("arrival_timestamp", "prompt_size", "token_size"),
     Table("splitwise", Clock("arrival_timestamp"), "prompt_size", "token_size",
           ("request_type", "application_id"), check=_one_prompt)),
    (("at_s", "input_tok", "output_tok"),
     Table("serqjax_requests", Clock("at_s", from_first=False), "input_tok", "output_tok", ("priority", "tenant"),
           ids="hash_ids")),
)  # fmt: skip

#: Formats that are known and not read, by a column that tells them.
OTHER = {"prefix_group": "BLIS TraceV2"}


def read_csv(path: str, header: str, lines: Lines) -> TraceFile:
    """`header`: the first line, which is not among `lines`."""
    fields = next(csv.reader([header]), [])
    columns = tuple(field.strip() for field in fields)
    if columns[: len(SESSIONS)] == SESSIONS:
        return _sessions(path, columns, lines)
    for wanted, table in TABLES:
        if set(wanted) <= set(columns):
            if len(set(columns)) < len(columns):
                raise ProgramError.at(path, f"two columns have one name in `{header[:100]}`", "rename one of them")
            return _timed(path, table, columns, lines)
    if columns[:5] == SERQ or _serq_row(header) or header.startswith("#"):
        return _serq(path, header, lines)
    for column, form in OTHER.items():
        if column in columns:
            raise ProgramError.at(path, f"{form} traces are not read", "write the columns at_s,input_tok,output_tok")
    known = "; ".join(f"`{','.join(wanted)}` ({table.kind})" for wanted, table in TABLES)
    raise ProgramError.at(path, f"unknown columns `{header[:100]}`", f"known: {known}; `{','.join(SERQ)}` (serq)")


def _timed(path: str, table: Table, columns: tuple[str, ...], lines: Lines) -> TraceFile:
    trace = read_table(path, table, rows := _Peeked(_rows(path, columns, lines)), columns)
    later = table.kind == "azure_2023" and not str(rows.first.fields["TIMESTAMP"]).startswith("2023")
    return dataclasses.replace(trace, kind="azure_2024") if later else trace


class _Peeked(Iterator[Row]):
    """Rows, of which the first one is remembered."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self.rows, self.first = rows, Row("", 0, {})

    def __next__(self) -> Row:
        row = next(self.rows)
        if not self.first.fields:
            self.first = row
        return row


def _rows(path: str, columns: tuple[str, ...], lines: Lines, optional: int = 0) -> Iterator[Row]:
    """Rows by column name; `optional`: so many fields at the end may be absent."""
    for number, (line_number, fields) in enumerate(_fields(lines), 1):
        if not len(columns) - optional <= len(fields) <= len(columns):
            raise ProgramError.at(f"{path}:{line_number}",
                                  f"row {number}: {len(fields)} fields instead of {len(columns)}",
                                  f"columns: {','.join(columns)}")
        row: dict[str, object] = dict(zip(columns, map(str.strip, fields)))
        if "hash_ids" in row:  # with blanks between
            words = str(row["hash_ids"]).split()
            row["hash_ids"] = [int(word) if re.fullmatch(r"-?\d+", word) else word for word in words]
        yield Row(f"{path}:{line_number}", number, row)


def _fields(lines: Lines) -> Iterator[tuple[int, list[str]]]:
    """Fields of each line: a row is one line."""
    for line_number, line in lines:
        yield line_number, next(csv.reader([line])) if '"' in line else line.split(",")


# ---------------------------------------------------------------- sessions


def _serq_row(line: str) -> bool:
    """A serQ file may come without a header: five or six numbers."""
    fields = line.split(",")
    return len(fields) in (5, 6) and all(re.fullmatch(r"\s*-?[\d.eE+-]+\s*", f) for f in fields)


def _serq(path: str, header: str, lines: Lines) -> TraceFile:
    """Consecutive rows of one session id are its turns; without times."""
    first = () if header.startswith(("#", "session")) else ((1, header),)

    def data() -> Lines:
        yield from first
        for number, line in lines:
            if not line.startswith(("#", "session")):
                yield number, line

    sessions: list[list[SessionTurn]] = []
    dropped: dict[str, int] = {}
    current: float | None = None
    for row in _rows(path, (*SERQ, "forced"), data(), optional=1):
        session = row.value("session")
        new_tok, output_tok, think_s = row.tokens("new"), row.tokens("out"), row.value("think")
        forced = row.value("forced") if "forced" in row.fields else 0.0
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
        raise nothing(path, dropped)
    return TraceFile(path, "serq", sessions=kept, dropped=dropped)


def _sessions(path: str, columns: tuple[str, ...], lines: Lines) -> TraceFile:
    """An exported run of sessions: as serQ's rows, with the time of the first turn."""
    sessions: list[list[SessionTurn]] = []
    starts: list[float] = []
    current: float | None = None
    for row in _rows(path, columns, lines):
        session, at_s = row.value("session"), row.value("at_s")
        turn = SessionTurn(row.tokens("new_tok"), row.tokens("output_tok"), row.value("think_s"))
        if turn.output_tok == 0 or (turn.new_tok == 0 and session != current):
            raise row.bad("a turn has output tokens, and the first one a prompt")
        if session != current:
            if starts and at_s < starts[-1]:
                raise row.bad(f"at_s {row.fields['at_s']} is before the session above it", "sort the sessions by time")
            sessions.append([])
            starts.append(at_s)
            current = session
        sessions[-1].append(turn)
    if not sessions:
        raise nothing(path, {})
    return TraceFile(path, "serqjax_sessions", sessions=tuple(map(tuple, sessions)), starts_s=tuple(starts))


def write(trace: TraceFile, path: str | os.PathLike[str]) -> None:
    """Write a trace as CSV that `read` reads back: requests with all the digits of their times (`at_s`), `hash_ids`
    and the columns `priority` and `tenant` if there are any; sessions with the times of their first turns, or in serQ's
    columns if they have none."""
    columns: list[str]
    rows: Iterable[Sequence[object]]
    if trace.rows:
        columns = ["at_s", "input_tok", "output_tok"]
        parts: list[Iterable[object]] = [[getattr(row, name) for row in trace.rows] for name in columns]
        if trace.has_prefixes:
            columns.append("hash_ids")
            parts.append([" ".join(map(str, row.hash_ids)) for row in trace.rows])
        for name in ("priority", "tenant"):
            if name in trace.columns:
                columns.append(name)
                parts.append(trace.columns[name])
        rows = zip(*parts)
    elif trace.starts_s:
        columns = list(SESSIONS)
        rows = ((n, k, start, t.new_tok, t.output_tok, t.think_s)
                for n, (start, turns) in enumerate(zip(trace.starts_s, trace.sessions)) for k, t in enumerate(turns, 1))
    else:
        columns = [*SERQ, "forced"]
        rows = ((n, k, t.new_tok, t.output_tok, t.think_s, t.forced)
                for n, turns in enumerate(trace.sessions) for k, t in enumerate(turns, 1))
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(",".join(columns) + "\n")
        for row in rows:
            file.write(",".join("" if v is None else repr(v) if isinstance(v, float) else str(v) for v in row) + "\n")
