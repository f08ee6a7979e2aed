"""Writes `tests/data/cases/*.json`: the reference's answers to one generated program per structure.

    python oracle/make_case_truth.py

Needs pyserq. Each file holds the IR 14 program, the report and the first samples, with the version that made them,
so that oracle and engine can be compared with the reference where it is not installed. A program that
replays a trace is left out: its file does not travel.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "data" / "cases"
SAMPLES = 40


def main() -> None:
    """Write all files anew."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from compare_runs import run_pyserq
    from generate import NAMES, generate

    CASES.mkdir(parents=True, exist_ok=True)
    for old in CASES.glob("*.json"):
        old.unlink()
    for name in NAMES:
        if name.startswith("trace_"):
            continue
        program = generate(name, Random(f"truth/{name}"))
        told = run_pyserq(program)
        samples = {
            group: {
                observe: {"n": rows["n"], **{c: rows[c][:SAMPLES] for c in ("time", "session", "turn", "value")}}
                for observe, rows in observes.items()
            }
            for group, observes in told.samples.items()
        }
        made = {
            "producer": f"pyserq {importlib.metadata.version('pyserq')}",
            "structure": name,
            "program": program,
            "report": told.report,
            "samples": samples,
            "error": told.error,
        }
        (CASES / f"{name}.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")
        print(name, told.error or f"{told.report['arrivals']} sessions", file=sys.stderr)


if __name__ == "__main__":
    main()
