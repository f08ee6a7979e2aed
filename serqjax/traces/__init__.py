"""Recorded requests: what people have in files, read with care.

`read(path)` recognises a file by its content: Azure LLM inference (2023, 2024, 2025 multimodal), Mooncake, BurstGPT,
`vllm bench serve`, AIPerf, guidellm, Vidur, Splitwise, LLMServingSim, APEX, lists of lengths (ShareGPT), serQ, and what
`serqjax` itself exports. `docs/traces.md` has the table: names of the columns, units, what is left out and what is
refused.

**Source:** `docs/traces.md`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ..errors import ProgramError
from .documents import RESULTS, read_document, read_jsonl
from .rows import SPAN_TOK as SPAN_TOK
from .rows import Request as Request
from .rows import SessionTurn as SessionTurn
from .rows import TraceFile as TraceFile
from .rows import nanoseconds as nanoseconds
from .tables import read_csv
from .tables import write as write

_HINT = "give a CSV, JSON or JSONL file in UTF-8"


def read(path: str | Path) -> TraceFile:
    """Read a trace file; CSV and JSONL files are read line by line.

    **Returns:** the requests or sessions, what format they were in (`kind`), and what was left out (`dropped`, by
    reason); `str()` says it in a line. Times count from the first row.

    **Raises:** `ProgramError` for a missing, empty or unknown file, and for a row that cannot be read
    (with its line and row number): a missing or extra field, null, NaN, a negative, infinite or fractional
    number of tokens, a time before the row above it, times of different origins.
    """
    name = str(path)
    try:
        with open(path, encoding="utf-8-sig", newline=None) as file:
            return _recognised(name, file)
    except FileNotFoundError:
        raise ProgramError.at(name, "there is no such file") from None
    except IsADirectoryError:
        raise ProgramError.at(name, "is a folder, not a file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError.at(name, f"cannot be read ({error.__class__.__name__})", _HINT) from None


def _recognised(name: str, file: TextIO) -> TraceFile:
    lines = _lines(name, file)
    try:
        _, first = next(lines)
    except StopIteration:
        raise ProgramError.at(name, "the file is empty", "give a trace with a header and rows") from None
    if not first.lstrip().startswith(("{", "[")):
        return read_csv(name, first, lines)
    if _is_row(first):
        return read_jsonl(name, first, lines)
    return read_document(name, _document(name, "\n".join([first, *(line for _, line in lines)])))


def _is_row(line: str) -> bool:
    """Whether the first line is a row of a JSONL file: a whole object, and no results of a benchmark."""
    try:
        row = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and not any(key in row for key in RESULTS)


def _lines(name: str, file: TextIO) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    for number, line in enumerate(file, 1):
        if "\0" in line:
            raise ProgramError.at(name, "is not a text file", _HINT)
        line = line.rstrip("\r\n")
        if line and not line.isspace():
            yield number, line


def _document(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError.at(name, f"not JSON: {error}", "is the file complete?") from None
