"""Gauges and claims: against pyserq, engine against oracle, the arithmetic by hand, and what the checks say."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import numpy as np
import pytest
from compare_runs import (
    accepted_by_pyserq,
    as_program,
    compare_with_pyserq,
    exact_difference,
    first_difference,
    run_engine,
    run_oracle,
)
from ir14_builder import Json, add, op, pool_state, stage_state
from measured import MEASURED
from test_check import change, engine_program, queue_program
from test_windows import ALL_BLOCKS, WINDOWS, both_ways

from serqjax.check import as_text, check_program, find_problems
from serqjax.check.licence import licence
from serqjax.engine import simulate_many
from serqjax.ir import expr as e
from serqjax.ir import program as p
from serqjax.ir.structure import skeleton
from serqjax.report.measures import claim_rows, gauge_row, gauge_rows
from serqjax.report.raw import RawRun
from serqjax.report.reference import reference_report
from serqjax.report.samples import samples_frame
from serqjax.report.summary import summarize

#: Compared with pyserq, per structure; and run by the array engine in one batch.
PER_REFERENCE, PER_ENGINE = 8, 20
#: Structures whose batch is compiled in every run of the tests.
QUICK = {"measured_memory_fifo"}


def sources_of(name: str, count: int) -> list[Json]:
    return accepted_by_pyserq(MEASURED[name], name, count)


@pytest.mark.parametrize("name", MEASURED)
def test_oracle_equals_the_reference(name: str) -> None:
    """Change points and report of every gauge, every claim with its counts, first time and note."""
    for source in sources_of(name, PER_REFERENCE):
        program = as_program(source)
        found = compare_with_pyserq(source, run_oracle(program), program)
        assert found is None, f"{found}\nprogram:\n{json.dumps(source)}"


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MEASURED])
def test_engine_equals_the_oracle(name: str) -> None:
    programs = [as_program(source) for source in sources_of(name, PER_ENGINE)]
    for program, run in zip(programs, run_engine(programs)):
        expected = run_oracle(program)
        found = first_difference(run, expected)
        assert found is None, f"engine (a) and oracle (b):\n{found}"
        assert reference_report(program, run)["gauges"] == reference_report(program, expected)["gauges"]


def test_every_result_of_a_claim_comes() -> None:
    results = set()
    for name in MEASURED:
        for source in sources_of(name, 4):
            program = as_program(source)
            results |= {row["result"] for row in claim_rows(program, run_oracle(program))}
    assert results == {"holds", "fails", "witnessed", "not_witnessed", "not_evaluated", "out_of_scope"}


# ---------------------------------------------------------------- windows


def still(rng: Random) -> Json:
    """Gauges that read nothing that moves inside a window, and claims at the end."""
    program = WINDOWS["kinks_cached_poisson"](rng)
    gauges = [add(pool_state("Queued", 1), pool_state("Holders", 0)), stage_state("Queue", 0), stage_state("Busy", 1),
              pool_state("Used", 1)]  # fmt: skip
    claims = [{"name": "all", "kind": "AtEnd", "expr": op("Gt", {"Agg": ["Count", 0]}, {"Num": 5.0})}]
    return program | {"gauges": [{"name": f"g{i}", "expr": g} for i, g in enumerate(gauges)], "claims": claims}


@pytest.mark.slow
def test_gauges_that_stand_still_leave_the_windows() -> None:
    programs = [as_program(still(Random(f"still/{k}"))) for k in range(30)]
    assert licence(programs[0], 0).windows
    fewer, more, _ = both_ways(programs, capacities=ALL_BLOCKS)
    assert fewer < more
    for program in programs[:5]:
        (run,) = simulate_many([program], [program.seed], capacities=ALL_BLOCKS)
        expected = run_oracle(program)
        for field in ("gauge_index", "gauge_tick", "gauge_value"):
            assert exact_difference(getattr(run, field), getattr(expected, field)) is None


def gauge(value: e.Expr) -> p.Program:
    return change(engine_program(), ("gauges", (p.Gauge(name="g", value=value),)))


def claim(value: e.Expr, kind: Any = None, **fields: Any) -> p.Program:
    made = p.Claim(name="c", kind=p.EveryIteration("E") if kind is None else kind, value=value, **fields)
    return change(engine_program(), ("claims", (made,)))


@pytest.mark.parametrize(
    ("program", "path", "words"),
    [
        (gauge(e.PoolState("Used", "kv")), "$.gauges[0].value", "gauge `g`: the value: it reads `Used` of a pool"),
        (gauge(e.Unary("Neg", e.StageState("Busy", "E"))), "$.gauges[0].value.a", "it reads `Busy` of the stage"),
        (claim(e.Ctx("Ntok")), "$.claims[0].value", "claim `c`: the value: it is read whenever an iteration starts"),
    ],
)
def test_what_forbids_windows(program: p.Program, path: str, words: str) -> None:
    found = licence(program, 0)
    assert not found.windows and found.at_once
    assert path in [obstacle.path for obstacle in found.obstacles]
    assert words in as_text(program)


@pytest.mark.parametrize(
    "program",
    [
        gauge(e.PoolState("Used", "slots")),
        gauge(e.StageState("Queue", "E")),
        claim(e.Agg("Count", "ttft"), p.AtEnd()),
    ],
)
def test_what_forbids_nothing(program: p.Program) -> None:
    assert licence(program, 0).windows


# ---------------------------------------------------------------- the report


def test_a_gauge_by_hand() -> None:
    tick, value = np.array([0, 10, 30]), np.array([1.0, 3.0, 7.0])
    # 1 for 10 ticks, 3 for 20, 7 for 10; 20 windows of two ticks
    row = gauge_row(tick, value, 0, 40)
    means = np.array([1.0] * 5 + [3.0] * 10 + [7.0] * 5)
    assert row["mean"] == 3.5 and (row["min"], row["max"]) == (1.0, 7.0)
    assert row["ci"] == pytest.approx(2.093 * math.sqrt(means.var(ddof=1) / 20), rel=1e-12)
    # what was held before the start, and a value that begins at the end, do not count
    row = gauge_row(tick, value, 10, 30)
    assert (row["mean"], row["ci"], row["min"], row["max"]) == (3.0, 0.0, 3.0, 3.0)
    # windows need not hold whole changes
    assert gauge_row(np.array([0, 1]), np.array([0.0, 1.0]), 0, 100)["mean"] == 0.99
    endless = gauge_row(np.array([0]), np.array([math.inf]), 0, 100)
    assert endless["mean"] == math.inf and math.isnan(endless["ci"])
    for empty in (gauge_row(tick, value, 5, 5), gauge_row(tick[:0], value[:0], 0, 9)):
        assert all(math.isnan(x) for x in empty.values())


def test_many_seeds_and_samples() -> None:
    source = MEASURED["measured_memory_fifo"](Random(3))
    program = as_program(source)
    raws: list[RawRun] = [run_oracle(program, seed) for seed in (1, 2, 3)]
    summary = summarize(program, raws)
    means = [gauge_rows(program, raw)["gauge 0"]["mean"] for raw in raws]
    assert summary.gauges["gauge 0"]["mean"].value == pytest.approx(float(np.mean(means)))
    assert sum(summary.claims["claim 0"].values()) == 3
    tree = summary.to_dict()
    assert set(tree["gauges"]["gauge 0"]) == {"mean", "min", "max"} and "claim 0" in tree["claims"]
    frame = samples_frame(program, raws)
    rows = frame.filter((frame["observation"] == "gauge.gauge 0") & (frame["run"] == 1))
    mine = raws[1].gauge_index == 0
    assert rows["value"].to_list() == raws[1].gauge_value[mine].tolist()
    assert set(rows["session"]) == {-1} and rows["time_s"].to_list() == sorted(rows["time_s"])


# ---------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("program", "path", "words"),
    [
        (gauge(e.Ctx("Now")), "$.gauges[0].value", "gauge `g`: the value reads `Now`"),
        (gauge(e.StageState("Work", "E")), "$.gauges[0].value", "reads `Work`, which is not known in a gauge"),
        (gauge(e.StageState("BudgetLeft", "E")), "$.gauges[0].value", "reads `BudgetLeft`"),
        (gauge(e.PoolState("CachedIn", "kv")), "$.gauges[0].value", "which is a session's"),
        (gauge(e.Attr("input")), "$.gauges[0].value", "has no session"),
        (gauge(e.Sample("Exp", (e.Num(1.0),))), "$.gauges[0].value", "may not draw"),
        (gauge(e.Agg("Count", "ttft")), "$.gauges[0].value", "reads the aggregate `Count`"),
        (claim(e.StageState("Work", "E")), "$.claims[0].value", "reads `Work`"),
        (claim(e.Ctx("Admitted")), "$.claims[0].value", "reads `Admitted`"),
        (claim(e.PoolState("Used", "kv"), p.AtEnd()), "$.claims[0].value", "the state of a pool or stage"),
        (claim(e.Agg("Count", "nothing"), p.AtEnd()), "$.claims[0].value", "aggregates `nothing`"),
        (claim(e.Num(1.0), p.SomeIteration("nowhere")), "$.claims[0].kind.stage", "there is no stage `nowhere`"),
        (claim(e.Num(1.0), p.SomeIteration("tool")), "$.claims[0].kind.stage", "which is not a step stage"),
        (claim(e.Num(1.0), given=e.Ctx("Now")), "$.claims[0].given", "the condition `given` reads `Now`"),
        (change(queue_program(), ("gauges", (p.Gauge(name="g", value=e.Num(1.0)),) * 2)), "$.gauges[1].name",
         "`g` is declared twice in gauges"),
    ],
)  # fmt: skip
def test_a_wrong_measure_has_its_place(program: p.Program, path: str, words: str) -> None:
    found = [problem for problem in find_problems(program) if problem.path == path]
    assert found and words in found[0].problem, find_problems(program)


def test_names_are_no_structure() -> None:
    def named(name: str) -> p.Program:
        row = p.Gauge(name=name, value=e.PoolState("Used", "kv"))
        return change(engine_program(), ("gauges", (row,)))

    assert skeleton(named("a"))[0] == skeleton(named("b"))[0] != skeleton(engine_program())[0]
    check_program(named("a"))
