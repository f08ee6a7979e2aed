"""The compiled loop: many instances advance together until each is done or waits for the host.

One hand-written `while` over the batch with one test, not a vmapped `while` (which would select every array of
finished lanes): a finished or waiting instance is masked inside the turn.

**Source:** `measurements.md`, point 7.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from ..native.function import Function
from .access import FAR, LANES, OneByOne, Together
from .lane import Data, Job, Lane, Tape
from .layout import Packed, opened
from .plan import Plan
from .state import RUNNING
from .step import Config, turn
from .xla import compiler_options

#: Said where a new version of JAX traces the engine with an operation that `serqjax.native` does not know.
SLOW = (
    "JAX {version} uses an operation that the engine's own compiler does not know ({error}): XLA compiles the loop, "
    "which takes longer and runs more slowly, with the same results; tell the authors of serqjax, or use an older JAX"
)


def running(state: dict[str, Array]) -> Array:
    """Instances that can go on without the host."""
    return (state["verdict"] == RUNNING) & ~state["stall"] & (state["fault"] == 0)


@functools.lru_cache(maxsize=256)
def loop(plan: Plan, config: Config) -> Callable[..., Any]:
    """`(state, job, data, tape, turns) -> ((state, buffers), turns done)`, jitted, for a batch on the first axis.

    `state` is a `Packed`; the buffers hold what the call has written, with as many rows as the state says. Those of
    native code are in the memory of `state.buffers`, and the next call writes over them.
    """
    if config.form == "native":
        return native_loop(plan, config)
    return xla_loop(plan, config)


def xla_loop(plan: Plan, config: Config) -> Callable[..., Any]:
    """The loop compiled by XLA, all instances together or one by one."""
    run = _together if config.together else _one_by_one
    options = {} if config.together else compiler_options()
    return jax.jit(functools.partial(run, plan, config), compiler_options=options)


def native_loop(plan: Plan, config: Config) -> Callable[..., Any]:
    """The loop of one instance after the other as machine code of our own (`serqjax.native`). Arrays are numpy's; those
    of the state are written over."""

    def one(state: dict[str, Array], each: tuple[Job, Tape], shared: tuple[Data, Array]) -> Any:
        (job, tape), (data, turns) = each, shared

        def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
            s, k = carry
            return turn(plan, config, s, job, data, tape, None, OneByOne()), k + 1

        return lax.while_loop(lambda c: running(c[0]) & (c[1] < turns), body, (opened(state), jnp.int64(0)))

    function = Function(one)

    def run(state: Packed, job: Job, data: Data, tape: Tape, turns: Any) -> tuple[Any, int]:
        layout = state.layout
        arrays = {name: layout.view(state.rows, name) for name, _, _ in layout.arrays}
        if "actions" in state.buffers:
            state.buffers["actions"].fill(0.0)  # rows between the actions stay empty
        done = function(arrays | state.buffers, (job, tape), (data, np.int64(turns)))
        return (state, state.buffers), int(done.sum())

    return or_by_xla(run, xla_loop(plan, dataclasses.replace(config, form="one_by_one")))


def or_by_xla(native: Callable[..., Any], by_xla: Callable[..., Any]) -> Callable[..., Any]:
    """`native`, or `by_xla`, which takes and returns the same, where an operation is not known: it says so."""

    def run(*args: Any) -> Any:
        try:
            return native(*args)
        except NotImplementedError as error:  # before anything has run: the code is made first
            warnings.warn(SLOW.format(error=error, version=jax.__version__), stacklevel=2)
            state, *others = args
            return by_xla(*jax.device_put([dataclasses.replace(state, buffers={}), *others]))

    return run


def _one_by_one(
    plan: Plan, config: Config, state: Packed, job: Job, data: Data, tape: Tape, turns: Array
) -> tuple[Any, Array]:
    """One instance after the other, each in a loop of its own."""
    layout = state.layout

    def run(args: tuple[dict[str, Array], Job, Tape]) -> tuple[Any, Array]:
        rows, job, tape = args

        def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
            s, k = carry
            return turn(plan, config, s, job, data, tape, k < turns, OneByOne()), k + 1

        first = (layout.unpack(rows), jnp.int64(0))
        s, k = lax.while_loop(lambda c: running(c[0]) & (c[1] < turns), body, first)
        return layout.pack(s), k

    (rows, buffers), done = lax.map(run, (state.rows, job, tape))
    return (Packed(rows, layout), buffers), jnp.sum(done)


def _together(
    plan: Plan, config: Config, state: Packed, job: Job, data: Data, tape: Tape, turns: Array
) -> tuple[Any, Array]:
    """All instances take each turn together: one `while` with one test, not a vmapped `while` (which would
    select every array of finished instances)."""
    layout = state.layout

    def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        s, k = carry
        go = k < turns
        step = jax.vmap(
            lambda s, j, t: turn(plan, config, s, j, data, t, go, Together()), in_axes=(0, 0, 0), axis_name=LANES
        )
        return step(s, job, tape), k + 1

    first = (jax.vmap(layout.unpack)(state.rows), jnp.int64(0))
    s, done = lax.while_loop(lambda c: jnp.any(running(c[0])) & (c[1] < turns), body, first)
    rows, buffers = jax.vmap(layout.pack)(s)
    return (Packed(rows, layout), buffers), done


@functools.lru_cache(maxsize=256)
def final_needs(plan: Plan) -> Callable[..., Any]:
    """`(state, job, data, tape) -> need [instances, lines, pools]`: what each line's selected hold asks of the pools
    whose cap it exceeds at the end; -1 where it exceeds none."""
    from .admission import Header, select_waiting
    from .views import cap, round_up

    def one(_: Any, each: tuple[dict[str, Array], Job, Tape], data: Data) -> Any:
        s, job, tape = each
        w = Lane(s, plan, job, data, tape, None, OneByOne())
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
        return (), jnp.stack(needs)

    function = Function(one)

    def native(state: Packed, job: Job, data: Data, tape: Tape) -> np.ndarray:
        rows = jax.tree.map(np.asarray, state.rows)
        arrays = {name: state.layout.view(rows, name) for name, _, _ in state.layout.arrays}
        return function((), (arrays, job, tape), data)

    def by_xla(state: Packed, job: Job, data: Data, tape: Tape) -> Array:
        return jax.vmap(lambda rows, job, tape: one((), (state.layout.unpack(rows), job, tape), data)[1])(
            state.rows, job, tape
        )

    return or_by_xla(native, jax.jit(by_xla))


@functools.lru_cache(maxsize=256)
def final_waits(plan: Plan) -> Callable[..., Any]:
    """`(state, job, data, tape) -> (lacks, holds)`, `[instances, slots, pools]` bool each: the pools in which a waiting
    session lacks room at the end, and those of which a session holds something."""
    from .admission import EPS, Header
    from .holds import innermost
    from .views import cap, room_taken, round_up

    def one(s: dict[str, Array], job: Job, data: Data, tape: Tape) -> tuple[Array, Array]:
        w = Lane(s, plan, job, data, tape, jnp.bool_(True), Together())
        slots = jnp.arange(w.pc.shape[0], dtype=jnp.int32)

        def lacks(slot: Array) -> Array:
            inner = Lane(s, plan, job, data, tape, jnp.bool_(True), Together())
            header = Header(inner, slot, None, jnp.int32(-1))
            row = []
            for p in range(len(plan.skeleton.pools)):
                short = jnp.bool_(False)
                if plan.finite[p]:
                    short = room_taken(inner, p) + round_up(inner, p, header.need[p]) > cap(inner, p) + EPS
                row.append(short & header.takes[p] & (inner.line[slot] >= 0))
            short = jnp.stack(row)
            if not plan.has_leases:
                return short
            # who waits for a lease that expires waits for nobody
            expires = (inner.lease_slot >= 0) & (inner.lease_end < FAR)
            pools = jnp.arange(len(plan.skeleton.pools))
            return short & ~jnp.any(short & jnp.any(expires & (inner.lease_pool == pools[:, None]), axis=1))

        columns = [
            w.holds_n[p] > 0 if w.has("holds_n") else innermost(w, None, w.scope, p) >= 0
            for p in range(len(plan.skeleton.pools))
        ]
        return jax.vmap(lacks)(slots), jnp.stack(columns, axis=1) & (w.pc >= 0)[:, None]

    def run(state: Packed, job: Job, data: Data, tape: Tape) -> tuple[Array, Array]:
        each = jax.vmap(lambda a, b, c: one(state.layout.unpack(a), b, data, c), in_axes=(0, 0, 0), axis_name=LANES)
        return each(state.rows, job, tape)

    return jax.jit(run)
