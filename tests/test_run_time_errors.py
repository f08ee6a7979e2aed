"""Every run-time error of the language: met by a program, alone in its batch, with session, place and time.

**Source:** `spec/semantics.md`, section 15. The oracle and the array engine say the same sentence, and the reference
ends with an error on the same programs. Every table is one structure: what goes wrong is a number, so its programs run
as one batch of one compiled function, the healthy one among them.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from compare_runs import as_program, compare_with_pyserq, first_difference, run_engine, run_oracle, run_pyserq
from generate_pools import leased
from ir14_builder import (
    DELAY,
    Body,
    Builder,
    Json,
    S,
    W,
    add,
    at,
    call,
    cond,
    ctx,
    hold,
    mul,
    num,
    of_pool,
    op,
    ref,
    see,
    sub,
    work,
)
from test_control import ERRORS as CONTROL
from test_control import fragile

from serqjax import ir
from serqjax.check import find_problems
from serqjax.ir.expr import Num

#: The lines of section 15, and the tables below that meet them.
LINES = {
    "a guard of `if` or `while`": {"brittle: guard", "brittle: while guard"},
    "an amount": {
        "brittle: work", "brittle: units", "brittle: reserve", "brittle: grown", "brittle: shrunk", "brittle: loaded",
    },
    "an index": {"fragile: index too large", "fragile: index not whole", "fragile: index of a hold"},
    "two references of a hold name one member": {"fragile: one member twice"},
    "a count of a choice": {"fragile: count not whole", "fragile: count too large"},
    "a load beyond the allocation": {"brittle: loaded too much"},
    "a renewal gap": {"gaps: gap"},
    "an instant that does not settle": {"brittle: spins"},
    "a session ends with a live leg": {"fragile: a live leg"},
    "a cycle of joins at the end": {"fragile: who waits for each other"},
    "an iteration with tokens and cost 0": {"busy: cost"},
    "a guard or register of an iteration": {"busy: test", "busy: gate", "busy: register"},
    "a request without a token": {"busy: output"},
    "horizon before the arrivals": {"gaps: horizon"},
    "sessions left at the horizon": {"gaps: drain"},
    "drained before the warm-up": {"gaps: warm-up"},
}  # fmt: skip
AMOUNT = "an amount is negative or not a number (units, tokens or seconds), "


def nan_if(expr: Json, wrong: Json) -> Json:
    """`expr`, or NaN where `wrong` is 1."""
    one = sub(num(1), wrong)
    return call("Floor", add(expr, mul(num(0), op("Div", one, one))))


def brittle(**values: float) -> Json:
    """Holds with everything that takes an amount; session 1, which comes at 1 s, is the one that may be wrong."""
    b = Builder()
    names = dict(start=0, guard=0, spins=0, work=1, units=4, reserve=4, kept=4, no_reuse=0, grown=1, shrunk=1, loaded=1,
                 lease=1)  # fmt: skip
    slot = {name: b.attr(name, "Size") for name in names}
    mem, tier = b.pool("mem", 12.0, preempt="None"), b.pool("tier", 99.0)
    tool, link, seen = b.stage("tool", DELAY), b.stage("link", {"Fifo": 1}), b.observe("seen")
    spilled = values.pop("spilled", 0.25)
    b.pools[mem]["spill"] = {"to": tier, "via": link, "when": num(1), "work": mul(num(spilled), ctx("Size"))}
    body = [
        (S, {"Load": [ref(mem), of_pool(mem, at(slot["loaded"]))]}),
        (S, {"Grow": [ref(mem), of_pool(mem, at(slot["grown"]))]}),
        (S, {"Shrink": [ref(mem), of_pool(mem, at(slot["shrunk"]))]}),
        (S, work(tool, at(slot["work"]))),
    ]
    takes = [(mem, at(slot["units"]), at(slot["reserve"]))]
    reuse = nan_if(num(2), at(slot["no_reuse"]))
    kept = nan_if(num(4), sub(num(4), at(slot["kept"])))
    held = hold(takes, body, reuse, kept)
    session = [
        (S, work(tool, at(slot["start"]))),
        (S, {"Branch": [at(slot["guard"]), Body([(S, see(seen, num(1)))]), Body()]}),
        (S, {"While": [at(slot["spins"]), Body([(S, work(tool, sub(at(slot["work"]), num(1))))])]}),
        (S, leased(held, mem, at(slot["lease"]))),
        (S, see(seen, ctx("Now"))),
        (S, work(link, num(1))),
        (S, {"Drop": ref(tier)}),
    ]
    rows = [names, names | dict(start=1) | values, names | dict(start=3), names | dict(start=5, units=11, reserve=11)]
    listed = [{"attrs": [[slot[n], float(row[n])] for n in names]} for row in rows]
    return b.finish(Random(1), {"Sessions": listed}, session, horizon=60)


def busy(**values: float) -> Json:
    """An engine with an iteration of its own; from the third iteration on a number is another one."""
    b = Builder()
    says = dict(budget=0, chunk=0, cost=0, test=1, gate=1, register=1, output=4) | values
    late = op("Ge", {"Reg": 0}, num(2))
    n, o, start = b.attr("n", "Size"), b.attr("o", "Size"), b.attr("start", "Size")
    e, tool, seen = 0, 1, b.observe("seen")
    kv = b.pool("kv", 64.0, admit_via=e)
    b.register("r", e)
    body = [
        {"Branch": [cond(late, num(says["test"]), num(1)), [{"Serve": {}}], []]},
        {"Admit": {"gate": cond(late, num(says["gate"]), num(1))}},
        {"Set": [0, add({"Reg": 0}, op("Div", num(1), cond(late, num(says["register"]), num(1))))]},
    ]
    request = {
        "pools": [[ref(kv), ctx("Known"), None]],
        "records": {"reused": b.observe("reused"), "prefill": b.observe("prefill"), "admitted": b.attr("adm"),
                    "first": b.attr("first"), "last_reused": b.attr("lr"), "last_prefill": b.attr("lp")},
    }  # fmt: skip
    b.stage("E", {"Step": {
        "budget": sub(num(16), mul(num(says["budget"]), late)), "chunk": sub(num(8), mul(num(says["chunk"]), late)),
        "cost": sub(num(1), mul(num(says["cost"]), op("Ge", ctx("Now"), num(2)))), "serve": {"By": []}, "memory": kv,
        "iteration": body, "request": request,
    }})  # fmt: skip
    b.stage("tool", DELAY)
    session = [(W, work(tool, at(start))), (S, {"Request": {"stage": ref(e), "input": at(n), "output": at(o)}}),
               (S, see(seen, ctx("Now")))]  # fmt: skip
    rows = [(5, 4, 0), (5, says["output"], 1), (6, 3, 1)]
    listed = [{"attrs": [[n, float(x)], [o, float(y)], [start, float(z)]]} for x, y, z in rows]
    return b.finish(Random(1), {"Sessions": listed}, session, horizon=60)


def gaps(**values: float) -> Json:
    """Ten arrivals, the gap between them and the end of the run as numbers."""
    b = Builder()
    says = dict(gap=1.5, horizon=100.0, warmup=2.0, work=1.0) | values
    tool, seen = b.stage("tool", DELAY), b.observe("seen")
    session = [(S, work(tool, num(says["work"]))), (S, see(seen, ctx("Now")))]
    gap = sub({"Sample": ["Det", [num(3)]]}, num(says["gap"]))
    return b.finish(Random(1), {"Renewal": gap}, session, horizon=says["horizon"], warmup=says["warmup"], arrivals=10)


ONE, STATE = "session 1: ", "at state `"
#: structure: what is wrong, numbers, the parts of the cause, the time of the error (None: the text says it)
TABLES: dict[str, tuple[Any, dict[str, tuple[dict[str, float], list[str], float | None]]]] = {
    "brittle": (brittle, {
        "nothing": ({}, [], None),
        "guard": ({"guard": 2}, [f"{ONE}a guard is neither 0 nor 1, {STATE}"], 1),
        "while guard": ({"spins": 0.5}, [f"{ONE}a guard is neither 0 nor 1, {STATE}"], 1),
        "spins": ({"spins": 1}, [f"{ONE}became ready 1001 times without time passing"], 1),
        "work": ({"work": -2}, [f"{ONE}{AMOUNT}{STATE}"], 1),
        "units": ({"units": -1}, [f"{ONE}{AMOUNT}in pool `mem`"], 1),
        "reserve": ({"reserve": -1}, [f"{ONE}{AMOUNT}in pool `mem`"], 1),
        "grown": ({"grown": -1}, [f"{ONE}{AMOUNT}{STATE}"], 1),
        "shrunk": ({"shrunk": -1}, [f"{ONE}{AMOUNT}{STATE}"], 1),
        "loaded": ({"loaded": -1}, [f"{ONE}{AMOUNT}in pool `mem`"], 1),
        "loaded too much": ({"loaded": 5}, [f"{ONE}a load passes the units allocated, in pool `mem`"], 1),
        # where the language asks for no amount, what is negative or not a number is 0
        "reuse is 0": ({"no_reuse": 1}, [], None),
        "kept is 0": ({"kept": 3}, [], None),
        "lease is 0": ({"lease": -1}, [], None),
        "spilled is 0": ({"spilled": -1}, [], None),
    }),
    "busy": (busy, {
        "nothing": ({}, [], None),
        "budget is 0": ({"budget": 17}, [], None),
        "chunk is none": ({"chunk": 9}, [], None),
        "cost": ({"cost": 1}, ["stage `E`: an iteration with tokens and cost 0"], 2),
        "test": ({"test": 2}, ["stage `E`: a test or gate of the iteration is neither 0 nor 1"], 2),
        "gate": ({"gate": 0.5}, ["stage `E`: a test or gate of the iteration is neither 0 nor 1"], 2),
        "register": ({"register": 0}, ["stage `E`: the value of a register is not a finite number"], 2),
        "output": ({"output": 0}, [f"{ONE}a request on E generates at least one token"], 1),
    }),
    "gaps": (gaps, {
        "nothing": ({}, [], None),
        "gap": ({"gap": 3}, ["the gap between arrivals is not positive"], 0),
        "horizon": ({"horizon": 4}, ["horizon 4 reached before requested arrivals: got 2, requested 10"], None),
        "drain": ({"horizon": 20, "work": 18}, ["failed to drain 9 active sessions within horizon 20"], None),
        "warm-up": ({"warmup": 50}, ["arrivals drained at 16 before or at warmup 50"], None),
    }),
}  # fmt: skip


def test_every_line_is_met() -> None:
    met = {f"{table}: {name}" for table, (_, rows) in TABLES.items() for name in rows}
    met |= {f"fragile: {name}" for name in CONTROL}
    named = {place for places in LINES.values() for place in places}
    assert {place for place in met if not place.endswith((": nothing", " is 0", " is none"))} == named


@pytest.mark.parametrize("table", TABLES)
def test_an_error_ends_its_own_instance_and_says_who_where_and_when(table: str) -> None:
    make, rows = TABLES[table]
    sources = [make(**values) for values, _, _ in rows.values()]
    programs = [as_program(source) for source in sources]
    runs = run_engine(programs)
    healthy, told = {"drained", "horizon", "deadlock"}, []
    for (name, (_, parts, when)), source, program, run in zip(rows.items(), sources, programs, runs, strict=True):
        raw, reference = run_oracle(program), run_pyserq(source)
        assert (reference.error is not None) == bool(parts), f"{name}: the reference says {reference.error}"
        if not parts:
            difference = compare_with_pyserq(source, raw, program, reference=reference)
            assert difference is None and raw.verdict.name in healthy, (name, difference, raw.cause)
        else:
            assert raw.verdict.name == "error", (name, raw.cause)
        found = first_difference(run, raw)
        assert found is None, f"{name}: engine (a) and oracle (b):\n{found}"
        expected = parts if when is None else [*parts, f", at t = {when} s"]
        if parts and not (all(part in raw.cause for part in expected) and run.cause == raw.cause):
            told.append(f"{name}: expected {expected}\n   oracle {raw.cause!r}\n   engine {run.cause!r}")
    assert not told, "\n".join(told)


def test_among_others_the_healthy_instances_are_their_single_runs() -> None:
    """Four instances of other numbers, the second one wrong."""
    made = [fragile(leg_s=0.25), fragile(k=2), fragile(c=1), fragile(leg_s=2, units=2)]
    programs = [as_program(source) for source in made]
    together = run_engine(programs)
    assert [run.verdict.name for run in together] == ["drained", "error", "drained", "drained"]
    for program, run in zip(programs, together):
        assert first_difference(run, run_engine([program])[0]) is None


def test_statements_for_ever_are_refused() -> None:
    """A program that never blocks has no run: the check names the place."""
    ends = ir.State(name="end", exit=ir.End())
    turns = ir.State(name="turns", exit=ir.Branch(ir.Attr("again"), "turns", "end"))
    program = ir.Program(
        name="turns", attrs=(ir.Attribute(name="again"),), states=(turns, ends), start="turns",
        arrival=ir.Batch(Num(1.0)), horizon_s=Num(1.0),
    )  # fmt: skip
    found = find_problems(program)
    assert any("turns" in problem.problem for problem in found), found
