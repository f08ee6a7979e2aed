"""The raw result of a run.

**Source:** semantics.md section 13 (values at the end).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from serqjax.report.raw import RawRun, RequestStatus, Verdict

from .expressions import RunError
from .scopes import attempt
from .session import Request, Status

if TYPE_CHECKING:
    from .machine import Machine


def collect(machine: Machine, verdict: Verdict, cause: str) -> RawRun:
    """Close the integrals at the machine's clock and fill the arrays."""
    end_tick = machine.now_tick
    if not machine.warm:  # the run ended before its warm-up: nothing was measured
        for signal in machine.signals():
            signal.value = 0
            signal.restart(end_tick)
    for part in (*machine.pools, *machine.stages):
        part.close(end_tick)
    if verdict is not Verdict.error:
        over_cap(machine)
    samples, requests = machine.samples, machine.clients.requests

    def column(name: str) -> np.ndarray:
        return np.asarray([getattr(request, name) for request in requests], dtype=np.int64)

    return RawRun(
        seed=machine.seed,
        tick_s=machine.tick_s,
        horizon_tick=machine.horizon_tick,
        warmup_tick=machine.warmup_tick,
        end_tick=end_tick,
        verdict=verdict,
        cause=cause,
        arrivals=machine.arrived,
        ended=machine.ended,
        turns=machine.turns,
        live_at_end=len(machine.live),
        live_tick=int(machine.signal_live.integral(end_tick)),
        stages=[stage.totals for stage in machine.stages],
        pools=[pool.totals for pool in machine.pools],
        samples_observe=np.asarray(samples.observe, dtype=np.int64),
        samples_tick=np.asarray(samples.tick, dtype=np.int64),
        samples_serial=np.asarray(samples.serial, dtype=np.int64),
        samples_turn=np.asarray(samples.turn, dtype=np.int64),
        samples_value=np.asarray(samples.value, dtype=np.float64),
        request_serial=column("serial"),
        request_turn=column("turn"),
        request_sent=column("sent_tick"),
        request_first=column("first_tick"),
        request_confirmed=column("confirmed_tick"),
        request_confirm_order=column("confirm_order"),
        request_last=column("last_tick"),
        request_tokens=column("tokens"),
        request_responded=column("responded_tick"),
        request_respond_order=column("respond_order"),
        request_status=np.asarray([int(status(machine, r)) for r in requests], dtype=np.int64),
        events=machine.events,
        trace=None if machine.trace is None else machine.trace.array(),
        gauge_index=np.asarray(machine.gauges.index, dtype=np.int64),
        gauge_tick=np.asarray(machine.gauges.tick, dtype=np.int64),
        gauge_value=np.asarray(machine.gauges.value, dtype=np.float64),
        claims=machine.claims.totals,
    )


def status(machine: Machine, request: Request) -> RequestStatus:
    if request.rejected:
        return RequestStatus.rejected
    if not request.open:
        return RequestStatus.finished
    waits = machine.live[request.serial].status is Status.queued
    return RequestStatus.queued if waits and not request.admissions else RequestStatus.running


def over_cap(machine: Machine) -> None:
    """The selected hold of every line, re-evaluated now: does it ask for more than a pool's cap?"""
    for pool in machine.pools:
        if not pool.line:
            continue
        waiting = pool.select()
        try:
            needs = attempt(machine, waiting).needs
        except RunError:
            continue
        for place, need in zip(waiting.pools, needs):
            other = machine.pools[place]
            if other.up(need) > other.cap and other.totals.over_cap is None:
                other.totals.over_cap, other.totals.over_cap_queue = need, pool.index
