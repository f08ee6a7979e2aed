"""The Python interface. The oracle stands in for the engine, except in the tests marked by their names."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

import serqjax as sq
from serqjax import ir
from serqjax.report.raw import Verdict
from tests.helpers import ROOT
from tests.standin import oracle_engine

SMOKE = ROOT / "tests" / "data" / "smoke.ir14.json"
_ = oracle_engine


@pytest.fixture
def prog(oracle_engine) -> ir.Program:
    return sq.read(SMOKE)


def test_the_surface():
    assert sorted(n for n in vars(sq) if n in {"program", "check", "run", "run_many", "read", "Run", "Runs"}) == [
        "Run", "Runs", "check", "program", "read", "run", "run_many",
    ]
    assert callable(sq.check) and callable(sq.run)
    import serqjax.check.describe  # noqa: F401  (the room of the same name must not hide the function)

    assert callable(sq.check)
    for namespace in (sq.deployments, sq.workloads, sq.costs, sq.traces):
        assert namespace.__doc__


def test_every_public_name_has_a_docstring():
    for name in vars(sq):
        if not name.startswith("_") and callable(thing := getattr(sq, name)):
            assert thing.__doc__, name


def test_one_seed(prog):
    run = sq.run(prog, seed=7, horizon_s=40.0, warmup_s=4.0)
    assert isinstance(run, sq.Run) and run.seed == 7
    assert run.report["seed"] == 7 and run.report["horizon"] == 40 and run.report["warmup"] == 4
    assert run.verdict == "horizon" and run.cause == ""
    assert run.raise_for_verdict() is run and run.failures() == []
    assert run.request_counts["in"] == len(run.requests) == run.requests.to_polars().height
    assert "TTFT" in str(run) and "TTFT" in run._repr_html_() and "verdict='horizon'" in repr(run)
    assert set(run.samples.columns) == {"run", "observation", "time_s", "session", "turn", "value"}
    assert json.loads(run.to_json()) == run.to_document()


def test_many_seeds_are_the_single_ones(prog):
    runs = sq.run(prog, seeds=range(3))
    assert isinstance(runs, sq.Runs) and len(runs) == 3 and runs.seeds == (0, 1, 2)
    assert runs.verdicts == ("horizon",) * 3 and runs.unfinished_seeds == ()
    for run, seed in zip(runs, range(3)):
        assert run.report == sq.run(prog, seed=seed).report
    assert runs[1].report == runs.to_document()["runs"][1]["report"]
    assert runs.request_counts["in"] == sum(r.request_counts["in"] for r in runs)
    assert set(runs.samples["run"].unique()) == {0, 1, 2}
    assert "TTFT" in str(runs) and "3 seeds" in repr(runs) and "<pre>" in runs._repr_html_()
    assert runs.summary().per_seed().height == 4 * 3


def test_the_default_seed_is_the_programs_own(prog):
    assert sq.run(prog).seed == 11


def test_params_change_numbers_and_nothing_else(prog):
    fewer = sq.run(prog, params={"arrival.rate": 0.1})
    assert fewer.raw.arrivals < sq.run(prog).raw.arrivals
    assert {p.name: p.value for p in fewer.program.params}["arrival.rate"] == 0.1
    assert fewer.program.states == prog.states


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seed": 1, "seeds": [2]}, "exclude each other"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [1, 1]}, "named twice"),
        ({"seed": -1}, "0 to 2\\^64 - 1"),
        ({"seed": 2**64}, "0 to 2\\^64 - 1"),
        ({"horizon_s": 0.0}, "above 0"),
        ({"horizon_s": float("nan")}, "above 0"),
        ({"warmup_s": -1.0}, "at least 0"),
        ({"warmup_s": 60.0}, "not above the warm-up"),
        ({"arrivals": 0}, "at least 1"),
        ({"params": {"kv.cup": 1.0}}, "did you mean `kv.cap`"),
        ({"params": {"kv.cap": float("inf")}}, "finite"),
    ],
)
def test_arguments_are_checked(prog, arguments, text):
    with pytest.raises(ValueError, match=text):
        sq.run(prog, **arguments)


def test_arrivals_can_be_counted_where_sessions_arrive_one_by_one(prog):
    drained = sq.run(prog, arrivals=5, warmup_s=0.0, horizon_s=1000.0)
    assert drained.verdict == "drained" and drained.raw.arrivals == 5
    with pytest.raises(ValueError, match="only Poisson and Renewal"):
        sq.run(msgspec.structs.replace(prog, arrival=ir.Batch(ir.Num(3.0))), arrivals=5)


def test_a_program_the_engine_cannot_run_is_refused_by_name():
    prog = sq.read(SMOKE)
    drawn = ir.Order(keys=(ir.Sample("Exp", (ir.Num(1.0),)),), tie="released")
    pools = tuple(msgspec.structs.replace(pool, evict=drawn) if pool.name == "kv" else pool for pool in prog.pools)
    with pytest.raises(sq.ProgramError, match="`kv`.*draws in eviction keys"):
        sq.run(msgspec.structs.replace(prog, pools=pools))


def test_a_single_run_raises_for_error_alone(prog, monkeypatch):
    inner = sq.api._simulate

    def ending(verdict):
        def simulate(p, seeds, **options):
            raws = inner(p, seeds, **options)
            raws[0].verdict, raws[0].cause = verdict, "a guard was 0.5"
            return raws

        monkeypatch.setattr("serqjax.api._simulate", simulate)

    ending(Verdict.error)
    with pytest.raises(sq.VerdictError, match="a guard was 0.5") as caught:
        sq.run(prog)
    assert isinstance(caught.value.result, sq.Run) and caught.value.result.report["arrivals"] > 0
    runs = sq.run(prog, seeds=[0, 1])  # a batch never raises for one of its seeds
    assert runs.verdicts == ("error", "horizon")
    with pytest.raises(sq.VerdictError, match="seed 0: error: a guard"):
        runs.raise_for_verdict()
    ending(Verdict.deadlock)
    run = sq.run(prog)
    assert run.verdict == "deadlock" and run.raise_for_verdict(allow_stuck=True) is run
    with pytest.raises(sq.VerdictError, match="deadlock"):
        run.raise_for_verdict()


def test_progress_is_an_object(prog):
    class Recorder(sq.AbstractProgress):
        def __init__(self):
            self.said = []

        def start(self, total):
            self.said.append(("start", total))

        def advance(self, done):
            self.said.append(("advance", done))

        def close(self):
            self.said.append(("close",))

    recorder = Recorder()
    sq.run(prog, seeds=[4, 5], progress=recorder)
    assert recorder.said == [("start", 2), ("advance", 1), ("advance", 2), ("close",)]


@pytest.fixture
def many(monkeypatch):
    """`run_many` asks the oracle; the list tells what it was asked."""
    import oracle

    asked = []

    def simulate_many(programs, seeds, *, progress, trace, check, stop_on_verdict, coalesce):
        asked.append((list(seeds), trace, check, stop_on_verdict, coalesce))
        return [oracle.simulate(p, s, trace=trace, check=check) for p, s in zip(programs, seeds)]

    monkeypatch.setattr("serqjax.api._simulate_many", simulate_many)
    return asked


def test_many_programs_in_one_call(prog, many):
    slower = sq.run(prog, params={"arrival.rate": 0.1}).program
    runs = sq.run_many([slower, prog, prog], trace=True, check=True)
    assert [run.seed for run in runs] == [11, 11, 11] and many == [([11, 11, 11], True, True, False, True)]
    assert runs[0].program is slower and runs[0].report == sq.run(slower).report
    assert runs[1].report == sq.run(prog).report == runs[2].report
    again = sq.run_many(iter([prog, prog]), seeds=range(2), stop_on_verdict=True, coalesce=False)
    assert [run.report for run in again] == [sq.run(prog, seed=s).report for s in (0, 1)]
    assert many[1] == ([0, 1], False, False, True, False)
    assert sq.run_many([]) == []


def test_many_programs_are_checked_before_any_runs(prog, many):
    drawn = ir.Order(keys=(ir.Sample("Exp", (ir.Num(1.0),)),), tie="released")
    pools = tuple(msgspec.structs.replace(pool, evict=drawn) if pool.name == "kv" else pool for pool in prog.pools)
    outside = msgspec.structs.replace(prog, pools=pools)
    endless = msgspec.structs.replace(prog, horizon_s=None)
    with pytest.raises(sq.ProgramError) as caught:
        sq.run_many([prog, outside, endless])
    text = str(caught.value)
    assert "programs[1]: " in text and "draws in eviction keys" in text and "programs[2]: " in text
    assert "programs[0]" not in text
    with pytest.raises(ValueError, match="2 programs and 1 seeds"):
        sq.run_many([prog, prog], [1])
    with pytest.raises(ValueError, match="0 to 2\\^64 - 1"):
        sq.run_many([prog], [2**64])
    assert many == []


def test_many_programs_interrupted(prog, many, monkeypatch):
    first = sq.run_many([prog])[0]
    monkeypatch.setattr("serqjax.api._simulate_many", lambda p, s, **o: [None, first.raw])
    with pytest.raises(KeyboardInterrupt, match="1 of 2 programs") as caught:
        sq.run_many([prog, prog])
    assert isinstance(caught.value, sq.Interrupted)
    assert list(caught.value.runs) == [1] and caught.value.runs[1].raw is first.raw


def test_actions_are_kept_when_asked_for(prog, many):
    run = sq.run_many([prog], trace=True)[0]
    frame = run.actions.to_polars()
    assert frame.columns == ["tick", "time_s", "kind", "session", "place", "amount"]
    assert len(run.actions) == frame.height == len(run.raw.trace) and "actions)" in repr(run.actions)
    assert [tuple(row) for row in run.actions] == frame.rows()
    arrived = [row for row in run.actions if row.kind == "arrive"]
    assert [row.session for row in arrived] == list(range(run.raw.arrivals)) and {row.place for row in arrived} == {""}
    kv = frame.filter((frame["place"] == "kv") & (frame["kind"] == "admit"))
    assert kv.height == run.raw.pools[[p.name for p in prog.pools].index("kv")].admissions
    assert np.allclose(run.actions["time_s"], run.actions["tick"] * prog.tick_s)
    with pytest.raises(KeyError, match="no column 'when'"):
        run.actions["when"]
    with pytest.raises(ValueError, match="trace=True"):
        _ = sq.run_many([prog])[0].actions


def test_run_passes_the_trace_on(prog, monkeypatch):
    seen = {}
    inner = sq.api._simulate
    monkeypatch.setattr("serqjax.api._simulate", lambda p, s, **o: seen.update(o) or inner(p, s, **o))
    sq.run(prog, trace=True)
    assert seen["trace"] is True
    sq.run(prog, seeds=[1, 2])
    assert seen["trace"] is False


def test_plot_gives_a_figure(prog, tmp_path):
    figure = sq.run(prog, seeds=range(2)).plot(tmp_path / "p.png")
    assert len(figure.axes) == 3 and (tmp_path / "p.png").stat().st_size > 1000


def test_an_automaton_program_reads_back_exactly(prog, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(sq.to_json(prog))
    assert sq.read(path) == prog


def test_settings_reach_deployment_workload_and_cost():
    settings = {"max_num_seqs": 8, "turns": "3", "per_decode_s": 1e-5, "enable_prefix_caching": "false"}
    made = sq.read("vllm", settings=settings)
    values = {p.name: p.value for p in made.params}
    assert (values["max_num_seqs"], values["turns"], values["per_decode_s"]) == (8.0, 3.0, 1e-5)
    single = sq.read("vllm", workload="requests", settings={"request_rate": 2.0, "num_prompts": 10})
    assert isinstance(single.arrival, ir.Poisson) and single.arrivals == 10


def test_a_trace_over_a_program_from_a_file(oracle_engine, tmp_path):
    pytest.importorskip("pyserq")
    serq, work = tmp_path / "d.serq", tmp_path / "w.serq"
    serq.write_text((ROOT / "tests/data/smoke.serq").read_text())
    work.write_text(
        "workload {\n  arrive poisson(1);\n  init { set K = 0; }\n  turn { set n = new; set o = out; }\n"
        "  session { turn; }\n  send (K, n, o);\n}\n"
    )
    rows = ("2023-11-16 18:17:03.0,200,5", "2023-11-16 18:17:04.5,30,2")
    trace = tmp_path / "t.csv"
    trace.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)))
    made = sq.read(serq, workload=work, trace=trace)
    run = sq.run(made)
    assert run.verdict == "drained" and run.request_counts["finished"] == 2
    assert np.allclose(run.requests["sent_s"], [0.0, 1.5])


def test_a_trace_that_the_program_would_not_read_is_refused(prog):
    rows = sq.traces.TraceFile("t.csv", "azure_2023", rows=(sq.traces.Request(0.0, 5, 5),))
    with pytest.raises(sq.ProgramError, match="--trace"):
        sq.read(SMOKE, trace=rows)


def test_the_engine_in_a_fresh_process_leaves_jax_as_it_was(tmp_path):
    script = (
        "import sys, serqjax as sq\n"
        "assert 'jax' not in sys.modules, 'importing serqjax imports JAX'\n"
        f"prog = sq.read({str(SMOKE)!r})\n"
        f"sq.use_compilation_cache({str(ROOT / '.cache' / 'serqjax' / 'jax')!r})\n"
        "runs = sq.run(prog, seeds=[11, 3], horizon_s=20.0)\n"
        "import jax, jax.numpy as jnp\n"
        "assert not jax.config.jax_enable_x64 and jnp.asarray(1.5).dtype == jnp.float32\n"
        "print(runs.to_json())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    import oracle

    prog = sq.run.__globals__["with_span"](sq.read(SMOKE), horizon_s=20.0)
    theirs = sq.Runs(prog, tuple(oracle.simulate(prog, seed) for seed in (11, 3))).to_document()
    ours = json.loads(done.stdout)
    for run in (*ours["runs"], *theirs["runs"]):
        run["report"].pop("events")
    assert ours == theirs
