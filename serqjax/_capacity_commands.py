"""The commands `capacity`, `compare` and `report`: thin functions over the public API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ._cli import Usage, note
from ._commands import (
    Flag,
    Settings,
    Source,
    Trace,
    Whole,
    Workload,
    app,
    file_name,
    recorded,
    seconds,
    settings_of,
    whole,
)

if TYPE_CHECKING:
    import serqjax as sq

Horizon = Annotated[float | None, Parameter(help="End of each run, s (default: the program's own).")]
Seed = Annotated[int, Whole, Parameter(help="The first seed; the others follow it.")]
MaxSeeds = Annotated[int, Whole, Parameter(help="At most so many seeds.")]
Confidence = Annotated[str, Parameter(help="Of the interval: 0.95 or 95%.")]
Json = Annotated[bool, Flag, Parameter(help="Print the whole answer as JSON.")]
Window = Annotated[
    float | None, Parameter(help="Of a recorded trace: draw arrival windows of so many seconds anew (block bootstrap).")
]


@app.command
def capacity(
    program: Source,
    /,
    *,
    over: Annotated[str, Parameter(help="NAME=LEAST:LARGEST, such as request_rate=0.1:20; rate_scale of a trace.")],
    slo: Annotated[list[str], Parameter(help="A target such as ttft.p99<500ms; may be repeated.", negative="")],
    workload: Workload = None,
    set_: Settings = None,
    trace: Trace = None,
    confidence: Confidence = "0.95",
    precision: Annotated[str, Parameter(help="Half-width of the interval over the value: 2% or 0.02.")] = "2%",
    seed: Seed = 0,
    max_seeds: MaxSeeds = 512,
    horizon: Horizon = None,
    warmup: Annotated[float | None, Parameter(help="Statistics start here, s (default: the program's own).")] = None,
    window: Window = None,
    json: Json = False,
    plot: Annotated[Path | None, Parameter(help="Write the curves of the targets to this picture.")] = None,
    page: Annotated[Path | None, Parameter(help="Write a self-contained HTML page.")] = None,
) -> int:
    """Find the largest value of a parameter, such as an arrival rate, that meets every target."""
    import serqjax as sq

    name, between = interval(over)
    file_name("--plot", plot, (".png", ".pdf", ".svg"))
    file_name("--page", page, (".html",))
    prog = sq.read(program, workload=workload, settings=settings_of(set_), trace=recorded(trace))
    sq.use_compilation_cache()
    found = sq.capacity(
        prog, over=name, between=between, slo=slo, confidence=share("--confidence", confidence),
        precision=share("--precision", precision), seed=whole("--seed", seed, least=0) or 0,
        max_seeds=whole("--max-seeds", max_seeds, least=1) or 1, horizon_s=seconds("--horizon", horizon, above=True),
        warmup_s=seconds("--warmup", warmup), window_s=seconds("--window", window, above=True),
        progress=sq.BarProgress("runs"),
    )
    print(found.to_json() if json else str(found), flush=True)
    if plot is not None:
        found.plot(plot)
        note(f"picture written to {plot}")
    if page is not None:
        page.write_text(found.to_html(), encoding="utf-8")
        note(f"page written to {page}")
    return 0


@app.command
def compare(
    a: Source,
    b: Source,
    /,
    *,
    metric: Annotated[str, Parameter(help="What is compared, such as ttft.p99.")] = "ttft.p99",
    workload: Workload = None,
    set_: Settings = None,
    set_a: Annotated[list[str] | None, Parameter(help="NAME=VALUE of A alone; may be repeated.", negative="")] = None,
    set_b: Annotated[list[str] | None, Parameter(help="NAME=VALUE of B alone; may be repeated.", negative="")] = None,
    trace: Trace = None,
    confidence: Confidence = "0.95",
    precision: Annotated[str, Parameter(help="Half-width of the difference over A's value: 2% or 0.02.")] = "2%",
    seed: Seed = 0,
    max_seeds: MaxSeeds = 512,
    horizon: Horizon = None,
    warmup: Annotated[str | None, Parameter(help="Statistics start here, s, or mser5 (default: its own).")] = None,
    window: Window = None,
    json: Json = False,
) -> int:
    """Compare a metric of two programs under the same seeds: the difference with its interval (B - A)."""
    import serqjax as sq

    both, rows = settings_of(set_), recorded(trace)
    pair: list[sq.ir.Program] = []
    for source, own in ((a, set_a), (b, set_b)):
        pair.append(sq.read(source, workload=workload, settings=both | settings_of(own), trace=rows))
    sq.use_compilation_cache()
    found = sq.compare(
        pair[0], pair[1], metric=metric, precision=share("--precision", precision),
        confidence=share("--confidence", confidence), seed=whole("--seed", seed, least=0) or 0,
        max_seeds=whole("--max-seeds", max_seeds, least=1) or 1, horizon_s=seconds("--horizon", horizon, above=True),
        warmup_s=start_up(warmup), window_s=seconds("--window", window, above=True), progress=sq.BarProgress("runs"),
    )
    print(found.to_json() if json else str(found), flush=True)
    return 0


@app.command
def report(
    folder: Annotated[Path, Parameter(help="The --out of `serqjax grid`.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The page (default: report.html in the folder).")] = None,
    slo: Annotated[
        list[str] | None, Parameter(help="A target such as ttft.p99<500ms, drawn as a line; may be repeated.",
        negative="")
    ] = None,
) -> int:
    """Write one self-contained HTML page of a grid's folder: curves, maps, tables."""
    from .study.page import report_page

    out = folder / "report.html" if out is None else out
    text = report_page(folder, slos=slo or ())
    file_name("--out", out, (".html",))
    out.write_text(text, encoding="utf-8")
    note(f"page written to {out}")
    return 0


def interval(text: str) -> tuple[str, tuple[float, float]]:
    """`NAME=LEAST:LARGEST`."""
    name, equals, ends = text.partition("=")
    low, colon, high = ends.partition(":")
    try:
        if not (name and equals and colon):
            raise ValueError
        return name, (float(low), float(high))
    except ValueError:
        raise Usage(f"--over {text}: write NAME=LEAST:LARGEST, for example request_rate=0.1:20") from None


def share(option: str, text: str) -> float:
    from .study.metrics import quantity

    return quantity(text, option)


def start_up(text: str | None) -> float | str | None:
    """`--warmup` of `compare`: seconds, or the name of a rule."""
    if text is None or text == "mser5":
        return text
    try:
        value = float(text)
    except ValueError:
        raise Usage(f"--warmup {text}: give seconds, or mser5") from None
    return seconds("--warmup", value)
