"""Running a batch from the host: tape refills, drained buffers, larger tables where one ran full.

The compiled loop advances all instances until each is done or waits; between its calls the host refills
the tape, takes the samples out of the buffers and reports progress, so that no buffer grows with
the length of a run.

**Source:** `design.md`, section 4.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..check.fragment import unsupported
from ..errors import ProgramError
from ..ir.program import Program
from ..ir.structure import number
from ..progress import AbstractProgress, NoProgress
from ..report.raw import RawRun
from ..tape.streams import trace_choices
from .access import FAR
from .faults import Fault
from .lane import RUNNING, Capacities, Data, Job, Tape, fields
from .loop import final_needs, loop, refill, refill_current
from .plan import Plan, make_plan
from .result import Drained, raw_run
from .step import Config, action_margin
from .tables import first_sessions, session_data, ticks
from .xla import prepare

#: Loop turns between two looks at the host (progress, Ctrl-C).
TURNS_A_CALL = 20_000


def simulate(
    program: Program,
    seeds: Sequence[int],
    *,
    trace: bool = False,
    check: bool = False,
    stop_on_verdict: bool = False,
    capacities: Capacities | None = None,
    progress: AbstractProgress = NoProgress(),
) -> list[RawRun | None]:
    """Run one program under several seeds as one batch.

    **Arguments:**
    - `program`: a checked program. `seeds`: unsigned 64-bit, one instance each.
    - `trace`: keep the action trace. `check`: verify the ownership equation after every action.
    - `stop_on_verdict`: end an instance at a livelock or deadlock instead of at its horizon.
    - `capacities`: first sizes of the tables (None: chosen); a table that runs full is enlarged and its instances run again.
    - `progress`: told the number of finished instances.

    **Returns:** one `RawRun` per seed; None where Ctrl-C came before it finished.

    **Raises:** `ProgramError` for a program outside the engine's fragment.
    """
    return simulate_many(
        [program] * len(seeds),
        seeds,
        trace=trace,
        check=check,
        stop_on_verdict=stop_on_verdict,
        capacities=capacities,
        progress=progress,
    )


def simulate_many(
    programs: Sequence[Program],
    seeds: Sequence[int],
    *,
    trace: bool = False,
    check: bool = False,
    stop_on_verdict: bool = False,
    capacities: Capacities | None = None,
    progress: AbstractProgress = NoProgress(),
) -> list[RawRun | None]:
    """Run structurally equal programs, each with its own seed, as one batch. See `simulate`."""
    if len(programs) != len(seeds):
        raise ValueError(f"{len(programs)} programs and {len(seeds)} seeds: give as many of one as of the other")
    if not programs:
        return []
    distinct: dict[int, int] = {}
    unique: list[Program] = []
    which = []
    for program in programs:
        if id(program) not in distinct:
            distinct[id(program)] = len(unique)
            unique.append(program)
        which.append(distinct[id(program)])
    problems = unsupported(unique[0])
    if problems:
        raise ProgramError(problems)
    prepare()
    with settings():
        batch = Batch.build(unique, which, list(seeds), Config(check=check, together=jax.default_backend() != "cpu"), trace, stop_on_verdict)
        return batch.run(capacities, progress)


@contextlib.contextmanager
def settings() -> Iterator[None]:
    """64-bit mode and JAX's default promotion rules while the engine traces and runs, whatever the caller has set."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@dataclasses.dataclass
class Batch:
    """A batch of instances of one plan."""

    plan: Plan
    config: Config
    trace: bool
    programs: list[Program]
    which: list[int]
    seeds: list[int]
    numbers: np.ndarray
    integers: np.ndarray
    data: Data
    stop: bool

    @classmethod
    def build(
        cls, programs: list[Program], which: list[int], seeds: list[int], config: Config, trace: bool, stop: bool
    ) -> Batch:
        made = [make_plan(p) for p in programs]
        plan = made[0][0]
        for i, (other, _, _) in enumerate(made):
            if other != plan:
                raise ValueError(f"program {i} differs from program 0 in more than numbers: run it in a batch of its own")
        return cls(
            plan=plan,
            config=config,
            trace=trace,
            programs=programs,
            which=which,
            seeds=seeds,
            numbers=np.asarray([m[1] for m in made], np.float64).reshape(len(made), -1),
            integers=np.asarray([m[2] for m in made], np.int64).reshape(len(made), -1),
            data=session_data(programs),
            stop=stop,
        )

    def auto(self) -> Capacities:
        """First sizes: enough for what is certain, small enough to be fast."""
        known = max(first_sessions(p) for p in self.programs)
        slots = 32
        while slots < known + 1:
            slots *= 2
        return Capacities(slots=slots, entries=2 * slots)

    def run(self, capacities: Capacities | None, progress: AbstractProgress) -> list[RawRun | None]:
        """Run everything; instances whose tables ran full run again with larger ones."""
        results: list[RawRun | None] = [None] * len(self.seeds)
        todo = list(range(len(self.seeds)))
        cap = capacities or self.auto()
        progress.start(len(todo))
        done = 0
        try:
            while todo:
                again: list[int] = []
                larger = cap
                for index, run, fault in self.run_some(todo, cap, progress, done):
                    if fault in (Fault.slots, Fault.entries) and capacities is None:
                        again.append(index)
                        larger = _enlarged(larger, cap, fault)
                        continue
                    results[index] = run
                    done += 1
                todo, cap = again, larger
        except KeyboardInterrupt:
            pass
        finally:
            progress.close()
        return results

    # ------------------------------------------------------------ one call of the loop after the other

    def run_some(self, todo: list[int], cap: Capacities, progress: AbstractProgress, before: int) -> Any:
        """Run the instances `todo` with tables of size `cap`; yields (index, RawRun, fault)."""
        plan = self.plan
        slots = cap.slots
        cap = dataclasses.replace(
            cap,
            gaps=max(cap.gaps, 3 * slots),
            actions=(2048 + 2 * action_margin(plan, slots)) if self.trace else 0,
        )
        n = len(todo)
        which = np.asarray([self.which[i] for i in todo])
        programs = [self.programs[k] for k in which]
        job = Job(
            numbers=jnp.asarray(self.numbers[which]),
            integers=jnp.asarray(self.integers[which]),
            horizon=jnp.asarray([ticks(number(p, p.horizon_s), p.tick_s) for p in programs], jnp.int64),
            warmup=jnp.asarray([ticks(number(p, p.warmup_s), p.tick_s) for p in programs], jnp.int64),
            limit=jnp.asarray([FAR if p.arrivals is None else p.arrivals for p in programs], jnp.int64),
            which=jnp.asarray(which, jnp.int32),
            stop=jnp.full((n,), self.stop),
        )
        seeds = jnp.asarray(np.asarray([self.seeds[i] % (1 << 64) for i in todo], np.uint64))
        data = jax.tree.map(jnp.asarray, self.data)
        one = fields(plan, cap, plan.skeleton.tick_s)
        state = {k: jnp.asarray(np.broadcast_to(v, (n, *v.shape)).copy()) for k, v in one.items()}
        run = loop(plan, self.config)
        choices = Choices(programs, [self.seeds[i] for i in todo])
        base = np.zeros((n,), np.int64)
        tape = self.make_tape(job, seeds, base, cap.ahead, choices)
        drained = Drained(n)
        try:
            while True:
                state, _ = run(state, job, data, tape, jnp.int64(TURNS_A_CALL))
                verdict = np.asarray(state["verdict"])
                fault = np.asarray(state["fault"])
                state = drained.take(state)
                over = (verdict != RUNNING) | (fault != 0)
                progress.advance(before + int(over.sum()))
                if over.all():
                    break
                arrived = np.asarray(state["arrived"])
                if ((arrived + 1 - base >= cap.ahead) & ~over).any():
                    base = arrived.copy()
                    tape = self.make_tape(job, seeds, base, cap.ahead, choices)
                if plan.turns_ahead or plan.own_draws:
                    state = refill_current(plan)(state, seeds)
                state["stall"] = jnp.zeros_like(state["stall"])
        except KeyboardInterrupt:
            yield from self.collect(todo, state, drained, job, data, tape, programs, only_over=True)
            raise
        yield from self.collect(todo, state, drained, job, data, tape, programs, only_over=False)

    def make_tape(self, job: Job, seeds: Any, base: np.ndarray, ahead: int, choices: Choices) -> Tape:
        gap, draws = refill(self.plan, ahead)(job.numbers, seeds, jnp.asarray(base))
        return Tape(
            base=jnp.asarray(base), gap=gap, draws=draws, script=jnp.asarray(choices.rows(base, ahead))
        )

    def collect(
        self, todo: list[int], state: Any, drained: Drained, job: Job, data: Data, tape: Tape, programs: list[Program],
        only_over: bool,
    ) -> Any:  # fmt: skip
        pools = len(self.plan.skeleton.pools)
        needs = np.full((len(todo), pools, pools), -1.0)
        if self.plan.has_holds and bool((np.asarray(state["queued"]) > 0).any()):
            needs = np.asarray(final_needs(self.plan)(state, job, data, tape))
        # per-instance rows on the host, buffers apart
        final = {k: np.asarray(v) for k, v in state.items() if k not in ("samples", "actions", "requests", "gaps", "draws")}
        for lane, index in enumerate(todo):
            fault = Fault(int(final["fault"][lane]))
            if only_over and final["verdict"][lane] == RUNNING and fault == Fault.none:
                continue
            values = {k: v[lane] for k, v in final.items()}
            yield (
                index,
                raw_run(self.plan, programs[lane], self.seeds[index], values, drained, lane, needs[lane], self.trace),
                fault,
            )


def _enlarged(larger: Capacities, cap: Capacities, fault: Fault) -> Capacities:
    if fault == Fault.slots:
        return dataclasses.replace(larger, slots=cap.slots * 4, entries=max(larger.entries, cap.entries * 2))
    return dataclasses.replace(larger, entries=cap.entries * 4)


class Choices:
    """Which trace session each arriving session replays, by serial; made on the host as far as needed."""

    def __init__(self, programs: list[Program], seeds: list[int]):
        self.programs, self.seeds = programs, seeds
        self.known = [np.zeros((0,), np.int64) for _ in programs]

    def rows(self, base: np.ndarray, ahead: int) -> np.ndarray:
        """`[instances, ahead]` int32: scripts of the sessions from `base` on."""
        out = np.zeros((len(self.programs), ahead), np.int32)
        for i, program in enumerate(self.programs):
            trace = program.trace
            if trace is None:
                continue
            count = len(trace.turns)
            last = int(base[i]) + ahead
            if trace.ordered:
                out[i] = (np.arange(base[i], last) % count).astype(np.int32)
                continue
            if len(self.known[i]) < last:
                self.known[i] = trace_choices(self.seeds[i], 2 * last, count)
            out[i] = self.known[i][int(base[i]) : last]
        return out
