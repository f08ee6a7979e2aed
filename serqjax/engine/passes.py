"""What a pass of a session over its states, from one that blocks to the next, may come to.

**Source:** `design.md`, section 4.
"""

from __future__ import annotations

import numpy as np

from ..ir.program import Branch, Goto
from .plan import Plan


def may_reach(plan: Plan, wanted: tuple[int, ...]) -> np.ndarray:
    """Bool `[states]`: whether a pass that begins in a state may come to one with `wanted` above 0."""
    reach = np.zeros(max(1, len(plan.states)), dtype=bool)
    for i in reversed(range(len(plan.states))):
        then: tuple[str, ...] = ()
        match plan.states[i].exit:
            case Goto(name):
                then = (name,)
            case Branch(_, yes, no):
                then = (yes, no)
        ahead = (plan.state_index[name] for name in then if plan.is_forward(i, name))
        reach[i] = wanted[i] > 0 or any(reach[j] for j in ahead)
    return reach
