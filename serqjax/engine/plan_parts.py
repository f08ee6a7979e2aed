"""Parts of a plan: scopes and stages with indices, how much an expression draws, what it reads."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import Problem, ProgramError
from ..ir.expr import Ctx, Num, Sample
from ..ir.fixed import IntForm
from ..ir.program import Choose, Scope
from ..ir.structure import walk
from ..tape.draws import draw_count

#: A cost in fixed point whose integers are places in the vector of integers.
CostShape = IntForm


def draws_in(node: Any) -> int:
    """Upper bound of the uniforms that one evaluation of everything below `node` consumes."""
    total = 0
    for _, part in walk(node):
        if isinstance(part, Choose) and isinstance(part.count, Num):  # its keys are walked once anyway
            total += draws_in(part.keys) * max(0, int(-part.count.value - 2))
        if isinstance(part, Sample):
            if part.dist == "Erlang":
                k = part.args[0]
                if not isinstance(k, Num):
                    raise ProgramError([Problem("$", "Erlang with a computed number of stages", "write a literal")])
                total += int(-k.value - 1)
            else:
                total += draw_count(part.dist, part.args)
    return total


def reads(node: Any, *names: str) -> bool:
    """Whether an expression below `node` reads one of the context variables."""
    return any(isinstance(part, Ctx) and part.name in names for _, part in walk(node))


@dataclasses.dataclass(frozen=True)
class ScopePlan:
    """A scope with indices: `depth` from 0, `parent` or -1.

    `takes`: of each take the pools that it may mean, one or the members of an array; `pools`: all of them, once.
    """

    scope: Scope
    depth: int
    parent: int
    takes: tuple[tuple[int, ...], ...]
    pools: tuple[int, ...]
    reentry: int


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """A stage: its kind, memory pool or -1, whether the cost is in fixed point (form) or None."""

    kind: Any
    memory: int
    form: Any
    admits: tuple[int, ...]
