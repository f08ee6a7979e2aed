"""The cost of an engine step from measured times of its layers.

Three tables, in the columns of LLMServingSim's profiler: `attention` (one layer, a mixed batch), `dense` (one call,
by the tokens of the step) and `per_sequence` (by the requests of the step). A fourth, `skew`, says how much dearer the
attention of decodes of unequal length is than at their mean.

**Source:** `data/README.md`, the closed loop (what a step is made of, rules of look-up).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..costs import Cost
from ..errors import ProgramError
from ..ir.grids import Axis, Grid, reader

#: How often each dense layer is called in one decoder layer of a Llama-like model.
IN_A_LAYER = {
    "layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1,
}  # fmt: skip
#: Dense layers called once a step, and those called once for the requests of the step.
ONCE, PER_SEQUENCE = ("embedding", "final_layernorm"), ("lm_head", "sampler")
#: Decoder layers of models, by the last part of their name: `num_hidden_layers` of their published `config.json`.
DECODER_LAYERS = {
    "Llama-3.1-8B": 32, "Llama-3.1-70B": 80, "Llama-3.2-1B": 16, "Llama-3.2-3B": 28, "Llama-3.3-70B": 80,
    "Llama-2-7b-hf": 32, "Llama-2-13b-hf": 40, "Llama-2-70b-hf": 80, "Meta-Llama-3-8B": 32, "Meta-Llama-3-70B": 80,
    "Mistral-7B-v0.1": 32, "Qwen2.5-7B": 28, "Qwen2.5-14B": 48, "Qwen2.5-32B": 64, "Qwen2.5-72B": 80,
    "Qwen3-8B": 36, "Qwen3-14B": 40, "Qwen3-32B": 64,
}  # fmt: skip
US = 1e-6
ATTENTION = ("prefill_chunk", "n_decode", "kv_prefill", "kv_decode")


def decoder_layers(model: str) -> int:
    """Decoder layers of a model by name. **Raises:** `ProgramError` for one that is not known."""
    name = model.rsplit("/", 1)[-1].removesuffix("-Instruct")
    if name not in DECODER_LAYERS:
        raise ProgramError.at("layers", f"how many decoder layers `{model}` has is not known", "give their number")
    return DECODER_LAYERS[name]


def table_rows(path: str | Path, columns: Iterable[str], text: Iterable[str] = ()) -> list[dict[str, float | str]]:
    """The named columns of a CSV file. **Raises:** `ProgramError` for a missing column or what is no number."""
    columns, text = tuple(columns), tuple(text)
    with open(path, newline="", encoding="utf-8") as file:
        read = csv.DictReader(file)
        if missing := [c for c in (*text, *columns) if c not in (read.fieldnames or ())]:
            raise ProgramError.at(str(path), f"the column `{missing[0]}` is missing", f"it has {read.fieldnames}")
        rows = []
        for number, row in enumerate(read, 2):
            made: dict[str, float | str] = {c: row[c] for c in text}
            for c in columns:
                try:
                    value = float(row[c])
                except (TypeError, ValueError):
                    value = math.nan
                if not math.isfinite(value) or (value < 0 and c != "alpha"):
                    raise ProgramError.at(f"{path}:{number}", f"`{c}` is {row[c]!r}", "give a number, 0 or more")
                made[c] = value
            rows.append(made)
    if not rows:
        raise ProgramError.at(str(path), "has no rows")
    return rows


def attention_grid(path: str | Path) -> Grid:
    """Attention of one layer, seconds, over chunk tokens, decodes, their histories' sum, mean KV of a decode."""
    rows = table_rows(path, (*ATTENTION, "time_us"))
    axes = tuple(Axis(name=name, holes="nearest" if name == "n_decode" else "linear") for name in ATTENTION)
    points = tuple((*(float(row[c]) for c in ATTENTION), float(row["time_us"]) * US) for row in rows)
    return Grid(name="attention", axes=axes, rows=points)


def summed(name: str, axis: str, curves: Mapping[str, list[tuple[float, float]]], times: Mapping[str, float]) -> Grid:
    """Several curves over one axis as one table, each counted so often."""
    parts = {
        layer: (times[layer], reader(Grid(name=layer, axes=(Axis(name=axis),), rows=tuple(points))))
        for layer, points in curves.items()
    }
    at = sorted({x for points in curves.values() for x, _ in points})
    rows = tuple((x, sum(n * curve([x]) for n, curve in parts.values())) for x in at)
    return Grid(name=name, axes=(Axis(name=axis),), rows=rows)


def _curves(path: str | Path, axis: str, known: Iterable[str]) -> dict[str, list[tuple[float, float]]]:
    known = tuple(known)
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in table_rows(path, (axis, "time_us"), ("layer",)):
        curves.setdefault(str(row["layer"]), []).append((float(row[axis]), float(row["time_us"]) * US))
    for layer in (*curves, *known):
        if layer not in known or layer not in curves:
            what = "is not one that is known" if layer in curves else "is missing"
            raise ProgramError.at(str(path), f"the layer `{layer}` {what}", "needed: " + ", ".join(known))
    return curves


_UNITS = {"k": 1024.0, "m": 1024.0**2}


def _upper(label: str) -> float:
    """Upper end of a bucket by its label: `n<=8`, `sr<=15%`, `sr>70%`, `kvB<=4k`, `kp=0`."""
    if label == "sr>70%":
        return 1.0
    text = label.partition("=")[2]
    scale = _UNITS.get(text[-1:], 1.0)
    if text.endswith("%"):
        return float(text[:-1]) / 100.0
    try:
        return float(text[:-1]) * scale if text[-1:] in _UNITS else float(text)
    except ValueError:
        raise ProgramError.at("skew", f"the bucket `{label}` cannot be read", "use labels such as `n<=8`") from None


SKEW = ("pc", "n_label", "skew_rate_label", "kv_big_label", "kp_label")


def skew_grid(path: str | Path, attention: Grid) -> Grid:
    """How far the attention of unequal decodes lies from that at their mean KV towards that at the largest.

    Buckets by chunk (exact), decodes, skew rate, largest KV and history. Elsewhere the pooled value: buckets weighted
    by the square of the span that they were fitted on, by `attention` (least squares over all their samples).
    """
    rows = table_rows(path, ("pc", "alpha", "n_samples"), SKEW[1:])
    read = reader(attention)
    made, weights, total = [], 0.0, 0.0
    ends = sorted({0.0, *(_upper(str(row["skew_rate_label"])) for row in rows)})
    for row in rows:
        pc, alpha = float(row["pc"]), float(row["alpha"])
        n, rate, largest, history = (_upper(str(row[label])) for label in SKEW[1:])
        made.append((pc, n, rate, largest, history, alpha))
        middle = (rate + ends[ends.index(rate) - 1]) / 2
        mean = largest / 4 + middle * (largest - largest / 4)  # the profiler's short decodes have a quarter of the KV
        span = read([pc, n, history, largest]) - read([pc, n, history, mean])
        weight = float(row["n_samples"]) * span**2
        weights, total = weights + weight, total + weight * alpha
    axes = (Axis(name="pc", between="exact"), *(Axis(name=name, between="next") for name in SKEW[1:]))
    return Grid(name="skew", axes=axes, rows=tuple(made), missing=total / weights if weights else 0.0)


def layer_cost(*, layers: int, attention: str | Path, dense: str | Path, per_sequence: str | Path,
               skew: str | Path | None = None) -> Cost:
    """Seconds of a step from the tables of its layers.

    **Arguments:** `layers`: decoder layers of the model. The others: paths of the CSV files; `skew` None: without.

    **Returns:** a cost for `deployments.vllm(cost=...)`.

    **Raises:** `ProgramError` for a missing file, column or layer, and for what is no number, with the row.
    """
    for path in filter(None, (attention, dense, per_sequence, skew)):
        if not Path(path).is_file():
            raise ProgramError.at(str(path), "there is no such file")
    if layers < 1:
        raise ProgramError.at("layers", f"{layers!r} is not allowed", "give a whole number of at least 1")
    often = {name: float(n * layers) for name, n in IN_A_LAYER.items()} | {name: 1.0 for name in ONCE}
    grid = attention_grid(attention)
    grids = [
        grid,
        summed("dense", "tokens", _curves(dense, "tokens", often), often),
        summed("head", "sequences", _curves(per_sequence, "sequences", PER_SEQUENCE), dict.fromkeys(PER_SEQUENCE, 1.0)),
    ]
    mean = "(DecodePositions - Ndec) / Max(Ndec, 1)"
    at_mean = f"attention(Npre, Ndec, PrefillPositions, {mean})"
    text = f"layers * {at_mean} + dense(Ntok) + head(Nsch)"
    if skew is not None:
        grids.append(skew_grid(skew, grid))
        rate = f"({mean} - LeastDecode) / (MostDecode - LeastDecode)"
        at_most = "attention(Npre, Ndec, PrefillPositions, MostDecode)"
        share = f"skew(Npre, Ndec, {rate}, MostDecode, PrefillPositions)"
        text += f" + (layers * {share} * ({at_most} - {at_mean}) if MostDecode > LeastDecode else 0)"
    # a step that only preempts takes no time on the GPU
    return Cost(f"({text}) if Ntok > 0 else 0", (("layers", float(layers), "layers"),), tuple(grids))
