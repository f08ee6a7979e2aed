"""Progress and verdicts: drained, horizon, deadlock, livelock.

A livelock is recognised in two ways: a session preempts itself, for the second time in one scope, while nobody else
holds units of that pool (the first time it may be that it is never admitted again, a deadlock), or the
state of the whole machine returns with no token between. A state can return only through a preemption,
so states are compared from the first preemption after a token on.

**Source:** design.md section 2.7; semantics.md section 15 (texts of errors).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from serqjax.ir import expr
from serqjax.ir import program as ir
from serqjax.ir.program import Program
from serqjax.ir.structure import walk
from serqjax.report.raw import Verdict

from .expressions import EndError
from .scopes import attempt
from .session import Session, Status
from .stages import is_stale

if TYPE_CHECKING:
    from .machine import Machine
    from .pools import Pool


class Progress:
    def __init__(self, machine: Machine):
        self.machine = machine
        self.livelock = ""  # the cause, once there is one
        self.watching = False  # a preemption has happened since the last token
        self.seen: set[tuple] = set()
        decisive = decisive_attributes(machine.program)
        # a program that decides by the clock or by draws is at no state twice
        self.comparable = decisive is not None
        self.escapes = any(getattr(state.exit, "deadline", None) is not None for state in machine.program.states)
        self.slots = [i for name, i in machine.slots.items() if name in (decisive or ())]

    def token(self) -> None:
        if self.watching:
            self.watching = False
            self.seen.clear()

    def preemption(self) -> None:
        self.watching = True

    def preempts_itself_alone(self, session: Session, pool: Pool) -> None:
        """A session preempts itself where nobody else holds units: it can never pass this position.

        The first time it may still be that it is never admitted again, a deadlock. In a program with deadlines it
        may be that one takes the session out of there.
        """
        if self.escapes:
            return
        if pool.index in session.alone_in and not self.livelock:
            self.livelock = (
                f"session {session.serial} preempts itself again and again in pool `{pool.pool.name}`, where nobody "
                f"else holds units: it needs more than the cap of {pool.cap:g}; raise the cap or shorten the request"
            )
        session.alone_in.add(pool.index)

    def iteration_started(self) -> None:
        if not self.watching or self.livelock or not self.comparable:
            return
        state = signature(self.machine, self.slots)
        if state in self.seen:
            self.livelock = (
                "the state of the whole machine returned with no token between: sessions preempt each other "
                "for ever; raise the cap of the pool or reserve what a session needs before it starts"
            )
        self.seen.add(state)

    def verdict(self) -> tuple[Verdict, str]:
        """Verdict and cause of a run that has stopped without an error."""
        machine = self.machine
        program, live = machine.program, len(machine.live)
        if self.livelock:
            return Verdict.livelock, self.livelock
        waits = who_waits_for_each_other(machine)
        if any(session.status is Status.joining for session in waits):
            return Verdict.error, (
                "the run ends with sessions that wait for each other: "
                + "; ".join(sorted(_waits(machine, session) for session in waits))
                + ": a hold-and-wait cycle"
            )
        events_to_come = machine.events_to_come()
        if not events_to_come and live:
            return Verdict.deadlock, who_waits(machine)
        horizon_s = None if machine.horizon_tick is None else machine.horizon_tick * machine.tick_s
        if program.arrivals is not None:
            if machine.arrived < program.arrivals:
                raise EndError(
                    f"horizon {horizon_s:g} reached before requested arrivals: got {machine.arrived}, "
                    f"requested {program.arrivals}"
                )
            if live:
                raise EndError(f"failed to drain {live} active sessions within horizon {horizon_s:g}")
            if machine.now_tick <= machine.warmup_tick and machine.warmup_tick > 0:
                raise EndError(
                    f"arrivals drained at {machine.now_tick * machine.tick_s:g} before or at warmup "
                    f"{machine.warmup_tick * machine.tick_s:g}"
                )
        return (Verdict.horizon if live or events_to_come else Verdict.drained), ""


def who_waits_for_each_other(machine: Machine) -> list[Session]:
    """The largest set of waiting and joining sessions that only members of it could let go on.

    What a waiting one lacks room in is held by members alone, and nothing of it is leased for a time; the live legs of
    a joining one are all members. One that lacks no room, and only stands behind others in its line, is no member.
    """
    expiring = {held.pool for s in (*machine.live.values(), *machine.legs) for held in s.leases if held.expires}
    needs: dict[Session, set[Session]] = {}  # whom a session waits for
    for s in (*machine.live.values(), *machine.legs):
        if s.status is Status.joining:
            needs[s] = {leg for leg in machine.legs if leg.root is s}
        elif s.waiting is not None:
            trial = attempt(machine, s.waiting)
            pools = [machine.pools[place] for place in s.waiting.pools]
            lacks = [p for p, need in zip(pools, trial.needs) if not p.fits(p.up(need))]
            if lacks and not any(pool.index in expiring for pool in lacks):
                needs[s] = {holder for pool in lacks for holder in pool.distinct}
    while any(not others <= needs.keys() for others in needs.values()):
        needs = {s: others for s, others in needs.items() if others <= needs.keys()}
    return list(needs)


def _waits(machine: Machine, session: Session) -> str:
    who = f"session {session.serial}" if session.root is session else f"a leg of session {session.serial}"
    if session.waiting is None:
        return f"{who} waits at a `Join`"
    return f"{who} waits at `{machine.pools[session.waiting.pools[0]].pool.name}`"


def who_waits(machine: Machine) -> str:
    """One sentence on who waits for what."""
    parts = []
    for pool in machine.pools:
        if pool.growers:
            names = _names([g.session for g in pool.growers])
            parts.append(f"{names} wait to grow in pool `{pool.pool.name}`")
        if pool.line:
            first = pool.select().session.serial
            names = _names([w.session for w in pool.line])
            parts.append(f"{names} wait in the line of pool `{pool.pool.name}` ({first} is next and does not fit)")
    joining = [s for s in machine.live.values() if s.status is Status.joining]
    if joining:
        parts.append(f"{_names(joining)} wait for legs")
    running = [s for s in machine.live.values() if s.status is Status.in_stage]
    if running:
        parts.append(f"{_names(running)} wait on a stage that gives them nothing")
    used = ", ".join(f"`{p.pool.name}` {p.used:g} of {p.cap:g}" for p in machine.pools if p.line or p.growers)
    return "no event is left: " + "; ".join(parts) + (f"; units in use: {used}" if used else "")


def _names(sessions: list[Session]) -> str:
    shown = ", ".join(str(s.serial) for s in sessions[:5])
    more = f" and {len(sessions) - 5} more" if len(sessions) > 5 else ""
    return f"session{'s' if len(sessions) > 1 else ''} {shown}{more}"


def decisive_attributes(program: Program) -> set[str] | None:
    """Attributes that something other than an observation depends on; None if decisions read the clock or draw."""
    sets = [op for state in program.states for op in state.ops if isinstance(op, ir.Set)]
    sets += [op for op in program.turn if isinstance(op, ir.Set)]
    assignments = [(op.attr, op.value) for op in sets]
    assignments += [(let.attr, let.value) for scope in program.scopes for let in scope.lets]
    chosen = [op for state in program.states for op in state.ops if isinstance(op, ir.Choose)]
    assignments += [(op.attr, part) for op in chosen for part in (op.count, *op.keys)]
    decisions = [
        *program.pools,
        *program.stages,
        *[(scope.takes, scope.reuse, scope.lease) for scope in program.scopes],
        *[state.exit for state in program.states],
        *[op for state in program.states for op in state.ops if isinstance(op, ir.Drop | ir.Load | ir.Require)],
    ]
    read = {n.name for part in decisions for n in _nodes(part) if isinstance(n, expr.Attr)}
    pending = list(read)
    values = [part for part in decisions]
    while pending:
        name = pending.pop()
        for attr, value in assignments:
            if attr == name:
                values.append(value)
                new = {n.name for n in _nodes(value) if isinstance(n, expr.Attr)} - read
                read |= new
                pending.extend(new)
    for part in values:
        for node in _nodes(part):
            if isinstance(node, expr.Sample | expr.Price) or node == expr.Ctx("Now"):
                return None
    return read


def _nodes(part: Any) -> Iterator[Any]:
    if isinstance(part, list | tuple):
        for item in part:
            yield from _nodes(item)
    else:
        for _, node in walk(part):
            yield node


def signature(machine: Machine, slots: list[int]) -> tuple:
    """The state of the machine apart from the clock: ages and numbers as places in their orders."""
    now_tick = machine.now_tick
    sessions = []
    for s in (*machine.live.values(), *machine.legs):
        scopes = tuple((o.scope, tuple((h.pool, h.alloc, h.pos, h.reserved) for h in o.holds)) for o in s.scopes)
        job = None if s.job is None else (s.job.stages, s.job.mode, s.job.work, s.job.rate)
        attrs = tuple(s.attrs[i] for i in slots)
        deadline = None if s.deadline is None else s.deadline[0] - now_tick
        leases = tuple((held.pool, held.alloc, held.computed) for held in s.leases)
        where = (s.serial, s.leg, s.legs, s.state, s.status.value)
        sessions.append((*where, attrs, scopes, leases, job, s.growing_pool, deadline))
    pools = []
    for pool in machine.pools:
        entries = sorted(pool.entries.values(), key=lambda e: (e.last_tick, e.released))
        pools.append(
            (
                pool.used,
                pool.cached,
                tuple((w.session.serial, w.resumed, w.requeued) for w in pool.line),
                tuple((g.session.serial, g.units) for g in pool.growers),
                tuple((e.serial, e.size) for e in entries),
                None if pool.blocks is None else pool.blocks.signature(),
                tuple(s.serial for s in pool.holders),
            )
        )
    order = tuple(s.serial for s in sorted(machine.live.values(), key=lambda s: s.adm))
    events = tuple(
        sorted(
            (tick - now_tick, handle.__qualname__)
            for tick, _, handle, what in machine.heap
            # these change nothing that the machine does
            if handle != machine.end_warmup and not is_stale(what)
        )
    )
    passed = tuple(now_tick - sharing.since_tick for sharing in machine.sharings if sharing.jobs)
    return tuple(sessions), tuple(pools), order, events, passed, tuple(machine.registers)
