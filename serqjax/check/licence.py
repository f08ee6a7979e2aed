"""What may be coalesced: per step stage, whether k iterations are one update, and what forbids the rest.

Inside a *window* the composition of a batch does not change: the same residents get the same tokens in each
iteration. What moves then is known: units held (`Kvb`, `Kvp`), `Attn`, `DecodePositions`, positions, remaining
work and the clock; everything else stands still. A stage has a licence if the next iteration can be told from this
one: its budget, chunk and serving order read only what stands still, its cost runs in fixed point (or
stands still), a decode gets one token, and nothing draws. Planning all residents at once asks less: a decode of several
tokens is planned as a prefill of as many, which gets what it wants or what is left, and grows by it.
The licence concerns structure alone; numbers never decide it.

**Source:** `design.md`, section 5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, Literal

from ..ir.expr import Binary, Ctx, Expr, Member, PoolState, Price, Resource, Sample, StageState, Unary
from ..ir.fixed import stage_form
from ..ir.program import AtEnd, Fork, Pool, Program, Run, Stage, Step, is_lru
from ..ir.structure import walk
from .flow import legs
from .index import Index, spell

#: Context variables of a step stage that stand still while its composition does.
STILL = frozenset({"Nres", "Ndec", "Nsch", "Ntok", "Npre", "Decoding", "Admission", "Requeued"})
#: State of pools and stages that only an admission, a release or an arrival changes.
STILL_STATE = frozenset({"Holders", "Queued", "Queue"})
#: The same for the header of the hold at the head of a line, while nothing is evicted.
STILL_FOR_HEAD = STILL_STATE | {"CachedIn", "BudgetLeft"}


#: Parts of a licence that an obstacle can take away.
Part = Literal["windows", "at_once", "evicts", "head_stays", "prefills"]


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
    - `prefills`: both also hold while a resident prefills.
    - `head_stays`: a hold refused once is refused again while nothing but growth happens.
    - `newcomers`: the plan after one that admitted somebody is like it: the newcomer stays the last, and neither
      budget nor chunk reads what it has changed by joining.
    - `pool`: the pool that the stage's runs grow, -1 if none.
    - `obstacles`: what forbids what is False, with its place.
    """

    windows: bool
    at_once: bool
    prefills: bool
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
        *_of_legs(program, f"$.stages[{stage}]"),
        *_of_array(program, stage),
        *_of_growth(pools, f"$.stages[{stage}]"),
        *(_of_eviction(program, pool) if pool >= 0 else ()),
        *_of_sharing(program, pools),
        *_of_reserves(program, pools),
        *_of_head(program, program.stages[stage].name),
        *_of_measures(program, program.stages[stage].name, pools),
    ]
    forbidden = {part for obstacle in obstacles for part in obstacle.forbids}
    return Licence(
        windows="windows" not in forbidden,
        at_once="at_once" not in forbidden,
        prefills="prefills" not in forbidden,
        evicts=pool >= 0 and "evicts" not in forbidden,
        head_stays="head_stays" not in forbidden,
        newcomers=not (kind.serve.keys or _reads_state(kind.budget) or _reads_state(kind.chunk)),
        pool=pool,
        obstacles=tuple(obstacles),
    )


def _of_plan(kind: Step, at: str, fixed: bool) -> Iterator[Obstacle]:
    """What makes the plan or the cost of the next iteration another than this one's. `fixed`: an integer cost."""
    for name in ("budget", "chunk", "decode", "verify"):
        if (expr := getattr(kind, name)) is not None:
            for path, why in moving(expr, STILL, STILL_STATE):
                yield Obstacle(("windows", "at_once"), f"{at}.{name}{path}", why)
    for i, key in enumerate(kind.serve.keys):
        for path, why in moving(key, STILL, STILL_STATE):
            yield Obstacle(("windows",), f"{at}.serve.keys[{i}]{path}", why)
    if not fixed:
        for path, why in moving(kind.cost, STILL, STILL_STATE):
            yield Obstacle(("windows",), f"{at}.cost{path}", why)
    if kind.iteration:
        yield Obstacle(("windows", "at_once"), f"{at}.iteration", "it fills an iteration by commands of its own")
    if kind.decode is not None:
        why = "a decode gets several tokens an iteration, and a window counts one token, one gap and one unit of each"
        yield Obstacle(("windows",), f"{at}.decode", why)
    if kind.verify is not None:
        why = "tokens are computed that no decode gets, and a window counts those that they get"
        yield Obstacle(("windows",), f"{at}.verify", why)
    if kind.granule is not None:
        yield Obstacle(("prefills",), f"{at}.granule", "the last tokens of a prefill need not be a granule")
    if kind.prefills == "alone":
        yield Obstacle(("prefills",), f"{at}.prefills", "a prefill takes the iteration from the decodes")
    if kind.serve.keys:
        yield Obstacle(("at_once",), f"{at}.serve.keys", "residents are served in an order of their own")


def _of_legs(program: Program, at: str) -> Iterator[Obstacle]:
    if runs_legs_on_steps(program):
        yield Obstacle(("windows",), at, "a resident may be a leg, whose tokens the client of its session counts")


def _of_array(program: Program, stage: int) -> Iterator[Obstacle]:
    """Windows of a member would nearly always be of one iteration: those of the others end in between."""
    array = program.stages[stage].array
    if array is not None and sum(s.array == array for s in program.stages) > 1:
        reason = f"it is one of an array: iterations of the other members of `{array}` end between its own"
        yield Obstacle(("windows",), f"$.stages[{stage}].array", reason)


def runs_legs_on_steps(program: Program) -> bool:
    """Whether a leg runs on a step stage."""
    if not any(isinstance(state.exit, Fork) for state in program.states):
        return False
    index = Index(program)
    runs = [index.states[name].exit for name in legs(index)]
    # of an array any member: in a skeleton no number tells which
    return any(
        isinstance(run, Run) and isinstance(stage.kind, Step) and _may_be(run.stage, stage)
        for run in runs
        for stage in program.stages
    )


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


def _of_sharing(program: Program, pools: list[int | None]) -> Iterator[Obstacle]:
    """Whole blocks get content from iteration to iteration, where others may find them."""
    for pool in pools:
        if pool is not None and program.pools[pool].sharing == "content":
            yield Obstacle(("windows", "at_once"), f"$.pools[{pool}].sharing", "its blocks are shared by content")


def grown_pools(program: Program, stage: str) -> list[int | None]:
    """Pools that runs on a stage grow; None for one that the structure does not tell.

    A run on a computed member that grows the member of the same index grows, on each member of the one array, that of
    the other.
    """
    places = {p.name: i for i, p in enumerate(program.pools)}
    mine = next(s for s in program.stages if s.name == stage)
    found: list[int | None] = []
    for state in program.states:
        run = state.exit
        if not isinstance(run, Run) or run.grows is None or not _may_be(run.stage, mine):
            continue
        place = None
        if isinstance(run.grows, str):
            place = places.get(run.grows)
        elif isinstance(run.stage, Member) and run.stage.index == run.grows.index:
            same = (i for i, p in enumerate(program.pools) if _may_be(run.grows, p) and p.index == mine.index)
            place = next(same, None)
        if place not in found:
            found.append(place)
    return found


def _may_be(ref: Resource, part: Pool | Stage) -> bool:
    """Whether a reference may mean a pool or stage."""
    return ref == part.name if isinstance(ref, str) else ref.array == part.array


def moving(
    expr: Expr, still: frozenset[str], state: frozenset[str], own: Collection[Resource] = ()
) -> Iterator[tuple[str, str]]:
    """What in an expression moves inside a window: (path below the expression, reason).

    `own`: references that mean the stage of the window.
    """
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
            case StageState("BudgetLeft", other) if "BudgetLeft" in state and other not in own:
                yield path, f"it reads `BudgetLeft` of the stage `{spell(other)}`, whose iterations go on meanwhile"
            case PoolState(fun) | StageState(fun) if fun not in state:
                yield path, f"it reads `{fun}`, which may change with every iteration"


def _is_cap(node: object) -> bool:
    """Whether a node is `Used + Free` of one pool: its cap, however the parts move."""
    match node:
        case Binary("Add", PoolState(a, str() as pool), PoolState(b, other)):
            return pool == other and {a, b} == {"Used", "Free"}
    return False


def _of_measures(program: Program, stage: str, pools: list[int | None]) -> Iterator[Obstacle]:
    """Gauges that read what moves inside a window, and claims that are read at every iteration."""
    grown = [None if pool is None else program.pools[pool].name for pool in pools]
    for i, gauge in enumerate(program.gauges):
        for path, node in walk(gauge.value, f"$.gauges[{i}].value"):
            match node:
                case StageState("Busy", other) if other == stage:
                    yield Obstacle(("windows",), path, "it reads `Busy` of the stage while its iterations follow")
                case StageState("Queue" | "Busy") | PoolState("Holders" | "Queued"):
                    pass
                case PoolState("Used" | "Free" as fun, pool) if isinstance(pool, str) and None not in grown:
                    if pool in grown:
                        yield Obstacle(("windows",), path, f"it reads `{fun}` of a pool that grows in every iteration")
                case StageState(fun) | PoolState(fun):
                    yield Obstacle(("windows",), path, f"it reads `{fun}`, which may change with every iteration")
                case Price():
                    yield Obstacle(("windows",), path, "it reads `Price`")
    for i, claim in enumerate(program.claims):
        if not isinstance(claim.kind, AtEnd) and claim.kind.stage == stage:
            yield Obstacle(("windows",), f"$.claims[{i}].value", "it is read whenever an iteration starts")


def _reads_state(expr: Expr | None) -> bool:
    return any(isinstance(node, Ctx | PoolState | StageState | Price) for _, node in walk(expr))


def _same_member(program: Program, pool: Member) -> list[Resource]:
    """Arrays of stages of which each member admits the line of the pool of its index, at the index of `pool`."""
    stages = {s.name: s for s in program.stages}
    found: set[str] = set()
    for p in program.pools:
        if p.array == pool.array:
            via = None if p.admit_via is None else stages[p.admit_via]
            if via is None or via.array is None or via.index != p.index:
                return []
            found.add(via.array)
    return [Member(array, pool.index) for array in found] if len(found) == 1 else []


def _of_head(program: Program, stage: str) -> Iterator[Obstacle]:
    """What may let a hold in although it was refused and nothing but growth has happened."""
    for i, pool in enumerate(program.pools):
        if pool.admit_via != stage:
            continue
        for k, key in enumerate(pool.queue.keys):
            if k == 0 and key == Unary("Neg", Ctx("Waited")):
                continue  # everybody waits equally much longer: their order stays
            for path, why in moving(key, STILL, STILL_FOR_HEAD, (stage,)):
                yield Obstacle(("head_stays",), f"$.pools[{i}].queue.keys[{k}]{path}", why)
        for s, scope in enumerate(program.scopes):
            if not scope.takes or not _may_be(scope.takes[0].pool, pool):
                continue
            first = scope.takes[0].pool
            # the member of the same index of the array of stages that admit these pools
            own = [stage] if isinstance(first, str) else [stage, *_same_member(program, first)]
            parts: list[tuple[str, Any]] = [(f".lets[{k}].value", let.value) for k, let in enumerate(scope.lets)]
            for k, take in enumerate(scope.takes):
                parts += [(f".takes[{k}].units", take.units), (f".takes[{k}].reserve", take.reserve)]
            for where, expr in parts:
                for path, why in moving(expr, STILL, STILL_FOR_HEAD, own):
                    yield Obstacle(("head_stays",), f"$.scopes[{s}]{where}{path}", why)
