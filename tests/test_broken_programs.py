"""No program, however broken, gets anything but a `ProgramError` that names its places."""

from __future__ import annotations

import json
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_check import BASE, BELOW, NAN, ONE, ZERO, attr, replaced, steps_of

from serqjax.check import as_text, check_program, describe, unsupported
from serqjax.check.facts import facts_of
from serqjax.errors import ProgramError
from serqjax.ir import expr as e
from serqjax.ir import program as p
from serqjax.ir.structure import walk

WRECKAGE = (
    None, 0, -1, 7, 0.5, -3.0, 1e300, math.nan, math.inf, "", "kv", "E", "serve", "request", "nowhere", True, (),
    ONE, ZERO, BELOW, NAN, e.Inf(), e.Param("again"), e.Param("x"), attr("input"), attr("x"), e.Ctx("Now"),
    e.Ctx("Size"), e.Member("kv", attr("input")), e.Member("kv", e.Inf()), e.Sample("Exp", ()),
    e.Sample("Erlang", (attr("input"), ONE)), e.Call("Floor", (ONE, ONE)), e.PoolState("Used", "E"),
    e.StageState("BudgetLeft", "tool"), e.Price("E", ONE, ONE), e.Binary("Div", ONE, ZERO), e.Cond(NAN, ONE, ONE),
    e.Binary("Pow", e.Num(1e300), e.Num(1e300)), p.End(), p.Goto("turn"), p.Leave("turn"), p.Enter("request"),
    p.Grow("kv", ONE, "end"), p.Fork("turn", "end"), p.Join("end"), p.EndLeg(), p.Turn(),
    p.Choose("input", ONE, (attr("input"),)), p.Choose("input", e.Inf(), (NAN,)), p.Drop("kv"), p.Load("kv", ONE),
    p.Shrink("kv", ONE, "end"), p.Release("kv", "end"), p.Lease(pool="kv", after_s=ONE),
    p.Spill(to="kv", via="E", work=ONE, when=ONE), p.Delay(), p.Fifo(ONE), p.NoArrival(), p.Closed(e.Num(3.0)),
    p.Deadline(after=ONE, target="turn"), p.Order(tie="queued"), ((1.0,), (2.0,)),
)  # fmt: skip


def wreck(program: p.Program, data: st.DataObject) -> p.Program:
    """One random part replaced: by rubbish, or by another part of its kind."""
    places = dict(walk(program))
    path = data.draw(st.sampled_from(list(places)[1:]), label="place")
    kind = e.Node if isinstance(places[path], e.Node) else type(places[path])
    alike = [node for node in places.values() if isinstance(node, kind)]
    value = data.draw(st.sampled_from(WRECKAGE) | st.sampled_from(alike) | st.sampled_from(alike), label="value")
    return replaced(program, steps_of(path[1:]), value)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), base=st.sampled_from(sorted(BASE)))
def test_broken_programs_raise_only_program_errors(data: st.DataObject, base: str) -> None:
    program = BASE[base]()
    for _ in range(data.draw(st.integers(1, 3))):
        try:
            program = wreck(program, data)
        except (AttributeError, TypeError):  # an earlier wreck removed the place
            break
    try:
        facts = check_program(program)
    except ProgramError as error:
        assert error.problems and all(x.path.startswith("$") and x.problem for x in error.problems)
        assert len(str(error)) <= 4000
        return
    assert facts == facts_of(program)
    assert hash(facts) is not None
    unsupported(program)
    json.dumps(describe(program, facts), allow_nan=False)
    as_text(program, facts)
