"""Spills: evicted units go to the next tier, and a job of nobody moves them.

An eviction that spills leaves its units in `spilled` of the tier. The tier first loses what stands above its cap, one
eviction a loop turn (which may spill further down), then the units join its entry of the same owner.

**Source:** `spec/semantics.md`, section 5; oracle: `oracle/pools.py::Pool.spill`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from .access import FAR, least, load, load_row, pack, store_at
from .clock import ask_service
from .expr import Draws, Env, Value, evaluate
from .faults import Fault
from .lane import Lane
from .uniforms import evict_cursor, evict_drawn
from .views import at_least_0, cap

EPS = 1e-9


def turn(w: Lane, on: Array, pool: Array, deficit: Array) -> tuple[Array, Array, Array]:
    """Whose turn it is: the pool to evict from and what it lacks (-1: none), and the tier that is being spilled into.

    `pool`, `deficit`: what the ask itself lacks; it waits while something is being spilled.
    """
    tier = jnp.int32(-1)
    lacks = jnp.float64(0.0)
    for p in w.plan.tiers:  # the one furthest down comes last, and first in time
        here = on & (w.spilled[p] > 0)
        tier = jnp.where(here, p, tier)
        over = w.used[p] + w.cached[p] - cap(w, p) if w.plan.finite[p] else jnp.float64(0.0)
        lacks = jnp.where(here, over, lacks)
    spilling = tier >= 0
    pool = jnp.where(spilling, jnp.where(lacks > EPS, tier, -1), pool)
    return pool, jnp.where(spilling, lacks, deficit), tier


def spill(w: Lane, env: Env, row: Array, pool: Array, units: Array, on: Array) -> None:
    """Units just removed from entry `row` of `pool` set out for the next tier, if the program says so."""
    plan = w.plan
    for p, tier in enumerate(plan.spills_to):
        spec = plan.skeleton.pools[p].spill
        if spec is None:
            continue
        here = on & (pool == p)
        draws: Draws = evict_cursor(w)
        env.draw = draws.take
        goes = here & (evaluate(spec.when, env, here) != 0.0)
        work = at_least_0(evaluate(spec.work, env, goes))
        if plan.blocks["evict"]:
            w.evict_drawn = evict_drawn(w, draws)
        goes, work = w.fence(goes, work)
        for name, value in (
            ("spilled", units), ("spilled_key", load(w.entry_key, row)), ("spilled_slot", load(w.entry_slot, row)),
            ("spilled_work", work), ("spilled_via", plan.stage(spec.via)),
        ):  # fmt: skip
            w.put(name, jnp.int32(tier), value, goes)
        if w.has("spilled_attr"):
            w.put_row("spilled_attr", jnp.int32(tier), load_row(w.entry_attr, row), goes)
        w.add("spills", p, 1, goes)


def join(w: Lane, on: Array, tier: Array) -> None:
    """What has been spilled joins the entry of its owner in the tier, above the cap if need be; its job starts."""
    on = on & (tier >= 0)
    at = jnp.maximum(tier, 0)
    units, key, slot = load(w.spilled, at), load(w.spilled_key, at), load(w.spilled_slot, at)
    rows = jnp.arange(w.entry_size.shape[0])
    alive = w.entry_size > 0
    there = alive & (w.entry_pool == tier) & (w.entry_key == key)
    found, row = least(pack(jnp.zeros_like(w.entry_seq), rows), there)
    empty, free = least(pack(jnp.zeros_like(w.entry_seq), rows), ~alive)
    fresh = on & (found >= FAR)
    w.fail(fresh & (empty >= FAR), Fault.entries, -1, tier)
    on, fresh = on & (w.fault == 0), fresh & (w.fault == 0)
    on, fresh, row, units = w.fence(on, fresh, jnp.where(found < FAR, row, free), units)
    owner = jnp.maximum(slot, 0)
    live = (key >= 0) & (load(w.serial, owner) == key) & (load(w.pc, owner) >= 0)
    for name, value in (
        ("entry_pool", tier), ("entry_owner", jnp.where(key >= 0, key, -1)), ("entry_slot", slot), ("entry_key", key),
    ):  # fmt: skip
        w.put(name, row, value, fresh)
    if w.has("spilled_attr"):
        w.put_row("entry_attr", row, load_row(w.spilled_attr, at), fresh)
    w.s["entry"] = store_at(w.entry, at, owner, row, fresh & live)
    w.put("entry_size", row, jnp.where(fresh, 0.0, load(w.entry_size, row)) + units, on)
    w.put("entry_last", row, w.now, on)
    w.put("entry_seq", row, w.release_seq, on)
    w.release_seq = w.release_seq + on
    w.add_at("cached", tier, units, on)
    move(w, load(w.spilled_via, at), load(w.spilled_work, at), on)
    w.put("spilled", at, 0.0, on)


def move(w: Lane, via: Array, work: Value, on: Array) -> None:
    """A job of nobody: it takes an empty row of the session tables until it is done."""
    on = on & (work > 0.0)
    w.fail(on & (w.free_n == 0), Fault.slots)
    on = on & (w.free_n > 0)
    on, slot = w.fence(on, load(w.free, jnp.maximum(w.free_n - 1, 0)))
    w.free_n = w.free_n - on
    for name, value in (("serial", -1), ("stage", via), ("work", work), ("entered", w.now)):
        w.put(name, slot, value, on)
    w.add_at("number", via, 1, on)
    ask_service(w, slot, via, work, on)
