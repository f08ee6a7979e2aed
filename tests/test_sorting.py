"""Sorting inside the loop, against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from serqjax.engine.access import FAR
from serqjax.engine.livelock import _places
from serqjax.engine.sorting import order_of


@pytest.mark.parametrize("n", [1, 2, 3, 8, 100, 256])
def test_order_is_that_of_a_stable_sort(n):
    rng = np.random.default_rng(n)
    for keys in (rng.integers(-5, 5, n), rng.integers(0, FAR, n), np.full(n, FAR), np.arange(n)[::-1] - 3):
        keys = np.asarray(keys, np.int64)
        order = jax.jit(order_of)(jnp.asarray(keys))
        assert np.asarray(order).tolist() == np.argsort(keys, kind="stable").tolist()


def test_places_are_no_obstacle_to_one_function():
    """XLA cannot make one function of a loop with a scatter or a sort: all of it would run operation by operation."""
    keys = jnp.zeros((512,), jnp.int64)
    compiled = jax.jit(_places).lower(keys, keys == 0).compile().as_text()
    assert compiled is not None and " scatter(" not in compiled and " sort(" not in compiled


@pytest.mark.parametrize("n", [256, 257, 600])  # each with each, and sorted
def test_places_of_a_fingerprint(n):
    rng = np.random.default_rng(n)
    sequence, mask = rng.permutation(10 * n)[:n], rng.random(n) < 0.5
    expected = np.full(n, -1)
    expected[mask] = np.argsort(np.argsort(sequence[mask]))
    assert np.asarray(jax.jit(_places)(jnp.asarray(sequence), jnp.asarray(mask))).tolist() == expected.tolist()
