"""Scopes and states fit together: every state is reached with the scopes open that it declares.

**Source:** `design.md`, section 2.5; `serqjax.ir.program`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.program import End, EndLeg, Enter, Fork, Join, Leave, State, Turn
from .index import Index, Problems, targets


def check_flow(index: Index, problems: Problems) -> None:
    """Report cycles of parents, entries from elsewhere, exits that leave or cross a scope."""
    program = index.program
    for i, scope in enumerate(program.scopes):
        here, owner = f"$.scopes[{i}]", f"scope `{scope.name}`"
        chain = index.chain(scope.name)
        if len(chain) > len(program.scopes):
            names = " -> ".join(f"`{s.name}`" for s in chain[: min(len(chain), 5)])
            problems.add(f"{here}.parent", f"{owner}: is its own ancestor ({names})", "scopes form a tree")
        if not scope.takes:
            problems.add(f"{here}.takes", f"{owner}: takes nothing", "take at least one pool; the first is its line")
        reentry = index.states.get(scope.reentry)
        if reentry is not None and reentry.scope != scope.name:
            problems.add(
                f"{here}.reentry",
                f"{owner}: goes on at state `{reentry.name}`, which lies in {_scope(reentry.scope)}",
                f"the reentry of a scope lies in it: set `scope` of `{reentry.name}` to `{scope.name}`",
            )
    start = index.states.get(program.start)
    if start is not None and start.scope is not None:
        text = f"a session starts in state `{start.name}`, which lies in {_scope(start.scope)}"
        problems.add("$.start", text, "start outside all scopes and `Enter` one")
    for i, state in enumerate(program.states):
        if state.scope is None or state.scope in index.scopes:
            _check_exit(index, problems, i, state)
    _check_legs(index, problems)


def _check_legs(index: Index, problems: Problems) -> None:
    """A session forks, joins and ends; a leg does none of these and ends with `EndLeg`."""
    program = index.program
    forks = [s for s in program.states if isinstance(s.exit, Fork)]
    joins = [s for s in program.states if isinstance(s.exit, Join)]
    for states, what, other in ((forks, "forks a leg", "joins"), (joins, "joins legs", "forks")):
        if states and not (joins if states is forks else forks):
            here = f"$.states[{index.state_places[states[0].name]}].exit"
            text = f"state `{states[0].name}`: {what}, but no state {other}"
            problems.add(here, text, "every program that forks has a `Join`, and the reverse")
    of_legs = legs(index)
    session = reached(index, [program.start], own_successors)
    for i, state in enumerate(program.states):
        here, owner = f"$.states[{i}]", f"state `{state.name}`"
        if state.name in of_legs:
            if isinstance(state.exit, Fork | Join | End):
                text = f"{owner}: a leg comes to `{type(state.exit).__name__}`"
                problems.add(f"{here}.exit", text, "a leg ends with `EndLeg`; only the session forks, joins and ends")
            if any(isinstance(op, Turn) for op in state.ops):
                problems.add(f"{here}.ops", f"{owner}: a leg comes to `Turn`", "only the session has turns")
        if state.name in session and isinstance(state.exit, EndLeg):
            text = f"{owner}: the session itself comes to `EndLeg`"
            problems.add(f"{here}.exit", text, "a session ends with `End`; start legs with `Fork`")
        if isinstance(state.exit, Fork):
            for scope in index.chain(state.scope):
                members = [m for take in scope.takes for m in index.pool_members(take.pool)]
                if any(program.pools[m].preempt is not None for m in members):
                    text = f"{owner}: forks inside the scope `{scope.name}`, whose pool may preempt"
                    problems.add(f"{here}.exit", text, "a preempted body would fork again: fork outside")


def legs(index: Index) -> set[str]:
    """Names of the states that a leg comes to."""
    return reached(index, [s.exit.leg for s in index.program.states if isinstance(s.exit, Fork)], own_successors)


def _check_exit(index: Index, problems: Problems, i: int, state: State) -> None:
    here, owner, exit_ = f"$.states[{i}].exit", f"state `{state.name}`", state.exit
    lies = state.scope
    if isinstance(exit_, Enter):
        scope = index.scopes.get(exit_.scope)
        if scope is not None and scope.parent != state.scope:
            problems.add(
                f"{here}.scope",
                f"{owner}: enters the scope `{scope.name}` from {_scope(state.scope)}, "
                f"but its parent is {_scope(scope.parent)}",
                "enter it from its parent, or declare that parent",
            )
    elif isinstance(exit_, Leave):
        if state.scope is None:
            problems.add(here, f"{owner}: leaves a scope, but lies in none", "use `Goto`, or set the state's `scope`")
            return
        lies = index.scopes[state.scope].parent
    chain = [s.name for s in index.chain(state.scope)]
    for field, name in targets(state):
        target = index.states.get(name)
        if target is None:
            continue
        if field == "deadline.target":
            if target.scope is not None and target.scope not in chain:
                text = f"{owner}: its deadline jumps to state `{name}` in {_scope(target.scope)}, which is not open"
                problems.add(f"{here}.{field}", text, "a jump only closes scopes: go to a state of an open scope")
        elif field == "leg":
            if target.scope is not None:
                text = f"{owner}: its leg starts in state `{name}`, which lies in {_scope(target.scope)}"
                problems.add(f"{here}.{field}", text, "a leg starts outside all scopes and holds nothing")
        elif target.scope != lies:
            problems.add(
                f"{here}.{field}",
                f"{owner}: goes to state `{name}`, which lies in {_scope(target.scope)}, from {_scope(lies)}"
                + (f" (after leaving `{state.scope}`)" if isinstance(exit_, Leave) else ""),
                "open a scope with `Enter` and close it with `Leave`, or correct the state's `scope`",
            )


def successors(index: Index, state: State) -> list[str]:
    """Names of the states that may follow, the reentry of an entered scope included."""
    late = [name for field, name in targets(state) if field == "deadline.target"]
    return at_once(index, state) + [name for name in late if name in index.states]


def own_successors(index: Index, state: State) -> list[str]:
    """As `successors`, but for the start of a leg: where one session, or one leg, itself goes on."""
    leg = state.exit.leg if isinstance(state.exit, Fork) else None
    return [name for name in successors(index, state) if name != leg]


def at_once(index: Index, state: State) -> list[str]:
    """As `successors`, but for the target of a deadline, which lets time pass."""
    found = [name for field, name in targets(state) if field != "deadline.target"]
    if isinstance(state.exit, Enter) and state.exit.scope in index.scopes:
        found.append(index.scopes[state.exit.scope].reentry)
    return [name for name in found if name in index.states]


def reachable(index: Index) -> set[str]:
    """Names of the states that a session can come to."""
    return reached(index, [index.program.start])


def reached(index: Index, starts: list[str], follow: Callable[[Index, State], list[str]] = successors) -> set[str]:
    """Names of the states that somebody in one of `starts` can come to, those included."""
    seen: set[str] = set()
    left = [name for name in starts if name in index.states]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left.extend(follow(index, index.states[name]))
    return seen


def ends(index: Index) -> bool:
    """Whether a session can end at all."""
    return any(isinstance(index.states[name].exit, End) for name in reachable(index))


def _scope(name: str | None) -> str:
    return "no scope" if name is None else f"scope `{name}`"
