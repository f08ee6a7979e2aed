"""Online estimates of a stage: exponential averages of start gaps, services and waits, fed at each completion.

**Source:** `spec/semantics.md`, section 13; oracle: `oracle/stages.py::Estimate`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..tape.rounding import product
from .access import FAR, least, load, pack, store
from .lane import Lane
from .views import seconds

WEIGHT = 0.01
_Averages = tuple[Array, Array, Array, Array]


def mixed(old: Array, new: Array) -> Array:
    """The average after one more value; the first is taken whole."""
    return jnp.where(jnp.isnan(old), new, old + product(jnp.full_like(new, WEIGHT), new - old))


def after(averages: _Averages, start_s: Array, service_s: Array, wait_s: Array) -> _Averages:
    start, gap, service, wait = averages
    gap = jnp.where(jnp.isnan(start), gap, mixed(gap, start_s - start))
    return start_s, gap, mixed(service, service_s), mixed(wait, wait_s)


def read(w: Lane, stage: Array) -> _Averages:
    return load(w.est_start, stage), load(w.est_gap, stage), load(w.est_service, stage), load(w.est_wait, stage)


def write(w: Lane, stage: Array, averages: _Averages, on: Array) -> None:
    for name, value in zip(("start", "gap", "service", "wait"), averages):
        w.put(f"est_{name}", stage, value, on)


def feed(w: Lane, stage: Array, start: Array, waited: Array, served: Array, on: Array) -> None:
    """A job that started at tick `start` has finished; ticks waited and served."""
    place = jnp.maximum(stage, 0)
    write(w, place, after(read(w, place), *(seconds(w, x) for x in (start, served, waited))), on)


def feed_in_list_order(w: Lane, stage: Array, done: Array) -> None:
    """Jobs that an iteration has finished, in the order of its list; they started when they entered."""
    place = jnp.maximum(stage, 0)
    keys = jnp.where(done, pack(w.give_key, jnp.arange(done.shape[0])), FAR)
    zero = jnp.float64(0.0)

    def remain(carry: tuple[Array, _Averages]) -> Array:
        return jnp.min(carry[0]) < FAR

    def one(carry: tuple[Array, _Averages]) -> tuple[Array, _Averages]:
        keys, averages = carry
        _, slot = least(keys)
        entered = load(w.entered, slot)
        averages = after(averages, seconds(w, entered), seconds(w, w.now - entered), zero)
        return store(keys, slot, FAR, jnp.bool_(True)), averages

    _, averages = lax.while_loop(remain, one, (keys, read(w, place)))
    write(w, place, averages, jnp.bool_(True))


__all__ = ["feed", "feed_in_list_order"]
