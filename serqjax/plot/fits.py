"""Predicted against measured request times of a fit, a panel per metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .frame import COLOURS, LIMIT, new_figure, plain_numbers, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..fit.result import Fit

METRICS = {"ttft": ("TTFT, s", 1.0), "tpot": ("TPOT, ms", 1000.0), "e2e": ("E2E, s", 1.0)}
PARTS = {"fitted": ("o", "fitted"), "held_out": ("^", "held out")}


def draw_predicted(ax: Axes, fit: Fit, metric: str) -> Axes:
    """Each request a point, its run a colour, held-out ones triangles; on the dashed line predicted is measured."""
    label, scale = METRICS[metric]
    ends: list[float] = []
    for k, (run, parts) in enumerate(zip(fit.runs, fit.pairs)):
        for part, (marker, words) in PARTS.items():
            if part in parts:
                measured, predicted = (scale * values for values in parts[part][metric])
                shown = (measured > 0) & (predicted > 0)
                name = words if len(fit.runs) == 1 else f"{run}, {words}"
                colour = COLOURS[(2 * k + (part == "held_out")) % len(COLOURS)]
                ax.plot(measured[shown], predicted[shown], marker, color=colour, markersize=3, alpha=0.6, label=name,
                        markeredgewidth=0)
                ends += [*measured[shown], *predicted[shown]]
    if ends:
        span = np.array([min(ends), max(ends)])
        ax.plot(span, span, "--", color=LIMIT, linewidth=1.0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(f"measured {label}")
    ax.set_ylabel(f"predicted {label}")
    for axis in (ax.xaxis, ax.yaxis):
        plain_numbers(axis)
    return tidy(ax)


def figure(fit: Fit) -> Figure:
    """The three metrics side by side."""
    fig = new_figure(11.0, 3.8)
    panels = fig.subplots(1, len(METRICS))
    for ax, metric in zip(panels, METRICS):
        draw_predicted(ax, fit, metric)
    panels[0].legend(frameon=False, fontsize=8)
    return fig
