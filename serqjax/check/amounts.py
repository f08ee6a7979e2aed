"""Numbers that can be judged without running: finite, in range, and fitting.

**Source:** `spec/ir14.md`, section What validation rejects (holds, stages, run).
"""

from __future__ import annotations

import math

from ..ir.expr import Expr, Num, Resource
from ..ir.program import (
    Batch,
    Branch,
    Closed,
    Fifo,
    Grow,
    Listed,
    Load,
    Poisson,
    Renewal,
    Require,
    Run,
    Shrink,
    Step,
)
from .index import Index, Problems, spell
from .names import numbers
from .values import Wholeness, constant

EPS = 1e-9
MOST_SESSIONS = 1_000_000
MOST_SEED = 2**64


def check_amounts(index: Index, problems: Problems) -> None:
    """Report numbers that are not finite or out of range, and constant amounts that can never fit."""
    _check_finite(index, problems)
    _check_pools(index, problems)
    whole = Wholeness(index)
    _check_stages(index, problems, whole)
    _check_takes(index, problems, whole)
    _check_states(index, problems, whole)
    _check_arrival(index, problems)
    _check_listed(index, problems)
    _check_trace(index, problems)
    _check_run(index, problems)


def up(units: float, block: float | None) -> float:
    """Units rounded up to whole blocks."""
    return math.ceil(units / block - EPS) * block if block and math.isfinite(units) else units


def _check_finite(index: Index, problems: Problems) -> None:
    for i, parameter in enumerate(index.program.params):
        if not math.isfinite(parameter.value):
            text = f"the parameter `{parameter.name}` is {parameter.value}"
            problems.add(f"$.params[{i}].value", text, "give a finite number")
    for position in index.positions:
        for path, node in position.nodes:
            if isinstance(node, Num) and not math.isfinite(node.value):
                text = f"{position.owner}: {position.what} holds the number {node.value}"
                problems.add(path, text, 'give a finite number, or `["Inf"]` for infinity')
    for path, owner, number in numbers(index):
        if isinstance(number, Num) and not math.isfinite(number.value):
            problems.add(path, f"{owner} is {number.value}", "give a finite number")
        value = index.number(number)
        if path.endswith(".bound") and value is not None and value < 0:
            problems.add(path, f"{owner} is {value:g}", "a bound is 0 or more")


def _check_pools(index: Index, problems: Problems) -> None:
    for i, pool in enumerate(index.program.pools):
        here, owner = f"$.pools[{i}]", f"pool `{pool.name}`"
        cap, block = index.number(pool.cap), index.number(pool.block)
        if cap is not None and cap < 0:
            problems.add(f"{here}.cap", f"{owner}: the cap is {cap:g}", 'need 0 or more units, or `["Inf"]`')
        if block is not None and not (block >= 1 and _is_whole(block)):
            text = f"{owner}: the block is {block:g}"
            problems.add(f"{here}.block", text, "a block is a whole number of units, 1 or more; null for none")
        every = index.number(pool.queue_every)
        if every is not None and not 0 < every < math.inf:
            text = f"{owner}: its line is admitted every {every:g} seconds"
            problems.add(f"{here}.queue_every", text, "need a finite time above 0; null for every instant")
        if pool.spill is not None:
            work = constant(index, pool.spill.work)
            if work is not None and not 0 <= work < math.inf:
                text = f"{owner}: the work of a spill is {work:g}"
                problems.add(f"{here}.spill.work", text, "work is a finite number, 0 or more")


def _check_stages(index: Index, problems: Problems, whole: Wholeness) -> None:
    for i, stage in enumerate(index.program.stages):
        here, owner, kind = f"$.stages[{i}].kind", f"stage `{stage.name}`", stage.kind
        if isinstance(kind, Fifo):
            servers = index.number(kind.servers)
            if servers is not None and not (servers >= 1 and _is_whole(servers)):
                text = f"{owner}: has {servers:g} servers"
                problems.add(f"{here}.servers", text, "the number of servers is whole, 1 or more")
        elif isinstance(kind, Step):
            _check_step(index, problems, whole, here, owner, kind)


def _check_step(index: Index, problems: Problems, whole: Wholeness, here: str, owner: str, kind: Step) -> None:
    budget, cost, chunk = constant(index, kind.budget), constant(index, kind.cost), constant(index, kind.chunk)
    if budget is not None and not budget > 0:
        text = f"{owner}: the budget is {budget:g} tokens, so that no iteration gives a token"
        problems.add(f"{here}.budget", text, "need a budget of 1 token or more")
    elif not whole.whole(kind.budget):
        text = f"{owner}: the budget may not be a whole number of tokens"
        problems.add(f"{here}.budget", text, "round it with `Floor` or `Ceil`")
    if chunk is not None and not chunk >= 0:
        text = f"{owner}: the chunk is {chunk:g} tokens"
        problems.add(f"{here}.chunk", text, "need 1 token or more; null or 0 for no cap")
    elif not whole.whole(kind.chunk):
        text = f"{owner}: the chunk may not be a whole number of tokens"
        problems.add(f"{here}.chunk", text, "round it with `Floor` or `Ceil`")
    _check_decode(index, problems, whole, here, owner, kind)
    granule = index.number(kind.granule)
    if granule is not None:
        if not (granule >= 1 and (math.isinf(granule) or _is_whole(granule))):
            text = f"{owner}: the granule is {granule:g} tokens"
            problems.add(f"{here}.granule", text, 'need a whole number of tokens, 1 or more, or `["Inf"]`')
        elif chunk is not None and 0 < chunk < granule:
            text = f"{owner}: the granule of {granule:g} tokens is above the chunk of {chunk:g}"
            problems.add(f"{here}.granule", text, "a prompt longer than the chunk would never get a token")
        if kind.prefills == "alone":
            text = f"{owner}: a prefill that the granule refuses would keep every decode waiting"
            problems.add(f"{here}.granule", text, 'leave it out where `prefills` is "alone"')
    if cost is not None and not (0 < cost < math.inf):
        text = f"{owner}: the cost of an iteration is {cost:g} seconds, so that no time passes"
        problems.add(f"{here}.cost", text, "need a finite number of seconds above 0")


def _check_decode(index: Index, problems: Problems, whole: Wholeness, here: str, owner: str, kind: Step) -> None:
    """The tokens of a decode in an iteration, and those computed for it: whole numbers of at least one."""
    least = 1.0
    for field, what in (("decode", "a decode gets"), ("verify", "a decode is computed with")):
        expr = getattr(kind, field)
        value = constant(index, expr)
        if value is not None and not (least <= value < math.inf):
            needs = "1 token or more" if least == 1 else f"the {least:g} tokens that it gets, or more"
            text = f"{owner}: {what} {value:g} tokens an iteration"
            problems.add(f"{here}.{field}", text, f"need {needs}, a finite number; null for one that it gets")
        elif value is not None and value.is_integer():
            least = value
        elif not whole.whole(expr):
            text = f"{owner}: {what} what may not be a whole number of tokens"
            problems.add(f"{here}.{field}", text, "round it with `Floor` or `Ceil`")


def _check_takes(index: Index, problems: Problems, whole: Wholeness) -> None:
    for i, scope in enumerate(index.program.scopes):
        owner = f"scope `{scope.name}`"
        seen: dict[int, Resource] = {}
        reuse = constant(index, scope.reuse)
        if reuse is not None and not reuse >= 0:
            problems.add(f"$.scopes[{i}].reuse", f"{owner}: reuses {reuse:g} units", "need 0 or more")
        after = None if scope.lease is None else constant(index, scope.lease.after_s)
        if after is not None and not after >= 0:
            text = f"{owner}: leases for {after:g} seconds"
            problems.add(f"$.scopes[{i}].lease.after_s", text, "a time is 0 or more; infinite for no end")
        for j, take in enumerate(scope.takes):
            here = f"$.scopes[{i}].takes[{j}]"
            members = index.pool_members(take.pool)
            if len(members) == 1:
                if members[0] in seen:
                    text = f"{owner}: takes the pool `{spell(take.pool)}` twice"
                    problems.add(f"{here}.pool", text, "take a pool once, with the sum of the units")
                seen.setdefault(members[0], take.pool)
            for field in ("units", "reserve", "keep"):
                value = constant(index, getattr(take, field))
                if value is not None and not value >= 0:
                    text = f"{owner}: the {field} on `{spell(take.pool)}` are {value:g} units"
                    problems.add(f"{here}.{field}", text, "an amount is a number, 0 or more")
            _check_fit(index, problems, owner, here, take.pool, members, ("units", take.units))
            _check_fit(index, problems, owner, here, take.pool, members, ("reserve", take.reserve))
            if not isinstance(take.oversize, str):
                _check_fit(index, problems, owner, here, take.pool, members, ("oversize", take.oversize))
            blocked = any(index.program.pools[m].block is not None for m in members)
            if blocked and not whole.whole(take.units):
                text = f"{owner}: the units on `{spell(take.pool)}`, a pool with a `block`, may not be whole"
                problems.add(f"{here}.units", text, "round them with `Floor` or `Ceil`")


def _check_fit(
    index: Index,
    problems: Problems,
    owner: str,
    here: str,
    resource: Resource,
    members: tuple[int, ...],
    amount: tuple[str, Expr | None],
) -> None:
    """An amount above the cap of every member can never be had."""
    field, expr = amount
    value = constant(index, expr)
    if value is None or not value > 0 or not members:
        return
    pools = [index.program.pools[m] for m in members]
    asks = [up(value, index.number(p.block)) for p in pools]
    caps = [index.number(p.cap) for p in pools]
    if any(cap is None for cap in caps):
        return
    path, rounded = f"{here}.{field}" if here else "", f" ({asks[0]:g} in whole blocks)" if asks[0] != value else ""
    if math.isinf(value):
        if field != "oversize":
            text = f"{owner}: the {field} on `{spell(resource)}` are infinite"
            problems.add(path, text, "give a finite amount")
    elif all(ask > cap + EPS for ask, cap in zip(asks, caps) if cap is not None):
        largest = max(cap for cap in caps if cap is not None)
        does = "every session is rejected" if field == "oversize" else "the hold waits for ever"
        asked = f"the {field} on `{spell(resource)}` are {value:g} units{rounded}"
        text = f"{owner}: {asked}, above the cap {largest:g}: {does}"
        problems.add(path, text, "ask for less, or raise the cap")


def _check_states(index: Index, problems: Problems, whole: Wholeness) -> None:
    for i, state in enumerate(index.program.states):
        here, owner, exit_ = f"$.states[{i}].exit", f"state `{state.name}`", state.exit
        if isinstance(exit_, Run):
            work = constant(index, exit_.work)
            members = index.stage_members(exit_.stage)
            if work is not None and not 0 <= work < math.inf:
                text = f"{owner}: the work on `{spell(exit_.stage)}` is {work:g}"
                problems.add(f"{here}.work", text, "work is a finite number, 0 or more")
            elif any(index.is_step(m) for m in members) and not whole.whole(exit_.work):
                text = f"{owner}: the work on `{spell(exit_.stage)}` is a number of tokens and may not be whole"
                problems.add(f"{here}.work", text, "round it with `Floor` or `Ceil`")
        elif isinstance(exit_, Grow):
            units = constant(index, exit_.units)
            if units is not None and not units >= 0:
                text = f"{owner}: grows `{spell(exit_.pool)}` by {units:g} units"
                problems.add(f"{here}.units", text, "an amount is a number, 0 or more")
            members = index.pool_members(exit_.pool)
            _check_fit(index, problems, owner, here, exit_.pool, members, ("units", exit_.units))
        elif isinstance(exit_, Shrink):
            _check_units(index, problems, f"{here}.units", f"{owner}: shrinks `{spell(exit_.pool)}`", exit_.units)
        elif isinstance(exit_, Branch):
            _check_test(index, problems, f"{here}.test", f"{owner}: the test", exit_.test)
        deadline = getattr(exit_, "deadline", None)
        after = None if deadline is None else constant(index, deadline.after)
        if after is not None and not after > 0:
            text = f"{owner}: the deadline is after {after:g} seconds"
            problems.add(f"{here}.deadline.after", text, "a deadline is after a positive time")
        for j, op in enumerate(state.ops):
            if isinstance(op, Load):
                at = f"$.states[{i}].ops[{j}].units"
                _check_units(index, problems, at, f"{owner}: loads `{spell(op.pool)}`", op.units)
            if isinstance(op, Require) and constant(index, op.test) == 0:
                text = f"{owner}: requires what is never true ({op.problem})"
                problems.add(f"$.states[{i}].ops[{j}].test", text, "remove the state or correct the test")


def _check_units(index: Index, problems: Problems, path: str, does: str, units: Expr) -> None:
    value = constant(index, units)
    if value is not None and not value >= 0:
        problems.add(path, f"{does} by {value:g} units", "an amount is a number, 0 or more")


def _check_test(index: Index, problems: Problems, path: str, where: str, test: Expr) -> None:
    value = constant(index, test)
    if value is not None and value not in (0.0, 1.0):
        problems.add(path, f"{where} is {value:g}", "a test is 0 or 1: compare, as in `Gt` of it and 0")


def _check_arrival(index: Index, problems: Problems) -> None:
    arrival = index.program.arrival
    if isinstance(arrival, Poisson):
        rate = index.number(arrival.rate)
        if rate is not None and not 0 < rate < math.inf:
            text = f"arrival: the Poisson rate is {rate:g} per second"
            problems.add("$.arrival.rate", text, "need a finite rate above 0; `NoArrival` for none")
    elif isinstance(arrival, Closed | Batch):
        n = index.number(arrival.n)
        if n is not None and not (1 <= n <= MOST_SESSIONS and _is_whole(n)):
            text = f"arrival: {n:g} sessions"
            problems.add("$.arrival.n", text, f"the number of sessions is whole, from 1 to {MOST_SESSIONS:,}")
    elif isinstance(arrival, Renewal):
        gap = constant(index, arrival.gap)
        if gap is not None and not 0 < gap < math.inf:
            problems.add("$.arrival.gap", f"arrival: the gap is {gap:g} seconds", "need a finite gap above 0")


def _check_listed(index: Index, problems: Problems) -> None:
    arrival = index.program.arrival
    if not isinstance(arrival, Listed):
        return
    last = 0.0
    for i, at in enumerate(arrival.at):
        if not (math.isfinite(at) and at >= 0):
            text = f"arrival: session {i} starts at {at} s"
            problems.add(f"$.arrival.at[{i}]", text, "need a finite time, 0 or more")
            break
        if at < last:
            text = f"arrival: session {i} starts at {at:g} s, before session {i - 1} at {last:g} s"
            problems.add(f"$.arrival.at[{i}]", text, "sort the sessions by their start")
            break
        last = at
    count = len(arrival.at)
    for field, columns, rows in (
        ("values", arrival.attrs, arrival.values), ("turns", arrival.turn_attrs, arrival.turns),
    ):  # fmt: skip
        if (rows or (columns and field == "values")) and len(rows) != count:
            text = f"arrival: {len(rows)} rows of {field} for {count} sessions"
            problems.add(f"$.arrival.{field}", text, "give each session one row")
    for i, row in enumerate(arrival.values):
        if _bad_row(problems, f"$.arrival.values[{i}]", f"arrival: session {i}", row, arrival.attrs):
            break
    _check_turns(problems, "$.arrival.turns", "arrival: session", arrival.turns, arrival.turn_attrs)


def _check_trace(index: Index, problems: Problems) -> None:
    trace = index.program.trace
    if trace is None:
        return
    if not trace.turns:
        problems.add("$.trace.turns", "the trace has no sessions", "record at least one, or remove the trace")
    for i, session in enumerate(trace.turns):
        if not session:
            problems.add(f"$.trace.turns[{i}]", f"trace session {i} has no turns", "give it a turn or remove it")
            break
    _check_turns(problems, "$.trace.turns", "trace session", trace.turns, trace.attrs)


def _check_turns(problems: Problems, path: str, owner: str, sessions: tuple, columns: tuple[str, ...]) -> None:
    for i, session in enumerate(sessions):
        for j, row in enumerate(session):
            if _bad_row(problems, f"{path}[{i}][{j}]", f"{owner} {i}, turn {j + 1}", row, columns):
                return


def _bad_row(problems: Problems, path: str, owner: str, row: tuple, columns: tuple[str, ...]) -> bool:
    """Report the first thing wrong with a row of data; only the first bad row of a table is told."""
    if len(row) != len(columns):
        text = f"{owner}: has {len(row)} values for {len(columns)} columns"
        problems.add(path, text, "give each column a value" + (f": {', '.join(columns)}" if columns else ""))
        return True
    for k, value in enumerate(row):
        if value is not None and not math.isfinite(value):
            problems.add(f"{path}[{k}]", f"{owner}: `{columns[k]}` is {value}", "give a finite number")
            return True
    return False


def _check_run(index: Index, problems: Problems) -> None:
    program = index.program
    horizon, warmup = index.number(program.horizon_s), index.number(program.warmup_s)
    if horizon is not None and not 0 < horizon < math.inf:
        problems.add("$.horizon_s", f"the horizon is {horizon:g} s", "need a finite horizon above 0")
    elif warmup is not None and not 0 <= warmup < math.inf:
        problems.add("$.warmup_s", f"the warm-up is {warmup:g} s", "need a finite warm-up, 0 or more")
    elif warmup is not None and horizon is not None and warmup >= horizon:
        text = f"the warm-up of {warmup:g} s does not end before the horizon of {horizon:g} s"
        problems.add("$.warmup_s", text, "need 0 <= warmup_s < horizon_s")
    open_ = isinstance(program.arrival, Poisson | Renewal)
    if program.arrivals is not None:
        if not open_:
            text = f"`arrivals` counts open arrivals, but the arrival law is `{type(program.arrival).__name__}`"
            problems.add("$.arrivals", text, "remove it, or use `Poisson` or `Renewal`")
        elif program.arrivals < 1:
            problems.add("$.arrivals", f"{program.arrivals} arrivals are asked for", "need 1 or more")
    elif program.horizon_s is None and (open_ or isinstance(program.arrival, Closed)):
        text = f"`{type(program.arrival).__name__}` arrivals without a horizon never end"
        problems.add("$.horizon_s", text, "set `horizon_s`" + (" or `arrivals`" if open_ else ""))
    if not (math.isfinite(program.tick_s) and program.tick_s > 0):
        problems.add("$.tick_s", f"a tick is {program.tick_s} s", "need a finite number of seconds above 0, as 1e-9")
    if not 0 <= program.seed < MOST_SEED:
        problems.add("$.seed", f"the seed is {program.seed}", "need a whole number from 0 to 2**64 - 1")


def _is_whole(value: float) -> bool:
    return math.isfinite(value) and value == math.floor(value)
