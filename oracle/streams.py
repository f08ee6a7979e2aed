"""Random streams of the reference: ChaCha12, sub-seeds, distributions.

**Source:** semantics.md section 10.
"""

from __future__ import annotations

import math

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

MACHINE_SALT = 0x5851F42D4C957F2D  # budget, chunk, cost
EVICT_SALT = 0x2545F4914F6CDD1D  # eviction keys
TRACE_SALT = 0x6A09E667F3BCC908  # choice of a trace session
WORKLOAD, STATEMENTS, LEG = 1, 2, 3  # kinds of a session's streams


def sub_seed(seed: int, serial: int, turn: int, kind: int) -> int:
    """Seed of a session's stream."""

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
        return x ^ (x >> 31)

    x = mix((seed + GOLDEN) & MASK64)
    for value in (serial, turn, kind):
        x = mix(((x ^ value) + GOLDEN) & MASK64)
    return x


def chacha_key(seed: int) -> list[int]:
    """Eight little-endian words from a 64-bit seed (a PCG32 sequence)."""
    words = []
    for _ in range(8):
        seed = (seed * 6364136223846793005 + 11634580027462260723) & MASK64
        x = (((seed >> 18) ^ seed) >> 27) & MASK32
        rotate = seed >> 59
        words.append(((x >> rotate) | (x << (32 - rotate))) & MASK32 if rotate else x)
    return words


ROUNDS = 12
#: The quarter rounds of a double round: first columns, then diagonals.
QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def chacha_block(key: list[int], counter: int) -> list[int]:
    """Sixteen 32-bit words of block `counter`, nonce 0."""
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key, counter & MASK32, counter >> 32, 0, 0]
    x = start.copy()
    for _ in range(ROUNDS // 2):
        for i, j, k, n in QUARTERS:
            a, b, c, d = x[i], x[j], x[k], x[n]
            a = (a + b) & MASK32
            d ^= a
            d = (d << 16 | d >> 16) & MASK32
            c = (c + d) & MASK32
            b ^= c
            b = (b << 12 | b >> 20) & MASK32
            a = (a + b) & MASK32
            d ^= a
            d = (d << 8 | d >> 24) & MASK32
            c = (c + d) & MASK32
            b ^= c
            x[i], x[j], x[k], x[n] = a, (b << 7 | b >> 25) & MASK32, c, d
    return [(a + b) & MASK32 for a, b in zip(x, start)]


class Stream:
    """One generator; blocks are made when the first word of them is drawn."""

    __slots__ = ("seed", "key", "counter", "words", "place")

    def __init__(self, seed: int):
        self.seed = seed & MASK64
        self.key: list[int] | None = None
        self.counter = 0
        self.words: list[int] = []
        self.place = 0

    def u32(self) -> int:
        if self.place == len(self.words):
            if self.key is None:
                self.key = chacha_key(self.seed)
            self.words = chacha_block(self.key, self.counter)
            self.counter += 1
            self.place = 0
        self.place += 1
        return self.words[self.place - 1]

    def u64(self) -> int:
        low = self.u32()
        return low | self.u32() << 32

    def uniform(self) -> float:
        """In [0, 1), 53 bits."""
        return (self.u64() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """An integer in [0, n), n < 2**32."""
        m = self.u32() * n
        high, low = m >> 32, m & MASK32
        if low > (1 << 32) - n and low + (self.u32() * n >> 32) > MASK32:
            high += 1
        return high

    def exponential(self, mean: float) -> float:
        return -mean * math.log(1.0 - self.uniform())

    def draw(self, dist: str, args: list[float]) -> float:
        """One draw; the arguments are evaluated before it and not validated."""
        match dist:
            case "Det":
                return args[0]
            case "Exp":
                return self.exponential(args[0])
            case "Uniform":
                return args[0] + (args[1] - args[0]) * self.uniform()
            case "Bernoulli":
                return float(self.uniform() < args[0])
            case "Erlang":
                k = max(1, math.floor(args[0]))
                total = 0.0
                for _ in range(k):
                    total += self.exponential(args[1] / k)
                return total
            case "H2":
                mean, cv2 = args[0], max(args[1], 1.0)
                p = (1.0 + math.sqrt((cv2 - 1.0) / (cv2 + 1.0))) / 2.0
                first = self.uniform() < p
                return self.exponential(mean / (2.0 * p) if first else mean / (2.0 * (1.0 - p)))
        raise ValueError(f"no distribution {dist}")
