"""How far predicted request times are from measured ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .data import RunData


def metrics(data: RunData, found: Mapping[str, np.ndarray], rows: np.ndarray | None = None) -> dict[str, tuple]:
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


def relative_errors(data: RunData, found: Mapping[str, np.ndarray], rows: np.ndarray | None = None) -> dict[str, float]:
    """(predicted - measured) / measured of the mean, p50, p90 and p99 of TTFT, TPOT and E2E, and of the mean ITL (each
    gap between two tokens counts once; single gaps are not compared)."""
    errors = {}
    for name, (measured, predicted) in metrics(data, found, rows).items():
        errors[f"{name}_mean"] = float(predicted.mean() / measured.mean() - 1.0)
        for q in (50, 90, 99):
            errors[f"{name}_p{q}"] = float(np.percentile(predicted, q) / np.percentile(measured, q) - 1.0)
    keep = np.ones(len(data), bool) if rows is None else rows
    decoding = (data.last_s - data.first_s)[keep].sum()
    if decoding > 0.0:
        errors["itl_mean"] = float((found["last_s"] - found["first_s"])[keep].sum() / decoding - 1.0)
    return errors
