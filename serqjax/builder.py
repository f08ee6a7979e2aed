"""Write a program by name: the tool that the ready-made deployments and workloads are written with.

A `Builder` collects attributes, parameters, pools, stages, scopes and states, and makes a
`Program`. Expressions may be given as text in the names of the IR (`"Min(known, hit + BudgetLeft(gpu))"`):
`parse` documents the grammar. `compose` joins a deployment (who serves a request, and how) with a
workload (who sends which requests, and when).

**Source:** `docs/write_your_own_policy.md` walks through an example; `serqjax/ir/program.py` holds the parts.
"""

from __future__ import annotations

import abc
import ast
import dataclasses
import math
import weakref
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from .errors import ProgramError, nearest
from .ir.expr import (
    ARITY,
    CONTEXT_NAMES,
    DRAW_ARITY,
    Attr,
    Binary,
    Call,
    Cond,
    Ctx,
    Expr,
    Inf,
    Member,
    Num,
    Param,
    PoolFunction,
    PoolState,
    Price,
    Reg,
    Resource,
    Sample,
    StageFunction,
    StageState,
    Table,
    Unary,
)
from .ir.grids import Grid
from .ir.program import (
    Arrival,
    Attribute,
    Choose,
    Claim,
    Deadline,
    Enter,
    Gauge,
    Grow,
    Lease,
    Let,
    Observe,
    Op,
    Order,
    Parameter,
    Pool,
    Program,
    Register,
    Run,
    Scope,
    Set,
    Stage,
    State,
    Take,
    Trace,
    Turn,
)

#: What the builder takes where an expression is wanted.
Text = str | int | float | Expr

_BINARY = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.Pow: "Pow"}
_COMPARE = {ast.Lt: "Lt", ast.LtE: "Le", ast.Gt: "Gt", ast.GtE: "Ge", ast.Eq: "Eq", ast.NotEq: "Ne"}
_POOL_FUNCTIONS = get_args(PoolFunction)
_STAGE_FUNCTIONS = get_args(StageFunction)


def parse(
    text: Text, attrs: Iterable[str] = (), params: Iterable[str] = (), place: str = "expression", *,
    registers: Iterable[str] = (), tables: Iterable[str] = (),
) -> Expr:
    """An expression from text in Python's spelling and the IR's names.

    - numbers, `inf`; `a + b - c * d / e ** f`; `a < b` (`<= > >= == !=`); `and`, `or`, `not`; `a if test else b`;
    - a name is an attribute, else a parameter, a register, a context variable (`Now`, `Ndec`, ...); dots are allowed;
    - `Min Max Abs Floor Ceil Sqrt Exp Ln`; draws are marked as in serQ text: `~Exp(500)`;
    - `attention(Npre, Ndec)`: a table of the program by name;
    - `Used(kv)`, `BudgetLeft(gpu)`, ... with the name of a pool or stage, or a member of an array: `Used(rep[j])`.

    **Raises:** `ProgramError` that quotes the text and names what is not understood.
    """
    if not isinstance(text, str):
        return Num(float(text)) if isinstance(text, (int, float)) else text
    attrs, params, registers, tables = frozenset(attrs), frozenset(params), frozenset(registers), frozenset(tables)

    def bad(problem: str, hint: str = "") -> ProgramError:
        return ProgramError.at(place, f"`{text}`: {problem}", hint)

    def dotted(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            head = dotted(node.value)
            return None if head is None else f"{head}.{node.attr}"
        return None

    def resource(node: ast.expr) -> Resource:
        if isinstance(node, ast.Subscript) and (array := dotted(node.value)) is not None:
            index = read(node.slice)
            if isinstance(index, Num) and index.value == int(index.value):
                return f"{array}[{int(index.value)}]"
            return Member(array, index)
        name = dotted(node)
        if name is None:
            raise bad("a pool or stage is a name, or a member `name[index]`")
        return name

    def call(node: ast.Call, draw: bool) -> Expr:
        name = dotted(node.func)
        if name is None or node.keywords:
            raise bad("only calls by position of functions of the IR are known")
        if draw:
            if name not in DRAW_ARITY:
                raise bad(f"`~{name}` is not a distribution", nearest(name, DRAW_ARITY))
            if len(node.args) != DRAW_ARITY[name]:
                raise bad(f"`~{name}` takes {DRAW_ARITY[name]} arguments, got {len(node.args)}")
            return Sample(name, tuple(read(a) for a in node.args))  # type: ignore[arg-type]
        if name in tables:
            return Table(name, tuple(read(a) for a in node.args))
        functions = [*ARITY, *_POOL_FUNCTIONS, *_STAGE_FUNCTIONS, "Price"]
        if name not in functions:
            raise bad(f"`{name}` is not a function", nearest(name, functions))
        takes = 3 if name == "Price" else ARITY.get(name, 1)
        if len(node.args) != takes:
            raise bad(f"`{name}` takes {takes} arguments, got {len(node.args)}")
        if name in ARITY:
            return Call(name, tuple(read(a) for a in node.args))  # type: ignore[arg-type]
        if name in _POOL_FUNCTIONS:
            return PoolState(name, resource(node.args[0]))  # type: ignore[arg-type]
        if name in _STAGE_FUNCTIONS:
            return StageState(name, resource(node.args[0]))  # type: ignore[arg-type]
        return Price(resource(node.args[0]), read(node.args[1]), read(node.args[2]))

    def read(node: ast.expr) -> Expr:
        match node:
            case ast.Constant(value=bool()) | ast.Constant(value=str()):
                raise bad("only numbers are values")
            case ast.Constant(value=int(number)) | ast.Constant(value=float(number)):
                return Num(float(number))
            case ast.UnaryOp(op=ast.Invert(), operand=ast.Call() as draw):
                return call(draw, draw=True)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Unary("Neg", read(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return read(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Unary("Not", read(operand))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
                return Binary(_BINARY[type(op)], read(left), read(right))  # type: ignore[arg-type]
            case ast.BoolOp(op=op, values=values):
                name = "And" if isinstance(op, ast.And) else "Or"
                result = read(values[0])
                for value in values[1:]:
                    result = Binary(name, result, read(value))
                return result
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return Binary(_COMPARE[type(op)], read(left), read(right))  # type: ignore[arg-type]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return Cond(read(test), read(body), read(orelse))
            case ast.Call():
                return call(node, draw=False)
            case ast.Name() | ast.Attribute():
                name = dotted(node) or "?"
                if name in attrs:
                    return Attr(name)
                if name in params:
                    return Param(name)
                if name in registers:
                    return Reg(name)
                if name in CONTEXT_NAMES:
                    return Ctx(name)  # type: ignore[arg-type]
                if name == "inf":
                    return Inf()
                raise bad(f"`{name}` is no attribute, parameter or context variable",
                          nearest(name, [*attrs, *params, *registers, *CONTEXT_NAMES]))
        raise bad("this form is not part of the language", "see `serqjax.builder.parse` for what is")

    try:
        return read(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise bad(f"cannot be read ({error.msg})") from None


def write(expr: Expr | Resource) -> str:
    """The text of an expression, a pool or a stage, as `parse` reads it."""
    return ast.unparse(_tree(expr))


_TREE_OPERATORS: dict[str, Any] = {name: made for made, name in [*_BINARY.items(), *_COMPARE.items()]}


def _tree(node: Any) -> ast.expr:
    match node:
        case str(name) | Attr(name) | Param(name) | Ctx(name):
            return ast.Name(name)
        case Inf():
            return ast.Name("inf")
        case Num(value):
            size = ast.Constant(int(abs(value)) if value == int(value) and abs(value) < 1e16 else abs(value))
            return ast.UnaryOp(ast.USub(), size) if value < 0 else size
        case Member(array, index):
            return ast.Subscript(ast.Name(array), _tree(index))
        case Sample(dist, args):
            return ast.UnaryOp(ast.Invert(), ast.Call(ast.Name(dist), [_tree(a) for a in args], []))
        case Call(fun, args) | Table(fun, args):
            return ast.Call(ast.Name(fun), [_tree(a) for a in args], [])
        case Unary(op, a):
            return ast.UnaryOp(ast.USub() if op == "Neg" else ast.Not(), _tree(a))
        case Binary("And" | "Or" as op, a, b):
            left = [a]
            while isinstance(left[0], Binary) and left[0].op == op:  # parse reads `a and b and c` from the left
                left[:1] = [left[0].a, left[0].b]
            return ast.BoolOp(ast.And() if op == "And" else ast.Or(), [_tree(v) for v in [*left, b]])
        case Binary(op, a, b) if op in _BINARY.values():
            return ast.BinOp(_tree(a), _TREE_OPERATORS[op](), _tree(b))
        case Binary(op, a, b):
            return ast.Compare(_tree(a), [_TREE_OPERATORS[op]()], [_tree(b)])
        case Cond(test, then, orelse):
            return ast.IfExp(_tree(test), _tree(then), _tree(orelse))
    # state of a pool or stage, `Price`: a function of its other fields
    fields = [getattr(node, f) for f in node.__struct_fields__]
    name = fields.pop(0) if hasattr(node, "fun") else type(node).__name__
    return ast.Call(ast.Name(name), [_tree(f) for f in fields], [])


class Builder:
    """Collects the parts of a program; every method returns what the IR calls the thing."""

    def __init__(self, name: str = "program") -> None:
        self.name = name
        self._attrs: dict[str, Attribute] = {}
        self._params: dict[str, Parameter] = {}
        self._observes: list[str] = []
        self._pools: dict[str, Pool] = {}
        self._stages: dict[str, Stage] = {}
        self._registers: dict[str, Register] = {}
        self._scopes: dict[str, Scope] = {}
        self._states: dict[str, State] = {}
        self._gauges: dict[str, Gauge] = {}
        self._claims: dict[str, Claim] = {}
        self._tables: dict[str, Grid] = {}

    def __call__(self, text: Text) -> Expr:
        """The expression that `text` says, in the names declared so far."""
        return parse(text, self._attrs, self._params, self.name, registers=self._registers,
                     tables=self._tables)

    # ------------------------------------------------------------ names

    def attr(self, name: str, *, hidden: bool = False, bound: float | None = None) -> Attr:
        """Declare a session attribute (0 at the start). Declaring it again is allowed if it says the same."""
        made = Attribute(name=name, hidden=hidden, bound=None if bound is None else Num(float(bound)))
        return Attr(self._once(self._attrs, name, made, "attribute").name)

    def declares(self, name: str) -> bool:
        """Whether an attribute is declared: what a deployment asks its workload to set."""
        return name in self._attrs

    def param(self, name: str, value: float, unit: str = "") -> Param:
        """Declare a named number: a study and `--set` may change it without a new compilation."""
        if not math.isfinite(value):
            raise ProgramError.at(name, f"{value} is not a finite number")
        made = Parameter(name=name, value=float(value), unit=unit)
        return Param(self._once(self._params, name, made, "parameter").name)

    # ------------------------------------------------------------ parts

    def pool(self, name: str, **fields: Any) -> str:
        """Add a `Pool`; fields as in the IR."""
        return self._once(self._pools, name, Pool(name=name, **fields), "pool", again=False).name

    def stage(self, name: str, kind: Any, **fields: Any) -> str:
        """Add a `Stage`; the same delay stage may be declared twice."""
        return self._once(self._stages, name, Stage(name=name, kind=kind, **fields), "stage").name

    def register(self, name: str, stage: str, init: float = 0.0) -> Reg:
        """Declare a register of a step stage, which its `iteration` assigns; the stage may be declared later."""
        made = Register(name=name, stage=stage, init=Num(float(init)))
        return Reg(self._once(self._registers, name, made, "register").name)

    def resource(self, text: str) -> Resource:
        """A pool or stage by its name, or a member of an array, `name[index]`."""
        found = self(f"Used({text})")
        assert isinstance(found, PoolState)
        return found.pool

    def order(self, *keys: Text, tie: str) -> Order:
        """An order of the keys (ascending, one after the other) and the named sequence number."""
        return Order(keys=tuple(self(key) for key in keys), tie=tie)  # type: ignore[arg-type]

    def take(self, pool: Resource, units: Text, *, reserve: Text | None = None, keep: Text | None = None,
             oversize: Text = "wait") -> Take:
        """One pool of a scope. `oversize` is `"wait"` or an amount."""
        return Take(
            pool=pool, units=self(units),
            reserve=None if reserve is None else self(reserve),
            keep=None if keep is None else self(keep),
            oversize="wait" if oversize == "wait" else self(oversize),
        )

    def let(self, attr: str, value: Text) -> Let:
        return Let(attr=self._known(attr), value=self(value))

    def scope(self, name: str, *takes: Take, reentry: str, lets: tuple[Let, ...] = (), reuse: Text | None = None,
              lease: Lease | None = None, parent: str | None = None) -> str:
        """Add a `Scope` that goes on at the state `reentry` when it is admitted."""
        made = Scope(name=name, takes=takes, reentry=reentry, parent=parent, lets=lets, lease=lease,
                     reuse=None if reuse is None else self(reuse))
        return self._once(self._scopes, name, made, "scope", again=False).name

    def state(self, name: str, *ops: Op, exit: Any, scope: str | None = None) -> str:
        """Add a `State`: `ops` in zero time, then `exit`. `scope`: the innermost scope it lies in."""
        return self._once(self._states, name, State(name=name, ops=ops, exit=exit, scope=scope), "state",
                          again=False).name

    def mark(self) -> frozenset[str]:
        """The states so far, for `limit`."""
        return frozenset(self._states)

    def limit(self, mark: frozenset[str], deadline: Deadline) -> None:
        """Every state added since `mark` in which a session may block, and that has no deadline, gets this one."""
        for name, state in self._states.items():
            if name not in mark and isinstance(state.exit, (Enter, Run, Grow)) and state.exit.deadline is None:
                exit = msgspec.structs.replace(state.exit, deadline=deadline)
                self._states[name] = msgspec.structs.replace(state, exit=exit)

    def set(self, attr: str, value: Text) -> Set:
        return Set(self._known(attr), self(value))

    def observe(self, name: str, value: Text) -> Observe:
        """An `Observe` op; the observation is declared where it is first used."""
        if name not in self._observes:
            self._observes.append(name)
        return Observe(name, self(value))

    def gauge(self, name: str, value: Text) -> str:
        """Add a `Gauge`: `b.gauge("free", "Free(kv)")`."""
        return self._once(self._gauges, name, Gauge(name=name, value=self(value)), "gauge", again=False).name

    def claim(self, name: str, kind: Any, value: Text, *, given: Text | None = None) -> str:
        """Add a `Claim` of the kind `EveryIteration(stage)`, `SomeIteration(stage)` or `AtEnd()`."""
        made = Claim(name=name, kind=kind, value=self(value), given=None if given is None else self(given))
        return self._once(self._claims, name, made, "claim", again=False).name

    def table(self, grid: Grid) -> str:
        """Add a table, which a cost reads by name as a function of its axes; the same one may be declared twice."""
        return self._once(self._tables, grid.name, grid, "table").name

    def choose(self, attr: str, count: Text, *keys: Text) -> Choose:
        """`attr` becomes the j below `count` with the least keys, which read it: `choose("j", 3, "Queue(rep[j])")`."""
        return Choose(self._known(attr), self(count), tuple(self(key) for key in keys))

    # ------------------------------------------------------------ the program

    def program(self, start: str, arrival: Arrival, *, init: tuple[Op, ...] = (), turn: tuple[Op, ...] = (),
                trace: Trace | None = None, horizon_s: float | None = None, warmup_s: float = 0.0, seed: int = 0,
                arrivals: int | None = None, tick_s: float = 1e-9) -> Program:
        """The program of everything declared. `arrivals`: exactly so many, then drain."""
        for what, name in [("start", start), *((f"scope {s.name}", s.reentry) for s in self._scopes.values())]:
            if name not in self._states:
                raise ProgramError.at(what, f"there is no state `{name}`", nearest(name, self._states))
        return Program(
            name=self.name,
            attrs=tuple(self._attrs.values()), params=tuple(self._params.values()), observes=tuple(self._observes),
            pools=tuple(self._pools.values()), stages=tuple(self._stages.values()),
            registers=tuple(self._registers.values()),
            scopes=tuple(self._scopes.values()), states=tuple(self._states.values()),
            start=start, init=init, turn=turn, arrival=arrival, trace=trace,
            horizon_s=None if horizon_s is None else Num(float(horizon_s)), warmup_s=Num(float(warmup_s)),
            seed=seed, arrivals=arrivals, tick_s=tick_s,
            gauges=tuple(self._gauges.values()), claims=tuple(self._claims.values()),
            tables=tuple(self._tables.values()),
        )

    def _known(self, attr: str) -> str:
        if attr not in self._attrs:
            raise ProgramError.at(attr, "is no declared attribute", nearest(attr, self._attrs))
        return attr

    def _once(self, table: dict[str, Any], name: str, made: Any, what: str, again: bool = True) -> Any:
        if name in table and (not again or table[name] != made):
            raise ProgramError.at(name, f"two different declarations of the {what} `{name}`", "rename one of them")
        return table.setdefault(name, made)


# ---------------------------------------------------------------- deployments and workloads


@dataclasses.dataclass(frozen=True)
class Served:
    """What a deployment answers: the state in which a request is sent, and the attribute that holds
    the number of tokens it will really generate (a length cap may cut it)."""

    entry: str
    output: str


class AbstractArguments(abc.ABC):
    """Numbers by name, as `--set NAME=VALUE` changes them. Subclasses are frozen dataclasses."""

    def arguments(self) -> dict[str, Any]:
        """Every argument that is a number (or off), by its name."""
        values = {name: getattr(self, name) for name in self.names()}
        return {k: v for k, v in values.items() if v is None or isinstance(v, (int, float))}

    def names(self) -> list[str]:
        """The arguments that `replace` knows."""
        return [f.name for f in dataclasses.fields(self) if f.init]  # type: ignore[arg-type]

    def replace(self, **changes: Any) -> Any:
        """The same thing with other arguments; everything that follows from them follows.

        **Raises:** `ProgramError` for an unknown name, with the nearest known one.
        """
        for name in changes:
            if name not in self.names():
                raise ProgramError.at(name, f"is no argument of {type(self).__name__}", nearest(name, self.names()))
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


class AbstractDeployment(AbstractArguments):
    """Pools, stages and the policy that serves one request."""

    @abc.abstractmethod
    def declare(self, b: Builder) -> None:
        """Declare parameters, pools and stages."""

    @abc.abstractmethod
    def serve(self, b: Builder, *, input: str, output: str, then: str, parent: str | None = None) -> Served:
        """Add the scopes and states that serve one request, and go on at the state `then`.

        - `input`, `output`: attributes with the tokens of the prompt and of the answer (at least 1).
        - `parent`: the scope the request lies in, if any; `then` lies in it too.
        """


@dataclasses.dataclass(frozen=True)
class Sessions:
    """What a workload says of its sessions: arguments of `Builder.program`."""

    start: str
    arrival: Arrival
    init: tuple[Op, ...] = ()
    turn: tuple[Op, ...] = ()
    trace: Trace | None = None
    horizon_s: float | None = None
    warmup_s: float = 0.0
    arrivals: int | None = None


class AbstractWorkload(AbstractArguments):
    """Who sends which requests, and when."""

    @abc.abstractmethod
    def declare(self, b: Builder, deployment: AbstractDeployment) -> Sessions:
        """Declare attributes and states; a request is `deployment.serve(...)`."""


def compose(deployment: AbstractDeployment, workload: AbstractWorkload, *, name: str | None = None,
            horizon_s: float | None = None, warmup_s: float | None = None, seed: int = 0,
            arrivals: int | None = None, tick_s: float = 1e-9) -> Program:
    """The program of a deployment under a workload.

    **Arguments:**
    - `horizon_s`, `warmup_s`: seconds; without them the workload's own hold.
    - `arrivals`: exactly so many sessions, then drain. `tick_s`: seconds of a tick.

    **Raises:** `ProgramError` for arguments that do not fit together.
    """
    if not isinstance(deployment, AbstractDeployment):
        raise ProgramError.at("deployment", f"{type(deployment).__name__} is not a deployment",
                              "take one of `serqjax.deployments`")
    if not isinstance(workload, AbstractWorkload):
        raise ProgramError.at("workload", f"{type(workload).__name__} is not a workload",
                              "take one of `serqjax.workloads`")
    given = (horizon_s, warmup_s)
    b = Builder(name or type(deployment).__name__.lower())
    deployment.declare(b)
    sessions = workload.declare(b, deployment)
    horizon_s = sessions.horizon_s if horizon_s is None else horizon_s
    if warmup_s is None:
        # a horizon shorter than the workload's own warm-up would leave nothing to measure
        warmup_s = sessions.warmup_s if horizon_s is None or sessions.warmup_s < horizon_s else 0.0
    program = b.program(
        sessions.start, sessions.arrival, init=sessions.init, turn=sessions.turn, trace=sessions.trace,
        horizon_s=horizon_s, warmup_s=warmup_s, seed=seed,
        arrivals=sessions.arrivals if arrivals is None else arrivals, tick_s=tick_s,
    )
    key = id(program)
    options = {"name": name, "horizon_s": given[0], "warmup_s": given[1], "seed": seed, "arrivals": arrivals,
               "tick_s": tick_s}
    _origins[key] = (weakref.ref(program, lambda _: _origins.pop(key, None)), Origin(deployment, workload, options))
    return program


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a program was composed of: a study makes it again with other arguments."""

    deployment: AbstractDeployment
    workload: AbstractWorkload
    options: dict[str, Any]

    def names(self) -> list[str]:
        """Arguments of the deployment, then of the workload."""
        return [*self.deployment.names(), *self.workload.names()]

    def compose(self, changes: dict[str, Any]) -> Program:
        """The program with other arguments. **Raises:** `ProgramError` for a value that is not allowed."""
        mine = {k: v for k, v in changes.items() if k in self.deployment.names()}
        theirs = {k: v for k, v in changes.items() if k not in mine}
        return compose(self.deployment.replace(**mine), self.workload.replace(**theirs), **self.options)


#: By the identity of the program, as long as it lives. Not part of it: a program is what it says, however it was made.
_origins: dict[int, tuple[weakref.ref[Program], Origin]] = {}


def origin(program: Program) -> Origin | None:
    """What `compose` made this very object of; None of a program from elsewhere, or a changed copy."""
    known, made = _origins.get(id(program), (None, None))
    return made if known is not None and known() is program else None


__all__ = [
    "AbstractDeployment", "AbstractWorkload", "Builder", "Served", "Sessions", "Turn", "compose", "parse", "write",
]
