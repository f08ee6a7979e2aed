"""Text tables for the terminal."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from .censoring import Estimate
from .latency import METRICS, QUANTILES
from .summary import Summary

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WIDTH = 120
#: Columns of the stage and pool tables: field -> heading.
STAGE_COLUMNS = {
    "utilization": "utilization",
    "mean_number": "jobs",
    "throughput": "jobs/s",
    "mean_wait": "wait s",
    "mean_service": "service s",
    "mean_decode_batch": "decodes/step",
    "mean_decode_step": "step s",
}
POOL_COLUMNS = {
    "mean_used": "used",
    "mean_cached": "cached",
    "mean_queue": "waiting",
    "mean_wait": "wait s",
    "admissions": "admissions",
    "preemptions": "preemptions",
    "evicted_units": "evicted",
    "rejected": "rejected",
}


def unit(values: list[float]) -> tuple[float, str]:
    """Scale and name of the unit for values in seconds: ms while the largest is below one second."""
    finite = [abs(v) for v in values if math.isfinite(v)]
    return (1000.0, "ms") if finite and max(finite) < 1.0 else (1.0, "s")


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def latency_table(summary: Summary) -> Table:
    """TTFT, TPOT, ITL and E2E: mean and pooled quantiles with 95 % intervals."""
    interval = "95 % intervals over seeds" if summary.used > 1 else "no intervals over seeds"
    seeds = f"{summary.used} seed" + ("s" if summary.used != 1 else "")
    table = _table(f"Latency: {seeds}, {interval}")
    table.add_column("")
    table.add_column("mean", justify="right")
    for key in QUANTILES:
        table.add_column(key, justify="right")
    table.add_column("counted", justify="right")
    table.add_column("unfinished", justify="right")
    for name, row in summary.latency.items():
        estimates = [row.mean, *row.pooled.values()]
        scale, name_of_unit = unit([max(e.value, e.lower_bound) if not math.isnan(e.value) else e.lower_bound
                                    for e in estimates])
        cells = [_cell(e, scale) for e in estimates]
        table.add_row(f"{METRICS[name].label} ({name_of_unit})", *cells, f"{row.known:,}", f"{row.censored:,}")
    return table


def _cell(estimate: Estimate, scale: float) -> str:
    if math.isnan(estimate.value):
        return estimate.format(scale)
    out = f"{estimate.value * scale:.4g}"
    if math.isnan(estimate.low):
        return out
    high = "inf" if math.isinf(estimate.high) else f"{estimate.high * scale:.4g}"
    if estimate.low == estimate.high:
        return out
    return f"{out}\n[{estimate.low * scale:.4g}, {high}]"


def resource_table(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> Table:
    """One row per stage or pool; columns that are empty everywhere are left out."""
    shown = [key for key in columns if any(not math.isnan(row[key].value) for row in rows)]
    table = _table(title)
    table.add_column("")
    for key in shown:
        table.add_column(columns[key], justify="right")
    for row in rows:
        label = row["name"] if row["index"] is None else f"{row['name']}[{row['index']}]"
        table.add_row(label, *[_short_cell(row[key]) for key in shown])
    return table


def _short_cell(estimate: Estimate) -> str:
    """`0.726 ±0.059`, `26,120 ±1,433` (95 %); `-` where there is nothing."""
    if math.isnan(estimate.value):
        return "-"
    half = estimate.high - estimate.value
    if not half > 0:
        return f"{estimate.value:,.0f}" if abs(estimate.value) >= 1000 else f"{estimate.value:.4g}"
    decimals = max(1 - math.floor(math.log10(half)), 0)
    return f"{estimate.value:,.{decimals}f} ±{half:,.{decimals}f}"


def verdict_lines(summary: Summary) -> list[str]:
    """`64 horizon`, then the causes, then the requests."""
    counts = summary.verdict_counts()
    lines = ["Verdicts: " + ", ".join(f"{row['count']} {name}" for name, row in counts.items())]
    for name, row in counts.items():
        for cause in list(row["causes"])[:1]:
            rest = row["count"] - row["causes"][cause]
            more = f" (and {rest} more with a cause of their own)" if rest else ""
            lines.append(f"  {name}: {cause}{more}")
    left_out = len(summary.seeds) - summary.used
    if left_out:
        lines.append(f"  {left_out} of {len(summary.seeds)} seeds enter no estimate (capacity or error)")
    parts = dict(summary.requests)
    total = parts.pop("in")
    lines.append(f"Requests: {total:,} in = " + " + ".join(f"{n:,} {name}" for name, n in parts.items()))
    return lines


def renderables(summary: Summary) -> list[RenderableType]:
    """Everything the terminal shows for a summary, top to bottom."""
    from rich.text import Text

    parts: list[RenderableType] = []
    if summary.latency:
        parts.append(latency_table(summary))
        parts.append(Text("Percentiles: all requests of all seeds pooled, intervals clustered by seed;"
                          " > x: among the unfinished.", style="dim"))
    if summary.stages:
        parts.append(resource_table("Stages", summary.stages, STAGE_COLUMNS))
    if summary.pools:
        parts.append(resource_table("Pools", summary.pools, POOL_COLUMNS))
    parts += [Text(line) for line in verdict_lines(summary)]
    return parts


def summary_text(summary: Summary, width: int = WIDTH) -> str:
    """The tables as plain text, `width` columns wide."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, highlight=False)
    for part in renderables(summary):
        console.print(part, soft_wrap=False)
    return file.getvalue()
