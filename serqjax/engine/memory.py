"""Giving back: scopes are closed one a loop turn, innermost first, and what they computed may stay cached.

**Source:** `spec/semantics.md`, sections 4 (scope end, caching) and 6 (preemption); oracle: `oracle/pools.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..ir.program import Closed
from ..report.raw import Action, RequestStatus
from .access import FAR, either, least, load, load_at, lookup, pack, store, store_at
from .expr import Env, Value, evaluate
from .faults import Fault
from .lane import END, EXPIRE, HEAD, LEAVE, PREEMPT, REJECT, RELEASE, TAIL, Lane
from .session import close_request
from .views import (
    Attributes,
    cap,
    innermost_of,
    now_s,
    outstanding,
    own_entry,
    pool_state,
    round_down,
    round_up,
    stage_state,
    to_ticks,
)


class Constant:
    """A constant table, `[rows]` or `[rows, columns]`, under an index of 0 or more."""

    def __init__(self, rows: object):
        self.rows = np.asarray(rows)

    def __getitem__(self, index: Any) -> Array:
        row, column = index if isinstance(index, tuple) else (index, None)
        if isinstance(column, int):
            return lookup(self.rows[:, column], row)
        if column is None and self.rows.ndim == 1:
            return lookup(self.rows, row)
        return jnp.asarray(self.rows)[index]


def table(rows: object) -> Constant:
    return Constant(rows)


def give_back(w: Lane) -> None:
    """Close one scope of the session being unwound; when it was the last to close, go on."""
    on = w.running & (w.unwind >= 0)
    slot, how = w.unwind, w.unwind_how
    if not w.plan.has_holds:
        finish_session(w, slot, on & (how == END))
        w.pick(on, unwind=-1)
        return
    part = next_part(w, slot, how)
    on, scope, open_ = w.fence(on, part.scope, on & (part.scope >= 0))
    holds = held_there(w, slot, scope)
    release_scope(w, slot, part._replace(scope=scope), how, open_)
    closes = open_ & ~part.alone if w.plan.loose else open_
    parents = w.plan.scope_table(lambda s: s.parent)
    outer = jnp.where(closes, table(parents)[jnp.maximum(scope, 0)], -1)
    w.put("scope", slot, outer, closes)
    returns, gone = how == LEAVE, outer < 0
    if w.plan.loose:
        returns = returns | (how == RELEASE) | (how == EXPIRE)
        gone = gone & (part.leases_left <= 0)
    last = returns | gone
    reached = jnp.bool_(False)
    if w.has("unwind_pool"):
        reached = closes & (how == PREEMPT) & holds
        last = last | reached
    done, reached, last = w.fence(on & last, reached, last)
    w.pick(done, unwind=-1)
    leave = done & (how == LEAVE)
    attr_set(w, slot, "computed", 0.0, leave)
    w.pick(done & returns, sweep=0)
    if w.plan.preempts:
        requeue(w, slot, scope, done & reached)
    finish_session(w, slot, done & ((how == END) | (how == REJECT)))


class Part(NamedTuple):
    """What is given back in one turn.

    - `scope`: the scope whose holds they are or were, -1 for nothing. `alone`: only its hold of `pool`, and the scope
      stays open. `lease`: row of the lease that ends instead of a hold, -1 for none.
    - `leases_left`: leases of the session after that.
    """

    scope: Array
    alone: Array
    pool: Array
    lease: Array
    leases_left: Array


def next_part(w: Lane, slot: Array, how: Array) -> Part:
    """The innermost scope; after all scopes of a session that ends its oldest lease; or the one hold or lease that a
    `Release` or an expiry names."""
    plan = w.plan
    scope = load(w.scope, slot)
    pool = lease = jnp.int32(-1)
    alone = no_hold = jnp.bool_(False)
    left = jnp.int32(0)
    if plan.has_releases:
        alone = how == RELEASE
        pool = jnp.where(alone, w.unwind_pool, -1)
        column = innermost_of(w, slot, w.unwind_pool)
        depth = jnp.maximum(column, 0) // len(plan.skeleton.pools)
        no_hold = alone & (column < 0)
        there = jnp.asarray(plan.ancestor)[scope, depth]  # outside all scopes it reads the last row
        scope = jnp.where(alone, jnp.where(no_hold, -1, there), scope)
    if plan.has_leases:
        mine = (w.lease_slot == slot) & (slot >= 0)
        ends = ((how == END) | (how == REJECT)) & (scope < 0)
        key, row = least(w.lease_seq, mine & (ends | (no_hold & (w.lease_pool == pool))))
        lease = jnp.where(key < FAR, row, -1)
        lease = jnp.where(how == EXPIRE, w.unwind_lease, lease)
        found = lease >= 0
        scope = jnp.where(found, load(w.lease_scope, lease), scope)
        pool = jnp.where(found, load(w.lease_pool, lease), pool)
        alone = alone | found
        left = jnp.sum(mine).astype(jnp.int32) - found
    return Part(scope, alone, pool, lease, left)


def held_there(w: Lane, slot: Array, scope: Array) -> Array:
    """Whether the hold that a preemption takes back is one of `scope`."""
    if not w.has("unwind_pool"):
        return jnp.bool_(False)
    n = len(w.plan.skeleton.pools)
    takes = np.zeros((max(1, len(w.plan.scopes)), n), bool)
    for i, s in enumerate(w.plan.scopes):
        takes[i, list(s.pools)] = True
    pool = jnp.maximum(w.unwind_pool, 0)
    there = table(takes)[jnp.maximum(scope, 0), pool]
    if not w.has("held"):
        return there
    depth = table(w.plan.scope_table(lambda s: s.depth))[jnp.maximum(scope, 0)]
    return there & load_at(w.held, depth * n + pool, slot)


def count_holds(w: Lane, slot: Array, pool: int, change: int, mask: Array) -> None:
    """A session has one more or one less hold or lease of a pool."""
    at = jnp.int32(pool)
    w.s["holds_n"] = store_at(w.holds_n, at, slot, load_at(w.holds_n, at, slot) + change, mask)


def start_lease(w: Lane, slot: Array, scope: Array, pool: int, units: Array, computed: Array, mask: Array) -> None:
    """The units of a hold stay in use without it, for the time that was found when its scope was left."""
    rows = jnp.arange(w.lease_slot.shape[0])
    key, row = least(pack(jnp.zeros_like(w.lease_seq), rows), w.lease_slot < 0)
    w.fail(mask & (key >= FAR), Fault.leases, -1, pool)
    mask, row = w.fence(mask & (key < FAR), row)
    span = to_ticks(w, w.lease_after_s)
    ends = mask & (span < (1 << 60))
    for name, value in (
        ("lease_slot", slot), ("lease_pool", pool), ("lease_scope", scope), ("lease_units", units),
        ("lease_computed", computed), ("lease_end", jnp.where(ends, w.now + span, FAR)),
        ("lease_key", jnp.where(ends, pack(w.event_seq, row), FAR)), ("lease_seq", pack(w.leases, row)),
    ):  # fmt: skip
        w.put(name, row, value, mask)
    w.event_seq = w.event_seq + ends
    w.leases = w.leases + mask


def attr_set(w: Lane, slot: Array, name: str, value: Value, mask: Array) -> None:
    """Set one built-in attribute of a session, if the program declares it."""
    index = w.plan.attr_index.get(name)
    if index is not None:
        w.s["attr"] = store_at(w.attr, slot, jnp.int32(index), value, mask)


def release_scope(w: Lane, slot: Array, part: Part, how: Array, on: Array) -> None:
    """Give back every pool of a scope in the order of its takes, or one of them; cache what the takes keep."""
    plan, scope = w.plan, part.scope
    keeps: dict[object, Value] = {}
    attrs = Attributes(w, slot)
    pools_order = np.full((max(1, len(plan.scopes)), len(plan.skeleton.pools)), -1, np.int32)
    depth = table(plan.scope_table(lambda s: s.depth))[jnp.maximum(scope, 0)]
    for i, s in enumerate(plan.scopes):
        for k, pool in enumerate(s.pools):
            pools_order[i, pool] = k
    finished = (how != PREEMPT).astype(jnp.float64)
    base = w.actions_n if w.has("actions") else None
    n_pools = len(plan.skeleton.pools)
    for pool in range(n_pools):
        mine = [i for i, s in enumerate(plan.scopes) if pool in s.pools]
        if not mine:
            continue
        order = table(pools_order)[jnp.maximum(scope, 0), pool]
        here = on & (order >= 0)
        column = depth * n_pools + pool
        alloc = load_at(w.alloc, column, slot)
        pos = load_at(w.pos, column, slot)
        grown = load_at(w.grown, depth, slot)
        computed = jnp.where(grown | (how == PREEMPT), pos, alloc)
        held = here
        if w.has("held"):
            held = here & (~part.alone | ((part.pool == pool) & (part.lease < 0))) & load_at(w.held, column, slot)
            here = held
        if plan.has_leases:
            ended = on & (part.lease >= 0) & (part.pool == pool)
            alloc = jnp.where(ended, load(w.lease_units, part.lease), alloc)
            computed = jnp.where(ended, load(w.lease_computed, part.lease), computed)
            pos = jnp.where(ended, computed, pos)
            here = held | ended
            if pool in plan.leased:
                leases = held & (how == LEAVE) & (table(plan.leased)[jnp.maximum(scope, 0)] == pool)
                start_lease(w, slot, scope, pool, alloc, computed, leases)
                here = here & ~leases
        env = Env(
            plan,
            w.job.numbers,
            attr=attrs.get,
            ctx={
                "Now": lambda: now_s(w),
                "Finished": lambda: finished,
                "HoldPosition": lambda pos=pos: pos,
            },
            pool=pool_state(w, slot),
            stage=stage_state(w),
        )
        want = jnp.float64(-1.0)
        for i in mine:
            keep = plan.scopes[i].scope.takes[plan.scopes[i].pools.index(pool)].keep
            if keep is not None:
                if (pool, keep) not in keeps:
                    keeps[pool, keep] = evaluate(keep, env)
                want = jnp.where(scope == i, keeps[pool, keep], want)
        kept = jnp.float64(0.0)
        if plan.caching[pool]:
            w.fail(here & jnp.isnan(want), Fault.bad_amount, slot, pool)
            kept = round_down(w, pool, jnp.minimum(jnp.maximum(want, 0.0), computed))
        alloc, here, kept = w.fence(alloc, here, kept)
        if not w.has("held"):
            held = here
        w.add("used", pool, -alloc, here)
        if w.has("held"):
            w.s["held"] = store_at(w.held, column, jnp.maximum(slot, 0), False, held)
            count_holds(w, jnp.maximum(slot, 0), pool, -1, here)
            w.add("holders", pool, -1, here & (load_at(w.holds_n, jnp.int32(pool), slot) == 0))
        else:
            outside = table([not _held_outside(plan, i, pool) for i in range(len(plan.scopes))])
            w.add("holders", pool, -1, here & outside[jnp.maximum(scope, 0)])
        if plan.reserving[pool]:
            w.add("promised", pool, -outstanding(w, column, jnp.maximum(slot, 0)), held)
            w.s["reserve"] = store_at(w.reserve, column, jnp.maximum(slot, 0), 0.0, held)
        w.s["alloc"] = store_at(w.alloc, column, jnp.maximum(slot, 0), 0.0, held)
        if w.has("hold_seq"):
            drop_holder(w, slot, pool, depth, here)
        if "preempted_pos" in w.s:
            w.s["preempted_pos"] = store_at(w.preempted_pos, jnp.int32(pool), slot, -1.0, here & (how == LEAVE))
        act_at(w, here, Action.release, load(w.serial, slot), pool, alloc, base, 2 * order)
        if plan.caching[pool]:
            if plan.skeleton.pools[pool].uncached == "in_order":
                add_entry(w, slot, pool, alloc - kept, here & (alloc - kept > 1e-9), attrs, dead=True)
            caches = here & (kept > 1e-9)
            add_entry(w, slot, pool, kept, caches, attrs, dead=False)
            act_at(w, caches, Action.cache, load(w.serial, slot), pool, kept, base, 2 * order + 1)
    if plan.has_leases:
        w.put("lease_slot", jnp.maximum(part.lease, 0), -1, on & (part.lease >= 0))
        for name in ("lease_end", "lease_key", "lease_seq"):
            w.put(name, jnp.maximum(part.lease, 0), FAR, on & (part.lease >= 0))
    w.s["grown"] = store_at(w.grown, depth, jnp.maximum(slot, 0), False, on & ~part.alone)
    if w.has("stuck"):
        w.put("hopeless", slot, False, on & (how == LEAVE))
    if base is not None:
        sizes = table([2 * len(s.pools) for s in plan.scopes])[jnp.maximum(scope, 0)]
        w.actions_n = jnp.where(on, base + sizes, base).astype(jnp.int32)


def drop_holder(w: Lane, slot: Array, pool: int, depth: Array, on: Array) -> None:
    """A release removes the session's first entry in the list of holders: its outer holds move to the next places."""
    columns = [w.plan.column(d, pool) for d in range(w.plan.depth)]
    places = [load_at(w.hold_seq, jnp.int32(c), slot) for c in columns]
    for d, column in enumerate(columns):
        deeper = jnp.int64(FAR)
        for inner in places[d + 1 :]:
            deeper = jnp.minimum(deeper, inner)
        moved = jnp.where(depth == d, FAR, jnp.where(deeper < FAR, deeper, places[d]))
        w.s["hold_seq"] = store_at(w.hold_seq, jnp.int32(column), slot, moved, on & (places[d] < FAR))


def _held_outside(plan: object, scope: int, pool: int) -> bool:
    parent = plan.scopes[scope].parent  # type: ignore[attr-defined]
    return parent >= 0 and bool(plan.innermost[parent, pool] >= 0)  # type: ignore[attr-defined]


def act_at(
    w: Lane, mask: Array, kind: int, serial: Value, place: int, value: Value, base: Value, offset: Value
) -> None:
    """Write an action row at a place of its own; rows nobody writes are cleared first and dropped when read."""
    if base is None:
        return
    row = jnp.stack([jnp.asarray(x).astype(jnp.float64) for x in (w.now, kind, serial, place, value)])
    w.s["actions"] = store(w.actions, base + offset, row, mask)


def add_entry(w: Lane, slot: Array, pool: int, size: Value, mask: Array, attrs: Attributes, *, dead: bool) -> None:
    """A new cache entry of a session (it replaces its own), or a dead one that nobody can consume."""
    rows = jnp.arange(w.entry_size.shape[0])
    empty, free = least(pack(jnp.zeros_like(w.entry_seq), rows), w.entry_size <= 0)
    index, old = own_entry(w, pool, slot)
    if dead:
        index, old = jnp.int32(-1), jnp.float64(0.0)
    full = empty >= FAR
    w.fail(mask & (index < 0) & full, Fault.entries, -1, pool)
    at, mask, old = w.fence(jnp.where(index >= 0, index, free), mask & ((index >= 0) | ~full), old)
    put_entry(w, at, pool, slot, size, w.now, w.release_seq, attrs.values, mask, dead=dead)
    w.release_seq = w.release_seq + mask
    w.add("cached", pool, size - old, mask)


def put_entry(
    w: Lane,
    at: Array,
    pool: Value,
    slot: Array,
    size: Value,
    last: Value,
    seq: Value,
    attrs: Value,
    mask: Array,
    *,
    dead: bool,
) -> None:
    w.put("entry_pool", at, pool, mask)
    w.put("entry_owner", at, -1 if dead else load(w.serial, slot), mask)
    w.put("entry_slot", at, slot, mask)
    w.put("entry_size", at, size, mask)
    w.put("entry_last", at, last, mask)
    w.put("entry_seq", at, seq, mask)
    if w.has("entry_key"):
        w.put("entry_key", at, -2 - w.dead_seq if dead else load(w.serial, slot), mask)
        w.dead_seq = w.dead_seq + (mask if dead else 0)
    if w.has("entry_attr"):
        w.put_row("entry_attr", at, list(attrs), mask)
    if not dead:
        w.s["entry"] = store_at(w.entry, jnp.asarray(pool, jnp.int32), slot, at, mask)


# ---------------------------------------------------------------- end of a session


def finish_session(w: Lane, slot: Array, mask: Array) -> None:
    """The session is gone: its slot is free, under a closed population the next one starts."""
    serial = load(w.serial, slot)
    rejected = w.unwind_how == REJECT
    status = either(rejected, int(RequestStatus.rejected), int(RequestStatus.finished))
    close_request(w, slot, status, mask)
    for pool, spec in enumerate(w.plan.skeleton.pools):
        if spec.on_end == "free" and w.plan.caching[pool]:
            index, size = own_entry(w, pool, slot)
            gone = mask & (index >= 0)
            w.put("entry_size", index, 0.0, gone)
            w.add("cached", pool, -size, gone)
    w.act(mask, Action.end, serial, 0, 0)
    w.put("pc", slot, -1, mask)
    w.put("open", slot, False, mask)
    w.put("free", w.free_n, slot, mask)
    w.pick(mask, free_n=w.free_n + 1, live=w.live - 1)
    w.ended = w.ended + (mask & w.warm)
    if isinstance(w.plan.skeleton.arrival, Closed):
        w.pick(mask, spawning=w.spawning + 1)


# ---------------------------------------------------------------- joining a line


def requeue(w: Lane, slot: Array, scope: Array, mask: Array) -> None:
    """A preempted session waits again for the scope that was closed last."""
    tails = [s.preempt is not None and s.preempt.requeue == "tail" for s in w.plan.skeleton.pools]
    tail = table(tails)[jnp.maximum(w.unwind_pool, 0)]
    w.put("requeued", slot, True, mask)
    w.pick(mask, join=slot, join_scope=scope, join_how=either(tail, TAIL, HEAD))


def join_line(w: Lane) -> None:
    """The session joins the line of its scope's first pool, unless it asks more than the pool can ever hold."""
    plan = w.plan
    on = w.running & (w.join >= 0) & (w.unwind < 0)
    slot, scope = w.join, w.join_scope
    attrs = Attributes(w, slot)
    env = Env(
        plan, w.job.numbers, attr=attrs.get, ctx={"Now": lambda: now_s(w)}, pool=pool_state(w, slot),
        stage=stage_state(w),
    )  # fmt: skip
    refused = jnp.int32(-1)
    asked = jnp.float64(0.0)
    seen: dict[object, Value] = {}
    for i, s in enumerate(plan.scopes):
        for take, pool in zip(s.scope.takes, s.pools):
            if take.oversize == "wait":
                continue
            key = (pool, take.oversize)
            if key not in seen:
                seen[key] = evaluate(take.oversize, env)
            mine = on & (scope == i)
            w.fail(mine & ~(seen[key] >= -1e-9), Fault.bad_amount, slot, pool)
            if not plan.finite[pool]:
                continue
            need = round_up(w, pool, seen[key])
            over = mine & (need > cap(w, pool)) & (refused < 0)
            refused = jnp.where(over, pool, refused)
            asked = jnp.where(over, need, asked)
    on, refused, asked = w.fence(on, refused, asked)
    turned_away = on & (refused >= 0)
    w.add_at("rejected", refused, 1, turned_away)
    w.act(turned_away, Action.reject, load(w.serial, slot), refused, asked)
    w.pick(turned_away, unwind=slot, unwind_how=REJECT)
    w.pick(turned_away & (w.cur == slot), cur=-1)
    joins = on & ~turned_away & (w.fault == 0)
    first = table(plan.scope_table(lambda s: s.pools[0]))[jnp.maximum(scope, 0)]
    head = joins & (w.join_how == HEAD)
    seq = jnp.where(head, w.head_seq - 1, w.tail_seq)
    w.put("line", slot, first, joins)
    w.put("line_seq", slot, pack(seq, slot), joins)
    w.put("line_since", slot, w.now, joins)
    w.put("admitting", slot, scope, joins)
    w.pick(head, head_seq=w.head_seq - 1)
    w.tail_seq = w.tail_seq + (joins & ~head)
    w.add_at("queued", first, 1, joins)
    w.pick(on, join=-1)
