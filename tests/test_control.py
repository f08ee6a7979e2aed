"""Choices by keys, computed members, legs: run-time errors, rules, licences, windows, routing."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from compare_runs import (
    as_program,
    compare_with_pyserq,
    exact_difference,
    first_difference,
    run_engine,
    run_oracle,
    run_pyserq,
)
from generate import DELAY, Body, Builder, S, at, ctx, generate, hold, num, op, put, see, work
from generate_control import choose, hold_at, pools, stages, work_at
from test_check import ONE, change, engine_program, queue_program

from serqjax.check import find_problems, unsupported
from serqjax.check.licence import licence
from serqjax.engine import simulate_many
from serqjax.ir import expr as e
from serqjax.ir import program as p
from serqjax.ir.structure import rebuild

Json = Any

# ---------------------------------------------------------------- run-time errors


def fragile(**values: float) -> Json:
    """One structure in which each number can be wrong: members `i`, `j`, `k`, the count `c`, and whether legs are
    joined inside a hold that a leg may need (`inside`) and at the end (`joins`)."""
    b = Builder()
    names = ("i", "j", "k", "c", "inside", "joins", "leg_s", "units")
    slot = {name: b.attr(name, "Size") for name in names}
    chosen = b.attr("chosen")
    mem, other = pools(b, "mem", 2, [4.0, 4.0]), b.pool("other", 4.0)
    rep, tool = stages(b, "rep", [{"Fifo": 1}] * 2), b.stage("tool", DELAY)
    seen = b.observe("seen")
    in_leg = hold([(other, at(slot["units"]), None)], [(S, see(seen, num(7)))])
    leg = Body([(S, work(tool, at(slot["leg_s"]))), (S, in_leg)])
    join = {"Branch": [at(slot["inside"]), Body([(S, "Join")]), Body()]}
    last = {"Branch": [at(slot["joins"]), Body([(S, "Join")]), Body()]}
    session = [
        (S, choose(chosen, at(slot["c"]), rep.state("Queue", at(chosen)))), (S, see(seen, at(chosen))),
        (S, see(seen, rep.state("Queue", at(slot["k"])))),
        (S, hold_at([(mem, at(slot["i"]), num(1), None), (mem, at(slot["j"]), num(2), None)],
                    [(S, work_at(rep, at(chosen), num(1))), (S, see(seen, mem.state("Used", at(slot["i"]))))])),
        (S, {"Fork": leg}), (S, hold([(other, num(2), None)], [(S, work(tool, num(1))), (S, join)])), (S, last),
    ]  # fmt: skip
    row = dict(i=0, j=1, k=1, c=2, inside=0, joins=1, leg_s=0.5, units=1) | values
    fine = dict(i=1, j=0, k=0, c=2, inside=1, joins=1, leg_s=3, units=2)
    rows = [{"attrs": [[slot[n], float(r[n])] for n in names]} for r in (fine, row)]
    return b.finish(Random(1), {"Sessions": rows}, session, horizon=60)


NO_MEMBER = "session 1: an index of `{}` is not a whole number from 0 to 1, at t = 0 s"

#: what is wrong: numbers, words of the cause
ERRORS: dict[str, tuple[dict[str, float], str]] = {
    "nothing": ({}, ""),
    "index too large": ({"k": 2}, NO_MEMBER.format("rep")),
    "index not whole": ({"k": 0.5}, NO_MEMBER.format("rep")),
    "index of a hold": ({"i": -1}, NO_MEMBER.format("mem")),
    "one member twice": ({"i": 1}, "session 1: two parts of the hold `hold` name one member: a hold takes each pool"),
    "count not whole": ({"c": 1.5}, "session 1: the count of a choice is not a whole number, at state `"),
    "count too large": ({"c": 3}, NO_MEMBER.format("rep")),
    "a live leg": ({"joins": 0, "leg_s": 9}, "session 1: ends while a leg it forked runs: join before the end, at st"),
    "who waits for each other": ({"inside": 1, "units": 3}, "a leg of session 1 waits at `other`; session 1 waits"),
}


def test_run_time_errors_end_their_own_instance() -> None:
    """In one batch: each error names its session and its reason, and the healthy instance is the oracle's run."""
    sources = [fragile(**values) for values, _ in ERRORS.values()]
    programs = [as_program(source) for source in sources]
    assert all(unsupported(program) == [] for program in programs)
    for (name, (_, words)), source, program, run in zip(ERRORS.items(), sources, programs, run_engine(programs)):
        raw, reference = run_oracle(program), run_pyserq(source)
        assert words in raw.cause and run.cause == raw.cause, f"{name}: {raw.cause!r}, {run.cause!r}"
        assert (reference.error is not None) == bool(words), f"{name}: {reference.error}"
        assert raw.verdict.name == ("error" if words else "drained"), name
        found = first_difference(run, raw)
        assert found is None, f"{name}: engine (a) and oracle (b):\n{found}"


# ---------------------------------------------------------------- rules


def forking(**changes: Any) -> p.Program:
    """A session forks a leg, both work, it joins."""
    return msgspec.structs.replace(
        queue_program(),
        states=(
            p.State(name="serve", exit=p.Fork("leg", "wait")),
            p.State(name="wait", exit=p.Join("done")),
            p.State(name="done", exit=p.End()),
            p.State(name="leg", exit=p.Run("cpu", "Plain", ONE, "leg_end")),
            p.State(name="leg_end", exit=p.EndLeg()),
        ),
        start="serve", observes=(), **changes,
    )  # fmt: skip


RULES: list[tuple[str, list[tuple[str, Any]], str, str]] = [
    ("a leg ends", [("states[4].exit", p.End())], "$.states[4].exit", "a leg comes to `End`"),
    ("a leg joins", [("states[3].exit", p.Join("leg_end"))], "$.states[3].exit", "a leg comes to `Join`"),
    ("a leg has turns", [("states[3].ops", (p.Turn(),))], "$.states[3].ops", "a leg comes to `Turn`"),
    ("a session ends as a leg", [("states[2].exit", p.EndLeg())], "$.states[2].exit", "the session itself comes to"),
    ("nobody joins", [("states[1].exit", p.Goto("done"))], "$.states[0].exit", "forks a leg, but no state joins"),
    ("nobody forks", [("states[0].exit", p.Goto("wait"))], "$.states[1].exit", "joins legs, but no state forks"),
    ("an unknown leg", [("states[0].exit", p.Fork("lag", "wait"))], "$.states[0].exit.leg", "there is no state `lag`"),
    ("a choice of nothing known", [("states[0].ops", (p.Choose("sise", ONE, (ONE,)),))], "$.states[0].ops[0].attr",
     "sets the attribute `sise`, which is not declared"),
    ("a key reads admission", [("states[0].ops", (p.Choose("size", ONE, (e.Ctx("Admission"),)),))],
     "$.states[0].ops[0].keys[0]", "a key of `size` reads `Admission`"),
]  # fmt: skip


def test_legs_pass_the_checks() -> None:
    assert find_problems(forking()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_rules_of_control(rule: tuple[str, list[tuple[str, Any]], str, str]) -> None:
    _, changes, path, words = rule
    found = find_problems(change(forking(), *changes))
    assert any(x.path == path and words in x.problem for x in found), found


def test_a_leg_starts_outside_scopes_and_no_fork_in_a_hold_that_may_preempt() -> None:
    program = engine_program()
    inside = next(s.name for s in program.states if s.scope is not None)
    places = [i for i, s in enumerate(program.states) if s.name == inside]
    found = find_problems(change(program, (f"states[{places[0]}].exit", p.Fork(inside, inside))))
    words = " ".join(x.problem for x in found)
    assert "its leg starts in state" in words and "whose pool may preempt" in words


# ---------------------------------------------------------------- licences


def fleet() -> p.Program:
    return as_program(generate("fleet_hold_chunk", Random("licence")))


def test_each_member_of_a_fleet_grows_the_pool_of_its_index() -> None:
    """Also where the header reads the budget left of the stage of the same index."""
    program = fleet()
    names = [pool.name for pool in program.pools]
    found = [licence(program, i) for i in range(3)]
    assert [x.pool for x in found] == [names.index(f"kv[{i}]") for i in range(3)]
    assert all(x.at_once and x.head_stays and not x.windows for x in found)
    assert all("iterations of the other members of `E`" in x.obstacles[0].reason for x in found)


def test_growth_by_another_index_is_visited() -> None:
    program = fleet()
    other = e.Binary("Sub", e.Num(2.0), e.Attr("j"))

    def crossed(state: p.State) -> p.State:
        run = state.exit
        if not isinstance(run, p.Run) or run.grows is None:
            return state
        return msgspec.structs.replace(state, exit=msgspec.structs.replace(run, grows=e.Member("kv", other)))

    crossing = msgspec.structs.replace(program, states=tuple(crossed(s) for s in program.states))
    found = licence(crossing, 0)
    assert not found.at_once and any("whose index is computed" in o.reason for o in found.obstacles)


def test_budget_left_of_another_member_moves() -> None:
    def other(node: Any) -> Any:
        if isinstance(node, e.StageState) and node.fun == "BudgetLeft":
            return e.StageState("BudgetLeft", e.Member("E", e.Num(0.0)))
        return node

    program = rebuild(fleet(), other)
    found = licence(program, 1)
    assert found.at_once and not found.head_stays
    assert any("`BudgetLeft` of the stage `E[...]`" in o.reason for o in found.obstacles)


def test_legs_on_a_step_stage_forbid_windows() -> None:
    program = as_program(generate("legs_engine", Random(1)))
    found = licence(program, next(i for i, s in enumerate(program.stages) if isinstance(s.kind, p.Step)))
    assert not found.windows and any("may be a leg" in o.reason for o in found.obstacles)


# ---------------------------------------------------------------- the importer


def test_a_choice_stays_where_it_may_fail_or_draw() -> None:
    """Of choices that nothing reads only those go that can do nothing else."""
    b = Builder()
    j, unread, tool = b.attr("j"), b.attr("unread"), b.stage("tool", DELAY)
    session = [(S, choose(unread, 2, at(unread))), (S, choose(j, at(1), at(j))), (S, work(tool, num(1)))]
    program = as_program(b.finish(Random(1), {"Batch": 1}, session))
    kept = [o for s in program.states for o in s.ops if isinstance(o, p.Choose)]
    assert [o.attr for o in kept] == ["j"]


# ---------------------------------------------------------------- what a run leaves behind


def test_a_pool_is_stalled_whoever_holds_another_member_of_its_array() -> None:
    """Two sessions that hold `mem[0]` wait to grow for ever, a third one holds `mem[1]` past the end."""
    b = Builder()
    i, w = b.attr("i", "Size"), b.attr("w", "Size")
    mem, tool = pools(b, "mem", 2, [2.0, 2.0]), b.stage("tool", DELAY)
    body = [(S, work(tool, at(w))), (S, {"Grow": [mem.at(at(i)), mem.cost(num(1))]})]
    rows = [{"attrs": [[i, float(member)], [w, seconds]]} for member, seconds in ((0, 1.0), (0, 1.0), (1, 100.0))]
    source = b.finish(Random(1), {"Sessions": rows}, [(S, hold_at([(mem, at(i), num(1), None)], body))], horizon=10)
    program = as_program(source)
    expected = run_oracle(program)
    assert [(pool.growing_at_end, pool.growing_stalled) for pool in expected.pools] == [(2, True), (0, False)]
    assert compare_with_pyserq(source, expected, program) is None
    (run,) = run_engine([program])
    assert first_difference(run, expected) is None


# ---------------------------------------------------------------- other ways to plan and to loop


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fleet_hold_cached", "fleet_hold_chunk"])
def test_planning_the_residents_of_fleets_at_once_changes_nothing(name: str) -> None:
    programs = [as_program(generate(name, Random(f"windows/{k}"))) for k in range(24)]
    seeds = [program.seed for program in programs]
    plain = simulate_many(programs, seeds, coalesce=False)
    turns = 0
    for one, other in zip(simulate_many(programs, seeds), plain):
        assert one is not None and other is not None
        assert exact_difference(one, other) is None
        turns += other.extra["turns"] - one.extra["turns"]
    assert turns > 0, "nobody was planned at once"


# ---------------------------------------------------------------- routing


def queue_of_three(key: Json, seed: int) -> Json:
    """Three single servers at load 0.8 under a router."""
    from generate import draw

    b = Builder()
    j, t0 = b.attr("j"), b.attr("t0")
    rep = stages(b, "rep", [{"Fifo": 1}] * 3)
    b.observe("response")
    keys = [rep.state("Queue", at(j))] if key is None else [key]
    session = [(S, put(t0, ctx("Now"))), (S, choose(j, 3, *keys)), (S, work_at(rep, at(j), draw("Exp", 1.0))),
               (S, see(0, op("Sub", ctx("Now"), at(t0))))]
    return b.finish(Random(seed), {"Poisson": 2.4}, session, horizon=4000, warmup=400)


@pytest.mark.slow
def test_the_shortest_queue_beats_a_random_one_and_lies_above_one_line() -> None:
    """Random routing is three M/M/1 (mean 1 / (1 - 0.8) = 5); one common line, M/M/3, bounds every router below."""
    from generate import draw

    means = {}
    for name, key in (("shortest", None), ("random", draw("Uniform", 0, 1))):
        program = as_program(queue_of_three(key, 1))
        runs = [r for r in simulate_many([program] * 16, list(range(16))) if r is not None]
        means[name] = [float(r.samples_value.mean()) for r in runs]
    load, n = 2.4, 3
    idle = sum(load**k / [1, 1, 2, 6][k] for k in range(n))
    busy = load**n / 6 / (1 - load / n)
    one_line = busy / (idle + busy) / (n - load) + 1.0
    shortest, random = (sum(means[name]) / 16 for name in ("shortest", "random"))
    split = 1.0 / (1.0 - load / n)  # three M/M/1 queues, each with a third of the arrivals
    assert one_line < shortest < min(split, random)
    assert abs(random - split) < 0.5


@pytest.mark.slow
def test_legs_and_choices_with_all_instances_together() -> None:
    """The form of the loop for accelerators gives the same bits."""
    from serqjax.engine import host
    from serqjax.engine.make_plan import make_plan
    from serqjax.engine.step import Config

    for name in ("legs_rejected_cached", "members_cached", "route_draws"):
        programs = [as_program(generate(name, Random(f"together/{k}"))) for k in range(6)]
        alone = simulate_many(programs, [q.seed for q in programs])
        made = {id(q): make_plan(q) for q in programs}
        config = Config(form="together")
        with host.settings():
            batch = host.Batch.build(
                made[id(programs[0])][0], made, programs, [q.seed for q in programs], config, False, False
            )
            together = batch.run(None, host.SharedProgress(host.NoProgress(), len(programs)))
        for one, other in zip(alone, together):
            assert one is not None and other is not None
            assert exact_difference(one, other) is None, name
