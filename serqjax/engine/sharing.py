"""Jobs that share a capacity: who is served how fast, and who finishes next.

The jobs of an unshared processor-sharing stage are a *group*; the flows over shared stages (links) are one
more, the last. A job has its remaining work (`work`) and a rate, which hold since the group's `share_since`; where
a group has changed they are brought up to now once an instant, before the next event: `settle`. The arithmetic, and
the rule that a job whose own finish rounds to a tick that has come has nothing left, are the oracle's.

**Source:** `spec/semantics.md`, section 9; oracle: `oracle/sharing.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..ir.program import ProcessorSharing
from ..tape.rounding import quotient
from .access import FAR, SLOT_BITS, load, lookup
from .expr import Env, Value, evaluate
from .faults import Fault
from .flows import flow_rates
from .lane import Lane
from .state import EVENT, SETTLE
from .uniforms import machine_cursor, machine_drawn, machine_ready
from .views import holds_link, now_s, pool_state, remaining, rounded_ticks, stage_state, stray

#: A finish that is so many ticks away never comes.
NEVER_TICK = 1 << 60


def group_at(w: Lane, stage: Array) -> Array:
    """The group of the jobs on a stage, -1 where they share nothing."""
    return lookup(np.asarray(w.plan.group_of_stage, np.int32), jnp.maximum(stage, 0))


def join(w: Lane, slot: Array, stage: Array, mask: Array) -> None:
    """A job asks for its share; it gets one when the instant settles."""
    group = group_at(w, stage)
    w.put("group", slot, group, mask)
    w.put("rate", slot, 0.0, mask)
    changes(w, group, mask)


def leave(w: Lane, slot: Array, mask: Array) -> None:
    """A job has finished, or is taken away."""
    group = load(w.group, slot)
    w.put("group", slot, -1, mask)
    w.put("rate", slot, 0.0, mask)
    changes(w, group, mask & (group >= 0))


def changes(w: Lane, group: Array, mask: Array) -> None:
    hot = (jnp.arange(w.share_changed.shape[0]) == group) & mask
    w.share_changed = w.share_changed | hot


def due(w: Lane, group: Array, mask: Array) -> Array:
    """The job whose finish is due in a group; nothing else is scheduled there before the instant settles."""
    at = jnp.maximum(group, 0)
    slot = jnp.argmax((w.group == group) & (w.job_number == w.share_next[at])).astype(jnp.int32)
    hot = (jnp.arange(w.share_end.shape[0]) == group) & mask
    w.share_end = jnp.where(hot, FAR, w.share_end)
    w.share_key = jnp.where(hot, FAR, w.share_key)
    return slot


# ---------------------------------------------------------------- one job on several stages


def count(w: Lane, name: str, slot: Array, stage: Array, value: Value, mask: Array) -> None:
    """Add to a count of the stages that a session's job is on."""
    on_stages(w, slot, stage, mask, lambda place, on: w.add_at(name, place, value, on))


def on_stages(w: Lane, slot: Array, stage: Array, mask: Array, act: Callable[[Array, Array], None]) -> None:
    """`act(stage, mask)` for each stage that a session's job is on."""
    if not w.has("links"):
        act(stage, mask)
        return
    held = load(w.links, slot)
    act(stage, mask & (held == 0))
    for link, shared in enumerate(w.plan.links):
        act(jnp.int32(shared), mask & holds_link(held, link))


# ---------------------------------------------------------------- when the set of jobs has changed


def settle(w: Lane) -> None:
    """Find the rates of all groups that have changed, and who finishes next in each."""
    plan = w.plan
    on = quiet(w) & any_changed(w)
    if plan.capacity_draws:
        on = on & machine_ready(w)  # else in the next turn, with new draws
    here = w.group[None, :] == jnp.arange(plan.groups)[:, None]
    changed = w.share_changed & on
    touched = jnp.any(here & changed[:, None], axis=0)
    w.work = jnp.where(touched, remaining(w), w.work)
    w.share_since = jnp.where(changed, w.now, w.share_since)
    numbers = jnp.sum(here, axis=1)
    rate = w.rate
    draws = machine_cursor(w)
    for group, stage in enumerate(plan.sharers):
        kind = plan.skeleton.stages[stage].kind
        assert isinstance(kind, ProcessorSharing)
        n = numbers[group].astype(jnp.float64)
        asks = changed[group] & (numbers[group] > 0)
        env = Env(
            plan, w.job.numbers, ctx={"N": lambda n=n: n, "Now": lambda: now_s(w)}, pool=pool_state(w, None),
            stage=stage_state(w), draw=draws.take, stray=stray(w, -1),
        )  # fmt: skip
        capacity = evaluate(kind.capacity, env, asks)
        w.fail(asks & ~jnp.isfinite(capacity), Fault.capacity, -1, stage)
        rate = jnp.where(here[group] & changed[group], quotient(capacity, n), rate)
    w.drawn = machine_drawn(w, draws)
    if plan.links:
        flows, loads = flow_rates(w, here[-1])
        rate = jnp.where(here[-1] & changed[-1], flows, rate)
        w.load = jnp.where(changed[-1], loads, w.load)
    (rate,) = w.fence(rate)
    w.rate = rate
    # the least rest over rate finishes first; of equal ones the job that came first
    wait = jnp.where(here & (rate > 0.0), quotient(w.work, jnp.where(rate > 0.0, rate, 1.0)), jnp.inf)
    least = jnp.min(wait, axis=1)
    first = jnp.min(jnp.where(here & (wait == least[:, None]), w.job_number, FAR), axis=1)
    ticks = rounded_ticks(jnp.maximum(least, 0.0), plan.skeleton.tick_s)
    comes = ticks < NEVER_TICK
    old = w.share_end
    keys = (w.event_seq + jnp.arange(plan.groups)) << SLOT_BITS
    w.share_end = jnp.where(changed, jnp.where(comes, w.now + ticks, FAR), old)
    w.share_key = jnp.where(changed, jnp.where(comes, keys, FAR), w.share_key)
    w.share_next = jnp.where(changed, jnp.where(comes, first, FAR), w.share_next)
    w.event_seq = w.event_seq + jnp.where(on, plan.groups, 0)
    # a finish that was due now and is overtaken still holds up the iterations of this instant: they start after it
    overtaken = jnp.any(changed & (old <= w.now) & (w.share_end > w.now))
    w.pick(overtaken, focus=SETTLE, dirty=True)
    w.share_changed = w.share_changed & ~changed


def any_changed(w: Lane) -> Array:
    return jnp.any(w.share_changed)


def quiet(w: Lane) -> Array:
    """Whether everything of this instant is done but for the rates of groups that have changed."""
    return w.idle & w.started & (w.focus == EVENT) & (w.spawning == 0) & (w.cur < 0)

