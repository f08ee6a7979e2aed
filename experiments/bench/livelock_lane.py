"""What one instance in livelock costs a batch of healthy ones.

    python experiments/bench/livelock_lane.py [--batch N] [--pairs P] [--out FILE.json]

A vLLM engine whose pool holds many requests, and once one whose pool is smaller than a request: that instance preempts
itself for ever. Batches of `--batch` instances (default 1,024), all healthy and with one in livelock, are run in turn
with `stop_on_verdict`; `ratio` is the median over the pairs of their times. Exit 1 above 1.3, or if the instance is not
in livelock. Compilation is apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import serqjax as sq  # noqa: E402
from experiments.bench.machine import machine  # noqa: E402

LIMIT = 1.3


def program(num_gpu_blocks: int) -> Any:
    """Requests of 300 tokens, so that 12 blocks of 16 are too few for one."""
    engine = sq.deployments.vllm(
        max_num_seqs=16, max_num_batched_tokens=256, block_size=16, num_gpu_blocks=num_gpu_blocks,
        cost=sq.costs.affine(base_s=0.01, per_decode_s=1e-4), engine_version="0.11.2",
    )  # fmt: skip
    load = sq.workloads.requests(request_rate=2.0, num_prompts=None, horizon_s=120.0, input_len=100, output_len=200)
    return sq.program(engine, load)


def seconds(programs: list[Any], seeds: range) -> tuple[float, list[str]]:
    begun = time.perf_counter()
    runs = sq.run_many(programs, seeds, stop_on_verdict=True)
    return time.perf_counter() - begun, [str(run.verdict) for run in runs]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--batch", type=int, default=1024, metavar="N", help="instances of a batch")
    parser.add_argument("--pairs", type=int, default=5, metavar="P", help="pairs of batches")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where to write the result")
    options = parser.parse_args()
    healthy, stuck = [program(400)] * options.batch, program(12)
    mixed = [*healthy[:-1], stuck]
    ratios, verdicts = [], []
    for pair in range(options.pairs + 1):
        seeds = range(pair * options.batch, (pair + 1) * options.batch)
        alone, _ = seconds(healthy, seeds)
        beside, verdicts = seconds(mixed, seeds)
        if pair:  # the first one compiles
            ratios.append(beside / alone)
        print(f"pair {pair}: {alone:.2f} s healthy, {beside:.2f} s with one in livelock", file=sys.stderr)
    result = {
        "machine": machine(), "batch": options.batch, "ratio": statistics.median(ratios), "ratios": ratios,
        "verdicts": {name: verdicts.count(name) for name in sorted(set(verdicts))}, "limit": LIMIT,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["ratio"] <= LIMIT and "livelock" in verdicts[-1] else 1


if __name__ == "__main__":
    sys.exit(main())
