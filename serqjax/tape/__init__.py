"""The random tape: the reference's streams as pure array functions.

- `chacha`: the generator. Uniform number `i` of the stream of a seed, for any `i`, without a carried state.
- `streams`: which stream belongs to whom (arrivals, a session's turn, a session's own statements, ...).
- `draws`: distributions as functions of uniforms.
- `rounding`: products that are rounded before they are added, as sequential code rounds them.

**Source:** `spec/semantics.md`, section 10.
"""
