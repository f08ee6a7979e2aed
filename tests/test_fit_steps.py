"""Step costs from measured steps: known costs come back, and what cannot be steps is refused with its row."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import shared_dir

import serqjax as sq
from serqjax.fit.steps import StepData, fit_steps, read_steps

TRUTH = {"base_s": 13.9e-3, "per_decode_s": 41e-6, "per_kv_tok_s": 0.138e-6, "per_prefill_tok_s": 51.5e-6,
         "per_attention_s": 4.02e-9, "above_512_tok_s": 30e-6}  # fmt: skip


def steps(size=600, noise=0.01, seed=0):
    """Steps of an engine at known costs; one in fifty takes three times as long (something else ran)."""
    rng = np.random.default_rng(seed)
    decodes, chunk = rng.integers(0, 129, size).astype(float), rng.integers(1, 2048, size) * (rng.random(size) < 0.5)
    decodes[chunk == 0] += 1.0
    kv, before = decodes * rng.integers(50, 4000, size), rng.integers(0, 4000, size)
    attention = chunk * (before + chunk / 2.0)
    time_s = (TRUTH["base_s"] + TRUTH["per_decode_s"] * decodes + TRUTH["per_kv_tok_s"] * kv
              + TRUTH["per_prefill_tok_s"] * chunk + TRUTH["per_attention_s"] * attention
              + TRUTH["above_512_tok_s"] * np.maximum(decodes + chunk - 512, 0.0))  # fmt: skip
    time_s *= np.exp(noise * rng.standard_normal(size)) * np.where(np.arange(size) % 50 == 7, 3.0, 1.0)
    return StepData("made", decodes, kv, chunk.astype(float), attention, time_s)


def test_known_costs_come_back_in_spite_of_outliers():
    found = fit_steps(steps(), knots=[512])
    assert found.numbers == pytest.approx(TRUTH, rel=0.05)
    assert found.errors["held_out"]["p50"] < 0.015 and found.errors["held_out"]["largest"] > 0.5  # the outliers stay
    assert sum(found.steps.values()) == 600


def test_costs_that_are_nothing_are_nothing():
    data = steps()
    time_s = 0.01 + 1e-4 * data.prefill_tok
    free = fit_steps(StepData("made", data.decodes, data.kv_tok, data.prefill_tok, data.attention, time_s), holdout=0.0)
    assert free.numbers["per_prefill_tok_s"] == pytest.approx(1e-4) and free.numbers["base_s"] == pytest.approx(0.01)
    assert all(free.numbers[name] * data.time_s.max() < 1e-9 for name in ("per_decode_s", "per_kv_tok_s"))


def test_the_cost_runs_in_an_engine_and_coalesces():
    cost = fit_steps(steps(), knots=[512]).cost
    program = sq.program(sq.deployments.vllm(cost=cost), sq.workloads.sessions())
    assert {p.name for p in program.params} >= set(TRUTH)
    licences = [s.licence for s in sq.check(program).facts.stages if s.licence is not None]
    assert licences and all(licence.windows for licence in licences)


def test_files_of_steps(tmp_path):
    path = tmp_path / "steps.csv"
    head = "decodes,kv_tok,prefill_tok,attention,time_s\n"
    path.write_text(head + "".join(f"{n},{100 * n},0,0,{0.01 + 1e-4 * n}\n" for n in range(1, 9)))
    assert read_steps(path).tokens.tolist() == list(range(1, 9))
    for row, says in (("0,0,0,0,1", ":2: a step without tokens"), ("1,5,0,0,0", ":2: a step without time_s"),
                      ("1,5,0,0,-1", ":2: `time_s` is '-1'"), ("1,5,0,0,14", "milliseconds"),
                      ("1,x,0,0,1", ":2: `kv_tok` is 'x'")):  # fmt: skip
        path.write_text(head + row + "\n")
        with pytest.raises(sq.ProgramError, match=says):
            read_steps(path)
    path.write_text("decodes,time_s\n1,1\n")
    with pytest.raises(sq.ProgramError, match="`kv_tok` is missing"):
        read_steps(path)


@pytest.mark.parametrize(("options", "says"), [({"holdout": 1.0}, "holdout=1.0"), ({"knots": [0]}, "knots=")])
def test_bad_arguments_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        fit_steps(steps(), **options)
    with pytest.raises(sq.ProgramError, match="distinct steps cannot give"):
        fit_steps(steps(size=4))


def test_the_profiles_of_an_a100(tmp_path):
    from experiments.fit_a100_steps import main

    out = tmp_path / "steps.json"
    assert main(["--data", str(shared_dir() / "data"), "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["vidur, with knots"]["errors"]["held_out"]["mean_absolute"] < 0.03
    assert found["splitwise llama2-70b a100-80gb tp2"]["set_aside"][0].startswith("64 prompts of 512 tokens")
    assert main(["--data", str(tmp_path)]) == 1
