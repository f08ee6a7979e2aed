"""Pictures of studies, each a function of a table alone: curves against a rate, a heat map, a Pareto front, targets.

Tables are polars frames (of a grid, of a capacity), columns are given by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .frame import COLOURS, LIMIT, new_figure, plain_numbers, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..study.capacity import Capacity


#: Values so far apart cannot be read on a linear axis.
WIDE = 30.0


def known_or_bound(frame: Any, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Column `y`, where it is null its lower bound in the column `..._at_least_s` (NaN without one); and which are
    bounds."""
    values = frame[y].cast(float).to_numpy().astype(float)
    missing = np.isnan(values)
    bound = y.removesuffix("_s") + "_at_least_s"
    if bound in frame.columns:
        values = np.where(missing, frame[bound].cast(float).to_numpy().astype(float), values)
    return values, missing


def over_seeds(frame: Any, x: str, y: str) -> tuple[np.ndarray, ...]:
    """Over the seeds at each value of `x`, ascending: `x`, mean of `y`, ends of the middle 90 %, whether the mean is
    only a lower bound (a seed knows no more)."""
    values = np.unique(frame[x].to_numpy())
    all_rows, missing = known_or_bound(frame, y)
    at = frame[x].to_numpy()
    rows = [all_rows[at == value] for value in values]
    mean = np.array([row.mean() for row in rows])
    ends = np.array([np.quantile(row, [0.05, 0.95]) if np.isfinite(row).all() else [np.nan] * 2 for row in rows])
    bounded = np.array([missing[at == value].any() for value in values])
    return values.astype(float), mean, ends[:, 0], ends[:, 1], bounded


def draw_against(ax: Axes, frame: Any, x: str, y: str, *, lines: str | None = None, limit: float | None = None,
                 label: str = "", scale: float = 1.0, limit_label: str = "target") -> Axes:
    """Mean of column `y` over the seeds against column `x`, with a band of 90 % of the seeds.

    **Arguments:** `lines`: a column, one curve for each of its values. `limit`: a target as a line, in the unit of `y`;
    `scale`: what values are multiplied with (1000: ms). `label`: of the vertical axis.

    Where the largest is more than `WIDE` times the least, the axis is logarithmic. A value that a seed does not know
    (it lies among unfinished requests) stands at its lower bound, as an open triangle; where there is no bound a cross
    at the top stands for it.
    """
    groups: list[tuple[str, Any]] = [("", frame)]
    drawn: list[float] = [] if limit is None else [limit]
    if lines is not None:
        groups = [(f"{lines} {v:g}" if isinstance(v, (int, float)) else str(v), frame.filter(frame[lines] == v))
                  for v in frame[lines].unique().sort().to_list()]
    for (name, rows), colour in zip(groups, COLOURS * (len(groups) // len(COLOURS) + 1)):
        at, mean, low, high, bounded = over_seeds(rows, x, y)
        drawn += mean[np.isfinite(mean)].tolist()
        ax.fill_between(at, low * scale, high * scale, color=colour, alpha=0.2, linewidth=0)
        ax.plot(at, mean * scale, color=colour, marker="o", markersize=3.5, linewidth=1.8, label=name or None)
        ax.plot(at[bounded], mean[bounded] * scale, "^", color="white", markeredgecolor=colour, markersize=6, zorder=3)
        unknown = np.isnan(mean)
        if unknown.any():
            ax.plot(at[unknown], np.full(int(unknown.sum()), 0.97), "x", color=colour, markersize=6,
                    transform=ax.get_xaxis_transform(), clip_on=False)
    if limit is not None:
        ax.axhline(limit * scale, color=LIMIT, linestyle="--", linewidth=1.2)
        ax.annotate(limit_label, (0.99, limit * scale), xycoords=("axes fraction", "data"), xytext=(0, 3),
                    textcoords="offset points", color=LIMIT, fontsize=8, ha="right")
    if drawn and min(drawn) > 0 and max(drawn) / min(drawn) > WIDE:
        ax.set_yscale("log")
        plain_numbers(ax.yaxis)
    ax.set_xlabel(x)
    ax.set_ylabel(label or y)
    if lines is not None:
        ax.legend(frameon=False, fontsize=8)
    return tidy(ax)


def draw_heat(ax: Axes, frame: Any, x: str, y: str, value: str, *, label: str = "", scale: float = 1.0) -> Axes:
    """Mean of column `value` over the seeds as colours and numbers; `>` where it is only a lower bound."""
    xs, ys = (frame[name].unique().sort().to_list() for name in (x, y))
    cells = np.full((len(ys), len(xs)), np.nan)
    bounded = np.zeros(cells.shape, bool)
    for i, a in enumerate(ys):
        for j, b in enumerate(xs):
            rows = frame.filter((frame[y] == a) & (frame[x] == b))
            if rows.height:
                values, missing = known_or_bound(rows, value)
                cells[i, j], bounded[i, j] = values.mean() * scale, missing.any()
    ax.set_facecolor("0.9")
    image = ax.imshow(cells, origin="lower", aspect="auto", cmap="viridis")
    shade = np.asarray(image.norm(cells), dtype=float)
    for i in range(len(ys)):
        for j in range(len(xs)):
            known = np.isfinite(cells[i, j])
            colour = "0.3" if not known else "white" if shade[i, j] < 0.6 else "black"
            text = f"{'> ' if bounded[i, j] else ''}{_in_words(cells[i, j])}" if known else "?"
            ax.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
    ax.set_xticks(range(len(xs)), [f"{v:g}" if isinstance(v, (int, float)) else str(v) for v in xs])
    ax.set_yticks(range(len(ys)), [f"{v:g}" if isinstance(v, (int, float)) else str(v) for v in ys])
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_title(f"{label or value}   (>: at least, some lie among unfinished requests)" if bounded.any()
                 else label or value, loc="left", fontsize=10)
    return ax


def _in_words(value: float) -> str:
    """Three digits, or all of a large number, and no exponent of either."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def pareto(x: np.ndarray, y: np.ndarray, *, less_x: bool = True, less_y: bool = True) -> np.ndarray:
    """Which points no other point is better than in one coordinate and at least as good in the other; bool."""
    a, b = (np.asarray(v, float) * (1 if less else -1) for v, less in ((x, less_x), (y, less_y)))
    better = (a[None] <= a[:, None]) & (b[None] <= b[:, None]) & ((a[None] < a[:, None]) | (b[None] < b[:, None]))
    return ~better.any(axis=1) & np.isfinite(a) & np.isfinite(b)


def draw_pareto(ax: Axes, frame: Any, x: str, y: str, *, less_y: bool = True, labels: Sequence[str] = (),
                label: str = "", scale: float = 1.0) -> Axes:
    """One dot per row, the rows that no other beats joined by a line and named; less of `x` (GPUs, a cost) is better.

    **Arguments:** `labels`: columns whose values name the dots of the front. `less_y`: whether less of `y` is better.
    """
    from matplotlib.ticker import MaxNLocator

    xs, ys = (frame[name].cast(float).to_numpy() for name in (x, y))
    ys = ys * scale
    front = pareto(xs, ys, less_y=less_y)
    ax.plot(xs[~front], ys[~front], "o", color="0.75", markersize=5, label="beaten by another")
    order = np.argsort(xs[front], kind="stable")
    ax.step(xs[front][order], ys[front][order], where="post", color=COLOURS[0], linewidth=1.5)
    ax.plot(xs[front], ys[front], "o", color=COLOURS[0], markersize=6, label="Pareto front")
    named: dict[tuple[float, float], list[str]] = {}
    for row, place in zip(frame.filter(front).iter_rows(named=True), zip(xs[front].tolist(), ys[front].tolist())):
        words = ", ".join(f"{name} {row[name]:g}" if isinstance(row[name], (int, float)) else str(row[name])
                          for name in labels)
        named.setdefault(place, []).append(words)
    for place, (words, *others) in named.items():
        more = f" (and {len(others)} equal)" if others else ""
        ax.annotate(words + more, place, xytext=(7, 5), textcoords="offset points", fontsize=8)
    if np.all(xs == np.round(xs)):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel(x)
    ax.set_ylabel(label or y)
    ax.margins(x=0.15, y=0.12)
    ax.legend(frameon=False, fontsize=8)
    return tidy(ax)


def capacity_figure(found: Capacity) -> Figure:
    """One panel per target: its ratio to what is allowed at every value tried, the limit, and the answer's interval."""
    fig = new_figure(5.2 * len(found.slos), 3.8)
    axes = fig.subplots(1, len(found.slos), squeeze=False)[0]
    x = np.array([row[found.over] for row in found.rows])
    for ax, slo in zip(axes, found.slos):
        ratio, low, high = (
            np.exp(np.array([np.nan if row[f"{head} {slo.text}"] is None else row[f"{head} {slo.text}"]
                             for row in found.rows]))
            for head in ("excess", "excess low", "excess high")
        )
        unit = slo.allowed * 100 if slo.of_shares else 1.0
        top = 100.0 if slo.of_shares else np.inf
        sign = 1.0 if slo.upper or slo.of_shares else -1.0
        shown, ends = ratio**sign * unit, (low**sign * unit, np.minimum(high**sign * unit, top))
        least, most = np.minimum(*ends), np.maximum(*ends)
        shown = np.minimum(shown, top)
        wrong = [np.clip(shown - least, 0, None), np.clip(most - shown, 0, None)]
        ax.errorbar(x, shown, yerr=wrong, color=COLOURS[0], marker="o", markersize=4, linewidth=1.5, elinewidth=1)
        none = [slo.of_shares and row[f"misses {slo.text}"] == 0 for row in found.rows]
        if any(none):
            ax.plot(x[none], shown[none], "v", color="white", markeredgecolor=COLOURS[0], markersize=6, zorder=3,
                    label="none missed: at most about this")
            ax.legend(frameon=False, fontsize=8, loc="upper left")
        ax.axhline(unit if slo.of_shares else slo.bound, color=LIMIT, linestyle="--", linewidth=1.2)
        ax.annotate("allowed", (0.99, unit if slo.of_shares else slo.bound), xycoords=("axes fraction", "data"),
                    xytext=(0, 3), textcoords="offset points", color=LIMIT, fontsize=8, ha="right")
        if np.isfinite(found.value):
            ax.axvspan(*found.interval, color=COLOURS[2], alpha=0.25, linewidth=0)
            ax.axvline(found.value, color=COLOURS[2], linewidth=1.5)
            ax.annotate(f"{found.value:.4g}", (found.value, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -10),
                        textcoords="offset points", color=COLOURS[2], fontsize=9)
        ax.set_yscale("log")
        ax.set_xscale("log")
        for axis in (ax.xaxis, ax.yaxis):
            plain_numbers(axis)
        _few_ticks(ax, x)
        ax.set_xlabel(found.over)
        ax.set_ylabel("requests that miss (%)" if slo.of_shares else slo.metric.name)
        ax.set_title(slo.text, loc="left", fontsize=10)
        tidy(ax)
    return fig


def _few_ticks(ax: Axes, x: np.ndarray) -> None:
    """Round values on a logarithmic axis, also within one decade."""
    from matplotlib.ticker import LogLocator

    wide = x.max() / x.min()
    subs = (1.0, 2.0, 5.0) if wide > 10 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))


__all__ = ["capacity_figure", "draw_against", "draw_heat", "draw_pareto", "over_seeds", "pareto"]
