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

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from ..errors import nearest
from .base import Part, Tagged
from .expr import Amount, Ctx, Expr, Num, Number, Resource
from .grids import Grid
from .measured import AtEnd as AtEnd
from .measured import Claim, Gauge
from .measured import EveryIteration as EveryIteration
from .measured import SomeIteration as SomeIteration

FORMAT_VERSION = 1


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


class Segment(Tagged, frozen=True, kw_only=True):
    """`length` units of the content named `key` (None: to the end): unit u of it is unit u of every other such segment.

    `length` 0: nothing. Keys are compared as numbers.
    """

    key: Expr
    length: Expr | None = None


class Recorded(Tagged, frozen=True, kw_only=True):
    """The contents recorded with the session (`Listed.contents`, `Trace.contents`), each of `span` units.

    `length` units in all; a record that is shorter ends there.
    """

    span: Number
    length: Expr


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
    - `sharing`: whose cached units a session may use: its `own` entry, or whole blocks of equal `content`, whoever
      computed them (blocks.py of the oracle says how). `content`: what the leading units of a session are, one part
      after the other; all that follows is the session's own. `found`: from when on a block can be found: `scheduled`,
      from the plan of the iteration that computes it (as in vLLM), or `released`, when its hold has given it back; then
      a block whose content is in the pool already is not kept a second time.
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
    sharing: Literal["own", "content"] = "own"
    content: tuple[Segment | Recorded, ...] = ()
    found: Literal["scheduled", "released"] = "scheduled"
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
    """Jobs share the total rate `capacity` (reads `N`, the jobs that share) equally; work in seconds at rate 1.

    `capacity` is evaluated whenever a job has joined or gone; at 0 nothing finishes until the next one does.
    A stage that a run holds together with others (`Run.also`) is *shared*: its capacity is a constant, and
    the jobs on it are flows (`ir/fabric.py`).
    """

    capacity: Expr


class Serve(Tagged, frozen=True, kw_only=True):
    """Serve each resident once, in order, while tokens are left.

    Passes over those served earlier in the iteration, and over those for whom `only` is 0 when their turn comes. `by`:
    the order (None: the stage's). A grower that preempts itself ends the command.
    """

    only: Expr | None = None
    by: Order | None = None


class Admit(Tagged, frozen=True, kw_only=True):
    """Admit from the stage's lines, one session at a time, while tokens are left and nobody was refused.

    Before each admission `gate` must be 1 (0 ends the command). A newcomer is served at once, unless `only` is 0 for
    it. A hold that does not fit, or a grower that preempts itself, ends the command.
    """

    only: Expr | None = None
    gate: Expr | None = None


class If(Tagged, frozen=True, kw_only=True):
    """`test` must be exactly 0 or 1."""

    test: Expr
    then: tuple[Command, ...] = ()
    orelse: tuple[Command, ...] = ()


class Assign(Tagged, frozen=True, kw_only=True):
    """`register := value`, a finite number."""

    register: str
    value: Expr


#: What the `iteration` of a step stage consists of.
Command = Serve | Admit | If | Assign


class Step(Tagged, frozen=True, kw_only=True):
    """Continuous batching: iterations that give tokens to residents; work in tokens.

    - `budget`: tokens an iteration may give. `chunk`: cap of one prefill's tokens (None or 0: none).
    - `decode`: tokens that a decode gets in an iteration, at most what it has left and what the budget leaves (None:
      one). They are there together, at the end of the iteration. Below 1, or not a number, it is 1.
    - `verify`: tokens that an iteration computes for a decode, those that come to nothing included. They are taken
      from the budget, also when the decode has fewer left (None: those that it gets). Below `decode` it is `decode`;
      where the budget leaves fewer, so many are computed, and the decode gets at most those.
    - `granule`: a prefill that an iteration does not finish gets whole multiples of so many tokens (infinity: all
      or nothing). One that could get less is refused, and after a refusal an iteration admits nobody (None: any
      number of tokens).
    - `cost`: seconds of an iteration. Affine (and max/min of affine) costs run in fixed point.
    - `serve`: order of the residents. `memory`: the pool their growth takes from.
    - `prefills`: `mixed` with decodes in one iteration, or `alone`: the first prefill that is given tokens is the
      whole iteration and may use the whole budget; decodes wait while a resident prefills.
    - `after_own_preemption`: a resident whose growth preempts itself ends the serving (`stop`), or the others still get
      theirs (`go_on`, as in vLLM 0.33.0 where victims are not the last in line); nobody is admitted either way.
    - `iteration`: how an iteration is filled. Empty: every resident is served once; then, while tokens are left and
      nobody was preempted or refused, the stage's lines admit one session at a time, which is served too.
    """

    budget: Expr
    cost: Expr
    chunk: Expr | None = None
    serve: Order = SERVE_ADMITTED
    memory: str | None = None
    granule: Amount | None = None
    prefills: Literal["mixed", "alone"] = "mixed"
    after_own_preemption: Literal["stop", "go_on"] = "stop"
    iteration: tuple[Command, ...] = ()
    decode: Expr | None = None
    verify: Expr | None = None


class Register(Part, frozen=True, kw_only=True):
    """A number that a step stage keeps from one iteration to the next; its `iteration` assigns it.

    An iteration that gives nothing, preempts nobody and admits nobody leaves it as it was. `Reg(name)` reads it: the
    stage's own expressions, the headers and queue keys of the lines that the stage admits, gauges and claims.
    """

    name: str
    stage: str
    init: Number = Num(0.0)


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


class Choose(Tagged, frozen=True):
    """`attr` becomes the j of 0 to `count` - 1 with the least `keys`, ties to the least j; 0 if `count` is 0.

    All keys of all j are evaluated in order, with `attr` set to j, draws included. `count` is a whole number.
    """

    attr: str
    count: Expr
    keys: tuple[Expr, ...]


Op = Set | Observe | Turn | Respond | Drop | Load | Require | Choose


class Deadline(Part, frozen=True, kw_only=True):
    """Jump to `target` when the session has blocked here for `after` seconds; scopes between are closed.

    - `after` is evaluated when the state is executed, before it has an effect; it may not draw (draw into an
      attribute). The deadline is an event, put down in the order of events after what the exit itself puts
      down: at one tick whatever was put down first happens first, so that a job that is served at once and takes
      exactly `after` completes. One of 2^60 ticks or more never comes.
    - It stands while the session is blocked there: in the line (`Enter`), on the stage, waiting for the growth of its
      tokens included (`Run`), among the growers (`Grow`). Admission, completion, growth and preemption take it away. A
      session that a preemption puts back into a line is at its `Enter` again: that deadline begins anew, `after`
      evaluated at that moment.
    - When it comes, the session leaves the line, the stage (what a running iteration has listed for it is lost, as
      for a preempted job) and the growers. Every scope inside that of `target` is closed, innermost first; it is
      cut short: `Finished` is 0, and at most what was computed stays cached, as after a preemption. `computed` is
      0, and where earlier preemptions stood is forgotten. The session becomes ready at `target`, its attributes as
      they are; then every line is tried; then it runs.
    - It is no end of a request: `Respond`, `Turn` or `End` say that.
    """

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


#: How flows over several stages share them.
Share = Literal["MaxMin", "Bottleneck"]


class Run(Tagged, frozen=True):
    """Work on a stage (seconds; tokens on a step stage), then `then`.

    Work at or below 0 does not enter the stage: the session lets the other ready ones run first.
    `mode`: `Prefill` and `Decode` on step stages, `Plain` elsewhere. `grows`: the pool that the job's
    tokens grow into, in the innermost hold of it.

    `also`: further processor-sharing stages that the job holds all the time: one flow with one remaining
    work, present on each. `share` says how the rates of such flows are found: `MaxMin` (progressive filling)
    or `Bottleneck` (the least capacity / flows of its stages); all runs on stages that belong together name the same.
    `latency`: seconds that the job waits on its stages before it asks for service (not on step stages); a
    job of no work with a latency above 0 waits and is then done.
    """

    stage: Resource
    mode: Literal["Plain", "Prefill", "Decode"]
    work: Expr
    then: str
    grows: Resource | None = None
    deadline: Deadline | None = None
    also: tuple[Resource, ...] = ()
    share: Share | None = None
    latency: Expr | None = None


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
    """End of the session; open scopes are given back innermost first. A run-time error while legs are live."""


class Fork(Tagged, frozen=True):
    """Start a leg at the state `leg`, in no scope, and go on at `then` without blocking.

    A leg is a session of its own in everything but its number: it has the serial, a copy of the attributes and the
    cache entries of the session that forked it, and its own stream of draws. It ends with `EndLeg`.
    """

    leg: str
    then: str


class Join(Tagged, frozen=True):
    """Wait until no leg of the session is live, then `then`."""

    then: str


class EndLeg(Tagged, frozen=True):
    """End of a leg; open scopes are given back innermost first, and its leases pass to its session."""


Exit = Goto | Branch | Enter | Run | Grow | Shrink | Release | Leave | End | Fork | Join | EndLeg


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
    `contents[session]`: names of the contents of its leading units (`Recorded`), whole numbers of 64 bits.
    """

    at: tuple[float, ...]
    attrs: tuple[str, ...] = ()
    values: tuple[tuple[float | None, ...], ...] = ()
    turn_attrs: tuple[str, ...] = ()
    turns: tuple[tuple[tuple[float | None, ...], ...], ...] = ()
    contents: tuple[tuple[int, ...], ...] = ()


class NoArrival(Tagged, frozen=True):
    """Nobody comes."""


Arrival = Poisson | Renewal | Closed | Batch | Listed | NoArrival


class Trace(Part, frozen=True, kw_only=True):
    """Recorded sessions that arriving sessions replay: `turns[session][turn]` in columns `attrs`.

    `ordered`: session n replays trace session n modulo their number; otherwise a draw chooses. `contents`: as of
    `Listed`, by trace session.
    """

    ordered: bool
    attrs: tuple[str, ...]
    turns: tuple[tuple[tuple[float, ...], ...], ...]
    contents: tuple[tuple[int, ...], ...] = ()


# ---------------------------------------------------------------- the program


class Program(Part, frozen=True, kw_only=True, weakref=True):
    """A complete program.

    - `start`: the state of a new session, after `init`.
    - `init`, `turn`: ops on the workload stream (`Set`, `Observe` only).
    - `horizon_s`, `warmup_s`: seconds; horizon None: the run ends when drained (or stuck).
    - `arrivals`: exactly so many open arrivals, then drain.
    - `tick_s`: seconds of a tick.
    - `gauges`, `claims`: measured besides what every run measures. `tables`: what `Table` reads.
    """

    format: int = FORMAT_VERSION
    name: str = "program"
    attrs: tuple[Attribute, ...]
    params: tuple[Parameter, ...] = ()
    observes: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()
    stages: tuple[Stage, ...] = ()
    registers: tuple[Register, ...] = ()
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
    gauges: tuple[Gauge, ...] = ()
    claims: tuple[Claim, ...] = ()
    tables: tuple[Grid, ...] = ()

    def with_params(self, params: Mapping[str, float]) -> Program:
        """The program with other values of its named parameters; see `serqjax.with_params`."""
        for name, value in params.items():
            if name not in (known := {parameter.name for parameter in self.params}):
                raise ValueError(f"{name} is no parameter of {self.name}: {nearest(name, known) or 'it has none'}")
            if not math.isfinite(value):
                raise ValueError(f"{name}={value}: a finite number is needed")
        changed = tuple(
            msgspec.structs.replace(p, value=float(params[p.name])) if p.name in params else p for p in self.params
        )
        return msgspec.structs.replace(self, params=changed) if params else self
