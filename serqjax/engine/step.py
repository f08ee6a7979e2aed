"""One loop turn: every phase once, each masked by what its instance is doing.

    share        if the instant is settled and jobs that share have come or gone: their rates, who finishes next
    advance      if the instant is settled: the next event (arrival, wake-up, end of an iteration)
    deadline     a session leaves where it has blocked for too long
    spawn        start one session
    pop          make the first of the ready list the current session;  find it a seat if it may enter a step stage
    draw         the random numbers that it, the next arrival or the next iteration can need
    run          the current session, from its blocking point to the next
    fork         start a leg
    give back    close one scope of a session that leaves, ends or is preempted
    join         put it into a line
    settle       when nobody is ready: try every pool, then start iterations
    plan         all gives of an iteration at once, or one of them
    admit        one admission, wherever it was asked for
    finish       iterations alike as one update, then the start of the next
    grow         one growth: room, a victim, or waiting
    evict        one cache entry, if an ask lacks room;  allocate it if not
    pass over    pools with nothing left to try, so that the next turn can go on with a session

Phases that most turns do not need are run only when some instance of the batch asks for them.

**Source:** `design.md`, section 4; `measurements.md`, point 2.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array

from . import (
    admission,
    blocks,
    body,
    clock,
    deadlines,
    legs,
    memory,
    planner,
    seats,
    session,
    sharing,
    timed_lines,
    window,
)
from .access import AbstractLanes, either
from .faults import Fault
from .lane import Data, Job, Lane, Tape
from .plan import Plan
from .state import EVENT, SETTLE, STAGES
from .uniforms import draw_ahead
from .views import cap

Form = Literal["native", "one_by_one", "together"]


@dataclasses.dataclass(frozen=True)
class Config:
    """Static switches of a compiled loop.

    - `check`: verify the ownership equation after every turn.
    - `form`: `native`, one instance after the other in machine code of our own (CPU); `one_by_one`, the same by XLA;
      `together`, all instances take each turn together (accelerators).
    """

    check: bool = False
    form: Form = "native"

    @property
    def together(self) -> bool:
        return self.form == "together"


def turn(
    plan: Plan,
    config: Config,
    state: dict[str, Array],
    job: Job,
    data: Data,
    tape: Tape,
    go: Array | None,
    lanes: AbstractLanes,
) -> dict[str, Array]:
    """The state of one instance after one loop turn (vmapped with the axis name `lanes`)."""

    w = Lane(state, plan, job, data, tape, go, lanes)
    w.bump("loop_turns", w.running)
    w.only(~w.started, session.begin)
    if plan.groups:
        w.only(sharing.quiet(w) & sharing.any_changed(w), sharing.settle)
    w.only(clock.settled(w), clock.advance)
    if plan.deadlines:
        w.only(w.due >= 0, deadlines.come)
    w.only(w.spawning > 0, session.spawn)
    w.only(session.may_pop(w), session.pop)
    if w.has("seats"):
        w.only(seats.needs_seat(w), seats.take_seat)
    draw_ahead(w, session.runs(w))
    w.only(session.runs(w), session.run_current)
    if plan.has_legs:
        w.only(w.fork >= 0, legs.fork)
    w.only(w.unwind >= 0, memory.give_back)
    if plan.has_holds:
        w.only(w.join >= 0, memory.join_line)
    settle(w)
    if plan.has_holds:
        plan_and_admit(w)
    elif plan.step_stages:
        w.only(w.focus == STAGES, plan_without_pools)
    if plan.has_growth:
        w.only(w.grow >= 0, admission.grow)
    if plan.has_cache:
        w.only(w.ask >= 0, admission.evict)
    if plan.has_holds:
        w.only(w.ask >= 0, admission.allocate)
        w.only(w.sweep < len(plan.skeleton.pools), admission.pass_over)
        if config.check:
            check_ownership(w)
    return pause(plan, w.s)


def settle(w: Lane) -> None:
    """When the ready list is empty: try all pools once more, or go on to the stages."""
    busy = jnp.bool_(False)
    nobody = (w.cur < 0) & (w.spawning == 0) & (w.readies == 0)
    quiet = w.idle & w.started & (w.focus == SETTLE) & nobody
    again = quiet & w.dirty
    for pool in range(len(w.plan.skeleton.pools) if w.plan.has_holds else 0):
        # with nobody in a line and no grower the sweep has nothing to try
        if w.plan.sweeps(pool):
            busy = busy | (w.queued[pool] > 0)
        if w.has("waits_n"):
            busy = busy | (w.waits_n[pool] > 0)
    again = again & busy
    w.pick(quiet, dirty=False)
    w.pick(again, sweep=0)
    done = quiet & ~again
    if w.has("open_next"):
        done = done & ~timed_lines.pass_over(w, done, clock.next_event(w)[0] > w.now)
    if w.plan.step_stages:
        w.pick(done, focus=STAGES, cursor=0)
        w.pick(w.run_ready & w.idle & nobody, run_ready=False)
    else:
        w.pick(done, focus=EVENT)


def pause(plan: Plan, s: dict[str, Array]) -> dict[str, Array]:
    """Hold the instance until its buffers are drained, if the next turn might not fit into them."""
    slots = s["pc"].shape[0]
    # one column more than a turn can fill: what is not to be kept is written there
    full = (s["samples_n"] + 3 > s["samples"].shape[1]) | (s["requests_n"] + 3 > s["requests"].shape[1])
    if "gaps" in s:
        full = full | (s["gaps_n"] + slots > s["gaps"].shape[0])
    if "points" in s:
        full = full | (s["points_n"] + 2 * len(plan.gauges) + 1 > s["points"].shape[1])
    if "actions" in s:
        full = full | (s["actions_n"] + action_margin(plan, slots) > s["actions"].shape[0])
    return s | {"stall": s["stall"] | (full & (s["verdict"] < 0))}


def action_margin(plan: Plan, slots: int) -> int:
    """Action rows that one turn can write at most."""
    return 2 * slots + 4 * len(plan.skeleton.pools) + 16


def plan_without_pools(w: Lane) -> None:
    """The plan of stages in a program without holds: nobody can be admitted."""
    planner.start_plan(w)
    over = planner.give_next(w)
    if w.plan.bodies:
        over = over | body.follow(w)[0]
    finish(w, over, jnp.bool_(False))


def plan_and_admit(w: Lane) -> None:
    """One step of the sweep or of a plan; both may ask for one admission."""
    sweeps = w.sweep < len(w.plan.skeleton.pools)
    # "no" and "none" made of a mask: a branch of a kernel cannot return constants
    asks, pool = w.only(sweeps, admission.try_sweep, (sweeps & False, jnp.int32(either(sweeps, -1, -1))))
    left, stage = jnp.float64(0.0), jnp.int32(-1)
    spent = newcomer = jnp.bool_(False)
    if w.plan.step_stages:
        w.only(w.focus == STAGES, planner.start_plan)
        spent = w.only(w.planning, planner.give_next, jnp.bool_(False))
        if w.plan.by_content:
            blocks.name_given(w)  # before anybody looks for them
        newcomer, line = planner.newcomer(w, spent)
        if w.plan.bodies:
            ends, asked = w.only(w.planning, body.follow, (jnp.bool_(False), jnp.bool_(False)))
            newcomer = newcomer | (asked & (line >= 0))
        pool = jnp.where(newcomer, line, pool)
        left, stage = planner.left_for_newcomers(w), jnp.where(newcomer, w.cursor, -1)
    passes = newcomer & False
    if w.has("open_next"):
        passes = w.pass_asks
        pool = jnp.where(passes, w.passing // 2, pool)
    tries, pool, stage = w.fence(asks | newcomer | passes, pool, stage)
    refused = w.only(tries, lambda w: admission.admit(w, tries, pool, left, stage), tries & False)
    w.pick(refused & asks, sweep=pool + 1)
    if w.plan.step_stages:
        over = spent & (~newcomer | refused)
        if w.plan.bodies:
            body.answered(w, asked & newcomer & ~refused, asked & (~newcomer | refused))
            over = over | ends
        finish(w, over, newcomer & refused)


def finish(w: Lane, over: Array, refused: Array) -> None:
    """Start the planned iteration, after all iterations that are certain to be like it.

    `refused`: a newcomer was asked for and did not fit.
    """
    if w.has("phases"):
        window.coalesce(w, over, refused)
    w.only(over, lambda w: planner.finish_plan(w, over))


def check_ownership(w: Lane) -> None:
    """allocated + cached + free = cap, with the tables as witnesses; within 1e-9 of the units in use."""
    n = len(w.plan.skeleton.pools)
    for pool in range(n):
        if pool in w.plan.by_content:
            w.fail(~blocks.owned(w, pool), Fault.ownership, -1, pool)
            continue
        held = jnp.float64(0.0)
        for depth in range(w.plan.depth):
            held = held + jnp.sum(w.alloc[w.plan.column(depth, pool)])
        if pool in w.plan.leased:
            held = held + jnp.sum(jnp.where((w.lease_slot >= 0) & (w.lease_pool == pool), w.lease_units, 0.0))
        slack = 1e-9 * jnp.maximum(1.0, jnp.abs(held))
        ok = jnp.abs(held - w.used[pool]) <= slack
        cached = jnp.float64(0.0)
        if w.plan.caching[pool]:
            cached = w.cached[pool]
            kept = jnp.sum(jnp.where(w.entry_pool == pool, w.entry_size, 0.0))
            slack = 1e-9 * jnp.maximum(1.0, held + kept)
            ok = ok & (jnp.abs(kept - cached) <= slack)
        ok = ok & (w.used[pool] >= -slack)
        # what is spilled into a tier makes no room there: it may stand above its cap until somebody asks for units
        if w.plan.finite[pool] and pool not in w.plan.tiers:
            ok = ok & (w.used[pool] + cached <= cap(w, pool) + slack)
        w.fail(~ok, Fault.ownership, -1, pool)
