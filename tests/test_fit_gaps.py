"""Gaps between tokens: read where files have them, simulated, and compared."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_engine import serve

import serqjax as sq
from serqjax.builder import Builder
from serqjax.fit import fit, read
from serqjax.fit.errors import relative_errors
from serqjax.fit.measured import gaps_of, program_of, times_of

COSTS = {"base_s": 10e-3, "per_decode_s": 2e-3, "per_prefill_tok_s": 100e-6}


def engine(at, new, out, slower=1.0):
    b = Builder()
    for name, value in COSTS.items():
        b.param(name, slower * value, "s")
    return serve(b, "base_s + per_decode_s * Ndec + per_prefill_tok_s * Npre", at, list(zip(new, out, strict=True)))


def bench_of(program, at, new, out):
    """What `vllm bench serve --save-detailed` writes of a simulated run."""
    run = sq.run(program, trace=True)
    times, gaps = times_of(run, len(at)), gaps_of(run, len(at))
    return {"ttfts": (times["first_s"] - at).tolist(), "itls": [gap.tolist() for gap in gaps],
            "input_lens": new.tolist(), "output_lens": out.tolist(), "start_times": at.tolist()}  # fmt: skip


def requests(n=30):
    rng = np.random.default_rng(3)
    at = np.cumsum(rng.exponential(0.25, n))
    return at - at[0], rng.integers(5, 300, n), rng.integers(1, 40, n)


def test_gaps_are_fitted_and_held_out(tmp_path):
    asked = requests()
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_of(engine(*asked), *asked)))
    data = read(path)
    several = int((asked[2] > 1).sum())
    assert [len(gaps) for gaps in data.gaps_s] == [n - 1 for n in asked[2]]
    assert f"known of {several} requests" in str(data)
    # fits that cannot move from their costs: the errors are those of the costs
    free = {"base_s": (14.99e-3, 15.01e-3)}
    found = fit(engine(*asked, slower=1.5), data=[data], free=free, generations=0, last=32)
    slow = gaps_of(sq.run(engine(*asked, slower=1.5), trace=True), len(data))
    for part, rows in (("fitted", range(21)), ("held_out", range(21, 30))):
        errors = found.errors[0][part]
        measured, predicted = (np.concatenate([gaps[i] for i in rows]) for gaps in (data.gaps_s, slow))
        for q in (50, 90, 99):
            expected = np.percentile(predicted, q) / np.percentile(measured, q) - 1.0
            assert expected > 0.2 and errors[f"itl_p{q}"] == pytest.approx(expected, abs=0.01)
        assert errors["itl_mean"] == pytest.approx(predicted.mean() / measured.mean() - 1.0, abs=0.01)
    assert "itl +" in str(found)
    right = fit(engine(*asked), data=[data], free={"base_s": (9.99e-3, 10.01e-3)}, generations=0, last=32)
    assert max(abs(right.errors[0]["held_out"][f"itl_{what}"]) for what in ("mean", "p50", "p90", "p99")) < 2e-3


def test_gaps_of_preempted_requests_are_those_that_the_report_counts():
    n, rng = 24, np.random.default_rng(1)
    from serqjax.fit.data import RunData

    at = np.linspace(0.0, 0.2, n)
    new, out = rng.integers(20, 100, n), rng.integers(30, 90, n)
    run = RunData("made", at, new, out, at, at, np.arange(n))
    program = program_of(run, sq.costs.affine(), {"num_gpu_blocks": 40, "block_size": 16, "max_num_seqs": 16})
    simulated = sq.run(program, trace=True)
    gaps = gaps_of(simulated, n)
    assert sum(pool.preemptions for pool in simulated.raw.pools) > 0
    assert [len(gap) for gap in gaps] == (out - 1).tolist()
    pooled = np.concatenate(gaps)
    (stage,) = (stage for stage in simulated.raw.stages if stage.itl_count)
    assert stage.itl_count == len(pooled) and stage.itl_tick * simulated.raw.tick_s == pytest.approx(pooled.sum())
    times = times_of(simulated, n)
    assert times["first_s"] + [gap.sum() for gap in gaps] == pytest.approx(times["last_s"])


def test_chunks_of_several_tokens_are_no_gaps(tmp_path):
    metrics = {
        "time_to_first_token": {"value": 200.0, "unit": "ms"}, "request_latency": {"value": 1.2, "unit": "s"},
        "input_sequence_length": {"value": 10, "unit": "tokens"},
        "output_sequence_length": {"value": 5, "unit": "tokens"},
    }  # fmt: skip
    rows = [{"metadata": {"request_start_ns": 10**18 + k}, "metrics": metrics
             | {"inter_chunk_latency": {"value": chunks, "unit": "ms"}}, "error": None}
            for k, chunks in enumerate(([250.0] * 4, [500.0] * 2))]  # fmt: skip
    path = tmp_path / "profile_export.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read(path)
    assert data.gaps_s[0] == pytest.approx([0.25] * 4) and not len(data.gaps_s[1])
    assert data.with_gaps.tolist() == [True, False]
    found = {"first_s": data.first_s, "last_s": data.last_s, "gaps_s": [np.full(4, 0.5), np.full(4, 9.0)]}
    errors = relative_errors(data, found)
    assert errors["itl_p90"] == pytest.approx(1.0) and errors["itl_mean"] == pytest.approx(1.0)
    assert relative_errors(data, {k: v for k, v in found.items() if k != "gaps_s"})["itl_mean"] == pytest.approx(0.0)
