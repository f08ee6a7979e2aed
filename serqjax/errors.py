"""Errors of reading a program: every problem with its place and what to write instead.

**Source:** `style.md`, section Errors, first moment.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable

#: Longest message in characters; what does not fit is counted.
LONGEST_MESSAGE = 4000
LONGEST_LINE = 600


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem of a program.

    - `path`: the place, `$.pools[2].cap` (JSON path), `trace.csv:7` (file and row) or a file name.
    - `problem`: what is wrong. `hint`: what to write instead ("" if the problem says it).
    """

    path: str
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.problem}" + (f"; {self.hint}" if self.hint else "")
        text = " ".join(text.split())
        return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 3] + "..."


class ProgramError(Exception):
    """A program cannot be read or is not valid. `problems` holds all that were found.

    **Arguments:** one `Problem` or several, in the order of the program.
    """

    problems: tuple[Problem, ...]

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)

    @classmethod
    def at(cls, path: str, problem: str, hint: str = "") -> ProgramError:
        """An error with a single problem."""
        return cls(Problem(path, problem, hint))

    def __str__(self) -> str:
        lines: list[str] = []
        size = 0
        for i, problem in enumerate(self.problems):
            line = str(problem)
            if size + len(line) + 1 > LONGEST_MESSAGE - 60:
                lines.append(f"... and {len(self.problems) - i} more problems")
                break
            lines.append(line)
            size += len(line) + 1
        return "\n".join(lines) if lines else "the program is not valid"


class ResultWarning(UserWarning):
    """What a user should know of a result before trusting it; the command line prints it as a note."""


class RangeWarning(ResultWarning):
    """A table of a cost was read outside the range of its points."""


class UncalibratedWarning(ResultWarning):
    """KV blocks or a step cost are a first guess that nobody has measured."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the closest known name, or lists some."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return "known: " + ", ".join(names[:20]) if names else ""
