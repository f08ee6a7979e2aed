"""The random tape against vectors drawn by pyserq, under every transform, and as statistics."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from serqjax.ir.expr import Num, Param
from serqjax.tape import chacha, draws, rounding, streams
from serqjax.tape.rounding import quotient

VECTORS = json.loads((Path(__file__).parent / "data" / "tape_vectors.json").read_text())
GENERATOR = VECTORS["generator"]
ARGS = {name: (dist, tuple(Num(float(a)) for a in args)) for name, dist, args in VECTORS["draws"]}
DRAWS = sum(draws.draw_count(dist, args) for dist, args in ARGS.values())


def f64(x: object) -> jax.Array:
    return jnp.asarray(x, jnp.float64)


@jax.jit
def draws_in_turn(seed: jax.Array, first: jax.Array) -> dict[str, jax.Array]:
    """All distributions of the vectors one after the other, from draw number `first` of a stream."""
    values, used = {}, 0
    us = chacha.uniforms(seed, first, DRAWS)
    for name, (dist, args) in ARGS.items():
        count = draws.draw_count(dist, args)
        values[name] = draws.draw(dist, args, tuple(f64(a.value) for a in args), us[used : used + count])
        used += count
    return values


# ---------------------------------------------------------------- the generator


@pytest.mark.parametrize(("first", "count"), [(0, 40), (8, 20), (16, 1), (3, 1), (7, 9), (13, 27), (5, 0)])
def test_generator_is_the_references(first: int, count: int) -> None:
    seeds = np.asarray([int(v["seed"]) for v in GENERATOR], np.uint64)
    expected = np.asarray([v["uniform"] for v in GENERATOR])[:, first : first + count]
    np.testing.assert_array_equal(chacha.uniforms(seeds, first, count), expected)
    np.testing.assert_array_equal(chacha.uniforms(seeds, np.full(8, first), count), expected)
    np.testing.assert_array_equal(chacha.uniform_rows(seeds, first, count), expected.T)


def test_one_block_in_a_scalar_loop() -> None:
    """`block_uniforms` is `uniforms` of one lane, also past block 2^32 and under `vmap`."""
    seeds = np.asarray([int(v["seed"]) for v in GENERATOR], np.uint64)
    for block in (0, 1, 2, 2**32 + 3):
        expected = chacha.uniforms(seeds, 8 * block, 8)
        one = jax.jit(chacha.block_uniforms)
        np.testing.assert_array_equal(np.stack([one(s, np.uint64(block)) for s in seeds]), expected)
        np.testing.assert_array_equal(jax.vmap(one, (0, None))(jnp.asarray(seeds), jnp.uint64(block)), expected)


def test_words_on_the_host() -> None:
    for v in GENERATOR:
        assert streams.words(int(v["seed"]), 40).tolist() == v["u32"]
        assert streams.words(int(v["seed"]), 17).tolist() == v["u32"][:17]


@pytest.mark.parametrize("vector", GENERATOR, ids=lambda v: v["seed"])
def test_choices_of_trace_sessions(vector: dict) -> None:
    seed = streams.trace_choice_seed(int(vector["seed"]))  # its own inverse
    for n, expected in vector["below"].items():
        for count in (60, 7, 1, 0):
            assert streams.trace_choices(seed, count, int(n)).tolist() == expected[:count], n


def test_block_counter_is_64_bits_wide() -> None:
    """Beyond block 2^32 the counter's high word counts: no repetition of the start."""
    far = chacha.uniforms(np.uint64(5), jnp.asarray(8 * 2**32, jnp.int64), 8)
    assert not np.intersect1d(np.asarray(far), np.asarray(chacha.uniforms(5, 0, 8))).size


def test_key_from_seed() -> None:
    """The key of seed 0, from the vectors by another way: `words` builds it with Python integers."""
    keys = jax.vmap(chacha.key_from_seed)(jnp.arange(3, dtype=jnp.uint64))
    assert keys.dtype == jnp.uint32 and keys.shape == (3, 8)
    s = 11634580027462260723
    x, turn = ((s >> 18 ^ s) >> 27) & 0xFFFFFFFF, s >> 59
    assert int(keys[0, 0]) == (x >> turn | x << (32 - turn)) & 0xFFFFFFFF


def test_transforms_agree() -> None:
    """Plain, jit, vmap, nested vmap, native arrays, a batch of one, inside a loop: one stream."""
    seeds = np.arange(12, dtype=np.uint64).reshape(3, 4) * np.uint64(2**60 + 7)
    firsts = np.arange(12, dtype=np.int64).reshape(3, 4) * 3
    one = [np.asarray(chacha.uniforms(s, f, 5)) for s, f in zip(seeds.ravel(), firsts.ravel())]
    plain = np.stack(one).reshape(3, 4, 5)
    by_vmap = jax.vmap(jax.vmap(lambda s, f: chacha.uniforms(s, f, 5)))
    for name, got in {
        "native": chacha.uniforms(jnp.asarray(seeds), jnp.asarray(firsts), 5),
        "vmap": by_vmap(seeds, firsts),
        "jit vmap": jax.jit(by_vmap)(seeds, firsts),
        "batch of one": jnp.concatenate([jax.jit(by_vmap)(seeds[i : i + 1], firsts[i : i + 1]) for i in range(3)]),
        "rows": jnp.moveaxis(chacha.uniform_rows(jnp.asarray(seeds), jnp.asarray(firsts), 5), 0, -1),
        "vmap of rows": jax.vmap(lambda s, f: chacha.uniform_rows(s, f, 5).T)(seeds, firsts),
        "scan": jax.lax.scan(lambda _, x: (None, chacha.uniforms(x[0], x[1], 5)), None, (seeds, firsts))[1],
        "in axis 1": jnp.swapaxes(jax.vmap(lambda s, f: chacha.uniforms(s, f, 5), in_axes=1)(seeds, firsts), 0, 1),
    }.items():
        np.testing.assert_array_equal(got, plain, err_msg=name)
    one_seed = jax.vmap(lambda f: chacha.uniforms(np.uint64(9), f, 3))(firsts[0])
    np.testing.assert_array_equal(one_seed[1], chacha.uniforms(9, int(firsts[0, 1]), 3))


def test_one_trace_serves_all_values() -> None:
    traces = 0

    @jax.jit
    def call(seed: jax.Array, first: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return chacha.uniforms(seed, first, 3)

    for seed, first in ((1, 0), (2, 5), (2**64 - 1, 10**12)):
        call(np.uint64(seed), np.int64(first))
    assert traces == 1


# ---------------------------------------------------------------- streams and distributions


@pytest.mark.parametrize("vector", VECTORS["distributions"], ids=lambda v: str(v["seed"]))
def test_session_streams_and_distributions_bit_for_bit(vector: dict) -> None:
    seed, serial = vector["seed"], jnp.arange(30, dtype=jnp.int64)
    many = jax.vmap(draws_in_turn)
    for turn in range(3):  # 0: init
        got = many(streams.sub_seed(seed, serial, turn, streams.SESSION_WORKLOAD), jnp.zeros_like(serial))
        for name, values in vector["workload"].items():
            assert got[name].tolist() == values[turn::3], (name, turn)
    own = streams.sub_seed(seed, serial, 0, streams.SESSION_OWN)
    for visit in range(2):  # one stream goes on through both turns
        got = many(own, jnp.full_like(serial, visit * DRAWS))
        for name, values in vector["own"].items():
            assert got[name].tolist() == values[visit::2], (name, visit)


@pytest.mark.parametrize("vector", VECTORS["distributions"], ids=lambda v: str(v["seed"]))
def test_arrival_stream(vector: dict) -> None:
    """30 renewal gaps Erlang(2, 0.7), added in order."""
    us = chacha.uniforms(streams.arrival_seed(vector["seed"]), 0, 60).reshape(30, 2)
    gaps = jax.jit(lambda us: draws.erlang(2, jnp.full((30,), 0.7, jnp.float64), us))(us)
    assert np.cumsum(np.asarray(gaps)).tolist() == vector["time_s"]


def test_machine_stream() -> None:
    """A job of work 1 at a time on a stage of drawn capacity: the reference adds up its times, so 1e-12."""
    vector = VECTORS["machine"][0]
    n = len(vector["time_s"])
    us = chacha.uniforms(streams.machine_seed(vector["seed"]), 0, n)
    rates = draws.uniform(jnp.full((n,), 1.0, jnp.float64), jnp.full((n,), 2.0, jnp.float64), us)
    np.testing.assert_allclose(np.cumsum(1.0 / np.asarray(rates)), vector["time_s"], rtol=1e-12)


def test_sub_seed_is_elementwise_and_streams_differ() -> None:
    serial = jnp.arange(50, dtype=jnp.int64)
    many = jax.jit(lambda s: streams.sub_seed(np.uint64(3), s, 2, streams.LEG))(serial)
    assert many.tolist() == [int(streams.sub_seed(3, i, 2, 3)) for i in range(50)]
    own = streams.sub_seed(3, serial, 0, streams.SESSION_OWN)
    workload = streams.sub_seed(3, serial, 0, streams.SESSION_WORKLOAD)
    machine, evict = streams.machine_seed(3), streams.eviction_seed(3)
    every = np.concatenate([many, own, workload, [machine, evict, streams.trace_choice_seed(3)]])
    assert len(set(every.tolist())) == len(every)


def test_logarithm_is_libms() -> None:
    """On CPUs. A difference would be an ulp: said here, so that nobody hunts it in the engine."""
    if jax.default_backend() != "cpu":
        pytest.skip("the float64 logarithm of an accelerator is its own")
    us = np.concatenate([np.asarray(chacha.uniforms(11, 0, 20_000)), [0.0, 2.0**-53, 1 - 2.0**-53]])
    got = jax.jit(lambda u: draws.exponential(jnp.full_like(u, 3.7), u))(us)
    assert np.asarray(got).tolist() == [-3.7 * math.log(1 - u) for u in us.tolist()]


def test_products_are_rounded_before_they_are_added() -> None:
    a, b, c = np.asarray(chacha.uniforms(12, 0, 60_000)).reshape(3, -1) * 10
    got = jax.jit(lambda a, b, c: rounding.product(a, b) + c)(a, b, c)
    np.testing.assert_array_equal(got, a * b + c)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308, 5.0])
    x, y = (m.ravel() for m in np.meshgrid(odd, odd))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(jax.jit(rounding.product)(x, y), x * y)


# Mean and variance of each distribution, 200,000 draws from 1,000 sessions' streams: 5 standard errors.
@pytest.mark.parametrize(
    ("dist", "args", "mean", "variance"),
    [
        ("Exp", (2.0,), 2.0, 4.0),
        ("Uniform", (1.0, 4.0), 2.5, 0.75),
        ("Erlang", (4, 2.0), 2.0, 1.0),
        ("H2", (1.0, 5.0), 1.0, 5.0),
        ("Bernoulli", (0.3,), 0.3, 0.21),
    ],
)
def test_moments(dist: str, args: tuple[float, ...], mean: float, variance: float) -> None:
    nodes = tuple(Num(float(a)) for a in args)
    count = draws.draw_count(dist, nodes)  # type: ignore[arg-type]
    seeds = streams.sub_seed(77, jnp.arange(1000, dtype=jnp.int64), 0, streams.SESSION_OWN)
    us = chacha.uniforms(seeds, 0, 200 * count).reshape(1000, 200, count)
    values = tuple(jnp.full((1000, 200), a, jnp.float64) for a in args)
    x = np.asarray(draws.draw(dist, nodes, values, us)).ravel()  # type: ignore[arg-type]
    assert abs(x.mean() - mean) < 5 * math.sqrt(variance / x.size)
    fourth = np.mean((x - x.mean()) ** 4)
    assert abs(x.var() - variance) < 5 * math.sqrt((fourth - x.var() ** 2) / x.size)


def test_uniforms_are_uniform_and_independent_of_each_other() -> None:
    """Chi-square over 64 cells and the correlation of neighbours, over consecutive seeds' first draws."""
    u = np.asarray(chacha.uniforms(jnp.arange(4096, dtype=jnp.uint64), 0, 16))
    assert u.min() >= 0.0 and u.max() < 1.0
    cells = np.bincount((u.ravel() * 64).astype(int), minlength=64)
    expected = u.size / 64
    assert np.sum((cells - expected) ** 2) / expected < 63 + 5 * math.sqrt(2 * 63)
    within = np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]
    across = np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]
    assert max(abs(within), abs(across)) < 5 / math.sqrt(u.size - 4096)


# ---------------------------------------------------------------- errors


def test_errors_say_what_to_do() -> None:
    with jax.enable_x64(False), pytest.raises(ValueError, match="seed: the random tape needs 64-bit integers"):
        chacha.uniforms(1, 0, 4)
    with pytest.raises(ValueError, match="count: -1 is negative"):
        chacha.uniforms(1, 0, -1)
    with pytest.raises(ValueError, match="first_draw: -8 is negative"):
        chacha.uniforms(1, -8, 1)
    with pytest.raises(ValueError, match=r"n: 0 trace sessions, need 1 to 2\^32 - 1"):
        streams.trace_choices(1, 3, 0)
    with pytest.raises(ValueError, match="must be a literal"):
        draws.draw_count("Erlang", (Param("k"), Num(1.0)))
    with pytest.raises(ValueError, match="'Pareto' is not known"):
        draws.draw("Pareto", (), (), f64([0.5]))  # type: ignore[arg-type]


def test_draw_counts() -> None:
    one = Num(1.0)
    assert [draws.draw_count(d, (one, one)) for d in ("Det", "Exp", "Uniform", "Bernoulli", "H2")] == [0, 1, 1, 1, 2]
    assert [draws.draw_count("Erlang", (Num(k), one)) for k in (0.0, -3.0, 1.9, 4.0, math.nan)] == [1, 1, 1, 4, 1]


def test_quotients_are_rounded_like_ieee_divisions_in_every_form() -> None:
    """By a constant, by one traced number, by a vector; alone, jitted and vmapped."""
    values = np.round(np.random.default_rng(0).uniform(0, 1, (8, 1000)) * 2e4) / 2e5
    with jax.enable_x64(True):
        for divisor in (1e-3, 3.0, 16.0, 1e9, 48.0):
            truth = values / divisor
            constant = jax.jit(jax.vmap(lambda v, d=divisor: quotient(v, jnp.full_like(v, d))))(values)
            traced = jax.jit(quotient)(values, jnp.full_like(values, divisor))
            one = jax.jit(lambda v, d: quotient(v, jnp.broadcast_to(d, v.shape)))(values, jnp.float64(divisor))
            for found in (constant, traced, one):
                assert np.array_equal(np.asarray(found), truth)
