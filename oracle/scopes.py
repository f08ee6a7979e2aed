"""Scopes: joining a line, admission, giving back, growth and preemption.

**Source:** semantics.md sections 4 and 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from serqjax.ir import program as ir
from serqjax.report.raw import Action

from .blocks import Block
from .expressions import EPS, Function, Look, RunError, amount, at_least_0, who
from .pools import Grower, Pool
from .session import Hold, Leased, OpenScope, Session, Status, Waiting

if TYPE_CHECKING:
    from .machine import Machine
    from .stages import Job


class Growth(Enum):
    done = "done"
    waits = "waits"
    preempted_itself = "preempted_itself"


@dataclass(slots=True)
class Trial:
    """What an admission would take: the attributes after the lets, units and need of each pool, blocks to share."""

    attrs: list[float]
    units: list[float]
    needs: list[float]
    hits: list[list[Block]]


class Scope:
    """The compiled form of a scope."""

    def __init__(self, machine: Machine, scope: ir.Scope):
        compiler = machine.compiler
        self.scope = scope
        self.reentry = machine.state_index[scope.reentry]
        self.lets = [(machine.slots[let.attr], compiler.expr(let.value)) for let in scope.lets]
        self.pools = [compiler.resource(take.pool, machine.pool_index) for take in scope.takes]
        self.units = [compiler.expr(take.units) for take in scope.takes]
        self.reserve = [compiler.optional(take.reserve) for take in scope.takes]
        self.keep = [compiler.optional(take.keep) for take in scope.takes]
        self.oversize: list[Function | None] = [
            None if isinstance(take.oversize, str) else compiler.expr(take.oversize) for take in scope.takes
        ]
        self.reuse = compiler.optional(scope.reuse)
        self.leased = -1 if scope.lease is None else [take.pool for take in scope.takes].index(scope.lease.pool)
        self.lease_after_s = None if scope.lease is None else compiler.expr(scope.lease.after_s)


# ---------------------------------------------------------------- joining the line


def enter(
    machine: Machine, session: Session, index: int, state: int = -1, *, resumed: bool = False, requeued: bool = False
) -> None:
    """Join the line of the scope's first pool (`resumed`: at its head), or be rejected.

    `state`: whose `Enter` it is.
    """
    scope, deadline = machine.scopes[index], machine.patience.get(state)
    pools = [place(session.look) for place in scope.pools]
    if len(set(pools)) < len(pools):
        raise RunError(
            f"{who(session)}two parts of the hold `{scope.scope.name}` name one member: a hold takes each pool once"
        )
    for place, oversize in zip(pools, scope.oversize):
        if oversize is None:
            continue
        pool = machine.pools[place]
        need = pool.up(amount(oversize(session.look), session, machine.pools[place].where))
        if need > pool.cap:
            pool.totals.rejected += 1
            machine.act(Action.reject, session.serial, place, need)
            machine.reject(session)
            return
    ticks = None if deadline is None else deadline.ticks(session)
    waiting = Waiting(session, index, pools, machine.now_tick, resumed, requeued, state)
    line = machine.pools[pools[0]].line
    line.insert(0, waiting) if resumed else line.append(waiting)
    machine.pools[pools[0]].joined += not requeued
    session.waiting = waiting
    session.status = Status.queued
    if machine.patience:
        session.state = state
    if deadline is not None and ticks is not None:
        deadline.arm(session, ticks)


# ---------------------------------------------------------------- admission


def attempt(machine: Machine, waiting: Waiting) -> Trial:
    """Evaluate the lets, each seeing the previous, then units and reserve of every pool."""
    scope, session = machine.scopes[waiting.scope], waiting.session
    attrs = session.attrs.copy()
    look = Look(attrs, session.stream, session, {"Requeued": float(waiting.requeued)})
    for slot, value in scope.lets:
        attrs[slot] = value(look)
    units, needs = [], []
    for u, r, pool in zip(scope.units, scope.reserve, waiting.pools):
        place = machine.pools[pool].where
        units.append(amount(u(look), session, place))
        needs.append(units[-1] if r is None else max(units[-1], amount(r(look), session, place)))
    hits: list[list[Block]] = [[] for _ in units]
    for take, place in enumerate(waiting.pools):
        shared = machine.pools[place].blocks
        if shared is not None and scope.keep[take] is not None:
            reuse = math.inf if scope.reuse is None else at_least_0(scope.reuse(look))
            hits[take] = shared.usable(look, min(reuse, machine.pools[place].up(units[take])))
    return Trial(attrs, units, needs, hits)


def admit_next(machine: Machine, pool: Pool) -> bool:
    """Admit the selected hold of a line if it fits; nobody behind it is tried."""
    return admit_if_it_fits(machine, pool, pool.select())


def pass_over(machine: Machine, pool: Pool) -> None:
    """A line that is admitted at times of its own: everybody who waits is tried once, in its order.

    After each admission everything else that the instant allows happens first.
    """
    left = pool.line.copy()
    while left := [waiting for waiting in left if waiting in pool.line]:
        waiting = pool.select([other for other in pool.line if other not in left])
        left.remove(waiting)
        if admit_if_it_fits(machine, pool, waiting):
            machine.calm()


def admit_if_it_fits(machine: Machine, pool: Pool, waiting: Waiting) -> bool:
    trial = attempt(machine, waiting)
    pools = [machine.pools[place] for place in waiting.pools]
    for p, need, hits in zip(pools, trial.needs, trial.hits):
        held_already = 0.0 if p.blocks is None else p.blocks.held_already(hits)
        if not p.fits(p.up(need) - held_already):
            return False
    pool.line.remove(waiting)
    admit(machine, waiting, trial)
    return True


def admit(machine: Machine, waiting: Waiting, trial: Trial) -> None:
    session, scope = waiting.session, machine.scopes[waiting.scope]
    session.waiting = None
    session.attrs[:] = trial.attrs
    look = Look(session.attrs, session.stream, session, {"Requeued": float(waiting.requeued)})
    reuse = None if scope.reuse is None else at_least_0(scope.reuse(look))
    opened = OpenScope(waiting.scope, [], entered=waiting.entered)
    session.scopes.append(opened)
    most_own = 0.0
    for take, (place, units, need) in enumerate(zip(waiting.pools, trial.units, trial.needs)):
        pool = machine.pools[place]
        caches, alloc, held = scope.keep[take] is not None, pool.up(units), None
        if pool.blocks is not None:
            held = pool.blocks.take(pool.blocks.chain(look) if caches else None, trial.hits[take], alloc)
            own = held.named * pool.blocks.size
        else:
            own = pool.consume(session, reuse) if caches else 0.0
            pool.make_room(alloc)
            pool.used += alloc
        most_own = max(most_own, own)
        pool.add_holder(session)
        pool.totals.admissions += 1
        opened.holds.append(Hold(place, take, alloc, pos=own, reserved=pool.up(need), own=own, held=held))
        machine.act(Action.admit, session.serial, place, alloc)
    machine.set_attr(session, "cached", most_own)
    session.adm = machine.next_admission()
    first = machine.pools[waiting.pools[0]]
    if machine.warm:
        first.totals.wait_tick += machine.now_tick - waiting.queued_tick
        first.totals.wait_count += 1
    request = session.root.request
    if request is not None:
        request.admissions += 1
    session.state = scope.reentry
    machine.make_ready(session)


def retry(machine: Machine) -> None:
    """Every pool in index order: growers, then admissions (other lines wait for their stage or their time)."""
    for pool in machine.pools:
        retry_growers(machine, pool)
        if pool.every_tick:
            continue
        if pool.admit_via is None:
            while pool.line and admit_next(machine, pool):
                pass


# ---------------------------------------------------------------- giving back


def leave(machine: Machine, session: Session) -> None:
    """The innermost scope ends normally, and leaves a lease if it declares one; then every line is tried."""
    opened = give_back(machine, session, finished=True, leases=True)
    for hold in opened.holds:
        session.preempted_at.pop(hold.pool, None)
        session.alone_in.discard(hold.pool)
    machine.set_attr(session, "computed", 0.0)
    retry(machine)


def give_back(machine: Machine, session: Session, *, finished: bool, leases: bool = False) -> OpenScope:
    """Every pool of the innermost scope in order: its units are released (`leases`: or leased, as the scope says)."""
    opened = session.scopes[-1]
    opened.closing = True
    scope = machine.scopes[opened.scope]
    for hold in opened.holds:
        computed = hold.pos if opened.grown or not finished else hold.alloc
        if leases and hold.take == scope.leased:
            lease(machine, session, opened, hold, computed)
        else:
            release_hold(machine, session, opened.scope, hold, computed, finished=finished)
    session.scopes.pop()
    return opened


def release_hold(
    machine: Machine, session: Session, scope: int, hold: Hold, computed: float, *, finished: bool
) -> None:
    released, hold.alloc = hold.alloc, 0.0
    keep = machine.scopes[scope].keep[hold.take]
    ctx = {"Finished": float(finished), "HoldPosition": hold.pos}
    look = Look(session.attrs, session.stream, session, ctx)
    if hold.held is None:
        release_units(machine, session, hold.pool, released, keep, look, computed, hold.own)
    else:
        release_blocks(machine, session, hold, released, keep, look, computed)


def units_kept(pool: Pool, keep: Function | None, look: Look, computed: float) -> float:
    """What `keep` says stays cached: at most what was computed, in whole blocks."""
    if keep is None:
        return 0.0
    value = keep(look)
    # below 0 keeps nothing; NaN is an error
    want = 0.0 if value < 0.0 else amount(value, look.session, pool.where)
    return pool.down(min(want, computed))


def release_blocks(
    machine: Machine, session: Session, hold: Hold, released: float, keep: Function | None, look: Look, computed: float
) -> None:
    """Blocks shared by content go back: as far as they were planned, if they are not computed."""
    pool = machine.pools[hold.pool]
    assert pool.blocks is not None and hold.held is not None
    kept = units_kept(pool, keep, look, max(computed, hold.held.named * pool.blocks.size))
    kept = pool.blocks.give_back(hold.held, kept)
    hold.held = None
    pool.remove_holder(session)
    machine.act(Action.release, session.serial, hold.pool, released)
    if kept > 0.0:
        machine.act(Action.cache, session.serial, hold.pool, kept)


def release_units(
    machine: Machine, session: Session, place: int, released: float, keep: Function | None, look: Look, computed: float,
    own: float,
) -> None:  # fmt: skip
    """Units go back to their pool; what `keep` says stays cached."""
    pool = machine.pools[place]
    pool.used -= released
    pool.remove_holder(session)
    machine.act(Action.release, session.serial, place, released)
    session.found = place, own
    kept = units_kept(pool, keep, look, computed)
    session.found = -1, 0.0
    if pool.pool.uncached == "in_order" and released > kept:
        pool.add_dead(released - kept, look.attrs)
    if kept > 0.0:
        pool.keep(session.serial, kept, look.attrs)
        for held in (*(hold for opened in session.scopes for hold in opened.holds), *session.leases):
            held.own = held.own if held.pool != place else 0.0
        machine.act(Action.cache, session.serial, place, kept)


# ---------------------------------------------------------------- giving back in part, and leases


def release(machine: Machine, session: Session, place: int) -> None:
    """The innermost hold of a pool gives back now; without one the oldest lease ends; then every line is tried."""
    for opened in reversed(session.scopes):
        for hold in opened.holds:
            if hold.pool == place:
                computed = hold.pos if opened.grown else hold.alloc
                opened.holds.remove(hold)
                release_hold(machine, session, opened.scope, hold, computed, finished=True)
                retry(machine)
                return
    for held in session.leases:
        if held.pool == place:
            end_lease(machine, held)
            break
    retry(machine)


def no_hold(session: Session, pool: Pool) -> RunError:
    """Somebody without an open hold of a pool grows, shrinks or loads it."""
    return RunError(f"{who(session)}no open hold to grow, shrink or load, {pool.where}")


def shrink(machine: Machine, session: Session, place: int, units: float) -> None:
    """The innermost hold gives whole blocks back, never what is computed; then every line is tried."""
    pool, hold = machine.pools[place], session.hold_of(place)
    if hold is None:
        raise no_hold(session, pool)
    stays = min(hold.alloc, max(pool.up(max(hold.alloc - units, 0.0)), pool.up(hold.pos)))
    less, hold.alloc = hold.alloc - stays, stays
    hold.reserved -= less
    pool.used -= less
    if less > 0.0:
        machine.act(Action.release, session.serial, place, less)
    retry(machine)


def load(machine: Machine, session: Session, place: int, units: float) -> None:
    """`units` more of the innermost hold are computed, without a run."""
    pool, hold = machine.pools[place], session.hold_of(place)
    if hold is None:
        raise no_hold(session, pool)
    session.advance(place, units)
    if hold.pos > hold.alloc + EPS:
        raise RunError(f"{who(session)}a load passes the units allocated, {machine.pools[place].where}")


def lease(machine: Machine, session: Session, opened: OpenScope, hold: Hold, computed: float) -> None:
    """The hold's units stay with the session, without a hold, until a `Release`, their time or its end."""
    after_s = machine.scopes[opened.scope].lease_after_s
    assert after_s is not None
    span_s = at_least_0(after_s(session.look))
    expires = span_s < float("inf")
    held = Leased(session, hold.pool, opened.scope, hold.take, hold.alloc, computed, hold.own, session.look, expires)
    session.leases.append(held)
    hold.alloc = 0.0
    if expires:
        machine.push(machine.now_tick + machine.ticks(span_s), lambda held: expire(machine, held), held)


def expire(machine: Machine, held: Leased) -> None:
    if held.present:
        end_lease(machine, held)
        retry(machine)


def pass_leases(machine: Machine, leg: Session) -> None:
    """A leg's leases are its session's from now on; they expire when they would have."""
    for held in leg.leases:
        held.session = leg.root
        machine.pools[held.pool].replace_holder(leg, leg.root)
    leg.root.leases += leg.leases
    leg.leases = []


def end_lease(machine: Machine, held: Leased) -> None:
    session = held.session
    held.present = False
    session.leases.remove(held)
    keep = machine.scopes[held.scope].keep[held.take]
    ctx = {"Finished": 1.0, "HoldPosition": held.computed}
    look = Look(held.look.attrs, held.look.stream, session, ctx)
    release_units(machine, session, held.pool, held.alloc, keep, look, held.computed, held.own)


# ---------------------------------------------------------------- growth


def grow(machine: Machine, session: Session, place: int, units: float, job: Job | None) -> Growth:
    """Add `units` to the innermost hold of a pool; without room wait or preempt, as the pool says."""
    pool = machine.pools[place]
    hold = session.hold_of(place)
    if hold is None:
        raise no_hold(session, pool)
    while True:
        need = pool.up(hold.alloc + units) - hold.alloc
        if need <= 0.0:
            return Growth.done
        if pool.fits(need, besides=hold):
            take_more(machine, session, pool, hold, need)
            return Growth.done
        victim = None if pool.victim_key is None else select_victim(machine, pool)
        if victim is None:
            pool.growers.append(Grower(session, units, job))
            session.status = Status.growing
            session.growing_pool = place
            return Growth.waits
        if victim is session and len(pool.distinct) == 1:
            machine.progress.preempts_itself_alone(session, pool)
        preempt(machine, victim, place)
        if victim is session:
            return Growth.preempted_itself


def take_more(machine: Machine, session: Session, pool: Pool, hold: Hold, need: float) -> None:
    if pool.blocks is not None and hold.held is not None:
        pool.blocks.add(hold.held, need)
    else:
        pool.make_room(need)
        pool.used += need
    hold.alloc += need
    machine.act(Action.grow, session.serial, pool.index, need)


def retry_growers(machine: Machine, pool: Pool) -> None:
    """From the front; stops at the first that does not fit. A job is only servable again."""
    while pool.growers:
        grower = pool.growers[0]
        session = grower.session
        hold = session.hold_of(pool.index)
        assert hold is not None
        need = pool.up(hold.alloc + grower.units) - hold.alloc
        if not pool.fits(need, besides=hold):
            return
        pool.growers.pop(0)
        take_more(machine, session, pool, hold, need)
        session.growing_pool = -1
        if grower.job is not None:
            session.status = Status.in_stage
        else:
            machine.make_ready(session)


# ---------------------------------------------------------------- preemption


def select_victim(machine: Machine, pool: Pool) -> Session | None:
    """The candidate with the least keys, ties to the last; None without a candidate.

    Candidates: where the pool is the memory of a step stage, its holders that run there, in the order
    of their admission numbers; else the sessions that hold it, by their first hold.
    """
    candidates = pool.holders_in_order()
    stages = machine.engines_of_memory(pool.index)
    if stages:
        candidates = [s for s in candidates if s.job is not None and s.status is Status.in_stage and s.stage in stages]
        candidates.sort(key=lambda s: s.adm)
    else:
        candidates = [s for s in candidates if s.hold_of(pool.index) is not None]
    if not candidates:
        return None
    assert pool.victim_key is not None
    best, best_key = None, None
    for admission, s in enumerate(candidates):
        hold = s.hold_of(pool.index)
        assert hold is not None
        ctx = {
            "Admission": float(admission),
            "Decoding": float(s.job is not None and s.job.decoding),
            "Position": hold.pos,
        }
        key = pool.victim_key(Look(s.attrs, s.stream, s, ctx))
        if best_key is None or key <= best_key:
            best, best_key = s, key
    return best


def preempt(machine: Machine, victim: Session, place: int) -> None:
    """Close the victim's innermost scope of the pool and those inside it, and queue it again there."""
    pool = machine.pools[place]
    hold = victim.hold_of(place)
    assert hold is not None and pool.pool.preempt is not None
    computed = hold.pos
    before = victim.preempted_at.get(place)
    if before is not None and before >= computed - EPS and not victim.stuck:
        victim.stuck = True
        pool.totals.stuck += 1
    victim.preempted_at[place] = computed
    machine.set_attr(victim, "computed", computed)
    victim.tokens.preempted = True
    pool.totals.preemptions += 1
    machine.progress.preemption()
    for engine in machine.engines:  # whoever is planning admits nobody after a preemption, wherever it was
        if engine.plan is not None:
            engine.plan.preempted += 1
    machine.act(Action.preempt, victim.serial, place, computed)
    machine.withdraw(victim)
    while True:
        opened = give_back(machine, victim, finished=False)
        if any(h is hold for h in opened.holds):
            break
    head = pool.pool.preempt.requeue == "head"
    enter(machine, victim, opened.scope, opened.entered, resumed=head, requeued=True)
