"""Generated programs of the fragment: oracle = array engine, action by action; oracle = pyserq.

Programs of a structure differ in numbers, seeds, arrivals and session scripts alone: they run as one batch
of one compiled function. A program that fails is shrunk and printed as JSON.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from compare_runs import (
    accepted_by_pyserq,
    as_program,
    compare_with_pyserq,
    first_difference,
    run_engine,
    run_oracle,
    run_pyserq,
)
from generate import NAMES, generate
from helpers import ROOT
from shrink import shrink, to_text, valid_and

from serqjax.report.compare import differences, sample_differences
from serqjax.report.reference import reference_report

#: Structures whose batch is compiled in every run of the tests; the others are marked slow.
CORE = [
    "two_turns_cached", "two_turns_stochastic", "over_reuse", "shorter_turns", "evict_ties", "chunk_tail",
    "serve_general", "preempt_none_cached", "no_block", "evict_attr", "queue_waited", "header_crowd",
    "waiting_oversize", "kv_only", "renewal_drain", "trace_random", "hold_cached_tight", "bare_engine",
    "two_engines_split", "grow_in_engine", "memory_cached", "memory_aging", "nested", "grow_tail",
    "control", "zero_work", "draws", "closed_network", "ps_closed", "preempted_sharers", "ps_engine",
    "legs_rejected_cached",
]  # fmt: skip
#: Programs per structure: at least 500 in all.
PER_STRUCTURE = -(-500 // len(CORE))
#: With the reference the runs are cheap: a few more.
PER_STRUCTURE_REFERENCE = int(os.environ.get("SERQJAX_FUZZ", "12"))
#: Recorded by `oracle/make_case_truth.py`.
STORED = sorted((ROOT / "tests" / "data" / "cases").glob("*.json"))


def programs_of(name: str, count: int, label: str = "") -> list[Any]:
    """Programs of a structure that the reference accepts; the k-th depends on the name and k alone."""
    return accepted_by_pyserq(lambda rng: generate(name, rng), f"{label}{name}", count)


def engine_difference(source: Any) -> str | None:
    """The first difference of engine (a) and oracle (b) on one program."""
    program = as_program(source)
    runs = run_engine([program])
    assert runs is not None
    return first_difference(runs[0], run_oracle(program))


def reference_difference(source: Any) -> str | None:
    """The first difference of the oracle and pyserq on one program."""
    program = as_program(source)
    return compare_with_pyserq(source, run_oracle(program), program)


def report_failure(source: Any, difference: Any, tries: int) -> str:
    """The shrunk program as JSON with what differs."""

    def place(found: str) -> str:
        """What the first difference is about, without its numbers."""
        return re.sub(r"[^a-z_.]+", " ", found.split(":")[0])

    first = difference(source)
    if first is None:
        return "the difference does not come back when the program runs again"

    def fails(candidate: Any) -> bool:
        try:
            found = difference(candidate)
        except Exception:
            return False  # another failure than the one looked for
        return found is not None and place(found) == place(first)

    small = shrink(source, valid_and(fails), tries=tries)
    return f"{difference(small)}\nprogram (shrunk):\n{to_text(small)}"


def test_there_are_enough_structures() -> None:
    assert set(CORE) <= set(NAMES) and len(CORE) >= 24 and len(CORE) * PER_STRUCTURE >= 500


@pytest.mark.parametrize("name", NAMES)
def test_a_structure_is_one_structure(name: str) -> None:
    from serqjax.ir.structure import skeleton

    shapes = {skeleton(as_program(p))[0] for p in programs_of(name, 6)}
    assert len(shapes) == 1


@pytest.mark.parametrize("name", NAMES)
def test_oracle_equals_the_reference(name: str) -> None:
    for source in programs_of(name, PER_STRUCTURE_REFERENCE):
        found = reference_difference(source)
        if found:
            pytest.fail(report_failure(source, reference_difference, tries=300))


@pytest.mark.parametrize(
    "name", [name if name in CORE else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_engine_equals_the_oracle(name: str) -> None:
    sources = programs_of(name, PER_STRUCTURE)
    sources += [json.loads(path.read_text())["program"] for path in STORED if path.stem == name]
    programs = [as_program(p) for p in sources]
    runs = run_engine(programs)
    for source, program, run in zip(sources, programs, runs):
        found = first_difference(run, run_oracle(program))
        if found:
            alone = engine_difference(source)
            if alone is None:
                pytest.fail(f"differs in the batch only:\n{found}\nprogram:\n{to_text(source)}")
            pytest.fail(report_failure(source, engine_difference, tries=40))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_answers_of_the_reference(path: Path) -> None:
    """The oracle on one program per structure against recorded answers; needs no pyserq.

    The array engine runs these programs in the batch of their structure below.
    """
    stored = json.loads(path.read_text())
    program = as_program(stored["program"])
    raw = run_oracle(program)
    found = sample_differences(program, raw, stored["samples"])
    found += differences(reference_report(program, raw), stored["report"])
    assert not found, f"oracle against {stored['producer']}:\n" + "\n".join(found)


def test_the_shrinker_keeps_the_failure_and_makes_it_small() -> None:
    """A made-up fault (the run preempts) is shrunk to few sessions and still shows it."""

    def preempts(source: Any) -> bool:
        report = run_pyserq(source).report
        return bool(report) and any(pool["preemptions"] for pool in report["pools"])

    source = next(p for p in programs_of("hold_plain", 40) if preempts(p))
    small = shrink(source, valid_and(preempts), tries=400)
    assert preempts(small)
    assert len(small["arrival"]["Sessions"]) <= 3
    assert len(json.dumps(small)) < len(json.dumps(source))
