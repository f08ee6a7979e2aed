"""Every tag of serQ IR 14, each with its place in the specification, and which of them a program uses.

A tag is written like the path to it: `Run.share.MaxMin`, `pool.evict.By`, `fun.Ln`. `TAGS` is what serqjax runs,
`REFUSED` what it refuses by name (`tests/test_importer_messages.py`, which says with which words).

**Source:** `spec/ir14.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = Any

#: Heading of the specification -> tags.
BY_SECTION: dict[str, str] = {
    "Program": """
        program.trace program.trace_ordered program.unordered program.init program.turn program.warmup program.arrivals
        program.hidden program.gauges program.claims program.registers type.Size type.Value type.Cost
        side.Workload side.Server""",
    "CPool": """
        pool.index pool.cap.number pool.cap.inf pool.block pool.evict.Lru pool.evict.By pool.preempt.None
        pool.preempt.By pool.preempt.tail pool.queue pool.queue_every pool.spill pool.admit_via pool.reserve_held""",
    "CStage, CStageKind": "stage.index stage.Fifo stage.Ps stage.delay stage.Step",
    "CStep": """
        step.budget step.cost step.chunk step.no_chunk step.granule.number step.granule.inf step.serve.By
        step.serve.keys step.serve.ExclusivePrefill step.memory step.iteration step.request
        iter.Serve iter.Serve.only iter.Serve.by iter.Admit iter.Admit.only iter.Admit.gate iter.Branch iter.Set
        request.pools request.reserve request.reuse request.cache request.prefix request.records""",
    "Statements (CStmt)": """
        Turn End Join Set Observe Hold Hold.reserve Hold.reuse Hold.cache Hold.lease Hold.prefix Grow Shrink Load Drop
        Release Run.Plain Run.Prefill Run.Decode Run.growing Run.also Run.share.MaxMin Run.share.Bottleneck Run.latency
        Branch Loop While Choose Fork Request ref.index""",
    "Expressions (CExpr)": """
        Cost cost.Pool cost.Stage cost.Joint Num Num.inf Attr Ctx Sample Call Unary.Neg Unary.Not op.Add op.Sub op.Mul
        op.Div op.Pow op.Lt op.Le op.Gt op.Ge op.Eq op.Ne op.And op.Or Cond Reg
        agg.Total agg.Count agg.Largest agg.Smallest agg.PrefixTotal
        dist.Exp dist.Det dist.Uniform dist.Erlang dist.H2 dist.Bernoulli
        fun.Min fun.Max fun.Abs fun.Floor fun.Ceil fun.Sqrt fun.Exp fun.Ln fun.Queue fun.Busy fun.Work fun.Used fun.Free
        fun.CachedIn fun.Allocated fun.Holders fun.Queued fun.Price fun.BudgetLeft fun.EstLambda fun.EstRho fun.EstWait
        ctx.Now ctx.Waited ctx.Size ctx.Age ctx.Last ctx.Queued ctx.N ctx.Nres ctx.Ndec ctx.Kvb ctx.Kvp ctx.Ntok
        ctx.Npre ctx.Attn ctx.Decoding ctx.Admission ctx.Remaining ctx.Position ctx.Admitted ctx.Preempted ctx.Demand
        ctx.Served ctx.Arrived ctx.Input ctx.Output ctx.Known ctx.Hit ctx.Requeued ctx.Finished""",
    "Arrivals and sessions": """
        arrival.Poisson arrival.Renewal arrival.Closed arrival.Batch arrival.Sessions arrival.None Sessions.attrs
        Sessions.turns""",
    "Claims, gauges, registers": "claim.given claim.EveryIteration claim.SomeIteration claim.AtEnd",
}
TAGS: dict[str, str] = {tag: section for section, tags in BY_SECTION.items() for tag in tags.split()}

#: Tag -> its row in the table of what is refused by name.
REFUSED: dict[str, str] = {
    "pool.preempt.Leases": "leases",
    "step.connector": "connector",
    "Run.poster": "poster",
    "ctx.Loaded": "loaded",
}


def tags_of(program: Json) -> set[str]:
    """The tags that a program uses; also those that `TAGS` does not know."""
    return set(_program(program))


def _program(p: Json) -> Iterator[str]:
    if p.get("trace"):
        yield "program.trace"
        yield "program.trace_ordered" if p["trace_ordered"] else "program.unordered"
    for name in ("init", "turn"):
        if p["blocks"][p[name]]:
            yield f"program.{name}"
    for name in ("warmup", "arrivals", "hidden", "gauges", "claims", "registers"):
        if p.get(name):
            yield f"program.{name}"
    for kind in p["attr_types"]:
        yield f"type.{kind if isinstance(kind, str) else next(iter(kind))}"
    for side in (side for block in p["sides"] for side in block):
        yield f"side.{side}"
    yield from _arrival(p["arrival"])
    for part, found in ((p["pools"], _pool), (p["stages"], _stage), (p.get("claims", []), _claim)):
        for row in part:
            yield from found(row)
    for block in p["blocks"]:
        for statement in block:
            yield from _statement(statement)
    for gauge in p.get("gauges", []):
        yield from _expr(gauge["expr"])


def _arrival(arrival: Json) -> Iterator[str]:
    if isinstance(arrival, str):
        yield f"arrival.{arrival}"
        return
    ((kind, value),) = arrival.items()
    yield f"arrival.{kind}"
    if kind == "Renewal":
        yield from _expr(value)
    if kind == "Sessions":
        yield from (f"Sessions.{name}" for row in value for name in ("attrs", "turns") if row.get(name))


def _pool(pool: Json) -> Iterator[str]:
    yield "pool.cap.inf" if isinstance(pool["cap"], str) else "pool.cap.number"
    for name in ("index", "block", "queue", "queue_every", "spill", "admit_via", "reserve_held"):
        if pool.get(name) not in (None, False):
            yield f"pool.{name}"
    for name in ("evict", "preempt"):
        policy = pool[name]
        yield f"pool.{name}.{policy if isinstance(policy, str) else next(iter(policy))}"
        if isinstance(policy, dict):
            yield from _expr(policy)
    if isinstance(pool["preempt"], dict) and pool["preempt"].get("By", {}).get("tail"):
        yield "pool.preempt.tail"
    yield from _expr(pool.get("queue"))
    spill = pool.get("spill") or {}
    yield from _expr([spill.get("work"), spill.get("when")])


def _stage(stage: Json) -> Iterator[str]:
    if "index" in stage:
        yield "stage.index"
    ((kind, value),) = stage["kind"].items()
    if stage["kind"] == {"Ps": {"Ctx": "N"}}:
        yield "stage.delay"
        return
    yield f"stage.{kind}"
    if kind == "Ps":
        yield from _expr(value)
    if kind == "Step":
        yield from _step(value)


def _step(step: Json) -> Iterator[str]:
    yield from ("step.budget", "step.cost", "step.no_chunk" if step["chunk"] == {"Num": 0} else "step.chunk")
    for name in ("budget", "cost", "chunk"):
        yield from _expr(step[name])
    for name in ("memory", "iteration", "request", "connector"):
        if step.get(name) is not None:
            yield f"step.{name}"
    if "granule" in step:
        yield "step.granule.inf" if step["granule"] == {"Num": "inf"} else "step.granule.number"
    if step["serve"] == "ExclusivePrefill":
        yield "step.serve.ExclusivePrefill"
    else:
        yield "step.serve.keys" if step["serve"]["By"] else "step.serve.By"
        yield from _expr(step["serve"]["By"])
    yield from _commands(step.get("iteration", []))
    request = step.get("request", {})
    for name in ("pools", "reuse", "cache", "prefix", "records"):
        if request.get(name) is not None:
            yield f"request.{name}"
    if any(reserve is not None for _, _, reserve in request.get("pools", [])):
        yield "request.reserve"
    yield from _expr([request.get(name) for name in ("pools", "reuse", "cache", "prefix")])


def _commands(body: Json) -> Iterator[str]:
    for command in body:
        ((kind, value),) = command.items()
        yield f"iter.{kind}"
        if kind == "Branch":
            yield from _expr(value[0])
            yield from _commands([*value[1], *value[2]])
        elif kind == "Set":
            yield from _expr(value[1])
        else:
            yield from (f"iter.{kind}.{name}" for name in value)
            yield from _expr(list(value.values()))


def _statement(statement: Json) -> Iterator[str]:
    if isinstance(statement, str):
        yield statement
        return
    ((kind, value),) = statement.items()
    if kind == "Run":
        yield f"Run.{value['mode']}"
        for name in ("growing", "also", "latency", "poster"):
            if value.get(name) not in (None, []):
                yield f"Run.{name}"
        if "share" in value:
            yield f"Run.share.{value['share']}"
        yield from _expr([value[name] for name in ("stage", "work", "growing", "also", "latency") if name in value])
        return
    yield kind
    if kind == "Hold":
        for name in ("reuse", "cache", "lease", "prefix"):
            if value.get(name) is not None:
                yield f"Hold.{name}"
        if any(reserve is not None for _, _, reserve in value["pools"]):
            yield "Hold.reserve"
        yield from _expr([value.get(name) for name in ("pools", "reuse", "cache", "lease", "prefix")])
    elif kind == "Choose":
        yield from _expr([value["count"], value["key"]])
    elif kind == "Request":
        yield from _expr([value["stage"], value["input"], value["output"]])
    elif kind not in ("Loop", "Fork"):
        yield from _expr(value)


def _claim(claim: Json) -> Iterator[str]:
    kind = claim["kind"]
    yield f"claim.{kind if isinstance(kind, str) else next(iter(kind))}"
    if claim.get("given") is not None:
        yield "claim.given"
    yield from _expr([claim["expr"], claim.get("given")])


def _expr(node: Json) -> Iterator[str]:
    """Of an expression, a reference, or anything made of them."""
    if isinstance(node, list):
        for item in node:
            yield from _expr(item)
        return
    if not isinstance(node, dict):
        return
    if "base" in node:
        if node.get("index") is not None:
            yield "ref.index"
            yield from _expr(node["index"])
        return
    for kind, value in node.items():
        named = {"Ctx": "ctx", "Sample": "dist", "Call": "fun", "Unary": "Unary", "Binary": "op", "Agg": "agg"}
        if kind in ("Cost", "Num", "Attr", "Ctx", "Sample", "Call", "Cond", "Reg"):
            yield kind
        if kind in named:
            yield f"{named[kind]}.{value if isinstance(value, str) else value[0]}"
        if kind == "Num" and isinstance(value, str):
            yield "Num.inf"
        if kind == "Cost":
            yield from _target(value[0])
            yield from _expr(value[1])
        elif kind not in ("Num", "Attr", "Ctx", "Reg", "Agg"):
            yield from _expr(value)


def _target(target: Json) -> Iterator[str]:
    ((kind, value),) = target.items()
    yield f"cost.{kind}"
    if kind == "Joint":
        for part in value:
            yield from _target(part)
