"""The vLLM deployment against what the real scheduler did: steps exactly, seconds within 1e-6 relative.

Every test is parametrised by the engine that runs the program. A part of the recordings lies in
`tests/data/vllm` (made by `tests/make_vllm_data.py`) and always runs; the whole needs the reference material.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from serqjax.ir.expr import Num
from serqjax.ir.program import Listed, Parameter
from serqjax.ir.structure import rebuild
from tests.helpers import ROOT, shared_dir
from tests.make_vllm_data import plain

sys.path.insert(0, str(ROOT / "experiments"))
import vllm_scenario  # noqa: E402

RTOL = 1e-6
RECORDED = [json.loads(line) for line in (ROOT / "tests/data/vllm/recorded.jsonl").read_text().splitlines()]
CASES = [(i, version) for i, item in enumerate(RECORDED) for version in item["results"]]


@pytest.fixture(params=["oracle", "array"])
def engine(request) -> str:
    module = {"oracle": "oracle", "array": "serqjax.engine"}[request.param]
    try:
        found = hasattr(importlib.import_module(module), "simulate")
    except ImportError as error:
        pytest.skip(f"the {request.param} engine cannot be imported: {error}")
    if not found:
        pytest.skip(f"there is no {request.param} engine")
    return request.param


def differences(result: dict[str, Any], recorded: dict[str, Any], clock: str) -> list[str]:
    """What differs between an answer and a recording, in words; nothing if they agree.

    Of a run that ends stuck as much is compared as both went through.
    """
    found: list[str] = []
    stuck = recorded["end"] != "done"

    def same(what: str, ours: Any, theirs: Any) -> None:
        if isinstance(theirs, list) and stuck:
            both = min(len(ours), len(theirs))
            ours, theirs = ours[:both], theirs[:both]
        if stuck and (ours is None or theirs is None):
            return
        timed = clock == "seconds" and isinstance(theirs, (int, float)) and isinstance(ours, (int, float))
        if not (abs(ours - theirs) <= RTOL * abs(theirs) if timed else ours == theirs):
            found.append(f"{what}: {ours} instead of {theirs}")

    if result["end"] != recorded["end"]:
        found.append(f"end: {result['end']} instead of {recorded['end']}")
    if not stuck:
        same("schedule_calls", result["schedule_calls"], recorded["schedule_calls"])
    same("preempted_per_step", result["preempted_per_step"], recorded["preempted_per_step"])
    ours, theirs = ({r["id"]: r for r in part["requests"]} for part in (result, recorded))
    if set(ours) != set(theirs):
        found.append(f"requests: {sorted(set(ours) ^ set(theirs))} are not in both")
    for name in theirs:
        if name in ours:
            for key in ("arrive", "first", "last", "admissions", "preemptions"):
                same(f"{name}.{key}", ours[name][key], theirs[name][key])
            if clock == "seconds":
                for key in ("first_step", "last_step"):
                    if theirs[name].get(key) is not None and ours[name][key] != theirs[name][key]:
                        found.append(f"{name}.{key}: {ours[name][key]} instead of {theirs[name][key]}")
    return found


def check(scenario: dict[str, Any], recorded: dict[str, Any], version: str, engine: str) -> None:
    result = vllm_scenario.answer(scenario, version, engine)
    found = differences(result, recorded, scenario["clock"])
    assert not found, f"{scenario['name']} under {version}: " + "; ".join(found[:8])


@pytest.mark.parametrize(("i", "version"), CASES, ids=[f"{RECORDED[i]['scenario']['name']}-{v}" for i, v in CASES])
def test_recorded(i, version, engine):
    check(RECORDED[i]["scenario"], RECORDED[i]["results"][version], version, engine)


@cache
def random_scenarios() -> list[dict[str, Any]]:
    lines = (shared_dir() / "oracle/vllm/random.jsonl").read_text().splitlines()
    return [item for item in map(json.loads, lines) if plain(item["scenario"])]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_every_random_scenario(part, engine):
    for item in random_scenarios()[part::5]:
        check(item["scenario"], item["result"], "0.33.0", engine)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.33.0", "0.11.2"])
@pytest.mark.parametrize("part", range(5))
def test_every_named_scenario(part, version, engine):
    folder = shared_dir() / "oracle/vllm"
    for path in sorted((folder / "scenarios").glob("*.json"))[part::5]:
        scenario = json.loads(path.read_text())
        if plain(scenario):
            check(scenario, json.loads((folder / version / path.name).read_text()), version, engine)


# ---------------------------------------------------------------- the driver


def test_scenarios_share_one_structure():
    programs = [vllm_scenario.program_of(item["scenario"], "0.33.0")[0] for item in RECORDED]
    assert len({structure_of(program) for program in programs}) == 1


def structure_of(program) -> Any:
    """What is left of a program without its numbers and its data."""
    def blank(node):
        return Num(0.0) if isinstance(node, Num) else None if isinstance(node, (Parameter, Listed)) else node

    return rebuild(program, blank)


def test_differences_are_seen():
    item = RECORDED[0]
    recorded = item["results"]["0.33.0"]
    request = recorded["requests"][0]
    changed = {**recorded, "requests": [{**request, "last": request["last"] + 1}, *recorded["requests"][1:]]}
    ours = {**recorded, "requests": [{"first_step": None, "last_step": None, **r} for r in recorded["requests"]]}
    assert differences(ours, recorded, "steps") == []
    assert differences(ours, changed, "steps") != []


@pytest.mark.parametrize(("change", "message"), [
    ({"policy": "priority"}, "$.policy: 'priority' is not supported yet"),
    ({"requests": [{"prompt": 10, "out": 2, "arrive": 0, "prefix": {"group": "a", "len": 4}}]}, "$.requests[0].prefix"),
    ({"requests": [{"prompt": 10, "arrive": 0}]}, "$.requests[0].out: None is not allowed"),
    ({"requests": []}, "the scenario has no requests and no sessions"),
    ({"budget": -1}, "$.budget: -1 is not allowed"),
    ({"clock": "hours"}, "$.clock: 'hours' is not known"),
])
def test_driver_refuses(change, message, tmp_path, capsys):
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({**RECORDED[0]["scenario"], **change}))
    assert vllm_scenario.main([str(path), "--json", "--engine", "oracle"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_driver_refuses_files(text, tmp_path, capsys):
    path = tmp_path / "scenario.json"
    path.write_text(text)
    assert vllm_scenario.main([str(path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_driver_answers_each_line(tmp_path):
    pytest.importorskip("oracle")
    path = tmp_path / "two.jsonl"
    items = [RECORDED[0]["scenario"], {"scenario": RECORDED[1]["scenario"]}, {"policy": "priority"}]
    path.write_text("\n".join(map(json.dumps, items)) + "\n")
    run = subprocess.run(
        [sys.executable, str(ROOT / "experiments/vllm_scenario.py"), str(path), "--json", "--engine", "oracle"],
        capture_output=True, text=True, check=True)
    *ends, refused = [json.loads(line) for line in run.stdout.splitlines()]
    assert "'priority' is not supported yet" in refused["error"] and "'priority'" in run.stderr
    assert [e["scenario"] for e in ends] == [item["scenario"]["name"] for item in RECORDED[:2]]
    assert not [d for end, item in zip(ends, RECORDED) for d in
                differences(end, item["results"]["0.33.0"], item["scenario"]["clock"])]
