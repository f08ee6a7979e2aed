"""Holds that reserve, are given back in part, lease, spill, or wait for times of their own."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from compare_runs import (
    accepted_by_pyserq,
    as_program,
    compare_with_pyserq,
    exact_difference,
    first_difference,
    run_engine,
    run_oracle,
    run_together,
)
from generate_pools import NAMES, forked_leases, generate, leased
from ir14_builder import DELAY, Builder, Json, S, at, draw, hold, num, of_pool, pool_state, ref, see, work

from serqjax import ir
from serqjax.check import check_program, unsupported
from serqjax.engine import Capacities, simulate, simulate_many
from serqjax.ir.structure import skeleton
from serqjax.report.raw import Verdict

#: Structures whose batch is compiled in every run of the tests; the others are marked slow.
CORE = ["leases", "timed_lines", "timed_lines_keyed"]
COUNT = 16


def programs_of(name: str, count: int) -> list[Json]:
    """Programs of a structure that the reference accepts; the k-th depends on the name and k alone."""
    return accepted_by_pyserq(lambda rng: generate(name, rng), name, count)


@pytest.mark.parametrize("name", NAMES)
def test_oracle_equals_the_reference(name: str) -> None:
    sources = programs_of(name, COUNT)
    programs = [as_program(source) for source in sources]
    assert len({skeleton(program)[0] for program in programs}) == 1
    for k, (source, program) in enumerate(zip(sources, programs)):
        assert unsupported(program) == []
        found = compare_with_pyserq(source, run_oracle(program), program)
        assert found is None, f"program {k} of {name}:\n{found}"


@pytest.mark.parametrize(
    "name", [name if name in CORE else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_engine_equals_the_oracle(name: str) -> None:
    programs = [as_program(generate(name, Random(f"{name}/{k}"))) for k in range(COUNT)]
    for k, (program, run) in enumerate(zip(programs, run_engine(programs))):
        found = first_difference(run, run_oracle(program))
        assert found is None, f"program {k} of {name}, engine (a) and oracle (b):\n{found}"


def test_leases_of_legs_pass_to_their_session() -> None:
    pytest.importorskip("pyserq")
    for k in range(COUNT):
        source = forked_leases(Random(f"legs/{k}"), by_legs=True)
        program = as_program(source)
        found = compare_with_pyserq(source, run_oracle(program), program)
        assert found is None, f"program {k}:\n{found}"
        problems = {problem.problem for problem in unsupported(program)}
        assert problems and all("a lease that a leg takes" in problem for problem in problems)


def impatient(program: ir.Program, rng: Random) -> ir.Program:
    """The program with deadlines wherever a session blocks: it goes to its end, and its scopes are closed."""
    (end,) = (state.name for state in program.states if isinstance(state.exit, ir.End))
    states = []
    for state in program.states:
        if isinstance(state.exit, ir.Run | ir.Enter) and states:
            deadline = ir.Deadline(after=ir.Num(rng.randint(1, 8) / 2), target=end)
            state = msgspec.structs.replace(state, exit=msgspec.structs.replace(state.exit, deadline=deadline))
        states.append(state)
    return msgspec.structs.replace(program, states=tuple(states))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leases", "give_parts_lifo", "held_reserves_lifo", "spills", "timed_lines"])
def test_deadlines_cut_holds_short(name: str) -> None:
    """A scope that a deadline closes is released, not leased."""
    rngs = [Random(f"late/{name}/{k}") for k in range(COUNT)]
    programs = [impatient(as_program(generate(name, rng)), rng) for rng in rngs]
    for k, (program, run) in enumerate(zip(programs, run_engine(programs))):
        check_program(program)
        found = first_difference(run, run_oracle(program))
        assert found is None, f"program {k} of {name}, engine (a) and oracle (b):\n{found}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["split_leases", "split_leases_cached", "engine_reserve_held"])
def test_coalesced_is_uncoalesced(name: str) -> None:
    programs = [as_program(generate(name, Random(f"window/{name}/{k}"))) for k in range(COUNT)]
    seeds = [program.seed for program in programs]
    runs = [simulate_many(programs, seeds, coalesce=coalesce) for coalesce in (True, False)]
    for k, (together, apart) in enumerate(zip(*runs)):
        assert exact_difference(together, apart) is None, f"program {k} of {name}"


# ---------------------------------------------------------------- cases worked out by hand


def one_pool(session: Any, cap: float = 20.0, block: float | None = None, sessions: int = 1, **fields: Any) -> Json:
    """A pool, a delay and an observation `seen`; `session(b, pool, tool, seen)` gives the statements."""
    b = Builder()
    pool, tool, seen = b.pool("mem", cap, block), b.stage("tool", DELAY), b.observe("seen")
    b.pools[pool].update(fields)
    return b.finish(Random(1), {"Batch": sessions}, session(b, pool, tool, seen), horizon=40)


def test_a_lease_is_used_until_it_is_released() -> None:
    """Held from 0 to 1, leased from then on: used at 1, 4 of 20; free after the release at 3."""

    def session(b: Builder, pool: int, tool: int, seen: int) -> list[Json]:
        used = (S, see(seen, pool_state("Used", pool)))
        statement = leased(hold([(pool, num(4), None)], [(S, work(tool, num(1)))]), pool, num(9))
        release = (S, {"Release": ref(pool)})
        return [(S, statement), used, (S, work(tool, num(2))), used, release, used]

    (_, raw), *_ = run_together([one_pool(session)])
    assert raw.samples_value.tolist() == [4.0, 4.0, 0.0]
    assert raw.samples_tick.tolist() == [10**9, 3 * 10**9, 3 * 10**9]
    assert raw.pools[0].used_tick == 4 * 3 * 10**9


@pytest.mark.parametrize(
    ("allocated", "block", "shrink", "left"),
    [(48, 16, 3, 48), (48, 16, 16, 32), (48, 16, 20, 32), (48, 16, 40, 16), (7, None, 2, 5)],
)
def test_shrink_gives_whole_blocks_back(allocated: int, block: int | None, shrink: int, left: int) -> None:
    def session(b: Builder, pool: int, tool: int, seen: int) -> list[Json]:
        body = [
            (S, {"Shrink": [ref(pool), of_pool(pool, num(shrink))]}),
            (S, see(seen, pool_state("Allocated", pool))),
            (S, work(tool, num(1))),
        ]
        return [(S, hold([(pool, num(allocated), None)], body))]

    source = one_pool(session, cap=64.0, block=block)
    program = as_program(source)
    raw = run_oracle(program)
    assert raw.samples_value.tolist() == [left]
    assert compare_with_pyserq(source, raw, program) is None


def test_a_load_beyond_the_allocation_ends_its_own_instance() -> None:
    def session(b: Builder, pool: int, tool: int, seen: int) -> list[Json]:
        load = (S, {"Load": [ref(pool), of_pool(pool, at(b.attr("u", "Size")))]})
        return [(S, work(tool, num(1))), (S, hold([(pool, num(4), None)], [load, (S, work(tool, num(1)))]))]

    source = one_pool(session)
    slot = source["attrs"].index("u")
    program = as_program(source)
    runs = []
    for units in (4.0, 5.0):
        rows = {"Sessions": [{"attrs": [[slot, units]]}]}
        runs.append(as_program({**source, "arrival": rows}))
    for raw in (*run_engine(runs), *map(run_oracle, runs)):
        assert raw.verdict in (Verdict.drained, Verdict.error)
    fits, passes = run_engine(runs)
    assert fits.verdict is Verdict.drained and passes.verdict is Verdict.error
    assert passes.cause == "session 0: a load passes the units allocated, in pool `mem`, at t = 1 s"
    assert passes.cause == run_oracle(runs[1]).cause
    assert program.pools[0].name == "mem"


def test_a_full_table_of_leases_grows() -> None:
    def session(b: Builder, pool: int, tool: int, seen: int) -> list[Json]:
        statement = leased(hold([(pool, num(1), None)], [(S, work(tool, num(1)))]), pool, num(5))
        return [(S, statement), (S, work(tool, num(7)))]

    program = as_program(one_pool(session, sessions=6))
    (few,) = simulate(program, [1], capacities=Capacities(slots=32, leases=2))
    assert few is not None and few.verdict is Verdict.capacity and "leases" in few.cause
    (enough,) = simulate(program, [1])
    assert enough is not None and first_difference(enough, run_oracle(program, 1)) is None


# ---------------------------------------------------------------- what the array engine leaves to the oracle


def refused(change: Any) -> list[str]:
    """Problems of the array engine with a changed program of spills."""
    source = generate("spills_chain", Random("spills_chain/0"))
    change(source)
    return [problem.problem for problem in unsupported(as_program(source))]


def test_what_the_array_engine_does_not_run_is_named() -> None:
    def draws(source: Json) -> None:
        source["pools"][0]["spill"]["when"] = draw("Bernoulli", 0.5)

    def keyed(source: Json) -> None:
        source["pools"][0]["evict"] = {"By": [draw("Uniform", 0, 1)]}

    def blocks(source: Json) -> None:
        source["pools"][1]["block"] = source["pools"][0]["block"] + 1

    def state(source: Json) -> None:
        source["pools"][0]["spill"]["work"] = pool_state("Used", 1)

    def both(source: Json) -> None:
        takes = next(
            s["Hold"]["pools"] for s in source["blocks"][source["session"]] if isinstance(s, dict) and "Hold" in s
        )
        takes.append([ref(1), num(1), None])

    assert refused(lambda source: None) == []
    for change, text in (
        (draws, "draws of a spill into a pool that spills itself"), (keyed, "draws in eviction keys"),
        (blocks, "whose blocks are of another size"), (state, "`Used` in the work of a spill"),
        (both, "a hold of `mem` and of `host`, into which it spills"),
    ):  # fmt: skip
        found = refused(change)
        assert found and all(text in problem for problem in found), (text, found)
    lease = as_program(generate("leases", Random("leases/0")))
    reads = ir.Lease(pool="mem", after_s=ir.PoolState("Free", "mem"))
    scopes = [msgspec.structs.replace(s, lease=reads) if s.lease else s for s in lease.scopes]
    problems = unsupported(msgspec.structs.replace(lease, scopes=tuple(scopes)))
    assert problems and all("in the time of a lease" in problem.problem for problem in problems)
    preempting = generate("leases", Random("leases/0"))
    preempting["pools"][0]["preempt"] = {"By": {"keys": [{"Ctx": "Position"}]}}
    problems = unsupported(as_program(preempting))
    assert problems and all("leases of `mem`, a pool that preempts" in problem.problem for problem in problems)
