"""The smallest automaton with the same behaviour.

The server's part of a program is copied at every turn, so an imported session has many states that
differ in name alone. Here empty states are skipped, `Goto` exits take in the state they lead to,
unreachable states go, and states and scopes that no run can tell apart become one (the coarsest
partition in which equal classes have equal ops, exits, scopes and successor classes). Names are
made from what a state waits for.

**Source:** `design.md`, section 2.5.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .. import ir
from ..ir.structure import walk


def minimise(program: ir.Program) -> ir.Program:
    """An equal program with fewer states; idempotent."""
    program = drop_responds(inline_gotos(program))
    program = merge(drop_unread(program))
    return drop_unused(rename(program))


# ---------------------------------------------------------------- gotos


def inline_gotos(program: ir.Program) -> ir.Program:
    """Every `Goto` replaced by what it leads to; only cycles of nothing but `Goto` keep one."""
    states = {s.name: s for s in program.states}

    def resolved(state: ir.State) -> ir.State:
        ops, exit, seen = list(state.ops), state.exit, {state.name}
        while isinstance(exit, ir.Goto) and exit.then not in seen:
            seen.add(exit.then)
            following = states[exit.then]
            if following.scope != state.scope:
                break
            ops += following.ops
            exit = following.exit
        return ir.State(name=state.name, ops=tuple(ops), exit=exit, scope=state.scope)

    return reachable(msgspec.structs.replace(program, states=tuple(resolved(s) for s in program.states)))


def targets(exit: ir.Exit) -> list[tuple[str, str]]:
    """Field and state name of every successor of an exit (an `Enter` leads to its scope's reentry)."""
    found = [(f, getattr(exit, f)) for f in ("then", "orelse", "leg") if hasattr(exit, f)]
    deadline = getattr(exit, "deadline", None)
    if deadline is not None:
        found.append(("deadline", deadline.target))
    return found


def reachable(program: ir.Program) -> ir.Program:
    """Only the states and scopes that the start state leads to, in depth-first order from it."""
    states = {s.name: s for s in program.states}
    scopes = {s.name: s for s in program.scopes}
    order: list[str] = []
    seen: set[str] = set()
    stack = [program.start]
    used: dict[str, None] = {}

    def use(name: str | None) -> None:
        if name is not None and name not in used:
            use(scopes[name].parent)
            used[name] = None

    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        order.append(name)
        state = states[name]
        use(state.scope)
        following = [t for _, t in targets(state.exit)]
        if isinstance(state.exit, ir.Enter):
            use(state.exit.scope)
            following.insert(0, scopes[state.exit.scope].reentry)
        stack += reversed(following)
    return msgspec.structs.replace(
        program, states=tuple(states[n] for n in order), scopes=tuple(scopes[n] for n in used)
    )


# ---------------------------------------------------------------- ops without effect


def drop_responds(program: ir.Program) -> ir.Program:
    """Without every `Respond` that no open turn can reach."""
    states = {s.name: s for s in program.states}
    scopes = {s.name: s for s in program.scopes}
    reached: dict[str, set[bool]] = {}
    pending: list[str] = []

    def flow(name: str, turn_open: bool) -> None:
        if turn_open not in reached.setdefault(name, set()):
            reached[name].add(turn_open)
            pending.append(name)

    flow(program.start, False)
    while pending:
        state = states[pending.pop()]
        for before in tuple(reached[state.name]):
            after = _turn_open(state.ops, before)
            for _, target in targets(state.exit):
                flow(target, after)
            if isinstance(state.exit, ir.Enter):
                flow(scopes[state.exit.scope].reentry, after)
            scope = state.scope
            while scope is not None:  # a preemption jumps to the reentry of any scope around
                flow(scopes[scope].reentry, after)
                scope = scopes[scope].parent
    kept = []
    for state in program.states:
        ops: list[ir.Op] = []
        turn_open = True in reached.get(state.name, {True})
        for op in state.ops:
            if not isinstance(op, ir.Respond) or turn_open:
                ops.append(op)
            turn_open = _turn_open((op,), turn_open)
        kept.append(msgspec.structs.replace(state, ops=tuple(ops)))
    return msgspec.structs.replace(program, states=tuple(kept))


def _turn_open(ops: tuple[ir.Op, ...], before: bool) -> bool:
    for op in ops:
        if isinstance(op, ir.Turn):
            before = True
        elif isinstance(op, ir.Respond):
            before = False
    return before


def drop_unread(program: ir.Program) -> ir.Program:
    """Without assignments to attributes that nothing reads (those that draw or may fail stay)."""
    while True:
        parts = (program.pools, program.stages, program.scopes, program.states, program.init, program.turn,
                 program.claims)  # fmt: skip
        read: set[str] = set()
        for part in parts:
            _reads(part, read)

        def needed(op: Any, read: set[str] = read) -> bool:
            if isinstance(op, ir.Choose) and not isinstance(op.count, ir.Num):
                return True
            if not isinstance(op, (ir.Set, ir.Let, ir.Choose)) or op.attr in read:
                return True
            return any(isinstance(node, (ir.Sample, ir.Member)) for _, node in walk(op))

        changed = msgspec.structs.replace(
            program,
            states=tuple(
                msgspec.structs.replace(s, ops=tuple(filter(needed, s.ops))) for s in program.states
            ),
            scopes=tuple(msgspec.structs.replace(s, lets=tuple(filter(needed, s.lets))) for s in program.scopes),
            init=tuple(filter(needed, program.init)),
            turn=tuple(filter(needed, program.turn)),
        )
        if changed == program:
            return program
        program = changed


def _reads(node: Any, found: set[str]) -> None:
    """Attributes that a part reads, but for an assignment's reading of its own attribute."""
    if isinstance(node, ir.Attr):
        found.add(node.name)
    elif isinstance(node, (ir.Set, ir.Let)):
        inner: set[str] = set()
        _reads(node.value, inner)
        found.update(inner - {node.attr})
    elif isinstance(node, ir.Choose):
        inner = set()
        _reads(node.keys, inner)
        found.update(inner - {node.attr})
        _reads(node.count, found)
    elif isinstance(node, msgspec.Struct):
        for field in node.__struct_fields__:
            _reads(getattr(node, field), found)
    elif isinstance(node, tuple):
        for item in node:
            _reads(item, found)


# ---------------------------------------------------------------- merging


def merge(program: ir.Program) -> ir.Program:
    """One state and one scope for each class of those that behave alike."""
    state_class: dict[str, int] = {s.name: 0 for s in program.states}
    scope_class: dict[str | None, int] = {None: -1, **{s.name: 0 for s in program.scopes}}
    count = -1
    while True:
        numbers: dict[Any, int] = {}

        def number(key: Any) -> int:
            return numbers.setdefault(key, len(numbers))

        new_states = {
            s.name: number(("state", state_class[s.name], s.ops, _exit_key(s.exit, state_class, scope_class),
                            scope_class[s.scope]))
            for s in program.states
        }  # fmt: skip
        new_scopes: dict[str | None, int] = {None: -1}
        for s in program.scopes:
            around = scope_class[s.parent], state_class[s.reentry]
            new_scopes[s.name] = number(("scope", scope_class[s.name], s.takes, s.lets, s.reuse, s.lease, around))
        state_class, scope_class = new_states, new_scopes
        if len(numbers) == count:
            break
        count = len(numbers)
    # The first member of each class stands for it.
    of_state = _representatives([s.name for s in program.states], state_class)
    of_scope = _representatives([s.name for s in program.scopes], scope_class)
    return reachable(_renamed(program, of_state, of_scope))


def _exit_key(exit: ir.Exit, states: dict[str, int], scopes: dict[str | None, int]) -> Any:
    classes = tuple((field, states[name]) for field, name in targets(exit))
    if isinstance(exit, ir.Enter):
        classes += (("scope", scopes[exit.scope]),)
    return type(exit).__name__, _with_targets(exit, {}, "", ""), classes


def _with_targets(exit: ir.Exit, names: dict[str, str], default: str | None, scope: str) -> ir.Exit:
    """`exit` with its state names mapped (all to `default` if that is not None) and its scope replaced."""

    def name(old: str) -> str:
        return names[old] if default is None else default

    changes: dict[str, Any] = {f: name(t) for f, t in targets(exit) if f != "deadline"}
    deadline = getattr(exit, "deadline", None)
    if deadline is not None:
        changes["deadline"] = msgspec.structs.replace(deadline, target=name(deadline.target))
    if isinstance(exit, ir.Enter):
        changes["scope"] = scope
    return msgspec.structs.replace(exit, **changes) if changes else exit


def _representatives(names: list[str], classes: dict[Any, int]) -> dict[str, str]:
    first: dict[int, str] = {}
    return {name: first.setdefault(classes[name], name) for name in names}


def _renamed(program: ir.Program, of_state: dict[str, str], of_scope: dict[str, str]) -> ir.Program:
    """States and scopes under new names; those with equal new names become one (the first)."""
    states: dict[str, ir.State] = {}
    for s in program.states:
        entered = of_scope[s.exit.scope] if isinstance(s.exit, ir.Enter) else ""
        exit = _with_targets(s.exit, of_state, None, entered)
        inside = None if s.scope is None else of_scope[s.scope]
        new = ir.State(name=of_state[s.name], ops=s.ops, exit=exit, scope=inside)
        states.setdefault(new.name, new)
    scopes: dict[str, ir.Scope] = {}
    for s in program.scopes:
        parent = None if s.parent is None else of_scope[s.parent]
        new_scope = msgspec.structs.replace(
            s, name=of_scope[s.name], parent=parent, reentry=of_state[s.reentry]
        )
        scopes.setdefault(new_scope.name, new_scope)
    return msgspec.structs.replace(
        program, states=tuple(states.values()), scopes=tuple(scopes.values()), start=of_state[program.start]
    )


# ---------------------------------------------------------------- names


def rename(program: ir.Program) -> ir.Program:
    """Names that say what a state waits for: `think`, `turn_2_decode`, `if`, `end`."""
    taken: set[str] = set()

    def fresh(base: str) -> str:
        name, n = base, 1
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        taken.add(name)
        return name

    scopes: dict[str, str] = {}
    for s in program.scopes:
        base = s.name
        head, _, tail = base.rpartition("_")
        scopes[s.name] = fresh(head if head and tail.isdigit() else base)
    taken.clear()
    states = {s.name: fresh(_base_name(s, program, scopes)) for s in program.states}
    return _renamed(program, states, scopes)


def _base_name(state: ir.State, program: ir.Program, scopes: dict[str, str]) -> str:
    exit = state.exit
    if isinstance(exit, ir.Run):
        name = _resource(exit.stage)
        if exit.work == ir.Num(0.0):
            name += "_nothing"
        elif exit.mode != "Plain":
            name += f"_{exit.mode.lower()}"
    elif isinstance(exit, ir.Enter):
        name = f"{_short(scopes[exit.scope])}_queue"
    elif isinstance(exit, ir.Leave):
        name = f"{_short(scopes[state.scope])}_leave" if state.scope is not None else "leave"
    elif isinstance(exit, ir.Grow):
        name = f"grow_{_resource(exit.pool)}"
    elif isinstance(exit, ir.Shrink | ir.Release):
        name = f"{type(exit).__name__.lower()}_{_resource(exit.pool)}"
    elif isinstance(exit, ir.Branch):
        name = "branch"
    else:
        name = type(exit).__name__.lower()
    if any(isinstance(op, ir.Turn) for op in state.ops):
        name = f"turn_{name}"
    return name


def _short(scope: str) -> str:
    return scope.removesuffix(".request")


def _resource(resource: ir.Resource) -> str:
    return resource if isinstance(resource, str) else resource.array


# ---------------------------------------------------------------- attributes


def drop_unused(program: ir.Program) -> ir.Program:
    """Without the attributes (and trace columns) that nothing in the program reads or sets."""
    used: set[str] = set()
    parts = (program.pools, program.stages, program.scopes, program.states, program.init, program.turn, program.claims)
    for part in parts:
        for _, node in walk(part):
            if isinstance(node, ir.Attr):
                used.add(node.name)
            elif isinstance(node, (ir.Set, ir.Let, ir.Choose)):
                used.add(node.attr)
    if isinstance(program.arrival, ir.Listed):
        used.update(program.arrival.attrs, program.arrival.turn_attrs)
    unused = {a.name for a in program.attrs if a.name not in used}
    trace = program.trace
    if trace is not None:
        columns = [i for i, name in enumerate(trace.attrs) if name not in unused]
        trace = ir.Trace(
            ordered=trace.ordered,
            attrs=tuple(trace.attrs[i] for i in columns),
            turns=tuple(tuple(tuple(turn[i] for i in columns) for turn in session) for session in trace.turns),
        )
    attrs = tuple(a for a in program.attrs if a.name not in unused)
    return msgspec.structs.replace(program, attrs=attrs, trace=trace)


