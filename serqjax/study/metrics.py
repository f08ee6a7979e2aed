"""Metrics by name: `ttft.p99`, `tpot.mean`, `goodput(ttft<500ms,tpot<50ms)`, `throughput`, `kv_use.mean`.

A name is read once (`metric`) and then asked for the value of any run. The definitions are those of the report
(`docs/metrics.md`); this module only finds them by name and takes parts of the requests.

    NAME                          value
    ttft|tpot|itl|e2e.STAT        seconds; STAT is mean, p50, p99, p99.9, ...
    goodput(COND,...)             share of the requests that meet every condition, such as ttft<500ms
    goodput_rate(COND,...)        the same, in requests per second
    throughput                    requests answered per second
    output_throughput             output tokens of the answered requests per second
    requests_per_gpu              throughput over the program's parameter `gpus`
    cost_per_mtok                 price per million output tokens; needs `gpus` and `price_per_gpu_hour`
    kv_use.mean                   mean share of the pool `kv` that is in use; POOL_use.mean for any pool
    unfinished, rejected          share of the requests
    stages.NAME.FIELD, pools.NAME.FIELD, observes.NAME.FIELD, gauges.NAME.FIELD: fields of the report

Those of requests take a part of them in brackets: `ttft.p99[turn=1]`, `goodput(ttft<1s)[priority=0]`.

**Source:** `docs/metrics.md`; `docs/capacity.md`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import nearest
from ..ir.program import Program
from ..ir.structure import number
from ..report.censoring import Censored, Estimate, Sample
from ..report.latency import has_tokens, latency_samples
from ..report.raw import RawRun, RequestStatus
from ..report.requests import RequestTable, answered, measured_s
from ..report.units import ratio, seconds
from ..results import Run

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01, "": 1.0}
SHARES = {"unfinished": (RequestStatus.running, RequestStatus.queued), "rejected": (RequestStatus.rejected,)}
TIMES = frozenset(UNITS) - {"%"}
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z%]*)")


def quantity(text: str, what: str) -> float:
    """A number with its unit: `500ms` is 0.5, `2 %` is 0.02, a bare number is itself (times: seconds).

    **Raises:** `ValueError` that quotes the text.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in UNITS:
        raise ValueError(f"{what}: `{text.strip()}` is not a number with a unit such as 500ms, 0.5s or 2%")
    value = float(match[1]) * UNITS[match[2]]
    if not math.isfinite(value):
        raise ValueError(f"{what}: `{text.strip()}` is not a finite number")
    return value


@dataclasses.dataclass(frozen=True)
class Condition:
    """`ttft<500ms`: one latency of a request and its limit, seconds."""

    latency: str
    limit_s: float


@dataclasses.dataclass(frozen=True)
class Part:
    """Requests whose `column` is `value` (all, without a column)."""

    column: str = ""
    value: str = ""

    def of(self, table: RequestTable) -> np.ndarray:
        """Which rows are in it, bool. **Raises:** `ValueError` for a column that the requests do not have."""
        if not self.column:
            return np.ones(len(table), dtype=bool)
        values = column(table, self.column)
        if values.dtype.kind in "iufb":
            return values == quantity(self.value, f"[{self.column}={self.value}]")
        return values.astype(str) == self.value


def column(table: RequestTable, name: str) -> np.ndarray:
    """A column by which requests are grouped. **Raises:** `ValueError` that names those there are."""
    if not said(table, name):
        raise ValueError(
            f"the requests of this program have no column `{name}`: {nearest(name, groupings(table))} "
            "(a workload gives requests a priority or a class)"
        )
    values = np.asarray(table.columns[name])
    if name != "class":
        return values
    known = np.asarray([*table.class_names, ""])  # the last: none
    return known[np.where(np.isnan(values), len(known) - 1, values).astype(np.int64)]


def groupings(table: RequestTable) -> list[str]:
    """Columns that tell requests apart: not times, not serial numbers."""
    out = ("run", "seed", "session", "status", "measured", "output_tok")
    return [name for name in table.columns if name not in out and not name.endswith("_s") and said(table, name)]


def said(table: RequestTable, name: str) -> bool:
    """Whether the requests have such a column, with something in it."""
    values = table.columns.get(name)
    return values is not None and not (len(values) and values.dtype.kind == "f" and bool(np.isnan(values).all()))


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric that has been read from its `name`.

    - `kind`: `quantile`, `mean`, `goodput`, `goodput_rate`, `share` or `scalar`. `base`: what it is of.
    - `q`: of a quantile. `conditions`: of a goodput. `part`: the requests it is about. `unit`: of its values.
    """

    name: str
    kind: str
    base: str
    unit: str
    q: float = math.nan
    conditions: tuple[Condition, ...] = ()
    part: Part = Part()

    @property
    def of_requests(self) -> bool:
        """Whether it is a sum over requests, so that windows of them can be drawn anew."""
        return self.kind in ("goodput", "share") or (self.kind in ("quantile", "mean") and self.base != "itl")

    def value(self, run: Run) -> Estimate:
        """Of one run. The estimate has no interval; unknown values are NaN, with a `lower_bound` if there is one."""
        if self.kind in ("quantile", "mean"):
            sample = self.sample(run)
            if self.kind == "quantile":
                return Censored([sample]).quantile(self.q)
            return Estimate(value=sample.mean, unfinished=sample.censored)
        if self.kind == "scalar":
            return Estimate(value=_scalar(self.base, run.program, run))
        good, counted = self.hits(run, 0.0)
        if self.kind == "goodput_rate":
            return Estimate(value=ratio(float(good.sum()), measured_s(run.raw)))
        return Estimate(value=ratio(float(good.sum()), float(counted.sum())))

    def sample(self, run: Run) -> Sample:
        """The latencies of one run with the unfinished at their ages."""
        table = run.requests
        if self.part.column:
            chosen = self.part.of(table)
            table = RequestTable({name: values[chosen] for name, values in table.columns.items()})
        samples = latency_samples(run.program, run.raw, table)
        if f"{self.base}_s" not in samples:
            raise ValueError(f"{self.name}: {run.program.name} has no engine that makes tokens: use e2e")
        return samples[f"{self.base}_s"]

    def hits(self, run: Run, cooldown_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Of a goodput or a share: which requests have what is asked, and which are counted; bool, one per request.

        `cooldown_s`: requests sent so shortly before the end of the run are not counted.
        """
        table = run.requests
        status = table["status"]
        counted = table["measured"] & self.part.of(table) & (table["sent_s"] <= end_s(run.raw) - cooldown_s)
        if self.kind == "share":
            return counted & np.isin(status, SHARES[self.base]), counted
        good = counted & ~np.isin(status, (RequestStatus.rejected, RequestStatus.abandoned))
        for condition in self.conditions:
            good = good & meets(run, condition)
        return good, counted


def meets(run: Run, condition: Condition) -> np.ndarray:
    """Requests whose latency is known to be below the limit, bool. An unfinished request meets nothing it has not got.

    A finished request that has no such latency (TPOT of a single token) has nothing to miss.
    """
    if condition.latency != "e2e" and not has_tokens(run.program):
        raise ValueError(f"{condition.latency}: {run.program.name} has no engine that makes tokens: use e2e")
    table = run.requests
    values = table[f"{condition.latency}_s"]
    with np.errstate(invalid="ignore"):
        below = values < condition.limit_s
    return below | (np.isnan(values) & (table["status"] == RequestStatus.finished))


def end_s(raw: RawRun) -> float:
    return float(seconds(raw.end_tick, raw.tick_s))


# ---------------------------------------------------------------- numbers of a whole run


def _throughput(program: Program, run: Run) -> float:
    return ratio(int(answered(run.raw, run.requests).sum()), measured_s(run.raw))


def _output_throughput(program: Program, run: Run) -> float:
    tokens = run.raw.request_tokens[answered(run.raw, run.requests)]
    return ratio(int(tokens.sum()), measured_s(run.raw))


def _per_gpu(program: Program, run: Run) -> float:
    return _throughput(program, run) / owned(program, "gpus")


def _cost(program: Program, run: Run) -> float:
    hourly = owned(program, "gpus") * owned(program, "price_per_gpu_hour")
    return ratio(hourly * 1e6, 3600.0 * _output_throughput(program, run))


def owned(program: Program, name: str) -> float:
    """A parameter that says what the deployment stands on, `gpus` or `price_per_gpu_hour`.

    **Raises:** `ValueError` if the deployment does not say it.
    """
    for parameter in program.params:
        if parameter.name == name:
            return parameter.value
    raise ValueError(
        f"{program.name} does not say its `{name}`: "
        "use deployments.owned(deployment, gpus=..., price_per_gpu_hour=...), or --set gpus=... on the command line"
    )


SCALARS: dict[str, tuple[str, Callable[[Program, Run], float]]] = {
    "throughput": ("requests/s", _throughput),
    "output_throughput": ("tokens/s", _output_throughput),
    "requests_per_gpu": ("requests/s per GPU", _per_gpu),
    "cost_per_mtok": ("price per 10^6 output tokens", _cost),
}
FIELDS = ("stages", "pools", "observes", "gauges")


def _scalar(base: str, program: Program, run: Run) -> float:
    if base in SCALARS:
        return float(SCALARS[base][1](program, run))
    if base.endswith("_use.mean"):
        return _pool_use(base.removesuffix("_use.mean"), program, run)
    group, name, field = base.split(".", 1)[0], base.split(".", 1)[1].rsplit(".", 1)[0], base.rsplit(".", 1)[1]
    rows = run.report[group]
    if isinstance(rows, list):
        rows = {r["name"] if r["index"] is None else f"{r['name']}[{r['index']}]": r for r in rows}
    if name not in rows:
        raise ValueError(f"{base}: {program.name} has no {name} among its {group}: {nearest(name, rows)}")
    row = rows[name]
    if field not in row or not isinstance(row[field], (int, float, type(None))):
        known = [key for key, value in row.items() if isinstance(value, (int, float))]
        raise ValueError(f"{base}: no field {field}: {nearest(field, known)}")
    return math.nan if row[field] is None else float(row[field])


def _pool_use(name: str, program: Program, run: Run) -> float:
    """Mean use over the cap, all members of an array together."""
    rows = [(pool, row) for pool, row in zip(program.pools, run.report["pools"]) if row["name"] == name]
    if not rows:
        known = [pool.array or pool.name for pool in program.pools]
        raise ValueError(f"{name}_use.mean: {program.name} has no pool {name}: {nearest(name, known)}")
    cap = sum(float(number(program, pool.cap) or 0.0) for pool, _ in rows)
    used = [row["mean_used"] for _, row in rows]
    return math.nan if any(u is None for u in used) else ratio(math.fsum(used), cap)


# ---------------------------------------------------------------- reading names

_PART = re.compile(r"(.*?)\[\s*([A-Za-z_]\w*)\s*=\s*([^\]]+?)\s*\]")
_LATENCY = re.compile(r"(ttft|tpot|itl|e2e)\.(mean|p(\d{1,2}(?:\.\d+)?))")
_GOODPUT = re.compile(r"(goodput|goodput_rate)\((.*)\)")
EXAMPLES = ("ttft.p99", "tpot.mean", "itl.p99", "e2e.p50", "goodput(ttft<500ms,tpot<50ms)", "unfinished", "rejected",
            "kv_use.mean", "stages.NAME.utilization", "pools.NAME.mean_used", *SCALARS)


def metric(text: str) -> Metric:
    """Read the name of a metric; the module's head lists them.

    **Raises:** `ValueError` that quotes the name and gives the nearest one known.
    """
    name = "".join(text.split())
    part, core = Part(), name
    if match := _PART.fullmatch(name):
        core, part = match[1], Part(match[2], match[3])
    if match := _LATENCY.fullmatch(core):
        if part.column and match[1] == "itl":
            raise ValueError(f"{text}: gaps of all requests are pooled, there is no part of them: use tpot")
        if match[2] == "mean":
            return Metric(name, "mean", match[1], "s", part=part)
        q = float(match[3]) / 100.0
        if not 0.0 < q < 1.0:
            raise ValueError(f"{text}: a percentile between 0 and 100 is needed, such as p99 or p99.9")
        return Metric(name, "quantile", match[1], "s", q=q, part=part)
    if match := _GOODPUT.fullmatch(core):
        conditions = tuple(_condition(word, text) for word in match[2].split(","))
        return Metric(name, match[1], "", "share" if match[1] == "goodput" else "requests/s", conditions=conditions,
                      part=part)
    if core in ("unfinished", "rejected"):
        return Metric(name, "share", core, "share", part=part)
    group = core.split(".", 1)[0]
    known = core in SCALARS or re.fullmatch(r"\w+_use\.mean", core) or (group in FIELDS and core.count(".") >= 2)
    if not known:
        raise ValueError(f"{text} is no metric: {nearest(core, EXAMPLES)}")
    if part.column:
        raise ValueError(f"{text}: {core} is of the whole run, there is no part of it by {part.column}")
    unit = SCALARS[core][0] if core in SCALARS else "share" if core.endswith("_use.mean") else ""
    return Metric(name, "scalar", core, unit)


def _condition(word: str, whole: str) -> Condition:
    match = re.fullmatch(r"(ttft|tpot|e2e)<=?(.+)", word)
    if match is None:
        raise ValueError(f"{whole}: `{word}` is no condition on a request: write ttft<500ms, tpot<50ms or e2e<10s")
    return Condition(match[1], positive_time(match[2], whole))


def positive_time(text: str, whole: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is not None and match[2] not in TIMES:
        raise ValueError(f"{whole}: `{text}` is not a time: write it as 500ms or 0.5s")
    limit = quantity(text, whole)
    if limit <= 0:
        raise ValueError(f"{whole}: a time above 0 is needed")
    return limit


# ---------------------------------------------------------------- tables


def over_runs(runs: Sequence[Run], name: str | Metric, confidence: float = 0.95) -> Estimate:
    """A metric over independent runs: mean over seeds of each seed's own value, with Student's interval.

    `> x` if it is among the unfinished requests in one of them.
    """
    from .precision import mean_interval

    which = metric(name) if isinstance(name, str) else name
    each = [which.value(run) for run in runs]
    unknown = [e for e in each if math.isnan(e.value)]
    if not any(not math.isnan(e.lower_bound) for e in unknown):
        return mean_interval([e.value for e in each if not math.isnan(e.value)], confidence,
                             unfinished=sum(e.unfinished for e in each))
    bounds = [e.value if math.isnan(e.lower_bound) else e.lower_bound for e in each]
    bound = mean_interval([b for b in bounds if not math.isnan(b)], confidence)
    return dataclasses.replace(bound, value=math.nan, lower_bound=bound.value, high=math.inf)


def table(result: Any, names: Sequence[str], *, by: str | None = None) -> Any:
    """Metrics of a `Run` or `Runs` as a polars table: `metric, [by], value, low, high, lower_bound, unit, seeds`.

    **Arguments:** `names`: of metrics. `by`: a column of the requests (`turn`, `priority`, `class`, ...): one row for
    each of its values.
    **Raises:** `ValueError` for a name or a column that is not there.
    """
    import polars

    runs = [result] if isinstance(result, Run) else list(result)
    groups: list[str | None] = [None]
    if by is not None:
        values = np.unique(np.concatenate([column(run.requests, by) for run in runs]))
        groups = [f"{v:g}" if values.dtype.kind in "iufb" else str(v) for v in values]
    rows = []
    for name in names:
        for group in groups:
            which = metric(name if group is None else f"{name}[{by}={group}]")
            e = over_runs(runs, which)
            rows.append((name, group, e.value, e.low, e.high, e.lower_bound, which.unit, e.seeds))
    schema = {"metric": polars.String, "by": polars.String} | dict.fromkeys(
        ("value", "low", "high", "lower_bound"), polars.Float64) | {"unit": polars.String, "seeds": polars.Int64}
    frame = polars.DataFrame(rows, schema=schema, orient="row").with_columns(polars.col(polars.Float64).fill_nan(None))
    return frame.drop("by") if by is None else frame.rename({"by": by})


__all__ = ["Condition", "Metric", "Part", "metric", "over_runs", "table"]
