"""Legs: sessions that a session forks. They share its number, its client and its cache entries, and end before it.

A leg has a row of its own in the session tables. `root` is the row of its session, whose client its tokens count for.

**Source:** `spec/semantics.md`, section 11; oracle: `oracle/machine.py::fork`, `end_leg`, `reject`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .access import FAR, least, load, pack, store, store_column
from .faults import Fault
from .lane import Lane
from .state import NEVER_ADMITTED
from .views import Attributes, whole_tokens


def fork(w: Lane) -> None:
    """Start the leg that a session has asked for: a copy of its attributes at the end of the ready list."""
    on = w.running & (w.fork >= 0)
    w.fail(on & (w.free_n == 0), Fault.slots)
    on = on & (w.free_n > 0)
    session = jnp.maximum(w.fork, 0)
    on, slot, session = w.fence(on, w.free[jnp.maximum(w.free_n - 1, 0)], session)
    attrs = Attributes(w, session)
    attrs.slot = slot
    attrs.save(on)
    for name in ("serial", "turns", "script"):
        w.put(name, slot, load(w.s[name], session), on)
    for name, value in (
        ("pc", w.fork_state), ("root", session), ("leg", load(w.forks, session)), ("legs", 0), ("forks", 0),
        ("joining", False), ("ready_at", -1), ("open", False), ("own", 0), ("adm", NEVER_ADMITTED), ("stuck", False),
        ("hopeless", False), ("decoded", False), ("preempted", False), ("last_stage", -1), ("last", -1),
    ):  # fmt: skip
        if w.has(name):
            w.put(name, slot, value, on)
    if w.has("preempted_pos"):
        w.s["preempted_pos"] = store_column(w.preempted_pos, slot, -1.0, on)
    if w.has("entry"):
        w.s["entry"] = store_column(w.entry, slot, -1, on)
    w.put("forks", session, load(w.forks, session) + 1, on)
    w.put("legs", session, load(w.legs, session) + 1, on)
    w.make_ready(slot, on)
    w.pick(on, free_n=w.free_n - 1, fork=-1)


def client(w: Lane, slot: Array) -> Array:
    """Row of the session whose client sees what a session or leg does; -1 where that is gone."""
    return jnp.where(load(w.leg, slot) >= 0, load(w.root, slot), slot)


def count_tokens(w: Lane, token: Array, following: Array, decode: Array, key: Array) -> None:
    """What the clients see of an iteration's tokens, one after the other in list order.

    **Arguments:** `[rows]` each: who has a token, whether it is a next token, whether a decode's; the list order.
    """
    keys = jnp.where(token, pack(key, jnp.arange(token.shape[0])), FAR)
    names = ("first", "confirmed", "confirm_order", "tokens", "client_last")
    columns = tuple(w.s[name] for name in names)

    def remain(carry: tuple) -> Array:
        return jnp.min(carry[0]) < FAR

    def one(carry: tuple) -> tuple:
        keys, (first, confirmed, order, tokens, last), seq = carry
        _, slot = least(keys)
        row = client(w, slot)
        on = (row >= 0) & load(w.open, row)
        known = on & (load(confirmed, row) >= 0)
        confirms = on & ~known & load(following, slot) & (load(first, row) >= 0)
        replaces = on & ~known & ~confirms
        settles = confirms | (replaces & load(decode, slot))
        n = jnp.where(load(decode, slot), whole_tokens(load(w.given, slot)), 1) if w.has("decode") else 1
        count = jnp.where(replaces, n, load(tokens, row) + n)
        columns = (
            store(first, row, w.now, replaces), store(confirmed, row, w.now, settles), store(order, row, seq, settles),
            store(tokens, row, count, on), store(last, row, w.now, on),
        )  # fmt: skip
        return store(keys, slot, FAR, jnp.bool_(True)), columns, seq + settles

    _, columns, w.order_seq = lax.while_loop(remain, one, (keys, columns, w.order_seq))
    for name, column in zip(names, columns):
        w.s[name] = column


def finish_leg(w: Lane, slot: Array, on: Array, wakes: Array) -> None:
    """The row of a leg is free; its session goes on (where `wakes`) if it waited for the last of them."""
    root = load(w.root, slot)
    mine = on & (root >= 0)
    left = load(w.legs, root) - 1
    w.put("legs", root, left, mine)
    w.put("pc", slot, -1, on)
    w.put("leg", slot, -1, on)
    w.put("free", w.free_n, slot, on)
    w.pick(on, free_n=w.free_n + 1)
    goes_on = mine & wakes & (left == 0) & load(w.joining, root)
    w.put("joining", root, False, goes_on)
    w.make_ready(jnp.maximum(root, 0), goes_on)


def orphan(w: Lane, slot: Array, on: Array) -> None:
    """A session is gone: its legs run on without it."""
    w.root = jnp.where(on & (w.root == slot), -1, w.root)
