"""On a CPU the loop of an instance is one function: nothing in it has to run operation by operation (`xla.py`)."""

from __future__ import annotations

import dataclasses
import re
from random import Random
from typing import Any

import pytest
from compare_runs import as_program
from generate import STRUCTURES
from test_recorded_prefixes import made_trace, program_of

from serqjax import traces
from serqjax.engine import Capacities, host
from serqjax.engine.loop import loop
from serqjax.engine.make_plan import make_plan
from serqjax.engine.plan import Plan
from serqjax.engine.step import Config
from serqjax.engine.xla import prepare
from serqjax.ir.program import Program


class Asked(Exception):
    """The loop would run now."""


def compiled(program: Program, capacities: Capacities | None) -> str:
    """The text of the compiled loop of a program."""
    arguments: list[Any] = []

    def not_run(plan: Plan, config: Config) -> Any:
        def keep(*given: Any) -> None:
            arguments[:] = [plan, config, *given]
            raise Asked

        return keep

    prepare()
    made = {id(program): make_plan(program)}
    with host.settings():
        batch = host.Batch.build(made[id(program)][0], made, [program], [1], Config(), False, False)
        batch = dataclasses.replace(batch, make_loop=not_run)
        with pytest.raises(Asked):
            batch.run(capacities, host.SharedProgress(host.NoProgress(), 1))
        plan, config, *given = arguments
        return loop(plan, config).lower(*given).compile().as_text()


@pytest.mark.parametrize("kind", ["shared_blocks", "many_sessions"])
def test_the_loop_is_one_function(kind, tmp_path):
    """Also where blocks are shared by content, and where a livelock is sought among more sessions than are compared
    each with each."""
    if kind == "shared_blocks":
        trace = traces.read(made_trace(tmp_path, 8))
        text = compiled(program_of(trace, block=64, blocks=80, budget=1500, seqs=6), None)
    else:
        program = as_program(STRUCTURES["two_turns_cached"](Random(1)))
        text = compiled(program, Capacities(slots=512))
    assert not re.findall(r" (scatter|sort|custom-call|rng-bit-generator)\(", text)
    loops = [line for line in text.splitlines() if " while(" in line]
    # what XLA compiles as one function is the whole of a computation that is called
    assert loops and all(line.strip().startswith("ROOT") for line in loops)
    assert 'xla_cpu_small_call="true"' in text
