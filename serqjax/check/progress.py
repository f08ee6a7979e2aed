"""Loops that let no time pass.

On every way around a cycle of states something must take time: a `Run` whose work is not a
constant 0 (or a hold whose body has one). A session that could go round without would never let
the instant end.

**Source:** `spec/ir14.md`, section What validation rejects (control); `design.md`, section 2.7.
"""

from __future__ import annotations

from ..ir.program import Closed, End, Run, State
from .flow import at_once, reachable
from .index import Index, Problems
from .values import constant


def takes_time(index: Index, state: State) -> bool:
    """Whether leaving the state takes time: a `Run` whose work, or whose latency, is not a constant 0."""
    run = state.exit
    if not isinstance(run, Run):
        return False
    return constant(index, run.work) != 0 or (run.latency is not None and constant(index, run.latency) != 0)


def check_progress(index: Index, problems: Problems) -> None:
    """Report each cycle of states without time once, and closed populations whose sessions take no time."""
    program = index.program
    for cycle in _timeless_cycles(index):
        first = index.state_places[cycle[0]]
        way = " -> ".join(f"`{name}`" for name in [*cycle[:6], *(["..."] if len(cycle) > 6 else []), cycle[0]])
        problems.add(
            f"$.states[{first}]",
            f"state `{cycle[0]}`: the loop {way} lets no time pass",
            "put a `Run` with work above 0, or `End`, on every way around it",
        )
    seen = reachable(index)
    if (
        isinstance(program.arrival, Closed)
        and any(isinstance(index.states[name].exit, End) for name in seen)
        and not any(takes_time(index, index.states[name]) for name in seen)
    ):
        problems.add(
            "$.arrival",
            "arrival: a closed session that ends starts the next at once, and none of their states takes time",
            "put a `Run` with work above 0 on the way from the start to `End`",
        )


def _timeless_cycles(index: Index) -> list[list[str]]:
    """One cycle per strongly connected part of the states joined by steps without time."""
    after = {state.name: [] if takes_time(index, state) else at_once(index, state) for state in index.program.states}
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    parts: list[list[str]] = []
    for root in after:
        if root in order:
            continue
        work = [(root, iter(after[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            name, rest = work[-1]
            step = next(rest, None)
            if step is not None:
                if step not in order:
                    order[step] = low[step] = len(order)
                    stack.append(step)
                    on_stack.add(step)
                    work.append((step, iter(after[step])))
                elif step in on_stack:
                    low[name] = min(low[name], order[step])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[name])
            if low[name] == order[name]:
                part = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    part.append(member)
                    if member == name:
                        break
                if len(part) > 1 or name in after[name]:
                    parts.append(_cycle(name, set(part), after))
    return parts


def _cycle(start: str, part: set[str], after: dict[str, list[str]]) -> list[str]:
    """A shortest way from `start` back to itself inside `part`."""
    came: dict[str, str] = {}
    front = [start]
    while front:
        nxt = []
        for name in front:
            for step in after[name]:
                if step == start:
                    way = [name]
                    while way[-1] != start:
                        way.append(came[way[-1]])
                    return way[::-1]
                if step in part and step not in came:
                    came[step] = name
                    nxt.append(step)
        front = nxt
    return [start]
