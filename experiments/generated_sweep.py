"""Thousands of generated programs over every structure of the tests: pyserq = oracle = array engine.

    python experiments/generated_sweep.py [--programs 3000] [--structure NAME]... [--part reference|engine|both]
                                          [--out FILE.json] [--resume] [--label LABEL]

Structures are those of `tests/generate.py`, `generate_pools.py` and `generate_rest.py`; the programs of one differ in
numbers, seeds, arrivals and session scripts. `--part reference` runs each program in pyserq and in the sequential
interpreter (samples in order and every report field), `--part engine` in the interpreter and the array engine (action
by action, then every total, sample and request). Which programs they are depends on structure and `--label` alone; the
tests use other labels. Result on stdout, progress on stderr; `--out` is written after every structure, and `--resume`
keeps what it has. Exit 1 if anything differs: the first difference of each program is in the file. Needs pyserq.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import generate  # noqa: E402
import generate_pools  # noqa: E402
import generate_rest  # noqa: E402
from compare_runs import (  # noqa: E402
    accepted_by_pyserq,
    as_program,
    compare_with_pyserq,
    first_difference,
    run_engine,
    run_oracle,
    run_pyserq,
)

import serqjax as sq  # noqa: E402
from experiments.bench.machine import machine  # noqa: E402

OUT = ROOT / "experiments" / "results" / "generated_sweep.json"
STRUCTURES = {**generate.STRUCTURES, **generate_pools.STRUCTURES, **generate_rest.REST}


def with_reference(sources: list[Any]) -> dict[str, Any]:
    """pyserq and the oracle on every program."""
    begun, found, errors = time.perf_counter(), {}, 0
    for k, source in enumerate(sources):
        program = as_program(source)
        told = run_pyserq(source)
        errors += told.error is not None
        difference = compare_with_pyserq(source, run_oracle(program), program, reference=told)
        if difference:
            found[str(k)] = difference
    return {"differences": found, "run_time_errors": errors, "wall_s": round(time.perf_counter() - begun, 2)}


def with_engine(sources: list[Any]) -> dict[str, Any]:
    """Oracle (b) and array engine (a) on every program, in one batch."""
    begun, found, actions, verdicts = time.perf_counter(), {}, 0, {}
    programs = [as_program(source) for source in sources]
    for k, (program, run) in enumerate(zip(programs, run_engine(programs), strict=True)):
        expected = run_oracle(program)
        assert expected.trace is not None
        actions += len(expected.trace)
        verdicts[expected.verdict.name] = verdicts.get(expected.verdict.name, 0) + 1
        difference = first_difference(run, expected)
        if difference:
            found[str(k)] = difference
    wall_s = round(time.perf_counter() - begun, 2)
    return {"differences": found, "actions": actions, "verdicts": verdicts, "wall_s": wall_s}


PARTS = {"reference": with_reference, "engine": with_engine}


def summary(rows: dict[str, Any], label: str) -> dict[str, Any]:
    """Totals over the structures, with the places of what differs."""
    told: dict[str, Any] = {"structures": len(rows), "label": label}
    for part in PARTS:
        done = {name: row for name, row in rows.items() if part in row}
        told[part] = {
            "structures": len(done),
            "programs": sum(row["programs"] for row in done.values()),
            "differing": sum(len(row[part]["differences"]) for row in done.values()),
            "differing_structures": [name for name, row in done.items() if row[part]["differences"]],
        }
    engine = [row["engine"] for row in rows.values() if "engine" in row]
    told["engine"]["actions"] = sum(row["actions"] for row in engine)
    verdicts: dict[str, int] = {}
    for row in engine:
        for verdict, n in row["verdicts"].items():
            verdicts[verdict] = verdicts.get(verdict, 0) + n
    told["engine"]["verdicts"] = verdicts
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--programs", type=int, default=3000, metavar="N", help="at least this many altogether")
    parser.add_argument("--structure", action="append", choices=STRUCTURES, metavar="NAME", help="only this one")
    parser.add_argument("--part", choices=[*PARTS, "both"], default="both", help="what is compared")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE.json", help="where to write the result")
    parser.add_argument("--resume", action="store_true", help="keep what --out has")
    parser.add_argument("--label", default="sweep", help="another label, other programs")
    options = parser.parse_args()
    sq.use_compilation_cache()
    names = options.structure or list(STRUCTURES)
    count = -(-options.programs // len(names))
    rows: dict[str, Any] = {}
    if options.resume and options.out.exists():
        kept = json.loads(options.out.read_text())
        same = kept["summary"]["label"] == options.label
        rows = {name: row for name, row in kept["rows"].items() if same and row["programs"] == count}
    result: dict[str, Any] = {}
    for part in PARTS if options.part == "both" else [options.part]:
        for name in names:
            row = rows.setdefault(name, {"programs": count})
            if part not in row:
                make = STRUCTURES[name]
                row[part] = PARTS[part](accepted_by_pyserq(make, f"{options.label}/{name}", count))
                print(part, name, json.dumps(row[part])[:600], file=sys.stderr, flush=True)
            result = {"machine": machine(), "summary": summary(rows, options.label), "rows": rows}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))
    return 1 if any(row[part]["differences"] for row in rows.values() for part in PARTS if part in row) else 0


if __name__ == "__main__":
    sys.exit(main())
