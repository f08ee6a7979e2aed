"""Stages that work in seconds: fifo servers and delays; jobs and estimates.

**Source:** semantics.md sections 9 and 13.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serqjax.ir import program as ir
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

    The job of a spill is nobody's: its `session` is None (`Machine.work_for_nobody`).
    """

    session: Session
    mode: str
    work: float
    then: int
    enqueue_tick: int
    grows: int = -1  # pool
    start_tick: int = -1
    end_tick: int = -1
    present: bool = True

    @property
    def decoding(self) -> bool:
        return self.mode == "Decode"


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
        if self.gap is None:
            return 0.0
        return 1.0 / self.gap if self.gap else math.inf

    @property
    def load(self) -> float:
        return min(self.rate * (self.service or 0.0), 0.99)

    def price(self, service: float, delay: float) -> float:
        """Expected delay caused by a service lengthened from `service` by `delay`."""
        rate, free = self.rate, 1.0 - self.load
        longer = (service + delay) ** 2 - service**2
        return delay + rate * longer / (2.0 * free) + rate * (self.wait or 0.0) * delay / free


class Stage:
    """What all stages have: jobs present, totals, signals, estimates."""

    def __init__(self, machine: Machine, index: int):
        self.machine = machine
        self.index = index
        self.totals = StageTotals()
        self.estimate = Estimate()
        self.number, self.busy = Signal(), Signal()

    def present(self) -> int:
        raise NotImplementedError

    def in_service(self) -> int:
        return self.present()

    def work(self) -> float:
        raise NotImplementedError

    def enter(self, job: Job) -> None:
        raise NotImplementedError

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
        """Count a finished job and let its session go on."""
        machine, now_tick = self.machine, self.machine.now_tick
        wait_tick, service_tick = job.start_tick - job.enqueue_tick, now_tick - job.start_tick
        if machine.warm:
            self.totals.completed += 1
            self.totals.wait_tick += wait_tick
            self.totals.service_tick += service_tick
        tick_s = machine.tick_s
        self.estimate.feed(*(seconds(tick, tick_s) for tick in (job.start_tick, service_tick, wait_tick)))
        job.present = False
        if job.session is not None:
            job.session.job = None
            job.session.state = job.then
            machine.make_ready(job.session)

    def record(self, now_tick: int) -> None:
        present = self.present()
        self.number.record(now_tick, present)
        self.busy.record(now_tick, int(present > 0))

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

    def present(self) -> int:
        return len(self.line) + len(self.serving)

    def in_service(self) -> int:
        return len(self.serving)

    def work(self) -> float:
        now_tick, tick_s = self.machine.now_tick, self.machine.tick_s
        served = sum(seconds(job.end_tick - now_tick, tick_s) for job in self.serving)
        return served + sum(job.work for job in self.line)

    def enter(self, job: Job) -> None:
        self.line.append(job)
        self.start()

    def start(self) -> None:
        while self.line and len(self.serving) < self.servers:
            job = self.line.popleft()
            job.start_tick = self.machine.now_tick
            job.end_tick = job.start_tick + self.machine.ticks(job.work)
            self.serving.append(job)
            self.machine.push(job.end_tick, self.finish, job)

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
