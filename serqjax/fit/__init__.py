"""Costs from what was measured: tables of layers, per-step tables, and fits to the request times of a real run.

Light to import: arrays come when something is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..ir.program import Program

if TYPE_CHECKING:
    from .data import RunData as RunData
    from .data import SummaryData as SummaryData
    from .data import read as read
    from .data import read_data as read_data
    from .layers import layer_cost as layer_cost
    from .result import Combination as Combination
    from .result import Fit as Fit
    from .result import read_params as read_params
    from .steps import StepData as StepData
    from .steps import StepFit as StepFit
    from .steps import fit_steps as fit_steps
    from .steps import read_steps as read_steps

#: Where the other public names of this package stand.
_PLACES = {"RunData": "data", "SummaryData": "data", "read": "data", "read_data": "data", "layer_cost": "layers",
           "Combination": "result", "Fit": "result", "read_params": "result", "StepData": "steps", "StepFit": "steps",
           "fit_steps": "steps", "read_steps": "steps"}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def fit(
    prog: Program,
    *,
    data: Iterable[RunData | SummaryData | str | os.PathLike[str]],
    free: Iterable[str] | Mapping[str, tuple[float, float] | None],
    holdout: float = 0.3,
    loss: Sequence[str] = ("ttft", "tpot"),
    population: int = 16,
    generations: int = 20,
    restarts: int = 1,
    method: str = "cmaes",
    prior: float = 0.0,
    sigma: float = 0.4,
    seed: int = 0,
    level: float = 0.9,
    last: int | None = None,
    report: Callable[[str], None] | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Fit:
    """Fit parameters of a program to request times of real runs.

    **Arguments:**
    - `prog`: a deployment with listed requests (`workloads.from_trace`); those of each run take their place. Its
      parameter values are the first guess.
    - `data`: runs, or files as `serqjax.fit.data.read_data` reads them, each perhaps with engine settings of its own.
      The requests of `SummaryData`, means and percentiles alone, are those of the program.
    - `free`: names of parameters, with bounds above 0 or None (a factor of 30 around the first guess).
    - `holdout`: fraction of the requests, the last ones sent, that are simulated and not scored.
    - `loss`: which of `ttft`, `tpot`, `e2e` of each request count.
    - `population`, `generations`, `restarts`: candidates of a generation (16 share a compiled loop), generations of a
      search at most (0: only the bottom near the first guess is looked for), searches from different points.
    - `method`: `cmaes` or `gradient`. `sigma`: first spread of a search, in logs.
    - `prior`: weight of the first guess (loss added per squared log 10 of distance). `level`: of the intervals.
    - `last`: candidates near the best from which the intervals come (None: enough for five parameters are 252).
    - `report`: told a line per generation. `journal`: a file from which an interrupted fit goes on.

    **Returns:** a `Fit`: `best`, `table()`, `confounded`, `errors`.

    **Raises:** `ProgramError` for a program or data that cannot be used, `ValueError` for an argument.
    """
    from .simulation import search

    return search(
        prog,
        data=data, free=free, holdout=holdout, loss=loss, population=population, generations=generations,
        restarts=restarts, method=method, prior=prior, sigma=sigma, seed=seed, level=level, last=last, report=report,
        journal=journal,
    )
