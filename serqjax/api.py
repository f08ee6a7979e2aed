"""The entry functions: `program`, `check`, `draw`, `run`, `run_many`, `run_reference`.

**Source:** `design.md`, sections 2.7 and 3; `docs/architecture.md`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final, overload

from . import ir
from .builder import compose as program
from .check import Facts, as_text, check_program, describe, find_problems, require_valid, unsupported
from .errors import Problem, ProgramError
from .overrides import with_params, with_span
from .progress import AbstractProgress, NoProgress
from .ranges import warn_outside, watch_tables
from .results import Interrupted, Run, Runs, VerdictError

LARGEST_SEED = 2**64 - 1


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Checked:
    """A valid program and the `facts` that the engines work from; `str()` says them in words."""

    program: ir.Program
    facts: Facts

    def to_document(self) -> dict[str, Any]:
        """What `serqjax check --json` prints."""
        return describe(self.program, self.facts)

    def to_json(self) -> str:
        """`to_document()` as text: equal programs give equal bytes."""
        from .report.units import dumps

        return dumps(self.to_document())

    def __str__(self) -> str:
        return as_text(self.program, self.facts)


def check(prog: ir.Program) -> Checked:
    """Check a program without running it.

    **Raises:** `ProgramError` with all the problems at once, each with its place and what to write instead.
    """
    return Checked(prog, check_program(prog))


def draw(prog: ir.Program) -> str:
    """Draw a program: the automaton of a session on the left, pools and stages on the right.

    A box is a state with its ops; the arrow that leaves it says its exit (dashed: a deadline). A frame is a scope and
    holds its admission, what a session waits for and takes. Members of an array that differ in their number alone are
    drawn once, with their count. `serqjax.builder.parse` documents how expressions are written.

    **Returns:** SVG text; equal programs give equal bytes (with one version of the layout library).

    **Raises:** `ProgramError` for a program that is not valid; `MissingExtra` without the extra `draw`.
    """
    from .drawing import draw

    return draw(prog)


@overload
def run(
    prog: ir.Program,
    *,
    seed: int | None = None,
    seeds: None = None,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    arrivals: int | None = None,
    params: Mapping[str, float] | None = None,
    trace: bool = False,
    check: bool = False,
    stop_on_verdict: bool = False,
    coalesce: bool = True,
    progress: AbstractProgress | None = None,
) -> Run: ...


@overload
def run(
    prog: ir.Program,
    *,
    seed: None = None,
    seeds: Iterable[int],
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    arrivals: int | None = None,
    params: Mapping[str, float] | None = None,
    trace: bool = False,
    check: bool = False,
    stop_on_verdict: bool = False,
    coalesce: bool = True,
    progress: AbstractProgress | None = None,
) -> Runs: ...


def run(
    prog: ir.Program,
    *,
    seed: int | None = None,
    seeds: Iterable[int] | None = None,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    arrivals: int | None = None,
    params: Mapping[str, float] | None = None,
    trace: bool = False,
    check: bool = False,
    stop_on_verdict: bool = False,
    coalesce: bool = True,
    progress: AbstractProgress | None = None,
) -> Run | Runs:
    """Run a program, one seed or many at once. The run of seed s is the reference's run of seed s.

    **Arguments:**
    - `seed`: one seed, 0 to 2^64 - 1 (default: the program's own). `seeds`: many, for example `range(256)`.
    - `horizon_s`, `warmup_s`: seconds; `arrivals`: exactly so many sessions, then drain; None: the program's own.
    - `params`: other values of the program's named parameters.
    - `trace`: keep every action, for `Run.actions` (slower, and memory grows with the length of the run).
    - `check`: test the ownership equation of every pool after every action (slower).
    - `stop_on_verdict`: end an instance at a deadlock or livelock instead of at its horizon.
    - `coalesce`: pass iterations of equal composition in one update where the program allows it (`check` says where);
      False: one by one, with the same results. A run with `trace` always takes them one by one.
    - `progress`: what to report to, for example `BarProgress()`; default: nothing.

    A table of a cost that is read outside its points is a `RangeWarning` with the number of iterations, where they
    pass one by one; a program that takes many at once is watched with `serqjax.ranges.watch_tables`.

    **Returns:** a `Run`, or `Runs` with the seeds in their order. An instance that fails does not raise: its verdict
    says so, and `raise_for_verdict()` turns it into an exception. Interrupted with Ctrl-C, the seeds finished so far
    are returned and `unfinished_seeds` names the others.

    **Raises:** `ProgramError` for a program that is not valid; `ValueError` for an argument; `VerdictError` if a single
    run ends with the verdict `error` (it carries the run so far); `KeyboardInterrupt` if nothing had finished.
    """
    if seed is not None and seeds is not None:
        raise ValueError("seed and seeds exclude each other")
    many = seeds is not None
    chosen = seed_list(seeds if many else [prog.seed if seed is None else seed])
    prog = with_span(with_params(prog, params or {}), horizon_s=horizon_s, warmup_s=warmup_s, arrivals=arrivals)
    if prog.tables:
        licences = [stage.licence for stage in check_program(prog).stages]
        if trace or not coalesce or not any(licence is not None and licence.windows for licence in licences):
            prog = watch_tables(prog)  # the claims cost nothing where iterations pass one by one anyway
    require_valid(prog)
    raws = _simulate(
        prog,
        chosen,
        trace=trace,
        check=check,
        stop_on_verdict=stop_on_verdict,
        coalesce=coalesce,
        progress=progress or NoProgress(),
    )
    done = tuple(raw for raw in raws if raw is not None)
    if not done:
        raise KeyboardInterrupt("interrupted before any seed had finished")
    for raw in done:
        warn_outside(prog, raw)
    if many:
        return Runs(prog, done, tuple(s for s, raw in zip(chosen, raws) if raw is None))
    single = Run(prog, done[0])
    if single.verdict == "error":
        raise VerdictError(single.failures()[0], single)
    return single


def _simulate(prog: ir.Program, seeds: list[int], **options: Any) -> list[Any]:
    """The array engine's runs, one per seed, None where an interrupt came first. (Imports JAX.)"""
    from .engine import simulate

    return simulate(prog, seeds, **options)


def run_many(
    programs: Iterable[ir.Program],
    seeds: Iterable[int] | None = None,
    *,
    trace: bool = False,
    check: bool = False,
    stop_on_verdict: bool = False,
    coalesce: bool = True,
    progress: AbstractProgress | None = None,
) -> list[Run]:
    """Run any programs in one call, each under one seed: variants of a deployment, a set of recorded scenarios.

    Programs of one structure (they differ in numbers, listed sessions or traces alone) share a compiled loop and
    run side by side, so that hundreds of small ones take about as long as one.

    **Arguments:**
    - `programs`: in any order and mixture; the same program may come several times, with different seeds.
    - `seeds`: one per program, 0 to 2^64 - 1, equal ones allowed (default: each program's own).
    - `trace`, `check`, `stop_on_verdict`, `coalesce`, `progress`: as in `run`.

    **Returns:** one `Run` per program, in their order. An instance that fails does not raise: its verdict says so.

    **Raises:** `ProgramError` with the problems of all programs that are not valid or that the engine cannot run,
    before anything runs; `ValueError` for an argument; `Interrupted`, a `KeyboardInterrupt` with the runs that had
    finished, after Ctrl-C.
    """
    options = {"trace": trace, "check": check, "stop_on_verdict": stop_on_verdict, "coalesce": coalesce}
    return run_all(list(programs), seeds, progress=progress or NoProgress(), **options)


def run_all(every: list[ir.Program], seeds: Iterable[int] | None, **options: Any) -> list[Run]:
    """`run_many` with every option of the engine's `simulate_many`."""
    chosen = [prog.seed for prog in every] if seeds is None else _whole_seeds(seeds)
    if len(chosen) != len(every):
        raise ValueError(f"{len(every)} programs and {len(chosen)} seeds: give one seed per program")
    _check_all(every)
    if not every:
        return []
    raws = _simulate_many(every, chosen, **options)
    missing = sum(raw is None for raw in raws)
    if missing:
        done = {i: Run(every[i], raw) for i, raw in enumerate(raws) if raw is not None}
        raise Interrupted(f"interrupted: {missing} of {len(every)} programs had not finished", done)
    return [Run(prog, raw) for prog, raw in zip(every, raws)]


def _check_all(programs: Sequence[ir.Program]) -> None:
    """**Raises:** `ProgramError` with the problems of all programs, each with the program's place."""
    problems: list[Problem] = []
    seen: set[int] = set()
    for i, prog in enumerate(programs):
        if id(prog) not in seen:
            seen.add(id(prog))
            found = find_problems(prog) or unsupported(prog)
            problems += [Problem(f"programs[{i}]: {p.path}", p.problem, p.hint) for p in found]
    if problems:
        raise ProgramError(problems)


def _simulate_many(programs: list[ir.Program], seeds: list[int], **options: Any) -> list[Any]:
    """The array engine's runs, one per program, None where an interrupt came first. (Imports JAX.)"""
    from .engine import simulate_many

    return simulate_many(programs, seeds, **options)


def _whole_seeds(seeds: Iterable[int]) -> list[int]:
    """Seeds as Python integers. **Raises:** `ValueError` for one out of range."""
    chosen = [int(s) for s in seeds]
    for s in chosen:
        if not 0 <= s <= LARGEST_SEED:
            raise ValueError(f"seed {s}: a whole number from 0 to 2^64 - 1 is needed")
    return chosen


def seed_list(seeds: Iterable[int]) -> list[int]:
    """Seeds as Python integers. **Raises:** `ValueError` without one, for one out of range or named twice."""
    chosen = _whole_seeds(seeds)
    if not chosen:
        raise ValueError("seeds is empty: give at least one seed, for example range(64)")
    if len(set(chosen)) < len(chosen):
        raise ValueError("a seed is named twice: equal seeds give equal runs, and intervals need independent ones")
    return chosen


def to_json(prog: ir.Program) -> str:
    """A program as automaton JSON, which `read` reads back exactly."""
    from .ir.codec import to_json

    return to_json(prog)


def run_reference(
    source: str | os.PathLike[str],
    *,
    workload: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int | None = None,
    seeds: Iterable[int] | None = None,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    arrivals: int | None = None,
    progress: AbstractProgress | None = None,
) -> Any:
    """Run a serQ IR 14 JSON or `.serq` file with the reference interpreter, pyserq, one seed after another.

    Arguments as `read` and `run`. **Returns:** a result whose document has the shape of `run`'s; what pyserq does not
    report is null. **Raises:** `ProgramError`, `ValueError`; `MissingExtra` without pyserq.
    """
    from .pyserq_runner import run_pyserq

    one = seeds is None
    return run_pyserq(
        source,
        workload=workload,
        settings=dict(settings or {}),
        seeds=None if one and seed is None else seed_list([seed] if one else seeds),  # type: ignore[list-item]
        many=not one,
        span={"horizon": horizon_s, "warmup": warmup_s, "arrivals": arrivals},
        progress=progress or NoProgress(),
    )


__all__ = ["Checked", "check", "draw", "program", "run", "run_many", "run_reference", "to_json"]
