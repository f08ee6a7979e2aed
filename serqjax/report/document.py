"""The JSON documents of the command line: data of the runs alone, so that equal runs give equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.program import Program
from .latency import one_run
from .raw import RawRun
from .reference import reference_report
from .requests import request_counts
from .summary import Summary, summarize
from .units import dumps, plain
from .verdict import final_verdict


def run_document(program: Program, raw: RawRun) -> dict[str, Any]:
    """One seed: `{"report", "verdict", "cause", "requests", "latency"}`.

    `report` has the reference's fields and definitions (its p99 is that of the samples made; `latency`
    counts the unfinished).
    """
    verdict = final_verdict(program, raw)
    return plain(
        {
            "report": reference_report(program, raw),
            "verdict": verdict.name,
            "cause": verdict.cause,
            "requests": request_counts(raw, program),
            "latency": one_run(program, raw),
        }
    )


def batch_document(program: Program, raws: Sequence[RawRun], summary: Summary | None = None) -> dict[str, Any]:
    """Many seeds: `{"summary", "runs": [{"seed", "verdict", "cause", "requests", "report"}...], "requests"}`.

    `requests` counts all runs together.
    """
    raws = list(raws)
    summary = summarize(program, raws) if summary is None else summary
    runs = [
        {
            "seed": raw.seed,
            "verdict": verdict.name,
            "cause": verdict.cause,
            "requests": request_counts(raw, program),
            "report": report,
        }
        for raw, verdict, report in zip(raws, summary.verdicts, summary.reports)
    ]
    return plain({"summary": summary.to_dict(), "runs": runs, "requests": summary.requests})


__all__ = ["batch_document", "dumps", "run_document"]
