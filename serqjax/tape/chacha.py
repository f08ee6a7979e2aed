"""The reference's generator as an array function: ChaCha with 12 rounds, counter based.

Uniform number `i` of a seed is words `2i` and `2i + 1` of that seed's ChaCha stream, so a draw is
addressed and never waited for. One block holds 8 uniforms.

**Source:** `spec/semantics.md`, section 10 (rand 0.9's `StdRng`, which the reference uses).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float64, Int64, UInt32, UInt64

#: uniforms per block of 16 words
DRAWS_PER_BLOCK = 8

_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 11634580027462260723, (1 << 64) - 1
_CONSTANT = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_TO_UNIT = 2.0**-53


def _jumps() -> tuple[tuple[int, int], ...]:
    """`(m, a)` of the i-th step of the seeding generator from the seed: `s_i = s * m + a` (mod 2^64)."""
    m, a, jumps = 1, 0, []
    for _ in range(8):
        m, a = m * _MULTIPLIER & _MASK, (a * _MULTIPLIER + _INCREMENT) & _MASK
        jumps.append((m, a))
    return tuple(jumps)


# Direct jumps instead of a chain of eight: XLA's CPU back end recomputes a chain for every output.
_JUMPS = _jumps()


def as_u64(x: Array | np.ndarray | int, name: str) -> Array:
    """`x` as uint64. **Raises:** `ValueError` outside 64-bit mode (seeds would be cut to 32 bits)."""
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(f"{name}: the random tape needs 64-bit integers; call it under `jax.enable_x64(True)`")
    return jnp.asarray(np.uint64(x & _MASK) if isinstance(x, int) else x).astype(jnp.uint64)


def times_plus(x: Array, factor: int | np.ndarray | np.uint64, term: int | np.ndarray | np.uint64 = 0) -> Array:
    """`x * factor + term` of uint64, modulo 2^64. In signed numbers: Pallas' Triton back end refuses constants from
    2^63 on."""

    def signed(c: int | np.ndarray | np.uint64) -> np.ndarray:
        return np.asarray(c, np.uint64).astype(np.int64)

    return (x.astype(jnp.int64) * signed(factor) + signed(term)).astype(jnp.uint64)


def _rotate(x: Array, bits: int) -> Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _key_words(seed: Array, multiplier: np.ndarray | np.uint64, increment: np.ndarray | np.uint64) -> Array:
    s = times_plus(seed, multiplier, increment)
    x = (((s >> np.uint64(18)) ^ s) >> np.uint64(27)).astype(jnp.uint32)
    turn = (s >> np.uint64(59)).astype(jnp.uint32)
    back = (np.uint32(32) - turn) & np.uint32(31)  # a shift by 32 is not defined
    return (x >> turn) | (x << back)


def _key(seed: UInt64[Array, " lanes"]) -> UInt32[Array, "8 lanes"]:
    return jnp.stack([_key_words(seed, np.uint64(m), np.uint64(a)) for m, a in _JUMPS])


def _to_unit(words: UInt64[Array, " *shape"]) -> Float64[Array, " *shape"]:
    # Through int64: the conversion of unsigned 64-bit integers has no instruction on most machines.
    return (words >> np.uint64(11)).astype(jnp.int64).astype(jnp.float64) * _TO_UNIT


def key_from_seed(seed: UInt64[Array, ""]) -> UInt32[Array, " 8"]:
    """The ChaCha key of a 64-bit seed.

    **Arguments:** `seed`: uint64 scalar (vmap for more), or a Python integer.

    **Returns:** the eight key words, uint32.
    """
    return _key(as_u64(seed, "seed").reshape(1))[:, 0]


def _quarter_rounds(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _round(s: Array, turn: int) -> Array:
    """Four quarter rounds on rows `[4, 4, lanes]`, then rows 1, 2, 3 turn by `turn`, 2, `-turn` columns."""
    a, b, c, d = _quarter_rounds(s[0], s[1], s[2], s[3])
    return jnp.stack([a, jnp.roll(b, -turn, 0), jnp.roll(c, -2, 0), jnp.roll(d, turn, 0)])


def _apart(true: Array, compute: Callable[..., Array], out: jax.ShapeDtypeStruct, *operands: Array) -> Array:
    """`compute(*operands)`, computed once and stored.

    XLA's CPU back end has no fusion with several outputs and recomputes the chain behind each of them; the branch
    of a conditional is a boundary. `true` must be true at run time and unknown to the compiler.
    """
    return lax.cond(true, compute, lambda *_: jnp.zeros(out.shape, out.dtype), *operands)


def _block_draws(key: UInt32[Array, "8 lanes"], counter: UInt64[Array, " lanes"]) -> Float64[Array, "8 lanes"]:
    """The uniforms of block `counter` of each lane's stream. Lanes are the minor axis: rows are vector registers."""
    lanes = counter.shape[0]
    true = (key[0, 0] | np.uint32(1)) != np.uint32(0)
    state = jax.ShapeDtypeStruct((4, 4, lanes), jnp.uint32)

    def begin(key: Array, counter: Array) -> Array:
        constant = jnp.broadcast_to(np.asarray(_CONSTANT, np.uint32)[:, None], (4, lanes))
        low, high = counter.astype(jnp.uint32), (counter >> np.uint64(32)).astype(jnp.uint32)
        zero = jnp.zeros_like(low)
        return jnp.concatenate([constant, key, jnp.stack([low, high, zero, zero])]).reshape(4, 4, lanes)

    def two_rounds(_: Array, s: Array) -> Array:
        s = _apart(true, lambda s: _round(s, 1), state, s)
        return _apart(true, lambda s: _round(s, -1), state, s)

    def finish(mixed: Array, start: Array) -> Array:
        pairs = (mixed + start).reshape(DRAWS_PER_BLOCK, 2, lanes)
        return _to_unit(pairs[:, 0].astype(jnp.uint64) | (pairs[:, 1].astype(jnp.uint64) << np.uint64(32)))

    start = _apart(true, begin, state, key, counter)
    mixed = lax.fori_loop(np.int32(0), np.int32(6), two_rounds, start)
    return _apart(true, finish, jax.ShapeDtypeStruct((DRAWS_PER_BLOCK, lanes), jnp.float64), mixed, start)


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def _rows(seed: Array, first: Array, count: int, aligned: bool) -> Float64[Array, "count lanes"]:
    """Uniforms `first` to `first + count - 1` of each lane; `aligned`: `first` is a multiple of 8."""
    lanes = seed.size
    if lanes == 0 or count == 0:
        return jnp.zeros((count, lanes), jnp.float64)
    blocks = -(-count // DRAWS_PER_BLOCK) if aligned else (count + DRAWS_PER_BLOCK - 2) // DRAWS_PER_BLOCK + 1
    first = first.astype(jnp.uint64)
    counter = (first >> np.uint64(3))[None, :] + np.arange(blocks, dtype=np.uint64)[:, None]
    unit = _block_draws(
        jnp.broadcast_to(_key(seed)[:, None, :], (8, blocks, lanes)).reshape(8, blocks * lanes),
        counter.reshape(blocks * lanes),
    )
    rows = jnp.swapaxes(unit.reshape(DRAWS_PER_BLOCK, blocks, lanes), 0, 1).reshape(-1, lanes)
    if not aligned:
        # Shift by first mod 8 in three conditional steps: cheaper than a gather.
        for step in (4, 2, 1):
            moved = (first & np.uint64(step)) != np.uint64(0)
            rows = jnp.where(moved[None, :], rows[step:], rows[:-step])
    return rows[:count]


@cache
def _uniforms_of(count: int, aligned: bool) -> Callable[[Array, Array], Array]:
    """`(seed [*batch], first [*batch]) -> [*batch, count]`, whose vmap is the same function on more lanes."""

    @custom_vmap
    def uniforms(seed: Array, first: Array) -> Array:
        return _rows(seed.reshape(-1), first.reshape(-1), count, aligned).T.reshape(*seed.shape, count)

    @uniforms.def_vmap
    def _(axis_size: int, batched: list[bool], seed: Array, first: Array) -> tuple[Array, bool]:
        if not batched[0]:
            seed = jnp.broadcast_to(seed, (axis_size, *seed.shape))
        if not batched[1]:
            first = jnp.broadcast_to(first, (axis_size, *first.shape))
        return uniforms(seed, first), True

    return jax.jit(uniforms, inline=True)


def _arguments(seed: Array | int, first_draw: Array | int, count: int) -> tuple[Array, Array, bool]:
    if count < 0:
        raise ValueError(f"count: {count} is negative")
    seed = as_u64(seed, "seed")
    aligned = False
    if isinstance(first_draw, int):
        if first_draw < 0:
            raise ValueError(f"first_draw: {first_draw} is negative")
        aligned = first_draw % DRAWS_PER_BLOCK == 0
    first = jnp.asarray(first_draw, jnp.int64)
    shape = jnp.broadcast_shapes(first.shape, seed.shape)
    return jnp.broadcast_to(seed, shape), jnp.broadcast_to(first, shape), aligned


def uniforms(
    seed: UInt64[Array, " *batch"] | int, first_draw: Int64[Array, " *batch"] | int, count: int
) -> Float64[Array, " *batch count"]:
    """Uniforms number `first_draw` to `first_draw + count - 1` of the stream of `seed`.

    A Python integer that is a multiple of 8 as `first_draw` is cheaper than an array (whole blocks). Calls under
    `vmap`, and calls with arrays, compute all lanes together; about 0.1 microseconds a block on a CPU.

    **Arguments:**
    - `seed`: uint64, any shape.
    - `first_draw`: int64, >= 0, the shape of `seed` (a Python integer: the same for all).
    - `count`: how many, static.

    **Returns:** float64 in [0, 1), shape of `seed` and a last axis of `count`.

    **Raises:** `ValueError` outside 64-bit mode or for a negative `count` or `first_draw`.
    """
    seed, first, aligned = _arguments(seed, first_draw, count)
    return _uniforms_of(count, aligned)(seed, first)


def block_uniforms(seed: UInt64[Array, ""], block: UInt64[Array, ""]) -> Float64[Array, " 8"]:
    """The 8 uniforms of one block of the stream of `seed`, for code that runs inside a scalar loop.

    The rows of ChaCha's square are vectors of four; one round a turn of an inner loop, so that XLA's CPU back end
    recomputes nothing and the code is traced once: about 0.2 microseconds (`experiments/bench/notes.md`). `uniforms` is
    the form for many lanes.

    **Arguments:** `seed`, `block`: uint64 scalars; block `b` holds draws `8 b` to `8 b + 7`.

    **Returns:** float64 in [0, 1), shape `(8,)`.
    """
    low, high = block.astype(jnp.uint32), (block >> np.uint64(32)).astype(jnp.uint32)
    zero = jnp.zeros_like(low)
    jumps = np.asarray(_JUMPS, np.uint64)
    key = _key_words(seed, jumps[:, 0], jumps[:, 1])
    start = jnp.concatenate([np.asarray(_CONSTANT, np.uint32), key, jnp.stack([low, high, zero, zero])])

    def one_round(i: Array, rows: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        a, b, c, d = _quarter_rounds(*rows)
        down = (i & 1) == 0  # columns, then diagonals: rows 1 and 3 turn there and back
        b = jnp.where(down, jnp.roll(b, -1), jnp.roll(b, 1))
        d = jnp.where(down, jnp.roll(d, 1), jnp.roll(d, -1))
        return a, b, jnp.roll(c, 2), d

    rows = lax.fori_loop(np.int32(0), np.int32(12), one_round, (start[:4], start[4:8], start[8:12], start[12:]))
    words = (jnp.concatenate(rows) + start).reshape(8, 2).astype(jnp.uint64)
    return _to_unit(words[:, 0] | (words[:, 1] << np.uint64(32)))


def block_uniform_scalars(seed: UInt64[Array, ""], block: UInt64[Array, ""]) -> list[Float64[Array, ""]]:
    """`block_uniforms` in scalars alone, for kernels, which can neither roll nor join vectors.

    **Arguments:** `seed`, `block`: uint64 scalars.

    **Returns:** the 8 uniforms, float64 scalars.
    """
    low, high = block.astype(jnp.uint32), (block >> np.uint64(32)).astype(jnp.uint32)
    zero = jnp.zeros_like(low)
    key = [_key_words(seed, np.uint64(m), np.uint64(a)) for m, a in _JUMPS]
    start = [zero + np.uint32(c) for c in _CONSTANT] + key + [low, high, zero, zero]

    def two_rounds(_: Array, words: list[Array]) -> list[Array]:
        words = list(words)
        for turn in (0, 1):
            for i in range(4):
                at = [4 * row + (i + turn * row) % 4 for row in range(4)]
                for place, value in zip(at, _quarter_rounds(*(words[p] for p in at))):
                    words[place] = value
        return words

    mixed = lax.fori_loop(np.int32(0), np.int32(6), two_rounds, start)
    words = [(a + b).astype(jnp.uint64) for a, b in zip(mixed, start)]
    return [_to_unit(words[2 * i] | (words[2 * i + 1] << np.uint64(32))) for i in range(DRAWS_PER_BLOCK)]


def uniform_rows(
    seed: UInt64[Array, " *batch"] | int, first_draw: Int64[Array, " *batch"] | int, count: int
) -> Float64[Array, " count *batch"]:
    """As `uniforms`, with the draws on the first axis: no transposition, for code that carries its batch itself.

    Under `vmap` it is right but slow; use `uniforms` there.
    """
    seed, first, aligned = _arguments(seed, first_draw, count)
    return _rows(seed.reshape(-1), first.reshape(-1), count, aligned).reshape(count, *seed.shape)
