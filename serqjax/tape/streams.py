"""Which stream belongs to whom. `S` is the program's seed.

**Source:** `spec/semantics.md`, section 10.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Int64, UInt64

from .chacha import _CONSTANT, _INCREMENT, _MASK, _MULTIPLIER, as_u64, times_plus

#: kinds of a session's streams: `sub_seed(S, serial, turn, SESSION_WORKLOAD)` for its `init` (turn 0) and its
#: turns (from 1), `sub_seed(S, serial, 0, SESSION_OWN)` for all else, `sub_seed(S, serial, k, LEG)` for its k-th leg
SESSION_WORKLOAD, SESSION_OWN, LEG = 1, 2, 3

_MACHINE = 0x5851F42D4C957F2D
_EVICTION = 0x2545F4914F6CDD1D
_TRACE_CHOICE = 0x6A09E667F3BCC908
_GAMMA = 0x9E3779B97F4A7C15


def _finish(x: Array) -> Array:
    x = times_plus(x ^ (x >> np.uint64(30)), 0xBF58476D1CE4E5B9)
    x = times_plus(x ^ (x >> np.uint64(27)), 0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def sub_seed(
    seed: UInt64[Array, " *batch"] | int,
    a: Int64[Array, " *batch"] | int,
    b: Int64[Array, " *batch"] | int,
    c: Int64[Array, " *batch"] | int,
) -> UInt64[Array, " *batch"]:
    """The seed of the stream `(a, b, c)` = (serial, turn or leg, kind) of a run.

    **Arguments:** uint64 seed and non-negative integers, of equal shapes or scalars.

    **Returns:** uint64, for `chacha.uniforms`.
    """
    x = _finish(times_plus(as_u64(seed, "seed"), 1, _GAMMA))
    for v, name in ((a, "a"), (b, "b"), (c, "c")):
        x = _finish(times_plus(x ^ as_u64(v, name), 1, _GAMMA))
    return x


def arrival_seed(seed: UInt64[Array, " *batch"] | int) -> UInt64[Array, " *batch"]:
    """Stream of the gaps between arrivals."""
    return as_u64(seed, "seed")


def machine_seed(seed: UInt64[Array, " *batch"] | int) -> UInt64[Array, " *batch"]:
    """Stream of draws that no session makes: processor-sharing capacity, budget, chunk, cost."""
    return as_u64(seed, "seed") ^ np.uint64(_MACHINE)


def eviction_seed(seed: UInt64[Array, " *batch"] | int) -> UInt64[Array, " *batch"]:
    """Stream of eviction keys and spill expressions."""
    return as_u64(seed, "seed") ^ np.uint64(_EVICTION)


def trace_choice_seed(seed: int) -> int:
    """Seed of the stream that chooses trace sessions."""
    return (seed ^ _TRACE_CHOICE) & _MASK


def words(seed: int, count: int) -> np.ndarray:
    """The first `count` words of the stream of `seed`, uint32, on the host (numpy)."""
    blocks = -(-count // 16)
    s, key = seed & _MASK, []
    for _ in range(8):
        s = (s * _MULTIPLIER + _INCREMENT) & _MASK
        x, turn = ((s >> 18 ^ s) >> 27) & 0xFFFFFFFF, s >> 59
        key.append((x >> turn | x << (32 - turn)) & 0xFFFFFFFF)
    start = np.zeros((16, blocks), np.uint32)
    start[:4] = np.asarray(_CONSTANT, np.uint32)[:, None]
    start[4:12] = np.asarray(key, np.uint32)[:, None]
    counter = np.arange(blocks, dtype=np.uint64)
    start[12], start[13] = counter.astype(np.uint32), (counter >> np.uint64(32)).astype(np.uint32)
    a, b, c, d = (row.copy() for row in start.reshape(4, 4, blocks))

    def rotate(x: np.ndarray, bits: int) -> np.ndarray:
        return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))

    for half in range(12):
        a += b
        d = rotate(d ^ a, 16)
        c += d
        b = rotate(b ^ c, 12)
        a += b
        d = rotate(d ^ a, 8)
        c += d
        b = rotate(b ^ c, 7)
        turn = 1 if half % 2 == 0 else -1
        b, c, d = np.roll(b, -turn, 0), np.roll(c, -2, 0), np.roll(d, turn, 0)
    return (np.concatenate([a, b, c, d]) + start).T.reshape(-1)[:count]


def trace_choices(seed: int, count: int, n: int) -> Int64[np.ndarray, " count"]:
    """Which of `n` trace sessions the first `count` arrivals of a run replay (host, numpy).

    A choice takes one word of the stream, rarely a second: where the first leaves the result in doubt.

    **Arguments:** `seed`: the program's; `count` >= 0; `n`: trace sessions, 1 to 2^32 - 1.

    **Returns:** int64 in [0, n), shape `(count,)`.

    **Raises:** `ValueError` for `n` out of range.
    """
    if not 0 < n < 2**32:
        raise ValueError(f"n: {n} trace sessions, need 1 to 2^32 - 1")
    chosen = np.zeros(count, np.int64)
    stream = words(trace_choice_seed(seed), count)
    taken, place = 0, 0  # choices made, words used
    size = np.uint64(n)
    while taken < count:
        if len(stream) - place < count - taken:
            stream = words(trace_choice_seed(seed), place + 2 * (count - taken))
        product = stream[place : place + count - taken].astype(np.uint64) * size
        low = product & np.uint64(0xFFFFFFFF)
        doubtful = np.flatnonzero(low > np.uint64(2**32 - n))
        sure = int(doubtful[0]) if len(doubtful) else count - taken
        chosen[taken : taken + sure] = (product[:sure] >> np.uint64(32)).astype(np.int64)
        taken, place = taken + sure, place + sure
        if taken < count:
            if place + 1 >= len(stream):
                stream = words(trace_choice_seed(seed), place + 2 * (count - taken))
            second = int(stream[place + 1]) * n >> 32
            carry = int(low[sure]) + second > 0xFFFFFFFF
            chosen[taken] = int(product[sure] >> np.uint64(32)) + carry
            taken, place = taken + 1, place + 2
    return chosen


__all__ = [
    "LEG",
    "SESSION_OWN",
    "SESSION_WORKLOAD",
    "arrival_seed",
    "eviction_seed",
    "machine_seed",
    "sub_seed",
    "trace_choice_seed",
    "trace_choices",
    "words",
]
