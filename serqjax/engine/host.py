"""Running a batch from the host: drained buffers, larger tables where one ran full.

The compiled loop advances all instances until each is done or waits; between its calls the host takes the samples out
of the buffers and reports progress, so that no buffer grows with the length of a run.

**Source:** `design.md`, section 4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import numpy as np

from ..check.fragment import unsupported
from ..errors import ProgramError
from ..ir.program import Listed, Program, Recorded
from ..ir.structure import number
from ..progress import AbstractProgress, NoProgress
from ..report.raw import RawRun, Verdict
from ..tape.streams import trace_choices
from .access import FAR
from .faults import Fault
from .lane import Data, Job, Tape
from .layout import BUFFERS, Layout, Packed
from .loop import final_needs, final_waits, loop
from .make_plan import make_plan
from .plan import Plan
from .result import Drained, raw_run
from .state import RUNNING, Capacities, fields
from .step import Config, action_margin
from .tables import likely_sessions, recordings, rows_of, session_data, ticks
from .units import Once, unit_sizes
from .workspace import Workspace, workspace
from .xla import prepare

#: Loop turns of an instance between two looks at the host (Ctrl-C, drained buffers).
TURNS_A_CALL = 20_000
#: Units of the largest blocks that windows are used with.
MOST_PHASES = 256
#: Lanes of one unit of work on a CPU. One number for every batch, so that a program compiles once.
UNIT = 16
#: Samples and requests between two drains in native code. No power of two: columns would stand at the same places of a
#: cache's lines.
NATIVE_ENTRIES = 8_200
#: Listed sessions up to which all may have a row each.
MOST_LISTED = 32_768

#: Sizes of tables that most instances of a plan have needed.
_learned: dict[Plan, Capacities] = {}


@contextlib.contextmanager
def teaches_no_slots() -> Iterator[None]:
    """Runs inside, overloaded ones for example, do not change for how many sessions later runs begin with room."""
    before = dict(_learned)
    try:
        yield
    finally:
        for plan, cap in _learned.items():
            _learned[plan] = dataclasses.replace(cap, slots=before[plan].slots if plan in before else 0)


def expect(program: Program, **least: int) -> None:
    """Tables of at least these sizes for runs of programs of this structure: fields of `Capacities`, powers of two.

    For a caller who knows how many sessions will be there at once: a table that is too small at first costs another
    compilation.
    """
    plan, _, _ = make_plan(program)
    sizes = dataclasses.replace(Capacities(), **least)
    _learned[plan] = _union(_learned.get(plan, sizes), sizes)


#: An instance that is over: its place in the batch, its result, and the fault that ended it.
Finished = tuple[int, RawRun, Fault]

#: What is kept of an instance: called with its place and its result, in the caller's thread, as soon as it is there.
Keep = Callable[[int, RawRun], Any]


def whole_run(place: int, run: RawRun) -> RawRun:
    """All of it."""
    return run


#: Whether an instance that a full table has ended says enough as it is: called with its place and what there is of it.
Enough = Callable[[int, RawRun], bool]


def never(place: int, run: RawRun) -> bool:
    """It runs again with larger tables."""
    return False


def simulate(
    program: Program,
    seeds: Sequence[int],
    *,
    trace: bool = False,
    check: bool = False,
    stop_on_verdict: bool = False,
    coalesce: bool = True,
    capacities: Capacities | None = None,
    progress: AbstractProgress = NoProgress(),
) -> list[RawRun | None]:
    """Run one program under several seeds as one batch.

    **Arguments:**
    - `program`: a checked program. `seeds`: unsigned 64-bit, one instance each.
    - `trace`: keep the action trace. `check`: verify the ownership equation after every action.
    - `stop_on_verdict`: end an instance at a livelock or deadlock instead of at its horizon.
    - `coalesce`: pass iterations of equal composition in one update (the results are the same; never with `trace`).
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
        coalesce=coalesce,
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
    coalesce: bool = True,
    capacities: Capacities | None = None,
    progress: AbstractProgress = NoProgress(),
    keep: Keep = whole_run,
    enough: Enough = never,
) -> list[Any]:
    """Run programs, each with its own seed; those of one structure share a compiled loop. See `simulate`.

    - `keep`: what the result holds of each instance (default: its `RawRun`). A study that keeps a row of numbers
      needs the memory of the instances that run, not of all.
    - `enough`: whether an instance that a full table has ended is an answer as it is (default: never; it runs again).
    """
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
    results: list[Any] = [None] * len(programs)
    shared = SharedProgress(progress, len(programs))
    try:
        with settings():
            for plan, members in groups.items():
                config = Config(check=check, form="native" if jax.default_backend() == "cpu" else "together")
                chosen = [programs[i] for i in members]
                mine = [seeds[i] for i in members]
                batch = Batch.build(plan, made, chosen, mine, config, trace, stop_on_verdict, coalesce)
                kept = batch.run(
                    capacities, shared, lambda place, run, at=members: keep(at[place], run),
                    lambda place, run, at=members: enough(at[place], run),
                )  # fmt: skip
                for i, run in zip(members, kept):
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
    """A batch of instances of one plan.

    `which`: the program of each instance; `scripts`: the row of `data` that each program reads.
    """

    plan: Plan
    config: Config
    trace: bool
    programs: list[Program]
    which: list[int]
    scripts: list[int]
    seeds: list[int]
    numbers: np.ndarray
    integers: np.ndarray
    ends: np.ndarray
    data: Data  # on the host
    stop: bool
    coalesce: bool
    make_loop: Callable[[Plan, Config], Any] = loop  # or another implementation of it

    @classmethod
    def build(
        cls, plan: Plan, made: dict[int, Any], programs: list[Program], seeds: list[int], config: Config, trace: bool,
        stop: bool, coalesce: bool = True,
    ) -> Batch:  # fmt: skip
        """`made`: numbers and integers of each program, by identity; equal programs are stored once."""
        places: dict[int, int] = {}
        unique: list[Program] = []
        for program in programs:
            if id(program) not in places:
                places[id(program)] = len(unique)
                unique.append(program)
        rows, scripts = recordings(unique)
        return cls(
            plan=plan,
            config=config,
            trace=trace,
            programs=unique,
            which=[places[id(p)] for p in programs],
            scripts=scripts,
            seeds=seeds,
            numbers=np.asarray([made[id(p)][1] for p in unique], np.float64).reshape(len(unique), -1),
            integers=np.asarray([made[id(p)][2] for p in unique], np.int64).reshape(len(unique), -1),
            ends=np.asarray([run_bounds(p) for p in unique], np.int64),
            data=session_data(rows),
            stop=stop,
            coalesce=coalesce,
        )

    def auto(self) -> Capacities:
        """First sizes: enough for what is certain, small enough to be fast."""
        known = max(likely_sessions(p) for p in self.programs)
        # Open arrivals tell nothing; sessions wait at each engine of a fleet, which compiles longest a second time.
        slots = 64 if not known and len(self.plan.step_stages) > 1 else 32
        while slots < known + 1:
            slots *= 2
        blocks = [number(p, pool.block) or 0 for p in self.programs for pool in p.pools if pool.block is not None]
        phases = 16
        while phases < min(max([0, *blocks]), MOST_PHASES):
            phases *= 2
        chain = Capacities.chain
        while chain < max(map(recorded_blocks, self.programs)):
            chain *= 2
        sizes = Capacities(slots=slots, phases=phases, chain=chain)
        if self.config.form == "native":  # few instances run at once: drained seldom
            return dataclasses.replace(sizes, samples=NATIVE_ENTRIES, requests=NATIVE_ENTRIES)
        return sizes

    def bounded(self, cap: Capacities) -> Capacities:
        """`cap`, with room for all sessions if they are listed, few enough, and a second try was not enough: every
        further one would run most of the way again."""
        listed = [len(p.arrival.at) for p in self.programs if isinstance(p.arrival, Listed)]
        if cap.slots > 1024 and len(listed) == len(self.programs) and max(listed) < MOST_LISTED:
            return dataclasses.replace(cap, slots=1 << max(listed).bit_length())
        return cap

    def run(
        self, capacities: Capacities | None, progress: SharedProgress, keep: Keep = whole_run, enough: Enough = never
    ) -> list[Any]:
        """Run everything in units, on all cores; instances whose tables ran full run again with larger ones."""
        results: list[Any] = [None] * len(self.seeds)
        todo = list(range(len(self.seeds)))
        first = self.auto()
        cap = capacities or _union(first, _learned.get(self.plan, first))
        targets = devices()
        size = -(-len(todo) // len(targets)) if self.config.together else UNIT
        stop = threading.Event()
        workers = len(targets) if self.config.together else max(1, min(cores(), len(todo)))
        pool = ThreadPoolExecutor(max_workers=workers)
        compiled = Once()
        self.make_loop(self.plan, self.config)  # here, so that the threads do not make one each

        def run_unit(unit: list[int], place: int) -> tuple[Capacities, list[Finished]]:
            used = cap  # of the moment in which the unit starts
            lanes = len(unit) if self.config.form == "native" else size  # what XLA compiles has one number of lanes
            with workspace() as space:
                return used, self.run_unit(unit, used, lanes, stop, targets[place % len(targets)], compiled, space)

        try:
            while todo:
                left, parts = iter(todo), 1 if self.config.together else workers
                units = [list(itertools.islice(left, share)) for share in unit_sizes(len(todo), size, parts)]
                again: list[int] = []
                larger = cap
                for done in as_completed([pool.submit(run_unit, unit, k) for k, unit in enumerate(units)]):
                    used, finished = done.result()
                    full = 0
                    for index, run, fault in finished:
                        full_tables = (Fault.slots, Fault.entries, Fault.seats, Fault.blocks, Fault.leases, Fault.holds)
                        if fault in full_tables and capacities is None and not enough(index, run):
                            again.append(index)
                            larger = _union(larger, self.bounded(_enlarged(used, fault)))
                            full += 1
                        else:
                            results[index] = keep(index, run)
                    progress.add(len(finished) - full)
                    if 2 * full > len(finished):
                        # not an exception: the units to come, and later batches, begin with the larger tables
                        cap = _learned[self.plan] = larger
                todo, cap = sorted(again), larger
        except KeyboardInterrupt:
            stop.set()  # units end at their next look at the host
            progress.interrupted = True
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return results

    # ------------------------------------------------------------ one call of the loop after the other

    def run_unit(
        self, todo: list[int], cap: Capacities, size: int, stop: threading.Event, device: Any, compiled: Once,
        space: Workspace,
    ) -> list[Finished]:  # fmt: skip
        """Run the instances `todo` on a device with tables of size `cap`, as `size` lanes of one compiled loop.

        Lanes without an instance are over before they begin.
        """
        with settings(), jax.default_device(device):
            return self._run_unit(todo, cap, size, stop, lambda action: compiled((cap, device), action), space)

    def _run_unit(
        self, todo: list[int], cap: Capacities, size: int, stop: threading.Event,
        first_call: Callable[[Callable[[], object]], None], space: Workspace,
    ) -> list[Finished]:  # fmt: skip
        plan = self.plan
        blocks = most_blocks(self.programs)
        cap = dataclasses.replace(
            cap,
            blocks=blocks,
            chain=min(cap.chain, blocks),
            holds=min(cap.holds, cap.slots),
            gaps=max(cap.gaps, 3 * cap.slots),
            points=max(cap.points, 8 * len(plan.gauges)),
            phases=cap.phases if self.coalesce and not self.trace else 0,
            actions=(16384 + 2 * action_margin(plan, cap.slots)) if self.trace else 0,
        )
        lanes = todo + [todo[0]] * (size - len(todo))
        which = np.asarray([self.which[i] for i in lanes])
        programs = [self.programs[k] for k in which]
        horizon, warmup, limit = self.ends[which].T
        data, scripts = self.data, np.asarray([self.scripts[k] for k in which], np.int32)
        if not self.config.together:
            data, scripts = rows_of(data, scripts)
        numbers: dict[str, Any] = {
            "numbers": self.numbers[which], "integers": self.integers[which], "horizon": horizon, "warmup": warmup,
            "limit": limit, "which": scripts, "stop": np.full((size,), self.stop),
            "seed": np.asarray([self.seeds[i] % (1 << 64) for i in lanes], np.uint64),
        }  # fmt: skip
        job, data = self.on_device((Job(**numbers), data))
        layout, first, memory = beginning(plan, cap)
        rows = {dtype: np.repeat(row[None], size, axis=0) for dtype, row in first.items()}
        layout.view(rows, "verdict")[len(todo) :] = Verdict.drained
        room = space.buffers(layout, size) if self.config.form == "native" else {}
        state = Packed(rows, layout, room)
        run = self.make_loop(plan, self.config)
        choices = Choices(programs, [self.seeds[i] for i in lanes])
        base = np.zeros((size,), np.int64)
        tape = self.make_tape(base, cap.ahead, choices)
        drained = Drained(size, space)
        memory = memory | {"tape": sum(x.nbytes for x in jax.tree.leaves(tape)) // size}
        first_call(lambda: run(state, job, data, tape, np.int64(0)))  # a call of no turns compiles
        while True:
            (state, buffers), _ = run(dataclasses.replace(state, buffers=room), job, data, tape, np.int64(TURNS_A_CALL))
            rows = {dtype: np.asarray(x) for dtype, x in state.rows.items()}
            over = (layout.view(rows, "verdict") != RUNNING) | (layout.view(rows, "fault") != 0)
            last = bool(over.all()) or stop.is_set()
            drained.take({name: layout.view(rows, f"{name}_n") for name in buffers}, buffers, last)
            if last:
                break
            arrived = layout.view(rows, "arrived")
            if choices.needed and (~over & (arrived + 1 - base >= cap.ahead)).any():
                base = arrived.copy()
                tape = self.make_tape(base, cap.ahead, choices)
        return self.collect(todo, over, Packed(rows, layout), drained, job, data, tape, programs, memory)

    def make_tape(self, base: np.ndarray, ahead: int, choices: Choices) -> Tape:
        columns: dict[str, Any] = {"base": base, "script": choices.rows(base, ahead if choices.needed else 1)}
        return self.on_device(Tape(**columns))

    def on_device(self, tree: Any) -> Any:
        """Arrays where the loop takes them from."""
        return tree if self.config.form == "native" else jax.device_put(tree)

    def collect(
        self, todo: list[int], over: np.ndarray, state: Packed, drained: Drained, job: Job, data: Data, tape: Tape,
        programs: list[Program], memory: dict[str, int],
    ) -> list[Finished]:  # fmt: skip
        """The results of the instances that are over. `state`: its rows on the host."""
        pools = len(self.plan.skeleton.pools)
        needs = np.full((len(over), pools, pools), -1.0)
        if self.plan.has_holds and bool((state.layout.view(state.rows, "queued") > 0).any()):
            needs = np.asarray(final_needs(self.plan)(state, job, data, tape))
        waits = None
        if self.plan.has_legs and self.plan.has_holds and bool(state.layout.view(state.rows, "joining").any()):
            waits = [np.asarray(x) for x in final_waits(self.plan)(state, job, data, tape)]
        finished = []
        for lane, index in enumerate(todo):
            if over[lane]:
                values = state.layout.lane(state.rows, lane)
                stuck = None if waits is None else (waits[0][lane], waits[1][lane])
                run = raw_run(
                    self.plan, programs[lane], self.seeds[index], values, drained, lane, needs[lane], stuck,
                    self.numbers[self.which[index]], self.trace,
                )  # fmt: skip
                run.extra["memory_bytes"] = memory
                run.extra["turns"] = int(values["loop_turns"])
                finished.append((index, run, Fault(int(values["fault"]))))
        return finished


@functools.lru_cache(maxsize=64)
def beginning(plan: Plan, cap: Capacities) -> tuple[Layout, dict[str, np.ndarray], dict[str, int]]:
    """An instance that has not started: where its arrays stand, its rows, and its bytes by kind."""
    one = fields(plan, cap, plan.skeleton.tick_s)
    layout = Layout.of(one)
    memory = {
        "state": sum(v.nbytes for k, v in one.items() if k not in BUFFERS),
        "buffers": sum(v.nbytes for k, v in one.items() if k in BUFFERS),
    }
    return layout, layout.row(one), memory


def most_blocks(programs: Sequence[Program]) -> int:
    """Blocks of the largest pool that shares them by content, in steps; 1 if there is none."""
    counts = [
        (number(p, pool.cap) or 0) / (number(p, pool.block) or 1)
        for p in programs for pool in p.pools if pool.sharing == "content"
    ]  # fmt: skip
    size = 1
    while size < max([0.0, *counts]):
        size *= 2
    return size


def recorded_blocks(program: Program) -> float:
    """Blocks of the longest recorded contents of a session."""
    rows = getattr(program.trace or program.arrival, "contents", ())
    spans = [
        (number(program, part.span) or 0) / (number(program, pool.block) or 1)
        for pool in program.pools for part in pool.content if isinstance(part, Recorded)
    ]  # fmt: skip
    return max([0.0, *spans]) * max([0, *map(len, rows)])


def run_bounds(program: Program) -> tuple[int, int, int]:
    """Horizon and warm-up in ticks, and the number of arrivals; `FAR` where there is none."""
    return (
        ticks(number(program, program.horizon_s), program.tick_s),
        ticks(number(program, program.warmup_s), program.tick_s),
        FAR if program.arrivals is None else program.arrivals,
    )


def devices() -> list[Any]:
    """Devices that share a batch: all of this process, or the one that JAX is told to use."""
    chosen = getattr(jax.config, "jax_default_device", None)
    return [chosen] if isinstance(chosen, jax.Device) else jax.local_devices()


def cores() -> int:
    """Cores this process may use: `$SERQJAX_CORES` if it says so, else those that the system gives it."""
    if named := os.environ.get("SERQJAX_CORES", ""):
        if not named.isdecimal() or int(named) < 1:
            raise ValueError(f"SERQJAX_CORES={named}: a whole number of at least 1 is needed")
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _enlarged(used: Capacities, fault: Fault) -> Capacities:
    """The sizes to try after `used` with an instance that ended with `fault`: more of what ran out."""
    if fault == Fault.slots:
        return dataclasses.replace(used, slots=used.slots * 4)
    if fault == Fault.entries:
        return dataclasses.replace(used, entries=used.entries * 4)
    if fault == Fault.blocks:
        return dataclasses.replace(used, chain=used.chain * 4)
    if fault == Fault.holds:
        return dataclasses.replace(used, holds=used.holds * 4)
    if fault == Fault.leases:
        return dataclasses.replace(used, leases=used.leases * 2)
    return dataclasses.replace(used, seats=used.seats * 4)


def _union(a: Capacities, b: Capacities) -> Capacities:
    """Tables that hold what either holds."""
    return Capacities(*(max(x, y) for x, y in zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)))


class Choices:
    """Which trace session each arriving session replays, by serial; made on the host as far as needed."""

    def __init__(self, programs: list[Program], seeds: list[int]):
        self.programs, self.seeds = programs, seeds
        self.needed = any(p.trace is not None for p in programs)
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
