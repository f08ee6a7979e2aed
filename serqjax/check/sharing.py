"""Runs over several stages, and latencies: what belongs together, and capacities that are constants.

**Source:** `spec/ir14.md`, section What validation rejects (stages); `spec/semantics.md`, section 9.
"""

from __future__ import annotations

import math

from ..ir.fabric import fabrics
from ..ir.program import ProcessorSharing, Run, State
from .index import Index, Problems, spell
from .values import constant


def check_sharing(index: Index, problems: Problems) -> None:
    """Report runs whose stages cannot be shared, fabrics of two policies, capacities and latencies out of range."""
    for i, state in enumerate(index.program.states):
        if isinstance(state.exit, Run):
            _check_run(index, problems, f"$.states[{i}].exit", state, state.exit)
    for fabric in fabrics(index.program):
        names = ", ".join(f"`{index.program.stages[stage].name}`" for stage in fabric.stages)
        if len(fabric.shares) > 1:
            first = _first_run(index, fabric.stages[0])
            problems.add(
                f"$.states[{first}].exit.share",
                f"runs join the stages {names}, and name the policies {' and '.join(fabric.shares)}",
                "flows over stages that belong together share by one policy",
            )
        for stage in fabric.stages:
            kind = index.program.stages[stage].kind
            if isinstance(kind, ProcessorSharing):
                _check_capacity(index, problems, stage, kind)


def _check_run(index: Index, problems: Problems, here: str, state: State, run: Run) -> None:
    owner = f"state `{state.name}`"
    if run.also and run.share is None:
        problems.add(f"{here}.share", f"{owner}: holds several stages and names no `share`", "MaxMin or Bottleneck")
    if run.share is not None and not run.also:
        problems.add(f"{here}.share", f"{owner}: names a `share` and holds one stage", "name the others in `also`")
    seen: set[int] = set()
    for path, resource in ((f"{here}.stage", run.stage), *((f"{here}.also[{i}]", r) for i, r in enumerate(run.also))):
        members = index.stage_members(resource)
        if not run.also:
            break
        for member in members:
            if not isinstance(index.program.stages[member].kind, ProcessorSharing):
                text = f"{owner}: holds `{spell(resource)}` together with other stages, and it is no processor sharing"
                problems.add(path, text, "only stages of kind ProcessorSharing are shared")
        if len(members) == 1 and members[0] in seen:
            problems.add(path, f"{owner}: holds the stage `{spell(resource)}` twice", "name every stage once")
        if len(members) == 1:
            seen.add(members[0])
    if run.latency is None:
        return
    latency = constant(index, run.latency)
    if latency is not None and not 0 <= latency < math.inf:
        text = f"{owner}: the latency on `{spell(run.stage)}` is {latency:g} seconds"
        problems.add(f"{here}.latency", text, "need a finite number of seconds, 0 or more")
    if any(index.is_step(member) for member in index.stage_members(run.stage)):
        text = f"{owner}: has a latency on `{spell(run.stage)}`, a step stage"
        problems.add(f"{here}.latency", text, "let it pass on a stage of kind Delay before")


def _check_capacity(index: Index, problems: Problems, stage: int, kind: ProcessorSharing) -> None:
    capacity = constant(index, kind.capacity)
    if capacity is None or not 0 < capacity < math.inf:
        problems.add(
            f"$.stages[{stage}].kind.capacity",
            f"stage `{index.program.stages[stage].name}`: is held together with others, and its capacity is "
            + ("computed" if capacity is None else f"{capacity:g}"),
            "the capacity of a shared stage is a constant above 0",
        )


def _first_run(index: Index, stage: int) -> int:
    """The first state that runs on a stage together with others."""
    for i, state in enumerate(index.program.states):
        run = state.exit
        if isinstance(run, Run) and run.also:
            if any(stage in index.stage_members(resource) for resource in (run.stage, *run.also)):
                return i
    return 0
