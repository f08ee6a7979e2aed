"""The cost of a step from measured steps: piecewise affine, by robust least squares.

A measured step says what was in it (decodes, prefill tokens, tokens of KV, attention) and how long it took. The cost is
affine in these, and bends upwards in the tokens of the step at given knots: `serqjax.costs` in other words, with
`Max(Ntok - knot, 0)` beside it. Coefficients are not negative, so that more work never takes less time.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..costs import Cost
from ..errors import ProgramError
from ..extras import needs
from .layers import table_rows

#: Columns of a file of steps, with the names of the costs that multiply them.
COLUMNS = {"decodes": "per_decode_s", "kv_tok": "per_kv_tok_s", "prefill_tok": "per_prefill_tok_s",
           "attention": "per_attention_s"}  # fmt: skip
#: The same as an iteration of an engine says them.
_IN_A_STEP = {"decodes": "Ndec", "kv_tok": "DecodePositions", "prefill_tok": "Npre", "attention": "Attn"}
#: Relative residuals above this count less than their square.
ROBUST = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class StepData:
    """Measured steps, a row each.

    - `decodes`, `prefill_tok`: requests that decode and tokens of prefill chunks, `[steps]`. `kv_tok`: KV of the
      decodes together. `attention`: sum of `n * (K + n / 2)` over chunks of `n` tokens after `K`. `time_s`: seconds.
    """

    name: str
    decodes: np.ndarray
    kv_tok: np.ndarray
    prefill_tok: np.ndarray
    attention: np.ndarray
    time_s: np.ndarray

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of a step, decodes and prefill."""
        return self.decodes + self.prefill_tok

    @property
    def points(self) -> np.ndarray:
        """Which steps have the same work in them, as a number each."""
        work = np.stack([getattr(self, name) for name in COLUMNS], axis=1)
        return np.unique(work, axis=0, return_inverse=True)[1].ravel()

    def part(self, rows: np.ndarray) -> StepData:
        columns = {f.name: getattr(self, f.name)[rows] for f in dataclasses.fields(self) if f.name != "name"}
        return StepData(self.name, **columns)


def read_steps(path: str | os.PathLike[str]) -> StepData:
    """Steps from a CSV file with the columns `decodes`, `kv_tok`, `prefill_tok`, `attention`, `time_s`.

    **Raises:** `ProgramError` with the row for what is missing, negative, no number, or a step without tokens or time.
    """
    if not Path(path).is_file():
        raise ProgramError.at(str(path), "there is no such file")
    rows = table_rows(Path(path), (*COLUMNS, "time_s"))
    for number, row in enumerate(rows, 2):
        for what, empty in (("time_s", row["time_s"] == 0.0),
                            ("tokens", float(row["decodes"]) + float(row["prefill_tok"]) == 0.0)):  # fmt: skip
            if empty:
                raise ProgramError.at(f"{path}:{number}", f"a step without {what}", "leave the row out")
    data = StepData(str(path), **{c: np.asarray([row[c] for row in rows], float) for c in (*COLUMNS, "time_s")})
    if np.median(data.time_s) > 10.0:
        text = f"a step takes {np.median(data.time_s):g} s in the median: milliseconds that are given as seconds?"
        raise ProgramError.at(str(path), text, "divide the times by 1,000")
    return data


@dataclasses.dataclass(frozen=True, eq=False)
class StepFit:
    """A fitted step cost: `numbers` by name, `cost` for a deployment, `knots`, and relative errors of the steps
    `fitted` and `held_out` (mean with its sign; mean, median, p90 and largest of the absolute ones)."""

    numbers: dict[str, float]
    knots: tuple[int, ...]
    cost: Cost
    errors: dict[str, dict[str, float]]
    steps: dict[str, int]

    def __str__(self) -> str:
        rows = [f"{name:24} {value:.4g}" for name, value in self.numbers.items()]
        for part, values in self.errors.items():
            text = ", ".join(f"{name} {100 * value:.2f} %" for name, value in values.items())
            rows.append(f"{self.steps[part]} steps {part.replace('_', ' ')}: {text}")
        return "\n".join(rows)


def fit_steps(data: StepData, *, knots: Iterable[int] = (), holdout: float = 0.3, seed: int = 0) -> StepFit:
    """Fit the cost of a step.

    **Arguments:**
    - `data`: measured steps. `knots`: tokens of a step at which each further token may become dearer.
    - `holdout`: share of the distinct steps (by their work) that is not fitted; drawn with `seed`.

    **Raises:** `ValueError` for an argument, `ProgramError` for too few steps.
    """
    bends = tuple(sorted(set(knots)))
    if not 0.0 <= holdout < 1.0:
        raise ValueError(f"holdout={holdout}: a share of the steps, 0 <= holdout < 1, is needed")
    if any(knot < 1 for knot in bends):
        raise ValueError(f"knots={bends}: whole numbers of tokens, at least 1, are needed")
    points = data.points
    distinct = np.random.default_rng(seed).permutation(points.max() + 1)
    kept = np.isin(points, distinct[: len(distinct) - round(holdout * len(distinct))])
    names = ["base_s", *COLUMNS.values(), *(f"above_{knot}_tok_s" for knot in bends)]
    if len(np.unique(points[kept])) < len(names):
        text = f"{len(np.unique(points[kept]))} distinct steps cannot give {len(names)} numbers"
        raise ProgramError.at(data.name, text, "give more steps or fewer knots")
    values = _least_squares(_design(data, bends)[kept], data.time_s[kept])
    numbers = dict(zip(names, map(float, values)))
    predicted = _design(data, bends) @ values
    parts = {"fitted": kept} | ({"held_out": ~kept} if not kept.all() else {})
    return StepFit(
        numbers, bends, _cost(numbers, bends),
        {name: relative(predicted[rows] / data.time_s[rows] - 1.0) for name, rows in parts.items()},
        {name: int(rows.sum()) for name, rows in parts.items()},
    )  # fmt: skip


def relative(error: np.ndarray) -> dict[str, float]:
    """Mean with its sign, and mean, median, p90 and largest of the absolute relative errors."""
    size = np.abs(error)
    found = {"mean": error.mean(), "mean_absolute": size.mean(), "p50": np.median(size),
             "p90": np.percentile(size, 90), "largest": size.max()}  # fmt: skip
    return {name: float(value) for name, value in found.items()}


def _design(data: StepData, knots: tuple[int, ...]) -> np.ndarray:
    columns = [np.ones(len(data)), *(getattr(data, name) for name in COLUMNS)]
    return np.stack(columns + [np.maximum(data.tokens - knot, 0.0) for knot in knots], axis=1)


def _least_squares(design: np.ndarray, time_s: np.ndarray) -> np.ndarray:
    """Coefficients of at least 0 with the least relative errors; what is far off counts less."""
    with needs("fit", "a fit of steps"):
        from scipy.optimize import least_squares, nnls
    rows = design / time_s[:, None]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    scaled = rows / scale
    first = nnls(scaled, np.ones(len(rows)))[0]
    slopes: Any = {"jac": lambda x: scaled}  # the stubs of scipy know no function here
    found = least_squares(
        lambda x: scaled @ x - 1.0, np.maximum(first, 1e-12), **slopes, bounds=(0.0, np.inf), loss="soft_l1",
        f_scale=ROBUST, x_scale="jac",
    )  # fmt: skip
    # at the bound of 0 the method stays inside by a little
    return np.where(found.x < 1e-9 * found.x.max(), 0.0, found.x) / scale


def _cost(numbers: Mapping[str, float], knots: tuple[int, ...]) -> Cost:
    """The same as an expression. A step that only preempts takes nothing."""
    terms = ["Min(base_s * Ntok, base_s)"]
    terms += [f"{cost} * {_IN_A_STEP[column]}" for column, cost in COLUMNS.items()]
    terms += [f"Max(above_{knot}_tok_s * Ntok - {knot} * above_{knot}_tok_s, 0)" for knot in knots]
    return Cost(" + ".join(terms), tuple((name, value, "s") for name, value in numbers.items()))
