"""A session: its attribute vector, its state, what it holds, and what its client sees.

**Source:** semantics.md sections 1 and 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from .expressions import Look
from .streams import LEG, STATEMENTS, Stream, sub_seed

if TYPE_CHECKING:
    from .blocks import Chain, Held
    from .stages import Job


class Status(Enum):
    ready = "ready"
    queued = "queued"
    in_stage = "in_stage"
    growing = "growing"
    joining = "joining"
    ended = "ended"


@dataclass(slots=True)
class Hold:
    """What a scope has of one pool: `alloc` units, of which `pos` tokens are computed.

    `pos` starts at the units consumed from the own cache entry. `own`: these units, until the session caches something
    in the pool again; a `keep` that reads `CachedIn` of the pool being given back finds them there.
    """

    pool: int
    take: int
    alloc: float
    pos: float
    reserved: float
    own: float = 0.0
    held: Held | None = None  # its blocks, in a pool that shares them by content


@dataclass(slots=True)
class OpenScope:
    """`entered`: the state whose `Enter` opened it. `grown`: a run advanced one of the holds, so that `pos`, not
    `alloc`, says what was computed. `closing`: its holds are being given back, one after the other; its session holds
    none of them any more."""

    scope: int
    holds: list[Hold]
    grown: bool = False
    entered: int = -1
    closing: bool = False


@dataclass(slots=True, eq=False)
class Leased:
    """Units of a pool that a scope has left with its session, for a time if it `expires`. `computed`: what of them may
    stay cached; `look`: of the session that held them; `present` until it ends."""

    session: Session
    pool: int
    scope: int
    take: int
    alloc: float
    computed: float
    own: float
    look: Look
    expires: bool
    present: bool = True

    @property
    def stale(self) -> bool:
        """Whether nothing happens at what is scheduled for it."""
        return not self.present


@dataclass(slots=True, eq=False)
class Waiting:
    """A hold in the line of its first pool.

    `resumed`: put at the head by a preemption, selected whatever the keys. `requeued`: this
    admission follows a preemption (also one that requeues at the tail).
    """

    session: Session
    scope: int
    pools: list[int]
    queued_tick: int
    resumed: bool = False
    requeued: bool = False
    entered: int = -1  # the state whose `Enter` it is


@dataclass(slots=True)
class Request:
    """One turn as the client sees it (one session in a program without `Turn`). Ticks, -1: never."""

    serial: int
    turn: int
    sent_tick: int
    first_tick: int = -1
    last_tick: int = -1
    tokens: int = 0
    confirmed_tick: int = -1
    confirm_order: int = -1
    responded_tick: int = -1
    respond_order: int = -1
    admissions: int = 0
    rejected: bool = False

    @property
    def open(self) -> bool:
        return self.responded_tick < 0 and not self.rejected


@dataclass(slots=True)
class Tokens:
    """The latest token of a session: what decides which token is the next one of its turn."""

    turn: float = -1.0
    last_tick: int = -1
    last_stage: int = -1
    decoded: bool = False
    preempted: bool = False


@dataclass(slots=True, eq=False)
class Session:
    serial: int
    attrs: list[float]
    state: int
    seed: int
    forked_by: Session | None = None  # of a leg
    leg: int = -1  # its place among the session's legs
    status: Status = Status.ready
    look: Look = field(init=False)  # its own statements
    workload_look: Look = field(init=False)  # `init` and `turn` ops, re-seeded at each Turn
    script: int = -1  # row of the listed sessions or of the trace
    turns: int = 0
    forks: int = 0  # legs made
    legs: int = 0  # legs live
    scopes: list[OpenScope] = field(default_factory=list)
    leases: list[Leased] = field(default_factory=list)  # oldest first
    found: tuple[int, float] = (-1, 0.0)  # pool being given back, and the units consumed from its cache (`Hold.own`)
    adm: float = math.inf
    waiting: Waiting | None = None
    job: Job | None = None
    stage: int = -1  # where the job is
    growing_pool: int = -1
    deadline: tuple | None = None  # its event, while it stands
    preempted_at: dict[int, float] = field(default_factory=dict)
    stuck: bool = False
    chains: dict[int, Chain] = field(default_factory=dict)  # by pool: what its blocks contain
    alone_in: set[int] = field(default_factory=set)  # pools where it preempted itself, nobody else holding units
    ready_tick: int = -1
    ready_count: int = 0
    request: Request | None = None
    tokens: Tokens = field(default_factory=Tokens)

    def __post_init__(self) -> None:
        kind, number = (STATEMENTS, 0) if self.forked_by is None else (LEG, self.leg)
        self.look = Look(self.attrs, Stream(sub_seed(self.seed, self.serial, number, kind)), self)
        self.workload_look = self.look

    @property
    def root(self) -> Session:
        """The session itself; of a leg, the one that forked it, whose client and cache entries it shares."""
        return self if self.forked_by is None else self.forked_by

    @property
    def stream(self) -> Stream:
        """Of its own statements: everything evaluated for it, on either side."""
        return self.look.stream

    def hold_of(self, pool: int) -> Hold | None:
        """The innermost hold of a pool."""
        for opened in reversed(self.scopes):
            for hold in opened.holds:
                if hold.pool == pool:
                    return hold
        return None

    def advance(self, pool: int, tokens: float) -> float:
        """Tokens of a growing run are computed into the innermost hold; the position before them."""
        for opened in reversed(self.scopes):
            for hold in opened.holds:
                if hold.pool == pool:
                    opened.grown = True
                    hold.pos += tokens
                    return hold.pos - tokens
        raise LookupError("no hold to advance")

    def units(self, pool: int) -> float:
        """Units of a pool in all open holds."""
        return sum(hold.alloc for scope in self.scopes for hold in scope.holds if hold.pool == pool)

    def leased(self, pool: int) -> float:
        """Units of a pool in all leases."""
        return sum(lease.alloc for lease in self.leases if lease.pool == pool)

    def allocated(self, pool: int) -> float:
        """Units of a pool in all open holds and leases, as the session itself sees it; -0 without any."""
        holds = [hold for scope in self.scopes if not scope.closing for hold in scope.holds if hold.pool == pool]
        return sum([hold.alloc for hold in holds] + [x.alloc for x in self.leases if x.pool == pool], -0.0)

    def reserved(self, pool: int, besides: Hold | None = None) -> float:
        """Units of a pool reserved and not yet allocated, over all open holds (but for `besides`)."""
        holds = (hold for scope in self.scopes for hold in scope.holds)
        return sum(max(h.reserved - h.alloc, 0.0) for h in holds if h.pool == pool and h is not besides)
