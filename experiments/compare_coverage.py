"""How often does the interval of `compare` hold the truth? Two M/M/1 queues know the difference.

The mean sojourn of an M/M/1 is 1 / (mu - lambda) (Kleinrock, *Queueing Systems* I, 1975, section 3.2), so that the
difference between two arrival rates is known. The question is asked again and again, each time with seeds of its own;
counted is how often the interval holds the true difference.

    python experiments/compare_coverage.py --repetitions 100 --out experiments/results/compare_coverage.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import serqjax as sq  # noqa: E402
from experiments.erlang_grid import queue  # noqa: E402
from experiments.rows import append_row, rows_of  # noqa: E402

#: Arrivals per second of A and of B; service of mean 1 s.
RATES = 0.6, 0.5
TRUE_DIFFERENCE_S = 1 / (1 - RATES[1]) - 1 / (1 - RATES[0])
#: Seeds of one repetition, so that no two share any.
SEEDS_EACH = 100_000


def ask(repetition: int) -> dict[str, Any]:
    a, b = (sq.with_params(queue(), {"rate": rate}) for rate in RATES)
    found = sq.compare(a, b, metric="e2e.mean", precision=0.02, seed=repetition * SEEDS_EACH)
    low, high = found.interval
    return {"repetition": repetition, "difference_s": round(found.difference.value, 4),
            "interval_s": [round(low, 4), round(high, 4)], "seeds": len(found.per_seed),
            "correlation": round(found.correlation, 3), "holds": bool(low <= TRUE_DIFFERENCE_S <= high)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--out", type=Path, help="a JSON line each; those that are there stay")
    options = parser.parse_args(argv)
    sq.use_compilation_cache()
    rows = rows_of(options.out)
    for repetition in range(len(rows), options.repetitions):
        rows.append(ask(repetition))
        print(json.dumps(rows[-1]), flush=True)
        append_row(options.out, rows[-1])
    halves = [(row["interval_s"][1] - row["interval_s"][0]) / 2 for row in rows]
    print(f"the true difference {TRUE_DIFFERENCE_S:g} s lies in {sum(row['holds'] for row in rows)} of {len(rows)} "
          f"intervals; half-widths: median {statistics.median(halves):.3g} s, largest {max(halves):.3g} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
