"""Parts of a hold: units that are computed without a run, and units that are given back before the hold ends.

**Source:** `spec/semantics.md`, section 4; oracle: `oracle/scopes.py::load`, `shrink`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from ..report.raw import Action
from .access import load, load_at, store_at
from .expr import Value
from .faults import Fault
from .holds import innermost_of
from .lane import Lane
from .views import amount, outstanding, round_up


def load_units(w: Lane, pool: int, units: Value, slot: Array, on: Array) -> None:
    """Units of the innermost hold of a pool are computed without a run."""
    units = amount(w, units, on, Fault.bad_units, slot, pool)
    column = innermost_of(w, slot, pool)
    w.fail(on & (column < 0), Fault.no_hold, slot, pool)
    on, at = on & (w.fault == 0), jnp.maximum(column, 0)
    reached = load_at(w.pos, at, slot) + units
    w.fail(on & (reached > load_at(w.alloc, at, slot) + 1e-9), Fault.load, slot, pool)
    w.s["pos"] = store_at(w.pos, at, slot, reached, on)
    w.s["grown"] = store_at(w.grown, at // len(w.plan.skeleton.pools), slot, True, on)


def shrink(w: Lane, pool: int, units: Value, slot: Array, on: Array) -> None:
    """The innermost hold of a pool gives whole blocks back, never what is computed; all lines are tried."""
    column = innermost_of(w, slot, pool)
    w.fail(on & (column < 0), Fault.no_hold, slot, pool)
    on, at = on & (w.fault == 0), jnp.maximum(column, 0)
    alloc, pos = load_at(w.alloc, at, slot), load_at(w.pos, at, slot)
    least_kept = jnp.maximum(round_up(w, pool, jnp.maximum(alloc - units, 0.0)), round_up(w, pool, pos))
    stays = jnp.minimum(alloc, least_kept)
    stays, less, on = w.fence(stays, alloc - stays, on)
    if w.plan.reserving[pool]:
        before = outstanding(w, at, slot)
        w.s["reserve"] = store_at(w.reserve, at, slot, load_at(w.reserve, at, slot) - less, on)
        w.s["alloc"] = store_at(w.alloc, at, slot, stays, on)
        w.add("promised", pool, outstanding(w, at, slot) - before, on)
    else:
        w.s["alloc"] = store_at(w.alloc, at, slot, stays, on)
    w.add("used", pool, -less, on)
    w.act(on & (less > 0.0), Action.release, load(w.serial, slot), pool, less)
    w.pick(on, sweep=0)
