"""Giving back: scopes are closed one a loop turn, innermost first, and what they computed may stay cached.

**Source:** `spec/semantics.md`, sections 4 (scope end, caching) and 6 (preemption); oracle: `oracle/pools.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from ..ir.program import Closed, Enter
from ..report.raw import Action, RequestStatus
from .access import FAR, either, least, load, load_at, pack, store, store_at
from .blocks import block_size
from .blocks import give_back as give_blocks
from .expr import Env, Value, evaluate
from .faults import Fault
from .holds import count_hold, innermost_of, places, table, take_of, taken
from .lane import Lane
from .legs import finish_leg, orphan
from .requests import close_request
from .state import END, END_LEG, EXPIRE, HEAD, JUMP, LEAVE, NEWCOMER, PREEMPT, REJECT, RELEASE, TAIL
from .views import (
    Attributes,
    amount,
    cap,
    now_s,
    outstanding,
    own_entry,
    pool_state,
    round_down,
    round_up,
    stage_state,
    stray,
    to_ticks,
)
from .withdraw import withdraw


def give_back(w: Lane) -> None:
    """Close one scope of the session being unwound; when it was the last to close, go on."""
    on = w.running & (w.unwind >= 0)
    slot, how = w.unwind, w.unwind_how
    if not w.plan.has_holds:
        if w.has("deadline"):
            go_on(w, slot, on & (how == JUMP))
        w.pick(on, unwind=-1)
        finish(w, slot, how, on)
        return
    part = next_part(w, slot, how)
    closes = part.scope >= 0
    if w.has("deadline"):
        closes &= ~((how == JUMP) & (part.scope == w.unwind_scope))
    on, scope, open_ = w.fence(on, part.scope, on & closes)
    reached = jnp.bool_(False)
    if w.plan.preempts:
        reached = open_ & (how == PREEMPT) & taken(w, slot, scope, w.unwind_pool)
    release_scope(w, slot, part._replace(scope=scope), how, open_)
    closes = open_ & ~part.alone if w.plan.loose else open_
    parents = w.plan.scope_table(lambda s: s.parent)
    outer = jnp.where(closes, table(parents)[jnp.maximum(scope, 0)], -1)
    w.put("scope", slot, outer, closes)
    returns, gone = how == LEAVE, outer < 0
    if w.plan.loose:
        returns = returns | (how == RELEASE) | (how == EXPIRE)
        gone = gone & ((part.leases_left <= 0) | ~((how == END) | (how == REJECT)))
    last = returns | gone | reached
    if w.has("deadline"):
        last |= (how == JUMP) & (outer == w.unwind_scope)
    done, reached, last = w.fence(on & last, reached, last)
    w.pick(done, unwind=-1)
    leave = done & (how == LEAVE)
    attr_set(w, slot, "computed", 0.0, leave)
    w.pick(done & returns, sweep=0)
    if w.has("deadline"):
        go_on(w, slot, done & (how == JUMP))
    if w.plan.preempts:
        requeue(w, slot, scope, done & reached)
    finish(w, slot, how, done)


def finish(w: Lane, slot: Array, how: Array, done: Array) -> None:
    """The scopes of a session are closed: what becomes of it. A refused leg ends with its session."""
    ends = done & ((how == END) | (how == REJECT))
    if w.has("legs"):
        leg = done & (load(w.leg, slot) >= 0)
        root = load(w.root, slot)
        refused = leg & (how == REJECT)
        finish_leg(w, slot, leg & ((how == END_LEG) | (how == REJECT)), ~refused)
        with_it = refused & (root >= 0)
        withdraw(w, jnp.maximum(root, 0), with_it)
        w.pick(with_it, unwind=root, unwind_how=REJECT)
        ends = ends & ~leg
    finish_session(w, slot, how, ends)


def go_on(w: Lane, slot: Array, mask: Array) -> None:
    """A session whose deadline has come is ready at the target; before it runs, every line is tried."""
    attr_set(w, slot, "computed", 0.0, mask)
    w.make_ready(slot, mask)
    w.pick(mask, sweep=0)


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
    depth = table(plan.scope_table(lambda s: s.depth))[jnp.maximum(scope, 0)]
    cut = (how == PREEMPT) | (how == JUMP)  # before the scope's own end
    finished = (~cut).astype(jnp.float64)
    base = w.actions_n if w.has("actions") else None
    n_pools = len(plan.skeleton.pools)
    for pool in range(n_pools):
        mine = [i for i, s in enumerate(plan.scopes) if pool in s.pools]
        if not mine:
            continue
        order = take_of(w, slot, scope, pool)
        here = on & (order >= 0)
        column = depth * n_pools + pool
        alloc = load_at(w.alloc, column, slot)
        pos = load_at(w.pos, column, slot)
        grown = load_at(w.grown, depth, slot)
        computed = jnp.where(grown | cut, pos, alloc)
        held = here
        if w.has("holding"):
            held = here & (~part.alone | ((part.pool == pool) & (part.lease < 0))) & load_at(w.holding, column, slot)
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
            stray=stray(w, slot),
        )
        want = jnp.float64(-1.0)
        for i in mine:
            for k, (take, members) in enumerate(zip(plan.scopes[i].scope.takes, plan.scopes[i].takes)):
                if take.keep is None or pool not in members:
                    continue
                if (pool, take.keep) not in keeps:
                    keeps[pool, take.keep] = evaluate(take.keep, env, here)
                mine = scope == i
                if len(plan.scopes[i].takes) > 1 and plan.computed_holds:
                    mine = mine & (order == k)
                want = jnp.where(mine, keeps[pool, take.keep], want)
        kept = jnp.float64(0.0)
        if plan.caching[pool]:
            w.fail(here & jnp.isnan(want), Fault.bad_units, slot, pool)
            kept = round_down(w, pool, jnp.minimum(jnp.maximum(want, 0.0), computed))
        if pool in plan.by_content:
            w.fail(here & jnp.isnan(want), Fault.bad_units, slot, pool)
            named = load_at(w.held_named, jnp.int32(plan.by_content.index(pool)), jnp.maximum(slot, 0))
            planned = named * block_size(w, pool)  # if not computed
            kept = round_down(w, pool, jnp.minimum(jnp.maximum(want, 0.0), jnp.maximum(computed, planned)))
        alloc, here, kept = w.fence(alloc, here, kept)
        if pool in plan.by_content:
            kept = w.only(here, lambda w, p=pool, k=kept, h=here: give_blocks(w, p, slot, k, h), jnp.float64(0.0))
            act_at(w, here & (kept > 0), Action.cache, load(w.serial, slot), pool, kept, base, 2 * order + 1)
        else:
            w.add("used", pool, -alloc, here)
        if w.has("holding"):
            w.s["holding"] = store_at(w.holding, column, jnp.maximum(slot, 0), False, held)
        else:
            held = here
        count_hold(w, slot, scope, pool, -1, here)
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
    w.s["grown"] = store_at(w.grown, depth, jnp.maximum(slot, 0), False, on & ~part.alone if plan.loose else on)
    if w.has("stuck"):
        w.put("hopeless", slot, False, on & (how == LEAVE))
    if base is not None:
        sizes = table([2 * len(s.takes) for s in plan.scopes])[jnp.maximum(scope, 0)]
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
    owner = slot
    if w.has("legs"):  # the entries are the session's, whoever of its legs makes them
        owner = jnp.where(load(w.leg, slot) >= 0, load(w.root, slot), slot)
    w.put("entry_slot", at, owner, mask)
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


def finish_session(w: Lane, slot: Array, how_ended: Array, mask: Array) -> None:
    """The session is gone: its slot is free, under a closed population the next one starts."""
    serial = load(w.serial, slot)
    rejected = how_ended == REJECT
    status = either(rejected, int(RequestStatus.rejected), int(RequestStatus.finished))
    close_request(w, slot, status, mask)
    for pool, spec in enumerate(w.plan.skeleton.pools):
        if spec.on_end == "free" and w.plan.caching[pool]:
            index, size = own_entry(w, pool, slot)
            gone = mask & (index >= 0)
            w.put("entry_size", index, 0.0, gone)
            w.add("cached", pool, -size, gone)
    if w.has("legs"):
        orphan(w, slot, mask)
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
    if w.has("opened_by"):
        depth = table(w.plan.scope_table(lambda s: s.depth))[jnp.maximum(scope, 0)]
        w.put("pc", slot, load_at(w.opened_by, depth, slot), mask)
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
        stage=stage_state(w), stray=stray(w, slot),
    )  # fmt: skip
    chosen = places(w, slot, scope, env, on)
    refused = jnp.int32(-1)
    asked = jnp.float64(0.0)
    seen: dict[object, Value] = {}
    for i, s in enumerate(plan.scopes):
        for place, take, members in zip(chosen, s.scope.takes, s.takes):
            if take.oversize == "wait":
                continue
            if take.oversize not in seen:
                seen[take.oversize] = evaluate(take.oversize, env)
            mine = on & (scope == i)
            w.fail(mine & ~(seen[take.oversize] >= -1e-9), Fault.bad_units, slot, place)
            for pool in members:
                if not plan.finite[pool]:
                    continue
                need = round_up(w, pool, seen[take.oversize])
                over = mine & (need > cap(w, pool)) & (refused < 0)
                if len(members) > 1:
                    over = over & (place == pool)
                refused = jnp.where(over, pool, refused)
                asked = jnp.where(over, need, asked)
    on, refused, asked, first = w.fence(on & (w.fault == 0), refused, asked, chosen[0])
    turned_away = on & (refused >= 0)
    w.add_at("rejected", refused, 1, turned_away)
    w.act(turned_away, Action.reject, load(w.serial, slot), refused, asked)
    w.pick(turned_away, unwind=slot, unwind_how=REJECT)
    w.pick(turned_away & (w.cur == slot), cur=-1)
    limits: list[tuple[Value, int, Array]] = []
    for i, deadline in plan.deadlines.items():
        if isinstance(plan.states[i].exit, Enter):
            here = on & ~turned_away & (load(w.pc, slot) == i)
            after = amount(w, evaluate(deadline.after, env), here, Fault.bad_amount, slot, i)
            limits.append((to_ticks(w, after), plan.state_index[deadline.target], here))
    joins = on & ~turned_away & (w.fault == 0)
    head = joins & (w.join_how == HEAD)
    seq = jnp.where(head, w.head_seq - 1, w.tail_seq)
    w.put("line", slot, first, joins)
    w.put("line_seq", slot, pack(seq, slot), joins)
    w.put("line_since", slot, w.now, joins)
    w.put("admitting", slot, scope, joins)
    w.pick(head, head_seq=w.head_seq - 1)
    w.tail_seq = w.tail_seq + (joins & ~head)
    w.add_at("queued", first, 1, joins)
    if w.has("joins"):
        w.add_at("joins", first, 1, joins & (w.join_how == NEWCOMER))
    for ticks, target, here in limits:
        w.arm(slot, ticks, jnp.int32(target), joins & here)
    w.pick(on, join=-1)
