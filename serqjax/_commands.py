"""The commands `run`, `check`, `draw` and `ir`: thin functions over the public API, which they import when they run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter, Token

from . import __version__
from ._cli import EXIT_INTERRUPTED, EXIT_RUN, Usage, note

if TYPE_CHECKING:
    import serqjax as sq

HELP = "Many seeds of an LLM-serving program at once: reports with intervals, checked against its sequential meaning."
EPILOGUE = (
    "Exit codes: 0 drained, horizon, unstable; 1 deadlock or livelock (accepted by --allow-stuck), capacity, error; "
    "2 usage; 130 interrupted (finished seeds are printed)."
)

app = App(name="serqjax", help=HELP, help_epilogue=EPILOGUE, version=__version__, help_format="plaintext",
          suppress_keyboard_interrupt=False)

Source = Annotated[
    str, Parameter(help="A serQ IR or automaton JSON file, a .serq file, or a ready-made deployment (vllm, replicas, "
                         "disaggregated).")
]
Settings = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        help="NAME=VALUE: parameter, deployment or workload argument, POOL.cap, arrival.rate; may be repeated.",
        negative="",
    ),
]
Params = Annotated[
    Path | None,
    Parameter(help="Parameter values from this file, as `serqjax fit --out` writes it; --set goes before it."),
]
Workload = Annotated[
    str | None,
    Parameter(help="A .serq workload file; of a ready-made deployment `sessions` (default) or `requests`."),
]
Trace = Annotated[
    str | None,
    Parameter(help="Arrivals from a file (Azure, Mooncake, BurstGPT, benchmark results, serQ, ...; docs/traces.md): "
                   "warm-up 0, every row, ends when drained. Faster: --set rate_scale=2."),
]
Flag = Parameter(negative="", show_default=False)


def _strictly_whole(_type: object, tokens: Sequence[Token]) -> int:
    """`2.5` and `1e3` are refused, and 2^64 - 1 keeps all its digits."""
    text = tokens[0].value
    if not text.lstrip("-").isdecimal():
        raise ValueError(f"{text} is not a whole number")
    return int(text)


Whole = Parameter(converter=_strictly_whole)


@app.command
def run(
    program: Source,
    /,
    *,
    workload: Workload = None,
    set_: Settings = None,
    params: Params = None,
    seed: Annotated[int | None, Whole, Parameter(help="One seed (default: the program's own).")] = None,
    seeds: Annotated[str | None, Parameter(help="Many seeds A:B, half-open: 0:64 runs 0 to 63.")] = None,
    horizon: Annotated[float | None, Parameter(help="End, s (default: the program's own).")] = None,
    warmup: Annotated[float | None, Parameter(help="Statistics start here, s (default: the program's own).")] = None,
    arrivals: Annotated[int | None, Whole, Parameter(help="Exactly so many sessions, then the run drains.")] = None,
    trace: Trace = None,
    engine: Annotated[Literal["array", "pyserq"], Parameter(help="Which engine runs it.")] = "array",
    check: Annotated[bool, Flag, Parameter(help="Test the ownership of every unit after every action.")] = False,
    allow_stuck: Annotated[bool, Flag, Parameter(help="Exit 0 at a deadlock or livelock too.")] = False,
    stop_on_verdict: Annotated[bool, Flag, Parameter(help="End an instance at a livelock or deadlock.")] = False,
    no_coalesce: Annotated[
        bool, Flag, Parameter(help="Take every iteration of an engine by itself (same results, slower).")
    ] = False,
    json: Annotated[bool, Flag, Parameter(help="Print the whole report as JSON.")] = False,
    samples: Annotated[Path | None, Parameter(help="Write every observation to this Parquet file.")] = None,
    plot: Annotated[Path | None, Parameter(help="Write the latency distributions to this picture.")] = None,
    export_trace: Annotated[Path | None, Parameter(help="Write the requests of the run as a trace (CSV).")] = None,
) -> int:
    """Run a program, one seed or many, and print its report."""
    import serqjax as sq

    if seed is not None and seeds is not None:
        raise Usage("--seed and --seeds exclude each other: --seeds A:B runs A to B-1")
    file_name("--samples", samples, (".parquet",))
    file_name("--plot", plot, (".png", ".pdf", ".svg"))
    file_name("--export-trace", export_trace, (".csv",))
    if export_trace is not None and seeds is not None:
        raise Usage("--export-trace writes one run: give --seed, not --seeds")
    options = {
        "seed": whole("--seed", seed, least=0),
        "seeds": None if seeds is None else seed_range(seeds),
        "horizon_s": seconds("--horizon", horizon, above=True),
        "warmup_s": seconds("--warmup", warmup),
        "arrivals": whole("--arrivals", arrivals, least=1),
        "progress": sq.BarProgress(),
    }
    if engine == "pyserq":
        if check or stop_on_verdict or no_coalesce:
            raise Usage(
                "--check, --stop-on-verdict and --no-coalesce are the array engine's: leave out --engine pyserq"
            )
        if plot is not None:
            raise Usage("--plot draws requests, which pyserq does not report: leave out --engine pyserq")
        if export_trace is not None:
            raise Usage("--export-trace needs requests, which pyserq does not report: leave out --engine pyserq")
        if trace is not None:
            raise Usage("--trace is the array engine's: leave out --engine pyserq")
        result = sq.run_reference(program, workload=workload, settings=settings_of(set_, params), **options)
    else:
        prog = sq.read(program, workload=workload, settings=settings_of(set_, params), trace=recorded(trace))
        sq.use_compilation_cache()
        try:
            result = sq.run(
                prog, check=check, stop_on_verdict=stop_on_verdict, coalesce=not no_coalesce, **options
            )
        except sq.VerdictError as error:  # the report of a failed run is printed all the same
            result = error.result
    code = show(result, as_json=json, allow_stuck=allow_stuck, samples=samples, plot=plot)
    if export_trace is not None and isinstance(result, sq.Run):
        exported = result.to_trace()
        sq.traces.write(exported, export_trace)
        note(f"trace written to {export_trace}: {exported}")
    return code


@app.command
def check(
    program: Source,
    /,
    *,
    workload: Workload = None,
    set_: Settings = None,
    params: Params = None,
    trace: Trace = None,
    json: Annotated[bool, Flag, Parameter(help="Print the facts as JSON.")] = False,
) -> int:
    """Check a program: all its errors at once, or what the engine will do with it."""
    import serqjax as sq

    checked = sq.check(sq.read(program, workload=workload, settings=settings_of(set_, params), trace=recorded(trace)))
    print(checked.to_json() if json else str(checked))
    return 0


@app.command
def draw(
    program: Source,
    /,
    *,
    workload: Workload = None,
    set_: Settings = None,
    params: Params = None,
    trace: Trace = None,
    out: Annotated[Path | None, Parameter(help="Write the picture to this SVG file (default: stdout).")] = None,
) -> int:
    """Draw a program as SVG: the automaton of a session, and the pools and stages that serve it."""
    import serqjax as sq

    file_name("--out", out, (".svg",))
    picture = sq.draw(sq.read(program, workload=workload, settings=settings_of(set_, params), trace=recorded(trace)))
    if out is None:
        print(picture, end="")
    else:
        out.write_text(picture, encoding="utf-8")
        note(f"picture written to {out}")
    return 0


@app.command
def ir(
    program: Source,
    /,
    *,
    workload: Workload = None,
    set_: Settings = None,
    params: Params = None,
    trace: Trace = None,
) -> int:
    """Print a program as automaton JSON."""
    import serqjax as sq

    prog = sq.read(program, workload=workload, settings=settings_of(set_, params), trace=recorded(trace))
    print(sq.to_json(prog), end="")
    return 0


def settings_of(words: Sequence[str] | None, params: Path | None = None) -> dict[str, str]:
    """`NAME=VALUE` words as a mapping, after the values of a file of parameters."""
    settings: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise Usage(f"--set {word}: write NAME=VALUE, for example --set arrival.rate=0.5")
        if name in settings:
            raise Usage(f"--set {name}: given twice")
        settings[name] = value
    if params is not None:
        from .fit.result import read_params

        settings = {name: repr(value) for name, value in read_params(params).items()} | settings
    return settings


def recorded(trace: str | None) -> sq.traces.TraceFile | None:
    """The trace file, read; what was understood and what it leaves out is said on stderr."""
    if trace is None:
        return None
    import serqjax as sq

    rows = sq.traces.read(trace)
    note(f"{trace}: {rows}")
    return rows


#: Seeds of one call; their results are held in memory.
MOST_SEEDS = 1_000_000


def seed_range(text: str) -> range:
    """`A:B` as a half-open range of seeds."""
    first, colon, end = text.partition(":")
    if not colon or not first.isdecimal() or not end.isdecimal():
        raise Usage(f"--seeds {text}: write A:B with whole numbers, half-open: 0:64 runs the seeds 0 to 63")
    if int(first) >= int(end):
        raise Usage(f"--seeds {text}: the range is empty (half-open: {first}:{int(first) + 1} runs seed {first} alone)")
    if int(end) - int(first) > MOST_SEEDS:
        raise Usage(f"--seeds {text}: more than {MOST_SEEDS} seeds in one call; give a shorter range")
    return range(int(first), int(end))


def seconds(option: str, value: float | None, *, above: bool = False) -> float | None:
    if value is not None and not (0 < value < float("inf") or (value == 0 and not above)):
        bound = "above 0" if above else "of at least 0"
        raise Usage(f"{option} {value:g}: a finite number of seconds {bound} is needed")
    return value


def file_name(option: str, path: Path | None, endings: Sequence[str]) -> None:
    """Before a long run, not after it: can the file be written?"""
    if path is None:
        return
    if path.suffix not in endings:
        raise Usage(f"{option} {path}: let the name end in {' or '.join(endings)}")
    if path.is_dir():
        raise Usage(f"{option} {path}: this is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Usage(f"{option} {path}: its folder cannot be made ({error.strerror})") from None
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise Usage(f"{option} {path}: this place cannot be written to")


def whole(option: str, value: int | None, *, least: int) -> int | None:
    if value is not None and not least <= value < 2**64:
        raise Usage(f"{option} {value}: a whole number of at least {least} and below 2^64 is needed")
    return value


def show(
    result: sq.Run | sq.Runs, *, as_json: bool, allow_stuck: bool, samples: Path | None, plot: Path | None
) -> int:
    """Print and write a result; the exit code."""
    # the report first: a file that cannot be written after all loses nothing that was computed
    print(result.to_json() if as_json else str(result), flush=True)
    if samples is not None:
        result.write_samples(samples)
        note(f"samples written to {samples}")
    if plot is not None:
        result.plot(plot)
        note(f"picture written to {plot}")
    for failure in result.failures(allow_stuck=allow_stuck)[:5]:
        note(failure)
    if result.unfinished_seeds:
        note(f"interrupted: {len(result.unfinished_seeds)} of the seeds had not finished and are left out")
        return EXIT_INTERRUPTED
    return EXIT_RUN if result.failures(allow_stuck=allow_stuck) else 0
