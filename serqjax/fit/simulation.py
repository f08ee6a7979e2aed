"""Fit parameters of a program to the request times of real runs, by simulating populations of candidates.

Every generation is one batched call: candidates x runs. Common random numbers and equal requests make differences
between candidates their own. First an optimiser searches; then, near the best, each request's residual is taken as a
linear function of the parameters (regressed on a cloud of candidates, wider than a step of the engine), which gives
the last digits, the intervals (a bootstrap over requests) and what the data cannot tell apart.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..check import require_valid
from ..errors import ProgramError
from ..ir.program import Listed, Program
from . import surface
from .data import RunData, SummaryData, read_data
from .intervals import identify
from .measured import gaps_of, times_of
from .optimisers import OPTIMISERS, Space
from .polish import NEARBY, WIDEST, Polish, numbers
from .result import Fit
from .surface import Scored
from .targets import AbstractTarget, Requests, Summaries, Times

#: Loss of a candidate whose run does not serve all requests.
STUCK = 1e3
#: Residuals above this count linearly in the loss: a few first tokens that miss an iteration must not rule.
SOFT = 0.1
#: Bounds of a free parameter without any: so many times below and above its value in the program.
REACH = 30.0
LOSSES = ("ttft", "tpot", "e2e")


class Problem:
    """A program, the runs it is fitted to, and the residuals of candidates.

    Of each residual, `[rows]`: `kinds`, its run and metric; `blocks`, neighbours in time.
    """

    def __init__(self, program: Program, data: Sequence[RunData | SummaryData], space: Space, loss: Sequence[str],
                 holdout: float):
        self.space = space
        self.programs = [with_requests(program, run) for run in data]
        for made in self.programs:
            require_valid(made)
        self.targets: list[AbstractTarget] = [
            Requests(run, loss, holdout) if isinstance(run, RunData) else Summaries(run, made)
            for run, made in zip(data, self.programs)
        ]
        most = max(int(target.kinds.max()) for target in self.targets) + 1
        runs = np.repeat(np.arange(len(self.targets)), [len(target.kinds) for target in self.targets])
        self.kinds = np.concatenate([target.kinds for target in self.targets]) + most * runs
        self.blocks = surface.blocks(runs, np.concatenate([target.moments for target in self.targets]))
        _expect(self.programs, data)

    def simulate(self, points: np.ndarray, gaps: bool = False) -> list[list[Times]]:
        """Request times of each candidate in each run: one batched call. `gaps`: those between tokens too, for which
        iterations are passed one by one."""
        from ..engine import simulate_many
        from ..results import Run

        programs = [made.with_params(self.space.params(x)) for x in points for made in self.programs]
        raws = simulate_many(programs, [p.seed for p in programs], stop_on_verdict=True, trace=gaps)
        if any(raw is None for raw in raws):
            raise KeyboardInterrupt("interrupted in a generation")
        n = len(self.programs)
        sizes = [target.requests for target in self.targets]
        runs = [Run(p, raw) for p, raw in zip(programs, raws)]
        times: list[Times] = [times_of(run, sizes[i % n]) for i, run in enumerate(runs)]
        if gaps:
            times = [made | {"gaps_s": gaps_of(run, sizes[i % n])} for i, (made, run) in enumerate(zip(times, runs))]
        return [times[i : i + n] for i in range(0, len(times), n)]

    def score(self, points: np.ndarray) -> Scored:
        residuals = np.stack([
            np.concatenate([target.residuals(found) for target, found in zip(self.targets, times)])
            for times in self.simulate(points)
        ])  # fmt: skip
        soft = 2.0 * SOFT**2 * (np.sqrt(1.0 + (residuals / SOFT) ** 2) - 1.0)
        losses = np.where(np.isnan(soft).any(axis=1), STUCK, np.sqrt(np.nan_to_num(soft).mean(axis=1)))
        return Scored(points, residuals, losses)


def with_requests(program: Program, run: RunData | SummaryData) -> Program:
    """The program with the requests of a run (its own ones for summaries), and its engine settings where the program
    has parameters of their names.

    **Raises:** `ProgramError` for a program whose requests are not listed ones with prompt and output tokens.
    """
    arrival = program.arrival
    if not (isinstance(arrival, Listed) and arrival.turn_attrs == ("new", "out")):
        hint = "compose the deployment with `workloads.from_trace(...)`"
        raise ProgramError.at("$.arrival", "a fit replays the requests of a run, and this program lists none", hint)
    if isinstance(run, RunData):
        contents = arrival.contents if len(arrival.contents) == len(run) else ()
        turns = tuple(((float(i), float(o)),) for i, o in zip(run.input_tok, run.output_tok))
        arrival = msgspec.structs.replace(arrival, at=tuple(run.sent_s.tolist()), contents=contents, turns=turns)
    names = {p.name for p in program.params}
    own = {key: float(value) for key, value in run.settings if key in names}
    return msgspec.structs.replace(program, arrival=arrival).with_params(own)


def _expect(programs: Sequence[Program], data: Sequence[RunData | SummaryData]) -> None:
    """Tables with room for what the measured runs had at once: smaller ones would be compiled first, in vain."""
    from ..engine.host import expect

    there = served = 1
    for run in (run for run in data if isinstance(run, RunData)):
        there = max(there, _at_once(run.sent_s, run.last_s))
        served = max(served, _at_once(run.first_s, run.last_s))
    for made in programs[:1]:
        expect(made, slots=_power(there + 1), seats=_power(served), holds=_power(served))


def _at_once(begin: np.ndarray, end: np.ndarray) -> int:
    """The most that are there at once."""
    moments = np.sort(begin)
    return int((np.arange(1, len(begin) + 1) - np.searchsorted(np.sort(end), moments, side="left")).max())


def _power(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()


class Journal:
    """Generations as they are evaluated, a JSON line each; those of an earlier, interrupted fit are not run again."""

    def __init__(self, path: str | os.PathLike[str] | None, head: dict[str, Any]):
        self.path = None if path is None else Path(path)
        self.known: list[dict[str, Any]] = []
        if self.path is not None and self.path.is_file():
            lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
            if not lines or lines[0] != head:
                raise ValueError(f"{self.path} is the journal of another fit: remove it or name another file")
            self.known = lines[1:]
        elif self.path is not None:
            self.path.write_text(json.dumps(head) + "\n", encoding="utf-8")

    def score(self, problem: Problem, points: np.ndarray) -> Scored:
        if self.known:
            row = self.known.pop(0)
            if not np.allclose(points, row["points"], rtol=1e-9, atol=1e-12):
                raise ValueError(f"{self.path} does not continue as this fit would: remove it")
            residuals = np.asarray([[np.nan if v is None else v for v in r] for r in row["residuals"]])
            return Scored(np.asarray(row["points"]), residuals, np.asarray(row["losses"]))
        scored = problem.score(points)
        if self.path is not None:
            residuals = [[None if np.isnan(v) else v for v in row] for row in scored.residuals.tolist()]
            made = {"points": points.tolist(), "residuals": residuals, "losses": scored.losses.tolist()}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(made) + "\n")
        return scored


def search(
    prog: Program,
    *,
    data: Iterable[RunData | SummaryData | str | os.PathLike[str]],
    free: Iterable[str] | Mapping[str, tuple[float, float] | None],
    holdout: float,
    loss: Sequence[str],
    population: int,
    generations: int,
    restarts: int,
    method: str,
    prior: float,
    sigma: float,
    seed: int,
    level: float,
    last: int | None,
    report: Callable[[str], None] | None,
    journal: str | os.PathLike[str] | None,
) -> Fit:
    """See `serqjax.fit.fit`."""
    runs = [run if isinstance(run, (RunData, SummaryData)) else read_data(run) for run in data]
    guess = {p.name: p.value for p in prog.params}
    bounds = dict(free) if isinstance(free, Mapping) else dict.fromkeys(free)
    _check_arguments(runs, bounds, guess, loss, holdout, method)
    space = Space.of({name: b or (guess[name] / REACH, guess[name] * REACH) for name, b in bounds.items()})
    problem = Problem(prog, runs, space, loss, holdout)
    start = space.point(guess)
    head = {"free": {n: list(b) if b else None for n, b in bounds.items()}, "guess": start.tolist(), "seed": seed,
            "population": population, "method": method, "sigma": sigma, "loss": list(loss), "holdout": holdout,
            "prior": prior, "runs": [[target.name, target.requests] for target in problem.targets]}  # fmt: skip
    notes = Journal(journal, head)
    tell = report or (lambda line: None)

    def score(points: np.ndarray) -> Scored:
        scored = notes.score(problem, points)
        away = (((points - start) / np.log(10.0)) ** 2).sum(axis=1)
        return dataclasses.replace(scored, losses=scored.losses + prior * away)

    def pull(loss: float) -> float:
        """`prior` is added to a root of a mean: as much, added to half the sum of squares of weighted residuals."""
        return prior * len(problem.kinds) / max(loss, 1e-9) / np.log(10.0) ** 2

    polish = Polish(score, space, problem.kinds, seed, pull, start, tell)
    ends = []
    for k in range(restarts):
        begin = start
        if k > 0:
            begin = space.clip(start + np.random.default_rng(seed + 1000 * k).normal(0.0, 2 * sigma, len(start)))
        if generations > 0:
            begin = _search(score, space, begin, population, generations, sigma, seed + k, method, tell, k)
        ends.append(polish.descend(begin, WIDEST if generations > 0 else NEARBY, f"start {k}"))
    at, loss_there = min(ends, key=lambda end: end[1])
    bottom = polish.bottom(at, loss_there, last)
    best, lowest = bottom.best, bottom.loss
    base = problem.simulate(best[None], gaps=any(isinstance(run, RunData) and bool(run.gaps_s) for run in runs))[0]
    tables = identify(space, bottom, problem.blocks, level, seed)
    return Fit(
        guess={n: guess[n] for n in space.names}, best=space.params(best), loss=lowest, level=level,
        errors=tuple(target.errors(found) for target, found in zip(problem.targets, base)),
        runs=tuple(run.name for run in runs), rows=tuple(target.requests for target in problem.targets),
        set_aside=tuple((run.name, *row) for run in runs for row in run.set_aside),
        pairs=tuple(target.pairs(found) for target, found in zip(problem.targets, base)), **tables,
    )  # fmt: skip


def _check_arguments(runs: Sequence[Any], bounds: Mapping[str, Any], guess: Mapping[str, float], loss: Sequence[str],
                     holdout: float, method: str) -> None:
    if not runs:
        raise ValueError("data is empty: give at least one run")
    if not bounds:
        raise ValueError("free is empty: name at least one parameter")
    for name, pair in bounds.items():
        if name not in guess:
            raise ValueError(f"{name} is no parameter of the program: it has {', '.join(guess)}")
        if pair is None and not guess[name] > 0.0:
            raise ValueError(f"{name} is {guess[name]:g} in the program: give its bounds, two numbers above 0")
    if unknown := [name for name in loss if name not in LOSSES]:
        raise ValueError(f"loss: {unknown[0]!r} is not known: use {', '.join(LOSSES)}")
    if not loss or not 0.0 <= holdout < 1.0:
        raise ValueError(f"holdout={holdout}: a fraction of the requests, 0 <= holdout < 1, and some loss are needed")
    if method not in OPTIMISERS:
        raise ValueError(f"method={method!r} is not known: use {', '.join(OPTIMISERS)}")


def _search(score: Callable[[np.ndarray], Scored], space: Space, begin: np.ndarray, population: int, generations: int,
            sigma: float, seed: int, method: str, tell: Callable[[str], None], k: int) -> np.ndarray:
    """The best candidate of one search; ends early when eight generations bring less than a percent."""
    optimiser = OPTIMISERS[method](space, begin, population, sigma, seed)
    best: tuple[np.ndarray, float] = (begin, np.inf)
    history: list[float] = []
    for g in range(generations):
        points = optimiser.ask()
        if g == 0:
            points[0] = begin
        scored = score(points)
        optimiser.tell(points, scored.losses)
        i = int(np.argmin(scored.losses))
        if scored.losses[i] < best[1]:
            best = (points[i].copy(), float(scored.losses[i]))
        history.append(best[1])
        tell(f"start {k} generation {g:3}  loss {best[1]:.5f}  " + numbers(space, best[0]))
        if len(history) > 8 and history[-9] - history[-1] < 0.01 * history[-1]:
            break
    return best[0]
