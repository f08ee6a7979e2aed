"""References: everything that a program names exists, once, and is of the right kind.

**Source:** `spec/ir14.md`, section What validation rejects (structure).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.expr import Agg, Attr, Inf, Member, Param, StageState
from ..ir.program import AtEnd, Choose, Enter, Fifo, Let, Listed, Number, Observe, Op, Recorded, Set, Step
from .index import Index, Problems, known, targets
from .positions import Reference

#: Attributes that only the engines write.
MAINTAINED = {"serial": "the session's place in the order of arrival"}


def check_names(index: Index, problems: Problems) -> None:
    """Report names declared twice, unknown names, and indices out of range."""
    _check_declarations(index, problems)
    _check_expressions(index, problems)
    for reference in index.references:
        _check_resource(index, problems, reference)
    _check_writes(index, problems)
    _check_graph(index, problems)
    _check_data(index, problems)


def _check_declarations(index: Index, problems: Problems) -> None:
    program = index.program
    for field, items in (
        ("attrs", program.attrs), ("params", program.params), ("pools", program.pools),
        ("stages", program.stages), ("registers", program.registers), ("scopes", program.scopes),
        ("states", program.states), ("gauges", program.gauges), ("claims", program.claims), ("tables", program.tables),
    ):  # fmt: skip
        _once(problems, field, [(f"$.{field}[{i}].name", item.name) for i, item in enumerate(items)])
    _once(problems, "observes", [(f"$.observes[{i}]", name) for i, name in enumerate(program.observes)])
    for field, kind, items in (("pools", "pool", program.pools), ("stages", "stage", program.stages)):
        seen: dict[str, list[int | None]] = {}
        for item in items:
            if item.array is not None:
                seen.setdefault(item.array, []).append(item.index)
        for i, item in enumerate(items):
            here = f"$.{field}[{i}].index"
            if item.array is None:
                if item.index is not None:
                    problems.add(here, f"{kind} `{item.name}` has an index but no array", "name its `array` as well")
                continue
            members = seen.pop(item.array, None)
            if members is not None and members != list(range(len(members))):
                problems.add(
                    here,
                    f"the members of the array `{item.array}` of {field} have the indices {members}",
                    "members carry the indices 0, 1, ... in the order of the program",
                )


def _once(problems: Problems, field: str, items: list[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for path, name in items:
        if not name:
            problems.add(path, f"a name in {field} is empty", "give it a name")
        elif name in seen:
            problems.add(path, f"`{name}` is declared twice in {field}", f"rename one; the first is {seen[name]}")
        else:
            seen[name] = path


def _check_expressions(index: Index, problems: Problems) -> None:
    for position in index.positions:
        for path, node in position.nodes:
            if isinstance(node, Attr) and node.name not in index.attrs:
                problems.add(
                    path,
                    f"{position.owner}: {position.what} reads the attribute `{node.name}`, which is not declared",
                    known(node.name, index.attrs),
                )
            elif isinstance(node, Param) and node.name not in index.params:
                _unknown_param(index, problems, path, position.owner, node)
            elif isinstance(node, Agg) and node.observe not in index.program.observes:
                text = f"{position.owner}: {position.what} aggregates `{node.observe}`, which is not in `observes`"
                problems.add(path, text, known(node.observe, index.program.observes))
            elif isinstance(node, StageState) and node.fun == "BudgetLeft":
                for member in index.stage_members(node.stage):
                    if not index.is_step(member):
                        problems.add(
                            path,
                            f"{position.owner}: `BudgetLeft` of `{index.program.stages[member].name}`, "
                            "which is not a step stage",
                            "name a stage of kind Step",
                        )
    for i, claim in enumerate(index.program.claims):
        stage = None if isinstance(claim.kind, AtEnd) else claim.kind.stage
        if stage in index.stages and not index.is_step(index.stages[stage]):
            text = f"claim `{claim.name}`: is over the iterations of `{stage}`, which is not a step stage"
            problems.add(f"$.claims[{i}].kind.stage", text, "name a stage of kind Step")
    for path, owner, number in numbers(index):
        if isinstance(number, Param) and number.name not in index.params:
            _unknown_param(index, problems, path, owner, number)


def numbers(index: Index) -> Iterable[tuple[str, str, Number | None]]:
    """The numbers of a program that stand outside expressions: (place, owner, number)."""
    program = index.program
    for i, attribute in enumerate(program.attrs):
        yield f"$.attrs[{i}].bound", f"attribute `{attribute.name}`: the bound", attribute.bound
    for i, pool in enumerate(program.pools):
        yield f"$.pools[{i}].cap", f"pool `{pool.name}`: the cap", pool.cap  # type: ignore[misc]
        yield f"$.pools[{i}].block", f"pool `{pool.name}`: the block", pool.block
        for k, part in enumerate(pool.content):
            if isinstance(part, Recorded):
                yield f"$.pools[{i}].content[{k}].span", f"pool `{pool.name}`: the units of a content", part.span
        yield f"$.pools[{i}].queue_every", f"pool `{pool.name}`: the time between admissions", pool.queue_every
    for i, stage in enumerate(program.stages):
        if isinstance(stage.kind, Fifo):
            yield f"$.stages[{i}].kind.servers", f"stage `{stage.name}`: the servers", stage.kind.servers
        elif isinstance(stage.kind, Step) and not isinstance(stage.kind.granule, Inf):
            yield f"$.stages[{i}].kind.granule", f"stage `{stage.name}`: the granule", stage.kind.granule
    for i, register in enumerate(program.registers):
        yield f"$.registers[{i}].init", f"register `{register.name}`: the first value", register.init
    for field in ("rate", "n"):
        if hasattr(program.arrival, field):
            yield f"$.arrival.{field}", f"arrival: the {field}", getattr(program.arrival, field)
    yield "$.horizon_s", "the horizon", program.horizon_s
    yield "$.warmup_s", "the warm-up", program.warmup_s


def _unknown_param(index: Index, problems: Problems, path: str, owner: str, node: Param) -> None:
    text = f"{owner}: the parameter `{node.name}` is not declared in `params`"
    problems.add(path, text, known(node.name, index.params))


def _check_resource(index: Index, problems: Problems, reference: Reference) -> None:
    pool = reference.kind == "pool"
    single = index.pools if pool else index.stages
    arrays = index.pool_arrays if pool else index.stage_arrays
    kind, resource, where = reference.kind, reference.resource, reference.owner
    if isinstance(resource, str):
        if resource not in single:
            other = index.stages if pool else index.pools
            hint = (
                f"`{resource}` is a {'stage' if pool else 'pool'}"
                if resource in other
                else f"`{resource}` is an array: name a member, as `{resource}[0]`, or a `Member`"
                if resource in arrays
                else known(resource, single)
            )
            problems.add(reference.path, f"{where}: there is no {kind} `{resource}`", hint)
        return
    if resource.array not in arrays:
        problems.add(
            reference.path,
            f"{where}: there is no array of {kind}s `{resource.array}`",
            known(resource.array, arrays) if arrays else f"name one {kind}, not a member",
        )
        return
    at, count = index.number(resource.index), len(arrays[resource.array])
    if at is not None and not (0 <= at < count and at == int(at)):
        problems.add(
            f"{reference.path}.index",
            f"{where}: the index of `{resource.array}` is {at:g}",
            f"a member of an array of {count} is a whole number from 0 to {count - 1}",
        )


def _check_writes(index: Index, problems: Problems) -> None:
    program = index.program
    places: list[tuple[str, str, tuple[Op, ...] | tuple[Let, ...]]] = [
        (f"$.scopes[{i}].lets", f"scope `{s.name}`", s.lets) for i, s in enumerate(program.scopes)
    ]
    places += [(f"$.states[{i}].ops", f"state `{s.name}`", s.ops) for i, s in enumerate(program.states)]
    places += [("$.init", "init", program.init), ("$.turn", "turn", program.turn)]
    for path, owner, ops in places:
        for j, op in enumerate(ops):
            at = f"{path}[{j}]"
            if isinstance(op, Set | Let | Choose):
                if op.attr not in index.attrs:
                    text = f"{owner}: sets the attribute `{op.attr}`, which is not declared"
                    problems.add(f"{at}.attr", text, known(op.attr, index.attrs))
                elif op.attr in MAINTAINED:
                    text = f"{owner}: sets `{op.attr}`, {MAINTAINED[op.attr]}, which the run assigns"
                    problems.add(f"{at}.attr", text, "set another attribute")
            if isinstance(op, Observe) and op.name not in program.observes:
                text = f"{owner}: observes `{op.name}`, which is not in `observes`"
                problems.add(f"{at}.name", text, known(op.name, program.observes))
            if path in ("$.init", "$.turn") and not isinstance(op, Set | Observe):
                text = f"{owner}: `{type(op).__name__}` stands in the {owner} block"
                problems.add(at, text, "only `Set` and `Observe` stand there; move it into a state")
    _check_member_reads(index, problems)


def _check_member_reads(index: Index, problems: Problems) -> None:
    """A hold gives back what it took: the attributes of its member indices stay as they are inside."""
    for i, scope in enumerate(index.program.scopes):
        for j, take in enumerate(scope.takes):
            if not isinstance(take.pool, Member):
                continue
            path = f"$.scopes[{i}].takes[{j}].pool.index"
            reads = {
                node.name
                for position in index.positions
                if position.path == path
                for _, node in position.nodes
                if isinstance(node, Attr)
            }
            for k, state in enumerate(index.program.states):
                if scope.name not in [s.name for s in index.chain(state.scope)]:
                    continue
                for m, op in enumerate(state.ops):
                    if isinstance(op, Set | Choose) and op.attr in reads:
                        problems.add(
                            f"$.states[{k}].ops[{m}]",
                            f"state `{state.name}`: sets `{op.attr}`, which the member index of the open scope "
                            f"`{scope.name}` reads",
                            "copy it into another attribute before the hold, and index with the copy",
                        )


def _check_graph(index: Index, problems: Problems) -> None:
    program = index.program
    if not program.states:
        problems.add("$.states", "the program has no states", "add at least one state whose exit is `End`")
    elif program.start not in index.states:
        problems.add("$.start", f"there is no state `{program.start}` to start in", known(program.start, index.states))
    for i, scope in enumerate(program.scopes):
        here, owner = f"$.scopes[{i}]", f"scope `{scope.name}`"
        if scope.reentry not in index.states:
            text = f"{owner}: there is no state `{scope.reentry}` to go on at"
            problems.add(f"{here}.reentry", text, known(scope.reentry, index.states))
        if scope.parent is not None and scope.parent not in index.scopes:
            text = f"{owner}: its parent `{scope.parent}` does not exist"
            problems.add(f"{here}.parent", text, known(scope.parent, index.scopes))
    for i, state in enumerate(program.states):
        here, owner = f"$.states[{i}]", f"state `{state.name}`"
        if state.scope is not None and state.scope not in index.scopes:
            text = f"{owner}: lies in the scope `{state.scope}`, which does not exist"
            problems.add(f"{here}.scope", text, known(state.scope, index.scopes))
        for field, target in targets(state):
            if target not in index.states:
                text = f"{owner}: there is no state `{target}` to go to"
                problems.add(f"{here}.exit.{field}", text, known(target, index.states))
        if isinstance(state.exit, Enter) and state.exit.scope not in index.scopes:
            text = f"{owner}: enters the scope `{state.exit.scope}`, which does not exist"
            problems.add(f"{here}.exit.scope", text, known(state.exit.scope, index.scopes))


def _check_data(index: Index, problems: Problems) -> None:
    program = index.program
    columns: list[tuple[str, str, tuple[str, ...]]] = []
    if isinstance(program.arrival, Listed):
        columns.append(("$.arrival.attrs", "arrival", program.arrival.attrs))
        columns.append(("$.arrival.turn_attrs", "arrival", program.arrival.turn_attrs))
    if program.trace is not None:
        columns.append(("$.trace.attrs", "trace", program.trace.attrs))
    for path, owner, names in columns:
        for i, name in enumerate(names):
            at = f"{path}[{i}]"
            if name not in index.attrs:
                text = f"{owner}: the column `{name}` is not an attribute"
                problems.add(at, text, known(name, index.attrs))
            elif name in MAINTAINED:
                text = f"{owner}: sets `{name}`, {MAINTAINED[name]}, which the run assigns"
                problems.add(at, text, "set another attribute")
            if name in names[:i]:
                problems.add(at, f"{owner}: the column `{name}` stands there twice", "name each column once")
