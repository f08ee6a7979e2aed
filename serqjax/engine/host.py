"""Running a batch from the host: tape refills, drained buffers, larger tables where one ran full.

The compiled loop advances all instances until each is done or waits; between its calls the host refills
the tape, takes the samples out of the buffers and reports progress, so that no buffer grows with
the length of a run.

**Source:** `design.md`, section 4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..check.fragment import unsupported
from ..errors import ProgramError
from ..ir.program import Program
from ..ir.structure import number
from ..progress import AbstractProgress, NoProgress
from ..report.raw import RawRun, Verdict
from ..tape.streams import trace_choices
from .access import FAR
from .faults import Fault
from .lane import RUNNING, Capacities, Data, Job, Tape, fields
from .loop import MACHINE_AHEAD, final_needs, loop, refill, refill_current
from .plan import Plan, make_plan
from .result import Drained, raw_run
from .step import Config, action_margin
from .tables import likely_sessions, session_data, ticks
from .xla import prepare

#: Loop turns of an instance between two looks at the host (Ctrl-C, drained buffers).
TURNS_A_CALL = 20_000
#: Instances of one unit of work on a CPU. One size for every batch, so that a program compiles once.
UNIT = 8
TAPE_BYTES = 1 << 16

#: An instance that is over: its place in the batch, its result, and the fault that ended it.
Finished = tuple[int, RawRun, Fault]


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
    - `capacities`: sizes of the tables. None: chosen; a table that runs full is enlarged and its instances run again.
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
    """Run programs, each with its own seed; those of one structure share a compiled loop. See `simulate`."""
    if len(programs) != len(seeds):
        raise ValueError(f"{len(programs)} programs and {len(seeds)} seeds: give as many of one as of the other")
    if not programs:
        return []
    made: dict[int, tuple[Plan, tuple[float, ...], tuple[int, ...]]] = {}
    groups: dict[Plan, list[int]] = {}
    for i, program in enumerate(programs):
        if id(program) not in made:
            problems = unsupported(program)
            if problems:
                raise ProgramError(problems)
            made[id(program)] = make_plan(program)
        groups.setdefault(made[id(program)][0], []).append(i)
    prepare()
    results: list[RawRun | None] = [None] * len(programs)
    shared = SharedProgress(progress, len(programs))
    try:
        with settings():
            for plan, members in groups.items():
                config = Config(check=check, together=jax.default_backend() != "cpu")
                chosen = [programs[i] for i in members]
                batch = Batch.build(plan, made, chosen, [seeds[i] for i in members], config, trace, stop_on_verdict)
                for i, run in zip(members, batch.run(capacities, shared)):
                    results[i] = run
                if shared.interrupted:
                    break
    finally:
        progress.close()
    return results


class SharedProgress:
    """One progress for several batches."""

    def __init__(self, progress: AbstractProgress, total: int):
        self.progress, self.done, self.interrupted = progress, 0, False
        progress.start(total)

    def add(self, finished: int) -> None:
        self.done += finished
        self.progress.advance(self.done)


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
        cls, plan: Plan, made: dict[int, Any], programs: list[Program], seeds: list[int], config: Config, trace: bool,
        stop: bool,
    ) -> Batch:  # fmt: skip
        """`made`: numbers and integers of each program, by identity; equal programs are stored once."""
        places: dict[int, int] = {}
        unique = []
        for program in programs:
            if id(program) not in places:
                places[id(program)] = len(unique)
                unique.append(program)
        return cls(
            plan=plan,
            config=config,
            trace=trace,
            programs=unique,
            which=[places[id(p)] for p in programs],
            seeds=seeds,
            numbers=np.asarray([made[id(p)][1] for p in unique], np.float64).reshape(len(unique), -1),
            integers=np.asarray([made[id(p)][2] for p in unique], np.int64).reshape(len(unique), -1),
            data=jax.tree.map(jnp.asarray, session_data(unique)),
            stop=stop,
        )

    def auto(self) -> Capacities:
        """First sizes: enough for what is certain, small enough to be fast."""
        known = max(likely_sessions(p) for p in self.programs)
        slots = 32
        while slots < known + 1:
            slots *= 2
        # sessions on the tape between two refills: 64 KiB of it, so that a refill is rare and the tape stays in cache
        ahead = min(1024, max(64, TAPE_BYTES // (8 * self.plan.tape_width)))
        return Capacities(slots=slots, entries=2 * slots, ahead=ahead)

    def run(self, capacities: Capacities | None, progress: SharedProgress) -> list[RawRun | None]:
        """Run everything in units, on all cores; instances whose tables ran full run again with larger ones."""
        results: list[RawRun | None] = [None] * len(self.seeds)
        todo = list(range(len(self.seeds)))
        cap = capacities or self.auto()
        size = len(todo) if self.config.together else UNIT
        stop = threading.Event()
        workers = 1 if self.config.together else max(1, min(cores(), -(-len(todo) // size)))
        pool = ThreadPoolExecutor(max_workers=workers)
        try:
            while todo:
                units = [todo[i : i + size] for i in range(0, len(todo), size)]
                again, larger = [], cap
                for finished in as_completed([pool.submit(self.run_unit, unit, cap, size, stop) for unit in units]):
                    kept = 0
                    for index, run, fault in finished.result():
                        if fault in (Fault.slots, Fault.entries) and capacities is None:
                            again.append(index)
                            larger = _enlarged(larger, cap, fault)
                        else:
                            results[index] = run
                            kept += 1
                    progress.add(kept)
                todo, cap = sorted(again), larger
        except KeyboardInterrupt:
            stop.set()  # units end at their next look at the host
            progress.interrupted = True
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return results

    # ------------------------------------------------------------ one call of the loop after the other

    def run_unit(self, todo: list[int], cap: Capacities, size: int, stop: threading.Event) -> list[Finished]:
        """Run the instances `todo` with tables of size `cap`, as `size` lanes of one compiled loop.

        Lanes without an instance are over before they begin.
        """
        with settings():
            return self._run_unit(todo, cap, size, stop)

    def _run_unit(self, todo: list[int], cap: Capacities, size: int, stop: threading.Event) -> list[Finished]:
        plan = self.plan
        cap = dataclasses.replace(
            cap,
            gaps=max(cap.gaps, 3 * cap.slots),
            actions=(16384 + 2 * action_margin(plan, cap.slots)) if self.trace else 0,
        )
        lanes = todo + [todo[0]] * (size - len(todo))
        which = np.asarray([self.which[i] for i in lanes])
        programs = [self.programs[k] for k in which]
        job = Job(
            numbers=jnp.asarray(self.numbers[which]),
            integers=jnp.asarray(self.integers[which]),
            horizon=jnp.asarray([ticks(number(p, p.horizon_s), p.tick_s) for p in programs], jnp.int64),
            warmup=jnp.asarray([ticks(number(p, p.warmup_s), p.tick_s) for p in programs], jnp.int64),
            limit=jnp.asarray([FAR if p.arrivals is None else p.arrivals for p in programs], jnp.int64),
            which=jnp.asarray(which, jnp.int32),
            stop=jnp.full((size,), self.stop),
        )
        seeds = jnp.asarray(np.asarray([self.seeds[i] % (1 << 64) for i in lanes], np.uint64))
        one = fields(plan, cap, plan.skeleton.tick_s)
        first = {k: np.broadcast_to(v, (size, *v.shape)).copy() for k, v in one.items()}
        first["verdict"][len(todo) :] = Verdict.drained
        state = {k: jnp.asarray(v) for k, v in first.items()}
        run = loop(plan, self.config)
        choices = Choices(programs, [self.seeds[i] for i in lanes])
        base = np.zeros((size,), np.int64)
        machine = np.zeros((size,), np.int64)
        tape = self.make_tape(job, seeds, base, machine, cap.ahead, choices)
        drained = Drained(size)
        memory = {
            "state": sum(v.nbytes for k, v in one.items() if k not in Drained.NAMES),
            "tape": sum(x.nbytes for x in jax.tree.leaves(tape)) // size,
            "buffers": sum(v.nbytes for k, v in one.items() if k in Drained.NAMES),
        }
        while True:
            state, _ = run(state, job, self.data, tape, jnp.int64(TURNS_A_CALL))
            over = (np.asarray(state["verdict"]) != RUNNING) | (np.asarray(state["fault"]) != 0)
            state = drained.take(state)
            if over.all() or stop.is_set():
                break
            arrived, drawn = np.asarray(state["arrived"]), np.asarray(state["drawn"])
            dry = (arrived + 1 - base >= cap.ahead) | (drawn + plan.machine_draws - machine > MACHINE_AHEAD)
            if (dry & ~over).any():
                base, machine = arrived.copy(), drawn.copy()
                tape = self.make_tape(job, seeds, base, machine, cap.ahead, choices)
            if plan.turns_ahead or plan.own_draws:
                state = refill_current(plan)(state, seeds)
            state["stall"] = jnp.zeros_like(state["stall"])
        return self.collect(todo, over, state, drained, job, tape, programs, memory)

    def make_tape(
        self, job: Job, seeds: Any, base: np.ndarray, machine: np.ndarray, ahead: int, choices: Choices
    ) -> Tape:
        gap, draws, shared = refill(self.plan, ahead)(job.numbers, seeds, jnp.asarray(base), jnp.asarray(machine))
        return Tape(
            base=jnp.asarray(base),
            gap=gap,
            draws=draws,
            script=jnp.asarray(choices.rows(base, ahead)),
            machine_base=jnp.asarray(machine),
            machine=shared,
        )

    def collect(
        self, todo: list[int], over: np.ndarray, state: Any, drained: Drained, job: Job, tape: Tape,
        programs: list[Program], memory: dict[str, int],
    ) -> list[Finished]:  # fmt: skip
        pools = len(self.plan.skeleton.pools)
        needs = np.full((len(over), pools, pools), -1.0)
        if self.plan.has_holds and bool((np.asarray(state["queued"]) > 0).any()):
            needs = np.asarray(final_needs(self.plan)(state, job, self.data, tape))
        final = {k: np.asarray(v) for k, v in state.items() if k not in ("draws", *Drained.NAMES)}
        finished = []
        for lane, index in enumerate(todo):
            if over[lane]:
                values = {k: v[lane] for k, v in final.items()}
                run = raw_run(
                    self.plan, programs[lane], self.seeds[index], values, drained, lane, needs[lane], self.trace
                )
                run.extra["memory_bytes"] = memory
                finished.append((index, run, Fault(int(final["fault"][lane]))))
        return finished


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


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
