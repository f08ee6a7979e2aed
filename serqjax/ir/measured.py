"""What is measured besides what every run measures: gauges and claims.

**Source:** `spec/semantics.md`, section 13.
"""

from __future__ import annotations

from .base import Part, Tagged
from .expr import Expr


class Gauge(Part, frozen=True, kw_only=True):
    """A value of the state of pools and stages, read when an instant is over and the clock is about to move.

    It holds until the next reading; the report has its mean over [warm-up, end], an interval from 20 equal
    windows, and its least and greatest value.
    """

    name: str
    value: Expr


class EveryIteration(Tagged, frozen=True):
    """Read at each start of an iteration of a step stage: none may be 0."""

    stage: str


class SomeIteration(Tagged, frozen=True):
    """Read at each start of an iteration of a step stage: one must not be 0."""

    stage: str


class AtEnd(Tagged, frozen=True):
    """Read once at the end, if no session is live: must not be 0."""


class Claim(Part, frozen=True, kw_only=True):
    """What a run is said to show; nothing that happens in the run depends on it.

    - `value`: 0 is false. Over iterations it sees the variables of a cost, `Demand` (tokens that the residents could
      take without a budget), `Served` (tokens of the stage's earlier iterations), `Arrived` (sessions started) and
      the state of pools and stages; at the end, the clock and aggregates (`Agg`) of the observations.
    - `given`: of every session, at its start (its attributes after `init`): a session of which it is 0 puts the run
      out of the claim's scope, and the claim is not read any more.
    """

    name: str
    kind: EveryIteration | SomeIteration | AtEnd
    value: Expr
    given: Expr | None = None
