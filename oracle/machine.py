"""The sequential machine: events, instants, sessions, verdicts.

**Source:** semantics.md sections 1, 2, 3 and 15; design.md section 2.7 for the verdicts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from serqjax.ir import program as ir
from serqjax.ir.fabric import fabrics
from serqjax.ir.program import Program
from serqjax.ir.structure import number
from serqjax.ir.time import seconds
from serqjax.report.raw import Action, RawRun, Verdict

from . import deadlines, scopes
from .automaton import Automaton
from .check import check_ownership
from .expressions import Compiler, EndError, Look, RunError, who
from .measures import Claims, Gauges
from .planner import Step
from .pools import Pool
from .progress import Progress
from .result import collect
from .session import Session, Status
from .sharing import Link, ProcessorSharing, Sharing, find_flow_rates
from .stages import Delay, Fifo, Job, Stage, is_stale
from .statistics import ActionTrace, Clients, Gaps, Samples, Signal
from .streams import EVICT_SALT, MACHINE_SALT, TRACE_SALT, WORKLOAD, Stream, sub_seed
from .support import require_supported

NEVER = 1 << 62  # ticks; an event so late is not pushed
Event = tuple[int, int, Callable[[Any], None], Any]
MOST_READY = 1000  # times that a session may become ready at one instant


def simulate(
    program: Program,
    seed: int | None = None,
    *,
    trace: bool = False,
    check: bool = False,
    stop_on_verdict: bool = False,
) -> RawRun:
    """Run one seed of a program, one action at a time.

    **Arguments:**
    - `seed`: of all random streams; None: the program's.
    - `trace`: keep the action trace (`RawRun.trace`).
    - `check`: verify `allocated + cached + free = cap` of every pool after every action.
    - `stop_on_verdict`: end at a livelock or deadlock instead of at the horizon.

    **Raises:** `Unsupported` for a program with parts that are not run yet; run-time errors of the
    program are the verdict `error` with their text as `cause`.
    """
    require_supported(program)
    machine = Machine(program, program.seed if seed is None else seed, trace=trace, check=check)
    return machine.run(stop_on_verdict)


class Machine:
    def __init__(self, program: Program, seed: int, *, trace: bool = False, check: bool = False):
        self.program, self.seed, self.check = program, seed, check
        self.tick_s = program.tick_s
        horizon_s = number(program, program.horizon_s)
        self.horizon_tick = None if horizon_s is None else self.ticks(horizon_s)
        self.warmup_tick = self.ticks(number(program, program.warmup_s) or 0.0)

        # names to places
        self.slots = {a.name: i for i, a in enumerate(program.attrs)}
        self.pool_index = {p.name: i for i, p in enumerate(program.pools)}
        self.stage_index = {s.name: i for i, s in enumerate(program.stages)}
        self.scope_index = {s.name: i for i, s in enumerate(program.scopes)}
        self.state_index = {s.name: i for i, s in enumerate(program.states)}
        self.observe_index = {name: i for i, name in enumerate(program.observes)}
        self.register_index = {r.name: i for i, r in enumerate(program.registers)}

        # evolving
        self.now_tick = 0
        self.warm = self.warmup_tick == 0
        self.heap: list[Event] = []
        self.pushed = 0
        self.ready: list[Session] = []
        self.live: dict[int, Session] = {}
        self.legs: list[Session] = []  # those running, orphans too
        self.admissions = self.releases = self.dead = self.jobs = 0
        self.arrived = self.ended = self.turns = self.events = 0
        self.registers = [number(program, r.init) or 0.0 for r in program.registers]
        self.machine_stream = Stream(seed ^ MACHINE_SALT)
        self.evict_stream = Stream(seed ^ EVICT_SALT)
        self.trace_stream = Stream(seed ^ TRACE_SALT)
        self.arrival_stream = Stream(seed)
        self.progress = Progress(self)

        # output
        self.samples, self.clients = Samples(), Clients(self)
        self.trace = ActionTrace() if trace else None
        self.signal_live = Signal()

        # the program
        self.pools: list[Pool] = []
        self.stages: list[Stage] = []
        self.compiler = Compiler(self)
        parts = fabrics(program)
        self.shared = {stage for fabric in parts for stage in fabric.stages}
        self.links: dict[int, Link] = {}
        self.flows = Sharing(self, find_flow_rates(self.links, parts))
        self.pools.extend(Pool(self, i, pool) for i, pool in enumerate(program.pools))
        self.stages.extend(self.make_stage(i, stage) for i, stage in enumerate(program.stages))
        # the rates of those without jobs together come first, in index order, then those of all flows
        self.sharings = [stage.sharing for stage in self.stages if isinstance(stage, ProcessorSharing)] + [self.flows]
        self.engines = [stage for stage in self.stages if isinstance(stage, Step)]
        self.admitted_by = [[p for p in self.pools if p.admit_via == i] for i in range(len(self.stages))]
        self.memory_of = [{e.index for e in self.engines if e.memory == i} for i in range(len(self.pools))]
        self.gaps = [Gaps(stage.totals, self.tick_s) for stage in self.stages]
        self.scopes = [scopes.Scope(self, scope) for scope in program.scopes]
        self.gauges, self.claims = Gauges(self), Claims(self)
        #: Deadlines of waiting in a line, by state. With any, who is put back into a line is at its `Enter` again.
        self.patience: dict[int, deadlines.Deadline] = {}
        self.automaton = Automaton(self)

    def make_stage(self, index: int, stage: ir.Stage) -> Stage:
        match stage.kind:
            case ir.Fifo():
                return Fifo(self, index, stage.kind)
            case ir.Delay():
                return Delay(self, index)
            case ir.ProcessorSharing() if index in self.shared:
                link = self.links[index] = Link(self, index, stage.kind)
                return link
            case ir.ProcessorSharing():
                return ProcessorSharing(self, index, stage.kind)
            case ir.Step():
                return Step(self, index, stage.kind)
        raise TypeError(f"no such stage: {stage.kind!r}")

    # ------------------------------------------------------------ small things

    def members(self, array: str, places: dict[str, int]) -> list[int]:
        """Places of the members of an array of pools or stages, by index."""
        parts = self.program.pools if places is self.pool_index else self.program.stages
        named = [(part.index or 0, i) for i, part in enumerate(parts) if part.array == array]
        return [i for _, i in sorted(named)]

    def ticks(self, span_s: float) -> int:
        """Seconds as whole ticks, half to even."""
        if span_s != span_s:
            raise RunError("a time is NaN, not a number of seconds")
        ratio = span_s / self.tick_s
        return NEVER if ratio >= NEVER else round(ratio)

    def push(self, tick: int, handle: Callable[[Any], None], what: Any) -> Event | None:
        """Events at one tick fire in the order in which they were pushed. None: never."""
        if tick >= NEVER:
            return None
        event = (tick, self.pushed, handle, what)
        heapq.heappush(self.heap, event)
        self.pushed += 1
        return event

    def cancel(self, event: Event | None) -> None:
        """An event will not be: nothing of it is left."""
        if event is not None and event in self.heap:
            self.heap.remove(event)
            heapq.heapify(self.heap)

    def act(self, kind: Action, serial: int, place: int, amount: float) -> None:
        if self.trace is not None:
            self.trace.add(self.now_tick, kind, serial, place, amount)
        if self.check:
            check_ownership(self)

    def set_attr(self, session: Session, name: str, value: float) -> None:
        """Built-in attributes exist where the program declares them."""
        if name in self.slots:
            session.attrs[self.slots[name]] = value

    def turn_no(self, session: Session) -> int:
        slot = self.slots.get("turn_no")
        return session.turns if slot is None else int(session.attrs[slot])

    def events_to_come(self) -> bool:
        return any(not is_stale(what) for *_, what in self.heap)

    def next_job(self) -> int:
        self.jobs += 1
        return self.jobs - 1

    def next_admission(self) -> int:
        self.admissions += 1
        return self.admissions - 1

    def next_release(self) -> int:
        self.releases += 1
        return self.releases - 1

    def next_dead(self) -> int:
        """Key of a dead entry: -1 - its number."""
        self.dead += 1
        return -self.dead

    def pools_admitted_by(self, stage: int) -> list[Pool]:
        return self.admitted_by[stage]

    def engines_of_memory(self, pool: int) -> set[int]:
        return self.memory_of[pool]

    # ------------------------------------------------------------ the run

    def run(self, stop_on_verdict: bool) -> RawRun:
        verdict, cause, last_tick = Verdict.error, "", 0
        try:
            self.start()
            self.settle()
            while self.heap and not self.drained():
                if self.horizon_tick is not None and self.heap[0][0] > self.horizon_tick:
                    break
                if self.progress.livelock and (stop_on_verdict or self.horizon_tick is None):
                    break
                if self.heap[0][0] > self.now_tick:
                    self.gauges.read()
                self.now_tick, _, handle, what = heapq.heappop(self.heap)
                self.events += 1
                if not is_stale(what):
                    last_tick = self.now_tick
                handle(what)
                self.settle()
            self.now_tick = last_tick  # stale events change nothing
            self.gauges.read()
            verdict, cause = self.progress.verdict()
            stopped = stop_on_verdict and verdict in (Verdict.livelock, Verdict.deadlock)
            if self.program.arrivals is None and self.horizon_tick is not None and not stopped:
                self.now_tick = self.horizon_tick
            if verdict is Verdict.error:
                cause = self.dated(cause)
            self.claims.run_ends()
        except RunError as error:
            if self.progress.livelock:  # such a run may let no time pass
                verdict, cause = Verdict.livelock, self.progress.livelock
            else:
                cause = str(error) if isinstance(error, EndError) else self.dated(str(error))
        return collect(self, verdict, cause)

    def dated(self, cause: str) -> str:
        """The cause of an error and its time."""
        return f"{cause}, at t = {seconds(self.now_tick, self.tick_s):.10g} s"

    def start(self) -> None:
        if not self.warm:
            self.push(self.warmup_tick, self.end_warmup, None)
        arrival = self.program.arrival
        match arrival:
            case ir.Poisson():
                self.push(0, self.arrive, None)
            case ir.Renewal():
                self.push(self.gap_tick(), self.arrive, None)
            case ir.Closed(n=n) | ir.Batch(n=n):
                for _ in range(int(number(self.program, n) or 0)):
                    self.spawn()
            case ir.Listed(at=at):
                # rows of time 0 start now; all others wait in the heap before anything pushed later
                for at_s in at:
                    if self.ticks(at_s) > 0:
                        self.push(self.ticks(at_s), self.arrive, None)
                    else:
                        self.spawn()

    def drained(self) -> bool:
        """Exactly N arrivals: all have come and ended."""
        arrivals = self.program.arrivals
        return arrivals is not None and self.arrived >= arrivals and not self.live

    def settle(self) -> None:
        """Finish everything that the instant allows; iterations start last."""
        self.calm()
        for pool in self.pools:
            if pool.is_open and self.is_last():
                pool.is_open = False
                scopes.pass_over(self, pool)
        for engine in self.engines:
            if self.is_last() and engine.wants_to_start():
                engine.start()
        for sharing in self.sharings:
            sharing.settle()
        for pool in self.pools:
            pool.open_next()
        self.record()

    def is_last(self) -> bool:
        """Whether no event is left at this instant."""
        return not self.heap or self.heap[0][0] > self.now_tick

    def calm(self) -> None:
        """Run who is ready and try all pools, until nobody is ready."""
        while True:
            self.run_ready()
            scopes.retry(self)
            if not self.ready:
                break

    def record(self) -> None:
        now_tick = self.now_tick
        self.signal_live.record(now_tick, len(self.live))
        for pool in self.pools:
            pool.record(now_tick)
        for stage in self.stages:
            stage.record(now_tick)

    def signals(self) -> list[Signal]:
        parts = [s for part in (*self.pools, *self.stages) for s in part.signals()]
        return [self.signal_live, *parts]

    def end_warmup(self, _: None) -> None:
        self.warm = True
        for signal in self.signals():
            signal.restart(self.now_tick)

    # ------------------------------------------------------------ arrivals

    def gap_tick(self) -> int:
        match self.program.arrival:
            case ir.Poisson(rate=rate):
                value = number(self.program, rate) or 0.0
                return self.ticks(-math.log(1.0 - self.arrival_stream.uniform()) / value)
            case ir.Renewal(gap=gap):
                gap_s = self.compiler.expr(gap)(Look([], self.arrival_stream))
                if not gap_s > 0.0:
                    raise RunError("the gap between arrivals is not positive")
                return self.ticks(gap_s)
        raise TypeError("no gaps in this arrival law")

    def arrive(self, _: None) -> None:
        if isinstance(self.program.arrival, ir.Poisson | ir.Renewal):
            if self.program.arrivals is None or self.arrived < self.program.arrivals - 1:
                self.push(self.now_tick + self.gap_tick(), self.arrive, None)
        self.spawn()

    def spawn(self) -> None:
        program, serial = self.program, self.arrived
        attrs = [0.0] * len(program.attrs)
        session = Session(serial, attrs, self.state_index[program.start], self.seed)
        self.set_attr(session, "serial", float(serial))
        if program.trace is not None:
            n = len(program.trace.turns)
            session.script = serial % n if program.trace.ordered else self.trace_stream.below(n)
        elif isinstance(program.arrival, ir.Listed):
            session.script = serial
        self.arrived += 1
        self.live[serial] = session
        self.act(Action.arrive, serial, 0, 0.0)
        if not self.automaton.has_turns:
            self.clients.open(session, 0)
        self.reseed_workload(session)
        self.automaton.init(session)
        if isinstance(program.arrival, ir.Listed) and program.arrival.values:
            for name, value in zip(program.arrival.attrs, program.arrival.values[serial]):
                if value is not None:
                    attrs[self.slots[name]] = value
        self.claims.session_starts(session)
        self.make_ready(session)

    def reseed_workload(self, session: Session) -> None:
        stream = Stream(sub_seed(self.seed, session.serial, session.turns, WORKLOAD))
        session.workload_look = Look(session.attrs, stream, session)

    # ------------------------------------------------------------ sessions

    def make_ready(self, session: Session) -> None:
        deadlines.disarm(self, session)
        session.status = Status.ready
        if session.ready_tick != self.now_tick:
            session.ready_tick, session.ready_count = self.now_tick, 0
        session.ready_count += 1
        if session.ready_count > MOST_READY:
            raise RunError(f"{who(session)}became ready {MOST_READY + 1} times without time passing")
        self.ready.append(session)

    def run_ready(self) -> None:
        while self.ready:
            session = self.ready.pop(0)
            if session.status is Status.ready:
                self.automaton.run(session)

    def work_for_nobody(self, stage: int, work: float) -> None:
        """A job that belongs to no session."""
        if work > 0.0:
            job = Job(None, "Plain", work, -1, self.now_tick, stages=(stage,), number=self.next_job())
            self.stages[stage].take(job, 0.0)

    def withdraw(self, session: Session) -> None:
        """Leave the stage, the line or the growers; no deadline stands any more."""
        deadlines.disarm(self, session)
        if session.job is not None:
            self.stages[session.stage].withdraw(session.job)
            session.job = None
        if session.waiting is not None:
            self.pools[session.waiting.pools[0]].line.remove(session.waiting)
            session.waiting = None
        if session.growing_pool >= 0:
            pool = self.pools[session.growing_pool]
            pool.growers = [g for g in pool.growers if g.session is not session]
            session.growing_pool = -1

    def close(self, session: Session) -> None:
        """Open scopes are given back innermost first, without trying the lines."""
        self.withdraw(session)
        while session.scopes:
            scopes.give_back(self, session, finished=True)

    def fork(self, session: Session, state: int) -> None:
        """A leg with a copy of the attributes goes to the end of the ready list."""
        leg = Session(session.serial, session.attrs.copy(), state, self.seed, forked_by=session, leg=session.forks)
        leg.turns = session.turns
        session.forks += 1
        session.legs += 1
        self.legs.append(leg)
        self.make_ready(leg)

    def end_leg(self, leg: Session) -> None:
        """The leg is gone; a session that waits for it goes on when it was the last."""
        self.leg_goes(leg)
        root = leg.root
        if root.status is Status.joining and not root.legs:
            self.make_ready(root)

    def leg_goes(self, leg: Session) -> None:
        """Its scopes are closed; its leases pass to its session, or end where that has gone before."""
        self.close(leg)
        if leg.root.status is Status.ended:
            self.end_leases(leg)
        else:
            scopes.pass_leases(self, leg)
        leg.status = Status.ended
        self.legs.remove(leg)
        leg.root.legs -= 1

    def reject(self, session: Session) -> None:
        """A refused hold ends the session; the legs that run go on without it. A refused leg ends with its session."""
        root = session.root
        if session is not root:
            self.leg_goes(session)
        if root.status is not Status.ended:
            self.end_session(root, rejected=True)

    def end_leases(self, session: Session) -> None:
        while session.leases:
            scopes.end_lease(self, session.leases[0])

    def end_session(self, session: Session, *, rejected: bool = False) -> None:
        """Its scopes are closed and its leases end; its cache entries stay."""
        if session.legs and not rejected:
            state = self.program.states[session.state].name
            raise RunError(f"{who(session)}ends while a leg it forked runs: join before the end, at state `{state}`")
        if rejected and session.request is not None:
            session.request.rejected = session.request.open
        self.clients.respond(session)
        self.close(session)
        self.end_leases(session)
        for pool in self.pools:
            if pool.pool.on_end == "free":
                pool.drop(session.serial)
        session.status = Status.ended
        del self.live[session.serial]
        self.ended += self.warm
        self.act(Action.end, session.serial, 0, 0.0)
        if isinstance(self.program.arrival, ir.Closed):
            self.spawn()
