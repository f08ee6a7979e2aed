"""Gauges and claims in the loop: what is read besides what every run measures.

A gauge is read when an instant is over and the clock is about to move; a reading that differs from the one before is
a row of the buffer `points`. A window moves the clock too: it is licensed only where no gauge reads what moves
inside it, and the reading is that of the instant in which it begins. Claims over iterations are counted where an
iteration starts (such a stage has no windows); those at the end are evaluated on the host.

**Source:** `spec/semantics.md`, sections 2 and 13; oracle: `oracle/measures.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..ir.program import AtEnd, SomeIteration
from ..report.raw import ClaimTotals, Verdict
from .expr import Env, Value, evaluate
from .lane import Lane
from .plan import Plan
from .views import now_s, planned_limits, pool_state, stage_state


def read_gauges(w: Lane, on: Array, tick: Array) -> None:
    """The instant `tick` is over where `on`: every gauge that has changed gets a change point."""
    env = Env(w.plan, w.job.numbers, pool=pool_state(w, None), stage=stage_state(w))
    values = jnp.stack([jnp.asarray(evaluate(gauge.value, env), jnp.float64) for gauge in w.plan.gauges])
    on, values, tick = w.fence(on, values, tick)
    changed = on & (values != w.gauge_held)
    w.only(jnp.any(changed), lambda w: _add_points(w, tick, values, changed))


def _add_points(w: Lane, tick: Array, values: Array, changed: Array) -> None:
    for i in range(values.shape[0]):
        w.append("points", [jnp.float64(i), tick, values[i]], changed[i])
    w.gauge_held = jnp.where(changed, values, w.gauge_held)


def start_session(w: Lane, attr: Any, serial: Array, on: Array) -> None:
    """A session has its first attributes: is it in the scope of every claim?"""
    env = Env(w.plan, w.job.numbers, attr=attr)
    for i, claim in enumerate(w.plan.claims):
        if claim.given is not None:
            outside = on & (w.claim_outside[i] < 0) & (jnp.asarray(evaluate(claim.given, env)) == 0.0)
            w.claim_outside = w.claim_outside.at[i].set(jnp.where(outside, serial, w.claim_outside[i]))


def start_iteration(w: Lane, stage: int, sums: dict[str, Value], on: Array) -> None:
    """Read the claims over iterations of a stage.

    **Arguments:** `sums`: the variables of the cost, `Attn` doubled; `on`: an iteration of this stage starts.
    """
    claims = [(i, c) for i, c in enumerate(w.plan.claims) if not isinstance(c.kind, AtEnd)]
    claims = [(i, c) for i, c in claims if w.plan.stage_index[c.kind.stage] == stage]
    if claims:
        values = dict(sums, Attn=sums["Attn"] * 0.5, Served=w.token_sum[stage], Arrived=w.arrived.astype(jnp.float64))
        context = {name: (lambda v=v: v) for name, v in values.items()} | {
            "Now": lambda: now_s(w),
            "Demand": lambda: jnp.sum(jnp.where(w.stage == stage, planned_limits(w).wanted(w.work, w.mode), 0.0)),
        }
        env = Env(w.plan, w.job.numbers, ctx=context, pool=pool_state(w, None), stage=stage_state(w))
        for i, claim in claims:
            false = jnp.asarray(evaluate(claim.value, env)) == 0.0
            found = ~false if isinstance(claim.kind, SomeIteration) else false
            read = on & (w.claim_outside[i] < 0)
            w.add("claim_checked", i, 1, read)
            w.add("claim_failures", i, 1, read & false)
            first = read & found & (w.claim_first[i] < 0)
            w.claim_first = w.claim_first.at[i].set(jnp.where(first, w.now, w.claim_first[i]))
    w.add("token_sum", stage, sums["Ntok"], on)


# ---------------------------------------------------------------- on the host


def claim_totals(
    plan: Plan, s: Mapping[str, np.ndarray], numbers: np.ndarray, verdict: Verdict, end_s: float,
    observed: tuple[np.ndarray, ...],
) -> list[ClaimTotals]:  # fmt: skip
    """The claims of a finished instance.

    **Arguments:** `s`: its final arrays; `numbers`: of its program; `observed`: as `result.sample_rows` gives them,
    those before the end of warm-up included.
    """
    found = []
    for i, claim in enumerate(plan.claims):
        names = ("claim_checked", "claim_failures", "claim_first", "claim_outside")
        totals = ClaimTotals(*(int(s[name][i]) for name in names))
        ended = verdict not in (Verdict.error, Verdict.capacity) and not int(s["live"])
        if isinstance(claim.kind, AtEnd) and totals.outside < 0 and ended:
            env = Env(
                plan, jnp.asarray(numbers), ctx={"Now": lambda: jnp.float64(end_s)},
                aggregate=lambda fun, name: aggregate(fun, observed[4][observed[0] == plan.observe_index[name]]),
            )  # fmt: skip
            totals.checked = 1
            if float(evaluate(claim.value, env)) == 0.0:
                totals.failures, totals.first_tick = 1, int(s["end_tick"])
        found.append(totals)
    return found


def aggregate(fun: str, values: np.ndarray) -> Value:
    """An aggregate of observations, float64; sums add in order."""
    n = len(values)
    if fun == "PrefixTotal":
        values = np.sort(values) * np.arange(n, 0, -1)
    of = {
        "Count": float(n), "Largest": values.max(initial=-np.inf) if n else 0.0,
        "Smallest": values.min(initial=np.inf) if n else 0.0,
    }  # fmt: skip
    return jnp.float64(of[fun] if fun in of else np.cumsum(values)[-1] if n else 0.0)
