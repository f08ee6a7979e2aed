"""Where two reports, or a run and recorded samples, differ: one line per difference, none when they agree.

Tolerances (`design.md`, section 4): times |a - b| <= 1e-6 |b| + 1e-6 s; `ci` and `cv2` 1e-4; ITL
percentiles may stand in the neighbouring bucket of ratio 1.01; counts, names and flags exactly.
Whatever else is let pass is passed in as `exceptions`, each with its reason.

**Source:** `design.md`, section 4, *Comparing times*.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ir.itl import RATIO
from ..ir.program import Program
from .measures import gauge_points
from .raw import RawRun
from .reference import client_observations, observations
from .units import seconds

RELATIVE = 1e-6
ABSOLUTE_S = 1e-6
SPREAD_RELATIVE = 1e-4

#: Fields that two producers need not share, with the reason.
NOT_COMPARED: dict[str, str] = {
    "serq_version": "names the producer",
    "events": "the array engine pops no heap: compared only where both sides count",
}
#: Fields whose double in the reference is a sum of rounded squares.
SPREAD_FIELDS = ("ci", "cv2")
#: Histogram percentiles: both buckets are clamped, so that neighbours lie within two ratios.
BUCKET_FIELDS = ("itl_p50", "itl_p99")


def differences(
    report_a: Mapping[str, Any],
    report_b: Mapping[str, Any],
    *,
    exceptions: Mapping[str, str] | None = None,
    relative: float = RELATIVE,
    absolute: float = ABSOLUTE_S,
) -> list[str]:
    """Where report `a` differs from report `b`, the more trusted one.

    **Arguments:**
    - `report_a`, `report_b`: JSON data in the reference's fields.
    - `exceptions`: pattern of a place (`observes.*.p99`, `stages[0].cv2`; `*` as in file names) -> reason.
      Matching places are not compared.
    - `relative`, `absolute`: tolerance of numbers (seconds, averages).

    **Returns:** one line per difference, `place: a, want b`, in the order of `b`; empty if they agree.
    """
    skip = dict(NOT_COMPARED)
    if report_a.get("events") is not None and report_b.get("events") is not None:
        del skip["events"]
    skip.update(exceptions or {})
    out: list[str] = []
    _compare(report_a, report_b, "", skip, (relative, absolute), out)
    return out


def sample_differences(
    program: Program,
    raw: RawRun,
    recorded: Mapping[str, Any],
    *,
    first: int | None = None,
    exceptions: Mapping[str, str] | None = None,
    relative: float = RELATIVE,
    absolute: float = ABSOLUTE_S,
) -> list[str]:
    """Where the samples of a run differ from recorded ones.

    **Arguments:**
    - `recorded`: `{"observes": {name: {"n", "time", "session", "turn", "value"}}, "client": ..., "gauges": ...}` (a
      gauge has no session and no turn); the lists
      may hold only the first samples of `n`.
    - `first`: compare at most so many samples of each observation, and then not their number
      (a chaotic network keeps only its beginning).
    - `exceptions`: patterns of places (`client.ttft`, `observes.done.value`) with their reasons.

    **Returns:** at most one line per observation and column: the first sample that differs.
    """
    skip = dict(exceptions or {})
    out: list[str] = []
    made = {
        "observes": observations(program, raw),
        "client": client_observations(raw),
        "gauges": gauge_points(program, raw),
    }
    for group, own in made.items():
        for name, rows in recorded.get(group, {}).items():
            place = f"{group}.{name}"
            if _skipped(place, skip):
                continue
            if name not in own:
                out.append(f"{place}: missing")
                continue
            out.extend(_compare_samples(place, own[name], rows, raw.tick_s, first, skip, (relative, absolute)))
    return out


def _compare_samples(
    place: str,
    own: Mapping[str, np.ndarray],
    rows: Mapping[str, Any],
    tick_s: float,
    first: int | None,
    skip: Mapping[str, str],
    tolerance: tuple[float, float],
) -> list[str]:
    out = []
    count = len(own["value"])
    if first is None and count != rows["n"] and not _skipped(f"{place}.n", skip):
        out.append(f"{place}.n: {count}, want {rows['n']}")
    shown = min(len(rows["value"]), count)
    if first is not None:
        if count < min(first, len(rows["value"])):
            out.append(f"{place}: {count} samples, want at least {min(first, len(rows['value']))}")
        shown = min(shown, first)
    columns = {"time": seconds(own["tick"], tick_s), "value": own["value"]}
    if "session" in own:  # a gauge has none
        columns = {"session": own["session"], "turn": own["turn"]} | columns
    for column, values in columns.items():
        if _skipped(f"{place}.{column}", skip):
            continue
        a = np.asarray(values[:shown], dtype=float)
        b = np.asarray(rows[column][:shown], dtype=float)
        same = a == b
        if column in ("time", "value"):
            with np.errstate(invalid="ignore"):  # infinities
                same |= np.abs(a - b) <= tolerance[0] * np.abs(b) + tolerance[1]
        wrong = np.flatnonzero(~same)
        if len(wrong):
            i = int(wrong[0])
            out.append(f"{place}.{column}[{i}]: {float(a[i])!r}, want {float(b[i])!r} ({len(wrong)} of {shown} differ)")
    return out


def _skipped(place: str, skip: Mapping[str, str]) -> bool:
    # "[" is a wildcard of fnmatch: indices are matched literally, names by pattern
    return any(place == p or fnmatch.fnmatchcase(place, p.replace("[", "[[]")) for p in skip)


def _compare(a: Any, b: Any, place: str, skip: Mapping[str, str], tolerance: tuple[float, float], out: list[str]):
    if place and _skipped(place, skip):
        return
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in b:
            here = f"{place}.{key}" if place else str(key)
            if key in a:
                _compare(a[key], b[key], here, skip, tolerance, out)
            elif not _skipped(here, skip):
                out.append(f"{here}: missing")
        for key in a:
            here = f"{place}.{key}" if place else str(key)
            if key not in b and not _skipped(here, skip):
                out.append(f"{here}: not wanted")
        return
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            out.append(f"{place}: {len(a)} rows, want {len(b)}")
        for i, (x, y) in enumerate(zip(a, b)):
            _compare(x, y, f"{place}[{i}]", skip, tolerance, out)
        return
    if not _equal(a, b, place.rsplit(".", 1)[-1], tolerance):
        out.append(f"{place}: {a!r}, want {b!r}")


def _equal(a: Any, b: Any, field: str, tolerance: tuple[float, float]) -> bool:
    if _is_number(a) and _is_number(b):
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        if a == b:
            return True
        if field in BUCKET_FIELDS and a > 0 and b > 0:
            return max(a, b) / min(a, b) <= RATIO**2 * (1 + 1e-6)
        relative = max(tolerance[0], SPREAD_RELATIVE) if field in SPREAD_FIELDS else tolerance[0]
        absolute = max(tolerance[1], SPREAD_RELATIVE) if field == "cv2" else tolerance[1]
        return abs(a - b) <= relative * abs(b) + absolute
    return type(a) is type(b) and a == b


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
