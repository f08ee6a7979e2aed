"""What a fit says: values, intervals, what the data cannot tell apart, and errors on what was held out."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ProgramError
from ..extras import needs
from .optimisers import Space

#: Resamples of the requests.
RESAMPLES = 400
#: A direction of the parameters (logs) is not told by the data where its residuals move by less than this share of the
#: strongest one's, or where a resample of the requests moves it by more than `LOOSE`.
FLAT, LOOSE = 0.02, 0.35
#: A parameter takes part in such a direction where its share of it is above this.
PART = 0.3


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
      confounded
      parameter they say little. `loss`: of the requests scored.
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


def identify(space: Space, best: np.ndarray, value: np.ndarray, slope: np.ndarray, groups: np.ndarray, level: float,
             seed: int) -> dict[str, Any]:
    """Intervals and confounded parameters from residuals that are linear near the best.

    **Arguments:** `value` `[all]`, `slope` `[all, free]` (per log); `groups` `[all]`: residuals resampled together.
    """
    strength = np.linalg.norm(slope, axis=0)
    strength[strength == 0.0] = 1e-300
    moves = _resampled(value, slope, groups, seed)
    _, singular, directions = np.linalg.svd(slope / strength, full_matrices=False)
    weak = []
    for s, v in zip(singular, directions):
        along = moves @ (v * strength / np.linalg.norm(v * strength)) if len(moves) else np.zeros(1)
        if s < FLAT * singular[0] or (s < 0.2 * singular[0] and np.std(along) > LOOSE):
            parts = tuple(int(i) for i in np.flatnonzero(np.abs(v) > PART))
            if len(parts) > 1:
                weak.append(parts)
    values = np.exp(best)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(np.exp(best + moves), [tail, 1.0 - tail], axis=0)
    combinations = []
    for parts in weak:
        raw = slope / values  # per unit of the parameter itself
        first = raw[:, parts[0]]
        factors = [float(raw[:, p] @ first / (first @ first)) for p in parts]
        total = float(sum(f * values[p] for f, p in zip(factors, parts)))
        spread = sum(f * values[p] * moves[:, p] for f, p in zip(factors, parts))
        ends = np.quantile(total + spread, [tail, 1.0 - tail])
        names = tuple(space.names[p] for p in parts)
        combinations.append(Combination(names, tuple(factors), total, float(ends[0]), float(ends[1])))
    return {
        "low": {n: float(min(v, b)) for n, v, b in zip(space.names, low, values)},
        "high": {n: float(max(v, b)) for n, v, b in zip(space.names, high, values)},
        "confounded": tuple(tuple(space.names[p] for p in parts) for parts in weak),
        "combinations": tuple(combinations),
    }


def _resampled(value: np.ndarray, slope: np.ndarray, groups: Sequence[int] | np.ndarray, seed: int) -> np.ndarray:
    """Changes of the log parameters when the requests are drawn anew, `[resamples, free]`; none flies further than
    3."""
    rng = np.random.default_rng(seed)
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    moves = np.zeros((RESAMPLES, slope.shape[1]))
    for i in range(RESAMPLES):
        weight = np.sqrt(np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))[member])
        moves[i] = np.linalg.lstsq(slope * weight[:, None], -value * weight, rcond=1e-6)[0]
    return np.clip(moves, -3.0, 3.0)
