"""Ticks and seconds.

**Source:** `design.md`, section 4, Time.
"""

from __future__ import annotations


def ticks_per_s(tick_s: float) -> int:
    """The whole number of ticks in a second, or 0 if there is none."""
    per_s = round(1.0 / tick_s)
    return per_s if per_s >= 1 and abs(per_s * tick_s - 1.0) < 1e-12 else 0


def seconds(tick: int, tick_s: float) -> float:
    """`tick` in seconds.

    A division by the whole number of ticks in a second is rounded correctly (1500 s stay 1500.0); a multiplication
    by 1e-9 is not.
    """
    per_s = ticks_per_s(tick_s)
    return tick / per_s if per_s else tick * tick_s
