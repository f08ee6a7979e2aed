"""What this interpreter does not run yet, refused by name and place.

Everything else of the language is run; the meaning of the refused parts is in semantics.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from serqjax.ir import program as ir
from serqjax.ir.program import Program
from serqjax.ir.structure import number

ENDLESS = (ir.Poisson, ir.Renewal, ir.Closed)


class Unsupported(ValueError):
    """The program uses something that the interpreter does not run; the message names every place."""


def problems(program: Program) -> Iterator[str]:
    if program.horizon_s is None and isinstance(program.arrival, ENDLESS) and program.arrivals is None:
        yield f"arrival: {type(program.arrival).__name__} never ends: give `horizon_s` or `arrivals`"
    if program.arrivals is not None and not isinstance(program.arrival, ir.Poisson | ir.Renewal):
        yield f"arrivals: only Poisson and Renewal count arrivals, not {type(program.arrival).__name__}"
    horizon_s, warmup_s = number(program, program.horizon_s), number(program, program.warmup_s) or 0.0
    if horizon_s is not None and not 0.0 <= warmup_s < horizon_s:
        yield f"warmup_s: {warmup_s:g} must lie between 0 and the horizon, {horizon_s:g} s"


def require_supported(program: Program) -> None:
    found = list(problems(program))
    if found:
        raise Unsupported("the sequential interpreter cannot run this program: " + "; ".join(found))
