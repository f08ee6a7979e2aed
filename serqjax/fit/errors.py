"""How far predicted request times are from measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .data import RunData


def metrics(data: RunData, found: Mapping[str, Any], rows: np.ndarray | None = None) -> dict[str, tuple]:
    """Measured and predicted TTFT, TPOT and E2E of each request (of `rows`, a mask), seconds."""
    many = np.maximum(data.output_tok - 1, 1)
    predicted = {
        "ttft": found["first_s"] - data.sent_s,
        "tpot": np.where(data.output_tok > 1, (found["last_s"] - found["first_s"]) / many, np.nan),
        "e2e": found["last_s"] - data.sent_s,
    }
    keep = np.ones(len(data), bool) if rows is None else rows
    pairs = {}
    for name, value in predicted.items():
        measured = getattr(data, f"{name}_s")
        both = keep & ~np.isnan(measured)
        pairs[name] = (measured[both], value[both])
    return pairs


def gaps_of(data: RunData, found: Mapping[str, Any], rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Measured and predicted gaps between tokens, seconds, of the requests (of `rows`) whose measured ones are all
    known: pooled, each gap once. Empty where no gaps were measured or simulated."""
    which = data.with_gaps if rows is None else data.with_gaps & rows
    if "gaps_s" not in found or not which.any():
        return np.zeros(0), np.zeros(0)
    measured, predicted = (np.concatenate([gaps[i] for i in np.flatnonzero(which)])
                           for gaps in (data.gaps_s, found["gaps_s"]))  # fmt: skip
    return measured, predicted


def relative_errors(data: RunData, found: Mapping[str, Any], rows: np.ndarray | None = None) -> dict[str, float]:
    """(predicted - measured) / measured of the mean, p50, p90 and p99 of TTFT, TPOT and E2E, and of ITL: all four where
    the single gaps are known, the mean gap alone elsewhere (each gap between two tokens counts once)."""
    errors = {}
    for name, (measured, predicted) in (metrics(data, found, rows) | {"itl": gaps_of(data, found, rows)}).items():
        if not len(measured):
            continue
        errors[f"{name}_mean"] = float(predicted.mean() / measured.mean() - 1.0)
        for q in (50, 90, 99):
            errors[f"{name}_p{q}"] = float(np.percentile(predicted, q) / np.percentile(measured, q) - 1.0)
    keep = np.ones(len(data), bool) if rows is None else rows
    decoding = (data.last_s - data.first_s)[keep].sum()
    if "itl_mean" not in errors and decoding > 0.0:
        errors["itl_mean"] = float((found["last_s"] - found["first_s"])[keep].sum() / decoding - 1.0)
    return errors
