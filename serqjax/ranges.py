"""Tables read outside the range of their points: counted, and said.

A table says how it is continued outside (`ir.Axis`); a cost that is often read there says little about the machine. A
claim for each axis counts the iterations in which that happens; the results of a run do not depend on it. Claims are
read at every iteration, so a program that takes many as one update is watched only where its caller asks for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import msgspec

from .errors import RangeWarning
from .ir.expr import Binary, Ctx, Expr, Num, Reg, Sample, Table
from .ir.program import Claim, EveryIteration, Program, Step
from .ir.structure import walk

NAME = "table `{table}`: `{axis}` from {low:g} to {high:g}"


def _claims(program: Program) -> Iterator[Claim]:
    grids = {grid.name: grid for grid in program.tables}
    for stage in program.stages:
        if not isinstance(stage.kind, Step):
            continue
        limits: dict[str, list[Expr]] = {}
        for _, node in walk(stage.kind.cost):
            if not isinstance(node, Table) or node.table not in grids:
                continue
            grid = grids[node.table]
            for k, (axis, at) in enumerate(zip(grid.axes, node.args)):
                if axis.between == "linear" and not any(isinstance(part, (Sample, Reg)) for _, part in walk(at)):
                    low, high = min(row[k] for row in grid.rows), max(row[k] for row in grid.rows)
                    inside = Binary("And", Binary("Ge", at, Num(low)), Binary("Le", at, Num(high)))
                    name = NAME.format(table=grid.name, axis=axis.name, low=low, high=high)
                    limits.setdefault(f"{name} in {stage.name}", []).append(inside)
        for name, inside in limits.items():
            value: Expr = inside[0]
            for other in inside[1:]:
                if other not in inside[: inside.index(other)]:
                    value = Binary("And", value, other)
            # an iteration that only preempts reads no table
            value = Binary("Or", Binary("Le", Ctx("Ntok"), Num(0.0)), value)
            yield Claim(name=name, kind=EveryIteration(stage=stage.name), value=value)


def watch_tables(program: Program) -> Program:
    """The program with a claim for each linear axis of each table that a step cost reads: inside its points. (Not for
    an axis that is read at a random draw or a register, which a claim cannot see.)

    Its iterations pass one by one. `Run` reports the claims; `outside` says them in words.
    """
    there = {claim.name for claim in program.claims}
    made = tuple(claim for claim in _claims(program) if claim.name not in there)
    return msgspec.structs.replace(program, claims=program.claims + made) if made else program


def outside(program: Program, raw: Any) -> list[str]:
    """A sentence for each axis that a run has left, with the number of its iterations.

    **Arguments:** `raw`: the `RawRun` of a watched program.
    """
    known = {claim.name for claim in _claims(program)}
    return [
        f"{claim.name}: left in {totals.failures:,} of {totals.checked:,} iterations, the first at "
        f"{totals.first_tick * raw.tick_s:.3f} s; there the table is continued as its axis says"
        for claim, totals in zip(program.claims, raw.claims) if claim.name in known and totals.failures
    ]  # fmt: skip


def warn_outside(program: Program, raw: Any) -> None:
    """Warn of what `outside` finds."""
    for sentence in outside(program, raw):
        warnings.warn(sentence, RangeWarning, stacklevel=3)
