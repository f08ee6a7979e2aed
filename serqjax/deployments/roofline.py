"""A first guess before anything is measured: KV blocks and step cost from a `config.json` and a GPU's data sheet.

The cost is affine, so that iterations can be taken together: the time of memory traffic and that of arithmetic are
added. A roofline takes the larger of the two, so the guess is above it, at most twice. It is UNCALIBRATED until it is
fitted to a run (`serqjax.fit`).

**Source:** the shapes of a decoder as in `config.json` of Hugging Face `transformers` (Llama, Mistral, Mixtral, Qwen);
data sheets of the GPUs, named in `GPUS`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..costs import Cost, affine
from ..errors import ProgramError, nearest

GIB = 2.0**30
#: Shares of the data sheet's bandwidth and arithmetic that kernels reach, and of a link; assumptions, to be fitted.
BANDWIDTH_SHARE, FLOPS_SHARE, LINK_SHARE = 0.8, 0.6, 0.7
#: Seconds of one all-reduce of few bytes; an assumption.
ALL_REDUCE_S = 10e-6
#: Memory of the CUDA context, the communication library and captured graphs; an assumption.
CONTEXT_BYTES = 1.5 * GIB
#: Bytes of a number by `torch_dtype`, `kv_cache_dtype` or `quantization_config.quant_method`.
BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0,
         "gptq": 0.5, "awq": 0.5}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A data sheet: memory (bytes, as sold), bandwidth (bytes/s), dense BF16 FLOP/s, link to its peers (bytes/s in one
    direction), and where that stands."""

    memory_bytes: float
    bytes_per_s: float
    flops_per_s: float
    link_bytes_per_s: float
    source: str


#: Dense arithmetic is half of what a sheet gives with sparsity; one direction of a link half of what it gives for both.
GPUS = {
    "A100-40GB-SXM": Gpu(40e9, 1555e9, 312e12, 300e9, "NVIDIA A100 Tensor Core GPU data sheet (1758950-r4), A100 40GB "
                         "SXM: 1,555 GB/s, BF16 312 TFLOPS, NVLink 600 GB/s"),
    "A100-80GB-SXM": Gpu(80e9, 2039e9, 312e12, 300e9, "NVIDIA A100 Tensor Core GPU data sheet (1758950-r4), A100 80GB "
                         "SXM: 2,039 GB/s, BF16 312 TFLOPS, NVLink 600 GB/s"),
    "H100-SXM": Gpu(80e9, 3350e9, 989e12, 450e9, "NVIDIA H100 Tensor Core GPU data sheet, H100 SXM: 3.35 TB/s, BF16 "
                    "1,979 TFLOPS with sparsity, NVLink 900 GB/s"),
    "H200-SXM": Gpu(141e9, 4800e9, 989e12, 450e9, "NVIDIA H200 Tensor Core GPU data sheet, H200 SXM: 4.8 TB/s, BF16 "
                    "1,979 TFLOPS with sparsity, NVLink 900 GB/s"),
    "L4": Gpu(24e9, 300e9, 121e12, 32e9, "NVIDIA L4 Tensor Core GPU data sheet: 300 GB/s, BF16 242 TFLOPS with "
              "sparsity, PCIe Gen4 x16 64 GB/s"),
    "L40S": Gpu(48e9, 864e9, 362e12, 32e9, "NVIDIA L40S data sheet: 864 GB/s, BF16 362.05 TFLOPS (733 with sparsity), "
                "PCIe Gen4 x16 64 GB/s"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shape:
    """A decoder as its `config.json` describes it."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    experts: int
    active_experts: int
    weight_bytes: float

    @property
    def attention_weights(self) -> int:
        """Weights of the attention of one layer."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    def weights(self, experts: int) -> int:
        """Weights of the model with so many experts of each layer."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        layer = self.attention_weights + 3 * self.hidden * self.intermediate * experts + router + 2 * self.hidden
        tables = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + tables + self.hidden


#: Fields that mean another architecture than a plain decoder with grouped-query attention.
REFUSED = {"kv_lora_rank": "multi-head latent attention", "text_config": "a model of several parts",
           "ssm_cfg": "state-space layers", "layer_types": "layers of several kinds",
           "is_encoder_decoder": "an encoder", "n_shared_experts": "shared experts",
           "shared_expert_intermediate_size": "shared experts"}  # fmt: skip


def read_shape(model: str | os.PathLike[str] | Mapping[str, Any]) -> Shape:
    """The shape of a model from its `config.json` (a path, its folder, or its contents).

    **Raises:** `ProgramError` for a missing file or field, and for an architecture that is not a plain decoder.
    """
    if isinstance(model, Mapping):
        name, config = str(model.get("_name_or_path") or "model"), dict(model)
    else:
        path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
        name = str(path)
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ProgramError.at(name, f"cannot be read: {error}", "give the config.json of a model") from None
        if not isinstance(config, dict):
            raise ProgramError.at(name, "is no JSON object", "give the config.json of a model")
    for field, what in REFUSED.items():
        value = config.get(field)
        if value and not (field == "layer_types" and set(value) == {"full_attention"}):
            raise ProgramError.at(f"{name}: {field}", f"{what} is not modelled", "give num_gpu_blocks and cost")

    def number(field: str, default: int | None = None) -> int:
        value = config.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ProgramError.at(f"{name}: {field}", f"is {value!r}", "a whole number of at least 1 is needed")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    experts = number("num_local_experts", number("num_experts", 1))
    quantized = (config.get("quantization_config") or {}).get("quant_method")
    dtype = quantized or config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    if dtype not in BYTES:
        raise ProgramError.at(f"{name}: dtype", f"{dtype!r} is not known", "known: " + ", ".join(BYTES))
    return Shape(
        name=name, layers=number("num_hidden_layers"), hidden=hidden, heads=heads,
        kv_heads=number("num_key_value_heads", heads), head_dim=number("head_dim", hidden // heads),
        intermediate=number("moe_intermediate_size", number("intermediate_size")), vocabulary=number("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)), experts=experts,
        active_experts=number("num_experts_per_tok", 1), weight_bytes=BYTES[dtype],
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class FirstGuess:
    """KV blocks and cost that nobody has measured; `explain()` is their arithmetic."""

    num_gpu_blocks: int
    cost: Cost
    lines: tuple[str, ...]

    def explain(self) -> str:
        """How each number was found, a line each."""
        return "\n".join(self.lines)


def first_guess(model: str | os.PathLike[str] | Mapping[str, Any], gpu: str | Gpu, *, tensor_parallel_size: int = 1,
                gpu_memory_utilization: float = 0.9, kv_cache_dtype: str = "auto", block_size: int = 16,
                max_num_seqs: int = 256, max_num_batched_tokens: int = 2048) -> FirstGuess:
    """KV blocks and step cost of a model on GPUs, from shapes and data sheets alone.

    **Arguments:** vLLM's flags by their names. `model`: path of a `config.json`, its folder, or its contents. `gpu`: a
    name of `GPUS`, or a `Gpu`. `kv_cache_dtype`: `auto` (as the model, 2 bytes where its weights are quantized) or a
    name of `BYTES`.

    **Raises:** `ProgramError` for a model or GPU that is not known, and where the weights leave no room.
    """
    shape, tp = read_shape(model), tensor_parallel_size
    if isinstance(gpu, str) and gpu not in GPUS:
        raise ProgramError.at("gpu", f"{gpu!r} is not known", nearest(gpu, GPUS))
    card = GPUS[gpu] if isinstance(gpu, str) else gpu
    if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1 or shape.heads % tp:
        text = f"{tp!r} does not divide the {shape.heads} heads of the model"
        raise ProgramError.at("tensor_parallel_size", text, "give a divisor of them")
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise ProgramError.at("gpu_memory_utilization", f"{gpu_memory_utilization!r}", "give a fraction of the memory")
    if kv_cache_dtype != "auto" and kv_cache_dtype not in BYTES:
        raise ProgramError.at("kv_cache_dtype", f"{kv_cache_dtype!r} is not known", "known: auto, " + ", ".join(BYTES))
    kv_bytes = max(shape.weight_bytes, 2.0) if kv_cache_dtype == "auto" else BYTES[kv_cache_dtype]

    # memory of one GPU
    all_weights, active = shape.weights(shape.experts), shape.weights(shape.active_experts)
    weights = all_weights * shape.weight_bytes / tp
    kv_heads = max(shape.kv_heads / tp, 1.0)  # a head is on several GPUs where there are more GPUs than heads
    per_token = 2.0 * shape.layers * kv_heads * shape.head_dim * kv_bytes
    mlp = shape.intermediate * shape.active_experts / tp
    peak = 2.0 * max_num_batched_tokens * (2.0 * shape.hidden + 2.0 * mlp) + 4.0 * max_num_seqs * shape.vocabulary
    room = card.memory_bytes * gpu_memory_utilization - weights - peak - CONTEXT_BYTES
    blocks = math.floor(room / (per_token * block_size))
    if blocks < 2:
        text = f"{weights / GIB:.1f} GiB of weights leave no room for KV in {card.memory_bytes / GIB:.1f} GiB"
        raise ProgramError.at("tensor_parallel_size", text, "use more GPUs")

    # seconds of a step
    rate, speed = card.bytes_per_s * BANDWIDTH_SHARE, card.flops_per_s * FLOPS_SHARE * tp
    tables = 0 if shape.tied else shape.vocabulary * shape.hidden  # of the table of inputs few rows are read
    read = (all_weights - tables) * shape.weight_bytes / tp
    reduces = 2 * shape.layers if tp > 1 else 0
    share = 2.0 * (tp - 1) / tp * shape.hidden * 2.0 / (card.link_bytes_per_s * LINK_SHARE)
    linear = active - shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    head = 2.0 * shape.vocabulary * shape.hidden
    per_prefill_tok_s = 2.0 * linear / speed + reduces * share
    costs: dict[str, Any] = {
        "base_s": read / rate + reduces * ALL_REDUCE_S,
        "per_decode_s": per_prefill_tok_s + head / speed,
        "per_kv_tok_s": per_token / rate,
        "per_prefill_tok_s": per_prefill_tok_s,
        "per_attention_s": 4.0 * shape.layers * shape.heads * shape.head_dim / speed,
    }
    name = gpu if isinstance(gpu, str) else "the given GPU"
    lines = (
        f"UNCALIBRATED first guess of {shape.name} on {tp} x {name} ({card.source}): fit it to a run",
        f"weights: {all_weights:,} x {shape.weight_bytes:g} B / {tp} = {weights / GIB:.2f} GiB a GPU",
        f"KV of a token: 2 x {shape.layers} layers x {kv_heads:g} heads x {shape.head_dim} x {kv_bytes:g} B"
        f" = {per_token:,.0f} B a GPU",
        f"KV memory: {card.memory_bytes / GIB:.2f} GiB x {gpu_memory_utilization:g} - weights - {peak / GIB:.2f} GiB of"
        f" activations and logits - {CONTEXT_BYTES / GIB:g} GiB assumed for context and graphs = {room / GIB:.2f} GiB",
        f"num_gpu_blocks: {room:,.0f} B / ({block_size} x {per_token:,.0f} B) = {blocks:,} (not measured)",
        f"bandwidth {BANDWIDTH_SHARE:g} x {card.bytes_per_s / 1e9:,.0f} GB/s, arithmetic {FLOPS_SHARE:g} x "
        f"{card.flops_per_s / 1e12:,.0f} TFLOP/s x {tp}, {reduces} all-reduces a step of {ALL_REDUCE_S:g} s and more",
        f"base_s = {read / 1e9:.3f} GB of weights / bandwidth + all-reduces = {costs['base_s']:.4g}",
        f"per_prefill_tok_s = 2 x {linear:,} FLOP / arithmetic + all-reduced bytes = {per_prefill_tok_s:.4g}",
        f"per_decode_s = the same + 2 x {shape.vocabulary} x {shape.hidden} FLOP = {costs['per_decode_s']:.4g}",
        f"per_kv_tok_s = {per_token:,.0f} B / bandwidth = {costs['per_kv_tok_s']:.4g}",
        f"per_attention_s = 4 x {shape.layers} x {shape.heads} x {shape.head_dim} FLOP / arithmetic"
        f" = {costs['per_attention_s']:.4g}",
        "time on the CPU, and experts that no token of a step chooses, are not taken out or in",
    )
    return FirstGuess(blocks, affine(**costs), lines)
