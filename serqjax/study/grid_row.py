"""One run as one row of numbers, and rows as a table.

A row holds what the reports of the run hold, under fixed names with their units; what is not known is null. Everything
is computed by the functions that report a single run, so that a row is what `serqjax run` would have said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..ir.program import Program, Step
from ..report.raw import RawRun
from .grid_points import Value, column

if TYPE_CHECKING:
    import polars

#: Fields of the reference report that have a unit, and the column's ending.
UNITS = {"throughput": "_per_s"} | dict.fromkeys(
    ("mean_wait", "mean_service", "mean_decode_step", "mean_itl", "itl_p50", "itl_p99", "first"), "_s"
)
#: Fields of a stage that only an engine has.
STEP_FIELDS = ("iterations", "prefill_only", "decode_only", "mixed", "mean_decodes", "mean_decode_batch",
               "mean_decode_step", "mean_itl", "itl_p50", "itl_p99", "idle_with_work")
#: Fields that are counts; other numbers of a report are float64.
COUNTS = ("count", "completed", "iterations", "admissions", "evicted_entries", "preemptions", "spills", "rejected",
          "stuck", "growing_at_end", "failures", "checked")
FLAGS = ("idle_with_work", "growing_stalled")
WORDS = ("result",)


def row(program: Program, raw: RawRun) -> dict[str, Any]:
    """The row of one run: `docs/studies.md` lists the columns. Python values; None where something does not exist."""
    from ..report.censoring import Censored
    from ..report.latency import QUANTILES, has_tokens, latency_samples
    from ..report.reference import reference_report
    from ..report.requests import answered, measured_s, requests_table
    from ..report.units import ratio
    from ..report.verdict import final_verdict

    table = requests_table(raw, program)
    verdict = final_verdict(program, raw)
    span_s, ended = measured_s(raw), answered(raw, table)
    out: dict[str, Any] = {"verdict": verdict.name, "cause": verdict.cause}
    out |= {f"requests_{name}": count for name, count in table.counts.items()}
    out["requests_per_s"] = _known(ratio(int(ended.sum()), span_s))
    if has_tokens(program):
        out["output_tok_per_s"] = _known(ratio(int(raw.request_tokens[ended].sum()), span_s))
    for name, sample in latency_samples(program, raw, table).items():
        head = name.removesuffix("_s")
        out[f"{head}_count"], out[f"{head}_unfinished"] = sample.known, sample.censored
        out[f"{head}_mean_s"] = _known(sample.mean)
        own = Censored([sample])
        for key, q in QUANTILES.items():
            estimate = own.quantile(q)
            out[f"{head}_{key}_s"] = _known(estimate.value)
            out[f"{head}_{key}_at_least_s"] = _known(estimate.lower_bound)
    report = reference_report(program, raw)
    out |= {"end_s": _float(report["end"]), "measured_from_s": _float(report["warmup"])}
    out |= {f"sessions_{name}": report[name] for name in ("arrivals", "ended")}
    out |= {"turns_measured": report["turns"], "mean_live": _float(report["mean_live"])}
    for name, fields in report["observes"].items():
        out |= _fields(f"observes.{name}", fields)
    for name, fields in report["gauges"].items():
        out |= _fields(f"gauges.{name}", fields)
    for fields in report.get("claims", ()):
        out |= _fields(f"claims.{fields['name']}", fields)
    for stage, fields in zip(program.stages, report["stages"]):
        left_out = () if isinstance(stage.kind, Step) else STEP_FIELDS
        out |= _fields(f"stages.{stage.name}", {k: v for k, v in fields.items() if k not in left_out})
    for pool, fields in zip(program.pools, report["pools"]):
        out |= _fields(f"pools.{pool.name}", fields)
    return out


def _fields(head: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one part of a report as columns `HEAD.FIELD` with their units."""
    out = {}
    for key, value in fields.items():
        if key in ("name", "index", "kind"):
            continue
        name = f"{head}.{key}{UNITS.get(key, '')}"
        if key == "over_cap":
            out[f"{head}.over_cap_need"] = None if value is None else float(value["need"])
        elif key in COUNTS or key in FLAGS or key in WORDS or value is None:
            out[name] = value
        else:
            out[name] = float(value)
    return out


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _float(value: float | int | None) -> float | None:
    return None if value is None else float(value)


def kind_of(name: str) -> Any:
    """The type of a column of `row` in the table."""
    import polars

    last = name.rpartition(".")[2]
    counts = ("requests_in", "requests_finished", "requests_running", "requests_queued", "requests_rejected",
              "requests_abandoned", "sessions_arrivals", "sessions_ended", "turns_measured")
    if name in ("verdict", "cause") or last in WORDS:
        return polars.String
    if last in FLAGS:
        return polars.Boolean
    whole = name in counts or last in COUNTS or (name == last and name.endswith(("_count", "_unfinished")))
    return polars.Int64 if whole else polars.Float64


def frame(
    points: Sequence[int], seeds: Sequence[int], varied: Mapping[str, Sequence[Value]], kinds: Mapping[str, type],
    rows: Sequence[Mapping[str, Any]],
) -> polars.DataFrame:  # fmt: skip
    """Rows as a table: `point, seed`, the varied names, then the columns of `row` in the order of their first
    appearance. A column that some structures do not have is null in their rows."""
    import polars

    own = {int: polars.Int64, float: polars.Float64, bool: polars.Boolean, str: polars.String}
    columns: dict[str, None] = {}
    for one in rows:
        columns |= dict.fromkeys(one)
    series = [polars.Series("point", list(points), polars.Int64), polars.Series("seed", list(seeds), polars.UInt64)]
    for name, values in varied.items():
        cells = [_word(v) for v in values] if kinds[name] is str else list(values)
        series.append(polars.Series(name, cells, own[kinds[name]], strict=False))
    series += [polars.Series(name, [one.get(name) for one in rows], kind_of(name)) for name in columns]
    return polars.DataFrame(series)


def _word(value: Value) -> str:
    """A value in a column of words, as the command line writes it."""
    return {None: "none", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else (
        f"{value:g}" if isinstance(value, float) else str(value)
    )


__all__ = ["column", "frame", "kind_of", "row"]
