"""Settings of all tests: strict JAX, a cache of compiled programs inside the checkout, repeatable draws."""

from __future__ import annotations

import os
import random
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Before anything is compiled. A second run of the tests compiles nothing that the first one did.
os.environ.setdefault("SERQJAX_CACHE", str(ROOT / ".cache" / "serqjax"))
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

from serqjax.cache import use_compilation_cache  # noqa: E402
from serqjax.engine.xla import prepare  # noqa: E402

use_compilation_cache()
prepare()  # before any test uses JAX: XLA reads its flags once


@pytest.fixture
def getkey(request: pytest.FixtureRequest):
    """Random keys, another one at each call; a failing test prints the seed (`SERQJAX_TEST_SEED` repeats it)."""
    seed = int(os.environ.get("SERQJAX_TEST_SEED", random.SystemRandom().randrange(2**31)))
    request.node.user_properties.append(("seed", seed))
    print(f"SERQJAX_TEST_SEED={seed}")
    draws = random.Random(seed)

    def key() -> jax.Array:
        return jax.random.key(draws.randrange(2**31))

    return key
