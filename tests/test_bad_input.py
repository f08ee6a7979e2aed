"""Bad input: one clear message on stderr, exit code 1 or 2, nothing on stdout, no traceback."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import serqjax as sq
from serqjax import _cli
from tests.helpers import ROOT
from tests.standin import oracle_engine

SMOKE = ROOT / "tests" / "data" / "smoke.ir14.json"
TREE = json.loads(SMOKE.read_text())

pytestmark = pytest.mark.usefixtures("oracle_engine")
_ = oracle_engine


def refused(capsys, *words: str) -> tuple[int, str]:
    """The exit code and message of a command that must fail."""
    code = _cli.call(list(words))
    out, err = capsys.readouterr()
    assert out == "", "a refused command prints nothing on stdout"
    assert code in (1, 2)
    assert 0 < len(err) <= 4000
    assert "Traceback" not in err and err.startswith("serqjax: ")
    return code, err


def changed(path: str, value: Any) -> str:
    """The smoke program as JSON text with one value replaced; `path` like `pools.0.cap`."""
    tree = copy.deepcopy(TREE)
    *parents, last = path.split(".")
    node: Any = tree
    for key in parents:
        node = node[int(key) if isinstance(node, list) else key]
    node[int(last) if isinstance(node, list) else last] = value
    return json.dumps(tree)


FIRST_RUN = next(
    (i, j) for i, block in enumerate(TREE["blocks"]) for j, s in enumerate(block) if isinstance(s, dict) and "Set" in s
)
SET_SLOT = f"blocks.{FIRST_RUN[0]}.{FIRST_RUN[1]}.Set.0"

FILES = [
    ("truncated", SMOKE.read_text()[:3000], ["ends too early", "complete"]),
    ("empty", "", ["is empty"]),
    ("blank", " \n\t\n", ["is empty"]),
    ("no JSON", "hello {", ["not JSON"]),
    ("a list", "[]", ["object"]),
    ("null", "null", ["null"]),
    ("no program", '{"a": 1}', ["version"]),
    ("unknown tag", changed("stages.0.kind", {"Quantum": 3}), ["$.stages[0].kind", "Quantum"]),
    ("NaN", changed("pools.0.cap", float("nan")), ["$.pools[0].cap", "nan"]),
    ("negative cap", changed("pools.0.cap", -5.0), ["$.pools[0].cap", "-5"]),
    ("index out of range", changed(SET_SLOT, 999), ["999", "out of range"]),
    ("wrong version", changed("version", 9), ["9", "14"]),
    ("version of a wrong type", changed("version", "14"), ["version"]),
    ("wrong type", changed("pools.0.cap", "many"), ["$.pools[0].cap", "many"]),
    ("null", changed("pools.0.name", None), ["$.pools[0].name", "null"]),
    ("null list", changed("blocks", None), ["$.blocks", "null"]),
    ("huge number", changed("horizon", 10**400), ["$.horizon"]),
    ("horizon 0", changed("horizon", 0), ["horizon", "0"]),
    ("horizon below warm-up", changed("warmup", 100.0), ["warmup"]),
]


@pytest.mark.parametrize(("text", "parts"), [f[1:] for f in FILES], ids=[f"{i} {f[0]}" for i, f in enumerate(FILES)])
@pytest.mark.parametrize("command", ["run", "check", "ir"])
def test_unreadable_programs(capsys, tmp_path, command, text, parts):
    path = tmp_path / "p.json"
    path.write_text(text)
    code, err = refused(capsys, command, str(path))
    assert code == 1
    for part in parts:
        assert part.lower() in err.lower()


def test_all_problems_of_a_program_at_once(capsys, tmp_path):
    tree = json.loads(changed("pools.0.cap", -1.0))
    tree["pools"][1]["cap"] = "lots"
    tree["stages"][0]["kind"] = "Magic"
    (tmp_path / "p.json").write_text(json.dumps(tree))
    _, err = refused(capsys, "run", str(tmp_path / "p.json"))
    assert all(part in err for part in ("$.pools[0].cap", "$.pools[1].cap", "$.stages[0].kind"))


def test_a_thousand_problems_stay_one_message(capsys, tmp_path):
    tree = json.loads(SMOKE.read_text())
    tree["pools"] = [dict(tree["pools"][0], name="x" * 300, cap=-1.0)] * 1000
    (tmp_path / "p.json").write_text(json.dumps(tree))
    refused(capsys, "run", str(tmp_path / "p.json"))


def automaton(**changes: Any) -> dict[str, Any]:
    """A tiny automaton program as a JSON tree."""
    tree = {
        "format": 1,
        "attrs": [],
        "states": [{"name": "a", "exit": {"type": "End"}}],
        "start": "a",
        "arrival": {"type": "Batch", "n": ["Num", 1.0]},
        "horizon_s": ["Num", 10.0],
    }
    return tree | changes


AUTOMATA = [
    ("format", automaton(format=7), ["$.format", "7"]),
    ("unknown tag", automaton(arrival={"type": "Tide"}), ["$.arrival", "Tide"]),
    ("unknown field", automaton(colour="red"), ["colour"]),
    ("missing field", {k: v for k, v in automaton().items() if k != "start"}, ["start"]),
    ("unknown state", automaton(start="b"), ["start", "`b`"]),
    ("horizon 0", automaton(horizon_s=["Num", 0.0]), ["horizon_s"]),
    (
        "never lets time pass",
        automaton(states=[{"name": "a", "exit": {"type": "Goto", "then": "a"}}]),
        ["no time", "a"],
    ),
]


@pytest.mark.parametrize(("tree", "parts"), [a[1:] for a in AUTOMATA], ids=[a[0] for a in AUTOMATA])
def test_invalid_automata(capsys, tmp_path, tree, parts):
    (tmp_path / "p.json").write_text(json.dumps(tree))
    code, err = refused(capsys, "run", str(tmp_path / "p.json"))
    assert code == 1
    for part in parts:
        assert part.lower() in err.lower()


def test_a_loop_in_ir14_that_never_lets_time_pass(capsys, tmp_path):
    tree = copy.deepcopy(TREE)
    body = len(tree["blocks"])
    tree["blocks"][tree["session"]] = [{"Loop": body}]
    tree["blocks"].append([{"Set": [tree["slot_out"], {"Num": 1}]}])
    tree["sides"] = [[side] * len(block) for side, block in zip(["Workload"] * 99, tree["blocks"])]
    (tmp_path / "p.json").write_text(json.dumps(tree))
    _, err = refused(capsys, "run", str(tmp_path / "p.json"))
    assert "time" in err


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
TIME = "2023-11-16 18:17:0{}.0000000"
TRACES = [
    ("a word", HEADER + f"{TIME.format(1)},10,2\n{TIME.format(2)},x,2\n", ["row 2", "ContextTokens", "'x'"]),
    ("a field is missing", HEADER + f"{TIME.format(1)},10\n", ["row 1", "2 fields"]),
    ("null", HEADER + f"{TIME.format(1)},10,2\n{TIME.format(2)},,2\n", ["row 2", "missing"]),
    ("NaN", HEADER + f"{TIME.format(1)},NaN,2\n", ["row 1", "NaN"]),
    ("below 0", HEADER + f"{TIME.format(1)},-3,2\n", ["row 1", "-3"]),
    ("no time", HEADER + "yesterday,3,2\n", ["row 1", "yesterday"]),
    ("back in time", HEADER + f"{TIME.format(5)},3,2\n{TIME.format(1)},3,2\n", ["row 2", "before"]),
    ("empty", "", ["empty"]),
    ("header only", HEADER, ["no rows"]),
    ("another format", "request_id,tenant_id,prefix_group,prefix_length\n", ["BLIS TraceV2"]),
    ("unknown columns", "a,b,c\n1,2,3\n", ["a,b,c"]),
    ("serQ row", "session,turn,new,out,think\n0,1,10,2,0\n0,2,ten,2,0\n", ["row 2", "ten"]),
]


@pytest.mark.parametrize(("text", "parts"), [t[1:] for t in TRACES], ids=[t[0] for t in TRACES])
def test_unreadable_traces(capsys, tmp_path, text, parts):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    _, err = refused(capsys, "run", "vllm", "--trace", str(path))
    assert "trace.csv" in err
    for part in parts:
        assert part in err


SMOKE_NAME = str(SMOKE)
USAGE = [
    (["run", SMOKE_NAME, "--horizon", "0"], ["--horizon 0", "above 0"]),
    (["run", SMOKE_NAME, "--horizon", "-3"], ["--horizon"]),
    (["run", SMOKE_NAME, "--horizon", "nan"], ["--horizon nan"]),
    (["run", SMOKE_NAME, "--horizon", "inf"], ["--horizon inf"]),
    (["run", SMOKE_NAME, "--horizon", "soon"], ["--horizon", "soon"]),
    (["run", SMOKE_NAME, "--horizon", "2"], ["horizon (2 s)", "warm-up (5 s)"]),
    (["run", SMOKE_NAME, "--warmup", "-1"], ["--warmup"]),
    (["run", SMOKE_NAME, "--arrivals", "0"], ["--arrivals 0"]),
    (["run", SMOKE_NAME, "--arrivals", "2.5"], ["--arrivals", "2.5"]),
    (["run", SMOKE_NAME, "--seed", "-1"], ["--seed"]),
    (["run", SMOKE_NAME, "--seed", "x"], ["--seed", "x"]),
    (["run", SMOKE_NAME, "--seeds", "5:1"], ["5:1", "empty"]),
    (["run", SMOKE_NAME, "--seeds", "5:5"], ["5:5", "empty"]),
    (["run", SMOKE_NAME, "--seeds", "5"], ["A:B"]),
    (["run", SMOKE_NAME, "--seeds", "a:b"], ["A:B"]),
    (["run", SMOKE_NAME, "--seed", "1", "--seeds", "0:2"], ["--seed and --seeds"]),
    (["run", SMOKE_NAME, "--set", "kv.cup=5"], ["kv.cup", "kv.cap"]),
    (["run", SMOKE_NAME, "--set", "arival.rate=5"], ["arival.rate", "arrival.rate"]),
    (["run", SMOKE_NAME, "--set", "kv.cap"], ["NAME=VALUE"]),
    (["run", SMOKE_NAME, "--set", "kv.cap=lots"], ["kv.cap", "lots"]),
    (["run", SMOKE_NAME, "--set", "kv.cap=nan"], ["kv.cap", "nan"]),
    (["run", SMOKE_NAME, "--set", "kv.cap=-16"], ["cap", "-16"]),
    (["run", SMOKE_NAME, "--set", "kv.cap=16", "--set", "kv.cap=32"], ["twice"]),
    (["run", "vllm", "--set", "max_num_seq=5"], ["max_num_seq", "max_num_seqs"]),
    (["run", "vllm", "--set", "max_num_seqs=0"], ["max_num_seqs"]),
    (["run", "vllm", "--set", "block_size=many"], ["block_size", "many"]),
    (["run", "vllm", "--workload", "session"], ["session", "sessions"]),
    (["run", "vlm"], ["vlm", "vllm"]),
    (["run", "no/such/file.json"], ["no/such/file.json"]),
    (["run", str(ROOT)], ["folder"]),
    (["run", SMOKE_NAME, "--workload", "w.serq"], ["w.serq"]),
    (["run", SMOKE_NAME, "--engine", "quantum"], ["quantum"]),
    (["run", SMOKE_NAME, "--engine", "pyserq", "--check"], ["--check"]),
    (["run", SMOKE_NAME, "--engine", "pyserq", "--set", "kv.cup=1"], ["kv.cup", "kv.cap"]),
    (["run", SMOKE_NAME, "--samples", "out.csv"], ["out.csv", ".parquet"]),
    (["run", SMOKE_NAME, "--plot", "out.bmp"], ["out.bmp", ".png"]),
    (["run", SMOKE_NAME, "--trace", "no/such.csv"], ["no/such.csv"]),
    (["run", SMOKE_NAME, "--nonsense"], ["--nonsense"]),
    (["run", SMOKE_NAME, "again.json"], ["again.json"]),
    (["run"], ["PROGRAM"]),
    (["dance"], ["dance"]),
    (["check"], ["PROGRAM"]),
    (["ir", "no.json"], ["no.json"]),
]


@pytest.mark.parametrize(("words", "parts"), USAGE, ids=[" ".join(Path(w).name for w in u[0]) for u in USAGE])
def test_wrong_calls(capsys, words, parts):
    _, err = refused(capsys, *words)
    for part in parts:
        assert part.lower() in err.lower()


def test_an_endless_run_is_refused():
    program = msgspec.structs.replace(sq.program(sq.deployments.vllm(), sq.workloads.sessions()), horizon_s=None)
    with pytest.raises(sq.ProgramError, match="never end"):
        sq.run(program)


def test_a_mistake_inside_is_one_line_too(capsys, monkeypatch):
    def broken(*_, **__):
        raise AttributeError("something\nbroke")

    monkeypatch.setattr("serqjax.api._simulate", broken)
    code, err = refused(capsys, "run", str(SMOKE))
    assert code == 1 and "internal error: AttributeError: something broke" in err


@pytest.mark.parametrize("words", [["run", "empty.json"], ["frobnicate"], ["run", str(SMOKE), "--seeds", "5:1"]])
def test_as_a_process(tmp_path, words):
    (tmp_path / "empty.json").write_text("")
    command = [sys.executable, "-c", "from serqjax._cli import main; main()", *words]
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    assert done.returncode in (1, 2)
    assert done.stdout == "" and "Traceback" not in done.stderr and done.stderr.startswith("serqjax: ")
