"""Gauges and claims: what is read besides what every run measures.

**Source:** semantics.md sections 2 (when gauges are read) and 13 (gauges, claims).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from serqjax.ir import expr
from serqjax.ir import program as ir
from serqjax.ir.structure import walk
from serqjax.report.raw import ClaimTotals

from .expressions import Look

if TYPE_CHECKING:
    from .machine import Machine
    from .session import Session


class Gauges:
    """Read when an instant is over and the clock is about to move, and once more at the end.

    A reading that differs from the one before is a change point.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.values = [machine.compiler.expr(gauge.value) for gauge in machine.program.gauges]
        self.held: list[float | None] = [None] * len(self.values)
        self.index, self.tick, self.value = array("q"), array("q"), array("d")

    def read(self) -> None:
        look = Look([], self.machine.machine_stream)
        for i, f in enumerate(self.values):
            value = f(look)
            if value != self.held[i]:
                self.held[i] = value
                self.index.append(i)
                self.tick.append(self.machine.now_tick)
                self.value.append(value)


class Claims:
    """Readings of claims. One whose `given` some session fails is not read any more."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.claims = machine.program.claims
        self.totals = [ClaimTotals() for _ in self.claims]
        self.given = [machine.compiler.optional(claim.given) for claim in self.claims]
        self.over: list[list[tuple[ClaimTotals, bool, Callable[[Look], float]]]] = [[] for _ in machine.program.stages]
        for claim, totals in zip(self.claims, self.totals):
            if not isinstance(claim.kind, ir.AtEnd):
                some = isinstance(claim.kind, ir.SomeIteration)
                row = totals, some, machine.compiler.expr(claim.value)
                self.over[machine.stage_index[claim.kind.stage]].append(row)
        #: All values of the observations that claims aggregate, by name, warm-up included.
        self.values: dict[str, list[float]] = {
            node.observe: [] for _, node in walk(self.claims) if isinstance(node, expr.Agg)
        }

    def session_starts(self, session: Session) -> None:
        """After its `init`: is it in the scope of every claim?"""
        for totals, given in zip(self.totals, self.given):
            if given is not None and totals.outside < 0 and given(session.look) == 0.0:
                totals.outside = session.serial

    def iteration_starts(self, stage: int, variables: dict[str, float]) -> None:
        """`variables`: what the cost of the iteration sees, `Demand`, `Served` and `Arrived`."""
        for totals, some, f in self.over[stage]:
            if totals.outside < 0:
                look = Look([], self.machine.machine_stream, None, variables)
                self.count(totals, f(look), witness=some)

    def run_ends(self) -> None:
        for claim, totals in zip(self.claims, self.totals):
            if isinstance(claim.kind, ir.AtEnd) and totals.outside < 0 and not self.machine.live:
                self.count(totals, self.machine.compiler.expr(claim.value)(Look([], self.machine.machine_stream)))

    def count(self, totals: ClaimTotals, value: float, *, witness: bool = False) -> None:
        totals.checked += 1
        totals.failures += value == 0.0
        if totals.first_tick < 0 and (value == 0.0) != witness:
            totals.first_tick = self.machine.now_tick

    def aggregate(self, fun: str, observe: str) -> float:
        values = self.values[observe]
        match fun:
            case "Count":
                return float(len(values))
            case "Total":
                return add_up(values)
            case "Largest":
                return max(values, default=0.0)
            case "Smallest":
                return min(values, default=0.0)
            case "PrefixTotal":
                return add_up([v * (len(values) - i) for i, v in enumerate(sorted(values))])
        raise ValueError(fun)


def add_up(values: list[float]) -> float:
    """The sum in order, each addition rounded (`sum` of newer Pythons is more exact)."""
    total = 0.0
    for value in values:
        total += value
    return total
