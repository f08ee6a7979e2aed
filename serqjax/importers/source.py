"""Typed reading of foreign JSON that collects every problem with its place.

Each reader method records a problem and returns a harmless stand-in, so that reading goes on and all
errors of a program are reported at once.

**Source:** `style.md`, Errors; `spec/ir14.md`, Encoding rules.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import Problem, ProgramError
from ..ir.codec import describe
from ..ir.program import Share

_REQUIRED = object()


class Source:
    """The problems found so far, and checked access to plain JSON values.

    Places are JSON paths (`$.pools[2].cap`). Unknown keys of objects are ignored, as the reference does.
    """

    problems: list[Problem]

    def __init__(self) -> None:
        self.problems = []

    def fail(self, place: str, problem: str, hint: str = "") -> None:
        """Record a problem (once per place)."""
        if not any(p.path == place for p in self.problems):
            self.problems.append(Problem(place, problem, hint))

    def refuse(self, place: str, what: str, hint: str = "") -> None:
        """Record a construct that is valid serQ but that serqjax cannot run yet."""
        self.fail(place, f"{what} cannot be run yet", hint)

    def raise_problems(self) -> None:
        if self.problems:
            raise ProgramError(self.problems)

    def object(self, value: Any, place: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.fail(place, f"{describe(value)} is not allowed here", "need an object")
        return {}

    def list(self, value: Any, place: str, length: int | None = None) -> list[Any]:
        if not isinstance(value, list):
            self.fail(place, f"{describe(value)} is not allowed here", "need a list")
            return []
        if length is not None and len(value) != length:
            self.fail(place, f"a list of {len(value)} is not allowed here", f"need {length} items")
            return []
        return value

    def get(self, value: dict[str, Any], key: str, place: str, default: Any = _REQUIRED) -> Any:
        """A field of an object; a missing one gives `default` or, without it, a problem and None."""
        if key in value:
            return value[key]
        if default is not _REQUIRED:
            return default
        self.fail(f"{place}.{key}", "the field is missing", f'add "{key}"')
        return None

    def tag(self, value: Any, place: str) -> tuple[str, Any]:
        """An externally tagged value: its tag and payload (None without one)."""
        if isinstance(value, str):
            return value, None
        if isinstance(value, dict) and len(value) == 1:
            return next(iter(value.items()))
        self.fail(place, f"{describe(value)} is not allowed here", 'need a tag: "Tag" or {"Tag": ...}')
        return "", None

    def number(
        self, value: Any, place: str, *, infinite: bool = False, least: float | None = None, above: float | None = None
    ) -> float:
        """A number; with `infinite` also the string "inf". `least`, `above`: lower bounds."""
        bound = f" >= {least:g}" if least is not None else f" > {above:g}" if above is not None else ""
        need = f"need a number{bound}" + (' or "inf"' if infinite else "")
        if infinite and value == "inf":
            return math.inf
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(place, f"{describe(value)} is not allowed", need)
            return 1.0
        number = _double(value)
        low = (least is not None and number < least) or (above is not None and number <= above)
        if not math.isfinite(number) or low:
            self.fail(place, f"{describe(value)} is not allowed", need)
            return 1.0
        return number

    def integer(self, value: Any, place: str, least: int, most: int) -> int:
        """A whole number within bounds (both included)."""
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(place, f"{describe(value)} is not allowed", f"need a whole number from {least} to {most}")
            return least
        return value

    def index(self, value: Any, place: str, size: int, what: str) -> int:
        """An index into the program's `what` (a plural), 0 to size - 1."""
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            bounds = f"need 0 to {size - 1}" if size else "it has none"
            self.fail(place, f"index {describe(value)} is out of range", f"the program has {size} {what}: {bounds}")
            return 0
        return value

    def text(self, value: Any, place: str) -> str:
        if isinstance(value, str):
            return value
        self.fail(place, f"{describe(value)} is not allowed", "need a string")
        return "?"

    def share(self, value: Any, place: str) -> Share | None:
        """How flows share; None where nothing is said."""
        if value is None or value in ("MaxMin", "Bottleneck"):
            return value
        self.fail(place, f"{describe(value)} is not allowed", 'need "MaxMin" or "Bottleneck"')
        return None

    def flag(self, value: Any, place: str) -> bool:
        if isinstance(value, bool):
            return value
        self.fail(place, f"{describe(value)} is not allowed", "need true or false")
        return False


def _double(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
