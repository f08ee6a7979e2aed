"""A worker's memory: nothing depends on what its buffers held, and results stay as they are."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from compare_runs import exact_difference

import serqjax as sq
from serqjax import ir
from serqjax.engine import simulate, workspace
from serqjax.engine.layout import Layout
from serqjax.engine.workspace import MOST_KEPT_BYTES, PIECE_BYTES, Workspace
from serqjax.report.raw import RawRun

LAYOUT = Layout((), (("samples", "float64", (5, 7)), ("requests", "int64", (3, 9)), ("gaps", "int64", (4, 2))))


def gauged_engine() -> ir.Program:
    """An engine whose memory binds, with a gauge: every output buffer has something in it."""
    deployment = sq.deployments.vllm(
        max_num_seqs=4, max_num_batched_tokens=64, block_size=16, num_gpu_blocks=24, enable_prefix_caching=True,
        cost=sq.costs.affine(base_s=0.02, per_decode_s=1e-3),
    )  # fmt: skip
    lengths = {"input_len": sq.workloads.uniform(10, 80), "output_len": sq.workloads.uniform(1, 30)}
    load = sq.workloads.requests(request_rate=2.0, num_prompts=None, horizon_s=15.0, **lengths)
    program = sq.program(deployment, load)
    line = ir.PoolState("Queued", program.pools[0].name)
    return msgspec.structs.replace(program, gauges=(ir.Gauge(name="line", value=line),))


def filled_with(byte: int) -> None:
    """Workers' buffers as a batch of another program could leave them."""
    for space in workspace._idle:
        space.spare.fill(byte)


@pytest.mark.parametrize("trace", [False, True])
def test_results_do_not_depend_on_what_the_buffers_held(trace: bool) -> None:
    program = gauged_engine()
    first = simulate(program, range(20), trace=trace)
    assert workspace._idle, "workers leave their memory for the next batch"
    for byte in (0x00, 0xFF, 0x3F):
        filled_with(byte)
        again = simulate(program, range(20), trace=trace)
        assert [exact_difference(a, b) for a, b in zip(first, again)] == [None] * 20


def columns(run: RawRun) -> dict[str, np.ndarray]:
    return {name: x.copy() for name, x in vars(run).items() if isinstance(x, np.ndarray)}


def test_results_stay_when_others_run() -> None:
    program = gauged_engine()
    runs = [run for run in simulate(program, range(4)) if run is not None]
    before = [columns(run) for run in runs]
    assert all(len(x["request_sent"]) and len(x["samples_value"]) and len(x["gauge_value"]) for x in before)
    simulate(program, range(4, 40))
    filled_with(0xFF)
    for run, held in zip(runs, before):
        assert all(np.array_equal(getattr(run, name), x) for name, x in held.items())


def test_buffers_stand_apart_and_are_used_again() -> None:
    space = Workspace()
    found = space.buffers(LAYOUT, 3)
    assert {name: x.shape for name, x in found.items()} == {
        "samples": (3, 5, 7), "requests": (3, 3, 9), "gaps": (3, 4, 2),
    }  # fmt: skip
    for number, buffer in enumerate(found.values(), 1):
        buffer.fill(number)
    assert [set(x.ravel()) for x in found.values()] == [{1}, {2}, {3}]
    again = space.buffers(LAYOUT, 2)
    assert np.shares_memory(again["samples"], found["samples"])


def test_pieces_for_results_grow_and_never_overlap() -> None:
    space, held = Workspace(), []
    for k in range(400):
        held.append(space.kept(np.full(4_000, float(k)), np.float64))
    held.append(space.kept(np.full(PIECE_BYTES, 400.0), np.float64))  # larger than a piece
    assert [float(x[0]) for x in held] == [float(x[-1]) for x in held] == list(map(float, range(401)))
    assert len(space.kept(np.zeros(0), np.int64)) == 0
    assert space.kept(np.array([5.0, 6.0, 7.0]), np.float64, np.array([2, 0, 1])).tolist() == [7.0, 5.0, 6.0]


def test_a_workspace_has_one_owner_and_huge_buffers_are_let_go() -> None:
    with workspace.workspace() as one, workspace.workspace() as other:
        assert one is not other
        idle = list(workspace._idle)
        assert one not in idle and other not in idle
        other.spare = np.empty((MOST_KEPT_BYTES + 1,), np.uint8)
    assert one in workspace._idle and other not in workspace._idle
