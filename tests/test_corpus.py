"""The programs of the reference's corpus: its stored samples and reports against oracle and array engine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from compare_runs import as_program, first_difference, run_engine, run_oracle
from helpers import shared_dir

from serqjax.ir.program import Program
from serqjax.report.compare import differences, sample_differences
from serqjax.report.raw import RawRun
from serqjax.report.reference import reference_report

DETERMINISTIC = [
    "det_chunk",
    "det_decode_first",
    "det_evict_by",
    "det_evict_lru",
    "det_hol",
    "det_one",
    "det_one_cached",
    "det_over_reuse",
    "det_preempt_decode",
    "det_preempt_decode_cached",
    "det_preempt_none",
    "det_preempt_prefill",
    "det_preempt_tail",
    "det_queue_by",
    "det_reqcap",
    "det_reserve",
    "det_self_preempt_stuck",
    "det_srpt",
    "flag_over_cap",
    "flag_rejected",
    "trace_ordered_batch",
]
STOCHASTIC = [
    "hold_engine",
    "hold_engine_cached",
    "trace_ordered_poisson",
    "trace_random",
    "delay_inf",
    "md1",
    "mg1_h2",
    "mm1",
    "mmc3",
    "renewal_erlang",
    "renewal_drain",
    "text_mm1",
    "text_vllm",
    "vllm_single",
    "vllm_single_chunked",
    "vllm_multi",
    "vllm_multi_tight",
]
#: Places that are not compared, per program, each with its reason. Applies to oracle and engine alike.
EXCEPTIONS: dict[str, dict[str, str]] = {}
BATCH, LANE = 64, 17


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


@pytest.mark.parametrize("name", DETERMINISTIC + STOCHASTIC)
def test_stored_samples_and_report(name: str) -> None:
    """Oracle as stored; engine equal to the oracle action by action alone and in a batch, and as stored."""
    program, expected = program_of(name), run_oracle(program_of(name))
    found = stored_difference(name, expected)
    assert found is None, f"oracle:\n{found}"
    runs = run_engine([program])
    if runs is None:
        pytest.skip("the oracle agrees; the array engine is not there")
    found = first_difference(runs[0], expected)
    assert found is None, f"batch 1, engine (a) and oracle (b):\n{found}"
    found = stored_difference(name, runs[0])
    assert found is None, f"engine:\n{found}"
    # other lanes run other seeds (of a deterministic program: the same run)
    seeds = [program.seed if lane == LANE else program.seed + 1000 + lane for lane in range(BATCH)]
    many = run_engine([program] * BATCH, seeds)
    assert many is not None and len(many) == BATCH
    found = first_difference(many[LANE], expected)
    assert found is None, f"lane {LANE} of {BATCH}, engine (a) and oracle (b):\n{found}"


@pytest.mark.parametrize("name", ["hold_engine_cached", "vllm_multi_tight", "mmc3", "trace_random", "renewal_erlang"])
def test_other_lanes_of_a_batch_are_the_oracle_of_their_seed(name: str) -> None:
    program = program_of(name)
    seeds = [program.seed + 1000 + lane for lane in range(BATCH)]
    runs = run_engine([program] * BATCH, seeds)
    if runs is None:
        pytest.skip("the array engine is not there")
    for lane in (0, BATCH - 1):
        found = first_difference(runs[lane], run_oracle(program, seed=seeds[lane]))
        assert found is None, f"lane {lane}, engine (a) and oracle (b):\n{found}"
