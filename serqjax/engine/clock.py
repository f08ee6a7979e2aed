"""Time: the next event, the integrals between events, and what each event does.

Events of one tick fire in the order in which they were scheduled (a sequence number), each settled
on its own before the next.

**Source:** `spec/semantics.md`, sections 2, 3, 8 (IterEnd) and 13.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from ..ir.itl import edges
from ..ir.program import Delay, Fifo, ProcessorSharing
from ..report.raw import Action, Verdict
from ..tape.rounding import product, rint
from . import estimates, legs, sharing, timed_lines
from .access import FAR, SLOT_BITS, append_rows, choose, least, load, lookup, pack, store, unpack_slot, whole
from .expr import Env, Value
from .faults import Fault
from .lane import Lane
from .measures import read_gauges
from .state import EXPIRE, SETTLE
from .views import asking, to_ticks, whole_tokens

#: Time integrals of blocks are kept in two limbs; the high one counts units of 2**LIMB_BITS.
LIMB_BITS = 40


def next_event(w: Lane) -> tuple[Array, Array, Array, Array]:
    """Tick and kind of the next event, the slot of a wake-up or deadline, the stage of an iteration end.

    Kinds: 0 none, 1 end of warm-up, 2 arrival, 3 wake-up, 4 end of an iteration, 5 a job that shared is done,
    6 deadline, 7 end of a lease, 8 a line opens.
    """
    warm = jnp.where(w.warm, FAR, w.job.warmup)
    ticks = [warm, w.next_arrive]
    keys = [jnp.zeros((), jnp.int64), w.arrive_key]
    kinds = [1, 2, 3]
    slot = jnp.int32(-1)
    if w.has("wake"):
        slot = unpack_slot(w.next_wake_key)
        ticks.append(w.next_wake)
        keys.append(w.next_wake_key)
    else:
        ticks.append(jnp.int64(FAR))
        keys.append(jnp.int64(FAR))
    stage = jnp.int32(-1)
    if w.has("stage_end"):
        tick = jnp.min(w.stage_end)
        key = jnp.min(jnp.where(w.stage_end == tick, w.stage_key, FAR))
        stage = jnp.argmax((w.stage_end == tick) & (w.stage_key == key)).astype(jnp.int32)
        ticks.append(tick)
        keys.append(key)
        kinds.append(4)
    if w.has("share_end"):
        tick = jnp.min(w.share_end)
        ticks.append(tick)
        keys.append(jnp.min(jnp.where(w.share_end == tick, w.share_key, FAR)))
        kinds.append(5)
    if w.has("deadline"):
        late = whole(w.deadline)
        ticks.append(jnp.min(late))
        keys.append(jnp.min(jnp.where(late == ticks[-1], whole(w.deadline_key), FAR)))
        kinds.append(6)
    if w.has("lease_end"):
        tick, key = next_lease(w)
        ticks.append(tick)
        keys.append(key)
        kinds.append(7)
    if w.has("open_next"):
        tick, key, _ = timed_lines.next_opening(w)
        ticks.append(tick)
        keys.append(key)
        kinds.append(8)
    tick, order, kind = ticks[0], keys[0], jnp.int32(1)
    for i in range(1, len(ticks)):
        sooner = (ticks[i] < tick) | ((ticks[i] == tick) & (keys[i] < order))
        tick, order = jnp.where(sooner, ticks[i], tick), jnp.where(sooner, keys[i], order)
        kind = jnp.where(sooner, kinds[i], kind)
    if w.has("deadline"):
        slot = jnp.where(kind == 6, unpack_slot(order), slot)
    return tick, jnp.where(tick >= FAR, 0, kind), slot, stage


def next_lease(w: Lane) -> tuple[Array, Array]:
    """Tick of the next end of a lease, and its key, which names the row."""
    tick = jnp.min(w.lease_end)
    return tick, jnp.min(jnp.where(w.lease_end == tick, w.lease_key, FAR))


def schedule_wake(w: Lane, slot: Array, work_s: Value, mask: Array) -> None:
    """A session wakes up after `work_s` seconds."""
    tick, key = w.now + to_ticks(w, work_s), pack(w.event_seq, slot)
    w.event_seq = w.event_seq + mask
    w.put("wake", slot, tick, mask)
    w.put("wake_key", slot, key, mask)
    w.bump("wakes_n", mask)
    # it was scheduled last: at an equal tick the other comes first
    w.pick(mask & (tick < w.next_wake), next_wake=tick, next_wake_key=key)


def cancel_wake(w: Lane, slot: Array, mask: Array) -> None:
    """A session that was to wake up will not any more, or has just done so."""
    w.put("wake", slot, FAR, mask)
    w.wakes_n = w.wakes_n - mask
    next_one = mask & (unpack_slot(w.next_wake_key) == slot)
    others = w.wakes_n > 0
    w.pick(next_one & ~others, next_wake=FAR, next_wake_key=FAR)
    w.only(next_one & others, find_next_wake)


def find_next_wake(w: Lane) -> None:
    """Look through all sessions for the one that wakes up next."""
    wake = whole(w.wake)
    tick = jnp.min(wake)
    key = jnp.min(jnp.where(wake == tick, whole(w.wake_key), FAR))
    w.next_wake, w.next_wake_key = tick, jnp.where(tick < FAR, key, FAR)


class Limbs(NamedTuple):
    """An integral of whole blocks over ticks in two limbs: `high * 2**LIMB_BITS + low`."""

    high: Array
    low: Array

    def plus(self, blocks: Array, span: Array) -> Limbs:
        """Add `blocks * span`: span < 2**47 in halves of 24 bits and blocks < 2**31, so that nothing overflows."""
        low = self.low + blocks * (span & ((1 << 24) - 1))
        high_part = blocks * (span >> 24)
        low = low + ((high_part & ((1 << (LIMB_BITS - 24)) - 1)) << 24)
        high = self.high + (high_part >> (LIMB_BITS - 24)) + (low >> LIMB_BITS)
        return Limbs(high, low & ((1 << LIMB_BITS) - 1))


def pass_time(w: Lane, until: Array, mask: Array, moved: Collection[int] = ()) -> None:
    """Add the values held now to all time integrals, up to `until`; units of the pools `moved` are counted apart."""
    span = jnp.where(mask & w.warm, until - w.now, 0)
    w.live_tick = w.live_tick + w.live * span
    w.number_tick = w.number_tick + w.number * span
    w.busy_tick = w.busy_tick + (asking(w) > 0) * span
    if w.has("load_tick"):
        total = Limbs(w.load_tick[:, 0], w.load_tick[:, 1]).plus(w.load, span)
        w.load_tick = jnp.stack(total, axis=1)
    if w.has("used"):
        w.queue_tick = w.queue_tick + w.queued * span
        w.holders_tick = w.holders_tick + w.holders * span
        for name in ("used", "cached"):
            for pool, spec in enumerate(w.plan.skeleton.pools):
                if pool in moved or (name == "cached" and not (w.plan.caching[pool] or pool in w.plan.by_content)):
                    continue
                value = w.s[name][pool]
                if spec.block is None:
                    w.add(f"{name}_tick_f", pool, product(value, span.astype(jnp.float64)), jnp.bool_(True))
                    continue
                blocks = rint(value / w.job.numbers[number_index(w, spec.block)]).astype(jnp.int64)
                limbs = w.s[f"{name}_tick"]
                total = Limbs(limbs[pool, 0], limbs[pool, 1]).plus(blocks, span)
                w.put_row(f"{name}_tick", jnp.int32(pool), list(total), jnp.bool_(True))
    if w.has("stage_end"):
        on = w.stage_end < FAR
        decodes, prefills = w.stage_decodes * on, w.stage_prefills * on
        w.prefill_only_tick = w.prefill_only_tick + ((prefills > 0) & (decodes == 0)) * span
        w.decode_only_tick = w.decode_only_tick + ((prefills == 0) & (decodes > 0)) * span
        w.mixed_tick = w.mixed_tick + ((prefills > 0) & (decodes > 0)) * span
        w.decodes_tick = w.decodes_tick + decodes * span


def number_index(w: Lane, node: object) -> int:
    """Place of a `Num` or `Param` among the numbers of the instance."""
    from ..ir.expr import Num, Param

    if isinstance(node, Param):
        return w.plan.param_index[node.name]
    assert isinstance(node, Num)
    return int(node.value)


def settled(w: Lane) -> Array:
    """Whether everything of this instant is done."""
    return sharing.quiet(w) & ~sharing.any_changed(w) if w.has("share_changed") else sharing.quiet(w)


def advance(w: Lane) -> None:
    """If the instant is settled, go to the next event and do it, or end the run."""
    on = settled(w)
    if w.has("open_next"):
        timed_lines.schedule(w, on)
    tick, kind, slot, stage, on = w.fence(*next_event(w), on)
    bounded = w.job.horizon < FAR
    to_come = w.next_arrive < FAR
    empty = (w.live == 0) & ~to_come
    drained = empty & (w.job.limit < FAR)
    quiet = (kind == 0) if w.has("legs") else jnp.bool_(True)  # no leg runs on without its session
    stuck = (kind == 0) & (w.live > 0)
    stopped = w.job.stop & (stuck | w.livelock)
    over = (kind == 0) | (tick > w.job.horizon) | (~bounded & w.livelock)
    finish = on & (drained | over | stopped)
    # with a number of arrivals the clock stays where the last thing happened
    until = jnp.where(drained | ~bounded | stopped | (w.job.limit < FAR), w.now, w.job.horizon)
    on, finish, until = w.fence(on, finish, until)
    if w.plan.gauges:
        read_gauges(w, on & (finish | (tick > w.now)), w.now)
    pass_time(w, jnp.where(finish, until, tick), on)
    calm = empty & (w.next_wake >= FAR) if w.plan.has_spills else empty  # jobs of nobody may still run
    verdict = jnp.where(
        w.livelock,
        Verdict.livelock,
        jnp.where(calm & quiet, Verdict.drained, jnp.where(stuck, Verdict.deadlock, Verdict.horizon)),
    )
    w.pick(finish, verdict=verdict.astype(jnp.int32), end_tick=until)
    go = on & ~finish
    w.pick(go, now=tick, focus=SETTLE, dirty=True)
    w.pick(go & (kind == 1), warm=True)
    arrives, wakes, ends = w.fence(go & (kind == 2), go & (kind == 3), go & (kind == 4))
    arrive(w, arrives)
    if w.has("wake"):
        wake_up(w, slot, wakes)
    if w.has("stage_end"):
        when_iteration_ends(w, stage, ends)
    if w.has("share_end"):
        shares = go & (kind == 5)
        w.only(shares, lambda w: when_share_ends(w, shares))
    if w.has("deadline"):
        w.pick(go & (kind == 6), due=slot)
    if w.has("lease_end"):
        row = unpack_slot(next_lease(w)[1])
        w.pick(go & (kind == 7), unwind=load(w.lease_slot, row), unwind_how=EXPIRE, unwind_lease=row)
    if w.has("open_next"):
        timed_lines.open_line(w, timed_lines.next_opening(w)[2], go & (kind == 8))
        w.pick(go, passing=0)


def when_share_ends(w: Lane, mask: Array) -> None:
    """The next job of those that share is done."""
    soonest = w.share_end == jnp.min(w.share_end)
    key = jnp.min(jnp.where(soonest, w.share_key, FAR))
    group = jnp.argmax(soonest & (w.share_key == key)).astype(jnp.int32)
    slot = sharing.due(w, group, mask)
    sharing.leave(w, slot, mask)
    finish_job(w, slot, mask)


def when_iteration_ends(w: Lane, stage: Array, mask: Array) -> None:
    """`end_iteration`, skipped where no instance of the batch needs it."""


    def ends(w: Lane) -> None:
        seen = w.residents(lambda w: end_iteration(w, stage, mask))
        if w.plan.leg_engines:
            legs.count_tokens(w, *seen)

    w.only(mask, ends)


def arrive(w: Lane, mask: Array) -> None:
    """One open arrival, or all listed sessions of this tick; schedule the next before anybody starts."""
    if w.plan.open_arrivals:
        w.pick(mask, spawning=1)
        more = mask & (w.arrived + 1 < w.job.limit)
        w.fail(more & (w.gap < 0), Fault.gap)
        w.pick(mask, next_arrive=FAR)
        w.pick(more, next_arrive=w.now + w.gap, arrive_key=w.event_seq << SLOT_BITS)
        w.event_seq = w.event_seq + more
    elif w.plan.listed:
        at = w.data.at
        here = w.arrived + 1
        following = at[w.job.which, jnp.minimum(here, at.shape[1] - 1)]
        w.pick(mask, spawning=1)
        w.pick(mask, next_arrive=jnp.where(here < at.shape[1], following, FAR))


def finish_job(w: Lane, slot: Array, mask: Array) -> Array:
    """Count a finished job on its stages and let its session go on; the stage that it was on."""
    stage, entered = w.fence(load(w.stage, slot), load(w.entered, slot))
    w.put("stage", slot, -1, mask)
    began = load(w.served, slot) if w.has("served") else entered
    kept = mask & w.warm
    for name, value, counts in (
        ("number", -1, mask), ("completed", 1, kept), ("wait_tick", began - entered, kept),
        ("service_tick", w.now - began, kept),
    ):  # fmt: skip
        sharing.count(w, name, slot, stage, value, counts)
    if w.has("est_gap"):
        sharing.on_stages(
            w, slot, stage, mask,
            lambda place, on: estimates.feed(w, place, began, began - entered, w.now - began, on),
        )  # fmt: skip
    if w.has("links"):
        w.put("links", slot, 0, mask)
    if w.plan.has_spills:  # the row of a job of nobody is free again
        nobody = mask & (load(w.pc, slot) < 0)
        w.put("free", w.free_n, slot, nobody)
        w.free_n = w.free_n + nobody
        mask = mask & ~nobody
    w.make_ready(slot, mask)
    return stage


def wake_up(w: Lane, slot: Array, mask: Array) -> None:
    """A job on a delay or fifo stage finishes (on a fifo stage the next one starts then), or its latency is over."""
    cancel_wake(w, slot, mask)
    if w.has("latent"):
        begins = mask & load(w.latent, slot)
        w.only(begins, lambda w: when_latency_ends(w, slot, begins))
        mask = mask & ~begins
    stage = finish_job(w, slot, mask)
    if w.has("busy"):
        free_server(w, stage, mask)


def when_latency_ends(w: Lane, slot: Array, mask: Array) -> None:
    """A job asks for service from now on; one of no work is done."""
    stage, work_s = w.fence(load(w.stage, slot), load(w.work, slot))
    w.put("latent", slot, False, mask)
    sharing.count(w, "latents", slot, stage, -1, mask)
    nothing = mask & ~(work_s > 0)
    never_asks(w, slot, nothing)
    w.put("served", slot, w.now, nothing)
    ask_service(w, slot, stage, work_s, mask & ~nothing)
    finish_job(w, slot, nothing)


def never_asks(w: Lane, slot: Array, mask: Array) -> None:
    """A job goes without having asked for service: among flows this counts as a change."""
    if w.has("links"):
        flow = mask & (load(w.links, slot) != 0)
        sharing.changes(w, jnp.int32(w.plan.groups - 1), flow)


def ask_service(w: Lane, slot: Array, stage: Array, work_s: Array, mask: Array) -> None:
    """A job on a stage that works in seconds asks for service."""
    plan = w.plan
    kinds = [s.kind for s in plan.skeleton.stages]

    def on_kind(kind: type) -> Array:
        return mask & lookup(np.asarray([isinstance(k, kind) for k in kinds]), jnp.maximum(stage, 0))

    if plan.groups:
        sharing.join(w, slot, stage, on_kind(ProcessorSharing))
    starts = mask
    if any(isinstance(kind, Delay | Fifo) for kind in kinds):
        starts = on_kind(Delay)
        if plan.fifo_stages:
            fifo = on_kind(Fifo)
            servers = [
                Env(plan, w.job.numbers).number(k.servers) if isinstance(k, Fifo) else jnp.float64(0) for k in kinds
            ]
            free = fifo & (w.busy[jnp.maximum(stage, 0)] < choose(servers, stage))
            w.add_at("busy", stage, 1, free)
            w.put("line_key", slot, pack(w.job_seq, slot), fifo & ~free)
            w.job_seq = w.job_seq + fifo
            starts = starts | free
        schedule_wake(w, slot, work_s, starts)
        if plan.groups:
            starts = starts | on_kind(ProcessorSharing)
    if w.has("served"):
        w.put("served", slot, w.now, starts)


def free_server(w: Lane, stage: Array, mask: Array) -> None:
    """A server of a fifo stage is free: the first waiting job starts. Nothing on other stages.

    The job that was served is not among those on the stage any more.
    """
    kinds = np.asarray([isinstance(s.kind, Fifo) for s in w.plan.skeleton.stages])
    place = jnp.maximum(stage, 0)
    fifo = mask & lookup(kinds, place)
    w.add_at("busy", stage, -1, fifo)
    others = fifo & (w.number[place] > w.busy[place])
    w.perhaps(others, lambda w: start_next(w, stage, others))


def start_next(w: Lane, stage: Array, mask: Array) -> None:
    """The first job that waits on a fifo stage starts, if there is one."""
    key, successor = least(w.line_key, w.stage == stage)
    follows, successor = w.fence(mask & (key < FAR), successor)
    w.add_at("busy", stage, 1, follows)
    start_service(w, successor, w.work[successor], follows)


def start_service(w: Lane, slot: Array, work_s: Array, mask: Array) -> None:
    """A server takes a job of `work_s` seconds."""
    w.put("line_key", slot, FAR, mask)
    w.put("served", slot, w.now, mask)
    schedule_wake(w, slot, work_s, mask)


def end_iteration(w: Lane, stage: Array, mask: Array) -> tuple[Array, Array, Array, Array]:
    """Take the tokens of an iteration, count and time them, and let finished jobs go in list order.

    **Returns:** `[rows]` each: who had a token, whether a next one, whether a decode's, and their list order.
    """
    began = w.stage_began[jnp.maximum(stage, 0)]
    here = mask & (w.stage == stage) & (w.give_key >= 0)
    work = jnp.where(here, w.work - w.given, w.work)
    done = here & (work <= 1e-9)
    decode = here & (w.mode == 1)
    work, done, decode, here = w.fence(work, done, decode, here)
    token = decode | done
    n = jnp.where(decode, whole_tokens(w.given), 1) if w.has("decode") else 1
    again = done & (w.mode == 0) & (w.decoded | (w.preempted & (w.last_stage == stage)))
    following, token = w.fence(decode | again, token)
    gap = w.now - w.last
    w.work = work
    if w.has("decode"):  # tokens that come together have no time between them
        count_no_gaps(w, stage, jnp.where(w.warm, jnp.sum(jnp.where(decode, n - 1, 0)), 0))
    count_gaps(w, stage, following & (w.last >= 0) & w.warm, gap, began)
    key = w.give_key
    # the client: the first token is pending until something confirms it
    counts = token & w.open if not w.plan.leg_engines else token & False
    known = counts & (w.confirmed >= 0)
    confirms = counts & ~known & decode & (w.first >= 0)
    replaces = counts & ~known & ~confirms
    known, confirms, replaces = w.fence(known, confirms, replaces)
    settled = confirms | (replaces & decode)
    w.tokens = jnp.where(known | confirms, w.tokens + n, jnp.where(replaces, n, w.tokens))
    w.first = jnp.where(replaces, w.now, w.first)
    w.confirmed = jnp.where(settled, w.now, w.confirmed)
    w.last = jnp.where(token, w.now, w.last)
    w.last_stage = jnp.where(token, stage, w.last_stage)
    w.decoded = w.decoded | decode
    if w.has("watching"):
        w.pick(jnp.any(token), watching=False, seen_n=0)
    w.preempted = w.preempted & ~token
    record_tokens(w, stage, token, jnp.where(decode, n, 0) if w.has("decode") else decode)
    if w.has("est_gap"):
        estimates.feed_in_list_order(w, stage, done)
    n_done = jnp.sum(done)
    kept = mask & w.warm
    w.add_at("number", stage, -n_done, mask)
    w.add_at("completed", stage, n_done, kept)
    w.add_at("service_tick", stage, jnp.sum(jnp.where(done, w.now - w.entered, 0)), kept)
    w.readies = w.readies + n_done
    number_in_list_order(w, done, settled)
    if w.has("deadline"):
        w.deadline = jnp.where(done, FAR, w.deadline)
        w.deadline_key = jnp.where(done, FAR, w.deadline_key)
    w.stage = jnp.where(done, -1, w.stage)
    w.give_key = jnp.where(here, -1, w.give_key)
    hot = (jnp.arange(w.stage_end.shape[0]) == stage) & mask
    w.stage_end = jnp.where(hot, FAR, w.stage_end)
    w.stage_key = jnp.where(hot, FAR, w.stage_key)
    w.stage_last = jnp.where(hot, w.now, w.stage_last)
    w.stage_listed = jnp.where(hot, 0, w.stage_listed)
    w.stage_decodes = jnp.where(hot, 0, w.stage_decodes)
    w.stage_prefills = jnp.where(hot, 0, w.stage_prefills)
    return token, following, decode, key


#: Keys of rows to come, the ready list, confirmation orders, the next number of both.
_Numbering = tuple[Array, Array, Array, Array, Array]


def number_in_list_order(w: Lane, done: Array, settled: Array) -> None:
    """Finished jobs join the ready list, and first tokens are confirmed, in the order of the iteration's list."""
    keys = jnp.where(done | settled, pack(w.give_key, jnp.arange(done.shape[0])), FAR)

    def remain(carry: _Numbering) -> Array:
        return jnp.min(carry[0]) < FAR

    def number(carry: _Numbering) -> _Numbering:
        keys, ready, confirm_order, ready_seq, order_seq = carry
        _, slot = least(keys)
        finished, confirms = load(done, slot), load(settled, slot)
        ready = store(ready, slot, pack(ready_seq, slot), finished)
        confirm_order = store(confirm_order, slot, order_seq, confirms)
        return store(keys, slot, FAR, jnp.bool_(True)), ready, confirm_order, ready_seq + finished, order_seq + confirms

    _, w.ready, w.confirm_order, w.ready_seq, w.order_seq = lax.while_loop(
        remain, number, (keys, w.ready, w.confirm_order, w.ready_seq, w.order_seq)
    )


def count_gaps(w: Lane, stage: Array, timed: Array, gap: Array, began: Array) -> None:
    """Add token gaps to the histogram: those of this iteration's length at once, the others to the gap buffer.

    A decoder that had a token in the iteration before has the length of this iteration as its gap.
    """
    regular = timed & (w.last == began)
    n = jnp.sum(regular)
    odd = timed & ~regular
    w.add_at("itl_n", stage, jnp.sum(timed), jnp.bool_(True))
    w.add_at("itl_tick", stage, jnp.sum(jnp.where(timed, gap, 0)), jnp.bool_(True))
    length = w.now - began
    lower = np.asarray(edges(w.plan.skeleton.tick_s))
    index = jnp.searchsorted(jnp.asarray(lower), length, side="right").astype(jnp.int32) - 1
    at = jnp.maximum(stage, 0).astype(jnp.int32) * lower.shape[0] + index
    row = load(w.itl, at)
    new = jnp.stack([row[0] + n, jnp.minimum(row[1], length), jnp.maximum(row[2], length)])
    w.put("itl", at, new, n > 0)
    rows = jnp.stack([jnp.broadcast_to(stage.astype(jnp.int64), gap.shape), gap], axis=1)
    w.gaps, w.gaps_n = lax.cond(
        w.lanes.any(jnp.any(odd)), lambda g, n: append_rows(g, n, rows, odd), lambda g, n: (g, n), w.gaps, w.gaps_n
    )


def count_no_gaps(w: Lane, stage: Array, n: Array) -> None:
    """Add n gaps of no time to the histogram."""
    w.add_at("itl_n", stage, n, jnp.bool_(True))
    at = jnp.maximum(stage, 0).astype(jnp.int32) * len(edges(w.plan.skeleton.tick_s))
    row = load(w.itl, at)
    w.put("itl", at, jnp.stack([row[0] + n, jnp.minimum(row[1], 0), jnp.maximum(row[2], 0)]), n > 0)


def record_tokens(w: Lane, stage: Array, token: Array, decoded: Array) -> None:
    """Action rows of an iteration's tokens, in list order. `decoded`: tokens of each decode."""
    if not w.has("actions"):
        return
    rows = jnp.stack(
        [
            jnp.full(token.shape, w.now, jnp.float64),
            jnp.full(token.shape, float(Action.token)),
            w.serial.astype(jnp.float64),
            jnp.full(token.shape, stage, jnp.float64),
            decoded.astype(jnp.float64),
        ],
        axis=1,
    )
    append_in_order(w, rows, w.give_key, token)


def append_in_order(w: Lane, rows: Array, key: Array, mask: Array) -> None:
    """Append action rows in the order of `key`."""
    rank = jnp.sum((key[None, :] < key[:, None]) & mask[None, :], axis=1)

    def one(i: Array, table: Array) -> Array:
        return store(table, w.actions_n + rank[i], load(rows, i), mask[i])

    w.s["actions"] = lax.fori_loop(0, mask.shape[0], one, w.actions)
    w.actions_n = w.actions_n + jnp.sum(mask)
