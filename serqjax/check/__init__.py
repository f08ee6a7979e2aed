"""Checks of a program before it runs: names, moments, orders, amounts, progress, bounds.

`check_program` raises one `ProgramError` with all problems of a program, each with its place, the
problem and what to write instead, and gives the `Facts` that the engines read.

**Source:** `design.md`, sections 2 to 5.
"""

from __future__ import annotations

from ..errors import Problem, ProgramError
from ..ir.program import Program
from .amounts import check_amounts
from .bounds import check_bounds
from .content import check_content
from .describe import as_text as as_text
from .describe import describe as describe
from .facts import Facts as Facts
from .facts import facts_of
from .flow import check_flow
from .fragment import unsupported as unsupported
from .grids import check_grids
from .index import Index, Problems
from .iteration import check_iteration
from .moments import check_moments
from .names import check_names
from .orders import check_orders
from .progress import check_progress
from .reach import check_reach
from .shape import check_shape
from .sharing import check_sharing


def check_program(program: Program) -> Facts:
    """Check a whole program.

    **Returns:** its `Facts` (facts.py documents each field).

    **Raises:** `ProgramError` with all problems of the program.
    """
    require_valid(program)
    return facts_of(program)


def require_valid(program: Program) -> None:
    """**Raises:** `ProgramError` with all problems of the program."""
    problems = find_problems(program)
    if problems:
        raise ProgramError(problems)


def find_problems(program: Program) -> list[Problem]:
    """All problems of a program in the order of the checks; empty if it is valid.

    Values of a wrong type hide the other checks; unknown names hide those of the bounds alone.
    """
    problems = Problems()
    check_shape(program, problems)
    if problems:
        return list(problems)
    index = Index(program)
    try:
        check_names(index, problems)
        check_flow(index, problems)
        check_moments(index, problems)
        check_orders(index, problems)
        check_iteration(index, problems)
        check_grids(index, problems)
        check_amounts(index, problems)
        check_content(index, problems)
        check_reach(index, problems)
        check_sharing(index, problems)
        check_progress(index, problems)
        if not problems:
            check_bounds(index, problems)
    except RecursionError:
        problems.add("$", "an expression is nested too deeply", "split it with `Set`")
    return list(problems)
