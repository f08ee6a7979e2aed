"""What an iteration of a step stage costs, in ticks.

**Source:** `design.md`, section 4 (Time); `spec/semantics.md`, section 8.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from ..ir.fixed import FIXED_BITS, VARIABLE_SCALE, IntAffine, IntMax
from ..ir.program import Step
from .expr import Draws, Env, Value, evaluate
from .grids import read_table
from .lane import Lane
from .plan_parts import CostShape
from .views import memory_held, now_s, pool_state, register_state, rounded_ticks, stage_state, stray

assert VARIABLE_SCALE["Attn"] == 2


def cost(
    w: Lane, stage: int, sums: dict[str, Value], decode: Array, prefill: Array, draws: Draws, live: Array
) -> tuple[Value, Value, Value]:
    """Ticks of the iteration, the sub-tick remainder after it, and whether the cost is nothing."""
    memory = w.plan.stages[stage].memory
    if memory >= 0:
        held = memory_held(w, memory)
        sums["Kvb"] = jnp.sum(jnp.where(decode, held, 0.0))
        sums["Kvp"] = jnp.sum(jnp.where(prefill, held, 0.0))
    else:
        sums["Kvb"] = sums["Kvp"] = jnp.float64(0.0)
    shape = w.plan.forms[stage]
    if shape is not None:
        value = jnp.maximum(fixed_cost(w, shape, sums), 0)
        whole = carried(w, stage) + value
        return whole >> FIXED_BITS, whole & ((1 << FIXED_BITS) - 1), value <= 0
    ticks, nothing = float_cost(w, stage, sums, draws, live)
    return ticks, jnp.int64(0), nothing


def carried(w: Lane, stage: int) -> Array:
    """The sub-tick remainder of the iteration that ended just now; 0 where the engine was idle."""
    return jnp.where(w.stage_last[stage] == w.now, w.stage_rest[stage], 0)


def float_cost(w: Lane, stage: int, sums: dict[str, Value], draws: Draws | None, live: Array) -> tuple[Value, Value]:
    """Ticks of a cost without an integer form, and whether it is nothing."""
    kind = w.plan.skeleton.stages[stage].kind
    assert isinstance(kind, Step)
    values = dict(sums, Attn=sums["Attn"] * 0.5)
    context = {name: (lambda v=v: v) for name, v in values.items()} | {"Now": lambda: now_s(w)}
    take = None if draws is None else draws.take
    env = Env(
        w.plan, w.job.numbers, ctx=context, pool=pool_state(w, None), stage=stage_state(w), draw=take,
        register=register_state(w), stray=stray(w, -1), table=read_table(w) if w.plan.skeleton.tables else None,
    )  # fmt: skip
    seconds = jnp.maximum(evaluate(kind.cost, env, live), 0.0)
    return rounded_ticks(seconds, w.plan.skeleton.tick_s), ~(seconds > 0)


def fixed_cost(w: Lane, shape: CostShape, sums: dict[str, Value]) -> Value:
    """A cost in 2**-20 ticks from the integers of the program; `Attn` stands doubled in `sums`."""
    if isinstance(shape, IntAffine):
        value = w.job.integers[shape.constant]
        for name, at in shape.terms:
            value = value + w.job.integers[at] * sums[name].astype(jnp.int64)
        return value
    parts = [fixed_cost(w, part, sums) for part in shape.parts]
    pick = jnp.maximum if isinstance(shape, IntMax) else jnp.minimum
    out = parts[0]
    for part in parts[1:]:
        out = pick(out, part)
    return out
