"""From the best candidate of a search to the bottom of the loss, by least squares on the residuals of clouds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from . import surface
from .optimisers import Space
from .surface import Bottom, Scored

#: Spreads of the clouds, in logs: the first after a search, the first around a guess that is good, the last.
WIDEST, NEARBY, BOTTOM = 0.2, 0.1, 0.04
#: Clouds of a descent at most. Candidates of the last cloud, per coefficient of a quadratic.
ROUNDS, LAST = 10, 12
#: A bottom whose loss is this much above that of the point where the way to it began is none: the model cannot do what
#: the data did, and the covariance of its jumps weighs what it does worst least.
WORSE = 1.5
#: So many clouds in a row at such a loss end a descent.
LOST = 3
#: Candidates of a cloud come in such numbers: so many share a compiled loop.
UNIT = 16


class Polish:
    """The bottom of the loss by least squares on residuals that are smooth in a cloud of candidates.

    The loss itself has steps (a request more or less in an iteration moves many), and the best of many candidates is
    the luckiest one: so the way goes where the slopes of all candidates around say, whatever the loss there.

    **Arguments:** `pull`: weight of the first `guess` per squared log, in half the sum of squares.
    """

    def __init__(self, score: Callable[[np.ndarray], Scored], space: Space, kinds: np.ndarray, seed: int,
                 pull: Callable[[float], float], guess: np.ndarray, tell: Callable[[str], None]):
        self.score, self.space, self.kinds, self.seed, self.tell = score, space, kinds, seed, tell
        self.pull, self.guess = pull, guess
        self.size = UNIT * -(-2 * surface.coefficients(len(space.names)) // UNIT)
        self.rng = np.random.default_rng(seed)
        self.clouds: list[Scored] = []

    def around(self, at: np.ndarray, spread: float, size: int) -> Scored:
        """Score a cloud of candidates around a point, in pairs on both sides, and the point."""
        half = self.rng.standard_normal((-(-size // 2), len(at)))
        points = self.space.clip(at + spread * np.concatenate([half, -half]))
        points[0] = at
        self.clouds.append(self.score(points))
        return self.clouds[-1]

    def descend(self, at: np.ndarray, spread: float, name: str) -> tuple[np.ndarray, float]:
        """From a point to near the bottom, by clouds that get narrower; the point and its loss."""
        begin: tuple[np.ndarray, float] | None = None
        worse = 0
        for _ in range(ROUNDS):
            loss = float(self.around(at, spread, self.size).losses[0])
            begin = begin or (at, loss)
            worse = worse + 1 if loss > WORSE * begin[1] else 0
            if worse == LOST:
                break
            # noise shortens steps along what the data tell little of: all directions can be gone
            found = self.judge(at, spread, loss)
            # near the bottom only along what is told: the rest would drift
            step = found.moved if spread < WIDEST / 2.0 else found.everywhere
            within = step @ found.known.gram @ step < len(step)  # the error of the data is as large
            # shortened as a whole: cut in each parameter alone it would leave the ridge of a sum
            step = step * min(1.0, 2.0 * spread / max(np.abs(step).max(), 1e-300))
            self.tell(f"{name} cloud {spread:5.3f}       loss {loss:.5f}  " + numbers(self.space, at + step))
            at = self.space.clip(at + step)
            if within or np.abs(step).max() < spread / 2.0:
                if spread <= BOTTOM:
                    break
                spread = max(spread / 2.0, BOTTOM)
        end = float(self.score(at[None]).losses[0])
        if begin is not None and end > WORSE * begin[1]:
            self.tell(f"{name} goes back to loss {begin[1]:.5f} from {end:.5f}")
            return begin
        return at, end

    def bottom(self, at: np.ndarray, loss: float, last: int | None) -> Bottom:
        """The bottom near a point by a cloud of at least `last` candidates."""
        last = last or LAST * surface.coefficients(len(at))
        while (missing := last - len(surface.near(self.clouds, at, surface.NEAR * BOTTOM))) > 0:
            size = min(UNIT * -(-missing // UNIT), 4 * self.size)
            if np.isnan(self.around(at, BOTTOM, size).residuals).any(axis=1).all():
                break  # no candidate finishes its run here
        found = self.judge(at, BOTTOM, loss)
        best = self.space.clip(at + found.moved)
        lowest = float(self.score(best[None]).losses[0])
        if lowest > WORSE * loss:
            self.tell(f"the bottom goes back to loss {loss:.5f} from {lowest:.5f}")
            best, lowest = at, loss
        return dataclasses.replace(found, best=best, loss=lowest)

    def judge(self, at: np.ndarray, spread: float, loss: float) -> Bottom:
        """What the clouds say of the bottom near a point."""
        cloud = surface.near(self.clouds, at, surface.NEAR * spread)
        return Bottom.of(cloud, at, self.kinds, (self.pull(loss), self.guess - at), self.seed)


def numbers(space: Space, x: np.ndarray) -> str:
    """Names and values of a candidate, in one line."""
    return "  ".join(f"{name} {value:.4g}" for name, value in space.params(x).items())
