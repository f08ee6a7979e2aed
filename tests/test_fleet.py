"""Fleets: what the routers do, in the sequential reference, and the array engine equal to it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from compare_runs import first_difference

import serqjax as sq
from serqjax import deployments, workloads
from serqjax.builder import compose
from serqjax.deployments.fleet import ROUTERS, Router
from serqjax.engine import simulate
from serqjax.report.raw import RawRun

oracle = pytest.importorskip("oracle")

ENGINE = deployments.vllm(max_num_seqs=4, num_gpu_blocks=300, max_num_batched_tokens=256)


def requests(**changes: Any) -> workloads.Requests:
    given = {"request_rate": 18.0, "num_prompts": 240, "input_len": workloads.uniform(50, 400),
             "output_len": workloads.uniform(5, 60)}  # fmt: skip
    return workloads.requests(**(given | changes))


def run(router: Router, n: int, workload: Any = None, seed: int = 3) -> RawRun:
    fleet = deployments.replicas(ENGINE, n, router=router)
    program = compose(fleet, requests() if workload is None else workload, seed=seed)
    sq.check(program)
    return oracle.simulate(program)


def ttft_s(raw: RawRun) -> np.ndarray:
    return (raw.request_first - raw.request_sent)[raw.request_first >= 0] * raw.tick_s


def test_every_request_is_served_once_whatever_the_router() -> None:
    for router in ROUTERS:
        raw = run(router, 3)
        assert raw.verdict.name == "drained" and sum(raw.request_status == 0) == 240, router
        lines = raw.pools[0::2]
        assert sum(pool.admissions - pool.preemptions for pool in lines) == 240, router


def test_round_robin_deals_in_turn() -> None:
    raw = run("round_robin", 3)
    assert [pool.admissions for pool in raw.pools[0::2]] == [80, 80, 80]


def test_the_shortest_queue_beats_a_random_one() -> None:
    pair: tuple[Router, Router] = ("random", "least_requests")
    waits = {router: np.mean([ttft_s(run(router, 3, seed=seed)).mean() for seed in range(3)]) for router in pair}
    assert waits["least_requests"] < 0.7 * waits["random"]


def test_affinity_finds_the_session_again() -> None:
    """Turns of a session go where its prefix lies: more of it is found than where each turn goes anywhere."""
    work = workloads.sessions(session_rate=0.15, first_prompt=300, new_prompt=60, output_len=30, think_s=2.0,
                              num_sessions=40)  # fmt: skip
    found = {}
    pair: tuple[Router, Router] = ("random", "prefix_affinity")
    for router in pair:
        raw = run(router, 4, work)
        program = compose(deployments.replicas(ENGINE, 4), work)
        found[router] = raw.samples_value[raw.samples_observe == program.observes.index("vllm.reused")].sum()
    assert found["prefix_affinity"] > 1.25 * found["random"]


def test_one_replica_is_the_engine_alone() -> None:
    alone = oracle.simulate(compose(ENGINE, requests(), seed=3))
    fleet = run("least_requests", 1)
    for name in ("request_sent", "request_first", "request_last", "request_tokens"):
        assert getattr(alone, name).tolist() == getattr(fleet, name).tolist(), name


@pytest.mark.parametrize("router", ["least_requests", *(pytest.param(r, marks=pytest.mark.slow) for r in ROUTERS
                                                        if r != "least_requests")])  # fmt: skip
def test_the_array_engine_does_the_same(router: Router) -> None:
    fleet = deployments.replicas([ENGINE, ENGINE.replace(max_num_seqs=2, num_gpu_blocks=100)], router=router)
    work = workloads.sessions(session_rate=0.3, first_prompt=200, new_prompt=60, output_len=workloads.uniform(5, 60),
                              think_s=2.0, num_sessions=12)  # fmt: skip
    program = compose(fleet, work)
    for seed, raw in enumerate(simulate(program, range(4), trace=True, check=True)):
        assert raw is not None
        assert first_difference(raw, oracle.simulate(program, seed=seed, trace=True)) is None


@pytest.mark.parametrize(("arguments", "message"), [
    ((ENGINE,), "n: how many replicas is not said; give n, or a list of engines"),
    ((ENGINE, 0), "n: 0 is not allowed; give a whole number of at least 1"),
    (([ENGINE, ENGINE.replace(block_size=32)],), "engines[1]: block_size differs from the first engine's"),
    (([ENGINE, 3],), "engines[1]: int cannot be a replica; use `vllm(...)`"),
    (([],), "n: a fleet has at least one engine"),
    (([ENGINE], 2), "n: 2 is not the number of engines (1)"),
])  # fmt: skip
def test_refusals(arguments: Any, message: str) -> None:
    with pytest.raises(sq.ProgramError) as caught:
        deployments.replicas(*arguments)
    assert message in str(caught.value)


def test_an_unknown_router_is_named() -> None:
    with pytest.raises(sq.ProgramError) as caught:
        deployments.replicas(ENGINE, 2, router=cast(Any, "sticky"))
    assert "router: 'sticky' is not known; use one of round_robin, random" in str(caught.value)


def test_numbers_of_a_fleet_are_changed_by_name() -> None:
    fleet = deployments.replicas(ENGINE, 2)
    assert fleet.arguments()["n"] == 2 and fleet.arguments()["max_num_seqs"] == 4
    changed = fleet.replace(n=3, max_num_seqs=8)
    assert len(changed.engines) == 3 and {engine.max_num_seqs for engine in changed.engines} == {8}
