"""The sequential interpreter on small programs whose answers were worked out by hand, and on the reference's traces."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import ROOT, shared_dir
from msgspec.structs import replace

import oracle
from oracle.check import OwnershipError, check_ownership
from oracle.machine import Machine
from oracle.streams import Stream, sub_seed
from serqjax import ir
from serqjax.importers import ir14
from serqjax.ir import fixed
from serqjax.report.raw import Action, RawRun, RequestStatus, Verdict

SECOND = 10**9
ZERO, ONE = ir.Num(0.0), ir.Num(1.0)
NOW = ir.Ctx("Now")
LIFO = ir.Preempt(order=ir.Order(keys=(ir.Unary("Neg", ir.Ctx("Admission")),), tie="latest"))


def attr(name: str) -> ir.Attr:
    return ir.Attr(name)


def op(name: str, a: ir.Expr, b: ir.Expr) -> ir.Binary:
    return ir.Binary(name, a, b)  # type: ignore[arg-type]


def names(text: str) -> tuple[ir.Attribute, ...]:
    return tuple(ir.Attribute(name=name) for name in text.split())


def samples(program: ir.Program, raw: RawRun, name: str) -> list[tuple[float, int, float]]:
    """(time, session, value) of an observation."""
    rows = raw.samples_observe == program.observes.index(name)
    columns = (raw.samples_tick[rows] * raw.tick_s, raw.samples_serial[rows], raw.samples_value[rows])
    return [(round(float(t), 6), int(s), round(float(v), 6)) for t, s, v in zip(*columns)]


def actions(raw: RawRun, *kinds: Action) -> list[tuple[float, str, int, float]]:
    """(time, kind, session, amount) of the actions of some kinds."""
    assert raw.trace is not None
    rows = [r for r in raw.trace.tolist() if Action(int(r[1])) in kinds]
    return [(r[0] / SECOND, Action(int(r[1])).name, int(r[2]), r[4]) for r in rows]


# ---------------------------------------------------------------- fifo, delay, arrivals


def fifo(arrival: ir.Arrival, work: ir.Expr, **fields) -> ir.Program:
    """Every session runs `work` seconds on one server and observes how long it took."""
    states = (
        ir.State(name="start", ops=(ir.Set("t0", NOW),), exit=ir.Run("server", "Plain", work, "done")),
        ir.State(name="done", ops=(ir.Observe("response", op("Sub", NOW, attr("t0"))),), exit=ir.End()),
    )
    settings = {
        "attrs": names("serial t0 work"),
        "observes": ("response",),
        "stages": (ir.Stage(name="server", kind=ir.Fifo(ONE)),),
        "states": states,
        "start": "start",
        "arrival": arrival,
        **fields,
    }
    return ir.Program(**settings)


def test_first_come_first_served():
    listed = ir.Listed(at=(0.0, 0.0, 4.0), attrs=("work",), values=((2.0,), (3.0,), (5.0,)))
    program = fifo(listed, attr("work"))
    raw = oracle.simulate(program, trace=True)
    assert samples(program, raw, "response") == [(2.0, 0, 2.0), (5.0, 1, 5.0), (10.0, 2, 6.0)]
    assert raw.verdict is Verdict.drained and raw.end_tick == 10 * SECOND
    assert (raw.stages[0].completed, raw.stages[0].wait_tick) == (3, 3 * SECOND)  # waits 0, 2, 1
    assert raw.stages[0].busy_tick == 10 * SECOND
    assert raw.live_tick == 13 * SECOND  # 2 + 5 + 6
    assert raw.request_status.tolist() == [RequestStatus.finished] * 3
    assert raw.events == 4  # one arrival at 4 and three ends; rows of time 0 start before the first event


def test_warmup_keeps_later_samples_and_restarts_averages():
    program = fifo(ir.Batch(ir.Num(4.0)), ONE, horizon_s=ir.Num(10.0), warmup_s=ir.Num(2.0))
    raw = oracle.simulate(program)
    # the end at 2 fires after the end of the warm-up, which was pushed first
    assert samples(program, raw, "response") == [(2.0, 1, 2.0), (3.0, 2, 3.0), (4.0, 3, 4.0)]
    assert (raw.arrivals, raw.ended, raw.stages[0].completed) == (4, 3, 3)
    assert raw.stages[0].number_tick == 3 * SECOND  # 2 jobs for 1 s, 1 job for 1 s
    assert raw.end_tick == 10 * SECOND and raw.verdict is Verdict.drained


def test_a_closed_population_replaces_who_ends():
    program = fifo(ir.Closed(ir.Num(2.0)), ONE, horizon_s=ir.Num(5.0))
    raw = oracle.simulate(program)
    # an event exactly at the horizon fires
    assert samples(program, raw, "response") == [(1.0, 0, 1.0)] + [(float(t), t - 1, 2.0) for t in (2, 3, 4, 5)]
    assert raw.arrivals == 7 and raw.live_at_end == 2 and raw.verdict is Verdict.horizon


def test_poisson_starts_at_0_and_renewal_after_one_gap():
    poisson = oracle.simulate(fifo(ir.Poisson(ONE), ZERO, arrivals=3), trace=True)
    gaps = Stream(0)
    second = round(-math.log(1.0 - gaps.uniform()) * SECOND)
    third = second + round(-math.log(1.0 - gaps.uniform()) * SECOND)
    assert poisson.trace is not None
    assert [int(r[0]) for r in poisson.trace.tolist() if r[1] == Action.arrive] == [0, second, third]
    renewal = oracle.simulate(fifo(ir.Renewal(ir.Num(2.0)), ZERO, arrivals=3), trace=True)
    assert [a[0] for a in actions(renewal, Action.arrive)] == [2.0, 4.0, 6.0]
    assert renewal.verdict is Verdict.drained


def test_arrivals_that_do_not_fit_in_the_horizon_are_an_error():
    raw = oracle.simulate(fifo(ir.Renewal(ir.Num(15.0)), ONE, arrivals=100, horizon_s=ir.Num(20.0)))
    assert raw.verdict is Verdict.error
    assert raw.cause == "horizon 20 reached before requested arrivals: got 1, requested 100"
    raw = oracle.simulate(fifo(ir.Renewal(ONE), ir.Num(10.0), arrivals=5, horizon_s=ir.Num(20.0)))
    assert raw.cause == "failed to drain 4 active sessions within horizon 20"


def test_zero_work_lets_the_other_ready_sessions_run_first():
    listed = ir.Listed(at=(0.0,) * 3, attrs=("work",), values=((0.0,), (1.0,), (0.0,)))
    states = (
        ir.State(name="start", exit=ir.Run("delay", "Plain", attr("work"), "seen")),
        ir.State(name="seen", ops=(ir.Observe("response", NOW),), exit=ir.End()),
    )
    program = fifo(listed, ZERO, states=states, stages=(ir.Stage(name="delay", kind=ir.Delay()),))
    assert samples(program, oracle.simulate(program), "response") == [(0.0, 0, 0.0), (0.0, 2, 0.0), (1.0, 1, 1.0)]


# ---------------------------------------------------------------- an engine


def engine(
    turns: Sequence[Sequence[tuple[float, float, float]]],
    *,
    blocks: float,
    budget: float = 64.0,
    keep: bool = False,
    preempt: ir.Preempt | None = LIFO,
    units: ir.Expr | None = None,
    cost: ir.Expr = ONE,
    at: tuple[float, ...] | None = None,
    evict: ir.Order = ir.EVICT_LRU,
    uncached: str = "first",
    oversize: ir.Expr | None = None,
    **fields,
) -> ir.Program:
    """Requests on an engine with blocks of 16: `turns[session]` are (input, output, pause before) triples.

    `known` counts the tokens there are: it never falls. `units` are what admission takes (default: all known).
    """
    known, input_, output = attr("known"), attr("new"), attr("out")
    reached = ir.Cond(op("Lt", attr("computed"), input_), input_, op("Add", attr("computed"), ONE))
    at_release = ir.Cond(op("Lt", ir.Ctx("HoldPosition"), input_), input_, op("Add", ir.Ctx("HoldPosition"), ONE))
    block = ir.Num(16.0)
    bound = op("Mul", ir.Call("Floor", (op("Div", op("Sub", known, ONE), block),)), block)
    fresh = op("Sub", known, attr("cached") if keep else ZERO)
    take = ir.Take(
        pool="kv",
        units=known if units is None else units,
        keep=ir.Call("Max", (known, at_release)) if keep else None,
        oversize="wait" if oversize is None else oversize,
    )
    scope = ir.Scope(
        name="request",
        takes=(take,),
        reentry="prefill",
        lets=(ir.Let(attr="known", value=ir.Call("Max", (known, reached))),),
        reuse=bound if keep else None,
    )
    pool = ir.Pool(
        name="kv",
        cap=ir.Num(16.0 * blocks),
        block=block,
        preempt=preempt,
        admit_via="E",
        evict=evict,
        uncached=uncached,  # type: ignore[arg-type]
    )
    states = (
        ir.State(name="turn", ops=(ir.Turn(),), exit=ir.Run("pause", "Plain", attr("think"), "ask")),
        ir.State(name="ask", ops=(ir.Set("t0", NOW), ir.Set("known", input_)), exit=ir.Enter("request")),
        ir.State(
            name="prefill",
            ops=(ir.Observe("reused", attr("cached")),),
            scope="request",
            exit=ir.Run("E", "Prefill", ir.Call("Max", (fresh, ZERO)), "decode", grows="kv"),
        ),
        ir.State(
            name="decode",
            ops=(ir.Observe("ttft", op("Sub", NOW, attr("t0"))),),
            scope="request",
            exit=ir.Run(
                "E", "Decode", op("Sub", op("Sub", output, ONE), op("Sub", known, input_)), "close", grows="kv"
            ),
        ),
        ir.State(name="close", scope="request", exit=ir.Leave("answered")),
        ir.State(
            name="answered", ops=(ir.Observe("done", NOW), ir.Respond()), exit=ir.Branch(attr("more"), "turn", "end")
        ),
        ir.State(name="end", exit=ir.End()),
    )
    starts = at or (0.0,) * len(turns)
    listed = ir.Listed(at=starts, turn_attrs=("new", "out", "think"), turns=tuple(tuple(t) for t in turns))
    settings = {
        "attrs": names("cached serial turn_no new out think more computed known t0"),
        "observes": ("reused", "ttft", "done"),
        "pools": (pool,),
        "stages": (
            ir.Stage(name="E", kind=ir.Step(budget=ir.Num(budget), cost=cost, memory="kv")),
            ir.Stage(name="pause", kind=ir.Delay()),
        ),
        "scopes": (scope,),
        "states": states,
        "start": "turn",
        "arrival": listed,
        **fields,
    }
    return ir.Program(**settings)


def test_one_session_of_two_turns():
    """Prefill 64 + 36, four decodes; a pause of 1 s; 64 + 64 + 2, two decodes (`det_one`)."""
    program = engine([[(100, 5, 0), (130, 3, 1)]], blocks=100)
    raw = oracle.simulate(program, trace=True, check=True)
    assert samples(program, raw, "ttft") == [(2.0, 0, 2.0), (10.0, 0, 3.0)]
    assert samples(program, raw, "done") == [(6.0, 0, 6.0), (12.0, 0, 12.0)]
    assert [a[3] for a in actions(raw, Action.iteration)] == [64, 36, 1, 1, 1, 1, 64, 64, 2, 1, 1]
    assert raw.request_tokens.tolist() == [5, 3]
    assert (raw.request_first // SECOND).tolist() == [2, 10]
    assert (raw.request_last // SECOND).tolist() == [6, 12]
    # the response counts from the Turn, which is before the pause
    assert (raw.request_sent // SECOND).tolist() == [0, 6]
    assert (raw.stages[0].itl_count, raw.stages[0].itl_tick) == (6, 6 * SECOND)
    assert raw.stages[0].completed == 4  # a request is two jobs


def test_growth_preempts_the_last_admitted_which_resumes_where_it_was():
    """12 blocks, inputs 40/50/30, outputs 60/40/30 (`det_preempt_decode`)."""
    program = engine([[(40, 60, 0)], [(50, 40, 0)], [(30, 30, 0)]], blocks=12)
    raw = oracle.simulate(program, trace=True, check=True)
    assert actions(raw, Action.preempt) == [(20.0, "preempt", 2, 48.0)]
    # 49 tokens are known: 4 blocks, when session 1 has left
    admitted = [a for a in actions(raw, Action.admit) if a[2] == 2]
    assert admitted == [(1.0, "admit", 2, 32.0), (41.0, "admit", 2, 64.0)]
    assert samples(program, raw, "done") == [(41.0, 1, 41.0), (52.0, 2, 52.0), (60.0, 0, 60.0)]
    assert raw.request_tokens.tolist() == [60, 40, 30]
    assert raw.pools[0].preemptions == 1 and raw.pools[0].stuck == 0


def test_a_preempted_prefix_stays_cached_and_is_eaten_from_its_tail():
    program = engine([[(40, 60, 0)], [(50, 40, 0)], [(30, 30, 0)]], blocks=12, keep=True)
    raw = oracle.simulate(program, trace=True, check=True)
    assert actions(raw, Action.preempt) == [(20.0, "preempt", 2, 48.0)]
    assert (20.0, "cache", 2, 48.0) in actions(raw, Action.cache)
    assert actions(raw, Action.evict)[0][1:] == ("evict", 2, 16.0)


def test_a_request_that_can_never_grow_preempts_itself_for_ever():
    program = engine(
        [[(200, 5, 0)]], blocks=10, units=ir.Call("Min", (attr("known"), ir.StageState("BudgetLeft", "E")))
    )
    raw = oracle.simulate(replace(program, horizon_s=ir.Num(60.0)), trace=True)
    assert raw.verdict is Verdict.livelock and raw.end_tick == 60 * SECOND
    assert "session 0 preempts itself" in raw.cause
    assert raw.pools[0].preemptions == 20 and raw.pools[0].stuck == 1  # `det_self_preempt_stuck`
    assert (raw.stages[0].iterations, raw.events) == (61, 60)
    stopped = oracle.simulate(replace(program, horizon_s=ir.Num(60.0)), stop_on_verdict=True)
    assert stopped.verdict is Verdict.livelock and stopped.end_tick < 10 * SECOND
    endless = oracle.simulate(program)
    assert (endless.verdict, endless.end_tick) == (Verdict.livelock, stopped.end_tick)


def test_self_preemption_without_readmission_is_a_deadlock():
    """The first chunk fits, the gate lets nobody back in who needs more than the pool."""
    known = attr("known")
    program = engine([[(100, 60, 0)]], blocks=8, budget=256.0)
    take = replace(program.scopes[0].takes[0], reserve=known)
    program = replace(program, scopes=(replace(program.scopes[0], takes=(take,)),))
    raw = oracle.simulate(program, trace=True)
    assert raw.verdict is Verdict.deadlock and len(actions(raw, Action.preempt)) == 1
    assert "session 0 wait in the line of pool `kv`" in raw.cause
    assert raw.pools[0].over_cap == 129.0 and raw.request_status.tolist() == [RequestStatus.running]


def test_growers_that_wait_for_each_other_are_a_deadlock():
    program = engine([[(40, 40, 0)], [(50, 40, 0)]], blocks=7, preempt=None)
    raw = oracle.simulate(replace(program, horizon_s=ir.Num(100.0)), trace=True, check=True)
    assert raw.verdict is Verdict.deadlock and raw.end_tick == 100 * SECOND
    assert raw.cause.startswith("no event is left: sessions 0, 1 wait to grow in pool `kv`")
    assert (raw.pools[0].growing_at_end, raw.pools[0].growing_stalled) == (2, True)
    assert raw.stages[0].idle_with_work
    assert raw.pools[0].preemptions == 0


def test_a_whole_state_that_returns_is_a_livelock():
    """Two prefills of 6 blocks in 8, each preempting the other: the oldest goes, the newest grows."""
    oldest = ir.Preempt(order=ir.Order(keys=(ir.Ctx("Admission"),), tie="latest"))
    first = ir.Call("Min", (attr("known"), ir.Num(16.0)))
    program = engine([[(96, 2, 0)], [(96, 2, 0)]], blocks=8, preempt=oldest, units=first, budget=32.0)
    kind = program.stages[0].kind
    program = replace(
        program, stages=(replace(program.stages[0], kind=replace(kind, chunk=ir.Num(16.0))), program.stages[1])
    )
    raw = oracle.simulate(program, trace=True, check=True)
    assert raw.verdict is Verdict.livelock and "returned with no token between" in raw.cause
    # a token of a prefill that ended between, then both go round without one
    assert [a[0] for a in actions(raw, Action.token)] == [7.0] and raw.end_tick == 20 * SECOND


def test_lru_evicts_block_by_block_from_the_oldest_entry():
    """As `det_evict_lru`: three sessions return to a pool that cannot keep all their prefixes."""
    turns = [[(60, 4, 0), (80, 4, 12)], [(70, 4, 3), (90, 4, 12)], [(90, 4, 6), (110, 4, 12)]]
    program = engine(turns, blocks=13, keep=True)
    raw = oracle.simulate(program, trace=True, check=True)
    evicted = actions(raw, Action.evict)
    assert evicted and all(a[3] % 16 == 0 for a in evicted)
    assert raw.verdict is Verdict.drained
    assert raw.pools[0].evicted_units == sum(a[3] for a in evicted)


def test_what_reuse_leaves_is_a_dead_entry_that_goes_first():
    """Session 0 kept 64; its next request may use 32: the rest keeps its age and nobody can borrow it."""
    turns = [[(62, 3, 0), (40, 2, 10)], [(62, 3, 5)], [(110, 2, 20)]]
    program = engine(turns, blocks=13, keep=True)
    raw = oracle.simulate(program, trace=True, check=True)
    assert samples(program, raw, "reused")[2] == (13.0, 0, 32.0)
    # at 20 the newcomer takes 7 blocks of the 13 where 2 + 4 + 2 are cached; the dead remainder is the oldest
    assert actions(raw, Action.evict)[0] == (20.0, "evict", -1, 32.0)


def test_one_list_of_free_and_cached_units():
    """`in_order`: released units that no cache keeps queue behind older cached ones."""
    turns = [[(62, 3, 0)], [(62, 3, 5)], [(190, 2, 20)]]
    for uncached, evicted in (("first", []), ("in_order", [(20.0, "evict", -1, 64.0)])):
        program = engine(turns, blocks=16, uncached=uncached)
        raw = oracle.simulate(program, trace=True, check=True)
        assert actions(raw, Action.evict) == evicted


def test_oversize_is_rejected_or_waits():
    rejecting = engine([[(200, 5, 0)], [(20, 2, 1)]], blocks=10, oversize=attr("new"))
    raw = oracle.simulate(rejecting, trace=True)
    assert actions(raw, Action.reject) == [(0.0, "reject", 0, 208.0)]
    assert raw.request_status.tolist() == [RequestStatus.rejected, RequestStatus.finished]
    assert raw.pools[0].rejected == 1 and raw.verdict is Verdict.drained
    waiting = oracle.simulate(engine([[(200, 5, 0)], [(20, 2, 1)]], blocks=10))
    assert waiting.verdict is Verdict.deadlock  # the small one stands behind it
    assert waiting.request_status.tolist() == [RequestStatus.queued, RequestStatus.queued]
    assert waiting.pools[0].over_cap == 200.0


def test_the_sub_tick_remainder_is_carried_until_the_engine_idles():
    program = engine([[(1, 5, 0)]], blocks=4, cost=ir.Num(1.25), tick_s=1.0)
    raw = oracle.simulate(program, trace=True)
    assert raw.trace is not None
    assert [int(r[0]) for r in raw.trace.tolist() if r[1] == Action.token] == [1, 2, 3, 5, 6]
    again = engine([[(1, 2, 0), (1, 2, 2)]], blocks=4, cost=ir.Num(1.25), tick_s=1.0)
    raw = oracle.simulate(again, trace=True)
    assert raw.trace is not None
    assert [int(r[0]) for r in raw.trace.tolist() if r[1] == Action.token] == [1, 2, 5, 6]


def test_a_cost_that_is_not_affine_is_rounded_to_ticks():
    product = op("Mul", ir.Ctx("Ntok"), ir.Ctx("Ndec"))
    cost = op("Add", ir.Num(1.25), op("Mul", ZERO, product))
    raw = oracle.simulate(engine([[(1, 5, 0)]], blocks=4, cost=cost, tick_s=1.0), trace=True)
    assert raw.trace is not None
    assert [int(r[0]) for r in raw.trace.tolist() if r[1] == Action.token] == [1, 2, 3, 4, 5]


def test_listed_arrivals_fire_before_what_was_pushed_later():
    """A request that arrives when an iteration ends is in the next one."""
    program = engine([[(60, 2, 0)], [(10, 1, 0)]], blocks=100, at=(0.0, 1.0))
    raw = oracle.simulate(program, trace=True)
    assert actions(raw, Action.give)[1:3] == [(1.0, "give", 0, 1.0), (1.0, "give", 1, 10.0)]


# ---------------------------------------------------------------- errors


def test_run_time_errors_are_verdicts_with_their_text():
    amount = oracle.simulate(fifo(ir.Batch(ONE), ir.Num(-2.0)))
    assert amount.verdict is Verdict.error
    assert amount.cause == (
        "session 0: an amount is negative or not a number (units, tokens or seconds), at state `start`, at t = 0 s"
    )
    free = oracle.simulate(engine([[(1, 2, 0)]], blocks=4, cost=ZERO))
    assert (free.verdict, free.cause) == (Verdict.error, "stage `E`: an iteration with tokens and cost 0, at t = 0 s")
    gap = oracle.simulate(fifo(ir.Renewal(op("Sub", ONE, ONE)), ONE, arrivals=2))
    assert gap.cause == "the gap between arrivals is not positive, at t = 0 s"


def test_a_program_that_lets_no_time_pass_stops():
    states = (ir.State(name="start", exit=ir.Run("server", "Plain", ZERO, "start")),)
    raw = oracle.simulate(fifo(ir.Batch(ONE), ZERO, states=states))
    assert raw.cause == "session 0: became ready 1001 times without time passing, at t = 0 s"
    states = (ir.State(name="start", exit=ir.Goto("start")),)
    assert "1000000 statements" in oracle.simulate(fifo(ir.Batch(ONE), ZERO, states=states)).cause
    states = (ir.State(name="start", exit=ir.Branch(ir.Num(0.5), "start", "start")),)
    assert (
        oracle.simulate(fifo(ir.Batch(ONE), ZERO, states=states)).cause
        == "session 0: a guard is neither 0 nor 1, at state `start`, at t = 0 s"
    )


def test_a_member_out_of_range_is_an_error():
    stages = tuple(ir.Stage(name=f"s[{i}]", kind=ir.Fifo(ONE), array="s", index=i) for i in range(2))
    states = (
        ir.State(name="start", exit=ir.Run(ir.Member("s", attr("serial")), "Plain", ONE, "end")),
        ir.State(name="end", ops=(ir.Observe("response", NOW),), exit=ir.End()),
    )
    good = fifo(ir.Batch(ir.Num(2.0)), ZERO, stages=stages, states=states)
    assert samples(good, oracle.simulate(good), "response") == [(1.0, 0, 1.0), (1.0, 1, 1.0)]
    bad = fifo(ir.Batch(ir.Num(3.0)), ZERO, stages=stages, states=states)
    cause = "session 2: an index of `s` is not a whole number from 0 to 1, at t = 0 s"
    assert oracle.simulate(bad).cause == cause


def test_what_is_not_run_is_refused_by_name_and_place():
    program = fifo(ir.Poisson(ONE), ONE)
    with pytest.raises(oracle.Unsupported) as caught:
        oracle.simulate(program)
    for text in ("arrival: Poisson never ends",):
        assert text in str(caught.value)


def test_the_ownership_check_sees_a_lost_unit():
    program = engine([[(40, 60, 0)], [(50, 40, 0)]], blocks=12)
    machine = Machine(program, 0)
    machine.start()
    machine.settle()
    check_ownership(machine)
    machine.pools[0].used -= 16.0
    with pytest.raises(OwnershipError, match="pool `kv`"):
        check_ownership(machine)


# ---------------------------------------------------------------- streams


def test_streams_are_the_references():
    golden = json.loads((Path(__file__).parent / "data" / "oracle_streams.json").read_text())
    for seed, words in golden["u64"].items():
        stream = Stream(int(seed))
        assert [str(stream.u64()) for _ in words] == words
    assert str(sub_seed(10, 3, 2, 1)) == golden["sub_seed_10_3_2_1"]


def test_the_generator_equals_pyserqs():
    pyserq = pytest.importorskip("pyserq")
    for seed in (0, 1, 12345, 2**63 + 17):
        theirs, ours = pyserq.Rng(seed), Stream(seed)
        assert [theirs.random_f64() for _ in range(100)] == [ours.uniform() for _ in range(100)]


# ---------------------------------------------------------------- fixed-point costs


def test_the_form_of_a_cost():
    ndec, attn = ir.Ctx("Ndec"), ir.Ctx("Attn")
    affine = op("Add", ir.Num(0.5), op("Add", op("Mul", ir.Param("p"), ndec), op("Div", attn, ir.Num(4.0))))
    form = fixed.cost_form(affine)
    assert form is not None and fixed.reads(form) == {"Ndec", "Attn"}
    integers = fixed.resolve(form, {"p": 2.0}, 1.0)
    # attention 2.5 stands doubled: 0.5 + 2 * 3 + 2.5 / 4
    assert fixed.evaluate(integers, {"Ndec": 3, "Attn": 5}) == int(7.125 * 2**20)
    piecewise = fixed.cost_form(op("Sub", ir.Num(1.0), ir.Call("Max", (affine, ir.Num(3.0)))))
    assert isinstance(piecewise, fixed.MinOf) and len(piecewise.parts) == 2
    assert fixed.evaluate(fixed.resolve(piecewise, {"p": 2.0}, 1.0), {"Ndec": 0, "Attn": 0}) == -2 * 2**20
    for other in (
        op("Mul", ndec, ndec),
        NOW,
        ir.Cond(ndec, ONE, ZERO),
        op("Mul", ir.Param("p"), ir.Call("Max", (ndec, ONE))),
    ):
        assert fixed.cost_form(other) is None


def test_a_stage_has_a_form_only_where_its_variables_are_whole():
    def form(pool: ir.Pool, budget: ir.Expr = ir.Num(64.0)) -> fixed.Form | None:
        step = ir.Step(budget=budget, cost=ir.Ctx("Kvb"), memory="kv")
        return fixed.stage_form(engine([[(1, 1, 0)]], blocks=4, pools=(pool,)), step)

    blocks = ir.Pool(name="kv", cap=ir.Num(64.0), block=ir.Num(16.0))
    assert form(blocks) is not None
    assert form(replace(blocks, block=ir.Num(0.5))) is None and form(replace(blocks, block=None)) is None
    assert form(blocks, ir.Num(64.5)) is None and form(blocks, op("Div", ir.Num(64.0), ir.Ctx("Nres"))) is None
    assert form(blocks, ir.Call("Floor", (op("Div", ir.Num(64.0), ir.Ctx("Nres")),))) is not None


# ---------------------------------------------------------------- the command and the reference's traces


def test_the_command_prints_the_document(tmp_path):
    path = tmp_path / "program.json"
    path.write_text(ir.to_json(fifo(ir.Batch(ir.Num(3.0)), ONE, horizon_s=ir.Num(10.0))))
    command = [sys.executable, "-m", "oracle", str(path), "--seed", "5", "--actions", str(tmp_path / "actions.txt")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["report"]["seed"] == 5 and document["verdict"] == "drained"
    assert document["requests"]["in"] == 3 and document["requests"]["finished"] == 3
    assert (tmp_path / "actions.txt").read_text().splitlines()[0] == "0.000000000 arrive 0 0 0"
    missing = subprocess.run([*command[:3], str(tmp_path / "no.json")], cwd=ROOT, capture_output=True, text=True)
    assert missing.returncode in (1, 2) and "no.json" in missing.stderr and "Traceback" not in missing.stderr


TRACED = (
    "det_chunk det_decode_first det_evict_by det_evict_lru det_exclusive det_granule det_hol det_one det_one_cached "
    "det_only_phase det_over_reuse det_preempt_decode det_preempt_decode_cached det_preempt_none det_preempt_prefill "
    "det_preempt_tail det_queue_by det_register det_reqcap det_reserve det_self_preempt_stuck det_srpt "
    "trace_ordered_batch"
).split()


@pytest.mark.parametrize("name", TRACED)
def test_every_iteration_and_eviction_of_the_reference(name: str):
    """`trace.txt`: start, sessions and tokens of each iteration with the blocks then used; evicted units."""
    folder = shared_dir() / "programs" / name
    if not (folder / "trace.txt").exists():
        pytest.skip(f"no trace of {name}")
    program = ir14.read(folder / "program.ir14.json", directory=folder)
    engine_stage = next(s for s in program.stages if isinstance(s.kind, ir.Step))
    memory = [p.name for p in program.pools].index(engine_stage.kind.memory)  # type: ignore[union-attr]
    block = program.pools[memory].block.value  # type: ignore[union-attr]
    raw = oracle.simulate(program, trace=True, check=True)
    assert iterations(raw, memory, block) == recorded(folder / "trace.txt")


Lines = tuple[list[tuple[float, float, list[tuple[int, float]]]], dict[tuple[float, int], float]]


def iterations(raw: RawRun, memory: int, block: float) -> Lines:
    assert raw.trace is not None
    made, evicted, used = [], {}, 0.0
    for tick, kind, serial, place, amount in raw.trace.tolist():
        time, action = round(tick / SECOND, 4), Action(int(kind))
        if place == memory and action in (Action.admit, Action.grow):
            used += amount
        elif place == memory and action is Action.release:
            used -= amount
        elif place == memory and action is Action.evict:
            evicted[time, int(serial)] = evicted.get((time, int(serial)), 0.0) + amount
        elif action is Action.iteration:
            made.append((time, used / block, []))
        elif action is Action.give:
            made[-1][2].append((int(serial), amount))
    return made, evicted


def recorded(path: Path) -> Lines:
    made, evicted = [], {}
    for line in path.read_text().splitlines():
        word, time, rest = line.split(" ", 2)
        if word == "EVICT":
            key, units = rest.split()
            serial = -1 if int(key) >= 2**62 else int(key)
            evicted[float(time), serial] = evicted.get((float(time), serial), 0.0) + float(units)
        else:
            gives, _, pools = rest.partition("|")
            parts = [give.split(":") for give in gives.split()]
            made.append((float(time), float(pools.split()[1]), [(int(p[0]), float(p[2][1:])) for p in parts]))
    return made, evicted
