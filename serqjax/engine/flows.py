"""Rates of flows over shared stages: progressive filling and bottlenecks, and the loads they put on the links.

**Source:** `spec/semantics.md`, section 9; oracle: `oracle/sharing.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..ir.fabric import PARTS
from ..ir.program import ProcessorSharing
from ..tape.rounding import product, quotient, rint
from .expr import Env, evaluate
from .lane import Lane
from .views import holds_link


def flow_rates(w: Lane, flows: Array) -> tuple[Array, Array]:
    """Rate of every flow `[slots]`, and the load of every link `[links]` in parts of its capacity.

    **Arguments:** `flows`: sessions whose job is a flow that asks for its share, `[slots]`.
    """
    plan = w.plan
    env = Env(plan, w.job.numbers)
    capacity = []
    for stage in plan.links:
        kind = plan.skeleton.stages[stage].kind
        assert isinstance(kind, ProcessorSharing)
        capacity.append(jnp.asarray(evaluate(kind.capacity, env), jnp.float64))
    over = jnp.stack([holds_link(w.links, link) for link in range(len(plan.links))]) & flows
    rate, loads = jnp.zeros_like(w.work), [jnp.float64(0.0)] * len(plan.links)
    for share, solve in (("MaxMin", max_min), ("Bottleneck", bottleneck)):
        mine = [k for k, stage in enumerate(plan.links) if plan.share_of[stage] == share]
        if not mine:
            continue
        rows = jnp.stack([over[k] for k in mine])
        rates, used = solve(rows, jnp.stack([capacity[k] for k in mine]))
        rate = jnp.where(jnp.any(rows, axis=0), rates, rate)
        for place, k in enumerate(mine):
            loads[k] = used[place]
    parts = rint(quotient(jnp.stack(loads), jnp.stack(capacity)) * float(PARTS))
    return rate, parts.astype(jnp.int64)


def max_min(over: Array, capacity: Array) -> tuple[Array, Array]:
    """Progressive filling: all flows rise together until a link is full; its flows stay there, the others rise on.

    **Arguments:** `over` `[links, slots]`: who flows over which link; `capacity` `[links]`.

    **Returns:** rates `[slots]`, rates in use `[links]`.
    """

    def rises(carry: tuple[Array, ...]) -> Array:
        return jnp.any(carry[1])

    def fill(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        left, rising, rate, used = carry
        count = jnp.sum(over & rising, axis=1)
        shares = jnp.where(count > 0, quotient(left, jnp.maximum(count, 1).astype(jnp.float64)), jnp.inf)
        full = jnp.argmin(shares)  # of equal ones the first
        share = shares[full]
        frozen = rising & over[full]
        taken = product(jnp.broadcast_to(share, left.shape), jnp.sum(over & frozen, axis=1).astype(jnp.float64))
        return left - taken, rising & ~frozen, jnp.where(frozen, share, rate), used + taken

    nothing = jnp.zeros_like(capacity)
    some = jnp.any(over, axis=0)
    start = (capacity, some, jnp.zeros(some.shape, jnp.float64), nothing)
    _, _, rate, used = lax.while_loop(rises, fill, start)
    return rate, used


def bottleneck(over: Array, capacity: Array) -> tuple[Array, Array]:
    """Every flow gets the least of what its links would give to each of theirs. See `max_min`."""
    count = jnp.sum(over, axis=1)
    shares = jnp.where(count > 0, quotient(capacity, jnp.maximum(count, 1).astype(jnp.float64)), 0.0)
    offers = jnp.where(over, shares[:, None], jnp.inf)
    least = jnp.min(offers, axis=0)
    rate = jnp.where(jnp.isinf(least), 0.0, least)
    limit = jnp.argmin(offers, axis=0)
    used = jnp.zeros_like(capacity)
    for link in range(capacity.shape[0]):
        limited = jnp.sum(over & (limit == link), axis=1).astype(jnp.float64)
        used = used + product(jnp.broadcast_to(shares[link], limited.shape), limited)
    return rate, used
