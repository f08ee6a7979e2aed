"""Speed of the random tape: nanoseconds a ChaCha block (8 uniforms), many lanes at once.

    pytest experiments/bench/test_tape_speed.py --benchmark-only --benchmark-json=tape.json
"""

from __future__ import annotations

import time

import jax
import numpy as np
import pytest

from serqjax.tape import chacha

jax.config.update("jax_enable_x64", True)
LANES = (256, 64)


@pytest.mark.parametrize(("first", "count", "blocks"), [("aligned", 8, 1), ("any", 1, 1), ("any", 4, 2)])
def test_block(benchmark, first: str, count: int, blocks: int) -> None:
    seeds = np.arange(LANES[0] * LANES[1], dtype=np.uint64).reshape(LANES)
    if first == "aligned":
        call, arguments = jax.vmap(jax.vmap(lambda s: chacha.uniforms(s, 0, count))), (seeds,)
    else:
        firsts = (np.arange(seeds.size) % 17).reshape(LANES)
        call, arguments = jax.vmap(jax.vmap(lambda s, f: chacha.uniforms(s, f, count))), (seeds, firsts)
    start = time.perf_counter()
    compiled = jax.jit(call).lower(*arguments).compile()
    benchmark.extra_info["compile_s"] = time.perf_counter() - start
    benchmark(lambda: compiled(*arguments).block_until_ready())
    for name in ("min", "median"):
        seconds = getattr(benchmark.stats.stats, name)
        benchmark.extra_info[f"{name}_ns_per_block"] = seconds / (seeds.size * blocks) * 1e9
