"""Predict a measured run from the tables of its machine: step costs, prompt lengths, shared prefixes, skew.

    python experiments/predict_measured.py --data DIR --name NAME [--no-skew] [--no-prefix] [--json]

Reads `NAME_attention.csv`, `_dense.csv`, `_per_sequence.csv`, `_requests.jsonl`, `_meta.json` and, where they are
there,
`_skew_fit.csv` and `_prefix_shares.csv`. Runs the sequential interpreter, which is the faster one for a single run of
iterations that cannot be coalesced; `--array` takes the array engine, with the same results. Prints the error of
TTFT, TPOT and E2E, (predicted - measured) / measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import oracle  # noqa: E402
import serqjax as sq  # noqa: E402
from serqjax.fit import data as fit_data  # noqa: E402
from serqjax.fit import layers, measured  # noqa: E402
from serqjax.fit.errors import relative_errors  # noqa: E402


def note(text: str) -> None:
    print(text, file=sys.stderr)


Inputs = tuple[fit_data.RunData, dict[str, Any], tuple[measured.Shares, ...], sq.costs.Cost]


def prepare(args: argparse.Namespace) -> Inputs:
    """The run, the engine's flags, what prompts share, and the cost of a step."""
    files = {part: Path(args.data) / f"{args.name}_{part}" for part in (
        "attention.csv", "dense.csv", "per_sequence.csv", "requests.jsonl", "meta.json", "skew_fit.csv",
        "prefix_shares.csv"
    )}  # fmt: skip
    run = fit_data.read(files["requests.jsonl"])
    note(str(run))
    flags, meta = measured.read_settings(files["meta.json"])
    if "num_gpu_blocks" not in flags:
        flags.setdefault("block_size", 16)
        flags["num_gpu_blocks"] = measured.roomy_blocks(run, flags["block_size"])
        note(f"{files['meta.json'].name} has no kv_cache.num_gpu_blocks: block size {flags['block_size']} and "
             f"{flags['num_gpu_blocks']} blocks, which never bind")  # fmt: skip
    flags |= {"engine_version": "0.33.0", "scheduler_reserve_full_isl": True, "watermark": 0.0}
    use = {"skew_fit.csv": not args.no_skew, "prefix_shares.csv": not args.no_prefix}
    for part in use:
        if use[part] and not files[part].is_file():
            note(f"{files[part].name} is not there: as {'--no-skew' if part.startswith('skew') else '--no-prefix'}")
            use[part] = False
    shares = measured.read_shares(files["prefix_shares.csv"], len(run)) if use["prefix_shares.csv"] else ()
    cost = layers.layer_cost(
        layers=args.layers or layers.decoder_layers(meta.get("model", "")), attention=files["attention.csv"],
        dense=files["dense.csv"], per_sequence=files["per_sequence.csv"],
        skew=files["skew_fit.csv"] if use["skew_fit.csv"] else None,
    )  # fmt: skip
    return run, flags, shares, cost


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, help="folder of the run's files")
    parser.add_argument("--name", required=True, help="what the names of the files begin with")
    parser.add_argument("--layers", type=int, default=None, help="decoder layers of the model (default: by its name)")
    parser.add_argument("--no-skew", action="store_true", help="attention at the mean KV of the decodes alone")
    parser.add_argument("--no-prefix", action="store_true", help="prompts have nothing in common")
    parser.add_argument("--array", action="store_true", help="run the array engine")
    parser.add_argument("--json", action="store_true", help="print JSON alone")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options(parser)
    args = parser.parse_args(argv)
    try:
        run, flags, shares, cost = prepare(args)
        program = measured.program_of(run, cost, flags, shares)
        sq.check(program)
        simulated = sq.run(program) if args.array else sq.Run(program, oracle.simulate(program))
    except (sq.ProgramError, OSError) as error:
        note(str(error))
        return 1
    found = measured.times_of(simulated, len(run))
    if np.isnan(found["last_s"]).any():
        missing = int(np.isnan(found["last_s"]).sum())
        note(f"{missing} requests did not finish: {simulated.verdict} {simulated.raw.cause}")
        return 1
    errors = relative_errors(run, found)
    if args.json:
        print(json.dumps({"relative_error": errors}))
    else:
        for name, value in errors.items():
            print(f"{name:10} {100 * value:+7.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
