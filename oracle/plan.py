"""What an iteration of a step stage gives, while it is planned.

**Source:** semantics.md section 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from .expressions import EPS

if TYPE_CHECKING:
    from .stages import Job


@dataclass(slots=True)
class Given:
    """`tokens`: what the job gets; `computed`: what the iteration computes for it, of the budget."""

    job: Job
    tokens: float
    computed: float
    before: float = 0.0  # position before these tokens, where the run grows a pool

    @property
    def count(self) -> int:
        """Tokens as the client of a decode counts them: a part of one is one."""
        return whole_tokens(self.tokens)


def whole_tokens(tokens: float) -> int:
    return max(1, math.ceil(tokens - EPS))


@dataclass(frozen=True, slots=True)
class Limits:
    """What one iteration may give.

    `chunk`: most tokens of one prefill, 0 for no cap. `decode`: most tokens of one decode. `verify`: tokens computed
    for one decode, None: those that it gets.
    """

    budget: float
    chunk: float
    decode: float
    verify: float | None

    def want(self, job: Job) -> float:
        """Tokens that an iteration with no budget would compute for a resident."""
        if not job.decoding:
            return min(job.work, self.chunk) if self.chunk > 0.0 else job.work
        return self.gets(job, math.inf) if self.verify is None else self.verify

    def gets(self, job: Job, computed: float) -> float:
        """Tokens that a decode gets, of those computed for it."""
        return min(self.decode, job.work, computed)


@dataclass(slots=True)
class Plan:
    """What an iteration gives so far.

    `refused`: a prefill could not get a whole granule. `prefilling`: a resident prefilled when the plan began.
    """

    limits: Limits
    left: float
    prefilling: bool
    given: list[Given] = field(default_factory=list)
    considered: set[Job] = field(default_factory=set)
    preempted: int = 0
    admitted: int = 0
    refused: bool = False


class Give(Enum):
    goes_on = "goes_on"
    preempted_itself = "preempted_itself"
    completes = "completes"  # a prefill that is alone in its iteration
