"""The ownership equation, verified after every action.

**Source:** design.md section 2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .expressions import EPS

if TYPE_CHECKING:
    from .machine import Machine


class OwnershipError(AssertionError):
    """Units are owned twice or by nobody: a fault of the interpreter, not of the program."""


def check_ownership(machine: Machine) -> None:
    """`allocated + cached + free = cap`, with used = sum of allocations and cached = sum of entries."""
    for pool in machine.pools:
        name, tolerance = pool.pool.name, EPS * max(1.0, pool.used + pool.cached)
        if pool.blocks is not None:
            for fault in pool.blocks.faults():
                raise OwnershipError(f"pool `{name}`: {fault}")
            continue
        allocated = sum(session.units(pool.index) + session.leased(pool.index) for session in pool.distinct)
        entries = sum(entry.size for entry in pool.entries.values())
        if abs(allocated - pool.used) > tolerance:
            raise OwnershipError(f"pool `{name}`: {pool.used} units in use, {allocated} allocated to holds")
        if abs(entries - pool.cached) > tolerance:
            raise OwnershipError(f"pool `{name}`: {pool.cached} units cached, {entries} in entries")
        # what is spilled into a tier makes no room there: it may stand above its cap until somebody asks for units
        if pool.used + pool.cached > pool.cap + tolerance and not pool.is_tier:
            raise OwnershipError(f"pool `{name}`: {pool.used} used and {pool.cached} cached of {pool.cap}")
        if pool.used < -tolerance or any(entry.size <= 0.0 for entry in pool.entries.values()):
            raise OwnershipError(f"pool `{name}`: negative units")
