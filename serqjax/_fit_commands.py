"""The command `fit`: a thin function over `serqjax.fit`, which it imports when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ._cli import Usage, note
from ._commands import Flag, Settings, Trace, app, file_name, recorded, settings_of


@app.command
def fit(
    program: Annotated[str, Parameter(help="A ready-made deployment (vllm), or a program that lists its requests.")],
    /,
    *,
    data: Annotated[list[Path], Parameter(help="Request times of a real run; may be repeated.", negative="")],
    free: Annotated[str, Parameter(help="Names of the parameters to fit: base_s,per_kv_tok_s.")],
    bounds: Annotated[
        list[str] | None,
        Parameter(help="NAME=LOW:HIGH of a free parameter, in its unit; may be repeated.", negative=""),
    ] = None,
    set_: Settings = None,
    trace: Trace = None,
    loss: Annotated[str, Parameter(help="What counts of each request: ttft, tpot, e2e.")] = "ttft,tpot",
    holdout: Annotated[float, Parameter(help="Fraction of the requests, the last, that is not scored.")] = 0.3,
    method: Annotated[str, Parameter(help="cmaes or gradient.")] = "cmaes",
    restarts: Annotated[int, Parameter(help="Searches from different points.")] = 1,
    seed: Annotated[int, Parameter(help="Of the search.")] = 0,
    journal: Annotated[Path | None, Parameter(help="Keep the generations here; an interrupted fit goes on.")] = None,
    out: Annotated[Path | None, Parameter(help="Write the fit here, for --params.")] = None,
    plot: Annotated[Path | None, Parameter(help="Write predicted against measured times to this picture.")] = None,
    json: Annotated[bool, Flag, Parameter(help="Print the fit as JSON.")] = False,
) -> int:
    """Fit parameters of a deployment to the request times of real runs."""
    import json as as_json

    import serqjax as sq

    from .fit.data import RunData, read_data
    from .traces import Request, TraceFile

    file_name("--plot", plot, (".png", ".pdf", ".svg"))
    runs = [read_data(path) for path in data]
    for run in runs:
        note(str(run))
    names = [name.strip() for name in free.split(",") if name.strip()]
    limits: dict[str, tuple[float, float] | None] = dict.fromkeys(names)
    for text in bounds or ():
        name, _, pair = text.partition("=")
        try:
            low, high = (float(x) for x in pair.split(":"))
        except ValueError:
            raise Usage(f"--bounds {text}: write NAME=LOW:HIGH, for example base_s=1e-3:1e-1") from None
        if name not in limits:
            raise Usage(f"--bounds {text}: {name} is not among --free {free}")
        limits[name] = (low, high)
    first = next((run for run in runs if isinstance(run, RunData)), None)
    if trace is not None:
        rows = recorded(trace)
    elif first is not None:
        columns = (first.sent_s.tolist(), first.input_tok.tolist(), first.output_tok.tolist())
        rows = TraceFile(first.name, "azure_2023", rows=tuple(Request(*row) for row in zip(*columns)))
    else:
        raise Usage(f"--data {runs[0].name}: has summaries alone; give the requests of the run with --trace FILE")
    prog = sq.read(program, settings=settings_of(set_), trace=rows)
    sq.use_compilation_cache()
    found = sq.fit(
        prog, data=runs, free=limits, loss=[part.strip() for part in loss.split(",")], holdout=holdout, method=method,
        restarts=restarts, seed=seed, journal=journal, report=note,
    )  # fmt: skip
    if out is not None:
        found.save(out)
        note(f"written {out}")
    if plot is not None:
        found.plot(plot)
        note(f"picture written to {plot}")
    print(as_json.dumps(found.to_document(), indent=1) if json else found)
    return 0
