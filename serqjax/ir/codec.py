"""Programs as JSON and back, exactly.

`to_json` writes the automaton form, one part a line where it fits, so that it can be read and
compared by eye; `from_json` reads it strictly. Numbers are written in the shortest form that
reads back to the same double. The field `format` is checked before anything else.

**Source:** `design.md`, section 2 and 3.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from ..errors import Problem, ProgramError
from .program import FORMAT_VERSION, Program

LINE_WIDTH = 110
_HINTS = {
    "Object missing required field": "add the field",
    "Object contains unknown field": "remove the field or correct its name",
    "Invalid value": "see the classes of serqjax.ir for the allowed tags",
}


def to_json(program: Program) -> str:
    """The program as indented JSON.

    **Returns:** text that `from_json` turns into an equal program.

    **Raises:** `ProgramError` if a number is infinite or not a number (write `Inf()` for infinity).
    """
    infinite = list(_infinite(msgspec.to_builtins(program), "$"))
    if infinite:
        raise ProgramError(infinite)
    # `format` is written first and always, so that a reader of any version finds it.
    tree = {"format": program.format, **msgspec.to_builtins(program)}
    return _lines(tree, 0, 0) + "\n"


def from_json(text: str | bytes) -> Program:
    """The program written in `text` (automaton form).

    **Raises:** `ProgramError` with the JSON path of what is wrong: no JSON, another format version, a
    wrong type, an unknown tag or field, a missing field, a number that is not finite.
    """
    return from_tree(parse_json(text))


def parse_json(text: str | bytes, name: str = "$") -> Any:
    """Any JSON as plain Python values; NaN and Infinity come through for the reader to name their place.

    **Raises:** `ProgramError` at `name` if the text is empty, cut off or no JSON.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProgramError.at(
                name, f"the file is not UTF-8 text (byte {error.start})", "give a JSON program"
            ) from None
    if not text.strip():
        raise ProgramError.at(name, "the file is empty", "give a JSON program")
    try:
        return json.loads(text)
    except RecursionError:
        raise ProgramError.at(name, "the JSON is nested too deeply", "give a JSON program") from None
    except ValueError as error:
        where = getattr(error, "pos", None)
        unfinished = str(error).startswith("Unterminated string")
        cut = unfinished or (where is not None and where >= len(text.rstrip()))
        what = f"the JSON ends too early: {error}" if cut else f"not JSON: {error}"
        raise ProgramError.at(name, what, "is the file complete?" if cut else "give a JSON program") from None


def from_tree(tree: Any) -> Program:
    """As `from_json`, from plain Python values (what `json.loads` gives)."""
    if not isinstance(tree, dict):
        raise ProgramError.at("$", f"a program is a JSON object, not {describe(tree)}")
    if "format" not in tree:
        raise ProgramError.at("$.format", "the format version is missing", f'write "format": {FORMAT_VERSION}')
    version = tree["format"]
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise ProgramError.at(
            "$.format", f"format version {describe(version)} cannot be read", f"this version reads {FORMAT_VERSION}"
        )
    infinite = list(_infinite(tree, "$"))
    if infinite:
        raise ProgramError(infinite)
    try:
        program = msgspec.convert(tree, Program)
    except msgspec.ValidationError as error:
        raise ProgramError(_problem(str(error))) from None
    except RecursionError:
        raise ProgramError.at("$", "an expression is nested too deeply", "split it with Set") from None
    return program


def describe(value: Any) -> str:
    """A JSON value in a few words, for messages."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value) if isinstance(value, (str, bool)) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _problem(message: str) -> Problem:
    match = re.match(r"(.*?)(?: - at `(.*)`)?$", message, re.DOTALL)
    assert match is not None
    what, path = match.group(1), match.group(2) or "$"
    return Problem(path, what, next((h for start, h in _HINTS.items() if what.startswith(start)), ""))


def _infinite(tree: Any, place: str) -> Iterator[Problem]:
    """Problems of the numbers of a JSON tree that are not finite."""
    if isinstance(tree, float) and not math.isfinite(tree):
        yield Problem(place, f"{tree} is not allowed, need a finite number", 'infinity is written ["Inf"]')
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _infinite(item, f"{place}.{key}")
    elif isinstance(tree, (list, tuple)):
        for i, item in enumerate(tree):
            yield from _infinite(item, f"{place}[{i}]")


def _lines(value: Any, indent: int, column: int) -> str:
    """JSON text of `value`; on one line if it fits beside the `column` characters already there."""
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, (dict, list, tuple)) or not value or column + len(flat) <= LINE_WIDTH:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        rows = []
        for key, item in value.items():
            head = f"{pad}{json.dumps(key, ensure_ascii=False)}: "
            rows.append(head + _lines(item, indent + 1, len(head)))
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    rows = [pad + _lines(item, indent + 1, indent + 1) for item in value]
    return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"
