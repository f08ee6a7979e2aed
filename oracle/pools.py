"""Pools: units allocated, cached and free; cache entries and their eviction; who waits.

**Source:** semantics.md sections 4 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serqjax.ir import program as ir
from serqjax.ir.structure import number
from serqjax.ir.time import seconds
from serqjax.report.raw import Action, PoolTotals

from .blocks import Blocks
from .expressions import EPS, Look, at_least_0
from .session import Hold, Session, Status, Waiting
from .statistics import Signal

if TYPE_CHECKING:
    from .machine import Machine
    from .stages import Job


@dataclass(slots=True, eq=False)
class Entry:
    """Cached units. `key`: serial of the session that may borrow them back, or negative: a dead entry. `place`: where
    it stands among the entries of its pool when their keys draw; a place that falls free last is taken first."""

    place: int
    key: int
    size: float
    last_tick: int
    released: int
    attrs: list[float]

    @property
    def serial(self) -> int:
        return max(self.key, -1)


@dataclass(slots=True, eq=False)
class Grower:
    """A session that waits for `units` more in its innermost hold; `job`: the run that grows, or None."""

    session: Session
    units: float
    job: Job | None


class Pool:
    def __init__(self, machine: Machine, index: int, pool: ir.Pool):
        self.machine = machine
        self.index = index
        self.pool = pool
        self.cap = number(machine.program, pool.cap) or 0.0
        self.where = f"in pool `{pool.name}`"  # the end of the sentence of an error
        self.block = number(machine.program, pool.block)
        compiler = machine.compiler
        self.queue_key = compiler.order(pool.queue)
        self.evict_key = None if pool.evict == ir.EVICT_LRU else compiler.order(pool.evict)
        self.lru = pool.evict == ir.EVICT_LRU
        self.victim_key = compiler.order(pool.preempt.order) if pool.preempt else None
        self.admit_via = None if pool.admit_via is None else machine.stage_index[pool.admit_via]
        spill = pool.spill
        self.spill_to = -1 if spill is None else machine.pool_index[spill.to]
        self.spill_via = -1 if spill is None else machine.stage_index[spill.via]
        self.spill_when = None if spill is None else compiler.expr(spill.when)
        self.spill_work = None if spill is None else compiler.expr(spill.work)
        self.is_tier = any(other.spill is not None and other.spill.to == pool.name for other in machine.program.pools)
        self.used = 0.0
        self.cached = 0.0
        self.holders: list[Session] = []  # one element per hold, in order
        self.distinct: dict[Session, int] = {}  # how often each holder is in the list
        self.entries: dict[int, Entry] = {}
        self.places = 0
        self.free_places: list[int] = []
        self.line: list[Waiting] = []
        self.joined = 0
        every_s = number(machine.program, pool.queue_every)
        self.every_tick = 0 if every_s is None else machine.ticks(every_s)  # 0: admitted at every instant
        self.is_open = False  # a multiple of it has come and the line has not been passed over yet
        self.opens = False  # the next one is scheduled
        self.growers: list[Grower] = []
        self.totals = PoolTotals()
        self.blocks = Blocks(machine, self) if pool.sharing == "content" else None
        self.signal_used, self.signal_cached = Signal(), Signal()
        self.signal_queue, self.signal_holders = Signal(), Signal()

    # ------------------------------------------------------------ amounts

    def up(self, units: float) -> float:
        if self.block is None or not math.isfinite(units):
            return units
        return math.ceil(units / self.block) * self.block

    def down(self, units: float) -> float:
        if self.block is None or not math.isfinite(units):
            return units
        return math.floor(units / self.block) * self.block

    def fits(self, need: float, besides: Hold | None = None) -> bool:
        """Whether `need` more units may be allocated; cached units never count against it.

        With `reserve_held`, what open holds have reserved and not taken counts (but for the hold `besides`).
        """
        held = 0.0
        if self.pool.reserve_held:
            held = sum(s.reserved(self.index, besides) for s in self.distinct)
        return self.used + held + need <= self.cap + EPS

    def add_holder(self, session: Session) -> None:
        self.holders.append(session)
        self.distinct[session] = self.distinct.get(session, 0) + 1

    def remove_holder(self, session: Session) -> None:
        self.holders.remove(session)  # the first of its elements
        self.distinct[session] -= 1
        if not self.distinct[session]:
            del self.distinct[session]

    def replace_holder(self, session: Session, other: Session) -> None:
        """One hold of a session is another's, at its place."""
        self.holders[self.holders.index(session)] = other
        self.distinct[session] -= 1
        if not self.distinct[session]:
            del self.distinct[session]
        self.distinct[other] = self.distinct.get(other, 0) + 1

    def holders_in_order(self) -> list[Session]:
        """Distinct holders by their first hold."""
        return list(dict.fromkeys(self.holders))

    def state(self, fun: str, session: Session | None, look: Look | None = None) -> float:
        """`look`: where it is asked, by whose attributes shared blocks are looked up."""
        match fun:
            case "Used":
                return self.used
            case "Free":
                return self.cap - self.used
            case "CachedIn":
                if self.blocks is not None:
                    return self.blocks.found(look) if session and look else 0.0
                entry = self.entries.get(session.serial) if session else None
                if entry is None and session is not None and session.found[0] == self.index:
                    return session.found[1]
                return self.down(entry.size) if entry else 0.0
            case "Allocated":
                return session.allocated(self.index) if session else 0.0
            case "Holders":
                return float(len(self.distinct))
            case "Queued":
                return float(len(self.line))
            case "Joined":
                return float(self.joined)
        raise ValueError(fun)

    # ------------------------------------------------------------ the cache

    def keep(self, serial: int, units: float, attrs: list[float]) -> None:
        """The session's entry is replaced by one of `units`, released now."""
        self.drop(serial)
        self.add_entry(serial, units, attrs)

    def add_entry(self, key: int, units: float, attrs: list[float]) -> None:
        self.insert(key, units, self.machine.now_tick, self.machine.next_release(), attrs)

    def insert(self, key: int, units: float, last_tick: int, released: int, attrs: list[float]) -> None:
        if self.free_places:
            place = self.free_places.pop()
        else:
            place, self.places = self.places, self.places + 1
        self.entries[key] = Entry(place, key, units, last_tick, released, attrs.copy())
        self.cached += units

    def remove(self, entry: Entry) -> None:
        self.cached -= entry.size
        self.free_places.append(entry.place)
        del self.entries[entry.key]

    def add_dead(self, units: float, attrs: list[float]) -> None:
        """Units released uncached in a pool that keeps one list of free and cached units."""
        self.add_entry(self.machine.next_dead(), units, attrs)

    def drop(self, serial: int) -> None:
        entry = self.entries.get(serial)
        if entry is not None:
            self.remove(entry)

    def consume(self, session: Session, reuse: float | None) -> float:
        """Take the session's own entry out of the cache; units taken. What `reuse` leaves becomes a dead entry."""
        entry = self.entries.get(session.serial)
        if entry is None:
            return 0.0
        # whole blocks; a part of a block can only have come from another tier
        own = self.down(entry.size if reuse is None else min(reuse, entry.size))
        if entry.size > own:
            rest = entry.size - own
            # it keeps the age of the entry that it came from
            self.insert(self.machine.next_dead(), rest, entry.last_tick, entry.released, entry.attrs)
        self.drop(session.serial)
        return own

    def make_room(self, need: float) -> None:
        """Remove cached units, block by block from the tail of the least entry, until `need` units fit."""
        last: Entry | None = None
        removed = 0.0
        while self.entries and self.used + self.cached + need > self.cap + EPS:
            # the key of an LRU entry does not change with its size
            entry = last if self.lru and last is not None and last.size > EPS else self.least_entry()
            if entry is not last and last is not None:
                self.machine.act(Action.evict, last.serial, self.index, removed)
                removed = 0.0
            last = entry
            piece = min(self.block, entry.size) if self.block is not None else entry.size
            entry.size -= piece
            self.cached -= piece
            removed += piece
            self.totals.evicted_units += piece
            if entry.size <= EPS:
                self.remove(entry)
                self.totals.evicted_entries += 1
            if self.spill_when is not None:
                self.machine.act(Action.evict, entry.serial, self.index, removed)
                last, removed = None, 0.0
                self.spill(entry, piece)
        if last is not None:
            self.machine.act(Action.evict, last.serial, self.index, removed)

    def spill(self, entry: Entry, units: float) -> None:
        """Units just removed from an entry go to the next tier, if the program says so; a job of nobody moves them."""
        assert self.spill_when is not None and self.spill_work is not None
        look = self.entry_look(entry, units)
        if self.spill_when(look) == 0.0:
            return
        machine, tier = self.machine, self.machine.pools[self.spill_to]
        tier.make_room(0.0)
        there = tier.entries.get(entry.key)
        if there is None:
            tier.add_entry(entry.key, units, entry.attrs)
        else:
            there.size += units
            there.last_tick, there.released = machine.now_tick, machine.next_release()
            tier.cached += units
        self.totals.spills += 1
        machine.work_for_nobody(self.spill_via, at_least_0(self.spill_work(look)))

    def least_entry(self) -> Entry:
        if self.evict_key is None:
            return min(self.entries.values(), key=lambda e: (e.last_tick if self.lru else 0, e.released))
        in_place = sorted(self.entries.values(), key=lambda e: e.place)  # the order in which they draw
        return min(in_place, key=self.entry_key)

    def entry_key(self, entry: Entry) -> tuple:
        assert self.evict_key is not None
        return self.evict_key(self.entry_look(entry, entry.size)), entry.released

    def entry_look(self, entry: Entry, size: float) -> Look:
        """What an eviction key or a spill sees: attributes of the live owner, else those of the release."""
        machine = self.machine
        session = machine.live.get(entry.key)
        attrs = session.attrs if session else entry.attrs
        ctx = {
            "Size": size,
            "Age": seconds(machine.now_tick - entry.last_tick, machine.tick_s),
            "Last": seconds(entry.last_tick, machine.tick_s),
            "Queued": float(session is not None and session.status is Status.queued),
        }
        return Look(attrs, machine.evict_stream, session, ctx)

    # ------------------------------------------------------------ the line

    def open_next(self) -> None:
        """Where the line is admitted at times of its own: it will be at the next one."""
        if self.every_tick and self.line and not self.opens and not self.is_open:
            self.opens = True
            self.machine.push((self.machine.now_tick // self.every_tick + 1) * self.every_tick, self.open, None)

    def open(self, _: None) -> None:
        self.is_open, self.opens = True, False

    def select(self, tried: Sequence[Waiting] = ()) -> Waiting:
        """The waiting hold that is tried next, besides those `tried`; there is one."""
        line = [waiting for waiting in self.line if waiting not in tried] if tried else self.line
        front = line[0]
        if front.resumed or self.queue_key is None:
            return front
        machine, key = self.machine, self.queue_key

        def keys(waiting: Waiting) -> tuple:
            session = waiting.session
            waited_s = seconds(machine.now_tick - waiting.queued_tick, machine.tick_s)
            return key(Look(session.attrs, session.stream, session, {"Waited": waited_s}))

        return min(line, key=keys)

    # ------------------------------------------------------------ statistics

    def in_blocks(self, units: float) -> int | float:
        if self.block is not None:
            units /= self.block  # whole, but for what another pool has spilled into this one
        return int(units) if units == math.floor(units) else units

    def record(self, now_tick: int) -> None:
        self.signal_used.record(now_tick, self.in_blocks(self.used))
        self.signal_cached.record(now_tick, self.in_blocks(self.cached))
        self.signal_queue.record(now_tick, len(self.line))
        self.signal_holders.record(now_tick, len(self.distinct))

    def signals(self) -> list[Signal]:
        return [self.signal_used, self.signal_cached, self.signal_queue, self.signal_holders]

    def close(self, end_tick: int) -> None:
        totals = self.totals
        totals.used_tick = self.signal_used.integral(end_tick)
        totals.cached_tick = self.signal_cached.integral(end_tick)
        totals.queue_tick = int(self.signal_queue.integral(end_tick))
        totals.holders_tick = int(self.signal_holders.integral(end_tick))
        totals.growing_at_end = len(self.growers)
        waiting = {id(g.session) for g in self.growers}
        allocated = list(self.distinct)
        totals.growing_stalled = bool(waiting) and all(id(s) in waiting for s in allocated)
