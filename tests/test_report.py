"""The report room on inputs small enough to be worked out by hand, and its intervals by repetition."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serqjax.ir import itl
from serqjax.ir.expr import Num, Param
from serqjax.ir.program import Delay, End, Fifo, NoArrival, Parameter, Pool, Program, Stage, State, Step
from serqjax.report import verdict as verdict_module
from serqjax.report.censoring import Censored, Estimate, Ordered, Sample, over_seeds, pooled_quantile
from serqjax.report.compare import differences, sample_differences
from serqjax.report.document import batch_document, dumps, run_document
from serqjax.report.latency import gap_sample, latency_samples, one_run, over_runs
from serqjax.report.raw import PoolTotals, RawRun, RequestStatus, StageTotals, Verdict
from serqjax.report.reference import client_observations, reference_report
from serqjax.report.requests import COLUMNS, request_counts, requests_table
from serqjax.report.statistics import batch_means, bucket_quantile, describe, merge_buckets, nearest_rank
from serqjax.report.summary import summarize
from serqjax.report.units import plain, seconds
from serqjax.report.verdict import final_verdict, grows

S = 10**9
FINISHED, RUNNING, QUEUED, REJECTED = (int(s) for s in list(RequestStatus)[:4])
NEVER = None

# ---------------------------------------------------------------- small programs and runs


def program(engine: bool = True, observes: tuple[str, ...] = ()) -> Program:
    """An engine with a blocked pool, or a single server, with nothing to do (only reports read it)."""
    stage = Stage(name="E", kind=Step(budget=Num(16.0), cost=Num(1.0)) if engine else Fifo(Num(1.0)))
    pools = (Pool(name="kv", cap=Num(160.0), block=Param("block")), Pool(name="reqs", cap=Num(8.0)))
    return Program(
        name="small",
        attrs=(),
        params=(Parameter(name="block", value=16.0),),
        observes=observes,
        pools=pools if engine else (),
        stages=(stage,),
        states=(State(name="only", exit=End()),),
        start="only",
        arrival=NoArrival(),
        horizon_s=Num(100.0),
    )


def request(sent, first=NEVER, last=NEVER, tokens=0, end=NEVER, status=FINISHED, turn=1):
    """One request; times in seconds. The response ends with the last token unless `end` says otherwise."""
    if end is NEVER and status == FINISHED:
        end = last
    return (sent, first, last, tokens, end, status, turn)


def run_of(requests=(), *, seed=0, warmup=0.0, end=100.0, verdict=Verdict.horizon, cause="", stages=None, pools=2,
           samples=()):
    """A raw run that holds these requests and samples `(observe, time, serial, turn, value)`."""
    rows = list(requests)

    def ticks(column):
        return np.array([-1 if r[column] is None else round(r[column] * S) for r in rows], dtype=np.int64)

    def order(values):
        return np.argsort(np.argsort(values, kind="stable"), kind="stable")

    first, responded = ticks(1), ticks(4)
    kept = list(samples)
    return RawRun(
        seed=seed, tick_s=1e-9, horizon_tick=round(end * S), warmup_tick=round(warmup * S), end_tick=round(end * S),
        verdict=verdict, cause=cause, arrivals=len(rows), ended=0, turns=0, live_at_end=0, live_tick=0,
        stages=[StageTotals()] if stages is None else stages, pools=[PoolTotals() for _ in range(pools)],
        samples_observe=np.array([s[0] for s in kept], dtype=np.int64),
        samples_tick=np.array([round(s[1] * S) for s in kept], dtype=np.int64),
        samples_serial=np.array([s[2] for s in kept], dtype=np.int64),
        samples_turn=np.array([s[3] for s in kept], dtype=np.int64),
        samples_value=np.array([s[4] for s in kept], dtype=np.float64),
        request_serial=np.arange(len(rows), dtype=np.int64),
        request_turn=np.array([r[6] for r in rows], dtype=np.int64),
        request_sent=ticks(0), request_first=first, request_confirmed=first, request_confirm_order=order(first),
        request_last=ticks(2), request_tokens=np.array([r[3] for r in rows], dtype=np.int64),
        request_responded=responded, request_respond_order=order(responded),
        request_status=np.array([r[5] for r in rows], dtype=np.int64),
    )


def gaps_of(*gaps_s):
    """Stage totals that saw these inter-token gaps."""
    totals = StageTotals()
    for gap in gaps_s:
        tick = round(gap * S)
        k = itl.bucket(tick, 1e-9)
        count, least, greatest = totals.itl_buckets.get(k, (0, tick, tick))
        totals.itl_buckets[k] = (count + 1, min(least, tick), max(greatest, tick))
        totals.itl_count += 1
        totals.itl_tick += tick
    return totals


def single_server(seed: int, rho: float, end: float, warmup: float = 0.0) -> RawRun:
    """An M/M/1 by Lindley's recursion, service mean 1 s, cut at `end`."""
    draws = np.random.default_rng(seed)
    sent = np.cumsum(draws.exponential(1 / rho, round(rho * end * 1.5) + 50))
    sent = sent[sent <= end]
    done = 0.0
    requests = []
    for at, work in zip(sent, draws.exponential(1.0, len(sent))):
        done = max(done, at) + work
        requests.append(request(at, end=done) if done <= end else request(at, status=QUEUED))
    return run_of(requests, seed=seed, warmup=warmup, end=end, pools=0)


# ---------------------------------------------------------------- statistics of the reference report


def test_describe_by_hand():
    row = describe(np.array([4.0, 1.0, 3.0, 2.0]))
    assert row["count"] == 4 and row["mean"] == 2.5 and row["p99"] == 4.0
    assert row["cv2"] == pytest.approx((5 / 3) / 6.25, rel=1e-15)
    assert math.isnan(row["ci"])
    assert plain(describe(np.zeros(0))) == {"count": 0, "mean": None, "ci": None, "cv2": None, "p99": None}
    assert math.isnan(describe(np.array([7.0]))["cv2"])
    assert math.isnan(describe(np.array([-1.0, 1.0]))["cv2"]), "mean 0"


def test_batch_means_by_hand():
    # 20 batches of two: means 0.5, 2.5, ..., 38.5: variance 4 * 35; the 41st sample is ignored
    half = 2.093 * math.sqrt(4 * 35 / 20)
    assert batch_means(np.arange(40.0)) == pytest.approx(half, rel=1e-14)
    assert batch_means(np.append(np.arange(40.0), 1e6)) == pytest.approx(half, rel=1e-14)
    assert math.isnan(batch_means(np.arange(39.0)))


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (99, 99), (100, 99), (101, 100), (200, 198), (201, 199)])
def test_p99_is_the_ceil_rank(n, rank):
    assert nearest_rank(np.arange(1.0, n + 1), 0.99) == rank


def test_itl_percentiles_are_bucket_middles_within_what_was_seen():
    totals = gaps_of(*[1.0] * 9, 10.0)
    # the only gap of its bucket: clamped to itself
    assert bucket_quantile(totals.itl_buckets, 0.5, 1e-9) == 1.0
    assert bucket_quantile(totals.itl_buckets, 0.99, 1e-9) == 10.0
    k = itl.bucket(2 * S, 1e-9)
    wide = {k: (2, math.ceil(1.01**k * S), math.floor(1.01 ** (k + 1) * S))}
    assert bucket_quantile(wide, 0.5, 1e-9) == pytest.approx(1.01 ** (k + 0.5), rel=1e-12)
    assert bucket_quantile(gaps_of(0.0, 0.0).itl_buckets, 0.5, 1e-9) == 0.0
    assert math.isnan(bucket_quantile({}, 0.5, 1e-9))


def test_merged_buckets_keep_count_least_and_greatest():
    assert merge_buckets([{3: (2, 10, 12), 4: (1, 15, 15)}, {3: (1, 9, 9)}]) == {3: (3, 9, 12), 4: (1, 15, 15)}


def test_seconds_are_rounded_once():
    assert seconds(1500 * S, 1e-9) == 1500.0
    assert seconds(304141185561, 1e-9) == 304.141185561
    assert seconds(3, 0.5) == 1.5 and seconds(3, 0.3) == pytest.approx(0.9)
    assert seconds(np.array([2 * S]), 1e-9).tolist() == [2.0]


def test_numbers_print_as_the_reference_prints_them():
    text = dumps({"a": 2.0, "b": 0.5, "c": math.inf, "d": math.nan, "e": True, "f": np.int64(3), "g": np.float64(-0.0)})
    assert json.loads(text) == {"a": 2, "b": 0.5, "c": None, "d": None, "e": True, "f": 3, "g": 0}
    assert '"a": 2,' in text


REPORT_FIELDS = ["serq_version", "horizon", "end", "warmup", "seed", "events", "arrivals", "ended", "turns",
                 "mean_live", "observes", "client", "gauges", "stages", "pools"]
STAGE_FIELDS = ["name", "index", "mean_number", "utilization", "completed", "throughput", "mean_wait", "mean_service",
                "iterations", "prefill_only", "decode_only", "mixed", "mean_decodes", "mean_decode_batch",
                "mean_decode_step", "mean_itl", "itl_p50", "itl_p99", "idle_with_work"]
POOL_FIELDS = ["name", "index", "mean_used", "mean_cached", "mean_queue", "mean_holders", "mean_wait", "admissions",
               "evicted_entries", "evicted_units", "preemptions", "spills", "rejected", "stuck", "over_cap",
               "growing_at_end", "growing_stalled"]


def test_report_fields_and_definitions():
    stage = gaps_of(1.0, 3.0)
    stage.number_tick, stage.busy_tick, stage.completed = 160 * S, 40 * S, 4
    stage.wait_tick, stage.service_tick, stage.iterations = 0, 10 * S, 7
    stage.decodes_tick, stage.decode_iterations, stage.decode_batch, stage.decode_step_tick = 8 * S, 2, 5, 3 * S
    raw = run_of(warmup=20.0, end=100.0, stages=[stage], samples=[(0, 30.0, 2, 1, 5.0), (1, 31.0, 0, 1, 8.0)])
    raw.live_tick = 120 * S
    raw.pools[0] = PoolTotals(used_tick=10 * 40 * S, cached_tick=5 * 80 * S, wait_tick=6 * S, wait_count=4,
                              over_cap=176.0, over_cap_queue=1, evicted_units=32.0)
    report = reference_report(program(observes=("done", "size")), raw)
    assert list(report) == REPORT_FIELDS
    assert list(report["stages"][0]) == STAGE_FIELDS and list(report["pools"][0]) == POOL_FIELDS
    assert report["serq_version"] is None and report["events"] is None and report["gauges"] == {}
    assert (report["horizon"], report["warmup"], report["mean_live"]) == (100, 20, 1.5)
    assert list(report["observes"]) == ["done", "size"] and report["observes"]["size"]["mean"] == 8
    row = report["stages"][0]
    assert (row["mean_number"], row["utilization"], row["throughput"]) == (2, 0.5, 0.05)
    assert (row["mean_wait"], row["mean_service"], row["mean_decodes"]) == (0, 2.5, 0.1)
    assert (row["mean_decode_batch"], row["mean_decode_step"], row["mean_itl"]) == (2.5, 1.5, 2)
    row = report["pools"][0]  # blocks of 16 units, the size is a parameter
    assert (row["mean_used"], row["mean_cached"], row["mean_wait"]) == (80, 80, 1.5)
    assert row["over_cap"] == {"queue": "reqs", "need": 176} and row["evicted_units"] == 32
    assert report["pools"][1]["mean_wait"] is None and report["pools"][1]["over_cap"] is None


def test_an_array_member_is_reported_under_the_name_of_the_array():
    stages = tuple(Stage(name=f"rep[{i}]", kind=Delay(), array="rep", index=i) for i in range(2))
    own = Program(attrs=(), stages=stages, states=(State(name="s", exit=End()),), start="s", arrival=NoArrival())
    raw = run_of(stages=[StageTotals(), StageTotals()], pools=0)
    assert [(r["name"], r["index"]) for r in reference_report(own, raw)["stages"]] == [("rep", 0), ("rep", 1)]


def test_a_run_that_stopped_in_its_warm_up_has_no_averages():
    raw = run_of(end=50.0, verdict=Verdict.deadlock, cause="x")
    raw.warmup_tick = 60 * S
    report = reference_report(program(), raw)
    assert report["mean_live"] is None and report["stages"][0]["throughput"] is None


def test_client_observations_are_judged_and_ordered_at_recording():
    raw = run_of(
        [
            request(0, 2, 9, 8),  # first token before the warm-up, response after it
            request(1, 6, 7, 2),
            request(2, 5, 5, 1),  # one token: no tpot
            request(4, 8, 9.5, 4, status=RUNNING),
            request(0, 6, 9, 2, turn=0),  # a session without turns: the client sees nothing
        ],
        warmup=5.0,
    )
    seen = client_observations(raw)
    assert seen["ttft"]["value"].tolist() == [3.0, 5.0, 4.0]
    assert seen["ttft"]["session"].tolist() == [2, 1, 3]
    assert seen["tpot"]["value"].tolist() == [1.0, 1.0]
    assert seen["response"]["value"].tolist() == [3.0, 6.0, 9.0]
    assert seen["response"]["tick"].tolist() == [5 * S, 7 * S, 9 * S]


def test_ttft_has_the_time_of_the_first_token_and_is_recorded_at_confirmation():
    raw = run_of([request(0, 1, 9, 3)])
    raw.request_confirmed = np.array([7 * S])
    assert client_observations(raw)["ttft"]["value"].tolist() == [1.0]
    assert client_observations(raw)["ttft"]["tick"].tolist() == [7 * S]


# ---------------------------------------------------------------- requests


def test_definitions_of_the_requests_table():
    # one request 4/3@0 (tokens at 1, 2, 3), and one that was preempted (tokens 1, 6, 7, 8, 9), sent at 0.5
    table = requests_table(run_of([request(0, 1, 3, 3), request(0.5, 1, 9, 5)]))
    assert table["ttft_s"].tolist() == [1.0, 0.5]
    assert table["e2e_s"].tolist() == [3.0, 8.5]
    assert table["tpot_s"].tolist() == [1.0, 2.0]
    assert tuple(table.columns) == tuple(COLUMNS)


def test_e2e_is_to_the_last_token_and_without_tokens_to_the_end_of_the_response():
    table = requests_table(run_of([request(1, 2, 5, 4, end=8), request(1, end=8)]))
    assert table["e2e_s"].tolist() == [4.0, 7.0]
    assert table["end_s"].tolist() == [8.0, 8.0]
    assert math.isnan(table["ttft_s"][1]) and math.isnan(table["tpot_s"][1])


def test_one_token_has_no_tpot_and_unfinished_requests_have_an_age():
    table = requests_table(run_of([request(0, 1, 1, 1), request(4, 6, 7, 2, status=RUNNING),
                                   request(9, status=QUEUED), request(9, status=REJECTED)], end=10.0))
    assert np.isnan(table["tpot_s"]).all()
    assert np.isnan(table["e2e_s"]).tolist() == [False, True, True, True]
    np.testing.assert_array_equal(table["age_s"], [np.nan, 6.0, 1.0, np.nan])
    assert table["ttft_s"][1] == 2.0


def test_an_unconfirmed_first_token_does_not_count():
    raw = run_of([request(0, 1, 1, 1, status=RUNNING)])
    raw.request_confirmed = np.array([-1])
    assert math.isnan(requests_table(raw)["ttft_s"][0])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=4))
def test_requests_add_up(statuses):
    raws = [run_of([request(0, end=1, status=s) for s in run]) for run in statuses]
    counts = request_counts(raws)
    assert counts["in"] == sum(map(len, statuses))
    assert counts["in"] == counts["finished"] + counts["running"] + counts["queued"] + counts["rejected"]
    assert requests_table(raws).counts == counts
    assert list(counts) == ["in", "finished", "running", "queued", "rejected"]


def test_requests_as_a_frame():
    raws = [run_of([request(0, 1, 3, 3)], seed=5), run_of([request(0, status=QUEUED)], seed=2**63 + 1)]
    table = requests_table(raws)
    frame = table.to_polars()
    assert frame.columns == list(COLUMNS) and frame["status"].to_list() == ["finished", "queued"]
    assert frame["run"].to_list() == [0, 1] and frame["seed"].to_list() == [5, 2**63 + 1]
    assert frame["ttft_s"].to_list() == [1.0, None]
    assert "<table" in table._repr_html_()
    assert repr(table) == "RequestTable(in 2, finished 1, running 0, queued 1, rejected 0)"
    assert len(requests_table([])) == 0 and requests_table([]).counts["in"] == 0
    with pytest.raises(KeyError, match="no column 'ttft': it has run, seed"):
        table["ttft"]


# ---------------------------------------------------------------- quantiles, censoring


@pytest.mark.parametrize(
    ("values", "q", "want"),
    [([1, 2, 3, 4], 0.5, 2.5), ([1, 2, 3, 4], 0.95, 3.85), ([1, 2, 3, 4], 0.99, 3.97), ([7], 0.5, 7), ([7], 0.99, 7),
     (range(1, 101), 0.90, 90.1), (range(1, 101), 0.99, 99.01)],
)
def test_linear_quantiles(values, q, want):
    assert Censored([Sample.of(np.array(values))]).quantile(q).value == pytest.approx(want, rel=1e-12)


def test_nothing_is_not_zero():
    estimate = Censored([Sample.of(np.zeros(0))]).quantile(0.5)
    assert math.isnan(estimate.value) and estimate.text == "-"
    assert plain(estimate.to_dict())["value"] is None
    rows = one_run(program(), run_of([]))
    assert plain(rows["ttft_s"]["p50"])["value"] is None and plain(rows["itl_s"]["mean"])["value"] is None


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 100, allow_subnormal=False), st.integers(1, 5)), min_size=1, max_size=20),
    st.floats(0, 1, allow_subnormal=False),
)
def test_weighted_quantile_is_numpys_on_the_repeated_values(rows, q):
    values, weights = (np.array(c) for c in zip(*rows))
    want = np.quantile(np.repeat(values.astype(float), weights), q)
    assert Ordered(values.astype(float), weights).quantile(q) == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_a_quantile_among_the_unfinished_is_a_bound():
    pool = Censored([Sample.of(np.arange(1.0, 81.0), np.full(20, 50.0))])  # 80 finished, 20 aged 50 s
    assert pool.quantile(0.5).value == 50.5, "ranks 50 and 51 of 100: the unfinished are above"
    inside = pool.quantile(0.9)
    assert math.isnan(inside.value)
    # with the unfinished at 50: rank 90.1 of 1..50, 20 x 50, 51..80
    assert inside.lower_bound == pytest.approx(70.1)
    assert inside.text == "> 70.1"
    assert plain(inside.to_dict()) == {"value": None, "se": None, "ci95": None, "lower_bound": inside.lower_bound,
                                       "seeds": 1, "text": "> 70.1"}


def test_a_quantile_past_the_last_known_value_is_not_that_value():
    # 10 samples, 3 of them only known to exceed 5
    pool = Censored([Sample.of(np.array([0.5, 1, 1.5, 2, 2.5, 3, 4]), np.full(3, 5.0))])
    assert pool.quantile(0.9).text == "> 5"
    assert pool.quantile(0.5).value == 2.75


def test_a_quantile_that_touches_an_unfinished_request_is_a_bound():
    pool = Censored([Sample.of(np.array([1.0, 2.0]), np.array([0.5]))])
    assert pool.quantile(0.5).value == 2.0
    assert pool.quantile(0.51).text == "> 1.02"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.1, 100, allow_subnormal=False), st.floats(0.1, 100, allow_subnormal=False)),
             min_size=1, max_size=30),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_the_truth_is_never_below_the_bound_nor_above_the_value(pairs, q):
    truth, cut = (np.array(c) for c in zip(*pairs))
    pool = Censored([Sample.of(truth[truth <= cut], cut[truth > cut])])
    estimate, true = pool.quantile(q), float(np.quantile(truth, q))
    if math.isnan(estimate.value):
        assert true >= estimate.lower_bound - 1e-9
    else:
        assert true <= estimate.value + 1e-9


def test_censoring_of_each_metric():
    raw = run_of(
        [
            request(1, 2, 6, 5),
            request(2, 3, 4, 2, status=RUNNING),  # first token there: TTFT known, TPOT and E2E not
            request(5, status=QUEUED),  # no token: TTFT and E2E at least 5
            request(6, status=REJECTED),
            request(0.5, 3, 4, 2),  # sent before the measured window
        ],
        warmup=1.0, end=10.0,
    )
    samples = latency_samples(program(), raw)
    assert (sorted(samples["ttft_s"].values), samples["ttft_s"].at_least.tolist()) == ([1.0, 1.0], [5.0])
    assert (samples["e2e_s"].values.tolist(), samples["e2e_s"].at_least.tolist()) == ([5.0], [8.0, 5.0])
    assert (samples["tpot_s"].values.tolist(), samples["tpot_s"].at_least.tolist()) == ([1.0], [0.0])
    assert samples["itl_s"].censored == 0
    row = plain(one_run(program(), raw))["e2e_s"]
    assert (row["requests"], row["unfinished"], row["label"]) == (1, 2, "E2E")
    assert row["mean"]["value"] == 5 and row["mean"]["unfinished"] == 2
    assert row["mean"]["text"] == "5 (2 unfinished left out)"
    assert row["p50"]["text"] == "> 5"


def test_without_an_engine_there_is_e2e_alone():
    assert list(latency_samples(program(engine=False), run_of([request(0, end=3)], pools=0))) == ["e2e_s"]


def test_pooled_gaps_and_mean_gaps_of_requests_have_two_names():
    # A: 11 tokens, ten gaps of 1; B: 2 tokens, one gap of 10
    raw = run_of([request(0, 1, 11, 11), request(0, 1, 11, 2)], stages=[gaps_of(*[1.0] * 10, 10.0)])
    rows = plain(one_run(program(), raw))
    assert rows["itl_s"]["mean"]["value"] == pytest.approx(20 / 11)
    assert rows["tpot_s"]["mean"]["value"] == pytest.approx(5.5)
    assert (rows["itl_s"]["label"], rows["itl_s"]["gaps"]) == ("ITL", 11)
    assert (rows["tpot_s"]["label"], rows["tpot_s"]["requests"]) == ("TPOT", 2)
    assert rows["itl_s"]["p99"]["value"] == pytest.approx(10 - 9 * 0.1), "the linear rule between 1 and 10"


def test_gaps_of_several_engines_are_pooled():
    sample = gap_sample(run_of(stages=[gaps_of(1.0, 2.0), gaps_of(3.0)]))
    assert sample.known == 3 and sample.mean == 2.0 and sample.values.tolist() == [1.0, 2.0, 3.0]


# ---------------------------------------------------------------- intervals


def test_interval_over_seeds_by_hand():
    # t(0.975, 3) = 3.182446; standard deviation of 1..4 is sqrt(5/3)
    estimate = over_seeds([1.0, 2.0, 3.0, 4.0])
    assert estimate.value == 2.5 and estimate.se == pytest.approx(math.sqrt(5 / 3) / 2)
    assert estimate.high - 2.5 == pytest.approx(3.182446305 * estimate.se, rel=1e-8)
    assert over_seeds([3.0]).text == "3" and math.isnan(over_seeds([3.0]).low)
    assert over_seeds([1.0, math.nan, 3.0]).seeds == 2
    assert over_seeds([math.nan]).text == "-"


def _clustered(draws, seeds, size):
    """Per-seed samples with a common factor: exp(0.3 a) * exponential."""
    return [Sample.of(math.exp(0.3 * draws.normal()) * draws.exponential(1.0, size)) for _ in range(seeds)]


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_the_clustered_interval_covers(q):
    truth = Censored(_clustered(np.random.default_rng(1), 4000, 100)).quantile(q).value
    draws = np.random.default_rng(2)
    hits, widths = [], []
    for _ in range(300):
        samples = _clustered(draws, 24, 60)
        estimate = pooled_quantile(Censored(samples), [Censored([s]) for s in samples], q)
        hits.append(estimate.low <= truth <= estimate.high)
        widths.append(estimate.high - estimate.low)
        assert estimate.low <= estimate.value <= estimate.high and estimate.seeds == 24
    # 95 % give or take four standard errors of 300 trials; an interval that ignores the seeds covers about 70 %
    assert 0.90 <= np.mean(hits) <= 0.995


def test_the_clustered_interval_widens_with_dependence_inside_a_seed():
    draws = np.random.default_rng(3)
    values = draws.exponential(1.0, 400)
    apart = [Sample.of(v) for v in np.split(draws.permutation(values), 20)]
    alike = [Sample.of(v) for v in np.split(np.sort(values), 20)]
    wide, narrow = (
        pooled_quantile(Censored(s), [Censored([x]) for x in s], 0.5) for s in (alike, apart)
    )
    assert wide.value == narrow.value
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_intervals_with_unfinished_requests():
    samples = [Sample.of(np.arange(1.0, 10.0), np.array([9.0])) for _ in range(5)]
    runs = [Censored([s]) for s in samples]
    inside = pooled_quantile(Censored(samples), runs, 0.99)
    assert math.isnan(inside.value) and math.isinf(inside.high) and inside.text == "> 9"
    assert plain(inside.to_dict())["ci95"][1] is None
    below = pooled_quantile(Censored(samples), runs, 0.5)
    assert below.value == 5.0 or below.value == pytest.approx(5.5, abs=0.6)
    one = pooled_quantile(Censored(samples[:1]), runs[:1], 0.5)
    assert math.isnan(one.low) and one.seeds == 1


def test_a_quantile_unknown_in_one_seed_is_unknown_in_the_mean_of_seeds():
    good = run_of([request(0, end=float(i)) for i in range(1, 11)], pools=0)
    bad = run_of([request(0, end=1.0), request(90, status=QUEUED)], pools=0)
    row = over_runs(program(engine=False), [good, bad])["e2e_s"]
    assert row.mean_of_seeds["p90"].text.startswith("> ")
    assert row.pooled["p50"].value == pytest.approx(5.5, abs=1.0)
    assert row.mean.unfinished == 1 and "1 unfinished left out" in row.mean.text
    assert (row.known, row.censored) == (11, 1)


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize("rho", [0.5, 0.8, 0.95])
def test_a_stable_queue_is_not_unstable(rho):
    assert all(final_verdict(program(engine=False), single_server(s, rho, 3000.0, 100.0)).name == "horizon"
               for s in range(20))


def test_an_overloaded_queue_is_unstable_and_has_no_finite_p99():
    own = program(engine=False)
    raws = [single_server(s, 1.2, 4000.0, 200.0) for s in range(6)]
    verdicts = [final_verdict(own, raw) for raw in raws]
    assert {v.verdict for v in verdicts} == {Verdict.unstable}
    assert "the unfinished requests grew from" in verdicts[0].cause and "lower the arrival rate" in verdicts[0].cause
    row = plain(one_run(own, raws[0]))["e2e_s"]
    assert row["p99"]["value"] is None and row["p99"]["lower_bound"] > 300 and row["p99"]["text"].startswith("> ")
    summary = summarize(own, raws).to_dict()["latency"]["e2e_s"]
    assert summary["p99_pooled"]["value"] is None and summary["p99_mean_of_seeds"]["value"] is None
    assert summary["p50_pooled"]["value"] > 0


def test_only_a_run_to_its_horizon_can_be_unstable():
    raw = single_server(0, 1.2, 4000.0)
    raw.verdict, raw.cause = Verdict.capacity, "raise `slots`"
    assert final_verdict(program(engine=False), raw).to_dict() == {"name": "capacity", "cause": "raise `slots`"}


def test_the_rule_of_unstable():
    edges = verdict_module.WINDOWS + 1
    assert grows(np.arange(edges) * 3), "equal steps: no doubt at all"
    assert not grows(np.full(edges, 50)), "a constant backlog"
    assert not grows(np.minimum(np.arange(edges), verdict_module.LEAST_GROWTH - 1)), "a few requests more"
    assert not grows(np.minimum(np.arange(edges) * 100, 100)), "a start-up jump, then level"
    assert not grows(np.minimum(np.arange(edges) * 10, 100)), "no growth in the second half"
    assert not grows(200 - np.arange(edges)), "draining"


def test_refused_requests_are_no_backlog():
    raw = run_of([request(float(i), status=REJECTED) for i in range(100)], pools=0)
    assert final_verdict(program(engine=False), raw).name == "horizon"


# ---------------------------------------------------------------- summaries and documents


def small_batch():
    samples = [(0, 5.0, 0, 1, 2.0), (0, 6.0, 1, 1, 4.0)]
    runs = [run_of([request(0, 1, 3 + s, 3), request(1, 2, 4, 2)], seed=s, stages=[gaps_of(1.0, 1.0, 2.0)],
                   verdict=Verdict.drained, samples=samples) for s in range(3)]
    lost = run_of([request(0, status=RUNNING)], seed=9, verdict=Verdict.capacity, cause="table `slots`: raise slots")
    return [*runs, lost]


def test_summary_counts_verdicts_and_leaves_out_what_did_not_run():
    summary = summarize(program(observes=("done",)), small_batch())
    assert summary.verdict_counts() == {
        "drained": {"count": 3, "causes": {}},
        "capacity": {"count": 1, "causes": {"table `slots`: raise slots": 1}},
    }
    assert summary.used == 3 and len(summary.seeds) == 4
    assert summary.requests == {"in": 7, "finished": 6, "running": 1, "queued": 0, "rejected": 0}
    row = summary.to_dict()["latency"]["e2e_s"]
    assert row["requests"] == 6 and row["unfinished"] == 0
    assert row["mean"]["value"] == pytest.approx(3.5)  # seeds: 3, 3.5, 4
    assert row["mean"]["se"] == pytest.approx(0.5 / math.sqrt(3))
    assert row["p50_pooled"]["value"] == 3 and row["p50_mean_of_seeds"]["value"] == 3.5
    assert summary.observes["done"]["mean"].value == 3.0


def test_an_observation_of_unstable_runs_has_no_p99():
    raws = [single_server(s, 1.2, 4000.0) for s in range(3)]
    for raw in raws:
        raw.samples_observe, raw.samples_tick = np.zeros(2, dtype=np.int64), np.array([S, 2 * S])
        raw.samples_serial = raw.samples_turn = np.zeros(2, dtype=np.int64)
        raw.samples_value = np.array([1.0, 2.0])
    rows = summarize(program(engine=False, observes=("response",)), raws).to_dict()["observes"]
    assert rows["response"]["p99"]["value"] is None and rows["response"]["mean"]["value"] == 1.5


def test_many_causes_are_counted():
    raws = [run_of([], seed=i, verdict=Verdict.error, cause=f"cause {i}") for i in range(9)]
    row = summarize(program(), raws).verdict_counts()["error"]
    assert row["count"] == 9 and sum(row["causes"].values()) == 9 and len(row["causes"]) == 6
    text = str(summarize(program(), raws))
    assert "error: cause 0 (and 8 more with a cause of their own)" in text
    assert "9 of 9 seeds enter no estimate (capacity or error)" in text


def test_summary_of_nothing_is_refused():
    with pytest.raises(ValueError, match="there is no run to summarize: give at least one seed"):
        summarize(program(), [])


def test_documents():
    own, raws = program(observes=("done",)), small_batch()
    one = run_document(own, raws[0])
    assert list(one) == ["report", "verdict", "cause", "requests", "latency"]
    assert one["verdict"] == "drained" and one["cause"] == ""
    many = batch_document(own, raws)
    assert list(many) == ["summary", "runs", "requests"]
    assert many["requests"]["in"] == 7 and [r["seed"] for r in many["runs"]] == [0, 1, 2, 9]
    assert many["runs"][3]["verdict"] == "capacity"
    assert many["runs"][3]["cause"] == "table `slots`: raise slots"
    assert many["runs"][0]["report"] == one["report"] == reference_report(own, raws[0])
    assert dumps(many) == dumps(batch_document(own, small_batch()))
    json.loads(dumps(many), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_text_names_all_four_latencies_with_units_and_adds_up():
    text = str(summarize(program(observes=("done",)), small_batch()))
    for word in ("TTFT (s)", "TPOT (s)", "ITL (s)", "E2E (s)", "p50", "p99", "Stages", "Pools", "kv", "3 drained"):
        assert word in text
    assert "Requests: 7 in = 6 finished + 1 running + 0 queued + 0 rejected" in text
    overload = str(summarize(program(engine=False), [single_server(s, 1.2, 4000.0) for s in range(2)]))
    assert "> " in overload and "2 unstable" in overload and "TTFT" not in overload


def test_summary_in_notebooks_and_frames():
    summary = summarize(program(), small_batch())
    frame = summary.to_polars()
    assert frame.columns[:4] == ["group", "name", "statistic", "value"]
    assert frame["value"].is_nan().sum() == 0
    assert {"latency", "stages", "pools", "client", "run"} <= set(frame["group"])
    each = summary.per_seed()
    assert each.columns == ["seed", "metric", "mean", "p50", "p90", "p95", "p99"]
    assert each.filter(each["metric"] == "e2e_s")["mean"].to_list() == [3.0, 3.5, 4.0]
    assert summary._repr_html_().startswith("<pre>")


# ---------------------------------------------------------------- comparing


def test_reports_are_compared_within_the_stated_tolerances():
    want = {"serq_version": "0.1.6", "events": 5, "end": 1000, "observes": {"done": {"ci": 1.0, "p99": 3}},
            "stages": [{"itl_p50": 0.5, "itl_p99": None, "stuck": 1, "flag": False}]}

    def changed(**parts):
        own = json.loads(json.dumps(want)) | {"serq_version": None, "events": None}
        own["observes"]["done"].update({k: v for k, v in parts.items() if k in ("ci", "p99")})
        own["stages"][0].update({k: v for k, v in parts.items() if k not in ("ci", "p99", "end")})
        return own | {k: v for k, v in parts.items() if k == "end"}

    assert differences(changed(), want) == []
    assert differences(changed(end=1000.0009, ci=1.00009, itl_p50=0.505), want) == []
    assert differences(changed(end=1000.0021), want) == ["end: 1000.0021, want 1000"]
    assert differences(changed(ci=1.0003), want) == ["observes.done.ci: 1.0003, want 1.0"]
    assert differences(changed(itl_p50=0.52), want) == ["stages[0].itl_p50: 0.52, want 0.5"]
    assert differences(changed(itl_p99=0.1), want) == ["stages[0].itl_p99: 0.1, want None"]
    assert differences(changed(stuck=2), want) == ["stages[0].stuck: 2, want 1"]
    assert differences(changed(flag=True), want) == ["stages[0].flag: True, want False"]
    assert differences(changed(p99=4), want, exceptions={"observes.*.p99": "a reason"}) == []
    assert differences(changed(stuck=2), want, exceptions={"stages[0].stuck": "a reason"}) == []
    assert differences(changed() | {"events": 6}, want) == ["events: 6, want 5"]
    short = changed()
    del short["end"]
    assert differences(short | {"more": 1}, want) == ["end: missing", "more: not wanted"]
    assert differences(changed() | {"stages": []}, want) == ["stages: 0 rows, want 1"]


def test_samples_are_compared_one_by_one():
    own = program(observes=("done",))
    raw = run_of([request(0, 1, 3, 3)], samples=[(0, 5.0, 0, 1, 2.0), (0, 6.0, 1, 1, 4.0)])
    told = {"observes": {"done": {"n": 2, "time": [5.0, 6.0], "session": [0, 1], "turn": [1, 1], "value": [2.0, 4.0]}},
            "client": {"ttft": {"n": 1, "time": [1.0], "session": [0], "turn": [1], "value": [1.0 + 1e-7]}}}
    assert sample_differences(own, raw, told) == []
    told["observes"]["done"]["value"][1] = 4.1
    assert sample_differences(own, raw, told) == ["observes.done.value[1]: 4.0, want 4.1 (1 of 2 differ)"]
    assert sample_differences(own, raw, told, first=1) == []
    assert sample_differences(own, raw, told, exceptions={"observes.done.value": "a reason"}) == []
    told["observes"]["done"]["n"] = 300
    assert sample_differences(own, raw, told, first=1) == []
    assert sample_differences(own, raw, told)[0] == "observes.done.n: 2, want 300"
    assert sample_differences(own, raw, {"observes": {"other": {"n": 0}}}) == ["observes.other: missing"]


def test_estimates_read_aloud():
    assert Estimate(value=0.09532, low=0.0931, high=0.0975).text == "0.09532 [0.0931, 0.0975]"
    assert Estimate(value=0.09532, low=0.0931, high=math.inf).format(1000.0) == "95.32 [93.1, inf]"


def test_numbers_of_the_stage_and_pool_tables():
    from serqjax.report.tables import _short_cell, unit

    assert _short_cell(Estimate(value=0.72594, high=0.78494)) == "0.726 ±0.059"
    assert _short_cell(Estimate(value=26123.4, high=27556.4)) == "26,123 ±1,433"
    assert _short_cell(Estimate(value=26123.4)) == "26,123" and _short_cell(Estimate(value=math.nan)) == "-"
    assert unit([0.5, math.nan]) == (1000.0, "ms") and unit([0.5, 2.0]) == (1.0, "s") and unit([]) == (1.0, "s")
