"""Ticks to seconds, and numbers as the reference prints them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from ..ir import time
from ..ir.time import ticks_per_s

#: Whole doubles at or above this print as they are (they no longer hold every integer).
_WHOLE_BELOW = 2.0**53


def seconds(tick: Any, tick_s: float) -> Any:
    """`tick` (int, float or array) in seconds, float64.

    A division by the whole number of ticks in a second is rounded correctly (1500 s stay 1500.0);
    a multiplication by 1e-9 is not.
    """
    if isinstance(tick, np.ndarray):
        per_s = ticks_per_s(tick_s)
        return tick / per_s if per_s else tick * tick_s
    return time.seconds(tick, tick_s)


def ratio(top: float | int, bottom: float | int) -> float:
    """`top / bottom`, NaN when nothing was counted."""
    return top / bottom if bottom else math.nan


def plain(value: Any) -> Any:
    """`value` as JSON data: non-finite numbers become None, whole doubles become integers."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value.tolist()]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        value = float(value)
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < _WHOLE_BELOW else value
    return value


def dumps(value: Any) -> str:
    """JSON text of a report, one field a line, without NaN: equal reports give equal bytes."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)
