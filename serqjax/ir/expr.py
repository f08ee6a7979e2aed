"""Expressions: what a program computes, as data.

An expression is a tree of the nodes below. Every node is frozen and hashable. A number
stands in a program only as `Num` (a literal) or `Param` (a named number that a study
may vary), so that two programs which differ in numbers alone have one structure.

**Source:** `spec/ir14.md`, section Expressions; `spec/semantics.md`, section 14.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

UnaryOp = Literal["Neg", "Not"]
BinaryOp = Literal["Add", "Sub", "Mul", "Div", "Pow", "Lt", "Le", "Gt", "Ge", "Eq", "Ne", "And", "Or"]
MathFunction = Literal["Min", "Max", "Abs", "Floor", "Ceil", "Sqrt", "Exp", "Ln"]
PoolFunction = Literal["Used", "Free", "CachedIn", "Allocated", "Holders", "Queued", "Joined"]
StageFunction = Literal["Queue", "Busy", "Work", "BudgetLeft", "EstLambda", "EstRho", "EstWait"]
Distribution = Literal["Exp", "Det", "Uniform", "Erlang", "H2", "Bernoulli"]
Aggregate = Literal["Total", "Count", "Largest", "Smallest", "PrefixTotal"]

#: Context variables. The IR 14 names are used unchanged; the last group is declared here,
#: because the automaton form spells out what IR 14 hides inside `Request`.
ContextName = Literal[
    "Now",  # seconds
    "Waited",  # seconds since the hold joined its queue
    "Size", "Age", "Last", "Queued",  # a cache entry: units, seconds since release, release time, owner waits (0/1)
    "N",  # jobs present at a processor-sharing stage
    "Nres", "Ndec", "Kvb", "Kvp",  # residents, decoding ones, memory units of decoding / prefilling ones
    "Ntok", "Npre", "Attn",  # tokens computed, prefill tokens and sum of n*(K + n/2) of an iteration
    "Decoding", "Admission", "Remaining", "Position",
    "Admitted", "Preempted",
    "Demand", "Served", "Arrived",
    # declared by the automaton form
    "DecodePositions",  # cost: sum over scheduled decodes of (position before + tokens computed), tokens
    "Nsch",  # cost: residents that are given tokens
    "PrefillPositions",  # cost: sum over scheduled prefills of the position before their chunk, tokens
    "LeastDecode", "MostDecode",  # cost: least and greatest position before the token of a scheduled decode (0: none)
    "Requeued",  # admission: 1 when this admission follows a preemption
    "Finished",  # release: 1 at a normal end of the scope, 0 at a preemption or deadline
    "HoldPosition",  # release: tokens computed on the pool being given back by this hold
]

ARITY: dict[str, int] = {
    "Min": 2, "Max": 2, "Abs": 1, "Floor": 1, "Ceil": 1, "Sqrt": 1, "Exp": 1, "Ln": 1,
}
DRAW_ARITY: dict[str, int] = {"Exp": 1, "Det": 1, "Uniform": 2, "Erlang": 2, "H2": 2, "Bernoulli": 1}
#: Variables of a cost that serQ does not have, read in a cost, and in a claim over its iterations.
COST_ONLY = ("Nsch", "PrefillPositions", "LeastDecode", "MostDecode")
CONTEXT_NAMES: tuple[str, ...] = get_args(ContextName)


class Node(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all expression nodes; in JSON a node is `[tag, field, ...]`."""


class Num(Node, frozen=True):
    """A finite literal number (an array leaf of the compiled program)."""

    value: float


class Inf(Node, frozen=True):
    """Plus infinity. Structural: an infinite pool has no fit test at all."""


class Param(Node, frozen=True):
    """A number by name; its value stands in `Program.params`."""

    name: str


class Reg(Node, frozen=True):
    """A register of a step stage by name."""

    name: str


class Attr(Node, frozen=True):
    """A session attribute by name."""

    name: str


class Ctx(Node, frozen=True):
    """A context variable; each position allows its own (`check` holds the table)."""

    name: ContextName


class Sample(Node, frozen=True):
    """One draw from a distribution; the arguments are evaluated left to right before it."""

    dist: Distribution
    args: tuple[Expr, ...]


class Call(Node, frozen=True):
    """A pure function of numbers."""

    fun: MathFunction
    args: tuple[Expr, ...]


class Table(Node, frozen=True):
    """The value of a table of the program (`Program.tables`) at a point: one argument per axis."""

    table: str
    args: tuple[Expr, ...]


class Member(Node, frozen=True):
    """Member `index` (an expression, 0-based) of the array of pools or stages named `array`."""

    array: str
    index: Expr


#: A pool or stage: its name (`"kv"`, `"rep[2]"`), or a computed member of an array.
Resource = str | Member


class PoolState(Node, frozen=True):
    """State of a pool, units or counts: `Used`, `Free` (cap - used), `CachedIn` (own entry), ...

    `Joined`: sessions that have joined its line, whole run; preempted ones that wait again are not counted again.
    """

    fun: PoolFunction
    pool: Resource


class StageState(Node, frozen=True):
    """State of a stage: jobs present, tokens or seconds of work, budget left, estimates."""

    fun: StageFunction
    stage: Resource


class Price(Node, frozen=True):
    """Estimated delay of a service of `service` seconds added to `delay` (semantics section 13)."""

    stage: Resource
    service: Expr
    delay: Expr


class Unary(Node, frozen=True):
    op: UnaryOp
    a: Expr


class Binary(Node, frozen=True):
    """`And`/`Or` short-circuit (draws on the right do not happen) and give 0 or 1."""

    op: BinaryOp
    a: Expr
    b: Expr


class Agg(Node, frozen=True):
    """All values of an observation over the whole run, warm-up included (only in a claim at the end).

    `Total`, `Count`; `Largest`, `Smallest` (0 of nothing); `PrefixTotal`: sum of v_i * (n - i), i from 0 in
    ascending order of the values.
    """

    fun: Aggregate
    observe: str


class Cond(Node, frozen=True):
    """`then` if `test` is not 0, else `orelse`; one arm is evaluated."""

    test: Expr
    then: Expr
    orelse: Expr


Expr = (
    Num | Inf | Param | Reg | Attr | Ctx | Sample | Call | Table | PoolState | StageState | Price | Unary | Binary
    | Cond | Agg
)
#: A number of the program: a literal, a parameter, or (where it says so) infinity.
Number = Num | Param
Amount = Num | Param | Inf
