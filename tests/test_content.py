"""Pools whose blocks are shared by content: against a plain model of vLLM, by hand, and what is refused."""

from __future__ import annotations

import sys
from random import Random

import msgspec
import pytest

import serqjax as sq
from serqjax.ir import Attr, Num, Program, Recorded
from tests.helpers import ROOT
from tests.vllm_model import Engine, Request

sys.path.insert(0, str(ROOT / "experiments"))
import vllm_scenario  # noqa: E402

SPAN = 16


def program_of(requests: list[Request], version: str, **flags: int) -> Program:
    """The vLLM deployment with these requests, whose prompts carry recorded contents."""
    rows = [{"prompt": r.prompt, "out": r.out, "arrive": r.arrive, "prefix": {"group": 0, "len": 1}} for r in requests]
    program, _ = vllm_scenario.program_of({"clock": "steps", "requests": rows, **flags}, version)
    assert isinstance(program.arrival, sq.ir.Listed)
    pools = tuple(
        msgspec.structs.replace(pool, content=(Recorded(span=Num(float(requests[0].span)), length=Attr("new")),))
        if pool.sharing == "content" else pool
        for pool in program.pools
    )  # fmt: skip
    arrival = msgspec.structs.replace(program.arrival, contents=tuple(r.ids for r in requests))
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
        if requests and rng.random() < 0.7:
            other = rng.choice(requests)
            ids = list(other.ids[: rng.randint(0, len(other.ids))])
        new = rng.randint(0 if ids else 1, 4)
        whole = len(ids) + new == len(ids)
        ids += range(next_id, next_id + new)
        next_id += new
        least = len(ids) * SPAN if whole else (len(ids) - 1) * SPAN + 1  # only a new id may be of a part
        prompt = rng.randint(least, len(ids) * SPAN + rng.choice([0, 0, 20]))
        requests.append(Request(i, 0, prompt, rng.randint(1, 20), tuple(ids), SPAN))
    arrives = sorted(rng.randint(0, 30) for _ in requests)
    for r, arrive in zip(requests, arrives):
        r.arrive = arrive
    return requests, flags


def test_generated_requests_hit_what_the_model_says():
    import oracle

    found = preempted = compared = 0
    for seed in range(60):
        version = "0.11.2" if seed % 3 == 0 else "0.33.0"
        requests, flags = generated(seed)
        engine = Engine(
            budget=flags["budget"], max_seqs=flags["max_seqs"], block=flags["block_size"],
            num_blocks=flags["num_blocks"], in_order=version == "0.11.2",
        )  # fmt: skip
        if not engine.run(requests, 3000):
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
            ours = list(zip(admitted[r.name], hits[r.name]))
            assert ours == r.admissions, (seed, r.name)
            found += sum(cached for _, cached in r.admissions)
            preempted += len(r.admissions) - 1
        compared += 1
    assert compared > 50 and found > 5_000 and preempted > 15
