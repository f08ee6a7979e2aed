"""The arithmetic of a window alone: iterations of equal cost at once equal iterations one by one."""

from __future__ import annotations

import itertools
import random

import jax.numpy as jnp
import numpy as np
import pytest

from serqjax.engine.host import settings
from serqjax.engine.window import LONGEST, LONGEST_TICKS, advance, solve
from serqjax.ir.fixed import FIXED_BITS

ONE = 1 << FIXED_BITS
US, S = 1_000, 1_000_000_000  # ticks


def cases(n: int) -> list[tuple[int, int, int]]:
    """Random (cost in 2**-20 ticks, remainder, iterations): 1 us to 10 s an iteration, up to 65,536 iterations."""
    draw = random.Random(7)
    found = []
    for k in range(n):
        ticks = int(US * 10 ** (7 * draw.random()))
        cost = ticks * ONE + draw.choice([0, 1, ONE - 1, draw.randrange(ONE)])
        most = min(LONGEST if k % 500 == 0 else 400, (LONGEST_TICKS * ONE) // cost - 1)
        found.append((cost, draw.randrange(ONE), draw.randint(1, max(1, most))))
    return found


def ends(cost: int, rest: int, n: int) -> list[int]:
    """Ticks after which iterations 1 to n have ended, one by one, in Python integers."""
    now, found = 0, []
    for _ in range(n):
        rest += cost
        now, rest = now + (rest >> FIXED_BITS), rest & (ONE - 1)
        found.append(now)
    return found


@pytest.fixture(scope="module")
def random_cases() -> list[tuple[int, int, int]]:
    return cases(10_000)


def test_advance_equals_stepping(random_cases: list[tuple[int, int, int]]) -> None:
    with settings():
        cost, rest, n = (jnp.asarray(column) for column in zip(*random_cases))
        span, left = (np.asarray(x) for x in advance(n, rest, cost))
    for (c, r, k), found, after in zip(random_cases, span, left):
        one_by_one = ends(c, r, k)
        assert found == one_by_one[-1]
        assert after == (r + k * c) & (ONE - 1)
        lengths = [b - a for a, b in itertools.pairwise([0, *one_by_one])]
        assert set(lengths) <= {c >> FIXED_BITS, (c >> FIXED_BITS) + 1}
        assert lengths.count((c >> FIXED_BITS) + 1) == found - k * (c >> FIXED_BITS)


def test_solve_cuts_where_stepping_does(random_cases: list[tuple[int, int, int]]) -> None:
    draw = random.Random(8)
    events = []
    for c, r, k in random_cases:
        one_by_one = ends(c, r, k)
        end = draw.choice(one_by_one)
        # at an end, just beside it, or anywhere before the last
        events.append(max(0, draw.choice([end, end + 1, end - 1, draw.randrange(one_by_one[-1] + 1)])))
    with settings():
        cost, rest, _ = (jnp.asarray(column) for column in zip(*random_cases))
        found = np.asarray(solve(jnp.asarray(events), rest, cost))
    for (c, r, k), event, j in zip(random_cases, events, found):
        one_by_one = ends(c, r, k)
        assert min(int(j), k) == sum(end < event for end in one_by_one)


def test_solve_of_a_far_event_stays_in_64_bits() -> None:
    with settings():
        far = solve(jnp.int64(1 << 62), jnp.int64(ONE - 1), jnp.int64(US * ONE))
        assert int(far) == (LONGEST_TICKS * ONE - 1 - (ONE - 1)) // (US * ONE)
        span, _ = advance(far, jnp.int64(ONE - 1), jnp.int64(US * ONE))
        assert 0 < int(span) < LONGEST_TICKS
