"""Recorded prefixes: a Mooncake trace replayed, its hits against a plain model of vLLM's rules."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from compare_runs import first_difference
from helpers import shared_dir

import oracle
import serqjax as sq
from serqjax import costs, deployments, traces, workloads
from serqjax.engine.host import simulate
from serqjax.engine.state import Capacities
from serqjax.ir import Listed, Recorded
from serqjax.report.raw import Verdict
from tests.vllm_model import Engine, Request

#: Every step lasts 1 s, as in the model.
STEPS = costs.affine(base_s=1, per_decode_s=0, per_kv_tok_s=0, per_prefill_tok_s=0, per_attention_s=0, preempt_only_s=1)


def made_trace(folder: Path, seed: int, requests: int = 60) -> Path:
    """Conversations that go on, branch off and come back, with a prompt that all have in common."""
    rng = Random(seed)
    rows, known = [], [[2**63 + 5]]
    next_id = 2**40
    at_ms = 0
    for _ in range(requests):
        ids = list(rng.choice(known)[: rng.randint(1, 6)])
        new = rng.randint(0, 3)
        ids += range(next_id, next_id + new)
        next_id += new
        known.append(ids)
        tokens = len(ids) * traces.SPAN_TOK - (rng.randint(0, 511) if new else 0)  # only a new id may be of a part
        rows.append({"timestamp": at_ms, "input_length": tokens, "output_length": rng.randint(1, 40), "hash_ids": ids})
        at_ms += rng.choice([0, 0, 1000, 3000])
    path = folder / "made.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def hits_of(run: sq.Run) -> list[list[float]]:
    """Tokens that each request found at each of its admissions."""
    found: list[list[float]] = [[] for _ in range(run.request_counts["in"])]
    observe = run.program.observes.index("vllm.reused")
    raw = run.raw
    for serial, value in zip(raw.samples_serial[raw.samples_observe == observe],
                             raw.samples_value[raw.samples_observe == observe]):  # fmt: skip
        found[int(serial)].append(float(value))
    return found


def model_of(trace: traces.TraceFile, *, block: int, blocks: int, budget: int, seqs: int) -> list[Request]:
    requests = [Request(i, int(r.at_s), r.input_tok, r.output_tok, r.hash_ids) for i, r in enumerate(trace.rows)]
    assert Engine(budget=budget, max_seqs=seqs, block=block, num_blocks=blocks).run(requests)
    return requests


def program_of(trace: traces.TraceFile, *, block: int, blocks: int, budget: int, seqs: int) -> sq.ir.Program:
    engine = deployments.vllm(
        max_num_batched_tokens=budget, max_num_seqs=seqs, block_size=block, num_gpu_blocks=blocks,
        shared_prefixes="hash_ids", cost=STEPS,
    )  # fmt: skip
    return sq.program(engine, workloads.from_trace(trace))


def compare(run: sq.Run, requests: list[Request]) -> None:
    """Hits of every admission, and the step of every request's last token."""
    assert hits_of(run) == [[cached for _, cached in r.admissions] for r in requests]
    last_s = run.requests["last_token_s"]
    assert [round(t) - 1 for t in last_s] == [r.last for r in requests]


@pytest.mark.parametrize(("block", "blocks"), [(16, 301), (512, 13), (100, 70), (1024, 10)])
def test_hits_of_a_made_trace(tmp_path, block, blocks):
    """Blocks that divide an id's 512 tokens, those that do not, and those that are larger."""
    found = 0
    for seed in range(2):
        trace = traces.read(made_trace(tmp_path, seed))
        sizes = {"block": block, "blocks": blocks, "budget": 4000, "seqs": 6}
        requests = model_of(trace, **sizes)
        compare(sq.Run(program := program_of(trace, **sizes), oracle.simulate(program, check=seed == 0)), requests)
        found += sum(cached for r in requests for _, cached in r.admissions)
    assert found > 20_000


def test_array_engine_and_oracle_agree_on_a_made_trace(tmp_path):
    """Memory for one or two prompts only, so that blocks are given out again and requests are preempted."""
    trace = traces.read(made_trace(tmp_path, 8))
    sizes = {"block": 64, "blocks": 80, "budget": 1500, "seqs": 6}
    program = program_of(trace, **sizes)
    run = sq.run(program)
    requests = model_of(trace, **sizes)
    compare(run, requests)
    assert first_difference(run.raw, oracle.simulate(program)) is None
    assert sum(len(r.admissions) > 1 for r in requests) > 0


def test_more_holders_of_a_shared_pool_than_rows(tmp_path):
    """With given sizes the run says which table is full. (A run with sizes of its own choice tries larger ones.)"""
    trace = traces.read(made_trace(tmp_path, 8))
    program = program_of(trace, block=64, blocks=80, budget=1500, seqs=6)
    (few,) = simulate(program, [0], capacities=Capacities(slots=64, holds=1, chain=64))
    assert few is not None and few.verdict == Verdict.capacity
    assert few.cause == "more sessions held of a shared pool at once than its table has rows (1): raise `holds`"


def test_the_command_shares_what_the_file_records(tmp_path):
    trace = traces.read(made_trace(tmp_path, 3))
    sharing = sq.read("vllm", trace=trace)
    (kv,) = [pool for pool in sharing.pools if pool.name == "kv"]
    assert kv.sharing == "content" and isinstance(kv.content[0], Recorded)
    assert isinstance(sharing.arrival, Listed) and sharing.arrival.contents[0] == trace.rows[0].hash_ids
    alone = sq.read("vllm", trace=trace, settings={"shared_prefixes": "none"})
    assert isinstance(alone.arrival, Listed) and alone.arrival.contents == ()
    assert all(pool.sharing == "own" for pool in alone.pools)
    with pytest.raises(sq.ProgramError, match="shared_prefixes: 'some' is not allowed; give pairs .* or \"hash_ids\""):
        sq.read("vllm", trace=trace, settings={"shared_prefixes": "some"})


def test_a_deployment_that_shares_needs_a_trace_that_records():
    load = workloads.requests(request_rate=1, num_prompts=3)
    program = sq.program(deployments.vllm(shared_prefixes="hash_ids"), load)
    with pytest.raises(sq.ProgramError, match="uses the recorded contents of sessions, but none are recorded"):
        sq.check(program)


def test_a_program_from_a_file_takes_recorded_contents(tmp_path):
    trace = traces.read(made_trace(tmp_path, 3, requests=3))
    program = program_of(trace, block=16, blocks=500, budget=100, seqs=2)
    path = tmp_path / "program.json"
    path.write_text(sq.to_json(program))
    again = sq.read(path, trace=trace)
    assert isinstance(again.arrival, Listed) and again.arrival.contents == tuple(r.hash_ids for r in trace.rows)


@pytest.mark.slow
def test_two_thousand_requests_of_the_conversation_trace():
    """Done when: hit tokens equal the model's. Minutes."""
    trace = traces.read(shared_dir() / "data" / "mooncake_conversation.jsonl").first(2000)
    sizes = {"block": 16, "blocks": 27_000, "budget": 65_536, "seqs": 256}
    requests = model_of(trace, **sizes)
    run = sq.run(program_of(trace, **sizes))
    compare(run, requests)
    assert sum(cached for r in requests for _, cached in r.admissions) > 1_000_000
