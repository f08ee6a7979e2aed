"""What may be coalesced: per step stage, whether k iterations are one update, and what forbids the rest.

Inside a *window* the composition of a batch does not change: the same residents get the same tokens in each
iteration. What moves then is known: units held (`Kvb`, `Kvp`), `Attn`, `DecodePositions`, positions, remaining
work and the clock; everything else stands still. A stage has a licence if the next iteration can be told from this
one: its budget, chunk and serving order read only what stands still, its cost runs in fixed point (or
stands still), and nothing draws. The licence concerns structure alone; numbers never decide it.

**Source:** `design.md`, section 5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from ..ir.expr import Binary, Ctx, Expr, PoolState, Price, Sample, StageState, Unary
from ..ir.fixed import stage_form
from ..ir.program import Program, Run, Step, is_lru
from ..ir.structure import walk

#: Context variables of a step stage that stand still while its composition does.
STILL = frozenset({"Nres", "Ndec", "Ntok", "Npre", "Decoding", "Admission", "Requeued"})
#: State of pools and stages that only an admission, a release or an arrival changes.
STILL_STATE = frozenset({"Holders", "Queued", "Queue"})
#: The same for the header of the hold at the head of a line, while nothing is evicted.
STILL_FOR_HEAD = STILL_STATE | {"CachedIn", "BudgetLeft"}


#: Parts of a licence that an obstacle can take away.
Part = Literal["windows", "at_once", "evicts", "head_stays"]


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """An expression that forbids parts of a licence: its place in the program and what is wrong with it, in words."""

    forbids: tuple[Part, ...]
    path: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Licence:
    """Of one step stage.

    - `windows`: k iterations of equal composition may be one update.
    - `at_once`: all residents may get their tokens in one step, in the order of admission.
    - `evicts`: a window may go on while its growth evicts whole blocks in release order.
    - `head_stays`: a hold refused once is refused again while nothing but growth happens.
    - `newcomers`: the plan after one that admitted somebody is like it: the newcomer stays the last, and neither
      budget nor chunk reads what it has changed by joining.
    - `pool`: the pool that the stage's runs grow, -1 if none.
    - `obstacles`: what forbids what is False, with its place.
    """

    windows: bool
    at_once: bool
    evicts: bool
    head_stays: bool
    newcomers: bool
    pool: int
    obstacles: tuple[Obstacle, ...]


def licence(program: Program, stage: int, fixed_point: bool | None = None) -> Licence:
    """The licence of step stage number `stage` of a valid program.

    `fixed_point`: whether its cost has an integer form, where the caller knows (a skeleton has no numbers to tell).
    """
    kind = program.stages[stage].kind
    assert isinstance(kind, Step)
    pools = grown_pools(program, program.stages[stage].name)
    pool = pools[0] if len(pools) == 1 and pools[0] is not None else -1
    fixed = stage_form(program, kind) is not None if fixed_point is None else fixed_point
    obstacles = [
        *_of_plan(kind, f"$.stages[{stage}].kind", fixed),
        *_of_growth(pools, f"$.stages[{stage}]"),
        *(_of_eviction(program, pool) if pool >= 0 else ()),
        *_of_reserves(program, pools),
        *_of_head(program, program.stages[stage].name),
    ]
    forbidden = {part for obstacle in obstacles for part in obstacle.forbids}
    return Licence(
        windows="windows" not in forbidden,
        at_once="at_once" not in forbidden,
        evicts=pool >= 0 and "evicts" not in forbidden,
        head_stays="head_stays" not in forbidden,
        newcomers=not (kind.serve.keys or _reads_state(kind.budget) or _reads_state(kind.chunk)),
        pool=pool,
        obstacles=tuple(obstacles),
    )


def _of_plan(kind: Step, at: str, fixed: bool) -> Iterator[Obstacle]:
    """What makes the plan or the cost of the next iteration another than this one's. `fixed`: an integer cost."""
    for name in ("budget", "chunk"):
        if (expr := getattr(kind, name)) is not None:
            for path, why in moving(expr, STILL, STILL_STATE):
                yield Obstacle(("windows", "at_once"), f"{at}.{name}{path}", why)
    for i, key in enumerate(kind.serve.keys):
        for path, why in moving(key, STILL, STILL_STATE):
            yield Obstacle(("windows",), f"{at}.serve.keys[{i}]{path}", why)
    if not fixed:
        for path, why in moving(kind.cost, STILL, STILL_STATE):
            yield Obstacle(("windows",), f"{at}.cost{path}", why)
    if kind.serve.keys:
        yield Obstacle(("at_once",), f"{at}.serve.keys", "residents are served in an order of their own")


def _of_growth(pools: list[int | None], at: str) -> Iterator[Obstacle]:
    if len(pools) > 1:
        yield Obstacle(("windows", "at_once"), at, "its runs grow several pools")
    if None in pools:
        yield Obstacle(("windows", "at_once"), at, "its runs grow a pool whose index is computed")


def _of_reserves(program: Program, pools: list[int | None]) -> Iterator[Obstacle]:
    for pool in pools:
        if pool is not None and program.pools[pool].reserve_held:
            text = "open holds keep their reserve, so that room depends on who grows"
            yield Obstacle(("windows", "at_once"), f"$.pools[{pool}].reserve_held", text)


def _of_eviction(program: Program, pool: int) -> Iterator[Obstacle]:
    spec, at = program.pools[pool], f"$.pools[{pool}]"
    if any(other.spill is not None and other.spill.to == spec.name for other in program.pools):
        yield Obstacle(("windows", "at_once"), at, "others spill into it, so that it may stand above its cap")
    if spec.block is None:
        yield Obstacle(("evicts",), f"{at}.block", "the pool has no block, so whole entries are evicted")
    if spec.spill is not None:
        yield Obstacle(("evicts",), f"{at}.spill", "what is evicted is spilled block by block")
    if not is_lru(spec.evict):
        yield Obstacle(("evicts",), f"{at}.evict", "entries are not evicted in release order")


def grown_pools(program: Program, stage: str) -> list[int | None]:
    """Pools that runs on a stage grow; None for one whose index is computed."""
    places = {p.name: i for i, p in enumerate(program.pools)}
    found: list[int | None] = []
    for state in program.states:
        run = state.exit
        if isinstance(run, Run) and run.stage == stage and run.grows is not None:
            place = places.get(run.grows) if isinstance(run.grows, str) else None
            if place not in found:
                found.append(place)
    return found


def moving(
    expr: Expr, still: frozenset[str], state: frozenset[str], stage: str | None = None
) -> Iterator[tuple[str, str]]:
    """What in an expression moves inside a window of `stage`: (path below the expression, reason)."""
    constant: list[str] = []
    for path, node in walk(expr, ""):
        if any(path.startswith(whole) for whole in constant):
            continue
        if _is_cap(node):
            constant.append(path + ".")
            continue
        match node:
            case Sample(dist):
                yield path, f"it draws `{dist}` in every iteration"
            case Ctx("Now"):
                yield path, "it reads the clock `Now`"
            case Ctx(name) if name not in still:
                yield path, f"it reads `{name}`, which moves from iteration to iteration"
            case Price():
                yield path, "it reads `Price`"
            case StageState("BudgetLeft", other) if "BudgetLeft" in state and other != stage:
                yield path, f"it reads `BudgetLeft` of the stage `{other}`, whose iterations go on meanwhile"
            case PoolState(fun) | StageState(fun) if fun not in state:
                yield path, f"it reads `{fun}`, which may change with every iteration"


def _is_cap(node: object) -> bool:
    """Whether a node is `Used + Free` of one pool: its cap, however the parts move."""
    match node:
        case Binary("Add", PoolState(a, pool), PoolState(b, other)):
            return pool == other and {a, b} == {"Used", "Free"}
    return False


def _reads_state(expr: Expr | None) -> bool:
    return any(isinstance(node, Ctx | PoolState | StageState | Price) for _, node in walk(expr))


def _of_head(program: Program, stage: str) -> Iterator[Obstacle]:
    """What may let a hold in although it was refused and nothing but growth has happened."""
    for i, pool in enumerate(program.pools):
        if pool.admit_via != stage:
            continue
        for k, key in enumerate(pool.queue.keys):
            if k == 0 and key == Unary("Neg", Ctx("Waited")):
                continue  # everybody waits equally much longer: their order stays
            for path, why in moving(key, STILL, STILL_FOR_HEAD, stage):
                yield Obstacle(("head_stays",), f"$.pools[{i}].queue.keys[{k}]{path}", why)
        for s, scope in enumerate(program.scopes):
            if not scope.takes or scope.takes[0].pool != pool.name:
                continue
            parts: list[tuple[str, Any]] = [(f".lets[{k}].value", let.value) for k, let in enumerate(scope.lets)]
            for k, take in enumerate(scope.takes):
                parts += [(f".takes[{k}].units", take.units), (f".takes[{k}].reserve", take.reserve)]
            for where, expr in parts:
                for path, why in moving(expr, STILL, STILL_FOR_HEAD, stage):
                    yield Obstacle(("head_stays",), f"$.scopes[{s}]{where}{path}", why)
