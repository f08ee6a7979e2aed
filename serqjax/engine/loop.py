"""The compiled loop: many instances advance together until each is done or waits for the host.

One hand-written `while` over the batch with one test, not a vmapped `while` (which would select every array of
finished lanes): a finished or waiting instance is masked inside the turn.

**Source:** `measurements.md`, point 7.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..ir.program import Poisson, Renewal
from ..tape.chacha import uniforms
from ..tape.rounding import quotient
from ..tape.streams import SESSION_OWN, SESSION_WORKLOAD, arrival_seed, machine_seed, sub_seed
from .access import LANES, OneByOne, Together
from .expr import Draws, Env, evaluate
from .lane import RUNNING, Data, Job, Tape
from .plan import Plan
from .step import Config, turn
from .views import rounded_ticks

#: Machine draws kept on the tape between two refills.
MACHINE_AHEAD = 512


def running(state: dict[str, Array]) -> Array:
    """Instances that can go on without the host."""
    return (state["verdict"] == RUNNING) & ~state["stall"] & (state["fault"] == 0)


@functools.lru_cache(maxsize=256)
def loop(plan: Plan, config: Config) -> Callable[..., Any]:
    """`(state, job, data, tape, turns) -> (state, turns done)`, jitted, for a batch on the first axis."""
    run = _together if config.together else _one_by_one
    return jax.jit(functools.partial(run, plan, config), donate_argnums=0)


def _one_by_one(
    plan: Plan, config: Config, state: dict[str, Array], job: Job, data: Data, tape: Tape, turns: Array
) -> tuple[Any, Array]:
    """One instance after the other, each in a loop of its own."""

    def run(args: tuple[dict[str, Array], Job, Tape]) -> tuple[Any, Array]:
        state, job, tape = args

        def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
            s, k = carry
            return turn(plan, config, s, job, data, tape, k < turns, OneByOne()), k + 1

        return lax.while_loop(lambda c: running(c[0]) & (c[1] < turns), body, (state, jnp.int64(0)))

    state, done = lax.map(run, (state, job, tape))
    return state, jnp.sum(done)


def _together(
    plan: Plan, config: Config, state: dict[str, Array], job: Job, data: Data, tape: Tape, turns: Array
) -> tuple[Any, Array]:
    """All instances take each turn together: one `while` with one test, not a vmapped `while` (which would
    select every array of finished instances)."""

    def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        s, k = carry
        go = k < turns
        step = jax.vmap(
            lambda s, j, t: turn(plan, config, s, j, data, t, go, Together()), in_axes=(0, 0, 0), axis_name=LANES
        )
        return step(s, job, tape), k + 1

    return lax.while_loop(lambda c: jnp.any(running(c[0])) & (c[1] < turns), body, (state, jnp.int64(0)))


@functools.lru_cache(maxsize=256)
def refill(plan: Plan, ahead: int) -> Callable[..., Any]:
    """`(numbers, seed, base, machine) -> (gap ticks, draws, machine draws)`, jitted, batched: of the sessions from
    `base` on, and the machine's draws from number `machine` on."""

    def one(numbers: Array, seed: Array, base: Array, machine: Array) -> tuple[Array, Array, Array]:
        serials = base + jnp.arange(ahead, dtype=jnp.int64)
        shared = jnp.zeros((1,))
        if plan.machine_draws:
            shared = uniforms(machine_seed(seed), machine, MACHINE_AHEAD)
        return gaps(plan, ahead, numbers, seed, base), _draws(plan, seed, serials, jnp.int64(1), jnp.int64(0)), shared

    return jax.jit(jax.vmap(one))


def gaps(plan: Plan, ahead: int, numbers: Array, seed: Array, base: Array) -> Array:
    """Ticks between the session before and each of the `ahead` sessions from `base`; -1 where a gap is not positive."""
    arrival = plan.skeleton.arrival
    if not isinstance(arrival, (Poisson, Renewal)):
        return jnp.zeros((ahead,), jnp.int64)
    env = Env(plan, numbers)
    count = plan.gap_draws
    if isinstance(arrival, Poisson):
        first = jnp.maximum(base - 1, 0)
        u = uniforms(arrival_seed(seed), first, ahead)
        # session 0 comes at time 0 and draw n precedes session n + 1
        seconds = quotient(-jnp.log(1.0 - u), env.number(arrival.rate))
        shifted = jnp.concatenate([jnp.zeros((1,)), seconds[:-1]])
        return rounded_ticks(jnp.where(base == 0, shifted, seconds), plan.skeleton.tick_s)
    if not count:
        seconds = jnp.broadcast_to(evaluate(arrival.gap, env), (ahead,))
    else:
        u = uniforms(arrival_seed(seed), base * count, ahead * count).reshape(ahead, count)

        def gap(row: Array) -> Array:
            return evaluate(arrival.gap, Env(plan, numbers, draw=Draws(row, 0).take))

        seconds = jax.vmap(gap)(u)
    return jnp.where(seconds > 0, rounded_ticks(seconds, plan.skeleton.tick_s), -1)


def _draws(plan: Plan, seed: Array, serials: Array, turn_no: Array, own: Array) -> Array:
    """Tape rows of sessions, `[sessions, tape_width]`: init, the turns from `turn_no` on, own draws from `own` on."""
    n = serials.shape[0]
    parts = []
    if plan.init_draws:
        parts.append(uniforms(sub_seed(seed, serials, 0, SESSION_WORKLOAD), 0, plan.init_draws))
    if plan.turns_ahead:
        turns = turn_no + jnp.arange(plan.turns_ahead, dtype=jnp.int64)
        seeds = sub_seed(seed, serials[:, None], turns[None, :], SESSION_WORKLOAD)
        parts.append(uniforms(seeds, 0, plan.turn_draws).reshape(n, -1))
    if plan.own_draws:
        seeds = sub_seed(seed, serials, 0, SESSION_OWN)
        parts.append(uniforms(seeds, jnp.broadcast_to(own, serials.shape), plan.own_draws))
    if not parts:
        return jnp.zeros((n, 1), jnp.float64)
    return jnp.concatenate(parts, axis=1)


@functools.lru_cache(maxsize=256)
def refill_current(plan: Plan) -> Callable[..., Any]:
    """`(state, seed) -> state`: the current session of each waiting instance gets its next draws, jitted, batched."""

    def one(s: dict[str, Array], seed: Array) -> dict[str, Array]:
        slot = jnp.maximum(s["cur"], 0)
        waits = s["stall"] & (s["cur"] >= 0)
        turn_no, own = s["turns"][slot] + 1, s["own"][slot]
        row = _draws(plan, seed, s["serial"][slot][None], turn_no, own)[0]
        at = jnp.where(waits, slot, s["pc"].shape[0])
        return s | {
            "draws": s["draws"].at[at].set(row, mode="drop"),
            "draws_turn": s["draws_turn"].at[at].set(turn_no, mode="drop"),
            "draws_own": s["draws_own"].at[at].set(own, mode="drop"),
        }

    return jax.jit(jax.vmap(one), donate_argnums=0)


@functools.lru_cache(maxsize=256)
def final_needs(plan: Plan) -> Callable[..., Any]:
    """`(state, job, data, tape) -> need [lines, pools]`: what each line's selected hold asks of the pools whose cap it
    exceeds at the end; -1 where it exceeds none."""
    from .admission import Header, select_waiting
    from .lane import Lane
    from .views import cap, round_up

    def one(s: dict[str, Array], job: Job, data: Data, tape: Tape) -> Array:
        w = Lane(s, plan, job, data, tape, jnp.bool_(True), Together())
        needs = []
        for pool in range(len(plan.skeleton.pools)):
            exists, slot = select_waiting(w, pool, pool)
            header = Header(w, slot, None, jnp.int32(-1))
            row = []
            for p in range(len(plan.skeleton.pools)):
                over = jnp.bool_(False)
                if plan.finite[p]:
                    over = exists & header.takes[p] & (round_up(w, p, header.need[p]) > cap(w, p))
                row.append(jnp.where(over, header.need[p], -1.0))
            needs.append(jnp.stack(row))
        return jnp.stack(needs)

    def run(s: dict[str, Array], job: Job, data: Data, tape: Tape) -> Array:
        return jax.vmap(lambda a, b, c: one(a, b, data, c), in_axes=(0, 0, 0), axis_name=LANES)(s, job, tape)

    return jax.jit(run)
