"""Iteration bodies of step stages as lines, so that a place in one is a number.

**Source:** `spec/semantics.md`, section 8 (Iteration body).
"""

from __future__ import annotations

import dataclasses

from ..ir.program import Command, If


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a body. `target`: where an `If` goes on if its test is 0, or where a line without command leads."""

    command: Command | None
    target: int = -1


def lines(body: tuple[Command, ...]) -> tuple[Line, ...]:
    """A body as lines; every jump leads forward."""
    made: list[Line] = []

    def add(commands: tuple[Command, ...]) -> None:
        for command in commands:
            at = len(made)
            made.append(Line(command))
            if not isinstance(command, If):
                continue
            add(command.then)
            if not command.orelse:
                made[at] = Line(command, len(made))
                continue
            jump = len(made)
            made.append(Line(None))
            made[at] = Line(command, len(made))
            add(command.orelse)
            made[jump] = Line(None, len(made))

    add(body)
    return tuple(made)
