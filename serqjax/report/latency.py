"""TTFT, TPOT, ITL and E2E of runs, with the unfinished counted.

The population of TTFT, TPOT and E2E are the requests sent in the measured window and not refused;
of ITL the gaps that ended in it. Values of requests that have not got so far are censored:

- TTFT: no first token yet: at least the request's age.
- E2E: not finished: at least its age.
- TPOT: unfinished after its first token: nothing is known below (bound 0).

A request that its client gave up is censored at the time at which that happened. Where the program tells when requests
reach the engine (facts.py), the engine's own TTFT stands beside the client's; it is censored from there on.

**Source:** `formats.md` (`vllm bench serve`); `cases.md`, rows 13, 14, 16, 17.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..ir.itl import RATIO
from ..ir.program import Program, Step
from .censoring import Censored, Estimate, Sample, mean_of_quantiles, over_seeds, pooled_quantile
from .facts import ENGINE_ARRIVAL, facts
from .raw import RawRun, RequestStatus
from .requests import RequestTable, requests_table
from .statistics import batch_means, merge_buckets
from .units import ratio, seconds

QUANTILES: dict[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


@dataclasses.dataclass(frozen=True)
class Metric:
    """`label` as `vllm bench serve` has it, and its definition in words; values in seconds."""

    label: str
    definition: str
    of: str  # what is counted


METRICS: dict[str, Metric] = {
    "ttft_s": Metric("TTFT", "first token - sent, each request once", "requests"),
    "engine_ttft_s": Metric(
        "TTFT (engine)", "first token made - reached the engine, each request once; TTFT is the client's", "requests"
    ),
    "tpot_s": Metric(
        "TPOT", "(E2E - TTFT) / (output tokens - 1): the mean gap of a request, each request once", "requests"
    ),
    "itl_s": Metric("ITL", "gap between successive tokens, gaps of all requests pooled, each gap once", "gaps"),
    "e2e_s": Metric("E2E", "last token - sent (without tokens: response end - sent), each request once", "requests"),
}


def has_tokens(program: Program) -> bool:
    """Whether the program has an engine: without one there is neither TTFT nor TPOT nor ITL."""
    return any(isinstance(stage.kind, Step) for stage in program.stages)


def latency_samples(program: Program, raw: RawRun, table: RequestTable | None = None) -> dict[str, Sample]:
    """Samples of one run by metric; without an engine only `e2e_s`. `table`: the requests of this run."""
    rows = requests_table(raw, program) if table is None else table
    status = rows["status"]
    counted = rows["measured"] & (status != RequestStatus.rejected)
    open_ = counted & (status != RequestStatus.finished)
    age = rows["age_s"]

    def sample(name: str, censored: np.ndarray, bounds: np.ndarray) -> Sample:
        values = rows[name]
        return Sample.of(values[counted & ~np.isnan(values)], bounds[censored])

    e2e = sample("e2e_s", open_, age)
    if not has_tokens(program):
        return {"e2e_s": e2e}
    no_first = np.isnan(rows["ttft_s"])
    samples = {"ttft_s": sample("ttft_s", open_ & no_first, age)}
    if ENGINE_ARRIVAL in program.observes:
        reached = facts(program, raw).engine_tick
        since = age - seconds(np.maximum(reached - raw.request_sent, 0), raw.tick_s)
        samples["engine_ttft_s"] = sample("engine_ttft_s", open_ & no_first & (reached >= 0), since)
    return samples | {
        "tpot_s": sample("tpot_s", open_ & ~no_first, np.zeros(len(rows))),
        "itl_s": gap_sample(raw),
        "e2e_s": e2e,
    }


def gap_sample(raw: RawRun) -> Sample:
    """Inter-token gaps of all stages: bucket middles (within 0.5 %) with counts, and the exact mean."""
    buckets = merge_buckets(stage.itl_buckets for stage in raw.stages)
    ks = sorted(buckets)
    counts = np.array([buckets[k][0] for k in ks], dtype=np.int64)
    least = np.array([buckets[k][1] for k in ks], dtype=np.float64) * raw.tick_s
    greatest = np.array([buckets[k][2] for k in ks], dtype=np.float64) * raw.tick_s
    middle = np.exp((np.array(ks, dtype=np.float64) + 0.5) * np.log(RATIO))
    total = sum(stage.itl_tick for stage in raw.stages)
    mean = ratio(seconds(total, raw.tick_s), sum(stage.itl_count for stage in raw.stages))
    return Sample(values=np.clip(middle, least, greatest), at_least=np.zeros(0), mean=mean, weights=counts)


def one_run(program: Program, raw: RawRun) -> dict[str, dict[str, object]]:
    """Latencies of one run, JSON data: per metric label, counts, `mean` and quantiles.

    The interval of the mean is by batch means (null below 40 requests; none for ITL).
    """
    out: dict[str, dict[str, object]] = {}
    for name, sample in latency_samples(program, raw).items():
        half = batch_means(sample.values) if sample.weights is None else float("nan")
        mean = Estimate(
            value=sample.mean, low=sample.mean - half, high=sample.mean + half, unfinished=sample.censored
        )
        pool = Censored([sample])
        row = _head(name, sample.known, sample.censored) | {"mean": _short(mean)}
        out[name] = row | {key: _short(pool.quantile(q)) for key, q in QUANTILES.items()}
    return out


def _short(estimate: Estimate) -> dict[str, object]:
    row = estimate.to_dict()
    del row["se"], row["seeds"]
    return row


def _head(name: str, known: int, censored: int) -> dict[str, object]:
    metric = METRICS[name]
    return {"label": metric.label, "definition": metric.definition, metric.of: known, "unfinished": censored}


@dataclasses.dataclass(frozen=True)
class LatencyOverSeeds:
    """One metric over many seeds.

    - `known`, `censored`: values and unfinished requests, all seeds together.
    - `mean`: over seeds, of per-seed means. `pooled[q]`: quantile of all requests together, interval
      clustered by seed. `mean_of_seeds[q]`: mean over seeds of per-seed quantiles.
    - `per_seed`: mean and quantiles of each seed, NaN where unknown, arrays of shape `(seeds,)`.
    """

    name: str
    known: int
    censored: int
    mean: Estimate
    pooled: dict[str, Estimate]
    mean_of_seeds: dict[str, Estimate]
    per_seed: dict[str, np.ndarray]

    def to_dict(self) -> dict[str, object]:
        row = _head(self.name, self.known, self.censored) | {"mean": self.mean.to_dict()}
        for key in QUANTILES:
            row[f"{key}_pooled"] = self.pooled[key].to_dict()
            row[f"{key}_mean_of_seeds"] = self.mean_of_seeds[key].to_dict()
        return row


def over_runs(program: Program, raws: list[RawRun]) -> dict[str, LatencyOverSeeds]:
    """Each metric over independent runs of one program (or of structurally equal ones)."""
    by_run = [latency_samples(program, raw) for raw in raws]
    names = list(by_run[0]) if by_run else []
    out = {}
    for name in names:
        samples = [run[name] for run in by_run]
        singles = [Censored([sample]) for sample in samples]
        pool = Censored(samples)
        censored = sum(sample.censored for sample in samples)
        mean = over_seeds([sample.mean for sample in samples])
        per_seed = {"mean": np.array([sample.mean for sample in samples])}
        per_seed |= {key: np.array([run.quantile(q).value for run in singles]) for key, q in QUANTILES.items()}
        out[name] = LatencyOverSeeds(
            name=name,
            known=sum(sample.known for sample in samples),
            censored=censored,
            mean=dataclasses.replace(mean, unfinished=censored),
            pooled={key: pooled_quantile(pool, singles, q) for key, q in QUANTILES.items()},
            mean_of_seeds={key: mean_of_quantiles(singles, q) for key, q in QUANTILES.items()},
            per_seed=per_seed,
        )
    return out
