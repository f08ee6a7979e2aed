"""Iteration bodies: a step stage's own commands for filling an iteration.

**Source:** semantics.md section 8 (Iteration body).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from serqjax.ir import program as ir

from .expressions import Function, Lazy, Look, RunError, guard
from .plan import Give, Plan

if TYPE_CHECKING:
    from .planner import Step
    from .stages import Job

Action = Callable[[Plan], None]


class Body:
    """The compiled commands of a step stage's `iteration`."""

    def __init__(self, stage: Step, commands: tuple[ir.Command, ...]):
        self.stage = stage
        self.machine = stage.machine
        self.name = self.machine.program.stages[stage.index].name
        self.actions = self.compile(commands)

    def run(self, plan: Plan) -> None:
        for action in self.actions:
            action(plan)

    def compile(self, commands: tuple[ir.Command, ...]) -> list[Action]:
        return [self.command(command) for command in commands]

    def command(self, command: ir.Command) -> Action:
        compiler = self.machine.compiler
        problem = f"stage `{self.name}`: a test or gate of the iteration is neither 0 nor 1"
        match command:
            case ir.Serve(only=only, by=by):
                order = self.stage.serve if by is None else compiler.order(by)
                return self.serve(order, compiler.optional(only))
            case ir.Admit(only=only, gate=gate):
                return self.admit(compiler.optional(only), compiler.optional(gate), problem)
            case ir.If(test=test, then=then, orelse=orelse):
                f, yes, no = compiler.expr(test), self.compile(then), self.compile(orelse)

                def branch(plan: Plan) -> None:
                    holds = guard(f(self.look(plan)), problem)
                    for action in yes if holds else no:
                        action(plan)

                return branch
            case ir.Assign(register=register, value=value):
                place, f = self.machine.register_index[register], compiler.expr(value)

                def assign(plan: Plan) -> None:
                    x = f(self.look(plan))
                    if not math.isfinite(x):
                        raise RunError(f"stage `{self.name}`: the value of a register is not a finite number")
                    self.machine.registers[place] = x

                return assign
        raise TypeError(f"no such command: {command!r}")

    def serve(self, order: Callable[[Look], tuple] | None, only: Function | None) -> Action:
        def serve(plan: Plan) -> None:
            for given in self.turns(plan, set(), order, only):
                if given is Give.preempted_itself:
                    return

        return serve

    def admit(self, only: Function | None, gate: Function | None, problem: str) -> Action:
        stage = self.stage

        def admit(plan: Plan) -> None:
            while plan.left > 0.0 and not plan.refused:
                if gate is not None and not guard(gate(self.look(plan)), problem):
                    return
                before = set(stage.residents)
                if not stage.admit_one(plan):
                    return
                plan.admitted += 1
                for given in self.turns(plan, before, stage.serve, only):
                    if given is Give.preempted_itself or plan.refused:
                        return

        return admit

    def turns(
        self, plan: Plan, besides: set[Job], order: Callable[[Look], tuple] | None, only: Function | None
    ) -> Iterator[Give]:
        """Give to the residents `besides` some, each once, while tokens are left; what came of each give."""
        stage = self.stage
        passed = set(besides)  # over, in this command alone
        while plan.left > 0.0:
            job = stage.first([j for j in stage.residents if j not in plan.considered and j not in passed], order)
            if job is None:
                return
            if self.excludes(only, job):
                passed.add(job)
                continue
            plan.considered.add(job)
            yield stage.give(plan, job)

    def excludes(self, only: Function | None, job: Job) -> bool:
        totals = Lazy(self.stage.totals_of_residents)
        return only is not None and only(self.stage.look_of(job, totals)) == 0.0

    def look(self, plan: Plan) -> Look:
        """The Plan moment: the residents now, and the plan so far (without those who have left since)."""
        stage = self.stage
        listed = [given for given in plan.given if given.job.present]

        def variable(name: str) -> float:
            match name:
                case "Ntok":
                    return sum(given.computed for given in listed)
                case "Npre":
                    return sum(given.tokens for given in listed if not given.job.decoding)
                case "Admitted":
                    return float(plan.admitted)
                case "Preempted":
                    return float(plan.preempted)
            return stage.totals_of_residents(name)

        return Look([], self.machine.machine_stream, None, Lazy(variable))
