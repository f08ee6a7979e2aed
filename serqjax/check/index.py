"""Names of a program looked up, and the list in which the checks collect what they find.

**Source:** `design.md`, section 3.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterable
from typing import Any

from ..errors import Problem
from ..ir.expr import Expr, Inf, Member, Num, Param, Resource
from ..ir.program import Program, Scope, State, Step
from .positions import Position, Reference, positions, references


class Problems(list[Problem]):
    """Problems found so far; `add` leaves out exact repetitions."""

    def add(self, path: str, problem: str, hint: str) -> None:
        found = Problem(path, problem, hint)
        if found not in self:
            self.append(found)


def known(name: str, names: Iterable[str]) -> str:
    """What to write instead of an unknown `name`: the nearest known one, or those that exist."""
    all_names = list(names)
    near = difflib.get_close_matches(str(name), all_names, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    if not all_names:
        return "the program declares none; declare it"
    shown = ", ".join(f"`{n}`" for n in all_names[:8])
    return f"known are {shown}" + (f" and {len(all_names) - 8} more" if len(all_names) > 8 else "")


class Index:
    """Lookup tables of one program. Of a name declared twice the first stands (the repetition is a problem)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.attrs = _first((a.name, a) for a in program.attrs)
        self.params = _first((p.name, p.value) for p in program.params)
        self.pools = _first((p.name, i) for i, p in enumerate(program.pools))
        self.stages = _first((s.name, i) for i, s in enumerate(program.stages))
        self.registers = _first((r.name, r) for r in program.registers)
        self.scopes = _first((s.name, s) for s in program.scopes)
        self.scope_places = _first((s.name, i) for i, s in enumerate(program.scopes))
        self.states = _first((s.name, s) for s in program.states)
        self.state_places = _first((s.name, i) for i, s in enumerate(program.states))
        self.pool_arrays = _arrays(program.pools)
        self.stage_arrays = _arrays(program.stages)
        self.columns: Any = None  # what values.columns has found

    @functools.cached_property
    def positions(self) -> tuple[Position, ...]:
        """All expressions of the program."""
        return tuple(positions(self.program))

    @functools.cached_property
    def references(self) -> tuple[Reference, ...]:
        """All mentions of pools and stages."""
        return tuple(references(self.program, self.positions))

    def number(self, node: object) -> float | None:
        """Value of a number; None where it is not one, or a parameter that does not exist."""
        if isinstance(node, Num):
            return float(node.value)
        if isinstance(node, Inf):
            return math.inf
        if isinstance(node, Param):
            return self.params.get(node.name)
        return None

    def pool_members(self, resource: Resource | None) -> tuple[int, ...]:
        """Indices of the pools that `resource` may mean; empty where it names nothing."""
        return self._members(resource, self.pools, self.pool_arrays)

    def stage_members(self, resource: Resource | None) -> tuple[int, ...]:
        """Indices of the stages that `resource` may mean; empty where it names nothing."""
        return self._members(resource, self.stages, self.stage_arrays)

    def _members(
        self, resource: Resource | None, single: dict[str, int], arrays: dict[str, tuple[int, ...]]
    ) -> tuple[int, ...]:
        if resource is None:
            return ()
        if isinstance(resource, str):
            return (single[resource],) if resource in single else ()
        members = arrays.get(resource.array, ())
        at = self.number(resource.index)
        if at is None:
            return members
        return (members[int(at)],) if 0 <= at < len(members) and at == int(at) else ()

    def chain(self, scope: str | None) -> list[Scope]:
        """The scopes open in `scope`, innermost first (at most all of them, so that a cycle of parents ends)."""
        found: list[Scope] = []
        while scope is not None and scope in self.scopes and len(found) <= len(self.program.scopes):
            found.append(self.scopes[scope])
            scope = self.scopes[scope].parent
        return found

    def is_step(self, stage: int) -> bool:
        return isinstance(self.program.stages[stage].kind, Step)


def targets(state: State) -> list[tuple[str, str]]:
    """States that may follow `state`, as (field, name); where an `Enter` leads is its scope's affair."""
    exit_ = state.exit
    found = [(f, getattr(exit_, f)) for f in ("then", "orelse", "leg") if hasattr(exit_, f)]
    deadline = getattr(exit_, "deadline", None)
    if deadline is not None:
        found.append(("deadline.target", deadline.target))
    return found


def spell(resource: Resource | None) -> str:
    """A resource as a reader of the program would write it."""
    if isinstance(resource, Member):
        return f"{resource.array}[...]"
    return str(resource)


def spell_expr(expr: Expr) -> str:
    """The node of an expression in one word, for messages."""
    for field in ("name", "fun", "op", "dist", "value"):
        if hasattr(expr, field):
            return f"{getattr(expr, field)}"
    return type(expr).__name__


def _first(pairs: Iterable[tuple[str, object]]) -> dict:
    table: dict = {}
    for name, value in pairs:
        table.setdefault(name, value)
    return table


def _arrays(items: Iterable) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for place, item in enumerate(items):
        if item.array is not None:
            found.setdefault(item.array, []).append((item.index if item.index is not None else place, place))
    return {name: tuple(place for _, place in sorted(members)) for name, members in found.items()}
