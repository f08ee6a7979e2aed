"""Distributions as functions of uniforms, with the reference's operations in the reference's order.

Bit for bit equal to the reference on XLA:CPU, whose float64 logarithm is libm's; on a GPU the logarithm may
differ by an ulp, far below a tick.

**Source:** `spec/semantics.md`, section 10.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64

from serqjax.ir.expr import Distribution, Expr, Num

from .rounding import product


def exponential(mean: Float64[Array, " *batch"], u: Float64[Array, " *batch"]) -> Float64[Array, " *batch"]:
    """Exponential of mean `mean`: `-mean * ln(1 - u)`."""
    return product(-mean, jnp.log(1.0 - u))


def erlang(k: int, mean: Float64[Array, " *batch"], us: Float64[Array, " *batch k"]) -> Float64[Array, " *batch"]:
    """Sum of `max(1, k)` exponentials of mean `mean / k` each, added in order. `k` is static."""
    k = max(1, k)
    each = mean / k
    total = exponential(each, us[..., 0])
    for i in range(1, k):
        total = total + exponential(each, us[..., i])
    return total


def h2(
    mean: Float64[Array, " *batch"], cv2: Float64[Array, " *batch"], us: Float64[Array, " *batch 2"]
) -> Float64[Array, " *batch"]:
    """Hyperexponential of two phases with balanced means; `cv2` below 1 is taken as 1."""
    c = jnp.where(cv2 > 1.0, cv2, 1.0)
    p = (1.0 + jnp.sqrt((c - 1.0) / (c + 1.0))) / 2.0
    phase = jnp.where(us[..., 0] < p, mean / (2.0 * p), mean / (2.0 * (1.0 - p)))
    return exponential(phase, us[..., 1])


def uniform(
    low: Float64[Array, " *batch"], high: Float64[Array, " *batch"], u: Float64[Array, " *batch"]
) -> Float64[Array, " *batch"]:
    """`low + (high - low) * u`, with the product rounded."""
    return low + product(high - low, u)


def bernoulli(p: Float64[Array, " *batch"], u: Float64[Array, " *batch"]) -> Float64[Array, " *batch"]:
    """1.0 with probability `p`, else 0.0."""
    below: Bool[Array, " *batch"] = u < p
    return below.astype(jnp.float64)


def erlang_shape(args: tuple[Expr, ...]) -> int:
    """The static `k` of an Erlang draw. **Raises:** `ValueError` where it is not a literal."""
    if not isinstance(args[0], Num):
        raise ValueError("Erlang: the number of phases must be a literal number, so that its draws can be counted")
    value = args[0].value
    return max(1, int(value // 1)) if value == value else 1


def draw_count(dist: Distribution, args: tuple[Expr, ...]) -> int:
    """Uniforms that one draw takes from its stream.

    **Arguments:** `dist`, `args`: of the IR's `Sample` node.

    **Raises:** `ValueError` for an Erlang whose number of phases is not a literal.
    """
    if dist == "Erlang":
        return erlang_shape(args)
    return {"Det": 0, "Exp": 1, "Uniform": 1, "Bernoulli": 1, "H2": 2}[dist]


def draw(dist: Distribution, args: tuple[Expr, ...], values: tuple[Array, ...], us: Array) -> Array:
    """One draw: `values` are the evaluated `args`, `us` its `draw_count` uniforms on the last axis."""
    if dist == "Det":
        return values[0]
    if dist == "Exp":
        return exponential(values[0], us[..., 0])
    if dist == "Uniform":
        return uniform(values[0], values[1], us[..., 0])
    if dist == "Erlang":
        return erlang(erlang_shape(args), values[1], us)
    if dist == "H2":
        return h2(values[0], values[1], us)
    if dist == "Bernoulli":
        return bernoulli(values[0], us[..., 0])
    raise ValueError(f"distribution {dist!r} is not known")
