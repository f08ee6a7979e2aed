"""Answers of studies as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .capacity import Capacity


def as_html(text: str) -> str:
    from html import escape

    return f"<pre>{escape(text)}</pre>"


def grid_text(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table whose columns stand under each other, numbers to the right."""
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    return ["  ".join(word.rjust(w) for word, w in zip(row, widths)).rstrip() for row in [head, *rows]]


def short(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else "inf" if math.isinf(value) else f"{value:.4g}"


def capacity_text(found: Capacity) -> str:
    """The answer in one line, then why, then what was tried."""
    targets = " and ".join(slo.text for slo in found.slos)
    low, high = found.interval
    line = f"{found.over}: {found.verdict}"
    if not math.isnan(found.value):
        line = (f"{found.over} = {found.value:.4g}  [{low:.4g}, {high:.4g}] at {found.confidence:g}: "
                f"the largest value with {targets}")
    elif found.verdict == "met":
        line = f"{found.over} > {low:.4g}: the largest value tried still has {targets}"
    lines = [line]
    if found.cause:
        lines.append(found.cause)
    if found.binding and len(found.slos) > 1:
        lines.append(f"missed first: {found.binding}")
    lines += [f"note: {note}" for note in found.notes]
    head = [found.over, "seeds", "requests", "unfinished", "unstable", "drift/s"]
    names = [name for name in found.rows[0] if name.startswith(("share above: ",)) or name in
             {slo.text for slo in found.slos}]
    rows = []
    for row in found.rows:
        cells = [f"{row[found.over]:.5g}", str(row["seeds"]), f"{row['requests']:,}", f"{row['unfinished']:,}",
                 str(row["unstable"]), short(row["drift_per_s"])]
        cells += [short(row[name]) for name in names]
        met = all(row[f"excess {slo.text}"] <= 0 for slo in found.slos) and 2 * row["unstable"] <= row["seeds"]
        rows.append([*cells, "met" if met else "missed"])
    lines += ["", *grid_text([*head, *names, ""], rows), "", f"{found.runs} runs; {found.parts}"]
    return "\n".join(lines)
