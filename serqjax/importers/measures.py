"""Gauges and claims of IR 14.

**Source:** `spec/ir14.md`, Claims, gauges, registers; `spec/semantics.md`, section 13.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import ir
from ..ir.codec import describe
from .expressions import Expressions
from .source import Source

_OVER_ITERATIONS = {"EveryIteration": ir.EveryIteration, "SomeIteration": ir.SomeIteration}


def read_gauges(expressions: Expressions, tree: dict[str, Any]) -> tuple[ir.Gauge, ...]:
    """The field `gauges` of a program."""
    found = []
    for name, fields, place in _rows(expressions.source, tree, "gauges"):
        value = expressions.read(expressions.source.get(fields, "expr", place), f"{place}.expr")
        found.append(ir.Gauge(name=name, value=value))
    return tuple(found)


def read_claims(expressions: Expressions, observes: tuple[str, ...], tree: dict[str, Any]) -> tuple[ir.Claim, ...]:
    """The field `claims` of a program; `observes`: its observations by index."""
    source = expressions.source
    at_end = Expressions(source, expressions.attrs, expressions.pools, expressions.stages, observes)
    found = []
    for name, fields, place in _rows(source, tree, "claims"):
        kind = _kind(expressions, source.get(fields, "kind", place), f"{place}.kind")
        raw = source.get(fields, "expr", place)
        if isinstance(kind, ir.AtEnd):
            value = at_end.read(raw, f"{place}.expr")
        else:
            value = expressions.read(raw, f"{place}.expr")
        given = None
        if fields.get("given") is not None:
            given = expressions.read(fields["given"], f"{place}.given")
        found.append(ir.Claim(name=name, kind=kind, value=value, given=given))
    return tuple(found)


def _kind(expressions: Expressions, value: Any, place: str) -> ir.EveryIteration | ir.SomeIteration | ir.AtEnd:
    source = expressions.source
    tag, payload = source.tag(value, place)
    if tag in _OVER_ITERATIONS:
        stages = expressions.stages.names
        at = source.index(payload, f"{place}.{tag}", len(stages), "stages")
        return _OVER_ITERATIONS[tag](stages[at] if stages else "?")
    if tag and tag != "AtEnd":
        what = f"unknown claim {describe(tag)}"
        source.fail(place, what, 'need {"EveryIteration": stage}, {"SomeIteration": stage} or "AtEnd"')
    return ir.AtEnd()


def _rows(source: Source, tree: dict[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, fields and place of each row of an optional list."""
    for i, row in enumerate(source.list(tree.get(key) or [], f"$.{key}")):
        place = f"$.{key}[{i}]"
        fields = source.object(row, place)
        if fields:
            yield source.text(source.get(fields, "name", place), f"{place}.name"), fields, place
