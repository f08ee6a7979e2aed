"""What all figures share: an empty figure outside pyplot, colours, plain numbers, and how a figure is written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that people with any colour vision tell apart (Okabe and Ito), in the order of use.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#444444")
LIMIT = "#D55E00"
#: Metadata that would make equal figures differ in bytes.
KINDS: dict[str, dict[str, None]] = {
    ".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}
}


def new_figure(width: float = 7.0, height: float = 3.8) -> Figure:
    """A figure that no window shows and that nothing global knows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig


def tidy(ax: Axes) -> Axes:
    """Light grid, no box."""
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def plain_numbers(axis: Any) -> None:
    """2000, not 2x10^3."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def write(fig: Figure, path: str | Path) -> None:
    """Write a figure to a `.png`, `.pdf` or `.svg` file. **Raises:** `ValueError` for another ending."""
    path = Path(path)
    if path.suffix not in KINDS:
        raise ValueError(f"plot file {path}: the name must end in {', '.join(KINDS)}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"plot file {path}: the folder {path.parent} does not exist, create it first")
    fig.savefig(path, dpi=150, metadata=KINDS[path.suffix])


def as_svg(fig: Figure) -> str:
    """The figure as an `<svg>` element; text stays text, equal figures give equal bytes."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "serqjax"}):
        fig.savefig(out, format="svg", metadata=KINDS[".svg"])
    text = out.getvalue()
    return text[text.index("<svg") :]
