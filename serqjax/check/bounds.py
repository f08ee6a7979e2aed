"""How large the accumulators of a run can get, and the limits of the integers that hold them.

Times are int64 ticks below 2**47; a cost is an int64 of 2**-20 ticks; time integrals of jobs and
sessions are int64, those of units count blocks in two limbs. A program whose numbers alone show that one
of them could overflow is refused by name; what depends on undeclared attributes has no
bound here (`inf`) and is watched by the tables' capacities.

**Source:** `design.md`, section 4, Numbers and Time.
"""

from __future__ import annotations

import dataclasses
import math

from ..errors import Problem
from ..ir.expr import Expr
from ..ir.fixed import VARIABLE_SCALE, IntAffine, IntForm, resolve, stage_form
from ..ir.itl import LONGEST_TICK
from ..ir.program import Batch, Closed, Listed, Poisson, ProcessorSharing, Program, Renewal, Run, State, Step
from .amounts import up
from .index import Index, Problems
from .values import Range, columns, constant, span, writes

LARGEST_INT64 = 2**63 - 1
#: One iteration in 2**-20 ticks: half of int64 stays for the remainder and for sums of two.
LARGEST_COST = 2**62
FAR_TICK = 2**62
LARGEST_COUNT = 2**31 - 1  # sessions, blocks, tokens of one run: int32 tables
LARGEST_UNITS = 2.0**53  # units of a pool are exact doubles

#: Attributes that the engines write besides the program.
MAINTAINED = ("serial", "turn_no", "cached", "computed", "more")


@dataclasses.dataclass(frozen=True)
class Bound:
    """One accumulator: the most it can reach (`inf`: not known from the program) and its limit.

    `hint`: what to change when the bound is above the limit.
    """

    path: str
    name: str
    most: float
    limit: float
    unit: str
    hint: str

    @property
    def fits(self) -> bool:
        return math.isinf(self.most) or self.most <= self.limit

    def problem(self) -> Problem:
        text = f"{self.name} can reach {self.most:.4g} {self.unit}, above the limit {self.limit:.4g}"
        return Problem(self.path, text, self.hint)


def check_bounds(index: Index, problems: Problems) -> None:
    """Refuse by name what could overflow."""
    for bound in bounds(index):
        if not bound.fits:
            found = bound.problem()
            problems.add(found.path, found.problem, found.hint)


def bounds(index: Index) -> list[Bound]:
    """Bounds of all accumulators. The program's names and numbers must be in order."""
    program = index.program
    tick = program.tick_s
    coarser = f"shorten it, or choose a tick above {tick:g} s (`tick_s`)"
    found: list[Bound] = []

    # What lies beyond the horizon never happens, so that it only has to be a number of ticks.
    far = float(LONGEST_TICK) if program.horizon_s is None else float(FAR_TICK)

    def clock(path: str, name: str, seconds: float | None, limit: float = far) -> None:
        if seconds is not None:
            found.append(Bound(path, name, seconds / tick, limit, "ticks", coarser))

    clock("$.horizon_s", "the clock at the horizon", index.number(program.horizon_s), float(LONGEST_TICK))
    clock("$.warmup_s", "the clock at the warm-up", index.number(program.warmup_s), float(LONGEST_TICK))
    arrival = program.arrival
    if isinstance(arrival, Listed) and arrival.at:
        clock("$.arrival.at", "the clock at the last arrival", max(arrival.at))
    if isinstance(arrival, Renewal):
        clock("$.arrival.gap", "an arrival gap", constant(index, arrival.gap))
    found.append(
        Bound(
            "$.arrival",
            "the number of sessions",
            _sessions(index),
            LARGEST_COUNT,
            "sessions",
            "lower the rate or the horizon",
        )  # fmt: skip
    )
    for i, pool in enumerate(program.pools):
        cap, block = index.number(pool.cap), index.number(pool.block)
        if cap is None or math.isinf(cap):
            continue
        path, name = f"$.pools[{i}].cap", f"pool `{pool.name}`"
        hint = 'lower the cap, or make the pool infinite (`["Inf"]`)'
        found.append(Bound(path, f"{name}: units in use", cap, LARGEST_UNITS, "units", hint))
        if block:
            found.append(Bound(path, f"{name}: blocks in use", cap // block, LARGEST_COUNT, "blocks", hint))
    for i, state in enumerate(program.states):
        if not isinstance(state.exit, Run):
            continue
        path, name = f"$.states[{i}].exit.work", f"state `{state.name}`: the work"
        most = span(index, state.exit.work, {"Now": (0.0, math.inf)}, attribute_ranges(index))[1]
        members = index.stage_members(state.exit.stage)
        if state.exit.latency is not None:
            most_s = span(index, state.exit.latency, {"Now": (0.0, math.inf)}, attribute_ranges(index))[1]
            name_of = f"state `{state.name}`: the latency"
            found.append(Bound(f"$.states[{i}].exit.latency", name_of, most_s / tick, far, "ticks", coarser))
        if any(isinstance(program.stages[m].kind, ProcessorSharing) for m in members):
            continue  # a rate turns such work into time: what takes too long never ends
        if any(index.is_step(m) for m in members):
            hint = "a run of tokens this long is a mistake in units: give tokens"
            found.append(Bound(path, name, most, LARGEST_COUNT, "tokens", hint))
        else:
            found.append(Bound(path, name, most / tick, far, "ticks", coarser))
    for i, stage in enumerate(program.stages):
        if isinstance(stage.kind, Step):
            found += _step_bounds(index, i, stage.kind)
    return found


def most_live(index: Index) -> int:
    """Most sessions that may live at once before a time integral over the horizon passes int64."""
    horizon = index.number(index.program.horizon_s)
    ticks = LONGEST_TICK
    if horizon is not None:
        ticks = max(1, math.ceil(min(horizon / index.program.tick_s, float(FAR_TICK))))
    return LARGEST_INT64 // ticks


def attribute_ranges(index: Index) -> dict[str, Range]:
    """Ranges of the attributes: declared, or the hull of 0 and everything that is written into them.

    Attributes that depend on themselves (a counter) or on an unbounded draw stay unknown.
    """
    found: dict[str, Range] = {}
    for attribute in index.program.attrs:
        bound = index.number(attribute.bound)
        if bound is not None:
            found[attribute.name] = (0.0, bound)
    writers: dict[str, list[Expr]] = {a.name: [] for a in index.program.attrs if a.name not in found}
    for name, value in writes(index.program):
        if name in writers:
            writers[name].append(value)
    data = {name: (c.low, c.high) for name, c in columns(index).items()}
    left = [name for name in writers if name not in MAINTAINED]
    known = True
    while known:
        known = False
        for name in list(left):
            spans = [span(index, value, {}, found) for value in writers[name]]
            low = min([0.0, *(s[0] for s in spans), *data.get(name, ())])
            high = max([0.0, *(s[1] for s in spans), *data.get(name, ())])
            if math.isfinite(low) and math.isfinite(high):
                found[name] = (low, high)
                left.remove(name)
                known = True
    return found


def residents(index: Index, stage: int) -> float:
    """Most sessions that can be on a step stage at once, as far as caps and constant units show.

    A pool that every run on the stage holds limits them all; otherwise each run is limited by itself.
    """
    limits: list[dict[int, float]] = []
    for state in _runs(index, stage):
        found: dict[int, float] = {}
        for scope in index.chain(state.scope):
            for take in scope.takes:
                members, units = index.pool_members(take.pool), constant(index, take.units)
                if len(members) == 1 and units:
                    pool = index.program.pools[members[0]]
                    cap = index.number(pool.cap)
                    if cap is not None:
                        found[members[0]] = cap // up(units, index.number(pool.block))
        limits.append(found)
    if not limits:
        return 0.0
    shared = set.intersection(*(set(found) for found in limits))
    alone = sum(min(found.values(), default=math.inf) for found in limits)
    return min(alone, _live(index), *(max(found[pool] for found in limits) for pool in shared))


def _runs(index: Index, stage: int) -> list[State]:
    states = index.program.states
    return [s for s in states if isinstance(s.exit, Run) and stage in index.stage_members(s.exit.stage)]


def _grown(index: Index, stage: int) -> float:
    """Most units that the runs on a stage can hold of what they grow, infinite if one of them grows nothing."""
    pools: set[int] = set()
    for state in _runs(index, stage):
        members = index.pool_members(state.exit.grows)  # type: ignore[union-attr]
        if not members:
            return math.inf
        pools.update(members)
    caps = [index.number(index.program.pools[i].cap) for i in pools]
    return sum(math.inf if cap is None else cap for cap in caps)


def iteration_ranges(index: Index, stage: int, kind: Step, most_residents: float) -> dict[str, Range]:
    """Ranges of the context variables of an iteration.

    Where all runs grow a pool, an iteration's tokens and positions fit into it: `Attn` is at most cap^2 / 2.
    """
    budget = span(index, kind.budget, {"Nres": (0, most_residents), "Ndec": (0, most_residents)}, {})[1]
    memory = index.pool_members(kind.memory)
    cap = index.number(index.program.pools[memory[0]].cap) if memory else 0.0
    cap = math.inf if cap is None else cap
    grown = _grown(index, stage)
    tokens = min(budget, grown)
    computed = tokens if kind.verify is None else budget  # what no decode gets fits into no pool
    decoding = min(most_residents, tokens)
    position = grown if any(s.exit.grows is not None for s in _runs(index, stage)) else 0.0  # type: ignore[union-attr]
    attention = math.inf
    if math.isfinite(tokens) and math.isfinite(position):
        attention = min(tokens * (position + tokens / 2), grown * grown / 2)
    return {
        "Nres": (0.0, most_residents),
        "Ndec": (0.0, decoding),
        "Kvb": (0.0, cap),
        "Kvp": (0.0, cap),
        "Ntok": (0.0, computed),
        "Npre": (0.0, tokens),
        "Attn": (0.0, attention),
        "DecodePositions": (0.0, position + (decoding if kind.decode is None and kind.verify is None else computed)),
        "Nsch": (0.0, min(most_residents, tokens)),
        **{name: (0.0, position) for name in ("PrefillPositions", "LeastDecode", "MostDecode")},
    }


def largest(form: IntForm, ranges: dict[str, Range]) -> float:
    """Most that a fixed-point cost, or one of its partial sums, can reach in absolute value; 2**-20 ticks."""
    if not isinstance(form, IntAffine):
        return max(largest(part, ranges) for part in form.parts)
    total = float(abs(form.constant))
    for name, k in form.terms:
        most = ranges[name][1] * VARIABLE_SCALE[name]
        total += abs(k) * most if k else 0.0
    return total


def coefficients(form: IntForm) -> float:
    """The largest integer of a form, in absolute value."""
    if not isinstance(form, IntAffine):
        return max(coefficients(part) for part in form.parts)
    return float(max(abs(form.constant), *(abs(k) for _, k in form.terms), 0))


def _step_bounds(index: Index, i: int, kind: Step) -> list[Bound]:
    program, name = index.program, f"stage `{index.program.stages[i].name}`"
    path, tick = f"$.stages[{i}].kind", program.tick_s
    most = residents(index, i)
    ranges = iteration_ranges(index, i, kind, most)
    far = float(LONGEST_TICK) if program.horizon_s is None else float(FAR_TICK)
    found: list[Bound] = []
    integers = _integers(program, kind)
    hint = f"give the cost in seconds, or choose a tick above {tick:g} s (`tick_s`)"
    if integers is None:
        cost = span(index, kind.cost, {**ranges, "Now": (0.0, math.inf)}, {})[1]
        found.append(Bound(f"{path}.cost", f"{name}: an iteration", cost / tick, far, "ticks", hint))
        cost_low = 0.0
    else:
        cost = max(coefficients(integers), largest(integers, ranges))
        if math.isinf(cost):
            cost = coefficients(integers) if coefficients(integers) > LARGEST_COST else math.inf
        unit = "2^-20 ticks"
        found.append(Bound(f"{path}.cost", f"{name}: the cost of an iteration", cost, LARGEST_COST, unit, hint))
        cost_low = max(0.0, span(index, kind.cost, ranges, {})[0])
    attention = 2 * ranges["Attn"][1]
    lower = "lower the budget or the memory pool's cap"
    found.append(
        Bound(f"{path}.budget", f"{name}: attention, doubled", attention, float(LARGEST_INT64), "tokens^2", lower)
    )
    horizon = index.number(program.horizon_s)
    if horizon is not None and cost_low > 0:
        tokens = ranges["Ntok"][1] * (horizon / cost_low + 1)
        hint = "lower the budget or the horizon"
        found.append(Bound(f"{path}.budget", f"{name}: tokens served", tokens, float(LARGEST_INT64), "tokens", hint))
    return found


def _integers(program: Program, kind: Step) -> IntForm | None:
    form = stage_form(program, kind)
    if form is None:
        return None
    try:
        return resolve(form, {p.name: p.value for p in program.params}, program.tick_s)
    except (ValueError, OverflowError):
        return None


def _live(index: Index) -> float:
    """Most sessions alive at once."""
    arrival = index.program.arrival
    if isinstance(arrival, Closed | Batch):
        n = index.number(arrival.n)
        return math.inf if n is None else n
    if isinstance(arrival, Listed):
        return float(len(arrival.at))
    return math.inf if index.program.arrivals is None else float(index.program.arrivals)


def _sessions(index: Index) -> float:
    program = index.program
    if not isinstance(program.arrival, Closed):
        live = _live(index)
        if math.isfinite(live):
            return live
    horizon = index.number(program.horizon_s)
    if horizon is None:
        return math.inf
    if isinstance(program.arrival, Poisson):
        rate = index.number(program.arrival.rate)
        mean = math.inf if rate is None else rate * horizon
        return mean + 10 * math.sqrt(mean)
    if isinstance(program.arrival, Renewal):
        gap = constant(index, program.arrival.gap)
        return horizon / gap if gap else math.inf
    return math.inf if isinstance(program.arrival, Closed) else 0.0
