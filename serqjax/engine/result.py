"""From the arrays of a finished instance to its `RawRun`.

**Source:** `serqjax/report/raw.py`; `spec/semantics.md`, section 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..ir.fixed import FIXED_BITS
from ..ir.itl import edges, first_bucket
from ..ir.program import Program
from ..ir.structure import number
from ..ir.time import seconds
from ..report.raw import Action, PoolTotals, RawRun, RequestStatus, StageTotals, Verdict
from .access import FAR
from .clock import LIMB_BITS
from .faults import SENTENCES, Fault
from .layout import BUFFERS, COLUMN_BUFFERS
from .measures import claim_totals
from .plan import Plan
from .state import (
    ACTION_COLUMNS,
    POINT_COLUMNS,
    RUNNING,
    TOKEN_COLUMNS,
    request_columns,
    sample_width,
    sites_at_once,
)
from .tables import ticks
from .workspace import Workspace

LIVELOCK = (
    "sessions preempt themselves or each other for ever with no token between: raise the cap of the pool, or reserve "
    "what a session needs before it starts"
)


class Part(NamedTuple):
    """Entries of a buffer: the first `count` of `table` `[width, entries]`."""

    table: np.ndarray
    count: int


class Drained:
    """What has been taken out of the buffers so far, per instance. `kept` copies a quantity into a result's memory."""

    def __init__(self, lanes: int, space: Workspace):
        self.parts: dict[str, list[list[Part]]] = {name: [[] for _ in range(lanes)] for name in BUFFERS}
        self.kept = space.kept

    def take(self, counts: Mapping[str, np.ndarray], buffers: dict[str, Any], last: bool) -> None:
        """Keep the entries. `counts`: how many of each buffer, by instance; `buffers`: what the call wrote, and the
        next one writes over; `last`: there is no next one before all is read."""
        for name, buffer in buffers.items():
            filled = np.flatnonzero(counts[name])
            if len(filled):
                table = np.asarray(buffer)
                for lane in filled:
                    n = counts[name][lane]
                    part = table[lane] if name in COLUMN_BUFFERS else table[lane].T
                    self.parts[name][lane].append(Part(part if last else part[:, :n].copy(), n))

    def count(self, name: str, lane: int) -> int:
        """Entries of a buffer."""
        return sum(part.count for part in self.parts[name][lane])

    def columns(self, name: str, lane: int, width: int, more: int = 0) -> np.ndarray:
        """All entries of a buffer, `[width, entries]`, with room for `more` behind them; not to be kept."""
        parts, n = self.parts[name][lane], self.count(name, lane) + more
        if len(parts) == 1 and n <= parts[0].table.shape[1] and (not more or parts[0].table.flags.writeable):
            return parts[0].table[:, :n]
        whole, start = np.zeros((width, n), parts[0].table.dtype if parts else np.int64), 0
        for part in parts:
            whole[:, start : start + part.count] = part.table[:, : part.count]
            start += part.count
        return whole


def raw_run(
    plan: Plan,
    program: Program,
    seed: int,
    s: Mapping[str, np.ndarray],
    drained: Drained,
    lane: int,
    needs: np.ndarray,
    waits: tuple[np.ndarray, np.ndarray] | None,
    numbers: np.ndarray,
    trace: bool,
) -> RawRun:
    """One instance.

    `s`: its final arrays; `numbers`: of its program. `needs` `[lines, pools]`: what each line's selected hold asks
    above a cap (-1: nothing). `waits`: what `final_waits` says, None if nobody waits for legs.
    """
    verdict, cause = verdict_of(plan, program, s)
    cycle = ""
    if waits is not None and verdict not in (Verdict.error, Verdict.livelock):
        cycle = who_waits_for_each_other(plan, s, *waits)
    horizon = ticks(number(program, program.horizon_s), program.tick_s)
    observed = sample_rows(plan, drained, lane)
    warm = observed[1] >= ticks(number(program, program.warmup_s), program.tick_s)
    samples = tuple(column[warm] for column in observed) if plan.aggregates else observed
    end_tick = int(s["end_tick"] if s["verdict"] != RUNNING else s["now"])
    if cycle:
        verdict, cause = Verdict.error, dated(cycle, end_tick, program)
    requests = request_rows(plan, s, drained, lane)
    points = drained.columns("points", lane, POINT_COLUMNS)
    return RawRun(
        seed=seed,
        tick_s=program.tick_s,
        horizon_tick=None if horizon >= FAR else horizon,
        warmup_tick=ticks(number(program, program.warmup_s), program.tick_s),
        end_tick=end_tick,
        verdict=verdict,
        cause=cause,
        arrivals=int(s["arrived"]),
        ended=int(s["ended"]),
        turns=int(s["turns_done"]),
        live_at_end=int(s["live"]),
        live_tick=int(s["live_tick"]),
        stages=[stage_totals(plan, s, drained, lane, i, program.tick_s) for i in range(len(plan.skeleton.stages))],
        pools=[pool_totals(plan, s, needs, i, bool(cycle)) for i in range(len(plan.skeleton.pools))],
        samples_observe=samples[0],
        samples_tick=samples[1],
        samples_serial=samples[2],
        samples_turn=samples[3],
        samples_value=samples[4],
        request_serial=requests["serial"],
        request_turn=requests["turn"],
        request_sent=requests["sent"],
        request_first=requests["first"],
        request_confirmed=requests["confirmed"],
        request_confirm_order=requests["confirm_order"],
        request_last=requests["last"],
        request_tokens=requests["tokens"],
        request_responded=requests["responded"],
        request_respond_order=requests["respond_order"],
        request_status=requests["status"],
        events=None,
        trace=action_rows(drained.columns("actions", lane, ACTION_COLUMNS).T) if trace else None,
        gauge_index=drained.kept(points[0], np.int64),
        gauge_tick=drained.kept(points[1], np.int64),
        gauge_value=drained.kept(points[2], np.float64),
        claims=claim_totals(plan, s, numbers, verdict, seconds(end_tick, program.tick_s), observed),
    )


def verdict_of(plan: Plan, program: Program, s: Mapping[str, np.ndarray]) -> tuple[Verdict, str]:
    """Verdict and cause of a finished instance."""
    fault = Fault(int(s["fault"]))
    if fault == Fault.unsettled and s["livelock"]:
        return Verdict.livelock, LIVELOCK
    if fault != Fault.none:
        verdict, sentence = SENTENCES[fault]
        place = int(s["fault_place"])
        names = {
            "who": f"session {int(s['fault_serial'])}: " if s["fault_serial"] >= 0 else "",
            "state": plan.states[place].name if 0 <= place < len(plan.states) else "?",
            "problem": plan.requires[place].problem if fault == Fault.require else "",
            "stage": plan.skeleton.stages[place].name if 0 <= place < len(plan.skeleton.stages) else "?",
            "scope": plan.scopes[place].scope.name if 0 <= place < len(plan.scopes) else "?",
            "array": plan.arrays[place][0] if 0 <= place < len(plan.arrays) else "?",
            "last": len(plan.arrays[place][1]) - 1 if 0 <= place < len(plan.arrays) else -1,
            "pool": plan.skeleton.pools[place].name if 0 <= place < len(plan.skeleton.pools) else "?",
            "slots": s["pc"].shape[0],
            "seats": s["seats"].shape[0] if "seats" in s else s["pc"].shape[0],
            "leases": s["lease_slot"].shape[0] if "lease_slot" in s else 0,
            "entries": s["entry_size"].shape[0] if "entry_size" in s else 0,
            "chain": s["held"].shape[2] if "held" in s else 0,
            "holds": s["row_taken"].shape[1] if "row_taken" in s else 0,
        }
        cause = sentence.format(**names)
        return verdict, dated(cause, int(s["now"]), program) if verdict == Verdict.error else cause
    verdict = Verdict(int(s["verdict"]))
    end_s, horizon_s = float(s["end_tick"]) * program.tick_s, number(program, program.horizon_s)
    within_s = end_s if horizon_s is None else horizon_s
    if program.arrivals is not None and verdict in (Verdict.horizon, Verdict.drained):
        live, arrived = int(s["live"]), int(s["arrived"])
        if arrived < program.arrivals:
            return Verdict.error, (
                f"horizon {within_s:g} reached before requested arrivals: got {arrived}, requested {program.arrivals}"
            )
        if live:
            return Verdict.error, f"failed to drain {live} active sessions within horizon {within_s:g}"
        warmup = ticks(number(program, program.warmup_s), program.tick_s)
        if 0 < warmup and int(s["end_tick"]) <= warmup:
            return Verdict.error, (f"arrivals drained at {end_s:g} before or at warmup {warmup * program.tick_s:g}")
    if verdict == Verdict.deadlock:
        return verdict, who_waits(plan, s)
    if verdict == Verdict.livelock:
        return verdict, LIVELOCK
    return verdict, ""


def dated(cause: str, tick: int, program: Program) -> str:
    """The cause of an error and its time."""
    return f"{cause}, at t = {seconds(tick, program.tick_s):.10g} s"


def who_waits(plan: Plan, s: Mapping[str, np.ndarray]) -> str:
    """Who waits for what, when no event is left."""
    parts = []
    for pool, spec in enumerate(plan.skeleton.pools if plan.has_holds else ()):
        growers = s["serial"][s["waits"] == pool] if "waits" in s else np.zeros(0)
        waiting = s["serial"][s["line"] == pool]
        for rows, text in ((growers, "wait to grow in pool"), (waiting, "wait in the line of pool")):
            if len(rows):
                shown = ", ".join(str(int(r)) for r in sorted(rows)[:5])
                more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
                parts.append(f"sessions {shown}{more} {text} `{spec.name}` ({s['used'][pool]:g} units in use)")
    joining = s["serial"][(s["pc"] >= 0) & s["joining"]] if "joining" in s else []
    if len(joining):
        parts.append(f"{len(joining)} sessions wait for their legs")
    return "no event is left: " + ("; ".join(parts) or "sessions wait on stages that give them nothing")


def who_waits_for_each_other(plan: Plan, s: Mapping[str, np.ndarray], lacks: np.ndarray, holds: np.ndarray) -> str:
    """Sessions and legs that only each other could let go on, if somebody among them waits for legs; "" else.

    `lacks`, `holds`: `[slots, pools]` bool. The largest set in which what a waiting one lacks room in is held by
    members alone, and all live legs of a joining one are members. Who lacks no room is no member.
    """
    alive = s["pc"] >= 0
    joining = alive & s["joining"]
    waiting = alive & (s["line"] >= 0) & lacks.any(axis=1)
    members = joining | waiting
    while True:
        held_outside = (holds & ~members[:, None]).any(axis=0)  # by pool
        leg_outside = np.zeros_like(members)
        roots = s["root"][alive & ~members & (s["leg"] >= 0) & (s["root"] >= 0)]
        leg_outside[roots] = True
        kept = members & ~(waiting & (lacks & held_outside).any(axis=1)) & ~(joining & leg_outside)
        if (kept == members).all():
            break
        members = kept
    if not (members & joining).any():
        return ""
    parts = []
    for slot in np.flatnonzero(members):
        who = f"session {int(s['serial'][slot])}"
        who = who if s["leg"][slot] < 0 else f"a leg of {who}"
        where = "a `Join`" if joining[slot] else f"`{plan.skeleton.pools[int(s['line'][slot])].name}`"
        parts.append(f"{who} waits at {where}")
    return f"the run ends with sessions that wait for each other: {'; '.join(sorted(parts))}: a hold-and-wait cycle"


def stage_totals(
    plan: Plan, s: Mapping[str, np.ndarray], drained: Drained, lane: int, i: int, tick_s: float
) -> StageTotals:
    t = StageTotals(
        number_tick=int(s["number_tick"][i]),
        busy_tick=int(s["busy_tick"][i]),
        completed=int(s["completed"][i]),
        wait_tick=int(s["wait_tick"][i]),
        service_tick=int(s["service_tick"][i]),
    )
    if i in plan.links:
        high, low = (int(x) for x in s["load_tick"][plan.links.index(i)])
        t.load_tick = (high << LIMB_BITS) + low
    if i not in plan.step_stages:
        return t
    t.iterations = int(s["iterations"][i])
    t.prefill_only_tick = int(s["prefill_only_tick"][i])
    t.decode_only_tick = int(s["decode_only_tick"][i])
    t.mixed_tick = int(s["mixed_tick"][i])
    t.decodes_tick = int(s["decodes_tick"][i])
    t.decode_iterations = int(s["decode_iterations"][i])
    t.decode_batch = int(s["decode_batch"][i])
    t.decode_step_tick = int(s["decode_step_tick"][i])
    t.idle_with_work = bool(s["idle_with_work"][i])
    t.itl_count = int(s["itl_n"][i])
    t.itl_tick = int(s["itl_tick"][i])
    t.itl_buckets = itl_buckets(s, drained, lane, i, tick_s)
    return t


def itl_buckets(
    s: Mapping[str, np.ndarray], drained: Drained, lane: int, i: int, tick_s: float
) -> dict[int, tuple[int, int, int]]:
    """The histogram of a stage's token gaps: what the loop has counted, and the gaps it has written down."""
    lower = edges(tick_s)
    table = s["itl"][i * len(lower) : (i + 1) * len(lower)]
    where, gaps = drained.columns("gaps", lane, 2)
    gaps = gaps[where == i]
    if len(gaps):
        k = lower.searchsorted(gaps, side="right") - 1
        count, least, greatest = table.T.copy()
        count += np.bincount(k, minlength=len(lower))
        np.minimum.at(least, k, gaps)
        np.maximum.at(greatest, k, gaps)
        table = np.stack([count, least, greatest], axis=1)
    filled = np.flatnonzero(table[:, 0])
    first = first_bucket(tick_s)
    return {first + k: (n, least, most) for k, (n, least, most) in zip(filled.tolist(), table[filled].tolist())}


def pool_totals(plan: Plan, s: Mapping[str, np.ndarray], needs: np.ndarray, i: int, failed: bool) -> PoolTotals:
    if not plan.has_holds:
        return PoolTotals()
    blocked = plan.skeleton.pools[i].block is not None

    def integral(name: str) -> int | float:
        if blocked:
            high, low = (int(x) for x in s[f"{name}_tick"][i])
            return (high << LIMB_BITS) + low
        return float(s[f"{name}_tick_f"][i])

    t = PoolTotals(
        used_tick=integral("used"),
        cached_tick=integral("cached"),
        queue_tick=int(s["queue_tick"][i]),
        holders_tick=int(s["holders_tick"][i]),
        wait_tick=int(s["pool_wait_tick"][i]),
        wait_count=int(s["pool_wait_n"][i]),
        admissions=int(s["admissions"][i]),
        rejected=int(s["rejected"][i]),
    )
    if "evicted_units" in s:
        t.evicted_entries = int(s["evicted_entries"][i])
        t.evicted_units = float(s["evicted_units"][i])
    if "spills" in s:
        t.spills = int(s["spills"][i])
    if "preemptions" in s:
        t.preemptions = int(s["preemptions"][i])
        t.stuck = int(s["stuck_n"][i])
    lines = np.nonzero(needs[:, i] >= 0)[0]
    if len(lines) and s["fault"] == Fault.none and not failed:
        t.over_cap, t.over_cap_queue = float(needs[lines[0], i]), int(lines[0])
    if "waits" in s:
        growing = s["waits"] == i
        t.growing_at_end = int(growing.sum())
        t.growing_stalled = bool(growing.any() and (growing | ~holders(plan, s, i)).all())
    return t


def holders(plan: Plan, s: Mapping[str, np.ndarray], pool: int) -> np.ndarray:
    """Sessions that hold something of a pool, `[slots]` bool."""
    if "holds_n" in s:
        return s["holds_n"][pool] > 0
    alive = s["pc"] >= 0
    if not plan.computed_holds:
        return alive & (plan.innermost[s["scope"], pool] >= 0)
    depth = np.asarray([scope.depth for scope in plan.scopes] + [-1])[s["scope"]]  # -1 reads the last
    columns = range(pool, len(s["take"]), len(plan.skeleton.pools))
    return alive & np.any([(depth >= d) & (s["take"][column] >= 0) for d, column in enumerate(columns)], axis=0)


def sample_rows(plan: Plan, drained: Drained, lane: int) -> tuple[np.ndarray, ...]:
    """Observations in order: observe index, tick, serial, turn, value."""
    table, width = drained.columns("samples", lane, sample_width(plan)), sites_at_once(plan)
    tick, serial, turns, values = table[0], table[1], table[2 : 2 + 2 * width : 2], table[3 : 3 + 2 * width : 2]
    if len(plan.sites) == 1 and not plan.init_sites:  # one observation an entry
        index = same(plan.sites[0], table.shape[1])
        turn, value = turns[0], values[0]
    else:
        sites = np.zeros((2, width), np.int64)
        sites[0, : len(plan.init_sites)] = plan.init_sites
        sites[1, : len(plan.sites)] = plan.sites
        entry, site = np.nonzero(turns.T >= 0)
        where = table[-1, entry].astype(np.int64) if plan.init_sites else 1
        index = sites[where, site]
        tick, serial, turn, value = tick[entry], serial[entry], turns[site, entry], values[site, entry]
    return index, *(drained.kept(column, np.int64) for column in (tick, serial, turn)), drained.kept(value, np.float64)


def request_rows(plan: Plan, s: Mapping[str, np.ndarray], drained: Drained, lane: int) -> dict[str, np.ndarray]:
    """Requests in the order they were sent; unfinished ones come from the live sessions."""
    live = np.flatnonzero((s["pc"] >= 0) & s["open"])
    live = live[np.argsort(s["start_order"][live], kind="stable")]
    names, ended = request_columns(plan), drained.count("requests", lane)
    columns = dict(zip(names, drained.columns("requests", lane, len(names), more=len(live))))
    if len(live):
        left = unfinished(s, live)
        for name, column in columns.items():
            column[ended:] = left.get(name, -1)
    n, start = ended + len(live), columns["start_order"]
    order = None if rises(start) else sorting(start)
    table = {name: drained.kept(column, np.int64, order) for name, column in columns.items()}
    responses = np.arange(n)  # requests are written when they are answered, or refused
    refused = columns["status"][:ended] == RequestStatus.rejected
    if refused.any():
        responses[:ended] = np.where(refused, -1, np.cumsum(~refused) - 1)
        table["responded"][table["status"] == RequestStatus.rejected] = -1
    responses[ended:] = -1
    table["respond_order"] = drained.kept(responses, np.int64, order)
    if "confirm_order" in table:
        ranked(table["confirm_order"], (table["confirm_order"] >= 0) & (table["confirmed"] >= 0))
    return {name: same(0 if name == "tokens" else -1, n) for name in TOKEN_COLUMNS if name not in table} | table


def unfinished(s: Mapping[str, np.ndarray], live: np.ndarray) -> dict[str, Any]:
    """What there is of the requests that live sessions have open."""
    own = {"turn": "turns", "last": "client_last" if "client_last" in s else "last"}
    left: dict[str, Any] = {"status": np.int64(RequestStatus.running)}
    for name in ("serial", "turn", "sent", "start_order", *TOKEN_COLUMNS):
        if own.get(name, name) in s:
            left[name] = s[own.get(name, name)][live]
    if "line" in s:
        queued = (s["line"][live] >= 0) & ~s["admitted"][live]
        left["status"] = np.where(queued, RequestStatus.queued, RequestStatus.running)
    return left


def rises(column: np.ndarray) -> bool:
    return bool((column[1:] >= column[:-1]).all())


def same(number: int, n: int) -> np.ndarray:
    """The number `n` times, in the memory of one; cannot be written to."""
    found = np.ndarray((n,), np.int64, np.array(number, np.int64), strides=(0,))
    found.flags.writeable = False
    return found


def sorting(numbers: np.ndarray) -> np.ndarray:
    """The order in which the numbers rise; at once where they are all of 0, 1, ..."""
    places, order = np.arange(len(numbers)), np.full((len(numbers),), -1, np.int64)
    if numbers.min() >= 0 and numbers.max() < len(numbers):
        order[numbers] = places
        if (order >= 0).all():
            return order
    return np.argsort(numbers, kind="stable")


def ranked(column: np.ndarray, known: np.ndarray) -> None:
    """Replace recorded sequence numbers by their places among all of them, from 0; -1 where none is known."""
    rows = np.flatnonzero(known)
    values = column[rows]
    column[:] = -1
    if not rises(values):
        rows = rows[np.argsort(values, kind="stable")]
    column[rows] = np.arange(len(rows))


def action_rows(rows: np.ndarray) -> np.ndarray:
    """The action trace: padding dropped, consecutive evictions of one owner at one instant merged."""
    rows = rows[rows[:, 1] > 0]
    keep: list[np.ndarray] = []
    for row in rows:
        if keep and row[1] == Action.evict and (keep[-1][:4] == row[:4]).all():
            keep[-1] = keep[-1].copy()
            keep[-1][4] += row[4]
        else:
            keep.append(row)
    return np.asarray(keep).reshape(-1, 5)


assert FIXED_BITS
