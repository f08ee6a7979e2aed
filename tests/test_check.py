"""The checks: every rule with its message, all problems at once, and no crash on broken programs."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec
import pytest
from helpers import shared_dir

from serqjax.check import as_text, check_program, describe, find_problems, unsupported
from serqjax.check.bounds import Bound
from serqjax.check.index import Index
from serqjax.check.moments import MOMENTS
from serqjax.check.values import Wholeness, constant, span
from serqjax.errors import ProgramError
from serqjax.ir import expr as e
from serqjax.ir import program as p

ONE, ZERO = e.Num(1.0), e.Num(0.0)
NAN, BELOW = e.Num(math.nan), e.Num(-1.0)


def attr(name: str) -> e.Attr:
    return e.Attr(name)


def add(a: e.Expr, b: e.Expr) -> e.Binary:
    return e.Binary("Add", a, b)


def mul(a: e.Expr, b: e.Expr) -> e.Binary:
    return e.Binary("Mul", a, b)


def queue_program() -> p.Program:
    """M/M/1 in one state."""
    return p.Program(
        name="queue",
        attrs=(p.Attribute(name="size"), p.Attribute(name="serial")),
        params=(p.Parameter(name="rate", value=0.5),),
        observes=("response",),
        stages=(p.Stage(name="cpu", kind=p.Fifo(e.Num(2.0))),),
        states=(
            p.State(
                name="serve",
                ops=(p.Set("size", e.Sample("Exp", (ONE,))),),
                exit=p.Run("cpu", "Plain", attr("size"), "done"),
            ),
            p.State(name="done", ops=(p.Observe("response", e.Ctx("Now")),), exit=p.End()),
        ),
        start="serve",
        arrival=p.Poisson(e.Param("rate")),
        horizon_s=e.Num(100.0),
        warmup_s=e.Num(10.0),
    )


def engine_program() -> p.Program:
    """A vLLM-like engine: request slots and blocks, prefix cache, preemption, two turns."""
    known = e.Call("Max", (attr("known"), attr("input")))
    cost = add(e.Num(0.01), add(mul(e.Num(4e-5), e.Ctx("Ndec")), mul(e.Num(1e-7), e.Ctx("Kvb"))))
    cost = add(cost, add(mul(e.Num(5e-5), e.Ctx("Npre")), mul(e.Num(4e-9), e.Ctx("Attn"))))
    return p.Program(
        name="engine",
        attrs=(
            p.Attribute(name="serial"),
            p.Attribute(name="turn_no"),
            p.Attribute(name="cached"),
            p.Attribute(name="computed"),
            p.Attribute(name="input", bound=e.Num(2000.0)),
            p.Attribute(name="known"),
            p.Attribute(name="output", hidden=True),
            p.Attribute(name="think"),
            p.Attribute(name="again"),
        ),  # fmt: skip
        params=(p.Parameter(name="again", value=0.5),),
        observes=("ttft", "prefill"),
        pools=(
            p.Pool(
                name="slots",
                cap=e.Num(64.0),
                admit_via="E",
                queue=p.Order(keys=(e.Unary("Neg", e.Ctx("Waited")), attr("serial")), tie="queued"),
            ),
            p.Pool(
                name="kv",
                cap=e.Num(16000.0),
                block=e.Num(16.0),
                preempt=p.Preempt(order=p.Order(keys=(e.Unary("Neg", e.Ctx("Admission")),), tie="latest")),
            ),
        ),  # fmt: skip
        stages=(
            p.Stage(name="E", kind=p.Step(budget=e.Num(512.0), cost=cost, chunk=e.Num(256.0), memory="kv")),
            p.Stage(name="tool", kind=p.Delay()),
        ),
        scopes=(
            p.Scope(
                name="request",
                lets=(p.Let(attr="known", value=known),),
                reuse=e.Call("Max", (ZERO, add(attr("known"), BELOW))),
                takes=(
                    p.Take(pool="slots", units=ONE, oversize=ONE),
                    p.Take(
                        pool="kv",
                        units=e.Call("Min", (attr("known"), add(attr("cached"), e.StageState("BudgetLeft", "E")))),
                        reserve=attr("known"),
                        keep=e.Call("Max", (attr("known"), e.Ctx("HoldPosition"))),
                        oversize=attr("known"),
                    ),
                ),
                reentry="prefill",
            ),
        ),
        states=(
            p.State(name="turn", ops=(p.Turn(),), exit=p.Enter("request")),
            p.State(
                name="prefill",
                ops=(p.Observe("prefill", e.Binary("Sub", attr("known"), attr("cached"))),),
                exit=p.Run("E", "Prefill", e.Binary("Sub", attr("known"), attr("cached")), "decode", grows="kv"),
                scope="request",
            ),
            p.State(
                name="decode",
                exit=p.Run("E", "Decode", add(attr("output"), BELOW), "leave", grows="kv"),
                scope="request",
            ),
            p.State(name="leave", exit=p.Leave("after"), scope="request"),
            p.State(name="after", ops=(p.Respond(),), exit=p.Branch(attr("again"), "think", "end")),
            p.State(name="think", exit=p.Run("tool", "Plain", attr("think"), "turn")),
            p.State(name="end", exit=p.End()),
        ),
        start="turn",
        turn=(
            p.Set("input", e.Call("Ceil", (e.Sample("Uniform", (e.Num(100.0), e.Num(900.0))),))),
            p.Set("output", add(e.Call("Floor", (e.Sample("Exp", (e.Num(50.0),)),)), ONE)),
            p.Set("think", e.Sample("Exp", (e.Num(3.0),))),
            p.Set("again", e.Sample("Bernoulli", (e.Param("again"),))),
        ),
        arrival=p.Poisson(e.Num(0.1)),
        horizon_s=e.Num(1000.0),
        warmup_s=e.Num(100.0),
    )


def listed_program() -> p.Program:
    """Two sessions as data."""
    return msgspec.structs.replace(
        queue_program(),
        attrs=(p.Attribute(name="size"), p.Attribute(name="more")),
        states=(
            p.State(name="serve", ops=(p.Turn(),), exit=p.Run("cpu", "Plain", attr("size"), "next")),
            p.State(name="next", exit=p.Branch(attr("more"), "serve", "done")),
            p.State(name="done", exit=p.End()),
        ),
        arrival=p.Listed(
            at=(0.0, 1.0), attrs=("size",), values=((1.0,), (None,)), turn_attrs=("size",),
            turns=(((1.0,), (2.0,)), ()),
        ),
        horizon_s=None,
        warmup_s=ZERO,
    )  # fmt: skip


def steps_of(path: str) -> list[str | int]:
    return [int(s) if s.isdigit() else s for s in re.findall(r"[A-Za-z_]\w*|\d+", path)]


def replaced(node: Any, steps: list[str | int], value: Any) -> Any:
    """A copy of `node` with `value` at the place; a tuple's end may be named to append."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        items = list(node)
        if step == len(items):
            items.append(value)
        else:
            items[step] = replaced(items[step], rest, value)
        return tuple(items)
    return msgspec.structs.replace(node, **{step: replaced(getattr(node, step), rest, value)})


def change(program: p.Program, *changes: tuple[str, Any]) -> p.Program:
    for path, value in changes:
        program = replaced(program, steps_of(path), value)
    return program


def test_valid_programs_pass() -> None:
    for program in (queue_program(), engine_program(), listed_program()):
        assert find_problems(program) == []
        assert hash(check_program(program)) == hash(check_program(program))
        assert unsupported(program) == []


Q, G, L = "queue", "engine", "listed"
BASE = {Q: queue_program, G: engine_program, L: listed_program}

#: name, base, changes, place, words of the problem, words of the hint
RULES: list[tuple[str, str, list[tuple[str, Any]], str, str, str]] = [
    # ---- moments
    ("queue key reads admission", G, [("pools[0].queue.keys[0]", e.Ctx("Admission"))], "$.pools[0].queue.keys[0]",
     "pool `slots`: a queue key reads `Admission`, which does not exist in a queue key", "a serve key"),
    ("serve key reads waited", G, [("stages[0].kind.serve.keys[0]", e.Ctx("Waited"))], "$.stages[0].kind.serve.keys[0]",
     "stage `E`: a serve key reads `Waited`", "a queue key"),
    ("statement reads size", Q, [("states[1].ops[0].value", e.Ctx("Size"))], "$.states[1].ops[0].value",
     "state `done`: the observation `response` reads `Size`", "an eviction key"),
    ("budget reads tokens", G, [("stages[0].kind.budget", e.Ctx("Ntok"))], "$.stages[0].kind.budget",
     "the budget reads `Ntok`, which does not exist in a budget or chunk", "a cost"),
    ("units read finished", G, [("scopes[0].takes[1].units", e.Ctx("Finished"))], "$.scopes[0].takes[1].units",
     "the amount of units reads `Finished`, which does not exist in a hold's header", "a keep"),
    ("statement reads N", Q, [("states[1].ops[0].value", e.Ctx("N"))], "$.states[1].ops[0].value",
     "reads `N`", "processor-sharing"),
    ("oversize reads the clock", G, [("scopes[0].takes[1].oversize", e.Ctx("Now"))], "$.scopes[0].takes[1].oversize",
     "the oversize amount reads `Now`", "may be read in"),
    ("oversize reads a pool", G, [("scopes[0].takes[1].oversize", e.PoolState("Used", "kv"))],
     "$.scopes[0].takes[1].oversize", "reads `Used`, the state of a pool or stage", "attributes and arithmetic only"),
    ("hidden in a header", G, [("scopes[0].takes[1].reserve", attr("output"))], "$.scopes[0].takes[1].reserve",
     "scope `request`: the reserve reads the hidden attribute `output`", "separate attribute that holds a bound"),
    ("hidden in a victim key", G, [("pools[1].preempt.order.keys[0]", attr("output"))],
     "$.pools[1].preempt.order.keys[0]", "a victim key reads the hidden attribute `output`", "bound"),
    ("victim reads computed", G, [("pools[1].preempt.order.keys[0]", attr("computed"))],
     "$.pools[1].preempt.order.keys[0]", "reads `computed`", "`Position`"),
    ("cost reads an attribute", G, [("stages[0].kind.cost", attr("input"))], "$.stages[0].kind.cost",
     "reads the attribute `input`, but a cost, read for a planned iteration has no session", "context variable"),
    ("cost reads own entry", G, [("stages[0].kind.cost", e.PoolState("CachedIn", "kv"))], "$.stages[0].kind.cost",
     "reads `CachedIn`, which is a session's", "`Used`, `Free`"),
    ("draw in a header", G, [("scopes[0].takes[1].reserve", e.Sample("Uniform", (ZERO, ONE)))],
     "$.scopes[0].takes[1].reserve", "draws `Uniform`, but a hold's header, read at admission may not draw", "`Set`"),
    ("draw in a serve key", G, [("stages[0].kind.serve.keys[0]", e.Sample("Exp", (ONE,)))],
     "$.stages[0].kind.serve.keys[0]", "draws `Exp`, but a serve key", "`Set`"),
    ("budget left in a chunk", G, [("stages[0].kind.chunk", e.StageState("BudgetLeft", "E"))],
     "$.stages[0].kind.chunk", "reads `BudgetLeft`, which is not known in a budget or chunk", "hold's header"),
    ("gap reads the clock", Q, [("arrival", p.Renewal(e.Ctx("Now")))], "$.arrival.gap",
     "arrival: the gap reads `Now`", "may be read in"),
    ("gap reads an attribute", Q, [("arrival", p.Renewal(attr("size")))], "$.arrival.gap",
     "an arrival gap has no session", "a number"),
    ("gap reads a stage", Q, [("arrival", p.Renewal(e.StageState("Queue", "cpu")))], "$.arrival.gap",
     "reads `Queue`", "draws and arithmetic only"),
    ("arity of a function", Q, [("states[1].ops[0].value", e.Call("Min", (ONE,)))], "$.states[1].ops[0].value",
     "`Min` has 1 arguments", "`Min` takes 2"),
    ("arity of a draw", Q, [("states[0].ops[0].value", e.Sample("Uniform", (ONE,)))], "$.states[0].ops[0].value",
     "`Uniform` has 1 arguments", "`Uniform` takes 2"),
    # ---- names
    ("unknown attribute", Q, [("states[0].exit.work", attr("sise"))], "$.states[0].exit.work",
     "state `serve`: the work reads the attribute `sise`", "did you mean `size`?"),
    ("unknown parameter", Q, [("arrival.rate", e.Param("rat"))], "$.arrival.rate",
     "the parameter `rat` is not declared", "did you mean `rate`?"),
    ("unknown set", Q, [("states[0].ops[0].attr", "zzz")], "$.states[0].ops[0].attr",
     "state `serve`: sets the attribute `zzz`", "known are `size`, `serial`"),
    ("unknown let", G, [("scopes[0].lets[0].attr", "knwn")], "$.scopes[0].lets[0].attr",
     "scope `request`: sets the attribute `knwn`", "`known`"),
    ("set of serial", Q, [("states[0].ops[0].attr", "serial")], "$.states[0].ops[0].attr",
     "sets `serial`", "another attribute"),
    ("unknown observation", Q, [("states[1].ops[0].name", "respons")], "$.states[1].ops[0].name",
     "observes `respons`", "did you mean `response`?"),
    ("unknown pool", G, [("scopes[0].takes[0].pool", "slot")], "$.scopes[0].takes[0].pool",
     "scope `request`: there is no pool `slot`", "did you mean `slots`?"),
    ("unknown stage", Q, [("states[0].exit.stage", "gpu")], "$.states[0].exit.stage",
     "state `serve`: there is no stage `gpu`", "`cpu`"),
    ("stage for pool", G, [("states[2].exit.grows", "E")], "$.states[2].exit.grows",
     "there is no pool `E`", "`E` is a stage"),
    ("unknown memory", G, [("stages[0].kind.memory", "mem")], "$.stages[0].kind.memory",
     "stage `E`: there is no pool `mem`", "known are"),
    ("unknown admit_via", G, [("pools[0].admit_via", "F")], "$.pools[0].admit_via",
     "pool `slots`: there is no stage `F`", "known are"),
    ("unknown array", G, [("states[2].exit.grows", e.Member("kvs", ZERO))], "$.states[2].exit.grows",
     "there is no array of pools `kvs`", "name one pool"),
    ("index out of range", Q, [
        ("stages[0].array", "cpus"), ("stages[0].index", 0), ("states[0].exit.stage", e.Member("cpus", e.Num(2.0)))],
     "$.states[0].exit.stage.index", "the index of `cpus` is 2", "whole number from 0 to 0"),
    ("indices of an array", Q, [("stages[0].array", "cpus"), ("stages[0].index", 3)], "$.stages[0].index",
     "the members of the array `cpus` of stages have the indices [3]", "0, 1, ..."),
    ("index without array", Q, [("stages[0].index", 0)], "$.stages[0].index", "has an index but no array", "`array`"),
    ("declared twice", Q, [("attrs[1].name", "size")], "$.attrs[1].name",
     "`size` is declared twice in attrs", "the first is $.attrs[0].name"),
    ("empty name", Q, [("attrs[1].name", "")], "$.attrs[1].name", "a name in attrs is empty", "give it a name"),
    ("budget left of a delay", G, [("scopes[0].takes[1].reserve", e.StageState("BudgetLeft", "tool"))],
     "$.scopes[0].takes[1].reserve", "`BudgetLeft` of `tool`, which is not a step stage", "kind Step"),
    ("turn op in turn", Q, [("turn[0]", p.Turn())], "$.turn[0]", "`Turn` stands in the turn block", "only `Set`"),
    ("unknown start", Q, [("start", "srve")], "$.start", "there is no state `srve`", "did you mean `serve`?"),
    ("unknown target", Q, [("states[0].exit.then", "dome")], "$.states[0].exit.then",
     "state `serve`: there is no state `dome`", "did you mean `done`?"),
    ("unknown scope", G, [("states[0].exit.scope", "req")], "$.states[0].exit.scope",
     "enters the scope `req`", "`request`"),
    ("unknown own scope", G, [("states[1].scope", "r")], "$.states[1].scope",
     "state `prefill`: lies in the scope `r`", "`request`"),
    ("unknown reentry", G, [("scopes[0].reentry", "prefil")], "$.scopes[0].reentry",
     "scope `request`: there is no state `prefil`", "did you mean `prefill`?"),
    ("unknown parent", G, [("scopes[0].parent", "outer")], "$.scopes[0].parent", "its parent `outer`", "`request`"),
    ("no states", Q, [("states", ())], "$.states", "the program has no states", "`End`"),
    ("unknown column", L, [("arrival.attrs[0]", "length")], "$.arrival.attrs[0]",
     "the column `length` is not an attribute", "known are"),
    ("member index changed inside", G, [
        ("pools[1].array", "kvs"), ("pools[1].index", 0), ("scopes[0].takes[1].pool", e.Member("kvs", attr("again"))),
        ("states[1].ops[0]", p.Set("again", ZERO))],
     "$.states[1].ops[0]", "sets `again`, which the member index of the open scope `request` reads", "copy it"),
    # ---- flow
    ("reentry elsewhere", G, [("scopes[0].reentry", "after")], "$.scopes[0].reentry",
     "goes on at state `after`, which lies in no scope", "set `scope` of `after` to `request`"),
    ("start in a scope", G, [("start", "prefill")], "$.start", "which lies in scope `request`", "start outside"),
    ("scope crossed", G, [("states[1].exit.then", "after")], "$.states[1].exit.then",
     "state `prefill`: goes to state `after`, which lies in no scope, from scope `request`", "`Leave`"),
    ("leave of nothing", Q, [("states[1].exit", p.Leave("done"))], "$.states[1].exit",
     "state `done`: leaves a scope, but lies in none", "`Goto`"),
    ("leave into the scope", G, [("states[3].exit.then", "decode")], "$.states[3].exit.then",
     "goes to state `decode`, which lies in scope `request`, from no scope (after leaving `request`)", "`Enter`"),
    ("enter from inside", G, [("states[3].exit", p.Enter("request"))], "$.states[3].exit.scope",
     "enters the scope `request` from scope `request`, but its parent is no scope", "parent"),
    ("own ancestor", G, [("scopes[0].parent", "request")], "$.scopes[0].parent", "is its own ancestor", "a tree"),
    ("empty scope", G, [("scopes[0].takes", ())], "$.scopes[0].takes", "takes nothing", "at least one pool"),
    ("deadline into a scope", G, [("states[5].exit.deadline", p.Deadline(after=ONE, target="decode"))],
     "$.states[5].exit.deadline.target", "its deadline jumps to state `decode` in scope `request`", "only closes"),
    # ---- orders
    ("tie of a queue", G, [("pools[0].queue.tie", "admitted")], "$.pools[0].queue.tie",
     "pool `slots`: the queue order ends in `admitted`", "it is `queued`"),
    ("tie of evict", G, [("pools[1].evict", p.Order(keys=(), tie="latest"))], "$.pools[1].evict.tie",
     "the evict order ends in `latest`", "it is `released`"),
    ("tie of a victim", G, [("pools[1].preempt.order.tie", "queued")], "$.pools[1].preempt.order.tie",
     "the victim order ends in `queued`", "it is `latest`"),
    ("tie of serve", G, [("stages[0].kind.serve", p.Order(tie="released"))], "$.stages[0].kind.serve.tie",
     "stage `E`: the serve order ends in `released`", "it is `admitted`"),
    ("victim without key", G, [("pools[1].preempt.order.keys", ())], "$.pools[1].preempt.order.keys",
     "the victim order has no key", "Admission"),
    # ---- amounts
    ("NaN literal", Q, [("states[0].exit.work", NAN)], "$.states[0].exit.work",
     "state `serve`: the work holds the number nan", "finite number"),
    ("infinite literal", G, [("scopes[0].takes[1].keep", e.Num(math.inf))], "$.scopes[0].takes[1].keep",
     "holds the number inf", '["Inf"]'),
    ("NaN parameter", Q, [("params[0].value", math.nan)], "$.params[0].value", "`rate` is nan", "finite"),
    ("NaN cap", G, [("pools[1].cap", NAN)], "$.pools[1].cap", "pool `kv`: the cap is nan", "finite"),
    ("negative cap", G, [("pools[1].cap", e.Num(-5.0))], "$.pools[1].cap", "pool `kv`: the cap is -5", "need 0"),
    ("block 0", G, [("pools[1].block", ZERO)], "$.pools[1].block", "pool `kv`: the block is 0", "1 or more"),
    ("half a block", G, [("pools[1].block", e.Num(2.5))], "$.pools[1].block", "the block is 2.5", "whole"),
    ("half a server", Q, [("stages[0].kind.servers", e.Num(1.5))], "$.stages[0].kind.servers",
     "stage `cpu`: has 1.5 servers", "whole, 1 or more"),
    ("negative bound", G, [("attrs[4].bound", BELOW)], "$.attrs[4].bound", "`input`: the bound is -1", "0 or more"),
    ("budget 0", G, [("stages[0].kind.budget", ZERO)], "$.stages[0].kind.budget", "the budget is 0 tokens", "1 token"),
    ("half a budget", G, [("stages[0].kind.budget", e.Num(2.5))], "$.stages[0].kind.budget",
     "the budget may not be a whole number", "`Floor`"),
    ("negative chunk", G, [("stages[0].kind.chunk", BELOW)], "$.stages[0].kind.chunk", "the chunk is -1", "null"),
    ("half a chunk", G, [("stages[0].kind.chunk", e.Num(0.5))], "$.stages[0].kind.chunk",
     "the chunk may not be a whole number", "`Ceil`"),
    ("cost 0", G, [("stages[0].kind.cost", ZERO)], "$.stages[0].kind.cost",
     "the cost of an iteration is 0 seconds, so that no time passes", "above 0"),
    ("negative units", G, [("scopes[0].takes[1].units", BELOW)], "$.scopes[0].takes[1].units",
     "the units on `kv` are -1 units", "0 or more"),
    ("negative reuse", G, [("scopes[0].reuse", BELOW)], "$.scopes[0].reuse", "reuses -1 units", "0 or more"),
    ("never fits", G, [("scopes[0].takes[0].units", e.Num(65.0))], "$.scopes[0].takes[0].units",
     "the units on `slots` are 65 units, above the cap 64: the hold waits for ever", "raise the cap"),
    ("never fits in blocks", G, [("pools[1].cap", e.Num(10.0)), ("pools[1].block", e.Num(4.0)),
                                 ("scopes[0].takes[1].units", e.Num(9.0))], "$.scopes[0].takes[1].units",
     "the units on `kv` are 9 units (12 in whole blocks), above the cap 10", "ask for less"),
    ("reserve never fits", G, [("scopes[0].takes[1].reserve", e.Num(20000.0))], "$.scopes[0].takes[1].reserve",
     "the reserve on `kv` are 20000 units, above the cap 16000", "ask for less"),
    ("all rejected", G, [("scopes[0].takes[0].oversize", e.Num(65.0))], "$.scopes[0].takes[0].oversize",
     "above the cap 64: every session is rejected", "raise the cap"),
    ("infinite units", G, [("scopes[0].takes[1].units", e.Inf())], "$.scopes[0].takes[1].units", "infinite", "finite"),
    ("pool twice", G, [("scopes[0].takes[1].pool", "slots")], "$.scopes[0].takes[1].pool",
     "takes the pool `slots` twice", "once"),
    ("half a token of units", G, [("scopes[0].takes[1].units", attr("think"))], "$.scopes[0].takes[1].units",
     "the units on `kv`, a pool with a `block`, may not be whole", "`Floor`"),
    ("half a token of work", G, [("states[2].exit.work", attr("think"))], "$.states[2].exit.work",
     "the work on `E` is a number of tokens and may not be whole", "`Ceil`"),
    ("negative work", Q, [("states[0].exit.work", BELOW)], "$.states[0].exit.work", "the work on `cpu` is -1", "0 or"),
    ("infinite work", Q, [("states[0].exit.work", e.Inf())], "$.states[0].exit.work", "is inf", "finite"),
    ("negative growth", G, [("states[2].exit", p.Grow("kv", BELOW, "leave"))], "$.states[2].exit.units",
     "grows `kv` by -1 units", "0 or more"),
    ("test of a half", G, [("states[4].exit.test", e.Num(0.5))], "$.states[4].exit.test", "the test is 0.5", "compare"),
    ("deadline 0", G, [("states[5].exit.deadline", p.Deadline(after=ZERO, target="end"))],
     "$.states[5].exit.deadline.after", "the deadline is after 0 seconds", "positive"),
    ("never true", Q, [("states[0].ops[1]", p.Require(ZERO, "no output"))], "$.states[0].ops[1].test",
     "requires what is never true (no output)", "correct the test"),
    ("rate 0", Q, [("params[0].value", 0.0)], "$.arrival.rate", "the Poisson rate is 0", "above 0"),
    ("gap 0", Q, [("arrival", p.Renewal(ZERO))], "$.arrival.gap", "the gap is 0 seconds", "above 0"),
    ("nobody closed", Q, [("arrival", p.Closed(ZERO))], "$.arrival.n", "arrival: 0 sessions", "from 1 to 1,000,000"),
    ("too large a batch", Q, [("arrival", p.Batch(e.Num(1e7)))], "$.arrival.n", "1e+07 sessions", "1,000,000"),
    ("arrivals of a batch", Q, [("arrival", p.Batch(ONE)), ("arrivals", 3)], "$.arrivals",
     "the arrival law is `Batch`", "`Poisson` or `Renewal`"),
    ("no arrivals", Q, [("arrivals", 0)], "$.arrivals", "0 arrivals are asked for", "1 or more"),
    ("horizon 0", Q, [("horizon_s", ZERO)], "$.horizon_s", "the horizon is 0 s", "above 0"),
    ("warm-up too long", Q, [("warmup_s", e.Num(100.0))], "$.warmup_s",
     "the warm-up of 100 s does not end before the horizon of 100 s", "0 <= warmup_s < horizon_s"),
    ("warm-up below 0", Q, [("warmup_s", BELOW)], "$.warmup_s", "the warm-up is -1 s", "0 or more"),
    ("never ends", Q, [("horizon_s", None)], "$.horizon_s", "`Poisson` arrivals without a horizon never end",
     "or `arrivals`"),
    ("tick 0", Q, [("tick_s", 0.0)], "$.tick_s", "a tick is 0.0 s", "1e-9"),
    ("seed below 0", Q, [("seed", -1)], "$.seed", "the seed is -1", "2**64"),
    ("unsorted list", L, [("arrival.at", (1.0, 0.0))], "$.arrival.at[1]", "session 1 starts at 0 s, before", "sort"),
    ("NaN start", L, [("arrival.at", (0.0, math.nan))], "$.arrival.at[1]", "session 1 starts at nan s", "finite"),
    ("missing row", L, [("arrival.values", ((1.0,),))], "$.arrival.values", "1 rows of values for 2", "one row"),
    ("short row", L, [("arrival.values", ((1.0,), ()))], "$.arrival.values[1]", "0 values for 1 columns", "size"),
    ("NaN in a row", L, [("arrival.turns", (((1.0,), (math.nan,)), ()))], "$.arrival.turns[0][1][0]",
     "session 0, turn 2: `size` is nan", "finite"),
    ("empty trace", L, [("trace", p.Trace(ordered=True, attrs=("size",), turns=()))], "$.trace.turns",
     "the trace has no sessions", "at least one"),
    ("trace without turns", L, [("trace", p.Trace(ordered=True, attrs=("size",), turns=((),)))], "$.trace.turns[0]",
     "trace session 0 has no turns", "give it a turn"),
    ("short trace row", L, [("trace", p.Trace(ordered=True, attrs=("size",), turns=(((),),)))], "$.trace.turns[0][0]",
     "trace session 0, turn 1: has 0 values for 1 columns", "size"),
    # ---- reach
    ("plain on a step", G, [("states[2].exit.mode", "Plain")], "$.states[2].exit.mode",
     "state `decode`: runs `Plain` work on `E`, a step stage", "`Prefill` or `Decode`"),
    ("prefill on a fifo", Q, [("states[0].exit.mode", "Prefill")], "$.states[0].exit.mode",
     "runs `Prefill` on `cpu`, which is not a step stage", "`Plain`"),
    ("growth outside", G, [("states[5].exit", p.Grow("kv", ONE, "turn"))], "$.states[5].exit.pool",
     "state `think`: grows `kv` outside a hold of it", "lies in no scope"),
    ("growth of another", G, [("scopes[0].takes", (p.Take(pool="slots", units=ONE),))], "$.states[1].exit.grows",
     "state `prefill`: grows `kv` outside a hold of it", "do not take it"),
    ("growth on a delay", G, [("states[5].exit.grows", "kv")], "$.states[5].exit.grows",
     "work on `tool` grows a pool", "remove `grows`"),
    ("admitted by a delay", G, [("pools[0].admit_via", "tool")], "$.pools[0].admit_via",
     "admitted by `tool`, which is not a step stage", "kind Step"),
    ("stage for nobody", Q, [("stages[1]", p.Stage(name="gpu", kind=p.Delay()))], "$.stages[1]",
     "stage `gpu`: no state runs it", "run it, or remove it"),
    # ---- progress
    ("loop at once", Q, [("states[1].exit", p.Goto("done"))], "$.states[1]",
     "state `done`: the loop `done` -> `done` lets no time pass", "`Run` with work above 0"),
    ("loop over a zero run", Q, [("states[0].exit", p.Run("cpu", "Plain", ZERO, "done")),
                                 ("states[1].exit", p.Goto("serve"))], "$.states[",
     "lets no time pass", "every way around"),
    ("loop through a hold", G, [("states[1].exit", p.Goto("leave")), ("states[4].exit", p.Goto("turn"))], "$.states[",
     "lets no time pass", "`End`"),
    ("loop on one arm", G, [("states[4].exit", p.Branch(attr("again"), "after", "end"))], "$.states[4]",
     "the loop `after` -> `after` lets no time pass", "`Run`"),
    ("closed without time", Q, [("states[0].exit", p.Run("cpu", "Plain", ZERO, "done")), ("arrival", p.Closed(ONE))],
     "$.arrival", "a closed session that ends starts the next at once", "`Run` with work above 0"),
    # ---- bounds
    ("horizon in ticks", Q, [("tick_s", 1e-13)], "$.horizon_s", "the clock at the horizon can reach", "`tick_s`"),
    ("too many sessions", Q, [("params[0].value", 1e9)], "$.arrival", "the number of sessions can", "lower the rate"),
    ("too many blocks", G, [("pools[1].cap", e.Num(1e12))], "$.pools[1].cap", "pool `kv`: blocks in use", "lower the"),
    ("too many units", G, [("pools[0].cap", e.Num(1e17))], "$.pools[0].cap", "pool `slots`: units in use", '["Inf"]'),
    ("cost too large", G, [("stages[0].kind.cost", add(ONE, mul(e.Num(1e4), e.Ctx("Ndec"))))], "$.stages[0].kind.cost",
     "stage `E`: the cost of an iteration can reach", "in seconds"),
    ("float cost too large", G, [("stages[0].kind.cost", mul(e.Num(1e3), mul(e.Ctx("Kvb"), e.Ctx("Kvb"))))],
     "$.stages[0].kind.cost", "stage `E`: an iteration can reach", "in seconds"),
    ("work too long", G, [("states[1].exit.work", mul(attr("input"), e.Num(1e7)))], "$.states[1].exit.work",
     "state `prefill`: the work can reach 2e+10 tokens", "a mistake in units"),
    # ---- shape
    ("a bare number", Q, [("horizon_s", 5.0)], "$.horizon_s", "Expected", "serqjax.ir.program"),
    ("list for tuple", Q, [("observes", ["response"])], "$.observes", "Expected `tuple`, got `list`", "classes"),
    ("node for a tuple", Q, [("observes", e.Inf())], "$.observes", "Expected `tuple`, got `Inf`", "classes"),
    ("null", Q, [("states[0].exit", None)], "$.states[0].exit", "Expected", "classes"),
    ("unknown distribution", Q, [("states[0].ops[0].value", e.Sample("Gamma", (ONE,)))], "$.states[0].ops[0].value",  # type: ignore[arg-type]
     "Invalid enum value 'Gamma'", "classes"),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=[rule[0] for rule in RULES])
def test_rule(rule: tuple[str, str, list[tuple[str, Any]], str, str, str]) -> None:
    _, base, changes, path, problem, hint = rule
    program = change(BASE[base](), *changes)
    with pytest.raises(ProgramError) as caught:
        check_program(program)
    found = [x for x in caught.value.problems if x.path.startswith(path) and problem in x.problem]
    assert found, f"not found among:\n{caught.value}"
    assert hint in found[0].hint
    assert len(str(caught.value)) <= 4000


def test_not_a_program() -> None:
    with pytest.raises(ProgramError, match="a program is needed, not a dict"):
        check_program({})  # type: ignore[arg-type]
    broken = change(queue_program(), ("name", object()))
    with pytest.raises(ProgramError, match="holds a value that no program has"):
        check_program(broken)


def test_all_problems_at_once() -> None:
    program = change(
        engine_program(),
        ("pools[0].queue.keys[0]", e.Ctx("Admission")),
        ("states[1].exit.mode", "Plain"),
        ("scopes[0].takes[0].units", e.Num(65.0)),
        ("states[3].exit.then", "nowhere"),
        ("warmup_s", BELOW),
    )
    problems = find_problems(program)
    assert [x.path for x in problems] == [
        "$.states[3].exit.then",
        "$.pools[0].queue.keys[0]",
        "$.scopes[0].takes[0].units",
        "$.warmup_s",
        "$.states[1].exit.mode",
    ]
    with pytest.raises(ProgramError) as caught:
        check_program(program)
    assert len(str(caught.value).splitlines()) == 5
    assert all(x.hint and "`" in x.problem or "warm-up" in x.problem for x in problems)


def test_many_problems_are_counted() -> None:
    lost = [(f"states[{2 + i}]", p.State(name=f"s{i}", exit=p.Goto("x"))) for i in range(99)]
    program = change(queue_program(), *lost)
    problems = find_problems(program)
    assert len(problems) == 99
    text = str(ProgramError(problems))
    assert len(text) <= 4000 and "more problems" in text


def test_every_context_variable_has_a_moment() -> None:
    absent = set()
    everywhere = set().union(*(m.contexts for m in MOMENTS.values()))
    assert set(e.CONTEXT_NAMES) - everywhere == absent


# ---------------------------------------------------------------- facts


def test_facts_of_the_engine_program() -> None:
    facts = check_program(engine_program())
    slots, kv = facts.pools
    assert slots.finite and not slots.blocked and not slots.cached and not slots.can_grow
    assert slots.queued_by == (0,) and slots.queue_keyed and slots.admit_via == 0 and slots.memory_of == ()
    assert kv.blocked and kv.cached and kv.consumed and kv.evict == "lru" and kv.grown_by_runs
    assert kv.preempts == "lifo" and kv.can_preempt and kv.has_growers and kv.memory_of == (0,) and kv.queued_by == ()
    engine, tool = facts.stages
    assert engine.kind == "step" and engine.fixed_point and engine.memory == 1 and engine.admits == (0,)
    assert engine.chunked and engine.prefills and engine.decodes and not engine.serve_keyed
    assert engine.cost_reads == ("Attn", "Kvb", "Ndec", "Npre") and engine.reads == ("BudgetLeft",)
    assert tool.kind == "delay" and tool.run_by == (5,)
    (scope,) = facts.scopes
    assert (scope.depth, scope.parent, scope.pools, scope.reentry) == (0, -1, (0, 1), 1)
    assert scope.caches and scope.preemptible and scope.rejects and scope.reserves and scope.inside == (1, 2, 3)
    assert facts.max_depth == 1 and facts.has_turn and facts.has_respond and facts.can_end
    assert facts.turn_draws == 4 and facts.init_draws == 0 and not facts.workload_reads_state
    assert "known" in facts.whole_attrs and "think" not in facts.whole_attrs
    assert facts.maintained == {"serial", "turn_no", "cached", "computed"}
    assert facts.unreached == ()


def test_facts_ignore_numbers() -> None:
    a = check_program(engine_program())
    b = check_program(change(engine_program(), ("horizon_s", e.Num(2000.0)), ("pools[1].cap", e.Num(32000.0))))
    assert a == b and hash(a) == hash(b)
    assert a.bounds != b.bounds and b.most_live < a.most_live
    assert check_program(change(engine_program(), ("pools[1].cap", e.Inf()))) != a


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        (add(ONE, e.Ctx("Now")), "clock"),
        (add(ONE, e.Sample("Exp", (ONE,))), "draws `Exp`"),
        (add(ONE, mul(e.Ctx("Ndec"), e.Ctx("Kvb"))), "multiplies `Ndec` by `Kvb`"),
        (add(ONE, e.Call("Sqrt", (e.Ctx("Ntok"),))), "takes `Sqrt` of `Ntok`"),
        (e.Cond(e.Ctx("Ntok"), ONE, ZERO), "condition"),
        (e.Binary("Div", ONE, add(ONE, e.Ctx("Ndec"))), "divides by `Ndec`"),
        (add(ONE, e.PoolState("Used", "kv")), "reads `Used`"),
    ],
)
def test_why_a_cost_is_float(cost: e.Expr, reason: str) -> None:
    program = change(engine_program(), ("stages[0].kind.cost", cost))
    facts = check_program(program)
    assert not facts.stages[0].fixed_point and reason in facts.stages[0].float_reason
    assert reason in as_text(program)


def test_bounds_of_the_engine_program() -> None:
    bounds = {b.name: b for b in check_program(engine_program()).bounds}
    assert bounds["the clock at the horizon"].most == pytest.approx(1e12)
    assert bounds["pool `kv`: blocks in use"].most == 1000
    attention = bounds["stage `E`: attention, doubled"]
    assert attention.most == 2 * 512 * (16000 + 256)
    # 64 residents at most: 10 ms + 64 * 40 us + 16000 * 0.1 us + 512 * 50 us + attention * 4 ns, in 2^-20 ticks
    cost = (0.01 + 64 * 4e-5 + 16000e-7 + 512 * 5e-5 + attention.most / 2 * 4e-9) * 1e9 * 2**20
    assert bounds["stage `E`: the cost of an iteration"].most == pytest.approx(cost, rel=1e-6)
    assert math.isinf(bounds["state `decode`: the work"].most)
    assert all(isinstance(b, Bound) and b.fits for b in bounds.values())


def test_long_and_large_runs_are_allowed() -> None:
    # one million tokens of context, 24 hours at a tick of 1 ns
    program = change(
        engine_program(), ("pools[1].cap", e.Num(4e6)), ("horizon_s", e.Num(86400.0)),
        ("attrs[4].bound", e.Num(1e6)),
    )  # fmt: skip
    assert find_problems(program) == []
    # a think time beyond the horizon never ends: it only has to be a number of ticks
    assert find_problems(change(queue_program(), ("states[0].exit.work", e.Num(1e6)))) == []


def deep(depth: int) -> p.Program:
    names = [f"s{i}" for i in range(depth)]
    return msgspec.structs.replace(
        queue_program(),
        pools=tuple(p.Pool(name=n, cap=ONE) for n in names),
        scopes=tuple(
            p.Scope(name=n, takes=(p.Take(pool=n, units=ONE),), reentry=f"in_{n}", parent=names[i - 1] if i else None)
            for i, n in enumerate(names)
        ),
        states=(
            p.State(name="serve", exit=p.Enter("s0")),
            *(p.State(name=f"in_{n}", exit=p.Enter(m), scope=n) for n, m in zip(names, names[1:])),
            p.State(name=f"in_{names[-1]}", exit=p.Run("cpu", "Plain", ONE, "end"), scope=names[-1]),
            p.State(name="end", exit=p.End(), scope=names[-1]),
        ),
    )


# ---------------------------------------------------------------- values


def test_constants_and_ranges() -> None:
    index = Index(engine_program())
    assert constant(index, add(ONE, e.Param("again"))) == 1.5
    assert constant(index, e.Binary("And", ZERO, attr("input"))) == 0.0
    assert constant(index, e.Binary("Or", attr("input"), ONE)) is None
    assert constant(index, e.Binary("Div", ONE, ZERO)) == math.inf
    assert constant(index, e.Cond(ONE, ONE, attr("input"))) == 1.0
    assert math.isnan(constant(index, e.Call("Ln", (BELOW,))) or 0.0)
    ranges = {"Ndec": (0.0, 64.0)}
    assert span(index, add(ONE, mul(e.Num(2.0), e.Ctx("Ndec"))), ranges, {}) == (1.0, 129.0)
    assert span(index, e.Call("Min", (e.Ctx("Kvb"), e.Num(5.0))), ranges, {}) == (-math.inf, 5.0)
    assert span(index, e.Binary("Sub", ZERO, e.Ctx("Ndec")), ranges, {}) == (-64.0, 0.0)


def test_whole_numbers() -> None:
    whole = Wholeness(Index(engine_program()))
    assert whole.attrs["output"] and whole.attrs["known"] and not whole.attrs["think"]
    assert not whole.whole(e.Binary("Div", attr("input"), e.Num(2.0)))
    assert whole.whole(mul(e.Call("Floor", (e.Binary("Div", attr("input"), e.Num(16.0)),)), e.Num(16.0)))
    assert not Wholeness(Index(change(listed_program(), ("arrival.turns[0][0][0]", 0.5)))).attrs["size"]


# ---------------------------------------------------------------- describe


def test_describe_is_json_and_text() -> None:
    for program in (queue_program(), engine_program(), listed_program(), deep(3)):
        tree = describe(program, check_program(program))
        assert json.loads(json.dumps(tree, allow_nan=False)) == tree
        assert as_text(program).startswith(f"program {program.name}: valid")
    text = as_text(engine_program())
    assert "kv: cap 16000, block 16, line first come first served, cached, evicts least recently used" in text
    assert "its cost runs in fixed point" in text
    assert "the cost: moment step, reads Attn, Kvb, Ndec, Npre" in text


def test_warnings() -> None:
    program = change(
        queue_program(), ("states[2]", p.State(name="lost", exit=p.End())), ("pools[0]", p.Pool(name="spare", cap=ONE))
    )
    assert [w["problem"] for w in describe(program)["warnings"]] == [
        "state `lost`: nothing leads to it",
        "pool `spare`: no scope takes it",
    ]


# ---------------------------------------------------------------- reference programs

LISTED_PROGRAMS = (
    "det_chunk det_decode_first det_evict_by det_evict_lru det_hol det_one det_one_cached det_over_reuse "
    "det_preempt_decode det_preempt_decode_cached det_preempt_none det_preempt_prefill det_preempt_tail det_queue_by "
    "det_reqcap det_reserve det_self_preempt_stuck det_srpt flag_over_cap flag_rejected hold_engine hold_engine_cached "
    "trace_ordered_batch trace_ordered_poisson trace_random delay_inf md1 mg1_h2 mm1 mmc3 renewal_erlang renewal_drain "
    "det_reserve_held grow_preempt nested_holds queue_every shrink spill_tier "
    "text_mm1 text_vllm vllm_single vllm_single_chunked vllm_multi vllm_multi_tight"
).split()


@pytest.mark.parametrize("name", LISTED_PROGRAMS)
def test_reference_program_passes(name: str) -> None:
    from serqjax.importers import ir14

    program = ir14.read(shared_dir() / "programs" / name / "program.ir14.json")
    facts = check_program(program)
    assert unsupported(program) == []
    assert all(stage.fixed_point for stage in facts.stages if stage.kind == "step")
    assert json.dumps(describe(program, facts), allow_nan=False)


def test_deep_expressions_are_told() -> None:
    expr: e.Expr = ONE
    for _ in range(3000):
        expr = e.Unary("Neg", expr)
    with pytest.raises(ProgramError, match="nested too deeply"):
        check_program(change(queue_program(), ("states[0].exit.work", expr)))
