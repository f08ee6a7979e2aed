"""Capacity and comparison: the truths of M/M/1, what a target means, verdicts, messages, pages."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from compare_runs import run_oracle

import serqjax as sq
from serqjax import ir
from serqjax._cli import call
from serqjax.engine import host
from serqjax.engine.state import Capacities
from serqjax.ir.expr import Attr, Binary, Num, Param, Sample
from serqjax.overrides import with_params
from serqjax.report.raw import RequestStatus
from serqjax.study.capacity import Search, bend, crossings
from serqjax.study.capacity_replay import first_crossings
from serqjax.study.metrics import metric, quantity
from serqjax.study.parts import Probe, Repeats, at, draws, window_of
from serqjax.study.precision import jackknife, leave_one_out, more_seeds, mser5, percentile_bootstrap, resamples
from serqjax.study.slo import slo

TRUE_RATE = 0.7
LIMIT_S = math.log(100) / (1 - TRUE_RATE)  # p99 of the sojourn in an M/M/1 of rate 0.7 and mean service 1 s


def queue(
    horizon_s: float | None = 1500.0, arrival: ir.Arrival | None = None, service: ir.Expr | None = None
) -> ir.Program:
    """One server, exponential work of mean 1 / `speed`, Poisson arrivals at `request_rate`."""
    work = Sample("Exp", (Binary("Div", Num(1.0), Param("speed")),)) if service is None else service
    return ir.Program(
        name="queue",
        attrs=(ir.Attribute(name="service"),),
        params=(ir.Parameter(name="request_rate", value=0.5), ir.Parameter(name="speed", value=1.0)),
        stages=(ir.Stage(name="server", kind=ir.Fifo(Num(1.0))),),
        states=(
            ir.State(name="served", exit=ir.Run(stage="server", mode="Plain", work=Attr("service"), then="gone")),
            ir.State(name="gone", exit=ir.End()),
        ),
        start="served",
        init=(ir.Set("service", work),),
        arrival=ir.Poisson(Param("request_rate")) if arrival is None else arrival,
        horizon_s=None if horizon_s is None else Num(horizon_s),
        warmup_s=Num(0.0 if horizon_s is None else horizon_s / 10),
    )


def listed(count: int = 400, service_s: float = 0.9) -> ir.Program:
    """A replay: arrivals a second apart on the mean, in bursts that come back; nothing is drawn."""
    rng = np.random.default_rng(5)
    gaps = rng.exponential(1.0, count) * np.where(np.arange(count) % 40 < 10, 0.5, 1.2)
    at = tuple(np.round(np.cumsum(gaps), 3).tolist())
    return queue(None, ir.Listed(at=at), Num(service_s))


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 0.5), ("0.5 s", 0.5), ("2%", 0.02), ("3", 3.0), ("1e-3s", 1e-3), ("2 min", 120.0)]
)
def test_quantities_have_units(text: str, value: float) -> None:
    assert quantity(text, "x") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft.p100", "did you mean `ttft.p99`"),
        ("ttft.p0", "between 0 and 100"),
        ("goodput(ttft>500ms)", "is no condition"),
        ("goodput(ttft<5parsec)", "is not a time"),
        ("throughput[turn=1]", "of the whole run"),
        ("itl.p99[turn=1]", "use tpot"),
        ("speed", "is no metric"),
    ],
)
def test_a_wrong_metric_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        metric(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft.p99", "write METRIC < NUMBER"),
        ("ttft.p99>500ms", "upper limit"),
        ("ttft.mean>=1s", "upper limit"),
        ("goodput(ttft<1s)>=1", "1 cannot be measured"),
        ("goodput(ttft<1s)<0.5", "write goodput(...)>=0.99"),
        ("ttft.p99<5%", "is not a time"),
        ("ttft.p99<nan", "is not a number"),
        ("ttft.p99<0s", "above 0"),
        ("unfinished<2", "below 1"),
        ("throughput>0", "above 0"),
    ],
)
def test_a_wrong_target_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        slo(text)


def test_a_target_is_a_share_of_requests() -> None:
    target = slo("ttft.p99 < 500 ms")
    assert (target.text, target.bound, target.cooldown_s) == ("ttft.p99<500ms", 0.5, 0.5)
    assert target.allowed == pytest.approx(0.01)
    assert slo("goodput(ttft<0.4s,tpot<50ms)>=99%").allowed == pytest.approx(0.01)


# ---------------------------------------------------------------- values


@pytest.fixture(scope="module")
def busy() -> sq.Runs:
    """Eight short runs at high load; some requests are unfinished."""
    return sq.run(with_params(queue(400.0), {"request_rate": 0.9}), seeds=range(8))


def test_metrics_are_those_of_the_report(busy: sq.Runs) -> None:
    rows = {row["metric"]: row for row in sq.measure(busy, ["e2e.mean", "e2e.p50", "throughput"]).iter_rows(named=True)}
    summary = busy.summary().latency["e2e_s"]
    assert rows["e2e.mean"]["value"] == pytest.approx(summary.mean.value)
    assert rows["e2e.mean"]["low"] == pytest.approx(summary.mean.low)
    assert rows["e2e.p50"]["value"] == pytest.approx(summary.mean_of_seeds["p50"].value)
    served = np.mean([run.report["stages"][0]["throughput"] for run in busy])
    assert rows["throughput"]["value"] == pytest.approx(served)
    assert sq.measure(busy, "stages.server.utilization")["value"][0] == pytest.approx(
        np.mean([run.report["stages"][0]["utilization"] for run in busy])
    )


def test_unfinished_requests_miss(busy: sq.Runs) -> None:
    run = max(busy, key=lambda run: run.request_counts["running"] + run.request_counts["queued"])
    table = run.requests
    open_ = table["measured"] & (table["status"] != RequestStatus.finished)
    assert open_.sum() > 3
    target = slo("goodput(e2e<1000s)>=0.5")  # only the unfinished can miss so wide a limit
    assert metric("goodput(e2e<1000s)").value(run).value == pytest.approx(1 - open_.sum() / table["measured"].sum())
    assert target.sums(run, None, 1)[1].sum() == 0, "requests within 1000 s of the end are not known to have missed yet"
    limit = float(np.nanquantile(table["e2e_s"], 0.5))
    top, bottom = slo(f"e2e.p50<{limit!r}s").sums(run, None, 1)
    early = table["measured"] & (table["sent_s"] <= 400.0 - limit)
    with np.errstate(invalid="ignore"):
        late = early & ~(table["e2e_s"] < limit)
    assert (top.sum(), bottom.sum()) == (late.sum(), early.sum())
    assert 0 < top.sum() < bottom.sum()


def test_metrics_by_a_column(busy: sq.Runs) -> None:
    by = sq.measure(busy, ["e2e.mean"], by="turn")
    assert by["turn"].to_list() == ["0"]
    assert by["value"][0] == pytest.approx(sq.measure(busy, "e2e.mean")["value"][0])
    with pytest.raises(ValueError, match="no column `priority`: known: turn"):
        sq.measure(busy, ["e2e.mean"], by="priority")
    with pytest.raises(ValueError, match="no engine that makes tokens"):
        sq.measure(busy, "ttft.p99")
    with pytest.raises(ValueError, match="does not say its `gpus`"):
        sq.measure(busy, "requests_per_gpu")


def test_a_deployment_says_its_gpus_and_their_price() -> None:
    engine = sq.deployments.owned(sq.deployments.vllm(), gpus=4, price_per_gpu_hour=2.5)
    prog = sq.program(engine.replace(gpus=8, max_num_seqs=16), sq.workloads.requests(request_rate=1.0))
    params = {p.name: p.value for p in prog.params}
    assert (params["gpus"], params["price_per_gpu_hour"], params["max_num_seqs"]) == (8, 2.5, 16)
    assert {p.name for p in sq.read("vllm", settings={"gpus": "2"}).params} >= {"gpus"}
    sq.check(prog)
    priced = with_params(queue(300.0), {"request_rate": 0.5})
    more = (ir.Parameter(name="gpus", value=4.0), ir.Parameter(name="price_per_gpu_hour", value=2.5))
    run = sq.run(msgspec.structs.replace(priced, params=priced.params + more), seed=1)
    assert metric("requests_per_gpu").value(run).value == pytest.approx(metric("throughput").value(run).value / 4)
    with pytest.raises(sq.ProgramError, match="gpus"):
        sq.deployments.owned(sq.deployments.vllm(), gpus=0)


# ---------------------------------------------------------------- statistics


def test_the_jackknife_is_student_s_interval_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(size=12)
    weights = leave_one_out(12)
    found = jackknife(weights @ values / weights.sum(axis=1), 0.95)
    assert found.value == pytest.approx(values.mean())
    assert found.se == pytest.approx(values.std(ddof=1) / math.sqrt(12))
    drawn = resamples(12)
    boot = percentile_bootstrap(drawn @ values / drawn.sum(axis=1), 0.95, 12)
    assert boot.se == pytest.approx(values.std() / math.sqrt(12), rel=0.1)
    assert boot.low < values.mean() < boot.high


def test_seeds_are_added_until_the_precision_is_there() -> None:
    assert more_seeds(64, 32, 0.01, 0.02, 512) == 64
    assert more_seeds(32, 32, 0.01, 0.02, 512) == 64, "the first look is never the last"
    assert more_seeds(100, 32, 0.03, 0.02, 512) == math.ceil(1.1 * 100 * 2.25)
    assert more_seeds(400, 32, 0.03, 0.02, 512) == 512


def test_mser5_cuts_off_a_start_up() -> None:
    noise = np.random.default_rng(2).normal(size=1000)
    start = np.where(np.arange(1000) < 200, 20.0, 0.0)
    assert mser5(noise + start) == 200
    assert mser5(noise) < 100


def test_the_crossing_of_a_line() -> None:
    x = np.array([1.0, 2.0, 3.0])
    assert crossings(x, np.array([[-1.0, 0.5, 2.0], [2.0, 1.0, 0.0]])) == pytest.approx([5 / 3, np.nan], nan_ok=True)
    assert bend(x, np.array([-1.0, 0.0, 1.0])) == pytest.approx(0.0, abs=1e-12)
    assert bend(x, np.array([-1.0, 0.5, 1.0])) > 0.1


def test_the_first_crossing_of_points() -> None:
    x = np.array([1.0, 2.0, 4.0])
    y = np.array([[-1.0, 1.0, 3.0], [-1.0, -1.0, 1.0], [1.0, -1.0, 2.0], [-3.0, -2.0, -1.0]])
    assert first_crossings(x, y).tolist() == [1.5, 3.0, 1.0, math.inf]


def test_one_seed_with_all_the_misses_is_no_miss() -> None:
    """29 of 18,400 requests miss, 1 % may; the logarithm of the share, freed of bias, says more than 1 %."""
    program = queue()
    repeats = Repeats(program, "request_rate", (slo("e2e.p99<5s"),), 0, 0)
    search = Search(repeats, 0.1, 1.0, 0.95, 0.02, 512)
    misses = np.array([0.0, 0, 0, 0, 0, 0, 0, 29])
    probe = Probe(0.4, [misses], [np.full(8, 2300.0)], np.zeros(8))
    assert jackknife(search.excess([probe], 0)[:, 0], 0.95).value > 0
    assert search.worst(probe)[0] == pytest.approx(math.log(29.5 / 18401 / 0.01))


def test_what_draws() -> None:
    assert draws(queue())
    assert not draws(listed())


# ---------------------------------------------------------------- capacity


@pytest.fixture(scope="module")
def found() -> Any:
    return sq.capacity(queue(), over="request_rate", between=(0.4, 1.4), slo=[f"e2e.p99<{LIMIT_S:.6f}s"],
    precision=0.05,
                       max_seeds=128, seed=77)


def test_capacity_of_mm1(found: Any) -> None:
    """Kleinrock I, section 5.12: the sojourn is exponential with rate mu - lambda. `experiments/capacity_coverage.py`
    counts how often the interval holds the truth."""
    low, high = found.interval
    assert found.verdict == "found"
    assert low < TRUE_RATE < high
    assert (high - low) / 2 < 0.055 * found.value
    last = found.rows[-1]
    assert 0.5 < last[f"share above: {found.slos[0].text}"] and last["request_rate"] < 1.2, "the way up ends early"
    document = json.loads(found.to_json())
    assert document["value"] == pytest.approx(found.value)
    assert "request_rate = 0." in str(found)
    assert found.table.height == len(found.rows) and found.table["request_rate"].is_sorted()


def test_capacity_says_why_there_is_no_number() -> None:
    ask: dict[str, Any] = {"over": "request_rate", "slo": [f"e2e.p99<{LIMIT_S}s"], "precision": 0.2}
    unstable = sq.capacity(queue(600.0), between=(1.3, 1.35), **ask)
    assert unstable.verdict == "unstable" and math.isnan(unstable.value)
    drift = re.search(r"grows by ([\d.]+) \[([\d.]+), ([\d.]+)\] requests/s", unstable.cause)
    assert drift is not None and float(drift[2]) < 0.3 < float(drift[3]), "1.3 come, 1 a second is served"
    met = sq.capacity(queue(600.0), between=(0.1, 0.2), **ask)
    assert met.verdict == "met" and met.interval == (0.2, math.inf)
    missed = sq.capacity(queue(600.0), between=(0.5, 0.9), **{**ask, "slo": ["e2e.p99<3s"]})
    assert missed.verdict == "missed" and "lowest value" in missed.cause


def test_a_curve_that_falls_is_reported_not_bisected() -> None:
    found = sq.capacity(queue(), over="speed", between=(0.7, 3.0), slo=["e2e.p90<3s"])
    assert found.verdict == "not_monotone" and math.isnan(found.value)
    assert "no single largest value" in found.cause


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"over": "request_rat"}, "did you mean `request_rate`"),
        ({"over": "rate_scale"}, "replays no recorded times"),
        ({"between": (2.0, 1.0)}, "the smaller one first"),
        ({"slo": []}, "at least one target"),
        ({"confidence": 95.0}, "from 0.5 to below 1"),
        ({"precision": 0.0}, "a share above 0"),
        ({"max_seeds": 4}, "at least 32"),
        ({"window_s": 10.0}, "replays no recorded times"),
    ],
)
def test_wrong_questions_are_refused(changes: dict[str, Any], message: str) -> None:
    ask: dict[str, Any] = {"over": "request_rate", "between": (0.1, 1.0), "slo": ["e2e.p99<5s"]} | changes
    with pytest.raises(ValueError, match=re.escape(message)):
        sq.capacity(queue(), **ask)


@pytest.mark.slow
def test_capacity_of_a_replay_draws_windows() -> None:
    recorded = listed().arrival
    assert isinstance(recorded, ir.Listed)
    both = sq.capacity([listed(), listed(service_s=0.7)], over="rate_scale", between=(0.3, 3.0), slo="e2e.p95<4s")
    assert [f.verdict for f in both] == ["found", "found"]
    for one, service_s in zip(both, (0.9, 0.7)):
        assert one.interval[0] < one.value < one.interval[1]
        assert "60 arrival windows" in one.parts
        # the answer is where the trace itself crosses: 5 % of its requests miss there
        run = sq.run(msgspec.structs.replace(
            listed(service_s=service_s),
            arrival=ir.Listed(at=tuple(t / one.value for t in recorded.at)),
        ))
        assert np.mean(run.requests["e2e_s"] >= 4.0) == pytest.approx(0.05, abs=0.02)
    assert both[1].value > both[0].value


def test_a_replay_that_has_missed_for_sure_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under overload more sessions wait than the first table holds, and more misses are known than all may have."""
    monkeypatch.setattr(host.Batch, "auto", lambda self: Capacities(slots=32))
    program, name = listed(), "misses e2e.p95<4s"
    one = sq.capacity(program, over="rate_scale", between=(0.3, 3.0), slo="e2e.p95<4s")
    assert one.verdict == "found" and one.interval[0] < one.value < one.interval[1]
    cut = [row for row in one.rows if row["cut"]]
    assert cut and all(row["rate_scale"] > one.value for row in cut)
    for row in cut:
        whole = sq.run(at(program, "rate_scale", row["rate_scale"]))
        assert 0.05 * 400 < row[name] <= np.sum(whole.requests["e2e_s"] >= 4.0)
    near = [row["rate_scale"] for row in one.rows if abs(row["rate_scale"] / one.value - 1) < 0.02]
    assert len(near) >= 2, "the answer lies between two replays that are close together"
    assert "ended early" in str(one)


# ---------------------------------------------------------------- comparison


def test_a_difference_with_its_interval() -> None:
    """Mean sojourns of M/M/1: 1 / (1 - rate)."""
    a, b = (with_params(queue(2000.0), {"request_rate": rate}) for rate in (0.5, 0.55))
    found = sq.compare(a, b, metric="e2e.mean", precision=0.008, max_seeds=256, seed=1000)
    true = 1 / 0.45 - 1 / 0.5
    low, high = found.interval
    assert low < true < high and found.verdict == "b_higher"
    assert (high - low) / 2 <= 0.0088 * found.a.value
    alone = math.hypot(found.a.se, found.b.se)
    assert found.difference.se < 0.5 * alone, "paired seeds are worth more than twice the runs"
    assert "B is higher" in str(found) and found.to_polars().height == found.a.seeds
    same = sq.compare(a, a, metric="e2e.mean")
    assert same.interval == (0.0, 0.0) and same.verdict == "no_difference"


def test_warmup_by_rule_and_values_that_are_not_known() -> None:
    a, b = (with_params(queue(600.0), {"request_rate": rate}) for rate in (0.5, 1.5))
    found = sq.compare(a, b, metric="e2e.p99", warmup_s="mser5")
    assert found.verdict == "unknown" and math.isnan(found.difference.value)
    assert found.b.lower_bound > 10 and "above" in found.cause
    assert any("B is unstable in" in note for note in found.notes)
    assert found.warmup_s is not None and 0 <= found.warmup_s <= 301


def test_where_nothing_is_random_there_is_no_interval() -> None:
    a, b = listed(), listed(service_s=0.8)
    one = sq.compare(a, b, metric="e2e.p99")
    assert one.verdict == "no_interval" and math.isnan(one.interval[0]) and one.difference.value < 0
    assert "no interval" in str(one) and "--window" in one.cause
    drawn = sq.compare(a, b, metric="e2e.mean", window_s=8.0)
    assert drawn.difference.value == pytest.approx(sq.compare(a, b, metric="e2e.mean").difference.value)
    assert drawn.verdict == "b_lower" and drawn.interval[0] < drawn.difference.value < drawn.interval[1] < 0
    run = sq.run(a)
    parts = window_of(run, a, 60)
    assert parts.min() == 0 and parts.max() == 59 and np.all(np.diff(parts) >= 0)
    with pytest.raises(ValueError, match="at least 8 windows"):
        sq.compare(a, b, metric="e2e.mean", window_s=300.0)
    with pytest.raises(ValueError, match="same recorded times"):
        sq.compare(a, listed(300), metric="e2e.mean", window_s=8.0)


# ---------------------------------------------------------------- command line and pages


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "queue.json"
    path.write_text(sq.to_json(queue()), encoding="utf-8")
    return str(path)


def test_the_commands(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "curve.svg"
    words = ["capacity", file, "--over", "request_rate=0.4:1.4", "--slo", f"e2e.p99<{LIMIT_S:.6f}s", "--precision",
    "20%",
             "--json", "--page", str(page), "--plot", str(picture)]
    assert call(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "found" and document["interval"][0] < document["value"] < document["interval"][1]
    text = page.read_text(encoding="utf-8")
    assert "<svg" in text and picture.read_text(encoding="utf-8").count("<svg") == 1
    outside = [u for u in re.findall(r"""(?:src|href)\s*=\s*["']([^"'#]+)""", text) if not u.startswith("#")]
    assert not outside and "<script" not in text, "nothing is fetched"
    words = ["compare", file, file, "--metric", "e2e.mean", "--set-b", "speed=1.2", "--precision", "20%", "--json"]
    assert call(words) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "b_lower"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["capacity", "FILE", "--over", "request_rate", "--slo", "e2e.p99<1s"], "write NAME=LEAST:LARGEST"),
        (["capacity", "FILE", "--over", "request_rate=0.1:1", "--slo", "e2e.p9x<1s"], "is no metric"),
        (["capacity", "FILE", "--over", "request_rate=0.1:1", "--slo", "ttft.p99<1s"], "no engine that makes tokens"),
        (["compare", "FILE", "FILE", "--metric", "e2e.p99", "--warmup", "long"], "give seconds, or mser5"),
        (["compare", "FILE", "FILE", "--metric", "e2e.p99", "--precision", "tight"], "is not a number"),
        (["report", "nowhere"], "there is no such folder"),
    ],
)
def test_bad_input_is_one_message(
    words: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = call([file if word == "FILE" else word for word in words])
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err.count("\n") == 1 and message in err


def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium here: install Debian's package chromium to look at the page as a browser does")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("grid") / "g"
    sq.grid(queue(300.0), vary={"request_rate": [0.3, 0.5, 0.7, 1.3], "speed": [1.0, 1.5]}, seeds=range(3), out=out)
    return out


def test_the_report_of_a_grid(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["report", str(folder), "--slo", "e2e.p99<20s"]) == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert text.count("<svg") == 2, "curves and a map"
    for words in ("8 points x 3 seeds", "Against request_rate", "over request_rate and speed", "e2e.p99&lt;20s",
    "unstable"):
        assert words in text
    assert call(["report", str(folder)]) == 0
    first = (folder / "report.html").read_bytes()
    assert call(["report", str(folder)]) == 0
    assert (folder / "report.html").read_bytes() == first
    assert call(["report", str(folder), "--slo", "ttft.p99<1s"]) == 2
    assert "no such column" in capsys.readouterr().err


def test_a_browser_shows_the_page(folder: Path, tmp_path: Path) -> None:
    chromium = browser()
    assert call(["report", str(folder)]) == 0
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000", "--dump-dom",
         (folder / "report.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Against request_rate" in done.stdout and done.stdout.count("<svg") == 2


def test_metrics_by_class_of_requests():
    """A class is named in a metric, and splits all metrics; what clients give up is no good request and no answer."""
    classes = [
        sq.workloads.request_class("chat", share=3, output_len=4),
        sq.workloads.request_class("batch", share=1, output_len=40),
    ]
    load = sq.workloads.requests(
        request_rate=40.0, num_prompts=60, input_len=64, classes=classes, timeout_s=0.4, retries=0
    )
    engine = sq.deployments.vllm(max_num_seqs=4, num_gpu_blocks=64)
    prog = sq.program(engine, load)
    run = sq.Run(prog, run_oracle(prog, 3))
    table = run.requests
    names = np.asarray(table.class_names)[table["class"].astype(int)]
    assert run.request_counts["abandoned"] > 0 and set(names) == {"chat", "batch"}
    good = table["ttft_s"] < 0.3
    good &= table["status"] == RequestStatus.finished
    for name in ("chat", "batch"):
        share = metric(f"goodput(ttft<300ms)[class={name}]").value(run).value
        assert share == pytest.approx(good[names == name].mean())
    answered = (table["status"] == RequestStatus.finished).sum()
    assert metric("throughput").value(run).value == pytest.approx(answered / run.report["end"])
