"""The questions of a study, `capacity`, `compare` and `measure`: what is asked; the answers are made where the
arrays are.

**Source:** `docs/capacity.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from .. import ir
from ..progress import AbstractProgress
from ..results import Run, Runs

if TYPE_CHECKING:
    from .capacity import Capacity
    from .compare import Comparison


@overload
def capacity(
    prog: ir.Program,
    *,
    over: str,
    between: tuple[float, float],
    slo: Sequence[str] | str,
    confidence: float = 0.95,
    precision: float = 0.02,
    seed: int = 0,
    max_seeds: int = 512,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    window_s: float | None = None,
    progress: AbstractProgress | None = None,
) -> Capacity: ...


@overload
def capacity(
    prog: Sequence[ir.Program],
    *,
    over: str,
    between: tuple[float, float],
    slo: Sequence[str] | str,
    confidence: float = 0.95,
    precision: float = 0.02,
    seed: int = 0,
    max_seeds: int = 512,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    window_s: float | None = None,
    progress: AbstractProgress | None = None,
) -> list[Capacity]: ...


def capacity(
    prog: ir.Program | Sequence[ir.Program],
    *,
    over: str,
    between: tuple[float, float],
    slo: Sequence[str] | str,
    confidence: float = 0.95,
    precision: float = 0.02,
    seed: int = 0,
    max_seeds: int = 512,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    window_s: float | None = None,
    progress: AbstractProgress | None = None,
) -> Capacity | list[Capacity]:
    """The largest value of a parameter, an arrival rate as a rule, that meets every target.

    **Arguments:**
    - `prog`: a program, or several: their searches then run side by side, in one batch where their structures are
      equal.
    - `over`: a parameter of the program that makes its life harder as it grows (`request_rate`, `session_rate`,
      `arrival.rate`); `rate_scale` divides the times of a recorded trace. `between`: the least and largest value.
    - `slo`: targets, such as `"ttft.p99<500ms"` and `"goodput(ttft<500ms,tpot<50ms)>=0.99"`. Unfinished requests miss.
    - `confidence`: of the interval. `precision`: its half-width relative to the value, for which seeds are added, at
      most `max_seeds`; they are `seed`, `seed` + 1, ...
    - `horizon_s`, `warmup_s`: of each run, seconds; None: the program's own. Near saturation the start-up is long: a
      note says when the backlog still grows at the answer.
    - `window_s`: of a recorded trace: length of the arrival windows of the block bootstrap (None: 60 equal windows).

    **Returns:** a `Capacity` with `.value`, `.interval`, `.verdict`, `.table`; for several programs a list of them.

    **Raises:** `ValueError` for an argument, a metric or a parameter; `ProgramError` for the program; `VerdictError`
    if a run ends with deadlock, livelock, capacity or error.
    """
    from .capacity import find

    many = not isinstance(prog, ir.Program)
    found = find(
        list(prog) if many else [prog], over=over, between=between, slo=slo, confidence=confidence,
        precision=precision, seed=seed, max_seeds=max_seeds, horizon_s=horizon_s, warmup_s=warmup_s,
        window_s=window_s, progress=progress,
    )
    return found if many else found[0]


def compare(
    a: ir.Program,
    b: ir.Program,
    *,
    metric: str = "ttft.p99",
    precision: float = 0.02,
    confidence: float = 0.95,
    seed: int = 0,
    max_seeds: int = 512,
    horizon_s: float | None = None,
    warmup_s: float | str | None = None,
    window_s: float | None = None,
    progress: AbstractProgress | None = None,
) -> Comparison:
    """Compare a metric of two programs under the same seeds.

    **Arguments:**
    - `metric`: by name, see `serqjax.study.metrics`. `confidence`: of the interval.
    - `precision`: half-width of the difference's interval over A's value, for which seeds are added, at most
      `max_seeds`; they are `seed`, `seed` + 1, ...
    - `horizon_s`: seconds of a run; None: each program's own. `warmup_s`: seconds that are not measured; None: each
      program's own; `"mser5"`: by the rule MSER-5 from runs without warm-up, the longer of both programs.
    - `window_s`: where both programs replay the same recorded trace: the interval is by a block bootstrap of arrival
      windows of so many seconds.

    **Returns:** a `Comparison`: `print` it, or ask `.difference`, `.interval`, `.verdict`.

    **Raises:** `ValueError` for an argument or a metric; `ProgramError` for a program; `VerdictError` if a run ends
    with deadlock, livelock, capacity or error.
    """
    from .compare import paired

    return paired(
        a, b, metric=metric, precision=precision, confidence=confidence, seed=seed, max_seeds=max_seeds,
        horizon_s=horizon_s, warmup_s=warmup_s, window_s=window_s, progress=progress,
    )


def measure(result: Run | Runs, metrics: Sequence[str] | str, *, by: str | None = None) -> Any:
    """Metrics of runs by name, with 95 % intervals over seeds, as a polars table.

    **Arguments:**
    - `metrics`: names such as `"ttft.p99"`, `"goodput(ttft<500ms,tpot<50ms)"`, `"throughput"`, `"ttft.p99[turn=1]"`;
      `docs/capacity.md` lists them.
    - `by`: a column of the requests (`turn`, `priority`, `class`, a tenant): one row for each of its values.

    **Returns:** columns `metric, [by], value, low, high, lower_bound, unit, seeds`; null where something is not known.

    **Raises:** `ValueError` for a name or a column that is not there, with those that are.
    """
    from ..extras import needs

    with needs("tables", "a table of metrics"):
        from .metrics import table

        return table(result, [metrics] if isinstance(metrics, str) else list(metrics), by=by)


__all__ = ["capacity", "compare", "measure"]
