"""Copy a small part of the recordings of the real vLLM scheduler into `tests/data/vllm`, for tests that always run.

    python -m tests.make_vllm_data

Each line of `recorded.jsonl` is `{"scenario": ..., "results": {VERSION: ...}}`: the named scenarios that are small,
with both versions' answers (0.33.0's where requests share a prefix), and some random ones with 0.33.0's. Left out are
step logs, and priorities together with shared prefixes (a structure of its own).
"""

from __future__ import annotations

import json

from tests.helpers import ROOT, shared_dir

KEPT = ("vllm", "end", "schedule_calls", "preempted_per_step", "requests")
REQUEST = ("id", "arrive", "first", "last", "admissions", "preemptions", "first_step", "last_step")
LARGEST = 30_000  # bytes of a line
RANDOM = 40


def plain(scenario: dict) -> bool:
    """Has no priorities together with prefixes shared by requests."""
    return scenario["policy"] == "fcfs" or not shares(scenario)


def shares(scenario: dict) -> bool:
    """Some requests have a prefix in common."""
    return any("prefix" in r for r in scenario.get("requests", []))


def short(result: dict) -> dict:
    kept = {key: result[key] for key in KEPT}
    kept["requests"] = [{key: r[key] for key in REQUEST if key in r} for r in result["requests"]]
    return kept


def main() -> None:
    folder = shared_dir() / "oracle" / "vllm"
    lines = []
    for path in sorted((folder / "scenarios").glob("*.json")):
        scenario = json.loads(path.read_text())
        if plain(scenario):
            versions = ("0.33.0",) if shares(scenario) else ("0.33.0", "0.11.2")  # a structure and a compilation each
            results = {v: short(json.loads((folder / v / path.name).read_text())) for v in versions}
            lines.append({"scenario": scenario, "results": results})
    fuzzed = [json.loads(line) for line in (folder / "random.jsonl").read_text().splitlines()]
    fuzzed = [item for item in fuzzed if plain(item["scenario"])]
    for item in fuzzed[:: max(1, len(fuzzed) // RANDOM)][:RANDOM]:
        lines.append({"scenario": item["scenario"], "results": {"0.33.0": short(item["result"])}})
    texts = [json.dumps(line, separators=(",", ":")) for line in lines]
    texts = [text for text in texts if len(text) <= LARGEST]
    out = ROOT / "tests" / "data" / "vllm" / "recorded.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(texts) + "\n")
    print(f"{len(texts)} scenarios, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
