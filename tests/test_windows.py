"""Windows: the same run whether iterations of equal composition pass in one update or one by one, bit for bit.

Every field of `RawRun` is compared with `==`; the number of loop turns tells that windows did happen. Programs of one
structure run as one batch: a structure is compiled twice, with windows and without.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from compare_runs import as_program, exact_difference
from generate import NAMES, STRUCTURES, Json, add, call, ctx, engine, mul, num, variant
from helpers import ROOT, shared_dir
from make_vllm_data import plain, shares

import serqjax as sq
from serqjax import ir
from serqjax.check.licence import licence
from serqjax.costs import Cost
from serqjax.engine import Capacities, simulate_many
from serqjax.ir.expr import Num
from serqjax.ir.program import Program, Step
from serqjax.report.raw import RawRun, Verdict

sys.path.insert(0, str(ROOT / "experiments"))
import vllm_scenario  # noqa: E402

# ---------------------------------------------------------------- comparing


def both_ways(
    programs: Sequence[Program], seeds: Sequence[int] | None = None, capacities: Capacities | None = None
) -> tuple[int, int, int]:
    """Run them with windows and without, and compare.

    **Returns:** loop turns with windows, without, and iterations of all engines.
    """
    chosen = [p.seed for p in programs] if seeds is None else list(seeds)
    with_windows = simulate_many(list(programs), chosen, capacities=capacities)
    one_by_one = simulate_many(list(programs), chosen, capacities=capacities, coalesce=False)
    fewer = more = iterations = 0
    for i, (a, b) in enumerate(zip(with_windows, one_by_one, strict=True)):
        assert a is not None and b is not None
        found = exact_difference(a, b)
        assert found is None, f"program {i} (seed {chosen[i]}), with windows and without: {found}"
        iterations += sum(stage.iterations for stage in b.stages)
        fewer += a.extra["turns"]
        more += b.extra["turns"]
    return fewer, more, iterations


def licensed(program: Program) -> bool:
    """Whether some engine of it has windows, or plans all residents at once."""
    found = [s.licence for s in sq.check(program).facts.stages if s.licence is not None]
    return any(x.windows or x.at_once for x in found)


def test_every_difference_is_seen() -> None:
    import oracle

    run = oracle.simulate(as_program(STRUCTURES["two_turns_cached"](Random(1))))
    assert exact_difference(run, run) is None
    for field in dataclasses.fields(RawRun):
        value = getattr(run, field.name)
        if isinstance(value, np.ndarray):
            changed = value.copy()
            changed[-1:] += 1
        elif field.name in ("stages", "pools"):
            changed = [*value[:-1], dataclasses.replace(value[-1], wait_tick=value[-1].wait_tick + 1)]
        else:
            changed = "another"
        seen = exact_difference(run, dataclasses.replace(run, **{field.name: changed}))
        nothing = field.name == "extra" or (isinstance(value, np.ndarray) and not len(value))
        assert (seen is None) == nothing, field.name


# ---------------------------------------------------------------- generated programs


def cost_kinked(rng: Random, *_: Any) -> Json:
    """The slower of computing and reading memory; the pieces cross while a batch decodes, at any place in a tick."""
    compute = add(num(rng.uniform(0.01, 0.3)), mul(num(rng.uniform(0, 0.02)), ctx("Ntok")),
                  mul(num(rng.uniform(0, 2e-5)), ctx("Attn")))
    memory = add(num(rng.uniform(0.0, 0.2)), mul(num(rng.uniform(0, 4e-3)), ctx("Kvb")),
                 mul(num(rng.uniform(0, 1e-3)), ctx("Kvp")))
    floor = add(num(rng.uniform(0.1, 0.6)), mul(num(rng.uniform(-1e-3, 1e-3)), ctx("Kvb")))
    return add(call("Max", compute, memory), mul(num(rng.choice([0, 1])), call("Min", floor, memory)))


WINDOWS: dict[str, Callable[[Random], Json]] = {
    "kinks": variant(engine, cost=cost_kinked),
    "kinks_poisson": variant(engine, cost=cost_kinked, arrival="poisson", warm=True),
    "kinks_cached": variant(engine, cost=cost_kinked, multi=True, cache="all", reuse="known", taking="chunk"),
    "kinks_cached_poisson": variant(engine, cost=cost_kinked, multi=True, cache="all", reuse="known",
                                    arrival="poisson"),
    "kinks_chunk": variant(engine, cost=cost_kinked, chunk=True, taking="chunk_cold", arrival="poisson", draws="exp"),
    "kinks_evict_size": variant(engine, cost=cost_kinked, multi=True, cache="all", reuse="known", evict="size"),
    "kinks_aging": variant(engine, cost=cost_kinked, queue="aging", arrival="poisson"),
    "kinks_preempt_none": variant(engine, cost=cost_kinked, preempt="none", multi=True, cache="all", reuse="known"),
    "kinks_tail": variant(engine, cost=cost_kinked, form="hold", tail=True, multi=True, cache="prompt", reuse="known"),
    "roomy_long": variant(engine, cost=cost_kinked, tight=False, arrival="poisson", draws="exp", taking="chunk_cold"),
    "still_without_block": variant(engine, cost=lambda rng: num(rng.choice([0.25, 0.7])), block=False, multi=True,
                                   cache="all", reuse="known"),
    "late_with_windows": variant(engine, cost=cost_kinked, serve="late", multi=True, cache="all", reuse="known"),
}  # fmt: skip

#: The slower of computing and reading, with vLLM's variables.
ROOFLINE = Cost(
    "Max(base_s + per_tok_s * Ntok + per_attention_s * Attn, read_s + per_kv_s * DecodePositions + per_block_s * Kvb)",
    tuple((name, 0.0, "s") for name in
          ("base_s", "per_tok_s", "per_attention_s", "read_s", "per_kv_s", "per_block_s")),
)  # fmt: skip


def vllm_program(rng: Random) -> Program:
    """A vLLM engine with long decodes: sessions come, think and come back inside windows, in whole steps or not."""
    block = rng.choice([1, 2, 3, 5, 8, 16, 16, 32, 64])
    dyadic = rng.random() < 0.5
    step = rng.choice([0.125, 0.25, 1.0]) if dyadic else rng.uniform(0.01, 0.5)
    sizes = [0, 0, rng.uniform(0, step / 16), rng.uniform(0, step / 200)]
    values = (
        step, *(rng.choice(sizes) if not dyadic else rng.choice([0, 0, step / 64]) for _ in range(2)),
        rng.choice([0.0, step, step / 2]), rng.choice([0, step / 256, rng.uniform(0, step / 100)]),
        rng.choice([0, step / 128]),
    )  # fmt: skip

    def seconds(most: float) -> float:
        return rng.choice([0.0, step * rng.randint(0, round(most / step)), rng.uniform(0, most)])

    longest, sessions = 1, []
    prompt, out = rng.choice([(20, 40), (100, 30), (30, 200), (200, 400), (400, 20)])
    for i in range(rng.randint(2, 12)):
        turns = tuple(
            (float(rng.randint(1, prompt)), float(rng.choice([1, rng.randint(1, out), rng.randint(1, out)])),
             seconds(40.0 * step))
            for _ in range(rng.choice([1, 1, 2, 4]))
        )
        longest = max(longest, int(sum(new + tokens for new, tokens, _ in turns)))
        sessions.append(vllm_scenario.Session(f"s{i}", seconds(60.0 * step), turns))
    room = rng.choice([0.7, 1.0, 1.2, 2.0, 4.0])
    deployment = sq.deployments.vllm(
        max_num_seqs=rng.choice([1, 2, 4, 8]), max_num_batched_tokens=rng.choice([4, 16, 64, 256, 2048]),
        block_size=block, num_gpu_blocks=2 + int(room * longest / block),
        long_prefill_token_threshold=rng.choice([3, 16, 64, 2048]), enable_prefix_caching=True,
        cost=dataclasses.replace(ROOFLINE, numbers=tuple((n, float(v), u) for (n, _, u), v in
                                                         zip(ROOFLINE.numbers, values))),
        arrival_tie="place",
    )  # fmt: skip
    ordered = sorted(enumerate(sessions), key=lambda item: (item[1].arrive, item[0]))
    program = sq.program(deployment, vllm_scenario.Scripted(tuple(ordered)), name="windows")
    end = rng.choice([rng.uniform(20.0, 200.0), rng.uniform(500.0, 4000.0)]) * step
    # the warm-up and the horizon fall into windows too, now and then on the end of an iteration
    warmup = rng.choice([0.0, step * rng.randint(1, 10), rng.uniform(0.0, end / 2)])
    return msgspec.structs.replace(program, horizon_s=Num(end), warmup_s=Num(warmup))


def programs_of(name: str, count: int) -> list[Program]:
    """Programs of a structure; the k-th depends on the name and k alone."""
    rngs = [Random(f"windows/{name}/{k}") for k in range(count)]
    if name == "vllm":
        return [vllm_program(rng) for rng in rngs]
    build = WINDOWS[name] if name in WINDOWS else STRUCTURES[name]
    return [as_program(build(rng)) for rng in rngs]


def with_engine(name: str) -> bool:
    return any(isinstance(stage.kind, Step) for stage in programs_of(name, 1)[0].stages)


#: Run in every run of the tests (a structure takes two compilations): caches and evictions; two engines; a newcomer
#: that is planned last once and first ever after.
QUICK = ["kinks_cached", "two_engines_split", "late_with_windows"]
PER_QUICK = 100
#: Windows for every block of these programs; the sizes that a batch gets by itself leave the longest ones alone.
ALL_BLOCKS = Capacities(slots=64, entries=1024, phases=64)
ALL = ["vllm", *WINDOWS, *(name for name in NAMES if with_engine(name))]
PER_STRUCTURE = 20


def test_there_are_enough_programs() -> None:
    assert len(ALL) * PER_STRUCTURE >= 1_000
    found = licence(programs_of("vllm", 1)[0], 0)
    assert found.windows and found.at_once and found.evicts and found.head_stays


@pytest.mark.parametrize("name", QUICK)
def test_generated_programs(name: str) -> None:
    fewer, more, _ = both_ways(programs_of(name, PER_QUICK), capacities=ALL_BLOCKS)
    assert fewer < more


def test_generated_vllm_engines() -> None:
    """Decodes are long: several iterations pass in a turn of the loop. Some programs deadlock before their horizon."""
    fewer, more, iterations = both_ways(programs_of("vllm", 300), capacities=ALL_BLOCKS)
    assert fewer < iterations / 2 and fewer < more / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name not in QUICK])
def test_more_structures(name: str) -> None:
    programs = programs_of(name, PER_STRUCTURE)
    fewer, more, _ = both_ways(programs, capacities=ALL_BLOCKS)
    assert fewer < more if licensed(programs[0]) else fewer == more


# ---------------------------------------------------------------- recorded programs

#: Programs of the corpus with a step stage that the array engine runs.
CORPUS = [
    "det_chunk", "det_decode_first", "det_evict_by", "det_evict_lru", "det_exclusive", "det_granule", "det_hol",
    "det_one", "det_one_cached", "det_only_phase", "det_register", "flag_idle",
    "det_over_reuse", "det_preempt_decode", "det_preempt_decode_cached", "det_preempt_none", "det_preempt_prefill",
    "det_preempt_tail", "det_queue_by", "det_reqcap", "det_reserve", "det_self_preempt_stuck", "det_srpt",
    "hold_engine", "hold_engine_cached", "text_vllm", "trace_ordered_batch", "trace_ordered_poisson", "trace_random",
    "vllm_multi", "vllm_multi_tight", "vllm_single", "vllm_single_chunked",
]  # fmt: skip
#: Run in every run of the tests.
CORPUS_QUICK = {"vllm_multi_tight", "det_preempt_decode_cached"}


@pytest.mark.parametrize("name", [n if n in CORPUS_QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CORPUS])
def test_corpus(name: str) -> None:
    folder = shared_dir() / "programs" / name
    program = as_program((folder / "program.ir14.json").read_text(), folder=folder)
    seeds = [program.seed, 1, 2, 3_000_000_019]
    fewer, more, iterations = both_ways([program] * len(seeds), seeds)
    if licensed(program):
        assert fewer < more
    if name.startswith("vllm_") or name == "text_vllm":
        assert fewer < iterations


RECORDED = [json.loads(line) for line in (ROOT / "tests/data/vllm/recorded.jsonl").read_text().splitlines()]


def scenarios_both_ways(scenarios: Sequence[dict[str, Any]], version: str) -> None:
    programs = [vllm_scenario.program_of(scenario, version)[0] for scenario in scenarios]
    fewer, more, iterations = both_ways(programs)
    assert fewer < more and fewer < 2 * iterations


@pytest.mark.parametrize("version", ["0.33.0", pytest.param("0.11.2", marks=pytest.mark.slow)])
def test_recorded_scenarios(version: str) -> None:
    mine = [item["scenario"] for item in RECORDED if version in item["results"]]
    scenarios_both_ways([s for s in mine if s["policy"] == "fcfs" and not shares(s)], version)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.33.0", "0.11.2"])
def test_every_scenario(version: str) -> None:
    """First come first served, no prefix shared between requests (their iterations are not coalesced)."""
    folder = shared_dir() / "oracle/vllm"
    scenarios = [json.loads(path.read_text()) for path in sorted((folder / "scenarios").glob("*.json"))]
    scenarios += [json.loads(line)["scenario"] for line in (folder / "random.jsonl").read_text().splitlines()]
    chosen = [scenario for scenario in scenarios if plain(scenario) and not shares(scenario)]
    assert len(chosen) >= 130
    scenarios_both_ways(chosen, version)


# ---------------------------------------------------------------- at the limits


def engine_of(cost: ir.Expr, out: int, horizon_s: float) -> Program:
    """Three sessions decode on one engine; each holds one growing block after the other."""
    hold = ir.Scope(name="hold", takes=(ir.Take(pool="kv", units=Num(1.0)),), reentry="decode")
    states = (
        ir.State(name="ask", exit=ir.Enter("hold")),
        ir.State(name="decode", scope="hold", exit=ir.Run("gpu", "Decode", Num(float(out)), "leave", "kv")),
        ir.State(name="leave", scope="hold", exit=ir.Leave("end")),
        ir.State(name="end", exit=ir.End()),
    )
    return Program(
        attrs=(), observes=(), pools=(ir.Pool(name="kv", cap=Num(1e6), block=Num(4.0)),), scopes=(hold,),
        stages=(ir.Stage(name="gpu", kind=Step(budget=Num(64.0), cost=cost, memory="kv")),), states=states, start="ask",
        arrival=ir.Listed(at=(0.0, 0.5, 4.0)), horizon_s=Num(horizon_s),
    )  # fmt: skip


def test_iterations_longer_than_one_step_of_a_window() -> None:
    """3,000 s an iteration: more than 2**41 ticks."""
    program = engine_of(ir.Binary("Add", Num(3000.0), ir.Binary("Mul", Num(1e-3), ir.Ctx("Ndec"))), 40, 1e6)
    fewer, more, iterations = both_ways([program])
    assert fewer < more and iterations == 41  # the two late ones join the second


def test_a_cost_that_stands_still_but_does_not_fit_into_a_window() -> None:
    """3e6 s an iteration in float64: 2**20 times its ticks leave 64 bits."""
    per_decoder = ir.Call("Ceil", (ir.Binary("Mul", Num(3e6), ir.Ctx("Ndec")),))
    _, _, iterations = both_ways([engine_of(per_decoder, 4, 1e8)])
    assert iterations == 5


def test_a_cost_that_falls_to_nothing_inside_a_window() -> None:
    """It is the error of the iteration that costs nothing, with or without windows, and nothing after it."""
    falling = ir.Binary("Sub", Num(0.05), ir.Binary("Mul", Num(1e-3), ir.Ctx("Kvb")))
    program = engine_of(falling, 400, 100.0)
    both_ways([program])
    (run,) = simulate_many([program], [0])
    assert run is not None and run.verdict == Verdict.error and "cost 0" in run.cause
    assert 10 < run.stages[0].iterations < 60
