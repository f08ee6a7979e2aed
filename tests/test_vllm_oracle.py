"""The vLLM deployment against what the real scheduler did: steps exactly, seconds within 1e-6 relative.

Every test is parametrised by the engine that runs the program; the array engine answers all scenarios of a version
in one call. A part of the recordings lies in
`tests/data/vllm` (made by `tests/make_vllm_data.py`) and always runs; the whole needs the reference material.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import serqjax as sq
from serqjax.ir.expr import Num
from serqjax.ir.program import Listed, Parameter
from serqjax.ir.structure import rebuild
from tests.helpers import ROOT, shared_dir
from tests.make_vllm_data import shares

sys.path.insert(0, str(ROOT / "experiments"))
import vllm_scenario  # noqa: E402

RTOL = 1e-6
VERSIONS = ("0.33.0", "0.11.2")
RECORDED = [json.loads(line) for line in (ROOT / "tests/data/vllm/recorded.jsonl").read_text().splitlines()]
CASES = [(i, version) for i, item in enumerate(RECORDED) for version in item["results"]]


#: Ends that a scheduler is most easily wrong about, as the real one was recorded: (0.33.0, 0.11.2).
ENDS = {
    "l01_prompt_larger_than_pool": ("deadlock", "livelock"),
    "l02_prompt_larger_than_pool_gate_off": ("livelock", "livelock"),
    "l03_output_larger_than_pool": ("deadlock", "deadlock"),
    "l05_output_larger_than_pool_gate_off": ("livelock", "livelock"),
    "d02_repeated_victims": ("done", "done"),
    "d02_repeated_victims_cached": ("done", "done"),
}
REFUSED = {"name": "refused", "policy": "sjf"}


@pytest.fixture(params=["oracle", "array"])
def engine(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def answered(request) -> Callable[[dict[str, Any], str, str], Any]:
    """`(scenario, version, engine) -> answer`, made once.

    The array engine answers all scenarios of a version in one call, as the driver does for a file, and so compiles
    once for all tests: those of the recordings too where a slow test is selected. A scenario that cannot be answered
    stands among them.
    """
    slow = any(getattr(item, "module", None) is request.module and item.get_closest_marker("slow")
               for item in request.session.items)
    made: dict[str, dict[str, Any]] = {}

    def batch(version: str) -> dict[str, Any]:
        items = [item["scenario"] for item in RECORDED if version in item["results"]] + [REFUSED]
        if slow and shared_exists():
            items += [scenario for scenario, _ in named(version)]
            items += [item["scenario"] for item in random_scenarios()] if version == "0.33.0" else []
        unique = list({scenario["name"]: scenario for scenario in items}.values())
        found = vllm_scenario.answers(unique, version, "array")
        return dict(zip((scenario["name"] for scenario in unique), found, strict=True))

    def answer(scenario: dict[str, Any], version: str, engine: str) -> Any:
        if engine == "oracle":
            return next(vllm_scenario.answers([scenario], version, engine))
        if version not in made:
            made[version] = batch(version)
        return made[version][scenario["name"]]

    return answer


def shared_exists() -> bool:
    try:
        shared_dir()
    except pytest.skip.Exception:
        return False
    return True


@cache
def named(version: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The named scenarios, each with what `version` was recorded to do."""
    folder = shared_dir() / "oracle/vllm"
    scenarios = [json.loads(path.read_text()) for path in sorted((folder / "scenarios").glob("*.json"))]
    return [(scenario, json.loads((folder / version / f"{scenario['name']}.json").read_text()))
            for scenario in scenarios]


@cache
def random_scenarios() -> list[dict[str, Any]]:
    lines = (shared_dir() / "oracle/vllm/random.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


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


def all_differences(pairs: list[tuple[dict[str, Any], dict[str, Any]]], answer: Callable[..., Any], *how: str) -> str:
    """Of every scenario that differs from its recording, what differs first; "" if all agree."""
    lines = []
    for scenario, recorded in pairs:
        result = answer(scenario, *how)
        found = [str(result)] if isinstance(result, Exception) else differences(result, recorded, scenario["clock"])
        if found:
            lines.append(f"{scenario['name']}: {'; '.join(found[:8])}")
    return "\n".join(lines)


@pytest.mark.parametrize(("i", "version"), CASES, ids=[f"{RECORDED[i]['scenario']['name']}-{v}" for i, v in CASES])
def test_recorded(i, version, engine, answered):
    pair = RECORDED[i]["scenario"], RECORDED[i]["results"][version]
    assert not all_differences([pair], answered, version, engine)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ENDS)
def test_ends(name, version, engine, answered):
    scenario = next(item["scenario"] for item in RECORDED if item["scenario"]["name"] == name)
    assert answered(scenario, version, engine)["end"] == ENDS[name][VERSIONS.index(version)]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_named_scenario(version, engine, answered):
    assert len(named(version)) == 35
    assert not all_differences(named(version), answered, version, engine)


@pytest.mark.slow
def test_every_random_scenario(engine, answered):
    pairs = [(item["scenario"], item["result"]) for item in random_scenarios()]
    assert len(pairs) == 240
    assert not all_differences(pairs, answered, "0.33.0", engine)


# ---------------------------------------------------------------- the driver


def test_scenarios_alike_share_one_structure():
    kinds = {(item["scenario"]["policy"], shares(item["scenario"])) for item in RECORDED}
    assert kinds == {("fcfs", False), ("fcfs", True), ("priority", False)}
    programs = [vllm_scenario.program_of(item["scenario"], "0.33.0")[0] for item in RECORDED]
    assert len({structure_of(program) for program in programs}) == len(kinds)


def structure_of(program) -> Any:
    """What is left of a program without its numbers and its data."""
    def blank(node):
        return Num(0.0) if isinstance(node, Num) else None if isinstance(node, (Parameter, Listed)) else node

    return rebuild(program, blank)


def test_a_line_that_cannot_be_answered_leaves_the_others(engine, answered):
    refused = answered(REFUSED, "0.33.0", engine)
    assert isinstance(refused, sq.ProgramError) and "'sjf' is not known" in str(refused)
    assert answered(RECORDED[0]["scenario"], "0.33.0", engine)["end"] == RECORDED[0]["results"]["0.33.0"]["end"]


def test_differences_are_seen():
    item = RECORDED[0]
    recorded = item["results"]["0.33.0"]
    request = recorded["requests"][0]
    changed = {**recorded, "requests": [{**request, "last": request["last"] + 1}, *recorded["requests"][1:]]}
    ours = {**recorded, "requests": [{"first_step": None, "last_step": None, **r} for r in recorded["requests"]]}
    assert differences(ours, recorded, "steps") == []
    assert differences(ours, changed, "steps") != []


@pytest.mark.parametrize(("change", "message"), [
    ({"policy": "sjf"}, "$.policy: 'sjf' is not known"),
    ({"requests": [{"prompt": 10, "out": 2, "prefix": {"len": 4}}]}, "$.requests[0].prefix.group: None is not allowed"),
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
    items = [RECORDED[0]["scenario"], {"scenario": RECORDED[1]["scenario"]}, {"policy": "sjf"}]
    path.write_text("\n".join(map(json.dumps, items)) + "\n")
    run = subprocess.run(
        [sys.executable, str(ROOT / "experiments/vllm_scenario.py"), str(path), "--json", "--engine", "oracle"],
        capture_output=True, text=True, check=True)
    *ends, refused = [json.loads(line) for line in run.stdout.splitlines()]
    assert "'sjf' is not known" in refused["error"] and "'sjf'" in run.stderr
    assert [e["scenario"] for e in ends] == [item["scenario"]["name"] for item in RECORDED[:2]]
    assert not [d for end, item in zip(ends, RECORDED) for d in
                differences(end, item["results"]["0.33.0"], item["scenario"]["clock"])]


def test_a_file_is_one_call_of_the_array_engine(tmp_path, capsys, monkeypatch):
    import oracle

    calls = []

    def run_many(programs, **options):
        calls.append((len(programs), options["trace"]))
        return [sq.Run(program, oracle.simulate(program, trace=True)) for program in programs]

    monkeypatch.setattr(sq, "run_many", run_many)
    scenarios = [item["scenario"] for item in RECORDED[:5]]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, [*scenarios[:2], {"policy": "sjf"}, *scenarios[2:]])) + "\n")
    assert vllm_scenario.main([str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    results = [json.loads(line) for line in out.splitlines()]
    assert calls == [(5, True)] and "'sjf' is not known" in err and "error" in results.pop(2)
    assert [result["scenario"] for result in results] == [scenario["name"] for scenario in scenarios]
    path.write_text(json.dumps({"policy": "sjf"}) + "\n")
    assert vllm_scenario.main([str(path), "--json"]) == 1
