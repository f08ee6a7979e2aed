"""Who proposes the next candidates: CMA-ES, or a gradient estimated from antithetic pairs and fed to an optax
optimiser.

Both work on points in the unit scale of `Space` and only ever see losses.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..extras import needs


@dataclasses.dataclass(frozen=True)
class Space:
    """Free parameters on log scales between bounds, both above 0."""

    names: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, bounds: Mapping[str, tuple[float, float]]) -> Space:
        for name, (low, high) in bounds.items():
            if not (0.0 < low < high < math.inf):
                raise ValueError(f"bounds of {name}: {low!r} to {high!r}: two numbers above 0, the smaller one first")
        low, high = np.asarray(list(bounds.values()), np.float64).T
        return cls(tuple(bounds), np.log(low), np.log(high))

    def params(self, x: np.ndarray) -> dict[str, float]:
        return {name: float(value) for name, value in zip(self.names, np.exp(self.clip(x)))}

    def point(self, params: Mapping[str, float]) -> np.ndarray:
        return self.clip(np.log([max(params[name], 1e-300) for name in self.names]))

    def clip(self, x: np.ndarray) -> np.ndarray:
        return np.clip(x, self.low, self.high)


class AbstractOptimiser(abc.ABC):
    """`ask` for a population `[candidates, free]` of log parameters, `tell` its losses."""

    @abc.abstractmethod
    def ask(self) -> np.ndarray: ...

    @abc.abstractmethod
    def tell(self, points: np.ndarray, losses: np.ndarray) -> None: ...


class Cma(AbstractOptimiser):
    """Covariance matrix adaptation (the library `cmaes`). `sigma`: first spread, in logs."""

    def __init__(self, space: Space, start: np.ndarray, population: int, sigma: float, seed: int):
        with needs("fit", "a fit"):
            import cmaes
        bounds = np.stack([space.low, space.high], axis=1)
        self.inner = cmaes.CMA(mean=start, sigma=sigma, bounds=bounds, population_size=population, seed=seed)
        self.population = population

    def ask(self) -> np.ndarray:
        return np.stack([self.inner.ask() for _ in range(self.population)])

    def tell(self, points: np.ndarray, losses: np.ndarray) -> None:
        self.inner.tell([(x, float(loss)) for x, loss in zip(points, losses)])


class Gradient(AbstractOptimiser):
    """An evolution strategy: the gradient of the smoothed loss from antithetic pairs, steps by optax's Adam."""

    def __init__(self, space: Space, start: np.ndarray, population: int, sigma: float, seed: int):
        with needs("fit", "the method `gradient`"):
            import optax
        from ..engine.host import settings

        self.optax, self.settings = optax, settings
        self.space, self.mean, self.sigma = space, start.copy(), sigma / 4
        self.half, self.rng = population // 2, np.random.default_rng(seed)
        self.rule = self.optax.adam(learning_rate=sigma / 4)
        with self.settings():
            self.state: Any = self.rule.init(self.mean)
        self.noise = np.zeros((self.half, len(start)))

    def ask(self) -> np.ndarray:
        self.noise = self.rng.standard_normal((self.half, len(self.mean)))
        steps = self.sigma * np.concatenate([self.noise, -self.noise])
        return self.space.clip(self.mean + steps)

    def tell(self, points: np.ndarray, losses: np.ndarray) -> None:
        # ranks, so that one candidate that jams the engine does not rule
        ranks = np.argsort(np.argsort(losses)) / max(len(losses) - 1, 1) - 0.5
        gradient = ((ranks[: self.half] - ranks[self.half :])[:, None] * self.noise).mean(axis=0) / self.sigma
        with self.settings():
            updates, self.state = self.rule.update(gradient, self.state, self.mean)
            self.mean = self.space.clip(np.asarray(self.optax.apply_updates(self.mean, updates), np.float64))


OPTIMISERS = {"cmaes": Cma, "gradient": Gradient}
