"""An engine of four seats without limits of memory, and the listed requests that it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from serqjax.builder import Builder
from serqjax.ir.expr import Attr, Inf, Num
from serqjax.ir.program import End, Enter, Leave, Listed, Program, Respond, Run, Step, Turn


def serve(b: Builder, cost: Any, at: Iterable[float], requests: Sequence[tuple[float, float]]) -> Program:
    """The program of a builder whose parameters and tables are made: `cost` of an iteration, requests (new, out)."""
    for attr in ("new", "out"):
        b.attr(attr)
    b.pool("reqs", cap=Num(4.0), admit_via="gpu")
    b.pool("kv", cap=Inf())
    b.stage("gpu", Step(budget=Num(64.0), cost=b(cost)))
    b.scope("request", b.take("reqs", 1), b.take("kv", "Min(new, BudgetLeft(gpu))"), reentry="prefill")
    b.state("prefill", exit=Run("gpu", "Prefill", Attr("new"), "decode", grows="kv"), scope="request")
    b.state("decode", exit=Run("gpu", "Decode", b("out - 1"), "done", grows="kv"), scope="request")
    b.state("done", exit=Leave("answered"), scope="request")
    b.state("answered", Respond(), exit=End())
    b.state("start", Turn(), exit=Enter("request"))
    turns = tuple(((float(new), float(out)),) for new, out in requests)
    return b.program("start", Listed(at=tuple(map(float, at)), turn_attrs=("new", "out"), turns=turns))
