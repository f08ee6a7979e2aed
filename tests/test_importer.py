"""The importer alone: blocks against a direct interpreter and the reference; the automaton; minimisation."""

from __future__ import annotations

import copy
import dataclasses
import json
from random import Random
from typing import Any

import numpy as np
import pytest
from block_interpreter import run_blocks
from compare_runs import compare_with_pyserq, first_difference, run_oracle, run_pyserq
from generate import (
    NAMES,
    S,
    W,
    add,
    at,
    ctx,
    draw,
    generate,
    num,
    of_pool,
    op,
    pool_state,
    put,
    ref,
    see,
    stage_state,
    work,
)
from helpers import shared_dir
from importer_programs import base, block_of, insert, session_block, step

from serqjax import ir
from serqjax.importers import ir14
from serqjax.importers.minimise import minimise
from serqjax.ir.structure import walk
from serqjax.report.compare import differences, sample_differences
from serqjax.report.raw import RawRun
from serqjax.report.reference import reference_report

Json = Any


# ---------------------------------------------------------------- the same runs


def without_confirmation(raw: RawRun) -> RawRun:
    """A run without what the client saw of first tokens.

    A decode of no tokens written by hand confirms the first token in the reference and in the block
    interpreter; the automaton has no such run.
    """
    none = np.zeros(0)
    return dataclasses.replace(
        raw, request_first=none, request_confirmed=none, request_confirm_order=none, request_tokens=none
    )


def writes_decode(tree: Json) -> bool:
    return '"mode": "Decode"' in json.dumps(tree)


def automaton_difference(tree: Json, blocks: RawRun, program: ir.Program) -> str | None:
    runs = [blocks, run_oracle(program)]
    if writes_decode(tree):
        runs = [without_confirmation(run) for run in runs]
    return first_difference(*runs)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_automaton_and_reference_run_alike(name: str) -> None:
    pytest.importorskip("pyserq")
    for k in range(2):
        tree = generate(name, Random(f"importer/{name}/{k}"))
        try:
            reference = run_pyserq(tree)
        except ValueError:
            continue  # refused by the reference: not a program
        blocks, program = run_blocks(tree)
        found = compare_with_pyserq(tree, blocks, program, reference=reference)
        assert found is None, f"blocks and reference differ on seed {k}:\n{found}"
        found = automaton_difference(tree, blocks, ir14.read(tree))
        assert found is None, f"blocks (a) and automaton (b) differ on seed {k}:\n{found}"


CORPUS = [
    "det_chunk", "det_decode_first", "det_evict_by", "det_evict_lru", "det_hol", "det_one", "det_one_cached",
    "det_over_reuse", "det_preempt_decode", "det_preempt_decode_cached", "det_preempt_none", "det_preempt_prefill",
    "det_preempt_tail", "det_queue_by", "det_reqcap", "det_reserve", "det_reserve_held", "det_self_preempt_stuck",
    "det_srpt", "flag_over_cap", "flag_rejected", "flag_growing_stalled", "grow_preempt", "nested_holds",
    "shrink", "spill_tier", "queue_every",
    "renewal_drain", "trace_ordered_batch", "trace_ordered_poisson", "trace_random", "flows_maxmin",
]  # fmt: skip
SLOW_CORPUS = ["hold_engine", "hold_engine_cached", "text_vllm", "vllm_single_chunked", "vllm_multi_tight", "mg1_h2"]


@pytest.mark.parametrize("name", [*CORPUS, *[pytest.param(n, marks=pytest.mark.slow) for n in SLOW_CORPUS]])
def test_corpus(name: str) -> None:
    folder = shared_dir() / "programs" / name
    tree = json.loads((folder / "program.ir14.json").read_text())
    blocks, program = run_blocks(tree, folder)
    found = sample_differences(program, blocks, json.loads((folder / "samples.json").read_text()))
    found += differences(reference_report(program, blocks), json.loads((folder / "report.json").read_text()))
    assert not found, "blocks and stored run differ:\n" + "\n".join(found)
    found = automaton_difference(tree, blocks, ir14.read(tree, directory=folder))
    assert found is None, f"blocks (a) and automaton (b) differ:\n{found}"


def request_program(turns: list[tuple[float, float]], count: int = 1, cap: float = 4000.0, block: float = 1.0,
                    reuse: Json = None, cache: Json = None) -> Json:  # fmt: skip
    """Sessions that ask one after another, with what they find in the cache in between."""
    tree = base()
    tree["attr_types"] = ["Value", *["Size"] * 7, "Value", "Size", "Size", *["Value"] * 4]
    tree["pools"][0].update(cap=cap, block=block)
    spec = step(tree)["request"]
    for key, value in (("reuse", reuse), ("cache", cache)):
        spec.pop(key)
        if value is not None:
            spec[key] = value
    rows = [[put(9, num(a)), put(10, num(b)), {"Request": {"stage": ref(0), "input": at(9), "output": at(10)}},
             see(2, pool_state("CachedIn", 0)), see(2, at(11)), see(2, ctx("Now"))] for a, b in turns]  # fmt: skip
    statements = [work(1, num(1)), *[s for row in rows for s in row]]
    tree["blocks"] = [[], [], statements]
    tree["sides"] = [[], [], [W if "Set" in s else S for s in statements]]
    tree["session"] = 2
    tree["arrival"] = {"Batch": count}
    return tree


KNOWN = ctx("Known")
LATER = {"Cond": [ctx("Finished"), num(20), op("Sub", KNOWN, num(3))]}
REQUESTS = {
    "no input": request_program([(0, 5), (0, 1), (3, 1)], cache=KNOWN),
    "no input, preempted": request_program([(0, 18)], 2, 33.0, cache=op("Sub", KNOWN, num(10))),
    "preempted twice": request_program([(5, 30)], 3, 48.0, cache=op("Sub", KNOWN, num(3))),
    "known at the end": request_program([(10, 5), (10, 1)], cache=op("Sub", KNOWN, num(3))),
    "negative cache": request_program([(0, 1)], cache=op("Sub", KNOWN, num(3))),
    "negative reuse": request_program([(9, 2), (9, 3)], cache=KNOWN, reuse=op("Sub", KNOWN, num(100))),
    "entry above the input": request_program([(96, 4), (40, 4), (40, 1), (99, 4)], cache=op("Sub", KNOWN, num(9))),
    "long entry, preempted": request_program([(20, 1), (5, 8)], 2, 44.0, cache=LATER),
    "long entry, no input, preempted": request_program([(20, 1), (0, 8)], 2, 43.0, cache=LATER),
    "nothing computed": request_program([(10, 1), (10, 1), (10, 1)], cache=num(64)),
    "another pool's entry": request_program([(10, 1), (10, 1), (25, 1), (10, 2)], 3, 40.0, cache=KNOWN),
}


def without_memory() -> Json:
    tree = request_program([(9, 2), (9, 3)], cache=KNOWN)
    step(tree)["memory"] = None
    return tree


def memory_not_taken() -> Json:
    tree = request_program([(9, 2), (9, 3)], cache=KNOWN)
    step(tree)["request"]["pools"].pop()
    return tree


def hit_without_cache() -> Json:
    tree = request_program([(9, 2), (9, 3)])
    step(tree)["request"]["pools"][1][1] = add(KNOWN, ctx("Hit"))
    body = block_of(tree, work(1, num(1)))
    insert(tree, {"Hold": {"pools": [[ref(0), of_pool(0, num(64)), None]], "reuse": None, "body": body,
                           "cache": of_pool(0, num(64)), "lease": None}})  # fmt: skip
    return tree


REQUESTS |= {"without memory": without_memory(), "memory not taken": memory_not_taken(), "hit": hit_without_cache()}
REQUESTS |= {f"error {a}/{b}": request_program([(a, b)]) for a, b in ((-5, 3), (5, 0), (5, -1))}


@pytest.mark.parametrize("name", REQUESTS)
def test_corners_of_a_request(name: str) -> None:
    """What semantics.md leaves open, as the reference does it."""
    pytest.importorskip("pyserq")
    tree = REQUESTS[name]
    reference = run_pyserq(tree)
    assert (reference.error is not None) == name.startswith("error"), reference.error
    blocks, program = run_blocks(tree)
    found = compare_with_pyserq(tree, blocks, program, reference=reference)
    assert found is None, f"blocks and reference differ:\n{found}"
    imported = ir14.read(tree)
    found = compare_with_pyserq(tree, run_oracle(imported), imported, reference=reference)
    assert found is None, f"automaton and reference differ:\n{found}"


# ---------------------------------------------------------------- what the automaton looks like


def test_an_engine_program_reads_aloud() -> None:
    program = ir14.read(base())
    names = [s.name for s in program.states]
    assert names == [
        "turn_E_queue", "E_prefill", "branch", "E_decode", "E_leave", "branch_2", "tool", "end", "E_nothing"
    ]  # fmt: skip
    (scope,) = program.scopes
    assert scope.name == "E.request" and scope.reentry == "E_prefill" and scope.parent is None
    assert [t.pool for t in scope.takes] == ["reqs", "kv"]
    assert {p.name: p.value for p in program.params} == {"kv.cap": 640.0, "reqs.cap": 4.0}
    assert program.pools[0].cap == ir.Param("kv.cap") and program.pools[0].block == ir.Num(16.0)
    lifo = ir.Order(keys=(ir.Unary("Neg", ir.Ctx("Admission")),), tie="latest")
    assert program.pools[0].preempt == ir.Preempt(order=lifo)
    assert program.pools[1].admit_via == "E" and program.pools[1].preempt is None
    assert program.stages[1].kind == ir.Delay()
    assert isinstance(program.stages[0].kind, ir.Step) and program.stages[0].kind.chunk == ir.Num(0.0)
    assert ir.from_json(ir.to_json(program)) == program


def test_sessions_are_listed_with_the_columns_they_use() -> None:
    tree = base()
    rows = tree["arrival"]["Sessions"]
    rows[1] = {"attrs": [[9, 1.0], [9, 2.0]], "turns": [[[10, 4.0]]]}
    arrival = ir14.read(tree).arrival
    assert arrival == ir.Listed(
        at=(0.0, 0.0), attrs=("n",), values=((None,), (2.0,)), turn_attrs=("n", "o"),
        turns=(((50.0, 3.0), (60.0, 1.0)), ((None, 4.0),)),
    )  # fmt: skip
    for row in rows:
        row.pop("turns")
    arrival = ir14.read(tree).arrival
    assert isinstance(arrival, ir.Listed) and arrival.turns == () and arrival.turn_attrs == ()


@pytest.mark.parametrize(
    ("arrival", "expected"),
    [
        ({"Poisson": 0.5}, ir.Poisson(ir.Param("arrival.rate"))),
        ({"Renewal": draw("Erlang", 2, 1.5)}, ir.Renewal(ir.Sample("Erlang", (ir.Num(2.0), ir.Num(1.5))))),
        ({"Closed": 3}, ir.Closed(ir.Num(3.0))),
        ({"Batch": 4}, ir.Batch(ir.Num(4.0))),
        ("None", ir.NoArrival()),
    ],
)
def test_arrivals(arrival: Json, expected: ir.Arrival) -> None:
    program = ir14.read(base() | {"arrival": arrival})
    assert program.arrival == expected
    if isinstance(expected, ir.Poisson):
        assert ir.Parameter(name="arrival.rate", value=0.5, unit="1/s") in program.params


@pytest.mark.parametrize(
    ("units", "reserve", "expected"),
    [
        (num(3), None, ir.Num(3.0)),
        (at(9), num(5), ir.Call("Max", (ir.Attr("n"), ir.Num(5.0)))),
        (add(at(9), {"Binary": ["Mul", num(0), ctx("Now")]}), None, "wait"),
        (pool_state("Used", 0), at(9), ir.Attr("n")),
        (stage_state("BudgetLeft", 0), pool_state("CachedIn", 0), "wait"),
        (add(num(1), draw("Exp", 1.0)), None, "wait"),
        (at(8), None, ir.Attr("computed")),
    ],
)
def test_only_amounts_that_cannot_move_reject(units: Json, reserve: Json, expected: Any) -> None:
    tree = base()
    body = block_of(tree, work(1, num(1)))
    pools = [[ref(0), of_pool(0, units), None if reserve is None else of_pool(0, reserve)]]
    insert(tree, {"Hold": {"pools": pools, "reuse": None, "body": body, "cache": None, "lease": None}})
    scope = next(s for s in ir14.read(tree).scopes if s.name == "hold")
    assert scope.takes[0].oversize == expected


def test_known_is_measured_as_of_the_admission_and_hit_moves() -> None:
    tree = base()
    take = ir14.read(tree).scopes[0].takes[1]
    assert take.units == ir.Attr("E.known") and take.oversize != "wait"
    assert ir.Attr("computed") in [node for _, node in walk(take.oversize)]
    for name in ("Hit", "Requeued"):
        step(tree)["request"]["pools"][1][1] = ctx(name)
        assert ir14.read(tree).scopes[0].takes[1].oversize == "wait"


def test_responses_stand_before_what_the_workload_does() -> None:
    """After a turn: before the guard, and nowhere where no turn can be open."""
    program = ir14.read(base())
    places = [s.name for s in program.states for o in s.ops if isinstance(o, ir.Respond)]
    assert places == ["branch_2"]
    tree = base()
    insert(tree, work(1, num(2)), W)  # before any turn
    insert(tree, see(2, num(1)), W)
    again = ir14.read(tree)
    assert [s.name for s in again.states for o in s.ops if isinstance(o, ir.Respond)] == ["branch_2"]


def test_an_output_that_is_hidden_stays_hidden() -> None:
    program = ir14.read(base() | {"hidden": [10]})
    assert {a.name for a in program.attrs if a.hidden} == {"o", "E.output"}


def test_array_members_and_equal_names() -> None:
    tree = base()
    tree["attrs"][11:13] = ["x", "x"]
    tree["pools"] += [dict(tree["pools"][1], name="rep", index=i, cap="inf", admit_via=None) for i in range(2)]
    third = {"base": 2, "count": 2, "index": num(1)}
    computed = {"base": 2, "count": 2, "index": at(1)}
    insert(tree, {"Drop": third})
    insert(tree, {"Drop": computed})
    program = ir14.read(tree)
    assert [p.name for p in program.pools] == ["kv", "reqs", "rep[0]", "rep[1]"]
    assert (program.pools[3].array, program.pools[3].index, program.pools[3].cap) == ("rep", 1, ir.Inf())
    drops = [o.pool for s in program.states for o in s.ops if isinstance(o, ir.Drop)]
    assert drops == [ir.Member("rep", ir.Attr("serial")), "rep[1]"]
    assert "x" in [a.name for a in program.attrs]  # the second, `x_2`, is set and never read
    tree["attrs"][9] = "cached"
    assert "cached_2" in [a.name for a in ir14.read(tree).attrs]


def test_a_request_on_a_computed_member_is_chosen_by_branches() -> None:
    tree = base()
    first = tree["stages"].pop(0)
    tool = tree["stages"].pop()
    tree["stages"] = [dict(copy.deepcopy(first), name="E", index=i) for i in range(2)] + [tool]
    member = {"base": 0, "count": 2, "index": at(9)}
    text = json.dumps(tree["blocks"]).replace('"base": 1, "count": 1', '"base": 2, "count": 1')
    tree["blocks"] = json.loads(text)
    for block in tree["blocks"]:
        for statement in block:
            if isinstance(statement, dict) and "Request" in statement:
                statement["Request"]["stage"] = member
    program = ir14.read(tree)
    assert {s.name for s in program.scopes} == {"E[0].request", "E[1].request"}
    tests = [s.exit.test for s in program.states if isinstance(s.exit, ir.Branch)]
    assert ir.Binary("Eq", ir.Attr("E.member"), ir.Num(1.0)) in tests
    requires = [o.problem for s in program.states for o in s.ops if isinstance(o, ir.Require)]
    assert "an index of `E` is not a whole number from 0 to 1" in requires


def test_version_12() -> None:
    tree = base() | {"version": 12, "share": "MaxMin"}
    tree["stages"][1]["kind"] = "Delay"
    step(tree)["cost"] = {"Call": ["Pow", [{"Expr": num(2)}, {"Expr": num(3)}]]}
    program = ir14.read(tree)
    assert program.stages[1].kind == ir.Delay()
    assert isinstance(program.stages[0].kind, ir.Step)
    assert program.stages[0].kind.cost == ir.Binary("Pow", ir.Num(2.0), ir.Num(3.0))


def test_runs_over_several_stages_are_imported() -> None:
    tree = base()
    for stage in tree["stages"][1:]:
        stage["kind"] = {"Ps": num(2)}
    tree["stages"].append({"name": "link", "kind": {"Ps": num(3)}})
    run = {"Run": {"stage": ref(1), "mode": "Plain", "work": num(4), "growing": None, "also": [ref(2)],
                   "share": "Bottleneck", "latency": num(0.5)}}  # fmt: skip
    insert(tree, run)

    def imported(tree: Any) -> ir.Run:
        exits = [state.exit for state in ir14.read(tree).states]
        return next(exit for exit in exits if isinstance(exit, ir.Run) and exit.also)

    found = imported(tree)
    assert (found.stage, found.also, found.share) == (tree["stages"][1]["name"], ("link",), "Bottleneck")
    assert found.latency == ir.Num(0.5)
    del run["Run"]["share"]  # version 12 says it once for the program
    assert imported(tree | {"version": 12, "share": "MaxMin"}).share == "MaxMin"


def test_processor_sharing_is_imported() -> None:
    tree = base()
    tree["stages"][1]["kind"] = {"Ps": {"Call": ["Min", [{"Expr": ctx("N")}, {"Expr": num(4)}]]}}
    assert ir14.read(tree).stages[1].kind == ir.ProcessorSharing(ir.Call("Min", (ir.Ctx("N"), ir.Num(4.0))))


# ---------------------------------------------------------------- minimisation


MINIMISED = ["sessions", "two_turns_cached", "hold_cached", "nested", "control", "two_engines_routed", "grow_tail",
             "two_engines_split", "trace_batch", "draws", "closed_network"]  # fmt: skip


@pytest.mark.parametrize("name", MINIMISED)
def test_minimisation_changes_no_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = generate(name, Random(f"minimise/{name}"))
    small = ir14.read(tree)
    monkeypatch.setattr(ir14, "minimise", lambda program: program)
    large = ir14.read(tree)
    monkeypatch.undo()
    assert len(small.states) <= len(large.states)
    found = first_difference(run_oracle(small), run_oracle(large))
    assert found is None, f"minimised (a) and as written (b) differ:\n{found}"
    assert minimise(small) == small
    assert not any(isinstance(s.exit, ir.Goto) for s in small.states)


def test_copies_of_a_turn_become_one() -> None:
    assert len(ir14.read(base()).scopes) == 1
    tree = base()
    inner = session_block(tree)[3]["While"][1]
    tree["blocks"][inner][2]["Request"]["output"] = add(at(10), num(1))  # now the copies differ
    assert [s.name for s in ir14.read(tree).scopes] == ["E.request"]  # in what is asked, not in what is held
    tree["blocks"][inner][2]["Request"]["output"] = at(10)
    tree["blocks"][inner][3] = see(2, num(3))
    assert len(ir14.read(tree).scopes) == 2  # they go on differently


def test_a_loop_of_nothing_is_kept_as_it_is() -> None:
    """`check` names it: the importer must not run for ever on it."""
    tree = base()
    empty = block_of(tree)
    insert(tree, {"Loop": empty})
    program = ir14.read(tree)
    assert [s.exit for s in program.states] == [ir.Goto("goto")]
