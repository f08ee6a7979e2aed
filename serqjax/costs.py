"""Seconds of an engine iteration, as data.

**Source:** `design.md`, section 5 (the A100-like figures); `oracle/vllm/README.md` (what each term counts).
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Literal

from .builder import Builder
from .errors import ProgramError
from .ir.expr import Expr
from .ir.grids import Grid


@dataclasses.dataclass(frozen=True)
class Cost:
    """An expression over the iteration (`Ntok`, `Ndec`, ...), the named numbers and the tables it reads."""

    text: str
    numbers: tuple[tuple[str, float, str], ...]
    tables: tuple[Grid, ...] = ()

    def declare(self, b: Builder, own: str = "") -> Expr:
        """The cost in the program `b`, its numbers declared as parameters whose names begin with `own`."""
        text = self.text
        for name, value, unit in self.numbers:
            b.param(f"{own}{name}", value, unit)
            if own:
                text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.(])", f"{own}{name}", text)
        for grid in self.tables:
            b.table(grid)
        return b(text)


def affine(*, base_s: float = 13.9e-3, per_decode_s: float = 41e-6, per_kv_tok_s: float = 0.138e-6,
           per_prefill_tok_s: float = 51.5e-6, per_attention_s: float = 4.02e-9, preempt_only_s: float = 0.0,
           kv: Literal["positions", "blocks"] = "positions") -> Cost:
    """An iteration lasts `base + decodes + their KV + prefill tokens + attention`; the defaults are A100-like.

    **Arguments:**
    - `base_s`: seconds of every iteration with tokens. `per_decode_s`: per decode.
    - `per_kv_tok_s`: per token of the decodes' KV: with `kv="positions"` the tokens they have (position + 1), with
      `kv="blocks"` the memory they hold (rounded up to blocks; what serQ's `kv_decode` reads).
    - `per_prefill_tok_s`: per prefill token. `per_attention_s`: per unit of the sum of `n * (K + n/2)` over the
      prefill chunks of `n` tokens after `K`.
    - `preempt_only_s`: seconds of an iteration that gives no token and only preempts, at most `base_s`.

    **Raises:** `ProgramError` for a negative or non-finite coefficient.
    """
    numbers = {"base_s": base_s, "per_decode_s": per_decode_s, "per_kv_tok_s": per_kv_tok_s,
               "per_prefill_tok_s": per_prefill_tok_s, "per_attention_s": per_attention_s,
               "preempt_only_s": preempt_only_s}
    _check_seconds(**numbers)
    if kv not in ("positions", "blocks"):
        raise ProgramError.at("kv", f"{kv!r} is not known", 'use "positions" or "blocks"')
    if preempt_only_s > base_s:
        raise ProgramError.at("preempt_only_s", f"{preempt_only_s!r} is above base_s", "give at most base_s")
    units = "DecodePositions" if kv == "positions" else "Kvb"
    # the minimum is `base_s` with tokens and `preempt_only_s` without: the cost stays a minimum of affine ones
    text = ("preempt_only_s + Min((base_s - preempt_only_s) * Ntok, base_s - preempt_only_s) "
            f"+ per_decode_s * Ndec + per_kv_tok_s * {units} + per_prefill_tok_s * Npre + per_attention_s * Attn")
    return Cost(text, tuple((name, float(value), "s") for name, value in numbers.items()))


def with_cpu(cost: Cost, *, step_s: float = 0.0, per_request_s: float = 0.0) -> Cost:
    """The same cost and the time that the CPU takes in every iteration: scheduling, preparing the batch, sampling.

    **Arguments:**
    - `cost`: of the GPU, `affine(...)`.
    - `step_s`: seconds of every iteration with tokens. `per_request_s`: per request that is running then.

    **Raises:** `ProgramError` for a negative or non-finite number.
    """
    _check_seconds(step_s=step_s, per_request_s=per_request_s)
    # `Min(cpu_step_s * Ntok, cpu_step_s)`: nothing in an iteration without tokens, as in `affine`
    text = f"{cost.text} + Min(cpu_step_s * Ntok, cpu_step_s) + cpu_per_request_s * Nres"
    numbers = (("cpu_step_s", float(step_s), "s"), ("cpu_per_request_s", float(per_request_s), "s"))
    return Cost(text, (*cost.numbers, *numbers), cost.tables)


def with_drafts(cost: Cost, *, draft_s: float = 0.0, per_draft_tok_s: float = 0.0) -> Cost:
    """The same cost and what speculative decoding adds: making drafts, and verifying them.

    **Arguments:**
    - `cost`: of the engine without drafts, `affine(...)`.
    - `draft_s`: seconds of every iteration with decodes, in which their drafts are made.
    - `per_draft_tok_s`: per token that is computed for a decode beyond its first one, accepted or not.

    **Raises:** `ProgramError` for a negative or non-finite number.
    """
    _check_seconds(draft_s=draft_s, per_draft_tok_s=per_draft_tok_s)
    text = f"{cost.text} + Min(draft_s * Ndec, draft_s) + per_draft_tok_s * (Ntok - Npre - Ndec)"
    numbers = (("draft_s", float(draft_s), "s"), ("per_draft_tok_s", float(per_draft_tok_s), "s"))
    return Cost(text, (*cost.numbers, *numbers), cost.tables)


def _check_seconds(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ProgramError.at(name, f"{value!r} is not allowed", "give seconds, 0 or more")
