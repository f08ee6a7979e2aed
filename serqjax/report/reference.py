"""The report of one run, in the field names, order and definitions of the reference interpreter.

Two fields cannot mean here what they mean there: `serq_version` is null (no serQ interpreter made
this report), and `events` is null where the engine does not pop a heap (the array engine).
`docs/metrics.md` says it for users.

**Source:** `spec/semantics.md`, sections 12 and 13.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ir.fabric import PARTS, shared_stages
from ..ir.program import Program
from ..ir.structure import number
from .measures import claim_rows, gauge_rows
from .raw import PoolTotals, RawRun, StageTotals
from .statistics import bucket_quantile, describe
from .units import plain, ratio, seconds

CLIENT_NAMES = ("ttft", "tpot", "response")


def observations(program: Program, raw: RawRun) -> dict[str, dict[str, np.ndarray]]:
    """Samples of each observation in order: arrays `tick`, `session`, `turn`, `value`."""
    out = {}
    for index, name in enumerate(program.observes):
        rows = np.flatnonzero(raw.samples_observe == index)
        out[name] = {
            "tick": raw.samples_tick[rows],
            "session": raw.samples_serial[rows],
            "turn": raw.samples_turn[rows],
            "value": raw.samples_value[rows],
        }
    return out


def client_observations(raw: RawRun) -> dict[str, dict[str, np.ndarray]]:
    """What the client saw, in the order of recording: arrays `tick`, `session`, `turn`, `value` (seconds).

    `ttft` is recorded when the first token is confirmed, `tpot` (turns of at least two tokens) and
    `response` when the turn's server part ends; `tpot` is (that end - first token) / (tokens - 1), whatever the server
    does after the last token. Both are kept if that moment lies after warm-up. Requests of
    sessions without turns are not seen by the reference's client.
    """
    turn = raw.request_turn > 0
    confirmed = turn & (raw.request_confirmed >= raw.warmup_tick) & (raw.request_confirmed >= 0)
    responded = turn & (raw.request_responded >= raw.warmup_tick) & (raw.request_responded >= 0)
    several = responded & (raw.request_tokens >= 2)
    gaps = np.maximum(raw.request_tokens - 1, 1)
    values = {
        "ttft": seconds(raw.request_first - raw.request_sent, raw.tick_s),
        "tpot": seconds(raw.request_responded - raw.request_first, raw.tick_s) / gaps,
        "response": seconds(raw.request_responded - raw.request_sent, raw.tick_s),
    }
    masks = {"ttft": confirmed, "tpot": several, "response": responded}
    out = {}
    for name in CLIENT_NAMES:
        rows = np.flatnonzero(masks[name])
        order = raw.request_confirm_order if name == "ttft" else raw.request_respond_order
        moment = raw.request_confirmed if name == "ttft" else raw.request_responded
        rows = rows[np.argsort(order[rows], kind="stable")]
        out[name] = {
            "tick": moment[rows],
            "session": raw.request_serial[rows],
            "turn": raw.request_turn[rows],
            "value": values[name][rows],
        }
    return out


def reference_report(program: Program, raw: RawRun) -> dict[str, Any]:
    """The report of one run as JSON data (non-finite numbers are None, whole doubles integers).

    **Arguments:**
    - `program`: the program that was run, with its own horizon and warm-up.
    - `raw`: what the run left behind.

    **Returns:** fields in the reference's order; `claims` is there if the program has claims.

    **Source:** semantics.md section 13.
    """
    span = max(raw.end_tick - raw.warmup_tick, 0)  # a run that stopped during warm-up measured nothing
    shared = shared_stages(program)
    sampled = observations(program, raw)
    seen = client_observations(raw)
    horizon = math.nan if raw.horizon_tick is None else seconds(raw.horizon_tick, raw.tick_s)
    return plain(
        {
            "serq_version": None,
            "horizon": horizon,
            "end": seconds(raw.end_tick, raw.tick_s),
            "warmup": seconds(raw.warmup_tick, raw.tick_s),
            "seed": raw.seed,
            "events": raw.events,
            "arrivals": raw.arrivals,
            "ended": raw.ended,
            "turns": raw.turns,
            "mean_live": ratio(raw.live_tick, span),
            "observes": {name: describe(sampled[name]["value"]) for name in program.observes},
            "client": {name: describe(seen[name]["value"]) for name in CLIENT_NAMES},
            "gauges": gauge_rows(program, raw),
            **({"claims": claim_rows(program, raw)} if program.claims else {}),
            "stages": [_stage_row(program, raw, i, totals, span, shared) for i, totals in enumerate(raw.stages)],
            "pools": [_pool_row(program, raw, i, totals, span) for i, totals in enumerate(raw.pools)],
        }
    )


def _stage_row(
    program: Program, raw: RawRun, index: int, totals: StageTotals, span: int, shared: tuple[int, ...]
) -> dict[str, Any]:
    stage = program.stages[index]
    tick_s = raw.tick_s
    return {
        "name": stage.array or stage.name,
        "index": stage.index,
        "mean_number": ratio(totals.number_tick, span),
        "utilization": ratio(totals.load_tick / PARTS if index in shared else totals.busy_tick, span),
        "completed": totals.completed,
        "throughput": ratio(totals.completed, seconds(span, tick_s)),
        "mean_wait": ratio(seconds(totals.wait_tick, tick_s), totals.completed),
        "mean_service": ratio(seconds(totals.service_tick, tick_s), totals.completed),
        "iterations": totals.iterations,
        "prefill_only": ratio(totals.prefill_only_tick, span),
        "decode_only": ratio(totals.decode_only_tick, span),
        "mixed": ratio(totals.mixed_tick, span),
        "mean_decodes": ratio(totals.decodes_tick, span),
        "mean_decode_batch": ratio(totals.decode_batch, totals.decode_iterations),
        "mean_decode_step": ratio(seconds(totals.decode_step_tick, tick_s), totals.decode_iterations),
        "mean_itl": ratio(seconds(totals.itl_tick, tick_s), totals.itl_count),
        "itl_p50": bucket_quantile(totals.itl_buckets, 0.50, tick_s),
        "itl_p99": bucket_quantile(totals.itl_buckets, 0.99, tick_s),
        "idle_with_work": totals.idle_with_work,
    }


def _pool_row(program: Program, raw: RawRun, index: int, totals: PoolTotals, span: int) -> dict[str, Any]:
    pool = program.pools[index]
    unit = number(program, pool.block) or 1.0
    over_cap = None
    if totals.over_cap is not None:
        queue = program.pools[index if totals.over_cap_queue is None else totals.over_cap_queue]
        over_cap = {"queue": queue.name, "need": totals.over_cap}
    return {
        "name": pool.array or pool.name,
        "index": pool.index,
        "mean_used": ratio(totals.used_tick * unit, span),
        "mean_cached": ratio(totals.cached_tick * unit, span),
        "mean_queue": ratio(totals.queue_tick, span),
        "mean_holders": ratio(totals.holders_tick, span),
        "mean_wait": ratio(seconds(totals.wait_tick, raw.tick_s), totals.wait_count),
        "admissions": totals.admissions,
        "evicted_entries": totals.evicted_entries,
        "evicted_units": totals.evicted_units,
        "preemptions": totals.preemptions,
        "spills": totals.spills,
        "rejected": totals.rejected,
        "stuck": totals.stuck,
        "over_cap": over_cap,
        "growing_at_end": totals.growing_at_end,
        "growing_stalled": totals.growing_stalled,
    }
