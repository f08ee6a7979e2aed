"""A small IR 14 program that uses a little of everything, and changes to it."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest
from generate import DELAY, LIFO, Body, Builder, S, W, add, at, ctx, num, ref, see, work

from serqjax.errors import ProgramError
from serqjax.importers import ir14

Json = Any


def base() -> Json:
    """One engine with a request of two pools, a delay, two turns; every part that the tests below change."""
    b = Builder()
    n, o, first = b.attr("n", "Size"), b.attr("o", "Size"), b.attr("first")
    kv = b.pool("kv", 640.0, 16.0, preempt=LIFO)
    slots = b.pool("reqs", 4.0, admit_via=0)
    request = {
        "pools": [[ref(slots), num(1), None], [ref(kv), ctx("Known"), None]],
        "reuse": ctx("Input"), "cache": add(ctx("Input"), ctx("Output")),
        "records": {"reused": b.observe("reused"), "prefill": b.observe("prefill"), "admitted": b.attr("adm"),
                    "first": first, "last_reused": b.attr("lr"), "last_prefill": b.attr("lp")},
    }  # fmt: skip
    e = b.stage("E", {"Step": {"budget": num(64), "cost": num(1), "chunk": num(0), "serve": {"By": []}, "memory": kv,
                               "request": request}})
    tool = b.stage("tool", DELAY)
    done = b.observe("done")
    ask = {"Request": {"stage": ref(e), "input": at(n), "output": at(o)}}
    turn = [(W, "Turn"), (S, copy.deepcopy(ask)), (S, see(done, at(first)))]
    session = [*turn, (W, {"While": [at(6), Body([(W, work(tool, num(1))), *copy.deepcopy(turn)])]}), (W, "End")]
    sessions = {"Sessions": [{"attrs": [], "turns": [[[n, 50.0], [o, 3.0]], [[n, 60.0], [o, 1.0]]]}] * 2}
    return b.finish(Random(1), sessions, session, horizon=100)


def step(tree: Json) -> Json:
    return tree["stages"][0]["kind"]["Step"]


def session_block(tree: Json) -> list[Json]:
    return tree["blocks"][tree["session"]]


def insert(tree: Json, statement: Json, side: str = S) -> None:
    """A statement at the start of the session."""
    session_block(tree).insert(0, statement)
    tree["sides"][tree["session"]].insert(0, side)


def block_of(tree: Json, *statements: Json) -> int:
    tree["blocks"].append(list(statements))
    tree["sides"].append([S] * len(statements))
    return len(tree["blocks"]) - 1


def told(tree: Json) -> ProgramError:
    with pytest.raises(ProgramError) as caught:
        ir14.read(tree)
    return caught.value
