"""A program built in Python has the types that its classes declare.

**Source:** `serqjax.ir.program`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from ..ir.program import Program
from .index import Problems


def check_shape(program: object, problems: Problems) -> None:
    """Report the first value of a wrong type (the classes themselves do not look)."""
    if not isinstance(program, Program):
        problems.add("$", f"a program is needed, not a {type(program).__name__}", "give a serqjax.ir.program.Program")
        return
    try:
        meant = msgspec.convert(msgspec.to_builtins(program), Program)
        for path, has, needs in _differences(program, meant, "$"):
            problems.add(path, f"Expected `{needs}`, got `{has}`", "see the classes of serqjax.ir.program")
            break
    except msgspec.ValidationError as error:
        match = re.match(r"(.*?)(?: - at `(.*)`)?$", str(error), re.DOTALL)
        assert match is not None
        problems.add(match.group(2) or "$", match.group(1), "see the classes of serqjax.ir.program")
    except RecursionError:
        problems.add("$", "an expression is nested too deeply", "split it with `Set`")
    except (TypeError, ValueError, OverflowError) as error:
        hint = "use numbers, texts, tuples and the classes of serqjax.ir"
        problems.add("$", f"holds a value that no program has: {error}", hint)


def _differences(has: Any, needs: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Places where a program and its reading back differ in type: a list for a tuple, a node for a tuple.

    Whole numbers may stand for floats.
    """
    if type(has) is not type(needs):
        if not (type(has) is int and type(needs) is float):
            yield path, type(has).__name__, type(needs).__name__
    elif isinstance(has, msgspec.Struct):
        for field in has.__struct_fields__:
            yield from _differences(getattr(has, field), getattr(needs, field), f"{path}.{field}")
    elif isinstance(has, tuple):
        for i, (a, b) in enumerate(zip(has, needs)):
            yield from _differences(a, b, f"{path}[{i}]")
