"""Sessions: how one starts, and how a ready one runs from a blocking point to the next.

The states of a program are traced one after the other in an order in which jumps go forward; each is
masked by "the session is here". One pass therefore runs a session through straight code, branches and
forward jumps; a jump backwards takes the next loop turn.

**Source:** `spec/semantics.md`, sections 2 (spawn), 3, 12; oracle: `oracle/session.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..check.values import chosen_from
from ..ir.expr import Member, Num, Resource
from ..ir.program import (
    Batch,
    Branch,
    Choose,
    Closed,
    Deadline,
    Drop,
    End,
    EndLeg,
    Enter,
    Fork,
    Goto,
    Grow,
    Join,
    Leave,
    Listed,
    Load,
    Observe,
    Op,
    Release,
    Require,
    Respond,
    Run,
    Set,
    Shrink,
    State,
    Step,
    Turn,
)
from ..ir.structure import walk
from ..report.raw import Action, RequestStatus
from ..tape.chacha import DRAWS_PER_BLOCK
from . import legs, measures, sharing
from .access import (
    FAR,
    SLOT_BITS,
    any_of,
    load,
    lookup,
    store_column,
    unpack_slot,
    whole,
)
from .blocks import Lookups
from .clock import ask_service, schedule_wake
from .expr import Draws, Env, Value, evaluate, select
from .faults import Fault
from .holds import innermost_of, table
from .lane import Lane
from .parts import load_units, shrink
from .plan_parts import draws_in
from .requests import close_request, open_request
from .state import END, END_LEG, GROW, LEAVE, NEVER_ADMITTED, NEWCOMER, RELEASE, SETTLE, sites_at_once
from .uniforms import cursor, turn_cursor
from .views import (
    Attributes,
    amount,
    at_least_0,
    now_s,
    own_entry,
    pool_state,
    stage_state,
    stray,
    to_ticks,
)

# ---------------------------------------------------------------- start


def begin(w: Lane) -> None:
    """The start of the run: warm-up over if it is 0, the first arrivals."""
    on = (w.verdict < 0) & ~w.started
    arrival = w.plan.skeleton.arrival
    if w.plan.open_arrivals:
        on = on & (w.gap_for == 0)  # drawn in the first turn
    w.pick(on, warm=w.job.warmup <= 0)
    if w.has("registers"):
        numbers = Env(w.plan, w.job.numbers)
        w.pick(on, registers=[numbers.number(r.init) for r in w.plan.skeleton.registers])
    if w.plan.open_arrivals:
        w.fail(on & (w.gap < 0), Fault.gap)
        w.pick(on, next_arrive=jnp.maximum(w.gap, 0), arrive_key=w.event_seq << SLOT_BITS)
        w.event_seq = w.event_seq + on
    elif isinstance(arrival, (Closed, Batch)):
        n = Env(w.plan, w.job.numbers).number(arrival.n)
        w.pick(on, spawning=n.astype(jnp.int32))
    elif isinstance(arrival, Listed):
        at = w.data.at[w.job.which]
        w.pick(on, spawning=jnp.sum(at <= 0).astype(jnp.int32))
        later = at[jnp.minimum(jnp.sum(at <= 0), at.shape[0] - 1)]
        # all rows were scheduled before anything else: at one tick they come first, after the end of warm-up
        w.pick(on, next_arrive=jnp.where(later > 0, later, FAR), arrive_key=1)
    w.pick(on, started=True)


def spawn(w: Lane) -> None:
    """Start one session: its attributes, its place at the end of the ready list."""
    plan = w.plan
    # also in the middle of somebody's growth: a population that is closed respawns inside the end of a session
    on = w.between & w.started & (w.spawning > 0) & ((w.cur < 0) | w.growing_now)
    if plan.init_draws:
        on = on & (w.init_for == w.arrived)  # drawn in the turn before
    row = jnp.int32(0)
    if plan.skeleton.trace is not None:
        row = (w.arrived - w.tape.base).astype(jnp.int32)
        on_tape = (row >= 0) & (row < w.tape.script.shape[0])
        w.pick(on & ~on_tape, stall=True)
        on = on & on_tape
        row = jnp.clip(row, 0, w.tape.script.shape[0] - 1)
    w.fail(on & (w.free_n == 0), Fault.slots)
    on = on & (w.free_n > 0)
    slot = w.free[jnp.maximum(w.free_n - 1, 0)]
    on, row, slot = w.fence(on, row, slot)
    serial = w.arrived
    script = w.tape.script[row]
    if plan.listed:
        script = serial.astype(jnp.int32)

    attrs = Attributes(w, slot)
    attrs.values = [jnp.float64(0.0) for _ in attrs.values]
    attrs.set("serial", serial.astype(jnp.float64), on)
    env = Env(plan, w.job.numbers, attr=attrs.get, ctx={"Now": lambda: now_s(w)}, draw=cursor(w, "init").take)
    sites = Sites(w, where=0)
    for op in plan.skeleton.init:
        run_op(w, op, env, attrs, on, sites, slot, serial, jnp.int64(0))
    sites.save(on, serial)
    if isinstance(plan.skeleton.arrival, Listed):
        preset = w.data.values[w.job.which, jnp.minimum(script, w.data.values.shape[1] - 1)]
        for i, name in enumerate(plan.skeleton.arrival.attrs):
            attrs.set(name, preset[i], on & ~jnp.isnan(preset[i]))
    attrs.save(on)
    if plan.claims:
        measures.start_session(w, attrs.get, serial, on)

    w.put("pc", slot, plan.start, on)
    w.put("serial", slot, serial, on)
    w.put("turns", slot, 0, on)
    if w.has("own"):
        w.put("own", slot, 0, on)
    w.put("ready_at", slot, -1, on)
    if w.has("legs"):
        for name, value in (("root", -1), ("leg", -1), ("legs", 0), ("forks", 0), ("joining", False)):
            w.put(name, slot, value, on)
    if w.has("adm"):
        w.put("adm", slot, NEVER_ADMITTED, on)
    w.put("script", slot, script, on)
    w.put("open", slot, False, on)
    if not plan.has_turn:
        open_request(w, slot, on)
    if w.has("entry"):
        w.s["entry"] = store_column(w.entry, slot, -1, on)
    if w.has("stuck"):
        w.put("stuck", slot, False, on)
        w.put("hopeless", slot, False, on)
        w.s["preempted_pos"] = store_column(w.preempted_pos, slot, -1.0, on)
    w.act(on, Action.arrive, serial, 0, 0)
    w.make_ready(slot, on)
    w.pick(on, free_n=w.free_n - 1, arrived=w.arrived + 1, live=w.live + 1, spawning=w.spawning - 1)


class Sites:
    """The observations of one pass: each `Observe` site has its own part of one entry of the samples."""

    def __init__(self, w: Lane, where: int):
        self.w, self.where = w, where
        self.turn: list[Value] = []
        self.value: list[Value] = []

    def add(self, turn: Value, value: Value, mask: Value) -> None:
        kept = mask if self.w.plan.aggregates else mask & self.w.warm
        self.turn.append(jnp.where(kept, turn.astype(jnp.float64), -1.0))
        self.value.append(jnp.where(kept, value, 0.0))

    def save(self, mask: Array, serial: Array) -> None:
        if not self.turn:
            return
        w = self.w
        some = mask & any_of([turn >= 0 for turn in self.turn])
        pad = sites_at_once(w.plan) - len(self.turn)
        head = [w.now.astype(jnp.float64), serial.astype(jnp.float64)]
        turns = self.turn + [jnp.float64(-1.0)] * pad
        values = self.value + [jnp.float64(0.0)] * pad
        pairs = [x for pair in zip(turns, values) for x in pair]
        tail = [jnp.float64(self.where)] if w.plan.init_sites else []
        w.perhaps(some, lambda w: w.append("samples", head + pairs + tail, some))


# ---------------------------------------------------------------- ops


def run_op(
    w: Lane, op: Op, env: Env, attrs: Attributes, on: Array, sites: Sites, slot: Array, serial: Array, turns: Value
) -> None:
    """One op in zero time (all but `Turn` and `Respond`, which `Pass` does)."""
    match op:
        case Set(name, value):
            attrs.set(name, evaluate(value, env, on), on)
        case Observe(_, value):
            turn = attrs.get("turn_no") if "turn_no" in w.plan.attr_index else turns
            seen = evaluate(value, env, on)
            sites.add(jnp.asarray(turn), seen, on & (w.fault == 0) if may_fail(op) else on)
        case Require(test, _):
            place = w.plan.requires.index(op)
            w.fail(on & (evaluate(test, env, on) == 0.0), Fault.require, slot, place)
        case Load(ref, units):
            load_units(w, w.plan.pool(ref), evaluate(units, env, on), slot, on)
        case Drop(ref):
            members = w.plan.pools_of(ref)
            chosen = None if isinstance(ref, str) else env.member(ref, members, on)
            for i, pool in enumerate(members):
                if w.plan.caching[pool]:
                    index, size = own_entry(w, pool, slot)
                    gone = on & (index >= 0) & (w.fault == 0)
                    if chosen is not None:
                        gone = gone & (chosen == i)
                    w.put("entry_size", index, 0.0, gone)
                    w.add("cached", pool, -size, gone)


def may_fail(op: Op) -> bool:
    """Whether an op may end the run: then nothing happens after it."""
    return isinstance(op, (Require, Choose, Load)) or any(isinstance(node, Member) for _, node in walk(op))


def plan_implicit(state: State, turn: Turn) -> bool:
    """Whether a `Turn` has no `Respond` before it in its state."""
    return not any(isinstance(op, Respond) for op in state.ops[: state.ops.index(turn)])


class Pass:
    """One pass of the current session over all states."""

    def __init__(self, w: Lane, on: Array):
        self.w, self.plan = w, w.plan
        self.slot = w.cur
        self.entered = on
        self.on = on
        self.pc = load(w.pc, self.slot)
        self.serial = load(w.serial, self.slot)
        self.turns = load(w.turns, self.slot)
        self.attrs = Attributes(w, self.slot)
        self.sites = Sites(w, where=1)
        # draws made on the session's own stream, and how many more are at hand
        self.own = load(w.own, self.slot) if w.has("own") else jnp.int64(0)
        self.own_draws = cursor(w, "own", self.own & (DRAWS_PER_BLOCK - 1))
        self.own_before = self.own_draws.at
        self.own_left = len(self.plan.blocks["own"]) * DRAWS_PER_BLOCK - (self.own & (DRAWS_PER_BLOCK - 1))
        # how the pass ends: at most one of these per session
        false, none = on & False, jnp.int32(-1)  # (a kernel cannot negate a constant)
        self.blocked = false
        self.again = false
        self.leave = self.end = false
        self.enter_scope = none
        self.run_stage, self.run_mode, self.run_column = none, jnp.int32(0), none
        self.run_work = self.run_latency = jnp.float64(0.0)
        self.run_links = jnp.int64(0)
        self.grow_pool, self.grow_units = none, jnp.float64(0.0)
        self.limit, self.limit_to = jnp.int64(0), none  # the deadline of the exit: ticks and target
        self.fork_state, self.join, self.leg_ends = none, false, false
        self.shrink_pool, self.shrink_units, self.release_pool = none, jnp.float64(0.0), none
        self.lease_after_s = jnp.float64(0.0)
        self.responded = false
        self.stored: dict[object, Value] = {}
        self.fence()

    # -------------------------------------------------------- environment

    def env(self) -> Env:
        return Env(
            self.plan,
            self.w.job.numbers,
            attr=self.attrs.get,
            ctx={"Now": lambda: now_s(self.w)},
            pool=pool_state(self.w, self.slot, Lookups(self.w, self.slot, self.attrs.get)),
            stage=stage_state(self.w),
            draw=self.own_draws.take,
            stray=stray(self.w, self.slot),
        )

    #: What a state may change, besides attributes.
    REGISTERS = (
        "on", "pc", "turns", "blocked", "again", "leave", "end", "enter_scope", "run_stage", "run_mode",
        "run_column", "run_work", "run_latency", "run_links", "grow_pool", "grow_units", "fork_state", "join",
        "leg_ends", "responded", "own_left",
    )  # fmt: skip

    #: The same, of programs that give back in part or lease.
    LOOSE_REGISTERS = ("shrink_pool", "shrink_units", "release_pool", "lease_after_s")

    def fence(self) -> None:
        """Store what the state has changed before the next one reads it (Lane.fence)."""
        loose = self.plan.loose or bool(self.plan.shrunk)
        registers = self.REGISTERS + (self.LOOSE_REGISTERS if loose else ())
        registers += ("limit", "limit_to") if self.plan.deadlines else ()
        changed = [n for n in registers if getattr(self, n) is not self.stored.get(n)]
        attrs = [i for i, v in enumerate(self.attrs.values) if v is not self.stored.get(i)]
        draws = self.own_draws.at is not self.stored.get("draws")
        values = [getattr(self, n) for n in changed] + [self.attrs.values[i] for i in attrs]
        values += [self.own_draws.at] if draws else []
        if not values:
            return
        fenced = list(self.w.fence(*values))
        if draws:
            self.own_draws.at = self.stored["draws"] = fenced.pop()
        for name in changed:
            value = fenced.pop(0)
            setattr(self, name, value)
            self.stored[name] = value
        for i in attrs:
            value = fenced.pop(0)
            self.attrs.values[i] = self.stored[i] = value

    # -------------------------------------------------------- states

    def run(self) -> None:
        for i, state in enumerate(self.plan.states):
            here = self.on & (self.pc == i)
            needs = self.plan.state_draws[i]
            if needs:
                here = here & (self.own_left >= needs)  # else in the next turn, with new draws
            if self.plan.respond_states[i]:
                here = here & ~self.responded  # one request row a pass: the rest in the next turn
            if needs or self.plan.respond_states[i]:
                self.on = self.on & ((self.pc != i) | here)
            before, nth = self.own_draws.at, 0
            for op in state.ops:
                if isinstance(op, Choose):
                    self.choose(op, i, here)
                elif isinstance(op, Turn):
                    self.turn(here, plan_implicit(state, op), nth)
                    nth += 1
                elif isinstance(op, Respond):
                    close_request(self.w, self.slot, RequestStatus.finished, here)
                    self.responded = self.responded | here
                else:
                    run_op(self.w, op, self.env(), self.attrs, here, self.sites, self.slot, self.serial, self.turns)
                if may_fail(op):
                    here = here & (self.w.fault == 0)  # nothing happens after an error
                    self.on = self.on & (self.w.fault == 0)
            self.exit(i, state.exit, here)
            self.own_left = self.own_left - (self.own_draws.at - before)
            self.fence()

    def choose(self, op: Choose, i: int, here: Array) -> None:
        """The member with the least keys: all at once, one after the other where keys draw."""
        plan, slot, bound = self.plan, self.slot, self.plan.choices(op)
        draws = bool(draws_in(op.keys))

        def decide(w: Lane) -> tuple[Array, Array]:
            own = Draws(self.own_draws.row, self.own_draws.at)

            def env(member: Value) -> Env:
                return Env(
                    plan, w.job.numbers, attr=lambda name: member if name == op.attr else self.attrs.get(name),
                    ctx={"Now": lambda: now_s(w)}, pool=pool_state(w, slot), stage=stage_state(w), draw=own.take,
                    stray=stray(w, slot),
                )  # fmt: skip

            literal = isinstance(op.count, Num) and op.count.value < 0
            count = jnp.float64(bound)
            if not literal:
                count = jnp.asarray(evaluate(op.count, env(self.attrs.get(op.attr)), here))
                w.fail(here & ~((count >= 0.0) & (count == jnp.floor(count))), Fault.count, slot, i)
                for kind, ref in chosen_from(op):
                    members = plan.pools_of(ref) if kind == "pool" else plan.stages_of(ref)
                    array = plan.arrays.index((ref.array, members))
                    w.fail(here & (count > len(members)), Fault.member, slot, array)
            if not bound:
                return jnp.float64(0.0), own.at
            places = jnp.arange(bound)
            live = places < count
            if draws:
                rows = []
                for j in range(bound):
                    here_j = here & live[j]
                    rows.append([evaluate(key, env(jnp.float64(j)), here_j) for key in op.keys])
                keys = [jnp.stack([jnp.asarray(row[k]) for row in rows]) for k in range(len(op.keys))]
            else:
                each = env(places.astype(jnp.float64))
                keys = [evaluate(key, each, here & live) for key in op.keys]
            found, row = select(keys, places.astype(jnp.int64), live)
            return jnp.where(found, row, 0).astype(jnp.float64), own.at

        best, at = self.w.only(here, decide, (jnp.float64(0.0), self.own_draws.at))
        self.attrs.set(op.attr, best, here)
        self.own_draws.at = at

    def turn(self, here: Array, implicit: bool, nth: int) -> None:
        """The next turn: count it, take the scripted attributes, draw the workload's.

        `implicit`: no `Respond` stands before it in its state, so it ends the turn before itself. `nth`: among the
        `Turn` ops of its state.
        """
        w, plan = self.w, self.plan
        if implicit:
            close_request(w, self.slot, RequestStatus.finished, here)
            self.responded = self.responded | here
        self.turns = self.turns + here
        self.attrs.set("turn_no", self.turns.astype(jnp.float64), here)
        w.put("turns", self.slot, self.turns, here)
        script = load(w.script, self.slot)
        names: tuple[str, ...] | None = None
        if isinstance(plan.skeleton.arrival, Listed):
            names = plan.skeleton.arrival.turn_attrs
        if plan.skeleton.trace is not None:
            names = plan.skeleton.trace.attrs
        if names is not None:
            which = w.job.which
            script = jnp.clip(script, 0, w.data.turn_start.shape[1] - 1)
            count = w.data.turn_count[which, script]
            at = w.data.turn_start[which, script] + self.turns - 1
            row = w.data.turns[which, jnp.clip(at, 0, w.data.turns.shape[1] - 1)]
            scripted = here & (self.turns <= count)
            for i, name in enumerate(names):
                self.attrs.set(name, row[i], scripted & ~jnp.isnan(row[i]))
            # a session without a script keeps its `more`
            self.attrs.set("more", (self.turns < count).astype(jnp.float64), here & (count > 0))
        draw = turn_cursor(w, nth, self.serial).take if plan.turn_draws else None
        env = Env(plan, w.job.numbers, attr=self.attrs.get, ctx={"Now": lambda: now_s(w)}, draw=draw)
        for op in plan.skeleton.turn:
            run_op(w, op, env, self.attrs, here, self.sites, self.slot, self.serial, self.turns)
        open_request(w, self.slot, here)
        w.turns_done = w.turns_done + (here & w.warm)

    def jump(self, i: int, name: str, mask: Array) -> None:
        self.pc = jnp.where(mask, self.plan.state_index[name], self.pc)
        if not self.plan.is_forward(i, name):
            self.on = self.on & ~mask

    def block(self, mask: Array) -> None:
        """The session stops here until something wakes it."""
        self.blocked = self.blocked | mask
        self.on = self.on & ~mask

    def exit(self, i: int, exit: object, here: Array) -> None:
        w, plan = self.w, self.plan
        match exit:
            case Goto(then):
                self.jump(i, then, here)
            case Branch(test, then, orelse):
                value = evaluate(test, self.env(), here)
                bad = here & (value != 0.0) & (value != 1.0)
                w.fail(bad, Fault.guard, self.slot, i)
                self.on, here = self.on & ~bad, here & ~bad
                self.jump(i, then, here & (value == 1.0))
                self.jump(i, orelse, here & (value != 1.0))
            case Enter(name, _):
                scope = plan.scope_index[name]
                self.enter_scope = jnp.where(here, scope, self.enter_scope)
                self.block(here)
            case Run():
                self.run_on(i, exit, here)
                self.pc = jnp.where(here, plan.state_index[exit.then], self.pc)
            case Grow(ref, units, then, deadline):
                value = amount(w, evaluate(units, self.env(), here), here, Fault.bad_amount, self.slot, i)
                pool = self.place(ref, plan.pools_of(ref), here)
                self.on, here = self.on & (w.fault == 0), here & (w.fault == 0)
                self.grow_pool = jnp.where(here, pool, self.grow_pool)
                self.grow_units = jnp.where(here, value, self.grow_units)
                self.limit_by(i, deadline, here)
                self.pc = jnp.where(here, plan.state_index[then], self.pc)
                self.on = self.on & ~here
            case Shrink(ref, units, then):
                value = amount(w, evaluate(units, self.env(), here), here, Fault.bad_amount, self.slot, i)
                self.on, here = self.on & (w.fault == 0), here & (w.fault == 0)
                self.shrink_pool = jnp.where(here, plan.pool(ref), self.shrink_pool)
                self.shrink_units = jnp.where(here, value, self.shrink_units)
                self.pc = jnp.where(here, plan.state_index[then], self.pc)
                self.on = self.on & ~here
            case Release(ref, then):
                self.release_pool = jnp.where(here, plan.pool(ref), self.release_pool)
                self.pc = jnp.where(here, plan.state_index[then], self.pc)
                self.on = self.on & ~here
            case Leave(then):
                lease = plan.lease_left(plan.states[i])
                if lease is not None:
                    after_s = at_least_0(evaluate(lease.after_s, self.env(), here))
                    self.on, here = self.on & (w.fault == 0), here & (w.fault == 0)  # an index in it may be wrong
                    self.lease_after_s = jnp.where(here, after_s, self.lease_after_s)
                self.leave = self.leave | here
                self.pc = jnp.where(here, plan.state_index[then], self.pc)
                self.on = self.on & ~here
            case Fork(leg, then):
                # the leg starts in this turn; the session goes on in the next
                self.fork_state = jnp.where(here, plan.state_index[leg], self.fork_state)
                self.pc = jnp.where(here, plan.state_index[then], self.pc)
                self.on = self.on & ~here
            case Join(then):
                waits = here & (load(w.legs, self.slot) > 0)
                self.join = self.join | waits
                self.jump(i, then, here)
                self.block(waits)
            case EndLeg():
                self.leg_ends = self.leg_ends | here
                self.block(here)
            case End():
                if w.has("legs"):
                    early = here & (load(w.legs, self.slot) > 0)
                    w.fail(early, Fault.live_leg, self.slot, i)
                    self.on, here = self.on & ~early, here & ~early
                self.end = self.end | here
                self.block(here)

    def limit_by(self, i: int, deadline: Deadline | None, mask: Array) -> None:
        """The exit of state i ends at the deadline, if the session blocks there."""
        if deadline is not None:
            w = self.w
            after = amount(w, evaluate(deadline.after, self.env(), mask), mask, Fault.bad_amount, self.slot, i)
            self.limit = jnp.where(mask, to_ticks(w, after), self.limit)
            self.limit_to = jnp.where(mask, self.plan.state_index[deadline.target], self.limit_to)

    def place(self, ref: Resource, members: tuple[int, ...], here: Array) -> Value:
        """The pool or stage that a reference means."""
        if isinstance(ref, str):
            return members[0]
        return table(members)[self.env().member(ref, members, here)]

    def run_on(self, i: int, run: Run, here: Array) -> None:
        """Enter a stage, or go to the end of the ready list when there is nothing to do."""
        w, plan = self.w, self.plan
        mode, grows = run.mode, run.grows
        value = amount(w, evaluate(run.work, self.env(), here), here, Fault.bad_amount, self.slot, i)
        stage = self.place(run.stage, plan.stages_of(run.stage), here)
        self.on, here = self.on & (w.fault == 0), here & (w.fault == 0)
        enters = value > 0.0
        if plan.has_latency:
            latency = jnp.float64(0.0)
            if run.latency is not None:
                latency = evaluate(run.latency, self.env(), here)
                latency = amount(w, latency, here, Fault.bad_amount, self.slot, i)
                self.on, here = self.on & (w.fault == 0), here & (w.fault == 0)
                enters = enters | (latency > 0.0)
            self.run_latency = jnp.where(here & enters, latency, self.run_latency)
        nothing, enters = here & ~enters, here & enters
        if plan.links:
            held = jnp.int64(0)
            others = [self.place(other, plan.stages_of(other), here) for other in run.also]
            for other in (stage, *others):
                held = held | lookup(plan.link_bit, jnp.asarray(other))
            self.run_links = jnp.where(enters, held, self.run_links)
        if mode == "Decode":
            row = legs.client(w, self.slot) if w.has("client_last") else self.slot
            first = load(w.first, row)
            confirm = here & load(w.open, row) & (first == w.now) & (load(w.confirmed, row) < 0)
            if w.has("client_last"):
                confirm = confirm & (row >= 0)
            w.put("confirmed", row, w.now, confirm)
            w.put("confirm_order", row, w.order_seq, confirm)
            w.order_seq = w.order_seq + confirm
        self.again = self.again | nothing
        self.run_stage = jnp.where(enters, stage, self.run_stage)
        self.run_work = jnp.where(enters, value, self.run_work)
        self.run_mode = jnp.where(enters, 1 if mode == "Decode" else 0, self.run_mode)
        if grows is not None and w.has("scope"):
            pool = self.place(grows, plan.pools_of(grows), enters)
            column = innermost_of(w, self.slot, pool)
            w.fail(enters & (column < 0), Fault.no_hold, self.slot, pool)
            self.run_column = jnp.where(enters, column, self.run_column)
        self.limit_by(i, run.deadline, enters)
        self.block(here)

    # -------------------------------------------------------- afterwards

    def save(self) -> None:
        """Write the session back and carry out how the pass ended."""
        w, slot = self.w, self.slot
        on = self.entered
        self.attrs.save(on)
        self.sites.save(on, self.serial)
        w.put("pc", slot, self.pc, on)
        if w.has("own"):
            w.put("own", slot, self.own + (self.own_draws.at - self.own_before), on)
        w.make_ready(slot, on & self.again)
        w.pick(on & self.leave, unwind=slot, unwind_how=LEAVE)
        if w.has("lease_after_s"):
            w.pick(on & self.leave, lease_after_s=self.lease_after_s)
        if w.plan.has_releases:
            w.pick(
                on & (self.release_pool >= 0), unwind=slot, unwind_how=RELEASE, unwind_pool=self.release_pool
            )  # fmt: skip
        for pool in w.plan.shrunk:
            shrink(w, pool, self.shrink_units, slot, on & (self.shrink_pool == pool))
        w.pick(on & self.end, unwind=slot, unwind_how=END)
        if w.has("join"):
            w.pick(on & (self.enter_scope >= 0), join=slot, join_scope=self.enter_scope, join_how=NEWCOMER)
        if w.has("grow"):
            grows = on & (self.grow_pool >= 0)
            column = innermost_of(w, slot, self.grow_pool)
            w.fail(grows & (column < 0), Fault.no_hold, slot, self.grow_pool)
            w.pick(
                grows & (column >= 0),
                grow=slot, grow_how=GROW, grow_pool=self.grow_pool, grow_column=column, grow_units=self.grow_units,
            )  # fmt: skip
            if w.has("grow_to"):
                w.pick(grows, grow_limit=self.limit, grow_to=self.limit_to)
        if w.has("legs"):
            w.pick(on & (self.fork_state >= 0), fork=slot, fork_state=self.fork_state)
            w.put("joining", slot, True, on & self.join)
            w.pick(on & self.leg_ends, unwind=slot, unwind_how=END_LEG)
        enters = on & (self.run_stage >= 0)
        w.perhaps(enters, lambda w: self.enter_stage(w, enters))
        w.pick(on & self.blocked, cur=-1)

    def enter_stage(self, w: Lane, on: Array) -> None:
        plan, slot = self.plan, self.slot
        stage = self.run_stage
        w.put("stage", slot, stage, on)
        w.put("work", slot, self.run_work, on)
        w.put("entered", slot, w.now, on)
        if w.has("links"):
            w.put("links", slot, self.run_links, on)
        sharing.count(w, "number", slot, stage, 1, on)
        if w.has("jobs"):
            w.put("job_number", slot, w.jobs, on)
            w.bump("jobs", on)
        timed = on
        if plan.step_stages:
            steps = on & lookup(np.asarray([isinstance(s.kind, Step) for s in plan.skeleton.stages]), stage)
            w.put("mode", slot, self.run_mode, steps)
            w.put("column", slot, self.run_column, steps)
            w.put("give_key", slot, -1, steps)
            w.put("considered", slot, -1, steps)
            if w.has("passed"):
                w.put("passed", slot, -1, steps)
            never = steps & (load(w.adm, slot) >= NEVER_ADMITTED)
            w.put("adm", slot, NEVER_ADMITTED + w.join_seq, never)
            w.bump("join_seq", never)
            timed = on & ~steps
        if plan.has_latency:
            waits = timed & (self.run_latency > 0.0)
            w.put("latent", slot, True, waits)
            sharing.count(w, "latents", slot, stage, 1, waits)
            schedule_wake(w, slot, self.run_latency, waits)
            timed = timed & ~waits
        if plan.has_timed or plan.groups:
            ask_service(w, slot, stage, self.run_work, timed)
        if w.has("deadline"):
            w.arm(slot, self.limit, self.limit_to, on & (self.limit_to >= 0))


def may_run(w: Lane) -> Array:
    """Whether the current session may run now, if there is one."""
    return w.idle & w.started & (w.spawning == 0)


def may_pop(w: Lane) -> Array:
    """Whether the first of the ready list becomes the current session."""
    turn = w.focus == SETTLE
    if w.has("run_ready"):
        turn = turn | w.run_ready
    return may_run(w) & (w.cur < 0) & turn & (w.readies > 0)


def pop(w: Lane) -> None:
    """Make the first of the ready list the current session."""
    on = may_pop(w)
    alone = (w.readies == 1) & (load(w.ready, w.latest_ready) < FAR)
    slot = w.only(~alone, lambda w: unpack_slot(jnp.min(whole(w.ready))), w.latest_ready)
    on, slot, cur = w.fence(on, slot, jnp.where(on, slot, w.cur))
    w.pick(on, dirty=True)
    w.cur = cur
    w.put("ready", slot, FAR, on)
    w.readies = w.readies - on


def runs(w: Lane) -> Array:
    """Whether a session runs in this turn."""
    return may_run(w) & (w.cur >= 0)


def run_current(w: Lane) -> None:
    """Run the current session until it blocks. Its draws are at hand."""
    (on,) = w.fence(runs(w))
    one = Pass(w, on)
    one.run()
    one.save()
