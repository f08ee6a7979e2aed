"""Deadlines: a session that has blocked long enough goes on elsewhere.

The rules stand at `serqjax.ir.program.Deadline`; the reference has no such construct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serqjax.ir import program as ir
from serqjax.report.raw import Action

from . import scopes
from .expressions import amount

if TYPE_CHECKING:
    from .machine import Machine
    from .session import Session

LATEST = 1 << 60  # ticks; a deadline so long never comes


class Deadline:
    """The compiled form of a deadline."""

    def __init__(self, machine: Machine, deadline: ir.Deadline, state: str):
        self.machine, self.place = machine, f"at state `{state}`"
        self.after = machine.compiler.expr(deadline.after)
        self.target = machine.state_index[deadline.target]
        scope = machine.program.states[self.target].scope
        #: How many scopes are open at the target.
        self.depth = 0
        while scope is not None:
            self.depth += 1
            scope = machine.program.scopes[machine.scope_index[scope]].parent

    def ticks(self, session: Session) -> int:
        """How long it is for a session that executes the state now."""
        return self.machine.ticks(amount(self.after(session.look), session, self.place))

    def arm(self, session: Session, ticks: int) -> None:
        """The session has blocked: its deadline is `ticks` from now."""
        if ticks < LATEST:
            session.deadline = self.machine.push(self.machine.now_tick + ticks, self.comes, session)

    def comes(self, session: Session) -> None:
        """See `serqjax.ir.program.Deadline`."""
        machine = self.machine
        machine.act(Action.deadline, session.serial, 0, 0.0)
        if session.job is not None:
            machine.cancel(session.job.finish)
        machine.withdraw(session)
        while len(session.scopes) > self.depth:
            scopes.give_back(machine, session, finished=False)
        session.preempted_at.clear()
        machine.set_attr(session, "computed", 0.0)
        session.state = self.target
        machine.make_ready(session)
        scopes.retry(machine)


def disarm(machine: Machine, session: Session) -> None:
    """The session is not blocked any more where its deadline was: none stands."""
    machine.cancel(session.deadline)
    session.deadline = None
