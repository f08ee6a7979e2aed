"""What eviction keys and spills see of cache entries.

**Source:** `spec/semantics.md`, section 5; oracle: `oracle/pools.py::Pool.entry_look`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from .expr import Env, Value, evaluate
from .holds import innermost
from .lane import Lane
from .views import now_s, pool_state, seconds, stage_state, stray


def eviction_keys(w: Lane, pool: int) -> list[Value]:
    """Keys of all cache entries, `[entries]`."""
    env = entry_env(w, jnp.arange(w.entry_slot.shape[0]), w.entry_size)
    alive = (w.entry_size > 0) & (w.entry_pool == pool)
    return [evaluate(k, env, alive) for k in w.plan.skeleton.pools[pool].evict.keys]


def entry_env(w: Lane, row: Array, size: Value) -> Env:
    """What eviction keys and spills see of a cache entry, or of a vector of them: its live owner, else the snapshot."""
    slot, serial, last = w.entry_slot[row], w.entry_owner[row], w.entry_last[row]
    owner = jnp.maximum(slot, 0)
    live = (w.serial[owner] == serial) & (w.pc[owner] >= 0)
    if w.has("legs"):
        live = live & (w.leg[owner] < 0)
    waiting = live & (w.line[owner] >= 0)

    def attr(name: str) -> Value:
        i = w.plan.attr_index[name]
        return jnp.where(live, w.attr[owner, i], w.entry_attr[row, i])

    def pool(fun: str, p: int) -> Value:
        value = pool_state(w, jnp.where(live, owner, -1))(fun, p)
        if fun != "Allocated":
            return value
        # a live owner without a hold has -0, an entry without a live owner 0; orders tell them apart
        some = w.holds_n[p, owner] > 0 if w.has("holds_n") else innermost(w, None, w.scope, p)[owner] >= 0
        return jnp.where(live, jnp.where(some, value, -0.0), 0.0)

    return Env(
        w.plan,
        w.job.numbers,
        attr=attr,
        ctx={
            "Now": lambda: now_s(w),
            "Size": lambda: size,
            "Age": lambda: seconds(w, w.now - last),
            "Last": lambda: seconds(w, last),
            "Queued": lambda: waiting.astype(jnp.float64),
        },
        pool=pool,
        stage=stage_state(w),
        stray=stray(w, -1),
    )
