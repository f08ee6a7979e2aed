"""What a program says of its requests: classes, priorities, API servers, requests given up; and a step's CPU time."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, cast

import numpy as np
import pytest
from compare_runs import first_difference, run_engine, run_oracle

import serqjax as sq
from serqjax import costs, deployments, ir, workloads
from serqjax.builder import AbstractDeployment, Builder, Served, compose
from serqjax.ir import Num
from serqjax.report.requests import requests_table
from serqjax.results import Run
from serqjax.traces import Request

pytest.importorskip("oracle")

#: Every iteration lasts a second.
SECOND = deployments.vllm(num_gpu_blocks=100, max_num_seqs=4, cost=Num(1.0))
CLASSES = (
    workloads.request_class("chat", share=3, priority=0, input_len=20),
    workloads.request_class("batch", share=1, priority=5, output_len=workloads.uniform(10, 20)),
)


def ran(deployment: AbstractDeployment, workload: Any, **given: Any) -> Run:
    program = compose(deployment, workload, **given)
    sq.check(program)
    return Run(program, run_oracle(program))


@dataclasses.dataclass(frozen=True)
class Server(AbstractDeployment):
    """A tenth of a second for each token asked for, one request after the other."""

    def declare(self, b: Builder) -> None:
        b.stage("server", ir.Fifo(Num(1.0)))

    def serve(self, b: Builder, *, input: str, output: str, then: str, parent: str | None = None) -> Served:
        b.state("serve", exit=ir.Run("server", "Plain", b(f"0.1 * {output}"), then), scope=parent)
        return Served("serve", output)


# ---------------------------------------------------------------- the API server


def test_the_api_server_is_the_clients_time_and_not_the_engines() -> None:
    """0.25 s before the engine, a second for each of 3 tokens, 0.5 s after each."""
    api = deployments.behind_api(SECOND, before_s=0.25, after_s=0.5)
    run = ran(api, workloads.from_trace([Request(0.0, 4, 3), Request(10.0, 4, 1)]))
    rows = run.requests
    assert rows["engine_ttft_s"].tolist() == [1.0, 1.0]
    assert rows["ttft_s"].tolist() == [1.75, 1.75] and rows["first_token_s"].tolist() == [1.75, 11.75]
    assert rows["e2e_s"].tolist() == [3.75, 1.75] == (rows["end_s"] - rows["sent_s"]).tolist()
    assert rows["tpot_s"][0] == 1.0
    latency = json.loads(run.to_json())["latency"]
    assert latency["engine_ttft_s"]["mean"]["value"] == 1.0 and latency["ttft_s"]["mean"]["value"] == 1.75
    assert "TTFT (engine)" in str(run)
    alone = ran(SECOND, workloads.from_trace([Request(0.0, 4, 3)]))
    assert np.isnan(alone.requests["engine_ttft_s"]).all() and "TTFT (engine)" not in str(alone)


def test_the_engine_has_not_seen_what_is_at_the_api_server() -> None:
    """At 1.5 one request waits for its prefill since 1.0 at the engine, one is still with the API server."""
    api = deployments.behind_api(SECOND, before_s=1.0)
    run = ran(api, workloads.from_trace([Request(0.0, 4, 3), Request(1.0, 4, 3)]), horizon_s=1.5)
    latency = run.to_document()["latency"]
    assert latency["ttft_s"]["unfinished"] == 2 and latency["engine_ttft_s"]["unfinished"] == 1
    assert latency["engine_ttft_s"]["p99"]["lower_bound"] == 0.5


def test_time_on_the_cpu_is_part_of_a_step() -> None:
    gpu = costs.affine(base_s=1.0, per_decode_s=0.0, per_kv_tok_s=0.0, per_prefill_tok_s=0.0, per_attention_s=0.0)
    engine = SECOND.replace(cost=costs.with_cpu(gpu, step_s=0.25, per_request_s=0.125))
    run = ran(engine, workloads.requests(num_prompts=2, input_len=4, output_len=3))
    assert run.requests["ttft_s"].tolist() == [1.5, 1.5] and run.requests["e2e_s"].tolist() == [4.5, 4.5]
    with pytest.raises(sq.ProgramError, match="per_request_s: -1.0 is not allowed"):
        costs.with_cpu(gpu, per_request_s=-1.0)


# ---------------------------------------------------------------- requests given up


def test_requests_given_up_are_abandoned() -> None:
    """Five seconds of work, a patience of 2.5 s, sent twice: given up after 5 s, one after the other."""
    short = workloads.requests(num_prompts=2, max_concurrency=1, input_len=4, output_len=5, timeout_s=2.5, retries=1)
    run = ran(SECOND, short)
    assert run.request_counts == {"in": 2, "finished": 0, "running": 0, "queued": 0, "rejected": 0, "abandoned": 2}
    assert run.requests.to_polars()["status"].to_list() == ["abandoned"] * 2
    assert run.requests["age_s"].tolist() == [5.0, 5.0] and np.isnan(run.requests["e2e_s"]).all()
    e2e = run.to_document()["latency"]["e2e_s"]
    assert (e2e["requests"], e2e["unfinished"], e2e["p50"]["lower_bound"]) == (0, 2, 5.0)
    patient = ran(SECOND, short.replace(timeout_s=6.0))
    assert patient.request_counts["finished"] == 2 and patient.requests["e2e_s"].tolist() == [5.0, 5.0]


def test_the_counts_add_up_whatever_happens() -> None:
    work = workloads.requests(request_rate=1.5, num_prompts=300, output_len=workloads.exponential(9.0), timeout_s=1.0)
    run = ran(Server(), work, horizon_s=150.0)
    counts = run.request_counts
    assert counts["in"] == sum(n for name, n in counts.items() if name != "in") == run.raw.arrivals
    assert min(counts["finished"], counts["abandoned"]) > 20 and counts == run.requests.counts
    gave_up = run.raw.samples_observe == run.program.observes.index("gave_up")
    assert counts["abandoned"] == gave_up.sum()


# ---------------------------------------------------------------- classes


def test_every_request_has_its_class() -> None:
    work = workloads.requests(num_prompts=400, request_rate=1.0, input_len=40, output_len=2, classes=CLASSES)
    run = ran(SECOND.replace(cost=Num(0.1), scheduling_policy="priority"), work)
    frame = run.requests.to_polars()
    chat = run.requests["class"] == 0.0
    # 99.9 % of a binomial with 400 draws of 3/4
    assert abs(chat.sum() - 300) < 3.3 * math.sqrt(400 * 0.75 * 0.25)
    assert frame["class"].to_list() == ["chat" if c else "batch" for c in chat]
    assert run.requests["priority"].tolist() == np.where(chat, 0.0, 5.0).tolist()
    tokens = run.requests["output_tok"]
    assert set(tokens[chat]) == {2} and tokens[~chat].min() >= 10 and tokens[~chat].max() <= 20
    prefills = run.raw.samples_value[run.raw.samples_observe == run.program.observes.index("vllm.prefill")]
    assert set(prefills) == {20.0, 40.0}


def test_a_session_keeps_its_class() -> None:
    work = workloads.sessions(session_rate=1.0, turns=3, first_prompt=20, new_prompt=5, output_len=3, think_s=1.0,
                              num_sessions=30, classes=CLASSES[1:])  # fmt: skip
    run = ran(SECOND.replace(cost=Num(0.1)), work)
    assert set(run.requests.to_polars()["class"]) == {"batch"} and len(run.requests) == 90
    two = ran(SECOND.replace(cost=Num(0.1)), work.replace(classes=dataclasses.replace(work.classes, of=tuple(
        workloads.request_class(name, first_prompt=30) for name in ("a", "b")))))  # fmt: skip
    by_session: dict[int, set[float]] = {}
    for session, one in zip(two.requests["session"], two.requests["class"]):
        by_session.setdefault(int(session), set()).add(float(one))
    assert all(len(seen) == 1 for seen in by_session.values()) and set.union(*by_session.values()) == {0.0, 1.0}


def test_without_classes_there_is_nothing_to_say() -> None:
    run = ran(Server(), workloads.requests(num_prompts=3, output_len=2))
    frame = run.requests.to_polars()
    assert frame["class"].null_count() == frame["priority"].null_count() == 3
    assert "abandoned" not in run.request_counts and run.request_counts == run.requests.counts
    assert np.isnan(requests_table(run.raw)["class"]).all(), "without the program neither"


def test_before_the_end_of_warm_up_nothing_is_known() -> None:
    work = workloads.requests(num_prompts=100, request_rate=1.0, output_len=2, classes=CLASSES)
    rows = ran(Server(), work, warmup_s=40.0).requests
    assert (np.isnan(rows["class"]) == ~rows["measured"]).all() and rows["measured"].sum() > 20


@pytest.mark.parametrize(("classes", "message"), [
    ([3], "classes[0]: 3 is no class; use `workloads.request_class(...)`"),
    ("chat", "classes: 'chat' is no list of classes"),
    ([CLASSES[0], CLASSES[0]], "classes[1]: a second class `chat`"),
    ([workloads.request_class("a", think_s=3.0)], "a.think_s: is no amount of this workload"),
    ([workloads.request_class("a", input_len=0.5)], "a.input_len: 0.5 is not allowed"),
    ([workloads.request_class("a", priority=math.inf)], "a.priority: inf is not allowed"),
])  # fmt: skip
def test_classes_that_make_no_sense(classes: Any, message: str) -> None:
    with pytest.raises(sq.ProgramError) as caught:
        workloads.requests(classes=classes)
    assert message in str(caught.value)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: workloads.request_class("a b"), "name: 'a b' is not allowed; give a word"),
    (lambda: workloads.request_class("a", share=0), "a.share: 0 is not allowed; give a finite number above 0"),
    (lambda: deployments.behind_api(SECOND, after_s=-1.0), "after_s: -1.0 is not allowed"),
    (lambda: deployments.behind_api(cast(Any, 3)), "deployment: int cannot stand behind an API server"),
])  # fmt: skip
def test_parts_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(sq.ProgramError) as caught:
        make()
    assert message in str(caught.value)


# ---------------------------------------------------------------- any deployment


def test_the_array_engine_does_the_same() -> None:
    """Classes, an API server, patience and a closed loop around a server."""
    work = workloads.requests(num_prompts=60, max_concurrency=5, output_len=workloads.exponential(9.0), timeout_s=4.0,
                              retries=1, classes=CLASSES)  # fmt: skip
    program = compose(deployments.behind_api(Server(), before_s=0.2, after_s=0.1), work)
    runs = run_engine([program] * 3, [0, 1, 2])
    for seed, raw in enumerate(runs):
        assert first_difference(raw, run_oracle(program, seed)) is None
    assert sum(Run(program, raw).request_counts["abandoned"] for raw in runs) > 0


@pytest.mark.parametrize("deployment", [
    deployments.replicas([SECOND, SECOND.replace(max_num_seqs=2)]),
    deployments.disaggregated(prefill=SECOND, decode=deployments.replicas(SECOND, 2)),
    deployments.behind_api(SECOND, before_s=0.5),
])  # fmt: skip
def test_a_closed_loop_keeps_so_many_requests_in_flight(deployment: AbstractDeployment) -> None:
    work = workloads.requests(num_prompts=40, max_concurrency=6, input_len=20, output_len=workloads.uniform(1, 9))
    run = ran(deployment, work)
    sent, end = run.requests["sent_s"], run.requests["end_s"]
    # a request is sent at the very moment at which another ends
    flying = [int(((sent <= at) & (end > at)).sum()) for at in np.unique(sent)]
    assert run.verdict == "drained" and run.request_counts["finished"] == 40
    assert max(flying) == 6 and set(flying[:-6]) == {6}
