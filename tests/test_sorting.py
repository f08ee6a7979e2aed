"""Sorting inside the loop, against numpy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from serqjax.engine.access import FAR, OneByOne, Together
from serqjax.engine.livelock import _places
from serqjax.engine.scatter import add_at, min_at, set_at
from serqjax.engine.sorting import order_of


@pytest.mark.parametrize("n", [1, 2, 3, 8, 100, 256])
def test_order_is_that_of_a_stable_sort(n):
    rng = np.random.default_rng(n)
    for keys in (rng.integers(-5, 5, n), rng.integers(0, FAR, n), np.full(n, FAR), np.arange(n)[::-1] - 3):
        keys = np.asarray(keys, np.int64)
        order = jax.jit(order_of)(jnp.asarray(keys))
        assert np.asarray(order).tolist() == np.argsort(keys, kind="stable").tolist()


@pytest.mark.parametrize("lanes", [OneByOne(), Together()], ids=["one_by_one", "together"])
@pytest.mark.parametrize("n", [256, 257, 600])  # each with each, and sorted
def test_places_of_a_fingerprint(n, lanes):
    rng = np.random.default_rng(n)
    sequence, mask = rng.permutation(10 * n)[:n], rng.random(n) < 0.5
    expected = np.full(n, -1)
    expected[mask] = np.argsort(np.argsort(sequence[mask]))
    places = jax.jit(functools.partial(_places, lanes))
    assert np.asarray(places(jnp.asarray(sequence), jnp.asarray(mask))).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_both_ways_to_write_many_elements(seed):
    """As a loop and as a scatter; places past the end write nothing, and a place may come twice."""
    rng = np.random.default_rng(seed)
    table, places = rng.integers(0, 99, (3, 20)), rng.integers(0, 25, 12)
    values = places * 2  # a place that comes twice gets one value
    for write, numpy_write in ((add_at, np.add.at), (min_at, np.minimum.at), (set_at, None)):
        value = 5 if write is add_at else jnp.asarray(values)
        loop, scatter = (
            np.asarray(jax.jit(functools.partial(write, lanes, row=1))(jnp.asarray(table), places=places, **{
                "value" if write is add_at else "values": value}))
            for lanes in (OneByOne(), Together())
        )  # fmt: skip
        expected, inside = table.copy(), places < 20
        if numpy_write is None:
            expected[1, places[inside]] = values[inside]
        else:
            numpy_write(expected[1], places[inside], 5 if write is add_at else values[inside])
        assert loop.tolist() == scatter.tolist() == expected.tolist()
