"""Programs as arrays: numbers, session data and sizes, from host objects.

**Source:** `design.md`, section 3 (leaves), section 4 (Tables).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..ir.grids import Dense, Grid, dense
from ..ir.program import Batch, Closed, Listed, Program
from ..ir.structure import number
from .access import FAR
from .lane import Data, GridData


def ticks(seconds: float | None, tick_s: float) -> int:
    """Seconds as ticks, half to even; None and infinity lie beyond everything."""
    if seconds is None or seconds == float("inf"):
        return FAR
    return round(seconds / tick_s)


def _padded(n: int) -> int:
    """Sizes of data grow in steps, so that traces of nearly equal length share a compiled loop."""
    size = 1
    while size < n:
        size *= 2
    return size


def recordings(programs: Sequence[Program]) -> tuple[list[Program], list[int]]:
    """One program for each set of session data and tables of costs, and which of them each program reads.

    Programs that differ in numbers alone share their sessions, so that the shape of the data, and with it the compiled
    loop, does not depend on how many of them a batch has.
    """
    same: dict[Any, int] = {}  # by identity: what is shared is compared once, not hashed for each program
    places: dict[Any, int] = {}
    rows: list[Program] = []
    scripts = []
    for program in programs:
        listed = program.arrival if isinstance(program.arrival, Listed) else None
        ids = (id(listed), id(program.trace), program.tick_s, id(program.tables))
        if ids not in same:
            key = (listed, program.trace, program.tick_s, program.tables)
            if key not in places:
                places[key] = len(rows)
                rows.append(program)
            same[ids] = places[key]
        scripts.append(same[ids])
    return rows, scripts


def session_data(programs: Sequence[Program]) -> Data:
    """Listed sessions and traces of structurally equal programs, padded to common sizes, as numpy arrays."""
    n = len(programs)
    at_rows, value_rows, scripts = [], [], []
    for program in programs:
        arrival = program.arrival
        listed = isinstance(arrival, Listed)
        at_rows.append([ticks(t, program.tick_s) for t in arrival.at] if listed else [])
        value_rows.append(list(arrival.values) if listed else [])
        if program.trace is not None:
            scripts.append(program.trace.turns)
        else:
            scripts.append(arrival.turns if listed else ())
    sessions = _padded(max([1, *(len(r) for r in at_rows)]))
    n_scripts = _padded(max([1, *(len(s) for s in scripts)]))
    rows = _padded(max([1, *(sum(len(t) for t in s) for s in scripts)]))
    n_values = max([0, *(len(v) for r in value_rows for v in r)])
    n_turn = max([0, *(len(row) for s in scripts for t in s for row in t)])
    at = np.full((n, sessions), FAR, np.int64)
    values = np.full((n, sessions, n_values), np.nan)
    turns = np.full((n, rows, n_turn), np.nan)
    start = np.zeros((n, n_scripts), np.int64)
    count = np.zeros((n, n_scripts), np.int64)
    for i in range(n):
        at[i, : len(at_rows[i])] = at_rows[i]
        if n_values and value_rows[i]:
            values[i, : len(value_rows[i])] = np.asarray(
                [[np.nan if v is None else v for v in row] for row in value_rows[i]], np.float64
            )
        here = 0
        for j, script in enumerate(scripts[i]):
            start[i, j], count[i, j] = here, len(script)
            for row in script:
                turns[i, here] = [np.nan if v is None else v for v in row]
                here += 1
    names, content_start, content_count = recorded_contents(programs, n_scripts)
    columns: dict[str, Any] = {
        "at": at, "values": values, "turns": turns, "turn_start": start, "turn_count": count, "contents": names,
        "content_start": content_start, "content_count": content_count, "grids": grid_data(programs),
    }  # fmt: skip
    return Data(**columns)


def rows_of(data: Data, scripts: np.ndarray) -> tuple[Data, np.ndarray]:
    """The session data that a unit of lanes reads, and the row of it that each lane reads.

    Where there are several rows, as many as lanes: the shape, and with it the compiled loop, does not depend on how
    many programs a batch has.
    """
    if len(data.at) == 1:
        return data, scripts
    return jax.tree.map(lambda table: table[scripts], data), np.arange(len(scripts), dtype=np.int32)


def grid_data(programs: Sequence[Program]) -> tuple[GridData, ...]:
    """Tables of the programs, each padded to a common size."""
    made: dict[int, Dense] = {}

    def of(grid: Grid) -> Dense:
        if id(grid) not in made:
            made[id(grid)] = dense(grid)
        return made[id(grid)]

    found = []
    for k, first in enumerate(programs[0].tables):
        full = [of(program.tables[k]) for program in programs]
        sizes = [_padded(max(len(d.coordinates[a]) for d in full)) for a in range(len(first.axes))]
        coordinates = [np.full((len(full), size), np.inf) for size in sizes]
        values = np.full((len(full), *sizes), np.nan)
        for i, d in enumerate(full):
            for a, at in enumerate(d.coordinates):
                coordinates[a][i, : len(at)] = at
            values[i][tuple(slice(n) for n in d.values.shape)] = d.values
        missing = np.asarray([np.nan if (m := p.tables[k].missing) is None else m for p in programs])
        columns: dict[str, Any] = {"coordinates": tuple(coordinates), "values": values, "missing": missing}
        found.append(GridData(**columns))
    return tuple(found)


def recorded_contents(programs: Sequence[Program], scripts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Recorded contents of each program's sessions: `names` `[programs, all]`, first place and number of each row.

    A name of 64 bits becomes a number that also stands for all names before it in its row.
    """
    rows: list[tuple[tuple[int, ...], ...]] = [getattr(p.trace or p.arrival, "contents", ()) for p in programs]
    scripts = max(scripts, _padded(max([1, *(len(r) for r in rows)])))
    names = np.zeros((len(programs), _padded(max([1, *(sum(map(len, r)) for r in rows)]))), np.int32)
    start, count = np.zeros((2, len(programs), scripts), np.int64)
    for i, program in enumerate(rows):
        known: dict[tuple[int, int], int] = {}
        here = 0
        for j, row in enumerate(program):
            start[i, j], count[i, j] = here, len(row)
            before = -1
            for name in row:
                before = known.setdefault((before, name), len(known))
                names[i, here] = before
                here += 1
    return names, start, count


def likely_sessions(program: Program) -> int:
    """How many sessions may be live at once, as far as the arrivals tell: the table's first size."""
    arrival = program.arrival
    if isinstance(arrival, (Closed, Batch)):
        return int(number(program, arrival.n) or 0)
    if isinstance(arrival, Listed):
        return max(sum(t <= 0 for t in arrival.at), min(len(arrival.at), 256))
    return 0
