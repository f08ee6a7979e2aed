"""What one instance in livelock costs a batch of 1,024 whose other instances are healthy.

    python experiments/bench/livelock_lane.py [--batch N] [--repeats R] [--out FILE.json]

Healthy: 100 requests that arrive at random at an engine whose memory preempts (`det_self_preempt_stuck` of the
reference's test material, `SERQJAX_SHARED`, default ../shared, with another list of sessions). In the one in livelock
a prompt among them fits into the budget but not into the memory: it preempts itself for ever. Pairs of batches, all
healthy and with the one, in both orders; ratio of the wall times, median, with `stop_on_verdict` (the livelock ends
where it is seen) and without (it goes on to the horizon, which the healthy ones do not reach). Exit 1 above 1.3.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from experiments.bench.compile_times import corpus  # noqa: E402
from experiments.bench.machine import machine  # noqa: E402
from serqjax.engine import simulate_many  # noqa: E402
from serqjax.engine.xla import prepare  # noqa: E402
from serqjax.importers import ir14  # noqa: E402
from serqjax.ir.expr import Num  # noqa: E402
from serqjax.ir.program import Program  # noqa: E402
from serqjax.report.raw import Verdict  # noqa: E402

LIMIT = 1.3
REQUESTS, MEAN_GAP_S = 100, 60.0
#: A prompt that is larger than the memory of 160 units.
STUCK = (300.0, 10.0)


def program(stuck: bool) -> Program:
    """100 requests of up to 100 + 50 tokens; the 50th is the one that preempts itself, if `stuck`."""
    folder = corpus() / "det_self_preempt_stuck"
    made = ir14.read(json.loads((folder / "program.ir14.json").read_text()), directory=folder)
    rng, at, turns = random.Random(5), [], []
    for k in range(REQUESTS):
        at.append((at[-1] if at else 0.0) + rng.expovariate(1.0 / MEAN_GAP_S))
        sizes = float(rng.randint(10, 100)), float(rng.randint(1, 50))
        turns.append((STUCK if stuck and k == REQUESTS // 2 else sizes,))
    listed = msgspec.structs.replace(
        made.arrival, at=tuple(at), values=tuple((0.0,) for _ in at), turns=tuple(turns), contents=()
    )
    return msgspec.structs.replace(made, arrival=listed, horizon_s=Num(10 * REQUESTS * MEAN_GAP_S))


def seconds(programs: list[Program], stop: bool) -> tuple[float, list[Any]]:
    begun = time.perf_counter()
    runs = simulate_many(programs, range(len(programs)), stop_on_verdict=stop)
    return time.perf_counter() - begun, runs


def measure(batch: int, repeats: int, stop: bool) -> dict[str, Any]:
    healthy = [program(stuck=False)] * batch
    mixed = [*healthy[: batch // 3], program(stuck=True), *healthy[batch // 3 + 1 :]]
    for programs in (healthy, mixed):  # compiles, and learns the sizes of the tables
        _, runs = seconds(programs, stop)
    assert [run.verdict for run in runs].count(Verdict.drained) == batch - 1
    assert runs[batch // 3].verdict == Verdict.livelock
    ratios = []
    for k in range(repeats):
        order = (healthy, mixed) if k % 2 == 0 else (mixed, healthy)
        took = [seconds(programs, stop)[0] for programs in order]
        ratios.append(took[1 - k % 2] / took[k % 2])
        print(f"stop_on_verdict={stop}: pair {k + 1} of {repeats}: {ratios[-1]:.3f}", file=sys.stderr, flush=True)
    return {
        "ratio": round(statistics.median(ratios), 3), "each": [round(r, 3) for r in ratios],
        "turns_of_a_healthy_one": runs[0].extra["turns"], "turns_of_the_livelock": runs[batch // 3].extra["turns"],
        "livelock_ends_s": runs[batch // 3].end_tick * runs[batch // 3].tick_s,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--batch", type=int, default=1_024, help="instances, the one in livelock included")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of batches")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where to write the result")
    options = parser.parse_args()
    prepare()  # before `machine` asks JAX for its devices
    found: dict[str, Any] = {"machine": machine(), "batch": options.batch, "limit": LIMIT}
    for stop in (True, False):
        repeats = options.repeats if stop else 1  # the second is not asked for
        found["stop_on_verdict" if stop else "to_the_horizon"] = measure(options.batch, repeats, stop)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["stop_on_verdict"]["ratio"] > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
