"""Ready-made deployments, workloads, costs and traces: what they build, and what they refuse."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from serqjax import costs, deployments, ir, traces, workloads
from serqjax.builder import Builder, compose, parse
from serqjax.errors import ProgramError
from serqjax.ir import fixed
from serqjax.ir.expr import Attr, Binary, Call, Cond, Ctx, Inf, Member, Num, Param, PoolState, Sample, StageState, Unary
from serqjax.ir.program import Batch, Closed, Listed, Poisson, Program, Renewal
from tests.helpers import ROOT, shared_dir

ALL_WORKLOADS = {
    "sessions": workloads.sessions(),
    "sessions of 3 turns": workloads.sessions(turns=3, num_sessions=5, context_limit=9000),
    "requests at once": workloads.requests(num_prompts=5),
    "requests poisson": workloads.requests(request_rate=2.0, num_prompts=5),
    "requests erlang": workloads.requests(request_rate=2.0, burstiness=4, num_prompts=5),
    "requests semaphore": workloads.requests(max_concurrency=2, num_prompts=5),
    "requests closed": workloads.requests(max_concurrency=2, num_prompts=None, horizon_s=10.0),
    "replay": workloads.from_trace([traces.Request(0.0, 10, 2), traces.Request(0.5, 20, 3)]),
}
ALL_FLAGS = {
    "defaults": {},
    "no cache": {"enable_prefix_caching": False},
    "all": {"long_prefill_token_threshold": 512, "max_model_len": 4096, "watermark": 0.1,
            "scheduler_reserve_full_isl": False},
    "old": {"engine_version": "0.11.2", "long_prefill_token_threshold": 512},
    "shared": {"shared_structure": True},
}


def refused(text: str):
    return pytest.raises(ProgramError, match=re.escape(text))


# ---------------------------------------------------------------- expressions


@pytest.mark.parametrize(("text", "expr"), [
    ("known - 1", Binary("Sub", Attr("known"), Num(1.0))),
    ("-Waited", Unary("Neg", Ctx("Waited"))),
    ("Min(rate, 2.5)", Call("Min", (Param("rate"), Num(2.5)))),
    ("~Exp(500)", Sample("Exp", (Num(500.0),))),
    ("Used(kv) + BudgetLeft(vllm.gpu)", Binary("Add", PoolState("Used", "kv"), StageState("BudgetLeft", "vllm.gpu"))),
    ("Free(rep[2])", PoolState("Free", "rep[2]")),
    ("Free(rep[known])", PoolState("Free", Member("rep", Attr("known")))),
    ("inf if known == 0 and not rate else Now",
     Cond(Binary("And", Binary("Eq", Attr("known"), Num(0.0)), Unary("Not", Param("rate"))), Inf(), Ctx("Now"))),
])
def test_parse(text, expr):
    assert parse(text, attrs=["known"], params=["rate"]) == expr


@pytest.mark.parametrize(("text", "message"), [
    ("knwon + 1", "`knwon` is no attribute, parameter or context variable; did you mean `known`?"),
    ("Mim(1, 2)", "`Mim` is not a function; did you mean `Min`?"),
    ("Min(1)", "`Min` takes 2 arguments, got 1"),
    ("~Expo(1)", "`~Expo` is not a distribution; did you mean `Exp`?"),
    ("1 +", "cannot be read"),
    ("[1]", "this form is not part of the language"),
    ("True", "only numbers are values"),
    ("1 < 2 < 3", "this form is not part of the language"),
])
def test_parse_refuses(text, message):
    with refused(message):
        parse(text, attrs=["known"])


def test_builder_names_what_is_missing():
    b = Builder()
    b.attr("prompt")
    with refused("did you mean `prompt`?"):
        b.set("promt", 1)
    with refused("two different declarations"):
        b.attr("prompt", hidden=True)
    with refused("there is no state `strat`"):
        b.state("start", exit=None)
        b.program("strat", Batch(Num(1.0)))


# ---------------------------------------------------------------- programs


@pytest.mark.parametrize("workload", ALL_WORKLOADS)
@pytest.mark.parametrize("flags", ALL_FLAGS)
def test_programs_are_closed_and_round_trip(workload, flags):
    program = compose(deployments.vllm(**ALL_FLAGS[flags]), ALL_WORKLOADS[workload])
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program
    states = {s.name for s in program.states}
    text = msgspec.json.encode(program.states).decode()
    assert set(re.findall(r'"(?:then|orelse|target)":"([^"]+)"', text)) <= states
    assert program.start in states
    params = {p.name for p in program.params}
    assert set(re.findall(r'\["Param","([^"]+)"\]', msgspec.json.encode(program).decode())) <= params


@pytest.mark.parametrize("workload", ALL_WORKLOADS)
@pytest.mark.parametrize("flags", ALL_FLAGS)
def test_programs_pass_check(workload, flags):
    check = pytest.importorskip("serqjax.check")
    check_program = getattr(check, "check_program", None) or check.check
    check_program(compose(deployments.vllm(**ALL_FLAGS[flags]), ALL_WORKLOADS[workload]))


def test_flags_are_parameters_and_follow():
    engine = deployments.vllm(num_gpu_blocks=101, block_size=8)
    assert params_of(compose(engine, workloads.sessions()))["kv.cap"] == 800
    changed = engine.replace(num_gpu_blocks=51, max_num_seqs=7)
    assert params_of(compose(changed, workloads.sessions())) == {
        **params_of(compose(engine, workloads.sessions())), "kv.cap": 400, "max_num_seqs": 7}
    with refused("max_num_seq: is no argument of Vllm; did you mean `max_num_seqs`?"):
        engine.replace(max_num_seq=7)


def params_of(program: Program) -> dict[str, float]:
    return {p.name: p.value for p in program.params}


def test_flags_of_a_shared_structure_are_numbers():
    def shape(**flags):
        program = compose(deployments.vllm(shared_structure=True, **flags), workloads.sessions())
        return msgspec.structs.replace(program, params=())

    assert shape(long_prefill_token_threshold=64, watermark=0.2, scheduler_reserve_full_isl=False,
                 enable_prefix_caching=False) == shape()


def test_cost_runs_in_fixed_point():
    program = compose(deployments.vllm(long_prefill_token_threshold=64), workloads.sessions())
    step = next(s.kind for s in program.stages if s.name == "vllm")
    form = fixed.stage_form(program, step)
    assert form is not None
    exact = fixed.resolve(form, params_of(program), 1e-9)

    def cost_s(**values):
        scaled = {name: int(values.get(name, 0) * fixed.VARIABLE_SCALE[name]) for name in fixed.VARIABLES}
        return fixed.evaluate(exact, scaled) / 2**fixed.FIXED_BITS * 1e-9

    assert cost_s() == 0.0, "an iteration that only preempts costs nothing"
    assert math.isclose(cost_s(Ntok=3, Ndec=2, DecodePositions=300, Npre=1, Attn=0.5),
                        13.9e-3 + 2 * 41e-6 + 300 * 0.138e-6 + 51.5e-6 + 0.5 * 4.02e-9, rel_tol=1e-9)


def test_arrival_laws():
    def arrival(**arguments):
        return compose(deployments.vllm(), workloads.requests(**arguments)).arrival

    assert arrival(num_prompts=5) == Batch(Param("num_prompts"))
    assert arrival(request_rate=2.0) == Poisson(Param("request_rate"))
    assert isinstance(arrival(request_rate=2.0, burstiness=3), Renewal)
    assert arrival(max_concurrency=4, num_prompts=None) == Closed(Param("max_concurrency"))
    program = compose(deployments.vllm(), workloads.requests(request_rate=2.0, num_prompts=7, max_concurrency=3))
    assert program.arrivals == 7
    assert [p.name for p in program.pools] == ["reqs", "kv", "clients"]


def test_replay_keeps_fractions_of_a_millisecond():
    rows = [traces.Request(0.0, 5, 1), traces.Request(0.0004, 5, 1), traces.Request(0.0008, 5, 1)]
    arrival = compose(deployments.vllm(), workloads.from_trace(rows)).arrival
    assert isinstance(arrival, Listed) and arrival.at == (0.0, 0.0004, 0.0008)


def test_urgent_requests_wait_less():
    """Two classes under load: the urgent one (0) has the shorter time to its first token; nobody is lost."""
    simulate, streams = pytest.importorskip("oracle").simulate, pytest.importorskip("oracle.streams")
    engine = deployments.vllm(max_num_seqs=2, num_gpu_blocks=200, scheduling_policy="priority")
    work = workloads.requests(request_rate=1.5, num_prompts=300, input_len=200, output_len=workloads.uniform(50, 150),
                              priority=workloads.bernoulli(0.5))
    raw = simulate(compose(engine, work, seed=3))
    assert sum(raw.request_status == 0) == 300
    wait_s = {0.0: [], 1.0: []}
    for serial, wait_tick in zip(raw.request_serial.tolist(), raw.request_first - raw.request_sent):
        drawn = streams.Stream(streams.sub_seed(3, serial, 0, streams.WORKLOAD)).uniform()
        wait_s[float(drawn < 0.5)].append(wait_tick * 1e-9)
    assert min(map(len, wait_s.values())) > 100
    assert np.mean(wait_s[0.0]) < 0.5 * np.mean(wait_s[1.0])


def test_the_page_on_policies_is_a_program():
    page = (ROOT / "docs" / "write_your_own_policy.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.S)
    assert code is not None
    names: dict = {}
    exec(compile(code[1], "write_your_own_policy.md", "exec"), names)  # noqa: S102
    program = names["program"]
    assert [p.name for p in program.pools] == ["kv"]
    simulate = pytest.importorskip("oracle").simulate
    raw = simulate(program)
    assert raw.verdict.name == "drained"
    assert raw.arrivals == 200 and sum(raw.request_status == 0) == 200
    assert all(pool.preemptions == 0 for pool in raw.pools)


def test_length_cap_leaves_two_tokens():
    """cases.md, row 49: limit 8, prompt 6, 10 wanted: 2 generated."""
    simulate = pytest.importorskip("oracle").simulate
    engine = deployments.vllm(max_model_len=8, cost=costs.affine(base_s=1, per_decode_s=0, per_kv_tok_s=0,
                                                                 per_prefill_tok_s=0, per_attention_s=0))
    rows = [traces.Request(0.0, 6, 10), traces.Request(0.0, 8, 10), traces.Request(0.0, 6, 1)]
    raw = simulate(compose(engine, workloads.from_trace(rows)))
    assert raw.request_tokens.tolist() == [2, 0, 1]
    assert [int(s) for s in raw.request_status] == [0, 3, 0], "a prompt of the limit's length is rejected"


def test_sessions_are_those_of_the_reference():
    """The text program `text_vllm`, said with the ready-made parts: the same turns, drawn and served alike."""
    folder = shared_dir() / "programs" / "text_vllm"
    simulate = pytest.importorskip("oracle").simulate
    engine = deployments.vllm(max_num_seqs=16, max_num_batched_tokens=512, num_gpu_blocks=2001,
                              scheduler_reserve_full_isl=False, cost=costs.affine(kv="blocks"))
    work = workloads.sessions(session_rate=0.1, continue_probability=0.8, context_limit=9000)
    reference = json.loads((folder / "samples.json").read_text())["observes"]
    raw = simulate(compose(engine, work, horizon_s=800.0, warmup_s=80.0, seed=8))
    for name in ("vllm.reused", "vllm.prefill"):
        mine = raw.samples_observe == raw_index(engine, work, name)
        assert raw.samples_value[mine].tolist() == reference[name]["value"], name
        assert raw.samples_tick[mine] * 1e-9 == pytest.approx(reference[name]["time"], rel=1e-6, abs=1e-6)


def raw_index(engine, work, name: str) -> int:
    return compose(engine, work).observes.index(name)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(("arguments", "message"), [
    ({"scheduling_policy": "sjf"}, "scheduling_policy: 'sjf' is not known; use one of fcfs, priority"),
    ({"engine_version": "0.9.0"}, "engine_version: '0.9.0' is not known; use one of 0.33.0, 0.11.2"),
    ({"max_num_seqs": 0}, "max_num_seqs: 0 is not allowed; give a whole number of at least 1"),
    ({"max_num_batched_tokens": 1.5}, "max_num_batched_tokens: 1.5 is not allowed"),
    ({"num_gpu_blocks": 1}, "num_gpu_blocks: 1 is not allowed; give a whole number of at least 2"),
    ({"block_size": math.nan}, "block_size: nan is not allowed"),
    ({"watermark": 1.0}, "watermark: 1.0 is not allowed"),
    ({"watermark": 0.1, "engine_version": "0.11.2"}, "vLLM 0.11.2 has no watermark"),
    ({"cost": "fast"}, "cost: 'fast' is no cost"),
    ({"max_seqs": 3}, "max_seqs: is no argument of `vllm`; did you mean `max_num_seqs`?"),
])
def test_vllm_refuses(arguments, message):
    with refused(message):
        deployments.vllm(**arguments)


def test_all_wrong_flags_at_once():
    with pytest.raises(ProgramError) as caught:
        deployments.vllm(max_num_seqs=0, block_size=0, watermark=-1)
    assert [p.path for p in caught.value.problems] == ["max_num_seqs", "block_size", "watermark"]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: costs.affine(base_s=-1.0), "base_s: -1.0 is not allowed"),
    (lambda: costs.affine(per_kv_tok_s=math.inf), "per_kv_tok_s: inf is not allowed"),
    (lambda: costs.affine(preempt_only_s=1.0), "preempt_only_s: 1.0 is above base_s"),
    (lambda: workloads.sessions(session_rate=0), "session_rate: 0 is not allowed"),
    (lambda: workloads.sessions(continue_probability=1.0), "1 lets no session end"),
    (lambda: workloads.sessions(first_prompt=10.5), "first_prompt: 10.5 is not allowed; give a whole number"),
    (lambda: workloads.sessions(output_len=0), "output_len: 0 is not allowed"),
    (lambda: workloads.requests(request_rate=2.0, burstiness=0.5), "burstiness: 0.5 needs gamma distributed gaps"),
    (lambda: workloads.requests(num_prompts=None), "num_prompts: without it"),
    (lambda: workloads.requests(max_concurrency=0), "max_concurrency: 0 is not allowed"),
    (lambda: workloads.from_trace([]), "trace: has no rows to replay"),
    (lambda: workloads.from_trace([traces.Request(1.0, 1, 1), traces.Request(0.5, 1, 1)]), "trace:2: at_s is 0.5"),
    (lambda: compose("vllm", workloads.sessions()), "deployment: str is not a deployment"),  # type: ignore[arg-type]
])
def test_workloads_and_costs_refuse(make, message):
    with refused(message):
        make()


# ---------------------------------------------------------------- traces

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
T = "2023-11-16 18:17:03.9799600"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_azure_has_seven_fraction_digits(tmp_path):
    path = written(tmp_path, AZURE + f"{T},10,2\r\n\n2023-11-16 18:17:04.0319601,20,3\n2023-11-17 00:00:00,5,0\n")
    trace = traces.read(path)
    assert trace.rows == (traces.Request(0.0, 10, 2), traces.Request(0.0520001, 20, 3))
    assert trace.dropped == {"zero_output": 1}


@pytest.mark.parametrize(("row", "message"), [
    (f"{T},null,2", ":3: row 2: ContextTokens is 'null', not a number"),
    (f"{T},NaN,2", "row 2: ContextTokens is NaN"),
    (f"{T},-4,2", "row 2: ContextTokens is -4, below 0"),
    (f"{T},4,inf", "row 2: GeneratedTokens is inf"),
    (f"{T},4,2.5", "row 2: GeneratedTokens is 2.5, not a whole number of tokens"),
    (f"{T},,2", "row 2: ContextTokens is missing"),
    (f"{T},4", "row 2: 2 fields instead of 3"),
    (f"{T},4,2,1", "row 2: 4 fields instead of 3"),
    ("null,4,2", "row 2: TIMESTAMP is 'null', not a time"),
    (",4,2", "row 2: TIMESTAMP is missing"),
    ("2023-11-16 18:17:03.9799599,4,2", "row 2: TIMESTAMP 2023-11-16 18:17:03.9799599 is before the row above it"),
    ("2023-13-16 18:17:03,4,2", "not a time"),
])
def test_azure_rows_that_cannot_be_read(tmp_path, row, message):
    with refused(message):
        traces.read(written(tmp_path, AZURE + f"{T},10,2\n{row}\n"))


def test_serq_sessions(tmp_path):
    path = written(tmp_path, "session,turn,new,out,think\n# note\n0,1,100,5,2.5\n0,2,30,4,0\n7,1,10,1,1\n")
    trace = traces.read(path)
    assert trace.sessions == (
        (traces.SessionTurn(100, 5, 2.5), traces.SessionTurn(30, 4, 0.0)), (traces.SessionTurn(10, 1, 1.0),))
    at_once = compose(deployments.vllm(), workloads.from_trace(trace))
    assert isinstance(at_once.arrival, Listed) and at_once.arrival.at == (0.0, 0.0)
    poisson = compose(deployments.vllm(), workloads.from_trace(trace, session_rate=0.5))
    assert poisson.trace is not None and poisson.arrivals == 2
    assert traces.read(written(tmp_path, "0,1,100,5,2.5,1\n")).sessions[0][0].forced == 1.0


@pytest.mark.parametrize(("text", "message"), [
    ("", "the file is empty"),
    (AZURE, "the trace has no rows to replay"),
    ("a,b,c\n", "unknown columns `a,b,c`"),
    ("session,turn,new,out,think\n0,1,x,5,0\n", ":2: row 1: new is 'x', not a number"),
    ("session,turn,new,out,think\n0,1,5,5,-1\n", "row 1: think is -1, below 0"),
])
def test_files_that_cannot_be_read(tmp_path, text, message):
    with refused(message):
        traces.read(written(tmp_path, text))


def test_no_such_file(tmp_path):
    with refused("there is no such file"):
        traces.read(tmp_path / "nowhere.csv")
    with refused("is a folder"):
        traces.read(tmp_path)


def test_the_azure_traces_are_read_whole():
    data = shared_dir() / "data"
    for name, rows in (("code", 8819), ("conv", 19366)):
        trace = traces.read(data / f"azure_llm_2023_{name}.csv")
        assert len(trace.rows) == rows and trace.dropped == {}
        assert trace.rows[0].at_s == 0.0


# ---------------------------------------------------------------- clients that lose patience


def test_a_client_with_a_time_limit() -> None:
    """Three clients, 201 iterations of some 14 ms a request: none is answered within 2 s, each is sent three times."""
    import oracle

    program = compose(
        deployments.vllm(max_num_seqs=4, num_gpu_blocks=400),
        workloads.requests(max_concurrency=3, num_prompts=6, input_len=500, output_len=200, timeout_s=2.0, retries=2),
    )
    assert all(state.exit.deadline is not None for state in program.states
               if isinstance(state.exit, ir.Run | ir.Enter) and state.name.startswith("vllm."))  # fmt: skip
    run = oracle.simulate(program, check=True)
    at = {name: run.samples_tick[run.samples_observe == i] / 1e9 for i, name in enumerate(program.observes)}
    assert [round(t, 9) for t in at["timeouts"]] == [2.0 * k for k in range(1, 7) for _ in range(3)]
    assert [round(t, 9) for t in at["gave_up"]] == [6.0] * 3 + [12.0] * 3
    assert run.pools[0].used_tick > 0 and run.live_at_end == 0
    patient = compose(
        deployments.vllm(max_num_seqs=4, num_gpu_blocks=400),
        workloads.requests(max_concurrency=3, num_prompts=6, input_len=500, output_len=200, timeout_s=60.0),
    )
    run = oracle.simulate(patient, check=True)
    assert not (run.samples_observe == patient.observes.index("timeouts")).any()


@pytest.mark.parametrize(("arguments", "text"), [
    ({"timeout_s": 0.0}, "timeout_s: 0.0 is not allowed"),
    ({"timeout_s": math.inf}, "timeout_s: inf is not allowed"),
    ({"timeout_s": 1.0, "retries": -1}, "retries: -1 is not allowed"),
    ({"retries": 1}, "retries: nothing is sent again without a time limit"),
])
def test_a_wrong_patience_is_named(arguments, text):
    with refused(text):
        workloads.requests(num_prompts=5, **arguments)
    with refused(text):
        workloads.sessions(**arguments)


def test_the_builder_adds_gauges_and_claims():
    b = Builder("measured")
    b.pool("kv", cap=Num(4.0))
    b.stage("gpu", ir.Delay())
    b.gauge("free", "Free(kv) / 2")
    b.claim("calm", ir.AtEnd(), "Now < 10", given="1")
    b.state("start", exit=ir.End())
    made = b.program("start", Batch(Num(1.0)))
    assert made.gauges == (ir.Gauge(name="free", value=Binary("Div", PoolState("Free", "kv"), Num(2.0))),)
    assert made.claims[0].value == Binary("Lt", Ctx("Now"), Num(10.0)) and made.claims[0].given == Num(1.0)
    with refused("two different declarations of the gauge `free`"):
        b.gauge("free", "Used(kv)")
