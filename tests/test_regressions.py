"""Programs that once made the array engine and the oracle (or the reference) differ.

Each test is one structure, so that it compiles once; what varies are its numbers, sessions and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import ir14_builder as b14
import pytest
from compare_runs import as_program, compare_with_pyserq, first_difference, run_engine, run_oracle

from serqjax import ir

NOW, ONE = ir.Ctx("Now"), ir.Num(1.0)
LIFO = ir.Preempt(order=ir.Order(keys=(ir.Unary("Neg", ir.Ctx("Admission")),), tie="latest"))
DELAY = ir.Stage(name="d", kind=ir.Delay())


def a(name: str) -> ir.Attr:
    return ir.Attr(name)


def op(name: str, left: ir.Expr, right: ir.Expr) -> ir.Binary:
    return ir.Binary(name, left, right)  # type: ignore[arg-type]


def num(value: float) -> ir.Expr:
    return ir.Num(float(value))


def state(name: str, *ops: ir.Op, to: ir.Exit, scope: str | None = None) -> ir.State:
    return ir.State(name=name, ops=ops, exit=to, scope=scope)


def program(names: str, states: Sequence[ir.State], arrival: ir.Arrival, **fields: Any) -> ir.Program:
    seen = [o.name for s in states for o in s.ops if isinstance(o, ir.Observe)]
    attrs = tuple(ir.Attribute(name=name) for name in names.split())
    return ir.Program(
        attrs=attrs, states=tuple(states), start=states[0].name, arrival=arrival,
        observes=tuple(dict.fromkeys(seen)), **fields,
    )  # fmt: skip


def listed(names: str, rows: Sequence[Sequence[float]]) -> ir.Listed:
    values = tuple(tuple(float(v) for v in row) for row in rows)
    return ir.Listed(at=(0.0,) * len(rows), attrs=tuple(names.split()), values=values)


def agree(programs: Sequence[ir.Program]) -> None:
    runs = run_engine(list(programs))
    for p, run in zip(programs, runs):
        found = first_difference(run, run_oracle(p))
        assert found is None, f"seed {p.seed}: engine (a) and oracle (b) differ:\n{found}"


# ---------------------------------------------------------------- sessions


def test_nothing_happens_after_a_failed_requirement() -> None:
    states = (
        state("s", to=ir.Run("d", "Plain", ONE, "e")),
        state("e", ir.Require(op("Lt", a("serial"), ONE), "bad"), ir.Observe("r", NOW), to=ir.End()),
    )
    agree([program("serial", states, ir.Batch(num(3)), stages=(DELAY,), horizon_s=ir.Num(20.0))])


def test_turns_without_respond_have_request_rows() -> None:
    states = (
        state("s", ir.Turn(), to=ir.Run("d", "Plain", ONE, "e")),
        state("e", ir.Turn(), to=ir.Run("d", "Plain", ONE, "f")),
        state("f", to=ir.End()),
    )
    made = program("serial turn_no", states, ir.Batch(num(3)), stages=(DELAY,), horizon_s=ir.Num(20.0))
    assert len(run_oracle(made).request_serial) == 6
    agree([made])


@pytest.mark.parametrize("names", [(), ("x",)])
def test_more_follows_the_scripted_turns(names: tuple[str, ...]) -> None:
    """Also without scripted attributes; a session without turns keeps a preset `more`."""
    again = op("And", a("more"), op("Lt", a("n"), num(4)))
    states = (
        state("s", ir.Turn(), to=ir.Run("d", "Plain", ONE, "e")),
        state("e", ir.Respond(), ir.Observe("m", a("more")), ir.Set("n", op("Add", a("n"), ONE)),
              to=ir.Branch(again, "s", "f")),
        state("f", to=ir.End()),
    )  # fmt: skip
    row = tuple(0.0 for _ in names)
    arrival = ir.Listed(
        at=(0.0, 1.0, 1.0), attrs=("more",), values=((1.0,),) * 3, turn_attrs=names, turns=((), (row, row, row), (row,))
    )
    made = program("serial more n x", states, arrival, stages=(DELAY,), horizon_s=ir.Num(20.0))
    raw = run_oracle(made)
    seen = [raw.samples_value[raw.samples_serial == serial].tolist() for serial in range(3)]
    assert seen == [[1, 1, 1, 1], [1, 1, 0], [0]]
    agree([made])


def test_renewal_gaps_round_half_to_even_and_must_be_positive() -> None:
    """A tick of 1 ms and gaps of half ticks; the first gap may fail too."""
    gap = op("Sub", op("Mul", ir.Param("grain"), ir.Call("Floor", (ir.Sample("Uniform", (ONE, num(20))),))),
             ir.Param("less"))  # fmt: skip
    states = (state("s", to=ir.Run("d", "Plain", ir.Num(0.0025), "e")), state("e", ir.Observe("r", NOW), to=ir.End()))
    made = [
        program(
            "serial", states, ir.Renewal(gap), stages=(DELAY,), horizon_s=ir.Num(0.5), tick_s=1e-3, seed=(1 << 64) - s,
            params=(ir.Parameter(name="grain", value=0.0005), ir.Parameter(name="less", value=0.005 * (s > 4))),
        )
        for s in range(1, 9)
    ]  # fmt: skip
    agree(made)


# ---------------------------------------------------------------- holds


def test_victims_stand_in_the_order_of_their_first_hold() -> None:
    """A pool that no step stage has as memory, taken twice, and inner scopes that move admission numbers."""
    states = (
        state("s", to=ir.Run("d", "Plain", a("serial"), "in")),
        state("in", to=ir.Enter("o")),
        state("o1", to=ir.Run("d", "Plain", a("w1"), "o2"), scope="o"),
        state("o2", to=ir.Enter("i"), scope="o"),
        state("i1", to=ir.Run("d", "Plain", a("w2"), "i2"), scope="i"),
        state("i2", to=ir.Grow("p", a("g"), "i3"), scope="i"),
        state("i3", to=ir.Run("d", "Plain", a("w3"), "i4"), scope="i"),
        state("i4", to=ir.Leave("o3"), scope="i"),
        state("o3", to=ir.Run("d", "Plain", ONE, "o4"), scope="o"),
        state("o4", to=ir.Leave("z"), scope="o"),
        state("z", ir.Observe("r", NOW), to=ir.End()),
    )
    scopes = (
        ir.Scope(name="o", takes=(ir.Take(pool="p", units=num(2)),), reentry="o1"),
        ir.Scope(
            name="i", parent="o", reentry="i1", takes=(ir.Take(pool="q", units=ONE), ir.Take(pool="p", units=ONE))
        ),
    )
    pools = (ir.Pool(name="p", cap=ir.Num(16.0), preempt=LIFO), ir.Pool(name="q", cap=ir.Num(10.0)))
    made = []
    for s in range(24):
        r = Random(s)
        rows = [[r.randint(0, 4), r.randint(0, 4), r.randint(0, 4), r.randint(0, 7)] for _ in range(5)]
        made.append(
            program("serial w1 w2 w3 g computed cached", states, listed("w1 w2 w3 g", rows), stages=(DELAY,),
                    pools=pools, scopes=scopes, horizon_s=ir.Num(60.0), seed=s)
        )  # fmt: skip
    agree(made)


def test_large_fractional_units_are_owned() -> None:
    """The ownership check allows for the rounding of sums of float units."""
    states = (
        state("s", to=ir.Enter("h")),
        state("h1", to=ir.Run("d", "Plain", ir.Sample("Exp", (num(5),)), "h2"), scope="h"),
        state("h2", to=ir.Leave("z"), scope="h"),
        state("z", ir.Observe("r", NOW), to=ir.End()),
    )
    take = ir.Take(pool="p", units=a("u"), keep=op("Mul", a("u"), num(0.37)))
    made = [
        program("serial u cached", states, ir.Poisson(ir.Num(3.0)), stages=(DELAY,), horizon_s=ir.Num(60.0), seed=s,
                init=(ir.Set("u", ir.Sample("Uniform", (num(0), num(1e6)))),),
                pools=(ir.Pool(name="p", cap=ir.Num(2e7)),),
                scopes=(ir.Scope(name="h", takes=(take,), reentry="h1"),))
        for s in range(4)
    ]  # fmt: skip
    agree(made)


# ---------------------------------------------------------------- iterations


def test_a_closed_population_in_an_iteration() -> None:
    """Replacements come inside the end: of a newcomer that ends at once, and of one rejected at its requeue."""
    third = op("Sub", a("serial"), op("Mul", num(3), ir.Call("Floor", (op("Div", a("serial"), num(3)),))))
    oversize = ir.Cond(op("Gt", a("computed"), num(5)), num(100), ONE)
    states = (
        state("s", ir.Set("w", ir.Cond(op("Lt", third, ONE), num(6), num(0))), to=ir.Enter("h")),
        state("h1", to=ir.Run("e", "Prefill", a("w"), "h2", "p"), scope="h"),
        state("h2", to=ir.Run("e", "Decode", op("Mul", a("w"), ir.Param("o")), "h3", "p"), scope="h"),
        state("h3", to=ir.Leave("z"), scope="h"),
        state("z", ir.Observe("r", NOW), to=ir.End()),
    )
    made = []
    for s in range(16):
        r = Random(s)
        stage = ir.Stage(name="e", kind=ir.Step(budget=num(r.randint(2, 16)), cost=ONE, memory="p"))
        pools = (ir.Pool(name="p", cap=ir.Num(float(r.randint(9, 20))), admit_via="e", preempt=LIFO),)
        takes = (ir.Take(pool="p", units=num(3), oversize=oversize),)
        made.append(
            program("serial w computed", states, ir.Closed(ir.Num(float(r.randint(2, 5)))), stages=(stage,),
                    pools=pools,
                    scopes=(ir.Scope(name="h", takes=takes, reentry="h1"),), horizon_s=ir.Num(25.0), seed=s,
                    params=(ir.Parameter(name="o", value=float(r.randint(0, 1))),))
        )  # fmt: skip
    agree(made)


def amounts(case: int) -> ir.Program:
    """Amounts that are errors or count as nothing; lines that ask too much at the end of a run with `BudgetLeft`."""
    chunk, oversize, units, late = [(-1, 1, 2, 90), (4, -5, 2, 90), (4, 1, 30, 90), (4, 1, 2, 1)][case]
    takes = (
        ir.Take(pool="p", units=ir.Call("Min", (a("u"), ir.StageState("BudgetLeft", "e"))), oversize=a("v")),
    )
    kind = ir.Step(budget=num(12), cost=ONE, memory="p",
                   chunk=op("Sub", ir.Param("chunk"), op("Mul", num(0), ir.Ctx("Nres"))))  # fmt: skip
    states = (
        state("s", to=ir.Enter("h")),
        state("h1", to=ir.Run("e", "Prefill", num(4), "h2", "p"), scope="h"),
        state("h2", to=ir.Leave("z"), scope="h"),
        state("z", ir.Require(op("Lt", NOW, a("t")), "late"), to=ir.End()),
    )
    rows = [[units, oversize, late], [2, 1, 90], [40, 1, 90]]
    return program(
        "serial u v t", states, listed("u v t", rows), stages=(ir.Stage(name="e", kind=kind),),
        pools=(ir.Pool(name="p", cap=ir.Num(10.0), admit_via="e"),), horizon_s=ir.Num(8.0), seed=case,
        scopes=(ir.Scope(name="h", takes=takes, reentry="h1"),),
        params=(ir.Parameter(name="chunk", value=float(chunk)),),
    )  # fmt: skip


def test_bad_amounts_and_what_asks_too_much_at_the_end() -> None:
    agree([amounts(case) for case in range(4)])


def two_engines(seed: int) -> Any:
    """Two engines with one pool; newcomers that grow while an iteration is planned."""
    r, b = Random(seed), b14.Builder()
    p = b.pool("p", float(r.randint(20, 34)), preempt=b14.LIFO, admit_via=0)
    n, o, first, grow, start = (b.attr(name, "Size") for name in ("n", "o", "first", "grow", "start"))
    e, f = (
        b.stage(name, {"Step": {"budget": b14.num(r.randint(5, 20)), "cost": b14.num(cost), "memory": p,
                                "chunk": b14.num(chunk), "serve": {"By": []}}})
        for name, cost, chunk in (("e", 1.0, 0), ("f", 1.5, 4))
    )  # fmt: skip
    tool, seen = b.stage("tool", b14.DELAY), b.observe("r")

    def serve(stage: int) -> b14.Body:
        prefill = b14.work(stage, b14.at(n), "Prefill", p)
        return b14.Body([(b14.S, prefill), (b14.S, b14.work(stage, b14.at(o), "Decode", p))])

    body = [
        (b14.S, {"Grow": [b14.ref(p), b14.of_pool(p, b14.at(grow))]}),
        (b14.S, {"Branch": [b14.at(first), serve(e), serve(f)]}),
    ]
    rows = [
        {"attrs": [[n, float(r.randint(1, 9))], [o, float(r.randint(0, 6))], [first, float(r.random() < 0.6)],
                   [grow, float(r.choice([0, 0, 2, 5]))], [start, float(r.randint(0, 6))]]}
        for _ in range(8)
    ]  # fmt: skip
    session = [
        (b14.W, b14.work(tool, b14.at(start))),
        (b14.S, b14.hold([(p, b14.num(2), None)], body)),
        (b14.W, b14.see(seen, b14.ctx("Now"))),
    ]
    return b.finish(r, {"Sessions": rows}, session, horizon=80)


def test_preemptions_while_an_iteration_is_planned() -> None:
    """Anywhere they stop admissions; tokens of a listed victim come back with the next growth of a give alone."""
    sources = [two_engines(seed) for seed in range(40)]
    programs = [as_program(source) for source in sources]
    for source, p in zip(sources, programs):
        found = compare_with_pyserq(source, run_oracle(p), p)
        assert found is None, f"oracle and pyserq differ:\n{found}"
    agree(programs)
