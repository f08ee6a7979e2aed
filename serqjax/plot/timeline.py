"""One run over time: its requests as bars (Gantt), how many wait and are served, and how full a pool is.

The bars and the counts are functions of the requests table alone, the use of a pool one of the action table (a run
made with
`trace=True`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..report.raw import RequestStatus
from ..report.requests import RequestTable
from .frame import COLOURS, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..report.actions import ActionTable

#: Requests of a Gantt chart; more cannot be told apart.
MOST_BARS = 60
WAITS, SERVED, REFUSED = COLOURS[1], COLOURS[0], COLOURS[6]


def draw_gantt(ax: Axes, table: RequestTable, *, first: int = 0, count: int = MOST_BARS) -> Axes:
    """The requests from the `first` on, one bar each: waiting for the first token, then being answered.

    An unfinished request ends in an arrow, a refused one is a cross.
    """
    order = np.argsort(table["sent_s"], kind="stable")[first : first + min(count, MOST_BARS)]
    end = np.nanmax(np.where(np.isnan(table["end_s"]), table["sent_s"], table["end_s"]), initial=0.0)
    end = max(end, float(np.nanmax(table["sent_s"] + np.nan_to_num(table["age_s"]), initial=0.0)))
    tokens = bool(np.any(~np.isnan(table["first_token_s"])))
    names = {WAITS: "until the first token" if tokens else "until answered", SERVED: "from the first to the last token"}
    used: set[str] = set()

    def bar(row: int, begin: float, until: float, colour: str) -> None:
        label = names[colour] if colour not in used else None
        used.add(colour)
        ax.barh(row, until - begin, left=begin, height=0.75, color=colour, linewidth=0, label=label)

    for row, k in enumerate(order):
        sent, status = float(table["sent_s"][k]), table["status"][k]
        if status == RequestStatus.rejected:
            ax.plot([sent], [row], "x", color=REFUSED, markersize=5)
            continue
        until = float(table["last_token_s"][k] if status == RequestStatus.finished else end)
        until = float(table["end_s"][k]) if np.isnan(until) else until
        token = float(table["first_token_s"][k])
        if np.isnan(token):
            bar(row, sent, until, WAITS)
        else:
            bar(row, sent, token, WAITS)
            bar(row, token, until, SERVED)
        if status != RequestStatus.finished:
            ax.plot([until], [row], ">", color=REFUSED, markersize=4, clip_on=False)
    ax.set_ylim(len(order) - 0.3, -0.7)
    ax.set_xlabel("time (s)")
    ax.set_ylabel(f"requests {first + 1:,} to {first + len(order):,} as sent")
    ax.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    tidy(ax)
    ax.grid(False, axis="y")
    return ax


def counts_over_time(table: RequestTable, points: int = 800) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`points` times (s), requests that wait for their first token, and requests that are being answered at each."""
    kept = table["status"] != RequestStatus.rejected
    sent = np.sort(table["sent_s"][kept])
    ended = np.sort(table["end_s"][kept & ~np.isnan(table["end_s"])])
    no_token = np.isnan(table["first_token_s"])
    # an answer without a token (a cached one) waits until it is there
    token = np.sort(np.where(no_token, table["end_s"], table["first_token_s"])[kept])
    token = token[~np.isnan(token)]
    last = max(sent[-1] if len(sent) else 0.0, ended[-1] if len(ended) else 0.0)
    at = np.linspace(0.0, last, points)
    here = [np.searchsorted(v, at, side="right") for v in (sent, token, ended)]
    return at, here[0] - here[1], here[1] - here[2]


def draw_counts(ax: Axes, table: RequestTable, *, warmup_s: float = 0.0) -> Axes:
    """How many requests of one run wait for their first token, and how many are being answered, over time."""
    at, waiting, served = counts_over_time(table)
    tokens = bool(np.any(~np.isnan(table["first_token_s"])))
    if tokens:
        ax.fill_between(at, served, step="post", color=SERVED, alpha=0.35, linewidth=0, label="being answered")
    ax.plot(at, waiting, color=WAITS, linewidth=1.4, drawstyle="steps-post",
            label="waiting for the first token" if tokens else "in the system")
    if warmup_s > 0:
        ax.axvspan(0, warmup_s, color="0.93", linewidth=0, zorder=0, label="warm-up")
    ax.set_xlabel("time (s)")
    ax.set_ylabel("requests")
    ax.set_xlim(0, at[-1] or 1.0)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize=8)
    return tidy(ax)


def use_over_time(actions: ActionTable, pool: str) -> tuple[np.ndarray, np.ndarray]:
    """Times (s) and the units of `pool` that requests hold, after each action on it."""
    import polars

    frame = actions.to_polars().filter(place=pool)
    sign = {"admit": 1.0, "grow": 1.0, "release": -1.0}
    frame = frame.filter(frame["kind"].is_in(list(sign)))
    change = frame["kind"].replace_strict(sign, return_dtype=polars.Float64).to_numpy() * frame["amount"].to_numpy()
    return frame["time_s"].to_numpy(), np.cumsum(change)


def draw_use(ax: Axes, actions: ActionTable, pool: str, cap: float) -> Axes:
    """The share of `pool` that requests hold, over time; `cap`: its units."""
    at, used = use_over_time(actions, pool)
    ax.plot(at, 100.0 * used / cap, color=COLOURS[2], linewidth=1.2, drawstyle="steps-post")
    ax.axhline(100.0, color=COLOURS[5], linestyle="--", linewidth=1)
    ax.set_ylim(0, 108)
    ax.set_xlim(0, at[-1] if len(at) and at[-1] > 0 else 1.0)
    ax.set_xlabel("time (s)")
    ax.set_ylabel(f"{pool} in use (%)")
    return tidy(ax)


__all__ = ["counts_over_time", "draw_counts", "draw_gantt", "draw_use", "use_over_time"]
