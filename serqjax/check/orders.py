"""Orders: every order ends in the sequence number of its place.

**Source:** `design.md`, section 2.3.
"""

from __future__ import annotations

from ..ir.program import Order, Serve, Step
from .index import Index, Problems
from .positions import commands

#: The tie of each order, and what it is.
TIES = {
    "queue": ("queued", "the place in the line"),
    "evict": ("released", "the release number of the entry"),
    "victim": ("latest", "the candidate admitted last"),
    "serve": ("admitted", "the admission number"),
}


def check_orders(index: Index, problems: Problems) -> None:
    """Report ties that are not those of their place, and victim orders without a key."""
    for i, pool in enumerate(index.program.pools):
        here, owner = f"$.pools[{i}]", f"pool `{pool.name}`"
        _tie(problems, f"{here}.queue", owner, "queue", pool.queue)
        _tie(problems, f"{here}.evict", owner, "evict", pool.evict)
        if pool.preempt is not None:
            _tie(problems, f"{here}.preempt.order", owner, "victim", pool.preempt.order)
            if not pool.preempt.order.keys:
                problems.add(
                    f"{here}.preempt.order.keys",
                    f"{owner}: the victim order has no key",
                    'the last admitted is `["Unary", "Neg", ["Ctx", "Admission"]]`',
                )
    for i, stage in enumerate(index.program.stages):
        if isinstance(stage.kind, Step):
            here, owner = f"$.stages[{i}].kind", f"stage `{stage.name}`"
            _tie(problems, f"{here}.serve", owner, "serve", stage.kind.serve)
            for at, command in commands(stage.kind.iteration, f"{here}.iteration"):
                if isinstance(command, Serve) and command.by is not None:
                    _tie(problems, f"{at}.by", owner, "serve", command.by)


def _tie(problems: Problems, path: str, owner: str, place: str, order: Order) -> None:
    tie, means = TIES[place]
    if order.tie != tie:
        problems.add(f"{path}.tie", f"{owner}: the {place} order ends in `{order.tie}`", f"it is `{tie}`, {means}")
