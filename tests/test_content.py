"""Pools whose blocks are shared by content: against a plain model of vLLM, by hand, and what is refused."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import msgspec
import pytest
from compare_runs import as_program, compare_with_pyserq, first_difference, run_engine, run_oracle, run_pyserq
from generate_rest import held_chain
from ir14_builder import SERIAL, add, at, call, ctx, mul, num, op, sub
from test_cases import unit_engine

import serqjax as sq
from serqjax.builder import parse
from serqjax.check import find_problems, unsupported
from serqjax.check.licence import licence
from serqjax.ir import Attr, Binary, Drop, Inf, Listed, Num, Order, Program, Recorded, Segment
from serqjax.ir.codec import from_json, to_json
from serqjax.report.reference import reference_report
from tests.helpers import ROOT
from tests.vllm_model import Engine, Request

sys.path.insert(0, str(ROOT / "experiments"))
import vllm_scenario  # noqa: E402

SPAN = 16
END = {"Num": "inf"}


# ---------------------------------------------------------------- as vLLM


def program_of(requests: list[Request], version: str, **flags: int) -> Program:
    """The vLLM deployment with these requests: the tokens of a group, then recorded contents, then their own."""
    rows = [
        {"prompt": r.prompt, "out": r.out, "arrive": r.arrive, "prefix": {"group": r.group, "len": r.prefix}}
        for r in requests
    ]
    rows[0]["prefix"]["len"] = max(1, rows[0]["prefix"]["len"])  # so that the pool is one that shares
    program, _ = vllm_scenario.program_of({"clock": "steps", "requests": rows, **flags}, version)
    assert isinstance(program.arrival, Listed)
    after = Binary("Sub", Attr("new"), Attr("prefix"))
    pools = tuple(
        msgspec.structs.replace(
            pool, content=(*pool.content, Recorded(span=Num(float(requests[0].span)), length=after))
        ) if pool.sharing == "content" else pool
        for pool in program.pools
    )  # fmt: skip
    values = tuple((*row[:-2], float(r.group), float(r.prefix)) for row, r in zip(program.arrival.values, requests))
    arrival = msgspec.structs.replace(program.arrival, values=values, contents=tuple(r.ids for r in requests))
    program = msgspec.structs.replace(program, pools=pools, arrival=arrival)
    sq.check(program)
    return program


def generated(seed: int) -> tuple[list[Request], dict[str, int]]:
    """Requests that branch off from each other's prompts, in an engine that has little room."""
    rng = Random(seed)
    block = rng.choice([2, 4, 8, 16])
    flags = {
        "budget": rng.choice([8, 16, 40, 200]), "max_seqs": rng.choice([2, 4, 8]), "block_size": block,
        "num_blocks": 1 + rng.choice([160, 240, 480, 2000]) // block,
    }  # fmt: skip
    requests: list[Request] = []
    next_id = 10**12 if rng.random() < 0.3 else 0
    for i in range(rng.randint(4, 14)):
        ids: list[int] = []
        group, prefix = rng.randint(0, 1), rng.choice([0, 0, rng.randint(1, 40)])
        if requests and rng.random() < 0.7:
            other = rng.choice(requests)
            group, prefix = other.group, other.prefix
            ids = list(other.ids[: rng.randint(0, len(other.ids))])
        new = rng.randint(0 if ids else 1, 4)
        least = len(ids) * SPAN if not new else (len(ids) + new - 1) * SPAN + 1  # only a new id may be of a part
        ids += range(next_id, next_id + new)
        next_id += new
        prompt = prefix + rng.randint(least, len(ids) * SPAN + rng.choice([0, 0, 20]))
        requests.append(Request(i, 0, prompt, rng.randint(1, 20), tuple(ids), SPAN, group, prefix))
    arrives = sorted(rng.randint(0, 30) for _ in requests)
    for r, arrive in zip(requests, arrives):
        r.arrive = arrive
    return requests, flags


def version_of(seed: int) -> str:
    return "0.11.2" if seed % 3 == 0 else "0.33.0"


def model_of(seed: int, version: str) -> Engine:
    """The engine of `generated` as the model."""
    flags = generated(seed)[1]
    return Engine(
        budget=flags["budget"], max_seqs=flags["max_seqs"], block=flags["block_size"], num_blocks=flags["num_blocks"],
        in_order=version == "0.11.2",
    )  # fmt: skip


def test_generated_requests_hit_what_the_model_says():
    import oracle

    found = preempted = compared = 0
    for seed in range(60):
        version = version_of(seed)
        requests, flags = generated(seed)
        if not model_of(seed, version).run(requests, 3000):
            continue
        program = program_of(requests, version, **flags)
        run = sq.Run(program, oracle.simulate(program, trace=True, check=seed % 10 == 0))
        hits: dict[int, list[float]] = {r.name: [] for r in requests}
        for row in run.samples.iter_rows(named=True):
            if row["observation"] == "vllm.reused":
                hits[row["session"]].append(row["value"])
        admitted: dict[int, list[int]] = {r.name: [] for r in requests}
        for _, time_s, kind, serial, place, _ in run.actions:
            if kind == "admit" and place == "kv":
                admitted[serial].append(round(time_s))
        for r in requests:
            assert list(zip(admitted[r.name], hits[r.name])) == r.admissions, (seed, r.name)
            found += sum(cached for _, cached in r.admissions)
            preempted += len(r.admissions) - 1
        compared += 1
    assert compared > 50 and found > 5_000 and preempted > 15


def reused(requests: list[dict[str, Any]], **flags: Any) -> list[list[int]]:
    """Tokens that each request found at its admissions."""
    scenario = {"name": "by hand", "clock": "steps", "budget": 200, "max_seqs": 8, "block_size": 16,
                "num_blocks": 101, "requests": requests, **flags}  # fmt: skip
    (result,) = vllm_scenario.answers([scenario], "0.33.0", "oracle")
    assert isinstance(result, dict)
    return [[a["cached"] for a in r["admissions"]] for r in result["requests"]]


def asks(prompt: int, arrive: int, length: int, group: int = 1, out: int = 3) -> dict[str, Any]:
    return {"prompt": prompt, "out": out, "arrive": arrive, "prefix": {"group": group, "len": length}}


def test_blocks_are_found_in_the_step_that_schedules_them():
    """The real scheduler's answers (x03 of the recordings)."""
    assert reused([asks(100, 0, 80), asks(90, 0, 80), asks(100, 0, 50)]) == [[0], [80], [48]]


def test_the_whole_prompt_is_never_found():
    """As recorded (x02): of 64 known tokens at most 48 are found, of 65 all 64."""
    assert reused([asks(64, 0, 64), asks(64, 10, 64), asks(65, 20, 64)]) == [[0], [48], [64]]


def test_groups_and_lengths_part():
    """Another group shares nothing; a block with a token of one's own is one's own, and so is all that follows."""
    assert reused([asks(64, 0, 64), asks(64, 10, 64, group=2), asks(64, 20, 40), asks(64, 30, 64)]) == [
        [0], [0], [32], [48]]  # fmt: skip


def test_the_gate_counts_a_block_once():
    """Ten blocks. The first request holds seven and decodes; the second knows six blocks' worth, of which five are held
    by the first: it needs one more and comes in at once. Without a common prefix it waits."""
    first, second = asks(100, 0, 80, out=10), asks(90, 2, 80, out=2)
    scenario = {"name": "gate", "clock": "steps", "budget": 200, "max_seqs": 8, "block_size": 16, "num_blocks": 11}
    (shares,) = vllm_scenario.answers([{**scenario, "requests": [first, second]}], "0.33.0", "oracle")
    apart = {**second, "prefix": {"group": 2, "len": 80}}
    (waits,) = vllm_scenario.answers([{**scenario, "requests": [first, apart]}], "0.33.0", "oracle")
    assert isinstance(shares, dict) and isinstance(waits, dict)
    assert shares["requests"][1]["admissions"] == [{"step": 2, "cached": 80, "to_compute": 10}]
    assert waits["requests"][1]["admissions"] == [{"step": 10, "cached": 0, "to_compute": 90}]


# ---------------------------------------------------------------- the program as data


def content_program() -> Program:
    requests, flags = generated(1)
    return program_of(requests, "0.33.0", **flags)


def changed(**fields: Any) -> Program:
    program = content_program()
    pools = [msgspec.structs.replace(p, **fields) if p.name == "kv" else p for p in program.pools]
    return msgspec.structs.replace(program, pools=tuple(pools))


def test_a_program_is_read_back():
    program = content_program()
    assert from_json(to_json(program)) == program


def dropping() -> Program:
    program = content_program()
    states = [
        msgspec.structs.replace(s, ops=(Drop("kv"), *s.ops)) if s.name == "vllm.admitted" else s for s in program.states
    ]
    return msgspec.structs.replace(program, states=tuple(states))


def recorded(**fields: Any) -> Program:
    program = content_program()
    return msgspec.structs.replace(program, arrival=msgspec.structs.replace(program.arrival, **fields))


KEY = Attr("group")


@pytest.mark.parametrize(("make", "path", "text"), [
    (lambda: changed(sharing="own"), "$.pools[1].content", "nobody shares them"),
    (lambda: changed(block=None), "$.pools[1].block", "has no `block`"),
    (lambda: changed(cap=Inf()), "$.pools[1].cap", "of which there are so many"),
    (lambda: changed(evict=Order(keys=(KEY,), tie="released")), "$.pools[1].evict", "in the order of their release"),
    (lambda: changed(on_end="free"), "$.pools[1].on_end", "no entry of its own to free"),
    (lambda: changed(content=(Segment(key=KEY), Segment(key=KEY))), "$.pools[1].content[0].length", "without an end"),
    (lambda: changed(content=(Segment(key=KEY, length=Num(-1.0)),)), "$.pools[1].content[0].length", "is -1 units"),
    (lambda: changed(content=(Segment(key=Attr("nobody")),)), "$.pools[1].content[0].key", "is not declared"),
    (lambda: changed(content=(Segment(key=Attr("out")),)), "$.pools[1].content[0].key", "hidden attribute"),
    (lambda: changed(content=(Recorded(span=Num(0.5), length=Num(1.0)),)), "$.pools[1].content[0].span", "0.5 units"),
    (lambda: changed(content=(Recorded(span=Num(1.0), length=Num(1.0)),) * 2), "$.pools[1].content[1]", "twice"),
    (lambda: recorded(contents=()), "$.pools[1].content[1]", "none are recorded"),
    (lambda: recorded(contents=((1,),)), "$.arrival.contents", "1 rows of contents"),
    (lambda: recorded(contents=((2**64,),) * len(generated(1)[0])), "$.arrival.contents[0]", "more than 64 bits"),
    (dropping, "$.states", "drops the session's entry"),
])  # fmt: skip
def test_what_cannot_share_is_refused(make, path, text):
    problems = find_problems(make())
    assert any(p.path.startswith(path) and text in p.problem for p in problems), [str(p) for p in problems]


def test_iterations_are_not_coalesced():
    program = content_program()
    found = licence(program, 0)
    assert not found.windows and not found.at_once
    assert any("shared by content" in o.reason for o in found.obstacles)


def test_the_array_engine_refuses_by_name():
    """A look-up for each of many sessions at once, and two holds inside each other."""
    program = content_program()
    queue = Order(keys=(parse("CachedIn(kv)"),), tie="queued")
    pools = (msgspec.structs.replace(program.pools[0], queue=queue), *program.pools[1:])
    (problem,) = unsupported(msgspec.structs.replace(program, pools=pools))
    assert "`CachedIn` of blocks shared by content" in problem.problem
    assert unsupported(program) == []


# ---------------------------------------------------------------- chains of IR 14


def chained(rows: list[Any], prefix: Any, blocks: int = 400) -> Any:
    """Engine U with a chain of prefixes, its hits of whole blocks below the last token."""
    whole = mul(call("Floor", op("Div", sub(ctx("Known"), num(1)), num(16))), num(16))
    made = unit_engine(
        rows, cache=add(ctx("Input"), ctx("Output")), reuse=whole, block=16, budget=64, blocks=blocks, horizon=2000.0
    )
    made["stages"][0]["kind"]["Step"]["request"]["prefix"] = prefix
    return made


THREE = [(100, 2, 0), (130, 2, 50), (60, 2, 100)]


@pytest.mark.parametrize(("prefix", "hits"), [
    ([[num(7), num(48)], [at(SERIAL), END]], [0, 48, 48]),
    ([[num(7), num(40)], [at(SERIAL), END]], [0, 32, 32]),
    ([[num(7), END]], [0, 96, 48]),
])  # fmt: skip
def test_three_runs_of_the_reference(prefix, hits):
    program = as_program(chained(THREE, prefix))
    raw = run_oracle(program)
    assert raw.samples_value[raw.samples_observe == program.observes.index("reused")].tolist() == hits


def test_sessions_that_do_not_overlap_run_as_in_the_reference():
    pytest.importorskip("pyserq")
    for seed in range(12):
        rng = Random(seed)
        rows: list[Any] = []
        for i in range(rng.randint(3, 7)):
            turns = [(rng.randint(5, 200), rng.randint(1, 30), 200.0 * i)]
            for _ in range(rng.randint(0, 2)):
                turns.append((sum(turns[-1][:2]) + rng.randint(1, 40), rng.randint(1, 20), float(rng.randint(1, 10))))
            rows.append(turns)
        prefix = rng.choice([[[num(7), num(16 * rng.randint(1, 6))], [at(SERIAL), END]], [[num(7), END]]])
        source = chained(rows, prefix, blocks=rng.choice([20, 40, 400]))
        program = as_program(source)
        found = compare_with_pyserq(source, run_oracle(program), program)
        # the reference counts segments that are gone, not blocks
        lines = [line for line in (found or "").splitlines() if "evicted_entries" not in line]
        assert not lines, (seed, lines)


def test_a_shared_part_that_ends_inside_a_block_counts_once_in_the_reference():
    """Every field agrees but `mean_cached`: copies of that block after the first, times the shared units in it."""
    pytest.importorskip("pyserq")
    twice = 0
    for seed in range(40):
        source = held_chain(Random(seed), shared=range(1, 21))
        program = as_program(source)
        pool = program.pools[0]
        assert isinstance(pool.content[0], Segment) and isinstance(pool.content[0].length, Num)
        length, block = int(pool.content[0].length.value), 4
        inside, end = length % block, (length // block + 1) * block
        # Sessions follow each other: from the end of its first hold on, each that keeps the block has a copy of it.
        rows = [[value for _, value in row["attrs"]] for row in source["arrival"]["Sessions"]]
        copies = [start + 1 for start, units in rows if inside and units >= end]
        more = inside * sum(100.0 - since for since in sorted(copies)[1:]) / 100.0
        twice += more > 0
        run, told = run_oracle(program), run_pyserq(source)
        (found,) = told.report["pools"]
        assert reference_report(program, run)["pools"][0]["mean_cached"] == pytest.approx(found["mean_cached"] + more)
        assert compare_with_pyserq(
            source, run, program, reference=told, exceptions={"pools[0].mean_cached": "counted by blocks here"}
        ) is None  # fmt: skip
    assert twice >= 10


@pytest.mark.parametrize(("prefix", "text"), [
    ([[num(7), num(48)]], "a shared prefix that ends cannot be run yet"),
    ([[num(7), END], [num(8), END]], "only the last length of a prefix is inf"),
])  # fmt: skip
def test_chains_that_are_refused(prefix, text):
    with pytest.raises(sq.ProgramError, match=text):
        as_program(chained(THREE, prefix))


# ---------------------------------------------------------------- the array engine


def compare_engine(seeds: list[int], version: str) -> None:
    programs = [made(seed, version) for seed in seeds]
    for seed, program, run in zip(seeds, programs, run_engine(programs), strict=True):
        found = first_difference(run, run_oracle(program))
        assert found is None, f"seed {seed}: engine (a) and oracle (b) differ:\n{found}"


def made(seed: int, version: str) -> Program:
    requests, flags = generated(seed)
    return program_of(requests, version, **flags)


def test_engine_equals_the_oracle():
    """Runs that end: what a line needs at the end is another compilation."""
    ending = [seed for seed in range(24) if model_of(seed, "0.33.0").run(generated(seed)[0], 3000)]
    compare_engine(ending[:16], "0.33.0")


def overlapping(seed: int) -> Any:
    """Sessions of engine U that use a common prefix at the same time."""
    rng = Random(seed)
    rows: list[Any] = []
    for _ in range(rng.randint(3, 7)):
        turns = [(rng.randint(5, 120), rng.randint(1, 30), float(rng.randint(0, 40)))]
        for _ in range(rng.randint(0, 2)):
            turns.append((sum(turns[-1][:2]) + rng.randint(1, 40), rng.randint(1, 20), float(rng.randint(1, 10))))
        rows.append(turns)
    prefix = [[num(7), num(rng.choice([16, 40, 48, 64]))], [at(SERIAL), END]]
    return chained(rows, prefix, blocks=rng.choice([16, 20, 40, 400]))


@pytest.mark.slow
def test_chains_run_in_the_array_engine():
    """Blocks that are found when they are released."""
    programs = [as_program(overlapping(seed)) for seed in range(32)]
    for seed, program, run in zip(range(32), programs, run_engine(programs), strict=True):
        found = first_difference(run, run_oracle(program))
        assert found is None, f"seed {seed}: engine (a) and oracle (b) differ:\n{found}"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.33.0", "0.11.2"])
def test_engine_equals_the_oracle_on_many(version):
    compare_engine(list(range(100, 400)), version)
