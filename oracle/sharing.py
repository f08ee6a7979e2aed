"""Processor sharing: jobs that share one capacity, and flows over several stages that share them.

A job has a remaining work (float64, `Job.work`) and a rate; both hold since `Sharing.since_tick`. They are brought up
to now where the set of jobs has changed, once an instant: then the rates are found anew and the next finish is
scheduled, `remaining / rate` seconds from now, rounded to ticks. What the rounding adds to or takes from the
finished job is dropped; the others go on with what the ticks that have passed gave them. A job whose own
finish rounds to a tick that has come has nothing left, so that equal jobs finish at one tick.

**Source:** semantics.md section 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serqjax.ir import program as ir
from serqjax.ir.fabric import PARTS, Fabric
from serqjax.ir.time import seconds

from .expressions import Look, RunError
from .stages import Job, Stage
from .statistics import Signal

if TYPE_CHECKING:
    from .machine import Machine

#: A finish that is so many ticks away never comes.
NEVER_TICK = 1 << 60


@dataclass(slots=True, eq=False)
class Finish:
    """A scheduled finish; stale once the set of jobs has changed after it was scheduled."""

    sharing: Sharing
    epoch: int
    job: Job

    @property
    def stale(self) -> bool:
        return self.epoch != self.sharing.epoch


class Sharing:
    """Jobs under one clock. `find_rates` sets the rate of every job."""

    def __init__(self, machine: Machine, find_rates: Callable[[list[Job]], None]):
        self.machine, self.find_rates = machine, find_rates
        self.jobs: list[Job] = []
        self.since_tick = 0
        self.epoch = 0
        self.changed = False

    def join(self, job: Job) -> None:
        job.rate = 0.0  # until the rates are found, at the end of the instant
        self.jobs.append(job)
        self.changed = True

    def leave(self, job: Job) -> None:
        self.jobs.remove(job)
        self.changed = True

    def remaining(self, job: Job) -> float:
        """Work left now."""
        passed_tick = self.machine.now_tick - self.since_tick
        if job.rate > 0.0 and self.machine.ticks(job.work / job.rate) <= passed_tick:
            return 0.0
        return job.work - job.rate * seconds(passed_tick, self.machine.tick_s)

    def settle(self) -> None:
        """If the set of jobs has changed, find the rates and schedule the next finish; the one before is stale."""
        if not self.changed:
            return
        machine = self.machine
        self.changed = False
        self.epoch += 1
        for job in self.jobs:
            job.work = self.remaining(job)
        self.since_tick = machine.now_tick
        self.find_rates(self.jobs)
        served = [job for job in self.jobs if job.rate > 0.0]
        first = min(served, key=lambda job: (job.work / job.rate, job.number), default=None)
        if first is not None:
            span_tick = machine.ticks(max(first.work / first.rate, 0.0))
            if span_tick < NEVER_TICK:
                machine.push(machine.now_tick + span_tick, self.finish, Finish(self, self.epoch, first))

    def finish(self, finish: Finish) -> None:
        if not finish.stale:
            self.epoch += 1
            stage = self.machine.stages[finish.job.stages[0]]
            stage.withdraw(finish.job)
            stage.completed(finish.job)


class ProcessorSharing(Stage):
    """Jobs share a total rate equally."""

    def __init__(self, machine: Machine, index: int, kind: ir.ProcessorSharing):
        super().__init__(machine, index)
        self.capacity = machine.compiler.expr(kind.capacity)
        self.sharing = Sharing(machine, self.find_rates)

    def asking(self) -> int:
        return len(self.sharing.jobs)

    def remaining(self) -> Iterable[float]:
        return (max(self.sharing.remaining(job), 0.0) for job in self.sharing.jobs)

    def enter(self, job: Job) -> None:
        job.start_tick = self.machine.now_tick
        self.sharing.join(job)

    def leave(self, job: Job) -> None:
        job.present = False
        self.sharing.leave(job)

    def find_rates(self, jobs: list[Job]) -> None:
        if not jobs:
            return  # the capacity of a stage without jobs is not asked for: it may draw
        machine = self.machine
        capacity = self.capacity(Look([], machine.machine_stream, None, {"N": float(len(jobs))}))
        if not math.isfinite(capacity):
            name = machine.program.stages[self.index].name
            raise RunError(f"the capacity of stage `{name}` is not a finite number")
        rate = capacity / len(jobs)
        for job in jobs:
            job.rate = rate


class Link(Stage):
    """A stage that runs hold together with others: what its flows get is found for the whole fabric.

    `load`: the rates of its flows over its capacity, in `PARTS`.
    """

    def __init__(self, machine: Machine, index: int, kind: ir.ProcessorSharing):
        super().__init__(machine, index)
        self.capacity = machine.compiler.expr(kind.capacity)(Look([], machine.machine_stream))
        self.flows: list[Job] = []
        self.load = 0
        self.signal_load = Signal()

    def asking(self) -> int:
        return len(self.flows)

    def remaining(self) -> Iterable[float]:
        return (max(self.machine.flows.remaining(job), 0.0) for job in self.flows)

    def enter(self, job: Job) -> None:
        job.start_tick = self.machine.now_tick
        self.flows.append(job)
        if self.index == job.stages[0]:
            self.machine.flows.join(job)

    def leave(self, job: Job) -> None:
        job.present = False
        self.flows.remove(job)
        if self.index == job.stages[0]:
            self.machine.flows.leave(job)

    def never_asked(self) -> None:
        self.machine.flows.changed = True  # as if a flow had come and gone

    def record(self, now_tick: int) -> None:
        super().record(now_tick)
        self.signal_load.record(now_tick, self.load)

    def signals(self) -> list[Signal]:
        return [*super().signals(), self.signal_load]

    def close(self, end_tick: int) -> None:
        super().close(end_tick)
        self.totals.load_tick = int(self.signal_load.integral(end_tick))


def find_flow_rates(links: dict[int, Link], fabrics: tuple[Fabric, ...]) -> Callable[[list[Job]], None]:
    """Rates of all flows and the loads of all links, fabric by fabric."""

    def find(flows: list[Job]) -> None:
        for fabric in fabrics:
            stages = [links[i] for i in fabric.stages]
            mine = [flow for flow in flows if flow.stages[0] in fabric.stages]
            limits = max_min(stages, mine) if "MaxMin" in fabric.shares else bottleneck(stages, mine)
            set_loads(stages, limits)

    return find


#: Of each limiting stage, in the order in which they are found: the rate, and the flows that get it.
Limits = list[tuple[float, list[Job]]]


def max_min(stages: list[Link], flows: list[Job]) -> Limits:
    """Progressive filling: all flows rise together until a stage is full; its flows stay there, the others rise on."""
    left = {stage.index: stage.capacity for stage in stages}
    rising, limits = list(flows), []
    while rising:
        shares = []
        for stage in stages:
            count = sum(stage.index in flow.stages for flow in rising)
            if count:
                shares.append((left[stage.index] / count, stage.index))
        share, full = min(shares)
        frozen = [flow for flow in rising if full in flow.stages]
        for flow in frozen:
            flow.rate = share
            rising.remove(flow)
        for index in left:
            left[index] -= share * sum(index in flow.stages for flow in frozen)
        limits.append((share, frozen))
    return limits


def bottleneck(stages: list[Link], flows: list[Job]) -> Limits:
    """Every flow gets the least of what its stages would give to each of theirs."""
    limits: dict[int, tuple[float, list[Job]]] = {
        stage.index: (stage.capacity / len(stage.flows), []) for stage in stages if stage.flows
    }
    for flow in flows:
        least = min((limits[index][0], index) for index in flow.stages)[1]
        flow.rate = limits[least][0]
        limits[least][1].append(flow)
    return [limits[stage.index] for stage in stages if stage.index in limits]


def set_loads(stages: list[Link], limits: Limits) -> None:
    """The load of a stage: its flows by what limits them, added up in that order."""
    for stage in stages:
        load = 0.0
        for rate, flows in limits:
            load += rate * sum(stage.index in flow.stages for flow in flows)
        stage.load = round(load / stage.capacity * PARTS)
