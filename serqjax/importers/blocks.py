"""Blocks of IR 14 statements as states of a session automaton.

A state is opened at every point where a session may block or where control flow joins; straight-line
statements become its ops. `Loop`, `While` and `Branch` become `Branch` and `Goto` exits, a
`Hold` becomes a scope, an engine's `Request` the scope that `request.py` writes out, a leg of a `Fork`
states of its own that end in `EndLeg`.

A client's response ends at the first workload-side statement after a `Turn` (semantics section 12):
`Respond` is written there wherever a turn may be open.

**Source:** `spec/ir14.md`, Statements; `spec/semantics.md`, sections 1, 3, 4, 12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .. import ir
from ..ir.codec import describe
from .expressions import Expressions, at_least_zero, moves

if TYPE_CHECKING:
    from .request import Requests

_STATEMENTS = "Turn End Set Observe Hold Grow Drop Run Branch Loop While Request Fork Join Choose Release Load Shrink"


class Builder:
    """Collects states and scopes; `place` arguments are JSON paths for messages.

    `scope` is the innermost scope of the state being written, `open_turn` tells whether a turn may
    be open there. `share`: of runs on several stages that name no policy (version 12 names one for all).
    """

    def __init__(
        self,
        expressions: Expressions,
        blocks: list[Any],
        sides: list[list[str]],
        observes: tuple[str, ...],
        share: ir.Share | None = None,
    ) -> None:
        self.expressions = expressions
        self.source = expressions.source
        self.blocks = blocks
        self.sides = sides
        self.observes = observes
        self.share: ir.Share | None = share
        self.requests: Requests | None = None
        self.states: list[ir.State] = []
        self.scopes: list[ir.Scope] = []
        self.reached: dict[int, str] = {}
        self.label = "start"
        self.ops: list[ir.Op] = []
        self.scope: str | None = None
        self.open_turn = False
        self.in_leg = False
        self._count = 0

    # ------------------------------------------------------------ states

    def new_label(self) -> str:
        self._count += 1
        return f"s{self._count}"

    def begin(self, label: str) -> None:
        self.label, self.ops = label, []

    def finish(self, exit: ir.Exit, then: str | None = None) -> None:
        """Close the current state with `exit` and open `then` (or one that nothing reaches)."""
        self.states.append(ir.State(name=self.label, ops=tuple(self.ops), exit=exit, scope=self.scope))
        self.begin(self.new_label() if then is None else then)

    def add_scope(self, scope: ir.Scope) -> None:
        self.scopes.append(scope)

    def respond(self) -> None:
        if self.open_turn:
            self.ops.append(ir.Respond())
            self.open_turn = False

    # ------------------------------------------------------------ blocks

    def claim(self, value: Any, place: str) -> int | None:
        """A block index, each block reached once."""
        block = self.source.index(value, place, len(self.blocks), "blocks")
        if not self.blocks or self.source.problems and self.source.problems[-1].path == place:
            return None
        if block in self.reached:
            self.source.fail(place, f"block {block} is reached twice", f"it also belongs to {self.reached[block]}")
            return None
        self.reached[block] = place
        return block

    def session(self, value: Any, place: str) -> None:
        """The session block: start state to the end of the session."""
        self.block(value, place)
        self.respond()
        self.finish(ir.End())

    def block(self, value: Any, place: str) -> None:
        block = self.claim(value, place)
        if block is None:
            return
        where = f"$.blocks[{block}]"
        statements = self.source.list(self.blocks[block], where)
        sides = self.sides[block]
        for i, statement in enumerate(statements):
            side = sides[i] if i < len(sides) else "Server"
            self.statement(statement, f"{where}[{i}]", side == "Workload")

    def straight(self, value: Any, place: str) -> tuple[ir.Op, ...]:
        """A block of `Set` and `Observe` only (`init`, `turn`)."""
        block = self.claim(value, place)
        if block is None:
            return ()
        where = f"$.blocks[{block}]"
        ops: list[ir.Op] = []
        for i, statement in enumerate(self.source.list(self.blocks[block], where)):
            tag, payload = self.source.tag(statement, f"{where}[{i}]")
            if tag not in ("Set", "Observe"):
                if tag:
                    self.source.fail(f"{where}[{i}]", f"{tag} is not allowed in this block", "only Set and Observe")
                continue
            ops.append(self.assignment(tag, payload, f"{where}[{i}].{tag}"))
        return tuple(ops)

    def has_turn(self, value: Any, depth: int = 0) -> bool:
        """Whether a `Turn` lies in a block or below it."""
        if not isinstance(value, int) or not 0 <= value < len(self.blocks) or depth > len(self.blocks):
            return False
        for statement in self.blocks[value] if isinstance(self.blocks[value], list) else []:
            if statement == "Turn":
                return True
            if isinstance(statement, dict) and len(statement) == 1:
                tag, payload = next(iter(statement.items()))
                inner: list[Any] = []
                if tag == "Loop":
                    inner = [payload]
                elif tag in ("While", "Branch") and isinstance(payload, list):
                    inner = payload[1:]
                elif tag == "Hold" and isinstance(payload, dict):
                    inner = [payload.get("body")]
                if any(self.has_turn(b, depth + 1) for b in inner):
                    return True
        return False

    # ------------------------------------------------------------ statements

    def assignment(self, tag: str, payload: Any, place: str) -> ir.Op:
        items = self.source.list(payload, place, 2)
        if not items:
            return ir.Observe("?", ir.Num(0.0))
        value = self.expressions.read(items[1], f"{place}[1]")
        if tag == "Set":
            return ir.Set(self.expressions.attr(items[0], f"{place}[0]"), value)
        return ir.Observe(self.observe(items[0], f"{place}[0]"), value)

    def observe(self, value: Any, place: str) -> str:
        i = self.source.index(value, place, len(self.observes), "observations")
        return self.observes[i] if self.observes else "?"

    def statement(self, statement: Any, place: str, workload: bool) -> None:
        source, read = self.source, self.expressions.read
        tag, payload = source.tag(statement, place)
        inner = f"{place}.{tag}"
        if tag in ("Turn", "End") or (workload and tag != "While"):  # a guard is evaluated anew at every round
            self.respond()
        if self.in_leg and tag in ("Turn", "End", "Fork", "Join"):
            source.fail(inner, f"{tag} is not allowed in a leg", "only the session itself has turns, legs and an end")
        elif tag == "Turn":
            self.ops.append(ir.Turn())
            self.open_turn = True
        elif tag == "End":
            self.finish(ir.End())
        elif tag in ("Set", "Observe"):
            self.ops.append(self.assignment(tag, payload, inner))
        elif tag == "Choose":
            self.choose(payload, inner)
        elif tag == "Fork":
            self.fork(payload, inner)
        elif tag == "Join":
            then = self.new_label()
            self.finish(ir.Join(then), then)
        elif tag == "Drop":
            self.ops.append(ir.Drop(self.expressions.pool(payload, inner)))
        elif tag == "Grow":
            items = source.list(payload, inner, 2)
            if items:
                then = self.new_label()
                pool = self.expressions.pool(items[0], f"{inner}[0]")
                self.finish(ir.Grow(pool, read(items[1], f"{inner}[1]"), then), then)
        elif tag == "Load":
            items = source.list(payload, inner, 2)
            if items:
                pool = self.expressions.pool(items[0], f"{inner}[0]")
                self.ops.append(ir.Load(pool, read(items[1], f"{inner}[1]")))
        elif tag == "Shrink":
            items = source.list(payload, inner, 2)
            if items:
                then = self.new_label()
                pool = self.expressions.pool(items[0], f"{inner}[0]")
                self.finish(ir.Shrink(pool, read(items[1], f"{inner}[1]"), then), then)
        elif tag == "Release":
            then = self.new_label()
            self.finish(ir.Release(self.expressions.pool(payload, inner), then), then)
        elif tag == "Run":
            self.run(payload, inner)
        elif tag == "Branch":
            self.branch(payload, inner)
        elif tag == "Loop":
            head = self.new_label()
            self.finish(ir.Goto(head), head)
            self.open_turn = self.open_turn or self.has_turn(payload)
            self.block(payload, inner)
            self.finish(ir.Goto(head))
        elif tag == "While":
            self.while_(payload, inner, workload)
        elif tag == "Hold":
            self.hold(payload, inner)
        elif tag == "Request":
            assert self.requests is not None
            self.requests.write(self, payload, inner)
        elif tag:
            source.fail(place, f"unknown statement {describe(tag)}", f"need one of {_STATEMENTS}")

    def choose(self, payload: Any, place: str) -> None:
        source, read = self.source, self.expressions.read
        fields = source.object(payload, place)
        if not fields:
            return
        keys = self.expressions.keys(source.get(fields, "key", place), f"{place}.key")
        if not keys:
            source.fail(f"{place}.key", "a choice needs a key", "write at least one expression")
        var = self.expressions.attr(source.get(fields, "var", place), f"{place}.var")
        self.ops.append(ir.Choose(var, read(source.get(fields, "count", place), f"{place}.count"), keys))

    def fork(self, payload: Any, place: str) -> None:
        """The block of a leg as states outside every scope, and the session that goes on."""
        leg, then = self.new_label(), self.new_label()
        self.finish(ir.Fork(leg, then), leg)
        scope, open_turn = self.scope, self.open_turn
        # no statement of a leg ends the session's turn
        self.scope, self.in_leg, self.open_turn = None, True, False
        self.block(payload, place)
        self.finish(ir.EndLeg(), then)
        self.scope, self.in_leg, self.open_turn = scope, False, open_turn

    def run(self, payload: Any, place: str) -> None:
        source = self.source
        fields = source.object(payload, place)
        if not fields:
            return
        if fields.get("poster") is not None:
            source.refuse(f"{place}.poster", "the poster of a run")
        stage = self.expressions.stage(source.get(fields, "stage", place), f"{place}.stage")
        mode: Literal["Plain", "Prefill", "Decode"] = "Plain"
        raw_mode = source.get(fields, "mode", place)
        if raw_mode in ("Plain", "Prefill", "Decode"):
            mode = raw_mode
        else:
            source.fail(f"{place}.mode", f"{describe(raw_mode)} is not allowed", 'need "Plain", "Prefill" or "Decode"')
        work = self.expressions.read(source.get(fields, "work", place), f"{place}.work")
        growing = fields.get("growing")
        grows = None if growing is None else self.expressions.pool(growing, f"{place}.growing")
        also = tuple(
            self.expressions.stage(other, f"{place}.also[{i}]")
            for i, other in enumerate(source.list(fields.get("also") or [], f"{place}.also"))
        )
        share = source.share(fields.get("share"), f"{place}.share")
        if also and share is None:
            share = self.share
        raw_latency = fields.get("latency")
        latency = None if raw_latency is None else self.expressions.read(raw_latency, f"{place}.latency")
        then = self.new_label()
        self.finish(ir.Run(stage, mode, work, then, grows, None, also, share, latency), then)

    def branch(self, payload: Any, place: str) -> None:
        items = self.source.list(payload, place, 3)
        if not items:
            return
        test = self.expressions.read(items[0], f"{place}[0]")
        then, orelse, join = self.new_label(), self.new_label(), self.new_label()
        self.finish(ir.Branch(test, then, orelse), then)
        before = self.open_turn
        self.block(items[1], f"{place}[1]")
        after = self.open_turn
        self.finish(ir.Goto(join), orelse)
        self.open_turn = before
        self.block(items[2], f"{place}[2]")
        self.open_turn = self.open_turn or after
        self.finish(ir.Goto(join), join)

    def while_(self, payload: Any, place: str, workload: bool) -> None:
        items = self.source.list(payload, place, 2)
        if not items:
            return
        head, body, then = self.new_label(), self.new_label(), self.new_label()
        self.finish(ir.Goto(head), head)
        self.open_turn = self.open_turn or self.has_turn(items[1])
        if workload:
            self.respond()
        at_head = self.open_turn
        self.finish(ir.Branch(self.expressions.read(items[0], f"{place}[0]"), body, then), body)
        self.block(items[1], f"{place}[1]")
        self.finish(ir.Goto(head), then)
        self.open_turn = at_head

    # ------------------------------------------------------------ holds

    def hold(self, payload: Any, place: str) -> None:
        source, read = self.source, self.expressions.read
        fields = source.object(payload, place)
        if not fields:
            return
        raw_cache, raw_reuse = fields.get("cache"), fields.get("reuse")
        keep = None if raw_cache is None else at_least_zero(read(raw_cache, f"{place}.cache"))
        reuse = None if raw_reuse is None else read(raw_reuse, f"{place}.reuse")
        lease = self.lease(fields.get("lease"), f"{place}.lease")
        takes: list[ir.Take] = []
        for i, item in enumerate(source.list(source.get(fields, "pools", place), f"{place}.pools")):
            where = f"{place}.pools[{i}]"
            parts = source.list(item, where, 3)
            if not parts:
                continue
            units = read(parts[1], f"{where}[1]")
            reserve = None if parts[2] is None else read(parts[2], f"{where}[2]")
            pool = self.expressions.pool(parts[0], f"{where}[0]")
            takes.append(ir.Take(pool=pool, units=units, reserve=reserve, keep=keep, oversize=oversize(units, reserve)))
        if not takes:
            source.fail(f"{place}.pools", "a hold takes nothing", "name at least one pool")
            return
        if self.requests is not None:
            self.requests.prefixes.read(fields.get("prefix"), f"{place}.prefix", takes)
        # Without a cache clause nothing is consumed, so a reuse bound has nothing to bound.
        scope, then = self.open_scope("hold", tuple(takes), (), reuse if keep is not None else None, lease)
        self.open_turn = self.open_turn or self.has_turn(fields.get("body"))
        self.block(source.get(fields, "body", place), f"{place}.body")
        self.close_scope(scope, then)

    def lease(self, value: Any, place: str) -> ir.Lease | None:
        if value is None:
            return None
        items = self.source.list(value, place, 2)
        if not items:
            return None
        pool = self.expressions.pool(items[0], f"{place}[0]")
        return ir.Lease(pool=pool, after_s=self.expressions.read(items[1], f"{place}[1]"))

    def open_scope(
        self, name: str, takes: tuple[ir.Take, ...], lets: tuple[ir.Let, ...], reuse: ir.Expr | None,
        lease: ir.Lease | None = None,
    ) -> tuple[ir.Scope, str]:  # fmt: skip
        """Enter a new scope here and go on in its first state; returns it and the label after it."""
        names = {scope.name for scope in self.scopes}
        unique, n = name, 1
        while unique in names:
            n += 1
            unique = f"{name}_{n}"
        body, then = self.new_label(), self.new_label()
        scope = ir.Scope(name=unique, takes=takes, reentry=body, parent=self.scope, lets=lets, reuse=reuse, lease=lease)
        self.add_scope(scope)
        self.finish(ir.Enter(unique), body)
        self.scope = unique
        return scope, then

    def close_scope(self, scope: ir.Scope, then: str) -> None:
        self.finish(ir.Leave(then), then)
        self.scope = scope.parent


def oversize(units: ir.Expr, reserve: ir.Expr | None) -> ir.Expr | Literal["wait"]:
    """What a joining session is measured by against the cap: amounts that cannot move while it waits.

    **Source:** semantics section 4, Enqueue; trap 23.
    """
    fixed = [amount for amount in (units, reserve) if amount is not None and not moves(amount)]
    if not fixed:
        return "wait"
    return fixed[0] if len(fixed) == 1 else ir.Call("Max", (fixed[0], fixed[1]))
