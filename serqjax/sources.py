"""What a program can be read from: a file, or the name of a ready-made deployment.

The command line's PROGRAM, `--workload`, `--set` and `--trace` are the arguments of `read`.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from . import costs, deployments, ir, traces, workloads
from .builder import compose
from .errors import ProgramError, nearest
from .importers import read_program
from .overrides import with_params

#: A setting as the command line gives it, or as Python has it.
Setting = str | float | int | bool | None


def read(
    source: str | os.PathLike[str],
    *,
    workload: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Setting] | None = None,
    trace: str | os.PathLike[str] | traces.TraceFile | None = None,
) -> ir.Program:
    """Read a program.

    **Arguments:**
    - `source`: a serQ IR or automaton JSON file, a `.serq` file (needs pyserq), or a ready-made deployment (`vllm`,
      `replicas`, `disaggregated`).
    - `workload`: the workload file of a `.serq` deployment; for a ready-made one `sessions` (default) or `requests`.
    - `settings`: other numbers by name. Parameters of the program (IR 14: `POOL.cap`, `arrival.rate`); for a ready-made
      deployment also its own arguments, its workload's and its cost's.
    - `trace`: a file of recorded requests that replaces the arrivals: warm-up 0, no horizon, every row arrives once.
      A ready-made deployment shares the prefixes that the file records (`hash_ids`), unless `shared_prefixes` is none.

    **Raises:** `ProgramError` with every problem and its place; `ValueError` for a setting that is not known (with the
    nearest one that is).
    """
    settings = dict(settings or {})
    rows = trace if trace is None or isinstance(trace, traces.TraceFile) else traces.read(Path(trace))
    name = os.fspath(source)
    if name in deployments.BY_NAME and not Path(name).exists():
        return _ready_made(name, workload, settings, rows)
    if not Path(name).exists() and not Path(name).suffix:
        raise ProgramError.at(name, "is neither a file nor a ready-made deployment", nearest(name, deployments.BY_NAME))
    # serQ text has inputs (`args.number`), replaced while it is compiled; parameters of pools and arrivals have a dot
    inputs = {k: _number(k, settings.pop(k)) for k in list(settings) if "." not in k} if _is_text(name) else {}
    program = read_program(name, None if workload is None else Path(workload), sets=inputs)
    program = with_params(program, {key: _number(key, value) for key, value in settings.items()})
    return program if rows is None else with_trace(program, rows)


def _is_text(name: str) -> bool:
    return Path(name).suffix == ".serq"


def _ready_made(
    name: str, workload: str | os.PathLike[str] | None, settings: dict[str, Setting], rows: traces.TraceFile | None
) -> ir.Program:
    """A deployment by name with the workload by name, each given the settings that are its own arguments."""
    named = deployments.BY_NAME[name]
    if rows is not None:
        if workload is not None:
            raise ValueError(f"--trace replaces the workload: leave out {os.fspath(workload)}")
        work: Callable[..., Any] = workloads.from_trace
    else:
        chosen = "sessions" if workload is None else os.fspath(workload)
        if chosen not in workloads.BY_NAME:
            raise ValueError(f"{chosen} is no workload of {name}: {nearest(chosen, workloads.BY_NAME)}")
        work = workloads.BY_NAME[chosen]
    if rows is not None and rows.has_prefixes and "shared_prefixes" in named.names:
        settings = {"shared_prefixes": "hash_ids"} | settings
    own = {maker: _arguments(maker, settings) for maker in (work, costs.affine, deployments.owned)}
    of_deployment = {key: as_value(settings[key]) for key in named.names if key in settings}
    rest = {k: v for k, v in settings.items() if not any(k in taken for taken in (of_deployment, *own.values()))}
    numbers = own[costs.affine]
    deployment = named.make_with(of_deployment, costs.affine(**numbers), _COST <= numbers.keys())
    if own[deployments.owned]:
        deployment = deployments.owned(deployment, **own[deployments.owned])
    program = compose(deployment, work(**own[work]) if rows is None else work(rows, **own[work]), name=name)
    known = {p.name for p in program.params} | {*named.names} | {k for maker in own for k in _settable(maker)}
    for key in rest:
        if key not in known:
            raise ValueError(f"{key} is no argument of {name}, its workload or its cost: {nearest(key, known)}")
    # numbers of a cost take the place of those of a first guess
    declared = {p.name for p in program.params}
    rest |= {key: value for key, value in numbers.items() if key in declared}
    if word := next((key for key in numbers if "model" in of_deployment and key not in declared), None):
        raise ValueError(f"{word} cannot be given beside a model: its first guess counts positions")
    return with_params(program, {key: _number(key, value) for key, value in rest.items()})


#: The numbers that make a cost: with all of them none of a first guess is left.
_COST = {"base_s", "per_decode_s", "per_kv_tok_s", "per_prefill_tok_s", "per_attention_s"}


def _settable(maker: Callable[..., Any]) -> list[str]:
    """The arguments of a workload or cost that a setting may name."""
    parameters = inspect.signature(maker).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "classes"]


def _arguments(maker: Callable[..., Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {key: as_value(settings[key]) for key in _settable(maker) if key in settings}


def as_value(setting: Setting) -> Any:
    """A setting's text as the number, truth value, nothing or word that it says."""
    if not isinstance(setting, str):
        return setting
    words = {"true": True, "false": False, "none": None}
    if setting.lower() in words:
        return words[setting.lower()]
    for kind in (int, float):
        try:
            return kind(setting)
        except ValueError:
            pass
    return setting


def _number(key: str, setting: Setting) -> float:
    value = as_value(setting)
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{key}={setting}: a finite number is needed")
    return float(value)


# ---------------------------------------------------------------- traces over programs from files


def with_trace(program: ir.Program, trace: traces.TraceFile) -> ir.Program:
    """`program` with the recorded requests of `trace` as its sessions: warm-up 0, no horizon, every row once.

    Rows with times of their own arrive at them, one session of one turn each. Sessions without times (serQ) arrive by
    the program's own law if it is Poisson or renewal, else all at time 0, in the order of the file.

    **Raises:** `ProgramError` if the program's turns do not read what a trace gives (`new`, `out`) or set it.
    """
    names = {attribute.name for attribute in program.attrs}
    timed = bool(trace.rows)
    columns = ("new", "out") if timed else ("new", "out", "think", "forced")
    if timed:
        turns = tuple(((float(row.input_tok), float(row.output_tok)),) for row in trace.rows)
    else:
        turns = tuple(
            tuple((float(t.new_tok), float(t.output_tok), t.think_s, t.forced) for t in session)
            for session in trace.sessions
        )
    missing = [name for name in ("new", "out") if name not in names]
    set_here = sorted({op.attr for op in program.turn if isinstance(op, ir.Set)} & set(columns))
    if missing:
        raise ProgramError.at(
            "--trace", f"the program has no attribute `{missing[0]}` for a trace to set", "replay it with `vllm`"
        )
    if set_here:
        raise ProgramError.at(
            "--trace", f"the program's own turn sets `{set_here[0]}`", "take that out of its turn block, or use `vllm`"
        )
    kept = [i for i, column in enumerate(columns) if column in names]
    attrs = tuple(columns[i] for i in kept)
    turns = tuple(tuple(tuple(turn[i] for i in kept) for turn in session) for session in turns)
    changes: dict[str, Any] = {"horizon_s": None, "warmup_s": ir.Num(0.0), "arrivals": None, "trace": None}
    recorded = any(isinstance(part, ir.Recorded) for pool in program.pools for part in pool.content)
    contents = tuple(row.hash_ids for row in trace.rows) if recorded else ()
    if not (timed or trace.starts_s) and isinstance(program.arrival, (ir.Poisson, ir.Renewal)):
        changes |= {"trace": ir.Trace(ordered=True, attrs=attrs, turns=turns), "arrivals": len(turns)}
    else:
        at = tuple(row.at_s for row in trace.rows) if timed else trace.starts_s or (0.0,) * len(turns)
        changes["arrival"] = ir.Listed(at=at, turn_attrs=attrs, turns=turns, contents=contents)
    return msgspec.structs.replace(program, **changes)
