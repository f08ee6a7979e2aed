"""The static plan of a program: everything the traced step needs that is not a number.

A `Plan` is made from the skeleton of a program (ir/structure.py) alone, so that all programs of
one structure share it and with it one compiled function. Names become indices, scopes get a
depth, states an order in which one pass over them runs a session as far as it can go.

**Source:** `design.md`, sections 3 and 4.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ..check.flow import reached, successors
from ..check.index import Index
from ..check.licence import Licence, licence, runs_legs_on_steps
from ..check.values import chosen_from
from ..ir.expr import Agg, Ctx, Inf, Num, PoolState, Price, Resource, StageState, Unary
from ..ir.fabric import fabrics, shared_stages
from ..ir.program import (
    Branch,
    Choose,
    Claim,
    Closed,
    Deadline,
    Delay,
    End,
    EndLeg,
    Enter,
    Fifo,
    Fork,
    Gauge,
    Grow,
    Leave,
    Listed,
    Observe,
    Poisson,
    ProcessorSharing,
    Program,
    Release,
    Renewal,
    Require,
    Respond,
    Run,
    Share,
    Shrink,
    State,
    Step,
    Turn,
    is_lru,
)
from ..ir.structure import walk
from ..tape.chacha import DRAWS_PER_BLOCK
from .lines import Line, lines
from .plan_parts import CostShape, ScopePlan, StagePlan, draws_in

#: Sessions whose draws are computed at once, in vector registers, where each has one turn.
SESSIONS_AHEAD = 8



@dataclasses.dataclass(frozen=True)
class Plan:
    """See the module. `forms`: per stage the shape of its fixed-point cost, or None (float path)."""

    skeleton: Program
    forms: tuple[CostShape | None, ...]

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.skeleton, self.forms))

    def __hash__(self) -> int:
        return self._hash

    # ------------------------------------------------------------ names

    @functools.cached_property
    def attr_index(self) -> dict[str, int]:
        return {a.name: i for i, a in enumerate(self.skeleton.attrs)}

    @functools.cached_property
    def pool_index(self) -> dict[str, int]:
        return {p.name: i for i, p in enumerate(self.skeleton.pools)}

    @functools.cached_property
    def stage_index(self) -> dict[str, int]:
        return {s.name: i for i, s in enumerate(self.skeleton.stages)}

    @functools.cached_property
    def state_index(self) -> dict[str, int]:
        return {s.name: i for i, s in enumerate(self.states)}

    @functools.cached_property
    def scope_index(self) -> dict[str, int]:
        return {s.name: i for i, s in enumerate(self.skeleton.scopes)}

    @functools.cached_property
    def observe_index(self) -> dict[str, int]:
        return {n: i for i, n in enumerate(self.skeleton.observes)}

    @functools.cached_property
    def register_index(self) -> dict[str, int]:
        return {r.name: i for i, r in enumerate(self.skeleton.registers)}

    @functools.cached_property
    def param_index(self) -> dict[str, int]:
        literals = sum(isinstance(n, Num) and n.value >= 0 for _, n in walk(self.skeleton))
        return {p.name: literals + i for i, p in enumerate(self.skeleton.params)}

    def pool(self, ref: Resource) -> int:
        assert isinstance(ref, str)
        return self.pool_index[ref]

    def stage(self, ref: Resource) -> int:
        assert isinstance(ref, str)
        return self.stage_index[ref]

    def pools_of(self, ref: Resource) -> tuple[int, ...]:
        """Pools that a reference may mean: one, or the members of an array by their index."""
        return (self.pool_index[ref],) if isinstance(ref, str) else members(self.skeleton.pools, ref.array)

    def stages_of(self, ref: Resource) -> tuple[int, ...]:
        """Stages that a reference may mean, likewise."""
        return (self.stage_index[ref],) if isinstance(ref, str) else members(self.skeleton.stages, ref.array)

    @functools.cached_property
    def arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Arrays with their members, those of pools first, so that a fault can name one."""
        made = []
        for parts in (self.skeleton.pools, self.skeleton.stages):
            names = dict.fromkeys(part.array for part in parts if part.array is not None)
            made += [(name, members(parts, name)) for name in names]
        return tuple(made)

    @functools.cached_property
    def computed_holds(self) -> bool:
        """Whether some hold takes a computed member, so that each session remembers what it has taken."""
        return any(not isinstance(take.pool, str) for scope in self.skeleton.scopes for take in scope.takes)

    @functools.cached_property
    def has_legs(self) -> bool:
        return any(isinstance(state.exit, Fork) for state in self.states)

    @functools.cached_property
    def leg_engines(self) -> bool:
        """Whether legs run on step stages, so that their tokens count for the client of another session."""
        return runs_legs_on_steps(self.skeleton)

    def choices(self, op: Choose) -> int:
        """Most members that a choice compares: its count, or the size of the arrays that its keys index."""
        if isinstance(op.count, Num) and op.count.value < 0:
            return int(-op.count.value - 1)
        sizes = [len(self.pools_of(ref) if kind == "pool" else self.stages_of(ref)) for kind, ref in chosen_from(op)]
        return min(sizes, default=0)

    # ------------------------------------------------------------ states

    @functools.cached_property
    def states(self) -> tuple[State, ...]:
        """States in an order in which a jump goes forward where it can (depth first from the start)."""
        by_name = {s.name: s for s in self.skeleton.states}
        scopes = {s.name: s for s in self.skeleton.scopes}
        order: list[str] = []
        seen: set[str] = set()

        def late(deadline: Deadline | None) -> list[str]:
            return [] if deadline is None else [deadline.target]

        def successors(state: State) -> list[str]:
            match state.exit:
                case Branch(_, then, orelse):
                    return [then, orelse]
                case Enter(scope, deadline):
                    return [scopes[scope].reentry, *late(deadline)]
                case Run() | Grow() as blocking:
                    return [blocking.then, *late(blocking.deadline)]
                case End() | EndLeg():
                    return []
                case Fork(leg, then):
                    return [then, leg]
                case other:
                    return [other.then]

        def visit(name: str) -> None:
            stack = [(name, iter(successors(by_name[name])))]
            seen.add(name)
            while stack:
                here, rest = stack[-1]
                for after in rest:
                    if after not in seen:
                        seen.add(after)
                        stack.append((after, iter(successors(by_name[after]))))
                        break
                else:
                    order.append(here)
                    stack.pop()

        visit(self.skeleton.start)
        return tuple(by_name[name] for name in reversed(order))

    @functools.cached_property
    def start(self) -> int:
        return self.state_index[self.skeleton.start]

    @functools.cached_property
    def sites(self) -> tuple[int, ...]:
        """Observation of each `Observe` op in the order in which a pass over the states meets them."""
        in_turn = [self.observe_index[op.name] for op in self.skeleton.turn if isinstance(op, Observe)]
        found: list[int] = []
        for state in self.states:
            for op in state.ops:
                if isinstance(op, Observe):
                    found.append(self.observe_index[op.name])
                elif isinstance(op, Turn):
                    found.extend(in_turn)
        return tuple(found)

    @functools.cached_property
    def init_sites(self) -> tuple[int, ...]:
        return tuple(self.observe_index[op.name] for op in self.skeleton.init if isinstance(op, Observe))

    @functools.cached_property
    def has_turn(self) -> bool:
        return any(isinstance(op, Turn) for s in self.states for op in s.ops)

    # ------------------------------------------------------------ scopes

    @functools.cached_property
    def scopes(self) -> tuple[ScopePlan, ...]:
        plans = []
        for scope in self.skeleton.scopes:
            depth, up = 0, scope.parent
            while up is not None:
                depth, up = depth + 1, self.skeleton.scopes[self.scope_index[up]].parent
            plans.append(
                ScopePlan(
                    scope=scope,
                    depth=depth,
                    parent=-1 if scope.parent is None else self.scope_index[scope.parent],
                    takes=(takes := tuple(self.pools_of(t.pool) for t in scope.takes)),
                    pools=tuple(dict.fromkeys(p for take in takes for p in take)),
                    reentry=self.state_index.get(scope.reentry, 0),
                )
            )
        return tuple(plans)

    @property
    def depth(self) -> int:
        return max((s.depth + 1 for s in self.scopes), default=0)

    def column(self, depth: int, pool: int) -> int:
        """Column of the hold tables: one per scope depth and pool."""
        return depth * len(self.skeleton.pools) + pool

    @functools.cached_property
    def innermost(self) -> np.ndarray:
        """`[scopes + 1, pools]`: hold column of the innermost hold of a pool, by innermost open scope; -1 none.

        The last row is for a session outside every scope. Only where no hold takes a computed member.
        """
        table = np.full((len(self.scopes) + 1, len(self.skeleton.pools)), -1, dtype=np.int32)
        for i in range(len(self.scopes)):
            at = i
            while at >= 0:
                for pool in self.scopes[at].pools:
                    if table[i, pool] < 0:
                        table[i, pool] = self.column(self.scopes[at].depth, pool)
                at = self.scopes[at].parent
        return table

    @functools.cached_property
    def takes_at(self) -> np.ndarray:
        """`[scopes + 1, depths, pools]`: whether the scope open at a depth takes a pool, by innermost open scope."""
        table = np.zeros((len(self.scopes) + 1, max(1, self.depth), len(self.skeleton.pools)), dtype=bool)
        for i in range(len(self.scopes)):
            at = i
            while at >= 0:
                table[i, self.scopes[at].depth, list(self.scopes[at].pools)] = True
                at = self.scopes[at].parent
        return table

    @functools.cached_property
    def ancestor(self) -> np.ndarray:
        """`[scopes + 1, depths]`: the scope open at a depth, by innermost open scope; -1 none."""
        table = np.full((len(self.scopes) + 1, max(1, self.depth)), -1, dtype=np.int32)
        for i in range(len(self.scopes)):
            at = i
            while at >= 0:
                table[i, self.scopes[at].depth] = at
                at = self.scopes[at].parent
        return table

    @functools.cached_property
    def leased(self) -> tuple[int, ...]:
        """Pool that each scope leases at its end, -1 for none."""
        return tuple(-1 if s.scope.lease is None else self.pool(s.scope.lease.pool) for s in self.scopes)

    @property
    def has_leases(self) -> bool:
        return any(pool >= 0 for pool in self.leased)

    @functools.cached_property
    def has_releases(self) -> bool:
        """Some state gives one hold of an open scope back."""
        return any(isinstance(s.exit, Release) for s in self.states)

    @property
    def loose(self) -> bool:
        """Holders of a pool are no matter of the open scopes alone."""
        return self.has_leases or self.has_releases

    @functools.cached_property
    def shrunk(self) -> tuple[int, ...]:
        """Pools that some state shrinks."""
        return tuple(sorted({self.pool(s.exit.pool) for s in self.states if isinstance(s.exit, Shrink)}))

    @functools.cached_property
    def timed_lines(self) -> tuple[int, ...]:
        """Pools whose line is admitted at times of its own."""
        return tuple(i for i, p in enumerate(self.skeleton.pools) if p.queue_every is not None)

    def sweeps(self, pool: int) -> bool:
        """Whether the line of a pool is tried at every instant, and not by a stage or at times of its own."""
        spec = self.skeleton.pools[pool]
        return spec.admit_via is None and spec.queue_every is None

    @functools.cached_property
    def spills_to(self) -> tuple[int, ...]:
        """Pool that evicted units of each pool go to, -1 for none."""
        return tuple(-1 if p.spill is None else self.pool(p.spill.to) for p in self.skeleton.pools)

    @functools.cached_property
    def tiers(self) -> tuple[int, ...]:
        """Pools that others spill into, each before the one that it spills into itself."""

        def below(pool: int) -> int:
            return 0 if self.spills_to[pool] < 0 else 1 + below(self.spills_to[pool])

        return tuple(sorted({pool for pool in self.spills_to if pool >= 0}, key=below, reverse=True))

    @property
    def has_spills(self) -> bool:
        return bool(self.tiers)

    @functools.cached_property
    def evict_draws(self) -> int:
        """Draws of one spill at most."""
        return max((draws_in(p.spill) for p in self.skeleton.pools), default=0)

    @functools.cached_property
    def reserving(self) -> tuple[bool, ...]:
        """Pools in which an open hold keeps what it has reserved and not taken."""
        return tuple(p.reserve_held and f for p, f in zip(self.skeleton.pools, self.finite))

    def scope_table(self, of: Any) -> np.ndarray:
        """Int table `[scopes]` of `of(scope_plan)`; one dummy row where there are no scopes."""
        return np.asarray([of(s) for s in self.scopes] or [0], dtype=np.int32)

    # ------------------------------------------------------------ pools and stages

    @functools.cached_property
    def finite(self) -> tuple[bool, ...]:
        return tuple(not isinstance(p.cap, Inf) for p in self.skeleton.pools)

    @functools.cached_property
    def caching(self) -> tuple[bool, ...]:
        """Pools that may hold cache entries: a take keeps units, released ones stay in order, or others spill there."""
        kept = {p for s in self.skeleton.scopes for t in s.takes if t.keep is not None for p in self.pools_of(t.pool)}
        kept |= set(self.tiers)
        return tuple(
            p.sharing == "own" and (i in kept or p.uncached == "in_order") for i, p in enumerate(self.skeleton.pools)
        )

    @functools.cached_property
    def by_content(self) -> tuple[int, ...]:
        """Pools whose blocks are shared by content."""
        return tuple(i for i, p in enumerate(self.skeleton.pools) if p.sharing == "content")

    @functools.cached_property
    def growing(self) -> tuple[bool, ...]:
        """Pools that some run or `Grow` grows."""
        grown = set()
        for state in self.states:
            if isinstance(state.exit, Run) and state.exit.grows is not None:
                grown.update(self.pools_of(state.exit.grows))
            if isinstance(state.exit, Grow):
                grown.update(self.pools_of(state.exit.pool))
        return tuple(i in grown for i in range(len(self.skeleton.pools)))

    @functools.cached_property
    def stages(self) -> tuple[StagePlan, ...]:
        plans = []
        for i, stage in enumerate(self.skeleton.stages):
            kind = stage.kind
            memory, form = -1, None
            if isinstance(kind, Step):
                memory = -1 if kind.memory is None else self.pool(kind.memory)
                form = self.forms[i]
            admits = tuple(j for j, p in enumerate(self.skeleton.pools) if p.admit_via == stage.name)
            plans.append(StagePlan(kind=kind, memory=memory, form=form, admits=admits))
        return tuple(plans)

    @functools.cached_property
    def _licences(self) -> dict[int, Licence]:
        return {s: licence(self.skeleton, s, self.forms[s] is not None) for s in self.step_stages}

    def licence(self, stage: int) -> Licence:
        """What may be coalesced on a step stage."""
        return self._licences[stage]

    @functools.cached_property
    def step_stages(self) -> tuple[int, ...]:
        return tuple(i for i, s in enumerate(self.skeleton.stages) if isinstance(s.kind, Step))

    @functools.cached_property
    def bodies(self) -> dict[int, tuple[Line, ...]]:
        """The iteration bodies of the step stages that have one, as lines."""
        kinds = {i: self.stages[i].kind for i in self.step_stages}
        return {i: lines(kind.iteration) for i, kind in kinds.items() if kind.iteration}

    @functools.cached_property
    def granular(self) -> tuple[int, ...]:
        """Step stages with a granule."""
        return tuple(i for i in self.step_stages if self.stages[i].kind.granule is not None)

    @functools.cached_property
    def prefills_alone(self) -> tuple[int, ...]:
        """Step stages where a prefill is alone in its iteration."""
        return tuple(i for i in self.step_stages if self.stages[i].kind.prefills == "alone")

    @functools.cached_property
    def speculative(self) -> tuple[int, ...]:
        """Step stages where a decode may get several tokens in an iteration, or is computed with more than it gets."""
        kinds = {i: self.stages[i].kind for i in self.step_stages}
        return tuple(i for i, kind in kinds.items() if not (kind.decode is None and kind.verify is None))

    @functools.cached_property
    def verifies(self) -> bool:
        """Whether tokens are computed that no decode gets."""
        return any(self.stages[i].kind.verify is not None for i in self.speculative)

    @functools.cached_property
    def fifo_stages(self) -> tuple[int, ...]:
        return tuple(i for i, s in enumerate(self.skeleton.stages) if isinstance(s.kind, Fifo))

    @functools.cached_property
    def has_timed(self) -> bool:
        """Something wakes a session up: a stage without sharing, or the end of a latency."""
        return self.has_latency or any(isinstance(s.kind, (Fifo, Delay)) for s in self.skeleton.stages)

    @functools.cached_property
    def has_latency(self) -> bool:
        return any(isinstance(s.exit, Run) and s.exit.latency is not None for s in self.states)

    @functools.cached_property
    def links(self) -> tuple[int, ...]:
        """Stages that runs hold together with others, ascending; a set of them is a bit mask by place in this order."""
        return shared_stages(self.skeleton)

    @functools.cached_property
    def share_of(self) -> dict[int, Share]:
        """How the flows over each link share."""
        return {stage: fabric.shares[0] for fabric in fabrics(self.skeleton) for stage in fabric.stages}

    @functools.cached_property
    def sharers(self) -> tuple[int, ...]:
        """Processor-sharing stages whose jobs share with nobody else, ascending."""
        kinds = enumerate(self.skeleton.stages)
        return tuple(i for i, s in kinds if isinstance(s.kind, ProcessorSharing) and i not in self.links)

    @property
    def groups(self) -> int:
        """Groups of jobs that share: one a stage in the order of `sharers`, the last of all flows."""
        return len(self.sharers) + bool(self.links)

    @functools.cached_property
    def group_of_stage(self) -> tuple[int, ...]:
        """Group of the jobs on each stage, -1 where they share nothing."""
        table = {stage: group for group, stage in enumerate(self.sharers)} | dict.fromkeys(self.links, self.groups - 1)
        return tuple(table.get(i, -1) for i in range(len(self.skeleton.stages)))

    @functools.cached_property
    def link_bit(self) -> np.ndarray:
        """The bit of each stage in a set of links; 0 for a stage that is none."""
        bits = [1 << self.links.index(i) if i in self.links else 0 for i in range(len(self.skeleton.stages))]
        return np.asarray(bits, np.int64)

    @functools.cached_property
    def capacity_draws(self) -> int:
        """Draws that finding the rates of all sharing stages takes at most."""
        return sum(draws_in(self.skeleton.stages[i].kind) for i in self.sharers)

    @property
    def has_holds(self) -> bool:
        return bool(self.scopes)

    @property
    def has_cache(self) -> bool:
        return any(self.caching)

    @property
    def has_growth(self) -> bool:
        return any(self.growing)

    @functools.cached_property
    def has_growers(self) -> bool:
        """A growth may have to wait: a growing finite pool without preemption, or with no candidate."""
        return any(g and f for g, f in zip(self.growing, self.finite))

    @functools.cached_property
    def preempts(self) -> bool:
        return any(p.preempt is not None and self.growing[i] for i, p in enumerate(self.skeleton.pools))

    @functools.cached_property
    def memory_stages(self) -> dict[int, tuple[int, ...]]:
        """Step stages whose memory a pool is."""
        return {
            p: tuple(i for i in self.step_stages if self.stages[i].memory == p) for p in range(len(self.skeleton.pools))
        }

    @functools.cached_property
    def holder_order(self) -> tuple[bool, ...]:
        """Pools whose victims stand in the order of their holder entries: no step stage has them as memory."""
        return tuple(
            p.preempt is not None and self.growing[i] and not self.memory_stages[i]
            for i, p in enumerate(self.skeleton.pools)
        )

    def lifo(self, pool: int) -> bool:
        preempt = self.skeleton.pools[pool].preempt
        return preempt is not None and preempt.order.keys in ((Unary("Neg", Ctx("Admission")),), ())

    def lru(self, pool: int) -> bool:
        """Entries leave in the order of their release numbers alone (`last` grows with them)."""
        return is_lru(self.skeleton.pools[pool].evict)

    # ------------------------------------------------------------ draws

    @functools.cached_property
    def init_draws(self) -> int:
        return draws_in(self.skeleton.init)

    @functools.cached_property
    def turn_draws(self) -> int:
        return draws_in(self.skeleton.turn)

    @functools.cached_property
    def state_draws(self) -> tuple[int, ...]:
        """Draws on the session's own stream by each state (its ops and its exit)."""
        return tuple(draws_in(s.ops) + draws_in(s.exit) + draws_in(self.lease_left(s)) for s in self.states)

    def lease_left(self, state: State) -> Any:
        """The lease that the exit of a state leaves, if it closes a scope with one."""
        if not isinstance(state.exit, Leave) or state.scope is None:
            return None
        return self.scopes[self.scope_index[state.scope]].scope.lease

    @functools.cached_property
    def machine_draws(self) -> int:
        """Draws that no session makes at once at most: limits and cost of a step stage, or all capacities."""
        kinds = [s.kind for s in self.skeleton.stages if isinstance(s.kind, Step)]
        return max([self.capacity_draws, *(draws_in((k.budget, k.chunk, k.decode, k.verify, k.cost)) for k in kinds)])

    @functools.cached_property
    def own_draws(self) -> int:
        """Draws of the session's own stream that one pass over the states finds ready; 0 if the program makes none."""
        most = max(self.state_draws, default=0)
        return max(most, min(sum(self.state_draws), DRAWS_PER_BLOCK))

    @functools.cached_property
    def turn_ops(self) -> tuple[int, ...]:
        """`Turn` ops of each state. A pass goes through one state with `Turn` at most (`respond_states`)."""
        return tuple(sum(isinstance(op, Turn) for op in s.ops) for s in self.states)

    @functools.cached_property
    def one_turn(self) -> bool:
        """Whether a session begins one turn and no second one, unless it is preempted."""
        with_turn = [i for i, count in enumerate(self.turn_ops) if count]
        if len(with_turn) != 1 or self.turn_ops[with_turn[0]] != 1:
            return False
        state = self.states[with_turn[0]]
        index = Index(self.skeleton)
        return state.name not in reached(index, successors(index, state))

    @functools.cached_property
    def blocks(self) -> dict[str, range]:
        """Blocks of 8 uniforms that an instance keeps at hand (`uniforms.py`), by what they are for.

        `init`: the next session's; `turn`: those of the turns that a pass may begin, or of the only turn of so many
        sessions; `own`, `gap`, `machine`: a window
        of a stream that holds what is needed at once, wherever in a block it begins.
        """

        def window(draws: int) -> int:
            return (draws + 2 * DRAWS_PER_BLOCK - 2) // DRAWS_PER_BLOCK if draws > 1 else draws

        turns = max(self.turn_ops, default=0) * -(-self.turn_draws // DRAWS_PER_BLOCK)
        turns *= SESSIONS_AHEAD if self.one_turn else 1
        sizes = {
            "init": -(-self.init_draws // DRAWS_PER_BLOCK), "turn": turns, "own": window(self.own_draws),
            # gaps that fill whole blocks never lie across two
            "gap": 1 if self.gap_draws and DRAWS_PER_BLOCK % self.gap_draws == 0 else window(self.gap_draws),
            "machine": window(self.machine_draws), "evict": window(self.evict_draws),
        }  # fmt: skip
        made, first = {}, 0
        for name, size in sizes.items():
            made[name] = range(first, first + size)
            first += size
        return made

    @functools.cached_property
    def gap_draws(self) -> int:
        arrival = self.skeleton.arrival
        if isinstance(arrival, Poisson):
            return 1
        return draws_in(arrival.gap) if isinstance(arrival, Renewal) else 0

    @property
    def open_arrivals(self) -> bool:
        return isinstance(self.skeleton.arrival, (Poisson, Renewal))

    @property
    def listed(self) -> bool:
        return isinstance(self.skeleton.arrival, Listed)

    @property
    def closed(self) -> bool:
        return isinstance(self.skeleton.arrival, Closed)

    @functools.cached_property
    def estimated(self) -> tuple[bool, ...]:
        """Stages of which something reads an online estimate."""
        found: set[int] = set()
        for _, node in walk(self.skeleton):
            if isinstance(node, Price) or (isinstance(node, StageState) and node.fun.startswith("Est")):
                found.update(self.stages_of(node.stage))
        return tuple(i in found for i in range(len(self.skeleton.stages)))

    @functools.cached_property
    def counts_joins(self) -> bool:
        """Whether something reads how many sessions have joined a line."""
        return self.uses(PoolState, "Joined")

    def uses(self, kind: type, fun: str) -> bool:
        """Whether some expression calls a state function."""
        return any(isinstance(n, kind) and n.fun == fun for _, n in walk(self.skeleton))  # type: ignore[attr-defined]

    @functools.cached_property
    def deadlines(self) -> dict[int, Deadline]:
        """Deadlines by state."""
        found = {i: getattr(state.exit, "deadline", None) for i, state in enumerate(self.states)}
        return {i: deadline for i, deadline in found.items() if deadline is not None}

    @property
    def patience(self) -> bool:
        """Whether some state waits in a line until a deadline."""
        return any(isinstance(self.states[i].exit, Enter) for i in self.deadlines)

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        return self.skeleton.gauges

    @property
    def claims(self) -> tuple[Claim, ...]:
        return self.skeleton.claims

    @functools.cached_property
    def aggregates(self) -> bool:
        """Whether a claim reads the observations of the whole run: those before the end of warm-up are kept too."""
        return any(isinstance(node, Agg) for _, node in walk(self.claims))

    @functools.cached_property
    def requires(self) -> tuple[Require, ...]:
        """All `Require` ops, so that a fault can name the one that failed."""
        blocks = [self.skeleton.init, self.skeleton.turn, *(s.ops for s in self.states)]
        return tuple(op for ops in blocks for op in ops if isinstance(op, Require))

    @functools.cached_property
    def respond_states(self) -> tuple[bool, ...]:
        """States that may end a request: `Respond`, or a `Turn` that ends the one before."""
        return tuple(any(isinstance(op, (Respond, Turn)) for op in s.ops) for s in self.states)

    def is_forward(self, i: int, name: str) -> bool:
        return self.state_index[name] > i


def members(parts: tuple[Any, ...], array: str) -> tuple[int, ...]:
    """Places of the members of an array, by their index."""
    found = [(part.index or 0, i) for i, part in enumerate(parts) if part.array == array]
    return tuple(i for _, i in sorted(found))
