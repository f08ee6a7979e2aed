"""Gauges and claims of one run, in the definitions of the reference report.

**Source:** `spec/semantics.md`, section 13 (gauges, claims).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ir.program import AtEnd, Claim, EveryIteration, Program, SomeIteration
from .raw import ClaimTotals, RawRun
from .statistics import BATCHES, T_BATCHES
from .units import seconds

_KINDS = {EveryIteration: "every_iteration", SomeIteration: "some_iteration", AtEnd: "at_end"}


def gauge_points(program: Program, raw: RawRun) -> dict[str, dict[str, np.ndarray]]:
    """Change points of each gauge in order: arrays `tick`, `value`."""
    out = {}
    for index, gauge in enumerate(program.gauges):
        rows = np.flatnonzero(raw.gauge_index == index)
        out[gauge.name] = {"tick": raw.gauge_tick[rows], "value": raw.gauge_value[rows]}
    return out


def gauge_row(tick: np.ndarray, value: np.ndarray, start_tick: int, end_tick: int) -> dict[str, float]:
    """`mean, ci, min, max` of a piecewise-constant value over [start, end]; NaN where undefined.

    **Arguments:** `tick`, `value`: change points in order, shape `(points,)`; a value holds until the next one's tick,
    the last one until the end.

    **Returns:** the time average; the half width of its 95 % interval by the means over 20 equal windows (their
    bounds are whole ticks); least and greatest value that holds for some time.
    """
    span = end_tick - start_tick
    if span <= 0 or not len(tick):
        return dict.fromkeys(("mean", "ci", "min", "max"), math.nan)
    bounds = start_tick + (np.arange(BATCHES + 1, dtype=np.int64) * span) // BATCHES
    cuts = np.unique(np.concatenate([bounds, tick[(tick > start_tick) & (tick < end_tick)]]))
    held = value[np.maximum(tick.searchsorted(cuts[:-1], side="right") - 1, 0)]
    with np.errstate(invalid="ignore"):  # infinities of both signs
        areas = held * np.diff(cuts)
        window = bounds.searchsorted(cuts[:-1], side="right") - 1
        integrals = np.bincount(window, weights=areas, minlength=BATCHES)
        widths = np.diff(bounds)
        means = integrals / np.where(widths > 0, widths, np.nan)
        return {
            "mean": float(areas.sum() / span),
            "ci": T_BATCHES * math.sqrt(float(means.var(ddof=1)) / BATCHES),
            "min": float(held.min()),
            "max": float(held.max()),
        }


def gauge_rows(program: Program, raw: RawRun) -> dict[str, dict[str, float]]:
    """The row of each gauge over [warm-up, end]."""
    return {
        name: gauge_row(points["tick"], points["value"], raw.warmup_tick, raw.end_tick)
        for name, points in gauge_points(program, raw).items()
    }


def claim_rows(program: Program, raw: RawRun) -> list[dict[str, Any]]:
    """One row per claim: `name, kind, result, checked, failures, first, note`."""
    return [_claim_row(claim, totals, raw) for claim, totals in zip(program.claims, raw.claims)]


def _claim_row(claim: Claim, totals: ClaimTotals, raw: RawRun) -> dict[str, Any]:
    note = None
    if totals.outside >= 0:
        result, note = "out_of_scope", f"session {totals.outside} fails `given`"
    elif isinstance(claim.kind, AtEnd) and not totals.checked:
        live = raw.live_at_end
        result, note = "not_evaluated", f"{live} session{'' if live == 1 else 's'} live at the end"
    elif isinstance(claim.kind, SomeIteration):
        result = "witnessed" if totals.failures < totals.checked else "not_witnessed"
    else:
        result = "fails" if totals.failures else "holds"
    return {
        "name": claim.name,
        "kind": _KINDS[type(claim.kind)],
        "result": result,
        "checked": totals.checked,
        "failures": totals.failures,
        "first": None if totals.first_tick < 0 else seconds(totals.first_tick, raw.tick_s),
        "note": note,
    }
