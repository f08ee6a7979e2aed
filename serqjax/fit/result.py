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

    - `guess`, `best`: the free parameters before and after. `low`, `high`: intervals of `level`, from
      simulated data sets; of a confounded parameter they say little. `loss`: of the requests scored.
    - `confounded`: groups of parameters that the data cannot tell apart; `combinations`: what they identify instead.
    - `errors`: per run relative errors by metric (`ttft_mean`, `e2e_p99`, ...), of the requests `fitted` and
      `held_out`.
    - `set_aside`: requests left out: run, row and reason.
    - `pairs`: per run, and per part of its requests, measured and predicted seconds by metric.
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
    pairs: tuple[dict[str, dict[str, tuple[np.ndarray, np.ndarray]]], ...] = ()

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

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Predicted against measured times of each request: a matplotlib figure, also written to `path` (.png, .pdf
        or .svg) if given. **Raises:** `ValueError` for another ending; `MissingExtra` without the extra `plot`."""
        with needs("plot", "the picture of a fit"):
            from ..plot.fits import figure
            from ..plot.frame import write
        fig = figure(self)
        if path is not None:
            write(fig, Path(path))
        return fig

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
                named = ((m, values.get(f"{m}_mean")) for m in ("ttft", "tpot", "itl", "e2e"))
                means = ", ".join(f"{m} {100 * value:+.2f} %" for m, value in named if value is not None)
                rows.append(f"{run}, requests {part.replace('_', ' ')}: mean error {means or 'not measured'}")
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
