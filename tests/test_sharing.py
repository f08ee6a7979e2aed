"""Processor sharing, flows over several stages and latencies: answers worked out by hand, formulas, rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from compare_runs import as_program, exact_difference, first_difference, run_engine, run_oracle
from generate_sharing import SHARING
from msgspec.structs import replace
from scipy import stats
from test_engine import run_form

import oracle
from serqjax import ir
from serqjax.check import as_text, check_program, describe, find_problems, unsupported
from serqjax.engine.step import Config
from serqjax.ir.expr import BinaryOp
from serqjax.ir.fabric import Fabric, fabrics, shared_stages
from serqjax.ir.structure import skeleton
from serqjax.report.raw import RawRun, Verdict
from serqjax.report.reference import reference_report

ZERO, ONE = ir.Num(0.0), ir.Num(1.0)
NOW, N = ir.Ctx("Now"), ir.Ctx("N")


def op(name: BinaryOp, a: ir.Expr, b: ir.Expr) -> ir.Binary:
    return ir.Binary(name, a, b)


def session(runs: Sequence[ir.Run], rows: Sequence[Sequence[float]], **fields: Any) -> ir.Program:
    """Every session waits `start` s and goes through the runs, then observes the time; rows of (start, work, lag)."""
    names = [f"run{i}" for i in range(len(runs))] + ["end"]
    states = [ir.State(name="start", exit=ir.Run("think", "Plain", ir.Attr("start"), "run0"))]
    states += [ir.State(name=n, exit=replace(run, then=after)) for n, run, after in zip(names, runs, names[1:])]
    states.append(ir.State(name="end", ops=(ir.Observe("end", NOW),), exit=ir.End()))
    stages = (*fields.pop("stages"), ir.Stage(name="think", kind=ir.Delay()))
    settings = {
        "attrs": tuple(ir.Attribute(name=name) for name in ("start", "work", "lag")),
        "observes": ("end",),
        "states": tuple(states),
        "start": "start",
        "arrival": ir.Listed(
            at=(0.0,) * len(rows), attrs=("start", "work", "lag"), values=tuple(tuple([*r, 0.0][:3]) for r in rows)
        ),
        "horizon_s": ir.Num(40.0),
        **fields,
    }
    return ir.Program(stages=stages, **settings)


def links(*capacities: float) -> tuple[ir.Stage, ...]:
    return tuple(
        ir.Stage(name=f"link{i}", kind=ir.ProcessorSharing(ir.Num(c))) for i, c in enumerate(capacities)
    )


def flow(*stages: int, share: ir.Share | None = "MaxMin", latency: ir.Expr | None = None) -> ir.Run:
    names = [f"link{i}" for i in stages]
    also = tuple(names[1:])
    return ir.Run(
        names[0], "Plain", ir.Attr("work"), "", also=also, share=share if also else None, latency=latency
    )


def ps(capacity: ir.Expr, rows: Sequence[Sequence[float]], **fields: Any) -> ir.Program:
    stage = ir.Stage(name="link0", kind=ir.ProcessorSharing(capacity))
    return session([flow(0, latency=fields.pop("latency", None))], rows, stages=(stage,), **fields)


def ends(raw: RawRun) -> list[tuple[float, int]]:
    return [(round(float(t) * raw.tick_s, 9), int(s)) for t, s in zip(raw.samples_tick, raw.samples_serial)]


# ---------------------------------------------------------------- by hand


def test_equal_shares() -> None:
    # alone 0.5 s, two 0.5 s, three until the first has its 2
    assert ends(run_oracle(ps(ONE, [(0, 2), (0.5, 2), (1, 2)]))) == [(4.75, 0), (5.75, 1), (6.0, 2)]


def test_a_total_rate_that_is_nothing_lets_jobs_wait() -> None:
    one_at_most = op("Lt", N, ir.Num(2.0))
    raw = run_oracle(ps(one_at_most, [(0, 2), (0.5, 2)]))
    assert ends(raw) == [] and raw.live_at_end == 2 and raw.verdict is Verdict.deadlock
    two_at_least = op("Gt", N, ONE)
    assert ends(run_oracle(ps(two_at_least, [(0, 2), (0.5, 3), (1, 2)]))) == [(6.25, 0), (6.75, 2)]


def test_equal_jobs_end_at_one_tick_in_the_order_in_which_they_came() -> None:
    # after the first of three the others share a ninth part as much: what the rounding left over must not last
    raw = run_oracle(ps(op("Mul", op("Mul", N, N), op("Mul", N, N)), [(0, 0.1)] * 3))
    assert len(set(raw.samples_tick.tolist())) == 1 and raw.samples_serial.tolist() == [0, 1, 2]
    # a job that waits for its latency came before one that starts when it has passed
    late = ps(ONE, [(1, 1), (0, 1, 1)], latency=ir.Attr("lag"))
    assert ends(run_oracle(late)) == [(3.0, 1), (3.0, 0)]


def test_one_rate_for_a_flow_over_two_stages() -> None:
    program = session([flow(0, 1)], [(0, 4), (0.5, 4), (1, 4)], stages=links(2.0, 1.0))
    raw = run_oracle(program)
    assert ends(raw) == [(10.75, 0), (11.75, 1), (12.0, 2)]
    rows = reference_report(program, raw)["stages"]
    assert [row["utilization"] for row in rows[:2]] == [12 / 2 / 40, 12 / 40]
    assert [row["completed"] for row in rows[:2]] == [3, 3]


def test_two_transfers_of_a_gigabyte_overlap() -> None:
    program = session([flow(0, 1)], [(0, 1e9), (0.5, 1e9)], stages=links(1e9, 8e9))
    assert find_problems(program) == []
    assert ends(run_oracle(program)) == [(1.5, 0), (2.0, 1)]


TRIANGLE = [(0, 1), (0, 2), (0, 2), (1,)]


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        # links of 3, 2 and 1: the flows over link 2 get 0.5 each; both others of link 1 get 1
        ("MaxMin", {(0, 1): 1.0, (0, 2): 0.5, (1,): 1.0}),
        # of link 0 a flow would get 1, of link 1 also, of link 2 only 0.5; what is left over is nobody's
        ("Bottleneck", {(0, 1): 1.0, (0, 2): 0.5, (1,): 1.0}),
    ],
)
def test_rates(share: ir.Share, expected: dict[tuple[int, ...], float]) -> None:
    check_rates(share, (3.0, 2.0, 1.0), TRIANGLE, expected)


def test_what_a_slow_flow_leaves_is_given_to_others_by_progressive_filling_alone() -> None:
    flows = [(0, 1), (0,)]  # link 1 lets only 0.5 through
    check_rates("MaxMin", (2.0, 0.5), flows, {(0, 1): 0.5, (0,): 1.5})
    check_rates("Bottleneck", (2.0, 0.5), flows, {(0, 1): 0.5, (0,): 1.0})


def check_rates(
    share: ir.Share, capacities: Sequence[float], flows: list[tuple[int, ...]], expected: dict[tuple[int, ...], float]
) -> None:
    """Rates of flows that are there from the start on."""
    kinds = sorted(set(flows))
    states = [
        ir.State(
            name=f"is{k}",
            exit=ir.Branch(op("Eq", ir.Attr("kind"), ir.Num(float(k))), f"flow{k}", f"is{k + 1}"),
        )
        for k in range(len(kinds))
    ]
    states += [
        ir.State(name=f"flow{k}", exit=replace(flow(*kind, share=share), work=ir.Num(100.0), then="end"))
        for k, kind in enumerate(kinds)
    ]
    states += [ir.State(name=f"is{len(kinds)}", exit=ir.End()), ir.State(name="end", exit=ir.End())]
    rows = tuple((float(kinds.index(kind)),) for kind in flows)
    program = ir.Program(
        attrs=(ir.Attribute(name="kind"),), stages=links(*capacities), states=tuple(states), start="is0",
        arrival=ir.Listed(at=(0.0,) * len(flows), attrs=("kind",), values=rows), horizon_s=ONE,
    )  # fmt: skip
    machine = oracle.machine.Machine(program, 0)
    machine.start()
    machine.settle()
    rates = {flows[job.session.serial]: job.rate for job in machine.flows.jobs}
    assert rates == expected
    loads = [link.load / 2**30 for link in machine.links.values()]
    used = [sum(expected[f] for f in flows if i in f) / capacities[i] for i in range(len(capacities))]
    assert loads == pytest.approx(used, abs=1e-9)


def test_latency_is_waited_for_at_the_stage() -> None:
    program = ps(ONE, [(0, 4, 1), (0.5, 4, 0), (1, 0, 2)], latency=ir.Attr("lag"))
    raw = run_oracle(program)
    assert ends(raw) == [(3.0, 2), (8.0, 1), (8.5, 0)]
    row = reference_report(program, raw)["stages"][0]
    assert row["mean_wait"] == 1.0 and row["completed"] == 3
    assert row["mean_number"] == (8.5 + 7.5 + 2) / 40 and row["utilization"] == 8 / 40


def test_capacities_that_are_no_numbers_end_the_run() -> None:
    program = ps(op("Div", ONE, op("Sub", N, ONE)), [(0, 4)])
    assert run_oracle(program).cause == "the capacity of stage `link0` is not a finite number, at t = 0 s"
    run = run_engine([program])[0]
    assert (run.verdict, run.cause) == (Verdict.error, run_oracle(program).cause)


def test_a_run_that_holds_one_member_twice_ends() -> None:
    stages = tuple(replace(s, array="link", index=i, name=f"link[{i}]") for i, s in enumerate(links(1.0, 1.0)))
    run = ir.Run("link[0]", "Plain", ONE, "", also=(ir.Member("link", ir.Attr("work")),), share="MaxMin")
    assert ends(run_oracle(session([run], [(0, 1)], stages=stages))) == [(1.0, 0)]
    assert run_oracle(session([run], [(0, 0)], stages=stages)).cause == (
        "session 0: the run holds one stage twice, at state `run0`, at t = 0 s"
    )


# ---------------------------------------------------------------- engine


def test_engine_equals_the_oracle_alone_and_together() -> None:
    """Deterministic transfers with latencies, one program at a time and as lanes of one batch."""
    rows = [[(0, 4, 1), (0.5, 4, 0), (1, 0, 2), (1, 2, 0)], [(0, 1, 0)] * 4, [(3, 1, 0.5), (2, 1, 1.5), (1, 1, 2.5)]]
    program = [session([flow(0, 1, latency=ir.Attr("lag")), flow(1)], r, stages=links(2.0, 1.0)) for r in rows]
    runs = run_engine(program)
    for one, run in zip(program, runs, strict=True):
        found = first_difference(run, run_oracle(one))
        assert found is None, found
    assert exact_difference(run_engine(program[:1])[0], runs[0]) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["latencies", "ps_engine_drawn"])
def test_both_forms_of_the_loop(name: str) -> None:
    """All instances together, as on an accelerator, give what one after the other gives."""
    programs = [as_program(SHARING[name](Random(f"forms/{k}"))) for k in range(3)]
    seeds = [program.seed for program in programs]
    apart = run_form(programs, seeds, Config(check=True))
    together = run_form(programs, seeds, Config(check=True, form="together"))
    for one, other, program in zip(apart, together, programs, strict=True):
        assert exact_difference(one, other) is None
        assert first_difference(one, run_oracle(program)) is None


def test_what_is_tried_again_by_the_clock_is_refused() -> None:
    """An overtaken finish is an event: lines are tried again then. The engine has none, and says where it matters."""
    late = op("Sub", ir.Num(4.0), NOW)
    aging = ir.Order(keys=(op("Sub", ir.Attr("work"), ir.Ctx("Waited")),), tie="queued")
    program = replace(
        ps(ONE, [(0, 1)]), pools=(ir.Pool(name="seats", cap=ONE, queue=aging),),
        scopes=(ir.Scope(name="seat", takes=(ir.Take(pool="seats", units=late),), reentry="run0"),),
        states=(
            ir.State(name="start", exit=ir.Enter("seat")),
            ir.State(name="run0", exit=ir.Run("link0", "Plain", ONE, "out"), scope="seat"),
            ir.State(name="out", exit=ir.Leave("end"), scope="seat"),
            ir.State(name="end", ops=(ir.Observe("end", NOW),), exit=ir.Run("think", "Plain", ONE, "gone")),
            ir.State(name="gone", exit=ir.End()),
        ),
    )  # fmt: skip
    assert find_problems(program) == []
    assert [(p.path, p.problem) for p in unsupported(program)] == [
        ("$.pools[0].queue.keys[0].b", "pool `seats`: the array engine does not run a queue key with the clock beside "
         "stages whose jobs share yet"),
        ("$.scopes[0].takes[0].units.b", "scope `seat`: the array engine does not run the amount of units with the "
         "clock beside stages whose jobs share yet"),
    ]  # fmt: skip
    longest_first = replace(aging, keys=(ir.Unary("Neg", ir.Ctx("Waited")), ir.Attr("work")))
    pool = replace(program.pools[0], queue=longest_first)
    takes = (replace(program.scopes[0].takes[0], units=ONE),)
    fine = replace(program, pools=(pool,), scopes=(replace(program.scopes[0], takes=takes),))
    assert unsupported(fine) == []


def test_the_engine_has_room_for_its_links() -> None:
    many = session([flow(*range(62))], [(0, 1)], stages=links(*[1.0] * 62))
    assert unsupported(many) == []
    more = session([flow(*range(63))], [(0, 1)], stages=links(*[1.0] * 63))
    assert [p.problem for p in unsupported(more)] == [
        "the program: the array engine does not run 63 shared stages (at most 62) yet"
    ]


# ---------------------------------------------------------------- formulas


def narrow(values: np.ndarray, truth: float, width: float) -> None:
    """The formula lies in the 99.9 % interval of the mean over seeds, which is narrower than `width` of it."""
    half = stats.t.ppf(0.9995, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    assert half < width * truth, f"{values.mean():.5g} +- {half:.2g}: too wide to say anything of {truth:.5g}"
    assert abs(values.mean() - truth) <= half, f"{values.mean():.5g} +- {half:.2g}, formula {truth:.5g}"


def seeds_of(program: ir.Program, count: int) -> list[RawRun]:
    from serqjax.engine import simulate

    return [raw for raw in simulate(program, range(500, 500 + count)) if raw is not None]


def test_sharing_is_insensitive_to_the_law_of_the_work() -> None:
    """M/G/1 with processor sharing has the mean number of the M/M/1. **Source:** Kleinrock II (1976), section 4.4."""
    rate, rho = 0.5, 0.5
    program = ir.Program(
        attrs=(), stages=links(1.0),
        states=(
            ir.State(name="in", exit=ir.Run("link0", "Plain", ir.Sample("H2", (ONE, ir.Num(4.0))), "out")),
            ir.State(name="out", exit=ir.End()),
        ),
        start="in", arrival=ir.Poisson(ir.Num(rate)), horizon_s=ir.Num(3000.0), warmup_s=ir.Num(100.0),
    )  # fmt: skip
    raws = seeds_of(program, 48)
    number = [raw.stages[0].number_tick / (raw.end_tick - raw.warmup_tick) for raw in raws]
    narrow(np.array(number), rho / (1 - rho), 0.1)


def test_closed_network_meets_mean_value_analysis() -> None:
    """Think 5 s, a fifo cpu of 0.6 s, a shared disk of 0.9 s. **Source:** Reiser and Lavenberg, J. ACM 27 (1980)."""
    customers, think_s, demands_s = 8, 5.0, (0.6, 0.9)
    queued = [0.0, 0.0]
    throughput = 0.0
    for n in range(1, customers + 1):
        responses = [d * (1 + q) for d, q in zip(demands_s, queued)]
        throughput = n / (think_s + sum(responses))
        queued = [throughput * r for r in responses]

    def draw(mean_s: float) -> ir.Expr:
        return ir.Sample("Exp", (ir.Num(mean_s),))

    program = ir.Program(
        attrs=(),
        stages=(
            ir.Stage(name="think", kind=ir.Delay()),
            ir.Stage(name="cpu", kind=ir.Fifo(ONE)),
            ir.Stage(name="disk", kind=ir.ProcessorSharing(ONE)),
        ),
        states=(
            ir.State(name="thinks", exit=ir.Run("think", "Plain", draw(think_s), "computes")),
            ir.State(name="computes", exit=ir.Run("cpu", "Plain", draw(demands_s[0]), "reads")),
            ir.State(name="reads", exit=ir.Run("disk", "Plain", draw(demands_s[1]), "thinks")),
        ),
        start="thinks", arrival=ir.Closed(ir.Num(float(customers))), horizon_s=ir.Num(1500.0), warmup_s=ir.Num(100.0),
    )  # fmt: skip
    raws = seeds_of(program, 32)
    span_s = (raws[0].end_tick - raws[0].warmup_tick) * raws[0].tick_s
    narrow(np.array([raw.stages[2].completed / span_s for raw in raws]), throughput, 0.02)
    number = [raw.stages[2].number_tick * raw.tick_s / span_s for raw in raws]
    narrow(np.array(number), queued[1], 0.05)


# ---------------------------------------------------------------- what belongs together, and the rules


def test_fabrics() -> None:
    program = session(
        [flow(0, 1), flow(3, 4, share="Bottleneck"), flow(1, 2)], [(0, 1)], stages=links(1.0, 1.0, 1.0, 1.0, 1.0)
    )
    expected = (Fabric((0, 1, 2), ("MaxMin",)), Fabric((3, 4), ("Bottleneck",)))
    assert fabrics(program) == fabrics(skeleton(program)[0]) == expected
    assert shared_stages(program) == (0, 1, 2, 3, 4)
    facts = check_program(program)
    assert [stage.shared for stage in facts.stages] == [True] * 5 + [False]
    assert facts.stages[1].run_by == (1, 3)
    assert [stage["shared_with"] for stage in describe(program)["stages"]][:4] == [
        ["link1", "link2"], ["link0", "link2"], ["link0", "link1"], ["link4"],
    ]  # fmt: skip
    assert "link3: processor sharing, held together with link4" in as_text(program)


STEP = ir.Stage(name="link0", kind=ir.Step(budget=ONE, cost=ONE))
FIFO = ir.Stage(name="link1", kind=ir.Fifo(ONE))
RULES: list[tuple[str, list[ir.Run], tuple[ir.Stage, ...], str, str, str]] = [
    ("no policy", [flow(0, 1, share=None)], links(1, 1), "$.states[1].exit.share", "names no `share`", "MaxMin or"),
    ("a policy for one", [replace(flow(0), share="MaxMin")], links(1), "$.states[1].exit.share",
     "names a `share` and holds one stage", "`also`"),
    ("not sharing", [flow(0, 1)], (*links(1), FIFO), "$.states[1].exit.also[0]",
     "holds `link1` together with other stages, and it is no processor sharing", "ProcessorSharing"),
    ("twice", [flow(0, 0)], links(1), "$.states[1].exit.also[0]", "holds the stage `link0` twice", "once"),
    ("unknown", [replace(flow(0, 1), also=("wire",))], links(1), "$.states[1].exit.also[0]",
     "there is no stage `wire`", "link0"),
    ("two policies", [flow(0, 1), flow(1, 2, share="Bottleneck")], links(1, 1, 1), "$.states[1].exit.share",
     "runs join the stages `link0`, `link1`, `link2`, and name the policies Bottleneck and MaxMin", "one policy"),
    ("capacity 0", [flow(0, 1)], links(1, 0), "$.stages[1].kind.capacity", "its capacity is 0", "above 0"),
    ("capacity computed", [flow(0, 1)], (*links(1), ir.Stage(name="link1", kind=ir.ProcessorSharing(N))),
     "$.stages[1].kind.capacity", "its capacity is computed", "a constant above 0"),
    ("latency below 0", [flow(0, latency=ir.Num(-1.0))], links(1), "$.states[1].exit.latency",
     "the latency on `link0` is -1 seconds", "0 or more"),
    ("latency without end", [flow(0, latency=ir.Inf())], links(1), "$.states[1].exit.latency", "is inf seconds",
     "finite"),
    ("latency of tokens", [replace(flow(0, latency=ONE), mode="Prefill", work=ONE)], (STEP,),
     "$.states[1].exit.latency", "has a latency on `link0`, a step stage", "kind Delay"),
    ("attribute", [flow(0)], (ir.Stage(name="link0", kind=ir.ProcessorSharing(ir.Attr("work"))),),
     "$.stages[0].kind.capacity", "has no session", "context variable"),
    ("latency that is long", [flow(0, latency=ir.Num(1e30))], links(1), "$.states[1].exit.latency",
     "the latency can reach", "shorten it"),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=[rule[0] for rule in RULES])
def test_rule(rule: tuple[str, list[ir.Run], tuple[ir.Stage, ...], str, str, str]) -> None:
    _, runs, stages, path, problem, hint = rule
    program = session(runs, [(0, 1)], stages=stages)
    found = [p for p in find_problems(program) if p.path == path and problem in p.problem]
    assert found, find_problems(program)
    assert hint in found[0].hint


def test_a_latency_takes_time() -> None:
    waits = ir.Run("link0", "Plain", ZERO, "run0", latency=ONE)
    program = session([waits], [(0, 1)], stages=links(1.0))
    loop = replace(program, states=(program.states[0], replace(program.states[1], exit=waits)), observes=())
    assert find_problems(loop) == []
    states = (program.states[0], replace(program.states[1], exit=replace(waits, latency=ZERO)))
    still = replace(loop, states=states)
    assert "lets no time pass" in find_problems(still)[0].problem
