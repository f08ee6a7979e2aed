"""Step stages: continuous batching, one give at a time. An iteration body is run by iteration.py.

A decode gets one token an iteration, or up to `decode` of them (speculative decoding):

- *what it gets*: the least of `decode`, its tokens left, and what the budget leaves. `decode` and `verify` are
  evaluated when a plan begins, after `budget` and `chunk`, once for all; where `decode` is not at least 1, it is 1.
- *what is computed for it* and taken from the budget: that, or `verify` tokens (at least `decode`) as far as the budget
  lasts, whatever it has left. Tokens that are computed and not given leave no trace but the budget, `Ntok`,
  `DecodePositions` and with them the cost.
- *memory*: its hold grows, all at once, by what it gets; where that does not fit, growth waits or preempts as that of
  one token would. The next time it is considered anew.
- *the client* has all tokens of an iteration at its end: the gap before the first of them is the time since the last
  token, the gaps between the others are 0. So mean gaps stay the time between the first and the last token by the
  tokens between, as TPOT is.
- *variables*: `Ndec` counts decodes, not tokens. `Ntok` is what is computed, so `Ntok - Npre` for the decodes.
  `DecodePositions` adds, for each decode, its position and what is computed for it. `Kvb`, `Attn`, `LeastDecode` and
  `MostDecode` are what they are for one token. `BudgetLeft` and `Demand` go by what would be computed.

**Source:** semantics.md section 8.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from serqjax.ir import fixed
from serqjax.ir import program as ir
from serqjax.ir.structure import number
from serqjax.report.raw import Action

from .expressions import EPS, Lazy, Look, RunError, at_least_0
from .iteration import Body
from .plan import Give, Given, Limits, Plan, whole_tokens
from .scopes import Growth, admit_next, grow, no_hold
from .session import Status
from .stages import Job, Stage
from .statistics import Signal

if TYPE_CHECKING:
    from .machine import Machine


class Step(Stage):
    """An engine: residents in the order of their admission numbers, and the running iteration."""

    def __init__(self, machine: Machine, index: int, kind: ir.Step):
        super().__init__(machine, index)
        compiler = machine.compiler
        self.budget = compiler.expr(kind.budget)
        self.chunk = compiler.optional(kind.chunk)
        self.decode = compiler.optional(kind.decode)
        self.verify = compiler.optional(kind.verify)
        self.cost = compiler.expr(kind.cost)
        self.serve = compiler.order(kind.serve)
        self.memory = -1 if kind.memory is None else machine.pool_index[kind.memory]
        self.granule = number(machine.program, kind.granule)
        self.alone = kind.prefills == "alone"
        self.goes_on = kind.after_own_preemption == "go_on"
        self.body = Body(self, kind.iteration) if kind.iteration else None
        form = fixed.stage_form(machine.program, kind)
        self.form = None if form is None else fixed.resolve(form, compiler.params, machine.tick_s)
        self.form_reads = () if self.form is None else sorted(fixed.reads(self.form))
        self.residents: list[Job] = []
        self.running: list[Given] | None = None
        self.plan: Plan | None = None
        self.budget_left: float | None = None  # set while this stage's iteration tries an admission
        self.rest = 0  # sub-tick remainder, 2**-20 ticks
        self.served = 0.0  # tokens of all iterations so far
        self.last_end_tick = -1
        self.kind_now, self.decodes_now = 0, 0  # running batch: 1 prefill, 2 decode, 3 mixed; decodes
        self.signal_kinds = [Signal() for _ in range(4)]
        self.signal_decodes = Signal()

    # ------------------------------------------------------------ jobs

    def asking(self) -> int:
        return len(self.residents)

    def in_service(self) -> int:
        return sum(given.job.present for given in self.running or ())

    def remaining(self) -> Iterable[float]:
        return (job.work for job in self.residents)

    def enter(self, job: Job) -> None:
        job.start_tick = job.enqueue_tick
        place = bisect_right(self.residents, job.session.adm, key=lambda other: other.session.adm)
        self.residents.insert(place, job)

    def leave(self, job: Job) -> None:
        job.present = False
        self.residents.remove(job)

    def state(self, fun: str) -> float:
        if fun != "BudgetLeft":
            return super().state(fun)
        if self.budget_left is not None:
            return self.budget_left
        limits = self.limits()
        return max(0.0, limits.budget - sum(limits.want(job) for job in self.residents))

    # ------------------------------------------------------------ what expressions read

    def totals_of_residents(self, name: str) -> float:
        match name:
            case "Nres":
                return float(len(self.residents))
            case "Ndec":
                return float(sum(job.decoding for job in self.residents))
            case "Kvb" | "Kvp":
                return self.memory_of(self.residents, decoding=name == "Kvb")
        raise RunError(f"`{name}` is not known here")

    def memory_of(self, jobs: list[Job], decoding: bool) -> float:
        if self.memory < 0:
            return 0.0
        return float(sum(job.session.units(self.memory) for job in jobs if job.decoding == decoding))

    def limits(self) -> Limits:
        """What an iteration that would start now may give."""
        look = Look([], self.machine.machine_stream, None, Lazy(self.totals_of_residents))
        budget = at_least_0(self.budget(look))
        chunk = 0.0 if self.chunk is None else at_least_0(self.chunk(look))
        decode = 1.0 if self.decode is None else at_least(1.0, self.decode(look))
        verify = None if self.verify is None else at_least(decode, self.verify(look))
        return Limits(budget, chunk, decode, verify)

    # ------------------------------------------------------------ starting an iteration

    def wants_to_start(self) -> bool:
        if self.running is not None:
            return False
        return bool(self.residents) or any(p.line for p in self.machine.pools_admitted_by(self.index))

    def start(self) -> None:
        """Plan an iteration and start it, unless nothing was given and nobody preempted."""
        machine = self.machine
        limits = self.limits()
        prefilling = any(not job.decoding for job in self.residents)
        self.plan = plan = Plan(limits=limits, left=limits.budget, prefilling=prefilling)
        registers = machine.registers.copy()
        if self.body is None:
            self.fill(plan)
        else:
            self.body.run(plan)
        self.plan = None
        plan.given = [given for given in plan.given if given.job.present]
        for given in plan.given:
            if given.job.grows >= 0:
                given.before = given.job.session.advance(given.job.grows, given.tokens)
        if not plan.given and not plan.preempted:
            if not plan.admitted:
                machine.registers[:] = registers
            self.totals.idle_with_work = self.wants_to_start()
            return
        self.totals.idle_with_work = False
        cost_tick, tokens, variables = self.cost_of(plan.given, limits)
        machine.claims.iteration_starts(self.index, variables)
        self.served += tokens
        self.totals.iterations += 1
        machine.act(Action.iteration, -1, self.index, tokens)
        for given in plan.given:
            machine.act(Action.give, given.job.session.serial, self.index, given.tokens)
        decodes = sum(given.job.decoding for given in plan.given)
        prefills = len(plan.given) - decodes
        self.kind_now, self.decodes_now = int(prefills > 0) + 2 * int(decodes > 0), decodes
        if decodes and machine.warm:
            self.totals.decode_iterations += 1
            self.totals.decode_batch += decodes
            self.totals.decode_step_tick += cost_tick
        self.running = plan.given
        machine.push(machine.now_tick + cost_tick, self.end, None)
        machine.progress.iteration_started()

    def cost_of(self, given: list[Given], limits: Limits) -> tuple[int, float, Lazy]:
        """Duration in ticks, tokens and variables of the iteration; carries the sub-tick remainder."""
        machine = self.machine
        if self.last_end_tick != machine.now_tick:
            self.rest = 0  # an idle engine starts
        jobs = [g.job for g in given]

        def variable(name: str) -> float:
            match name:
                case "Ntok":
                    return sum(g.computed for g in given)
                case "Ndec":
                    return float(sum(job.decoding for job in jobs))
                case "Npre":
                    return sum(g.tokens for g in given if not g.job.decoding)
                case "Nres":
                    return float(len(self.residents))
                case "Kvb" | "Kvp":
                    return self.memory_of(jobs, decoding=name == "Kvb")
                case "Attn":
                    return sum(g.tokens * (g.before + g.tokens / 2.0) for g in given if not g.job.decoding)
                case "DecodePositions":
                    return sum(g.before + whole_tokens(g.computed) for g in given if g.job.decoding)
                case "Nsch":
                    return float(len(given))
                case "PrefillPositions":
                    return sum(g.before for g in given if not g.job.decoding)
                case "LeastDecode" | "MostDecode":
                    pick = min if name == "LeastDecode" else max
                    return pick((g.before for g in given if g.job.decoding), default=0.0)
                case "Demand":  # of all residents, whether they wait to grow or not
                    return sum(limits.want(job) for job in self.residents)
                case "Served":
                    return self.served
                case "Arrived":
                    return float(machine.arrived)
            raise RunError(f"`{name}` is not known in a cost")

        ctx = Lazy(variable)
        tokens = ctx["Ntok"]
        if self.form is None:
            self.rest = 0
            seconds = self.cost(Look([], machine.machine_stream, None, ctx))
            cost_tick, positive = machine.ticks(seconds if seconds > 0.0 else 0.0), seconds > 0.0
        else:
            integers = {}
            for name in self.form_reads:
                value = ctx[name] * fixed.VARIABLE_SCALE[name]
                integers[name] = int(value)
                if integers[name] != value:
                    raise RunError(f"a number of tokens or units of an iteration is {value:g}: it must be whole")
            cost = fixed.evaluate(self.form, integers)
            positive = cost > 0
            total = self.rest + max(0, cost)
            cost_tick, self.rest = total >> fixed.FIXED_BITS, total & ((1 << fixed.FIXED_BITS) - 1)
        if tokens > 0.0 and not positive:
            raise RunError(f"stage `{machine.program.stages[self.index].name}`: an iteration with tokens and cost 0")
        return cost_tick, tokens, ctx

    # ------------------------------------------------------------ planning

    def fill(self, plan: Plan) -> None:
        """Serve every resident once, in order; admit while budget is left and nobody was preempted or refused."""
        while True:
            job = self.first([job for job in self.residents if job not in plan.considered], self.serve)
            if job is not None:
                plan.considered.add(job)
                given = self.give(plan, job)
                if given is Give.preempted_itself and self.goes_on:
                    continue
                if given is not Give.goes_on or plan.left <= 0.0:
                    return
            elif plan.left <= 0.0 or plan.preempted or plan.refused or not self.admit_one(plan):
                return

    def first(self, jobs: list[Job], order: Callable[[Look], tuple] | None) -> Job | None:
        """The first of some residents in an order (None: of admission)."""
        if order is None:
            return jobs[0] if jobs else None
        totals = Lazy(self.totals_of_residents)
        return min(jobs, key=lambda job: order(self.look_of(job, totals)), default=None)  # ties: first admitted

    def look_of(self, job: Job, totals: Lazy) -> Look:
        """The Serve moment: a resident, and the `totals` of the residents now."""
        session = job.session

        def variable(name: str) -> float:
            match name:
                case "Decoding":
                    return float(job.decoding)
                case "Admission":
                    return session.adm
                case "Remaining":
                    return job.work
            return totals[name]

        return Look(session.attrs, session.stream, session, Lazy(variable))

    def tokens_for(self, plan: Plan, job: Job) -> float:
        """Tokens that may be computed for a resident now; a prefill that cannot get a whole granule is refused."""
        limits = plan.limits
        if self.alone:
            if job.decoding and plan.prefilling:
                return 0.0
            return min(limits.want(job), plan.left if job.decoding else limits.budget)
        tokens = min(limits.want(job), plan.left)
        if self.granule is not None and not job.decoding and tokens < job.work:
            tokens = math.floor(tokens / self.granule) * self.granule if math.isfinite(self.granule) else 0.0
            plan.refused |= tokens <= 0.0
        return tokens

    def give(self, plan: Plan, job: Job) -> Give:
        computed = self.tokens_for(plan, job)
        if computed <= 0.0:
            return Give.goes_on
        tokens = plan.limits.gets(job, computed) if job.decoding else computed
        session = job.session
        if job.grows >= 0:
            if session.status is Status.growing:
                return Give.goes_on
            hold = session.hold_of(job.grows)
            if hold is None:
                raise no_hold(session, self.machine.pools[job.grows])
            need = hold.pos + tokens - hold.alloc
            if need > EPS:
                growth = grow(self.machine, session, job.grows, need, job)
                plan.left += sum(given.computed for given in plan.given if not given.job.present)
                plan.given = [given for given in plan.given if given.job.present]
                if growth is Growth.waits:
                    return Give.goes_on
                if growth is Growth.preempted_itself:
                    return Give.preempted_itself
            shared = self.machine.pools[job.grows].blocks
            if shared is not None and hold.held is not None:
                shared.compute(hold.held, hold.pos + tokens)
        if self.alone and not job.decoding:
            # decodes chosen before lose their turn; what was grown for them stays
            plan.given = [Given(job, tokens, computed)]
            plan.left = plan.limits.budget - tokens
            return Give.completes
        plan.given.append(Given(job, tokens, computed))
        plan.left -= computed
        return Give.goes_on

    def admit_one(self, plan: Plan) -> bool:
        """The first line of this stage that is not empty admits its selected hold, if it fits."""
        machine = self.machine
        for pool in machine.pools_admitted_by(self.index):
            if pool.line:
                self.budget_left = plan.limits.budget if self.alone else plan.left
                admitted = admit_next(machine, pool)
                self.budget_left = None
                if admitted:
                    machine.run_ready()
                return admitted
        return False

    # ------------------------------------------------------------ ending an iteration

    def end(self, _: None) -> None:
        machine = self.machine
        running = [given for given in self.running or () if given.job.present]
        self.running = None
        self.last_end_tick = machine.now_tick
        self.kind_now, self.decodes_now = 0, 0
        for given in running:
            job = given.job
            job.work -= given.tokens
            if job.decoding or job.work <= EPS:
                count = given.count if job.decoding else 0
                machine.act(Action.token, job.session.serial, self.index, float(count))
                machine.clients.tokens(job.session, self.index, count)
                machine.progress.token()
        for given in running:
            if given.job.work <= EPS and given.job.present:
                self.residents.remove(given.job)
                self.completed(given.job)

    # ------------------------------------------------------------ statistics

    def record(self, now_tick: int) -> None:
        super().record(now_tick)
        for kind, signal in enumerate(self.signal_kinds):
            signal.record(now_tick, int(kind == self.kind_now))
        self.signal_decodes.record(now_tick, self.decodes_now)

    def signals(self) -> list[Signal]:
        return [*super().signals(), *self.signal_kinds, self.signal_decodes]

    def close(self, end_tick: int) -> None:
        super().close(end_tick)
        integrals = [int(signal.integral(end_tick)) for signal in self.signal_kinds]
        _, self.totals.prefill_only_tick, self.totals.decode_only_tick, self.totals.mixed_tick = integrals
        self.totals.decodes_tick = int(self.signal_decodes.integral(end_tick))


def at_least(least: float, value: float) -> float:
    """What is less, or not a number, is `least`."""
    return value if value > least else least
