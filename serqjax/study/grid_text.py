"""A grid as text for the terminal."""

from __future__ import annotations

import io

from .grid_result import MOST_LINES, Grid


def text(grid: Grid) -> str:
    """One line a point: its values, and mean over seeds of the main metrics with the half width of the interval."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    summary = grid.summary()
    varied = list(grid.manifest["vary"])
    metrics = list(dict.fromkeys(summary["metric"]))
    points = summary.partition_by("point", maintain_order=True)
    table = Table(title=f"{grid.manifest['program']['name']}: {grid.manifest['points']} points, {len(grid)} runs; "
                  "mean over seeds ± half of the 95 % interval", title_justify="left", title_style="bold",
                  box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # fmt: skip
    for name in ["point", *varied, *metrics]:
        table.add_column(name, justify="right", overflow="fold")
    for part in points[:MOST_LINES]:
        cells = [_cell(*row) for row in part.select("value", "high", "lower_bound").iter_rows()]
        head = [str(part["point"][0]), *(_plain(part[name][0]) for name in varied)]
        table.add_row(*head, *cells)
    lines = ["Verdicts: " + ", ".join(f"{n} {name}" for name, n in grid.verdicts().items())]
    if len(points) > MOST_LINES:
        lines.append(f"({len(points) - MOST_LINES} more points are in the table)")
    if summary["unknown"].sum():
        lines.append("> x: in some seeds the percentile falls among requests that have not finished.")
    out = io.StringIO()
    console = Console(file=out, width=max(120, 17 * (1 + len(varied) + len(metrics))))
    console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cell(value: float | None, high: float | None, at_least: float | None) -> str:
    if at_least is not None:
        return f"> {at_least:.4g}"
    if value is None:
        return "-"
    return f"{value:.4g}" if high is None else f"{value:.4g} ±{high - value:.2g}"
