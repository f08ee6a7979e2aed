"""What an iteration of a step stage gives, while it is planned.

**Source:** semantics.md section 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stages import Job


@dataclass(slots=True)
class Given:
    job: Job
    tokens: float
    before: float = 0.0  # position before these tokens, where the run grows a pool


@dataclass(slots=True)
class Plan:
    """What an iteration gives so far.

    `refused`: a prefill could not get a whole granule. `prefilling`: a resident prefilled when the plan began.
    """

    budget: float
    left: float
    chunk: float
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
