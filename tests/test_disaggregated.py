"""Prefill and decode apart, and the tier of CPU memory: cases computed by hand; the array engine equals the oracle."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from compare_runs import first_difference

import serqjax as sq
from serqjax import deployments, ir, workloads
from serqjax.builder import compose
from serqjax.engine import host, simulate
from serqjax.engine.make_plan import make_plan
from serqjax.engine.step import Config
from serqjax.ir import Num
from serqjax.report.raw import RawRun
from serqjax.report.requests import requests_table
from serqjax.traces import Request, SessionTurn, TraceFile

oracle = pytest.importorskip("oracle")

ENGINE = deployments.vllm(num_gpu_blocks=40, max_num_seqs=4, max_num_batched_tokens=128)
#: Every iteration lasts a second.
SECOND = ENGINE.replace(cost=Num(1.0))
FREE = deployments.link(kv_bytes_per_tok=0.0, latency_s=0.0)
#: 0.5 s for 4 tokens.
HALF = deployments.link(bytes_per_s=1e9, latency_s=0.25, kv_bytes_per_tok=0.0625e9)


def run(deployment: Any, *rows: Request, workload: Any = None) -> tuple[ir.Program, RawRun]:
    program = compose(deployment, workloads.from_trace(rows) if workload is None else workload)
    sq.check(program)
    return program, oracle.simulate(program, trace=True, check=True)


def seen(program: ir.Program, raw: RawRun, name: str) -> list[float]:
    return raw.samples_value[raw.samples_observe == program.observes.index(name)].tolist()


def times(raw: RawRun, *columns: str) -> list[list[float | None]]:
    return [[None if np.isnan(v) else v for v in requests_table(raw)[name]] for name in columns]


THREE = (Request(0.0, 4, 1), Request(10.0, 4, 2), Request(20.0, 4, 5))


def test_the_first_token_comes_from_prefill() -> None:
    """Each iteration 1 s, the copy 0.5 s: a request of one token is never copied, the others wait for it once."""
    program, raw = run(deployments.disaggregated(prefill=SECOND, decode=SECOND, link=HALF), *THREE)
    assert times(raw, "ttft_s", "e2e_s") == [[1.0, 1.0, 1.0], [1.0, 2.5, 5.5]]
    assert raw.request_tokens.tolist() == [1, 2, 5]
    assert seen(program, raw, "copied_tok") == [4.0, 4.0] and seen(program, raw, "copy_s") == [0.5, 0.5]
    assert [pool.admissions for pool in raw.pools] == [3, 3, 2, 2]


def test_the_first_token_comes_from_decode() -> None:
    """Three of the four tokens are copied (0.25 s + 3 / 4 of 0.25 s); the decode engine computes the last one."""
    _, raw = run(deployments.disaggregated(prefill=SECOND, decode=SECOND, link=HALF, first_token="decode"), *THREE)
    assert times(raw, "ttft_s", "e2e_s") == [[2.4375] * 3, [2.4375, 3.4375, 6.4375]]
    assert raw.request_tokens.tolist() == [1, 2, 5]


def test_with_a_free_link_one_request_takes_what_its_iterations_take() -> None:
    """100 prompt tokens, 5 answered: one prefill iteration and four of one decode each, by the cost's own formula."""
    base_s, per_decode_s, per_kv_tok_s, per_prefill_tok_s, per_attention_s = 13.9e-3, 41e-6, 0.138e-6, 51.5e-6, 4.02e-9
    prefill_s = base_s + 100 * per_prefill_tok_s + per_attention_s * 100 * 100 / 2
    decode_s = sum(base_s + per_decode_s + per_kv_tok_s * (100 + k) for k in range(1, 5))
    _, raw = run(deployments.disaggregated(prefill=ENGINE, decode=ENGINE, link=FREE), Request(0.0, 100, 5))
    [[ttft_s], [e2e_s]] = times(raw, "ttft_s", "e2e_s")
    assert ttft_s == pytest.approx(prefill_s, abs=1e-8) and e2e_s == pytest.approx(prefill_s + decode_s, abs=1e-8)


def test_two_copies_share_the_link() -> None:
    """Copies of 1 GB on 1 GB/s that start at 0.5 and 1.0 (prefills of half a second) end 1.5 s later each."""
    half = ENGINE.replace(cost=Num(0.5))
    gigabyte = deployments.link(bytes_per_s=1e9, latency_s=0.0, kv_bytes_per_tok=0.25e9)
    program, raw = run(deployments.disaggregated(prefill=half, decode=half, link=gigabyte),
                       Request(0.0, 4, 2), Request(0.5, 4, 2))  # fmt: skip
    ends = raw.samples_tick[raw.samples_observe == program.observes.index("copy_s")] * raw.tick_s
    assert ends.tolist() == [0.5 + 1.5, 0.5 + 2.0]
    assert seen(program, raw, "copy_s") == [1.5, 1.5]


def test_a_lease_keeps_the_prompt_until_it_is_copied() -> None:
    """The prefill engine has room for one prompt: the second waits for the copy of the first, or for its lease."""
    small = SECOND.replace(num_gpu_blocks=3)  # two blocks of 16
    slow = deployments.link(bytes_per_s=1.0, latency_s=0.0, kv_bytes_per_tok=0.5)  # 10 s for 20 tokens
    two = (Request(0.0, 20, 2), Request(0.0, 20, 2))
    fleet = deployments.disaggregated(prefill=small, decode=SECOND, link=slow)
    assert times(run(fleet, *two)[1], "ttft_s") == [[1.0, 12.0]]
    assert times(run(fleet.replace(lease_s=3.0), *two)[1], "ttft_s") == [[1.0, 5.0]]


def test_what_decode_has_cached_is_not_copied() -> None:
    turns = ((SessionTurn(40, 3, 5.0), SessionTurn(20, 2, 0.0)),)
    work = workloads.from_trace(TraceFile("hand", "serq", sessions=turns))
    program, raw = run(deployments.disaggregated(prefill=SECOND, decode=SECOND, link=HALF), workload=work)
    # 40 of prompt and 2 of the 3 answered are computed when the first turn ends: two whole blocks
    assert seen(program, raw, "decode.reused") == [0.0, 32.0] and seen(program, raw, "copied_tok") == [40.0, 63.0 - 32]


BUSY = (*THREE, *(Request(40.0 + k / 2, 60 + 37 * k % 150, 1 + 11 * k % 40) for k in range(24)))


def compared(program: ir.Program, seeds: range) -> list[RawRun]:
    told = [oracle.simulate(program, seed=seed, trace=True) for seed in seeds]
    for raw, same in zip(simulate(program, seeds, trace=True, check=True), told, strict=True):
        assert raw is not None and first_difference(raw, same) is None
    return told


def test_the_array_engine_does_the_same() -> None:
    tight = SECOND.replace(num_gpu_blocks=24)
    program, _ = run(deployments.disaggregated(prefill=SECOND, decode=tight, link=HALF), *BUSY)
    [told] = compared(program, range(1))
    assert told.verdict.name == "drained" and told.pools[3].preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_the_array_engine_does_the_same_with_fleets(first_token: deployments.FirstToken) -> None:
    fleet = deployments.disaggregated(
        prefill=deployments.replicas(ENGINE, 2, router="round_robin"),
        decode=deployments.replicas([ENGINE, ENGINE.replace(max_num_seqs=2)], router="least_kv"),
        link=deployments.link(bytes_per_s=1e9, kv_bytes_per_tok=1e6), first_token=first_token)  # fmt: skip
    work = workloads.sessions(session_rate=0.5, turns=3, first_prompt=200, new_prompt=20, think_s=2.0, num_sessions=12,
                              output_len=workloads.uniform(1, 40))  # fmt: skip
    for told in compared(compose(fleet, work), range(3)):
        assert told.verdict.name == "drained"


def test_a_fleet_with_open_arrivals_begins_with_a_larger_table_of_sessions() -> None:
    """The reference's program of this kind has 54 sessions at once: with the table of one engine it compiled twice."""
    work = workloads.sessions(session_rate=0.5, turns=1, first_prompt=20, output_len=5, num_sessions=8)
    listed = workloads.from_trace(THREE)
    for deployment, load, slots in (
        (ENGINE, work, 32),
        (deployments.disaggregated(prefill=ENGINE, decode=ENGINE, link=FREE), work, 64),
        (deployments.disaggregated(prefill=ENGINE, decode=ENGINE, link=FREE), listed, 32),
    ):
        program = compose(deployment, load)
        made = {id(program): make_plan(program)}
        batch = host.Batch.build(made[id(program)][0], made, [program], [1], Config(), False, False)
        assert batch.auto().slots == slots


@pytest.mark.parametrize(("changes", "message"), [
    ({"first_token": "router"}, "first_token: 'router' is not known; use \"prefill\" or \"decode\""),
    ({"lease_s": 0.0}, "lease_s: 0.0 is not allowed; give a finite number above 0"),
    ({"link": 3}, "link: 3 is no link"),
    ({"decode": 3}, "decode: int is no engine"),
    ({"prefill": ENGINE.replace(shared_prefixes=(("a", "b"),))}, "prefill.shared_prefixes: blocks that sessions share"),
    ({"decode": ENGINE.replace(offload=deployments.offload(cpu_blocks=4))}, "decode.offload: a decode engine gets"),
])  # fmt: skip
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(sq.ProgramError) as caught:
        deployments.disaggregated(**(cast(Any, {"prefill": ENGINE, "decode": ENGINE}) | changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: deployments.link(bytes_per_s=0.0), "bytes_per_s: 0.0 is not allowed"),
    (lambda: deployments.link(latency_s=-1.0), "latency_s: -1.0 is not allowed"),
    (lambda: deployments.offload(cpu_blocks=0), "cpu_blocks: 0 is not allowed"),
    (lambda: ENGINE.replace(offload=3), "offload: 3 is no tier"),
    (lambda: ENGINE.replace(offload=deployments.offload(cpu_blocks=4), enable_prefix_caching=False),
     "offload: without prefix caching nothing is cached"),
])  # fmt: skip
def test_numbers_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(sq.ProgramError) as caught:
        make()
    assert message in str(caught.value)


def test_numbers_of_a_part_are_changed_by_name() -> None:
    fleet = deployments.disaggregated(prefill=ENGINE, decode=deployments.replicas(ENGINE, 2))
    assert fleet.arguments()["decode.n"] == 2 and fleet.arguments()["link.bytes_per_s"] == 50e9
    values = {"prefill.max_num_seqs": 7, "decode.n": 3, "link.latency_s": 0.0, "lease_s": 1.0}
    changed = fleet.replace(**cast(Any, values))
    assert values.items() <= changed.arguments().items()
    with pytest.raises(sq.ProgramError, match="wire.speed: is no argument"):
        fleet.replace(**cast(Any, {"wire.speed": 1.0}))


# ---------------------------------------------------------------- the tier of CPU memory


def test_evicted_blocks_are_copied_back() -> None:
    """Five blocks. A leaves two of them cached, B takes all: A's go to the tier; when A is back they are copied in.

    A block takes 1 s a copy. A: 40 tokens at 0, gone at 1. B: 70 tokens, from 1 to 2. A again at 21 with 41 + 20: 2 s
    for two blocks, then one iteration for the other 29 tokens.
    """
    second_a_block = deployments.offload(cpu_blocks=10, kv_bytes_per_tok=1.0, bytes_per_s=16.0)
    engine = SECOND.replace(num_gpu_blocks=6, offload=second_a_block)
    turns = ((SessionTurn(40, 1, 20.0), SessionTurn(20, 1, 0.0)), (SessionTurn(70, 1, 0.0),))
    work = workloads.from_trace(TraceFile("hand", "serq", sessions=turns))
    program, raw = run(engine, workload=work)
    assert seen(program, raw, "vllm.loaded_tok") == [0.0, 0.0, 32.0]
    assert seen(program, raw, "vllm.prefill") == [40.0, 70.0, 29.0]
    assert times(raw, "ttft_s") == [[1.0, 2.0, 2.0 + 1.0]]
    kv = next(i for i, pool in enumerate(program.pools) if pool.name == "kv")
    # A's two, then three of B's for A's 61 tokens
    assert raw.pools[kv].spills == 2 + 3
    copies = next(i for i, stage in enumerate(program.stages) if stage.name == "copy_out")
    assert raw.stages[copies].completed == 5 and raw.stages[copies].service_tick == 5_000_000_000
    without = run(engine.replace(offload=None), workload=work)
    assert times(without[1], "ttft_s") == [[1.0, 2.0, 1.0]] and seen(*without, "vllm.prefill") == [40.0, 70.0, 61.0]


@pytest.mark.slow
def test_the_array_engine_does_the_same_with_a_tier() -> None:
    engine = ENGINE.replace(offload=deployments.offload(cpu_blocks=60, kv_bytes_per_tok=1e6, bytes_per_s=1e9))
    work = workloads.sessions(session_rate=0.5, turns=3, first_prompt=200, new_prompt=20, think_s=2.0, num_sessions=12,
                              output_len=workloads.uniform(1, 40))  # fmt: skip
    program = compose(engine, work)
    for told in compared(program, range(3)):
        assert told.verdict.name == "drained" and sum(pool.spills for pool in told.pools) > 0
        assert sum(seen(program, told, "vllm.loaded_tok")) > 0
