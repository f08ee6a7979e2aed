"""Files of recorded requests: what each format says, what is left out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import shared_dir

import oracle
import serqjax as sq
from serqjax import ProgramError, traces
from serqjax.traces import Request, SessionTurn


def written(folder: Path, text: str, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(at_ms: float, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": tokens, "output_length": 3, "hash_ids": ids, **more}


def aiperf(start_ns: int, tokens: int, *, error: Any = None, **metadata: Any) -> dict[str, Any]:
    metrics = {"input_sequence_length": {"value": tokens, "unit": "tokens"},
               "output_sequence_length": {"value": 7, "unit": "tokens"},
               "request_latency": {"value": 12.5, "unit": "ms"}}  # fmt: skip
    return {"metadata": {"request_start_ns": start_ns, "benchmark_phase": "profiling", "was_cancelled": False,
                         "conversation_id": "c", "turn_index": 0, **metadata},
            "metrics": metrics, "error": error}  # fmt: skip


EPOCH = 1_700_000_000

#: text, kind, rows (at, in, out), dropped, further columns
TIMED: dict[str, tuple[str, str, list[tuple[float, int, int]], dict[str, int], dict[str, tuple[Any, ...]]]] = {
    "azure 2024, with a zone": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,5,2\n"
        "2024-05-10 00:00:00.509930+00:00,6,3\n",
        "azure_2024", [(0.0, 5, 2), (0.5, 6, 3)], {}, {}),
    "azure 2025": (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2025-01-01 00:00:00.0,2,50,4\n2025-01-01 00:00:01.25,0,6,3\n",
        "azure_2025", [(0.0, 50, 4), (1.25, 6, 3)], {}, {"NumImages": ("2", "0")}),
    "burstgpt 1": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,GPT-4,10,0,10,API log\n45,GPT-4,12,2,14,API log\n",
        "burstgpt", [(0.0, 472, 18), (40.0, 12, 2)], {"zero_output": 1},
        {"Model": ("ChatGPT", "GPT-4"), "Log Type": ("Conversation log", "API log")}),
    "burstgpt 3, columns in another order": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0,s1,2.5,GPT-4,12,2,14,API log\n",
        "burstgpt", [(0.0, 12, 2)], {}, {"Session ID": ("s1",), "Model": ("GPT-4",), "Log Type": ("API log",)}),
    "vidur": ("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0004,10,2\n0.0012,20,3\n",
              "vidur", [(0.0, 10, 2), (0.0012 - 0.0004, 20, 3)], {}, {}),
    "splitwise": (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,0,3,1.5,1,100,20\n1,2,4,1.75,1,50,10\n",
        "splitwise", [(0.0, 100, 20), (0.25, 50, 10)], {}, {"request_type": ("0", "2"), "application_id": ("3", "4")}),
    "mooncake": (
        jsonl(mooncake(0, 600, [7, 2**63 + 1]), mooncake(3001, 600, [7, 1]),
              mooncake(3001, 5, [2**32 + 7], session_id=4)),
        "mooncake", [(0.0, 600, 3), (3.001, 600, 3), (3.001, 5, 3)], {}, {"session_id": (None, None, 4)}),
    "apex": (jsonl({"StartTimeOffset": 0, "ContextTokens": 5, "GeneratedTokens": 2},
                   {"StartTimeOffset": 4_059_740_000, "ContextTokens": 6, "GeneratedTokens": 0},
                   {"StartTimeOffset": 4_059_740_000, "ContextTokens": 6, "GeneratedTokens": 1}),
             "apex", [(0.0, 5, 2), (4.05974, 6, 1)], {"zero_output": 1}, {}),
    "llmservingsim": (jsonl({"input_toks": 5, "output_toks": 2, "arrival_time_ns": 0},
                            {"input_toks": 6, "output_toks": 2, "arrival_time_ns": 4_059_740_000}),
                      "llmservingsim", [(0.0, 5, 2), (4.05974, 6, 2)], {}, {}),
    "aiperf, in the order of their ends": (
        jsonl(aiperf(EPOCH * 10**9 + 500_000_000, 30), aiperf(EPOCH * 10**9, 20),
              aiperf(0, 9, benchmark_phase="warmup"), aiperf(0, 9, was_cancelled=True),
              aiperf(0, 9, error={"code": 500})),
        "aiperf", [(0.0, 20, 7), (0.5, 30, 7)], {"warmup": 1, "cancelled": 1, "failed": 1},
        {"conversation_id": ("c", "c"), "turn_index": (0, 0)}),
    "vllm bench": (
        json.dumps({"duration": 9.0, "completed": 2, "input_lens": [5, 6, 7], "output_lens": [2, 0, 3],
                    "start_times": [100.25, 100.5, 101.0], "ttfts": [0.1, 0, 0.1]}),
        "vllm_bench", [(0.0, 5, 2), (0.75, 7, 3)], {"zero_output": 1}, {}),
    "guidellm": (
        json.dumps({"benchmarks": [{"requests": {"successful": [
            {"request_id": "b", "prompt_tokens": 6, "output_tokens": 3, "request_start_time": EPOCH + 1.5},
            {"request_id": "a", "prompt_tokens": 5, "output_tokens": 2, "request_start_time": EPOCH + 0.0}],
            "incomplete": [{}], "errored": []}}]}, indent=1),
        "guidellm", [(0.0, 5, 2), (1.5, 6, 3)], {"cancelled": 1}, {}),
    "an exported run": ("at_s,input_tok,output_tok,priority,tenant\n0.5,5,2,1,a\n0.75,6,3,0,b\n",
                        "serqjax_requests", [(0.5, 5, 2), (0.75, 6, 3)], {},
                        {"priority": ("1", "0"), "tenant": ("a", "b")}),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMED)
def test_timed_requests(tmp_path, name):
    text, kind, rows, dropped, columns = TIMED[name]
    trace = traces.read(written(tmp_path, text))
    assert (trace.kind, trace.dropped, trace.columns) == (kind, dropped, columns)
    assert [(r.at_s, r.input_tok, r.output_tok) for r in trace.rows] == rows
    assert kind in str(trace) and f"{len(rows)} requests" in str(trace)


def test_results_are_sorted_by_the_time_of_sending(tmp_path):
    assert traces.read(written(tmp_path, TIMED["aiperf, in the order of their ends"][0])).reordered == 1
    assert "1 rows sorted" in str(traces.read(written(tmp_path, TIMED["guidellm"][0])))


def test_hash_ids_keep_all_their_bits(tmp_path):
    rows = traces.read(written(tmp_path, TIMED["mooncake"][0])).rows
    assert [r.hash_ids for r in rows] == [(0, 1), (0, 2), (3,)]
    # equal in their lowest 32 bits, and not equal
    rows = traces.read(written(tmp_path, jsonl(mooncake(0, 9, [1]), mooncake(0, 9, [4294967297])))).rows
    assert rows[0].hash_ids != rows[1].hash_ids


LENGTHS = {
    "vllm bench of old": (json.dumps({"input_lens": [5, 6], "output_lens": [2, 0]}), "vllm_bench",
                          [[(5, 2)]], {"zero_output": 1}),
    "pairs": ("[[5, 2], [6, 3]]", "sharegpt", [[(5, 2)], [(6, 3)]], {}),
    "objects": ('[{"input_len": 5, "output_len": 2}]', "sharegpt", [[(5, 2)]], {}),
    "conversations": (
        json.dumps([{"id": "x", "conversations": [
            {"from": "human", "tokens": 10}, {"from": "gpt", "tokens": [1, 2, 3]}, {"from": "human", "tokens": 4},
            {"from": "gpt", "tokens": 5}, {"from": "human", "tokens": 8}]}]),
        "sharegpt", [[(10, 3), (4, 5)]], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_without_times(tmp_path, name):
    text, kind, sessions, dropped = LENGTHS[name]
    trace = traces.read(written(tmp_path, text))
    assert (trace.kind, trace.dropped, trace.rows) == (kind, dropped, ())
    assert [[(t.new_tok, t.output_tok) for t in s] for s in trace.sessions] == sessions
    assert "without times" in str(trace)


def test_exported_sessions(tmp_path):
    text = "session,turn,at_s,new_tok,output_tok,think_s\n3,1,0.5,10,2,1.5\n3,2,4,5,1,0\n4,1,0.5,7,1,0\n"
    trace = traces.read(written(tmp_path, text))
    assert trace.starts_s == (0.5, 0.5) and trace.sessions[0] == (SessionTurn(10, 2, 1.5), SessionTurn(5, 1, 0.0))


def test_times_are_scaled_with_their_fractions(tmp_path):
    text = "at_s,input_tok,output_tok\n0,5,1\n0.0004,5,1\n0.0008,5,1\n"
    trace = traces.read(written(tmp_path, text)).scaled(2.0)
    assert [r.at_s for r in trace.rows] == [0.0, 0.0002, 0.0004]
    assert [r.at_s for r in trace.first(2).rows] == [0.0, 0.0002]
    for rate in (0, -1, float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="a finite number above 0"):
            trace.scaled(rate)
    with pytest.raises(ValueError, match="has no times to scale"):
        traces.read(written(tmp_path, "[[5, 2]]")).scaled(2.0)
    with pytest.raises(ValueError, match="a whole number above 0"):
        trace.first(0)


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SPLITWISE = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
FINE = mooncake(0, 5, [1])


@pytest.mark.parametrize(("text", "message"), [
    (jsonl(FINE, mooncake(None, 5, [1])), r":2: row 2: timestamp is null"),  # type: ignore[arg-type]
    (jsonl(FINE, mooncake(float("nan"), 5, [1])), "row 2: timestamp is nan"),
    (jsonl(FINE, mooncake(float("inf"), 5, [1])), "row 2: timestamp is inf"),
    (jsonl(FINE, mooncake(-1, 5, [1])), "row 2: timestamp is -1, below 0"),
    (jsonl(FINE, mooncake(True, 5, [1])), "row 2: timestamp is 'True', not a number"),
    (jsonl(mooncake(5, 5, [1]), FINE), "row 2: timestamp 0 is before the row above it; .*different origins"),
    (jsonl(FINE, mooncake(EPOCH * 1000, 5, [1])), "row 2: timestamp .* days after the row above it; "),
    (jsonl(FINE, {**FINE, "hash_ids": [1.5]}), "row 2: hash_ids has '1.5', which is no whole number of 64 bits"),
    (jsonl(FINE, {**FINE, "hash_ids": [2**64]}), "no whole number of 64 bits"),
    (jsonl(FINE, {**FINE, "hash_ids": "1"}), "row 2: hash_ids is no list"),
    (jsonl(FINE, mooncake(0, 600, [1])), "row 2: 1 hash_ids for 600 tokens of input, one for every 512 would be 2"),
    (jsonl(FINE, {**FINE, "input_length": 2.5}), "row 2: input_length is 2.5, not a whole number of tokens"),
    (jsonl(FINE, {k: v for k, v in FINE.items() if k != "output_length"}), "row 2: output_length is missing"),
    (jsonl(FINE, {**FINE, "delay_ms": 5}), "row 2: delay_ms is a time since the turn before, which is not read"),
    (jsonl(FINE) + "{\n", "row 2: not JSON"),
    (jsonl(FINE) + "3\n", "row 2: int is no JSON object"),
    (jsonl({"timestamp": 0, "input_length": 5, "output_length": 5}), "do not say whether `timestamp` is in ms or s"),
    (jsonl({"session_id": 1, "arrival_time_ns": 0, "sub_requests": []}), "sessions of LLMServingSim are not read"),
    (jsonl({"a": 1}), "unknown fields `a`"),
    (jsonl(aiperf(0, 5), aiperf(EPOCH * 10**9, 5)), "request_start_ns leaps by .* days"),
    (jsonl(aiperf(0, 5), {"metadata": {}, "metrics": None}), "row 2: metrics is missing"),
    (jsonl(aiperf(0, 9, was_cancelled=True)), r"no rows to replay \(left out: 1 cancelled\)"),
    (BURST + "5,m,3,2,5,l\n4,m,3,2,5,l\n", "row 2: Timestamp 4 is before the row above it"),
    (BURST + "5,m,3,2,5\n", "row 1: 5 fields instead of 6"),
    ("Timestamp,Timestamp,Request tokens,Response tokens\n", "two columns have one name"),
    (SPLITWISE + "0,0,0,0.5,4,100,20\n", "row 1: batch_size is 4: rows of several prompts are not read"),
    ("arrived_at,num_prefill_tokens,num_decode_tokens\n,1,1\n", "row 1: arrived_at is missing"),
    ('{"input_lens": [5, 6], "output_lens": [2]}', "output_lens: 1 values beside 2 input_lens"),
    ('{"input_lens": [5, null], "output_lens": [2, 2]}', r"\[1\]: row 2: input_lens is null"),
    ('{"ttfts": [], "duration": 3}', "have no `input_lens`; run it with --save-detailed"),
    ('{"input_lens": [5], "output_lens": [2], "start_times": [NaN]}', "row 1: start_times is nan"),
    ('{"benchmarks": [{}, {}]}', "2 benchmarks in one report"),
    ('{"benchmarks": [{"requests": {"successful": [3]}}]}', "row 1: int is no JSON object"),
    ('[{"id": "a", "conversations": [{"from": "human", "value": "Hello"}]}]', "text needs a tokenizer"),
    ("[[5]]", "row 1: .* is no pair of lengths"),
    ("[[5, 2.5]]", "row 1: output_len is 2.5"),
    ("[]", "no rows to replay"),
    ("{", "not JSON"),
    ("[3", "not JSON"),
    ("{\n1}", "not JSON"),
    ("at_s,input_tok,output_tok,hash_ids\n0,5,1,0\n0,5,1,x\n", "row 2: hash_ids has 'x', which is no whole number"),
    ("session,turn,at_s,new_tok,output_tok,think_s\n0,1,5,3,2,0\n1,1,4,3,2,0\n", "row 2: at_s 4 is before the session"),
    ("session,turn,at_s,new_tok,output_tok,think_s\n0,1,5,0,2,0\n", "row 1: a turn has output tokens"),
    ("session,turn,at_s,new_tok,output_tok,think_s\n0,1,inf,4,2,0\n", "row 1: at_s is inf"),
])  # fmt: skip
def test_what_is_refused(tmp_path, text, message):
    with pytest.raises(ProgramError, match=message):
        traces.read(written(tmp_path, text))


def test_a_file_with_zero_bytes_is_no_text(tmp_path):
    with pytest.raises(ProgramError, match="is not a text file"):
        traces.read(written(tmp_path, "ab\0c"))


def test_large_files_are_read_line_by_line(tmp_path):
    """The lines of a file are never all in memory: what is read takes a small part of its size."""
    import tracemalloc

    path = tmp_path / "long.jsonl"
    padding = "x" * 2000
    with path.open("w") as file:
        for k in range(5000):
            file.write(json.dumps({**mooncake(k, 5, [k]), "text_input": padding}) + "\n")
    tracemalloc.start()
    trace = traces.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(trace.rows) == 5000 and path.stat().st_size > 10_000_000 and peak < 5_000_000


def test_the_recorded_traces_are_read_whole():
    data = shared_dir() / "data"
    trace = traces.read(data / "mooncake_conversation.jsonl")
    ids = [i for r in trace.rows for i in r.hash_ids]
    assert (len(trace.rows), trace.dropped, len(ids), len(set(ids))) == (12_031, {}, 288_500, 182_790)
    assert [r.at_s for r in trace.rows[:11]] == [0.0] * 10 + [3.0] and max(ids) == 182_789
    assert len({r.at_s for r in trace.rows}) == 1180
    engine = traces.read(data / "vllm_rtxpro6000_llama31_8b_requests.jsonl")
    assert (engine.kind, len(engine.rows)) == ("llmservingsim", 300) and engine.rows[0] == Request(0.0, 2358, 531)


# ---------------------------------------------------------------- a run as a trace


def served(workload: Any, **engine: Any) -> sq.Run:
    """A run of the sequential interpreter (nothing to compile)."""
    program = sq.program(sq.deployments.vllm(**engine), workload, seed=3)
    return sq.Run(program, oracle.simulate(program))


def equal_requests(a: sq.Run, b: sq.Run) -> bool:
    return all(np.array_equal(a.requests[name], b.requests[name], equal_nan=True) for name in a.requests.columns
               if name not in ("session", "seed", "turn"))  # fmt: skip


RUNS = {
    "requests": (sq.workloads.requests(request_rate=20, num_prompts=40, input_len=sq.workloads.exponential(300),
                                       output_len=sq.workloads.exponential(20)), {}),
    "little memory, preemptions": (
        sq.workloads.requests(request_rate=60, num_prompts=40, input_len=sq.workloads.uniform(20, 200),
                              output_len=sq.workloads.uniform(1, 60)), {"num_gpu_blocks": 40}),
    "a limit of clients and of lengths": (
        sq.workloads.requests(num_prompts=30, max_concurrency=4, input_len=200, output_len=90), {"max_model_len": 250}),
    "sessions": (sq.workloads.sessions(session_rate=2, num_sessions=12, continue_probability=0.7,
                                       first_prompt=sq.workloads.uniform(50, 400)), {}),
    "a trace with prefixes and priorities": (
        sq.workloads.from_trace(traces.TraceFile(
            "t", "mooncake", columns={"priority": tuple(i % 3 for i in range(20))},
            rows=tuple(Request(0.0004 * i, 900 + i, 5 + i, (0, 1 + i % 2)) for i in range(20)))),
        {"shared_prefixes": "hash_ids", "scheduling_policy": "priority", "max_num_seqs": 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_an_exported_run_replays_to_the_same_counts_and_times(tmp_path, name):
    workload, engine = RUNS[name]
    first = served(workload, **engine)
    traces.write(first.to_trace(), tmp_path / "run.csv")
    trace = traces.read(tmp_path / "run.csv")
    again = served(sq.workloads.from_trace(trace), **engine)
    assert again.request_counts == first.request_counts and first.request_counts["finished"] >= 12
    assert equal_requests(first, again)
    assert again.to_trace().rows == trace.rows and again.to_trace().sessions == trace.sessions


def test_a_trace_replaces_the_arrivals_of_a_program_from_a_file(tmp_path):
    path = tmp_path / "program.json"
    path.write_text(sq.to_json(sq.program(sq.deployments.vllm(), sq.workloads.from_trace(
        traces.TraceFile("t", "serq", sessions=((SessionTurn(5, 1, 0.0),),))))))
    text = "session,turn,at_s,new_tok,output_tok,think_s\n3,1,0.5,10,2,1.5\n3,2,4,5,1,0\n4,1,0.75,7,1,0\n"
    program = sq.read(path, trace=written(tmp_path, text))
    assert isinstance(program.arrival, sq.ir.Listed)
    assert program.arrival.at == (0.5, 0.75) and program.arrival.turns[0][1] == (5.0, 1.0, 0.0, 0.0)
    assert oracle.simulate(program).request_sent[:2].tolist() == [500_000_000, 750_000_000]


def test_the_command_scales_and_exports(tmp_path, capsys, monkeypatch):
    """With the sequential interpreter in the place of the array engine: nothing to compile."""
    from serqjax import api
    from serqjax._cli import call

    monkeypatch.setattr(api, "_simulate", lambda prog, seeds, **options: [oracle.simulate(prog, seed=s) for s in seeds])
    path = written(tmp_path, "at_s,input_tok,output_tok\n0,20,3\n0.0004,5,0\n0.0008,30,2\n", "in.csv")
    out = tmp_path / "out.csv"
    words = ["run", "vllm", "--trace", str(path), "--set", "rate_scale=2", "--json", "--export-trace", str(out)]
    assert call(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["requests"] == {"in": 2, "finished": 2, "running": 0, "queued": 0, "rejected": 0}
    assert "serqjax_requests: 2 requests" in said.err and "left out: 1 zero_output" in said.err
    assert [(r.at_s, r.input_tok, r.output_tok) for r in traces.read(out).rows] == [(0.0, 20, 3), (0.0004, 30, 2)]
    assert call(["run", "vllm", "--seeds", "0:2", "--export-trace", str(out)]) == 2
    assert "--export-trace writes one run" in capsys.readouterr().err
    assert call(["run", "vllm", "--export-trace", "run.txt"]) == 2
    assert "let the name end in .csv" in capsys.readouterr().err
    assert call(["run", "vllm", "--engine", "pyserq", "--export-trace", str(out)]) == 2
    assert "leave out --engine pyserq" in capsys.readouterr().err


def test_rejected_requests_are_named_in_an_export():
    run = served(sq.workloads.from_trace([Request(0.0, 10, 2), Request(0.0, 10_000, 2)]), num_gpu_blocks=40,
                 max_model_len=5000)  # fmt: skip
    assert run.to_trace().dropped == {"rejected": 1} and len(run.to_trace().rows) == 1


def test_files_can_be_written_in_one_format(tmp_path):
    for name in ("mooncake", "vidur"):
        trace = traces.read(written(tmp_path, TIMED[name][0]))
        traces.write(trace, tmp_path / "same.csv")
        assert traces.read(tmp_path / "same.csv").rows == trace.rows
    trace = traces.read(written(tmp_path, LENGTHS["conversations"][0]))
    traces.write(trace, tmp_path / "same.csv")
    assert traces.read(tmp_path / "same.csv").sessions == trace.sessions


@pytest.mark.parametrize(("workload", "message"), [
    (sq.workloads.requests(request_rate=5, num_prompts=None, horizon_s=2), "requests had not finished"),
    (sq.workloads.requests(request_rate=9, num_prompts=9, warmup_s=0.1), "run with warm-up 0"),
    (sq.workloads.requests(num_prompts=3, timeout_s=50), "has a deadline: requests that are withdrawn"),
    (sq.workloads.requests(num_prompts=3, priority=sq.workloads.uniform(0, 2)), "priorities that a workload draws"),
])  # fmt: skip
def test_runs_that_are_no_trace(workload, message):
    with pytest.raises(ValueError, match=message):
        served(workload).to_trace()
