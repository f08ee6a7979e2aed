"""The programs of the reference's corpus: its stored samples and reports against oracle and array engine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import msgspec
import pytest
from compare_runs import as_program, first_difference, run_engine, run_oracle
from helpers import shared_dir

from serqjax.ir.expr import Num
from serqjax.ir.program import Program
from serqjax.ir.structure import number
from serqjax.report.compare import differences, sample_differences
from serqjax.report.raw import RawRun
from serqjax.report.reference import reference_report

DETERMINISTIC = [
    "claims",
    "det_chunk",
    "det_decode_first",
    "det_evict_by",
    "det_evict_lru",
    "det_exclusive",
    "det_granule",
    "det_hol",
    "det_one",
    "det_one_cached",
    "det_only_phase",
    "det_over_reuse",
    "det_preempt_decode",
    "det_preempt_decode_cached",
    "det_preempt_none",
    "det_preempt_prefill",
    "det_preempt_tail",
    "det_queue_by",
    "det_register",
    "det_reqcap",
    "det_reserve",
    "det_reserve_held",
    "det_self_preempt_stuck",
    "det_srpt",
    "flag_idle",
    "flag_growing_stalled",
    "flag_over_cap",
    "flag_rejected",
    "grow_preempt",
    "nested_holds",
    "pd_det_bottleneck",
    "pd_det_maxmin",
    "pd_lease_expiry",
    "queue_every",
    "shrink",
    "spill_tier",
    "trace_ordered_batch",
]
STOCHASTIC = [
    "hold_engine",
    "hold_engine_cached",
    "trace_ordered_poisson",
    "trace_random",
    "closed_mva",
    "delay_inf",
    "flows_bottleneck",
    "flows_maxmin",
    "md1",
    "mem_fifo",
    "mem_sjf",
    "mg1_h2",
    "mm1",
    "mmc3",
    "pd_stoch",
    "ps_limited",
    "ps_mg1",
    "renewal_erlang",
    "renewal_drain",
    "text_mm1",
    "text_vllm",
    "vllm_single",
    "vllm_single_chunked",
    "vllm_multi",
    "vllm_multi_tight",
    "route_jsq",
    "route_lwl",
    "route_random_key",
    "forkjoin",
    "forkjoin_mem",
    "pd_stoch",
]
#: Places that are not compared, per program, each with its reason. Applies to oracle and engine alike.
EXCEPTIONS: dict[str, dict[str, str]] = {}
BATCH, LANE = 64, 17
#: A structure of their own each, of a kind that test_generated.py runs: batches of these are marked slow.
RARE = {
    "det_exclusive", "det_granule", "det_only_phase", "flag_idle", "flows_bottleneck", "forkjoin", "mem_sjf",
    "pd_det_bottleneck", "pd_det_maxmin", "pd_lease_expiry", "pd_stoch", "ps_limited", "route_jsq", "route_lwl",
}  # fmt: skip
#: Run at batch 1 in every run of the tests.
ALONE = {"det_evict_by", "det_preempt_decode_cached", "det_preempt_none", "det_srpt", "mm1", "text_vllm"}


def folder_of(name: str) -> Path:
    folder = shared_dir() / "programs" / name
    if not folder.is_dir():
        pytest.skip(f"no program {name} under {folder.parent}")
    return folder


@cache
def program_of(name: str) -> Program:
    folder = folder_of(name)
    return as_program((folder / "program.ir14.json").read_text(), folder=folder)


def stored_difference(name: str, raw: RawRun) -> str | None:
    """Where a run differs from the stored samples and report."""
    folder = folder_of(name)
    report = json.loads((folder / "report.json").read_text())
    samples = json.loads((folder / "samples.json").read_text())
    skip = EXCEPTIONS.get(name, {})
    found = sample_differences(program_of(name), raw, samples, exceptions=skip)
    found += differences(reference_report(program_of(name), raw), report, exceptions=skip)
    return "\n".join(found) or None


@cache
def oracle_of(name: str) -> RawRun:
    return run_oracle(program_of(name))


@pytest.mark.parametrize("name", DETERMINISTIC + STOCHASTIC)
def test_oracle_gives_the_stored_samples_and_report(name: str) -> None:
    found = stored_difference(name, oracle_of(name))
    assert found is None, f"oracle:\n{found}"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in DETERMINISTIC + STOCHASTIC],
)
def test_engine_in_a_batch(name: str) -> None:
    """Lane 17 of 64 is the oracle's run, action by action, and gives the stored samples and report."""
    program = program_of(name)
    # The other lanes run other seeds, of long programs only the beginning (the horizon is no structure).
    other = program
    if name in STOCHASTIC and program.arrivals is None:
        horizon_s = number(program, program.horizon_s)
        assert horizon_s is not None
        other = msgspec.structs.replace(program, horizon_s=Num(horizon_s / 30), warmup_s=Num(0.0))
    programs = [program if lane == LANE else other for lane in range(BATCH)]
    seeds = [program.seed if lane == LANE else program.seed + 1000 + lane for lane in range(BATCH)]
    runs = run_engine(programs, seeds)
    for lane in (LANE, 0, BATCH - 1):
        expected = oracle_of(name) if lane == LANE else run_oracle(programs[lane], seed=seeds[lane])
        found = first_difference(runs[lane], expected)
        assert found is None, f"lane {lane} of {BATCH}, engine (a) and oracle (b):\n{found}"
    found = stored_difference(name, runs[LANE])
    assert found is None, f"engine:\n{found}"


@pytest.mark.parametrize(
    "name",
    [name if name in ALONE else pytest.param(name, marks=pytest.mark.slow) for name in DETERMINISTIC + STOCHASTIC],
)
def test_engine_alone(name: str) -> None:
    """Batch 1. A compilation of its own: most are marked slow."""
    runs = run_engine([program_of(name)])
    found = first_difference(runs[0], oracle_of(name))
    assert found is None, f"batch 1, engine (a) and oracle (b):\n{found}"
    found = stored_difference(name, runs[0])
    assert found is None, f"engine:\n{found}"
