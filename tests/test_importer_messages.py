"""What the importer refuses and what it cannot read: one clear message each, with its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from generate import (
    W,
    add,
    at,
    ctx,
    num,
    of_pool,
    op,
    ref,
    see,
    work,
)
from importer_programs import base, block_of, insert, session_block, step, told

from serqjax import importers, ir
from serqjax.errors import ProgramError
from serqjax.importers import ir14, trace_csv

Json = Any


# ---------------------------------------------------------------- refused by name


def inserted(statement: Json) -> Callable[[Json], None]:
    return lambda tree: insert(tree, statement)


def a_hold(**fields: Json) -> Callable[[Json], None]:
    def change(tree: Json) -> None:
        row = {"pools": [[ref(0), of_pool(0, num(4)), None]], "reuse": None, "body": block_of(tree, work(1, num(1))),
               "cache": None, "lease": None}  # fmt: skip
        insert(tree, {"Hold": row | fields})

    return change


def a_run(**fields: Json) -> Callable[[Json], None]:
    def change(tree: Json) -> None:
        statement = work(1, num(1))
        statement["Run"].update(fields)
        insert(tree, statement)

    return change


SESSION, STEP = "$.blocks[3][0]", "$.stages[0].kind.Step"
SEEN = f"{SESSION}.Observe[1]"
REFUSED: dict[str, tuple[Callable[[Json], Any], str, str]] = {
    "prefix of a hold": (
        a_hold(prefix=[[num(1), num(2)]]), f"{SESSION}.Hold.prefix[0][1]", "a shared prefix that ends"),
    "prefix of a request": (
        lambda d: step(d)["request"].update(prefix=[[num(1), num(2)]]), f"{STEP}.request.prefix[0][1]", "that ends"),
    "connector": (lambda d: step(d).update(connector={"loaded": 0}), f"{STEP}.connector", "connector"),
    "poster": (a_run(poster=0), f"{SESSION}.Run.poster", "poster"),
    "leases": (lambda d: d["pools"][0].update(preempt={"Leases": {"keys": []}}), "$.pools[0].preempt.Leases", "leases"),
    "aggregate": (lambda d: step(d).update(cost={"Agg": ["Count", 0]}), f"{STEP}.cost.Agg", "aggregate"),
    "loaded": (
        lambda d: step(d)["request"].update(reuse=ctx("Loaded")), f"{STEP}.request.reuse.Ctx", "connector"),
    "trace and sessions": (lambda d: d.update(trace="t.csv"), "$.trace", "cannot be"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_yet_is_refused_by_name(name: str) -> None:
    change, path, what = REFUSED[name]
    tree = base()
    tree["blocks"][tree["session"]], old = [], tree["blocks"][tree["session"]]
    assert tree["session"] == 3, "the places below name block 3"
    tree["blocks"][tree["session"]] = old
    change(tree)
    error = told(tree)
    problem = next(p for p in error.problems if p.path == path)
    assert what in str(problem) and "cannot be" in str(problem), str(problem)


# ---------------------------------------------------------------- shapes

WRONG: dict[str, tuple[Callable[[Json], Any], str, str]] = {
    "version": (
        lambda d: d.update(version=13),
        "$.version", "IR version 13 cannot be read; this importer reads 14 and 12"),
    "no version": (lambda d: d.pop("version"), "$.version", "missing"),
    "version first": (lambda d: d.update(version="14", blocks=None), "$.version", '"14" cannot be read'),
    "spill without a stage": (
        lambda d: d["pools"][0].update(spill={"to": 1, "work": num(1), "when": num(1)}),
        "$.pools[0].spill.via", "missing"),
    "spill to nowhere": (
        lambda d: d["pools"][0].update(spill={"to": 7, "via": 0, "work": num(1), "when": num(1)}),
        "$.pools[0].spill.to", "index 7 is out of range"),
    "queue_every": (
        lambda d: d["pools"][1].update(queue_every=0.0), "$.pools[1].queue_every", "0.0 is not allowed"),
    "lease of one part": (a_hold(lease=[ref(0)]), f"{SESSION}.Hold.lease", "2"),
    "negative cap": (
        lambda d: d["pools"][0].update(cap=-5.0),
        "$.pools[0].cap", '-5.0 is not allowed; need a number >= 0 or "inf"'),
    "null cap": (lambda d: d["pools"][0].update(cap=None), "$.pools[0].cap", "null is not allowed"),
    "nan": (lambda d: d["pools"][0].update(cap=float("nan")), "$.pools[0].cap", "nan is not allowed"),
    "block": (lambda d: d["pools"][0].update(block=0), "$.pools[0].block", "0 is not allowed; need a number > 0"),
    "text for number": (lambda d: d.update(horizon="1"), "$.horizon", '"1" is not allowed'),
    "true for number": (lambda d: d.update(warmup=True), "$.warmup", "true is not allowed"),
    "horizon 0": (lambda d: d.update(horizon=0), "$.horizon", "0 is not allowed; need a number > 0"),
    "warmup": (lambda d: d.update(warmup=100.0), "$.warmup", "warmup 100 is not below the horizon 100"),
    "seed": (lambda d: d.update(seed=-1), "$.seed", "need a whole number from 0 to"),
    "arrivals": (lambda d: d.update(arrivals=5), "$.arrivals", "a number of arrivals needs open arrivals"),
    "rate": (lambda d: d.update(arrival={"Poisson": 0}), "$.arrival.Poisson", "need a number > 0"),
    "gap": (lambda d: d.update(arrival={"Renewal": num(0)}), "$.arrival.Renewal", "gap 0 is not allowed"),
    "batch": (lambda d: d.update(arrival={"Batch": 0}), "$.arrival.Batch", "from 1 to 1000000"),
    "arrival tag": (lambda d: d.update(arrival="Never"), "$.arrival", 'unknown arrival "Never"; need one of Poisson'),
    "trace": (lambda d: d.update(arrival={"Batch": 1}, trace="no.csv"), "no.csv", "the trace cannot be opened"),
    "stage tag": (lambda d: d["stages"][1].update(kind={"Lifo": 1}), "$.stages[1].kind", 'unknown stage kind "Lifo"'),
    "evict tag": (lambda d: d["pools"][0].update(evict="Mru"), "$.pools[0].evict", 'unknown eviction "Mru"'),
    "preempt tag": (lambda d: d["pools"][0].update(preempt="Some"), "$.pools[0].preempt", 'unknown preemption "Some"'),
    "two tags": (lambda d: d["stages"][1].update(kind={"Ps": 1, "Fifo": 1}), "$.stages[1].kind", "need a tag"),
    "statement tag": (inserted("Stop"), SESSION, 'unknown statement "Stop"; need one of Turn End Set'),
    "statement null": (inserted(None), SESSION, "null is not allowed here"),
    "expression tag": (inserted(see(0, {"Foo": 1})), SEEN, 'unknown expression "Foo"'),
    "context": (inserted(see(0, ctx("Then"))), f"{SEEN}.Ctx", 'unknown context variable "Then"'),
    "declared context": (inserted(see(0, ctx("HoldPosition"))), f"{SEEN}.Ctx", "unknown context"),
    "request context": (inserted(see(0, ctx("Known"))), f"{SEEN}.Ctx", "Known cannot be read here"),
    "function": (
        inserted(see(0, {"Call": ["Sin", [{"Expr": num(1)}]]})), f"{SEEN}.Call[0]", '"Sin"'),
    "arity": (
        inserted(see(0, {"Call": ["Min", [{"Expr": num(1)}]]})), f"{SEEN}.Call[1]", "need 2 items"),
    "argument": (
        inserted(see(0, {"Call": ["Used", [{"Stage": ref(0)}]]})), f"{SEEN}.Call[1][0]", '"Pool"'),
    "operator": (inserted(see(0, op("Mod", num(1), num(2)))), f"{SEEN}.Binary[0]", '"Mod"'),
    "distribution": (
        inserted(see(0, {"Sample": ["Normal", []]})), f"{SEEN}.Sample[0]", '"Normal"; need one of Exp'),
    "attribute": (inserted(see(0, at(99))), f"{SEEN}.Attr", "index 99 is out of range"),
    "observation": (inserted(see(7, num(1))), f"{SESSION}.Observe[0]", "the program has 3 observations: need 0 to 2"),
    "pool": (inserted({"Drop": ref(2)}), f"{SESSION}.Drop.base", "index 2 is out of range"),
    "stage": (a_run(stage=ref(-1)), f"{SESSION}.Run.stage.base", "index -1 is out of range"),
    "member": (
        inserted({"Drop": {"base": 0, "count": 2, "index": num(2)}}), f"{SESSION}.Drop.index", "need 0 to 1"),
    "no array": (
        inserted({"Drop": {"base": 0, "count": 2, "index": at(9)}}), f"{SESSION}.Drop.index", "are no array of 2"),
    "also": (a_run(also=[ref(9)], share="MaxMin"), f"{SESSION}.Run.also[0].base", "index 9 is out of range"),
    "share": (a_run(also=[ref(1)], share="Fair"), f"{SESSION}.Run.share", 'need "MaxMin" or "Bottleneck"'),
    "latency": (a_run(latency={"Attr": 99}), f"{SESSION}.Run.latency.Attr", "index 99 is out of range"),
    "share of version 12": (lambda d: d.update(version=12, share="Fair"), "$.share", 'need "MaxMin"'),
    "mode": (a_run(mode="Think"), f"{SESSION}.Run.mode", '"Think" is not allowed'),
    "missing field": (
        lambda d: session_block(d)[1]["Request"].pop("output"),
        "$.blocks[3][1].Request.output", "missing"),
    "block index": (lambda d: d.update(session=9), "$.session", "index 9 is out of range"),
    "block twice": (lambda d: insert(d, {"Loop": d["session"]}), f"{SESSION}.Loop", "block 3 is reached twice"),
    "turn block": (
        lambda d: (d["blocks"][1].append("End"), d["sides"][1].append(W)),
        "$.blocks[1][0]", "only Set and Observe"),
    "sides": (lambda d: d["sides"].pop(), "$.sides", "need the shape of `blocks`"),
    "side": (lambda d: d["sides"][3].pop(), "$.sides[3]", "4 sides for 5 statements"),
    "side name": (lambda d: d["sides"][3].__setitem__(0, "Client"), "$.sides[3][0]", '"Client" is not allowed'),
    "slot": (lambda d: d.update(slot_more=0), "$.slot_more", "slot 0 is already cached"),
    "hidden": (lambda d: d.update(hidden=[99]), "$.hidden[0]", "index 99 is out of range"),
    "empty hold": (a_hold(pools=[]), f"{SESSION}.Hold.pools", "a hold takes nothing"),
    "serve order": (
        lambda d: step(d).update(serve="Shortest"), f"{STEP}.serve", 'unknown order "Shortest"; need {"By": [...]} or'),
    "granule": (lambda d: step(d).update(granule=ctx("Nres")), f"{STEP}.granule", "the granule is computed; need"),
    "command": (lambda d: step(d).update(iteration=[{"Stop": {}}]), f"{STEP}.iteration[0]", 'unknown command "Stop"'),
    "branch of a body": (
        lambda d: step(d).update(iteration=[{"Branch": [num(1), [{"Serve": {}}]]}]),
        f"{STEP}.iteration[0].Branch", "need 3 items"),
    "register read": (lambda d: step(d).update(cost={"Reg": 0}), f"{STEP}.cost.Reg", "the program has 0 registers"),
    "register set": (
        lambda d: step(d).update(iteration=[{"Serve": {}}, {"Set": [0, num(1)]}]),
        f"{STEP}.iteration[1].Set[0]", "index 0 is out of range"),
    "register": (
        lambda d: d.update(registers=[{"name": "just", "stage": 9, "init": "inf"}]),
        "$.registers[0].stage", "index 9 is out of range"),
    "no request": (lambda d: step(d).pop("request"), "$.blocks[3][1].Request.stage", "stage E takes no requests"),
    "records": (lambda d: step(d)["request"].pop("records"), f"{STEP}.request.records", "missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shapes_are_named_with_their_place(name: str) -> None:
    change, path, text = WRONG[name]
    tree = base()
    change(tree)
    error = told(tree)
    problem = next((p for p in error.problems if p.path == path), None)
    assert problem is not None, str(error)
    assert text in str(problem), str(problem)


def test_all_problems_come_at_once() -> None:
    tree = base() | {"horizon": 0, "gauges": [{"name": "g"}]}
    tree["pools"][0]["cap"] = -1
    insert(tree, "Jion")
    insert(tree, see(0, at(99)))
    assert [p.path for p in told(tree).problems] == [
        "$.pools[0].cap", "$.blocks[3][0].Observe[1].Attr", "$.blocks[3][1]", "$.gauges[0].expr", "$.horizon"
    ]  # fmt: skip


def test_deep_nesting_is_a_message() -> None:
    tree = base()
    deep: Json = num(1)
    for _ in range(5000):
        deep = {"Unary": ["Neg", deep]}
    insert(tree, see(0, deep))
    assert "nested too deeply" in str(told(tree))


def test_unknown_keys_are_ignored() -> None:
    tree = base() | {"note": 1}
    tree["pools"][0]["colour"] = "red"
    step(tree)["speed"] = None
    session_block(tree)[1]["Request"]["extra"] = []
    assert ir14.read(tree) == ir14.read(base())


def test_any_part_may_be_spoilt_without_a_traceback() -> None:
    """Every value of a program replaced by others: it reads, or one ProgramError says why not."""
    original = json.dumps(base())
    places: list[tuple[Any, ...]] = []

    def collect(node: Any, path: tuple[Any, ...]) -> None:
        places.append(path)
        for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            collect(item, (*path, key))

    collect(json.loads(original), ())
    for k, path in enumerate(places[1:]):
        tree = json.loads(original)
        node = tree
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = [None, -1, "?", [], {}, 1e400, {"Num": None}, True][k % 8]
        try:
            ir14.read(tree)
        except ProgramError as error:
            assert error.problems and len(str(error)) <= 4000


# ---------------------------------------------------------------- files


def test_trace_rows() -> None:
    text = "session,turn,new,out,think\n# a comment\n1,1,10,2,0.5\n\n1,2,20,3,0,1\n4,1,5,1,0\n1,1,7,7,0\n"
    assert trace_csv.parse_trace(text, "t.csv") == (
        ((10.0, 2.0, 0.5, 0.0), (20.0, 3.0, 0.0, 1.0)), ((5.0, 1.0, 0.0, 0.0),), ((7.0, 7.0, 0.0, 0.0),)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,1,10,2", r"t.csv:2: row 2 has 4 fields; need session,turn,new,out,think\[,forced\]"),
        ("x,1,10,2,0", "t.csv:2: row 2: session 'x' is not a whole number"),
        ("1,1,10,two,0", "t.csv:2: row 2: out 'two' is not a number"),
        ("1,1,nan,2,0", "t.csv:2: row 2: new 'nan' is not a number"),
    ],
)
def test_an_unreadable_trace_row_is_named(row: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        trace_csv.parse_trace(f"session,turn,new,out,think\n{row}\n2,1,1,1,0\n", "t.csv")


def test_an_empty_trace() -> None:
    with pytest.raises(ProgramError, match="the trace has no rows"):
        trace_csv.parse_trace("# nothing\n", "t.csv")


def test_a_trace_lies_here_or_beside_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    tree = base() | {"arrival": {"Batch": 2}, "trace": "t.csv", "trace_ordered": True}
    insert(tree, see(0, add(at(3), at(4))))  # reads `new` and `out`
    (there / "program.ir14.json").write_text(json.dumps(tree))
    (there / "t.csv").write_text("1,1,10,2,0.5\n")
    monkeypatch.chdir(here)
    program = importers.read_program(there / "program.ir14.json")
    assert program.trace == ir.Trace(ordered=True, attrs=("new", "out"), turns=(((10.0, 2.0),),))
    (here / "t.csv").write_text("1,1,30,2,0.5\n")
    again = importers.read_program(there / "program.ir14.json").trace
    assert again is not None and again.turns == (((30.0, 2.0),),)


def test_read_program_tells_the_forms_apart(tmp_path: Path) -> None:
    imported = ir14.read(base())
    (tmp_path / "a.json").write_text(json.dumps(base()))
    (tmp_path / "b.json").write_text(ir.to_json(imported))
    a, b = importers.read_program(tmp_path / "a.json"), importers.read_program(str(tmp_path / "b.json"))
    assert a.name == "a" and msgspec.structs.replace(a, name="program") == b == imported


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (json.dumps(base())[:2000], "the JSON ends too early"),
        ("[]", "a program is a JSON object, not a list"),
        ("{}", 'this is no program; a serQ IR program has a field "version", an automaton "format"'),
        ('{"version": 13}', "IR version 13 cannot be read"),
        ('{"format": 7}', "format version 7 cannot be read"),
        (None, "the file cannot be opened"),
    ],
)
def test_files_that_are_no_programs(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ProgramError, match=message):
        importers.read_program(path)


def test_a_folder_and_a_needless_workload(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="this is a folder; name the program file in it"):
        importers.read_program(tmp_path)
    (tmp_path / "p.json").write_text(json.dumps(base()))
    with pytest.raises(ProgramError, match="a workload file goes with a .serq deployment"):
        importers.read_program(tmp_path / "p.json", tmp_path / "w.serq")


# ---------------------------------------------------------------- text

DEPLOYMENT = """
use "std/args";
fn main() {
  let c = args.number("c", 1);
  stage svc : fifo(c);
  server (work) {
    set t0 = now;
    run svc (cost(svc, work));
    observe response = now - t0;
  }
}
"""
WORKLOAD = """
use "std/args";
let lam = args.number("lam", 0.8);
workload {
  arrive poisson(lam);
  turn { set work = ~exp(1); }
  session { turn; }
  send (work);
}
"""


def text_files(folder: Path) -> tuple[Path, Path]:
    (folder / "mm1.serq").write_text(DEPLOYMENT)
    (folder / "load.serq").write_text(WORKLOAD)
    return folder / "mm1.serq", folder / "load.serq"


def test_text_through_pyserq(tmp_path: Path) -> None:
    pytest.importorskip("pyserq")
    program = importers.read_program(*text_files(tmp_path), sets={"lam": 0.25}, horizon_s=50, warmup_s=5, seed=3)
    assert program.name == "mm1" and program.arrival == ir.Poisson(ir.Param("arrival.rate"))
    assert program.params[0].value == 0.25
    assert (program.horizon_s, program.warmup_s, program.seed) == (ir.Num(50.0), ir.Num(5.0), 3)
    assert [s.name for s in program.states] == ["turn_svc", "end"]
    assert importers.read_program(*text_files(tmp_path)).horizon_s is None


def test_text_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment, workload = text_files(tmp_path)
    with pytest.raises(ProgramError, match="none.serq: the file cannot be opened"):
        importers.read_program(deployment, tmp_path / "none.serq")
    if "pyserq" in sys.modules or pytest.importorskip("pyserq"):
        with pytest.raises(ProgramError, match="needs a workload"):
            importers.read_program(deployment)
        with pytest.raises(ProgramError, match="unknown program argument `mu`"):
            importers.read_program(deployment, workload, sets={"mu": 1})
        (tmp_path / "bad.serq").write_text("fn main( {")
        with pytest.raises(ProgramError, match="bad.serq"):
            importers.read_program(tmp_path / "bad.serq", workload)
    monkeypatch.setitem(sys.modules, "pyserq", None)
    with pytest.raises(ProgramError) as caught:
        importers.read_program(deployment, workload)
    assert str(caught.value).splitlines() == [
        f"{deployment}: reading serQ text needs pyserq; pip install pyserq (or give the program as IR JSON)"
    ]
