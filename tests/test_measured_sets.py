"""The experiments on a measured machine, with a made data set: a pool of KV that binds, and files that are missing."""

from __future__ import annotations

import csv
import json
import math
from typing import Any

import numpy as np
import pytest

import oracle
import serqjax as sq
from serqjax.fit import layers, measured
from serqjax.fit.data import RunData

NAME, LAYERS, BLOCKS = "made", 4, 40
SETTINGS = {"max_num_seqs": 16, "max_num_batched_tokens": 256}
ENGINE = SETTINGS | {"num_gpu_blocks": BLOCKS, "block_size": 16, "engine_version": "0.33.0",
                     "scheduler_reserve_full_isl": True, "watermark": 0.0}  # fmt: skip
TRUTH: dict[str, Any] = {"base_s": 8e-3, "per_decode_s": 0.4e-3, "per_kv_tok_s": 1e-6, "per_prefill_tok_s": 40e-6,
         "per_attention_s": 20e-9}  # fmt: skip


def write_csv(path, head, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def tables(folder):
    """Tables of layers: attention in mixed batches, dense layers, what is done per request."""
    attention = [(chunk, kv, n, at, 20 + 0.1 * chunk + 0.001 * chunk * kv / 100 + 2 * n + 0.02 * n * at)
                 for chunk in (0, 64, 256) for kv in (0, 512) for n in (0, 8, 16) for at in (0, 256, 1024)]  # fmt: skip
    write_csv(folder / f"{NAME}_attention.csv", (*layers.ATTENTION, "time_us"),
              [(c, n, kv, at, t) for c, kv, n, at, t in attention])  # fmt: skip
    dense = [(layer, tokens, 30 + 0.4 * tokens) for layer in (*layers.IN_A_LAYER, *layers.ONCE)
             for tokens in (1, 16, 128, 256)]  # fmt: skip
    write_csv(folder / f"{NAME}_dense.csv", ("layer", "tokens", "time_us"), dense)
    head = [(layer, n, 50 + 3 * n) for layer in layers.PER_SEQUENCE for n in (1, 4, 16)]
    write_csv(folder / f"{NAME}_per_sequence.csv", ("layer", "sequences", "time_us"), head)


def asked(n=40, seed=3):
    rng = np.random.default_rng(seed)
    at = np.round(np.cumsum(rng.exponential(0.02, n)), 6)
    at -= at[0]
    return RunData("made", at, rng.integers(20, 120, n), rng.integers(4, 60, n), at, at, np.arange(n))


def write_run(folder, cost, with_meta=True, blocks=BLOCKS):
    """Write the requests of a run of the sequential interpreter at a cost, and the settings of its engine."""
    run = asked()
    program = measured.program_of(run, cost, ENGINE | {"num_gpu_blocks": blocks})
    raw = oracle.simulate(program)
    times = measured.times_of(sq.Run(program, raw), len(run))
    rows = [{"queued_ts": 100.0 + a, "first_token_ts": 100.0 + f, "last_token_ts": 100.0 + e, "input_toks": int(i),
             "output_toks": int(o)} for a, f, e, i, o in
            zip(run.sent_s, times["first_s"], times["last_s"], run.input_tok, run.output_tok)]  # fmt: skip
    (folder / f"{NAME}_requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if with_meta:
        meta = {"engine_kwargs": SETTINGS, "kv_cache": {"num_gpu_blocks": blocks, "block_size": 16}}
        (folder / f"{NAME}_meta.json").write_text(json.dumps(meta))



def layer_cost(folder):
    paths = {part: folder / f"{NAME}_{part}.csv" for part in ("attention", "dense", "per_sequence")}
    return layers.layer_cost(layers=LAYERS, **paths)


def predicted(folder, capsys, *more):
    from experiments.predict_measured import main

    code = main(["--data", str(folder), "--name", NAME, "--layers", str(LAYERS), "--json", *more])
    said = capsys.readouterr()
    return code, said.err, json.loads(said.out)["relative_error"] if code == 0 else {}


def test_a_pool_that_binds_is_predicted(tmp_path, capsys):
    tables(tmp_path)
    write_run(tmp_path, layer_cost(tmp_path))
    code, said, errors = predicted(tmp_path, capsys)
    assert code == 0 and max(map(abs, errors.values())) < 1e-6
    assert "made_skew_fit.csv is not there: as --no-skew" in said
    assert "made_prefix_shares.csv is not there: as --no-prefix" in said and "never bind" not in said
    # the pool does bind: with room for all the same run is another one
    meta = json.loads((tmp_path / "made_meta.json").read_text())
    del meta["kv_cache"]
    (tmp_path / "made_meta.json").write_text(json.dumps(meta))
    code, said, errors = predicted(tmp_path, capsys)
    assert code == 0 and errors["ttft_mean"] < -0.2 and "blocks, which never bind" in said


def test_without_settings_the_defaults_are_said(tmp_path, capsys):
    tables(tmp_path)
    write_run(tmp_path, layer_cost(tmp_path), with_meta=False, blocks=4000)
    code, said, errors = predicted(tmp_path, capsys)
    assert code == 0 and "made_meta.json is not there: vLLM's defaults" in said
    assert all(math.isfinite(value) for value in errors.values())
    from experiments.predict_measured import main

    assert main(["--data", str(tmp_path), "--name", NAME]) == 1  # how many layers there are stands nowhere
    assert "give their number" in capsys.readouterr().err


@pytest.mark.slow
def test_costs_are_fitted_where_memory_binds(tmp_path, capsys):
    from experiments.fit_measured import main

    write_run(tmp_path, sq.costs.affine(**TRUTH))
    out = tmp_path / "fit.json"
    arguments = ["--data", str(tmp_path), "--name", NAME, "--json", "--starts", "1", "--out", str(out)]
    assert main(arguments) == 0
    errors = json.loads(capsys.readouterr().out)["relative_error"]
    assert all(abs(errors[f"{metric}_mean"]) < 0.03 for metric in ("ttft", "tpot", "e2e"))
    shares = [("request", "donor", "blocks"), (10, 2, 1), (20, 10, 1)]
    write_csv(tmp_path / f"{NAME}_prefix_shares.csv", shares[0], shares[1:])
    assert main(arguments) == 0
    errors = json.loads(capsys.readouterr().out)["relative_error"]
    assert all(abs(errors[f"{metric}_mean"]) < 0.05 for metric in ("ttft", "tpot", "e2e"))
    assert json.loads(out.read_text())["shared_prefixes"]
