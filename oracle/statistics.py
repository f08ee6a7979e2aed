"""Time averages, samples, tokens and what clients see.

**Source:** semantics.md sections 12 and 13.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from serqjax.ir import itl
from serqjax.report.raw import Action, StageTotals

from .session import Request, Session

if TYPE_CHECKING:
    from .machine import Machine


class Signal:
    """Integral over time of a piecewise-constant value, recorded when an instant has settled."""

    __slots__ = ("value", "since_tick", "total")

    def __init__(self) -> None:
        self.value: int | float = 0
        self.since_tick = 0
        self.total: int | float = 0

    def record(self, now_tick: int, value: int | float) -> None:
        if value != self.value:
            self.total += self.value * (now_tick - self.since_tick)
            self.since_tick = now_tick
            self.value = value

    def restart(self, now_tick: int) -> None:
        self.total = 0
        self.since_tick = now_tick

    def integral(self, end_tick: int) -> int | float:
        return self.total + self.value * (end_tick - self.since_tick)


class Samples:
    """Observations kept: made while `warm`."""

    def __init__(self) -> None:
        self.observe, self.tick, self.serial, self.turn = (array("q") for _ in range(4))
        self.value = array("d")

    def add(self, observe: int, tick: int, serial: int, turn: int, value: float) -> None:
        self.observe.append(observe)
        self.tick.append(tick)
        self.serial.append(serial)
        self.turn.append(turn)
        self.value.append(value)


class ActionTrace:
    """Rows (tick, kind, serial, place, amount) in the order in which things happen."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, float]] = []

    def add(self, tick: int, kind: Action, serial: int, place: int, amount: float) -> None:
        self.rows.append((tick, int(kind), serial, place, amount))

    def array(self) -> np.ndarray:
        return np.asarray(self.rows, dtype=np.float64).reshape(len(self.rows), 5)


class Gaps:
    """Inter-token gaps of one stage, in buckets of ratio 1.01."""

    def __init__(self, totals: StageTotals, tick_s: float):
        self.totals = totals
        self.edges: list[int] = itl.edges(tick_s).tolist()
        self.first = itl.first_bucket(tick_s)

    def add(self, gap_tick: int) -> None:
        totals = self.totals
        totals.itl_count += 1
        totals.itl_tick += gap_tick
        k = self.first + bisect_right(self.edges, gap_tick) - 1
        count, least, greatest = totals.itl_buckets.get(k, (0, gap_tick, gap_tick))
        totals.itl_buckets[k] = (count + 1, min(least, gap_tick), max(greatest, gap_tick))


class Clients:
    """Requests as their clients see them: first token, last token, end of the server part.

    The first token is pending until it is confirmed: by the start of a decode run at the very
    instant of the token, by the turn's next token, or by the end of the turn.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.requests: list[Request] = []
        self.confirmed = 0
        self.responded = 0

    def open(self, session: Session, turn: int) -> None:
        session.request = Request(session.serial, turn, self.machine.now_tick)
        self.requests.append(session.request)

    def confirm(self, request: Request) -> None:
        if request.confirmed_tick < 0 and request.first_tick >= 0:
            request.confirmed_tick = self.machine.now_tick
            request.confirm_order = self.confirmed
            self.confirmed += 1

    def respond(self, session: Session) -> None:
        """The server part of the turn has ended; nothing if no turn is open."""
        request = session.root.request
        if request is not None and request.open:
            self.confirm(request)
            request.responded_tick = self.machine.now_tick
            request.respond_order = self.responded
            self.responded += 1

    def decode_starts(self, session: Session) -> None:
        request = session.root.request
        if request is not None and request.open and request.first_tick == self.machine.now_tick:
            self.confirm(request)

    def tokens(self, session: Session, stage: int, decoded: int) -> None:
        """So many tokens of a decode, or (0) the end of a prefill, committed on a stage; those of a decode at once."""
        decode, count = decoded > 0, max(decoded, 1)
        now_tick, turn = self.machine.now_tick, self.machine.turn_no(session)
        tokens = session.tokens
        if tokens.turn != turn:
            tokens.turn, tokens.last_tick, tokens.last_stage = turn, -1, -1
            tokens.decoded = tokens.preempted = False
        is_next = decode or tokens.decoded or (tokens.preempted and tokens.last_stage == stage)
        if is_next and tokens.last_tick >= 0 and self.machine.warm:
            self.machine.gaps[stage].add(now_tick - tokens.last_tick)
        for _ in range(count - 1 if self.machine.warm else 0):
            self.machine.gaps[stage].add(0)
        tokens.last_tick, tokens.last_stage = now_tick, stage
        tokens.decoded |= decode
        tokens.preempted = False

        request = session.root.request
        if request is None or not request.open:
            return
        if request.confirmed_tick >= 0:
            request.tokens += count
        elif decode and request.first_tick >= 0:
            self.confirm(request)
            request.tokens += count
        else:  # the end of a prefill replaces a first token that is still pending, also after a preemption
            request.first_tick, request.tokens = now_tick, count
            if decode:
                self.confirm(request)
        request.last_tick = now_tick
