"""Synthetic workloads: laws against their formulas, lengths against the trace they are fitted to, seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import oracle
import serqjax as sq
from serqjax import ProgramError, synthetic, traces, workloads
from serqjax.builder import Builder
from serqjax.check import find_problems, unsupported

N = 40_000


def gaps_of(arrivals: synthetic.Gaps, seed: int = 1) -> np.ndarray:
    trace = synthetic.trace(arrivals, num_requests=N, seed=seed)
    return np.diff([0.0, *(r.at_s for r in trace.rows)])


def squared_variation(law: str, shape: float) -> float:
    if law == "gamma":
        return 1.0 / shape
    return math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1.0


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("law", ["gamma", "weibull"])
def test_gaps_have_the_law_that_is_asked_for(law, shape):
    """Mean and distribution function against the formula, five standard errors."""
    from scipy import stats

    gaps = gaps_of(getattr(synthetic, law)(4.0, shape))
    cv2 = squared_variation(law, shape)
    assert abs(gaps.mean() * 4.0 - 1.0) < 5.0 * math.sqrt(cv2 / N)
    exact = stats.gamma(shape, scale=1 / (4.0 * shape)) if law == "gamma" else stats.weibull_min(
        shape, scale=1 / (4.0 * math.gamma(1 + 1 / shape)))
    assert stats.kstest(gaps, exact.cdf).statistic < 1.95 / math.sqrt(N)  # exceeded once in a thousand


def test_a_diurnal_rate_swings_and_keeps_its_mean():
    trace = synthetic.trace(synthetic.diurnal(2.0, swing=0.8, period_s=1000.0, peak_s=250.0), num_requests=N, seed=2)
    times = np.asarray([r.at_s for r in trace.rows])
    whole = times[times < 1000.0 * (times[-1] // 1000.0)]
    periods = times[-1] // 1000.0
    assert abs(len(whole) / (1000.0 * periods) - 2.0) < 5.0 * math.sqrt(2.0 / (1000.0 * periods))
    phase = (whole % 1000.0) / 1000.0
    for low in (0.2, 0.7):  # a tenth of the period around the peak and the trough
        expected = 1000.0 * periods * 2.0 * (0.1 + 0.8 * (math.sin(2 * math.pi * (low + 0.1 - 0.25))
                                                          - math.sin(2 * math.pi * (low - 0.25))) / (2 * math.pi))
        assert abs(np.sum((phase >= low) & (phase < low + 0.1)) - expected) < 5.0 * math.sqrt(expected)


def test_each_seed_is_a_trace_of_its_own_and_laws_meet_the_same_lengths():

    def made(arrivals: synthetic.Gaps, seed: int) -> traces.TraceFile:
        return synthetic.trace(arrivals, num_requests=50, seed=seed, input_len=workloads.exponential(100),
                               output_len=workloads.hyperexponential(20, 4))

    one, same, other = (made(synthetic.gamma(1, 0.3), seed) for seed in (1, 1, 2))
    assert one == same and one.rows != other.rows
    law = made(synthetic.poisson(3), 1)
    assert [(r.input_tok, r.output_tok) for r in law.rows] == [(r.input_tok, r.output_tok) for r in one.rows]
    assert min(r.output_tok for r in law.rows) >= 1


@pytest.mark.parametrize("distribution", [
    workloads.constant(7), workloads.uniform(2, 9), workloads.exponential(5), workloads.erlang(3, 5),
    workloads.hyperexponential(5, 4), workloads.bernoulli(0.3), workloads.fitted([1, 2, 2, 9, 30]),
], ids=lambda d: d.kind)  # fmt: skip
def test_the_host_draws_what_the_language_draws(distribution):
    """Both samples of a distribution against each other (two-sample Kolmogorov-Smirnov, once in a thousand)."""
    from scipy import stats

    values = distribution.sample(np.random.default_rng(5), 4000)
    b = Builder("draws")
    b.attr("x")
    start = b.state("start", b.observe("x", "x"), exit=sq.ir.End())
    prepare = distribution.prepare(b, "x_len")
    program = b.program(start, sq.ir.Batch(sq.ir.Num(2000.0)),
                        init=(*prepare, b.set("x", distribution.text(b, "x_len", ""))))
    drawn = oracle.simulate(program).samples_value
    assert len(drawn) == 2000
    found: Any = stats.ks_2samp(values, drawn)
    assert found.statistic < 1.95 * math.sqrt(1 / 4000 + 1 / 2000)


def test_a_fitted_distribution_has_the_quantiles_of_the_trace():
    values = [int(v) for v in np.random.default_rng(3).lognormal(5, 1, 5000)]
    table = dict(workloads.fitted(values).args)
    assert table["p0.5"] == np.quantile(values, 0.5) and table["p0.99"] == np.quantile(values, 0.99)
    assert (table["p0"], table["p1"]) == (min(values), max(values))
    drawn = workloads.fitted(values).sample(np.random.default_rng(1), 20_000)
    assert abs(np.quantile(drawn, 0.9) / np.quantile(values, 0.9) - 1.0) < 0.05
    with pytest.raises(ProgramError, match="there are none to fit"):
        workloads.fitted([])


def test_rows_of_a_trace_keep_what_belongs_together():
    rows = tuple(traces.Request(float(i), 1000 * i + 1, i + 1, (i,) * (2 * i + 1)) for i in range(5))
    source = traces.TraceFile("t", "mooncake", rows=rows)
    drawn = synthetic.trace(synthetic.poisson(1), num_requests=200, seed=4, lengths_of=source)
    assert {(r.input_tok, r.output_tok, r.hash_ids) for r in drawn.rows} == {
        (r.input_tok, r.output_tok, r.hash_ids) for r in rows}
    with pytest.raises(ProgramError, match="sessions, not requests"):
        synthetic.trace(synthetic.poisson(1), num_requests=2, seed=4, lengths_of=traces.TraceFile("t", "serq"))


def test_traces_of_tenants_are_merged():
    parts = [synthetic.trace(synthetic.poisson(rate), num_requests=20, seed=k, tenant=f"t{k}")
             for k, rate in enumerate((1.0, 3.0))]
    both = synthetic.merged(*parts)
    times = [r.at_s for r in both.rows]
    assert times == sorted(times) and len(times) == 40 and both.columns["tenant"].count("t0") == 20
    with pytest.raises(ProgramError, match="has no timed requests"):
        synthetic.merged(traces.TraceFile("t", "serq"))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: synthetic.gamma(0, 1), "rate: 0 is not allowed"),
    (lambda: synthetic.weibull(1, math.inf), "shape: inf is not allowed"),
    (lambda: synthetic.diurnal(1, swing=1.5), "swing: 1.5 is not allowed"),
    (lambda: synthetic.diurnal(1, peak_s=math.inf), "peak_s: inf is not allowed; give seconds"),
    (lambda: synthetic.trace(synthetic.poisson(1), num_requests=0, seed=1), "num_requests: 0 is not allowed"),
    (lambda: synthetic.trace(synthetic.poisson(1), num_requests=1, seed=-1), "seed: -1 is not allowed"),
    (lambda: synthetic.trace(synthetic.poisson(1), num_requests=1, seed=1, input_len=2.5), "input_len: 2.5"),
    (lambda: workloads.requests(request_rate=1, gap_law="normal"),  # type: ignore[arg-type]
     "gap_law: 'normal' is not known"),
    (lambda: workloads.requests(request_rate=1, burstiness=0.5), "draw a trace with `synthetic.gamma`"),
    (lambda: workloads.requests(system_prompts=1.5), "system_prompts: 1.5"),  # type: ignore[arg-type]
    (lambda: workloads.sessions(system_prompt_len=0), "system_prompt_len: 0"),
    (lambda: workloads.sessions(think_s=workloads.fitted([1])), "is for numbers of tokens"),
    (lambda: workloads.from_trace([traces.Request(0.0, 1, 1)], rate_scale=0), "rate_scale: 0 is not allowed"),
    (lambda: workloads.from_trace(traces.TraceFile("t", "sharegpt", sessions=((traces.SessionTurn(1, 1, 0.0),),)),
                                  rate_scale=2), "have no times; give `session_rate`"),
    (lambda: workloads.from_trace(traces.TraceFile("t", "serq", sessions=((traces.SessionTurn(1, 1, 0.0),),),
                                                   starts_s=(0.0,)), session_rate=2), "have times of their own"),
    (lambda: workloads.from_trace(traces.TraceFile("t", "serqjax_requests", rows=(traces.Request(0.0, 1, 1),),
                                                   columns={"priority": ("high",)})), "trace:1: priority is 'high'"),
])  # fmt: skip
def test_what_is_refused(make, message):
    with pytest.raises(ProgramError, match=message):
        make()


def run(workload, **engine) -> sq.Run:
    program = sq.program(sq.deployments.vllm(**engine), workload, seed=5)
    assert find_problems(program) == [] and unsupported(program) == []
    return sq.Run(program, oracle.simulate(program))


@pytest.mark.parametrize("shape", [0.6, 2.0])
def test_weibull_gaps_are_drawn_anew_for_each_seed(shape):
    from scipy import stats

    load = workloads.requests(request_rate=50, num_prompts=600, burstiness=shape, gap_law="weibull", input_len=1,
                              output_len=1)
    a = run(load)
    gaps = np.diff(a.requests["sent_s"])
    exact = stats.weibull_min(shape, scale=1 / (50 * math.gamma(1 + 1 / shape)))
    assert stats.kstest(gaps, exact.cdf).statistic < 1.95 / math.sqrt(len(gaps))
    other = sq.Run(a.program, oracle.simulate(a.program, seed=6))
    assert not np.array_equal(a.requests["sent_s"], other.requests["sent_s"])


def test_requests_share_the_blocks_of_their_system_prompts():
    """All prompts but the first with each of the two system prompts find its whole blocks."""
    load = workloads.requests(request_rate=1, num_prompts=20, input_len=40, output_len=2, system_prompts=2,
                              system_prompt_len=100)
    shared = run(load, shared_prefixes=workloads.SYSTEM_PROMPTS)
    reused = shared.raw.samples_value[shared.raw.samples_observe == shared.program.observes.index("vllm.reused")]
    assert sorted(reused) == [0.0] * 2 + [96.0] * 18
    prefill = shared.raw.samples_value[shared.raw.samples_observe == shared.program.observes.index("vllm.prefill")]
    assert set(reused + prefill) == {140.0}
    alone = run(load)
    assert set(alone.raw.samples_value[alone.raw.samples_observe == alone.program.observes.index("vllm.reused")]) == {0}


def test_sessions_begin_with_a_system_prompt_once():
    load = workloads.sessions(session_rate=0.1, num_sessions=6, turns=2, first_prompt=40, new_prompt=10, output_len=6,
                              system_prompts=1, system_prompt_len=160)
    done = run(load, shared_prefixes=workloads.SYSTEM_PROMPTS)
    turns = sorted(t.new_tok for session in done.to_trace().sessions for t in session)
    assert turns == [10] * 6 + [200] * 6
    reused = done.raw.samples_value[done.raw.samples_observe == done.program.observes.index("vllm.reused")]
    assert np.sum(reused == 160) == 5 and np.sum(reused == 0) == 1


def test_fitted_lengths_in_a_program():
    load = workloads.requests(request_rate=20, num_prompts=50, input_len=workloads.fitted([3, 5, 8, 200]),
                              output_len=workloads.fitted([4]))
    done = run(load).to_trace()
    assert {r.output_tok for r in done.rows} == {4}
    assert min(r.input_tok for r in done.rows) >= 3 and 8 < max(r.input_tok for r in done.rows) <= 200
