"""What a program is, in a few lines or as JSON: the answer of `serqjax check`.

**Source:** `design.md`, sections 3 and 5.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import Problem
from ..ir.expr import Attr, Expr, PoolState, Sample, StageState
from ..ir.fabric import fabrics
from ..ir.program import Fifo, Order, Program, Step
from .facts import Facts, facts_of, read_contexts
from .fragment import unsupported
from .index import Index, spell
from .licence import Obstacle
from .positions import Position
from .values import constant

#: The kinds of `StageFacts` in words.
DISCIPLINE = {
    "fifo": "first come first served",
    "delay": "delay",
    "ps": "processor sharing",
    "step": "continuous batching",
}


def describe(program: Program, facts: Facts | None = None) -> dict[str, Any]:
    """A valid program as plain JSON values (infinity is the string "inf", an unknown bound null).

    **Arguments:** `facts`: what `check_program` gave for it, if at hand.
    """
    index = Index(program)
    facts = facts_of(program) if facts is None else facts
    by_owner: dict[str, list[dict[str, Any]]] = {}
    for position in index.positions:
        by_owner.setdefault(position.owner, []).append(_moment(position))
    return {
        "program": program.name,
        "pools": [_pool(index, facts, i, by_owner) for i in range(len(program.pools))],
        "stages": [_stage(index, facts, i, by_owner) for i in range(len(program.stages))],
        "scopes": [
            {
                "name": s.name,
                "depth": s.depth,
                "takes": [program.pools[p].name for p in s.may_take],
                "caches": s.caches,
                "preemptible": s.preemptible,
                "moments": by_owner.get(f"scope `{s.name}`", []),
            }
            for s in facts.scopes
        ],
        "states": [{"name": s.name, "draws": s.draws, "blocks": s.blocks, "reached": s.reached} for s in facts.states],
        "arrival": type(program.arrival).__name__,
        "horizon_s": _json(index.number(program.horizon_s)),
        "warmup_s": _json(index.number(program.warmup_s)),
        "tick_s": program.tick_s,
        "facts": {
            "max_depth": facts.max_depth,
            "has_turn": facts.has_turn,
            "can_end": facts.can_end,
            "init_draws": facts.init_draws,
            "turn_draws": facts.turn_draws,
            "contexts": sorted(facts.contexts),
            "functions": sorted(facts.functions),
            "whole_attrs": sorted(facts.whole_attrs),
            "most_live": facts.most_live,
        },
        "bounds": [
            {"name": b.name, "path": b.path, "most": _json(b.most, None), "limit": _json(b.limit), "unit": b.unit}
            for b in facts.bounds
        ],
        "warnings": [_problem(p) for p in warnings(program, facts)],
        "unsupported": [_problem(p) for p in unsupported(program)],
    }


def warnings(program: Program, facts: Facts) -> list[Problem]:
    """What is allowed but probably not meant."""
    found: list[Problem] = []
    for i, state in enumerate(facts.states):
        if not state.reached:
            found.append(Problem(f"$.states[{i}]", f"state `{state.name}`: nothing leads to it", "remove it"))
    entered = {getattr(state.exit, "scope", None) for state in program.states}
    for i, scope in enumerate(program.scopes):
        if scope.name not in entered:
            found.append(Problem(f"$.scopes[{i}]", f"scope `{scope.name}`: no state enters it", "remove it"))
    for i, pool in enumerate(facts.pools):
        if not pool.taken_by:
            found.append(Problem(f"$.pools[{i}]", f"pool `{pool.name}`: no scope takes it", "take it, or remove it"))
    return found


def as_text(program: Program, facts: Facts | None = None) -> str:
    """The same for people, one fact a line."""
    tree = describe(program, facts)
    lines = [f"program {tree['program']}: valid"]
    horizon = "until drained" if tree["horizon_s"] is None else f"horizon {tree['horizon_s']:g} s"
    lines.append(f"  {tree['arrival']} arrivals, {horizon}, warm-up {tree['warmup_s']:g} s, tick {tree['tick_s']:g} s")
    lines.append("pools")
    for pool in tree["pools"]:
        lines.append(f"  {pool['name']}: {_pool_line(pool)}")
        lines += [f"    {_moment_line(m)}" for m in pool["moments"]]
    lines.append("stages")
    for stage in tree["stages"]:
        extra = "" if stage["servers"] is None else f", {stage['servers']:g} servers"
        memory = "" if stage["memory"] is None else f", memory {stage['memory']}"
        admits = f", admits {', '.join(stage['admits'])}" if stage["admits"] else ""
        if stage["shared_with"]:
            extra += f", held together with {', '.join(stage['shared_with'])}"
        lines.append(f"  {stage['name']}: {stage['discipline']}{extra}{memory}{admits}")
        if stage["cost"] is not None:
            lines += [f"    {line}" for line in _planning_lines(stage)]
            lines.append(f"    {stage['cost']}")
            lines += [f"    {line}" for line in _licence_lines(stage["coalesces"])]
        lines += [f"    {_moment_line(m)}" for m in stage["moments"]]
    lines.append("scopes" if tree["scopes"] else "no scopes")
    for scope in tree["scopes"]:
        marks = [w for w, is_so in (("caches", scope["caches"]), ("preemptible", scope["preemptible"])) if is_so]
        text = f"  {scope['name']}: depth {scope['depth']}, takes {', '.join(scope['takes'])}"
        lines.append(text + (f", {', '.join(marks)}" if marks else ""))
        lines += [f"    {_moment_line(m)}" for m in scope["moments"]]
    unknown = [b["name"] for b in tree["bounds"] if b["most"] is None]
    lines.append(f"bounds: {len(tree['bounds']) - len(unknown)} proven, {len(unknown)} not known from the program")
    lines += [f"  not known: {name} (declare `bound` of the attributes it reads)" for name in unknown]
    for kind, title in (("warnings", "warning"), ("unsupported", "not run by the array engine")):
        lines += [f"{title}: {p['path']}: {p['problem']}" for p in tree[kind]]
    return "\n".join(lines)


def _pool(index: Index, facts: Facts, i: int, moments: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    pool, fact = index.program.pools[i], facts.pools[i]
    return {
        "name": pool.name,
        "cap": _json(index.number(pool.cap)),
        "block": _json(index.number(pool.block)),
        "queue": _order(pool.queue),
        "admit_via": pool.admit_via,
        "cached": fact.cached,
        "evict": fact.evict,
        "can_grow": fact.can_grow,
        "preempts": fact.preempts,
        "requeue": fact.requeue if fact.preempts != "none" else None,
        "has_growers": fact.has_growers,
        "uncached": pool.uncached,
        "on_end": pool.on_end,
        "sharing": pool.sharing,
        "memory_of": [index.program.stages[s].name for s in fact.memory_of],
        "moments": moments.get(f"pool `{pool.name}`", []),
    }


def _stage(index: Index, facts: Facts, i: int, moments: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    stage, fact = index.program.stages[i], facts.stages[i]
    kind = stage.kind
    cost = None
    if isinstance(kind, Step):
        cost = (
            "its cost runs in fixed point (2^-20 ticks)"
            if fact.fixed_point
            else f"its cost runs in float64, rounded to ticks: {fact.float_reason}"
        )
    return {
        "name": stage.name,
        "kind": fact.kind,
        "discipline": DISCIPLINE[fact.kind],
        "servers": _json(index.number(kind.servers)) if isinstance(kind, Fifo) else None,
        "shared_with": _shared_with(index, i),
        "memory": kind.memory if isinstance(kind, Step) else None,
        "admits": [index.program.pools[p].name for p in fact.admits],
        "fixed_point": fact.fixed_point if isinstance(kind, Step) else None,
        "cost": cost,
        "coalesces": _licence(index, facts, i) if isinstance(kind, Step) else None,
        "serve": _order(kind.serve) if isinstance(kind, Step) else None,
        "granule": _json(index.number(kind.granule)) if isinstance(kind, Step) else None,
        "decode": _tokens(index, kind.decode) if isinstance(kind, Step) else None,
        "verify": _tokens(index, kind.verify) if isinstance(kind, Step) else None,
        "prefills": kind.prefills if isinstance(kind, Step) else None,
        "iteration": [type(command).__name__ for command in kind.iteration] if isinstance(kind, Step) else [],
        "registers": [r.name for r in index.program.registers if r.stage == stage.name],
        "run_by": [index.program.states[s].name for s in fact.run_by],
        "moments": moments.get(f"stage `{stage.name}`", []),
    }


def _tokens(index: Index, expr: Expr | None) -> float | str | None:
    """A constant number of tokens, or that it is computed; null for none."""
    value = constant(index, expr)
    return None if expr is None else "a computed number of" if value is None else value


def _shared_with(index: Index, i: int) -> list[str]:
    """Names of the stages whose flows are found together with those of stage `i`."""
    names = [stage.name for stage in index.program.stages]
    return [names[k] for fabric in fabrics(index.program) if i in fabric.stages for k in fabric.stages if k != i]


def _planning_lines(stage: dict[str, Any]) -> list[str]:
    """How a step stage fills its iterations, where that is not the usual way."""
    lines = []
    if stage["granule"] is not None:
        granule = "all or nothing" if stage["granule"] == "inf" else f"multiples of {stage['granule']:g} tokens"
        lines.append(f"an unfinished prefill gets {granule}")
    for field, says in (("decode", "a decode gets up to"), ("verify", "for each decode an iteration computes")):
        if stage[field] is not None:
            tokens = stage[field] if isinstance(stage[field], str) else f"{stage[field]:g}"
            lines.append(f"{says} {tokens} tokens")
    if stage["prefills"] == "alone":
        lines.append("a prefill is alone in its iteration")
    if stage["iteration"]:
        keeps = f", keeps {', '.join(stage['registers'])}" if stage["registers"] else ""
        lines.append(f"fills an iteration with {', '.join(stage['iteration'])}{keeps}")
    return lines


#: What a licence may allow, in words: allowed and not allowed.
_COALESCED = {
    "windows": ("iterations of equal composition pass in one update", "iterations pass one by one"),
    "at_once": ("all residents are planned at once", "residents are planned one after the other"),
    "prefills": ("so they do while a request prefills", "but not while a request prefills"),
    "evicts": ("growth evicts inside such an update", "an eviction ends such an update"),
    "head_stays": ("a head that was refused stays refused", "a head that was refused is tried again each iteration"),
}


def _licence(index: Index, facts: Facts, i: int) -> dict[str, Any]:
    """What may be coalesced on a step stage; null where it has no such thing (nothing is evicted, no line)."""
    found, fact = facts.stages[i].licence, facts.stages[i]
    assert found is not None
    cached = found.pool >= 0 and facts.pools[found.pool].cached
    return {
        "windows": found.windows,
        "at_once": found.at_once,
        "prefills": None if found.prefills or not found.windows else False,
        "evicts": found.evicts if cached else None,
        "head_stays": found.head_stays if fact.admits else None,
        "obstacles": [
            {"forbids": list(o.forbids), "path": o.path, "problem": _obstacle(index, facts, i, o)}
            for o in found.obstacles
            if cached or o.forbids != ("evicts",)
        ],
    }


def _obstacle(index: Index, facts: Facts, i: int, obstacle: Obstacle) -> str:
    """An obstacle with the expression it lies in, and for a cost why it has no exact integer form."""
    for position in index.positions:
        if (obstacle.path + ".").startswith((f"{position.path}.", f"{position.path}[")):
            text = f"{position.owner}: {position.what}: {obstacle.reason}"
            is_cost = position.path == f"$.stages[{i}].kind.cost"
            return f"{text}, and {facts.stages[i].float_reason}" if is_cost else text
    if obstacle.path.startswith("$.pools"):
        pool = index.program.pools[int(obstacle.path.split("[")[1].split("]")[0])]
        return f"pool `{pool.name}`: {obstacle.reason}"
    return f"stage `{index.program.stages[i].name}`: {obstacle.reason}"


def _licence_lines(tree: dict[str, Any]) -> list[str]:
    """What may be coalesced, then what may not and why, one obstacle a line."""
    lines = [says[0] for part, says in _COALESCED.items() if tree[part]]
    for part, says in _COALESCED.items():
        if tree[part] is False:
            lines.append(says[1])
            lines += [f"  {o['path']}: {o['problem']}" for o in tree["obstacles"] if part in o["forbids"]]
    return lines


def _moment(position: Position) -> dict[str, Any]:
    return {
        "path": position.path,
        "what": position.what,
        "moment": position.moment,
        "reads": [*read_contexts(position.expr), *_read_state(position)],
    }


def _read_state(position: Position) -> list[str]:
    """Attributes, and state of pools and stages as `BudgetLeft(E)`, that an expression reads."""
    found = []
    for _, node in position.nodes:
        if isinstance(node, Attr):
            found.append(node.name)
        elif isinstance(node, PoolState):
            found.append(f"{node.fun}({spell(node.pool)})")
        elif isinstance(node, StageState):
            found.append(f"{node.fun}({spell(node.stage)})")
        elif isinstance(node, Sample):
            found.append(f"a draw {node.dist}")
    return sorted(set(found))


def _moment_line(moment: dict[str, Any]) -> str:
    reads = f", reads {', '.join(moment['reads'])}" if moment["reads"] else ""
    return f"{moment['what']}: moment {moment['moment']}{reads}"


def _pool_line(pool: dict[str, Any]) -> str:
    parts = ["no cap" if pool["cap"] == "inf" else f"cap {pool['cap']:g}"]
    if pool["block"] is not None:
        parts.append(f"block {pool['block']:g}")
    parts.append("line by keys" if pool["queue"] != "queued" else "line first come first served")
    if pool["admit_via"] is not None:
        parts.append(f"admitted by {pool['admit_via']}")
    if pool["cached"]:
        parts.append(f"cached, evicts {'by keys' if pool['evict'] == 'keyed' else 'least recently used'}")
    if pool["sharing"] == "content":
        parts.append("blocks shared by content")
    if pool["can_grow"]:
        parts.append("grows" + (", growth waits" if pool["preempts"] == "none" else f", preempts {pool['preempts']}"))
    return ", ".join(parts)


def _order(order: Order) -> str:
    return order.tie if not order.keys else f"{len(order.keys)} keys, then {order.tie}"


def _problem(problem: Problem) -> dict[str, str]:
    return {"path": problem.path, "problem": problem.problem, "hint": problem.hint}


def _json(value: float | None, infinite: Any = "inf") -> Any:
    return infinite if value is not None and math.isinf(value) else value
