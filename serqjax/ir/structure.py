"""Structure and numbers of a program, and walks over its nodes.

Two programs that differ in numbers alone have equal structures, so that a compiled function is
shared by all of them: `structure(program)` replaces every number by its place in `leaves(program)`.

**Source:** `design.md`, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from .expr import Inf, Num, Param, Sample
from .grids import Grid
from .program import Attribute, Choose, Claim, Gauge, Listed, Parameter, Program

T = TypeVar("T")


def rebuild(node: T, change: Callable[[Any], Any]) -> T:
    """A copy of `node` in which `change` has replaced parts; `change` returns its argument to descend."""
    new = change(node)
    if new is not node:
        return new
    if isinstance(node, msgspec.Struct):
        fields = {f: rebuild(getattr(node, f), change) for f in node.__struct_fields__}
        if all(fields[f] is getattr(node, f) for f in fields):
            return node
        return type(node)(**fields)
    if isinstance(node, tuple):
        items = tuple(rebuild(item, change) for item in node)
        return node if all(a is b for a, b in zip(items, node)) else items  # type: ignore[return-value]
    return node


def walk(node: Any, place: str = "$") -> list[tuple[str, Any]]:
    """All structs and scalars below `node` with their places (`$.pools[2].cap`), parents first."""
    found: list[tuple[str, Any]] = []

    def add(node: Any, place: str) -> None:
        found.append((place, node))
        if isinstance(node, msgspec.Struct):
            for field in node.__struct_fields__:
                add(getattr(node, field), f"{place}.{field}")
        elif isinstance(node, tuple):
            for i, item in enumerate(node):
                add(item, f"{place}[{i}]")

    add(node, place)
    return found


def _whole(count: float) -> bool:
    return 0.0 <= count < 2.0**53 and count == int(count)


def number(program: Program, node: Num | Param | Inf | None) -> float | None:
    """The value of a number of the program; infinity for `Inf`, None for None."""
    if node is None:
        return None
    if isinstance(node, Num):
        return node.value
    if isinstance(node, Inf):
        return float("inf")
    for parameter in program.params:
        if parameter.name == node.name:
            return parameter.value
    raise KeyError(node.name)


def skeleton(program: Program) -> tuple[Program, tuple[float, ...]]:
    """The program with every number replaced by its place, and the numbers.

    Equal skeletons compile to one function. `Num(i)` of the skeleton reads `numbers[i]`; `Param(name)` reads the
    parameter's place, which follows the literals. The number of stages of an `Erlang` draw stays
    literal, as `Num(-k - 1)`, because it decides how many draws are made, and so does the
    whole count of a `Choose`. Session data (`Listed`,
    `Trace`), run settings and names that only a report reads are not structure.
    """
    numbers: list[float] = []

    def place(node: Any) -> Any:
        if isinstance(node, Num):
            numbers.append(node.value)
            return Num(float(len(numbers) - 1))
        if isinstance(node, Sample) and node.dist == "Erlang" and isinstance(node.args[0], Num):
            rest = tuple(rebuild(arg, place) for arg in node.args[1:])
            return Sample(node.dist, (Num(-max(1, int(node.args[0].value)) - 1.0), *rest))
        if isinstance(node, Choose) and isinstance(node.count, Num) and _whole(node.count.value):
            keys = tuple(rebuild(key, place) for key in node.keys)
            return Choose(node.attr, Num(-node.count.value - 1.0), keys)
        if isinstance(node, Attribute):
            return Attribute(name=node.name)
        if isinstance(node, Parameter):
            return Parameter(name=node.name, value=0.0)
        if isinstance(node, Gauge | Claim) and node.name:
            return rebuild(msgspec.structs.replace(node, name=""), place)
        if isinstance(node, Grid):
            return msgspec.structs.replace(node, rows=(), missing=None)
        if isinstance(node, Listed):
            return Listed(at=(), attrs=node.attrs, turn_attrs=node.turn_attrs)
        return node

    bare = msgspec.structs.replace(
        program,
        name="",
        horizon_s=None,
        warmup_s=Num(0.0),
        seed=0,
        arrivals=None,
        trace=None if program.trace is None else msgspec.structs.replace(program.trace, turns=(), contents=()),
    )
    shape = rebuild(bare, place)
    return shape, tuple(numbers) + tuple(p.value for p in program.params)
