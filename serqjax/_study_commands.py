"""The commands `grid` and `merge`: thin functions over the public API, which they import when they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ._cli import EXIT_RUN, Usage, note
from ._commands import (
    Flag,
    Settings,
    Source,
    Trace,
    Whole,
    Workload,
    app,
    recorded,
    seconds,
    seed_range,
    settings_of,
    whole,
)

if TYPE_CHECKING:
    from .study.grid_result import Grid

Out = Annotated[Path, Parameter(help="Folder for table.parquet, manifest.json and the checkpoints.")]
Json = Annotated[bool, Flag, Parameter(help="Print manifest, verdicts and the summary of each point as JSON.")]
AllowStuck = Annotated[bool, Flag, Parameter(help="Exit 0 at a deadlock or livelock too.")]


@app.command
def grid(
    program: Source,
    /,
    *,
    vary: Annotated[
        list[str],
        Parameter(
            help="NAME=16,32,64 or NAME=A:B:N (N points, both ends included); repeated: all combinations. "
            "NAME is what --set may name.",
            negative="",
        ),
    ],
    out: Out,
    workload: Workload = None,
    set_: Settings = None,
    trace: Trace = None,
    seeds: Annotated[
        str | None, Parameter(help="The same for all points, A:B, half-open (default: the program's own).")
    ] = None,
    horizon: Annotated[float | None, Parameter(help="End, s (default: the program's own).")] = None,
    warmup: Annotated[float | None, Parameter(help="Statistics start here, s (default: the program's own).")] = None,
    arrivals: Annotated[int | None, Whole, Parameter(help="Exactly so many sessions, then the run drains.")] = None,
    shard: Annotated[
        str | None, Parameter(help="I/N: the I-th of N parts, 1 to N; `serqjax merge` joins them.")
    ] = None,
    ray: Annotated[
        bool, Flag, Parameter(help="Chunks as tasks of a Ray cluster ($RAY_ADDRESS, else one on this machine).")
    ] = False,
    chunk: Annotated[int | None, Whole, Parameter(help="Runs between two checkpoints (default: 256).")] = None,
    no_stop_on_verdict: Annotated[
        bool, Flag, Parameter(help="Run an instance to its horizon after a livelock or deadlock too.")
    ] = False,
    no_coalesce: Annotated[
        bool, Flag, Parameter(help="Take every iteration of an engine by itself (same results, slower).")
    ] = False,
    allow_stuck: AllowStuck = False,
    json: Json = False,
) -> int:
    """Run a program at many points under the same seeds. The same command again goes on where it was stopped."""
    import serqjax as sq

    from .study.grid import CHUNK, run_grid
    from .study.grid_points import OfSource, parse_vary

    settings, varied = settings_of(set_), parse_vary(vary)
    for name in varied:
        if name in settings:
            raise Usage(f"--vary {name} and --set {name} exclude each other")
    span = {
        "horizon_s": seconds("--horizon", horizon, above=True),
        "warmup_s": seconds("--warmup", warmup),
        "arrivals": whole("--arrivals", arrivals, least=1),
    }
    if out.exists() and not out.is_dir():
        raise Usage(f"--out {out}: this is a file; give a folder")
    sq.use_compilation_cache()
    result = run_grid(
        OfSource.of(program, workload=workload, settings=settings, trace=recorded(trace)),
        vary=varied,
        seeds=None if seeds is None else seed_range(seeds),
        out=out,
        resume=True,
        span=span,
        stop_on_verdict=not no_stop_on_verdict,
        coalesce=not no_coalesce,
        chunk=CHUNK if chunk is None else int(whole("--chunk", chunk, least=1) or CHUNK),
        shard=None if shard is None else shard_of(shard),
        over="ray" if ray else None,
        progress=sq.BarProgress("runs"),
    )
    return show_grid(result, as_json=json, allow_stuck=allow_stuck)


@app.command
def merge(
    folders: Annotated[list[Path], Parameter(help="The folders of all shards of one grid.", negative="")],
    /,
    *,
    out: Out,
    allow_stuck: AllowStuck = False,
    json: Json = False,
) -> int:
    """Join the shards of a grid: the table is that of a grid run in one piece, byte for byte."""
    import serqjax as sq

    return show_grid(sq.merge(folders, out), as_json=json, allow_stuck=allow_stuck)


def shard_of(text: str) -> tuple[int, int]:
    """`2/8` as (2, 8)."""
    i, slash, n = text.partition("/")
    if not slash or not i.isdecimal() or not n.isdecimal() or not 1 <= int(i) <= int(n):
        raise Usage(f"--shard {text}: write I/N with whole numbers, 1 <= I <= N: 1/4 to 4/4")
    return int(i), int(n)


def show_grid(result: Grid, *, as_json: bool, allow_stuck: bool) -> int:
    """Print a grid; the exit code."""
    print(result.to_json() if as_json else str(result), flush=True)
    note(f"table written to {result.folder}/table.parquet")
    if result.peak_memory_bytes is not None:
        chunk = result.manifest["chunk_runs"]
        note(f"peak memory {result.peak_memory_bytes / 2**20:.0f} MiB (chunks of {chunk} runs)")
    failures = result.failures(allow_stuck=allow_stuck)
    for failure in failures[:5]:
        note(failure)
    if len(failures) > 5:
        note(f"and {len(failures) - 5} more runs")
    return EXIT_RUN if failures else 0

