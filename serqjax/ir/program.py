"""The automaton form of a serQ program.

A program is read aloud like this: *pools* hold units of memory, *stages* do work, an
*arrival* law starts sessions. A session is an automaton: it is always at one `State`, whose
straight-line `ops` take no time and whose `exit` says what happens next: enter a `Scope`
(wait until its holds are admitted), run on a stage, branch, leave the scope, end. Everything
a preempted session needs to resume is its state and its attribute vector.

All classes are frozen and hashable; `structure` (structure.py) separates the numbers.

**Source:** `design.md` section 2; `spec/semantics.md`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .expr import Amount, Ctx, Expr, Num, Number, Resource

FORMAT_VERSION = 1


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of the named parts of a program."""


class Tagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag=True):
    """Base of alternatives; in JSON `{"type": tag, ...}`."""


# ---------------------------------------------------------------- attributes and parameters


class Attribute(Part, frozen=True, kw_only=True):
    """A slot of the session's vector, 0 at the start.

    `hidden`: may be read at session moments only (an output length the scheduler cannot know).
    `bound`: declared upper bound, for the progress theorem and for overflow bounds.

    These names are maintained by the engines when declared: `serial` (place in the order of
    arrival, from 0), `turn_no` (from 1), `cached` (units found at the latest admission),
    `computed` (position given up by the latest preemption, 0 after a normal scope end), `more`
    (1 while a scripted session has another turn).
    """

    name: str
    hidden: bool = False
    bound: Number | None = None


class Parameter(Part, frozen=True, kw_only=True):
    """A named number with its value; `Param(name)` reads it."""

    name: str
    value: float
    unit: str = ""


# ---------------------------------------------------------------- orders


class Order(Part, frozen=True, kw_only=True):
    """A total order: ascending lexicographic `keys`, then the named sequence number `tie`.

    - queue: tie `queued` (place in the line; a preempted hold at the head comes first whatever the keys)
    - serve: tie `admitted` (admission number)
    - evict: tie `released` (release number of the entry)
    - victim: tie `latest` (equal keys: the candidate admitted last)
    """

    keys: tuple[Expr, ...] = ()
    tie: Literal["queued", "admitted", "released", "latest"]


QUEUE_FIFO = Order(tie="queued")
SERVE_ADMITTED = Order(tie="admitted")
EVICT_LRU = Order(keys=(Ctx("Last"),), tie="released")


def is_lru(order: Order) -> bool:
    """Whether an eviction order is by release alone: the release number, or `Last`, which grows with it."""
    return order == EVICT_LRU or not order.keys


class Preempt(Part, frozen=True, kw_only=True):
    """Growth that does not fit takes victims, least `order` first; `requeue` says where they wait."""

    order: Order
    requeue: Literal["head", "tail"] = "head"


# ---------------------------------------------------------------- pools


class Spill(Part, frozen=True, kw_only=True):
    """Where units that an eviction removes go, instead of being lost.

    Read for every removal (`Size`: the units just removed): where `when` is not 0 they join the entry of the same
    owner in the pool `to`, and a job of nobody works for `work` seconds on the stage `via`.
    """

    to: str
    via: str
    work: Expr
    when: Expr


class Pool(Part, frozen=True, kw_only=True):
    """Memory in units. `allocated + cached + free = cap` holds after every action.

    - `cap`: units, or infinity. `block`: allocation and cache granularity in units (None: any amount).
    - `queue`, `evict`: orders of the waiting line and of cache entries.
    - `preempt`: None means that growth waits for room.
    - `admit_via`: the step stage whose iterations admit this line (None: admitted at every instant).
    - `uncached`: where released units that no cache keeps stand among those to be given out next:
      `first` (before every cached unit) or `in_order` (as dead entries in release order, as vLLM
      0.11.2 keeps one list of free and cached blocks).
    - `on_end`: what the end of a session does with its cache entry.
    - `reserve_held`: what an open hold has reserved and not taken counts in the tests of the others.
    - `queue_every`: seconds; the line is admitted at whole multiples only, and then passed over as a whole.
    - `spill`: where evicted units go (None: nowhere).
    - `array`, `index`: member of an array (report label; `Member` picks one).
    """

    name: str
    cap: Amount
    block: Number | None = None
    queue: Order = QUEUE_FIFO
    evict: Order = EVICT_LRU
    preempt: Preempt | None = None
    admit_via: str | None = None
    uncached: Literal["first", "in_order"] = "first"
    on_end: Literal["keep", "free"] = "keep"
    reserve_held: bool = False
    queue_every: Number | None = None
    spill: Spill | None = None
    array: str | None = None
    index: int | None = None


# ---------------------------------------------------------------- stages


class Fifo(Tagged, frozen=True):
    """`servers` servers at rate 1, first come first served; work in seconds."""

    servers: Number


class Delay(Tagged, frozen=True):
    """Every job is served at once at rate 1; work in seconds."""


class ProcessorSharing(Tagged, frozen=True):
    """Jobs share the total rate `capacity` (reads `N`) equally; work in seconds."""

    capacity: Expr


class Step(Tagged, frozen=True, kw_only=True):
    """Continuous batching: iterations that give tokens to residents; work in tokens.

    - `budget`: tokens an iteration may give. `chunk`: cap of one prefill's tokens (None or 0: none).
    - `cost`: seconds of an iteration. Affine (and max/min of affine) costs run in fixed point.
    - `serve`: order of the residents. `memory`: the pool their growth takes from.
    """

    budget: Expr
    cost: Expr
    chunk: Expr | None = None
    serve: Order = SERVE_ADMITTED
    memory: str | None = None


class Stage(Part, frozen=True, kw_only=True):
    name: str
    kind: Fifo | Delay | ProcessorSharing | Step
    array: str | None = None
    index: int | None = None


# ---------------------------------------------------------------- scopes: holds


class Let(Part, frozen=True, kw_only=True):
    """`attr := value`, evaluated once, at admission (and on trial in each admission test)."""

    attr: str
    value: Expr


class Take(Part, frozen=True, kw_only=True):
    """One pool of a hold.

    - `units`: what admission allocates (rounded up to blocks).
    - `reserve`: the admission test needs max(units, reserve) (None: units).
    - `keep`: units that stay cached when the hold gives back, at most what was computed, in whole
      blocks (None: nothing is kept and nothing is consumed).
    - `oversize`: `"wait"`, or an amount evaluated when the session joins the line: above the cap
      (rounded up to blocks) the session is rejected and ends.
    """

    pool: Resource
    units: Expr
    reserve: Expr | None = None
    keep: Expr | None = None
    oversize: Expr | Literal["wait"] = "wait"


class Lease(Part, frozen=True, kw_only=True):
    """What a normal end of the scope leaves of `pool`: its units stay in use, without a hold, for `after_s` seconds.

    It ends earlier by a `Release` of the pool or with the session; then its units are released, and cached as the
    scope's `keep` says.
    """

    pool: Resource
    after_s: Expr


class Scope(Part, frozen=True, kw_only=True):
    """A hold: what is taken on entry, given back on leaving.

    A session that enters waits in the line of the first pool. At admission the `lets` run, `reuse`
    units of its own cache entries are consumed at most, every pool is taken, and the session goes on
    at `reentry`. A preemption gives everything back, queues the session again and resumes it at
    `reentry`: only the attribute vector survives.
    """

    name: str
    takes: tuple[Take, ...]
    reentry: str
    parent: str | None = None
    lets: tuple[Let, ...] = ()
    reuse: Expr | None = None
    lease: Lease | None = None


# ---------------------------------------------------------------- states


class Set(Tagged, frozen=True):
    attr: str
    value: Expr


class Observe(Tagged, frozen=True):
    """Record `value` under `name`, with time, session and turn."""

    name: str
    value: Expr


class Turn(Tagged, frozen=True):
    """Start the next turn: count it, re-seed the workload stream, take the scripted attributes, run `Program.turn`."""


class Respond(Tagged, frozen=True):
    """End of the turn's server part, as the client sees it; nothing if no turn is open."""


class Drop(Tagged, frozen=True):
    """Delete the session's own cache entry in `pool`."""

    pool: Resource


class Load(Tagged, frozen=True):
    """`units` more of the innermost hold of `pool` are computed, without a run; at most what is allocated."""

    pool: Resource
    units: Expr


class Require(Tagged, frozen=True):
    """A run-time error (verdict `error`) with `problem` if `test` is 0."""

    test: Expr
    problem: str


Op = Set | Observe | Turn | Respond | Drop | Load | Require


class Deadline(Part, frozen=True, kw_only=True):
    """Jump to `target` when the session has blocked here for `after` seconds; scopes between are closed."""

    after: Expr
    target: str


class Goto(Tagged, frozen=True):
    then: str


class Branch(Tagged, frozen=True):
    """`test` must be exactly 0 or 1."""

    test: Expr
    then: str
    orelse: str


class Enter(Tagged, frozen=True):
    """Join the line of the scope's first pool; goes on at the scope's `reentry` when admitted."""

    scope: str
    deadline: Deadline | None = None


class Run(Tagged, frozen=True):
    """Work on a stage (seconds; tokens on a step stage), then `then`.

    Work at or below 0 does not enter the stage: the session lets the other ready ones run first.
    `mode`: `Prefill` and `Decode` on step stages, `Plain` elsewhere. `grows`: the pool that the job's
    tokens grow into, in the innermost hold of it.
    """

    stage: Resource
    mode: Literal["Plain", "Prefill", "Decode"]
    work: Expr
    then: str
    grows: Resource | None = None
    deadline: Deadline | None = None


class Grow(Tagged, frozen=True):
    """Add `units` to the innermost hold of `pool` (blocks until there is room), then `then`."""

    pool: Resource
    units: Expr
    then: str
    deadline: Deadline | None = None


class Shrink(Tagged, frozen=True):
    """Give whole blocks of the innermost hold of `pool` back, up to `units`, never what is computed; every line is
    tried at once; then `then`."""

    pool: Resource
    units: Expr
    then: str


class Release(Tagged, frozen=True):
    """The innermost hold of `pool` gives back now (without one: the oldest lease; with neither: nothing); every line
    is tried at once; then `then`."""

    pool: Resource
    then: str


class Leave(Tagged, frozen=True):
    """Close the innermost scope: give back and cache; every line is tried at once; then `then`."""

    then: str


class End(Tagged, frozen=True):
    """End of the session; open scopes are given back innermost first."""


Exit = Goto | Branch | Enter | Run | Grow | Shrink | Release | Leave | End


class State(Part, frozen=True, kw_only=True):
    """Straight-line `ops` in zero time, then `exit`. `scope`: the innermost scope it lies in."""

    name: str
    ops: tuple[Op, ...] = ()
    exit: Exit
    scope: str | None = None


# ---------------------------------------------------------------- arrivals and sessions as data


class Poisson(Tagged, frozen=True):
    """Sessions at `rate` per second; the first at time 0."""

    rate: Number


class Renewal(Tagged, frozen=True):
    """Gaps in seconds (constants, draws and arithmetic); the first session after one gap."""

    gap: Expr


class Closed(Tagged, frozen=True):
    """`n` sessions at time 0; one that ends starts the next at once."""

    n: Number


class Batch(Tagged, frozen=True):
    """`n` sessions at time 0."""

    n: Number


class Listed(Tagged, frozen=True, kw_only=True):
    """Sessions as data, one row each, started at `at` seconds (ascending; ties by place).

    `attrs` names the columns of `values` (preset after `init`); None keeps what `init` set.
    `turn_attrs` names the columns of `turns[session][turn]`: set by the k-th `Turn`, which also
    sets `more` to 1 while another turn remains. A session past its last turn only gets `more` = 0.
    """

    at: tuple[float, ...]
    attrs: tuple[str, ...] = ()
    values: tuple[tuple[float | None, ...], ...] = ()
    turn_attrs: tuple[str, ...] = ()
    turns: tuple[tuple[tuple[float | None, ...], ...], ...] = ()


class NoArrival(Tagged, frozen=True):
    """Nobody comes."""


Arrival = Poisson | Renewal | Closed | Batch | Listed | NoArrival


class Trace(Part, frozen=True, kw_only=True):
    """Recorded sessions that arriving sessions replay: `turns[session][turn]` in columns `attrs`.

    `ordered`: session n replays trace session n modulo their number; otherwise a draw chooses.
    """

    ordered: bool
    attrs: tuple[str, ...]
    turns: tuple[tuple[tuple[float, ...], ...], ...]


# ---------------------------------------------------------------- the program


class Program(Part, frozen=True, kw_only=True):
    """A complete program.

    - `start`: the state of a new session, after `init`.
    - `init`, `turn`: ops on the workload stream (`Set`, `Observe` only).
    - `horizon_s`, `warmup_s`: seconds; horizon None: the run ends when drained (or stuck).
    - `arrivals`: exactly so many open arrivals, then drain.
    - `tick_s`: seconds of a tick.
    """

    format: int = FORMAT_VERSION
    name: str = "program"
    attrs: tuple[Attribute, ...]
    params: tuple[Parameter, ...] = ()
    observes: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()
    stages: tuple[Stage, ...] = ()
    scopes: tuple[Scope, ...] = ()
    states: tuple[State, ...]
    start: str
    init: tuple[Op, ...] = ()
    turn: tuple[Op, ...] = ()
    arrival: Arrival
    trace: Trace | None = None
    horizon_s: Number | None = None
    warmup_s: Number = Num(0.0)
    seed: int = 0
    arrivals: int | None = None
    tick_s: float = 1e-9
