"""The state of one instance: which arrays there are, their shapes and what they mean.

The state is a flat dictionary of arrays; `fields` lists them, and leaves out what a program has no
use for, so that an M/M/1 carries no cache. Ticks and sequence numbers are int64, units and tokens
float64 (whole numbers below 2**53 where the language says so), indices int32 with -1 for none.

**Source:** `design.md`, section 4.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ..ir.expr import Attr
from ..ir.itl import edges
from ..ir.structure import walk
from ..tape.chacha import DRAWS_PER_BLOCK
from .access import FAR
from .plan import Plan

# focus: what an instance does next
EVENT, SETTLE, STAGES = 0, 1, 2
# how an unwinding goes on when its scopes are closed
LEAVE, END, PREEMPT, REJECT, JUMP, END_LEG, RELEASE, EXPIRE = 1, 2, 3, 4, 5, 6, 7, 8
# who asked for units
ADMIT, GIVE, GROW, REGROW = 1, 2, 3, 4
# how a hold joins a line
NEWCOMER, HEAD, TAIL = 1, 2, 3

RUNNING = -1
#: `adm` of a session that was never admitted, plus its place among those that joined a step stage.
NEVER_ADMITTED = 1 << 40
#: Times that a session may become ready at one instant.
MOST_READY = 1000
#: Ticks; a deadline so long never comes.
LATEST = 1 << 60


@dataclasses.dataclass(frozen=True)
class Capacities:
    """Static sizes of the tables. `slots`: live sessions; `entries`: cache entries of all pools together;
    `samples`, `requests`, `gaps`, `points`, `actions`: rows of the output buffers between two drains; `ahead`: sessions
    whose trace session is known ahead; `phases`: positions within a block that a window tells apart (blocks of
    more units are never coalesced; 0: nothing is); `seats`: sessions on step stages at once; `blocks`: of the largest
    pool that shares them by content (not a choice); `chain`: most blocks that a session holds of it; `holds`: sessions
    that hold of it at once; `leases`: leases of all pools together."""

    slots: int = 64
    entries: int = 64
    samples: int = 2048
    requests: int = 2048
    gaps: int = 1024
    points: int = 4096
    actions: int = 0
    ahead: int = 1024
    phases: int = 16
    seats: int = 64
    blocks: int = 1
    chain: int = 256
    leases: int = 64
    holds: int = 64


REQUEST_COLUMNS = (
    "serial", "turn", "sent", "first", "confirmed", "confirm_order", "last", "tokens", "responded", "status",
    "start_order",
)  # fmt: skip
#: Those that only tokens fill.
TOKEN_COLUMNS = ("first", "confirmed", "confirm_order", "last", "tokens")
ACTION_COLUMNS = 5
#: Of a change point: gauge, tick, value.
POINT_COLUMNS = 3


def request_columns(plan: Plan) -> tuple[str, ...]:
    """What is written of each request: where no stage gives tokens, nothing of them."""
    return REQUEST_COLUMNS if plan.step_stages else tuple(c for c in REQUEST_COLUMNS if c not in TOKEN_COLUMNS)


def fields(plan: Plan, cap: Capacities, tick_s: float) -> dict[str, np.ndarray]:
    """The initial state of an instance that has not started, as numpy arrays by name."""
    S, A = cap.slots, max(1, len(plan.skeleton.attrs))
    P, T = len(plan.skeleton.pools), len(plan.skeleton.stages)
    H = plan.depth * P
    i64, i32, f64 = np.int64, np.int32, np.float64

    def full(shape: Any, value: Any, dtype: Any) -> np.ndarray:
        return np.full(shape, value, dtype)

    state: dict[str, np.ndarray] = {
        # clock and verdict
        "now": full((), 0, i64),
        "warm": full((), False, bool),
        "started": full((), False, bool),
        "verdict": full((), RUNNING, i32),
        "loop_turns": full((), 0, i64),
        "end_tick": full((), 0, i64),
        "livelock": full((), False, bool),
        "fault": full((), 0, i32),  # run-time error or full table, 0 none (faults.py)
        "fault_serial": full((), -1, i64),
        "fault_place": full((), -1, i32),
        "stall": full((), False, bool),  # waits for the host: a buffer is full, or the tape is at its end
        # arrivals
        "next_arrive": full((), FAR, i64),
        "arrive_key": full((), 0, i64),
        "arrived": full((), 0, i64),
        "spawning": full((), 0, i32),
        "live": full((), 0, i64),
        "ended": full((), 0, i64),
        "turns_done": full((), 0, i64),
        # sequence numbers
        "event_seq": full((), 1, i64),
        "ready_seq": full((), 0, i64),
        "readies": full((), 0, i32),  # sessions on the ready list
        "latest_ready": full((), 0, i32),  # who came last, if still there and in the same row
        "order_seq": full((), 0, i64),
        "turn_seq": full((), 0, i64),
        # what is being done
        "focus": full((), SETTLE, i32),
        "dirty": full((), True, bool),
        "cur": full((), -1, i32),
        "sweep": full((), P, i32),
        "unwind": full((), -1, i32),
        "unwind_how": full((), 0, i32),
        # sessions: one row per slot
        "attr": full((S, A), 0.0, f64),
        "pc": full((S,), -1, i32),
        "serial": full((S,), -1, i64),
        "ready": full((S,), FAR, i64),
        "turns": full((S,), 0, i64),
        "free": np.arange(S, dtype=i32) if seated(plan, cap) else np.arange(S - 1, -1, -1, dtype=i32),
        "free_n": full((), S, i32),
        "script": full((S,), -1, i32),
        "drawn": full((), 0, i64),  # draws made that are no session's
        # how often each session became ready at the tick it was last ready at
        "ready_at": full((S,), -1, i64),
        "ready_n": full((S,), 0, i32),
        # jobs on stages
        "stage": full((S,), -1, i32),
        "work": full((S,), 0.0, f64),
        "entered": full((S,), 0, i64),
        # client's view of the open request
        "open": full((S,), False, bool),
        "sent": full((S,), -1, i64),
        "start_order": full((S,), 0, i64),
        # statistics
        "number": full((T,), 0, i64),
        "live_tick": full((), 0, i64),
        "number_tick": full((T,), 0, i64),
        "busy_tick": full((T,), 0, i64),
        "completed": full((T,), 0, i64),
        "wait_tick": full((T,), 0, i64),
        "service_tick": full((T,), 0, i64),
        # output buffers
        "samples": full((sample_width(plan), cap.samples), 0.0, f64),
        "samples_n": full((), 0, i32),
        "requests": full((len(request_columns(plan)), cap.requests), 0, i64),
        "requests_n": full((), 0, i32),
    }
    blocks = sum(len(blocks) for blocks in plan.blocks.values())
    if blocks:
        state["uniform"] = full((DRAWS_PER_BLOCK * blocks,), 0.0, f64)  # uniforms at hand (uniforms.py)
    if plan.blocks["turn"] and plan.one_turn:
        state["turn_for"] = full((), FAR, i64)  # the first of the sessions whose turn's draws are at hand
    if plan.blocks["init"]:
        state["init_for"] = full((), -1, i64)  # serial whose `init` draws are at hand
    if plan.own_draws:
        state["own"] = full((S,), 0, i64)  # draws made on each session's own stream
    if plan.open_arrivals:
        state |= {
            "gap": full((), 0, i64),  # ticks before session `gap_for`
            "gap_for": full((), -1, i64),
            "gap_block": full((), -1, i64),  # first block at hand of the stream of gaps
        }
    if plan.blocks["machine"]:
        state["machine_block"] = full((), -1, i64)  # first block at hand of the draws that are no session's
    if plan.has_holds or plan.step_stages:
        state |= {
            # latest admission number; a session never admitted stands after all others, in the order of joining
            "adm": full((S,), NEVER_ADMITTED, i64),
            "adm_seq": full((), 0, i64),
            "join_seq": full((), 0, i64),
        }
    if plan.has_timed:
        state |= {
            "wake": full((S,), FAR, i64),
            "wake_key": full((S,), FAR, i64),
            "wakes_n": full((), 0, i32),  # sessions that will wake up
            # the next of them (clock.py)
            "next_wake": full((), FAR, i64),
            "next_wake_key": full((), FAR, i64),
        }
    if plan.fifo_stages:
        state |= {
            "busy": full((T,), 0, i64),
            "line_key": full((S,), FAR, i64),
            "job_seq": full((), 0, i64),
        }
    if plan.has_latency:
        state |= {
            "latent": full((S,), False, bool),  # its job's latency has not passed
            "latents": full((T,), 0, i64),  # such jobs on each stage
        }
    if plan.fifo_stages or plan.has_latency:
        state["served"] = full((S,), 0, i64)  # when the job's service began
    if plan.groups:
        G = plan.groups
        state |= {
            # jobs that share: group (-1 none), rate of what is left, number of the job
            "group": full((S,), -1, i32),
            "rate": full((S,), 0.0, f64),
            "job_number": full((S,), 0, i64),
            "jobs": full((), 0, i64),
            # groups: since when `work` and `rate` hold, the next finish, its key, number of the job that finishes
            "share_since": full((G,), 0, i64),
            "share_end": full((G,), FAR, i64),
            "share_key": full((G,), FAR, i64),
            "share_next": full((G,), FAR, i64),
            "share_changed": full((G,), False, bool),
        }
    if plan.links:
        F = len(plan.links)
        state |= {
            "links": full((S,), 0, i64),  # bit mask of the links that the session's job holds
            "load": full((F,), 0, i64),  # rates in use, in parts of the capacity
            "load_tick": full((F, 2), 0, i64),  # two limbs, as `used_tick`
        }
    if plan.has_holds:
        state |= {
            "scope": full((S,), -1, i32),
            "admitting": full((S,), -1, i32),
            "line": full((S,), -1, i32),
            "line_seq": full((S,), FAR, i64),
            "line_since": full((S,), 0, i64),
            "requeued": full((S,), False, bool),
            "admitted": full((S,), False, bool),
            "alloc": full((H, S), 0.0, f64),
            "pos": full((H, S), 0.0, f64),
            "grown": full((plan.depth, S), False, bool),
            **({"take": full((H, S), -1, i32)} if plan.computed_holds else {}),  # see holds.py
            "tail_seq": full((), 0, i64),
            "head_seq": full((), 0, i64),
            "join": full((), -1, i32),
            "join_scope": full((), -1, i32),
            "join_how": full((), 0, i32),
            "ask": full((), -1, i32),
            "ask_how": full((), 0, i32),
            "ask_column": full((), -1, i32),
            "ask_units": full((P,), 0.0, f64),
            "ask_own": full((P,), 0.0, f64),
            "used": full((P,), 0.0, f64),
            "cached": full((P,), 0.0, f64),
            "queued": full((P,), 0, i64),
            **({"joins": full((P,), 0, i64)} if plan.counts_joins else {}),
            "holders": full((P,), 0, i64),
            "admissions": full((P,), 0, i64),
            "rejected": full((P,), 0, i64),
            "pool_wait_tick": full((P,), 0, i64),
            "pool_wait_n": full((P,), 0, i64),
            # [pools, 2]: two limbs of whole blocks x ticks, high limb in units of 2**LIMB_BITS
            "used_tick": full((P, 2), 0, i64),
            "cached_tick": full((P, 2), 0, i64),
            "used_tick_f": full((P,), 0.0, f64),
            "cached_tick_f": full((P,), 0.0, f64),
            "queue_tick": full((P,), 0, i64),
            "holders_tick": full((P,), 0, i64),
        }
    if plan.has_growth:
        state |= {
            "grow": full((), -1, i32),
            "grow_how": full((), 0, i32),
            "grow_pool": full((), -1, i32),
            "grow_column": full((), -1, i32),
            "grow_units": full((), 0.0, f64),
            "waits": full((S,), -1, i32),
            "waits_key": full((S,), FAR, i64),
            "waits_units": full((S,), 0.0, f64),
            "waits_how": full((S,), 0, i32),
            "waits_n": full((P,), 0, i64),
        }
    if plan.gauges:
        state |= {
            "gauge_held": full((len(plan.gauges),), np.nan, f64),  # the latest reading of each gauge
            "points": full((POINT_COLUMNS, cap.points), 0.0, f64),
            "points_n": full((), 0, i32),
        }
    if plan.claims:
        state |= {
            "claim_checked": full((len(plan.claims),), 0, i64),
            "claim_failures": full((len(plan.claims),), 0, i64),
            "claim_first": full((len(plan.claims),), -1, i64),
            "claim_outside": full((len(plan.claims),), -1, i64),
            "token_sum": full((T,), 0.0, f64),  # tokens of all iterations of each stage
        }
    if plan.deadlines:
        state |= {
            "deadline": full((S,), FAR, i64),
            "deadline_key": full((S,), FAR, i64),
            "deadline_to": full((S,), -1, i32),
            "due": full((), -1, i32),  # whose deadline has come in this turn
            "unwind_scope": full((), -1, i32),
        }
        if plan.has_growth:
            state |= {"grow_limit": full((), 0, i64), "grow_to": full((), -1, i32)}
        if plan.patience and plan.preempts:
            state["opened_by"] = full((plan.depth, S), -1, i32)  # state whose `Enter` opened each scope
    if any(plan.reserving):
        state |= {
            "reserve": full((H, S), 0.0, f64),  # units of each hold that its admission reserved, taken or not
            "promised": full((P,), 0.0, f64),  # of all holds together: reserved and not taken
            "ask_reserve": full((P,), 0.0, f64),
        }
    if plan.loose:
        state |= {
            "holding": full((H, S), False, bool),  # the hold is open and has not been released
            "holds_n": full((P, S), 0, i32),  # holds and leases of each session
        }
    if plan.timed_lines:
        state |= {
            "open_next": full((P,), FAR, i64),  # the next time at which each line is open, and its place among events
            "open_key": full((P,), FAR, i64),
            "is_open": full((P,), False, bool),  # it has come, and the line has not been passed over yet
            # 2p: the line of pool p is the next to be passed over; 2p + 1: it is being passed over, `tries` are left
            "passing": full((), 2 * P, i32),
            "tries": full((S,), False, bool),
            "pass_asks": full((), False, bool),
        }
    if plan.preempts or plan.has_releases:
        state["unwind_pool"] = full((), -1, i32)
    if plan.has_leases:
        N = cap.leases
        state |= {
            "lease_slot": full((N,), -1, i32),  # row of its session, -1: an empty row
            "lease_pool": full((N,), -1, i32),
            "lease_scope": full((N,), -1, i32),
            "lease_units": full((N,), 0.0, f64),
            "lease_computed": full((N,), 0.0, f64),
            "lease_end": full((N,), FAR, i64),
            "lease_key": full((N,), FAR, i64),
            "lease_seq": full((N,), FAR, i64),  # age
            "leases": full((), 0, i64),
            "lease_after_s": full((), 0.0, f64),  # of the scope that is being left
            "unwind_lease": full((), -1, i32),
        }
    if plan.preempts:
        state |= {
            "preempted_pos": full((P, S), -1.0, f64),
            "stuck": full((S,), False, bool),
            "hopeless": full((S,), False, bool),
            # preempted since the last token; fingerprints of the states since then
            "watching": full((), False, bool),
            "seen": full((16,), 0, i64),
            "seen_n": full((), 0, i64),
            "anchor": full((), 0, i64),
            "preemptions": full((P,), 0, i64),
            "stuck_n": full((P,), 0, i64),
        }
    if plan.has_legs:
        state |= {
            "root": full((S,), -1, i32),  # of a leg: row of the session that forked it, -1 once that is gone
            "leg": full((S,), -1, i64),  # its place among the legs of its session, -1 for a session
            "legs": full((S,), 0, i64),  # live legs
            "forks": full((S,), 0, i64),
            "joining": full((S,), False, bool),
            "fork": full((), -1, i32),  # session that forks now, and where its leg starts
            "fork_state": full((), -1, i32),
        }
    if plan.leg_engines:
        state["client_last"] = full((S,), -1, i64)  # latest token of a session and its legs; `last` is each one's own
    if any(plan.estimated):
        # online estimates, seconds; NaN before the first
        state |= {
            f"est_{name}": full((T,), np.nan, f64) for name in ("start", "gap", "service", "wait")
        }
    if any(plan.holder_order):
        state["hold_seq"] = full((H, S), FAR, i64)  # place of each hold in its pool's list of holders
    if plan.has_cache:
        C = cap.entries
        state |= {
            "entry": full((P, S), -1, i32),
            "entry_pool": full((C,), -1, i32),
            "entry_owner": full((C,), -1, i64),
            "entry_slot": full((C,), -1, i32),
            "entry_size": full((C,), 0.0, f64),
            "entry_last": full((C,), 0, i64),
            "entry_seq": full((C,), 0, i64),
            "release_seq": full((), 0, i64),
            "evicted_entries": full((P,), 0, i64),
            "evicted_units": full((P,), 0.0, f64),
        }
        if keyed_eviction_reads_attrs(plan):
            state["entry_attr"] = full((C, A), 0.0, f64)
        if plan.has_spills:
            state |= {
                # whose an entry is in all tiers: the serial of its session, or below 0 a dead entry's own number
                "entry_key": full((C,), 0, i64),
                "dead_seq": full((), 0, i64),
                "spills": full((P,), 0, i64),
                # what waits to join a tier, by tier
                "spilled": full((P,), 0.0, f64),  # units, 0: nothing
                "spilled_key": full((P,), 0, i64),
                "spilled_slot": full((P,), -1, i32),
                "spilled_work": full((P,), 0.0, f64),
                "spilled_via": full((P,), -1, i32),
            }
            if "entry_attr" in state:
                state["spilled_attr"] = full((P, A), 0.0, f64)
        if plan.blocks["evict"]:
            state |= {"evict_drawn": full((), 0, i64), "evict_block": full((), -1, i64)}
    if plan.by_content:
        K, B, R, M = len(plan.by_content), cap.blocks, cap.holds, cap.chain
        in_order = [plan.skeleton.pools[p].uncached == "in_order" for p in plan.by_content]
        state |= {
            "block_content": full((K, B), 0, i64),  # 0: none
            "block_named": full((K, B), 0, i64),  # when it got its content, packed before its place in the chain
            "block_count": full((K, B), 0, i32),  # holds that have it
            # place in the free queue, the least is given out first; `FAR`: somebody holds it
            "block_free": np.asarray([np.arange(B) if o else np.full(B, -1) for o in in_order], i64),
            "block_seq": full((), B, i64),
            "held": full((K, R, M), 0, i32),  # blocks of each hold, in the order of its units
            "chain": full((K, R, M), 0, i64),  # what they contain, or would
            "row_taken": full((K, R), False, bool),
            "held_row": full((K, S), -1, i32),  # row of a session's hold
            "held_n": full((K, S), 0, i32),
            "held_found": full((K, S), 0, i32),  # the first ones were found
            "held_named": full((K, S), 0, i32),  # the first ones have contents
            "held_chain": full((K, S), False, bool),  # the hold caches
            "naming": full((), -1, i32),  # session whose last tokens may fill blocks
        }
        if not plan.has_cache:
            state |= {"evicted_entries": full((P,), 0, i64), "evicted_units": full((P,), 0.0, f64)}
    if plan.step_stages:
        state |= {name: full((S,), 0 if name == "tokens" else -1, i64) for name in TOKEN_COLUMNS}
        state |= {
            "mode": full((S,), 0, i32),
            "column": full((S,), -1, i32),
            "given": full((S,), 0.0, f64),
            "give_key": full((S,), -1, i64),
            "considered": full((S,), -1, i64),
            "decoded": full((S,), False, bool),
            "preempted": full((S,), False, bool),
            "last_stage": full((S,), -1, i32),
            "stage_end": full((T,), FAR, i64),
            "stage_key": full((T,), FAR, i64),
            "stage_began": full((T,), -1, i64),
            "stage_rest": full((T,), 0, i64),
            "stage_last": full((T,), -1, i64),
            "stage_listed": full((T,), 0, i64),
            "stage_decodes": full((T,), 0, i64),
            "stage_prefills": full((T,), 0, i64),
            "cursor": full((), 0, i32),
            "planning": full((), False, bool),
            "run_ready": full((), False, bool),
            "plan_seq": full((), 0, i64),
            "budget": full((), 0.0, f64),
            "left": full((), 0.0, f64),
            "owed": full((), 0.0, f64),  # tokens of jobs dropped from the list, given back after the next growing give
            "chunk": full((), 0.0, f64),
            "listed": full((), 0, i64),
            "preempting": full((), False, bool),
            "joined": full((), False, bool),  # somebody was admitted in this plan
            "stopped": full((), False, bool),  # the plan, or the line of a body, serves nobody any more
            "iterations": full((T,), 0, i64),
            "prefill_only_tick": full((T,), 0, i64),
            "decode_only_tick": full((T,), 0, i64),
            "mixed_tick": full((T,), 0, i64),
            "decodes_tick": full((T,), 0, i64),
            "decode_iterations": full((T,), 0, i64),
            "decode_batch": full((T,), 0, i64),
            "decode_step_tick": full((T,), 0, i64),
            "idle_with_work": full((T,), False, bool),
            "itl_n": full((T,), 0, i64),
            "itl_tick": full((T,), 0, i64),
            # count, least, greatest per bucket, stage after stage
            "itl": np.broadcast_to(np.asarray([0, FAR, -1], i64), (T * len(edges(tick_s)), 3)).copy(),
            "gaps": full((cap.gaps, 2), 0, i64),
            "gaps_n": full((), 0, i32),
        }
    if plan.skeleton.registers:
        state["registers"] = full((len(plan.skeleton.registers),), 0.0, f64)
        state["registers_before"] = full((len(plan.skeleton.registers),), 0.0, f64)  # when the plan began
    if plan.bodies:
        state |= {
            "body_at": full((), 0, i32),  # line at which the plan of a stage with a body stands
            "command_seq": full((), 0, i64),  # number of that line's run
            "asked": full((), False, bool),  # it has asked for a newcomer
            "passed": full((S,), -1, i64),  # run of the line that passed over a resident
            "admitted_n": full((), 0, i32),  # sessions that this plan has admitted, and preempted
            "preempted_n": full((), 0, i32),
        }
    if plan.granular:
        state["refused"] = full((), False, bool)  # a prefill could not get a whole granule in this plan
    if plan.speculative:
        state["decode"] = full((), 1.0, f64)  # most tokens that a decode gets in the planned iteration
    if plan.verifies:
        state["verify"] = full((), 0.0, f64)  # tokens computed for a decode there, 0: those that it gets
        state["computed"] = full((S,), 0.0, f64)  # tokens computed for each resident, of which it gets `given`
    if plan.prefills_alone:
        state["prefilling"] = full((), False, bool)  # a resident prefilled when the plan began
    if seated(plan, cap):
        state["seats"] = full((cap.seats,), 0, i32)  # its length alone says something
    if cap.phases and any(plan.licence(s).windows or plan.licence(s).at_once for s in plan.step_stages):
        state["phases"] = np.arange(cap.phases)  # places within a block
    if cap.actions:
        state |= {"actions": full((cap.actions, ACTION_COLUMNS), 0.0, f64), "actions_n": full((), 0, i32)}
        if plan.has_holds:
            state["ask_rows"] = full((), 0, i32)  # takes of the ask that are on the trace already
    return state


def seated(plan: Plan, cap: Capacities) -> bool:
    """Whether residents have rows of their own: where there are more rows than seats. Newcomers take the last rows."""
    return bool(plan.step_stages) and cap.seats < cap.slots


@functools.lru_cache(maxsize=256)
def session_axes(plan: Plan) -> dict[str, int]:
    """The tables with a row for each session, and the axis on which the rows stand."""
    few, more = (fields(plan, Capacities(slots=n, seats=n), 1e-9) for n in (3, 4))
    found = {}
    for name, table in few.items():
        for axis, (a, b) in enumerate(zip(table.shape, more[name].shape)):
            if a != b and name != "free":
                found[name] = axis
    return found


def sites_at_once(plan: Plan) -> int:
    """`Observe` sites that one sample has room for."""
    return max(len(plan.sites), len(plan.init_sites), 1)


def sample_width(plan: Plan) -> int:
    """Quantities of a sample: tick, serial, (turn, value) per `Observe` site; where it was (0 init, 1 states), in
    programs that observe in `init`.

    A site that did not observe has turn -1.
    """
    return 2 + 2 * sites_at_once(plan) + bool(plan.init_sites)


def keyed_eviction_reads_attrs(plan: Plan) -> bool:
    return any(isinstance(n, Attr) for p in plan.skeleton.pools for _, n in walk((p.evict, p.spill)))
