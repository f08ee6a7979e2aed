"""How long each program of the reference's corpus compiles, from nothing.

    python experiments/bench/compile_times.py [--program NAME]... [--out FILE.json] [--limit SECONDS] [--resume]

Each program runs once, whole, in a process of its own without a compilation cache, and is then run again. `compile_s`
is what JAX spent on tracing, lowering and compiling, by the clock on the wall, `compiled` how many functions that were
(more than a few: a table ran full and the loop was compiled again with a larger one). `first_s` and `again_s` are the
wall times of the two calls, `cpu_s` the CPU seconds of the first, all threads.

A machine that others use too stretches the wall times and not the CPU seconds. So `cpu_s`, which contains the run, is
what the limits apply to: 30 s for a program and 10 s for the median (exit 1 above). The programs are those of the
reference's test material (`SERQJAX_SHARED`, default ../shared). With `--out` the file is written after every program;
`--resume` keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

LIMIT_S, MEDIAN_LIMIT_S = 30.0, 10.0
#: A program that has not compiled and run after this many seconds is recorded as such.
GIVEN_UP_S = 600.0


def corpus() -> Path:
    """The folder of the reference's programs."""
    path = Path(os.environ.get("SERQJAX_SHARED", ROOT.parent / "shared")) / "programs"
    if not path.is_dir():
        sys.exit(f"no programs at {path}: set SERQJAX_SHARED to the folder of the reference material")
    return path


def measure(name: str) -> dict[str, Any]:
    """Compile and run one program in this process."""
    from experiments.bench.machine import CompileClock
    from serqjax.engine import simulate
    from serqjax.importers import ir14

    folder = corpus() / name
    program = ir14.read(json.loads((folder / "program.ir14.json").read_text()), directory=folder)
    clock = CompileClock()
    cpu, begun = time.process_time(), time.perf_counter()
    (run,) = simulate(program, [program.seed])
    first_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    compile_s, compiled = clock.total_s, clock.compiled
    begun = time.perf_counter()
    simulate(program, [program.seed])
    assert run is not None
    return {
        "program": name,
        "compile_s": round(compile_s, 2),
        "first_s": round(first_s, 2),
        "cpu_s": round(cpu_s, 2),
        "again_s": round(time.perf_counter() - begun, 2),
        "compiled": compiled,
        "verdict": run.verdict.name,
    }


def alone(name: str) -> dict[str, Any]:
    """`measure` in a process of its own, with no cache of compiled programs."""
    kept = {k: v for k, v in os.environ.items() if k not in ("SERQJAX_CACHE", "JAX_COMPILATION_CACHE_DIR")}
    command = [sys.executable, __file__, "--measure", name]
    try:
        done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=GIVEN_UP_S)
    except subprocess.TimeoutExpired:
        return {"program": name, "problem": f"not done within {GIVEN_UP_S:g} s"}
    if done.returncode:
        return {"program": name, "problem": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def summary(rows: list[dict[str, Any]], limit_s: float) -> dict[str, Any]:
    """Median, longest, the programs above the limit, and those that could not be measured."""
    times = [row["cpu_s"] for row in rows if "cpu_s" in row]
    above = {row["program"]: row["cpu_s"] for row in rows if row.get("cpu_s", 0.0) > limit_s}
    return {
        "programs": len(rows),
        "limit_s": limit_s,
        "median_limit_s": MEDIAN_LIMIT_S,
        "median_cpu_s": round(statistics.median(times), 2) if times else None,
        "longest_cpu_s": max(times, default=None),
        "above_limit": dict(sorted(above.items(), key=lambda item: -item[1])),
        "problems": {row["program"]: row["problem"] for row in rows if "problem" in row},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--program", action="append", metavar="NAME", help="only this one (may be repeated)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where to write the result")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="what a program may take")
    parser.add_argument("--resume", action="store_true", help="keep what --out has, measure the rest")
    parser.add_argument("--measure", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return 0
    from experiments.bench.machine import machine

    names = options.program or sorted(p.parent.name for p in corpus().glob("*/program.ir14.json"))
    rows: list[dict[str, Any]] = []
    if options.resume and options.out and options.out.exists():
        rows = [row for row in json.loads(options.out.read_text())["rows"] if "problem" not in row]
    result: dict[str, Any] = {}
    for name in names:
        if all(row["program"] != name for row in rows):
            rows.append(alone(name))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        result = {"machine": machine(), "summary": summary(rows, options.limit), "rows": rows}
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))
    told = result["summary"]
    bad = told["above_limit"] or told["problems"] or (told["median_cpu_s"] or 0.0) > MEDIAN_LIMIT_S
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
