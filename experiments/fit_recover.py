"""Costs of a simulated engine, recovered from the request times of its runs alone.

    python experiments/fit_recover.py [--seed 7] [--noise 0.01] [--out FILE]

Two designs. The first is identified: four runs in which the number of decodes, their KV and the lengths of prompts vary
independently. The second is collinear: all prompts have one length and outputs are short, so that every decode has the
same KV and the data hold only the sum of both costs. Times carry relative noise; the first guess is far off.
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

import oracle  # noqa: E402
import serqjax as sq  # noqa: E402
from serqjax import ir  # noqa: E402
from serqjax.fit import fit, measured  # noqa: E402
from serqjax.fit.data import RunData  # noqa: E402

TRUTH = {"base_s": 13.9e-3, "per_decode_s": 41e-6, "per_kv_tok_s": 0.138e-6, "per_prefill_tok_s": 51.5e-6,
         "per_attention_s": 4.02e-9}  # fmt: skip
#: The guess, times the truth.
OFF = {"base_s": 0.6, "per_decode_s": 2.0, "per_kv_tok_s": 0.5, "per_prefill_tok_s": 1.6, "per_attention_s": 2.0}
#: Of each run: name, requests, requests per second, least and most prompt and output tokens, `max_num_seqs`.
IDENTIFIED = (
    ("many short", 130, 200.0, (16, 96), (60, 140), 128),
    ("few", 40, 0.8, (16, 512), (20, 80), 4),
    ("long contexts", 70, 20.0, (1500, 4000), (60, 140), 32),
    ("prefill", 60, 2.0, (200, 7000), (2, 12), 32),
)
COLLINEAR = tuple((f"{seats} seats", 75, 200.0, (512, 512), (60, 68), seats) for seats in (4, 16, 40, 128))


def runs_of(design: tuple[tuple[Any, ...], ...], noise: float, seed: int) -> list[RunData]:
    """Request times of the design at the true costs, with noise on TTFT and on the time from first to last token."""
    rng = np.random.default_rng(seed)
    runs = []
    for name, n, rate, prompt, output, seqs in design:
        at = np.cumsum(rng.exponential(1.0 / rate, n))
        at -= at[0]
        new, out = rng.integers(prompt[0], prompt[1] + 1, n), rng.integers(output[0], output[1] + 1, n)
        settings = (("max_num_seqs", seqs),)
        asked = RunData(name, at, new, out, at, at, np.arange(n), settings=settings)
        program = program_of(asked, TRUTH)
        times = measured.times_of(sq.Run(program, oracle.simulate(program)), n)
        jitter = 1.0 + noise * rng.standard_normal((2, n))
        first = at + (times["first_s"] - at) * jitter[0]
        last = first + (times["last_s"] - times["first_s"]) * jitter[1]
        runs.append(RunData(name, at, new, out, first, last, np.arange(n), settings=settings))
    return runs


def program_of(run: RunData, cost: dict[str, Any]) -> ir.Program:
    settings = dict(run.settings) | {"num_gpu_blocks": 40_000, "enable_prefix_caching": False}
    return measured.program_of(run, sq.costs.affine(**cost), settings)


def recover(design: tuple[tuple[Any, ...], ...], free: tuple[str, ...], noise: float, seed: int) -> dict[str, Any]:
    """A fit from the wrong guess, and how far each cost, or the sum that takes its place, is from the truth."""
    runs = runs_of(design, noise, seed)
    guess = {name: value * OFF[name] if name in free else value for name, value in TRUTH.items()}
    begin = time.perf_counter()
    found = fit(program_of(runs[0], guess), data=runs, free=free, holdout=0.0, seed=seed,
                report=lambda line: print(line, file=sys.stderr))  # fmt: skip
    seconds = time.perf_counter() - begin
    print(found, f"\n{seconds:.0f} s\n")
    sums = []
    for made in found.combinations:
        true = sum(f * TRUTH[name] for f, name in zip(made.factors, made.parts))
        covers = made.low <= true <= made.high
        sums.append({"sum": str(made), "relative_error": made.value / true - 1.0, "covers": covers})
    return {
        "requests": sum(map(len, runs)), "seconds": round(seconds, 1), "loss": found.loss,
        "relative_error": {name: found.best[name] / TRUTH[name] - 1.0 for name in free},
        "interval": {name: [end[name] / TRUTH[name] - 1.0 for end in (found.low, found.high)] for name in free},
        "confounded": found.confounded, "sums": sums,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--noise", type=float, default=0.01, help="relative, on TTFT and decode times of a request")
    parser.add_argument("--design", choices=("identified", "collinear"), help="one of the two")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args(argv)
    designs = {"identified": (IDENTIFIED, tuple(TRUTH)), "collinear": (COLLINEAR, tuple(TRUTH)[:4])}
    result = {
        name: recover(design, free, args.noise, args.seed)
        for name, (design, free) in designs.items() if args.design in (None, name)
    }  # fmt: skip
    text = json.dumps({"noise": args.noise, "seed": args.seed, "truth": TRUTH, **result}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
