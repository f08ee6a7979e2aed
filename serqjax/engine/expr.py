"""Expressions as array code.

`evaluate` walks a frozen expression while JAX traces, so that the expression becomes straight array code. What a
name means at a position is the business of the `Env` passed in: its values may be scalars (one
session) or vectors over a table (keys of all waiting sessions at once); everything broadcasts.

Products are rounded before anything is added to them (`tape.rounding.product`), so that a value is the
same as in Python and in the reference to the last bit.

**Source:** `spec/semantics.md`, section 14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..ir.expr import (
    Agg,
    Attr,
    Binary,
    Call,
    Cond,
    Ctx,
    Distribution,
    Expr,
    Inf,
    Member,
    Num,
    Param,
    PoolState,
    Price,
    Reg,
    Sample,
    StageState,
    Table,
    Unary,
)
from ..tape import draws
from ..tape.rounding import product, quotient
from .access import FAR, least, unpack_slot
from .plan import Plan

Value = Any  # a float64 array, scalar or vector over a table


class Env:
    """What names mean at one position; positions override what they offer.

    **Arguments:** `plan`; `numbers`: the instance's numbers, `[numbers]` float64; `stray`: told where an index is no
    member of an array (by its place in `Plan.arrays`).
    """

    def __init__(
        self,
        plan: Plan,
        numbers: Array,
        *,
        attr: Callable[[str], Value] | None = None,
        ctx: dict[str, Callable[[], Value]] | None = None,
        pool: Callable[[str, int], Value] | None = None,
        stage: Callable[[str, int], Value] | None = None,
        draw: Callable[[int, Value], Scalars] | None = None,
        register: Callable[[str], Value] | None = None,
        aggregate: Callable[[str, str], Value] | None = None,
        stray: Callable[[Value, int], None] | None = None,
        table: Callable[[str, list[Value]], Value] | None = None,
    ):
        self.plan = plan
        self.numbers = numbers
        self.attr = attr
        self.ctx = ctx or {}
        self.pool = pool
        self.stage = stage
        self.draw = draw
        self.register = register
        self.aggregate = aggregate
        self.stray = stray
        self.table = table

    def member(self, ref: Member, members: tuple[int, ...], live: Value = True) -> Value:
        """The index of a computed member, int32, clamped into the array; one that is no member is told to `stray`."""
        index = jnp.asarray(evaluate(ref.index, self, live))
        last = len(members) - 1
        fine = (index >= 0.0) & (index <= last) & (index == jnp.floor(index))
        assert self.stray is not None
        self.stray(live & ~fine, self.plan.arrays.index((ref.array, members)))
        return jnp.where(fine, index, 0.0).astype(jnp.int32)

    def pick(self, ref: Member, members: tuple[int, ...], read: Callable[[int], Value], live: Value) -> Value:
        """What `read` says of the member that an index names."""
        index = self.member(ref, members, live)
        found = read(members[-1])
        for i in reversed(range(len(members) - 1)):
            found = jnp.where(index == i, read(members[i]), found)
        return found

    def number(self, node: Num | Param | Inf) -> Value:
        if isinstance(node, Inf):
            return jnp.float64(jnp.inf)
        if isinstance(node, Param):
            return self.numbers[self.plan.param_index[node.name]]
        return self.numbers[int(node.value)]


class Scalars(list[Array]):
    """A short vector as its elements; `x[..., i]` is element i."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index[-1] if isinstance(index, tuple) else index)


class Draws:
    """A cursor over uniforms of a tape row; `take` counts only where draws really happen."""

    def __init__(self, row: Array, start: Value):
        self.row, self.at = row, start

    def take(self, count: int, live: Value) -> Scalars:
        index = jnp.clip(self.at, 0, self.row.shape[0] - count)
        us = Scalars(self.row[index + i] for i in range(count))
        self.at = self.at + (count if live is True else count * live)
        return us


def evaluate(expr: Expr, env: Env, live: Value = True) -> Value:
    """The value of `expr`, float64. `live`: where it is really evaluated (draws happen only there)."""
    match expr:
        case Num() | Param() | Inf():
            return env.number(expr)
        case Attr(name):
            assert env.attr is not None
            return env.attr(name)
        case Ctx(name):
            return env.ctx[name]()
        case Reg(name):
            assert env.register is not None
            return env.register(name)
        case PoolState(fun, ref):
            pool = env.pool
            assert pool is not None
            if isinstance(ref, Member):
                return env.pick(ref, env.plan.pools_of(ref), lambda p: pool(fun, p), live)
            return pool(fun, env.plan.pool(ref))
        case StageState(fun, ref):
            stage = env.stage
            assert stage is not None
            if isinstance(ref, Member):
                return env.pick(ref, env.plan.stages_of(ref), lambda s: stage(fun, s), live)
            return stage(fun, env.plan.stage(ref))
        case Agg(fun, observe):
            assert env.aggregate is not None
            return env.aggregate(fun, observe)
        case Price(ref, service, delay):
            rate = evaluate(StageState("EstLambda", ref), env, live)
            load = evaluate(StageState("EstRho", ref), env, live)
            wait = evaluate(StageState("EstWait", ref), env, live)
            return _price(rate, load, wait, evaluate(service, env, live), evaluate(delay, env, live))
        case Sample(dist, args):
            return _sample(dist, args, env, live)
        case Unary(op, a):
            x = evaluate(a, env, live)
            return -x if op == "Neg" else _truth(x == 0.0)
        case Cond(test, then, orelse):
            chosen = evaluate(test, env, live) != 0.0
            return jnp.where(chosen, evaluate(then, env, live & chosen), evaluate(orelse, env, live & ~chosen))
        case Binary("And", a, b):
            x = evaluate(a, env, live) != 0.0
            return _truth(x & (evaluate(b, env, live & x) != 0.0))
        case Binary("Or", a, b):
            x = evaluate(a, env, live) != 0.0
            return _truth(x | (evaluate(b, env, live & ~x) != 0.0))
        case Binary(op, a, b):
            return _BINARY[op](evaluate(a, env, live), evaluate(b, env, live))
        case Table(name, args):
            assert env.table is not None
            return env.table(name, [evaluate(a, env, live) for a in args])
        case Call(fun, args):
            return _FUNCTIONS[fun](*(evaluate(a, env, live) for a in args))
    raise TypeError(f"{type(expr).__name__} is not an expression of this engine")


def _price(rate: Value, load: Value, wait: Value, service: Value, delay: Value) -> Value:
    """Expected delay caused by a service lengthened from `service` by `delay` (semantics section 13)."""

    def times(a: Value, b: Value) -> Value:
        return product(*jnp.broadcast_arrays(a, b))

    free = 1.0 - load
    longer = times(service + delay, service + delay) - times(service, service)
    queue = quotient(*jnp.broadcast_arrays(times(rate, longer), 2.0 * free))
    own = quotient(*jnp.broadcast_arrays(times(times(rate, wait), delay), free))
    return delay + queue + own


def _truth(x: Value) -> Value:
    return x.astype(jnp.float64)


def _sample(dist: Distribution, args: tuple[Expr, ...], env: Env, live: Value) -> Value:
    if dist == "Erlang":
        assert isinstance(args[0], Num)
        literal = Num(-args[0].value - 1.0)  # the skeleton keeps it so (ir/structure.py)
        values: tuple[Any, ...] = (literal, evaluate(args[1], env, live))
        args = (literal, *args[1:])
    else:
        values = tuple(evaluate(a, env, live) for a in args)
    count = draws.draw_count(dist, args)
    us: Any = env.draw(count, live) if count and env.draw is not None else None
    return draws.draw(dist, args, values, us)


def total_order(x: Value) -> Value:
    """int64 that sorts as the total order on doubles does (-0 before +0)."""
    bits = lax.bitcast_convert_type(x, jnp.int64)
    return jnp.where(bits < 0, bits ^ jnp.int64(0x7FFFFFFFFFFFFFFF), bits)


def select(keys: list[Value], sequence: Array, mask: Array, *, latest: bool = False) -> tuple[Array, Array]:
    """Whether any row is in `mask`, and the row with the least keys, then the least (or greatest) `sequence`.

    `keys`: float64 `[rows]` each; `sequence`: int64 `[rows]`, distinct, the row in its low bits.
    """
    for key in keys:
        order = total_order(jnp.broadcast_to(key, mask.shape))
        best = jnp.min(jnp.where(mask, order, jnp.iinfo(jnp.int64).max))
        mask = mask & (order == best)
    if latest:
        found = jnp.max(jnp.where(mask, sequence, -FAR))
        return found > -FAR, unpack_slot(found)
    found, row = least(sequence, mask)
    return found < FAR, row


_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: product(*jnp.broadcast_arrays(a, b)),
    "Div": quotient,
    "Pow": jnp.power,
    "Lt": lambda a, b: _truth(a < b),
    "Le": lambda a, b: _truth(a <= b),
    "Gt": lambda a, b: _truth(a > b),
    "Ge": lambda a, b: _truth(a >= b),
    "Eq": lambda a, b: _truth(a == b),
    "Ne": lambda a, b: _truth(a != b),
}
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "Min": jnp.fmin,
    "Max": jnp.fmax,
    "Abs": jnp.abs,
    "Floor": jnp.floor,
    "Ceil": jnp.ceil,
    "Sqrt": jnp.sqrt,
    "Exp": jnp.exp,
    "Ln": jnp.log,
}
