"""A direct interpreter of serQ IR 14 blocks, to test the importer alone.

It runs on the oracle's machine (events, pools, stages, planner), but reads the *session side* of a
program straight from the JSON: blocks are walked with a stack of (block, place) frames, `Hold` and
`Request` keep their own meaning, expressions are evaluated as they stand. It uses nothing of the
importer's automaton: no states, scopes, lets, `Respond` ops or hidden attributes. Pools, stages and
arrivals of the machine are the imported ones.

**Source:** `spec/semantics.md`, sections 1, 3, 4, 8, 10, 12; `spec/ir14.md`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from oracle import scopes
from oracle.expressions import Look, RunError, amount, guard, total_order
from oracle.machine import Machine
from oracle.session import Session, Status
from oracle.stages import Job
from serqjax import ir
from serqjax.importers import ir14
from serqjax.ir.time import seconds
from serqjax.report.raw import RawRun

Json = Any
Function = Callable[[Look], float]
BUILT_IN = {
    "slot_cached": "cached", "slot_serial": "serial", "slot_turn": "turn_no", "slot_new": "new", "slot_out": "out",
    "slot_think": "think", "slot_more": "more", "slot_forced": "forced", "slot_computed": "computed",
}  # fmt: skip
GO_ON = 0  # the only state of the machine's automaton; every other number is the body of a hold
PLACE = "in a block"  # of amounts that are none: such programs are not compared here


def run_blocks(tree: Json, directory: Path | None = None, *, seed: int | None = None) -> tuple[RawRun, ir.Program]:
    """One seed of an IR 14 program; with the program whose pools and stages it used (for reports)."""
    program = skeleton(tree, ir14.read(tree, directory=directory))
    machine = Machine(program, program.seed if seed is None else seed, trace=True, check=True)
    control = Blocks(machine, tree)
    machine.automaton = control  # type: ignore[assignment]
    machine.scopes = control.scopes  # type: ignore[assignment]
    return machine.run(False), program


def skeleton(tree: Json, imported: ir.Program) -> ir.Program:
    """The imported pools, stages and arrivals with the attributes of the JSON and without its session."""
    names = list(tree["attrs"])
    for key, name in BUILT_IN.items():
        names[tree[key]] = name
    attrs = tuple(ir.Attribute(name=name) for name in names)
    start = ir.State(name="blocks", exit=ir.End())
    # which stages are shared is read off the runs: these are reached by nobody
    joint = [s.exit for s in imported.states if isinstance(s.exit, ir.Run) and s.exit.also]
    apart = [
        ir.State(name=f"joint {i}", exit=ir.Run(e.stage, "Plain", ir.Num(1.0), "blocks", also=e.also, share=e.share))
        for i, e in enumerate(joint)
    ]
    return msgspec.structs.replace(
        imported, attrs=attrs, states=(start, *apart), scopes=(), start="blocks", init=(), turn=()
    )


@dataclasses.dataclass
class Frame:
    """A place in a block; of a request, `at` is its phase."""

    kind: str  # session, leg, loop, while, branch, hold, request
    block: list[Json]
    sides: list[str]
    at: int = 0


@dataclasses.dataclass
class Request:
    """What a request has been asked for and what it has got."""

    stage: int
    input: float
    output: float
    known: float
    first_sent: bool = False


class HoldScope:
    """What `oracle.scopes` needs to know of a hold (the interface of its `Scope`)."""

    lets: tuple = ()

    def __init__(self, control: Blocks, number: int, spec: Json, request: bool):
        read = control.expression
        self.scope = ir.Scope(name=f"hold {number}", takes=(), reentry="blocks")
        self.reentry = number
        self.pools = [control.place(row[0]) for row in spec["pools"]]
        self.units = [read(row[1]) for row in spec["pools"]]
        self.reserve = [None if row[2] is None else read(row[2]) for row in spec["pools"]]
        cache = None if spec.get("cache") is None else read(spec["cache"])
        self.keep = [None if cache is None else _positive(cache) for _ in spec["pools"]]
        self.reuse = None if cache is None or spec.get("reuse") is None else read(spec["reuse"])
        self.oversize = [self.measured(row, u, r) for row, u, r in zip(spec["pools"], self.units, self.reserve)]
        self.request = request
        lease = spec.get("lease")
        self.leased = -1 if lease is None else [row[0] for row in spec["pools"]].index(lease[0])
        self.lease_after_s = None if lease is None else read(lease[1])

    @staticmethod
    def measured(row: Json, units: Function, reserve: Function | None) -> Function | None:
        """The rejection test: need = max of what does not move; 0 (which fits) where both move."""
        u = units if not moving(row[1]) else None
        r = reserve if row[2] is not None and not moving(row[2]) else None
        if u is None and r is None:
            return None
        return lambda look: max(amount(u(look), None, PLACE) if u else 0.0, amount(r(look), None, PLACE) if r else 0.0)


def moving(expr: Json) -> bool:
    """Whether an expression may move while a session waits (syntactically)."""
    if isinstance(expr, list):
        return any(moving(e) for e in expr)
    if not isinstance(expr, dict):
        return False
    ((tag, payload),) = expr.items()
    if tag == "Ctx":
        return payload not in ("Input", "Output", "Known")
    if tag == "Cost":
        return moving(payload[1])
    if tag in ("Sample", "Reg"):
        return True
    if tag == "Call":
        arithmetic = ("Min", "Max", "Abs", "Floor", "Ceil", "Sqrt", "Exp", "Ln")
        return payload[0] not in arithmetic or any(moving(a["Expr"]) for a in payload[1])
    return moving(payload) if tag != "Attr" else False


class Blocks:
    """The session side of the machine: `init`, `run`, `has_turns` in place of its automaton."""

    def __init__(self, machine: Machine, tree: Json):
        self.machine, self.tree = machine, tree
        self.compiled: dict[int, Function] = {}  # by the identity of the JSON, which lives as long as this
        self.has_turns = any(statement == "Turn" for block in tree["blocks"] for statement in block)
        self.base = machine.automaton  # its reading of scripts and streams at a Turn
        self.base.has_turns = self.has_turns
        self.base.init_ops = [self.assignment(s) for s in tree["blocks"][tree["init"]]]
        self.base.turn_ops = [self.assignment(s) for s in tree["blocks"][tree["turn"]]]
        self.frames: dict[tuple[int, int], list[Frame]] = {}
        self.requests: dict[tuple[int, int], Request] = {}
        self.scopes: list[Any] = [None]  # 0 is GO_ON
        self.numbers: dict[Any, int] = {}

    # ------------------------------------------------------------ control

    def init(self, session: Session) -> None:
        self.frames[key(session)] = [self.frame("session", self.tree["session"])]
        self.base.init(session)

    def frame(self, kind: str, block: int) -> Frame:
        return Frame(kind, self.tree["blocks"][block], self.tree["sides"][block])

    def run(self, session: Session) -> None:
        if session.state != GO_ON:
            self.admitted(session)
        while self.step(session):
            pass

    def admitted(self, session: Session) -> None:
        """The body of a hold from its top; what a preemption has left of it goes."""
        frames, scope = self.frames[key(session)], self.scopes[session.state]
        holds = [i for i, f in enumerate(frames) if f.kind in ("hold", "request")]
        if len(holds) >= len(session.scopes):
            del frames[holds[len(session.scopes) - 1] :]
        session.state = GO_ON
        statement = frames[-1].block[frames[-1].at]
        if scope.request:
            frames.append(Frame("request", [], []))
            self.requests[key(session)].known = self.known(session)
        else:
            frames.append(self.frame("hold", statement["Hold"]["body"]))

    def step(self, session: Session) -> bool:
        """One statement (or the end of a block); False when the session blocks or has ended."""
        frames = self.frames[key(session)]
        top = frames[-1]
        if top.kind == "request":
            return self.request_phase(session, top)
        if top.at >= len(top.block):
            if top.kind == "session":
                return self.end(session)
            if top.kind == "leg":
                self.machine.end_leg(session)
                return False
            if top.kind == "loop":
                top.at = 0
                return True
            frames.pop()
            if top.kind == "hold":
                scopes.leave(self.machine, session)
            if top.kind != "while":  # a guard is tested again
                frames[-1].at += 1
            return True
        if top.sides[top.at] == "Workload" and self.has_turns and session.root is session:
            self.machine.clients.respond(session)
        return self.statement(session, top, top.block[top.at])

    def end(self, session: Session) -> bool:
        self.machine.end_session(session)
        return False

    def statement(self, session: Session, top: Frame, statement: Json) -> bool:
        machine, frames = self.machine, self.frames[key(session)]
        if statement == "Turn":
            top.at += 1
            self.base.turn(session)
            return True
        if statement == "End":
            return self.end(session)
        if statement == "Join":
            top.at += 1
            if session.legs:
                session.status = Status.joining
            return not session.legs
        ((tag, payload),) = statement.items()
        if tag in ("Set", "Observe"):
            top.at += 1
            self.assignment(statement)(session, session.look)
            return True
        if tag == "Choose":
            top.at += 1
            self.choose(session, payload)
            return True
        if tag == "Fork":
            top.at += 1
            leg = (session.serial, session.forks)
            self.frames[leg] = [self.frame("leg", payload)]
            machine.fork(session, GO_ON)
            return True
        if tag == "Drop":
            top.at += 1
            machine.pools[self.place(payload)(session.look)].drop(session.serial)
            return True
        if tag == "Load":
            top.at += 1
            units = amount(self.expression(payload[1])(session.look), session, PLACE)
            scopes.load(machine, session, self.place(payload[0])(session.look), units)
            return True
        if tag == "Shrink":
            top.at += 1
            units = amount(self.expression(payload[1])(session.look), session, PLACE)
            scopes.shrink(machine, session, self.place(payload[0])(session.look), units)
            return True
        if tag == "Release":
            top.at += 1
            scopes.release(machine, session, self.place(payload)(session.look))
            return True
        if tag == "Branch":
            test = guard(self.expression(payload[0])(session.look), "the branch")
            frames.append(self.frame("branch", payload[1 if test else 2]))
            return True
        if tag == "Loop":
            frames.append(self.frame("loop", payload))
            return True
        if tag == "While":
            if guard(self.expression(payload[0])(session.look), "the guard"):
                frames.append(self.frame("while", payload[1]))
            else:
                top.at += 1
            return True
        if tag == "Run":
            top.at += 1
            grows, latency = payload.get("growing"), payload.get("latency")
            self.work(session, self.place(payload["stage"]), payload["mode"], self.expression(payload["work"]),
                      None if grows is None else self.place(grows),
                      also=[self.place(other) for other in payload.get("also", [])],
                      latency=None if latency is None else self.expression(latency))
            return False
        if tag == "Grow":
            top.at += 1
            pool = self.place(payload[0])(session.look)
            units = amount(self.expression(payload[1])(session.look), session, PLACE)
            return scopes.grow(machine, session, pool, units, None) is scopes.Growth.done
        if tag == "Hold":
            scopes.enter(machine, session, self.scope(payload, request=False))
            return False
        if tag == "Request":
            return self.request(session, payload)
        raise AssertionError(f"no such statement here: {tag}")

    def choose(self, session: Session, spec: Json) -> None:
        """The member with the least keys, the first of equal ones."""
        n = self.expression(spec["count"])(session.look)
        if n < 0 or n != math.floor(n):
            raise RunError(f"the count is {n:g}, not a whole number")
        rows = []
        for j in range(int(n)):
            session.attrs[spec["var"]] = float(j)
            rows.append([total_order(self.expression(k)(session.look)) for k in spec["key"]])
        session.attrs[spec["var"]] = float(rows.index(min(rows))) if rows else 0.0

    def scope(self, spec: Json, *, request: bool) -> int:
        """The number of a hold, by its place in the JSON."""
        if id(spec) not in self.numbers:
            self.numbers[id(spec)] = len(self.scopes)
            self.scopes.append(HoldScope(self, len(self.scopes), spec, request))
        return self.numbers[id(spec)]

    def work(
        self, session: Session, stage: Any, mode: str, work: Function, grows: Any, *, request: bool = False,
        also: list[Any] = [], latency: Function | None = None,
    ) -> None:
        """A run. A written decode starts (and confirms the first token) even if it has no tokens, a request's
        decode of no tokens does not start; either lets the other ready sessions go first."""
        machine = self.machine
        units = amount(work(session.look), session, PLACE)
        latency_s = 0.0 if latency is None else amount(latency(session.look), session, PLACE)
        place = stage(session.look)
        if mode == "Decode" and (units > 0.0 or not request):
            machine.clients.decode_starts(session)
        if units <= 0.0 and latency_s <= 0.0:
            machine.make_ready(session)
            return
        session.status, session.stage = Status.in_stage, place
        pool = -1 if grows is None else grows(session.look)
        held = (place, *[other(session.look) for other in also])
        number = machine.next_job()
        session.job = Job(session, mode, units, GO_ON, machine.now_tick, pool, stages=held, number=number)
        machine.stages[place].take(session.job, latency_s)

    def assignment(self, statement: Json) -> Callable[[Session, Look], None]:
        ((tag, (index, expr)),) = statement.items()
        value, machine = self.expression(expr), self.machine

        def run(session: Session, look: Look) -> None:
            x = value(look)
            if tag == "Set":
                session.attrs[index] = x
            elif machine.warm:
                machine.samples.add(index, machine.now_tick, session.serial, machine.turn_no(session), x)

        return run

    # ------------------------------------------------------------ requests

    def spec(self, stage: int) -> Json:
        return self.tree["stages"][stage]["kind"]["Step"]["request"]

    def memory(self, stage: int) -> int | None:
        """The stage's memory, if its requests take it."""
        memory = self.tree["stages"][stage]["kind"]["Step"].get("memory")
        return memory if any(row[0]["base"] == memory for row in self.spec(stage)["pools"]) else None

    def request(self, session: Session, payload: Json) -> bool:
        stage = self.place(payload["stage"])(session.look)
        size = amount(self.expression(payload["input"])(session.look), session, PLACE)
        output = amount(self.expression(payload["output"])(session.look), session, PLACE)
        if output < 1:
            raise RunError(f"the request generates {output:g}, and a request generates at least one token")
        self.requests[key(session)] = Request(stage, size, output, size)
        scopes.enter(self.machine, session, self.scope(self.spec(stage), request=True))
        return False

    def known(self, session: Session) -> float:
        """Tokens known at an admission: the input and what was generated before a preemption."""
        request = self.requests[key(session)]
        computed = session.attrs[self.tree["slot_computed"]]
        if self.memory(request.stage) is None:
            return request.known
        return max(request.known, grown(computed, request.input))

    def request_phase(self, session: Session, frame: Frame) -> bool:
        request, machine = self.requests[key(session)], self.machine
        records, memory = self.spec(request.stage)["records"], self.memory(request.stage)
        now_s = seconds(machine.now_tick, machine.tick_s)
        grows = None if memory is None else (lambda look: memory)
        frame.at += 1
        if frame.at == 1:
            cached = 0.0
            if memory is not None and self.spec(request.stage).get("cache") is not None:
                cached = next(h.pos for h in session.scopes[-1].holds if h.pool == memory)
            fresh = request.known - cached
            for index, x in ((records["reused"], cached), (records["prefill"], fresh)):
                if machine.warm:
                    machine.samples.add(index, machine.now_tick, session.serial, machine.turn_no(session), x)
            session.attrs[records["admitted"]] = now_s
            session.attrs[records["last_reused"]] = cached
            session.attrs[records["last_prefill"]] = fresh
            self.work(session, lambda look: request.stage, "Prefill", lambda look: max(fresh, 0.0), grows,
                      request=True)
            return False
        if frame.at == 2:
            left = request.output - (request.known - request.input)
            if request.known > 0:
                left -= 1.0
                if not request.first_sent:
                    session.attrs[records["first"]] = now_s
                    request.first_sent = True
            self.work(session, lambda look: request.stage, "Decode", lambda look: max(left, 0.0), grows, request=True)
            return False
        frames = self.frames[key(session)]
        frames.pop()
        scopes.leave(machine, session)
        frames[-1].at += 1
        return True

    def request_value(self, name: str, look: Look) -> float:
        assert look.session is not None
        session = look.session
        request = self.requests[key(session)]
        if name == "Input":
            return request.input
        if name == "Output":
            return request.output
        if name == "Known":
            if "Finished" not in look.ctx:
                return self.known(session)
            if look.ctx["Finished"]:
                return request.input + request.output
            return max(request.known, grown(look.ctx["HoldPosition"], request.input))
        if name == "Hit":
            memory = self.tree["stages"][request.stage]["kind"]["Step"].get("memory")
            own = 0.0 if memory is None else self.machine.pools[memory].state("CachedIn", session, session.look)
            reuse = self.spec(request.stage).get("reuse")
            return own if reuse is None else min(own, max(self.expression(reuse)(look), 0.0))
        return look.ctx[name]

    # ------------------------------------------------------------ expressions

    def place(self, reference: Json) -> Any:
        """A CRef as a function of the place it is read from."""
        base, count = reference["base"], reference["count"]
        if reference.get("index") is None:
            return _Constant(base)
        index = self.expression(reference["index"])

        def member(look: Look) -> int:
            j = index(look)
            if j != math.floor(j) or not 0 <= j < count:
                raise RunError(f"a member of an array of {count} is 0 to {count - 1}")
            return base + int(j)

        return member

    def expression(self, expr: Json) -> Function:
        if id(expr) not in self.compiled:
            self.compiled[id(expr)] = self._expression(expr)
        return self.compiled[id(expr)]

    def _expression(self, expr: Json) -> Function:
        ((tag, payload),) = expr.items()
        read = self.expression
        if tag == "Cost":
            return read(payload[1])
        if tag == "Num":
            value = float(payload)
            return lambda look: value
        if tag == "Attr":
            return lambda look: look.attrs[payload]
        if tag == "Reg":
            return lambda look: self.machine.registers[payload]
        if tag == "Ctx":
            if payload == "Now":
                return lambda look: seconds(self.machine.now_tick, self.machine.tick_s)
            return lambda look: self.request_value(payload, look)
        if tag == "Sample":
            dist, arguments = payload[0], [read(a) for a in payload[1]]
            return lambda look: look.stream.draw(dist, [a(look) for a in arguments])
        if tag == "Unary":
            a = read(payload[1])
            return (lambda look: -a(look)) if payload[0] == "Neg" else (lambda look: float(a(look) == 0.0))
        if tag == "Cond":
            test, then, orelse = (read(e) for e in payload)
            return lambda look: then(look) if test(look) != 0.0 else orelse(look)
        if tag == "Binary":
            op, a, b = payload[0], read(payload[1]), read(payload[2])
            if op == "And":
                return lambda look: float(a(look) != 0.0 and b(look) != 0.0)
            if op == "Or":
                return lambda look: float(a(look) != 0.0 or b(look) != 0.0)
            return lambda look: OPERATORS[op](a(look), b(look))
        assert tag == "Call", tag
        name, arguments = payload
        ((kind, first),) = arguments[0].items()
        if kind == "Pool":
            pool = self.place(first)
            return lambda look: self.machine.pools[pool(look)].state(name, look.session, look)
        if kind == "Stage":
            stage = self.place(first)
            if name == "Price":
                service, delay = (read(a["Expr"]) for a in arguments[1:])
                return lambda look: self.machine.stages[stage(look)].estimate.price(service(look), delay(look))
            return lambda look: self.machine.stages[stage(look)].state(name)
        functions = [read(a["Expr"]) for a in arguments]
        return lambda look: FUNCTIONS[name](*[f(look) for f in functions])


class _Constant:
    def __init__(self, value: int):
        self.value = value

    def __call__(self, look: Look) -> int:
        return self.value


def key(session: Session) -> tuple[int, int]:
    """Which session or leg."""
    return session.serial, session.leg


def _positive(function: Function) -> Function:
    return lambda look: max(function(look), 0.0)


def grown(position: float, size: float) -> float:
    """Tokens known once `position` are computed; before anything is computed, the input."""
    return size if position < size or position == 0 else position + 1


def _divide(a: float, b: float) -> float:
    if b == 0.0:
        return math.nan if a == 0.0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


OPERATORS: dict[str, Callable[[float, float], float]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": _divide,
    "Pow": lambda a, b: a**b, "Lt": lambda a, b: float(a < b), "Le": lambda a, b: float(a <= b),
    "Gt": lambda a, b: float(a > b), "Ge": lambda a, b: float(a >= b), "Eq": lambda a, b: float(a == b),
    "Ne": lambda a, b: float(a != b),
}  # fmt: skip
FUNCTIONS: dict[str, Any] = {
    "Min": min, "Max": max, "Abs": abs, "Floor": lambda x: float(math.floor(x)), "Ceil": lambda x: float(math.ceil(x)),
    "Sqrt": math.sqrt, "Exp": math.exp, "Ln": math.log,
}  # fmt: skip
