"""The moment table: what an expression may read at each position.

A context variable outside its moment is an error, never a silent 0; a `hidden` attribute is read at
session moments only; an attribute exists only where a session does.

**Source:** `spec/ir14.md`, sections Expressions and Moments; `design.md`, section 2.1.
"""

from __future__ import annotations

import dataclasses

from ..ir.expr import ARITY, COST_ONLY, DRAW_ARITY, Agg, Attr, Call, Ctx, PoolState, Price, Sample, StageState
from .index import Index, Problems
from .positions import Position


@dataclasses.dataclass(frozen=True)
class Moment:
    """One row of the table.

    - `says`: how messages call the moment. `contexts`: the context variables that exist.
    - `draws`: may draw. `session`: attributes, `CachedIn`, `Allocated` exist. `hidden`: hidden ones too.
    - `state`: state of pools and stages may be read. `budget_left`: `BudgetLeft` too; `unread`: but not these (an
      engine that finds nothing to do waits for an event, so that what it decides by may not move without one).
    - `aggregates`: the observations of the whole run are known.
    """

    says: str
    contexts: frozenset[str]
    draws: bool = False
    session: bool = True
    hidden: bool = False
    state: bool = True
    budget_left: bool = True
    unread: frozenset[str] = frozenset()
    aggregates: bool = False


def _contexts(names: str) -> frozenset[str]:
    return frozenset(names.split())


_RESIDENTS = "Nres Ndec Kvb Kvp"
_BATCH = f"Now {_RESIDENTS}"

MOMENTS: dict[str, Moment] = {
    "session": Moment("a session's own statement", _contexts("Now"), draws=True, hidden=True),
    "init": Moment("the init block", _contexts("Now"), draws=True, hidden=True),
    "turn": Moment("the turn block", _contexts("Now"), draws=True, hidden=True),
    "deadline": Moment("a deadline, read when the session blocks", _contexts("Now"), hidden=True, budget_left=False),
    "release": Moment(
        "a keep, read when the hold gives back", _contexts("Now Finished HoldPosition"), draws=True, hidden=True
    ),
    "join": Moment("an oversize amount, read when the session joins the line", frozenset(), state=False),
    "content": Moment("what a session's units contain", frozenset(), state=False),
    "admit": Moment("a hold's header, read at admission", _contexts("Now Requeued")),
    "select": Moment("a queue key, read before a waiting session is selected", _contexts("Now Waited")),
    "evict": Moment("an eviction key, read for each entry", _contexts("Now Size Age Last Queued"), draws=True),
    "victim": Moment(
        "a victim key, read for each candidate", _contexts("Now Decoding Admission Position"), budget_left=False
    ),
    "budget": Moment(
        "a budget or chunk, or the tokens of a decode, read at an iteration's start", _contexts(_BATCH), True,
        session=False, budget_left=False,
    ),
    "step": Moment(
        "a cost, read for a planned iteration",
        _contexts(f"{_BATCH} Ntok Npre Attn DecodePositions {' '.join(COST_ONLY)}"), True, False,
    ),
    "serve": Moment("a serve key, read for each resident", _contexts(_BATCH + " Decoding Admission Remaining")),
    "only": Moment(
        "an `only`, read for each resident",
        _contexts(_RESIDENTS + " Decoding Admission Remaining"),
        unread=frozenset({"Work"}),
    ),
    "plan": Moment(
        "a test, gate or value of an iteration, read while it is planned",
        _contexts(_RESIDENTS + " Ntok Npre Admitted Preempted"), session=False, budget_left=False,
        unread=frozenset({"Work"}),
    ),
    "ps": Moment("a processor-sharing capacity", _contexts("Now N"), draws=True, session=False),
    "gap": Moment("an arrival gap", frozenset(), draws=True, session=False, state=False),
    "gauge": Moment(
        "a gauge, which holds its value between events",
        frozenset(),
        session=False,
        budget_left=False,
        unread=frozenset({"Work"}),
    ),
    "iteration": Moment(
        "a claim over iterations, read when one starts",
        _contexts(f"{_BATCH} Ntok Npre Attn DecodePositions Demand Served Arrived {' '.join(COST_ONLY)}"),
        session=False,
        budget_left=False,
        unread=frozenset({"Work", "EstLambda", "EstRho", "EstWait", "Price"}),
    ),
    "end": Moment(
        "a claim at the end of the run", _contexts("Now"), session=False, state=False, budget_left=False,
        aggregates=True,
    ),
    "given": Moment(
        "a claim's `given`, read when a session starts", frozenset(), hidden=True, state=False, budget_left=False
    ),
    "number": Moment("a number of the program", frozenset(), session=False, state=False),
}

_OF_SESSION = ("CachedIn", "Allocated")


def exists_in(context: str) -> str:
    """Where a context variable may be read, in words."""
    places = [m.says for m in MOMENTS.values() if context in m.contexts]
    return "; ".join(places) if places else "no moment of this fragment"


def check_moments(index: Index, problems: Problems) -> None:
    """Report every node that stands where its moment does not allow it."""
    for position in index.positions:
        moment = MOMENTS[position.moment]
        for path, node in position.nodes:
            _check_node(index, problems, position, moment, path, node)


def _check_node(index: Index, problems: Problems, position: Position, moment: Moment, path: str, node: object) -> None:
    where = f"{position.owner}: {position.what}"
    if isinstance(node, Ctx) and node.name not in moment.contexts:
        problems.add(
            path,
            f"{where} reads `{node.name}`, which does not exist in {moment.says}",
            f"`{node.name}` may be read in: {exists_in(node.name)}",
        )
    elif isinstance(node, Attr):
        attribute = index.attrs.get(node.name)
        if not moment.session:
            problems.add(
                path,
                f"{where} reads the attribute `{node.name}`, but {moment.says} has no session",
                "write a number, a parameter or a context variable instead",
            )
        elif attribute is not None and attribute.hidden and not moment.hidden:
            problems.add(
                path,
                f"{where} reads the hidden attribute `{node.name}` in {moment.says}",
                "only a session's own statements know it; read a separate attribute that holds a bound of it",
            )
        elif position.moment == "victim" and node.name == "computed":
            problems.add(
                path,
                f"{where} reads `computed`, the position at the previous preemption",
                "a victim key reads `Position`, where the candidate is now",
            )
    elif isinstance(node, Sample) and not moment.draws:
        problems.add(
            path,
            f"{where} draws `{node.dist}`, but {moment.says} may not draw",
            "draw into an attribute with a `Set` before and read the attribute",
        )
    elif isinstance(node, PoolState | StageState | Price):
        name = getattr(node, "fun", "Price")
        if not moment.state:
            problems.add(
                path,
                f"{where} reads `{name}`, the state of a pool or stage, which does not exist in {moment.says}",
                "use constants, parameters, attributes and arithmetic only"
                if moment.session
                else "use constants, parameters and arithmetic only"
                if not moment.draws
                else "use constants, parameters, draws and arithmetic only",
            )
        elif name in _OF_SESSION and not moment.session:
            problems.add(
                path,
                f"{where} reads `{name}`, which is a session's, but {moment.says} has no session",
                "read `Used`, `Free`, `Holders` or `Queued` of the pool",
            )
        elif name in moment.unread:
            problems.add(
                path,
                f"{where} reads `{name}`, which is not known in {moment.says}",
                "read `Queue`, `Busy`, `Used`, `Free`, `Holders` or `Queued`",
            )
        elif name == "BudgetLeft" and not moment.budget_left:
            problems.add(
                path,
                f"{where} reads `BudgetLeft`, which is not known in {moment.says}",
                "read `BudgetLeft` in a hold's header, a queue key or a session's statement",
            )
    elif isinstance(node, Agg) and not moment.aggregates:
        problems.add(
            path,
            f"{where} reads the aggregate `{node.fun}`, which does not exist in {moment.says}",
            "aggregates of observations are read in a claim at the end of the run",
        )
    if isinstance(node, Call) and len(node.args) != ARITY[node.fun]:
        _arity(problems, path, where, node.fun, ARITY[node.fun], len(node.args))
    if isinstance(node, Sample) and len(node.args) != DRAW_ARITY[node.dist]:
        _arity(problems, path, where, node.dist, DRAW_ARITY[node.dist], len(node.args))


def _arity(problems: Problems, path: str, where: str, name: str, needs: int, has: int) -> None:
    problems.add(path, f"{where}: `{name}` has {has} arguments", f"`{name}` takes {needs}")
