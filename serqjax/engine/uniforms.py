"""Random draws on demand: blocks of 8 uniforms that an instance keeps at hand, computed in the loop when needed.

A draw is addressed by stream and number (`serqjax/tape`), so nothing is drawn ahead and nothing waits for the host.
Once a turn, before a session runs, `draw_ahead` looks which blocks this turn or the next can need and computes those
alone; all of them share one traced generator. `Plan.blocks` says which block is for what.

**Source:** `spec/semantics.md`, section 10; `design.md`, section 4.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from ..ir.program import Poisson, Renewal
from ..tape.chacha import DRAWS_PER_BLOCK, block_uniform_scalars, block_uniforms
from ..tape.rounding import quotient
from ..tape.streams import (
    LEG,
    SESSION_OWN,
    SESSION_WORKLOAD,
    arrival_seed,
    eviction_seed,
    machine_seed,
    sub_seed,
)
from .access import AbstractTable, Together, any_of, choose, load, lookup
from .expr import Draws, Env, Value, evaluate
from .lane import Lane
from .passes import may_reach
from .plan import SESSIONS_AHEAD, Plan
from .views import rounded_ticks

SHIFT = DRAWS_PER_BLOCK.bit_length() - 1


def cursor(w: Lane, what: str, at: Value = 0) -> Draws:
    """A cursor over the uniforms kept for `what`, from place `at` on; where there are none it must not be read."""
    if not w.has("uniform"):
        return Draws(jnp.zeros((1,)), jnp.int64(0))
    return Draws(w.uniform, jnp.asarray(w.plan.blocks[what].start * DRAWS_PER_BLOCK + at, jnp.int64))


def turn_cursor(w: Lane, k: int, serial: Array) -> Draws:
    """The uniforms of the `k`-th `Turn` of a pass of a session."""
    each = -(-w.plan.turn_draws // DRAWS_PER_BLOCK) * DRAWS_PER_BLOCK
    if w.plan.one_turn:
        return cursor(w, "turn", jnp.clip(serial - w.turn_for, 0, SESSIONS_AHEAD - 1) * each)
    return cursor(w, "turn", k * each)


def sessions_ahead(w: Lane) -> int:
    """Of how many sessions the draws of their only turn are computed at once, where that saves something: in vector
    registers of a core. Where instances run together they fill the registers themselves."""
    together = isinstance(w.lanes, Together) or isinstance(w.uniform, AbstractTable)
    return 1 if together else SESSIONS_AHEAD


def first_turn_ready(w: Lane, slot: Array) -> Array:
    """Whether the draws of a session's only turn are at hand."""
    ahead = load(w.serial, slot) - w.turn_for
    return (load(w.turns, slot) == 0) & (ahead >= 0) & (ahead < sessions_ahead(w))


def machine_cursor(w: Lane) -> Draws:
    """The next draws that no session makes."""
    return cursor(w, "machine", w.drawn - (w.machine_block << SHIFT)) if w.plan.machine_draws else cursor(w, "machine")


def machine_drawn(w: Lane, draws: Draws) -> Array:
    """Machine draws made, from a cursor of `machine_cursor`."""
    if not w.plan.machine_draws:
        return w.drawn
    return draws.at - w.plan.blocks["machine"].start * DRAWS_PER_BLOCK + (w.machine_block << SHIFT)


def evict_cursor(w: Lane) -> Draws:
    """The next draws of evictions."""
    return cursor(w, "evict", w.evict_drawn - (w.evict_block << SHIFT)) if w.plan.evict_draws else cursor(w, "evict")


def evict_drawn(w: Lane, draws: Draws) -> Array:
    """Draws of evictions made, from a cursor of `evict_cursor`."""
    return draws.at - w.plan.blocks["evict"].start * DRAWS_PER_BLOCK + (w.evict_block << SHIFT)


def evict_ready(w: Lane) -> Array:
    """Whether all draws that a spill can need are at hand."""
    return covered(w.plan, "evict", w.evict_block, w.evict_drawn, w.plan.evict_draws)


def machine_ready(w: Lane) -> Array:
    """Whether all draws that the next iteration can need are at hand."""
    return covered(w.plan, "machine", w.machine_block, w.drawn, w.plan.machine_draws)


def covered(plan: Plan, what: str, block: Array, first: Array, count: int) -> Array:
    """Whether the window of `what`, which begins with `block`, holds `count` draws from number `first` on."""
    last = (first + (count - 1)) >> SHIFT
    return (block >= 0) & ((first >> SHIFT) >= block) & (last < block + len(plan.blocks[what]))


def next_gap(w: Lane) -> tuple[Array, Array]:
    """Which session's gap is needed next, and the number of its first draw."""
    session = w.arrived + w.started
    if isinstance(w.plan.skeleton.arrival, Poisson):
        return session, jnp.maximum(session - 1, 0)  # session 0 comes at time 0
    return session, session * w.plan.gap_draws


def draw_ahead(w: Lane, on: Array) -> None:
    """Have ready what the current session's pass (where `on`), the next spawn, arrival and iteration draw."""
    plan, asks = w.plan, {}
    where = jnp.maximum(load(w.pc, w.cur), 0)
    if plan.blocks["turn"]:
        asks["turn"] = on & lookup(may_reach(plan, plan.turn_ops), where)
        if plan.one_turn:
            asks["turn"] = asks["turn"] & ~first_turn_ready(w, jnp.maximum(w.cur, 0))
    if plan.blocks["own"]:
        asks["own"] = on & lookup(may_reach(plan, plan.state_draws), where)
    if plan.blocks["init"]:
        asks["init"] = w.init_for != w.arrived
    if plan.open_arrivals:
        asks["gap"] = w.gap_for != next_gap(w)[0]
    if plan.blocks["machine"]:
        asks["machine"] = ~machine_ready(w)
    if plan.blocks["evict"]:
        asks["evict"] = ~evict_ready(w)
    if not asks:
        return
    w.only(any_of(list(asks.values())), lambda w: fill(w, asks))


def fill(w: Lane, asks: dict[str, Array]) -> None:
    """Compute the blocks that are asked for, and the next gap."""
    plan, seed = w.plan, w.job.seed
    slot = jnp.maximum(w.cur, 0)
    serial = load(w.serial, slot)
    gap_session, gap_draw = next_gap(w)
    places: list[int] = []
    masks: list[Array] = []
    streams: list[Array] = []
    numbers: list[Array] = []

    def want(what: str, mask: Array, stream: Array, block: Value) -> None:
        """`block` of a stream for the next place of `what`."""
        places.append(plan.blocks[what].start + sum(place in plan.blocks[what] for place in places))
        masks.append(mask)
        streams.append(stream)
        numbers.append(jnp.asarray(block, jnp.int64).astype(jnp.uint64))

    for what, blocks in plan.blocks.items():
        if not blocks:
            continue
        if what == "init":
            stream = sub_seed(seed, w.arrived, 0, SESSION_WORKLOAD)
            for k in range(len(blocks)):
                want(what, asks[what], stream, k)
            w.pick(asks[what], init_for=w.arrived)
        elif what == "turn" and plan.one_turn:
            _first_turns(w, asks[what], slot, serial, want)
        elif what == "turn":
            each = -(-plan.turn_draws // DRAWS_PER_BLOCK)
            for k in range(max(plan.turn_ops)):
                stream = sub_seed(seed, serial, load(w.turns, slot) + (1 + k), SESSION_WORKLOAD)
                for j in range(each):
                    want(what, asks[what], stream, j)
        elif what == "own":
            stream = sub_seed(seed, serial, *own_stream(w, slot))
            first = load(w.own, slot) >> SHIFT
            for k in range(len(blocks)):
                want(what, asks[what], stream, first + k)
        elif what == "gap":
            stale = asks[what] & ~covered(plan, what, w.gap_block, gap_draw, plan.gap_draws)
            for k in range(len(blocks)):
                want(what, stale, arrival_seed(seed), (gap_draw >> SHIFT) + k)
            w.pick(stale, gap_block=gap_draw >> SHIFT)
        elif what == "evict":
            for k in range(len(blocks)):
                want(what, asks[what], eviction_seed(seed), (w.evict_drawn >> SHIFT) + k)
            w.pick(asks[what], evict_block=w.evict_drawn >> SHIFT)
        else:
            for k in range(len(blocks)):
                want(what, asks[what], machine_seed(seed), (w.drawn >> SHIFT) + k)
            w.pick(asks[what], machine_block=w.drawn >> SHIFT)
    if masks:
        w.s["uniform"] = compute(w.uniform, places, masks, streams, numbers)
    if plan.open_arrivals:
        w.pick(asks["gap"], gap=gap_ticks(w, gap_session, gap_draw), gap_for=gap_session)


def _first_turns(
    w: Lane, mask: Array, slot: Array, serial: Array, want: Callable[[str, Array, Array, Value], None]
) -> None:
    """The blocks of a session's only turn and of the sessions after it."""
    plan, ahead = w.plan, sessions_ahead(w)
    each = -(-plan.turn_draws // DRAWS_PER_BLOCK)
    turn = load(w.turns, slot) + 1
    w.pick(mask, turn_for=serial)
    if ahead == 1:
        for k in range(each):
            want("turn", mask, sub_seed(w.job.seed, serial, turn, SESSION_WORKLOAD), k)
        return
    start = plan.blocks["turn"].start * DRAWS_PER_BLOCK

    def new(held: Array) -> Array:
        sessions = jnp.arange(ahead, dtype=jnp.int64)
        streams = sub_seed(w.job.seed, serial + sessions, turn + jnp.zeros_like(sessions), SESSION_WORKLOAD)
        rows = [x for k in range(each) for x in block_uniform_scalars(streams, jnp.full_like(streams, k))]
        return lax.dynamic_update_slice(held, jnp.stack(rows, axis=1).reshape(-1), (start,))

    w.s["uniform"] = lax.cond(mask, new, lambda held: held, w.uniform)


def own_stream(w: Lane, slot: Array) -> tuple[Value, Value]:
    """Number and kind of the stream of a session's or a leg's own statements."""
    if not w.has("leg"):
        return 0, SESSION_OWN
    leg = load(w.leg, slot)
    return jnp.maximum(leg, 0), jnp.where(leg >= 0, LEG, SESSION_OWN)


def compute(uniform: Array, places: list[int], masks: list[Array], streams: list[Array], numbers: list[Array]) -> Array:
    """The uniforms with the blocks at those places replaced that a mask asks for; the generator is traced once."""
    first, end = np.int32(0), np.int32(len(masks))
    starts = [np.int32(place * DRAWS_PER_BLOCK) for place in places]
    if isinstance(uniform, AbstractTable):

        def each(i: Array, carry: tuple[()]) -> tuple[()]:
            def fresh() -> None:
                for k, value in enumerate(block_uniform_scalars(choose(streams, i), choose(numbers, i))):
                    uniform.store((choose(starts, i) + k,), value, True)

            lax.cond(choose(masks, i), fresh, lambda: None)
            return carry

        lax.fori_loop(first, end, each, ())
        return uniform
    stream, number, mask = jnp.stack(streams), jnp.stack(numbers), jnp.stack(masks)

    def one(i: Array, held: Array) -> Array:
        def new(held: Array) -> Array:
            values = block_uniforms(load(stream, i), load(number, i))
            return lax.dynamic_update_slice(held, values, (choose(starts, i),))

        return lax.cond(load(mask, i), new, lambda held: held, held)

    return lax.fori_loop(first, end, one, uniform)


def gap_ticks(w: Lane, session: Array, first: Array) -> Array:
    """Ticks between the session before and `session`; -1 where a renewal gap is not positive."""
    arrival, tick_s = w.plan.skeleton.arrival, w.plan.skeleton.tick_s
    draws = cursor(w, "gap", first - (w.gap_block << SHIFT)) if w.plan.gap_draws else cursor(w, "gap")
    env = Env(w.plan, w.job.numbers, draw=draws.take)
    if isinstance(arrival, Poisson):
        seconds = quotient(-jnp.log(1.0 - draws.take(1, True)[0]), env.number(arrival.rate))
        return jnp.where(session == 0, 0, rounded_ticks(seconds, tick_s))
    assert isinstance(arrival, Renewal)
    seconds = jnp.asarray(evaluate(arrival.gap, env))
    return jnp.where(seconds > 0, rounded_ticks(seconds, tick_s), -1)
