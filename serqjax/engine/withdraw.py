"""A session leaves everything that it waits for or works on: it is preempted, or ends before its time.

**Source:** `spec/semantics.md`, sections 4 and 6; oracle: `oracle/machine.py::withdraw`.
"""

from __future__ import annotations

from jaxtyping import Array

from . import sharing
from .access import FAR, load
from .clock import cancel_wake, free_server, never_asks
from .lane import Lane
from .views import computed


def withdraw(w: Lane, slot: Array, on: Array) -> None:
    """Take a session off the ready list, its stage (and the list of an iteration there), its line and the growers."""
    stage = load(w.stage, slot)
    if w.has("mode"):
        listed = on & (load(w.give_key, slot) >= 0)
        planned = listed & w.planning & (stage == w.cursor)
        w.pick(planned, owed=w.owed + load(computed(w), slot))
        w.add_at("stage_listed", stage, -1, listed & ~planned)
        w.put("give_key", slot, -1, on)
    sharing.count(w, "number", slot, stage, -1, on & (stage >= 0))
    latent = on & False
    if w.has("latent"):
        latent = on & load(w.latent, slot)
        sharing.count(w, "latents", slot, stage, -1, latent)
        never_asks(w, slot, latent)
        w.put("latent", slot, False, on)
    if w.has("group"):
        sharing.leave(w, slot, on)
    if w.has("links"):
        w.put("links", slot, 0, on)
    w.put("stage", slot, -1, on)
    w.readies = w.readies - (on & (load(w.ready, slot) < FAR))
    w.put("ready", slot, FAR, on)
    if w.has("line"):
        line = load(w.line, slot)
        w.add_at("queued", line, -1, on & (line >= 0))
        w.put("line", slot, -1, on)
        w.put("line_seq", slot, FAR, on)
    if w.has("deadline"):
        w.disarm(slot, on)
    if w.has("joining"):
        w.put("joining", slot, False, on)
    if w.has("waits"):
        waits = load(w.waits, slot)
        w.add_at("waits_n", waits, -1, on & (waits >= 0))
        w.put("waits", slot, -1, on)
        w.put("waits_key", slot, FAR, on)
    if w.has("wake"):
        served = on & (load(w.wake, slot) < FAR)
        cancel_wake(w, slot, served)
        if w.has("busy"):
            free_server(w, stage, served & ~latent)
            w.put("line_key", slot, FAR, on)
