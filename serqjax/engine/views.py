"""What expressions can see: environments of the positions, over the state of one instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from ..ir.fabric import WORK_PARTS
from ..ir.program import Fifo, ProcessorSharing, Step
from ..ir.time import ticks_per_s
from ..tape.rounding import product, quotient, rint
from .access import load_at, load_row
from .blocks import Lookups
from .expr import Draws, Env, evaluate
from .faults import Fault
from .lane import Lane

Value = Any


def cap(w: Lane, pool: int) -> Value:
    """Capacity of a pool, units."""
    return Env(w.plan, w.job.numbers).number(w.plan.skeleton.pools[pool].cap)


def round_up(w: Lane, pool: int, units: Value) -> Value:
    """Units rounded up to whole blocks of the pool."""
    block = w.plan.skeleton.pools[pool].block
    if block is None:
        return units
    size = Env(w.plan, w.job.numbers).number(block)
    return jnp.ceil(quotient(units, size)) * size


def round_down(w: Lane, pool: int, units: Value) -> Value:
    block = w.plan.skeleton.pools[pool].block
    if block is None:
        return units
    size = Env(w.plan, w.job.numbers).number(block)
    return jnp.floor(quotient(units, size)) * size


def seconds(w: Lane, ticks: Value) -> Value:
    """Ticks in seconds, rounded before anything is subtracted from it."""
    span = ticks.astype(jnp.float64)
    per_s = ticks_per_s(w.plan.skeleton.tick_s)
    if per_s:
        return quotient(span, jnp.full_like(span, per_s))
    return product(span, jnp.full_like(span, w.plan.skeleton.tick_s))


def now_s(w: Lane) -> Value:
    return seconds(w, w.now)


def to_ticks(w: Lane, seconds: Value) -> Value:
    """Seconds as ticks, half to even; infinite and huge spans end beyond every horizon."""
    return rounded_ticks(seconds, w.plan.skeleton.tick_s)


def rounded_ticks(seconds: Value, tick_s: float) -> Value:
    """See `to_ticks`."""
    seconds = jnp.asarray(seconds)
    ticks = rint(quotient(seconds, jnp.full_like(seconds, tick_s)))
    return jnp.where(ticks < 2.0**60, ticks, 2.0**60).astype(jnp.int64)


def own_entry(w: Lane, pool: int, slot: Array) -> tuple[Array, Array]:
    """Index and size of a session's cache entry in a pool; -1 and 0 if it has none. `slot` may be a vector."""
    if w.has("legs"):
        return shared_entry(w, pool, slot)
    index = w.entry[pool, jnp.maximum(slot, 0)]
    at = jnp.maximum(index, 0)
    mine = (
        (index >= 0)
        & (slot >= 0)
        & (w.entry_owner[at] == w.serial[jnp.maximum(slot, 0)])
        & (w.entry_pool[at] == pool)
        & (w.entry_size[at] > 0)
    )
    return jnp.where(mine, index, -1), jnp.where(mine, w.entry_size[at], 0.0)


def shared_entry(w: Lane, pool: int, slot: Array) -> tuple[Array, Array]:
    """`own_entry` where a session and its legs share their entries: found by the serial number."""
    serial = jnp.where(slot >= 0, w.serial[jnp.maximum(slot, 0)], -2)
    alive = (w.entry_size > 0) & (w.entry_pool == pool)
    mine = alive & (w.entry_owner == serial[..., None])
    found = jnp.any(mine, axis=-1)
    index = jnp.argmax(mine, axis=-1).astype(jnp.int32)
    return jnp.where(found, index, -1), jnp.where(found, w.entry_size[index], 0.0)


def outstanding(w: Lane, column: Array, slot: Array) -> Value:
    """Units that a hold has reserved and not taken."""
    return jnp.maximum(load_at(w.reserve, column, slot) - load_at(w.alloc, column, slot), 0.0)


def room_taken(w: Lane, pool: int, besides: Value = 0.0) -> Value:
    """What counts against a test for room: units in use and those promised where reserves are held (but `besides`)."""
    return w.used[pool] + (w.promised[pool] - besides) if w.plan.reserving[pool] else w.used[pool]


def leased_units(w: Lane, pool: int, slot: Array) -> Value:
    """Units of a pool in the leases of a session, or of each of a vector of sessions."""
    of_pool = (w.lease_slot >= 0) & (w.lease_pool == pool)
    mine = of_pool & (w.lease_slot == jnp.asarray(slot)[..., None])
    return jnp.sum(jnp.where(mine, w.lease_units, 0.0), axis=-1)


def pool_state(w: Lane, slot: Array | None, lookups: Lookups | None = None) -> Callable[[str, int], Value]:
    """`Used`, `Free`, ... of pools, `CachedIn` and `Allocated` for the session(s) `slot`.

    `lookups`: of the one session, where blocks that are shared by content may be looked up.
    """

    def read(fun: str, pool: int) -> Value:
        match fun:
            case "Used":
                return w.used[pool]
            case "Free":
                return cap(w, pool) - w.used[pool]
            case "Holders":
                return w.holders[pool].astype(jnp.float64)
            case "Queued":
                return w.queued[pool].astype(jnp.float64)
            case "Joined":
                return w.joins[pool].astype(jnp.float64)
            case "CachedIn":
                assert slot is not None
                if pool in w.plan.by_content:
                    assert lookups is not None
                    return lookups.units(pool)
                if not w.plan.caching[pool]:
                    return jnp.float64(0.0)
                return own_entry(w, pool, slot)[1]
            case "Allocated":
                assert slot is not None
                rows = [w.alloc[w.plan.column(d, pool), jnp.maximum(slot, 0)] for d in range(w.plan.depth)]
                total = sum(rows[1:], rows[0])
                return total + leased_units(w, pool, slot) if pool in w.plan.leased else total
        raise TypeError(fun)

    return read


def stage_state(w: Lane, budget_left: Callable[[int], Value] | None = None) -> Callable[[str, int], Value]:
    """`Queue`, `Busy`, `Work`, `BudgetLeft` and the online estimates of stages."""

    def read(fun: str, stage: int) -> Value:
        kind = w.plan.skeleton.stages[stage].kind
        match fun:
            case "Queue":
                return w.number[stage].astype(jnp.float64)
            case "Busy":
                if isinstance(kind, Fifo):
                    return w.busy[stage].astype(jnp.float64)
                if isinstance(kind, Step):
                    return w.stage_listed[stage].astype(jnp.float64)
                return asking(w)[stage].astype(jnp.float64)
            case "Work":
                here = w.stage == stage
                if isinstance(kind, Step):
                    return exact_sum(w.work, here)
                if isinstance(kind, ProcessorSharing):
                    if stage in w.plan.links:
                        here = holds_link(w.links, w.plan.links.index(stage))
                    return exact_sum(jnp.where(w.group >= 0, jnp.maximum(remaining(w), 0.0), w.work), here)
                started = w.wake < (1 << 61)
                if w.has("latent"):
                    started = started & ~w.latent
                return exact_sum(jnp.where(started, seconds(w, w.wake - w.now), w.work), here)
            case "BudgetLeft":
                if budget_left is None:
                    return open_budget(w, stage)
                return budget_left(stage)
            case "EstLambda":
                return estimated_rate(w, stage)
            case "EstRho":
                service = jnp.where(jnp.isnan(w.est_service[stage]), 0.0, w.est_service[stage])
                return jnp.minimum(product(estimated_rate(w, stage), service), 0.99)
            case "EstWait":
                return jnp.where(jnp.isnan(w.est_wait[stage]), 0.0, w.est_wait[stage])
        raise TypeError(fun)

    return read


def asking(w: Lane) -> Value:
    """Jobs on each stage whose latency has passed, `[stages]`."""
    return w.number - w.latents if w.has("latents") else w.number


def holds_link(links: Value, link: int) -> Value:
    """Whether a set of links (a bit mask, or many) holds the one at place `link` of `Plan.links`."""
    return ((links >> link) & 1) == 1


def remaining(w: Lane) -> Value:
    """What is left now of the jobs that share, `[slots]`; anything for the others."""
    passed = w.now - w.share_since[jnp.maximum(w.group, 0)]
    alone = rounded_ticks(quotient(w.work, jnp.where(w.rate > 0.0, w.rate, 1.0)), w.plan.skeleton.tick_s)
    done = (w.rate > 0.0) & (alone <= passed)
    return jnp.where(done, 0.0, w.work - product(w.rate, seconds(w, passed)))


def exact_sum(values: Value, mask: Value) -> Value:
    """A sum over a table that does not depend on the order: whole parts and parts of 2**-46 apart."""
    low = jnp.floor(values)
    whole = jnp.sum(jnp.where(mask, low, 0.0).astype(jnp.int64))
    parts = jnp.sum(jnp.where(mask, rint((values - low) * float(WORK_PARTS)), 0.0).astype(jnp.int64))
    return whole.astype(jnp.float64) + parts.astype(jnp.float64) / WORK_PARTS


def register_state(w: Lane) -> Callable[[str], Value]:
    """Registers of step stages, by name."""
    return lambda name: w.registers[w.plan.register_index[name]]


def estimated_rate(w: Lane, stage: int) -> Value:
    """Jobs a second by the average gap between starts; 0 while there is none, or none above 0."""
    gap = w.est_gap[stage]
    known = gap > 0.0
    return jnp.where(known, quotient(jnp.float64(1.0), jnp.where(known, gap, 1.0)), 0.0)


def memory_held(w: Lane, pool: int) -> Value:
    """Units of a pool in all open holds of each session, `[slots]`."""
    total = w.alloc[pool]
    for depth in range(1, w.plan.depth):
        total = total + w.alloc[w.plan.column(depth, pool)]
    return total


def residents_ctx(w: Lane, stage: int) -> dict[str, Callable[[], Value]]:
    """`Nres`, `Ndec`, `Kvb`, `Kvp` over the residents of a step stage, and `Now`."""
    here = w.stage == stage
    memory = w.plan.stages[stage].memory

    def units(mask: Value) -> Value:
        return jnp.float64(0.0) if memory < 0 else jnp.sum(jnp.where(mask, memory_held(w, memory), 0.0))

    return {
        "Now": lambda: now_s(w),
        "Nres": lambda: w.number[stage].astype(jnp.float64),
        "Ndec": lambda: jnp.sum(here & (w.mode == 1)).astype(jnp.float64),
        "Kvb": lambda: units(here & (w.mode == 1)),
        "Kvp": lambda: units(here & (w.mode == 0)),
    }


def stray(w: Lane, slot: Array | int | None = None) -> Callable[[Value, int], None]:
    """What is to be done where an index is no member of an array: an error of the session `slot`.

    None: rows of a mask over the session table.
    """

    def fail(mask: Value, array: int) -> None:
        mask = jnp.asarray(mask)
        who = slot
        if who is None:
            who = jnp.argmax(mask).astype(jnp.int32) if mask.ndim else -1
        w.fail(jnp.any(mask), Fault.member, who, array)

    return fail


class Limits(NamedTuple):
    """What an iteration may give, tokens.

    `chunk`: most of one prefill (0: no cap). `decode`: most that one decode gets. `verify`: computed for one decode, 0
    for what it gets; None where no stage computes more.
    """

    budget: Value
    chunk: Value
    decode: Value
    verify: Value

    def gets(self, work: Value) -> Value:
        """What a decode gets if the budget lasts."""
        return jnp.minimum(work, self.decode)

    def wanted(self, work: Value, mode: Value) -> Value:
        """What would be computed for a resident if the budget lasted (`mode` 1: it decodes)."""
        decodes, tokens = mode == 1, self.gets(work)
        if self.verify is not None:
            tokens = jnp.where(self.verify > 0, self.verify, tokens)
        return jnp.where(decodes, tokens, jnp.where(self.chunk > 0, jnp.minimum(work, self.chunk), work))


def planned_limits(w: Lane) -> Limits:
    """Of the iteration that is planned."""
    decode = w.decode if w.has("decode") else 1.0
    return Limits(w.budget, w.chunk, decode, w.verify if w.has("verify") else None)


def computed(w: Lane) -> Value:
    """Tokens that the iteration computes for each resident, `[slots]`; no fewer than it is given."""
    return w.computed if w.has("computed") else w.given


def limits(w: Lane, stage: int, draws: Draws | None = None, live: Value = True) -> Limits:
    """Those of a step stage now. `draws`: the machine's, taken where `live`."""
    kind = w.plan.skeleton.stages[stage].kind
    assert isinstance(kind, Step)
    env = Env(
        w.plan, w.job.numbers, ctx=residents_ctx(w, stage), pool=pool_state(w, None), stage=stage_state(w),
        draw=None if draws is None else draws.take, register=register_state(w), stray=stray(w, -1),
    )  # fmt: skip
    budget = at_least_0(evaluate(kind.budget, env, live))
    chunk = jnp.float64(0.0) if kind.chunk is None else at_least_0(evaluate(kind.chunk, env, live))
    decode, verify = 1.0, jnp.float64(0.0) if w.has("verify") else None
    if kind.decode is not None:
        decode = at_least(1.0, evaluate(kind.decode, env, live))
    if kind.verify is not None:
        verify = at_least(decode, evaluate(kind.verify, env, live))
    return Limits(budget, chunk, decode, verify)


def open_budget(w: Lane, stage: int) -> Value:
    """`BudgetLeft` outside admissions: what the residents' wants leave of the budget."""
    now = limits(w, stage)
    return jnp.maximum(0.0, now.budget - jnp.sum(jnp.where(w.stage == stage, now.wanted(w.work, w.mode), 0.0)))


def whole_tokens(tokens: Value) -> Value:
    """Tokens of a decode as its client counts them, int64: a part of one is one."""
    return jnp.maximum(jnp.ceil(tokens - 1e-9), 1.0).astype(jnp.int64)


def has_work(w: Lane, stage: int) -> Value:
    """Whether a step stage has residents, or somebody in a line that it admits."""
    some = w.number[stage] > 0
    for pool in w.plan.stages[stage].admits:
        some = some | (w.queued[pool] > 0)
    return some


class Attributes:
    """A session's attribute vector as scalars, loaded in one row access and stored in another."""

    def __init__(self, w: Lane, slot: Array):
        self.w, self.slot = w, slot
        self.values: list[Value] = list(load_row(w.attr, slot))

    def get(self, name: str) -> Value:
        return self.values[self.w.plan.attr_index[name]]

    def set(self, name: str, value: Value, mask: Value) -> None:
        """Set an attribute where `mask`; nothing if the program does not declare it."""
        index = self.w.plan.attr_index.get(name)
        if index is not None:
            self.values[index] = jnp.where(mask, value, self.values[index])

    def save(self, mask: Value) -> None:
        self.w.put_row("attr", self.slot, self.values, mask)


def columns(w: Lane) -> Callable[[str], Value]:
    """An attribute of every session, `[slots]`."""
    return lambda name: w.attr[:, w.plan.attr_index[name]]


def amount(w: Lane, value: Value, mask: Value, fault: int, slot: Value, place: int) -> Value:
    """An amount of units, tokens or seconds: below -1e-9 or NaN is an error, tiny negatives become 0."""
    w.fail(mask & ~(value >= -1e-9), fault, slot, place)
    return jnp.maximum(value, 0.0)


def at_least(least: Value, value: Value) -> Array:
    """What is less, or not a number, is `least`."""
    return jnp.where(jnp.asarray(value) > least, value, least)


def at_least_0(value: Value) -> Array:
    """Where the reference asks for no amount: what is negative or not a number is 0."""
    return jnp.where(jnp.asarray(value) > 0.0, value, 0.0)
