"""What one instance leaves behind, before any report: integers, samples and requests.

Both producers, the sequential oracle and the array engine, fill the same `RawRun`; everything
in `report` is computed from it. Times are integer ticks, accumulators exact integers where the
signal is an integer (blocked pools count blocks), so that two producers can be compared with `==`.

**Source:** `spec/semantics.md`, section 13; `design.md`, sections 2.7 and 4.
"""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from typing import Any

import numpy as np


class Verdict(IntEnum):
    """How an instance ended. The text says what it means; `RawRun.cause` says why here."""

    drained = 0  # all that was to come has come and ended
    horizon = 1  # the horizon was reached
    deadlock = 2  # nobody can move and no event is left
    livelock = 3  # a state returns with no token between
    unstable = 4  # decided by the report: the backlog grows
    capacity = 5  # a table of the array engine was too small
    error = 6  # a run-time error of the program


class Action(IntEnum):
    """Kinds of the action trace. `place`: pool or stage index; `amount`: as stated."""

    arrive = 1  # place 0, amount 0
    admit = 2  # one per pool of the hold; pool, units allocated (rounded up)
    iteration = 3  # session -1; stage, tokens of the iteration (0: it only preempted)
    give = 4  # one per listed job in list order, after `iteration`; stage, tokens
    grow = 5  # pool, units added
    evict = 6  # owner's serial (-1 for a dead entry); pool, units; consecutive removals from one entry are one action
    preempt = 7  # pool, position given up
    release = 8  # one per pool given back; pool, units
    cache = 9  # pool, units kept by the entry just made
    token = 10  # stage, tokens of a decode, 0 for the end of a prefill
    end = 11  # place 0, amount 0
    reject = 12  # pool, units asked (rounded up)
    deadline = 20  # place 0, amount 0: it comes, before anything is given back


class RequestStatus(IntEnum):
    finished = 0
    running = 1  # unfinished at the end, admitted at least once in the request or working
    queued = 2  # unfinished at the end, waiting in a pool's line and not admitted in this request
    rejected = 3
    abandoned = 4  # the client gave it up: the report's reading of one that ended (facts.py), never in a raw run


@dataclasses.dataclass
class StageTotals:
    """Per stage. Integrals are over [warmup, end] of values held between instants."""

    number_tick: int = 0  # integral of jobs present
    busy_tick: int = 0  # integral of "a job is in service or waits for it" (its latency has passed)
    load_tick: int = 0  # shared stages: integral of the rates in use over the capacity, in PARTS (ir/fabric.py)
    completed: int = 0  # jobs finished after warm-up
    wait_tick: int = 0  # sums over those jobs
    service_tick: int = 0
    # step stages
    iterations: int = 0  # whole run
    prefill_only_tick: int = 0
    decode_only_tick: int = 0
    mixed_tick: int = 0
    decodes_tick: int = 0  # integral of the decodes in the running iteration
    decode_iterations: int = 0  # iterations with decodes started after warm-up ...
    decode_batch: int = 0  # ... sum of their decodes
    decode_step_tick: int = 0  # ... sum of their durations
    idle_with_work: bool = False
    # inter-token gaps: bucket number k of ir/itl.py -> (count, least tick, greatest tick)
    itl_count: int = 0
    itl_tick: int = 0
    itl_buckets: dict[int, tuple[int, int, int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class PoolTotals:
    """Per pool. Units of a pool with a block are integrated as whole blocks (exact integers)."""

    used_tick: int | float = 0  # integral of blocks (pool with block) or units
    cached_tick: int | float = 0
    queue_tick: int = 0
    holders_tick: int = 0
    wait_tick: int = 0  # over holds whose first pool it is, admitted after warm-up
    wait_count: int = 0
    admissions: int = 0  # whole run, like all below
    evicted_entries: int = 0
    evicted_units: float = 0.0
    preemptions: int = 0
    spills: int = 0
    rejected: int = 0
    stuck: int = 0
    over_cap: float | None = None  # need of the selected hold at the end, when above the cap
    over_cap_queue: int | None = None  # pool in whose line that hold waits (None: this pool)
    growing_at_end: int = 0
    growing_stalled: bool = False


@dataclasses.dataclass
class ClaimTotals:
    """Per claim. Readings stop when a session puts the run out of the claim's scope."""

    checked: int = 0  # readings
    failures: int = 0  # readings of 0
    first_tick: int = -1  # of the first failure; over some iteration, of the first witness; -1: none
    outside: int = -1  # serial of the first session that fails `given`, -1: none


def _no_ticks() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclasses.dataclass
class RawRun:
    """One instance. Arrays are numpy; all rows are in the order in which things happened.

    - `samples_*`: observations kept (made after warm-up): observe index, tick, serial, turn, value.
    - `request_*`: one row per request: a turn, or a whole session where the program has no `Turn`
      (`request_turn` 0 then); in the order they started, whole run, unfinished ones included.
      Ticks are -1 where the thing never happened.
      `sent`: the Turn's time (arrival for sessions); `first`, `last`: first confirmed token, last
      token; `tokens`: tokens counted as in semantics section 12; `confirmed`, `confirm_order`: when
      the client's ttft was recorded and its place among all such recordings; `responded`: when
      the turn's server part ended, `respond_order` likewise.
    - `gauge_*`: change points of all gauges in the order of reading: gauge index, tick, value. A value holds until the
      gauge's next one; the first is read before the clock moves for the first time.
    - `claims`: one per claim of the program.
    - `trace`: action trace `[actions, 5]` int64/float rows (tick, kind, serial, place, amount), or None.
    """

    seed: int
    tick_s: float
    horizon_tick: int | None
    warmup_tick: int
    end_tick: int
    verdict: Verdict
    cause: str  # "" or one sentence: which table and what to raise; who waits for what
    arrivals: int  # sessions started, whole run
    ended: int  # sessions ended after warm-up
    turns: int  # turns after warm-up
    live_at_end: int
    live_tick: int
    stages: list[StageTotals]
    pools: list[PoolTotals]
    samples_observe: np.ndarray
    samples_tick: np.ndarray
    samples_serial: np.ndarray
    samples_turn: np.ndarray
    samples_value: np.ndarray
    request_serial: np.ndarray
    request_turn: np.ndarray
    request_sent: np.ndarray
    request_first: np.ndarray
    request_confirmed: np.ndarray
    request_confirm_order: np.ndarray
    request_last: np.ndarray
    request_tokens: np.ndarray
    request_responded: np.ndarray
    request_respond_order: np.ndarray
    request_status: np.ndarray
    events: int | None = None  # heap pops of the reference; the array engine does not count them
    trace: np.ndarray | None = None
    gauge_index: np.ndarray = dataclasses.field(default_factory=_no_ticks)
    gauge_tick: np.ndarray = dataclasses.field(default_factory=_no_ticks)
    gauge_value: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    claims: list[ClaimTotals] = dataclasses.field(default_factory=list)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
