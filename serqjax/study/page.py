"""One self-contained HTML page of a study: pictures as SVG, tables, no script, nothing from a network.

Equal results give equal bytes.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..extras import needs
from .slo import Slo, slo

if TYPE_CHECKING:
    from .capacity import Capacity

#: Columns of a grid's table that a page shows, with their labels and what they are multiplied with.
SHOWN: dict[str, tuple[str, float]] = {
    "ttft_p99_s": ("TTFT p99 (ms)", 1000.0),
    "tpot_p99_s": ("TPOT p99 (ms)", 1000.0),
    "e2e_p99_s": ("E2E p99 (s)", 1.0),
    "requests_per_s": ("answered requests/s", 1.0),
    "output_tok_per_s": ("output tokens/s", 1.0),
}
#: Points of a grid in the table of a page.
MOST_ROWS = 2000


@dataclasses.dataclass(frozen=True)
class Line:
    text: str
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Picture:
    svg: str
    caption: str


@dataclasses.dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[str]]


@dataclasses.dataclass(frozen=True)
class Section:
    title: str
    lines: tuple[Line, ...] = ()
    pictures: tuple[Picture, ...] = ()
    table: Table | None = None


def page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The page as text. **Raises:** `MissingExtra` without the extra `report`."""
    with needs("report", "an HTML page"):
        from jinja2 import Environment, StrictUndefined

    text = importlib.resources.files("serqjax.study").joinpath("page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(text)
    return template.render(title=title, lead=list(lead), sections=list(sections), foot=f"serqjax {__version__}")


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _drawn(fig: Any, caption: str) -> Picture:
    from ..plot.frame import as_svg

    return Picture(as_svg(fig), caption)


# ---------------------------------------------------------------- capacity


def capacity_page(found: Sequence[Capacity], title: str = "Capacity") -> str:
    """The page of one or more answers of `serqjax.capacity`: each with its curve, and the values that were tried."""
    from ..plot.studies import capacity_figure

    sections = []
    for answer in found:
        first, *rest = str(answer).split("\n\n")[0].split("\n")
        lines = [Line(first, "answer")] + [Line(text, "note" if text.startswith("note") else "") for text in rest]
        names = [name for name in answer.rows[0] if not name.startswith(("excess", "misses"))]
        rows = [[cell(row[name]) for name in names] for row in answer.rows]
        caption = (f"Bars: intervals at {answer.confidence:g}; green: the answer with its interval. "
                   f"{answer.runs} runs; {answer.parts}.")
        with needs("plot", "a picture"):
            picture = _drawn(capacity_figure(answer), caption)
        sections.append(Section(answer.program.name, tuple(lines), (picture,), Table(names, rows)))
    targets = " and ".join(s.text for s in found[0].slos)
    lead = [f"The largest {found[0].over} with {targets}. Unfinished requests miss."]
    return page(title, lead, sections)


# ---------------------------------------------------------------- a grid's folder


def report_page(folder: str | os.PathLike[str], *, slos: Sequence[str | Slo] = ()) -> str:
    """The page of a folder that `serqjax grid` wrote.

    **Arguments:** `slos`: targets of percentiles or means, such as `ttft.p99<500ms`, drawn as lines.
    **Raises:** `ValueError` for a folder without a finished grid, and for a target that its table cannot show.
    """
    from . import manifest

    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; give the --out of `serqjax grid`")
    what = manifest.read(folder)
    path = folder / "table.parquet"
    if what is None or not path.exists():
        missing = "manifest.json" if what is None else "table.parquet"
        raise ValueError(f"{folder}: it has no {missing}; let `serqjax grid ... --out {folder}` finish first")
    with needs("tables", "a report"):
        import polars

        frame = polars.read_parquet(path)
    vary = [name for name in what["vary"] if frame[name].n_unique() > 1]
    limits = _limits(slos, frame.columns)
    lead = [f"{frame['point'].n_unique():,} points x {frame['seed'].n_unique():,} seeds of {what['program']['name']}; "
            f"varied: {', '.join(what['vary']) or 'nothing'}."]
    sections = [_verdicts(frame), *_curves(frame, vary, limits), *_heat(frame, vary), *_front(frame, vary),
                _points(frame, list(what["vary"]))]
    return page(f"Grid: {what['program']['name']}", lead, sections)


def _limits(slos: Sequence[str | Slo], columns: Sequence[str]) -> dict[str, Slo]:
    found = {}
    for text in slos:
        target = slo(text)
        which = target.metric
        stat = "mean" if which.kind == "mean" else f"p{100 * which.q:g}"
        name = f"{which.base}_{stat}_s"
        if which.kind not in ("mean", "quantile") or which.part.column or name not in columns:
            known = [c.removesuffix("_s").replace("_", ".") for c in columns if c in SHOWN and c.endswith("_s")]
            raise ValueError(f"slo `{target.text}`: the grid's table has no such column; known: {', '.join(known)}")
        found[name] = target
    return found


def _verdicts(frame: Any) -> Section:
    counts = frame["verdict"].value_counts(sort=True)
    rows = [[str(name), f"{count:,}"] for name, count in counts.iter_rows()]
    return Section("How the runs ended", table=Table(["verdict", "runs"], rows))


def _numeric(frame: Any, name: str) -> bool:
    return frame[name].dtype.is_numeric()


def _curves(frame: Any, vary: list[str], limits: dict[str, Slo]) -> list[Section]:
    """Against the numeric name with the most values; the name with the next most gives the lines of each figure."""
    from ..plot.frame import new_figure
    from ..plot.studies import draw_against

    numeric = sorted((n for n in vary if _numeric(frame, n)), key=lambda n: (-frame[n].n_unique(), n))
    columns = {c: s for c, s in SHOWN.items() if c in frame.columns and frame[c].null_count() < frame.height}
    columns |= {c: (target.text, 1.0) for c, target in limits.items() if c not in columns}
    if not numeric or frame[numeric[0]].n_unique() < 2 or not columns:
        return []
    x = numeric[0]
    others = sorted((n for n in vary if n != x), key=lambda n: -frame[n].n_unique())
    lines = next((n for n in others if frame[n].n_unique() <= 7), None)
    fixed = [n for n in others if n != lines]
    pictures = []
    for values in itertools.islice(itertools.product(*(frame[n].unique().sort().to_list() for n in fixed)), 6):
        part = frame
        for name, value in zip(fixed, values):
            part = part.filter(part[name] == value)
        if not part.height:
            continue
        fig = new_figure(4.4 * min(len(columns), 3), 3.4 * math.ceil(len(columns) / 3))
        axes = fig.subplots(math.ceil(len(columns) / 3), min(len(columns), 3), squeeze=False).ravel().tolist()
        for ax, (column, (label, scale)) in zip(axes, columns.items()):
            target = limits.get(column)
            draw_against(ax, part, x, column, lines=lines, limit=None if target is None else target.bound, label=label,
                         scale=scale, limit_label="" if target is None else target.text)
        for ax in axes[len(columns) :]:
            ax.set_visible(False)
        held = ", ".join(f"{n} = {cell(v)}" for n, v in zip(fixed, values))
        pictures.append(_drawn(fig, f"Means over seeds, bands: 90 % of the seeds; open triangles: at least so much, "
                                    f"some seeds' values lie among unfinished requests. {held}"))
    return [Section(f"Against {x}", pictures=tuple(pictures))]


def _heat(frame: Any, vary: list[str]) -> list[Section]:
    """Two varied names as the sides of a map."""
    from ..plot.frame import new_figure
    from ..plot.studies import draw_heat

    column = next((c for c in SHOWN if c in frame.columns and frame[c].null_count() < frame.height), None)
    if len(vary) < 2 or column is None:
        return []
    x, y = sorted(vary, key=lambda n: (-frame[n].n_unique(), n))[:2]
    if frame[x].n_unique() > 24 or frame[y].n_unique() > 24:
        return []
    fig = new_figure(2.5 + 0.6 * frame[x].n_unique(), 1.8 + 0.4 * frame[y].n_unique())
    draw_heat(fig.subplots(), frame, x, y, column, label=SHOWN[column][0], scale=SHOWN[column][1])
    held = "" if len(vary) == 2 else "Mean over all the other varied names."
    return [Section(f"{SHOWN[column][0]} over {x} and {y}", pictures=(_drawn(fig, held),))]


def _front(frame: Any, vary: list[str]) -> list[Section]:
    """With GPUs varied: what each number of them gives."""
    from ..plot.frame import new_figure
    from ..plot.studies import draw_pareto

    column = next((c for c in ("ttft_p99_s", "e2e_p99_s") if c in frame.columns), None)
    if "gpus" not in vary or column is None:
        return []
    # what arrives is not chosen: all points are of the largest load
    loads = [n for n in vary if n.endswith("rate") and _numeric(frame, n)]
    for name in loads:
        frame = frame.filter(frame[name] == frame[name].max())
    chosen = [n for n in vary if n not in ("gpus", *loads)]
    points = _means(frame, ["gpus", *chosen], [column]).drop_nulls()
    if not points.height:
        return []
    fig = new_figure(6.5, 4.0)
    draw_pareto(fig.subplots(), points, "gpus", column, labels=chosen, label=SHOWN[column][0], scale=SHOWN[column][1])
    held = "".join(f" {n} = {cell(frame[n].max())}." for n in loads)
    return [Section("GPUs against latency", pictures=(_drawn(fig, f"A dot is a point of the grid.{held}"),))]


def _means(frame: Any, names: list[str], columns: list[str]) -> Any:
    """Means over seeds by point; null as soon as one seed does not know its value."""
    import polars

    known = [
        polars.when(polars.col(c).null_count() == 0).then(polars.col(c).cast(polars.Float64).mean()).alias(c)
        for c in columns
    ]
    return frame.group_by("point", *[n for n in names if n != "point"], maintain_order=True).agg(known)


def _points(frame: Any, names: list[str]) -> Section:
    columns = [c for c in SHOWN if c in frame.columns]
    points = _means(frame, names, columns).sort("point")
    head = ["point", *names, *(SHOWN[c][0] for c in columns)]
    scales = [1] * (1 + len(names)) + [SHOWN[c][1] for c in columns]
    rows = [[cell(v * s if s != 1 and v is not None else v) for v, s in zip(row, scales)]
            for row in points.head(MOST_ROWS).select("point", *names, *columns).iter_rows()]
    left = points.height - len(rows)
    lines = (Line(f"{left:,} more points are in table.parquet", "note"),) if left else ()
    return Section("All points", lines, table=Table(head, rows))


__all__ = ["capacity_page", "page", "report_page"]
