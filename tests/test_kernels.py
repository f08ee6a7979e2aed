"""Kernels: the same results as the engine in Pallas' interpreter, and a lowering for CUDA. No GPU is needed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_engine import small_engine

from experiments.bench.gpu import difference, fifo_hold, main, mm1, three_of_each
from kernels.simulation import kernel_loop, lower, simulate, unsupported
from kernels.tables import RefTable
from serqjax import engine
from serqjax.engine.access import choose, either, lookup
from serqjax.engine.make_plan import make_plan
from serqjax.engine.step import Config
from serqjax.tape.chacha import block_uniform_scalars, block_uniforms
from serqjax.tape.rounding import rint

PROGRAMS = {make.__name__: make for make in (mm1, fifo_hold, three_of_each)}
SEEDS = [1, 2, (1 << 64) - 3]


@pytest.mark.parametrize("name", ["mm1", "fifo_hold", pytest.param("three_of_each", marks=pytest.mark.slow)])
def test_interpreted_kernel_gives_the_engines_results(name: str):
    program = PROGRAMS[name](40.0)
    for expected, found in zip(engine.simulate(program, SEEDS), simulate(program, SEEDS, interpret=True), strict=True):
        assert expected is not None and found is not None
        assert len(expected.samples_value) > 10
        assert difference(expected, found) is None


def test_comparison_sees_a_difference():
    a, b = engine.simulate(mm1(40.0), [1, 2])
    assert a is not None and b is not None
    assert difference(a, a) is None
    assert difference(a, b) is not None
    b.seed = a.seed
    assert difference(a, b, 1000) is not None


@pytest.mark.parametrize("name", PROGRAMS)
def test_lowers_for_cuda(name: str):
    options: dict = {"warps": 4, "barriers": True} if name == "three_of_each" else {}
    text = lower(PROGRAMS[name](40.0), 256, **options).as_text()
    assert text.count("__gpu$xla.gpu.triton") + text.count("triton_kernel_call") == 1


def test_refuses_what_has_no_kernel():
    plan = make_plan(small_engine())[0]
    assert [reason.split(":")[0] for reason in unsupported(plan)] == [
        "a step stage", "a pool that caches", "a pool that grows", "listed sessions or a trace",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="this program has no kernel: a step stage"):
        kernel_loop(plan, Config())
    with pytest.raises(ValueError, match="set barriers"):
        kernel_loop(make_plan(mm1(1.0))[0], Config(), warps=4)


def test_bench_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    import jax

    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")  # whatever is here
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    assert main() == 2
    out = capsys.readouterr().out
    assert out.startswith("no GPU here: nothing measured") and out.count("\n") == 1


def test_scalar_generator_equals_the_vector_one():
    for seed, block in ((0, 0), (1, 7), ((1 << 64) - 1, 1 << 40)):
        found = jnp.stack(block_uniform_scalars(jnp.uint64(seed), jnp.uint64(block)))
        np.testing.assert_array_equal(found, block_uniforms(jnp.uint64(seed), jnp.uint64(block)))


def test_operations_that_a_kernel_has():
    x = np.concatenate([np.arange(-4, 4, 0.25), np.nextafter([0.5, 1.5, 2.5, -0.5], 0), [2.0**52 - 0.5, 2.0**53 + 2,
                        1e300, np.inf, -np.inf, np.nan, 0.49999999999999994]])  # fmt: skip
    np.testing.assert_array_equal(np.asarray(rint(jnp.asarray(x))) + 0.0, np.rint(x) + 0.0)
    rows = np.asarray([3, 3, 8, 3, 1])
    assert [int(lookup(rows, jnp.int32(i))) for i in range(5)] == rows.tolist()
    assert [int(choose([5, 6, 7], jnp.int32(i))) for i in (-1, 0, 1, 2, 9)] == [5, 5, 6, 7, 7]
    assert [int(either(jnp.bool_(b), 4, 9)) for b in (True, False)] == [4, 9]


class Memory:
    """A ref as far as `RefTable` reads one."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def __getitem__(self, key):
        if isinstance(key, int):
            return jnp.asarray(self.values[key])
        if hasattr(key, "size") and hasattr(key, "start"):
            return jnp.asarray(self.values[int(key.start) :: key.stride or 1][: key.size])
        return jnp.asarray(self.values)[key]


def test_table_in_memory_reads_as_an_array():
    memory = Memory(np.arange(40, dtype=np.int64))
    vector: Any = RefTable(memory, 4, (8,), np.int64)
    table = RefTable(memory, 16, (4, 2), np.int64)
    np.testing.assert_array_equal(vector.read(), np.arange(4, 12))
    np.testing.assert_array_equal((vector == 6) | (vector > 9), (np.arange(4, 12) == 6) | (np.arange(4, 12) > 9))
    np.testing.assert_array_equal(1 - vector, 1 - np.arange(4, 12))
    np.testing.assert_array_equal(vector[jnp.asarray([7, 0])], [11, 4])
    assert int(vector.load(jnp.int32(-1))) == 4 and int(vector.load(jnp.int32(99))) == 11  # clamped
    np.testing.assert_array_equal(table[:, 1], [17, 19, 21, 23])
    np.testing.assert_array_equal(table[2], [20, 21])
    assert int(table[jnp.int32(3), 0]) == 22
    np.testing.assert_array_equal(RefTable(memory, 0, (3,), np.int64).stacked([5, 6, 7]), [5, 6, 7, 0])
