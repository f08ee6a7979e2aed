"""Planning an iteration at once: what the residents get, where nobody has to make room for another.

The general planner (planner.py) visits resident by resident, because each give may grow, evict and preempt. Where
residents are served in the order of their admission, all wants but the last fit into the budget, and the
pool has room for all growth, the visits change nothing: every resident gets what it wants, the last one what is
left. Newcomers are asked for afterwards, as always.

Where blocks are shared by content, filling a block is an event too. There the decodes that come before the first
resident that fills a block, grows or prefills get their tokens at once, and that one is visited.

**Source:** `design.md`, section 4 (the closed planner); `spec/semantics.md`, section 8.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from .access import FAR, pack, unpack_slot
from .admission import EPS, take_entries
from .blocks import block_size
from .lane import Lane
from .plan import Plan
from .views import cap, planned_limits, round_up


def give_all(w: Lane, begins: Array) -> None:
    """Give to all residents of the stage whose plan has just begun, if they need no visits.

    **Arguments:** `begins`: where a plan has begun in this turn.
    """
    for stage in w.plan.step_stages:
        if not w.plan.licence(stage).at_once:
            continue
        on = begins & (w.cursor == stage) & (w.number[stage] > 0)
        if not w.plan.licence(stage).prefills:
            on = on & ~prefilling(w, stage)
        (on,) = w.fence(on)
        w.only(on, lambda w, stage=stage, on=on: w.residents(lambda w: _give_all(w, stage, on)))


def prefilling(w: Lane, stage: int) -> Array:
    """Whether a resident of a stage prefills."""
    return w.residents(lambda w: jnp.any((w.stage == stage) & (w.mode == 0)))


def _give_all(w: Lane, stage: int, on: Array) -> None:
    plan, licence = w.plan, w.plan.licence(stage)
    here = w.stage == stage
    want = jnp.where(here, planned_limits(w).wanted(w.work, w.mode), 0.0)
    ok = on & jnp.all(want == jnp.floor(want)) & (w.left == jnp.floor(w.left)) & (w.left > 0)
    latest = jnp.max(jnp.where(here, pack(w.adm, jnp.arange(w.adm.shape[0])), -1))
    last = unpack_slot(latest)
    excess = jnp.maximum(jnp.sum(want) - w.left, 0.0)
    ok &= (excess <= 0) | ((w.mode[last] == 0) & (want[last] > excess))
    given = computed = jnp.where(jnp.arange(want.shape[0]) == last, want - excess, want)
    if w.has("computed"):
        given = jnp.where(w.mode == 1, jnp.minimum(planned_limits(w).gets(w.work), computed), computed)
        ok &= jnp.all(given == jnp.floor(given))
        (computed,) = w.fence(computed)
    ok, given = w.fence(ok, given)
    pool = licence.pool if w.has("pos") else -1
    if pool >= 0:
        ok &= ~jnp.any(here & (w.waits >= 0))
        growth = []
        for depth in range(plan.depth):
            column = plan.column(depth, pool)
            grows = here & (w.column == column)
            alloc = w.alloc[column]
            need = w.pos[column] + given - alloc
            units = jnp.maximum(round_up(w, pool, alloc + need) - alloc, 0.0)
            growth.append(jnp.where(grows & (need > EPS), units, 0.0))
        growth = list(w.fence(*growth))
        total = sum((jnp.sum(units) for units in growth), jnp.float64(0.0))
        ok &= total == jnp.floor(total)
        evicted = jnp.float64(0.0)
        if plan.finite[pool]:
            limit = cap(w, pool) + EPS
            cached = w.cached[pool] if plan.caching[pool] else jnp.float64(0.0)
            room = w.used[pool] + cached + total <= limit
            if licence.evicts and plan.caching[pool]:
                lacks = w.used[pool] + cached + total - cap(w, pool)
                evicted = jnp.where(room, 0.0, jnp.maximum(round_up(w, pool, lacks - EPS), 0.0))
                room = room | (w.used[pool] + total <= limit)
            ok &= room | (total <= 0.0)
        ok, total, evicted = w.fence(ok, total, evicted)
        for depth, units in enumerate(growth):
            column = plan.column(depth, pool)
            w.s["alloc"] = w.alloc.at[column].add(jnp.where(ok, units, 0.0))
        w.used = w.used.at[pool].add(jnp.where(ok, total, 0.0))
        if licence.evicts and plan.caching[pool]:
            take_entries(w, pool, jnp.where(ok & (total > 0), evicted, 0.0))
    mine = here & ok
    earliest = jnp.min(jnp.where(here, w.adm, FAR))
    w.given = jnp.where(mine, given, w.given)
    w.give_key = jnp.where(mine, w.adm - earliest, w.give_key)
    w.considered = jnp.where(mine, w.plan_seq, w.considered)
    if w.has("computed"):
        w.computed = jnp.where(mine, computed, w.computed)
    else:
        computed = given
    w.pick(ok, left=w.left - jnp.sum(computed), listed=w.adm[last] - earliest + 1)


def has_quiet(plan: Plan) -> bool:
    """Whether residents that change nothing but the budget are given to together: of stages that go by the order of
    admission, in programs with blocks that are shared by content (others have `give_all`)."""
    if not plan.by_content or plan.bodies or plan.granular or plan.prefills_alone or plan.speculative:
        return False
    return not any(plan.stages[stage].kind.serve.keys for stage in plan.step_stages)


def give_quiet(w: Lane, on: Array) -> None:
    """Give a token to the decodes, among the residents that the plan has not come to, before the first one that fills
    a block, grows or prefills (on the rows of residents)."""
    plan, pools = w.plan, len(w.plan.skeleton.pools)
    here = (w.stage == w.cursor) & (w.considered != w.plan_seq) & on
    want = planned_limits(w).wanted(w.work, w.mode)
    noisy = (w.mode == 0) | (want != jnp.floor(want)) | (want <= 0)
    column = jnp.maximum(w.column, 0)[None, :]
    after = jnp.take_along_axis(w.pos, column, axis=0)[0] + want
    if w.has("grow"):
        room = jnp.take_along_axis(w.alloc, column, axis=0)[0]
        noisy = noisy | ((w.column >= 0) & ((after - room > EPS) | (w.waits >= 0)))
    for k, pool in enumerate(plan.by_content):
        if plan.skeleton.pools[pool].found == "scheduled":
            fills = jnp.floor(after / block_size(w, pool)) > w.held_named[k]
            noisy = noisy | ((w.column >= 0) & (w.column % pools == pool) & w.held_chain[k] & fills)
    order = pack(w.adm, jnp.arange(w.adm.shape[0]))
    mine = here & (order < jnp.min(jnp.where(here & noisy, order, FAR)))
    total = jnp.sum(jnp.where(mine, want, 0.0))
    mine = mine & (total <= w.left)
    (mine,) = w.fence(mine)
    some = jnp.any(mine)
    earliest = jnp.min(jnp.where(mine, w.adm, FAR))
    latest = jnp.max(jnp.where(mine, w.adm, -1))
    w.given = jnp.where(mine, want, w.given)
    w.give_key = jnp.where(mine, w.listed + w.adm - earliest, w.give_key)
    w.considered = jnp.where(mine, w.plan_seq, w.considered)
    w.pick(some, left=w.left - total, listed=w.listed + latest - earliest + 1)
