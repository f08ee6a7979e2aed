"""Six faults planted in the array engine: each must be caught by comparing it with the oracle.

A mutant replaces a line of one engine function. The unmutated engine agrees with the oracle on the same programs
(test_generated.py), so that what is found here is the fault. Where the engine's text has moved the test says so.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from typing import Any

import pytest
from compare_runs import as_program, first_difference, run_engine, run_oracle
from test_generated import CORE, PER_STRUCTURE, programs_of

engine = pytest.importorskip("serqjax.engine")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`function` (a dotted place below `serqjax.engine`) with `changes`, tried on generated programs of `structure`."""

    name: str
    function: str
    changes: tuple[tuple[str, str], ...]
    structure: str


MUTANTS = [
    Mutant(
        "growth not reserved before admission",
        "planner.newcomer",
        (
            (
                "asks = spent &",
                "asks = w.idle & w.planning & (w.cur < 0) & ~w.run_ready & (w.spawning == 0) & (w.grow < 0) &",
            ),
        ),
        "chunk_tail",
    ),
    Mutant(
        "a preempted request resumes from 0",
        "admission.preempt",
        (('attr_set(w, slot, "computed", computed, on)', 'attr_set(w, slot, "computed", 0.0, on)'),),
        "kv_only",
    ),
    Mutant("admission after a preemption", "planner.newcomer", ((" & ~w.preempting", ""),), "chunk_tail"),
    Mutant(
        "equal ages are evicted by slot",
        "admission.evict",
        (
            (
                "    found, row = least(sequence, alive)\n    found = found < FAR\n",
                "    ages = [x.astype(jnp.float64) for x in (w.entry_last, w.entry_slot)]\n"
                "    found, row = select(ages, sequence, alive)\n",
            ),
        ),
        "evict_ties",
    ),
    Mutant("the last token is a hit", "admission.consume", (("jnp.minimum(size, usable)", "size"),), "shorter_turns"),
    Mutant(
        "a run of no work goes on at once",
        "session.Pass.run_on",
        (("self.again = self.again | nothing", "pass"), ("    self.block(here)", "    self.block(enters)")),
        "zero_work",
    ),
]


def mutated(function: Any, changes: tuple[tuple[str, str], ...]) -> Any:
    """The function with its text changed; each change must meet exactly one place."""
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert text.count(old) == 1, f"{function.__qualname__}: {old!r} stands {text.count(old)} times: move the mutant"
        text = text.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(text, inspect.getsourcefile(function) or "mutant", "exec"), function.__globals__, made)
    return made[function.__name__]


def clear_compiled() -> None:
    from serqjax.engine import loop

    loop.loop.cache_clear()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "_"))
def test_a_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mutant.structure in CORE  # there the unmutated engine is compared on the same programs
    module, *path = mutant.function.split(".")
    owner = __import__(f"serqjax.engine.{module}", fromlist=["_"])
    for part in path[:-1]:
        owner = getattr(owner, part)
    monkeypatch.setattr(owner, path[-1], mutated(getattr(owner, path[-1]), mutant.changes))
    clear_compiled()
    try:
        programs = [as_program(p) for p in programs_of(mutant.structure, PER_STRUCTURE)]
        runs = run_engine(programs)
        assert runs is not None
        found = [first_difference(run, run_oracle(program)) for run, program in zip(runs, programs)]
    finally:
        clear_compiled()
    caught = [f for f in found if f]
    print(f"{len(caught)} of {len(found)} programs differ; the first:\n{caught[0] if caught else None}")
    assert caught, f"{mutant.name}: nothing in {len(found)} programs of `{mutant.structure}` shows it"
