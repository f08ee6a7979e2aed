"""Every place of a program where an expression stands, with its moment.

**Source:** `design.md`, section 2.1; `spec/ir14.md`, section Moments.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

from ..ir.expr import Expr, Member, Node, Resource
from ..ir.program import (
    Admit,
    Assign,
    AtEnd,
    Branch,
    Choose,
    Command,
    Drop,
    Fifo,
    Grow,
    If,
    Load,
    Observe,
    Op,
    ProcessorSharing,
    Program,
    Release,
    Renewal,
    Require,
    Run,
    Segment,
    Serve,
    Set,
    Shrink,
    Step,
)
from ..ir.structure import walk


@dataclasses.dataclass(frozen=True)
class Position:
    """One expression. `owner` names what it belongs to ("state `think`"), `what` its role ("the work").

    - `moment`: name of a row of `moments.MOMENTS`.
    - `scope`: the innermost scope open there (states only); for takes and lets, the scope itself.
    """

    path: str
    owner: str
    what: str
    moment: str
    expr: Expr
    scope: str | None = None

    @functools.cached_property
    def nodes(self) -> tuple[tuple[str, Node], ...]:
        """All nodes of the expression with their places, parents first."""
        return tuple((path, node) for path, node in walk(self.expr, self.path) if isinstance(node, Node))


@dataclasses.dataclass(frozen=True)
class Reference:
    """One mention of a pool or stage outside an expression (`kind` "pool" or "stage")."""

    path: str
    owner: str
    kind: str
    resource: Resource
    moment: str
    scope: str | None = None


def positions(program: Program) -> Iterator[Position]:
    """All expressions of the program, in the order of its fields."""
    for i, pool in enumerate(program.pools):
        here, owner = f"$.pools[{i}]", f"pool `{pool.name}`"
        yield from _order(f"{here}.queue", owner, "a queue key", "select", pool.queue.keys)
        yield from _order(f"{here}.evict", owner, "an eviction key", "evict", pool.evict.keys)
        if pool.preempt is not None:
            yield from _order(f"{here}.preempt.order", owner, "a victim key", "victim", pool.preempt.order.keys)
        for k, part in enumerate(pool.content):
            if isinstance(part, Segment):
                yield Position(f"{here}.content[{k}].key", owner, "the key of a content", "content", part.key)
            if part.length is not None:
                yield Position(f"{here}.content[{k}].length", owner, "the length of a content", "content", part.length)
        if pool.spill is not None:
            yield Position(f"{here}.spill.work", owner, "the work of a spill", "evict", pool.spill.work)
            yield Position(f"{here}.spill.when", owner, "when to spill", "evict", pool.spill.when)
    for i, stage in enumerate(program.stages):
        here, owner, kind = f"$.stages[{i}].kind", f"stage `{stage.name}`", stage.kind
        if isinstance(kind, Step):
            yield Position(f"{here}.budget", owner, "the budget", "budget", kind.budget)
            yield Position(f"{here}.cost", owner, "the cost", "step", kind.cost)
            if kind.chunk is not None:
                yield Position(f"{here}.chunk", owner, "the chunk", "budget", kind.chunk)
            if kind.decode is not None:
                yield Position(f"{here}.decode", owner, "the tokens of a decode", "budget", kind.decode)
            if kind.verify is not None:
                what = "the tokens computed for a decode"
                yield Position(f"{here}.verify", owner, what, "budget", kind.verify)
            yield from _order(f"{here}.serve", owner, "a serve key", "serve", kind.serve.keys)
            for at, command in commands(kind.iteration, f"{here}.iteration"):
                yield from command_positions(at, owner, command)
        elif isinstance(kind, ProcessorSharing):
            yield Position(f"{here}.capacity", owner, "the capacity", "ps", kind.capacity)
        elif isinstance(kind, Fifo):
            yield Position(f"{here}.servers", owner, "the servers", "number", kind.servers)
    for i, scope in enumerate(program.scopes):
        here, owner = f"$.scopes[{i}]", f"scope `{scope.name}`"
        for j, let in enumerate(scope.lets):
            yield Position(f"{here}.lets[{j}].value", owner, f"the let `{let.attr}`", "admit", let.value, scope.name)
        if scope.reuse is not None:
            yield Position(f"{here}.reuse", owner, "the reuse", "admit", scope.reuse, scope.name)
        if scope.lease is not None:
            at = f"{here}.lease"
            yield Position(f"{at}.after_s", owner, "the time of the lease", "session", scope.lease.after_s, scope.name)
            yield from _index(f"{at}.pool", owner, scope.lease.pool, "session", scope.name)
        for j, take in enumerate(scope.takes):
            at = f"{here}.takes[{j}]"
            yield Position(f"{at}.units", owner, "the amount of units", "admit", take.units, scope.name)
            if take.reserve is not None:
                yield Position(f"{at}.reserve", owner, "the reserve", "admit", take.reserve, scope.name)
            if take.keep is not None:
                yield Position(f"{at}.keep", owner, "the keep", "release", take.keep, scope.name)
            if not isinstance(take.oversize, str):
                yield Position(f"{at}.oversize", owner, "the oversize amount", "join", take.oversize, scope.name)
            yield from _index(f"{at}.pool", owner, take.pool, "admit", scope.name)
    for i, state in enumerate(program.states):
        here, owner = f"$.states[{i}]", f"state `{state.name}`"
        yield from _ops(f"{here}.ops", owner, state.ops, "session", state.scope)
        exit_, at = state.exit, f"{here}.exit"
        if isinstance(exit_, Branch):
            yield Position(f"{at}.test", owner, "the test", "session", exit_.test, state.scope)
        elif isinstance(exit_, Run):
            yield Position(f"{at}.work", owner, "the work", "session", exit_.work, state.scope)
            yield from _index(f"{at}.stage", owner, exit_.stage, "session", state.scope)
            if exit_.grows is not None:
                yield from _index(f"{at}.grows", owner, exit_.grows, "session", state.scope)
            for k, other in enumerate(exit_.also):
                yield from _index(f"{at}.also[{k}]", owner, other, "session", state.scope)
            if exit_.latency is not None:
                yield Position(f"{at}.latency", owner, "the latency", "session", exit_.latency, state.scope)
        elif isinstance(exit_, Grow | Shrink):
            yield Position(f"{at}.units", owner, "the amount of units", "session", exit_.units, state.scope)
            yield from _index(f"{at}.pool", owner, exit_.pool, "session", state.scope)
        elif isinstance(exit_, Release):
            yield from _index(f"{at}.pool", owner, exit_.pool, "session", state.scope)
        deadline = getattr(exit_, "deadline", None)
        if deadline is not None:
            yield Position(f"{at}.deadline.after", owner, "the deadline", "deadline", deadline.after, state.scope)
    yield from _ops("$.init", "init", program.init, "init")
    yield from _ops("$.turn", "turn", program.turn, "turn")
    if isinstance(program.arrival, Renewal):
        yield Position("$.arrival.gap", "arrival", "the gap", "gap", program.arrival.gap)
    for i, gauge in enumerate(program.gauges):
        yield Position(f"$.gauges[{i}].value", f"gauge `{gauge.name}`", "the value", "gauge", gauge.value)
    for i, claim in enumerate(program.claims):
        here, owner = f"$.claims[{i}]", f"claim `{claim.name}`"
        moment = "end" if isinstance(claim.kind, AtEnd) else "iteration"
        yield Position(f"{here}.value", owner, "the value", moment, claim.value)
        if claim.given is not None:
            yield Position(f"{here}.given", owner, "the condition `given`", "given", claim.given)


def references(program: Program, expressions: Iterable[Position]) -> Iterator[Reference]:
    """All mentions of pools and stages, inside the program's expressions and outside."""
    for i, pool in enumerate(program.pools):
        if pool.admit_via is not None:
            yield Reference(f"$.pools[{i}].admit_via", f"pool `{pool.name}`", "stage", pool.admit_via, "number")
        if pool.spill is not None:
            at = f"$.pools[{i}].spill"
            yield Reference(f"{at}.to", f"pool `{pool.name}`", "pool", pool.spill.to, "number")
            yield Reference(f"{at}.via", f"pool `{pool.name}`", "stage", pool.spill.via, "number")
    for i, stage in enumerate(program.stages):
        if isinstance(stage.kind, Step) and stage.kind.memory is not None:
            at = f"$.stages[{i}].kind.memory"
            yield Reference(at, f"stage `{stage.name}`", "pool", stage.kind.memory, "number")
    for i, scope in enumerate(program.scopes):
        for j, take in enumerate(scope.takes):
            at = f"$.scopes[{i}].takes[{j}].pool"
            yield Reference(at, f"scope `{scope.name}`", "pool", take.pool, "admit", scope.name)
        if scope.lease is not None:
            at = f"$.scopes[{i}].lease.pool"
            yield Reference(at, f"scope `{scope.name}`", "pool", scope.lease.pool, "session", scope.name)
    for i, state in enumerate(program.states):
        here, owner = f"$.states[{i}]", f"state `{state.name}`"
        for j, op in enumerate(state.ops):
            if isinstance(op, Drop | Load):
                yield Reference(f"{here}.ops[{j}].pool", owner, "pool", op.pool, "session", state.scope)
        exit_, at = state.exit, f"{here}.exit"
        if isinstance(exit_, Run):
            yield Reference(f"{at}.stage", owner, "stage", exit_.stage, "session", state.scope)
            if exit_.grows is not None:
                yield Reference(f"{at}.grows", owner, "pool", exit_.grows, "session", state.scope)
            for k, other in enumerate(exit_.also):
                yield Reference(f"{at}.also[{k}]", owner, "stage", other, "session", state.scope)
        elif isinstance(exit_, Grow | Shrink | Release):
            yield Reference(f"{at}.pool", owner, "pool", exit_.pool, "session", state.scope)
    for i, claim in enumerate(program.claims):
        if not isinstance(claim.kind, AtEnd):
            owner = f"claim `{claim.name}`"
            yield Reference(f"$.claims[{i}].kind.stage", owner, "stage", claim.kind.stage, "number")
    for position in expressions:
        for path, node in position.nodes:
            for field in ("pool", "stage"):
                if hasattr(node, field):
                    resource = getattr(node, field)
                    yield Reference(f"{path}.{field}", position.owner, field, resource, position.moment, position.scope)


def commands(body: tuple[Command, ...], path: str) -> Iterator[tuple[str, Command]]:
    """All commands of an iteration body with their places, each before those inside it."""
    for i, command in enumerate(body):
        at = f"{path}[{i}]"
        yield at, command
        if isinstance(command, If):
            yield from commands(command.then, f"{at}.then")
            yield from commands(command.orelse, f"{at}.orelse")


def command_positions(path: str, owner: str, command: Command) -> Iterator[Position]:
    """Expressions of one command; those of the commands inside it are theirs."""
    if isinstance(command, Serve | Admit) and command.only is not None:
        yield Position(f"{path}.only", owner, "an `only`", "only", command.only)
    if isinstance(command, Serve) and command.by is not None:
        yield from _order(f"{path}.by", owner, "a serve key", "serve", command.by.keys)
    elif isinstance(command, Admit) and command.gate is not None:
        yield Position(f"{path}.gate", owner, "a gate", "plan", command.gate)
    elif isinstance(command, If):
        yield Position(f"{path}.test", owner, "a test of the iteration", "plan", command.test)
    elif isinstance(command, Assign):
        yield Position(f"{path}.value", owner, f"the value of the register `{command.register}`", "plan", command.value)


def _order(path: str, owner: str, what: str, moment: str, keys: tuple[Expr, ...]) -> Iterator[Position]:
    for i, key in enumerate(keys):
        yield Position(f"{path}.keys[{i}]", owner, what, moment, key)


def _ops(path: str, owner: str, ops: tuple[Op, ...], moment: str, scope: str | None = None) -> Iterator[Position]:
    for i, op in enumerate(ops):
        at = f"{path}[{i}]"
        if isinstance(op, Set):
            yield Position(f"{at}.value", owner, f"the value of `{op.attr}`", moment, op.value, scope)
        elif isinstance(op, Observe):
            yield Position(f"{at}.value", owner, f"the observation `{op.name}`", moment, op.value, scope)
        elif isinstance(op, Choose):
            yield Position(f"{at}.count", owner, f"the count of `{op.attr}`", moment, op.count, scope)
            for k, key in enumerate(op.keys):
                yield Position(f"{at}.keys[{k}]", owner, f"a key of `{op.attr}`", moment, key, scope)
        elif isinstance(op, Require):
            yield Position(f"{at}.test", owner, "the required test", moment, op.test, scope)
        elif isinstance(op, Drop):
            yield from _index(f"{at}.pool", owner, op.pool, moment, scope)
        elif isinstance(op, Load):
            yield Position(f"{at}.units", owner, "the amount of units", moment, op.units, scope)
            yield from _index(f"{at}.pool", owner, op.pool, moment, scope)


def _index(path: str, owner: str, resource: Resource, moment: str, scope: str | None) -> Iterator[Position]:
    if isinstance(resource, Member):
        yield Position(f"{path}.index", owner, f"the index of `{resource.array}`", moment, resource.index, scope)
