"""Lines that are admitted at times of their own (`Pool.queue_every`).

When the last event of an instant at which a line is open is settled, everybody who waits there is tried once, in its
order; after each admission everything else that the instant allows happens first.

**Source:** `spec/semantics.md`, section 7; oracle: `oracle/scopes.py::pass_over`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from .access import FAR, SLOT_BITS
from .expr import Env
from .lane import Lane
from .views import to_ticks


def schedule(w: Lane, on: Array) -> None:
    """Where somebody waits and no opening is scheduled: the next whole multiple, strictly later than now."""
    for p in w.plan.timed_lines:
        every = w.plan.skeleton.pools[p].queue_every
        assert every is not None
        period = jnp.maximum(to_ticks(w, Env(w.plan, w.job.numbers).number(every)), 1)
        needs = on & (w.queued[p] > 0) & (w.open_next[p] >= FAR) & ~w.is_open[p]
        w.put("open_next", jnp.int32(p), (w.now // period + 1) * period, needs)
        w.put("open_key", jnp.int32(p), w.event_seq << SLOT_BITS, needs)
        w.event_seq = w.event_seq + needs


def next_opening(w: Lane) -> tuple[Array, Array, Array]:
    """Tick, key and pool of the next opening."""
    tick = jnp.min(w.open_next)
    first = w.open_next == tick
    key = jnp.min(jnp.where(first, w.open_key, FAR))
    return tick, key, jnp.argmax(first & (w.open_key == key)).astype(jnp.int32)


def open_line(w: Lane, pool: Array, on: Array) -> None:
    """The event itself lets nobody in: the end of its instant does."""
    w.put("is_open", pool, True, on)
    w.put("open_next", pool, FAR, on)
    w.put("open_key", pool, FAR, on)


def pass_over(w: Lane, quiet: Array, last: Array) -> Array:
    """One step of passing over the open lines, when the instant is `quiet` and no event is left at it (`last`); whether
    it goes on.

    Asks for the admission of one session (`pass_asks`), or goes to the next line.
    """
    n = len(w.plan.skeleton.pools)
    on = quiet & last & (w.passing < 2 * n)
    pool, begun = w.passing // 2, w.passing % 2 == 1
    line = w.line == pool
    asks = on & begun & jnp.any(line & w.tries)
    following = jnp.int32(n)
    for p in reversed(w.plan.timed_lines):
        following = jnp.where(w.is_open[p] & (p >= pool + begun), p, following)
    moves = on & ~asks
    asks, moves, following = w.fence(asks, moves, following)
    begins = moves & (following < n)
    w.tries = jnp.where(begins, w.line == following, w.tries)
    w.put("is_open", jnp.minimum(following, n - 1), False, begins)
    w.pick(moves, passing=jnp.where(following < n, 2 * following + 1, 2 * n))
    w.pick(asks, pass_asks=True)
    return asks | begins


def may_try(w: Lane, pool: Array, waiting: Array) -> Array:
    """Of those who wait in a line that is being passed over: who has not been tried."""
    passed = (w.passing % 2 == 1) & (w.passing // 2 == pool)
    return waiting & (w.tries | ~passed)


def tried(w: Lane, slot: Array, on: Array) -> None:
    """A session has been tried."""
    w.put("tries", slot, False, on)
    w.pick(on, pass_asks=False)
