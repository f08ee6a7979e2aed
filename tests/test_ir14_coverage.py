"""Every tag of serQ IR 14 is generated, or refused by name; small structures with what the others leave out."""

from __future__ import annotations

from random import Random
from typing import Any

import generate
import generate_pools
import pytest
import test_generated
import test_measures
import test_pools
from compare_runs import accepted_by_pyserq, as_program, compare_with_pyserq, first_difference, run_engine, run_oracle
from generate_rest import REST
from ir14_tags import REFUSED, TAGS, tags_of
from measured import MEASURED
from test_content import overlapping
from test_importer_messages import REFUSED as MESSAGES

from serqjax.ir.structure import skeleton

#: Compiled in every run of the tests: those without an engine or shared blocks, two or three seconds each.
QUICK = set(REST) - {"requeued", "held_chain"}
COUNT = 12


def test_enough_is_run_every_time() -> None:
    """pyserq = oracle = array engine, over structures that are compiled in every run of the tests."""
    counts = {name: test_generated.PER_STRUCTURE for name in test_generated.CORE}
    counts |= {name: test_pools.COUNT for name in test_pools.CORE}
    counts |= {name: test_measures.PER_ENGINE for name in test_measures.QUICK}
    counts |= {name: COUNT for name in QUICK}
    assert len(counts) >= 60 and sum(counts.values()) >= 300


@pytest.fixture(scope="module")
def generated() -> dict[str, set[str]]:
    """Structure -> the tags of some of its programs."""
    structures: dict[str, Any] = {**generate.STRUCTURES, **generate_pools.STRUCTURES, **MEASURED, **REST}
    made = {name: [make(Random(f"tags/{name}/{k}")) for k in range(2)] for name, make in structures.items()}
    made["chained requests"] = [overlapping(seed) for seed in range(2)]
    return {name: set().union(*map(tags_of, programs)) for name, programs in made.items()}


def test_every_tag_is_generated(generated: dict[str, set[str]]) -> None:
    seen = set().union(*generated.values())
    never = {tag: f"spec/ir14.md, {TAGS[tag]}" for tag in sorted(set(TAGS) - seen)}
    assert not never, f"never generated: {never}"
    assert not seen - set(TAGS), f"generated, but not in the list of tags: {sorted(seen - set(TAGS))}"


def test_a_tag_that_is_missing_is_noticed(generated: dict[str, set[str]]) -> None:
    """Without the structure that alone has it, a tag is never generated."""
    without = set().union(*(tags for name, tags in generated.items() if name != "nobody"))
    assert set(TAGS) - without == {"arrival.None"}


def test_what_is_not_generated_is_refused_by_name() -> None:
    """`test_importer_messages.py` runs each row of its table: what is changed, where, and the words."""
    assert not set(REFUSED) & set(TAGS)
    for tag, row in REFUSED.items():
        _, place, words = MESSAGES[row]
        assert place.startswith("$.") and words, tag


@pytest.mark.parametrize("name", REST)
def test_oracle_equals_the_reference(name: str) -> None:
    sources = accepted_by_pyserq(REST[name], name, COUNT)
    assert len({skeleton(as_program(source))[0] for source in sources}) == 1
    for k, source in enumerate(sources):
        program = as_program(source)
        found = compare_with_pyserq(source, run_oracle(program), program)
        assert found is None, f"program {k} of {name}:\n{found}"


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in REST])
def test_engine_equals_the_oracle(name: str) -> None:
    programs = [as_program(source) for source in accepted_by_pyserq(REST[name], name, COUNT)]
    for k, (program, run) in enumerate(zip(programs, run_engine(programs))):
        found = first_difference(run, run_oracle(program))
        assert found is None, f"program {k} of {name}, engine (a) and oracle (b):\n{found}"
