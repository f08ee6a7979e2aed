"""Makes a failing generated program small: `shrink(program, fails)`.

Tries, as long as the program still fails: a shorter horizon, fewer sessions, turns and arrivals, statements
and records dropped, smaller and rounder numbers. `fails(program)` must be False for a program
that the reference refuses (a shrunk program may not be valid), so wrap the check in `valid_and`.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Json = Any
Fails = Callable[[Json], bool]


def valid_and(check: Fails) -> Fails:
    """`check`, but False for programs that pyserq refuses."""

    def fails(program: Json) -> bool:
        import pyserq

        try:
            pyserq.Program.from_json(json.dumps(program))
        except Exception:
            return False
        return check(program)

    return fails


def shrink(program: Json, fails: Fails, tries: int = 2000) -> Json:
    """The smallest program found for which `fails` is still true, trying at most `tries` candidates."""
    if not fails(program):
        raise ValueError("the program to shrink does not fail")
    best = copy.deepcopy(program)
    while True:
        before = json.dumps(best)
        for passing in (_horizon, _population, _sessions, _statements, _simplify, _numbers):
            again = True
            while again and tries > 0:
                again = False
                for candidate in passing(best):
                    if tries <= 0:
                        break
                    tries -= 1
                    if json.dumps(candidate) != json.dumps(best) and fails(candidate):
                        best, again = candidate, True
                        break
        if tries <= 0 or json.dumps(best) == before:
            return best


def to_text(program: Json) -> str:
    """The program as JSON, with the rows of its trace file when it has one."""
    text = json.dumps(program)
    if program.get("trace") and os.path.exists(program["trace"]):
        text += "\n# trace file:\n" + Path(program["trace"]).read_text()
    return text


def _changed(program: Json, edit: Callable[[Json], None]) -> Json:
    new = copy.deepcopy(program)
    edit(new)
    return new


def _horizon(program: Json) -> Iterator[Json]:
    if program["warmup"]:
        yield {**program, "warmup": 0.0}
    for factor in (0.25, 0.5, 0.75, 0.9):
        horizon = round(program["horizon"] * factor, 3)
        if horizon > program["warmup"]:
            yield {**program, "horizon": horizon}


def _population(program: Json) -> Iterator[Json]:
    arrival = program["arrival"]
    for kind in ("Batch", "Closed"):
        if isinstance(arrival, dict) and kind in arrival and arrival[kind] > 1:
            for n in sorted({1, arrival[kind] // 2, arrival[kind] - 1}):
                if n >= 1:
                    yield {**program, "arrival": {kind: n}}
    if "arrivals" in program and program["arrivals"] > 1:
        for n in sorted({1, program["arrivals"] // 2, program["arrivals"] - 1}):
            yield {**program, "arrivals": n}


def _sessions(program: Json) -> Iterator[Json]:
    arrival = program["arrival"]
    if not (isinstance(arrival, dict) and "Sessions" in arrival):
        return
    rows = arrival["Sessions"]

    def with_rows(new: Json) -> Json:
        return {**program, "arrival": {"Sessions": new}}

    for size in (len(rows) // 2, len(rows) // 4, 1):
        if size:
            for start in range(0, len(rows), size):
                kept = rows[:start] + rows[start + size :]
                if kept:
                    yield with_rows(kept)
    for i, row in enumerate(rows):
        turns = row.get("turns", [])
        for t in range(len(turns) if len(turns) > 1 else 0):
            yield with_rows([*rows[:i], {**row, "turns": turns[:t] + turns[t + 1 :]}, *rows[i + 1 :]])
    for i, row in enumerate(rows):
        for a, (slot, value) in enumerate(row.get("attrs", [])):
            for smaller in _smaller(value):
                attrs = [*row["attrs"][:a], [slot, smaller], *row["attrs"][a + 1 :]]
                yield with_rows([*rows[:i], {**row, "attrs": attrs}, *rows[i + 1 :]])
        for t, turn in enumerate(row.get("turns", [])):
            for a, (slot, value) in enumerate(turn):
                for smaller in _smaller(value):
                    new = [*turn[:a], [slot, smaller], *turn[a + 1 :]]
                    turns = [*row["turns"][:t], new, *row["turns"][t + 1 :]]
                    yield with_rows([*rows[:i], {**row, "turns": turns}, *rows[i + 1 :]])


def _smaller(value: float) -> list[float]:
    if value <= 0:
        return []
    return [x for x in dict.fromkeys([0.0, 1.0, float(int(value / 2)), float(int(value)), value - 1]) if 0 <= x < value]


def _statements(program: Json) -> Iterator[Json]:
    for i, block in enumerate(program["blocks"]):
        for j in range(len(block)):

            def drop(new: Json, i: int = i, j: int = j) -> None:
                del new["blocks"][i][j]
                del new["sides"][i][j]
                _collect(new)

            yield _changed(program, drop)


def _simplify(program: Json) -> Iterator[Json]:
    """Drop what is optional: queue keys, reserves, caches, serve keys, unused pools and stages stay."""
    for i, pool in enumerate(program["pools"]):
        for key, plain in (("queue", None), ("evict", "Lru"), ("preempt", "None"), ("block", None)):
            if pool[key] != plain:
                yield _changed(program, lambda new, i=i, key=key, plain=plain: new["pools"][i].__setitem__(key, plain))
    for i, stage in enumerate(program["stages"]):
        step = stage["kind"].get("Step") if isinstance(stage["kind"], dict) else None
        if not step:
            continue

        def put(new: Json, path: list[Any], value: Any, i: int = i) -> None:
            node = new["stages"][i]["kind"]["Step"]
            for part in path[:-1]:
                node = node[part]
            if value is None and path[-1] in ("reuse", "cache"):
                node.pop(path[-1], None)
            else:
                node[path[-1]] = value

        plainer: list[tuple[list[Any], Any]] = [
            (["cost"], {"Num": 1.0}),
            (["chunk"], {"Num": 0.0}),
            (["serve"], {"By": []}),
            (["budget"], {"Num": 64.0}),
        ]
        if "request" in step:
            plainer += [(["request", "cache"], None), (["request", "reuse"], None)]
            plainer += [(["request", "pools", k, 2], None) for k in range(len(step["request"]["pools"]))]
            plainer += [(["request", "pools", k, 1], {"Ctx": "Known"}) for k in range(len(step["request"]["pools"]))]
        for path, value in plainer:
            yield _changed(program, lambda new, path=path, value=value: put(new, path, value))


def _numbers(program: Json) -> Iterator[Json]:
    """Numbers of expressions and caps, halved or rounded, one at a time."""
    for path, value in list(_number_places(program)):
        for smaller in _smaller(value):

            def put(new: Json, path: tuple[Any, ...] = path, smaller: float = smaller) -> None:
                node = new
                for part in path[:-1]:
                    node = node[part]
                node[path[-1]] = smaller

            yield _changed(program, put)


def _number_places(program: Json) -> Iterator[tuple[tuple[Any, ...], float]]:
    for i, pool in enumerate(program["pools"]):
        if isinstance(pool["cap"], (int, float)):
            yield ("pools", i, "cap"), pool["cap"]
    for part in ("stages", "blocks", "arrival"):
        yield from _nums(program[part], (part,))


def _nums(node: Json, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], float]]:
    if isinstance(node, dict):
        if set(node) == {"Num"} and isinstance(node["Num"], (int, float)):
            yield (*path, "Num"), node["Num"]
        else:
            for key, item in node.items():
                yield from _nums(item, (*path, key))
    elif isinstance(node, list):
        for i, item in enumerate(node):
            yield from _nums(item, (*path, i))


def _collect(program: Json) -> None:
    """Remove blocks that nothing reaches any more and renumber the rest."""
    order: list[int] = []

    def visit(block: int) -> None:
        order.append(block)
        for stmt in program["blocks"][block]:
            for child in _children(stmt):
                visit(child)

    for root in ("init", "turn", "session"):
        visit(program[root])
    place = {old: new for new, old in enumerate(order)}
    blocks, sides = program["blocks"], program["sides"]
    program["blocks"] = [[_renumber(stmt, place) for stmt in blocks[old]] for old in order]
    program["sides"] = [sides[old] for old in order]
    for root in ("init", "turn", "session"):
        program[root] = place[program[root]]


def _children(stmt: Json) -> list[int]:
    if not isinstance(stmt, dict):
        return []
    ((kind, payload),) = stmt.items()
    return {
        "Hold": lambda: [payload["body"]],
        "Branch": lambda: payload[1:],
        "While": lambda: payload[1:],
        "Loop": lambda: [payload],
        "Fork": lambda: [payload],
    }.get(kind, lambda: [])()


def _renumber(stmt: Json, place: dict[int, int]) -> Json:
    if not isinstance(stmt, dict):
        return stmt
    ((kind, payload),) = stmt.items()
    if kind == "Hold":
        return {kind: {**payload, "body": place[payload["body"]]}}
    if kind in ("Branch", "While"):
        return {kind: [payload[0], *[place[b] for b in payload[1:]]]}
    if kind in ("Loop", "Fork"):
        return {kind: place[payload]}
    return stmt
