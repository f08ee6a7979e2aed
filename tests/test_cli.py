"""The command line: what it prints, where, and its exit codes. The oracle stands in for the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import serqjax as sq
from serqjax import _cli
from serqjax.progress import BarProgress
from serqjax.report.raw import Verdict
from tests.helpers import ROOT
from tests.standin import oracle_engine

SMOKE = str(ROOT / "tests" / "data" / "smoke.ir14.json")

pytestmark = pytest.mark.usefixtures("oracle_engine")
_ = oracle_engine


def call(capsys, *words: str) -> tuple[int, str, str]:
    code = _cli.call(list(words))
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def test_one_seed_as_json(capsys):
    code, out, err = call(capsys, "run", SMOKE, "--json")
    document = json.loads(out)
    assert code == 0 and err == ""
    assert {"report", "verdict", "requests"} <= set(document)
    assert document["report"]["seed"] == 11 and document["report"]["horizon"] == 60
    counts = document["requests"]
    assert counts["in"] == sum(counts[k] for k in ("finished", "running", "queued", "rejected")) > 0
    assert document["verdict"] == "horizon"


def test_equal_runs_print_equal_bytes(capsys):
    first = call(capsys, "run", SMOKE, "--seeds", "3:5", "--json")
    assert first == call(capsys, "run", SMOKE, "--seeds", "3:5", "--json")


def test_many_seeds_as_json(capsys):
    code, out, _ = call(capsys, "run", SMOKE, "--seeds", "0:3", "--json")
    document = json.loads(out)
    assert code == 0
    assert {"summary", "runs", "requests"} <= set(document)
    assert [run["seed"] for run in document["runs"]] == [0, 1, 2]
    assert document["requests"]["in"] == sum(run["requests"]["in"] for run in document["runs"])


def test_the_table_has_the_four_latencies(capsys):
    code, out, _ = call(capsys, "run", SMOKE, "--seeds", "0:3")
    assert code == 0
    for name in ("TTFT", "TPOT", "ITL", "E2E", "95 % intervals over seeds", "Requests:"):
        assert name in out


def test_options_override_the_program(capsys):
    words = ("--seed", "4", "--horizon", "30", "--warmup", "2", "--set", "arrival.rate=0.25")
    _, out, _ = call(capsys, "run", SMOKE, "--json", *words)
    report = json.loads(out)["report"]
    assert (report["seed"], report["horizon"], report["warmup"]) == (4, 30, 2)
    _, out, _ = call(capsys, "run", SMOKE, "--json", "--seed", "4", "--horizon", "30", "--warmup", "2")
    assert json.loads(out)["report"]["arrivals"] > report["arrivals"]


def test_a_number_of_arrivals_drains(capsys):
    _, out, _ = call(capsys, "run", SMOKE, "--json", "--arrivals", "7", "--warmup", "0", "--horizon", "1000")
    document = json.loads(out)
    assert document["verdict"] == "drained"
    assert document["report"]["arrivals"] == document["report"]["ended"] == 7


def test_samples_and_plot_are_written(capsys, tmp_path):
    import polars

    samples, plot = tmp_path / "new" / "s.parquet", tmp_path / "new" / "p.png"
    code, out, err = call(capsys, "run", SMOKE, "--json", "--samples", str(samples), "--plot", str(plot))
    assert code == 0 and json.loads(out)
    assert str(samples) in err and str(plot) in err
    assert polars.read_parquet(samples).columns == ["run", "observation", "time_s", "session", "turn", "value"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_reference_interpreter_runs_the_same_program(capsys):
    pytest.importorskip("pyserq")
    code, out, _ = call(capsys, "run", SMOKE, "--engine", "pyserq", "--json", "--set", "kv.cap=3200", "--seed", "5")
    theirs = json.loads(out)
    assert code == 0 and set(theirs) == {"report", "verdict", "cause", "requests"}
    _, out, _ = call(capsys, "run", SMOKE, "--json", "--set", "kv.cap=3200", "--seed", "5")
    ours = json.loads(out)["report"]
    assert ours.keys() == theirs["report"].keys()
    for name in ("arrivals", "ended", "turns"):
        assert ours[name] == theirs["report"][name]
    assert ours["client"]["ttft"]["mean"] == pytest.approx(theirs["report"]["client"]["ttft"]["mean"], abs=1e-6)
    code, out, _ = call(capsys, "run", SMOKE, "--engine", "pyserq", "--json", "--seeds", "0:2")
    assert code == 0 and {"summary", "runs", "requests"} == set(json.loads(out))


def test_text_programs_are_read_with_their_workload(capsys):
    pytest.importorskip("pyserq")
    serq = SMOKE.replace(".ir14.json", ".serq")
    words = ("--workload", serq.replace(".serq", "_workload.serq"), "--horizon", "60", "--warmup", "5", "--seed", "11")
    _, out, _ = call(capsys, "run", serq, "--json", *words)
    _, same, _ = call(capsys, "run", SMOKE, "--json")
    assert json.loads(out)["report"]["client"] == json.loads(same)["report"]["client"]


def test_a_ready_made_deployment_takes_flags_of_vllm_and_of_its_workload(capsys):
    words = ("--set", "max_num_seqs=4", "--set", "session_rate=0.3", "--set", "base_s=0.02", "--set", "think_s.mean=1")
    code, out, _ = call(capsys, "ir", "vllm", *words)
    assert code == 0
    params = {p["name"]: p["value"] for p in json.loads(out)["params"]}
    assert (params["max_num_seqs"], params["session_rate"], params["base_s"]) == (4.0, 0.3, 0.02)
    assert params["think_s.mean"] == 1.0


def test_a_recorded_trace_arrives_row_by_row_and_drains(capsys, tmp_path):
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,480,10\n"
        "2023-11-16 18:17:04.0319600,300,8\n"
        "2023-11-16 18:17:05.0319600,100,1\n"
    )
    code, out, _ = call(capsys, "run", "vllm", "--trace", str(trace), "--json")
    document = json.loads(out)
    assert code == 0 and document["verdict"] == "drained"
    assert document["requests"] == {"in": 3, "finished": 3, "running": 0, "queued": 0, "rejected": 0}


def test_ir_prints_a_program_that_runs_the_same(capsys, tmp_path):
    _, out, _ = call(capsys, "ir", SMOKE)
    again = tmp_path / "again.json"
    again.write_text(out)
    _, first, _ = call(capsys, "run", SMOKE, "--json")
    _, second, _ = call(capsys, "run", str(again), "--json")
    assert json.loads(first)["report"] == json.loads(second)["report"]


def test_check_says_what_will_run_how(capsys):
    code, out, _ = call(capsys, "check", SMOKE)
    assert code == 0 and "pools" in out and "fixed point" in out
    code, out, _ = call(capsys, "check", SMOKE, "--json")
    assert code == 0 and json.loads(out)["pools"]


@pytest.mark.parametrize(
    ("verdict", "code", "allowed"),
    [("drained", 0, 0), ("horizon", 0, 0), ("deadlock", 1, 0), ("livelock", 1, 0), ("capacity", 1, 1), ("error", 1, 1)],
)
def test_exit_codes_of_verdicts(capsys, monkeypatch, verdict, code, allowed):
    inner = sq.api._simulate

    def ended(prog, seeds, **options):
        raws = inner(prog, seeds, **options)
        for raw in raws:
            raw.verdict, raw.cause = Verdict[verdict], "somebody waits"
        return raws

    monkeypatch.setattr("serqjax.api._simulate", ended)
    for words in (("--seed", "1"), ("--seeds", "0:2")):
        got, out, err = call(capsys, "run", SMOKE, "--json", *words)
        assert got == code and json.loads(out)  # the whole report, also when the exit code is 1
        assert ("somebody waits" in err) == (code == 1)
        assert call(capsys, "run", SMOKE, "--json", "--allow-stuck", *words)[0] == allowed


def test_an_interrupt_returns_what_is_finished(capsys, monkeypatch):
    inner = sq.api._simulate
    monkeypatch.setattr("serqjax.api._simulate", lambda p, s, **o: [*inner(p, s[:2], **o), *[None] * (len(s) - 2)])
    code, out, err = call(capsys, "run", SMOKE, "--seeds", "0:5", "--json")
    document = json.loads(out)
    assert code == 130
    assert [run["seed"] for run in document["runs"]] == [0, 1] and document["unfinished_seeds"] == [2, 3, 4]
    assert "interrupted" in err
    monkeypatch.setattr("serqjax.api._simulate", lambda p, s, **o: [None] * len(s))
    code, out, err = call(capsys, "run", SMOKE, "--seeds", "0:5", "--json")
    assert (code, out) == (130, "") and "before any seed" in err


def test_options_reach_the_engine(capsys, monkeypatch):
    seen = {}
    inner = sq.api._simulate

    def spy(prog, seeds, **options):
        seen.update(options)
        return inner(prog, seeds, **options)

    monkeypatch.setattr("serqjax.api._simulate", spy)
    call(capsys, "run", SMOKE, "--check", "--stop-on-verdict")
    assert seen["check"] is True and seen["stop_on_verdict"] is True and isinstance(seen["progress"], BarProgress)
    assert seen["coalesce"] is True
    call(capsys, "run", SMOKE, "--no-coalesce")
    assert seen["coalesce"] is False


def test_the_bar_is_drawn_on_a_terminal_only(capsys):
    quiet = BarProgress()
    drawn = BarProgress(force=True)
    for bar in (quiet, drawn):
        bar.start(4)
        bar.advance(2)
        bar.close()
        bar.close()
        out, err = capsys.readouterr()
        assert out == ""
        assert ("2/4" in err) == (bar is drawn)


def test_help_is_quick_and_complete(capsys):
    environment = dict(os.environ, COLUMNS="200")
    words = [sys.executable, "-c", "from serqjax._cli import main; main()", "--help"]
    took_s = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
        after = os.times()
        took_s.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert all(word in done.stdout for word in ("run", "check", "ir"))
    probe = (
        "import sys, serqjax._commands\n"
        "heavy = {'jax', 'numpy', 'polars', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=True)
    # below half a second of a core's time on a quiet machine; the test allows for a busy one
    assert 0.0 < min(took_s) < 1.0
    code = _cli.call(["run", "--help"])
    out = capsys.readouterr().out
    options = "workload set seed seeds horizon warmup arrivals trace engine check allow-stuck stop-on-verdict json"
    assert code == 0 and all(f"--{option}" in out for option in [*options.split(), "samples", "plot"])


def test_version(capsys):
    code, out, _ = call(capsys, "--version")
    assert code == 0 and out.strip() == sq.__version__
