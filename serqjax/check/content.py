"""Pools whose blocks are shared by content: what such a pool needs, and the recorded contents.

**Source:** `serqjax/ir/program.py`, `Pool.sharing`; `design.md`, section 2.2.
"""

from __future__ import annotations

from ..ir.expr import Inf, Resource
from ..ir.program import Drop, Listed, Load, Recorded, Release, Segment, Shrink, is_lru
from .index import Index, Problems
from .values import constant

_BITS = 64


def check_content(index: Index, problems: Problems) -> None:
    """Report pools that cannot share their blocks, chains that cannot be, and contents without a session."""
    program = index.program
    for i, pool in enumerate(program.pools):
        here, owner = f"$.pools[{i}]", f"pool `{pool.name}`"
        if pool.sharing == "own":
            if pool.content:
                text = f"{owner}: says what its units contain, but nobody shares them"
                problems.add(f"{here}.content", text, 'set `sharing` to "content", or remove `content`')
            continue
        if pool.block is None:
            problems.add(f"{here}.block", f"{owner}: shares blocks, but has no `block`", "give the units of a block")
        if isinstance(pool.cap, Inf):
            problems.add(f"{here}.cap", f"{owner}: shares blocks, of which there are so many", "give a finite cap")
        if not is_lru(pool.evict):
            text = f"{owner}: shares blocks, which are given out again in the order of their release"
            problems.add(f"{here}.evict", text, "leave `evict` out")
        if pool.on_end == "free":
            text = f"{owner}: shares blocks, so that a session has no entry of its own to free"
            problems.add(f"{here}.on_end", text, "leave `on_end` out")
        if pool.spill is not None or pool.reserve_held:
            field = "reserve_held" if pool.spill is None else "spill"
            text = f"{owner}: shares blocks, which have no `{field}`"
            problems.add(f"{here}.{field}", text, f"leave `{field}` out")
        _check_chain(index, problems, here, owner, pool.content)

    def shares(resource: Resource) -> bool:
        return any(program.pools[p].sharing == "content" for p in index.pool_members(resource))

    for i, pool in enumerate(program.pools):
        if pool.spill is not None and shares(pool.spill.to):
            text = f"pool `{pool.name}`: spills into `{pool.spill.to}`, which shares blocks by content"
            problems.add(f"$.pools[{i}].spill.to", text, "spill into a pool of entries")
    for i, scope in enumerate(program.scopes):
        if scope.lease is not None and shares(scope.lease.pool):
            text = f"scope `{scope.name}`: leases a pool that shares blocks by content"
            problems.add(f"$.scopes[{i}].lease.pool", text, "lease a pool whose units are the session's own")
    for i, state in enumerate(program.states):
        for j, op in enumerate(state.ops):
            if isinstance(op, Drop) and shares(op.pool):
                text = f"state `{state.name}`: drops the session's entry in a pool that shares blocks by content"
                problems.add(f"$.states[{i}].ops[{j}]", text, "remove it: such a pool has no entry of one session")
            elif isinstance(op, Load) and shares(op.pool):
                text = f"state `{state.name}`: loads units of a pool that shares blocks by content"
                problems.add(f"$.states[{i}].ops[{j}]", text, "compute them by a run, so that they get content")
        if isinstance(state.exit, Shrink | Release) and shares(state.exit.pool):
            does = "shrinks" if isinstance(state.exit, Shrink) else "releases"
            text = f"state `{state.name}`: {does} a hold of a pool that shares blocks by content"
            problems.add(f"$.states[{i}].exit", text, "give the whole scope back")
    _check_contents(index, problems)


def _check_chain(
    index: Index, problems: Problems, here: str, owner: str, chain: tuple[Segment | Recorded, ...]
) -> None:
    for k, part in enumerate(chain):
        at = f"{here}.content[{k}]"
        if isinstance(part, Segment) and part.length is None and k < len(chain) - 1:
            problems.add(f"{at}.length", f"{owner}: content follows one without an end", "give it a `length`")
        length = None if part.length is None else constant(index, part.length)
        if length is not None and not length >= 0:
            problems.add(f"{at}.length", f"{owner}: the length is {length:g} units", "need 0 or more")
        if isinstance(part, Recorded):
            span = index.number(part.span)
            if span is not None and not (span >= 1 and span == int(span)):
                text = f"{owner}: a recorded content has {span:g} units"
                problems.add(f"{at}.span", text, "need a whole number of units, 1 or more")
            if any(isinstance(other, Recorded) for other in chain[:k]):
                problems.add(at, f"{owner}: uses the recorded contents twice", "name them once")


def _check_contents(index: Index, problems: Problems) -> None:
    program = index.program
    source, path, owner = program.trace, "$.trace", "trace"
    rows = 0 if source is None else len(source.turns)
    if source is None and isinstance(program.arrival, Listed):
        source, path, owner = program.arrival, "$.arrival", "arrival"
        rows = len(program.arrival.at)
    contents = () if source is None else source.contents
    if contents and len(contents) != rows:
        text = f"{owner}: {len(contents)} rows of contents for {rows} sessions"
        problems.add(f"{path}.contents", text, "give each session one row, which may be empty")
    for i, row in enumerate(contents):
        if any(not -(2 ** (_BITS - 1)) <= name < 2**_BITS for name in row):
            problems.add(f"{path}.contents[{i}]", f"{owner}: a content has more than {_BITS} bits", "number them anew")
            break
    for i, pool in enumerate(program.pools):
        for k, part in enumerate(pool.content):
            if isinstance(part, Recorded) and not contents:
                text = f"pool `{pool.name}`: uses the recorded contents of sessions, but none are recorded"
                problems.add(f"$.pools[{i}].content[{k}]", text, "give `contents` with the sessions")
