"""Seats: the first rows of the session tables, where all sessions on step stages sit.

What happens to a batch happens to all its residents at once, row by row over a table. Most live sessions may be waiting
or thinking, so residents are kept together in the first rows and the batch looks at those alone (`Lane.residents`). A
session that is about to enter a step stage from another row changes places with one that is on none.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..ir.program import Run
from .access import FAR, SLOT_BITS, least, load, load_at, pack, store
from .clock import find_next_wake
from .faults import Fault
from .lane import Lane
from .passes import may_reach
from .plan import Plan
from .session import runs
from .state import session_axes

#: Keys that name their row in the low bits.
KEYS = ("ready", "wake_key", "line_seq", "line_key", "waits_key", "deadline_key")


def runs_on_step_stage(plan: Plan) -> tuple[int, ...]:
    """1 for each state whose exit enters a step stage."""
    found = []
    for state in plan.states:
        run = state.exit
        found.append(int(isinstance(run, Run) and any(s in plan.step_stages for s in plan.stages_of(run.stage))))
    return tuple(found)


def needs_seat(w: Lane) -> Array:
    """Whether the session that runs now may enter a step stage and has no seat."""
    if not w.has("seats"):
        return jnp.bool_(False)
    reaches = jnp.asarray(may_reach(w.plan, runs_on_step_stage(w.plan)))
    return runs(w) & (w.cur >= w.seats.shape[0]) & reaches[jnp.maximum(load(w.pc, w.cur), 0)]


def take_seat(w: Lane) -> None:
    """The current session changes places with one in the first rows that is on no step stage, or with an empty row."""
    on = needs_seat(w)
    seats = w.seats.shape[0]
    stays = jnp.zeros((seats,), bool)
    for stage in w.plan.step_stages:
        stays = stays | (w.stage[:seats] == stage)
    place = jnp.arange(seats)
    key, seat = least(pack(jnp.zeros((seats,), jnp.int64), place), ~stays)
    w.fail(on & (key >= FAR), Fault.seats)
    on, old, seat = w.fence(on & (key < FAR), w.cur, seat)
    empty = load(w.pc, seat) < 0
    for name, axis in session_axes(w.plan).items():
        if w.has(name):
            w.s[name] = swap(w.s[name], old, seat, axis, on)
    for name in KEYS:
        if w.has(name):
            for row in (old, seat):
                key = load(w.s[name], row)
                named = ((key >> SLOT_BITS) << SLOT_BITS) | row.astype(jnp.int64)
                w.s[name] = store(w.s[name], row, named, on & (key < FAR))
    if w.has("wake"):
        find_next_wake(w)
    for pool, caches in enumerate(w.plan.caching):
        if caches and not w.has("legs"):
            for row in (old, seat):
                entry = load_at(w.entry, jnp.int32(pool), row)
                mine = (entry >= 0) & (load(w.entry_owner, entry) == load(w.serial, row))
                mine &= load(w.entry_pool, entry) == pool
                w.put("entry_slot", entry, row, on & mine)
    if w.has("legs"):
        for name in ("root", "entry_slot"):
            if w.has(name):
                rows = w.s[name]
                moved = jnp.where(rows == old, seat, jnp.where(rows == seat, old, rows))
                w.s[name] = jnp.where(on, moved, rows)
    if w.has("lease_slot"):
        moved = jnp.where(w.lease_slot == old, seat, jnp.where(w.lease_slot == seat, old, w.lease_slot))
        w.lease_slot = jnp.where(on, moved, w.lease_slot)
    # the empty row is somewhere on the stack of free ones
    w.free = jnp.where(on & empty & (w.free == seat), old, w.free)
    w.pick(on, cur=seat)


def swap(table: Array, a: Array, b: Array, axis: int, on: Array) -> Array:
    """The table with rows a and b (columns, for axis 1) exchanged where `on`."""

    def part(i: Array) -> Array:
        return lax.dynamic_slice_in_dim(table, i, 1, axis)

    first, second = part(a), part(b)
    new = lax.dynamic_update_slice_in_dim(table, jnp.where(on, second, first), a, axis)
    return lax.dynamic_update_slice_in_dim(new, jnp.where(on, first, second), b, axis)
