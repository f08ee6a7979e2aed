"""Tables in a cost: between their points, at holes and edges, in both engines, and what is refused."""

from __future__ import annotations

import math
from random import Random

import msgspec
import numpy as np
import pytest
from compare_runs import first_difference, run_engine, run_oracle

import serqjax as sq
from serqjax.builder import Builder, parse, write
from serqjax.check import find_problems
from serqjax.check.licence import licence
from serqjax.costs import Cost, with_cpu, with_drafts
from serqjax.ir import Attr, Axis, End, Enter, Grid, Inf, Leave, Listed, Num, Run, Step, Table
from serqjax.ir.codec import from_json, to_json
from serqjax.ir.grids import dense, reader

RAGGED = Grid(
    name="t",
    axes=(Axis(name="a"), Axis(name="b", holes="nearest"), Axis(name="c")),
    rows=((0, 1, 0, 1.0), (0, 1, 10, 3.0), (0, 4, 5, 7.0), (2, 1, 0, 5.0), (2, 1, 4, 6.0), (2, 1, 10, 9.0)),
)


def test_a_ragged_grid_reads_as_its_own_slices():
    read = reader(RAGGED)
    assert read([0, 1, 5]) == 2.0 and read([0, 1, 20]) == 5.0 and read([0, 1, -3]) == 1.0  # line above, clamped below
    assert read([2, 1, 2]) == 5.5 and read([2, 1, 7]) == 7.5
    assert read([1, 1, 2]) == pytest.approx(0.5 * (1.4 + 5.5))
    assert read([0, 4, 99]) == 7.0  # one point only
    assert read([2, 4, 4]) == 6.0  # the slice (2, 4) is missing: the nearest of 2
    assert read([2, 3, 4]) == 6.0
    assert read([0, 2.5, 5]) == 0.5 * (2.0 + 7.0)
    assert math.isnan(read([math.nan, 1, 1]))


def test_a_cost_with_tables_keeps_them_when_something_is_added():
    grid = Grid(name="step", axes=(Axis(name="n"),), rows=((0, 0.0), (100, 1.0)))
    cost = Cost("step(Ntok) if Ntok > 0 else 0", (), (grid,))
    load = sq.workloads.requests(num_prompts=1, input_len=50, output_len=1)
    for more in (with_cpu(cost, step_s=0.25), with_drafts(cost, draft_s=0.25)):
        prog = sq.program(sq.deployments.vllm(cost=more), load)
        assert prog.tables == (grid,)
        assert sq.run(prog).requests["ttft_s"][0] >= 0.5


def test_filling_the_holes_changes_nothing_at_the_points_between():
    """Linear reading of a full grid with every second point of the inner axis taken out where it lies on a line."""
    axes = (Axis(name="x"), Axis(name="y"))
    full = [(x, y, 2.0 * x + 3.0 * y + 1.0) for x in (0, 1, 5) for y in (0, 2, 4, 9)]
    few = [row for row in full if not (row[0] == 1 and row[1] in (2, 9))]
    a, b = (reader(Grid(name="g", axes=axes, rows=tuple(rows))) for rows in (full, few))
    rng = Random(1)
    for _ in range(200):
        point = [rng.uniform(0, 8), rng.uniform(0, 12)]
        assert a(point) == pytest.approx(b(point), rel=1e-12)


def test_buckets_and_exact_points():
    grid = Grid(name="s", axes=(Axis(name="k", between="exact"), Axis(name="n", between="next")), missing=-1.0,
                rows=((0, 2, 10.0), (0, 8, 20.0), (16, 2, 30.0)))  # fmt: skip
    read = reader(grid)
    assert [read([0, n]) for n in (0, 2, 2.5, 8, 9)] == [10.0, 10.0, 20.0, 20.0, -1.0]
    assert read([16, 1]) == 30.0 and read([16, 3]) == -1.0 and read([15, 1]) == -1.0


def engine_of(cost: Cost):
    """A small engine without preemption: three seats, unlimited memory."""
    rng = Random(7)
    b = Builder()
    for attr in ("new", "out"):
        b.attr(attr)
    b.pool("reqs", cap=Num(3.0), admit_via="gpu")
    b.pool("kv", cap=Inf())
    b.stage("gpu", Step(budget=Num(32.0), cost=cost.declare(b)))
    b.scope("request", b.take("reqs", 1), b.take("kv", "Min(new, BudgetLeft(gpu))"), reentry="prefill")
    b.state("prefill", exit=Run("gpu", "Prefill", Attr("new"), "decode", grows="kv"), scope="request")
    b.state("decode", exit=Run("gpu", "Decode", Attr("out"), "done", grows="kv"), scope="request")
    b.state("done", exit=Leave("end"), scope="request")
    b.state("end", exit=End())
    b.state("start", exit=Enter("request"))
    at = tuple(sorted(rng.choice([0.0, 0.01, 0.2, 0.4]) for _ in range(12)))
    rows = tuple((float(rng.randint(1, 60)), float(rng.randint(1, 12))) for _ in at)
    return b.program("start", Listed(at=at, attrs=("new", "out"), values=rows))


def step_cost(shift: float = 0.0) -> Cost:
    axes = (Axis(name="chunk"), Axis(name="n", holes="nearest"), Axis(name="kv"))
    rows = tuple(
        (c, n, kv, 1e-3 * (1 + shift + c / 7 + n / 3 + kv * (n + 1) / 90))
        for c in (0, 3, 20) for n in (0, 1, 3) for kv in (1, 8, 50) if (c + n) % 4 != 3
    )  # fmt: skip
    bucket = Grid(name="skew", axes=(Axis(name="n", between="next"), Axis(name="c", between="exact")), missing=0.25,
                  rows=((2, 0, 0.5), (3, 0, 0.1)))  # fmt: skip
    text = ("t(Npre, Ndec, (DecodePositions - Ndec) / Max(Ndec, 1)) + 1e-5 * (Nsch + PrefillPositions)"
            " + 1e-4 * skew(Ndec, Npre) * (MostDecode - LeastDecode) if Ntok > 0 else 0")  # fmt: skip
    return Cost(text, (), (Grid(name="t", axes=axes, rows=rows), bucket))


def test_engine_and_oracle_read_the_same_to_the_tick():
    programs = [engine_of(step_cost(shift)) for shift in (0.0, 0.37)]
    found = run_engine(programs)  # different tables, one structure: one batch
    for program, ours in zip(programs, found):
        assert first_difference(run_oracle(program), ours) is None
        assert ours.verdict.name == "drained"
    assert found[0].end_tick != found[1].end_tick


@pytest.mark.slow
def test_a_table_of_what_stands_still_may_coalesce_and_of_what_moves_may_not():
    grid = Grid(name="padded", axes=(Axis(name="n", between="next"),), missing=9e-3, rows=((1, 1e-3), (4, 2e-3)))
    program = engine_of(Cost("padded(Ndec) + 1e-4", (), (grid,)))
    assert licence(program, 0).windows
    fast, slow = (sq.run(program, coalesce=on) for on in (True, False))
    assert fast.report == slow.report
    moving = licence(engine_of(step_cost()), 0)
    assert not moving.windows
    assert any("DecodePositions" in o.reason or "PrefillPositions" in o.reason for o in moving.obstacles)


def test_a_program_with_tables_is_text_and_back():
    program = engine_of(step_cost())
    assert from_json(to_json(program)) == program
    expr = parse("t(Npre, Ndec)", tables=["t"])
    assert isinstance(expr, Table) and write(expr) == "t(Npre, Ndec)"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": ()}, "a table needs rows"),
        ({"rows": ((1.0, 2.0), (1.0, 3.0))}, "two rows are of one point"),
        ({"rows": ((1.0, 2.0, 3.0),)}, "row 0 has 3 numbers: 2 are needed"),
        ({"rows": ((math.inf, 2.0),)}, "a number of the row is not finite"),
        ({"axes": (Axis(name="n", between="next"),)}, "say the value there: `missing`"),
        ({"missing": 1.0}, "has a value everywhere"),
        ({"name": "other"}, "reads the table `t`, which is not declared"),
        ({"axes": (Axis(name="n"), Axis(name="m"))}, "row 0 has 2 numbers: 3 are needed"),
    ],
)
def test_bad_tables_are_refused(change, says):
    grid = Grid(name="t", axes=(Axis(name="n"),), rows=((0.0, 1e-3), (4.0, 2e-3)))
    program = engine_of(Cost("t(Ndec) + 1e-4", (), (grid,)))
    assert not find_problems(program)
    program = msgspec.structs.replace(program, tables=(msgspec.structs.replace(grid, **change),))
    assert any(says in f"{p.problem} {p.hint}" for p in find_problems(program)), find_problems(program)


def test_dense_keeps_what_was_measured():
    full = dense(RAGGED)
    assert full.values.shape == (2, 2, 4) and not np.isnan(full.values).any()
    for *point, value in RAGGED.rows:
        assert reader(RAGGED)(point) == value
