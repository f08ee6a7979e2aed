"""Deadlines: a session that has blocked long enough goes on elsewhere.

Each session has at most one, an event like others: `deadline` is its tick, `deadline_key` its place in the order of
events, `deadline_to` the state that it goes on at. `session.py`, `memory.py` and `admission.py` arm it where a session
blocks; whatever makes the session ready or takes it away disarms it.

**Source:** the rules stand at `serqjax.ir.program.Deadline`; oracle: `oracle/deadlines.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..report.raw import Action
from .access import load, store_column
from .holds import table
from .lane import Lane
from .state import JUMP
from .withdraw import withdraw


def come(w: Lane) -> None:
    """The deadline of session `due` has come: it leaves where it is, and its scopes are closed up to the target's."""
    on, slot = w.running & (w.due >= 0), jnp.maximum(w.due, 0)
    target = jnp.maximum(load(w.deadline_to, slot), 0)
    on, slot, target = w.fence(on, slot, target)
    w.act(on, Action.deadline, load(w.serial, slot), 0, 0)
    withdraw(w, slot, on)
    if w.has("preempted_pos"):
        w.s["preempted_pos"] = store_column(w.preempted_pos, slot, -1.0, on)
    w.put("pc", slot, target, on)
    index = w.plan.scope_index
    scopes = np.asarray([-1 if s.scope is None else index[s.scope] for s in w.plan.states], np.int32)
    w.pick(on, due=-1, unwind=slot, unwind_how=JUMP, unwind_scope=table(scopes)[target])

