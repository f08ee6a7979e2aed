"""What a fit says: values, intervals, what the data cannot tell apart, and errors on what was held out."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ProgramError
from ..extras import needs
from .optimisers import Space

#: Resamples of the requests.
RESAMPLES = 400
#: A direction of the parameters (logs, each scaled to equal strength) is not told by the data where its residuals move
#: by less than this share of the strongest one's, or where their squares are less than so much of what the noise of the
#: slopes adds to them.
FLAT, BLURRED = 0.02, 0.7
#: A parameter takes part in such a direction where its share of it is above this.
PART = 0.3


@dataclasses.dataclass(frozen=True, eq=False)
class Local:
    """Residuals as linear functions of the log parameters near a point, regressed on simulated candidates.

    - `value` `[rows]`: at the point. `slope` `[rows, free]`.
    - `variance` `[rows]`: of a residual around its plane, from candidate to candidate (a request more or less in an
      iteration moves many). `blur` `[free, free]`: the covariance of a row's slope, per unit of that variance.
    """

    value: np.ndarray
    slope: np.ndarray
    variance: np.ndarray
    blur: np.ndarray

    def robust(self) -> Local:
        """Weighted rows: what jumps from candidate to candidate counts less, and so does a request that is far off.

        The wait of a request in an idle engine is the rest of an iteration: it jumps by whole iterations, and would
        drown the times between tokens, which do not.
        """
        usual = np.median(np.abs(self.value)) + 1e-9
        jumps = (1.0 + self.variance / usual**2) ** -0.5
        weight = jumps * (1.0 + (self.value * jumps / (2.0 * usual)) ** 2) ** -0.25
        return Local(self.value * weight, self.slope * weight[:, None], self.variance * weight**2, self.blur)

    def gram(self, count: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """`slope.T @ slope` without what the noise of the slopes adds to it, and that; `count`: times of each row.

        With the noise in it, least squares would take slopes that differ by chance for ones that the data tell apart,
        and steps along them would be too short.
        """
        count = np.ones(len(self.value)) if count is None else count
        noise = float(count @ self.variance) * self.blur
        return (self.slope * count[:, None]).T @ self.slope - noise, noise

    def directions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scale `[free]`, directions of the scaled gram matrix (rows), and which the data do not tell."""
        gram, noise = self.gram()
        scale = np.sqrt(np.maximum(np.diag(gram + noise), 1e-300))
        strength, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
        blurred = np.einsum("ik,ij,jk->k", vectors, noise / np.outer(scale, scale), vectors)
        return scale, vectors.T, strength < np.maximum(FLAT**2 * strength[-1], BLURRED * blurred)

    def step(self) -> np.ndarray:
        """Towards the least sum of squares, as a change of the log parameters: the noise of the slopes shortens it."""
        scale = np.maximum(np.linalg.norm(self.slope, axis=0), 1e-300)
        return np.linalg.lstsq(self.slope / scale, -self.value, rcond=1e-3)[0] / scale

    def moves(self, counts: np.ndarray) -> np.ndarray:
        """How far the least sum of squares moves when rows count otherwise, `[times, free]`; `counts` `[times, rows]`.

        Only along directions that the data tell; the noise of the slopes is taken out.
        """
        scale, vectors, weak = self.directions()
        basis = vectors[~weak] / scale  # from the strong directions to log parameters
        found = np.zeros((len(counts), len(scale)))
        for i, count in enumerate(counts):
            gram = basis @ self.gram(count)[0] @ basis.T
            pull = basis @ ((self.slope * (count - 1.0)[:, None]).T @ -self.value)
            found[i] = np.linalg.lstsq(gram, pull, rcond=1e-6)[0] @ basis
        return found


@dataclasses.dataclass(frozen=True)
class Combination:
    """A sum that the data identify where its parts cannot be told apart: `parts[0] + factor * parts[1] + ...`."""

    parts: tuple[str, ...]
    factors: tuple[float, ...]
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        terms = [self.parts[0], *(f"{f:.4g} x {name}" for f, name in zip(self.factors[1:], self.parts[1:]))]
        return f"{' + '.join(terms)} = {self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """The result of `serqjax.fit.fit`.

    - `guess`, `best`: the free parameters before and after. `low`, `high`: bootstrap intervals of `level`; of a
      confounded parameter they say little. `loss`: of the requests scored.
    - `confounded`: groups of parameters that the data cannot tell apart; `combinations`: what they identify instead.
    - `errors`: per run relative errors by metric (`ttft_mean`, `e2e_p99`, ...), of the requests `fitted` and
      `held_out`.
    - `set_aside`: requests left out: run, row and reason.
    - `pairs`: per run measured and predicted seconds of each request, by metric.
    """

    guess: dict[str, float]
    best: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    level: float
    loss: float
    confounded: tuple[tuple[str, ...], ...]
    combinations: tuple[Combination, ...]
    errors: tuple[dict[str, dict[str, float]], ...]
    runs: tuple[str, ...]
    rows: tuple[int, ...]
    set_aside: tuple[tuple[str, int, str], ...]
    pairs: tuple[dict[str, tuple[np.ndarray, np.ndarray]], ...] = ()

    def table(self) -> Any:
        """A polars table, a row per parameter: guess, best, interval, whether the data tell it apart."""
        with needs("tables", "the table of a fit"):
            import polars as pl

        mixed = {name for group in self.confounded for name in group}
        names = list(self.best)
        return pl.DataFrame({
            "parameter": names, "guess": [self.guess[n] for n in names], "best": [self.best[n] for n in names],
            "low": [self.low[n] for n in names], "high": [self.high[n] for n in names],
            "identified": [n not in mixed for n in names],
        })  # fmt: skip

    def sentences(self) -> list[str]:
        """What the data cannot tell apart, in words."""
        return [
            f"The data cannot tell {' and '.join(group)} apart; they give {combination}."
            for group, combination in zip(self.confounded, self.combinations)
        ]

    def __str__(self) -> str:
        width = max(map(len, self.best))
        head = f"{'parameter':{width}}  {'guess':>10}  {'best':>10}  {f'{100 * self.level:g} % interval':>24}"
        rows = [head]
        for name, value in self.best.items():
            interval = f"[{self.low[name]:.4g}, {self.high[name]:.4g}]"
            rows.append(f"{name:{width}}  {self.guess[name]:10.4g}  {value:10.4g}  {interval:>24}")
        rows += self.sentences()
        for run, errors in zip(self.runs, self.errors):
            for part, values in errors.items():
                means = ", ".join(f"{m} {100 * values[f'{m}_mean']:+.2f} %" for m in ("ttft", "tpot", "e2e"))
                rows.append(f"{run}, requests {part.replace('_', ' ')}: mean error {means}")
        rows += [f"{run} row {row} set aside: {reason}" for run, row, reason in self.set_aside]
        return "\n".join(rows)

    def to_document(self) -> dict[str, Any]:
        """The fit as JSON values, without the requests."""
        fields = [f.name for f in dataclasses.fields(self) if f.name != "pairs"]
        document = {name: getattr(self, name) for name in fields}
        document["combinations"] = [dataclasses.asdict(c) for c in self.combinations]
        document["sentences"] = self.sentences()
        return document

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what `--params` and `read_params` read."""
        Path(path).write_text(json.dumps(self.to_document(), indent=1) + "\n", encoding="utf-8")


def read_params(path: str | os.PathLike[str]) -> dict[str, float]:
    """Parameter values from a fit's file, or from an object of names and numbers.

    **Raises:** `ProgramError` for a file that holds neither.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        best = document.get("best", document)
        found = {str(name): float(value) for name, value in best.items() if not isinstance(value, (bool, str))}
    except (ValueError, AttributeError, TypeError):
        raise ProgramError.at(str(path), "holds no parameters", "give the file of `serqjax fit --out`") from None
    if len(found) < len(best):
        raise ProgramError.at(str(path), "holds values that are no numbers", "give names and numbers")
    return found


def identify(space: Space, best: np.ndarray, local: Local, groups: np.ndarray, level: float,
             seed: int) -> dict[str, Any]:
    """Intervals and confounded parameters from residuals that are linear near the best.

    **Arguments:** `groups` `[rows]`: residuals resampled together.
    """
    local = local.robust()
    _, directions, is_weak = local.directions()
    weak = [tuple(int(i) for i in np.flatnonzero(np.abs(v) > PART)) for v in directions[is_weak]]
    moves = _resampled(local, groups, seed)
    values = np.exp(best)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(np.exp(best + moves), [tail, 1.0 - tail], axis=0)
    low, high = np.minimum(low, values), np.maximum(high, values)
    combinations = []
    for parts in weak:
        # slopes per unit of each parameter against those of the strongest part, without their noise
        shape = local.gram()[0] / np.outer(values, values)
        main = max(parts, key=lambda p: shape[p, p] * values[p] ** 2)
        factors = [float(shape[p, main] / shape[parts[0], main]) for p in parts]
        total = float(sum(f * values[p] for f, p in zip(factors, parts)))
        spread = sum(f * values[p] * moves[:, p] for f, p in zip(factors, parts))
        ends = np.quantile(total + spread, [tail, 1.0 - tail])
        names = tuple(space.names[p] for p in parts)
        combinations.append(Combination(names, tuple(factors), total, float(ends[0]), float(ends[1])))
        for p, factor in zip(parts, factors):  # all that the sum and the bounds allow
            low[p] = np.exp(space.low[p])
            high[p] = max(high[p], min(np.exp(space.high[p]), ends[1] / factor if factor > 0.0 else np.inf))
    return {
        "low": dict(zip(space.names, map(float, low))),
        "high": dict(zip(space.names, map(float, high))),
        "confounded": tuple(tuple(space.names[p] for p in parts) for parts in weak),
        "combinations": tuple(combinations),
    }


def _resampled(local: Local, groups: np.ndarray, seed: int) -> np.ndarray:
    """Changes of the log parameters when the requests are drawn anew, `[resamples, free]`; none flies further than
    3."""
    rng = np.random.default_rng(seed)
    names, member = np.unique(groups, return_inverse=True)
    drawn = rng.integers(0, len(names), (RESAMPLES, len(names)))
    counts = np.stack([np.bincount(row, minlength=len(names))[member] for row in drawn]).astype(np.float64)
    return np.clip(local.moves(counts), -3.0, 3.0)
