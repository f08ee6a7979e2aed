"""Which pools a session's holds have taken: static where the program names them, remembered where it computes them.

A hold has a column in the tables `alloc` and `pos` for each pool and depth. Where some hold of the program takes a
computed member of an array, `take` says of each column which take of the scope has it; it is written when the session
joins the line, and stands until the next hold at that depth. Where a hold can be given back before its scope closes,
or can outlive it as a lease, `holding` says of each column whether it is held.

**Source:** `spec/semantics.md`, sections 4 and 15; oracle: `oracle/scopes.py::enter`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .access import load, load_at, lookup, store_at
from .expr import Env
from .faults import Fault
from .lane import Lane


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


def depth_of(w: Lane, scope: Array) -> Array:
    """Depth of a scope, 0 or more."""
    return table(w.plan.scope_table(lambda s: s.depth))[jnp.maximum(scope, 0)]


def take_of(w: Lane, slot: Array, scope: Array, pool: int) -> Array:
    """Which take of the scope has a pool, for a session that holds it or waits for it; -1 where none has."""
    plan = w.plan
    if plan.computed_holds:
        return load_at(w.take, depth_of(w, scope) * len(plan.skeleton.pools) + pool, slot)
    order = np.full((max(1, len(plan.scopes)), len(plan.skeleton.pools)), -1, np.int32)
    for i, s in enumerate(plan.scopes):
        for k, (p,) in enumerate(s.takes):
            order[i, p] = k
    return table(order)[jnp.maximum(scope, 0), pool]


def taken(w: Lane, slot: Array, scope: Array, pool: Array) -> Array:
    """Whether a scope that is open takes a pool (an index that only the run knows), and has not given it back."""
    plan = w.plan
    if w.has("holding"):
        column = depth_of(w, scope) * len(plan.skeleton.pools) + jnp.maximum(pool, 0)
        return jnp.asarray(plan.takes_at)[scope, depth_of(w, scope), jnp.maximum(pool, 0)] & load_at(
            w.holding, column, slot
        )
    if plan.computed_holds:
        return load_at(w.take, depth_of(w, scope) * len(plan.skeleton.pools) + jnp.maximum(pool, 0), slot) >= 0
    takes = np.zeros((max(1, len(plan.scopes)), len(plan.skeleton.pools)), bool)
    for i, s in enumerate(plan.scopes):
        takes[i, list(s.pools)] = True
    return table(takes)[jnp.maximum(scope, 0), jnp.maximum(pool, 0)]


def caches(w: Lane, scope: Array, pool: int, take: Array) -> Array:
    """Whether the take `take` of a scope, which has `pool`, has a cache clause."""
    plan = w.plan
    if not plan.computed_holds:
        keeps = np.zeros((max(1, len(plan.scopes)), len(plan.skeleton.pools)), bool)
        for i, s in enumerate(plan.scopes):
            for spec, p in zip(s.scope.takes, s.pools):
                keeps[i, p] = spec.keep is not None
        return table(keeps)[jnp.maximum(scope, 0), pool]
    most = max(len(s.takes) for s in plan.scopes)
    flat = np.zeros(len(plan.scopes) * most, bool)
    for i, s in enumerate(plan.scopes):
        for k, spec in enumerate(s.scope.takes):
            flat[i * most + k] = spec.keep is not None
    return (take >= 0) & table(flat)[jnp.maximum(scope, 0) * most + jnp.maximum(take, 0)]


def innermost(w: Lane, slot: Array | None, scope: Array, pool: Any) -> Array:
    """Column of the innermost hold of a pool by the innermost open scope (-1: none open); -1 where there is none.

    `slot` None: of every session, `scope` and the result `[slots]`; `pool` is then an int.
    """
    plan = w.plan
    if w.has("holding"):
        column = jnp.full_like(scope, -1).astype(jnp.int32)
        for d in range(plan.depth):
            at = d * len(plan.skeleton.pools) + pool
            held = w.holding[at] if slot is None else load_at(w.holding, jnp.asarray(at, jnp.int32), slot)
            column = jnp.where(jnp.asarray(plan.takes_at)[scope, d, pool] & held, at, column)
        return column.astype(jnp.int32)
    if not plan.computed_holds:
        return jnp.asarray(plan.innermost)[scope, pool]
    depths = jnp.asarray([s.depth for s in plan.scopes] + [-1])[scope]  # -1 reads the last
    column = jnp.full_like(depths, -1).astype(jnp.int32)
    for d in range(plan.depth):
        at = d * len(plan.skeleton.pools) + pool
        take = w.take[at] if slot is None else load_at(w.take, jnp.asarray(at, jnp.int32), slot)
        column = jnp.where((depths >= d) & (take >= 0), at, column)
    return column.astype(jnp.int32)


def outermost(w: Lane, slot: Array, scope: Array, pool: int) -> Array:
    """Whether no scope around `scope` holds a pool too."""
    plan = w.plan
    parents = plan.scope_table(lambda s: s.parent)
    if plan.computed_holds:
        return innermost(w, slot, table(parents)[jnp.maximum(scope, 0)], pool) < 0
    alone = [s.parent < 0 or bool(plan.innermost[s.parent, pool] < 0) for s in plan.scopes] or [True]
    return table(alone)[jnp.maximum(scope, 0)]


def innermost_of(w: Lane, slot: Array, pool: Any) -> Array:
    """Column of the innermost hold that one session has of a pool, -1 for none."""
    return innermost(w, slot, load(w.scope, slot), jnp.maximum(pool, 0))


def count_hold(w: Lane, slot: Array, scope: Array, pool: int, change: int, mask: Array) -> None:
    """A session has one hold (or lease) of a pool more or less: it is a holder while it has one."""
    if not w.has("holding"):
        w.add("holders", pool, change, mask & outermost(w, slot, scope, pool))
        return
    at, slot = jnp.int32(pool), jnp.maximum(slot, 0)
    before = load_at(w.holds_n, at, slot)
    w.s["holds_n"] = store_at(w.holds_n, at, slot, before + change, mask)
    w.add("holders", pool, change, mask & (before + min(change, 0) == 0))


def places(w: Lane, slot: Array, scope: Array, env: Env, on: Array) -> list[Array]:
    """The pool of each take of the scope that a session enters, -1 past the last; the session remembers them.

    An index that is no member, or two takes that name one, are errors of the program.
    """
    plan = w.plan
    if not plan.computed_holds:
        most = max(len(s.takes) for s in plan.scopes)
        rows = [[p for (p,) in s.takes] + [-1] * (most - len(s.takes)) for s in plan.scopes]
        return [table([row[k] for row in rows])[jnp.maximum(scope, 0)] for k in range(most)]
    chosen = [jnp.int32(-1)] * max(len(s.takes) for s in plan.scopes)
    for i, s in enumerate(plan.scopes):
        mine = on & (scope == i)
        for k, (spec, members) in enumerate(zip(s.scope.takes, s.takes)):
            place: Any = members[0]
            if not isinstance(spec.pool, str):
                index = env.member(spec.pool, members, mine)
                place = table(members)[index]
            chosen[k] = jnp.where(scope == i, place, chosen[k]).astype(jnp.int32)
    twice = jnp.bool_(False)
    for k, a in enumerate(chosen):
        for b in chosen[:k]:
            twice = twice | ((a == b) & (a >= 0))
    w.fail(on & twice, Fault.same_member, slot, scope)
    n = len(plan.skeleton.pools)
    take = jnp.full((n,), -1, jnp.int32)
    for k, place in enumerate(chosen):
        take = jnp.where(jnp.arange(n) == place, k, take)
    start = (depth_of(w, scope) * n, jnp.maximum(slot, 0))
    old = lax.dynamic_slice(w.take, start, (n, 1))
    w.s["take"] = lax.dynamic_update_slice(w.take, jnp.where(on, take[:, None], old).astype(jnp.int32), start)
    return chosen
