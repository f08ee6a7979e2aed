"""Livelock by returning state: a state of the whole instance that comes back with no token between.

A state can return only through a preemption, so states are compared at iteration starts from the first preemption
after a token on. A state is compared by a 64-bit fingerprint; the latest `REMEMBERED` ones are kept, and one more
at every power of two, so that a longer cycle is found too, within three of its lengths.

**Source:** `design.md`, section 2.7; oracle: `oracle/progress.py`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..ir.expr import Attr, Ctx, Expr, Price, Sample
from ..ir.program import Choose, Drop, Load, Require, Set
from ..ir.structure import walk
from . import blocks
from .access import FAR, AbstractLanes
from .lane import Lane
from .plan import Plan
from .scatter import set_at
from .sorting import order_of

REMEMBERED = 16


def decisive(plan: Plan) -> tuple[str, ...] | None:
    """Attributes on which something other than an observation depends; None if decisions read the clock or draw."""
    p = plan.skeleton
    assigned: list[tuple[str, Expr]] = [
        (op.attr, op.value) for ops in (p.turn, *(s.ops for s in p.states)) for op in ops if isinstance(op, Set)
    ]
    assigned += [(let.attr, let.value) for scope in p.scopes for let in scope.lets]
    chosen = [op for s in p.states for op in s.ops if isinstance(op, Choose)]
    assigned += [(op.attr, part) for op in chosen for part in (op.count, *op.keys)]
    headers = [(s.takes, s.reuse, s.lease) for s in p.scopes]
    parts: list[Any] = [p.pools, p.stages, *headers, *(s.exit for s in p.states)]
    parts += [op for s in p.states for op in s.ops if isinstance(op, (Drop, Load, Require))]
    read: set[str] = set()
    todo = list(parts)
    while todo:
        part = todo.pop()
        for _, node in walk(part):
            if isinstance(node, (Sample, Price)) or node == Ctx("Now"):
                return None
            if isinstance(node, Attr) and node.name not in read:
                read.add(node.name)
                todo.extend(value for name, value in assigned if name == node.name)
    return tuple(sorted(read))


def _mix(x: Array) -> Array:
    x = x.astype(jnp.uint64)
    x = (x ^ (x >> 30)) * jnp.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27)) * jnp.uint64(0x94D049BB133111EB)
    return x ^ (x >> 31)


def _bits(columns: list[Array]) -> Array:
    """Columns `[rows]` or `[several, rows]` as one table `[columns, rows]` of 64 bits, those of floats first.

    One table is mixed as one: a mixing of each column would be a tenth of what a program compiles.
    """
    floats = [jnp.atleast_2d(x) for x in columns if x.dtype == jnp.float64]
    others = [jnp.atleast_2d(x).astype(jnp.int64) for x in columns if x.dtype != jnp.float64]
    tables = []
    if floats:
        tables.append(lax.bitcast_convert_type(jnp.concatenate(floats) + 0.0, jnp.uint64))  # -0 and 0 are one value
    if others:
        tables.append(jnp.concatenate(others).astype(jnp.uint64))
    return jnp.concatenate(tables)


def _total(columns: list[Array], rows: Array, mask: Array | None, first: int) -> Array:
    """The columns' values in the rows of `mask` as one number.

    `rows`: what tells the rows apart; `first`: the number of the first column.
    """
    bits = _bits(columns)
    number = (jnp.arange(bits.shape[0]) + first).astype(jnp.uint64)
    mixed = _mix(bits + rows + number[:, None])
    return jnp.sum(mixed if mask is None else jnp.where(mask, mixed, jnp.uint64(0)))


def _places(lanes: AbstractLanes, sequence: Array, mask: Array) -> Array:
    """Place of each row in the order of its sequence number, -1 outside the mask."""
    if mask.shape[0] > 256:  # each with each would be slow
        order = order_of(jnp.where(mask, sequence, FAR))
        place = set_at(lanes, jnp.zeros_like(order)[None], 0, order, jnp.arange(order.shape[0]))[0]
    else:
        place = jnp.sum(mask[None, :] & (sequence[None, :] < sequence[:, None]), axis=1)
    return jnp.where(mask, place, -1)


def fingerprint(w: Lane) -> Array:
    """The state apart from the clock, as one number: sequence numbers as places, times relative to now."""
    live = w.pc >= 0
    columns = [
        w.serial, w.pc, w.stage, w.line, w.admitting, w.scope, w.waits, w.mode, w.requeued, w.work, w.waits_units,
        _places(w.lanes, w.line_seq, w.line >= 0), _places(w.lanes, w.waits_key, w.waits >= 0),
        _places(w.lanes, w.adm, live), _places(w.lanes, w.ready, w.ready < FAR), w.alloc, w.pos,
    ]  # fmt: skip
    if names := decisive(w.plan):
        columns.append(jnp.stack([w.attr[:, w.plan.attr_index[name]] for name in names]))
    if w.has("legs"):
        columns += [w.leg, w.legs, w.joining]
    if w.has("wake"):
        columns.append(jnp.where(w.wake < FAR, w.wake - w.now, -1))
    if w.has("rate"):
        columns += [w.group, w.rate]
    if w.has("deadline"):
        columns.append(jnp.where(w.deadline < FAR, w.deadline - w.now, -1))
    row = jnp.arange(w.pc.shape[0]).astype(jnp.uint64) * jnp.uint64(0x9E3779B97F4A7C15)
    total = _total(columns, row, live, 1)
    if w.has("entry_size"):
        alive = w.entry_size > 0
        place = _places(w.lanes, w.entry_seq, alive).astype(jnp.uint64) * jnp.uint64(0xD1B54A32D192ED03)
        total = total + _total([w.entry_size, w.entry_owner, w.entry_pool], place, alive, 1000)
    if w.plan.by_content:
        total = total + blocks.fingerprint(w, _mix, live)
    if w.has("lease_slot"):
        alive = w.lease_slot >= 0
        owner = jnp.where(alive, w.serial[jnp.maximum(w.lease_slot, 0)], -1)
        place = _places(w.lanes, w.lease_seq, alive).astype(jnp.uint64) * jnp.uint64(0x8CB92BA72F3D8DD7)
        left = jnp.where(w.lease_end < FAR, w.lease_end - w.now, -1)
        total = total + _total([owner, w.lease_pool, w.lease_units, w.lease_computed, left], place, alive, 3000)
    ends = jnp.where(w.stage_end < FAR, w.stage_end - w.now, -1)
    arrive = jnp.where(w.next_arrive < FAR, w.next_arrive - w.now, -1)
    values = [ends, arrive, w.used, w.cached]
    if w.has("share_end"):
        busy = jnp.any(w.group[None, :] == jnp.arange(w.plan.groups)[:, None], axis=1)
        values += [jnp.where(w.share_end < FAR, w.share_end - w.now, -1), jnp.where(busy, w.now - w.share_since, -1)]
    if w.has("registers"):
        values.append(w.registers)
    if w.has("open_next"):
        values.append(jnp.where(w.open_next < FAR, w.open_next - w.now, -1))
    # numbers of no session, one row with one value each
    total = total + _total([value.reshape(-1, 1) for value in values], jnp.uint64(0), None, 2000)
    return lax.bitcast_convert_type(_mix(total), jnp.int64)


def watch(w: Lane, starts: Array) -> None:
    """At the start of an iteration: has this state been there since the last token?"""
    on = starts & w.watching & ~w.livelock
    state = fingerprint(w)
    known = jnp.arange(REMEMBERED) < w.seen_n
    returned = jnp.any(known & (w.seen == state)) | ((w.seen_n > 0) & (w.anchor == state))
    w.livelock = w.livelock | (on & returned)
    w.put("seen", (w.seen_n % REMEMBERED).astype(jnp.int32), state, on)
    n = w.seen_n + 1
    w.pick(on & ((n & (n - 1)) == 0), anchor=state)
    w.pick(on, seen_n=n)
