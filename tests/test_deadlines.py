"""Deadlines: the rules of `serqjax.ir.program.Deadline` by hand in the oracle, then the array engine equal to it.

The reference has no such construct: the oracle is the definition.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from compare_runs import first_difference, run_engine, run_oracle
from deadline_programs import LIFO, STRUCTURES, attributes, programs_of
from scipy import stats
from test_windows import ALL_BLOCKS, both_ways

import oracle
from serqjax import ir
from serqjax.check import find_problems
from serqjax.check.fragment import unsupported
from serqjax.check.licence import licence
from serqjax.engine import simulate_many
from serqjax.ir.expr import Attr, Binary, Ctx, Expr, Inf, Num, PoolState, Sample
from serqjax.ir.program import Deadline, Enter, Goto, Leave, Listed, Program, Run, Scope, Set, State, Take
from serqjax.report.raw import Action, RawRun, Verdict

NOW, ONE = Ctx("Now"), Num(1.0)
SHOWN = (Action.admit, Action.deadline, Action.release, Action.cache, Action.end, Action.preempt, Action.token)


def told(raw: RawRun, *kinds: Action) -> list[tuple[float, str, int, float]]:
    """(time, kind, session, amount) of the actions of some kinds."""
    assert raw.trace is not None
    rows = [r for r in raw.trace.tolist() if Action(int(r[1])) in (kinds or SHOWN)]
    return [(r[0] / 1e9, Action(int(r[1])).name, int(r[2]), r[4]) for r in rows]


def end_of(name: str, *ops: ir.Op) -> State:
    return State(name=name, ops=(ir.Observe(name, NOW), *ops), exit=ir.End())


def program(
    states: tuple[State, ...], at: tuple[float, ...], columns: dict[str, tuple[float, ...]], **fields: Any
) -> Program:
    """A program of listed sessions on a desk (one server) and a delay, with one pool `mem` of 10 units."""
    made: dict[str, Any] = {
        "attrs": attributes("serial cached computed t0 tries " + " ".join(columns)),
        "observes": ("done", "late", "cut"),
        "stages": (ir.Stage(name="desk", kind=ir.Fifo(ONE)), ir.Stage(name="think", kind=ir.Delay())),
        "pools": (ir.Pool(name="mem", cap=Num(10.0)),), "states": states, "start": states[0].name,
        "arrival": Listed(at=at, attrs=tuple(columns), values=tuple(zip(*columns.values()))), "horizon_s": Num(100.0),
    }  # fmt: skip
    return Program(**made | fields)


def observed(raw: RawRun, program: Program, name: str) -> list[tuple[float, int]]:
    rows = raw.samples_observe == program.observes.index(name)
    return [(float(t) / 1e9, int(s)) for t, s in zip(raw.samples_tick[rows], raw.samples_serial[rows])]


def desk(works: tuple[float, ...], patience: tuple[float, ...], at: tuple[float, ...]) -> Program:
    run = Run("desk", "Plain", Attr("w"), "done", deadline=Deadline(after=Attr("p"), target="late"))
    states = (State(name="start", exit=run), end_of("done"), end_of("late"))
    return program(states, at, {"w": works, "p": patience})


# ---------------------------------------------------------------- by hand


def test_who_waits_or_is_served_too_long_goes_and_the_next_is_served() -> None:
    """0 is served 0-2; 1 waits until 1.5; 2 would be served 2-7 and goes at 5; 3 follows at once."""
    made = desk((2.0, 9.0, 5.0, 1.0), (9.0, 1.5, 5.0, 9.0), (0.0,) * 4)
    raw = run_oracle(made)
    assert observed(raw, made, "done") == [(2.0, 0), (6.0, 3)] and observed(raw, made, "late") == [(1.5, 1), (5.0, 2)]
    assert raw.verdict == Verdict.drained and raw.stages[0].completed == 2


def test_at_one_tick_whatever_was_put_down_first() -> None:
    """Served at once and done in just the time: it completes. Waiting first: its end is put down after its deadline."""
    made = desk((2.0, 1.0), (2.0, 3.0), (0.0, 0.0))
    raw = run_oracle(made)
    assert observed(raw, made, "done") == [(2.0, 0)] and observed(raw, made, "late") == [(3.0, 1)]


def test_no_work_never_and_now() -> None:
    made = desk((0.0, 3.0, 3.0, 3.0), (0.0, 1e12, 2e9, 0.0), (0.0, 0.0, 10.0, 20.0))
    raw = run_oracle(made)
    assert observed(raw, made, "done") == [(0.0, 0), (3.0, 1), (13.0, 2)]
    assert observed(raw, made, "late") == [(20.0, 3)]
    bad = desk((1.0,), (-1.0,), (0.0,))
    assert run_oracle(bad).verdict == Verdict.error and "an amount is negative" in run_oracle(bad).cause
    (run,) = run_engine([bad])
    assert run.verdict == Verdict.error and run.cause == run_oracle(bad).cause
    never = msgspec.structs.replace(
        made, states=(State(name="start", exit=Run("desk", "Plain", Attr("w"), "done", deadline=Deadline(
            after=Inf(), target="late"))), *made.states[1:]), horizon_s=None)  # fmt: skip
    assert run_oracle(never).end_tick == run_engine([never])[0].end_tick == 23 * 10**9


HOLD = Scope(name="hold", takes=(Take(pool="mem", units=Attr("u"), keep=Attr("u")),), reentry="in", reuse=Num(9.0))


def holds(work: Run, enter: Deadline, **columns: tuple[float, ...]) -> Program:
    states = (
        State(name="start", ops=(Set("t0", NOW),), exit=Enter("hold", enter)),
        State(name="in", scope="hold", exit=work),
        State(name="out", scope="hold", exit=Leave("done")),
        State(name="cut", scope="hold", ops=(ir.Observe("cut", NOW),), exit=Leave("done")),
        end_of("done"), end_of("late"),
    )  # fmt: skip
    return program(states, tuple(0.0 for _ in columns["u"]), columns, scopes=(HOLD,))


def test_the_head_of_a_line_gives_way() -> None:
    """1 blocks the line; when it goes, 2 is admitted at that instant. 3 goes just before the room is there for it."""
    made = holds(Run("think", "Plain", Num(4.0), "out"), Deadline(after=Attr("p"), target="late"),
                 u=(8.0, 6.0, 2.0, 5.0), p=(9.0, 3.0, 9.0, 4.0))  # fmt: skip
    found = told(run_oracle(made), Action.admit, Action.deadline, Action.end)
    assert found == [
        (0.0, "admit", 0, 8.0), (3.0, "deadline", 1, 0.0), (3.0, "admit", 2, 2.0), (3.0, "end", 1, 0.0),
        (4.0, "deadline", 3, 0.0), (4.0, "end", 3, 0.0), (4.0, "end", 0, 0.0), (7.0, "end", 2, 0.0),
    ]  # fmt: skip


def test_a_target_inside_the_scope_keeps_it() -> None:
    made = holds(Run("think", "Plain", Num(4.0), "out", deadline=Deadline(after=Num(1.5), target="cut")),
                 Deadline(after=Num(9.0), target="late"), u=(8.0,))  # fmt: skip
    assert told(run_oracle(made)) == [
        (0.0, "admit", 0, 8.0), (1.5, "deadline", 0, 0.0), (1.5, "release", 0, 8.0), (1.5, "cache", 0, 8.0),
        (1.5, "end", 0, 0.0),
    ]  # fmt: skip


def test_a_scope_cut_short_keeps_what_was_computed() -> None:
    """Nothing was computed on it, so nothing stays; a normal end keeps the whole hold."""
    made = holds(Run("think", "Plain", Attr("w"), "out", deadline=Deadline(after=Num(1.5), target="late")),
                 Deadline(after=Num(9.0), target="late"), u=(4.0, 4.0), w=(1.0, 4.0))  # fmt: skip
    found = told(run_oracle(made), Action.deadline, Action.cache)
    assert found == [(1.0, "cache", 0, 4.0), (1.5, "deadline", 1, 0.0)]


def test_scopes_close_innermost_first_and_every_line_is_tried() -> None:
    inner = Scope(name="inner", takes=(Take(pool="room", units=ONE),), reentry="work", parent="hold")
    states = (
        State(name="start", exit=Enter("hold")), State(name="in", scope="hold", exit=Enter("inner")),
        State(name="work", scope="inner", exit=Run("think", "Plain", Num(9.0), "leave", deadline=Deadline(
            after=Num(2.0), target="late"))),
        State(name="leave", scope="inner", exit=Leave("out")), State(name="out", scope="hold", exit=Leave("done")),
        end_of("done"), end_of("late"),
    )  # fmt: skip
    pools = (ir.Pool(name="mem", cap=Num(10.0)), ir.Pool(name="room", cap=ONE))
    made = program(states, (0.0, 1.0), {"u": (6.0, 6.0)}, scopes=(HOLD, inner), pools=pools)
    raw = run_oracle(made)
    assert raw.trace is not None
    rows = [(t / 1e9, Action(int(k)).name, int(s), int(place)) for t, k, s, place, _ in raw.trace.tolist()]
    # the session is ready before the lines are tried, and runs first
    assert rows[2:8] == [
        (0.0, "admit", 0, 1), (1.0, "arrive", 1, 0), (2.0, "deadline", 0, 0), (2.0, "release", 0, 1),
        (2.0, "release", 0, 0), (2.0, "admit", 1, 0),
    ]  # fmt: skip


def engine(patience: Expr, enter: Expr, **fields: Any) -> Program:
    """Two sessions of 4 and 4 tokens in 8 units, an iteration a second: the second is preempted at 1."""
    scope = Scope(
        name="request", takes=(Take(pool="kv", units=Attr("known"), keep=Num(99.0)),), reentry="prefill",
        lets=(ir.Let(attr="known", value=ir.Cond(Binary("Lt", Attr("computed"), Num(4.0)), Num(4.0),
                                                 Binary("Add", Attr("computed"), ONE))),),
    )  # fmt: skip
    deadline = Deadline(after=patience, target="late")
    states = (
        State(name="start", ops=(Set("t0", NOW),), exit=Enter("request", Deadline(after=enter, target="late"))),
        State(name="prefill", scope="request", exit=Run("E", "Prefill", Attr("known"), "decode", "kv", deadline)),
        State(name="decode", scope="request", exit=Run("E", "Decode", Num(3.0), "out", "kv", deadline)),
        State(name="out", scope="request", exit=Leave("done")), end_of("done"), end_of("late"),
    )  # fmt: skip
    pool = ir.Pool(name="kv", cap=Num(8.0), admit_via="E", preempt=ir.Preempt(order=LIFO))
    made: dict[str, Any] = {
        "attrs": attributes("cached computed t0 known"), "observes": ("done", "late"), "scopes": (scope,),
        "pools": (pool,), "stages": (ir.Stage(name="E", kind=ir.Step(budget=Num(16.0), cost=ONE, memory="kv")),),
        "states": states, "start": "start", "arrival": Listed(at=(0.0, 0.0)), "horizon_s": Num(40.0),
    }  # fmt: skip
    return Program(**made | fields)


def test_who_is_preempted_waits_anew() -> None:
    """The deadline of the run goes with the preemption at 1; that of the line begins anew: 1 + 2.5."""
    made = engine(Num(5.0), Num(2.5))
    found = told(run_oracle(made), Action.preempt, Action.deadline, Action.end)
    assert found[:3] == [(1.0, "preempt", 1, 4.0), (3.5, "deadline", 1, 0.0), (3.5, "end", 1, 0.0)]
    # a limit for all of it is what is left of it, evaluated where the session blocks
    left = Binary("Sub", Binary("Add", Attr("t0"), Num(3.0)), NOW)
    found = told(run_oracle(engine(left, left)), Action.preempt, Action.deadline)
    assert found == [(1.0, "preempt", 1, 4.0), (3.0, "deadline", 0, 0.0), (3.0, "deadline", 1, 0.0)]


def test_what_an_iteration_has_listed_is_lost() -> None:
    """At 0.5 both go: the iteration ends at 1 without a token; what it had begun counts as in a preemption."""
    made = engine(Num(0.5), Num(9.0))
    assert told(run_oracle(made)) == [
        (0.0, "admit", 0, 4.0), (0.0, "admit", 1, 4.0), (0.5, "deadline", 0, 0.0), (0.5, "release", 0, 4.0),
        (0.5, "cache", 0, 4.0), (0.5, "end", 0, 0.0), (0.5, "deadline", 1, 0.0), (0.5, "release", 1, 4.0),
        (0.5, "cache", 1, 4.0), (0.5, "end", 1, 0.0),
    ]  # fmt: skip
    assert run_oracle(made).stages[0].iterations == 1


# ---------------------------------------------------------------- the array engine

#: Compiled in every run of the tests.
QUICK = {"desk"}
PER_STRUCTURE = 60


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in STRUCTURES])
def test_engine_equals_the_oracle(name: str) -> None:
    programs = programs_of(name, PER_STRUCTURE)
    fired = 0
    for i, (made, run) in enumerate(zip(programs, run_engine(programs))):
        expected = run_oracle(made)
        found = first_difference(run, expected)
        assert found is None, f"program {i}, engine (a) and oracle (b):\n{found}"
        assert expected.trace is not None
        fired += int((expected.trace[:, 1] == Action.deadline).sum())
    assert fired > PER_STRUCTURE


#: What stands still inside a window of an engine.
STILL = (
    ir.Gauge(name="waiting", value=Binary("Add", PoolState("Queued", "slots"), PoolState("Holders", "kv"))),
    ir.Gauge(name="running", value=ir.StageState("Queue", "E")),
    ir.Gauge(name="thinking", value=Binary("Gt", ir.StageState("Busy", "think"), Num(0.0))),
)
#: Few change points between two looks of the host, and residents in rows of their own.
FEW_POINTS = dataclasses.replace(ALL_BLOCKS, points=24, seats=8)


def measured(made: Program) -> Program:
    """With gauges that leave the windows, and a claim on the observations."""
    claim = ir.Claim(name="some", kind=ir.AtEnd(), value=ir.Agg("Count", "late"))
    return msgspec.structs.replace(made, gauges=STILL, claims=(claim,))


WINDOWED = ("engine", "engine_each", "engine_none", "engine_roomy", "engine_roomy_stochastic", "engine_stochastic")


@pytest.mark.parametrize("name", ["engine_roomy_bare", *(pytest.param(n, marks=pytest.mark.slow) for n in WINDOWED)])
def test_windows_end_before_a_deadline(name: str) -> None:
    """With windows as in the oracle, which has none; a small buffer of change points is emptied on the way."""
    programs = [measured(made) for made in programs_of(name, 20)]
    runs = simulate_many(programs, [made.seed for made in programs], capacities=FEW_POINTS)
    for made, run in zip(programs, runs):
        assert run is not None and first_difference(run, oracle.simulate(made)) is None
    assert licence(programs[0], 0).windows
    assert max(len(run.gauge_tick) for run in runs if run is not None) > FEW_POINTS.points


@pytest.mark.slow
@pytest.mark.parametrize("name", ["engine_roomy_bare", *WINDOWED])
def test_with_windows_and_without(name: str) -> None:
    fewer, more, _ = both_ways([measured(made) for made in programs_of(name, 40)], capacities=FEW_POINTS)
    assert fewer < more


def test_the_programs_are_in_order() -> None:
    for name in STRUCTURES:
        for made in programs_of(name, 5):
            assert find_problems(made) == [] and unsupported(made) == []


# ---------------------------------------------------------------- theory


def abandonment(rate: float, mean_s: float, patience_s: float) -> float:
    """Fraction of an M/M/1's customers whose wait would pass a fixed patience: they leave the line.

    The virtual wait has the density `a exp(-(m - l) x)` up to the patience d and `a exp(l d - m x)` beyond.

    **Source:** Gavish and Schweitzer, *The Markovian queue with bounded waiting time*, Management Science 23 (1977).
    """
    served = 1 / mean_s
    below = rate * (1 - math.exp(-(served - rate) * patience_s)) / (served - rate)
    above = rate * math.exp(-(served - rate) * patience_s) / served
    return above / (1 + below + above)


def test_abandonment_of_a_queue_with_fixed_patience() -> None:
    """99.9 % interval over seeds around the formula; one customer is served at a time, the others wait in a line."""
    rate, mean_s, patience_s = 0.9, 1.0, 2.0
    scope = Scope(name="server", takes=(Take(pool="one", units=ONE),), reentry="served")
    states = (
        State(name="start", exit=Enter("server", Deadline(after=Num(patience_s), target="late"))),
        State(name="served", scope="server", exit=Run("work", "Plain", Sample("Exp", (Num(mean_s),)), "out")),
        State(name="out", scope="server", exit=Leave("done")), end_of("done"), end_of("late"),
    )  # fmt: skip
    made = Program(
        attrs=(), observes=("done", "late"), pools=(ir.Pool(name="one", cap=ONE),), scopes=(scope,), states=states,
        stages=(ir.Stage(name="work", kind=ir.Delay()),), start="start", arrival=ir.Poisson(Num(rate)),
        horizon_s=Num(4000.0), warmup_s=Num(100.0),
    )  # fmt: skip
    shares = []
    for run in simulate_many([made] * 48, list(range(48))):
        assert run is not None
        late = int((run.samples_observe == 1).sum())
        shares.append(late / len(run.samples_observe))
    half = float(stats.t.ppf(0.9995, len(shares) - 1) * np.std(shares, ddof=1) / math.sqrt(len(shares)))
    assert half < 0.01 and abs(float(np.mean(shares)) - abandonment(rate, mean_s, patience_s)) <= half


# ---------------------------------------------------------------- checks


def test_what_a_deadline_may_read() -> None:
    drawn = desk((1.0,), (1.0,), (0.0,))
    run = Run("desk", "Plain", ONE, "done", deadline=Deadline(after=Sample("Exp", (ONE,)), target="late"))
    drawn = msgspec.structs.replace(drawn, states=(State(name="start", exit=run), *drawn.states[1:]))
    (problem,) = [p for p in find_problems(drawn) if p.path == "$.states[0].exit.deadline.after"]
    assert "draws `Exp`" in problem.problem and "draw into an attribute" in problem.hint


def test_a_deadline_lets_time_pass() -> None:
    """Waiting in a line, giving up and trying again is no loop without time; going round at once is one."""
    scope = Scope(name="hold", takes=(Take(pool="mem", units=PoolState("Free", "mem")),), reentry="in")
    states = (
        State(name="start", exit=Enter("hold", Deadline(after=ONE, target="again"))),
        State(name="again", exit=Goto("start")),
        State(name="in", scope="hold", exit=Run("think", "Plain", ONE, "out")),
        State(name="out", scope="hold", exit=Leave("done")), end_of("done"), end_of("late"),
    )  # fmt: skip
    made = program(states, (0.0,), {"u": (1.0,)}, scopes=(scope,))
    assert not [p for p in find_problems(made) if "lets no time pass" in p.problem]
    round_ = msgspec.structs.replace(made, states=(made.states[0], made.states[1], State(
        name="in", scope="hold", exit=Leave("again")), *made.states[3:]))  # fmt: skip
    assert [p for p in find_problems(round_) if "lets no time pass" in p.problem]
