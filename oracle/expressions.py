"""Expressions as Python functions of the place where they are evaluated.

**Source:** semantics.md sections 13 (estimates), 14 (arithmetic) and 15 (errors).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serqjax.ir import fixed
from serqjax.ir.expr import (
    Agg,
    Attr,
    Binary,
    Call,
    Cond,
    Ctx,
    Expr,
    Inf,
    Num,
    Param,
    PoolState,
    Price,
    Reg,
    Resource,
    Sample,
    StageState,
    Table,
    Unary,
)
from serqjax.ir.grids import reader
from serqjax.ir.program import Order
from serqjax.ir.time import seconds

from .streams import Stream

if TYPE_CHECKING:
    from .machine import Machine
    from .session import Session

EPS = 1e-9


class RunError(Exception):
    """A run-time error of the program; the run stops with the verdict `error`.

    The text says which session and where; the machine adds when. Array engine: the same sentences.
    """


class EndError(RunError):
    """The run may not end like this: the text says when."""


@dataclass(slots=True)
class Look:
    """Where an expression is evaluated: the attributes it sees, its context variables, its stream.

    `session` is None where nobody in particular asks (budget, cost, eviction of a dead entry).
    """

    attrs: list[float]
    stream: Stream
    session: Session | None = None
    ctx: dict[str, float] = field(default_factory=dict)


class Lazy(dict):
    """Context variables computed when they are read."""

    __slots__ = ("compute",)

    def __init__(self, compute: Callable[[str], float]):
        self.compute = compute

    def __missing__(self, name: str) -> float:
        self[name] = self.compute(name)
        return self[name]


Function = Callable[[Look], float]


def who(session: Session | None) -> str:
    """The beginning of a sentence about a session; nothing where nobody in particular asks."""
    return "" if session is None else f"session {session.serial}: "


def bad_amount(session: Session | None, place: str) -> RunError:
    return RunError(f"{who(session)}an amount is negative or not a number (units, tokens or seconds), {place}")


def amount(x: float, session: Session | None, place: str) -> float:
    """A number of units, tokens or seconds; tiny negatives are 0. `place`: the end of the sentence of an error."""
    if x != x or x < -EPS:
        raise bad_amount(session, place)
    return x if x > 0.0 else 0.0


def at_least_0(x: float) -> float:
    """Where the reference asks for no amount: what is negative or not a number is 0."""
    return x if x > 0.0 else 0.0


def guard(x: float, problem: str, session: Session | None = None) -> bool:
    """Whether a test holds. `problem`: the sentence of an error."""
    if x != 0.0 and x != 1.0:
        raise RunError(who(session) + problem)
    return x == 1.0


def total_order(x: float) -> tuple[float, int]:
    """Keys compare in the total order of doubles: -0 before 0, NaN at the ends."""
    if x == 0.0:
        return 0.0, -1 if math.copysign(1.0, x) < 0 else 0
    if x != x:
        sign = math.copysign(1.0, x)
        return math.copysign(math.inf, sign), int(sign)
    return x, 0


class Compiler:
    """Turns expressions into functions; names become slots and places once."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.slots = machine.slots
        self.params = {p.name: p.value for p in machine.program.params}
        self.cache: dict[Expr, Function] = {}

    def order(self, order: Order) -> Callable[[Look], tuple[Any, ...]] | None:
        """The keys of an order, or None where it has only its tie."""
        keys = [self.expr(key) for key in order.keys]
        if not keys:
            return None
        return lambda k: tuple([total_order(key(k)) for key in keys])

    def optional(self, expr: Expr | None) -> Function | None:
        return None if expr is None else self.expr(expr)

    def expr(self, expr: Expr) -> Function:
        if expr not in self.cache:
            self.cache[expr] = self._expr(expr)
        return self.cache[expr]

    def _expr(self, expr: Expr) -> Function:
        if fixed.is_constant(expr):
            value = fixed.evaluate_constant(expr, self.params)
            return lambda k: value
        match expr:
            case Num(value=value):
                return lambda k: value
            case Param(name=name):
                value = self.params[name]
                return lambda k: value
            case Inf():
                return lambda k: math.inf
            case Reg(name=name):
                registers, place = self.machine.registers, self.machine.register_index[name]
                return lambda k: registers[place]
            case Attr(name=name):
                slot = self.slots[name]
                return lambda k: k.attrs[slot]
            case Ctx(name="Now"):
                machine = self.machine
                return lambda k: seconds(machine.now_tick, machine.tick_s)
            case Ctx(name=name):
                return lambda k: k.ctx[name]
            case Sample(dist=dist, args=args):
                functions = [self.expr(a) for a in args]
                return lambda k: k.stream.draw(dist, [f(k) for f in functions])
            case Table(table=table, args=args):
                grid = next(g for g in self.machine.program.tables if g.name == table)
                value, point = reader(grid), [self.expr(a) for a in args]
                return lambda k: value([f(k) for f in point])
            case Call(fun=fun, args=args):
                return self._call(fun, [self.expr(a) for a in args])
            case Unary(op="Neg", a=a):
                f = self.expr(a)
                return lambda k: -f(k)
            case Unary(op="Not", a=a):
                f = self.expr(a)
                return lambda k: float(f(k) == 0.0)
            case Binary(op=op, a=a, b=b):
                return self._binary(op, self.expr(a), self.expr(b))
            case Cond(test=test, then=then, orelse=orelse):
                t, a, b = self.expr(test), self.expr(then), self.expr(orelse)
                return lambda k: a(k) if t(k) != 0.0 else b(k)
            case Agg(fun=fun, observe=observe):
                claims = self.machine.claims
                return lambda k: claims.aggregate(fun, observe)
            case PoolState(fun=fun, pool=pool):
                index = self.resource(pool, self.machine.pool_index)
                pools = self.machine.pools
                return lambda k: pools[index(k)].state(fun, k.session, k)
            case StageState(fun=fun, stage=stage):
                index = self.resource(stage, self.machine.stage_index)
                stages = self.machine.stages
                return lambda k: stages[index(k)].state(fun)
            case Price(stage=stage, service=service, delay=delay):
                index = self.resource(stage, self.machine.stage_index)
                stages, s, d = self.machine.stages, self.expr(service), self.expr(delay)
                return lambda k: stages[index(k)].estimate.price(s(k), d(k))
        raise TypeError(f"no expression: {expr!r}")

    def resource(self, resource: Resource, places: dict[str, int]) -> Callable[[Look], int]:
        """Place of a pool or stage; of a member of an array, found when it is used."""
        if isinstance(resource, str):
            place = places[resource]
            return lambda k: place
        members = self.machine.members(resource.array, places)
        index, array = self.expr(resource.index), resource.array

        def member(k: Look) -> int:
            j = index(k)
            if not (0 <= j < len(members)) or j != math.floor(j):
                raise RunError(
                    f"{who(k.session)}an index of `{array}` is not a whole number from 0 to {len(members) - 1}"
                )
            return members[int(j)]

        return member

    def _call(self, fun: str, args: list[Function]) -> Function:
        if len(args) == 1:
            (f,) = args
            if fun == "Floor":
                return lambda k: float(math.floor(x)) if math.isfinite(x := f(k)) else x
            return lambda k: fixed.function(fun, f(k))
        f, g = args
        return lambda k: fixed.function(fun, f(k), g(k))

    def _binary(self, op: str, f: Function, g: Function) -> Function:
        match op:
            case "Add":
                return lambda k: f(k) + g(k)
            case "Sub":
                return lambda k: f(k) - g(k)
            case "Mul":
                return lambda k: f(k) * g(k)
            case "And":
                return lambda k: float(f(k) != 0.0 and g(k) != 0.0)
            case "Or":
                return lambda k: float(f(k) != 0.0 or g(k) != 0.0)
        return lambda k: fixed.binary(op, f(k), g(k))
