"""The engine itself: both forms of the loop, tables that run full, memory, interruption, foreign settings."""

from __future__ import annotations

import dataclasses
import threading

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from compare_runs import first_difference
from helpers import ROOT

import oracle
from serqjax import ir
from serqjax.engine import Capacities, simulate, simulate_many
from serqjax.engine import host as engine_host
from serqjax.engine.host import Batch, SharedProgress, settings
from serqjax.engine.make_plan import make_plan
from serqjax.engine.state import fields
from serqjax.engine.step import Config
from serqjax.importers import read_program
from serqjax.ir import program as p
from serqjax.progress import AbstractProgress, NoProgress
from serqjax.report.raw import RawRun, Verdict

SMOKE = ROOT / "tests" / "data" / "smoke.ir14.json"


def small_engine(sessions: int = 6, *, cap: float = 192.0, kept: bool = True) -> p.Program:
    """A step engine with a tight paged pool: it grows, preempts, evicts, and sessions come back for a second turn."""
    known = ir.Attr("known")
    request = p.Scope(
        name="request",
        takes=(
            p.Take(pool="reqs", units=ir.Num(1.0)),
            p.Take(
                pool="kv",
                units=known,
                keep=ir.Binary("Add", ir.Attr("prompt"), ir.Attr("out")) if kept else None,
            ),
        ),
        reentry="prefill",
        lets=(
            p.Let(
                attr="known",
                value=ir.Call(
                    "Max", (known, ir.Binary("Add", ir.Attr("computed"), ir.Num(1.0)))
                ),
            ),
        ),
        reuse=ir.Binary("Mul", ir.Call("Floor", (ir.Binary("Div", known, ir.Num(32.0)),)), ir.Num(16.0)),
    )
    work = ir.Binary("Sub", known, ir.Attr("cached"))
    left = ir.Binary("Sub", ir.Attr("out"), ir.Binary("Sub", known, ir.Attr("prompt")))
    states = (
        p.State(
            name="ask",
            ops=(p.Turn(), p.Set("prompt", ir.Attr("prompt")), p.Set("known", ir.Attr("prompt"))),
            exit=p.Enter("request"),
        ),
        p.State(name="prefill", scope="request", exit=p.Run("gpu", "Prefill", work, "decode", "kv")),
        p.State(name="decode", scope="request", exit=p.Run("gpu", "Decode", left, "leave", "kv")),
        p.State(name="leave", scope="request", exit=p.Leave("again")),
        p.State(
            name="again",
            ops=(p.Observe("done", ir.Ctx("Now")), p.Respond()),
            exit=p.Branch(ir.Attr("more"), "think", "end"),
        ),
        p.State(name="think", exit=p.Run("user", "Plain", ir.Num(0.05), "ask")),
        p.State(name="end", exit=p.End()),
    )
    turns = tuple(
        ((float(30 + 7 * i), float(8 + 3 * (i % 4))), (float(50 + 5 * i), 6.0)) for i in range(sessions)
    )
    return p.Program(
        name="small engine",
        attrs=tuple(p.Attribute(name=n) for n in ("cached", "computed", "more", "prompt", "out", "known")),
        observes=("done",),
        pools=(
            p.Pool(
                name="kv",
                cap=ir.Num(cap),
                block=ir.Num(16.0),
                preempt=p.Preempt(order=p.Order(keys=(ir.Unary("Neg", ir.Ctx("Admission")),), tie="latest")),
            ),
            p.Pool(name="reqs", cap=ir.Num(4.0), admit_via="gpu"),
        ),
        stages=(
            p.Stage(
                name="gpu",
                kind=p.Step(
                    budget=ir.Num(64.0),
                    cost=ir.Binary(
                        "Add", ir.Num(0.0103), ir.Binary("Mul", ir.Num(3.7e-5), ir.Ctx("Ntok"))
                    ),
                    memory="kv",
                ),
            ),
            p.Stage(name="user", kind=p.Delay()),
        ),
        scopes=(request,),
        states=states,
        start="ask",
        arrival=p.Listed(
            at=tuple(0.02 * i for i in range(sessions)), turn_attrs=("prompt", "out"), turns=turns
        ),
    )


def run_form(programs: list[p.Program], seeds: list[int], config: Config) -> list[RawRun]:
    made = {id(x): make_plan(x) for x in programs}
    plan = made[id(programs[0])][0]
    with settings():
        batch = Batch.build(plan, made, programs, seeds, config, True, False)
        runs = batch.run(None, SharedProgress(NoProgress(), len(programs)))
    assert all(r is not None for r in runs)
    return [r for r in runs if r is not None]


def test_instances_together_equal_instances_one_by_one() -> None:
    programs = [small_engine(6, cap=c) for c in (192.0, 208.0, 320.0, 160.0, 240.0)]
    apart = run_form(programs, [1, 2, 3, 4, 5], Config(check=True))
    together = run_form(programs, [1, 2, 3, 4, 5], Config(check=True, form="together"))
    for program, seed, a, b in zip(programs, (1, 2, 3, 4, 5), apart, together):
        assert first_difference(a, b) is None
        assert first_difference(oracle.simulate(program, seed, trace=True), a) is None
    assert sum(r.pools[0].preemptions for r in apart) > 0
    assert sum(r.pools[0].evicted_units for r in apart) > 0


def test_a_table_that_runs_full_is_enlarged_and_named_when_its_size_was_given() -> None:
    program = small_engine(40, cap=4000.0)
    full = simulate(program, [7], capacities=Capacities(slots=32, entries=128))[0]
    assert full is not None and full.verdict == Verdict.capacity
    assert "raise `slots`" in full.cause and "32" in full.cause
    few = simulate(program, [7], capacities=Capacities(slots=64, entries=32))[0]
    assert few is not None and few.verdict == Verdict.capacity and "raise `entries`" in few.cause
    enlarged = simulate(program, [7], trace=True)[0]
    assert enlarged is not None and enlarged.verdict == Verdict.drained
    assert first_difference(oracle.simulate(program, 7, trace=True), enlarged) is None


def test_state_and_tape_of_an_instance_are_small() -> None:
    plan, _, _ = make_plan(small_engine())
    state = fields(plan, Capacities(slots=1024, entries=1024), 1e-9)
    tables = sum(v.nbytes for k, v in state.items() if k not in ("samples", "requests", "gaps", "actions"))
    assert tables < 2 << 20
    run = simulate(read_program(SMOKE), [1])[0]
    assert run is not None
    memory = run.extra["memory_bytes"]
    assert memory["state"] + memory["tape"] < 2 << 20


def test_foreign_settings_change_nothing_and_stay_as_they_were() -> None:
    program = small_engine()
    plain = simulate(program, [1], trace=True)[0]
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.enable_x64(False):
        strict = simulate(program, [1], trace=True)[0]
        assert jnp.zeros(()).dtype == jnp.float32
    assert plain is not None and strict is not None
    assert first_difference(plain, strict) is None


def test_programs_of_several_structures_run_in_one_call_in_their_order() -> None:
    one, other = small_engine(5), read_program(SMOKE)
    mixed = simulate_many([one, other, one], [1, 2, 3])
    alone = [simulate(x, [s])[0] for x, s in ((one, 1), (other, 2), (one, 3))]
    for a, b in zip(mixed, alone):
        assert a is not None and b is not None
        assert first_difference(a, b) is None
    with pytest.raises(ValueError, match="3 programs and 1 seeds"):
        simulate_many([one, other, one], [1])


def test_an_interrupt_keeps_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    program = small_engine()

    class Impatient(AbstractProgress):
        closed = 0

        def start(self, total: int) -> None:
            assert total == 3 * engine_host.UNIT

        def advance(self, done: int) -> None:
            if done >= engine_host.UNIT:
                raise KeyboardInterrupt

        def close(self) -> None:
            self.closed += 1

    monkeypatch.setattr(engine_host, "cores", lambda: 1)
    progress = Impatient()
    runs = simulate(program, list(range(3 * engine_host.UNIT)), progress=progress)
    finished = [r for r in runs if r is not None]
    assert engine_host.UNIT <= len(finished) <= 2 * engine_host.UNIT
    assert progress.closed >= 1 and threading.active_count() < 20
    whole = simulate(program, list(range(3 * engine_host.UNIT)))
    for a, b in zip(runs, whole):
        if a is not None and b is not None:
            assert first_difference(a, b) is None


def test_numbers_are_leaves_and_structure_is_shared() -> None:
    a, b = small_engine(cap=192.0), small_engine(7, cap=320.0)
    assert make_plan(a)[0] == make_plan(b)[0] and hash(make_plan(a)[0]) == hash(make_plan(b)[0])
    assert make_plan(a)[1] != make_plan(b)[1]
    infinite = msgspec.structs.replace(a, pools=(msgspec.structs.replace(a.pools[0], cap=ir.Inf()), a.pools[1]))
    assert make_plan(infinite)[0] != make_plan(a)[0]
    assert dataclasses.is_dataclass(make_plan(a)[0])
    assert np.isfinite(make_plan(a)[1]).all()
