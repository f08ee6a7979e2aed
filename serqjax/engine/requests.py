"""A request as its client sees it: sent, and answered with one row of the record.

**Source:** `spec/semantics.md`, section 12; oracle: `oracle/statistics.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from ..report.raw import RequestStatus
from .access import load
from .expr import Value
from .lane import Lane
from .state import request_columns


def open_request(w: Lane, slot: Array, mask: Value) -> None:
    """A request is sent now: the client starts to wait."""
    mask = jnp.asarray(mask)
    for name, value in (
        ("open", True), ("sent", w.now), ("start_order", w.turn_seq), ("first", -1), ("confirmed", -1),
        ("confirm_order", -1), ("last", -1), ("tokens", 0),
    ):  # fmt: skip
        if w.has(name):
            w.put(name, slot, value, mask)
    if w.has("client_last"):
        w.put("client_last", slot, -1, mask)
    if w.has("decoded"):
        w.put("decoded", slot, False, mask)
        w.put("preempted", slot, False, mask)
        w.put("last_stage", slot, -1, mask)
    if w.has("admitted"):
        w.put("admitted", slot, False, mask)
    w.turn_seq = w.turn_seq + mask


def close_request(w: Lane, slot: Array, status: Value, mask: Array) -> None:
    """The server's part of a request is over: one row for the client's records."""
    mask = mask & load(w.open, slot)
    w.perhaps(mask, lambda w: write_request(w, slot, status, mask))


def write_request(w: Lane, slot: Array, status: Value, mask: Array) -> None:
    """The row of a request that is open, where `mask`; it is open no more."""
    values = {
        "serial": load(w.serial, slot), "turn": load(w.turns, slot), "sent": load(w.sent, slot), "responded": w.now,
        "status": status, "start_order": load(w.start_order, slot),
    }  # fmt: skip
    if w.has("tokens"):
        first = load(w.first, slot)
        late = mask & (first >= 0) & (load(w.confirmed, slot) < 0) & (status == RequestStatus.finished)
        w.put("confirmed", slot, w.now, late)
        w.put("confirm_order", slot, w.order_seq, late)
        w.order_seq = w.order_seq + late
        last = w.client_last if w.has("client_last") else w.last
        values |= {
            "first": first, "confirmed": load(w.confirmed, slot), "confirm_order": load(w.confirm_order, slot),
            "last": load(last, slot), "tokens": load(w.tokens, slot),
        }  # fmt: skip
    w.append("requests", [values[name] for name in request_columns(w.plan)], mask)
    w.put("open", slot, False, mask)
