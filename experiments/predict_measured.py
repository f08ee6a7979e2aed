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
from serqjax.ranges import outside, watch_tables  # noqa: E402


def note(text: str) -> None:
    print(text, file=sys.stderr)


Settings = tuple[fit_data.RunData, dict[str, Any], tuple[measured.Shares, ...], dict[str, Any]]


def path_of(args: argparse.Namespace, part: str) -> Path:
    return Path(args.data) / f"{args.name}_{part}"


def wanted(args: argparse.Namespace, part: str, off: str) -> bool:
    """Whether a file is to be used; says so if it is not there."""
    if getattr(args, off.strip("-").replace("-", "_")):
        return False
    there = path_of(args, part).is_file()
    if not there:
        note(f"{path_of(args, part).name} is not there: as {off}")
    return there


def settings_of(args: argparse.Namespace) -> Settings:
    """The run, the engine's flags, what prompts share, and the whole `_meta.json`."""
    run = fit_data.read(path_of(args, "requests.jsonl"))
    note(str(run))
    flags: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    if path_of(args, "meta.json").is_file():
        flags, meta = measured.read_settings(path_of(args, "meta.json"))
    else:
        note(f"{path_of(args, 'meta.json').name} is not there: vLLM's defaults are taken for the engine's settings")
    if "num_gpu_blocks" not in flags:
        flags.setdefault("block_size", 16)
        flags["num_gpu_blocks"] = measured.roomy_blocks(run, flags["block_size"])
        note(f"{path_of(args, 'meta.json').name} has no kv_cache.num_gpu_blocks: block size {flags['block_size']} and "
             f"{flags['num_gpu_blocks']} blocks, which never bind")  # fmt: skip
    flags |= {"engine_version": "0.33.0", "scheduler_reserve_full_isl": True, "watermark": 0.0}
    part = "prefix_shares.csv"
    shares = measured.read_shares(path_of(args, part), len(run)) if wanted(args, part, "--no-prefix") else ()
    return run, flags, shares, meta


def cost_of(args: argparse.Namespace, meta: dict[str, Any]) -> sq.costs.Cost:
    """The cost of a step from the tables."""
    return layers.layer_cost(
        layers=args.layers or layers.decoder_layers(meta.get("model") or "no model: there is no _meta.json"),
        attention=path_of(args, "attention.csv"), dense=path_of(args, "dense.csv"),
        per_sequence=path_of(args, "per_sequence.csv"),
        skew=path_of(args, "skew_fit.csv") if wanted(args, "skew_fit.csv", "--no-skew") else None,
    )  # fmt: skip


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
        run, flags, shares, meta = settings_of(args)
        cost = cost_of(args, meta)
        program = measured.program_of(run, cost, flags, shares)
        program = watch_tables(program)
        sq.check(program)
        simulated = sq.run(program) if args.array else sq.Run(program, oracle.simulate(program))
    except (sq.ProgramError, OSError) as error:
        note(str(error))
        return 1
    if not args.array:  # the array engine warns itself
        for sentence in outside(program, simulated.raw):
            note(sentence)
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
