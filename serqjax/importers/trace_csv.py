"""serQ trace CSV: sessions of turns, as data of the program.

Lines `session,turn,new,out,think[,forced]`; blank lines and lines that start with `#` or `session`
are skipped. Consecutive lines with the same session id are one session; the turn column is not read.

**Source:** `spec/ir14.md`, Arrivals and sessions; `formats.md`, serQ.
"""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import Problem, ProgramError

#: The columns a trace sets, in order.
COLUMNS = ("new", "out", "think", "forced")
Turns = tuple[tuple[tuple[float, ...], ...], ...]


def read_trace(path: Path) -> Turns:
    """The sessions of a trace file: `[session][turn]`, each turn one value per name of `COLUMNS`.

    **Raises:** `ProgramError` naming the file and the row (1-based line number) of what cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ProgramError.at(str(path), f"the trace cannot be opened ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise ProgramError.at(str(path), "the trace is not UTF-8 text", "give a CSV file") from None
    return parse_trace(text, path.name)


def parse_trace(text: str, name: str) -> Turns:
    """As `read_trace`, from text; `name` is the file name in messages."""
    problems: list[Problem] = []
    sessions: list[list[tuple[float, ...]]] = []
    last: int | None = None
    for row, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "session")):
            continue
        fields = [field.strip() for field in line.split(",")]
        place = f"{name}:{row}"
        if len(fields) not in (5, 6):
            problems.append(
                Problem(place, f"row {row} has {len(fields)} fields", "need session,turn,new,out,think[,forced]")
            )
            continue
        try:
            session = int(fields[0])
        except ValueError:
            problems.append(Problem(place, f"row {row}: session {fields[0]!r} is not a whole number"))
            continue
        values: list[float] = []
        for column, field in zip(COLUMNS, fields[2:]):
            value = _number(field)
            if value is None:
                problems.append(Problem(place, f"row {row}: {column} {field!r} is not a number"))
                break
            values.append(value)
        else:
            values += [0.0] * (len(COLUMNS) - len(values))
            if session != last:
                sessions.append([])
            last = session
            sessions[-1].append(tuple(values))
    if problems:
        raise ProgramError(problems)
    if not sessions:
        raise ProgramError.at(name, "the trace has no rows", "need session,turn,new,out,think[,forced]")
    return tuple(tuple(turns) for turns in sessions)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
