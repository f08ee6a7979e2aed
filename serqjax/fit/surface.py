"""Request times near a point, as smooth functions of the parameters with jumps around them, and what follows from it.

A request's time is smooth in the costs but for jumps: one request more or less in an iteration moves many. A cloud of
simulated candidates gives both: least squares give the smooth part (`Surface`), what is left of each candidate are
jumps. A measured run has jumps of its own, as large as those of a candidate, and they move neighbours together. So
residuals are weighted by the inverse of their covariance, jumps and noise together, and the errors of the estimate are
those of simulated data sets (`simulated_errors`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

#: Candidates count up to this many spreads from the point in each parameter.
NEAR = 2.5
#: Share of the jumps that is taken as a request's own: the covariance of a few hundred candidates knows only so many
#: directions, and would count the others as free of jumps.
OWN = 0.2
#: A residual beyond this many deviations of its kind counts less (Huber).
FAR_OFF = 2.5
#: Neighbours in time that keep their residuals together, to the power of their number (block bootstrap).
BLOCK_POWER = 1.0 / 3.0
#: Parts of the cloud for simulated data sets, the share of the candidates, those nearest to the point, that are truths,
#: and noises drawn for each of them. Far out the smooth part is known least, and the point is not far out.
FOLDS, TRUTHS, DRAWS = 4, 0.5, 6
#: A fit is taken to leave at least this share of the noise's variance of a block.
LEAST_LEFT = 0.1
#: Splits of the cloud in two halves, whose slopes have noise of their own.
SPLITS = 8
#: Damping of a step in all directions, of each parameter's own strength: a step in directions that the data do not tell
#: would be a long one, and cut the others short.
DAMPED = 1e-3
#: Steps from the point to the least sum of squares of the curved surface.
STEPS = 3
#: A surface is believed up to this displacement in each log parameter.
FURTHEST = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """Evaluated candidates: log parameters `[n, free]`, residuals `[n, rows]` (NaN rows: did not finish), losses."""

    points: np.ndarray
    residuals: np.ndarray
    losses: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Cloud:
    """Finished candidates near a point: displacements in log parameters `[n, free]` and residuals `[n, rows]`."""

    moved: np.ndarray
    residuals: np.ndarray

    def __len__(self) -> int:
        return len(self.moved)

    def part(self, which: np.ndarray) -> Cloud:
        return Cloud(self.moved[which], self.residuals[which])


def near(clouds: Sequence[Scored], at: np.ndarray, reach: float) -> Cloud:
    """The candidates of `clouds` that finish and are within `reach` of `at` in each log parameter."""
    moved = np.concatenate([scored.points for scored in clouds]) - at
    residuals = np.concatenate([scored.residuals for scored in clouds])
    keep = ~np.isnan(residuals).any(axis=1) & (np.abs(moved) <= reach).all(axis=1)
    return Cloud(moved[keep], residuals[keep])


@dataclasses.dataclass(frozen=True, eq=False)
class Surface:
    """The smooth part of the residuals, linear or quadratic, and jumps.

    - `value` `[rows]`: at the point. `slope` `[rows, free]`. `curvature` `[pairs, rows]`, no rows where it is linear.
    - `jumps` `[candidates, rows]`: what is left, per root of the degrees of freedom: `jumps.T @ jumps` is their
      covariance.
    """

    value: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray
    jumps: np.ndarray

    @classmethod
    def of(cls, cloud: Cloud, curved: bool) -> Surface:
        """By least squares. **Raises:** `ValueError` where too few candidates finish their runs."""
        free = cloud.moved.shape[1]
        design = _design(cloud.moved, curved)
        freedom = len(cloud) - design.shape[1]
        if freedom < 2:
            raise ValueError("too few candidates near the best finish their runs: give other bounds or a first guess")
        # `lstsq` takes the time of all right-hand sides in its own loops, many times that of a product
        solution = np.linalg.pinv(design) @ cloud.residuals
        jumps = (cloud.residuals - design @ solution) / np.sqrt(freedom)
        return cls(solution[0], solution[1 : 1 + free].T, solution[1 + free :], jumps)

    @property
    def variance(self) -> np.ndarray:
        """Of the jumps, `[rows]`."""
        return (self.jumps**2).sum(axis=0)

    def at(self, moved: np.ndarray) -> np.ndarray:
        """The smooth residuals at displacements `[n, free]`, `[n, rows]`."""
        made = self.value + moved @ self.slope.T
        return made + _pairs(moved) @ self.curvature if len(self.curvature) else made


def _pairs(moved: np.ndarray) -> np.ndarray:
    first, second = np.triu_indices(moved.shape[1])
    return moved[:, first] * moved[:, second]


def _design(moved: np.ndarray, curved: bool) -> np.ndarray:
    parts = [np.ones((len(moved), 1)), moved, *([_pairs(moved)] if curved else [])]
    return np.concatenate(parts, axis=1)


def coefficients(free: int) -> int:
    """Of a quadratic over so many parameters."""
    return (free + 1) * (free + 2) // 2


def curves(cloud: Cloud) -> bool:
    """Whether there are candidates enough for the curvature.

    Without it waiting times, which bend upwards, would seem too long at the point itself.
    """
    return len(cloud) >= 2 * coefficients(cloud.moved.shape[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """What residuals have beside jumps: `variance` `[rows]`, and `part` `[rows]`, a draw of it: the residuals with what
    is of the kind of jumps scaled down."""

    variance: np.ndarray
    part: np.ndarray

    @classmethod
    def of(cls, surface: Surface, residuals: np.ndarray, kinds: np.ndarray) -> Noise:
        """One variance per kind (run and metric), the most likely one beside the jumps, more for what is far off.

        Jumps move many requests at once, so that a run may have few of them or many: along their principal directions
        they are told from noise, which has none.
        """
        variance, part = np.empty(len(residuals)), np.empty(len(residuals))
        for kind in np.unique(kinds):
            rows = kinds == kind
            values, jumps = residuals[rows], surface.jumps[:, rows]
            first = 2.2 * float(np.median(np.abs(values))) ** 2 + 1e-12
            limit = FAR_OFF * np.sqrt(first + surface.variance[rows])
            capped = np.clip(values, -limit, limit)
            strength, directions = principal(jumps)
            along = directions @ capped
            rest, free = max(float(capped @ capped - along @ along), 0.0), len(values) - len(along)
            level, floor = first, 1e-10 + 1e-4 * first
            for _ in range(50):
                weight = (level + strength) ** -2.0
                total = weight.sum() + max(free, 0) / level**2
                level = max(float((weight @ (along**2 - strength) + rest / level**2) / total), floor)
            scaled = np.sqrt(level / (level + strength))
            part[rows] = capped + ((scaled - 1.0) * along) @ directions
            variance[rows] = level * np.maximum(np.abs(values) / limit, 1.0)
        return cls(variance, part)


def principal(jumps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Strengths `[directions]` and principal directions `[directions, rows]` of jumps `[candidates, rows]`; those
    without strength are left out.

    From products, whose sides are the smaller number: a singular value decomposition takes many times as long.
    """
    wide = len(jumps) < jumps.shape[1]
    strength, vectors = np.linalg.eigh(jumps @ jumps.T if wide else jumps.T @ jumps)
    there = strength > 1e-12 * max(float(strength[-1]), 1e-300)
    strength, vectors = strength[there], vectors[:, there].T
    return strength, (vectors @ jumps) / np.sqrt(strength)[:, None] if wide else vectors


class Weights:
    """The inverse of the covariance of the residuals: `noise`, and jumps that move neighbours together."""

    def __init__(self, surface: Surface, noise: Noise):
        self.own = 1.0 / (noise.variance + OWN * surface.variance + 1e-300)
        self.shared = np.sqrt(1.0 - OWN) * surface.jumps
        inner = self.shared * self.own
        self.core = np.linalg.inv(np.eye(len(inner)) + inner @ self.shared.T)
        self.inner = inner

    def __matmul__(self, rows: np.ndarray) -> np.ndarray:
        """Times `[rows, columns]`, by Woodbury's formula."""
        return self.own[:, None] * rows - self.inner.T @ (self.core @ (self.inner @ rows))


@dataclasses.dataclass(frozen=True, eq=False)
class Told:
    """What the data tell: `gram` `[free, free]` without the noise of the slopes, `basis` `[strong, free]` of directions
    that are told, `weak` `[weak, free]` of those that are not (scaled to equal strength)."""

    gram: np.ndarray
    basis: np.ndarray
    weak: np.ndarray


#: A direction of the parameters (logs, each scaled to equal strength) is not told by the data where its residuals move
#: by less than this share of the strongest one's, or where their squares are less than so much of what the noise of the
#: slopes adds to them.
FLAT, BLURRED = 0.02, 0.7


def told(cloud: Cloud, surface: Surface, noise: Noise, seed: int) -> Told:
    """Directions that the data tell, and those that they do not.

    Slopes of two halves of the cloud have independent noise: their products are free of it in the mean.
    """
    rng = np.random.default_rng(seed)
    weight = 1.0 / (noise.variance + surface.variance + 1e-300)[:, None]
    whole = surface.slope.T @ (weight * surface.slope)
    if len(cloud) // 2 < len(whole) + 3:  # too few for halves: all is taken for told
        return Told(whole, np.eye(len(whole)), np.zeros((0, len(whole))))
    curved = curves(cloud.part(np.arange(len(cloud) // 2)))
    gram = np.zeros_like(whole)
    for _ in range(SPLITS):
        order = rng.permutation(len(cloud))
        first, second = (Surface.of(cloud.part(order[k::2]), curved).slope for k in (0, 1))
        product = first.T @ (weight * second)
        gram += (product + product.T) / (2.0 * SPLITS)
    scale = np.sqrt(np.maximum(np.diag(whole), 1e-300))
    strength, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    blurred = np.einsum("ik,ij,jk->k", vectors, (whole - gram) / np.outer(scale, scale), vectors)
    is_weak = strength < np.maximum(FLAT**2 * strength[-1], BLURRED * np.maximum(blurred, 0.0))
    return Told(gram, vectors.T[~is_weak] / scale, vectors.T[is_weak])


def solve(surface: Surface, weights: Weights, basis: np.ndarray, data: np.ndarray,
          pull: tuple[float, np.ndarray] = (0.0, np.zeros(0)), damped: float = 0.0) -> np.ndarray:
    """Displacements `[sets, free]` at which the surface is nearest to `data` `[sets, rows]`, along the `basis` alone.

    **Arguments:** `pull`: weight and place `[free]` (a displacement) of a first guess, per squared log. `damped`: share
    of each parameter's strength that is added to it.
    """
    slope = surface.slope @ basis.T
    weighted = weights @ slope
    strength, home = pull
    gram = slope.T @ weighted + 2.0 * strength * basis @ basis.T
    gram = gram + damped * np.diag(np.diag(gram))
    inverse = np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
    found = np.zeros((len(data), surface.slope.shape[1]))
    for _ in range(STEPS):
        force = (data - surface.at(found)) @ weighted
        if strength > 0.0:
            force = force + 2.0 * strength * (home - found) @ basis.T
        found = np.clip(found + force @ inverse @ basis, -FURTHEST, FURTHEST)
    return found


def blocks(runs: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The block of each row `[rows]`: neighbours in time of one run stay together, and all rows of one instant."""
    found = np.zeros(len(runs), np.int64)
    next_block = 0
    for run in np.unique(runs):
        rows = runs == run
        instants, place = np.unique(times[rows], return_inverse=True)
        length = max(1, round(len(instants) ** BLOCK_POWER))
        found[rows] = next_block + place // length
        next_block += 1 + (len(instants) - 1) // length
    return found


def as_before_the_fit(slope: np.ndarray, weights: Weights, part: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Noise of the size that it had before the fit took its share, `[rows]`.

    What a fit leaves of the noise of a block is smaller where the block tells much: by the root of one minus the
    block's part of the hat matrix (the correction HC2, by blocks; Bell and McCaffrey 2002).
    """
    weighted = weights @ slope
    reach = np.linalg.pinv(slope.T @ weighted, rcond=1e-10, hermitian=True) @ weighted.T
    found = part.copy()
    for block in np.unique(blocks):
        rows = blocks == block
        taken = slope[rows] @ reach[:, rows]
        left, vectors = np.linalg.eigh(np.eye(rows.sum()) - (taken + taken.T) / 2.0)
        found[rows] = vectors @ ((vectors.T @ part[rows]) / np.sqrt(np.clip(left, LEAST_LEFT, 1.0)))
    return found


def simulated_errors(cloud: Cloud, noise: Noise, basis: np.ndarray, blocks: np.ndarray,
                     pull: tuple[float, np.ndarray], seed: int) -> np.ndarray:
    """Errors of the estimate on simulated data sets whose true parameters are known, `[sets, free]`.

    Each candidate near the point takes the place of the truth: its simulated times with noise are the data, and the
    surface is that of other candidates. So an error has in it the noise, the jumps of a run, and the finite cloud.
    The noise is that of the fit, each block of neighbours with a sign of its own (`blocks` `[rows]`).
    """
    whole = Surface.of(cloud, curves(cloud))
    part = as_before_the_fit(whole.slope @ basis.T, Weights(whole, noise), noise.part, blocks)
    rng = np.random.default_rng(seed)
    fold = rng.permutation(len(cloud)) % FOLDS
    away = np.linalg.norm(cloud.moved, axis=1)
    near_by = away <= np.quantile(away, TRUTHS)
    names = blocks.max() + 1
    errors = []
    for k in range(FOLDS):
        others, own = cloud.part(fold != k), cloud.part(near_by & (fold == k))
        surface = Surface.of(others, curves(others))
        weights = Weights(surface, noise)
        for _ in range(DRAWS):
            signs = rng.choice([-1.0, 1.0], (len(own), names))[:, blocks]
            errors.append(solve(surface, weights, basis, own.residuals + signs * part, pull) - own.moved)
    return np.concatenate(errors)


@dataclasses.dataclass(frozen=True, eq=False)
class Bottom:
    """What a cloud says of the least sum of squares near a point.

    - `at` `[free]`: the point, log parameters. `moved` `[free]`: from it to the least sum of squares, along what is
      `known`; `everywhere`: along all directions. `best`, `loss`: the end, once it is scored.
    - `noise`: of the residuals there. `pull`: weight and place of a first guess.
    """

    cloud: Cloud
    at: np.ndarray
    known: Told
    noise: Noise
    pull: tuple[float, np.ndarray]
    moved: np.ndarray
    everywhere: np.ndarray
    best: np.ndarray
    loss: float

    @classmethod
    def of(cls, cloud: Cloud, at: np.ndarray, kinds: np.ndarray, pull: tuple[float, np.ndarray], seed: int) -> Bottom:
        """**Raises:** `ValueError` where too few candidates finish their runs."""
        smooth = Surface.of(cloud, curves(cloud))
        zero, every = np.zeros((1, len(kinds))), np.eye(len(at))
        noise = Noise.of(smooth, smooth.value, kinds)
        everywhere = solve(smooth, Weights(smooth, noise), every, zero, pull, DAMPED)
        noise = Noise.of(smooth, smooth.at(everywhere)[0], kinds)  # the noise is that of the residuals at the bottom
        weights, known = Weights(smooth, noise), told(cloud, smooth, noise, seed)
        everywhere = solve(smooth, weights, every, zero, pull, DAMPED)[0]
        moved = solve(smooth, weights, known.basis, zero, pull)[0]
        return cls(cloud, at, known, noise, pull, moved, everywhere, at, np.inf)
