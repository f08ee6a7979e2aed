"""The parts of a program in short lines of words; expressions as `serqjax.builder.parse` reads them.

A part that has no words of its own here (a new op, exit or field) is said by its names in the IR, so that nothing of
a program is missing from its picture.

**Source:** `serqjax/ir/program.py`, docstrings of the parts.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from ..builder import write
from ..check.describe import DISCIPLINE
from ..check.facts import PoolFacts, StageFacts
from ..check.index import Index, targets
from ..ir.expr import Expr, Inf, Node, Param
from ..ir.program import (
    Branch,
    Deadline,
    Drop,
    Enter,
    Goto,
    Grow,
    Leave,
    Listed,
    NoArrival,
    Observe,
    Order,
    Pool,
    Program,
    Require,
    Respond,
    Run,
    Scope,
    Set,
    Stage,
    State,
    Step,
    Turn,
    is_lru,
)


def phrase(value: Any) -> str:
    """Any value that stands in a part."""
    if isinstance(value, Order):
        return order_words(value)
    if isinstance(value, Node):
        return write(cast(Expr, value))
    if isinstance(value, tuple):
        return (", " if all(isinstance(v, Node | str) for v in value) else "; ").join(phrase(v) for v in value)
    if isinstance(value, msgspec.Struct):
        return " ".join([type(value).__name__.lower(), ", ".join(other_fields(value))]).strip()
    return number(value) if isinstance(value, float) else str(value)


def other_fields(part: msgspec.Struct, said: tuple[str, ...] = ()) -> list[str]:
    """`field: value` of every field that is not `said` already and differs from its default."""
    lines = []
    for field in msgspec.structs.fields(type(part)):
        value = getattr(part, field.name)
        if field.name in said or value == field.default:
            continue
        text = phrase(value)
        if field.name.endswith("_s"):
            lines.append(f"{field.name.removesuffix('_s')}: {text} s")
        else:  # a part named as its field says it itself
            lines.append(text if text.startswith(f"{field.name} ") else f"{field.name}: {text}")
    return lines


def order_words(order: Order) -> str:
    return f"{phrase(order.keys)}, then {order.tie}" if order.keys else order.tie


def amount(index: Index, node: Any) -> str:
    """A number with its value; a parameter also with its name."""
    if isinstance(node, Inf):
        return "no limit"
    if isinstance(node, Param):
        return f"{number(index.params[node.name])} ({node.name})"
    return write(node)


def number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


# ---------------------------------------------------------------- the automaton


def op_words(op: Any) -> str:
    match op:
        case Set(attr, value):
            return f"{attr} := {write(value)}"
        case Observe(name, value):
            return f"observe {name}: {write(value)}"
        case Turn():
            return "begin the next turn"
        case Respond():
            return "respond to the client"
        case Drop(pool):
            return f"drop own cache in {write(pool)}"
        case Require(test, _):
            return f"require {write(test)}"
    return phrase(op)


def exit_words(state: State, field: str) -> list[str]:
    """The label of the arrow that leaves `state` by a field of its exit (`then`, `deadline.target`; "" at an end)."""
    exit_ = state.exit
    match exit_, field:
        case _, "deadline.target":
            return [_deadline(getattr(exit_, "deadline"))]
        case Goto(), "then":
            return []
        case Branch(test, _, _), "then":
            return [f"if {write(test)}"]
        case _, "orelse":
            return ["else"]
        case Enter(scope), _:
            return [f"enter {scope}"]
        case Run(), "then":
            unit = "seconds" if exit_.mode == "Plain" else "tokens"
            mode = "" if exit_.mode == "Plain" else f"{exit_.mode} "
            said = ("stage", "mode", "work", "then", "grows", "deadline")
            grows = [] if exit_.grows is None else [f"grows {write(exit_.grows)}"]
            return [f"run {mode}on {write(exit_.stage)}", f"{unit}: {write(exit_.work)}", *grows,
                    *other_fields(exit_, said)]
        case Grow(), "then":
            return [f"grow {write(exit_.pool)} by {write(exit_.units)}"]
        case Leave(), _:
            return [f"leave {state.scope}"]
    arrows = tuple(of for of, _ in targets(state))
    name, values = type(exit_).__name__.lower(), other_fields(exit_, (*arrows, "deadline"))
    return [" ".join([name, *([] if field in ("then", "") else [field]), ", ".join(values)]).strip()]


def _deadline(deadline: Deadline) -> str:
    return f"deadline, s: {write(deadline.after)}"


def scope_words(scope: Scope, preempted: bool) -> list[str]:
    """What a session waits for, takes and gives back, one fact a line."""
    lines = [f"let {let.attr} := {write(let.value)}" for let in scope.lets]
    if scope.reuse is not None:
        lines.append(f"reuse of the own cache, at most {write(scope.reuse)}")
    for take in scope.takes:
        lines.append(f"{write(take.pool)}: take {write(take.units)}")
        if take.reserve is not None:
            lines.append(f"  if there is room for {write(take.reserve)}")
        if take.keep is not None:
            lines.append(f"  leave in the cache: {write(take.keep)}")
        if take.oversize != "wait":
            lines.append(f"  rejected if above the cap: {phrase(take.oversize)}")
    lines += other_fields(scope, ("name", "takes", "reentry", "parent", "lets", "reuse"))
    if preempted:
        lines.append("preempted: gives all back and waits here again")
    return lines


def arrival_words(index: Index, program: Program) -> tuple[str, list[str]]:
    """How sessions come: a title; facts, and the ops of a session's start and of each turn."""
    arrival = program.arrival
    title = "no arrivals" if isinstance(arrival, NoArrival) else f"{type(arrival).__name__} arrivals"
    if isinstance(arrival, Listed):
        facts = [f"{len(arrival.at)} sessions from a list"]
    else:
        names = [f.name for f in msgspec.structs.fields(type(arrival))]
        facts = [f"{name}: {amount(index, getattr(arrival, name))}" for name in names]
    if program.arrivals is not None:
        facts.append(f"exactly {program.arrivals}, then the run drains")
    if program.trace is not None:
        how = "in their order" if program.trace.ordered else "drawn at random"
        facts.append(f"replay {len(program.trace.turns)} recorded sessions, {how}")
    for what, ops in (("each session:", program.init), ("each turn:", program.turn)):
        if ops:
            facts += [what, *(f"  {op_words(op)}" for op in ops)]
    return title, facts


# ---------------------------------------------------------------- the deployment


def pool_words(index: Index, pool: Pool, facts: PoolFacts) -> list[str]:
    lines = [f"cap: {amount(index, pool.cap)}"]
    if pool.block is not None:
        lines.append(f"block: {amount(index, pool.block)}")
    lines.append("line: " + (order_words(pool.queue) if pool.queue.keys else "first come, first served"))
    if facts.cached:
        lines.append("evict: " + ("least recently used" if is_lru(pool.evict) else order_words(pool.evict)))
    if pool.preempt is not None:
        lines.append(f"victims: {order_words(pool.preempt.order)}; to the {pool.preempt.requeue} of the line")
    elif facts.has_growers:
        lines.append("growth waits for room")
    said = ("name", "cap", "block", "queue", "evict", "preempt", "admit_via", "array", "index")
    return lines + other_fields(pool, said)


def stage_words(index: Index, stage: Stage, facts: StageFacts) -> list[str]:
    kind, lines = stage.kind, [DISCIPLINE[facts.kind]]
    if not isinstance(kind, Step):
        return lines + [f"{f.name}: {amount(index, getattr(kind, f.name))}" for f in msgspec.structs.fields(type(kind))]
    lines += [f"budget, tokens: {amount(index, kind.budget)}", f"cost, s: {write(kind.cost)}"]
    if kind.chunk is not None:
        lines.append(f"chunk, tokens: {amount(index, kind.chunk)}")
    if kind.decode is not None:
        lines.append(f"a decode gets, tokens: {amount(index, kind.decode)}")
    if kind.verify is not None:
        lines.append(f"computed for it, tokens: {amount(index, kind.verify)}")
    if kind.serve.keys:
        lines.append(f"serve: {order_words(kind.serve)}")
    return lines + other_fields(kind, ("budget", "cost", "chunk", "decode", "verify", "serve", "memory"))
