"""What may be coalesced and what forbids it: the place and the words of every obstacle, and what `check` prints."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from helpers import ROOT
from test_check import BELOW, ONE, add, attr, change, engine_program, mul

import serqjax as sq
from serqjax.check import as_text, check_program, describe
from serqjax.check.licence import licence
from serqjax.importers import read_program
from serqjax.ir import expr as e
from serqjax.ir import program as p

E, COST = "$.stages[0].kind", "$.stages[0].kind.cost"
#: The amount of KV units in the header of the hold at the head of a line.
UNITS = "scopes[0].takes[1].units"
BOTH = ["windows", "at_once"]


def grows_slots() -> p.Program:
    """`prefill` grows request slots, `decode` grows KV units: two pools on one stage."""
    return change(engine_program(), ("states[1].exit.grows", "slots"))


def second_engine() -> p.Program:
    """Another step stage, with a budget that reads the clock."""
    other = p.Stage(name="F", kind=p.Step(budget=e.Ctx("Now"), cost=ONE))
    return change(engine_program(), ("stages[2]", other))


def edited(*changes: tuple[str, Any]) -> p.Program:
    return change(engine_program(), *changes)


def key(expr: e.Expr) -> p.Order:
    return p.Order(keys=(expr,), tie="queued")


#: name, program, what is forbidden, place, words
OBSTACLES: list[tuple[str, p.Program, list[str], str, str]] = [
    ("budget reads units", edited(("stages[0].kind.budget", add(e.Num(512.0), mul(BELOW, e.Ctx("Kvb"))))),
     BOTH, f"{E}.budget.b.b", "stage `E`: the budget: it reads `Kvb`, which moves from iteration to iteration"),
    ("budget reads a pool", edited(("stages[0].kind.budget", e.PoolState("Used", "kv"))),
     BOTH, f"{E}.budget", "stage `E`: the budget: it reads `Used`, which may change with every iteration"),
    ("budget draws", edited(("stages[0].kind.budget", e.Sample("Exp", (ONE,)))),
     BOTH, f"{E}.budget", "stage `E`: the budget: it draws `Exp` in every iteration"),
    ("chunk reads the clock", edited(("stages[0].kind.chunk", add(ONE, e.Ctx("Now")))),
     BOTH, f"{E}.chunk.b", "stage `E`: the chunk: it reads the clock `Now`"),
    ("cost multiplies what moves", edited(("stages[0].kind.cost", mul(e.Ctx("Kvb"), e.Ctx("Attn")))),
     ["windows"], f"{COST}.a", "the cost: it reads `Kvb`, which moves from iteration to iteration, and it "
     "multiplies `Kvb` by `Attn`"),
    ("cost draws", edited(("stages[0].kind.cost", add(ONE, e.Sample("Exp", (ONE,))))),
     ["windows"], f"{COST}.b", "stage `E`: the cost: it draws `Exp` in every iteration"),
    ("cost reads the clock", edited(("stages[0].kind.cost", add(ONE, e.Ctx("Now")))),
     ["windows"], f"{COST}.b", "stage `E`: the cost: it reads the clock `Now`"),
    ("cost of units without a block", edited(("pools[1].block", None)),
     ["windows"], f"{COST}.a.b.b.b", "it reads `Kvb`, which moves from iteration to iteration, and it reads units of "
     "the pool `kv`"),
    ("served by remaining work", edited(("stages[0].kind.serve", p.Order(keys=(e.Ctx("Remaining"),), tie="earliest"))),
     ["windows"], f"{E}.serve.keys[0]", "stage `E`: a serve key: it reads `Remaining`, which moves"),
    ("served in another order", edited(("stages[0].kind.serve", p.Order(keys=(attr("input"),), tie="earliest"))),
     ["at_once"], f"{E}.serve.keys", "stage `E`: residents are served in an order of their own"),
    ("an iteration of its own", edited(("stages[0].kind.iteration", (p.Serve(), p.Admit()))),
     BOTH, f"{E}.iteration", "stage `E`: it fills an iteration by commands of its own"),
    ("a granule", edited(("stages[0].kind.granule", e.Num(8.0))),
     ["prefills"], f"{E}.granule", "stage `E`: the last tokens of a prefill need not be a granule"),
    ("prefills that go alone", edited(("stages[0].kind.prefills", "alone")),
     ["prefills"], f"{E}.prefills", "stage `E`: a prefill takes the iteration from the decodes"),
    ("two grown pools", grows_slots(), BOTH, "$.stages[0]", "stage `E`: its runs grow several pools"),
    ("a pool without a block", edited(("pools[1].block", None)),
     ["evicts"], "$.pools[1].block", "pool `kv`: the pool has no block, so whole entries are evicted"),
    ("keyed eviction", edited(("pools[1].evict", key(e.Ctx("Size")))),
     ["evicts"], "$.pools[1].evict", "pool `kv`: entries are not evicted in release order"),
    ("a head that reads units in use", edited((UNITS, add(ONE, e.PoolState("Used", "kv")))),
     ["head_stays"], f"$.{UNITS}.b", "scope `request`: the amount of units: it reads `Used`, which may change"),
    ("a head that reads the clock", edited(("scopes[0].lets[0].value", e.Ctx("Now"))),
     ["head_stays"], "$.scopes[0].lets[0].value", "scope `request`: the let `known`: it reads the clock `Now`"),
    ("a reserve that reads free units", edited(("scopes[0].takes[1].reserve", e.PoolState("Free", "kv"))),
     ["head_stays"], "$.scopes[0].takes[1].reserve", "scope `request`: the reserve: it reads `Free`"),
    ("a line ordered by the clock", edited(("pools[0].queue", key(e.Ctx("Now")))),
     ["head_stays"], "$.pools[0].queue.keys[0]", "pool `slots`: a queue key: it reads the clock `Now`"),
    ("a line ordered by age", edited(("pools[0].queue", key(add(attr("input"), mul(BELOW, e.Ctx("Waited")))))),
     ["head_stays"], "$.pools[0].queue.keys[0].b.b", "pool `slots`: a queue key: it reads `Waited`, which moves"),
]  # fmt: skip


@pytest.mark.parametrize("case", OBSTACLES, ids=lambda case: case[0])
def test_an_obstacle_has_its_place_and_its_reason(case: tuple[str, p.Program, list[str], str, str]) -> None:
    _, program, forbids, path, words = case
    found = licence(program, 0)
    assert path in [o.path for o in found.obstacles]
    assert not any(getattr(found, part) for part in forbids)
    tree = describe(program)["stages"][0]["coalesces"]
    (obstacle,) = (o for o in tree["obstacles"] if o["path"] == path)
    assert obstacle["forbids"] == forbids and words in obstacle["problem"]
    assert all(tree[part] is False for part in forbids)
    assert f"{path}: {obstacle['problem']}" in as_text(program)
    # every refusal has a reason, and every reason refuses something
    for part in ("windows", "at_once", "prefills", "evicts", "head_stays"):
        assert (tree[part] is False) == any(part in o["forbids"] for o in tree["obstacles"])


def whole(program: p.Program, stage: int = 0) -> bool:
    found = licence(program, stage)
    return found.windows and found.at_once and found.evicts and found.head_stays and not found.obstacles


@pytest.mark.parametrize(
    "cost",
    [
        add(ONE, mul(e.Ctx("Ndec"), e.Ctx("Nres"))),  # no integer form, but it stands still
        add(ONE, e.Call("Max", (mul(e.Num(1e-3), e.Ctx("Kvb")), mul(e.Num(1e-4), e.Ctx("Attn"))))),  # kinks
        add(ONE, mul(e.PoolState("Holders", "kv"), e.Ctx("Ntok"))),
    ],
)
def test_costs_that_forbid_nothing(cost: e.Expr) -> None:
    assert whole(edited(("stages[0].kind.cost", cost)))


def test_the_whole_licence() -> None:
    assert whole(engine_program()) and licence(engine_program(), 0).pool == 1
    for version in ("0.33.0", "0.11.2"):
        for cached in (True, False):
            deployment = sq.deployments.vllm(
                engine_version=version, enable_prefix_caching=cached, long_prefill_token_threshold=64
            )
            assert whole(sq.program(deployment, sq.workloads.sessions(session_rate=0.1)))
    for kv in ("positions", "blocks"):
        deployment = sq.deployments.vllm(cost=sq.costs.affine(kv=kv))
        assert whole(sq.program(deployment, sq.workloads.requests(request_rate=1.0)))
    assert whole(read_program(ROOT / "tests" / "data" / "smoke.ir14.json"))
    lines = as_text(engine_program())
    assert "iterations of equal composition pass in one update" in lines and "stays refused" in lines


def test_each_stage_has_its_own_licence() -> None:
    program = second_engine()
    assert whole(program)
    other = licence(program, 2)
    assert not other.windows and other.obstacles[0].path == "$.stages[2].kind.budget" and other.pool == -1
    tree = describe(program)["stages"]
    assert tree[1]["coalesces"] is None and tree[2]["coalesces"]["windows"] is False
    # it grows nothing and admits nobody: no eviction and no head to speak of
    assert tree[2]["coalesces"]["evicts"] is None and tree[2]["coalesces"]["head_stays"] is None


def test_numbers_decide_nothing() -> None:
    a, b = engine_program(), edited(("pools[1].cap", e.Num(160.0)), ("stages[0].kind.budget", e.Num(1.0)))
    facts = check_program(a)
    assert facts.stages[0].licence == licence(a, 0) == licence(b, 0) and facts.stages[1].licence is None
    assert hash(facts) == hash(check_program(msgspec.structs.replace(a, horizon_s=e.Num(500.0))))
