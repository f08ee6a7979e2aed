"""Windows: k iterations of equal composition as one update.

A window is entered when an iteration is about to start (`planner.finish_plan`). While the next iterations would be
planned in the same way, they are passed here without visiting a resident: tokens per iteration are fixed, so
the units held are a staircase which a histogram of the residents' places in their blocks gives, and the
cost follows from a few integers. What is left is an ordinary state of the engine: an iteration that
begins now, with the same composition, whose end is an event like any other. So a window is never cut: it stops before
the first iteration whose end is not certain to come before everything else.

Pools are counted in blocks here (a pool without blocks has blocks of one unit).

**Source:** `design.md`, section 5; `window_math.md`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from ..ir.fixed import FIXED_BITS, IntAffine
from ..ir.itl import edges
from ..tape.rounding import product
from .access import FAR, least, load, pack, store
from .admission import take_entries
from .at_once import prefilling
from .clock import Limbs, next_event, number_index, pass_time
from .cost import carried, fixed_cost, float_cost
from .lane import Lane
from .measures import read_gauges
from .plan_parts import CostShape
from .views import cap, has_work, memory_held

#: Iterations of one window, and ticks of one step of it, at most, so that no product leaves 64 bits.
LONGEST = 65_536
LONGEST_TICKS = 1 << 41


def coalesce(w: Lane, over: Array, refused: Array) -> None:
    """Pass all iterations that are certain to be alike and to end before anything else happens.

    **Arguments:** `over`: a plan is complete and its iteration is about to start; `refused`: a newcomer was asked for
    in this plan and did not fit.
    """
    for stage in w.plan.step_stages:
        if not w.plan.licence(stage).windows:
            continue
        on = over & (w.cursor == stage) & ~w.preempting & ~w.stopped
        if not w.plan.licence(stage).newcomers:
            on = on & ~w.joined  # the next plan may order or limit otherwise
        if w.has("watching"):
            on = on & ~w.watching
        if not w.plan.licence(stage).prefills:
            on = on & ~prefilling(w, stage)
        (on,) = w.fence(on & w.residents(lambda w, stage=stage: alike(w, stage) > 1))

        def window(w: Lane, stage: int = stage, on: Array = on) -> None:
            began = w.now
            until = jnp.minimum(next_event(w)[0], jnp.where(w.job.horizon < FAR, w.job.horizon + 1, FAR))
            w.residents(lambda w: pass_alike(w, stage, on, refused, until))
            if w.plan.gauges:  # nothing that they read has changed since the window began
                read_gauges(w, w.now > began, began)

        w.only(on, window)


def alike(w: Lane, stage: int) -> Array:
    """How many iterations may have the tokens of the planned one, as far as the work of its residents goes."""
    listed = (w.stage == stage) & (w.give_key >= 0)
    least_left = jnp.min(jnp.where(listed, jnp.floor(w.work / jnp.where(listed, w.given, 1.0)), float(LONGEST)))
    return jnp.where(jnp.any(listed), least_left, 0.0)


def pass_alike(w: Lane, stage: int, on: Array, refused: Array, until: Array) -> None:
    """Pass the iterations that end before `until`."""
    batch = Composition(w, stage, on, refused, until)
    batch.settle(batch.run())


def solve(ticks: Array, rest: Array, cost: Array) -> Array:
    """How many iterations of equal `cost` (2**-20 ticks) end before `ticks` have passed, from remainder `rest` on.

    Of spans above 2**41 ticks, those that end before 2**41.
    """
    return ((jnp.minimum(ticks, LONGEST_TICKS) << FIXED_BITS) - 1 - rest) // jnp.maximum(cost, 1)


def advance(j: Array, rest: Array, cost: Array) -> tuple[Array, Array]:
    """Ticks that j iterations of equal `cost` last together, and the remainder after them.

    Each lasts `cost >> 20` ticks or one more.
    """
    total = rest + j * cost
    return total >> FIXED_BITS, total & ((1 << FIXED_BITS) - 1)


class Moving(NamedTuple):
    """What moves inside a window, at the start of iteration i; int64 scalars but for `floats` and `itl`.

    - `i`: iterations passed; `now`: when iteration i starts; `rest`: the sub-tick remainder then.
    - `cost`: of iteration i, 2**-20 ticks.
    - `used`, `cached`: blocks of the grown pool during iteration i; `evicted`: blocks evicted so far.
    - `kvb`, `kvp`, `attn2`, `positions`: what the cost reads. `prefill`: blocks of the unfinished prefill.
    - `phase`: i modulo the block. After `steady` more iterations like this one `growth` blocks are added; `fits`:
      there is room for them.
    - `used_tick`, `cached_tick`: integrals of the grown pool; `floats`: those of all pools without a block.
    - `gaps`: the token gaps so far.
    """

    i: Array
    now: Array
    rest: Array
    cost: Array
    used: Array
    cached: Array
    evicted: Array
    kvb: Array
    kvp: Array
    attn2: Array
    positions: Array
    prefill: Array
    phase: Array
    steady: Array
    growth: Array
    fits: Array
    used_tick: Limbs
    cached_tick: Limbs
    floats: tuple[Array, ...]
    gaps: Gaps


class Gaps(NamedTuple):
    """Token gaps by bucket: `itl` `[stages * buckets, 3]`; the bucket `row` of the last ones begins at `low` ticks, the
    next one at `high`."""

    itl: Array
    row: Array
    low: Array
    high: Array


class Composition:
    """The batch of a step stage as a window sees it: what stands still, and how many iterations are alike.

    Attributes are scalars of one instance; `first`, `units` `[slots]` are the positions reached and the units held by
    the growing residents in iteration 0, which has its tokens and units already.
    """

    def __init__(self, w: Lane, stage: int, on: Array, refused: Array, until: Array):
        plan, licence = w.plan, w.plan.licence(stage)
        self.w, self.stage, self.shape = w, stage, plan.forms[stage]
        self.pool = licence.pool if licence.pool >= 0 and w.has("pos") else -1
        self.blocked = self.pool >= 0 and plan.skeleton.pools[self.pool].block is not None
        self.loose = (
            tuple(p for p, spec in enumerate(plan.skeleton.pools) if spec.block is None) if w.has("used") else ()
        )
        self.listed = listed = (w.stage == stage) & (w.give_key >= 0)
        self.decode = decode = listed & (w.mode == 1)
        prefill = listed & (w.mode == 0)
        ok = on & jnp.all(~listed | (whole(w.work) & whole(w.given)))
        # decoders that had a token when the last iteration ended: all their gaps are lengths of iterations
        regular = (w.last == w.now) & (~w.open | (w.confirmed >= 0)) & (w.given == 1.0)
        n_prefill = jnp.sum(prefill)
        ok &= jnp.all(~decode | regular) & (n_prefill <= 1) & ~others_wait(w, stage)
        if not licence.head_stays:
            ok &= ~refused
        # the refused head may read how much of it is cached
        evicts = ~refused if licence.evicts and self.pool >= 0 and plan.caching[self.pool] else jnp.bool_(False)
        most = jnp.minimum(alike(w, stage).astype(jnp.int64) - 1, LONGEST)
        _, slot = least(pack(jnp.zeros_like(w.adm), jnp.arange(w.adm.shape[0])), prefill)
        given_p = jnp.where(n_prefill > 0, load(w.given, slot), 0.0)

        self.mine = jnp.zeros_like(listed)
        self.first = self.units = jnp.zeros_like(w.work)
        size = jnp.float64(1.0)
        steps = jnp.zeros((1,), jnp.int64)
        used = cached = jnp.float64(0.0)
        limit = jnp.int64(FAR >> 2)
        if self.pool >= 0:
            for depth in range(plan.depth):
                column = plan.column(depth, self.pool)
                at = listed & (w.column == column)
                self.mine = self.mine | at
                self.first = jnp.where(at, w.pos[column] + w.given, self.first)
                self.units = jnp.where(at, w.alloc[column], self.units)
            if self.blocked:
                size = w.job.numbers[number_index(w, plan.skeleton.pools[self.pool].block)]
                ok &= whole(size) & (size <= w.phases.shape[0])
            ok &= jnp.all(~self.mine | (whole(self.first) & whole(self.units)))
            # tokens before the next growth; with a whole block to spare it comes later than the histogram says
            spare = self.units - self.first
            growing = self.mine & decode
            late = growing & (spare >= size)
            most = jnp.minimum(most, jnp.min(jnp.where(late, spare, float(LONGEST))).astype(jnp.int64))
            places = w.phases.astype(jnp.float64)
            steps = jnp.sum((spare[None, :] == places[:, None]) & (growing & ~late)[None, :], axis=1)
            used, cached = w.used[self.pool], w.cached[self.pool]
            ok &= whole(used / size) & whole(cached / size)
            if plan.finite[self.pool]:
                limit = jnp.floor(jnp.minimum(cap(w, self.pool) / size, float(FAR >> 2))).astype(jnp.int64)
        memory = plan.stages[stage].memory
        kvb = kvp = jnp.float64(0.0)
        if memory >= 0:
            held = memory_held(w, memory)
            kvb, kvp = jnp.sum(jnp.where(decode, held, 0.0)), jnp.sum(jnp.where(prefill, held, 0.0))
            ok &= whole(kvb) & whole(kvp)
        grows_p = load(self.mine, slot) & (n_prefill > 0)
        first_p, units_p = load(self.first, slot), load(self.units, slot)
        # its position before iteration 0 is in `first_p` less the tokens of that iteration
        attn2 = jnp.where(n_prefill > 0, given_p * jnp.where(grows_p, 2.0 * first_p - given_p, given_p), 0.0)
        positions = jnp.sum(jnp.where(decode, jnp.where(self.mine, self.first, 1.0), 0.0))

        numbers = [most, until, steps, jnp.sum(decode), jnp.sum(self.mine & decode), w.number[stage], size, used / size,
                   cached / size, limit, kvb, kvp, attn2, positions, given_p, first_p, units_p / size]  # fmt: skip
        numbers = w.fence(*[jnp.asarray(x).astype(jnp.int64) for x in numbers])
        (
            self.most, self.until, self.steps, self.n_decode, self.n_growing, self.n_resident, self.block, self.used,
            self.cached, self.limit, self.kvb, self.kvp, self.attn2, self.positions, self.given_p, self.first_p,
            self.units_p,
        ) = numbers  # fmt: skip
        self.ok, self.evicts, self.grows_p, self.counts = w.fence(
            ok & (self.most > 0), evicts, grows_p, w.warm & (self.n_decode > 0)
        )
        # units of the memory pool that a block of the grown pool is
        self.moves = self.block if memory >= 0 and memory == self.pool else jnp.int64(0)
        self.still = jnp.int64(0)
        if self.shape is None:
            sums = self.sums(jnp.int64(0), jnp.int64(0), jnp.int64(0), jnp.int64(0))
            floats = {name: value.astype(jnp.float64) for name, value in sums.items()}
            still, _ = float_cost(w, stage, floats, None, self.ok)
            # in 2**-20 ticks it must fit into 64 bits
            self.still, self.ok = w.fence(still, self.ok & (still < LONGEST_TICKS))
        # Does the cost stand still while no unit is added? And do float integrals stay whole, so that they may be
        # added up in larger parts without another rounding?
        flat = n_prefill == 0
        if reads_positions(self.shape):
            flat &= self.n_growing == 0
        totals = self.loose_ticks()
        for value, total in zip(self.loose_units(self.used), totals):
            flat &= whole(value) & (total + value * LONGEST_TICKS < 2.0**53) & whole(total)
        (self.flat,) = w.fence(flat)
        edge = np.asarray(edges(plan.skeleton.tick_s))
        self.rows = len(edge)
        self.lower = jnp.asarray(np.append(edge, FAR))

    # ------------------------------------------------------------ one iteration

    def sums(self, kvb: Array, kvp: Array, attn2: Array, positions: Array) -> dict[str, Array]:
        """The variables of the cost, `Attn` doubled."""
        return {
            "Ntok": self.n_decode + self.given_p, "Ndec": self.n_decode, "Npre": self.given_p, "Attn": attn2,
            "DecodePositions": positions, "Nres": self.n_resident, "Kvb": kvb, "Kvp": kvp,
            "Nsch": self.n_decode + (self.given_p > 0),
        }  # fmt: skip

    def price(self, kvb: Array, kvp: Array, attn2: Array, positions: Array) -> Array:
        """Cost of an iteration, 2**-20 ticks."""
        if self.shape is None:
            return self.still << FIXED_BITS
        return jnp.maximum(fixed_cost(self.w, self.shape, self.sums(kvb, kvp, attn2, positions)), 0)

    def prefilled(self, i: Array) -> Array:
        """Blocks that the unfinished prefill holds in iteration i."""

        def blocks(i: Array) -> Array:
            return jnp.maximum(self.units_p, -(-(self.first_p + i * self.given_p) // self.block))

        return lax.cond(self.grows_p, blocks, lambda i: jnp.zeros_like(i), i)

    def ahead(self, i: Array, phase: Array, prefill: Array) -> tuple[Array, Array]:
        """Iterations like iteration i before the next growth (0 where the cost moves anyway), and its blocks."""
        places = self.w.phases[: self.steps.shape[0]]
        away = jnp.where(places >= phase, places - phase, places - phase + self.block)
        steady = jnp.where(self.flat, jnp.min(jnp.where(self.steps > 0, away, LONGEST)), 0)
        growth = load(self.steps, self.wrap(phase + steady)) + self.prefilled(i + 1) - prefill
        return steady, jnp.where(steady < LONGEST, growth, 0)

    def wrap(self, phase: Array) -> Array:
        return jnp.where(phase >= self.block, phase - self.block, phase)

    def fit(self, used: Array, cached: Array, growth: Array) -> Array:
        return used + growth + jnp.where(self.evicts, 0, cached) <= self.limit

    def next(self, m: Moving) -> Moving:
        """Pass iteration i and those like it before the next growth; then what grows, grows."""
        w = self.w
        # the first one ends in time (`goes_on`), also where it lasts longer than `solve` looks ahead
        in_time = jnp.where(self.flat, jnp.maximum(solve(self.until - m.now, m.rest, m.cost), 1), 1)
        j = jnp.minimum(jnp.minimum(m.steady + m.fits, self.most - m.i), in_time)
        span, rest = advance(j, m.rest, m.cost)
        counted = jnp.where(w.warm, span, 0)
        gaps = self.record(m.gaps, m.cost >> FIXED_BITS, j, span)
        used_tick, cached_tick = m.used_tick, m.cached_tick
        if self.blocked:
            used_tick, cached_tick = used_tick.plus(m.used, counted), cached_tick.plus(m.cached, counted)
        floats = tuple(
            total + product(value, counted.astype(jnp.float64))
            for total, value in zip(m.floats, self.loose_units(m.used), strict=True)
        )
        grown = jnp.where(j > m.steady, m.growth, 0)
        used = m.used + grown
        evicted = jnp.where(self.evicts, jnp.maximum(used + m.cached - self.limit, 0), 0)
        cached = m.cached - evicted
        i = m.i + j
        prefill = self.prefilled(i)
        by_prefill = prefill - m.prefill
        kvb = m.kvb + self.moves * (grown - by_prefill)
        kvp = m.kvp + self.moves * by_prefill
        attn2 = m.attn2 + jnp.where(self.grows_p, 2 * self.given_p * self.given_p, 0)
        positions = m.positions + j * self.n_growing
        phase = self.wrap(m.phase + jnp.where(m.steady < LONGEST, j, 0))
        steady, growth = self.ahead(i, phase, prefill)
        return Moving(
            i, m.now + span, rest, self.price(kvb, kvp, attn2, positions), used, cached, m.evicted + evicted, kvb, kvp,
            attn2, positions, prefill, phase, steady, growth, self.fit(used, cached, growth), used_tick, cached_tick,
            floats, gaps,
        )  # fmt: skip

    def record(self, gaps: Gaps, shorter: Array, j: Array, span: Array) -> Gaps:
        """Count the gaps of j iterations of equal cost: they last `shorter` ticks, or one more, together `span`."""
        longer = span - j * shorter
        least = shorter + (longer == j)
        greatest = shorter + (longer > 0)

        def add(gaps: Gaps, n: Array, least: Array, greatest: Array, on: Array) -> Gaps:
            def search(gaps: Gaps) -> Gaps:
                row = jnp.searchsorted(self.lower[:-1], least, side="right").astype(jnp.int64) - 1
                return Gaps(gaps.itl, row, self.lower[row], self.lower[row + 1])

            gaps = lax.cond(on & ((least < gaps.low) | (least >= gaps.high)), search, lambda g: g, gaps)
            at = (self.stage * self.rows + gaps.row).astype(jnp.int32)
            old = load(gaps.itl, at)
            new = jnp.stack([old[0] + n * self.n_decode, jnp.minimum(old[1], least), jnp.maximum(old[2], greatest)])
            return gaps._replace(itl=store(gaps.itl, at, new, on))

        def both(gaps: Gaps) -> Gaps:
            return add(gaps, j, least, greatest, self.counts)

        def apart(gaps: Gaps) -> Gaps:
            gaps = add(gaps, j - longer, shorter, shorter, self.counts & (longer < j))
            return add(gaps, longer, shorter + 1, shorter + 1, self.counts & (longer > 0))

        # both lengths lie in the bucket of the last gaps, nearly always
        return lax.cond((least >= gaps.low) & (greatest < gaps.high), both, apart, gaps)

    def loose_units(self, used: Array) -> list[Array]:
        """Units used, then cached, of each pool without a block; the grown one has `used`."""
        w = self.w
        found = [used.astype(jnp.float64) if p == self.pool else w.used[p] for p in self.loose]
        return found + [w.cached[p] for p in self.loose if w.plan.caching[p]]

    def loose_ticks(self) -> list[Array]:
        """Their integrals, in the same order."""
        w = self.w
        kept = [w.cached_tick_f[p] for p in self.loose if w.plan.caching[p]]
        return [w.used_tick_f[p] for p in self.loose] + kept

    # ------------------------------------------------------------ the window

    def run(self) -> Moving:
        """Pass iterations while the next one ends before anything else happens and its successor is alike and fits."""
        w, zero = self.w, jnp.int64(0)
        prefill = self.prefilled(zero)
        steady, growth = self.ahead(zero, zero, prefill)
        used_tick = cached_tick = Limbs(zero, zero)
        if self.blocked:
            used_tick, cached_tick = (Limbs(*w.s[f"{n}_tick"][self.pool]) for n in ("used", "cached"))
        floats = self.loose_ticks()
        start = Moving(
            zero, w.now, carried(w, self.stage), self.price(self.kvb, self.kvp, self.attn2, self.positions), self.used,
            self.cached, zero, self.kvb, self.kvp, self.attn2, self.positions, prefill, zero, steady, growth,
            self.fit(self.used, self.cached, growth), used_tick, cached_tick, tuple(floats),
            Gaps(w.itl, zero, zero, zero),
        )  # fmt: skip

        def goes_on(m: Moving) -> Array:
            ends = m.now + advance(jnp.int64(1), m.rest, m.cost)[0] < self.until
            # an iteration that costs nothing is an error of the program: its start says so
            return self.ok & (m.i < self.most) & ends & (m.cost > 0) & (m.fits | (m.steady > 0))

        return lax.while_loop(goes_on, self.next, start)

    def settle(self, m: Moving) -> None:
        """Write back what the passed iterations did: iteration `m.i` is about to start at `m.now`."""
        w, plan, stage = self.w, self.w.plan, self.stage
        k = m.i
        passed = k > 0
        span = m.now - w.now
        counted = jnp.where(w.warm, span, 0)
        if self.blocked:
            for name, total in (("used", m.used_tick), ("cached", m.cached_tick)):
                w.s[f"{name}_tick"] = w.s[f"{name}_tick"].at[self.pool].set(jnp.stack(total))
        for p, total in zip(self.loose, m.floats):
            w.used_tick_f = w.used_tick_f.at[p].set(total)
        kept = [p for p in self.loose if plan.caching[p]]
        for p, total in zip(kept, m.floats[len(self.loose) :]):
            w.cached_tick_f = w.cached_tick_f.at[p].set(total)
        pass_time(w, m.now, passed, moved={*self.loose, *([self.pool] if self.blocked else [])})
        w.itl = m.gaps.itl
        gaps = jnp.where(w.warm, k * self.n_decode, 0)
        decodes, prefills = self.n_decode > 0, self.given_p > 0
        for name, amount in (
            ("itl_n", gaps), ("itl_tick", self.n_decode * counted), ("iterations", k),
            ("decode_iterations", jnp.where(w.warm & decodes, k, 0)), ("decode_batch", gaps),
            ("decode_step_tick", jnp.where(decodes, counted, 0)), ("decodes_tick", self.n_decode * counted),
            ("prefill_only_tick", jnp.where(prefills & ~decodes, counted, 0)),
            ("decode_only_tick", jnp.where(decodes & ~prefills, counted, 0)),
            ("mixed_tick", jnp.where(decodes & prefills, counted, 0)),
        ):  # fmt: skip
            w.s[name] = w.s[name].at[stage].add(amount)
        tokens = jnp.where(self.listed, k.astype(jnp.float64) * w.given, 0.0)
        w.work = w.work - tokens
        if self.pool >= 0:
            size = self.block.astype(jnp.float64)
            reached = self.first + tokens
            units = jnp.maximum(self.units, jnp.ceil(reached / size) * size)
            for depth in range(plan.depth):
                column = plan.column(depth, self.pool)
                at = self.mine & (w.column == column) & passed
                w.s["pos"] = w.pos.at[column].add(jnp.where(at, tokens, 0.0))
                w.s["alloc"] = w.alloc.at[column].set(jnp.where(at, units, w.alloc[column]))
            used = jnp.where(passed, m.used.astype(jnp.float64) * size, w.used[self.pool])
            w.used = w.used.at[self.pool].set(used)
            if plan.licence(stage).evicts and plan.caching[self.pool]:
                take_entries(w, self.pool, m.evicted.astype(jnp.float64) * size)
        token = self.decode & passed
        w.tokens = w.tokens + jnp.where(token & w.open, k, 0)
        w.last = jnp.where(token, m.now, w.last)
        w.last_stage = jnp.where(token, stage, w.last_stage)
        w.decoded = w.decoded | token
        w.preempted = w.preempted & ~token
        w.event_seq = w.event_seq + k
        hot = (jnp.arange(w.stage_last.shape[0]) == stage) & passed
        w.stage_last = jnp.where(hot, m.now, w.stage_last)
        w.stage_rest = jnp.where(hot, m.rest, w.stage_rest)
        w.now = m.now


def whole(x: Array) -> Array:
    return x == jnp.floor(x)


def reads_positions(shape: CostShape | None) -> bool:
    """Whether a cost moves with the positions of decoders."""
    if shape is None:
        return False
    if isinstance(shape, IntAffine):
        return any(name == "DecodePositions" for name, _ in shape.terms)
    return any(reads_positions(part) for part in shape.parts)


def others_wait(w: Lane, stage: int) -> Array:
    """Whether something else would be tried again at every instant: a grower, a line, another stage."""
    plan = w.plan
    waits = jnp.bool_(False)
    if w.has("queued"):
        for pool, spec in enumerate(plan.skeleton.pools):
            if spec.admit_via is None:
                waits = waits | (w.queued[pool] > 0)
    if w.has("waits_n"):
        waits = waits | jnp.any(w.waits_n > 0)
    if w.has("share_changed"):
        waits = waits | jnp.any(w.share_changed)  # when the next of them finishes is found after this start
    for other in plan.step_stages:
        if other != stage:
            waits = waits | (has_work(w, other) & (w.stage_end[other] >= FAR))
    return waits
