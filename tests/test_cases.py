"""Small inputs on which serving simulators went wrong, with the right outcome.

Engine U of the rows: one engine, first come first served, lifo preemption, no prefix cache, every iteration that
has work costs 1 s, a request is admitted only if its whole sequence fits; defaults budget 16, block 4, 100 blocks,
8 requests. Every program runs through pyserq, the oracle and the array engine, which must agree; the numbers
asserted here are derived by hand, or say that the reference defines them otherwise.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from compare_runs import (
    as_program,
    compare_with_pyserq,
    first_difference,
    run_engine,
    run_everywhere,
    run_oracle,
    run_together,
)
from ir14_builder import (
    DELAY,
    LIFO,
    MORE,
    SERIAL,
    Body,
    Builder,
    S,
    W,
    add,
    at,
    by,
    call,
    cond,
    ctx,
    hold,
    mul,
    neg,
    num,
    op,
    pool_state,
    put,
    ref,
    see,
    stage_state,
    sub,
    work,
)

from serqjax.ir.program import Listed, Program
from serqjax.report.raw import Action, RawRun, RequestStatus, Verdict
from serqjax.report.reference import client_observations, observations, reference_report

S_TICK = 1_000_000_000
Row = tuple[float, ...]


def unit_engine(
    rows: list[Row | list[Row]],
    *,
    budget: int = 16,
    block: int = 4,
    blocks: int = 100,
    slots: int = 8,
    taking: str = "chunk",
    reserve: str | None = "known",
    cost: Any = None,
    cache: Any = None,
    reuse: Any = None,
    preempt: Any = LIFO,
    serve: list[Any] | None = None,
    queue: list[Any] | None = None,
    horizon: float = 60.0,
    chunk: float = 0,
) -> Any:
    """Engine U as IR 14. `rows`: per session `(prompt, output, start_s)` or a list of turns, where the third
    number of a later turn is the think time before it."""
    b = Builder()
    n, o, pause, t0 = b.attr("n", "Size"), b.attr("o", "Size"), b.attr("pause", "Size"), b.attr("t0")
    start, rank = b.attr("start", "Size"), b.attr("rank", "Size")
    kv = b.pool("kv", float(block * blocks), float(block), preempt=preempt)
    slot = b.pool("reqs", float(slots), queue=queue, admit_via=0)
    known = ctx("Known")
    units = {"known": known, "chunk": call("Min", known, add(ctx("Hit"), stage_state("BudgetLeft", 0)))}[taking]
    if cache is None:
        units = {"known": known, "chunk": call("Min", known, stage_state("BudgetLeft", 0))}[taking]
    # a number says whether the whole sequence must fit, so that both rules are one structure
    reserve_whole = mul(num(0 if reserve is None else 1), known)
    reserves = {None: reserve_whole, "known": reserve_whole, "wait": add(known, mul(num(0), pool_state("Used", kv)))}
    request = {
        "pools": [[ref(slot), num(1), None], [ref(kv), units, reserves[reserve]]],
        "records": {
            "reused": b.observe("reused"),
            "prefill": b.observe("prefill"),
            "admitted": b.attr("adm"),
            "first": b.attr("first"),
            "last_reused": b.attr("lr"),
            "last_prefill": b.attr("lp"),
        },
    }
    if cache is not None:
        request["cache"] = cache
    if reuse is not None:
        request["reuse"] = reuse
    e = b.stage(
        "E",
        {
            "Step": {
                "budget": num(budget),
                "cost": cost or num(1),
                "chunk": num(chunk),
                "serve": {"By": serve or []},
                "memory": kv,
                "request": request,
            }
        },
    )
    tool = b.stage("tool", DELAY)
    turn = [
        (W, "Turn"),
        (S, put(t0, ctx("Now"))),
        (S, {"Request": {"stage": ref(e), "input": at(n), "output": at(o)}}),
        (S, see(b.observe("response"), sub(ctx("Now"), at(t0)))),
    ]
    session = [(W, work(tool, at(start))), *turn, (W, {"While": [at(MORE), Body([(W, work(tool, at(pause))), *turn])]})]
    sessions = []
    for place, row in enumerate(rows):
        turns = row if isinstance(row, list) else [row]
        sessions.append(
            {
                "attrs": [[start, float(turns[0][2])], [rank, float(turns[0][3] if len(turns[0]) > 3 else place)]],
                # the think time is read before the next Turn: it stands with the turn that it follows
                "turns": [
                    [[n, float(p)], [o, float(out)], [pause, float(turns[k + 1][2] if k + 1 < len(turns) else 0)]]
                    for k, (p, out, *_) in enumerate(turns)
                ],
            }
        )
    return b.finish(Random(1), {"Sessions": sessions}, session, horizon=horizon)


#: Programs of the plain engine U; they run as one batch.
PLAIN: dict[str, Any] = {
    "one request": unit_engine([(4, 3, 0)]),
    "last chunk of one": unit_engine([(5, 2, 0)], budget=4),
    "prompt of one": unit_engine([(1, 1, 0)]),
    "preempted": unit_engine([(8, 5, 0), (8, 5, 0)], blocks=5),
    "above the pool": unit_engine([(784, 1, 0), (785, 1, 1), (4, 1, 2)], budget=1024, block=16, blocks=49),
    "growth above the pool": unit_engine([(4, 2, 0)], blocks=1),
    "stuck after three": unit_engine([(6, 4, 0)], blocks=2),
    "one block suffices": unit_engine([(4, 1, 0)], blocks=1),
    "by whole sequence": unit_engine([(8, 6, 0), (12, 2, 1)], budget=6, blocks=4),
    "by chunk": unit_engine([(8, 6, 0), (12, 2, 1)], budget=6, blocks=4, reserve=None),
    "blocked head": unit_engine([(8, 4, 0), (16, 1, 0.5), (2, 1, 0.6)], blocks=5),
    "outgrown": unit_engine([[(1000 * k, 1, 0) for k in range(1, 6)]], budget=4000, block=4, blocks=625),
    "late": unit_engine([(4, 1, 4.05974)]),
    "equal times": unit_engine([(4, 2, 0)] * 3, slots=1),
    # its sessions arrive at 0, 1, 2, 3 and 50 in row 46
    "five": unit_engine([(4, 4, 0)] * 5, slots=1, horizon=10),
    "three": unit_engine([(8, 5, 0), (8, 5, 0), (6, 9, 1.5)], blocks=6),
    "between iterations": unit_engine([(4, 12, 0), (4, 1, 5.5)]),
    "think": unit_engine([[(4, 3, 0), (4, 2, 0), (4, 1, 2.5)]]),
}


@cache
def plain_runs() -> dict[str, tuple[Program, RawRun]]:
    late = as_program(PLAIN["five"])
    assert isinstance(late.arrival, Listed)
    late = msgspec.structs.replace(late, arrival=msgspec.structs.replace(late.arrival, at=(0, 1, 2, 3, 50)))
    return dict(zip([*PLAIN, "one after the horizon"], run_together([*PLAIN.values(), late])))


def tokens(raw: RawRun, serial: int) -> list[float]:
    """Times of a session's tokens, seconds."""
    assert raw.trace is not None
    rows = raw.trace[(raw.trace[:, 1] == Action.token) & (raw.trace[:, 2] == serial)]
    return [float(t) / S_TICK for t in rows[:, 0]]


def actions(raw: RawRun, kind: Action, serial: int | None = None) -> list[tuple[float, int, int, float]]:
    """(time, session, place, amount) of the actions of a kind."""
    assert raw.trace is not None
    rows = raw.trace[raw.trace[:, 1] == kind]
    return [
        (float(r[0]) / S_TICK, int(r[2]), int(r[3]), float(r[4])) for r in rows if serial is None or int(r[2]) == serial
    ]


def client(raw: RawRun, name: str) -> list[float]:
    return list(client_observations(raw)[name]["value"])


def observed(program: Program, raw: RawRun, name: str) -> list[float]:
    return list(observations(program, raw)[name]["value"])


def seconds(ticks: int) -> float:
    return ticks / S_TICK


def test_row_01_02_07_one_request() -> None:
    program, raw = plain_runs()["one request"]
    assert tokens(raw, 0) == [1, 2, 3]
    assert client(raw, "ttft") == [1.0]
    assert client(raw, "response") == [3.0]
    assert client(raw, "tpot") == [1.0]  # row 7: divided by O - 1
    assert raw.request_tokens.tolist() == [3]  # row 1: the prefill's token counts
    assert raw.stages[0].iterations == 3
    assert (raw.stages[0].itl_count, raw.stages[0].itl_tick) == (2, 2 * S_TICK)  # row 2: [1, 1], without the ttft
    assert [(low, high) for _, low, high in raw.stages[0].itl_buckets.values()] == [(S_TICK, S_TICK)]


def test_row_04_last_prefill_token_is_no_decode() -> None:
    _, raw = plain_runs()["last chunk of one"]
    assert [amount for *_, amount in actions(raw, Action.iteration)] == [4, 1, 1]
    assert tokens(raw, 0) == [2, 3]
    assert seconds(raw.stages[0].prefill_only_tick) == 2
    assert seconds(raw.stages[0].decode_only_tick) == 1
    assert client(raw, "response") == [3.0]


def test_row_05_prompt_of_one() -> None:
    _, raw = plain_runs()["prompt of one"]
    assert [amount for *_, amount in actions(raw, Action.iteration)] == [1]
    assert client(raw, "ttft") == [1.0] and client(raw, "response") == [1.0]
    assert raw.stages[0].decode_only_tick == 0 and seconds(raw.stages[0].prefill_only_tick) == 1


def test_row_08_times_across_a_preemption() -> None:
    program, raw = plain_runs()["preempted"]
    assert tokens(raw, 0) == [1, 2, 3, 4, 5]
    assert tokens(raw, 1) == [1, 6, 7, 8, 9]
    assert client(raw, "ttft") == [1.0, 1.0]  # the first delivery stands
    assert client(raw, "response") == [5.0, 9.0]
    assert raw.pools[0].preemptions == 1
    assert observed(program, raw, "prefill") == [8, 8, 9]  # the resumed prefill computes 9 tokens
    # gaps 1 x 4 of r0, then 5, 1, 1, 1 of r1
    assert (raw.stages[0].itl_count, seconds(raw.stages[0].itl_tick)) == (8, 12)


def test_row_10_prefill_decode_split() -> None:
    """Delivery is defined at the token: the prefill's end is the first token."""
    b = Builder()
    n, o, start = b.attr("n", "Size"), b.attr("o", "Size"), b.attr("start", "Size")
    kv = [b.pool("kvP", 400.0, 4.0, preempt=LIFO, admit_via=0), b.pool("kvD", 400.0, 4.0, preempt=LIFO, admit_via=1)]
    step = {"budget": num(16), "cost": num(1), "chunk": num(0), "serve": {"By": []}}
    engines = [b.stage(name, {"Step": {**step, "memory": kv[i]}}) for i, name in enumerate("PD")]
    tool, wire = b.stage("tool", DELAY), b.stage("wire", DELAY)
    decode = Body(
        [
            (S, work(wire, num(0.5))),
            (S, hold([(kv[1], at(n), None)], [(S, work(engines[1], sub(at(o), num(1)), "Decode", kv[1]))])),
        ]
    )
    session = [
        (W, work(tool, at(start))),
        (W, "Turn"),
        (S, hold([(kv[0], at(n), None)], [(S, work(engines[0], at(n), "Prefill", kv[0]))])),
        (S, {"Branch": [op("Gt", at(o), num(1)), decode, Body()]}),
        (S, see(b.observe("end"), ctx("Now"))),
    ]
    rows = [{"attrs": [[start, s]], "turns": [[[n, p], [o, out]]]} for p, out, s in [(4.0, 1.0, 0.0), (4.0, 2.0, 10.0)]]
    _, raw = run_everywhere(b.finish(Random(1), {"Sessions": rows}, session, horizon=40))
    assert client(raw, "ttft") == [1.0, 1.0]
    assert client(raw, "response") == [1.0, 2.5]
    assert all(t <= e for t, e in zip(client(raw, "ttft"), client(raw, "response")))
    assert raw.stages[wire].completed == 1  # no transfer for an output of one


def test_row_13_14_pooled_gaps_and_tpot_are_two_things() -> None:
    slow = cond(op("And", op("Gt", ctx("Ndec"), num(0)), op("Gt", ctx("Now"), num(15))), num(10), num(1))
    program, raw = run_everywhere(unit_engine([(4, 11, 0), (4, 2, 20)], cost=slow))
    report = reference_report(program, raw)
    assert report["stages"][0]["mean_itl"] == pytest.approx(20 / 11, rel=1e-12)
    assert client(raw, "tpot") == [1.0, 10.0]
    assert report["client"]["tpot"]["mean"] == 5.5  # each request weighted once


def test_row_19_a_prompt_above_the_pool_is_reported() -> None:
    _, raw = plain_runs()["above the pool"]
    admitted = [(s, amount) for _, s, pool, amount in actions(raw, Action.admit) if pool == 0]
    assert admitted == [(0, 784), (2, 16)]  # 49 blocks; the refused one blocks nobody
    assert [(t, s, amount) for t, s, _, amount in actions(raw, Action.reject)] == [(1, 1, 800)]
    status = [RequestStatus(int(s)) for s in raw.request_status]
    assert status == [RequestStatus.finished, RequestStatus.rejected, RequestStatus.finished]
    assert raw.pools[0].rejected == 1


def test_row_20_growth_of_a_lone_request_that_cannot_fit() -> None:
    # the known tokens (5) exceed the pool at the requeue: the reference rejects there, in the middle of the turn
    _, raw = plain_runs()["growth above the pool"]
    assert tokens(raw, 0) == [1]
    assert raw.pools[0].preemptions == 1
    assert [t for t, *_ in actions(raw, Action.reject)] == [1]


def test_row_22_the_last_token_is_not_stored() -> None:
    _, raw = plain_runs()["stuck after three"]
    assert tokens(raw, 0) == [1, 2, 3]  # the ninth token needs block 3
    _, raw = plain_runs()["one block suffices"]
    assert tokens(raw, 0) == [1] and raw.ended == 1 and raw.pools[0].preemptions == 0


def test_row_23_admission_by_chunk_or_by_whole_sequence() -> None:
    _, whole = plain_runs()["by whole sequence"]
    _, chunk = plain_runs()["by chunk"]
    for raw in (whole, chunk):
        assert tokens(raw, 0) == [2, 3, 4, 5, 6, 7]
        assert tokens(raw, 1) == [9, 10]
    assert whole.pools[0].preemptions == 0
    assert chunk.pools[0].preemptions == 1


def test_row_25_a_blocked_head_stops_the_line() -> None:
    _, raw = plain_runs()["blocked head"]
    assert tokens(raw, 0) == [1, 2, 3, 4]
    assert tokens(raw, 1) == [5] and tokens(raw, 2) == [6]


def test_row_20_26_a_stuck_instance_among_healthy_ones() -> None:
    """Where the need reads state the lone request waits instead of being rejected: stuck for ever, and said so."""
    programs = []
    for blocks in (2, 1):
        source = unit_engine([(4, 2, 0)], blocks=blocks, reserve="wait")
        programs.append(as_program(source))
        assert compare_with_pyserq(source, run_oracle(programs[-1]), programs[-1]) is None
    healthy, stuck = programs
    raw = run_oracle(stuck)
    assert tokens(raw, 0) == [1] and raw.request_tokens.tolist() == [1]
    assert raw.verdict == Verdict.deadlock and raw.cause
    runs = run_engine([healthy] * 40 + [stuck] + [healthy] * 23)
    assert runs[40].verdict == Verdict.deadlock and runs[40].cause
    assert first_difference(runs[40], raw) is None
    expected = run_oracle(healthy)
    for i in [*range(40), *range(41, 64)]:
        assert first_difference(runs[i], expected) is None


def test_row_28_turns_that_outgrow_the_pool() -> None:
    _, raw = plain_runs()["outgrown"]
    status = [RequestStatus(int(s)) for s in raw.request_status]
    assert status == [RequestStatus.finished, RequestStatus.finished, RequestStatus.rejected]
    assert raw.ended == 1 and raw.live_at_end == 0


def test_row_29_a_victim_that_was_already_scheduled() -> None:
    """The first-admitted request has the worst rank and is the victim of the second's growth."""
    rows: list[Any] = [(6, 8, 0, 1.0), (8, 8, 0, 0.0)]
    program = unit_engine(rows, blocks=4, slots=2, preempt=by(neg(at(14))), taking="known", reserve=None)
    assert program["attrs"][14] == "rank"
    _, raw = run_everywhere(program)
    assert raw.trace is not None
    victims = actions(raw, Action.preempt)
    assert victims and victims[0][1] == 0
    when = victims[0][0]
    gives = [(s, amount) for t, s, _, amount in actions(raw, Action.give) if t == when]
    assert [s for s, _ in gives] == [1]  # the victim's token is out of the batch
    totals = [amount for t, _, _, amount in actions(raw, Action.iteration) if t == when]
    assert totals == [sum(amount for _, amount in gives)]


@pytest.mark.parametrize(("tail", "order"), [(False, [1, 0]), (True, [0, 1])])
def test_row_31_where_a_preempted_request_waits(tail: bool, order: list[int]) -> None:
    """A (sent at 0) reaches the line late, B (sent at 1) runs and is preempted by C's growth.

    `head`: B goes first; `tail` with keys (send time): A goes first.
    """
    b = Builder()
    sent, delay, units, grow = (b.attr(x, "Size") for x in ("sent", "delay", "units", "grow"))
    mem = b.pool("mem", 10.0, preempt=by(neg(ctx("Admission")), tail=tail), queue=[at(sent)])
    tool, busy = b.stage("tool", DELAY), b.stage("busy", DELAY)
    body = [
        (S, see(b.observe("start"), at(SERIAL))),
        (S, work(busy, num(2))),
        (S, {"Grow": [ref(mem), {"Cost": [{"Pool": {"base": mem, "count": 1}}, at(grow)]}]}),
        (S, work(busy, num(2))),
    ]
    session = [(W, work(tool, at(delay))), (S, hold([(mem, at(units), None)], body))]
    rows = [
        {"attrs": [[sent, s], [delay, d], [units, u], [grow, g]]}
        for s, d, u, g in [(0.0, 1.5, 4.0, 0.0), (1.0, 1.0, 4.0, 0.0), (-1.0, 0.0, 4.0, 4.0)]
    ]
    program, raw = run_everywhere(b.finish(Random(1), {"Sessions": rows}, session, horizon=60))
    assert raw.pools[0].preemptions == 1
    assert observed(program, raw, "start")[:2] == [2, 1]
    assert observed(program, raw, "start")[2:] == order


def keeping(output: float, always: float) -> Any:
    """What a request keeps cached: the prompt and perhaps the output; at a preemption too if `always`."""
    return mul(add(ctx("Input"), mul(num(output), ctx("Output"))), call("Max", ctx("Finished"), num(always)))


@cache
def cached_runs() -> dict[str, tuple[Program, RawRun]]:
    bound = mul(call("Floor", op("Div", sub(ctx("Known"), num(1)), num(4))), num(4))
    unique: list[Any] = [(8, 5, 0), (8, 5, 0)]
    turns: list[Any] = [[(10, 6, 0), (24, 4, 1)], [(12, 8, 0), (30, 3, 2)], [(20, 5, 1), (28, 2, 0)]]
    sources = {
        "kept at the end": unit_engine(unique, blocks=5, cache=keeping(1, 0), reuse=bound),
        "kept always": unit_engine(unique, blocks=5, cache=keeping(1, 1), reuse=bound),
        "two chunks": unit_engine([[(4, 1, 0), (12, 1, 0)]], budget=4, cache=keeping(0, 1), reuse=bound),
        "chunk cap": unit_engine([[(40, 1, 0), (40, 1, 0)]], chunk=16, cache=keeping(0, 1), reuse=bound),
        "tight": unit_engine(turns, blocks=10, cache=keeping(1, 1), reuse=bound, reserve=None),
    }
    return dict(zip(sources, run_together(list(sources.values()))))


def test_row_32_reread_blocks_are_no_hits() -> None:
    program, raw = cached_runs()["kept at the end"]
    assert raw.pools[0].preemptions == 1
    assert observed(program, raw, "reused") == [0, 0, 0]
    assert observed(program, raw, "prefill") == [8, 8, 9]  # re-read tokens stand in their own counter
    # Restated: a clause that caches at a preemption too counts what comes back as reused, in the reference as here.
    # r0 needs three of the five blocks, so that both computed ones of r1 are still there.
    program, raw = cached_runs()["kept always"]
    assert observed(program, raw, "reused") == [0, 0, 8]
    assert observed(program, raw, "prefill") == [8, 8, 1]


def test_row_34_35_a_hit_counts_once_with_chunks() -> None:
    program, raw = cached_runs()["two chunks"]
    assert observed(program, raw, "reused") == [0, 4]
    assert observed(program, raw, "prefill") == [4, 8]
    assert [amount for *_, amount in actions(raw, Action.give)] == [4, 4, 4]
    assert client(raw, "ttft") == [1.0, 2.0]


def test_row_37_prefix_is_matched_before_chunking() -> None:
    program, raw = cached_runs()["chunk cap"]
    assert observed(program, raw, "prefill") == [40, 4]
    assert [amount for *_, amount in actions(raw, Action.give)] == [16, 16, 8, 4]


def test_row_41_times_above_2_31_ticks() -> None:
    _, raw = plain_runs()["late"]
    assert raw.request_sent.tolist() == [4_059_740_000]
    assert raw.request_last.tolist() == [5_059_740_000]


def test_row_44_equal_times_keep_the_order_of_input() -> None:
    _, raw = plain_runs()["equal times"]
    assert client(raw, "ttft") == [1.0, 3.0, 5.0]
    assert raw.request_serial.tolist() == [0, 1, 2]


def test_row_46_arrivals_after_the_horizon_do_not_count() -> None:
    """Arrival times as data of the automaton form: IR 14 starts all explicit sessions at 0."""
    _, raw = plain_runs()["one after the horizon"]
    assert raw.arrivals == 4
    status = [RequestStatus(int(s)) for s in raw.request_status]
    assert len(status) == 4
    assert status.count(RequestStatus.finished) == 2  # 0-4, 4-8
    assert status.count(RequestStatus.running) == 1 and status.count(RequestStatus.queued) == 1


def test_row_44_47_same_scenario_twice_alone_and_anywhere_in_a_batch() -> None:
    (program, raw), (other, other_raw) = plain_runs()["three"], plain_runs()["equal times"]
    first, second = run_engine([program]), run_engine([program])
    many = run_engine([program, other] * 32)
    assert many is not None
    for run in [*first, *second, *many[0::2]]:
        assert first_difference(run, raw) is None
    for run in many[1::2]:
        assert first_difference(run, other_raw) is None


def test_row_50_an_arrival_between_equal_iterations() -> None:
    _, raw = plain_runs()["between iterations"]
    assert tokens(raw, 0) == [float(k) for k in range(1, 13)]
    assert tokens(raw, 1) == [7]
    assert [t for t, s, pool, _ in actions(raw, Action.admit, 1)] == [6, 6]
    assert client(raw, "ttft") == [1.0, 1.5]
    assert len(actions(raw, Action.end)) == 2


def test_think_time_follows_the_end_of_the_turn() -> None:
    _, raw = plain_runs()["think"]
    sent, last = raw.request_sent / S_TICK, raw.request_last / S_TICK
    assert sent[1] == last[0]  # think 0: equality
    assert sent[2] == last[1] + 2.5


def test_order_of_service_moves_gaps_and_not_totals() -> None:
    rows: list[Any] = [(4, 6, 0), (30, 4, 1.5), (20, 3, 2.5)]
    sources = [
        unit_engine(rows, budget=4, serve=[cond(ctx("Decoding"), num(phase), num(1 - phase))], slots=3)
        for phase in (0, 1)
    ]
    runs = [raw for _, raw in run_together(sources)]
    assert runs[0].request_tokens.tolist() == runs[1].request_tokens.tolist() == [6, 4, 3]
    gaps = [[np.diff(tokens(run, s)).tolist() for s in range(3)] for run in runs]
    assert gaps[0] != gaps[1]


def test_units_are_conserved_after_every_action() -> None:
    """Replays the action trace: what is in use stays within the cap, and everything is given back."""
    _, raw = cached_runs()["tight"]
    assert raw.trace is not None and raw.pools[0].preemptions > 0 and raw.pools[0].evicted_units > 0
    used = 0.0
    for _, kind, _, place, amount in raw.trace:
        if place == 0 and kind in (Action.admit, Action.grow):
            used += amount
        elif place == 0 and kind == Action.release:
            used -= amount
        assert 0 <= used <= 40
    assert used == 0
