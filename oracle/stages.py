"""What all stages have: jobs, their latency, estimates. Stages whose jobs do not share: fifo servers and delays.

**Source:** semantics.md sections 9 and 13.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serqjax.ir import program as ir
from serqjax.ir.fabric import WORK_PARTS
from serqjax.ir.structure import number
from serqjax.ir.time import seconds
from serqjax.report.raw import StageTotals

from .expressions import RunError
from .statistics import Signal

if TYPE_CHECKING:
    from .machine import Machine
    from .session import Session


@dataclass(slots=True, eq=False)
class Job:
    """One run of a session on a stage; `work` in seconds, on a step stage the tokens left.

    `stages`: places of all stages that it holds, the run's own first. `number` counts the jobs of the machine.
    `lagging`: its latency has not passed. `rate`: of what is left, where it shares a capacity. The job of a spill is
    nobody's (`Machine.work_for_nobody`).
    """

    owner: Session | None
    mode: str
    work: float
    then: int
    enqueue_tick: int
    grows: int = -1  # pool
    start_tick: int = -1
    end_tick: int = -1
    finish: tuple | None = None  # the event of its end, on a stage that works in seconds
    present: bool = True
    stages: tuple[int, ...] = ()
    number: int = 0
    lagging: bool = False
    rate: float = 0.0

    @property
    def session(self) -> Session:
        """Whose it is, if it is somebody's."""
        assert self.owner is not None
        return self.owner

    @property
    def stale(self) -> bool:
        """Whether nothing happens at what is scheduled for it."""
        return not self.present

    @property
    def decoding(self) -> bool:
        return self.mode == "Decode"


def is_stale(what: Any) -> bool:
    """Whether the event about `what` was overtaken: it is counted, and nothing happens."""
    return getattr(what, "stale", False)


def exact_sum(values: Iterable[float]) -> float:
    """A sum that does not depend on the order: whole parts and parts of 2**-46 apart."""
    whole = parts = 0
    for value in values:
        low = math.floor(value)
        whole += low
        parts += round((value - low) * WORK_PARTS)
    return float(whole) + parts / WORK_PARTS


class Estimate:
    """Exponential averages (weight 0.01) of start gaps, services and waits, fed at completions."""

    WEIGHT = 0.01

    def __init__(self) -> None:
        self.last_start: float | None = None
        self.gap: float | None = None
        self.service: float | None = None
        self.wait: float | None = None

    def _mix(self, old: float | None, new: float) -> float:
        return new if old is None else old + self.WEIGHT * (new - old)

    def feed(self, start_s: float, service_s: float, wait_s: float) -> None:
        if self.last_start is not None:
            self.gap = self._mix(self.gap, start_s - self.last_start)
        self.last_start = start_s
        self.service = self._mix(self.service, service_s)
        self.wait = self._mix(self.wait, wait_s)

    @property
    def rate(self) -> float:
        return 1.0 / self.gap if self.gap is not None and self.gap > 0.0 else 0.0

    @property
    def load(self) -> float:
        return min(self.rate * (self.service or 0.0), 0.99)

    def price(self, service: float, delay: float) -> float:
        """Expected delay caused by a service lengthened from `service` by `delay`."""
        rate, free = self.rate, 1.0 - self.load
        longer = (service + delay) ** 2 - service**2
        return delay + rate * longer / (2.0 * free) + rate * (self.wait or 0.0) * delay / free


class Stage:
    """What all stages have: jobs present, totals, signals, estimates.

    Jobs whose latency has not passed (`lagging`) are present, and do not ask for service yet.
    """

    def __init__(self, machine: Machine, index: int):
        self.machine = machine
        self.index = index
        self.totals = StageTotals()
        self.estimate = Estimate()
        self.number, self.busy = Signal(), Signal()
        self.lagging: list[Job] = []

    def present(self) -> int:
        return len(self.lagging) + self.asking()

    def asking(self) -> int:
        """Jobs in service or waiting for it."""
        raise NotImplementedError

    def in_service(self) -> int:
        return self.asking()

    def work(self) -> float:
        return exact_sum((*self.remaining(), *(job.work for job in self.lagging)))

    def remaining(self) -> Iterable[float]:
        """Work left of each job that asks for service."""
        raise NotImplementedError

    def enter(self, job: Job) -> None:
        """A job asks for service."""
        raise NotImplementedError

    def never_asked(self) -> None:
        """A job goes without having asked for service: it had no work, or was taken away before."""

    # ------------------------------------------------------------ a job on all its stages

    def stages_of(self, job: Job) -> list[Stage]:
        return [self.machine.stages[place] for place in job.stages]

    def take(self, job: Job, latency_s: float) -> None:
        """The job is present from now on; it asks for service when its latency has passed."""
        if latency_s > 0.0:
            job.lagging = True
            for stage in self.stages_of(job):
                stage.lagging.append(job)
            self.machine.push(self.machine.now_tick + self.machine.ticks(latency_s), self.latency_over, job)
        else:
            self.ask(job)

    def latency_over(self, job: Job) -> None:
        if not job.present:
            return
        job.lagging = False
        for stage in self.stages_of(job):
            stage.lagging.remove(job)
        if job.work > 0.0:
            self.ask(job)
            return
        job.start_tick = self.machine.now_tick
        for stage in self.stages_of(job):
            stage.never_asked()
        self.completed(job)

    def ask(self, job: Job) -> None:
        for stage in self.stages_of(job):
            stage.enter(job)

    def withdraw(self, job: Job) -> None:
        """The job is taken away: its session is preempted, or ends."""
        job.present = False
        for stage in self.stages_of(job):
            if job.lagging:
                stage.lagging.remove(job)
                stage.never_asked()
            else:
                stage.leave(job)

    # ------------------------------------------------------------ what expressions read

    def leave(self, job: Job) -> None:
        """A job is taken away: preempted, or its session ends."""
        raise NotImplementedError

    def state(self, fun: str) -> float:
        match fun:
            case "Queue":
                return float(self.present())
            case "Busy":
                return float(self.in_service())
            case "Work":
                return self.work()
            case "EstLambda":
                return self.estimate.rate
            case "EstRho":
                return self.estimate.load
            case "EstWait":
                return self.estimate.wait or 0.0
        raise RunError(f"`{fun}` of a stage that is not a step stage")

    def completed(self, job: Job) -> None:
        """Count a finished job on all its stages and let its session go on."""
        for stage in self.stages_of(job):
            stage.count(job)
        job.present = False
        if job.owner is not None:
            job.session.job = None
            job.session.state = job.then
            self.machine.make_ready(job.session)

    def count(self, job: Job) -> None:
        machine, now_tick = self.machine, self.machine.now_tick
        wait_tick, service_tick = job.start_tick - job.enqueue_tick, now_tick - job.start_tick
        if machine.warm:
            self.totals.completed += 1
            self.totals.wait_tick += wait_tick
            self.totals.service_tick += service_tick
        tick_s = machine.tick_s
        self.estimate.feed(*(seconds(tick, tick_s) for tick in (job.start_tick, service_tick, wait_tick)))

    def record(self, now_tick: int) -> None:
        self.number.record(now_tick, self.present())
        self.busy.record(now_tick, int(self.asking() > 0))

    def signals(self) -> list[Signal]:
        return [self.number, self.busy]

    def close(self, end_tick: int) -> None:
        self.totals.number_tick = int(self.number.integral(end_tick))
        self.totals.busy_tick = int(self.busy.integral(end_tick))


class Fifo(Stage):
    """`servers` servers at rate 1, first come first served."""

    def __init__(self, machine: Machine, index: int, kind: ir.Fifo):
        super().__init__(machine, index)
        self.servers = number(machine.program, kind.servers) or 0.0
        self.line: deque[Job] = deque()
        self.serving: list[Job] = []

    def asking(self) -> int:
        return len(self.line) + len(self.serving)

    def in_service(self) -> int:
        return len(self.serving)

    def remaining(self) -> Iterable[float]:
        now_tick, tick_s = self.machine.now_tick, self.machine.tick_s
        served = (seconds(job.end_tick - now_tick, tick_s) for job in self.serving)
        return (*served, *(job.work for job in self.line))

    def enter(self, job: Job) -> None:
        self.line.append(job)
        self.start()

    def start(self) -> None:
        while self.line and len(self.serving) < self.servers:
            job = self.line.popleft()
            job.start_tick = self.machine.now_tick
            job.end_tick = job.start_tick + self.machine.ticks(job.work)
            self.serving.append(job)
            job.finish = self.machine.push(job.end_tick, self.finish, job)

    def finish(self, job: Job) -> None:
        if job.present:
            self.serving.remove(job)
            self.completed(job)
            self.start()

    def leave(self, job: Job) -> None:
        job.present = False
        if job in self.serving:
            self.serving.remove(job)
            self.start()
        else:
            self.line.remove(job)


class Delay(Fifo):
    """Every job is served at once."""

    def __init__(self, machine: Machine, index: int):
        super().__init__(machine, index, ir.Fifo(ir.Num(math.inf)))
