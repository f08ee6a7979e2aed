"""Answers of studies as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .capacity import Capacity
    from .compare import Comparison


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
        cells += [(">= " if row["cut"] else "") + short(row[name]) for name in names]
        met = all(row[f"excess {slo.text}"] <= 0 for slo in found.slos) and 2 * row["unstable"] <= row["seeds"]
        rows.append([*cells, "met" if met else "missed"])
    if any(row["cut"] for row in found.rows):
        lines.append("note: replays whose share is given as >= were ended early, as soon as the target was missed for "
                     "good and a table was full")
    lines += ["", *grid_text([*head, *names, ""], rows), "", f"{found.runs} runs; {found.parts}"]
    return "\n".join(lines)


def comparison_text(found: Comparison) -> str:
    """Both values, the difference, and whether it is one."""
    which = found.metric
    scale, unit = (1000.0, "ms") if which.unit == "s" and max(
        (abs(e.value) for e in (found.a, found.b) if not math.isnan(e.value)), default=1.0) < 1.0 else (1.0, which.unit)
    unit = f" {unit}" if unit else ""
    lines = [f"{which.name}{' in' if unit else ''}{unit}, intervals at {found.confidence:g}"]
    for name, e in zip(("A", "B"), (found.a, found.b)):
        program = found.names["AB".index(name)].removeprefix(f"{name}: ")
        lines.append(f"  {name}      {e.format(scale)}   {program}")
    d, r = found.difference, found.relative
    if not math.isnan(d.value):
        share = "" if math.isnan(r.value) else f"   {r.value:+.2%} of A"
        if not math.isnan(r.low) and share:
            share += f" [{r.low:+.2%}, {r.high:+.2%}]"
        lines.append(f"  B - A  {d.format(scale)}{share}")
    words = {"b_lower": "B is lower", "b_higher": "B is higher", "no_interval": "", "unknown": "not known",
             "no_difference": "no difference at this confidence: the interval holds 0"}
    lines += [line for line in (words[found.verdict], found.cause) if line]
    lines += [f"note: {note}" for note in found.notes]
    tail = found.parts
    if not math.isnan(found.correlation):
        tail += f"; correlation of A and B {found.correlation:.3f}"
    if found.warmup_s is not None:
        tail += f"; warm-up {found.warmup_s:.6g} s"
    return "\n".join([*lines, tail])
