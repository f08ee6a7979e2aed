"""Fit step costs to the first half of a measured run's requests, and predict the second half.

    python experiments/fit_measured.py --data DIR --name NAME [--no-prefix] [--json]

Options and files are those of `predict_measured.py`; the tables of the machine are not read: the cost of a step is five
numbers, from a first guess that knows nothing of the machine. All requests are simulated, those of the first half are
scored. `--starts` searches run without shared prefixes, where iterations can be taken together; from the best of them
the bottom is looked for with the prefixes. Prints the error of the second half, (predicted - measured) / measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import serqjax as sq  # noqa: E402
from experiments.predict_measured import note, options, settings_of  # noqa: E402
from serqjax.fit import fit, measured  # noqa: E402

FREE = ("base_s", "per_decode_s", "per_kv_tok_s", "per_prefill_tok_s", "per_attention_s")
#: Candidates of a generation and of the last cloud. What each candidate costs is one run of all requests.
POPULATION, GENERATIONS, LAST = 32, 6, 96


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options(parser)
    parser.add_argument("--starts", type=int, default=3, help="searches from different points")
    parser.add_argument("--out", type=Path, help="file of the fit, for --params")
    args = parser.parse_args(argv)
    if not args.no_skew:
        note("skew belongs to the tables of a machine and is not used: the fitted cost is affine")
    begin, used = time.perf_counter(), time.process_time()
    try:
        run, flags, shares, _ = settings_of(args)
        program = measured.program_of(run, sq.costs.affine(), flags)
        found = fit(
            program, data=[run], free=FREE, holdout=0.5, loss=("ttft", "tpot", "e2e"), population=POPULATION,
            generations=GENERATIONS, restarts=args.starts, last=LAST, report=note,
        )  # fmt: skip
        if shares:
            note(f"without shared prefixes:\n{found}")
            near = {name: (found.best[name] / 10.0, found.best[name] * 10.0) for name in FREE}
            program = measured.program_of(run, sq.costs.affine(**found.best), flags, shares)
            found = fit(
                program, data=[run], free=near, holdout=0.5, loss=("ttft", "tpot", "e2e"), generations=0, last=LAST,
                report=note,
            )  # fmt: skip
    except (sq.ProgramError, OSError) as error:
        note(str(error))
        return 1
    note(f"{found}\n{time.perf_counter() - begin:.0f} s, {time.process_time() - used:.0f} s of CPU")
    if args.out:
        found.save(args.out)
    errors = found.errors[0]["held_out"]
    if args.json:
        print(json.dumps({"relative_error": errors}))
    else:
        for name, value in errors.items():
            print(f"{name:10} {100 * value:+7.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
