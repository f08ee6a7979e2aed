"""Machine code of traced functions (`serqjax.native`) against XLA, bit for bit."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from serqjax.native.function import Function, lower
from serqjax.native.scalars import OURS
from serqjax.tape import rounding

LONG = np.array([0, 1, -1, 5, -7, 1 << 62, -(1 << 63), (1 << 63) - 1, 3, 63, 64, -64, 1000, 2, 12, 70])
OTHER = np.array([1, 0, -1, 3, 2, -1, -1, 1, 64, 63, 5, 7, -3, 70, 1, 2])
# XLA takes numbers below 1e-308 for 0, machine code does not: there are none
REAL = np.array(
    [0.0, -0.0, 0.5, 1.5, 2.5, -2.5, np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-200, 3.25, -7.75, 0.1, 9.2e18]
)
REAL2 = np.array([1.0, 0.0, -0.5, np.nan, 2.0, -2.5, 1.0, -np.inf, 4.0, 1e-300, 7.0, 3.0, 0.3, 7.75, np.nan, -1.0])
FLAGS = np.array([True, False] * 8)


def native(f: Callable[..., Any], *args: Any) -> Any:
    """`f` as machine code."""
    arrays = [np.asarray(a) for a in args]
    return jax.tree.map(
        lambda x: x[0], Function(lambda moved, each, shared: ((), f(*each)))((), [a[None] for a in arrays], ())
    )


def assert_same(f: Callable[..., Any], *args: Any) -> None:
    found, expected = native(f, *args), jax.jit(f)(*args)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        b = np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), (a, b)


TWO_LONG = {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "rem": lax.rem, "max": lax.max, "min": lax.min,
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "eq": lax.eq, "ne": lax.ne, "lt": lax.lt,
    "le": lax.le, "gt": lax.gt, "ge": lax.ge, "left": lax.shift_left, "right": lax.shift_right_arithmetic,
    "logical": lax.shift_right_logical, "floor_divide": jnp.floor_divide, "remainder": jnp.remainder,
}  # fmt: skip
TWO_REAL = {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "rem": lax.rem, "max": lax.max, "min": lax.min,
    "eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge,
}  # fmt: skip
ONE_REAL = {
    "neg": lax.neg, "sign": lax.sign, "abs": lax.abs, "floor": lax.floor, "ceil": lax.ceil, "sqrt": lax.sqrt,
    "finite": lax.is_finite, "square": lax.square,
    "even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "int64": lambda x: x.astype(jnp.int64), "int32": lambda x: x.astype(jnp.int32),
    "uint64": lambda x: x.astype(jnp.uint64), "uint32": lambda x: x.astype(jnp.uint32),
    "bool": lambda x: x.astype(bool), "bits": lambda x: lax.bitcast_convert_type(x, jnp.int64),
    "clamp": lambda x: lax.clamp(-1.0, x, 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO_LONG)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "uint32"])
def test_integer_operations_have_the_meaning_of_xla_in_their_corner_cases(name: str, dtype: str):
    """Sixteen elements at once, five one by one, and scalars."""
    operation, a, b = TWO_LONG[name], LONG.astype(dtype), OTHER.astype(dtype)
    assert_same(lambda a, b: (operation(a, b), operation(a[:5], b[:5]), operation(a[6], b[6])), a, b)


@pytest.mark.parametrize("name", TWO_REAL)
def test_operations_on_two_floats_have_the_meaning_of_xla_in_their_corner_cases(name: str):
    operation = TWO_REAL[name]
    assert_same(lambda a, b: (operation(a, b), operation(a[:5], b[:5]), operation(a[6], b[6])), REAL, REAL2)


@pytest.mark.parametrize("name", ONE_REAL)
def test_operations_on_a_float_have_the_meaning_of_xla_in_their_corner_cases(name: str):
    operation = ONE_REAL[name]
    assert_same(lambda a: (operation(a), operation(a[:5]), operation(a[6])), REAL)


@pytest.mark.parametrize("name", OURS)
def test_functions_with_a_rounding_of_their_own_are_one_instruction(name: str):
    operation = getattr(rounding, name)
    given = [REAL, REAL2][: 1 if name == "rint" else 2]
    assert_same(operation, *given)
    assert_same(lambda *x: operation(*(v[0] for v in x)), *given)
    text, _ = lower(jax.make_jaxpr(operation)(*(jnp.float64(v[3]) for v in given)))
    assert "select" not in text and "fcmp" not in text, "what other compilers need is not written"
    assert text.count({"product": "fmul", "quotient": "fdiv", "rint": "call double @llvm.roundeven"}[name]) == 1


def test_logarithms_are_those_of_the_c_library():
    import math

    x = np.random.default_rng(1).uniform(1e-9, 1e3, 4096)
    found = native(lambda x: jnp.log(x), x)
    assert found.tolist() == [math.log(v) for v in x]


def test_integers_and_booleans_convert_to_every_dtype():
    kinds = (jnp.int64, jnp.int32, jnp.uint32, jnp.uint64, jnp.float64, jnp.bool_)
    assert_same(lambda a, f: [x.astype(k) for x in (a, a.astype(jnp.int32), f) for k in kinds], LONG, FLAGS)


def test_axes_of_one_element_go_along_with_longer_ones():
    def f(a: Any, b: Any) -> Any:
        row, column = a.astype(jnp.int32)[None, :], jnp.arange(2, dtype=jnp.int32)[:, None]
        same = row == column
        apart = (a[:, None] - a[None, :]).max(0)
        return same, same.sum(1), jnp.where(same, b[None, :], 0.0).sum(1), apart, column * row

    assert_same(f, LONG % 3, REAL2)


def test_reductions():
    def f(a: Any, b: Any, m: Any) -> Any:
        return (
            a.sum(), a.min(), a.max(), a[:7].sum(), m.any(), m.all(), jnp.argmax(a), jnp.argmin(a[:7]), jnp.argmax(m),
            jnp.argmin(b), jnp.argmax(b[7:]), b.min(), b.max(), a.reshape(4, 4).sum(0), a.reshape(2, 8).min(1),
            (a[:, None] == a[None, :]).sum(1), a.reshape(2, 2, 4).max((0, 2)),
            jnp.argmax(a.reshape(4, 4), axis=0), jnp.argmin(b.reshape(2, 8), axis=1), jnp.argmax(m.reshape(8, 2), 1),
            jnp.argmin((b * 2.0).reshape(2, 2, 4), axis=1),
        )  # fmt: skip

    assert_same(f, LONG, REAL, FLAGS)


def test_shapes_slices_gathers_and_scatters():
    def f(a: Any, i: Any, j: Any) -> Any:
        b = a.reshape(4, 4)
        return (
            b.T, b[1:3, ::2], b[i], b[:, j], a[::-1], jnp.concatenate([b, b * 2], axis=1),
            jnp.stack([a, a + 1], axis=1),
            lax.dynamic_slice(b, (i, j), (2, 3)), lax.dynamic_update_slice(b, jnp.ones((2, 2), a.dtype), (j, i)),
            b.at[i].set(a[:4]), b.at[2].add(a[4:8]), a.at[i].add(5), a.at[i + 40].set(1), a[a & 15], jnp.roll(a, 3),
            a.at[1].set(jnp.sum(a)), a[:3].at[i].set(9), b[None, :, 0], jnp.arange(16) * a,
            jnp.take_along_axis(b, b[:1] & 3, axis=0), jnp.take_along_axis(b, (b + i) & 3, axis=1),
            b[b[0] & 3, jnp.arange(4)],
        )  # fmt: skip

    for i, j in ((0, 1), (3, 2), (-1, 5)):
        assert_same(f, LONG, np.int64(i), np.int64(j))


def test_what_branches_give_back_is_kept_apart():
    """Operands passed through, exchanged, given back twice, changed in place on one side."""

    def f(i: Any, x: Any, y: Any) -> Any:
        first = lax.switch(
            i,
            [
                lambda x, y: (x, x, x[0]), lambda x, y: (y, x, y[1]), lambda x, y: (x + y, y * 2, x[2] * y[3]),
                lambda x, y: (x.at[3].set(7), y, x[3]), lambda x, y: (x.at[3].set(7), x.at[4].set(8), x[3]),
            ],
            x, y,
        )  # fmt: skip
        z = first[0].at[0].add(1)
        return first, z, x, lax.cond(i > 1, lambda z: z.at[5].set(0), lambda z: z, z), z * 3

    rng = np.random.default_rng(0)
    for i in range(-1, 6):
        assert_same(f, np.int32(i), rng.integers(0, 9, 16), rng.integers(0, 9, 16))


def test_what_a_loop_carries_is_kept_apart():
    """Exchanged tables, a table that is also read as it was before the loop, conditions that read tables."""

    def f(n: Any, x: Any, y: Any, small: Any) -> Any:
        def body(c: Any) -> Any:
            i, a, b, s = c
            a = lax.dynamic_update_index_in_dim(a, a[i % 16] + x[(i * 5) % 16], (i * 3) % 16, 0)
            return i + 1, b, a + (i % 2), (s[1], s[0] + a[2])

        end = lax.while_loop(lambda c: (c[0] < n) & (c[1][3] < 1000), body, (jnp.int64(0), x, y, (small[0], small[1])))
        return end, x, lax.fori_loop(0, 5, lambda i, c: c.at[i].add(c[i + 1]), y), y

    for n in (0, 1, 2, 31):
        assert_same(f, np.int64(n), LONG % 17, OTHER, np.array([1, 2]))


def test_what_a_loop_reads_is_not_written_over_what_it_carries():
    """Both come from one table that nothing else reads."""

    def f(a: Any) -> Any:
        def ends(form: int) -> Any:
            x = a + form
            y = x * 2
            if form == 1:
                return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + y), (jnp.int64(0), x))
            if form == 2:
                return lax.fori_loop(0, 3, lambda i, c: c.at[i].add(1) + y, x)
            return lax.scan(lambda c, r: (c + y + r, c[0]), x, jnp.arange(200 if form == 3 else 3))

        return [ends(form) for form in (1, 2, 3, 4)]

    assert_same(f, LONG)


def test_scans():
    def f(x: Any, t: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            i, table = c
            table = table.at[i % 9].add(row.sum())
            return (i + 1, table), (table[3], row * i, table)

        short = lax.scan(step, (jnp.int64(0), t), x)
        long = lax.scan(step, (jnp.int64(0), t), jnp.concatenate([x] * 40), reverse=True)
        return short, long, t

    assert_same(f, LONG.reshape(4, 4) % 100, np.arange(9))


def random_function(seed: int) -> Callable[..., Any]:
    """Statements drawn at random over a few tables and scalars, with branches and loops of such statements."""

    def run(*args: Any) -> Any:
        rng = random.Random(seed)

        def statements(state: dict[str, Any], depth: int) -> dict[str, Any]:
            for _ in range(rng.randint(2, 6)):
                state = statement(dict(state), depth)
            return state

        def statement(s: dict[str, Any], depth: int) -> dict[str, Any]:
            table, other = rng.choice("abcd"), rng.choice("abcd")
            k, n = rng.choice("ijk"), s[table].shape[0]
            m = min(n, s[other].shape[0])
            kind = rng.randrange(13 if depth < 3 else 9)
            if kind == 0:
                s[table] = s[table].at[rng.randrange(n)].add(s[k])
            elif kind == 1:
                s[table] = lax.dynamic_update_index_in_dim(s[table], s[k] * 3, s["j"] % n, 0)
            elif kind == 2:
                s[table] = jnp.where(s[table] > s[k], s[table] - 1, s[table] + s[k])
            elif kind == 3:
                s[k] = jnp.sum(s[table]) + s["i"]
            elif kind == 4:
                s[k] = lax.dynamic_index_in_dim(s[table], s["k"] % n, keepdims=False) & 255
            elif kind == 5:
                s[table] = lax.dynamic_update_slice_in_dim(s[table], s[other][:m] + s[table][:m], 0, 0)
            elif kind == 6:
                s[table], s[other] = (s[other], s[table]) if n == s[other].shape[0] else (s[table] * 2, s[other])
            elif kind == 7:
                s[k] = jnp.min(jnp.where(s[table] > 0, s[table], 99)) + jnp.argmax(s[table])
            elif kind == 8:
                kept = s[table]
                s[table] = s[table].at[0].set(s[k])
                s[k] = kept[0] - jnp.max(s[table])
            elif kind == 9:
                s = lax.cond(
                    s[k] % 2 == 0, lambda s: statements(s, depth + 1), lambda s: statements(s, depth + 1), s
                )
            elif kind == 10:
                rounds, before = rng.randint(1, 20), rng.getstate()

                def body(_: Any, s: dict[str, Any]) -> dict[str, Any]:
                    rng.setstate(before)
                    return statements(s, depth + 1)

                s = lax.fori_loop(0, rounds, body, s)
            elif kind == 12:
                other, rounds = s[table] * 2, rng.randint(1, 200)
                s[table] = lax.fori_loop(0, rounds, lambda i, c: c.at[i % n].add(1) ^ other, s[table])
            else:
                before = rng.getstate()

                def again(c: Any) -> Any:
                    rng.setstate(before)
                    return c[0] + 1, statements(c[1], depth + 1)

                s = lax.while_loop(lambda c: (c[0] < 6) & (c[1]["k"] < 10_000), again, (jnp.int64(0), s))[1]
            s["i"], s["j"], s["k"] = s["i"] & 1023, s["j"] & 63, s["k"] & 4095
            return s

        names = ("a", "b", "c", "d", "i", "j", "k")
        return statements(dict(zip(names, args, strict=True)), 0)

    return run


@pytest.mark.parametrize("seed", range(24))
def test_random_functions(seed: int):
    rng = np.random.default_rng(seed)
    tables = [rng.integers(0, 50, n) for n in (16, 16, 3, 72)]
    assert_same(random_function(seed), *tables, *rng.integers(0, 50, 3))


def test_lanes_are_run_one_by_one_and_what_is_moved_is_written_over():
    def one(moved: Any, each: Any, shared: Any) -> Any:
        return {"x": moved["x"].at[shared].add(each), "n": moved["n"] + 1}, moved["x"].sum()

    rows = np.arange(60).reshape(3, 20)
    x, n = rows[:, 2:18], np.zeros((3,), np.int64)
    before = x.copy()
    found = Function(one)({"x": x, "n": n}, np.array([5, 6, 7]), np.int64(2))
    assert found.tolist() == before.sum(1).tolist() and n.tolist() == [1, 1, 1]
    before[:, 2] += [5, 6, 7]
    assert (x == before).all() and (rows[:, :2] == np.arange(60).reshape(3, 20)[:, :2]).all()


def test_threads_that_need_the_same_code_compile_it_once():
    traced = []

    def one(moved: Any, each: Any, shared: Any) -> Any:
        traced.append(1)
        return (), each * 2

    function = Function(one)

    def call() -> None:
        with jax.enable_x64(True):
            function((), np.arange(4), ())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(traced) == 1


def test_a_loop_with_an_unknown_operation_is_compiled_by_xla_and_it_says_so(monkeypatch):
    """A new version of JAX may trace the engine differently."""
    from random import Random

    from compare_runs import as_program, exact_difference
    from generate import STRUCTURES

    from serqjax.engine import loop, simulate
    from serqjax.native import lowering

    program = as_program(STRUCTURES["memory_fifo"](Random(1)))
    expected = simulate(program, [1])[0]
    assert expected is not None and expected.live_at_end > 0  # somebody waits: what they ask for is looked at, too
    loop.loop.cache_clear()
    loop.final_needs.cache_clear()
    known = {k: v for k, v in lowering.RULES.items() if k != "squeeze"}
    monkeypatch.setattr(lowering, "RULES", known)
    try:
        with pytest.warns(UserWarning, match="squeeze"):
            found = simulate(program, [1])[0]
    finally:
        loop.loop.cache_clear()
        loop.final_needs.cache_clear()
    assert exact_difference(found, expected) is None


def test_what_is_not_known_is_named():
    with pytest.raises(NotImplementedError, match="sort"):
        native(lambda x: jnp.sort(x), LONG)
