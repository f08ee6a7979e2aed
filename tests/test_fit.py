"""Fitting: readers of request times, what the data identify, and a fit of a small engine from another guess."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from small_engine import serve

import oracle
import serqjax as sq
from serqjax.builder import Builder
from serqjax.fit import SummaryData, fit, read, read_data, read_params
from serqjax.fit.data import RunData
from serqjax.fit.intervals import identify
from serqjax.fit.measured import Shares, block_names, times_of
from serqjax.fit.optimisers import OPTIMISERS, Space
from serqjax.fit.surface import Bottom, Scored, blocks, near

ROW = {"queued_ts": 5.0, "first_token_ts": 5.2, "last_token_ts": 6.2, "input_toks": 100, "output_toks": 11}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_of_timestamps(tmp_path):
    later = ROW | {"queued_ts": 4.0, "first_token_ts": 4.5, "last_token_ts": 5.0}
    data = read(write_rows(tmp_path / "r.jsonl", [ROW, later]))
    assert data.sent_s.tolist() == [0.0, 1.0] and data.place.tolist() == [2, 1]
    assert data.ttft_s == pytest.approx([0.5, 0.2]) and data.tpot_s == pytest.approx([0.05, 0.1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"output_toks": 0}, "0 output tokens"),
        ({"first_token_ts": 4.0}, "its first token comes 1 s before it was sent"),
        ({"last_token_ts": 5.1}, "its last token comes"),
        ({"input_toks": None}, "`input_toks` is missing"),
        ({"first_token_ts": "x"}, "`first_s` is 'x'"),
    ],
)
def test_bad_rows_are_set_aside_with_their_reason(tmp_path, change, reason):
    data = read(write_rows(tmp_path / "r.jsonl", [ROW, ROW | change]))
    ((row, why),) = data.set_aside
    assert len(data) == 1 and row == 2 and reason in why and "row 2 set aside" in str(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ('{"a": 1}\n{"a": 2}\n', "no known format"),
        ('{"queued_ts": 1}\n', "the field `first_token_ts` is missing in every row"),
        ('{"ttfts": [1], "itls": [[1]], "input_lens": [1], "output_lens": [2]}', "the field `start_times` is missing"),
        (json.dumps({k: v * 1000 if k.endswith("ts") else v for k, v in ROW.items()}) + "\n", "milliseconds"),
        (json.dumps(ROW | {"output_toks": 0}) + "\n", "no request can be used: row 1: 0 output tokens"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, says):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(sq.ProgramError, match=says):
        read(path)


def test_bench_serve_and_aiperf(tmp_path):
    bench = {"ttfts": [0.2, 0.3, 0.0], "itls": [[0.1, 0.1], [0.2], []], "input_lens": [10, 20, 5],
             "output_lens": [3, 2, 1], "start_times": [100.0, 101.0, 102.0], "errors": ["", "", "timeout"]}  # fmt: skip
    path = tmp_path / "b.json"
    path.write_text(json.dumps(bench))
    data = read(path)
    assert data.last_s == pytest.approx([0.4, 1.5]) and data.set_aside == ((2, "the request failed: timeout"),)
    record = {"metadata": {"request_start_ns": 10**18}, "metrics": {
        "time_to_first_token": {"value": 200.0, "unit": "ms"}, "request_latency": {"value": 1.2, "unit": "s"},
        "input_sequence_length": {"value": 10, "unit": "tokens"},
        "output_sequence_length": {"value": 5, "unit": "tokens"},
    }, "error": None}  # fmt: skip
    data = read(write_rows(tmp_path / "a.jsonl", [record, record | {"error": {"code": 500}}]))
    assert data.ttft_s == pytest.approx([0.2]) and data.e2e_s == pytest.approx([1.2])
    assert data.set_aside == ((2, "the request failed"),)


def test_names_of_blocks_are_handed_down():
    shares = (Shares(2, 0, 3), Shares(4, 2, 2))
    names = block_names(shares, 5)
    assert names[2][:3] == names[0][:3] and names[4] == names[0][:2]
    assert not set(names[1]) and not names[3]


KINDS = np.repeat([0, 1], 100)
SPACE = Space.of({name: (1e-3, 1e3) for name in ("base", "decode", "kv")})


def cloud_of(slope, jumps, seed, at=np.zeros(3), size=128, value=0.0):
    """Candidates around a point whose residuals are linear, with jumps of their own."""
    rng = np.random.default_rng(seed)
    moved = 0.04 * rng.standard_normal((size, slope.shape[1]))
    residuals = value + moved @ slope.T + jumps * rng.standard_normal((size, len(slope)))
    return near([Scored(at + moved, residuals, np.zeros(size))], at, 0.2)


def judged(slope, jumps, value, at, seed=0):
    bottom = Bottom.of(cloud_of(slope, jumps, seed, at, value=value), at, KINDS, (0.0, np.zeros(3)), seed)
    bottom = dataclasses.replace(bottom, best=at + bottom.moved)
    return bottom, identify(SPACE, bottom, blocks(KINDS, np.arange(200.0)), 0.9, seed)


def test_what_the_data_cannot_tell_apart_is_named():
    rng = np.random.default_rng(0)
    slope, value, at = rng.normal(size=(200, 3)), rng.normal(size=200) * 0.02, np.log([1.0, 2.0, 4.0])
    slope[:, 2] = 0.5 * slope[:, 1]
    _, found = judged(slope, 0.001, value, at)
    assert found["confounded"] == (("decode", "kv"),)
    (both,) = found["combinations"]
    assert both.factors == pytest.approx((1.0, 0.25), rel=0.05) and both.low < 3.0 < both.high
    assert both.high - both.low < 0.05 * 3.0
    assert 0.99 < found["low"]["base"] <= 1.0 <= found["high"]["base"] < 1.01
    assert found["low"]["kv"] == pytest.approx(1e-3) and found["high"]["kv"] > 11.9  # all that the sum of 3 allows
    slope[:, 2] = rng.normal(size=200)
    assert not judged(slope, 0.001, value, at)[1]["confounded"]


def test_slopes_that_differ_by_their_noise_alone_are_not_told_apart():
    rng = np.random.default_rng(1)
    slope, value = rng.normal(size=(200, 3)), rng.normal(size=200) * 0.02
    slope[:, 2] = slope[:, 1]
    assert judged(slope, 0.05, value, np.zeros(3))[1]["confounded"] == (("decode", "kv"),)
    slope[:, 2] = rng.normal(size=200)
    assert not judged(slope, 0.05, value, np.zeros(3))[1]["confounded"]


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Data with noise and jumps that move all requests of a run together; the truth is off the middle of the cloud."""
    rng = np.random.default_rng(2)
    slope, at, held, half = rng.normal(size=(200, 3)), np.zeros(3), [], []
    for seed in range(20):
        truth = 0.02 * rng.standard_normal(3)
        # the jumps of the measured run: one draw for each request and one for all of them, as in a queue
        value = -(truth @ slope.T) + 0.01 * rng.standard_normal(200) + 0.02 * rng.standard_normal() * (KINDS == 0)
        shared = cloud_of(slope, 0.0, seed, at, value=value)
        jumps = 0.02 * np.random.default_rng(seed + 1000).standard_normal((len(shared), 1)) * (KINDS == 0)
        cloud = dataclasses.replace(shared, residuals=shared.residuals + jumps)
        bottom = Bottom.of(cloud, at, KINDS, (0.0, np.zeros(3)), seed)
        bottom = dataclasses.replace(bottom, best=bottom.moved)
        found = identify(SPACE, bottom, blocks(KINDS, np.arange(200.0)), 0.9, seed)
        ends = np.log([list(found["low"].values()), list(found["high"].values())])
        held.append((ends[0] <= truth) & (truth <= ends[1]))
        half.append((ends[1] - ends[0]) / 2.0)
    assert 0.8 <= np.mean(held) <= 0.98 and np.median(half) < 0.005


def test_both_optimisers_find_the_bottom_of_a_bowl():
    space = Space.of({"a": (1e-3, 1e3), "b": (1e-3, 1e3)})
    goal = np.log([3.0, 0.2])
    for make in OPTIMISERS.values():
        optimiser = make(space, np.zeros(2), 16, 0.5, 1)
        for _ in range(60):
            points = optimiser.ask()
            optimiser.tell(points, ((points - goal) ** 2).sum(axis=1))
        assert optimiser.ask().mean(axis=0) == pytest.approx(goal, abs=0.25)


def small_engine(at, new, out, **numbers):
    """An engine of four seats without limits of memory."""
    b = Builder()
    for name, value in numbers.items():
        b.param(name, value, "s")
    cost = "base_s + per_decode_s * Ndec + per_prefill_tok_s * Npre"
    return serve(b, cost, at, list(zip(new, out, strict=True)))


COSTS = {"base_s": 10e-3, "per_decode_s": 2e-3, "per_prefill_tok_s": 100e-6}
GUESS = {"base_s": 6e-3, "per_decode_s": 4e-3, "per_prefill_tok_s": 60e-6}


def measured_run(seed, n=60):
    """Request times of the small engine at `COSTS`, with 1 % of noise."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(0.25, n))
    at -= at[0]
    new, out = rng.integers(5, 300, n), rng.integers(2, 40, n)
    program = small_engine(at, new, out, **COSTS)
    times = times_of(sq.Run(program, oracle.simulate(program)), n)
    jitter = np.exp(rng.normal(0.0, 0.01, (2, n)))
    first = at + (times["first_s"] - at) * jitter[0]
    last = first + (times["last_s"] - times["first_s"]) * jitter[1]
    return RunData("simulated", at, new, out, first, last, np.arange(n)), small_engine(at, new, out, **GUESS)


def test_a_small_engine_is_fitted_from_another_guess(tmp_path):
    data, guess = measured_run(5)
    lines: list[str] = []
    journal = tmp_path / "fit.journal"
    found = fit(guess, data=[data], free=list(COSTS), report=lines.append, journal=journal, generations=6)
    assert {k: v / COSTS[k] for k, v in found.best.items()} == pytest.approx(dict.fromkeys(COSTS, 1.0), abs=0.03)
    assert not found.confounded and len(lines) > 6
    assert abs(found.errors[0]["held_out"]["ttft_mean"]) < 0.02 and abs(found.errors[0]["fitted"]["itl_mean"]) < 0.02
    found.save(tmp_path / "fit.json")
    assert read_params(tmp_path / "fit.json") == found.best
    better = guess.with_params(found.best)
    assert better == sq.with_params(guess, found.best) and better.params[0].value == found.best["base_s"]
    again = fit(guess, data=[data], free=list(COSTS), journal=journal, generations=6)  # from the journal alone
    assert again.best == found.best and again.low == found.low
    picture = found.plot(tmp_path / "fit.svg")
    text = (tmp_path / "fit.svg").read_text()
    assert len(picture.axes) == 3 and "<svg" in text
    points = {len(line.get_xdata()) for line in picture.axes[0].lines}
    assert points == {42, 18, 2}  # fitted, held out, the line of equality
    with pytest.raises(ValueError, match="must end in"):
        found.plot(tmp_path / "fit.txt")


def test_a_prior_holds_what_the_data_do_not_tell():
    data, guess = measured_run(6, n=20)
    free = {name: (value / 30.0, value * 30.0) for name, value in COSTS.items()}
    weak = fit(guess, data=[data], free=free, generations=0, last=32)
    strong = fit(guess, data=[data], free=free, generations=0, last=32, prior=1e3)
    away = {name: abs(np.log(strong.best[name] / GUESS[name])) for name in COSTS}
    assert all(away[name] < 0.05 for name in COSTS)
    assert max(abs(np.log(weak.best[name] / GUESS[name])) for name in COSTS) > 0.2


def summaries_of(run, **more):
    """What a benchmark prints of a run."""
    times = {"ttft": run.ttft_s, "tpot": run.tpot_s[~np.isnan(run.tpot_s)], "e2e": run.e2e_s}
    whole = {"request_throughput": 4.0, "completed": len(run)} | more
    for name, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2el")):
        whole |= {f"mean_{theirs}_ms": 1000 * times[name].mean(), f"median_{theirs}_ms": 1000 * np.median(times[name]),
                  f"p99_{theirs}_ms": 1000 * np.percentile(times[name], 99), f"std_{theirs}_ms": 1.0}  # fmt: skip
    return whole


def test_summaries_alone_are_fitted_with_the_requests_of_the_program(tmp_path):
    data, guess = measured_run(7)
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(summaries_of(data)))
    summary = read_data(path)
    assert isinstance(summary, SummaryData) and len(summary.values) == 9 and "summaries of 60 requests" in str(summary)
    assert summary.values["e2e_p50"] == pytest.approx(np.median(data.e2e_s))
    with pytest.raises(sq.ProgramError, match="holds summaries, and no request"):
        read(path)
    found = fit(guess, data=[path], free=["base_s", "per_decode_s"], generations=2, last=48,
                prior=0.0)  # fmt: skip
    assert found.errors[0]["fitted"]["ttft_mean"] == pytest.approx(0.0, abs=0.05)
    assert found.errors[0]["fitted"]["tpot_mean"] == pytest.approx(0.0, abs=0.05)
    assert found.rows == (60,) and "requests fitted" in str(found)
    path.write_text(json.dumps(summaries_of(data, completed=59)))
    with pytest.raises(sq.ProgramError, match="is of 59 requests, and the program has 60"):
        fit(guess, data=[path], free=["base_s"])
    for values, says in (({}, "holds no mean"), ({"itl_mean": 1.0}, "`itl_mean` is not known"),
                         ({"ttft_p0": 1.0}, "`ttft_p0` is not known"), ({"ttft_mean": -1.0}, "`ttft_mean` is -1.0")):
        with pytest.raises(sq.ProgramError, match=says):
            SummaryData("made", values)


def test_four_intervals_of_each_cost():
    """A short form of `experiments/fit_coverage.py`, with a small engine."""
    from experiments.fit_coverage import repeated, summary

    def made(seed):
        data, guess = measured_run(seed)
        return fit(guess, data=[data], free=list(COSTS), holdout=0.0, seed=seed, generations=4)

    found = summary(list(repeated(made, COSTS, range(20, 24))))
    assert found["repetitions"] == 4 and found["coverage_of_all"] >= 8 / 12
    assert max(found["median_half_width"].values()) < 0.05
    assert max(found["root_mean_square_error"].values()) < 0.03


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"free": ["nothing_s"]}, "nothing_s is no parameter"),
        ({"free": []}, "free is empty"),
        ({"free": {"base_s": (1.0, 0.5)}}, "bounds of base_s"),
        ({"loss": ("speed",)}, "'speed' is not known"),
        ({"holdout": 1.0}, "holdout=1.0"),
        ({"method": "guess"}, "method='guess' is not known"),
    ],
)
def test_bad_arguments_are_refused(options, says):
    one = np.asarray([0.0])
    data = RunData("one", one, np.asarray([5]), np.asarray([3]), one + 0.1, one + 0.2, np.asarray([1]))
    program = small_engine([0.0], [5], [3], base_s=0.01, per_decode_s=0.0, per_prefill_tok_s=1e-4)
    with pytest.raises(ValueError, match=says):
        fit(program, **({"data": [data], "free": ["base_s"]} | options))
