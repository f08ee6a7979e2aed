"""The way to the bottom: principal directions, steps that ridges do not cut short, and descents that are taken back."""

from __future__ import annotations

import numpy as np
import pytest

from serqjax.fit.optimisers import Space
from serqjax.fit.polish import BOTTOM, WIDEST, Polish
from serqjax.fit.surface import Noise, Scored, Surface, Weights, as_before_the_fit, principal

KINDS = np.repeat([0, 1], 60)
SPACE = Space.of({name: (1e-3, 1e3) for name in ("base", "decode", "kv")})


@pytest.mark.parametrize(("candidates", "rows"), [(12, 40), (40, 12)])
def test_principal_directions_are_those_of_the_singular_values(candidates, rows):
    jumps = np.random.default_rng(0).standard_normal((candidates, rows))
    jumps[:, 5] = 0.0
    strength, directions = principal(jumps)
    expected = np.sort(np.linalg.svd(jumps, compute_uv=False) ** 2)
    assert np.sort(strength) == pytest.approx(expected[expected > 1e-9])
    assert directions @ directions.T == pytest.approx(np.eye(len(directions)), abs=1e-9)
    assert (directions.T * strength) @ directions == pytest.approx(jumps.T @ jumps, abs=1e-9)
    assert len(principal(np.zeros((5, 8)))[0]) == 0


def descent(slope, goal, spread, losses=None):
    """The end of a descent on residuals that are linear around `goal`, and what was told."""
    told: list[str] = []

    def score(points):
        residuals = (points - goal) @ slope.T + 1e-3 * np.random.default_rng(1).standard_normal(len(slope))
        found = np.sqrt((residuals**2).mean(axis=1)) if losses is None else losses(points)
        return Scored(points, residuals, found)

    polish = Polish(score, SPACE, KINDS, 0, lambda loss: 0.0, np.zeros(3), told.append)
    return *polish.descend(np.zeros(3), spread, "start 0"), told


def test_a_descent_along_a_ridge_goes_all_the_way_across_it():
    slope = np.random.default_rng(2).normal(size=(120, 3))
    slope[:, 2] = slope[:, 1]  # decode and kv act alike: their sum is told
    goal = np.array([0.3, 0.2, 0.2])
    end, loss, told = descent(slope, goal, WIDEST)
    assert end[0] == pytest.approx(0.3, abs=0.01) and end[1] + end[2] == pytest.approx(0.4, abs=0.01)
    assert abs(end[1] - end[2]) < 0.1 and loss < 2e-3 and len(told) < 8


def test_a_descent_that_ends_at_a_greater_loss_is_taken_back():
    slope, goal = np.random.default_rng(3).normal(size=(120, 3)), np.full(3, 0.05)
    end, loss, told = descent(slope, goal, BOTTOM)
    assert end == pytest.approx(goal, abs=0.01) and "goes back" not in told[-1]
    # the same residuals, with a loss that grows on that way
    end, loss, told = descent(slope, goal, BOTTOM, lambda points: 0.1 + np.abs(points).sum(axis=1))
    assert not end.any() and loss == pytest.approx(0.1) and "start 0 goes back to loss 0.10000" in told[-1]


def test_what_a_fit_takes_of_the_noise_is_given_back():
    """Residuals are smaller than the noise was, most in the block that tells most."""
    rng, rows, blocks = np.random.default_rng(4), 24, np.repeat(np.arange(8), 3)
    slope = rng.normal(size=(rows, 4)) * np.where(blocks == 0, 4.0, 1.0)[:, None]
    surface = Surface(np.zeros(rows), slope, np.zeros((0, rows)), np.zeros((2, rows)))
    weights = Weights(surface, Noise(np.ones(rows), np.zeros(rows)))
    hat = slope @ np.linalg.pinv(slope)
    square, left = np.zeros(rows), np.zeros(rows)
    for _ in range(2000):
        residuals = (np.eye(rows) - hat) @ rng.normal(size=rows)
        left += residuals**2 / 2000
        square += as_before_the_fit(slope, weights, residuals, blocks) ** 2 / 2000
    assert left.mean() == pytest.approx(1.0 - 4.0 / rows, abs=0.02) and left[:3].mean() < 0.5
    assert square[3:].mean() == pytest.approx(1.0, abs=0.03) and square[:3].mean() == pytest.approx(1.0, abs=0.1)
