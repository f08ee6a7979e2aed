"""Many seeds of one program: estimates with intervals, verdicts, per-seed values.

Runs with the verdict `capacity` or `error` stopped for a reason outside the program's meaning: they
are counted and named, and enter no estimate. All others enter, the stuck ones included: their
unfinished requests are censored (censoring.py).

**Source:** `design.md`, section 3 (report).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.program import Program
from .censoring import Estimate, over_seeds
from .latency import METRICS, QUANTILES, LatencyOverSeeds, over_runs
from .raw import RawRun, Verdict
from .reference import reference_report
from .requests import request_counts
from .units import plain
from .verdict import FinalVerdict, final_verdict

if TYPE_CHECKING:
    import polars

#: Verdicts whose runs enter no estimate.
LEFT_OUT = (Verdict.capacity, Verdict.error)
#: Verdicts under which a program's own observations miss what the unfinished would have added.
UNFINISHED = (Verdict.unstable, Verdict.deadlock, Verdict.livelock)
#: At most so many different causes are listed per verdict; the rest is counted.
MOST_CAUSES = 5

_LABELS = ("name", "index", "ci", "cv2", "over_cap", "growing_stalled", "idle_with_work", "count")


@dataclasses.dataclass(frozen=True)
class Summary:
    """What many runs say together.

    - `seeds`: of all runs, in order; `used`: how many entered the estimates.
    - `verdicts`: of all runs. `requests`: counts of all runs.
    - `latency`: TTFT, TPOT, ITL, E2E. `observes`, `client`, `stages`, `pools`: the fields of the reference
      report, each as a mean over seeds; so are `gauges` (mean, min, max). `claims`: how often each result came.
    - `reports`: the reference report of each run.
    """

    seeds: tuple[int, ...]
    used: int
    verdicts: tuple[FinalVerdict, ...]
    requests: dict[str, int]
    latency: dict[str, LatencyOverSeeds]
    totals: dict[str, Estimate]
    observes: dict[str, dict[str, Estimate]]
    client: dict[str, dict[str, Estimate]]
    stages: list[dict[str, Any]]
    pools: list[dict[str, Any]]
    gauges: dict[str, dict[str, Estimate]]
    claims: dict[str, dict[str, int]]
    reports: list[dict[str, Any]]

    def verdict_counts(self) -> dict[str, dict[str, Any]]:
        """`{verdict: {"count": runs, "causes": {cause: runs}}}`, verdicts in their fixed order."""
        out: dict[str, dict[str, Any]] = {}
        for verdict in Verdict:
            own = [v for v in self.verdicts if v.verdict == verdict]
            if not own:
                continue
            causes: dict[str, int] = {}
            for v in own:
                if v.cause in causes or len(causes) < MOST_CAUSES:
                    causes[v.cause] = causes.get(v.cause, 0) + 1
            listed = sum(causes.values())
            if listed < len(own):
                causes["others, each with its own cause (see the runs)"] = len(own) - listed
            causes.pop("", None)
            out[verdict.name] = {"count": len(own), "causes": causes}
        return out

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return plain(
            {
                "seeds": len(self.seeds),
                "used": self.used,
                "verdicts": self.verdict_counts(),
                "requests": self.requests,
                "latency": {name: row.to_dict() for name, row in self.latency.items()},
                "totals": _dicts(self.totals),
                "observes": {name: _dicts(row) for name, row in self.observes.items()},
                "client": {name: _dicts(row) for name, row in self.client.items()},
                "stages": [_dicts(row) for row in self.stages],
                "pools": [_dicts(row) for row in self.pools],
                **({"gauges": {name: _dicts(row) for name, row in self.gauges.items()}} if self.gauges else {}),
                **({"claims": self.claims} if self.claims else {}),
            }
        )

    def to_polars(self) -> polars.DataFrame:
        """Estimates in long form: `group, name, statistic, value, se, low, high, lower_bound, seeds, unfinished`."""
        import polars

        rows = [
            (*place, e.value, e.se, e.low, e.high, e.lower_bound, e.seeds, e.unfinished) for place, e in self._walk()
        ]
        names = ("group", "name", "statistic", "value", "se", "low", "high", "lower_bound", "seeds", "unfinished")
        kinds = [polars.String] * 3 + [polars.Float64] * 5 + [polars.Int64] * 2
        frame = polars.DataFrame(rows, schema=dict(zip(names, kinds)), orient="row")
        return frame.with_columns(polars.col(polars.Float64).fill_nan(None))

    def per_seed(self) -> polars.DataFrame:
        """Values of each run that entered: `seed, metric, mean, p50, p90, p95, p99` (seconds; null: not known)."""
        import polars

        seeds = [s for s, v in zip(self.seeds, self.verdicts) if v.verdict not in LEFT_OUT]
        frames = [
            polars.DataFrame({"seed": seeds, "metric": [name] * len(seeds), **row.per_seed}, nan_to_null=True)
            for name, row in self.latency.items()
        ]
        return polars.concat(frames) if frames else polars.DataFrame()

    def _walk(self):
        for name, row in self.latency.items():
            yield ("latency", name, "mean"), row.mean
            for key in QUANTILES:
                yield ("latency", name, f"{key}_pooled"), row.pooled[key]
                yield ("latency", name, f"{key}_mean_of_seeds"), row.mean_of_seeds[key]
        for key, estimate in self.totals.items():
            yield ("run", "", key), estimate
        for group, rows in (("observes", self.observes), ("client", self.client), ("gauges", self.gauges)):
            for name, row in rows.items():
                for key, estimate in row.items():
                    yield (group, name, key), estimate
        for group, resources in (("stages", self.stages), ("pools", self.pools)):
            for row in resources:
                label = row["name"] if row["index"] is None else f"{row['name']}[{row['index']}]"
                for key, estimate in row.items():
                    if isinstance(estimate, Estimate):
                        yield (group, label, key), estimate

    def __str__(self) -> str:
        from .tables import summary_text

        return summary_text(self)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def summarize(program: Program, raws: Sequence[RawRun]) -> Summary:
    """Summary of runs of one program with different seeds (its numbers may differ, its structure not).

    **Raises:** `ValueError` without runs.
    """
    raws = list(raws)
    if not raws:
        raise ValueError("there is no run to summarize: give at least one seed")
    verdicts = [final_verdict(program, raw) for raw in raws]
    reports = [reference_report(program, raw) for raw in raws]
    used = [i for i, v in enumerate(verdicts) if v.verdict not in LEFT_OUT]
    kept = [reports[i] for i in used]
    broken = sum(verdicts[i].verdict in UNFINISHED for i in used)
    return Summary(
        seeds=tuple(raw.seed for raw in raws),
        used=len(used),
        verdicts=tuple(verdicts),
        requests=request_counts(raws, program),
        latency=over_runs(program, [raws[i] for i in used]),
        totals={key: _field(kept, key) for key in ("end", "arrivals", "ended", "turns", "mean_live")},
        observes={name: _observed([r["observes"][name] for r in kept], broken) for name in program.observes},
        client={name: _observed([r["client"][name] for r in kept], broken) for name in ("ttft", "tpot", "response")},
        stages=[_resource([r["stages"][i] for r in kept], reports[0]["stages"][i]) for i in range(len(program.stages))],
        pools=[_resource([r["pools"][i] for r in kept], reports[0]["pools"][i]) for i in range(len(program.pools))],
        gauges={g.name: _gauge([r["gauges"][g.name] for r in kept]) for g in program.gauges},
        claims={claim.name: _results([r["claims"][i] for r in reports]) for i, claim in enumerate(program.claims)},
        reports=reports,
    )


def _gauge(rows: list[dict[str, Any]]) -> dict[str, Estimate]:
    return {key: _field(rows, key) for key in ("mean", "min", "max")}


def _results(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How often each result of a claim came, over all runs."""
    return dict(Counter(row["result"] for row in rows))


def _field(rows: list[dict[str, Any]], key: str) -> Estimate:
    return over_seeds(np.array([math.nan if row[key] is None else row[key] for row in rows], dtype=np.float64))


def _observed(rows: list[dict[str, Any]], broken: int) -> dict[str, Estimate]:
    """Means over seeds of one observation's fields.

    When `broken` runs ended unstable or stuck, p99 is not known, and no bound either: what the
    unfinished would have observed may be anything.
    """
    p99 = Estimate(value=math.nan, seeds=0) if broken else _field(rows, "p99")
    return {"count": _field(rows, "count"), "mean": _field(rows, "mean"), "cv2": _field(rows, "cv2"), "p99": p99}


def _resource(rows: list[dict[str, Any]], like: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"name": like["name"], "index": like["index"]}
    return out | {key: _field(rows, key) for key in like if key not in _LABELS}


def _dicts(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value.to_dict() if isinstance(value, Estimate) else value for key, value in row.items()}


__all__ = ["METRICS", "Summary", "summarize"]
