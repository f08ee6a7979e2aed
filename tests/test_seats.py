"""Seats: a run is the same whether residents sit in the first rows of the tables or anywhere."""

from __future__ import annotations

import pytest
from compare_runs import exact_difference, first_difference, run_oracle
from test_engine import small_engine

import serqjax as sq
from serqjax.engine import Capacities, simulate
from serqjax.report.raw import Verdict

SEEDS = [1, 2, 3]


@pytest.fixture(scope="module")
def crowded() -> sq.ir.Program:
    """Some forty live sessions, most of them thinking or waiting, on an engine with room for a few and a tight pool."""
    deployment = sq.deployments.vllm(num_gpu_blocks=400, max_num_seqs=6, max_num_batched_tokens=128)
    return sq.program(deployment, sq.workloads.sessions(session_rate=2.0), horizon_s=20.0, warmup_s=1.0)


def test_few_seats_change_nothing(crowded: sq.ir.Program) -> None:
    seated = simulate(crowded, SEEDS, check=True, capacities=Capacities(slots=128, seats=8))
    anywhere = simulate(crowded, SEEDS, check=True, capacities=Capacities(slots=128, seats=128))
    for a, b in zip(seated, anywhere, strict=True):
        assert a is not None and b is not None and a.verdict == Verdict.horizon
        assert exact_difference(a, b) is None
        assert a.stages[0].iterations > 100


def test_seated_actions_are_the_oracles() -> None:
    program = small_engine(sessions=12)
    (run,) = simulate(program, [program.seed], trace=True, check=True, capacities=Capacities(slots=64, seats=4))
    assert run is not None
    found = first_difference(run, run_oracle(program))
    assert found is None, found


def test_too_few_seats_are_named() -> None:
    program = small_engine(sessions=12)
    (run,) = simulate(program, [program.seed], capacities=Capacities(slots=64, seats=2))
    assert run is not None and run.verdict == Verdict.capacity and "seats" in run.cause
