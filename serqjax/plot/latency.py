"""Latency distributions: what fraction of requests takes longer than x.

The figure is a function of the requests table alone and can be redrawn without running anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..ir.program import Program
from ..report.raw import RawRun, RequestStatus
from ..report.requests import RequestTable, requests_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Column -> label and colour (colour-blind safe, the same in every figure).
SHOWN: dict[str, tuple[str, str]] = {
    "ttft_s": ("TTFT", "#0072B2"),
    "tpot_s": ("TPOT", "#E69F00"),
    "e2e_s": ("E2E", "#009E73"),
}
#: Points of a curve.
POINTS = 400
#: Band over seeds: from this fraction of the seeds to the rest.
BAND = (0.05, 0.95)
QUANTILES = (0.5, 0.9, 0.99)


def exceedance(values: np.ndarray, total: int, at: np.ndarray) -> np.ndarray:
    """Fraction of `total` requests whose latency exceeds each of `at`; requests without a value exceed all."""
    return 1.0 - np.searchsorted(np.sort(values), at, side="right") / max(total, 1)


def _rows(table: RequestTable, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of the measured requests (NaN: unfinished), their runs, and whether they are counted."""
    values = table[column]
    unfinished = np.isin(table["status"], (RequestStatus.running, RequestStatus.queued, RequestStatus.abandoned))
    if column == "tpot_s":  # unknown only once the first token is there; one-token requests have none
        unfinished = unfinished & ~np.isnan(table["ttft_s"])
    counted = table["measured"] & (table["status"] != RequestStatus.rejected) & (~np.isnan(values) | unfinished)
    return values, table["run"], counted


def draw_exceedance(table: RequestTable, column: str, fig: Figure, ax: Axes) -> tuple[Figure, Axes]:
    """Draw one column of the table on `ax`: pooled curve, band over seeds, quantiles.

    Logarithmic in both directions. The curve ends where only unfinished requests are left.

    **Arguments:**
    - `table`: requests of one or more runs. `column`: `ttft_s`, `tpot_s` or `e2e_s`.
    - `fig`, `ax`: where to draw.

    **Returns:** `fig, ax`.
    """
    label, colour = SHOWN[column]
    values, runs, counted = _rows(table, column)
    values, runs = values[counted], runs[counted]
    known = values[~np.isnan(values)]
    positive = known[known > 0]
    ax.set_title(label, loc="left")
    if not len(positive):
        ax.text(0.5, 0.5, "no finished request", ha="center", va="center", transform=ax.transAxes)
        return fig, ax
    scale, unit = (1000.0, "ms") if positive.max() < 1.0 else (1.0, "s")
    first, last = positive.min(), positive.max()
    at = np.geomspace(first, last, POINTS) if last > first else np.array([0.9 * first, first, 1.1 * first])
    # one point before the first value, so that the curve starts at 1
    at = np.concatenate([[at[0] * (1 - 1e-9)], at])
    floor = 0.5 / len(values)
    curve = exceedance(known, len(values), at)

    present = len(np.unique(runs))
    if present > 1:
        order = np.argsort(runs, kind="stable")
        pieces = np.split(values[order], np.flatnonzero(np.diff(runs[order])) + 1)
        each = np.array([exceedance(v[~np.isnan(v)], len(v), at) for v in pieces])
        low, high = np.quantile(each, BAND, axis=0)
        name = f"{BAND[0]:.0%} to {BAND[1]:.0%} of {present} seeds"
        ax.fill_between(at * scale, np.maximum(low, floor), np.maximum(high, floor),
                        color=colour, alpha=0.25, linewidth=0, label=name)
    shown = curve > 0
    ax.plot(at[shown] * scale, curve[shown], color=colour, linewidth=2, label="all requests")
    _mark_quantiles(np.sort(known), len(values), (scale, unit), ax)
    missing = len(values) - len(known)
    if missing:
        ax.axhline(missing / len(values), color="0.4", linestyle="--", linewidth=1, label=f"{missing:,} unfinished")
    ax.set_xscale("log")
    ax.set_yscale("log")
    # nothing is known below the unfinished; keep one decade under them
    ax.set_ylim(max(floor, 0.1 * missing / len(values), 1e-6), 1.5)
    _plain_ticks(ax)
    ax.set_xlabel(f"{label} ({unit})")
    ax.set_ylabel("fraction of requests above")
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.legend(loc="lower left", frameon=False, fontsize=8)
    return fig, ax


def _mark_quantiles(known: np.ndarray, total: int, units: tuple[float, str], ax: Axes) -> None:
    scale, unit = units
    span = (known[known > 0][0], known[-1])
    for q in QUANTILES:
        place = q * (total - 1)
        if place > len(known) - 1:
            continue  # among the unfinished
        x = float(np.interp(place, np.arange(len(known)), known)) * scale
        if x <= 0:
            continue
        ax.plot([x], [1 - q], marker="o", markersize=4, color="black", linestyle="none")
        left_half = x**2 < span[0] * span[1] * scale**2  # the curve falls: right above and left below are free
        offset, ha, va = ((6, 2), "left", "bottom") if left_half else ((-6, -3), "right", "top")
        ax.annotate(f"p{q * 100:g}: {x:.3g} {unit}", (x, 1 - q), xytext=offset, ha=ha, va=va,
                    textcoords="offset points", fontsize=8)


def _plain_ticks(ax: Axes) -> None:
    """Numbers as people write them (200, not 2x10^2), few enough to be read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = ax.get_xlim()
    subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if high / low < 12 else (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


def draw_latencies(table: RequestTable, title: str = "", fig: Figure | None = None) -> tuple[Figure, list[Axes]]:
    """TTFT, TPOT and E2E side by side (those the table has); returns `fig, axes`.

    Without `fig` a new figure is made outside pyplot, so that nothing global changes and no window opens.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [c for c in SHOWN if np.any(_rows(table, c)[2] & ~np.isnan(table[c]))] or ["e2e_s"]
    if fig is None:
        fig = Figure(figsize=(4.6 * len(columns), 3.8), layout="constrained")
        FigureCanvasAgg(fig)
    axes = fig.subplots(1, len(columns), squeeze=False)[0].tolist()
    for column, ax in zip(columns, axes):
        draw_exceedance(table, column, fig, ax)
        if ax is not axes[0]:
            ax.set_ylabel("")
    if title:
        fig.suptitle(title, x=0.01, ha="left")
    return fig, axes


def latency_figure(program: Program, raws: RawRun | Sequence[RawRun], path: str | Path | None = None) -> Figure:
    """The figure of runs of `program`, also written to `path` (`.png`, `.pdf` or `.svg`) if given.

    The same runs give the same bytes.

    **Raises:** `ValueError` for another ending, `FileNotFoundError` without the folder.
    """
    many = [raws] if isinstance(raws, RawRun) else list(raws)
    kinds: dict[str, dict[str, None]] = {
        ".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}
    }
    if path is not None:
        path = Path(path)
        if path.suffix not in kinds:
            raise ValueError(f"plot file {path}: the name must end in {', '.join(kinds)}")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"plot file {path}: the folder {path.parent} does not exist, create it first")
    seeds = f"{len(many)} seeds" if len(many) != 1 else f"seed {many[0].seed}"
    fig, _ = draw_latencies(requests_table(many, program), f"{program.name}, {seeds}")
    if path is not None:
        fig.savefig(path, dpi=150, metadata=kinds[path.suffix])
    return fig
