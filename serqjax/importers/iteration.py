"""Iteration bodies and registers of step stages.

**Source:** `spec/ir14.md`, CStep, CIter and registers.
"""

from __future__ import annotations

from typing import Any

from .. import ir
from ..ir.codec import describe
from .expressions import Expressions


def read_body(expressions: Expressions, value: Any, place: str) -> tuple[ir.Command, ...]:
    """The commands of an `iteration` field, or of an arm of one of its branches."""
    items = expressions.source.list(value, place)
    return tuple(_command(expressions, item, f"{place}[{i}]") for i, item in enumerate(items))


def _command(expressions: Expressions, value: Any, place: str) -> ir.Command:
    source, read = expressions.source, expressions.read
    tag, payload = source.tag(value, place)
    inner = f"{place}.{tag}"
    if tag in ("Serve", "Admit"):
        fields = payload if isinstance(payload, dict) else source.object(payload, inner)

        def optional(key: str) -> ir.Expr | None:
            raw = fields.get(key)
            return None if raw is None else read(raw, f"{inner}.{key}")

        if tag == "Admit":
            return ir.Admit(only=optional("only"), gate=optional("gate"))
        by = fields.get("by")
        order = None if by is None else ir.Order(keys=expressions.keys(by, f"{inner}.by"), tie="admitted")
        return ir.Serve(only=optional("only"), by=order)
    if tag == "Branch":
        parts = source.list(payload, inner, 3)
        if parts:
            then, orelse = (read_body(expressions, parts[k], f"{inner}[{k}]") for k in (1, 2))
            return ir.If(test=read(parts[0], f"{inner}[0]"), then=then, orelse=orelse)
    elif tag == "Set":
        parts = source.list(payload, inner, 2)
        if parts:
            register = expressions.register(parts[0], f"{inner}[0]")
            return ir.Assign(register=register, value=read(parts[1], f"{inner}[1]"))
    elif tag:
        source.fail(place, f"unknown command {describe(tag)}", "need one of Serve Admit Branch Set")
    return ir.Serve()


def register_names(expressions: Expressions, rows: list[Any], place: str) -> tuple[str, ...]:
    """Names of the registers by index, read before any expression is."""
    source = expressions.source
    fields = [source.object(row, f"{place}[{i}]") for i, row in enumerate(rows)]
    return tuple(source.text(source.get(row, "name", f"{place}[{i}]"), f"{place}[{i}].name")
                 for i, row in enumerate(fields))  # fmt: skip


def read_registers(expressions: Expressions, rows: list[Any], place: str) -> tuple[ir.Register, ...]:
    """The declarations of the registers; their names are known already."""
    source, stages = expressions.source, expressions.stages.names
    made = []
    for i, row in enumerate(rows):
        where = f"{place}[{i}]"
        if not isinstance(row, dict):
            continue
        at = source.index(source.get(row, "stage", where), f"{where}.stage", len(stages), "stages")
        init = source.number(source.get(row, "init", where), f"{where}.init")
        made.append(ir.Register(name=expressions.registers[i], stage=stages[at] if stages else "?", init=ir.Num(init)))
    return tuple(made)
