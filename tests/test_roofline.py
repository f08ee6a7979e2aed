"""A first guess from a model's shape and a data sheet, against arithmetic by hand."""

from __future__ import annotations

import json

import pytest

import serqjax as sq
from serqjax import deployments
from serqjax._cli import call
from serqjax.deployments.roofline import GPUS, first_guess, read_shape
from serqjax.errors import UncalibratedWarning

#: A made-up model of the shape of Llama-3.1-8B.
CONFIG = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def numbers(guess):
    return {name: value for name, value, _ in guess.cost.numbers}


def test_weights_and_blocks_by_hand(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_shape(tmp_path).weights(1) == 8_030_261_248  # as published for this shape
    guess = first_guess(tmp_path / "config.json", "H100-SXM", gpu_memory_utilization=0.9)
    # KV: 2 x 32 x 8 x 128 x 2 B = 131,072 B a token, 2 MiB a block of 16
    # activations: 2 x 2048 x (2 x 4096 + 2 x 14336) B; logits: 4 x 256 x 128256 B; 1.5 GiB assumed
    room = 72_000_000_000 - 16_060_522_496 - 150_994_944 - 131_334_144 - 1_610_612_736
    assert guess.num_gpu_blocks == room // 2_097_152 == 25_771
    assert "UNCALIBRATED" in guess.explain() and "25,771 (not measured)" in guess.explain()


def test_costs_by_hand():
    one = numbers(first_guess(CONFIG, "H100-SXM"))
    # all weights but the table of inputs: 7,504,924,672 x 2 B at 0.8 x 3,350 GB/s
    assert one["base_s"] == pytest.approx(15_009_849_344 / 2.68e12)
    # without both tables: 6,979,588,096 weights, twice, at 0.6 x 989 TFLOP/s
    assert one["per_prefill_tok_s"] == pytest.approx(13_959_176_192 / 5.934e14)
    assert one["per_decode_s"] == pytest.approx((13_959_176_192 + 1_050_673_152) / 5.934e14)
    assert one["per_kv_tok_s"] == pytest.approx(131_072 / 2.68e12)
    assert one["per_attention_s"] == pytest.approx(524_288 / 5.934e14)
    four = numbers(first_guess(CONFIG, "H100-SXM", tensor_parallel_size=4))
    assert four["base_s"] == pytest.approx(one["base_s"] / 4 + 64 * 10e-6)
    # 64 all-reduces of 8,192 B, 2 x 3/4 of them on a link of 0.7 x 450 GB/s
    assert four["per_prefill_tok_s"] == pytest.approx(one["per_prefill_tok_s"] / 4 + 64 * 12_288 / 3.15e11)


def test_experts_count_where_they_are_read_and_where_they_compute():
    mixed = CONFIG | {"num_local_experts": 8, "num_experts_per_tok": 2}
    guess, dense = first_guess(mixed, "H200-SXM", tensor_parallel_size=2), first_guess(CONFIG, "H200-SXM")
    expert, router = 32 * 3 * 4096 * 14336, 32 * 4096 * 8
    added = numbers(guess)["base_s"] - 64 * 10e-6 - numbers(dense)["base_s"] / 2
    assert added == pytest.approx((7 * expert + router) * 2 / 2 / (0.8 * 4.8e12))
    linear = 6_979_588_096 + expert + router
    reduced = 64 * 8192 / (0.7 * 450e9)
    assert numbers(guess)["per_prefill_tok_s"] == pytest.approx(2 * linear / (2 * 0.6 * 989e12) + reduced)


def test_an_engine_from_a_model_runs_and_explains_itself():
    with pytest.warns(UncalibratedWarning, match="num_gpu_blocks and cost of the engine: not measured"):
        engine = deployments.vllm(model=CONFIG, gpu="H100-SXM", tensor_parallel_size=4, gpu_memory_utilization=0.9)
    # an eighth of a GPU's KV heads times four; weights and activations of the MLP in four parts
    assert engine.num_gpu_blocks > 4 * 25_771 and f"{engine.num_gpu_blocks:,} (not measured)" in engine.explain()
    program = sq.program(engine, sq.workloads.sessions())
    params = {p.name: p.value for p in program.params}
    assert params["kv.cap"] == (engine.num_gpu_blocks - 1) * 16 and params["base_s"] < 2.1e-3
    with pytest.warns(UncalibratedWarning, match="^cost of the engine"):
        own = deployments.vllm(model=CONFIG, gpu="L40S", num_gpu_blocks=999)
    assert own.num_gpu_blocks == 999 and "999 was given" in own.explain()
    with pytest.raises(sq.ProgramError, match="nothing was derived"):
        deployments.vllm().explain()


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({"hidden_size": None}, {}, "hidden_size: is None"),
        ({"torch_dtype": "int3"}, {}, "'int3' is not known"),
        ({"kv_lora_rank": 512}, {}, "multi-head latent attention is not modelled"),
        ({}, {"gpu": "H100"}, "'H100' is not known"),
        ({}, {"tensor_parallel_size": 3}, "3 does not divide the 32 heads"),
        ({}, {"gpu_memory_utilization": 1.2}, "gpu_memory_utilization: 1.2"),
        ({"num_hidden_layers": 400}, {}, "leave no room for KV"),
        ({}, {"kv_cache_dtype": "int3"}, "'int3' is not known"),
    ],
)
def test_what_cannot_be_guessed_is_refused(change, options, says):
    with pytest.raises(sq.ProgramError, match=says):
        deployments.vllm(**({"model": CONFIG | change, "gpu": "H100-SXM"} | options))


def test_the_command_line_takes_a_model(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    model = ["--set", f"model={path}", "--set", "gpu=H100-SXM", "--set", "tensor_parallel_size=4"]
    assert call(["ir", "vllm", *model, "--set", "per_decode_s=1e-5"]) == 0
    said = capsys.readouterr()
    params = {p["name"]: p["value"] for p in json.loads(said.out)["params"]}
    assert params["per_decode_s"] == 1e-5 and params["base_s"] < 2.1e-3 and params["kv.cap"] == (126_228 - 1) * 16
    assert "serqjax: num_gpu_blocks and cost of the engine: not measured" in said.err and "UNCALIBRATED" in said.err
    fitted = {"base_s": 0.01, "per_decode_s": 1e-5, "per_kv_tok_s": 1e-7, "per_prefill_tok_s": 1e-5,
              "per_attention_s": 1e-9}  # fmt: skip
    (tmp_path / "fit.json").write_text(json.dumps({"best": fitted}))
    measured = ["--params", str(tmp_path / "fit.json"), "--set", "num_gpu_blocks=50000"]
    assert call(["ir", "vllm", *model, *measured]) == 0  # nothing of the guess is left
    assert "UNCALIBRATED" not in capsys.readouterr().err
    assert call(["ir", "vllm", *model, "--set", "kv=blocks"]) == 2
    assert "kv cannot be given beside a model" in capsys.readouterr().err
    assert call(["ir", "vllm", "--set", f"model={path}"]) == 1
    assert "gpu: is missing" in capsys.readouterr().err


def test_a_model_without_a_gpu_is_refused(tmp_path):
    with pytest.raises(sq.ProgramError, match="`gpu`"):
        deployments.vllm(model=CONFIG)
    with pytest.raises(sq.ProgramError, match="cannot be read"):
        first_guess(tmp_path / "none.json", "L4")
    assert all(gpu.source for gpu in GPUS.values())
