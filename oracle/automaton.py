"""Running a session: straight-line operations, then the exit of its state.

**Source:** semantics.md section 3 (statements), section 2 (Turn).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from serqjax.ir import program as ir

from . import scopes
from .deadlines import Deadline
from .expressions import Look, RunError, amount, guard, who
from .session import Session, Status
from .stages import Job

if TYPE_CHECKING:
    from .machine import Machine

MOST_STATEMENTS = 1_000_000
Operation = Callable[[Session, Look], None]
Exit = Callable[[Session], bool]  # whether the session goes on without blocking


class Automaton:
    """The compiled states. Operations take the session and the place they look from: its own
    statements draw from its own stream, `init` and `turn` from the workload stream."""

    def __init__(self, machine: Machine):
        self.machine = machine
        program = machine.program
        self.has_turns = any(isinstance(op, ir.Turn) for state in program.states for op in state.ops)
        self.init_ops = [self.operation(op, "init") for op in program.init]
        self.turn_ops = [self.operation(op, "turn") for op in program.turn]
        self.states = [
            ([self.operation(op, state.name) for op in state.ops], self.exit(state)) for state in program.states
        ]

    def init(self, session: Session) -> None:
        for operation in self.init_ops:
            operation(session, session.workload_look)

    def run(self, session: Session) -> None:
        """Run until the session blocks or ends."""
        statements = 0
        goes_on = True
        while goes_on:
            operations, exit_state = self.states[session.state]
            for operation in operations:
                operation(session, session.look)
            statements += len(operations) + 1
            if statements > MOST_STATEMENTS:
                raise RunError(f"{who(session)}{MOST_STATEMENTS} statements without blocking")
            goes_on = exit_state(session)

    # ------------------------------------------------------------ operations

    def operation(self, op: ir.Op, place: str) -> Operation:
        machine, compiler = self.machine, self.machine.compiler
        match op:
            case ir.Set(attr=attr, value=value):
                slot, f = machine.slots[attr], compiler.expr(value)

                def set_attr(session: Session, look: Look) -> None:
                    session.attrs[slot] = f(look)

                return set_attr
            case ir.Observe(name=name, value=value):
                index, f = machine.observe_index[name], compiler.expr(value)
                aggregated = machine.claims.values

                def observe(session: Session, look: Look) -> None:
                    x = f(look)
                    if name in aggregated:
                        aggregated[name].append(x)
                    if machine.warm:
                        machine.samples.add(index, machine.now_tick, session.serial, machine.turn_no(session), x)

                return observe
            case ir.Turn():
                return lambda session, look: self.turn(session)
            case ir.Respond():
                if self.has_turns:
                    return lambda session, look: machine.clients.respond(session)
                return lambda session, look: None
            case ir.Choose():
                return self.choose(op, place)
            case ir.Drop(pool=pool):
                index = compiler.resource(pool, machine.pool_index)
                return lambda session, look: machine.pools[index(look)].drop(session.serial)
            case ir.Load(pool=pool, units=units):
                index, amount_of = compiler.resource(pool, machine.pool_index), compiler.expr(units)

                def load(session: Session, look: Look) -> None:
                    place = index(look)
                    units = amount(amount_of(look), session, machine.pools[place].where)
                    scopes.load(machine, session, place, units)

                return load
            case ir.Require(test=test, problem=problem):
                f = compiler.expr(test)

                def require(session: Session, look: Look) -> None:
                    if f(look) == 0.0:
                        raise RunError(who(session) + problem)

                return require
        raise TypeError(f"{place}: no such operation: {op!r}")

    def choose(self, op: ir.Choose, place: str) -> Operation:
        compiler = self.machine.compiler
        slot, count = self.machine.slots[op.attr], compiler.expr(op.count)
        key = compiler.order(ir.Order(keys=op.keys, tie="queued"))
        assert key is not None

        def choose(session: Session, look: Look) -> None:
            n = count(look)
            if not (n >= 0.0 and n == n // 1.0):
                raise RunError(f"{who(session)}the count of a choice is not a whole number, at state `{place}`")
            best, least = 0, None
            for j in range(int(n)):
                session.attrs[slot] = float(j)
                keys = key(look)
                if least is None or keys < least:
                    best, least = j, keys
            session.attrs[slot] = float(best)

        return choose

    def turn(self, session: Session) -> None:
        """The next turn: counted, its stream seeded, its scripted attributes set, `Program.turn` run."""
        machine = self.machine
        machine.clients.respond(session)
        session.turns += 1
        slot = machine.slots.get("turn_no")
        if slot is not None:
            session.attrs[slot] += 1.0
        machine.reseed_workload(session)
        self.script(session)
        for operation in self.turn_ops:
            operation(session, session.workload_look)
        machine.turns += machine.warm
        machine.clients.open(session, machine.turn_no(session))

    def script(self, session: Session) -> None:
        machine = self.machine
        source = machine.program.trace or machine.program.arrival
        if isinstance(source, ir.Trace):
            names, turns = source.attrs, source.turns[session.script]
        elif isinstance(source, ir.Listed) and source.turns and source.turns[session.script]:
            names, turns = source.turn_attrs, source.turns[session.script]
        else:
            return
        k = session.turns - 1
        if k < len(turns):
            for name, value in zip(names, turns[k]):
                if value is not None:
                    session.attrs[machine.slots[name]] = value
        machine.set_attr(session, "more", float(k + 1 < len(turns)))

    # ------------------------------------------------------------ exits

    def exit(self, state: ir.State) -> Exit:
        machine, compiler = self.machine, self.machine.compiler
        states, at_state = machine.state_index, f"at state `{state.name}`"
        match state.exit:
            case ir.Goto(then=then):
                return self.jump(states[then])
            case ir.Branch(test=test, then=then, orelse=orelse):
                f, yes, no = compiler.expr(test), states[then], states[orelse]
                problem = f"a guard is neither 0 nor 1, {at_state}"

                def branch(session: Session) -> bool:
                    session.state = yes if guard(f(session.look), problem, session) else no
                    return True

                return branch
            case ir.Enter(scope=scope, deadline=deadline):
                index, here = machine.scope_index[scope], states[state.name]
                if deadline is not None:
                    machine.patience[here] = Deadline(machine, deadline, state.name)

                def enter(session: Session) -> bool:
                    scopes.enter(machine, session, index, here)
                    return False

                return enter
            case ir.Run():
                return self.run_on_stage(state.exit, state.name)
            case ir.Grow(pool=pool, units=units, then=then, deadline=deadline):
                place, f, target = compiler.resource(pool, machine.pool_index), compiler.expr(units), states[then]
                limit = self.deadline(deadline, state.name)

                def grow(session: Session) -> bool:
                    session.state = target
                    units = amount(f(session.look), session, at_state)
                    ticks = 0 if limit is None else limit.ticks(session)
                    growth = scopes.grow(machine, session, place(session.look), units, None)
                    if limit is not None and growth is scopes.Growth.waits:
                        limit.arm(session, ticks)
                    return growth is scopes.Growth.done

                return grow
            case ir.Shrink(pool=pool, units=units, then=then):
                place, f, target = compiler.resource(pool, machine.pool_index), compiler.expr(units), states[then]

                def shrink(session: Session) -> bool:
                    session.state = target
                    units = amount(f(session.look), session, at_state)
                    scopes.shrink(machine, session, place(session.look), units)
                    return True

                return shrink
            case ir.Release(pool=pool, then=then):
                place, target = compiler.resource(pool, machine.pool_index), states[then]

                def release(session: Session) -> bool:
                    session.state = target
                    scopes.release(machine, session, place(session.look))
                    return True

                return release
            case ir.Leave(then=then):
                target = states[then]

                def leave(session: Session) -> bool:
                    session.state = target
                    scopes.leave(machine, session)
                    return True

                return leave
            case ir.Fork(leg=leg, then=then):
                first, target = states[leg], states[then]

                def fork(session: Session) -> bool:
                    session.state = target
                    machine.fork(session, first)
                    return True

                return fork
            case ir.Join(then=then):
                target = states[then]

                def join(session: Session) -> bool:
                    session.state = target
                    if session.legs:
                        session.status = Status.joining
                    return not session.legs

                return join
            case ir.EndLeg():

                def end_leg(session: Session) -> bool:
                    machine.end_leg(session)
                    return False

                return end_leg
            case ir.End():

                def end(session: Session) -> bool:
                    machine.end_session(session)
                    return False

                return end
        raise TypeError(f"states `{state.name}`: no such exit: {state.exit!r}")

    def deadline(self, deadline: ir.Deadline | None, state: str) -> Deadline | None:
        return None if deadline is None else Deadline(self.machine, deadline, state)

    def jump(self, target: int) -> Exit:
        def jump(session: Session) -> bool:
            session.state = target
            return True

        return jump

    def run_on_stage(self, run: ir.Run, state: str) -> Exit:
        machine, compiler = self.machine, self.machine.compiler
        stage = compiler.resource(run.stage, machine.stage_index)
        work, then, mode = compiler.expr(run.work), machine.state_index[run.then], run.mode
        grows = None if run.grows is None else compiler.resource(run.grows, machine.pool_index)
        also = [compiler.resource(other, machine.stage_index) for other in run.also]
        latency = compiler.optional(run.latency)
        limit, at_state = self.deadline(run.deadline, state), f"at state `{state}`"

        def run_on_stage(session: Session) -> bool:
            look = session.look
            units = amount(work(look), session, at_state)
            latency_s = 0.0 if latency is None else amount(latency(look), session, at_state)
            place = stage(look)
            ticks = 0 if limit is None else limit.ticks(session)
            session.state = then
            if mode == "Decode":  # also one of no tokens confirms a pending first token
                machine.clients.decode_starts(session)
            if units <= 0.0 and latency_s <= 0.0:  # does not enter the stage: the other ready sessions run first
                machine.make_ready(session)
                return False
            session.status = Status.in_stage
            session.stage = place
            pool = -1 if grows is None else grows(look)
            held = (place, *[other(look) for other in also])
            if len(set(held)) < len(held):
                raise RunError(f"{who(session)}the run holds one stage twice, {at_state}")
            number = machine.next_job()
            session.job = Job(session, mode, units, then, machine.now_tick, pool, stages=held, number=number)
            machine.stages[place].take(session.job, latency_s)
            if limit is not None:
                limit.arm(session, ticks)
            return False

        return run_on_stage
