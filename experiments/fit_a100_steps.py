"""Step costs of an A100 from two public profiles: fitted to some of the measured steps, tried on the others.

    python experiments/fit_a100_steps.py [--data ../shared/data] [--out FILE]

Vidur's profile gives times of one layer's operators by tokens and of its attention (Llama-2-70B, tensor parallel 2,
one kind of step at a time: decodes alone or one prefill chunk); a step is 80 layers of them, without the all-reduces.
Splitwise's table gives whole prompt phases and token steps by model, GPU and tensor parallelism, few of each: every one
is left out once. Held-out errors are relative, (predicted - measured) / measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from serqjax import ProgramError  # noqa: E402
from serqjax.fit.steps import StepData, fit_steps, relative  # noqa: E402

#: Of Llama-2-70B.
LAYERS, TENSOR_PARALLEL = 80, 2
OPERATORS = ("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
             "mlp_up_proj", "mlp_act", "mlp_down_proj", "add")  # fmt: skip
#: Tokens from which a step may be bound by arithmetic.
KNOTS, FEW_KNOTS = (128, 256, 512, 1024), (32, 1024, 4096)
MS = 1e-3


def rows_of(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise ProgramError.at(str(path), "there is no such file", "name the folder of the profiles with --data")
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def vidur(folder: Path) -> StepData:
    """Steps of Llama-2-70B: an attention row each, with the operators of so many tokens, read between the profiled
    ones."""
    dense: dict[int, list[float]] = {}
    for row in rows_of(folder / "vidur_a100_llama2_70b_mlp.csv"):
        if int(row["num_tensor_parallel_workers"]) == TENSOR_PARALLEL:
            times = sum(float(row[f"time_stats.{op}.median"]) for op in OPERATORS)
            # `add` comes twice in a layer, and the profile times one
            times += float(row["time_stats.add.median"])
            dense.setdefault(int(row["num_tokens"]), []).append(times)
    at = sorted(dense)
    layer_ms = [float(np.median(dense[tokens])) for tokens in at]
    steps = []
    for row in rows_of(folder / "vidur_a100_llama2_70b_attention_tp2.csv"):
        n, kv = int(row["batch_size"]), int(row["kv_cache_size"])
        if row["is_prefill"] == "True":
            chunk = int(row["prefill_chunk_size"])
            work, tokens = (0.0, 0.0, chunk, chunk * (kv + chunk / 2.0)), chunk
            attention_ms = float(row["time_stats.attn_prefill.median"])
        else:
            work, tokens = (n, n * kv, 0.0, 0.0), n
            attention_ms = float(row["time_stats.attn_decode.median"])
        seconds = LAYERS * MS * (attention_ms + float(np.interp(tokens, at, layer_ms)))
        steps.append((*work, seconds))
    return StepData("vidur", *np.asarray(steps, float).T)


def splitwise(folder: Path, model: str, hardware: str, tensor_parallel: str) -> tuple[StepData, list[str]]:
    """Prompt phases and token steps of one configuration, and what is set aside.

    Answers of 128 tokens alone: longer ones ended early, so that their KV is not known. A prompt phase that takes less
    than half the time of one with no more prompts and tokens is none.
    """
    wanted = {"model": model, "hardware": hardware, "tensor_parallel": tensor_parallel, "token_size": "128"}
    mine = [row for row in rows_of(folder / "splitwise_perf_model.csv") if wanted.items() <= row.items()]
    steps, aside = [], []
    for row in mine:
        prompt, n, time_ms = int(row["prompt_size"]), int(row["batch_size"]), float(row["prompt_time"])
        fewer = [r for r in mine if int(r["prompt_size"]) <= prompt and int(r["batch_size"]) <= n]
        smaller = [float(r["prompt_time"]) for r in fewer]
        if time_ms < 0.5 * max(smaller):
            aside.append(f"{n} prompts of {prompt} tokens in {time_ms:.0f} ms, fewer took {max(smaller):.0f} ms")
        else:
            steps.append((0.0, 0.0, n * prompt, n * prompt**2 / 2.0, time_ms * MS))
        steps.append((n, n * (prompt + 64), 0.0, 0.0, float(row["token_time"]) * MS))
    return StepData(f"splitwise {model} {hardware} tp{tensor_parallel}", *np.asarray(steps, float).T), aside


def left_out(data: StepData, knots: tuple[int, ...]) -> dict[str, float]:
    """Errors of every distinct step, each predicted by a fit to all others."""
    points, errors = data.points, []
    for point in range(points.max() + 1):
        others = fit_steps(data.part(points != point), knots=knots, holdout=0.0)
        mine = data.part(points == point)
        names = list(others.numbers.values())
        work = [np.ones(len(mine)), mine.decodes, mine.kv_tok, mine.prefill_tok, mine.attention]
        work += [np.maximum(mine.tokens - knot, 0.0) for knot in knots]
        errors.append(np.stack(work, axis=1) @ names / mine.time_s - 1.0)
    return relative(np.concatenate(errors))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the profiles")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args(argv)
    result: dict[str, Any] = {}
    try:
        profile = vidur(args.data)
        for name, knots in (("vidur, affine", ()), ("vidur, with knots", KNOTS)):
            found = fit_steps(profile, knots=knots)
            kinds = {"decode": profile.decodes > 0, "prefill": profile.prefill_tok > 0}
            apart = {kind: fit_steps(profile.part(rows), knots=knots).errors for kind, rows in kinds.items()}
            result[name] = {"numbers": found.numbers, "steps": found.steps, "errors": found.errors,
                            "errors_of_one_kind_alone": apart}  # fmt: skip
            print(f"{name}\n{found}\n")
        for tensor_parallel in ("2", "4", "8"):
            data, aside = splitwise(args.data, "llama2-70b", "a100-80gb", tensor_parallel)
            found = fit_steps(data, knots=FEW_KNOTS, holdout=0.0)
            result[data.name] = {
                "numbers": found.numbers, "steps": len(data), "set_aside": aside, "fitted": found.errors["fitted"],
                "each_left_out": left_out(data, FEW_KNOTS),
            }  # fmt: skip
            for what in aside:
                print(f"{data.name}: set aside: {what}", file=sys.stderr)
            print(f"{data.name}\n{found}\neach left out: {result[data.name]['each_left_out']}\n")
    except ProgramError as error:
        print(error, file=sys.stderr)
        return 1
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
