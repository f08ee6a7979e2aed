"""Getting units: who is admitted next, growth, victims, eviction, and the allocation itself.

A request for units (`ask`) stands until there is room: each loop turn evicts from one cache entry, and the turn
in which the room is there allocates.

**Source:** `spec/semantics.md`, sections 4, 5 and 6; oracle: `oracle/pools.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..report.raw import Action
from . import blocks, spills, timed_lines
from .access import FAR, least, load, load_at, pack, store, store_at, whole
from .blocks import Chain, Found, Lookups, Made, block_size, expressions
from .entries import entry_env, eviction_keys
from .expr import Env, Value, evaluate, select
from .faults import Fault
from .holds import caches, count_hold, innermost, innermost_of, table, take_of
from .lane import Lane
from .memory import act_at, attr_set
from .state import ADMIT, GIVE, GROW, PREEMPT, REGROW
from .uniforms import evict_ready
from .views import (
    Attributes,
    amount,
    at_least_0,
    cap,
    columns,
    now_s,
    outstanding,
    own_entry,
    pool_state,
    register_state,
    room_taken,
    round_down,
    round_up,
    seconds,
    stage_state,
    stray,
)
from .withdraw import withdraw

EPS = 1e-9


# ---------------------------------------------------------------- selection by keys


def select_waiting(w: Lane, pool: int | Array, only: int | None = None) -> tuple[Array, Array]:
    """The hold that a pool's line offers: a preempted one at the head, else the least keys."""
    waiting = w.line == pool
    if w.has("open_next"):
        waiting = timed_lines.may_try(w, jnp.asarray(pool), waiting)
    front, slot = least(w.line_seq, waiting)
    exists = front < FAR
    keyed = [p for p, spec in enumerate(w.plan.skeleton.pools) if spec.queue.keys and (only is None or p == only)]
    for p in keyed:
        env = Env(
            w.plan,
            w.job.numbers,
            attr=columns(w),
            ctx={
                "Now": lambda: now_s(w),
                "Waited": lambda: seconds(w, w.now - w.line_since),
            },
            pool=pool_state(w, jnp.arange(w.line.shape[0])),
            stage=stage_state(w),
            register=register_state(w),
            stray=stray(w),
        )
        keys = [evaluate(k, env, waiting & (w.line == p)) for k in w.plan.skeleton.pools[p].queue.keys]
        _, chosen = select(keys, w.line_seq, waiting & (w.line == p))
        slot = jnp.where(exists & (front >= 0) & (jnp.asarray(pool) == p), chosen, slot)
    return exists, slot


# ---------------------------------------------------------------- headers


class Header:
    """Amounts of the hold that a session waits for, evaluated for it now; lets overlay its attributes.

    `live_in`: where there is such a session, so that its errors count.
    """

    def __init__(self, w: Lane, slot: Array, left: Value, stage: Value, live_in: Value = True):
        plan = w.plan
        self.w, self.slot = w, slot
        (self.scope,) = w.fence(load(w.admitting, slot))
        n = len(plan.skeleton.pools)
        self.units: list[Value] = [jnp.float64(0.0)] * n
        self.need: list[Value] = [jnp.float64(0.0)] * n
        self.takes = [jnp.bool_(False)] * n
        self.reuse = jnp.float64(jnp.inf)
        self.attrs = Attributes(w, slot)
        base = list(self.attrs.values)
        final = list(base)
        requeued = load(w.requeued, slot).astype(jnp.float64)
        done: dict[object, tuple[list[Value], list[Value], list[Value], Value]] = {}
        self.made: Made = {}

        def budget_left(s: int) -> Value:
            if left is not None and via == {plan.skeleton.stages[s].name}:
                return left
            from .views import open_budget

            return open_budget(w, s) if left is None else jnp.where(stage == s, left, open_budget(w, s))

        order: dict[int, Array] = {}
        if plan.computed_holds:
            order = {p: take_of(w, slot, self.scope, p) for s in plan.scopes for p in s.pools}
        for i, s in enumerate(plan.scopes):
            via = {plan.skeleton.pools[p].admit_via for p in s.takes[0]}
            shape = (
                s.scope.lets,
                s.scope.reuse,
                tuple((ps, t.units, t.reserve) for t, ps in zip(s.scope.takes, s.takes)),
            )
            if shape not in done:
                view = Attributes.__new__(Attributes)
                view.w, view.slot, view.values = w, slot, list(base)
                env = Env(
                    plan,
                    w.job.numbers,
                    attr=view.get,
                    ctx={"Now": lambda: now_s(w), "Requeued": lambda: requeued},
                    pool=pool_state(w, slot, Lookups(w, slot, view.get, self.made)),
                    stage=stage_state(w, budget_left),
                    register=register_state(w),
                    stray=stray(w, slot),
                )
                live = live_in & (self.scope == i)
                for let in s.scope.lets:
                    view.set(let.attr, evaluate(let.value, env, live), jnp.bool_(True))
                units = [evaluate(t.units, env, live) for t in s.scope.takes]
                needs = []
                for u, take in zip(units, s.scope.takes):
                    need = u
                    if take.reserve is not None:
                        reserve = evaluate(take.reserve, env, live)
                        # what is no amount must not hide behind the units: `check` finds NaN
                        need = jnp.where(reserve >= -EPS, jnp.maximum(u, reserve), jnp.nan)
                    needs.append(need)
                reuse = jnp.float64(jnp.inf) if s.scope.reuse is None else evaluate(s.scope.reuse, env, live)
                done[shape] = (list(view.values), units, needs, reuse)
            values, units, needs, reuse = done[shape]
            mine = self.scope == i
            final = [jnp.where(mine, v, f) if v is not f else f for v, f in zip(values, final)]
            self.reuse = jnp.where(mine, reuse, self.reuse)
            for k, (pools, u, need) in enumerate(zip(s.takes, units, needs)):
                for pool in pools:
                    here = mine & (order[pool] == k) if order else mine
                    self.units[pool] = jnp.where(here, u, self.units[pool])
                    self.need[pool] = jnp.where(here, need, self.need[pool])
                    self.takes[pool] = self.takes[pool] | here
        self.attrs.values = final
        self.found: dict[int, Found] = {}
        self.hits: dict[int, Value] = {}

    def look_up(self) -> None:
        """Blocks of other sessions that the hold would share: at most what it may reuse and what it takes."""
        w, plan = self.w, self.w.plan
        for pool in plan.by_content:
            self.found[pool] = found = Lookups(w, self.slot, self.attrs.get, self.made)(pool)
            most = jnp.minimum(at_least_0(self.reuse), round_up(w, pool, self.units[pool]))
            take = take_of(w, self.slot, self.scope, pool)
            keeps = caches(w, self.scope, pool, take) & self.takes[pool]
            blocks = jnp.floor((most + EPS) / block_size(w, pool))
            self.hits[pool] = jnp.where(keeps, jnp.minimum(found.run, blocks), 0).astype(jnp.int32)

    def check(self, mask: Array) -> None:
        """Amounts must be numbers and not negative."""
        for pool in range(len(self.units)):
            here = mask & self.takes[pool]
            self.units[pool] = amount(self.w, self.units[pool], here, Fault.bad_units, self.slot, pool)
            self.need[pool] = amount(self.w, self.need[pool], here, Fault.bad_units, self.slot, pool)

    def fits(self) -> Array:
        """Whether every pool has room beside what is allocated; cached units do not count against it, and blocks that
        others hold already need none."""
        ok = jnp.bool_(True)
        for pool in range(len(self.units)):
            if self.w.plan.finite[pool]:
                need = round_up(self.w, pool, self.need[pool])
                if pool in self.hits:
                    need = need - self.found[pool].held_among(self.hits[pool]) * block_size(self.w, pool)
                room = room_taken(self.w, pool) + need <= cap(self.w, pool) + EPS
                ok = ok & (room | ~self.takes[pool])
        return ok


# ---------------------------------------------------------------- admission


def candidate(w: Lane) -> tuple[Array, Array, Array]:
    """The sweep over all pools: the pool whose growers or line come next, whether growers come first, and whether any.

    Advances the sweep past pools with nothing to try.
    """
    on = w.running & (w.sweep < len(w.plan.skeleton.pools)) & (w.unwind < 0) & (w.join < 0) & (w.ask < 0)
    if w.has("grow"):
        on = on & (w.grow < 0)
    found = jnp.int32(len(w.plan.skeleton.pools))
    growers = jnp.bool_(False)
    for pool in reversed(range(len(w.plan.skeleton.pools))):
        lines = (w.queued[pool] > 0) if w.plan.sweeps(pool) else jnp.bool_(False)
        grow = (w.waits_n[pool] > 0) if w.has("waits_n") else jnp.bool_(False)
        hit = (lines | grow) & (w.sweep <= pool)
        found = jnp.where(hit, pool, found)
        growers = jnp.where(hit, grow, growers)
    w.pick(on, sweep=found)
    return on & (found < len(w.plan.skeleton.pools)), found, growers


def pass_over(w: Lane) -> None:
    """The sweep goes on past pools with nothing to try."""
    candidate(w)


def try_sweep(w: Lane) -> tuple[Array, Array]:
    """One step of the sweep: a waiting grower that fits, or else a pool's line. Returns (asks to admit, pool)."""
    on, pool, growers = candidate(w)
    line = on
    if w.has("waits_n"):
        retry = on & growers
        key, slot = least(w.waits_key, w.waits == pool)
        units = load(w.waits_units, slot)
        room = jnp.bool_(False)
        own = own_reserve(w, innermost_of(w, slot, pool), slot)
        for p in range(len(w.plan.skeleton.pools)):
            if w.plan.finite[p]:
                room = jnp.where(pool == p, room_taken(w, p, own) + units <= cap(w, p) + EPS, room)
        fits = retry & room & (key < FAR)
        n = len(w.plan.skeleton.pools)
        w.pick(
            fits, ask=slot, ask_how=REGROW, ask_column=innermost_of(w, slot, pool),
            ask_units=jnp.where(jnp.arange(n) == pool, units, 0.0),
        )  # fmt: skip
        line = on & ~fits
        has_line = jnp.bool_(False)
        for p in range(n):
            if w.plan.sweeps(p):
                has_line = jnp.where(pool == p, w.queued[p] > 0, has_line)
        w.pick(line & ~has_line, sweep=pool + 1)
        line = line & has_line
    return line, pool


def own_reserve(w: Lane, column: Array, slot: Array) -> Value:
    """What a growing hold has itself reserved and not taken, which does not count against its growth."""
    return outstanding(w, jnp.maximum(column, 0), slot) if w.has("reserve") else 0.0


def admit(w: Lane, on: Array, pool: Array, left: Value, stage: Value) -> Array:
    """Test the hold that a line offers and start its admission; returns where it did not fit (or nobody waits)."""
    exists, slot, on, pool = w.fence(*select_waiting(w, pool), on, pool)
    trying = on & exists
    header = Header(w, slot, left, stage, trying)
    header.check(trying)
    header.units = list(w.fence(*header.units))
    header.need = list(w.fence(*header.need))
    header.takes = list(w.fence(*header.takes))
    header.look_up()
    (fits,) = w.fence(trying & header.fits() & (w.fault == 0))
    consume(w, slot, header, fits)
    if w.has("open_next"):
        timed_lines.tried(w, slot, trying & w.pass_asks)
    return on & ~fits


def consume(w: Lane, slot: Array, header: Header, on: Array) -> None:
    """Take a hold out of its line and its own cache entries out of the pools; ask for its units."""
    plan = w.plan
    n = len(plan.skeleton.pools)
    own = [jnp.float64(0.0)] * n
    reuse = at_least_0(header.reuse)
    kept = {p for s in plan.scopes for t, ps in zip(s.scope.takes, s.takes) if t.keep is not None for p in ps}
    for pool in range(n):
        if pool not in kept or pool in plan.by_content:
            continue
        take = take_of(w, slot, header.scope, pool)
        here = on & header.takes[pool] & caches(w, header.scope, pool, take)
        index, size = own_entry(w, pool, slot)
        here = here & (index >= 0)
        usable = jnp.where(jnp.isinf(reuse), size, round_down(w, pool, jnp.where(jnp.isinf(reuse), 0.0, reuse)))
        taken = jnp.minimum(size, usable)
        # the rest stays as a dead entry in the entry's own place: same age, no owner
        w.put("entry_size", index, size - taken, here)
        w.put("entry_owner", index, -1, here)
        if w.has("entry_key"):
            w.put("entry_key", index, -2 - w.dead_seq, here)
            w.dead_seq = w.dead_seq + here
        w.add("cached", pool, -taken, here)
        (own[pool],) = w.fence(jnp.where(here, taken, 0.0))
    for pool in plan.by_content:
        chain = Chain.of(w, pool, slot, expressions(w, pool, header.attrs.get))
        here = on & header.takes[pool]
        w.fail(here & ~chain.valid(), Fault.bad_units, slot, pool)
        named = caches(w, header.scope, pool, take_of(w, slot, header.scope, pool))
        blocks.share(w, pool, slot, header.found[pool], header.hits[pool], named, here)
        (own[pool],) = w.fence(jnp.where(here, header.hits[pool] * block_size(w, pool), 0.0))
    best = own[0]
    for value in own[1:]:
        best = jnp.maximum(best, value)
    header.attrs.set("cached", best, on)
    header.attrs.save(on)
    units = [jnp.where(t, round_up(w, p, u), 0.0) for p, (t, u) in enumerate(zip(header.takes, header.units))]
    w.pick(on, ask=slot, ask_how=ADMIT, ask_units=units, ask_own=own, ask_column=-1)
    if w.has("reserve"):
        w.pick(on, ask_reserve=[round_up(w, p, need) for p, need in enumerate(header.need)])
    if w.has("ask_rows"):
        w.pick(on, ask_rows=0)
    line = load(w.line, slot)
    w.add_at("queued", line, -1, on)
    waited = on & w.warm
    w.add_at("pool_wait_tick", line, w.now - load(w.line_since, slot), waited)
    w.add_at("pool_wait_n", line, 1, waited)
    w.put("line", slot, -1, on)
    w.put("line_seq", slot, FAR, on)
    w.put("requeued", slot, False, on)


# ---------------------------------------------------------------- growth


def grow(w: Lane) -> None:
    """A growth that is asked for: nothing to do, room, a victim, or waiting."""
    plan = w.plan
    on = w.running & (w.grow >= 0) & (w.unwind < 0) & (w.join < 0) & (w.ask < 0) & (w.spawning == 0)
    slot, pool, column = w.grow, w.grow_pool, jnp.maximum(w.grow_column, 0)
    alloc = load_at(w.alloc, column, slot)
    n = len(plan.skeleton.pools)
    need = jnp.float64(0.0)
    fits = jnp.bool_(False)
    own = own_reserve(w, column, slot)
    for p in range(n):
        if plan.growing[p]:
            units = jnp.maximum(round_up(w, p, alloc + w.grow_units) - alloc, 0.0)
            room = jnp.bool_(True) if not plan.finite[p] else room_taken(w, p, own) + units <= cap(w, p) + EPS
            need = jnp.where(pool == p, units, need)
            fits = jnp.where(pool == p, room | (units <= 0), fits)
    on, fits, need = w.fence(on, fits, need)
    takes = on & fits
    w.pick(
        takes, ask=slot, ask_how=w.grow_how, ask_column=w.grow_column,
        ask_units=jnp.where(jnp.arange(n) == pool, need, 0.0), grow=-1,
    )  # fmt: skip
    short = on & ~fits
    victim, found = jnp.int32(-1), jnp.bool_(False)
    if plan.preempts:
        for p in range(n):
            if plan.growing[p] and plan.skeleton.pools[p].preempt is not None:
                some, row = select_victim(w, p)
                found = jnp.where(pool == p, some, found)
                victim = jnp.where(pool == p, row, victim)
        victim, found, short = w.fence(victim, found, short)
        preempt(w, victim, pool, short & found)
        own = short & found & (victim == slot)
        w.pick(own, grow=-1)
        w.pick(own & (w.grow_how == GROW), cur=-1)
        if w.has("stopped"):
            stops = [getattr(s.kind, "after_own_preemption", "stop") == "stop" for s in plan.skeleton.stages]
            ends = own & (w.grow_how == GIVE)
            w.pick(ends if all(stops) else ends & table(stops)[w.cursor], stopped=True)
    wait = short & ~found
    if w.has("owed"):
        over = (w.grow_how == GIVE) & (takes | wait | (short & found & (victim == slot)))
        w.pick(over, left=w.left + w.owed, owed=0.0)
    if w.has("waits"):
        w.put("waits", slot, pool, wait)
        w.put("waits_key", slot, pack(w.event_seq, slot), wait)
        w.put("waits_units", slot, need, wait)
        w.put("waits_how", slot, w.grow_how, wait)
        w.event_seq = w.event_seq + wait
        w.add_at("waits_n", pool, 1, wait)
        if w.has("grow_to"):
            w.arm(slot, w.grow_limit, w.grow_to, wait & (w.grow_how == GROW) & (w.grow_to >= 0))
        w.pick(wait, grow=-1)
        w.pick(wait & (w.grow_how == GROW), cur=-1)


def select_victim(w: Lane, pool: int) -> tuple[Array, Array]:
    """The session that a growth of `pool` takes from: least victim keys, ties to the one admitted last."""
    plan = w.plan
    preempt_spec = plan.skeleton.pools[pool].preempt
    assert preempt_spec is not None
    column = innermost(w, None, w.scope, pool)
    holds = (column >= 0) & (w.pc >= 0)
    stages = plan.memory_stages[pool]
    if stages:
        there = jnp.zeros_like(holds)
        for stage in stages:
            there = there | (w.stage == stage)
        holds = holds & there & (w.waits < 0)
    sequence = pack(w.adm, jnp.arange(w.adm.shape[0]))
    if plan.holder_order[pool]:
        places = w.hold_seq[pool]
        for d in range(1, plan.depth):
            places = jnp.minimum(places, w.hold_seq[plan.column(d, pool)])
        sequence = pack(jnp.minimum(places, 1 << 41), jnp.arange(w.adm.shape[0]))
    keys: list[Value] = []
    if not plan.lifo(pool):
        rank = jnp.sum(holds[None, :] & (sequence[None, :] < sequence[:, None]), axis=1).astype(jnp.float64)
        position = jnp.take_along_axis(w.pos, jnp.maximum(column, 0)[None, :], axis=0)[0]
        env = Env(
            plan,
            w.job.numbers,
            attr=columns(w),
            ctx={
                "Now": lambda: now_s(w),
                "Admission": lambda: rank,
                "Decoding": lambda: (
                    ((w.mode == 1) & (w.stage >= 0)).astype(jnp.float64) if w.has("mode") else jnp.zeros_like(rank)
                ),
                "Position": lambda: position,
            },
            pool=pool_state(w, jnp.arange(w.adm.shape[0])),
            stage=stage_state(w),
            stray=stray(w),
        )
        keys = [evaluate(k, env, holds) for k in preempt_spec.order.keys]
    return select(keys, sequence, holds, latest=True)


def preempt(w: Lane, victim: Array, pool: Array, on: Array) -> None:
    """Take a session off its stage and start to give back its hold of `pool` and all inside it."""
    plan = w.plan
    slot = jnp.maximum(victim, 0)
    column = innermost_of(w, slot, pool)
    computed = load_at(w.pos, column, slot)
    before = load_at(w.preempted_pos, pool, slot)
    stuck = on & (before >= 0) & (before >= computed - EPS) & ~load(w.stuck, slot)
    w.add_at("stuck_n", pool, 1, stuck)
    w.put("stuck", slot, True, stuck)
    w.s["preempted_pos"] = store_at(w.preempted_pos, jnp.maximum(pool, 0), slot, computed, on)
    attr_set(w, slot, "computed", computed, on)
    w.add_at("preemptions", pool, 1, on)
    w.pick(on, watching=True)
    w.act(on, Action.preempt, load(w.serial, slot), pool, computed)
    alone = on & (victim == w.grow)
    for p in range(len(plan.skeleton.pools)):
        if plan.growing[p] and plan.skeleton.pools[p].preempt is not None and not plan.deadlines:
            lone = alone & (pool == p) & (w.holders[p] <= 1)
            w.livelock = w.livelock | (lone & load(w.hopeless, slot))
            w.put("hopeless", slot, True, lone)
    if w.has("mode"):
        w.put("preempted", slot, True, on)
        w.pick(on & w.planning, preempting=True)
        if w.has("preempted_n"):
            w.bump("preempted_n", on & w.planning)
    withdraw(w, slot, on)
    w.pick(on, unwind=victim, unwind_how=PREEMPT, unwind_pool=pool)


# ---------------------------------------------------------------- room and allocation


def evict(w: Lane) -> None:
    """If an ask lacks room, take units from one cache entry: the least of the pool's eviction order."""
    plan = w.plan
    on = w.running & (w.ask >= 0)
    n = len(plan.skeleton.pools)
    order, _ = take_order(w)
    pool, deficit, place = jnp.int32(-1), jnp.float64(0.0), jnp.int32(n + 1)
    for p in range(n):
        if plan.caching[p] and plan.finite[p]:
            lacks = w.used[p] + w.cached[p] + w.ask_units[p] - cap(w, p)
            # pools are taken in the order of the scope's takes
            hit = (lacks > EPS) & (order[p] < place) & asked(w, order, p)
            pool = jnp.where(hit, p, pool)
            deficit = jnp.where(hit, lacks, deficit)
            place = jnp.where(hit, order[p], place)
    tier = jnp.int32(-1)
    if plan.has_spills:
        pool, deficit, tier = spills.turn(w, on, pool, deficit)
    some = on & (pool >= 0)
    alive = (w.entry_size > 0) & (w.entry_pool == pool)
    sequence = pack(w.entry_seq, jnp.arange(w.entry_seq.shape[0]))
    found, row = least(sequence, alive)
    found = found < FAR
    for p in range(n):
        if plan.caching[p] and plan.finite[p] and not plan.lru(p):
            keyed, chosen = select(eviction_keys(w, p), sequence, alive & (w.entry_pool == p))
            row = jnp.where(pool == p, chosen, row)
    some = some & found
    full = on & ~some  # nothing is to be evicted: what is being spilled joins its tier
    if plan.blocks["evict"]:
        some = some & evict_ready(w)  # else in the next turn, with new draws
    size = load(w.entry_size, row)
    amount_out = size
    for p in range(n):
        spec = plan.skeleton.pools[p]
        if plan.caching[p] and plan.finite[p] and spec.block is not None:
            block = Env(plan, w.job.numbers).number(spec.block)
            # under LRU the entry stays the least until it is gone, so its blocks go together
            together = plan.lru(p) and plan.spills_to[p] < 0
            blocks = jnp.maximum(round_up(w, p, deficit - EPS), block) if together else block
            amount_out = jnp.where(pool == p, jnp.minimum(size, blocks), amount_out)
    some, row, pool, size, amount_out = w.fence(some, row, pool, size, amount_out)
    left = size - amount_out
    gone = some & (left <= EPS)
    w.put("entry_size", row, jnp.where(left <= EPS, 0.0, left), some)
    w.add_at("cached", pool, -amount_out, some)
    w.add_at("evicted_units", pool, amount_out, some)
    w.add_at("evicted_entries", pool, 1, gone)
    if w.has("actions"):
        # while something is spilled the takes before this one are on the trace already
        records = some & (tier < 0) if plan.has_spills else some
        record_admission(w, records & (w.ask_how == ADMIT), place)
    w.act(some, Action.evict, load(w.entry_owner, row), pool, amount_out)
    if plan.has_spills:
        spills.spill(w, entry_env(w, row, amount_out), row, pool, amount_out, some)
        spills.join(w, full, tier)


def asked(w: Lane, order: list[Array], pool: int) -> Array:
    """Whether an ask makes room in a pool; it may for nothing in a tier, which can stand above its cap."""
    if pool not in w.plan.tiers:
        return jnp.bool_(True)
    n = len(w.plan.skeleton.pools)
    return jnp.where(w.ask_how == ADMIT, order[pool] >= 0, (w.ask_column % n == pool) & (w.ask_units[pool] > 0.0))


def take_entries(w: Lane, pool: int, units: Array) -> None:
    """Evict `units` (whole blocks) from the entries of a pool in release order, all at once."""

    def lacks(carry: tuple[Array, Array, Array]) -> Array:
        return carry[0] > EPS

    def take(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, sizes, gone = carry
        _, row = least(pack(w.entry_seq, jnp.arange(sizes.shape[0])), (sizes > 0) & (w.entry_pool == pool))
        size = load(sizes, row)
        amount = jnp.minimum(size, left)
        rest = jnp.where(size - amount <= EPS, 0.0, size - amount)
        return left - amount, store(sizes, row, rest, jnp.bool_(True)), gone + (rest <= 0)

    _, w.entry_size, gone = lax.while_loop(lacks, take, (units, w.entry_size, jnp.int64(0)))
    w.add("cached", pool, -units, jnp.bool_(True))
    w.add("evicted_units", pool, units, jnp.bool_(True))
    w.add("evicted_entries", pool, gone, jnp.bool_(True))


def allocate(w: Lane) -> None:
    """If an ask has room now, hand the units over and let the session (or the plan) go on."""
    plan = w.plan
    n = len(plan.skeleton.pools)
    room = ~jnp.any(w.spilled > 0) if plan.has_spills else jnp.bool_(True)
    for p in range(n):
        if plan.finite[p] and p not in plan.by_content:  # there the test has counted whole blocks
            cached = w.cached[p] if plan.caching[p] else 0.0
            nothing = w.ask_units[p] <= 0.0 if p not in plan.tiers else ~asked(w, take_order(w)[0], p)
            room = room & ((w.used[p] + cached + w.ask_units[p] <= cap(w, p) + EPS) | nothing)
    on, slot, how = w.fence(w.running & (w.ask >= 0) & room, w.ask, w.ask_how)
    admits = on & (how == ADMIT)
    if plan.by_content:
        take_blocks(w, slot, on, admits)
    counted = w.ask_units
    for p in plan.by_content:  # these are counted by their blocks
        counted = counted.at[p].set(0.0)
    w.used = jnp.where(on, w.used + counted, whole(w.used))
    take_holds(w, slot, admits)
    if w.has("grow"):
        grows = on & (how != ADMIT)
        column = jnp.maximum(w.ask_column, 0)
        units = jnp.sum(w.ask_units)
        old = load_at(w.alloc, column, slot)
        if w.has("reserve"):
            before = outstanding(w, column, slot)
            w.s["alloc"] = store_at(w.alloc, column, slot, old + units, grows)
            w.add_at("promised", (column % n).astype(jnp.int32), outstanding(w, column, slot) - before, grows)
        else:
            w.s["alloc"] = store_at(w.alloc, column, slot, old + units, grows)
        pool = (column % n).astype(jnp.int32)
        w.act(grows & (units > 0), Action.grow, load(w.serial, slot), pool, units)
        regrow = on & (how == REGROW)
        stays = load(w.waits_how, slot)
        w.put("waits", slot, -1, regrow)
        w.put("waits_key", slot, FAR, regrow)
        w.add_at("waits_n", pool, -1, regrow)
        w.make_ready(slot, regrow & (stays == GROW))
    w.pick(on, ask=-1)
    if w.has("stage_end"):
        from .planner import give_allocated

        give_allocated(w, slot, on & (how == GIVE))


def take_blocks(w: Lane, slot: Array, on: Array, admits: Array) -> None:
    """The blocks of an ask that are not shared come from the free queue, in the order of the takes."""
    plan = w.plan
    order, _ = take_order(w)
    for pool in plan.by_content:
        units = w.ask_units[pool] - jnp.where(admits, w.ask_own[pool], 0.0)
        here = on & (units > 0)
        evicted = w.only(here, lambda w, p=pool, u=units, h=here: blocks.take(w, p, slot, u, h), jnp.float64(0.0))
        if w.has("actions"):
            record_admission(w, admits & (evicted > 0), order[pool])
        blocks.act_evicted(w, pool, evicted, here)


def take_order(w: Lane) -> tuple[list[Array], list[bool]]:
    """Place of each pool among the takes of the scope that the ask admits (-1: not taken); which pools any takes."""
    n = len(w.plan.skeleton.pools)
    scope = jnp.maximum(load(w.admitting, w.ask), 0)
    some = {p for s in w.plan.scopes for p in s.pools}
    none = jnp.full_like(scope, -1)
    order = [take_of(w, w.ask, scope, pool) if pool in some else none for pool in range(n)]
    return order, [pool in some for pool in range(n)]


def record_admission(w: Lane, on: Array, before: Array) -> None:
    """Action rows of an admission's takes that come before place `before` and are not on the trace yet."""
    order, taken = take_order(w)
    base, done = w.actions_n, w.ask_rows
    rows = jnp.int32(0)
    for pool, some in enumerate(taken):
        if some:
            here = on & (order[pool] >= done) & (order[pool] < before)
            serial = load(w.serial, w.ask)
            act_at(w, here, Action.admit, serial, pool, w.ask_units[pool], base, order[pool] - done)
            rows = rows + here.astype(jnp.int32)
    w.actions_n = base + rows
    w.pick(on, ask_rows=done + rows)


def take_holds(w: Lane, slot: Array, on: Array) -> None:
    """The session owns its hold: it is a holder of every pool and goes on at the scope's reentry."""
    plan = w.plan
    (scope,) = w.fence(load(w.admitting, slot))
    n = len(plan.skeleton.pools)
    depth = table(plan.scope_table(lambda s: s.depth))[jnp.maximum(scope, 0)]
    if w.has("actions"):
        record_admission(w, on, jnp.int32(n))
    order, taken = take_order(w)
    for pool in range(n):
        if not taken[pool]:
            continue
        here = on & (order[pool] >= 0)
        column = depth * n + pool
        w.s["alloc"] = store_at(w.alloc, column, slot, w.ask_units[pool], here)
        w.s["pos"] = store_at(w.pos, column, slot, w.ask_own[pool], here)
        w.add("admissions", pool, 1, here)
        if w.has("holding"):
            w.s["holding"] = store_at(w.holding, column, slot, True, here)
        count_hold(w, slot, scope, pool, 1, here)
        if w.has("reserve"):
            w.s["reserve"] = store_at(w.reserve, column, slot, w.ask_reserve[pool], here)
            w.add("promised", pool, jnp.maximum(w.ask_reserve[pool] - w.ask_units[pool], 0.0), here)
    w.s["grown"] = store_at(w.grown, depth, slot, False, on)
    if w.has("hold_seq"):
        for pool, some in enumerate(taken):
            if some:
                here = on & (order[pool] >= 0)
                w.s["hold_seq"] = store_at(w.hold_seq, depth * n + pool, slot, w.adm_seq, here)
    w.put("scope", slot, scope, on)
    w.put("admitting", slot, -1, on)
    w.put("admitted", slot, True, on)
    if w.has("legs"):
        root = load(w.root, slot)
        w.put("admitted", root, True, on & (root >= 0))
    w.put("adm", slot, w.adm_seq, on)
    w.adm_seq = w.adm_seq + on
    if w.has("opened_by"):
        w.s["opened_by"] = store_at(w.opened_by, depth, slot, load(w.pc, slot), on)
    reentry = table(plan.scope_table(lambda s: s.reentry))[jnp.maximum(scope, 0)]
    w.put("pc", slot, reentry, on)
    w.make_ready(slot, on)
    if w.has("run_ready"):
        w.pick(on & w.planning, run_ready=True, joined=True)
