"""Iteration bodies: a step stage's own commands for filling an iteration, followed line by line.

A body is flattened to lines (lines.py); `body_at` is the line at which the plan stands. Each turn goes on from there:
tests and assignments take no turn, a `Serve` or `Admit` with somebody to serve takes one give a turn, and an `Admit`
with nobody left to serve asks the stage's lines for a newcomer. A session that a command has passed over is marked with
the number of that command's run.

**Source:** `spec/semantics.md`, section 8 (Iteration body); oracle: `oracle/iteration.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from ..ir.expr import Expr
from ..ir.program import Admit, Assign, If, Order, Serve
from .access import load, pack
from .admission import select
from .expr import Env, Value, evaluate, total_order
from .faults import Fault
from .lane import Lane
from .planner import give, may_plan, serve_env, unconsidered
from .views import computed, pool_state, register_state, residents_ctx, stage_state, stray


def follow(w: Lane) -> tuple[Array, Array]:
    """Go on in the body of the planned stage, if it has one: give to one resident, or ask for a newcomer.

    **Returns:** where the body has come to its end, where it asks.
    """
    over = asks = jnp.bool_(False)
    for stage in w.plan.bodies:
        (on,) = w.fence(may_plan(w) & (w.cursor == stage))
        ends, asked = w.residents(lambda w, stage=stage, on=on: Course(w, stage, on).run())
        over, asks = over | ends, asks | asked
    return over, asks


def answered(w: Lane, admits: Array, refuses: Array) -> None:
    """Where the newcomer that an `Admit` asked for is admitted; where it does not fit, or nobody waits, it is over."""
    w.bump("admitted_n", admits)
    w.pick(refuses, body_at=w.body_at + 1, command_seq=w.command_seq + 1, asked=False)


class Course:
    """One pass over the lines of a body, from the one at which the plan stands."""

    def __init__(self, w: Lane, stage: int, on: Array):
        self.w, self.stage, self.on = w, stage, on
        self.kind = w.plan.stages[stage].kind
        self.at, self.seq, self.asked, self.stopped = w.body_at, w.command_seq, w.asked, w.stopped
        self.gives = self.asks = jnp.bool_(False)
        self.slot = jnp.int32(0)
        self.env = Env(
            w.plan, w.job.numbers, ctx=residents_ctx(w, stage) | self.so_far(), pool=pool_state(w, None),
            stage=stage_state(w), register=register_state(w), stray=stray(w, -1),
        )  # fmt: skip

    def so_far(self) -> dict[str, Value]:
        """The plan as tests and gates see it."""
        w = self.w
        listed = (w.stage == self.stage) & (w.give_key >= 0)
        return {
            "Ntok": lambda: jnp.sum(jnp.where(listed, computed(w), 0.0)),
            "Npre": lambda: jnp.sum(jnp.where(listed & (w.mode == 0), w.given, 0.0)),
            "Admitted": lambda: w.admitted_n.astype(jnp.float64),
            "Preempted": lambda: w.preempted_n.astype(jnp.float64),
        }

    def run(self) -> tuple[Array, Array]:
        """See `follow`."""
        w = self.w
        body = w.plan.bodies[self.stage]
        for i, line in enumerate(body):
            here = self.on & (self.at == i) & ~self.gives & ~self.asks & (w.fault == 0)
            match line.command:
                case None:
                    self.go_on(here, line.target)
                case If(test=test):
                    holds, here = self.holds(test, here)
                    self.go_on(here, jnp.where(holds, i + 1, line.target))
                case Assign(register=register, value=value):
                    self.assign(register, value, here)
                    self.go_on(here, i + 1)
                case Serve(only=only, by=by):
                    some = self.serve(here, self.kind.serve if by is None else by, only, jnp.bool_(True))
                    self.go_on(here & ~some, i + 1)
                case Admit(only=only, gate=gate):
                    some = self.serve(here & ~self.refused(), self.kind.serve, only, self.asked)
                    asks, here = self.admit(here & ~some, gate)
                    self.asks = self.asks | asks
                    self.go_on(here & ~asks, i + 1)
        over, gives, slot, self.asks = w.fence(
            self.on & (self.at >= len(body)) & (w.fault == 0), self.gives, self.slot, self.asks
        )
        # nobody who is here when an `Admit` asks is a newcomer
        w.passed = jnp.where(self.asks & (w.stage == self.stage), self.seq, w.passed)
        w.pick(self.on, body_at=self.at, command_seq=self.seq, asked=self.asked | self.asks, stopped=self.stopped)
        give(w, slot, gives)
        return over, self.asks

    def go_on(self, here: Array, target: Value) -> None:
        """Leave a line; what was passed over, asked or stopped in it counts no more."""
        self.at = jnp.where(here, target, self.at)
        self.seq = self.seq + here
        self.asked, self.stopped = self.asked & ~here, self.stopped & ~here

    def holds(self, test: Expr, here: Array) -> tuple[Array, Array]:
        """Whether a test is 1, and where that could be told."""
        value = evaluate(test, self.env, here)
        bad = here & (value != 0.0) & (value != 1.0)
        self.w.fail(bad, Fault.iteration_test, -1, self.stage)
        return value == 1.0, here & ~bad

    def assign(self, register: str, value: Expr, here: Array) -> None:
        w = self.w
        x = evaluate(value, self.env, here)
        w.fail(here & ~jnp.isfinite(x), Fault.register, -1, self.stage)
        place = w.plan.register_index[register]
        w.registers = w.registers.at[place].set(jnp.where(here, x, w.registers[place]))

    def serve(self, here: Array, order: Order, only: Expr | None, among: Array) -> Array:
        """Where somebody can be served: the first in order, none of whom `only` excludes; marks those before."""
        w = self.w
        here = here & (w.left > 0) & ~self.stopped
        env = serve_env(w, self.stage)
        rows = unconsidered(w) & (w.passed != self.seq) & among
        wanted = rows if only is None else rows & (evaluate(only, env, rows & here) != 0.0)
        keys = [jnp.broadcast_to(evaluate(key, env, rows & here), rows.shape) for key in order.keys]
        sequence = pack(w.adm, jnp.arange(rows.shape[0]))
        found, slot = select(keys, sequence, wanted)
        some, slot = w.fence(here & found, slot)
        if only is not None:
            before = precede([total_order(key) for key in keys] + [sequence], slot)
            w.passed = jnp.where(some & rows & ~wanted & before, self.seq, w.passed)
        self.gives = self.gives | some
        self.slot = jnp.where(some, slot, self.slot)
        return some

    def refused(self) -> Array:
        return self.w.refused if self.w.has("refused") else jnp.bool_(False)

    def admit(self, here: Array, gate: Expr | None) -> tuple[Array, Array]:
        """Where an `Admit` asks for a newcomer, and where that could be told."""
        w = self.w
        if not w.plan.stages[self.stage].admits:
            return here & False, here
        may = here & (w.left > 0) & ~self.stopped & ~self.refused()
        if gate is None:
            return may, here
        holds, told = self.holds(gate, may)
        return told & holds, here & ~(may & ~told)


def precede(keys: list[Value], row: Array) -> Array:
    """Rows that stand before `row` in the order of their keys, the last of which differ."""
    less, same = jnp.zeros(keys[0].shape, bool), jnp.ones(keys[0].shape, bool)
    for key in keys:
        mine = load(key, row)
        less, same = less | (same & (key < mine)), same & (key == mine)
    return less
