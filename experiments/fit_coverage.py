"""How often the intervals of a fit hold the true costs, and how wide they are.

    python experiments/fit_coverage.py [--repetitions 40] [--first 100] [--out FILE.jsonl]

Each repetition draws requests, times and noise of the identified design of `fit_recover.py` anew, and fits from the
wrong guess. A line per repetition goes to `--out`; repetitions that are there are not run again. Prints, per parameter,
the share of intervals that hold the truth and their median half width, both over all repetitions.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.fit_recover import IDENTIFIED, OFF, TRUTH, program_of, runs_of  # noqa: E402
from experiments.rows import append_row, rows_of  # noqa: E402
from serqjax.cache import use_compilation_cache  # noqa: E402
from serqjax.fit import Fit, fit  # noqa: E402


def repeated(make: Callable[[int], Fit], truth: Mapping[str, float], seeds: Iterable[int]) -> Iterable[dict[str, Any]]:
    """A row per seed: relative errors, interval ends relative to the truth, and which intervals hold it."""
    for seed in seeds:
        begin = time.process_time()
        found = make(seed)
        low, high = ({name: end[name] / truth[name] - 1.0 for name in truth} for end in (found.low, found.high))
        yield {
            "seed": seed, "cpu_s": round(time.process_time() - begin, 1), "loss": found.loss,
            "relative_error": {name: found.best[name] / truth[name] - 1.0 for name in truth},
            "low": low, "high": high, "holds": {name: low[name] <= 0.0 <= high[name] for name in truth},
            "confounded": found.confounded,
        }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Coverage and half widths of the rows, per parameter."""
    names = list(rows[0]["holds"])
    held = {name: float(np.mean([row["holds"][name] for row in rows])) for name in names}
    half = {name: float(np.median([(row["high"][name] - row["low"][name]) / 2.0 for row in rows])) for name in names}
    error = {name: float(np.sqrt(np.mean([row["relative_error"][name] ** 2 for row in rows]))) for name in names}
    return {
        "repetitions": len(rows), "coverage": held, "coverage_of_all": float(np.mean(list(held.values()))),
        "median_half_width": half, "root_mean_square_error": error,
    }  # fmt: skip


def of_the_design(seed: int) -> Fit:
    runs = runs_of(IDENTIFIED, 0.01, seed)
    guess = {name: value * OFF[name] for name, value in TRUTH.items()}
    return fit(program_of(runs[0], guess), data=runs, free=tuple(TRUTH), holdout=0.0, seed=seed, generations=6)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--first", type=int, default=100, help="seed of the first repetition")
    parser.add_argument("--out", type=Path, help="JSON lines, one per repetition")
    args = parser.parse_args(argv)
    use_compilation_cache()
    rows = rows_of(args.out)
    there = {row["seed"] for row in rows}
    wanted = [seed for seed in range(args.first, args.first + args.repetitions) if seed not in there]
    for row in repeated(of_the_design, TRUTH, wanted):
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)
        append_row(args.out, row)
    print(json.dumps(summary(rows), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
