"""Floating-point products that no compiler may contract into a fused multiply-add.

XLA's CPU back end contracts `a * b + c` into one rounding where the machine has FMA: a quarter of all
results then differ by an ulp from the same line in Python or in the reference. `optimization_barrier`,
`reduce_precision` and a bit cast do not stop it (they are gone before the instruction is selected);
a select between the product and the sum does.

Native code knows the functions here by their names and takes the one instruction (`serqjax/native/scalars.py`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float64


@jax.jit
def product(a: Float64[Array, " *shape"], b: Float64[Array, " *shape"]) -> Float64[Array, " *shape"]:
    """`a * b`, rounded to float64 before anything is added to it.

    **Arguments:** `a`, `b`: float64, any equal shapes.

    **Returns:** the product; NaN and infinities as IEEE 754 has them.
    """
    p = a * b
    # Where the product is NaN a factor is NaN or infinite, and x - x is NaN for both.
    return jnp.where(p == p, p, (a - a) + (b - b))


@jax.jit
def quotient(a: Float64[Array, " *shape"], b: Float64[Array, " *shape"]) -> Float64[Array, " *shape"]:
    """`a / b`, rounded to float64.

    XLA turns a division by a constant, or by one number for a whole array, into a multiplication by its reciprocal:
    four of ten results then differ in the last bit. It does not when the divisor seems to depend on the dividend (an
    `optimization_barrier` around a constant divisor is not enough).
    """
    a, b = jnp.broadcast_arrays(a, b)
    return a / jnp.where(a == a, b, a)  # where the dividend is NaN, so is the quotient


@jax.jit
def rint(x: Float64[Array, " *shape"]) -> Float64[Array, " *shape"]:
    """Half to even as `jnp.rint`, of operations that a kernel has too."""
    low = jnp.floor(x)
    rest = x - low  # exact
    odd = low != 2.0 * jnp.floor(0.5 * low)
    return jnp.where((rest > 0.5) | ((rest == 0.5) & odd) | (rest != rest), low + 1.0, low)
