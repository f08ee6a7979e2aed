"""Planning an iteration of a step stage: the general planner, one give a loop turn.

An iteration is planned resident by resident in serving order, because each give may grow, evict and
preempt. When nobody is left and there is budget, the stage's lines are asked for a newcomer, who runs
to its own `Run` and is served in the same iteration.

**Source:** `spec/semantics.md`, section 8; oracle: `oracle/planner.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from ..ir.expr import Ctx, Inf
from ..ir.structure import walk
from ..report.raw import Action
from ..tape.rounding import product, quotient
from . import livelock, measures
from .access import FAR, SLOT_BITS, load, load_at, pack
from .admission import EPS
from .at_once import give_all, give_quiet, has_quiet
from .clock import append_in_order, next_event
from .cost import cost
from .expr import Env, Value, evaluate, select
from .faults import Fault
from .lane import Lane
from .plan import Plan
from .state import EVENT, GIVE, NEVER_ADMITTED, STAGES
from .uniforms import machine_cursor, machine_drawn, machine_ready
from .views import (
    columns,
    computed,
    has_work,
    limits,
    planned_limits,
    pool_state,
    register_state,
    residents_ctx,
    stage_state,
    stray,
    whole_tokens,
)


def start_plan(w: Lane) -> None:
    """When the instant is settled, start to plan the next idle stage that has something to do.

    Its residents get their tokens at once where that is the same as visiting them.
    """
    plan = w.plan
    on = w.idle & (w.focus == STAGES) & (w.cur < 0) & ~w.planning & (w.spawning == 0)
    if plan.machine_draws:
        on = on & machine_ready(w)  # else in the next turn, with new draws
    found = jnp.int32(len(plan.skeleton.stages))
    for stage in reversed(plan.step_stages):
        can = has_work(w, stage) & (w.stage_end[stage] >= FAR) & (w.cursor <= stage)
        found = jnp.where(can, stage, found)
    on, found, some = w.fence(on, found, on & (found < len(plan.skeleton.stages)))

    def begin(w: Lane) -> Array:
        tick, kind, _, _ = next_event(w)
        (begins,) = w.fence(some & ~((kind > 0) & (tick <= w.now)))
        budget, chunk = jnp.float64(0.0), jnp.float64(0.0)
        decode, verify = jnp.float64(1.0), jnp.float64(0.0)
        draws = machine_cursor(w)
        for stage in plan.step_stages:
            here = limits(w, stage, draws, begins & (found == stage))
            budget = jnp.where(found == stage, here.budget, budget)
            chunk = jnp.where(found == stage, here.chunk, chunk)
            if w.has("decode"):
                decode = jnp.where(found == stage, here.decode, decode)
            if w.has("verify"):
                verify = jnp.where(found == stage, here.verify, verify)
        w.drawn = machine_drawn(w, draws)
        w.pick(
            begins, cursor=found, planning=True, run_ready=False, plan_seq=w.plan_seq + 1, budget=budget, left=budget,
            chunk=chunk, listed=0, preempting=False, owed=0.0, stopped=False, joined=False,
        )  # fmt: skip
        if w.has("refused"):
            w.pick(begins, refused=False)
        if w.has("decode"):
            w.pick(begins, decode=decode)
        if w.has("verify"):
            w.pick(begins, verify=verify)
        if w.has("prefilling"):
            w.pick(begins, prefilling=jnp.any((w.stage == found) & (w.mode == 0)))
        if w.has("registers"):
            w.pick(begins, registers_before=w.registers)
        if w.has("body_at"):
            w.pick(begins, body_at=0, asked=False, admitted_n=0, preempted_n=0)
        if w.has("phases"):
            give_all(w, begins)
        return begins

    begins = w.only(some, begin, jnp.bool_(False))
    w.pick(on & ~begins, focus=EVENT)


def may_plan(w: Lane) -> Array:
    """Whether the plan that has begun goes on now: nothing that it has caused is half done."""
    return w.idle & w.planning & (w.cur < 0) & ~w.run_ready & (w.spawning == 0)


def give_next(w: Lane) -> Array:
    """Give to the next resident in serving order; returns where the plan has nobody left to consider."""
    on = may_plan(w)
    if w.has("naming"):
        on = on & (w.naming < 0)  # the blocks of a give that had to grow get their contents first
    if w.plan.bodies:
        if len(w.plan.bodies) == len(w.plan.step_stages):
            return jnp.bool_(False)
        on = on & ~of_planned(w, tuple(w.plan.bodies))
    if has_quiet(w.plan):
        quiet = on & ~w.stopped & (w.left > 0)
        w.only(quiet, lambda w: w.residents(lambda w: give_quiet(w, quiet)))
    closing = w.stopped | (w.left <= 0)
    on, closing, remain = w.fence(on, closing, w.residents(lambda w: jnp.sum(unconsidered(w) & on)))
    gives = on & (remain > 0) & ~closing
    spent = w.only(gives, lambda w: w.residents(lambda w: give_one(w, on, remain)), jnp.bool_(False))
    return spent | (on & ((remain == 0) | closing))


def unconsidered(w: Lane) -> Array:
    """Residents of the planned stage that this plan has not come to, `[slots]`."""
    return (w.stage == w.cursor) & (w.considered != w.plan_seq)


def give_one(w: Lane, on: Array, remain: Array) -> Array:
    """One of the `remain` unconsidered residents gets its tokens; returns where it was the last."""
    plan = w.plan
    here = unconsidered(w)
    sequence = pack(w.adm, jnp.arange(w.adm.shape[0]))
    found, slot = select([], sequence, here)
    for stage in plan.step_stages:
        kind = plan.stages[stage].kind
        if kind.serve.keys and stage not in plan.bodies:
            env = serve_env(w, stage)
            mine = here & (w.stage == stage)
            live = mine & on & (w.cursor == stage)
            _, chosen = select([evaluate(k, env, live) for k in kind.serve.keys], sequence, mine)
            slot = jnp.where(w.cursor == stage, chosen, slot)
    picks = on & found & ~w.stopped & (w.left > 0)
    picks, slot = w.fence(picks, jnp.where(picks, slot, 0))
    must = give(w, slot, picks)
    last = (remain == 1) | (w.left <= 0)
    if plan.prefills_alone:
        last = last | w.stopped
    return picks & ~must & last


def serve_env(w: Lane, stage: int) -> Env:
    """What the keys of a serving order see, for each resident of a stage."""
    context = residents_ctx(w, stage) | {
        "Decoding": lambda: (w.mode == 1).astype(jnp.float64),
        "Admission": lambda: jnp.where(w.adm < NEVER_ADMITTED, w.adm.astype(jnp.float64), jnp.inf),
        "Remaining": lambda: w.work,
    }
    return Env(
        w.plan, w.job.numbers, attr=columns(w), ctx=context, pool=pool_state(w, jnp.arange(w.stage.shape[0])),
        stage=stage_state(w), register=register_state(w), stray=stray(w),
    )  # fmt: skip


def give(w: Lane, slot: Array, picks: Array) -> Array:
    """A resident gets its tokens; returns where it must grow first."""
    plan = w.plan
    w.put("considered", slot, w.plan_seq, picks)
    tokens = takes(w, slot, picks)
    tokens, gives = w.fence(tokens, picks & (tokens > 0))
    if w.has("computed"):
        w.put("computed", slot, tokens, gives)
        gets = jnp.minimum(planned_limits(w).gets(load(w.work, slot)), tokens)
        (tokens,) = w.fence(jnp.where(load(w.mode, slot) == 1, gets, tokens))
    w.put("given", slot, tokens, gives)
    must = jnp.bool_(False)
    if w.has("grow"):
        column = load(w.column, slot)
        grows = gives & (column >= 0)
        at = jnp.maximum(column, 0)
        need = load_at(w.pos, at, slot) + tokens - load_at(w.alloc, at, slot)
        waiting = grows & (load(w.waits, slot) >= 0)
        must = grows & ~waiting & (need > EPS)
        pool = (at % len(plan.skeleton.pools)).astype(jnp.int32)
        w.pick(must, grow=slot, grow_how=GIVE, grow_pool=pool, grow_column=column, grow_units=need)
        gives, must = w.fence(gives & ~waiting & ~must, must)
    give_allocated(w, slot, gives)
    return must


def takes(w: Lane, slot: Array, picks: Array) -> Array:
    """Tokens that may be computed for a resident now; marks the plan where a prefill is refused."""
    work, mode = load(w.work, slot), load(w.mode, slot)
    want, left = planned_limits(w).wanted(work, mode), w.left
    if w.has("prefilling"):
        alone = of_planned(w, w.plan.prefills_alone)
        want = jnp.where(alone & (mode == 1) & w.prefilling, 0.0, want)
        left = jnp.where(alone & (mode == 0), w.budget, left)
    tokens = jnp.minimum(want, left)
    numbers = Env(w.plan, w.job.numbers)
    for stage in w.plan.granular:
        granule = w.plan.stages[stage].kind.granule
        size = numbers.number(granule)
        whole = jnp.float64(0.0) if isinstance(granule, Inf) else product(jnp.floor(quotient(tokens, size)), size)
        partial = (w.cursor == stage) & (mode == 0) & (tokens < work)
        w.pick(picks & partial & (whole <= 0), refused=True)
        tokens = jnp.where(partial, whole, tokens)
    return tokens


def of_planned(w: Lane, stages: tuple[int, ...]) -> Array:
    """Whether the stage that is planned is one of some."""
    found = jnp.bool_(False)
    for stage in stages:
        found = found | (w.cursor == stage)
    return found


def give_allocated(w: Lane, slot: Array, on: Array) -> None:
    """The resident's tokens are on the list of the iteration."""
    if w.has("prefilling"):
        alone = on & of_planned(w, w.plan.prefills_alone) & (load(w.mode, slot) == 0)
        # decodes chosen before lose their turn; what was grown for them stays
        w.give_key = jnp.where(alone & (w.stage == w.cursor), -1, w.give_key)
        w.pick(alone, listed=0, left=w.budget, stopped=True)
    w.put("give_key", slot, w.listed, on)
    w.pick(on, listed=w.listed + 1, left=w.left - load(computed(w), slot))
    if w.has("naming"):
        w.pick(on, naming=slot)


def newcomer(w: Lane, spent: Array) -> tuple[Array, Array]:
    """Whether the plan asks a line for a newcomer now, and the first of the stage's pools with somebody waiting."""
    asks = spent & (w.left > 0) & ~w.preempting & ~w.stopped
    if w.has("refused"):
        asks = asks & ~w.refused
    pool = waiting_line(w)
    return asks & (pool >= 0), pool


def waiting_line(w: Lane) -> Array:
    """The first of the planned stage's pools with somebody waiting; -1 if there is none."""
    pool = jnp.int32(-1)
    for stage in w.plan.step_stages:
        for p in reversed(w.plan.stages[stage].admits):
            pool = jnp.where((w.cursor == stage) & (w.queued[p] > 0), p, pool)
    return pool


def left_for_newcomers(w: Lane) -> Array:
    """Tokens that the header of a newcomer reads as `BudgetLeft`: a prefill that goes alone may use them all."""
    if not w.plan.prefills_alone:
        return w.left
    return jnp.where(of_planned(w, w.plan.prefills_alone), w.budget, w.left)


def finish_plan(w: Lane, over: Array) -> None:
    """Start the planned iteration: positions advance, the cost says when it ends."""
    plan = w.plan
    stage = w.cursor
    works = w.residents(lambda w: start_iteration(w, over))
    if plan.preempts and livelock.decisive(plan) is not None:
        watched = works & w.watching
        w.only(watched, lambda w: livelock.watch(w, watched))
    w.pick(over, planning=False, run_ready=False, cursor=stage + 1)
    w.pick(over & (stage == plan.step_stages[-1]), focus=EVENT)


def start_iteration(w: Lane, over: Array) -> Array:
    """The stage and its residents at the start of the planned iteration; returns where there is one."""
    plan = w.plan
    stage = w.cursor
    listed = (w.stage == stage) & (w.give_key >= 0)
    over, mask = w.fence(over, over & listed)
    decode = mask & (w.mode == 1)
    prefill = mask & (w.mode == 0)
    tokens = jnp.sum(jnp.where(mask, computed(w), 0.0))
    n = jnp.sum(mask)
    position = jnp.zeros_like(w.work)
    if w.has("pos"):
        for depth in range(plan.depth):
            for pool in range(len(plan.skeleton.pools)):
                if plan.growing[pool]:
                    column = plan.column(depth, pool)
                    mine = mask & (w.column == column)
                    position = jnp.where(mine, w.pos[column], position)
                    w.s["pos"] = w.pos.at[column].add(jnp.where(mine, w.given, 0.0))
                    w.s["grown"] = w.grown.at[depth].set(w.grown[depth] | mine)
    n, position, works = w.fence(n, position, over & ((n > 0) | w.preempting))
    idles = over & ~works
    if w.has("registers"):
        w.pick(idles & (w.admitted_n == 0), registers=w.registers_before)
    left_over = jnp.bool_(False)
    for s in plan.step_stages:
        left_over = left_over | ((stage == s) & has_work(w, s))
    hot = jnp.arange(len(plan.skeleton.stages)) == stage
    w.idle_with_work = jnp.where(hot & over, idles & left_over, w.idle_with_work)

    at_decodes = whole_tokens(computed(w)).astype(jnp.float64) if w.has("decode") else 1.0
    attention2 = jnp.sum(jnp.where(prefill, w.given * (2.0 * position + w.given), 0.0))
    sums = {
        "Ntok": tokens,
        "Ndec": jnp.sum(decode).astype(jnp.float64),
        "Npre": jnp.sum(jnp.where(prefill, w.given, 0.0)),
        "Attn": attention2,
        "DecodePositions": jnp.sum(jnp.where(decode, position + at_decodes, 0.0)),
        "Nres": w.number[jnp.maximum(stage, 0)].astype(jnp.float64),
    }
    sums |= further_sums(plan, decode, prefill, position)
    span, rest, free = jnp.int64(0), jnp.int64(0), jnp.bool_(False)
    draws = machine_cursor(w)
    for s in plan.step_stages:
        seen = dict(sums)
        ticks, left, nothing = cost(w, s, seen, decode, prefill, draws, works & (stage == s))
        if plan.claims:
            measures.start_iteration(w, s, seen, works & (stage == s) & ~(nothing & (tokens > 0)))
        span = jnp.where(stage == s, ticks, span)
        rest = jnp.where(stage == s, left, rest)
        free = jnp.where(stage == s, nothing, free)
    w.drawn = machine_drawn(w, draws)
    span, rest, free, tokens = w.fence(span, rest, free, tokens)
    w.fail(works & (tokens > 0) & free, Fault.free_iteration, -1, stage)
    works = works & (w.fault == 0)
    starts = hot & works
    w.stage_end = jnp.where(starts, w.now + span, w.stage_end)
    w.stage_key = jnp.where(starts, w.event_seq << SLOT_BITS, w.stage_key)
    w.event_seq = w.event_seq + works
    w.stage_began = jnp.where(starts, w.now, w.stage_began)
    w.stage_rest = jnp.where(starts, rest, w.stage_rest)
    w.stage_listed = jnp.where(starts, n, w.stage_listed)
    n_decode = jnp.sum(decode)
    w.stage_decodes = jnp.where(starts, n_decode, w.stage_decodes)
    w.stage_prefills = jnp.where(starts, n - n_decode, w.stage_prefills)
    w.iterations = w.iterations + starts
    counted = starts & w.warm & (n_decode > 0)
    w.decode_iterations = w.decode_iterations + counted
    w.decode_batch = w.decode_batch + jnp.where(counted, n_decode, 0)
    w.decode_step_tick = w.decode_step_tick + jnp.where(counted, span, 0)
    record_gives(w, stage, mask, works, tokens)
    return works


def further_sums(plan: Plan, decode: Array, prefill: Array, position: Value) -> dict[str, Value]:
    """Variables that a cost or claim of this program reads beyond those that every iteration has."""
    kinds = [plan.skeleton.stages[s].kind for s in plan.step_stages]
    read = {node.name for kind in (*kinds, plan.claims) for _, node in walk(kind) if isinstance(node, Ctx)}
    some = jnp.any(decode)
    made = {
        "Nsch": lambda: jnp.sum(decode | prefill).astype(jnp.float64),
        "PrefillPositions": lambda: jnp.sum(jnp.where(prefill, position, 0.0)),
        "LeastDecode": lambda: jnp.where(some, jnp.min(jnp.where(decode, position, jnp.inf)), 0.0),
        "MostDecode": lambda: jnp.max(jnp.where(decode, position, 0.0)),
    }
    return {name: made[name]() for name in made if name in read}


def record_gives(w: Lane, stage: Array, mask: Array, works: Array, tokens: Value) -> None:
    """Action rows: the iteration, then its gives in list order."""
    if not w.has("actions"):
        return
    w.act(works, Action.iteration, -1, stage, tokens)
    shape = mask.shape
    rows = jnp.stack(
        [
            jnp.full(shape, w.now, jnp.float64),
            jnp.full(shape, float(Action.give)),
            w.serial.astype(jnp.float64),
            jnp.full(shape, stage, jnp.float64),
            w.given,
        ],
        axis=1,
    )
    append_in_order(w, rows, w.give_key, mask & works)

