"""The reference's corpus in the array engine, as users run it: alone and in a batch of 64, coalesced and not.

    python experiments/corpus_matrix.py [--program NAME]... [--out FILE.json] [--resume]

Every program runs four times: one instance or 64, iterations of equal composition in one update or one by one, without
action trace and ownership check (with them the tests run it). Lane 17 of the 64 is the program itself, the others have
other seeds; where sessions go on to a horizon they end at a thirtieth of it. Each run is compared with the sequential
interpreter's, number by number, and with the stored samples and every field of the stored report; of a batch the
lanes 0, 17 and 63. Coalesced and uncoalesced runs are compared bit for bit. Progress on stderr; with `--out` the file
is written after every program, `--resume` keeps what it has. Exit 1 if anything differs. The programs are those of the
reference's test material (`SERQJAX_SHARED`, default ../shared).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from compare_runs import exact_difference, first_difference, run_oracle  # noqa: E402
from test_corpus import BATCH, LANE, STOCHASTIC, program_of, stored_difference  # noqa: E402

from experiments.bench.compile_times import corpus  # noqa: E402
from experiments.bench.machine import machine  # noqa: E402
from serqjax.engine import simulate_many  # noqa: E402
from serqjax.ir.expr import Num  # noqa: E402
from serqjax.ir.structure import number  # noqa: E402
from serqjax.report.raw import RawRun  # noqa: E402

OUT = ROOT / "experiments" / "results" / "corpus_matrix.json"
LANES = (0, LANE, BATCH - 1)


def measure(name: str) -> dict[str, Any]:
    """All four runs of one program; what differs first in each, if anything."""
    program, begun = program_of(name), time.process_time()
    other = program
    if name in STOCHASTIC and program.arrivals is None:
        horizon_s = number(program, program.horizon_s)
        assert horizon_s is not None
        other = msgspec.structs.replace(program, horizon_s=Num(horizon_s / 30), warmup_s=Num(0.0))
    many = [program if lane == LANE else other for lane in range(BATCH)]
    seeds = [program.seed if lane == LANE else program.seed + 1000 + lane for lane in range(BATCH)]
    expected = {lane: run_oracle(many[lane], seed=seeds[lane]) for lane in LANES}

    differences: dict[str, str] = {}
    kept: dict[bool, list[RawRun]] = {}
    for coalesce in (True, False):
        way = "coalesced" if coalesce else "one by one"
        alone = simulate_many([program], [program.seed], coalesce=coalesce)[0]
        batch = simulate_many(many, seeds, coalesce=coalesce)
        kept[coalesce] = [alone, *batch]
        runs = {f"alone, {way}": (alone, LANE)} | {f"lane {k} of {BATCH}, {way}": (batch[k], k) for k in LANES}
        for label, (run, lane) in runs.items():
            found = first_difference(run, expected[lane])
            if not found and lane == LANE:
                found = stored_difference(name, run)
            if found:
                differences[label] = found
    for lane, (one, other_run) in enumerate(zip(kept[True], kept[False])):
        if found := exact_difference(one, other_run):
            differences[f"coalesced and not, run {lane}"] = found
    turns = [runs[0].extra["turns"] for runs in (kept[True], kept[False])]
    return {
        "program": name, "verdict": kept[True][0].verdict.name, "turns_coalesced": turns[0], "turns": turns[1],
        "differences": differences, "cpu_s": round(time.process_time() - begun, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--program", action="append", metavar="NAME", help="only this one (may be repeated)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help=f"where to write the result (committed: {OUT})")
    parser.add_argument("--resume", action="store_true", help="keep what --out has, run the rest")
    options = parser.parse_args()
    names = options.program or sorted(p.parent.name for p in corpus().glob("*/program.ir14.json"))
    rows: list[dict[str, Any]] = []
    if options.resume and options.out and options.out.exists():
        rows = json.loads(options.out.read_text())["rows"]
    for name in names:
        if all(row["program"] != name for row in rows):
            rows.append(measure(name))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        if options.out:
            told = {"programs": len(rows), "differing": [row["program"] for row in rows if row["differences"]]}
            options.out.write_text(json.dumps({"machine": machine(), "summary": told, "rows": rows}, indent=1) + "\n")
    bad = [row["program"] for row in rows if row["differences"]]
    print(f"{len(rows)} programs, 4 runs each; differing: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
