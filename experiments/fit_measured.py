"""Fit step costs to the first half of a measured run's requests, and predict the second half.

    python experiments/fit_measured.py --data DIR --name NAME [--no-prefix] [--json]

Options and files are those of `predict_measured.py`; the tables of the machine are not read: the cost of a step is five
numbers, from a first guess that knows nothing of the machine. All requests are simulated, those of the first half are
scored. `--starts` searches, the best counts. They run without shared prefixes, where iterations are taken together
(fifty runs in the time of one); the bottom near the best is then looked for with them. The error of the second half is
(predicted - measured) / measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import serqjax as sq  # noqa: E402
from experiments.predict_measured import note, options, settings_of  # noqa: E402
from serqjax import ir  # noqa: E402
from serqjax.fit import Fit, fit, measured  # noqa: E402
from serqjax.fit.data import RunData  # noqa: E402
from serqjax.fit.errors import relative_errors  # noqa: E402

FREE = ("base_s", "per_decode_s", "per_kv_tok_s", "per_prefill_tok_s", "per_attention_s")
HOLDOUT = 0.5
#: Candidates and generations of a search, and candidates of the last cloud.
POPULATION, GENERATIONS, LAST = 32, 8, 96

Shared = tuple[measured.Shares, ...]


def simulate(program: ir.Program, run: RunData) -> dict[str, np.ndarray]:
    """Request times. **Raises:** `ProgramError` where not all requests finish."""
    simulated = sq.run(program)
    found = measured.times_of(simulated, len(run))
    if missing := int(np.isnan(found["last_s"]).sum()):
        raise sq.ProgramError.at(run.name, f"{missing} requests did not finish: {simulated.verdict}")
    return found


def fitted(run: RunData, flags: dict[str, Any], shares: Shared, starts: int) -> Fit:
    """The fit: the best of `starts` searches without shared prefixes, and from there the bottom with them."""
    common: dict[str, Any] = {"holdout": HOLDOUT, "loss": ("ttft", "tpot", "e2e"), "last": LAST, "report": note}
    found = fit(
        measured.program_of(run, sq.costs.affine(), flags), data=[run], free=FREE, population=POPULATION,
        generations=GENERATIONS, restarts=starts, **common,
    )  # fmt: skip
    if shares:
        note(f"{found}\nand now with shared prefixes")
        bounds = {name: (value / 10.0, value * 10.0) for name, value in found.best.items()}
        program = measured.program_of(run, sq.costs.affine(), flags, shares).with_params(found.best)
        found = fit(program, data=[run], free=bounds, generations=0, **common)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options(parser)
    parser.add_argument("--starts", type=int, default=3, help="searches from different points")
    parser.add_argument("--out", type=Path, help="file of the fit, for --params, with the errors and the time it took")
    args = parser.parse_args(argv)
    if not args.no_skew:
        note("skew belongs to the tables of a machine and is not used: the fitted cost is affine")
    begin, used = time.perf_counter(), time.process_time()
    try:
        run, flags, shares, _ = settings_of(args)
        found = fitted(run, flags, shares, args.starts)
        times = simulate(measured.program_of(run, sq.costs.affine(), flags, shares).with_params(found.best), run)
    except (sq.ProgramError, OSError, ValueError) as error:
        note(str(error))
        return 1
    first_half = np.arange(len(run)) < round(len(run) * (1.0 - HOLDOUT))
    errors = {"fitted": relative_errors(run, times, first_half), "held_out": relative_errors(run, times, ~first_half)}
    spent = {"wall_s": round(time.perf_counter() - begin), "cpu_s": round(time.process_time() - used)}
    note(f"{found}\n{spent['wall_s']} s, {spent['cpu_s']} s of CPU")
    if args.out:
        document = found.to_document() | {"relative_error": errors, "spent": spent, "shared_prefixes": bool(shares)}
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps({"relative_error": errors["held_out"]}))
    else:
        for name, value in errors["held_out"].items():
            print(f"{name:10} {100 * value:+7.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
