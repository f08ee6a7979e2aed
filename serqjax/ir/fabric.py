"""Fabrics: processor-sharing stages that runs hold together, so that their rates are found together.

A stage named by a run with `also` is *shared*. Stages that some run joins, directly or through others, form a
fabric; its flows share by one policy.

**Source:** `spec/semantics.md`, section 9; `spec/ir14.md`, CStageKind.
"""

from __future__ import annotations

import dataclasses

from .expr import Resource
from .program import Program, Run, Share

#: Loads of shared stages are counted in so many parts of the capacity, so that they add up alike in any order.
PARTS = 1 << 30
#: Fractions of work left (seconds, tokens) likewise, as fine as 2**16 jobs allow in 63 bits.
WORK_PARTS = 1 << 46


@dataclasses.dataclass(frozen=True)
class Fabric:
    """`stages`: places in `Program.stages`, ascending; `shares`: the policies that its runs name (one, if valid)."""

    stages: tuple[int, ...]
    shares: tuple[Share, ...]


def fabrics(program: Program) -> tuple[Fabric, ...]:
    """All fabrics of a program, by their first stage; structure alone decides."""
    joined: list[tuple[set[int], set[Share]]] = []
    for state in program.states:
        run = state.exit
        if not isinstance(run, Run) or not run.also:
            continue
        stages = {stage for resource in (run.stage, *run.also) for stage in _may_mean(program, resource)}
        shares: set[Share] = set() if run.share is None else {run.share}
        apart = []
        for other, policies in joined:
            if other & stages:
                stages |= other
                shares |= policies
            else:
                apart.append((other, policies))
        joined = [*apart, (stages, shares)]
    found = [Fabric(tuple(sorted(stages)), tuple(sorted(shares))) for stages, shares in joined if stages]
    return tuple(sorted(found, key=lambda fabric: fabric.stages))


def shared_stages(program: Program) -> tuple[int, ...]:
    """Places of all shared stages, ascending."""
    return tuple(sorted(stage for fabric in fabrics(program) for stage in fabric.stages))


def _may_mean(program: Program, resource: Resource) -> list[int]:
    """Places of the stages that a resource may mean: all members of an array where the index is computed."""
    if isinstance(resource, str):
        return [i for i, stage in enumerate(program.stages) if stage.name == resource]
    return [i for i, stage in enumerate(program.stages) if stage.array == resource.array]
