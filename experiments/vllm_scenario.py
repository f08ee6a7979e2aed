"""What does a vLLM engine do with a small scenario, step by step?

    python experiments/vllm_scenario.py SCENARIO.json --engine-version 0.33.0 --json [--engine array|oracle]

A scenario names an engine's flags and its requests or sessions, and a clock: on `steps` every step lasts 1, on
`seconds` it lasts its cost. The answer says when each request got its first and last token, when it was
admitted and preempted, and how the run ended. Of a `.jsonl` file each line is a scenario (or an object with
one under "scenario"), and one line of JSON answers each; a line that cannot be answered has an "error" that says why,
and the exit code is 1 if no line could be. The scenarios of a file run in one call of the array engine, and all of
an engine version and policy share one structure: flags and lengths are numbers of the program (it compiles once).

**Source:** the scenario and result formats of the recordings of the real scheduler (`oracle/vllm/README.md`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import serqjax as sq
from serqjax import ProgramError, costs, deployments
from serqjax.builder import AbstractDeployment, AbstractWorkload, Builder, Sessions
from serqjax.deployments.vllm import POLICIES
from serqjax.ir import Listed, Program
from serqjax.workloads import conversation

ENDS = {"drained": "done", "deadlock": "deadlock", "livelock": "livelock"}
FLAGS = {"budget": 1, "max_seqs": 1, "block_size": 1, "num_blocks": 2}


@dataclasses.dataclass(frozen=True)
class Session:
    """A request, or a session of turns `(new tokens, output tokens, seconds before it is sent)`."""

    name: str
    arrive: float
    turns: tuple[tuple[float, float, float], ...]
    priority: float = 0.0
    group: float = 0.0
    prefix: float = 0.0  # leading tokens that are those of the group

    def turn_name(self, turn: int) -> str:
        return self.name if len(self.turns) == 1 else f"{self.name}.{turn}"


@dataclasses.dataclass(frozen=True)
class Scripted(AbstractWorkload):
    """The sessions of a scenario, in the order of arrival; `place` breaks ties in the queue."""

    rows: tuple[tuple[int, Session], ...]

    def declare(self, b: Builder, deployment: AbstractDeployment) -> Sessions:
        for attr in ("place", "priority", "new", "think", "more"):
            b.attr(attr)
        b.attr("out", hidden=True)
        turns = []
        for _, session in self.rows:
            # the program thinks after a turn, the scenario before it
            after = [think for _, _, think in session.turns[1:]] + [0.0]
            turns.append(tuple((new, out, think) for (new, out, _), think in zip(session.turns, after)))
        columns = ("place", "priority")
        if isinstance(deployment, deployments.Vllm) and deployment.shared_prefixes:
            columns += ("group", "prefix")
        rows = tuple((float(place), session.priority, session.group, session.prefix)[: len(columns)]
                     for place, session in self.rows)
        start = conversation(b, deployment, "more", "think")
        return Sessions(start, Listed(
            at=tuple(session.arrive for _, session in self.rows),
            attrs=columns, values=rows,
            turn_attrs=("new", "out", "think"), turns=tuple(turns),
        ))


def sessions_of(scenario: dict[str, Any]) -> list[Session]:
    """The scenario's requests and sessions, in the order of their place."""
    found = []
    groups: dict[Any, int] = {}
    for i, request in enumerate(scenario.get("requests", [])):
        place = f"$.requests[{i}]"
        turn = _number(request, place, "prompt", 1), _number(request, place, "out", 1), 0.0
        group = prefix = 0.0
        if "prefix" in request:
            name = request["prefix"].get("group") if isinstance(request["prefix"], dict) else None
            if not isinstance(name, (int, float, str)):
                raise ProgramError.at(f"{place}.prefix.group", f"{name!r} is not allowed", "name the group")
            group = float(groups.setdefault(name, len(groups)))
            prefix = min(_number(request["prefix"], f"{place}.prefix", "len", 0), turn[0])
        arrive = _number(request, place, "arrive", 0, 0.0)
        found.append(Session(f"r{i}", arrive, (turn,), _priority(request, place), group, prefix))
    for i, session in enumerate(scenario.get("sessions", [])):
        place = f"$.sessions[{i}]"
        turns = tuple(
            (_number(turn, f"{place}.turns[{k}]", "new", 0 if k else 1), _number(turn, f"{place}.turns[{k}]", "out", 1),
             _number(turn, f"{place}.turns[{k}]", "think", 0, 0.0))
            for k, turn in enumerate(session.get("turns", []))
        )
        if not turns:
            raise ProgramError.at(f"{place}.turns", "a session has at least one turn")
        found.append(Session(f"s{i}", _number(session, place, "arrive", 0, 0.0), turns, _priority(session, place)))
    if not found:
        raise ProgramError.at("$.requests", "the scenario has no requests and no sessions")
    return found


def _priority(part: Any, place: str) -> float:
    return _number(part, place, "priority", -math.inf, 0.0)


def _number(part: Any, place: str, key: str, least: float, default: float | None = None) -> float:
    value = part.get(key, default) if isinstance(part, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise ProgramError.at(f"{place}.{key}", f"{value!r} is not allowed", f"give a number of at least {least:g}")
    return float(value)


def program_of(scenario: Any, engine_version: str) -> tuple[Program, list[Session]]:
    """The program of a scenario, and its sessions in the order of their serial numbers.

    **Raises:** `ProgramError` for what is missing, wrong or not supported, with its place.
    """
    if not isinstance(scenario, dict):
        raise ProgramError.at("$", "a scenario is a JSON object")
    if (policy := scenario.get("policy", "fcfs")) not in POLICIES:
        raise ProgramError.at("$.policy", f"{policy!r} is not known", "use one of " + ", ".join(POLICIES))
    if (clock := scenario.get("clock", "steps")) not in ("steps", "seconds"):
        raise ProgramError.at("$.clock", f"{clock!r} is not known", 'use "steps" or "seconds"')
    flags = {key: int(_number(scenario, "$", key, least)) for key, least in FLAGS.items()}
    watermark = _number(scenario, "$", "watermark", 0, 0.0)
    cost = costs.affine() if clock == "seconds" else costs.affine(
        base_s=1, per_decode_s=0, per_kv_tok_s=0, per_prefill_tok_s=0, per_attention_s=0, preempt_only_s=1)
    sessions = sessions_of(scenario)
    shares = any(session.prefix for session in sessions)
    deployment = deployments.vllm(
        engine_version=engine_version,  # type: ignore[arg-type]
        max_num_seqs=flags["max_seqs"], max_num_batched_tokens=flags["budget"], block_size=flags["block_size"],
        num_gpu_blocks=flags["num_blocks"], long_prefill_token_threshold=int(_number(scenario, "$", "chunk", 0, 0.0)),
        enable_prefix_caching=bool(scenario.get("prefix_caching", True)),
        scheduler_reserve_full_isl=bool(scenario.get("reserve_full_isl", True)),
        watermark=0.0 if engine_version == "0.11.2" else watermark, cost=cost,
        shared_prefixes=(("group", "prefix"),) if shares else (), scheduling_policy=policy, arrival_tie="place",
        shared_structure=True,
    )
    ordered = sorted(enumerate(sessions), key=lambda item: (item[1].arrive, item[0]))
    program = sq.program(deployment, Scripted(tuple(ordered)), name="vllm_scenario")
    sq.check(program)
    return program, [session for _, session in ordered]


def simulate(programs: Sequence[Program], engine: str) -> Iterator[sq.Run]:
    """Their runs with the actions: all at once by the array engine, one by one by the sequential reference."""
    if engine == "oracle":
        import oracle

        # `map` goes on after an error in one of them
        return map(lambda program: sq.Run(program, oracle.simulate(program, trace=True)), programs)
    return iter(sq.run_many(programs, trace=True, progress=sq.BarProgress("scenarios")))


def result_of(scenario: dict[str, Any], sessions: list[Session], run: sq.Run) -> dict[str, Any]:
    """The answer in the format of the recordings, read off the actions."""
    if run.verdict not in ENDS:
        raise ProgramError.at(scenario.get("name", "$"), f"the run ended with {run.verdict}", run.cause)
    steps = scenario.get("clock", "steps") == "steps"
    second = round(1 / run.program.tick_s)
    cached: dict[int, list[float]] = defaultdict(list)
    for sample in run.samples.iter_rows(named=True):
        if sample["observation"] == "vllm.reused":
            cached[sample["session"]].append(sample["value"])

    requests: dict[tuple[int, int], dict[str, Any]] = {}
    prompts: dict[int, float] = defaultdict(float)
    for serial, turn, sent_s in zip(*(run.requests[name].tolist() for name in ("session", "turn", "sent_s"))):
        session, k = sessions[serial], turn - 1
        new, out, _ = session.turns[k]
        prompt = prompts[serial] + new
        prompts[serial] = prompt + out
        requests[serial, k] = {
            "id": session.turn_name(k), "arrive": _whole(sent_s), "prompt": int(prompt), "out": int(out),
            "first": None, "last": None, "first_step": None, "last_step": None, "admissions": [], "preemptions": [],
            "tokens": 0,
        }

    turn_of: dict[int, int] = defaultdict(int)  # the turn each session is in
    admitted: dict[int, int] = defaultdict(int)  # admissions so far
    preempted: dict[int, list[str]] = {}
    iterations = current = 0
    for tick, time_s, kind, serial, place, amount in run.actions:
        if kind == "iteration":
            current = tick // second if steps else iterations
            iterations += 1
            continue
        if kind not in ("admit", "preempt", "token"):
            continue
        row = requests[serial, turn_of[serial]]
        planned = tick // second if steps else iterations  # the step being planned
        if kind == "token":
            row["tokens"] += 1
            if row["first"] is None:
                row["first"], row["first_step"] = (current if steps else time_s), current
            if row["tokens"] == row["out"]:
                row["last"], row["last_step"] = (current if steps else time_s), current
                turn_of[serial] += 1
        elif kind == "admit" and place == "kv":
            found = cached[serial][admitted[serial]]
            admitted[serial] += 1
            known = row["prompt"] + row["tokens"]
            row["admissions"].append({"step": planned, "cached": int(found), "to_compute": int(known - found)})
        elif kind == "preempt":
            row["preemptions"].append({"step": planned, "computed": int(amount), "generated": row["tokens"]})
            preempted.setdefault(planned, []).append(row["id"])
    for row in requests.values():
        del row["tokens"]
    return {
        "scenario": scenario.get("name"), "end": ENDS[run.verdict], "clock": scenario.get("clock", "steps"),
        "schedule_calls": iterations, "usable_blocks": int(scenario["num_blocks"]) - 1,
        "preemptions": sum(len(row["preemptions"]) for row in requests.values()),
        "preempted_per_step": [[step, names] for step, names in preempted.items()],
        "requests": list(requests.values()),
    }


def _whole(value: float) -> float | int:
    return int(value) if value == int(value) else value


def answers(scenarios: Sequence[Any], engine_version: str, engine: str) -> Iterator[dict[str, Any] | ProgramError]:
    """What `engine_version` does with each scenario, in their order; where there is no answer, the reason."""
    prepared: list[tuple[Program, list[Session]] | ProgramError] = []
    for scenario in scenarios:
        try:
            prepared.append(program_of(scenario, engine_version))
        except ProgramError as error:
            prepared.append(error)
    runs = simulate([part[0] for part in prepared if not isinstance(part, ProgramError)], engine)
    for scenario, part in zip(scenarios, prepared):
        if isinstance(part, ProgramError):
            yield part
            continue
        try:
            result = result_of(scenario, part[1], next(runs))
        except ProgramError as error:
            yield error
        else:
            yield result


def load(path: str) -> list[Any]:
    """The scenarios of a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else "cannot be read as text"
        raise ProgramError.at(path, reason) from None
    parts = [(f"{path}:{n}", line) for n, line in enumerate(text.splitlines(), 1) if line.strip()] \
        if path.endswith(".jsonl") else [(path, text)]
    found = []
    for place, part in parts:
        try:
            scenario = json.loads(part)
        except ValueError as error:
            raise ProgramError.at(place, f"is not JSON ({error})") from None
        found.append(scenario["scenario"] if isinstance(scenario, dict) and "scenario" in scenario
                     and isinstance(scenario["scenario"], dict) else scenario)
    if not found:
        raise ProgramError.at(path, "the file is empty")
    return found


def show(result: dict[str, Any]) -> str:
    """The answer as a table for a reader."""
    lines = [f"{result['scenario']}: {result['end']} after {result['schedule_calls']} steps, "
             f"{result['preemptions']} preemptions",
             f"{'request':>10} {'arrive':>10} {'prompt':>7} {'out':>5} {'first':>10} {'last':>10} "
             f"{'cached':>7} preempted"]
    for r in result["requests"]:
        times = ["-" if r[key] is None else f"{r[key]:.6g}" for key in ("first", "last")]
        found = sum(a["cached"] for a in r["admissions"])
        lines.append(f"{r['id']:>10} {r['arrive']:>10.6g} {r['prompt']:>7} {r['out']:>5} {times[0]:>10} {times[1]:>10} "
                     f"{found:>7} {', '.join(str(p['step']) for p in r['preemptions'])}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("scenario", help="a scenario (.json), or one on each line (.jsonl)")
    parser.add_argument("--engine-version", default="0.33.0", choices=deployments.VERSIONS, help="default: 0.33.0")
    parser.add_argument("--engine", default="array", choices=("array", "oracle"),
                        help="array: the array engine (default); oracle: the sequential reference")
    parser.add_argument("--json", action="store_true", help="print JSON, one line for each scenario of a .jsonl file")
    options = parser.parse_args(argv)
    try:
        scenarios = load(options.scenario)
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    if options.engine == "array":
        sq.use_compilation_cache()
    refused: list[str] = []
    for scenario, result in zip(scenarios, answers(scenarios, options.engine_version, options.engine)):
        if isinstance(result, ProgramError):
            name = scenario.get("name") if isinstance(scenario, dict) else None
            refused.append(f"{name}: {result}" if name else str(result))
            result = {"scenario": name, "error": str(result)}
            if not options.scenario.endswith(".jsonl"):
                break
        if options.json:
            print(json.dumps(result), flush=True)
        elif "error" not in result:
            print(show(result), flush=True)
    for line in refused[:10]:
        print(line, file=sys.stderr)
    if len(refused) > 10:
        print(f"... and {len(refused) - 10} more that cannot be answered", file=sys.stderr)
    return 1 if len(refused) == len(scenarios) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
