"""Draws on demand: every kind of draw inside the loop, at every place of a block, equals the sequential reading."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from compare_runs import first_difference

import oracle
from serqjax import ir
from serqjax.engine import simulate
from serqjax.engine.host import Batch, SharedProgress, settings
from serqjax.engine.make_plan import make_plan
from serqjax.engine.passes import may_reach
from serqjax.engine.step import Config, Form
from serqjax.ir import program as p
from serqjax.progress import NoProgress

SEEDS = [1, 2, 3]


def num(x: float) -> ir.Num:
    return ir.Num(float(x))


def sample(dist: Any, *args: float) -> ir.Sample:
    return ir.Sample(dist, tuple(num(a) for a in args))


def drawing_program() -> p.Program:
    """Draws in gaps (3 each, so across blocks), `init` (9), turns (3), states (up to 13 in one pass) and costs."""
    more = ir.Binary("Lt", ir.Attr("n"), num(3))
    states = (
        p.State(
            name="ask",
            ops=(p.Turn(), p.Set("u", sample("Uniform", 0, 1)), p.Set("v", sample("Erlang", 5, 0.2))),
            exit=p.Branch(sample("Bernoulli", 0.5), "longer", "work"),
        ),
        p.State(name="longer", ops=(p.Set("v", sample("Erlang", 6, 0.4)),), exit=p.Goto("work")),
        p.State(
            name="work",
            exit=p.Run("gpu", "Prefill", ir.Call("Ceil", (ir.Binary("Mul", num(20), ir.Attr("w")),)), "answer"),
        ),
        p.State(
            name="answer",
            ops=(p.Observe("v", ir.Attr("v")), p.Observe("a", ir.Attr("a")), p.Respond(),
                 p.Set("n", ir.Binary("Add", ir.Attr("n"), num(1)))),
            exit=p.Branch(more, "think", "end"),
        ),
        p.State(name="think", exit=p.Run("user", "Plain", ir.Binary("Add", ir.Attr("t"), ir.Attr("u")), "ask")),
        p.State(name="end", exit=p.End()),
    )  # fmt: skip
    cost = ir.Binary("Add", sample("Exp", 0.01), ir.Binary("Mul", num(1e-4), ir.Ctx("Ntok")))
    return p.Program(
        name="draws",
        attrs=tuple(p.Attribute(name=n) for n in ("a", "u", "v", "w", "t", "n")),
        observes=("v", "a"),
        stages=(
            p.Stage(name="gpu", kind=p.Step(budget=num(16), cost=cost)),
            p.Stage(name="user", kind=p.Delay()),
        ),
        init=(p.Set("a", sample("Erlang", 9, 1.0)),),
        turn=(p.Set("w", sample("H2", 1.0, 4.0)), p.Set("t", sample("Exp", 0.1))),
        states=states,
        start="ask",
        arrival=p.Renewal(gap=sample("Erlang", 3, 0.2)),
        horizon_s=num(20),
    )


def one_turn_program() -> p.Program:
    """One turn a session, which draws 10 times (two blocks), before which a session waits: turns begin out of order."""
    states = (
        p.State(name="come", exit=p.Run("user", "Plain", sample("Exp", 3.0), "ask")),
        p.State(
            name="ask", ops=(p.Turn(), p.Observe("w", ir.Attr("w"))), exit=p.Run("desk", "Plain", ir.Attr("w"), "end"),
        ),
        p.State(name="end", ops=(p.Observe("t", ir.Attr("t")), p.Respond()), exit=p.End()),
    )  # fmt: skip
    return p.Program(
        name="one turn",
        attrs=(p.Attribute(name="w"), p.Attribute(name="t")),
        observes=("w", "t"),
        stages=(p.Stage(name="desk", kind=p.Fifo(num(1))), p.Stage(name="user", kind=p.Delay())),
        turn=(p.Set("w", sample("Erlang", 9, 0.2)), p.Set("t", sample("Exp", 0.1))),
        states=states,
        start="come",
        arrival=p.Poisson(num(3)),
        horizon_s=num(60),
    )


def runs_of(program: p.Program, form: Form) -> list[Any]:
    """All seeds in a form of the loop, with the action trace, each as the sequential reading."""
    made = {id(program): make_plan(program)}
    with settings():
        config = Config(check=True, form=form)
        batch = Batch.build(made[id(program)][0], made, [program] * len(SEEDS), SEEDS, config, True, False)
        runs = batch.run(None, SharedProgress(NoProgress(), len(SEEDS)))
    for seed, run in zip(SEEDS, runs):
        assert run is not None and first_difference(oracle.simulate(program, seed, trace=True), run) is None
    return runs


@pytest.mark.parametrize("form", ["native", "one_by_one", "together"])
def test_every_kind_of_draw_equals_the_sequential_reading(form: Form) -> None:
    program = drawing_program()
    plan = make_plan(program)[0]
    assert all(plan.blocks[kind] for kind in ("init", "turn", "own", "gap", "machine")) and not plan.one_turn
    assert all(len(run.samples_value) > 200 for run in runs_of(program, form))


@pytest.mark.parametrize("form", ["native", "one_by_one", "together"])
def test_draws_of_the_only_turn_of_each_session_are_computed_ahead(form: Form) -> None:
    plan = make_plan(one_turn_program())[0]
    assert plan.one_turn and len(plan.blocks["turn"]) == 16
    for run in runs_of(one_turn_program(), form):
        begun = run.samples_serial[run.samples_observe == 0]
        assert len(begun) > 100 and (np.diff(begun) < 0).any()


def test_full_buffers_change_nothing() -> None:
    """A lane that waits for the host every few turns ends as one that never waits."""
    from serqjax.engine import Capacities

    program = msgspec.structs.replace(drawing_program(), horizon_s=num(10))
    few = simulate(program, SEEDS, capacities=Capacities(samples=4, requests=4))
    many = simulate(program, SEEDS)
    for a, b in zip(few, many):
        assert a is not None and b is not None and first_difference(a, b) is None


def test_reachable_states() -> None:
    """A pass goes forward through `Goto` and `Branch` and ends at everything that blocks."""
    plan, _, _ = make_plan(drawing_program())
    at = plan.state_index
    draws = may_reach(plan, plan.state_draws)
    assert {name for name in at if draws[at[name]]} == {"ask", "longer"}
    turns = may_reach(plan, plan.turn_ops)
    assert {name for name in at if turns[at[name]]} == {"ask"}
    assert jnp.asarray(draws).dtype == np.bool_
