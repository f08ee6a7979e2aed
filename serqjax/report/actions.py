"""The action trace of a run as a table: everything that the engine did, in order.

**Source:** `serqjax/report/raw.py` (the kinds and their amounts); `spec/semantics.md`, section 13.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from ..ir.program import Program
from .raw import Action, RawRun
from .units import seconds

if TYPE_CHECKING:
    import polars

#: Names of the kinds; the place in the tuple is the number of the kind (0 is none).
KINDS = ("", *(action.name for action in Action))

_OF_POOLS = (Action.admit, Action.grow, Action.evict, Action.preempt, Action.release, Action.cache, Action.reject)
_OF_STAGES = (Action.iteration, Action.give, Action.token)

#: Columns of the table, in order, with what they hold.
COLUMNS: dict[str, str] = {
    "tick": "when, in ticks of the program (int64)",
    "time_s": "when, in seconds",
    "kind": "arrive, admit, iteration, give, grow, evict, preempt, release, cache, token, end or reject",
    "session": "serial number of the session; -1: none (an iteration, an entry that nobody owns)",
    "place": "pool or stage; empty for arrive and end",
    "amount": "admit, grow, evict, release, cache: units; preempt: the position given up; reject: units asked; "
    "iteration, give: tokens; token: those of a decode, 0 for the end of a prefill; else 0",
}


class ActionRow(NamedTuple):
    """One action; the fields are the columns of `COLUMNS`, kind and place by name."""

    tick: int
    time_s: float
    kind: str
    session: int
    place: str
    amount: float


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ActionTable:
    """The actions of one run in the order in which they happened.

    Iterating gives an `ActionRow` each; `table["tick"]` is a column as a numpy array; `to_polars()` the whole.

    - `program`: names the pools and stages. `rows`: `[actions, 5]`, as `RawRun.trace`.
    """

    program: Program
    rows: np.ndarray
    tick_s: float

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns of `COLUMNS`; kind and place are text."""
        number = self.rows.reshape(-1, 5)[:, :4].astype(np.int64)
        tick, kind, session, place = number.T
        names = np.full(len(tick), "", dtype=object)
        for kinds, parts in ((_OF_POOLS, self.program.pools), (_OF_STAGES, self.program.stages)):
            of = np.isin(kind, kinds)
            if of.any():
                names[of] = np.asarray([part.name for part in parts], dtype=object)[place[of]]
        return {
            "tick": tick,
            "time_s": seconds(tick, self.tick_s),
            "kind": np.asarray(KINDS, dtype=object)[kind],
            "session": session,
            "place": names,
            "amount": self.rows.reshape(-1, 5)[:, 4].astype(np.float64),
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in COLUMNS:
            raise KeyError(f"the actions have no column {name!r}: they have {', '.join(COLUMNS)}")
        return self.columns[name]

    def __iter__(self) -> Iterator[ActionRow]:
        return map(ActionRow._make, zip(*(self.columns[name].tolist() for name in COLUMNS)))

    def to_polars(self) -> polars.DataFrame:
        """The columns of `COLUMNS` as a polars frame."""
        import polars

        text = {name: polars.Series(self[name].tolist(), dtype=polars.String) for name in ("kind", "place")}
        return polars.DataFrame({name: text.get(name, self[name]) for name in COLUMNS})

    def _repr_html_(self) -> str:
        return self.to_polars()._repr_html_()

    def __repr__(self) -> str:
        return f"ActionTable({len(self)} actions)"


def action_table(program: Program, raw: RawRun) -> ActionTable:
    """The actions of a run. **Raises:** `ValueError` if none were kept."""
    if raw.trace is None:
        raise ValueError("no actions were kept: run with trace=True")
    return ActionTable(program, raw.trace, raw.tick_s)
