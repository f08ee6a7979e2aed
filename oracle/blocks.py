"""Pools whose blocks are shared by content, as a vLLM engine shares its prefix cache.

A block has content once all its units are computed, or are certain to be in the iteration that is being planned (in a
pool that finds blocks when they are `released`: from then on, and only if no other block has this content). Content
is a chain: block j of two sessions is the same if everything before it is the same too. A session that is admitted
*hits* the longest run of blocks, from its start, whose contents are in the pool, held by others or by nobody; of
several copies of one content it takes the one that got it first. Blocks that nobody holds any more stand in one
queue in the order in which they are given out again: those of one release with the last one first, and those without
content in front of all others, or in the same order (`uncached`). A block given out again loses its content.

**Source:** vLLM's `kv_cache_manager` and `block_pool`, as recorded in `oracle/vllm`; design.md section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from serqjax.ir import program as ir
from serqjax.ir.structure import number
from serqjax.report.raw import Action

from .expressions import EPS, Look, amount, bad_amount

if TYPE_CHECKING:
    from .machine import Machine
    from .pools import Pool

NO_CONTENT = -1


@dataclass(slots=True, eq=False)
class Block:
    """`count`: holds that have it. `content`: of a chain (`Chain.content`), or none."""

    content: int = NO_CONTENT
    count: int = 1


@dataclass(slots=True, eq=False)
class Part:
    """Units `start` to `end` of a session are the first ones of what is called `key`."""

    key: tuple[str, float]
    start: float
    end: float


@dataclass(slots=True, eq=False)
class Chain:
    """What a session's blocks contain, block by block, as far as somebody has asked. `at`: the part where they end."""

    parts: list[Part]
    contents: list[int] = field(default_factory=list)
    at: int = 0


@dataclass(slots=True, eq=False)
class Held:
    """The blocks of one hold in the order of its units: it found `found` of them, `named` have content."""

    chain: Chain | None
    blocks: list[Block]
    found: int
    named: int


class Blocks:
    """The blocks of one pool. `pool.used` counts a block once, however many holds have it."""

    def __init__(self, machine: Machine, pool: Pool):
        self.machine, self.pool = machine, pool
        compiler, spec = machine.compiler, pool.pool
        self.size = pool.block or 1.0
        self.total = int(pool.cap // self.size)
        self.empty = self.total  # blocks without content in front of the queue
        self.queue: dict[Block, None] = {}  # blocks that nobody holds, the next to be given out first
        self.copies: dict[int, dict[Block, None]] = {}  # by content, in the order in which they got it
        self.names: dict[tuple, int] = {}  # a block's predecessor and its units -> content
        self.open: dict[Held, None] = {}
        self.parts = [
            (compiler.expr(part.key), compiler.optional(part.length)) if isinstance(part, ir.Segment)
            else (number(machine.program, part.span) or 0.0, compiler.expr(part.length))
            for part in spec.content
        ]  # fmt: skip
        source = machine.program.trace or machine.program.arrival
        self.recorded = getattr(source, "contents", ())

    # ------------------------------------------------------------ contents

    def chain(self, look: Look) -> Chain:
        """What the blocks of the session that asks contain, by its attributes now."""
        assert look.session is not None
        parts: list[Part] = []
        start = 0.0
        for first, length in self.parts:
            if not callable(first):  # recorded contents
                end = start + amount(length(look), look.session, self.pool.where) if length else start
                row = self.recorded[look.session.script] if self.recorded else ()
                for name in row:
                    stop = min(start + first, end)
                    if stop > start:
                        parts.append(Part(("recorded", name), start, stop))
                        start = stop
                continue
            key = first(look)
            if key != key:
                raise bad_amount(look.session, self.pool.where)
            end = float("inf") if length is None else start + amount(length(look), look.session, self.pool.where)
            if end > start:
                parts.append(Part(("content", key), start, end))
                start = end
        parts.append(Part(("own", float(look.session.serial)), start, float("inf")))  # after an endless part: nothing
        latest = look.session.chains.get(self.pool.index)
        if latest is not None and _same(latest.parts, parts):
            return latest
        chain = look.session.chains[self.pool.index] = Chain(parts)
        return chain

    def content(self, chain: Chain, j: int) -> int:
        """The content of block `j` of a chain."""
        while len(chain.contents) <= j:
            before = chain.contents[-1] if chain.contents else NO_CONTENT
            low, high = len(chain.contents) * self.size, (len(chain.contents) + 1) * self.size
            units = []
            while True:
                part = chain.parts[chain.at]
                start = max(low, part.start)
                units.append((part.key, start - part.start, min(high, part.end) - start))
                if part.end > high:
                    break
                chain.at += 1
                if part.end == high:
                    break
            chain.contents.append(self.names.setdefault((before, *units), len(self.names)))
        return chain.contents[j]

    def hit(self, chain: Chain) -> Iterator[Block]:
        """The longest run of blocks from the start of a chain that the pool has."""
        j = 0
        while copies := self.copies.get(self.content(chain, j)):
            yield next(iter(copies))
            j += 1

    def found(self, look: Look) -> float:
        """Units of the longest run that the session finds."""
        return sum(self.size for _ in self.hit(self.chain(look)))

    def usable(self, look: Look, most: float) -> list[Block]:
        """The blocks that a hold of at most `most` units from the cache would share."""
        blocks: list[Block] = []
        for block in self.hit(self.chain(look)):
            if (len(blocks) + 1) * self.size > most + EPS:
                break
            blocks.append(block)
        return blocks

    def held_already(self, hits: list[Block]) -> float:
        """Units of them that somebody holds: an admission needs no room for these."""
        return self.size * sum(block.count > 0 for block in hits)

    # ------------------------------------------------------------ taking and giving back

    def take(self, chain: Chain | None, hits: list[Block], units: float) -> Held:
        """A hold of `units` that shares the blocks `hits` with whoever has them."""
        held = Held(chain, list(hits), len(hits), len(hits))
        for block in hits:
            if block.count == 0:
                del self.queue[block]
                self.pool.cached -= self.size
                self.pool.used += self.size
            block.count += 1
        self.open[held] = None
        self.add(held, units - len(hits) * self.size)
        return held

    def add(self, held: Held, units: float) -> None:
        """More blocks for a hold; room has been tested."""
        evicted = 0
        for _ in range(round(units / self.size)):
            if self.empty:
                self.empty -= 1
                block = Block()
            else:
                block = next(iter(self.queue))
                del self.queue[block]
                block.count = 1
                if block.content != NO_CONTENT:
                    evicted += 1
                    self.pool.cached -= self.size
                    self.forget(block)
            self.pool.used += self.size
            held.blocks.append(block)
        if evicted:
            self.pool.totals.evicted_entries += evicted
            self.pool.totals.evicted_units += evicted * self.size
            self.machine.act(Action.evict, -1, self.pool.index, evicted * self.size)

    def compute(self, held: Held, units: float) -> None:
        """The first `units` are computed, or will be in this iteration: their whole blocks can be found."""
        if self.pool.pool.found == "scheduled":
            self.name(held, int(units // self.size))

    def name(self, held: Held, count: int) -> None:
        """The first `count` blocks of a hold get their contents."""
        if held.chain is None:
            return
        for j in range(held.named, min(count, len(held.blocks))):
            block, content = held.blocks[j], self.content(held.chain, j)
            held.named = j + 1
            if self.pool.pool.found == "released" and content in self.copies:
                continue
            block.content = content
            self.copies.setdefault(content, {})[block] = None

    def give_back(self, held: Held, keep: float) -> float:
        """A hold ends and keeps `keep` units cached, and all blocks that it found or that others hold; units kept."""
        self.name(held, int((keep + EPS) // self.size))
        kept = min(max(int((keep + EPS) // self.size), held.found), held.named)
        del self.open[held]
        for j in reversed(range(len(held.blocks))):
            block = held.blocks[j]
            block.count -= 1
            if block.count:
                continue
            self.pool.used -= self.size
            if j >= kept and block.content != NO_CONTENT:
                self.forget(block)
            if block.content != NO_CONTENT:
                self.queue[block] = None
                self.pool.cached += self.size
            elif self.pool.pool.uncached == "first":
                self.empty += 1
            else:
                self.queue[block] = None
        return kept * self.size

    def forget(self, block: Block) -> None:
        copies = self.copies[block.content]
        del copies[block]
        if not copies:
            del self.copies[block.content]
        block.content = NO_CONTENT

    # ------------------------------------------------------------ what can be compared

    def signature(self) -> tuple:
        """The blocks as far as they decide what happens."""
        number_of: dict[Block, int] = {}
        holds = tuple(
            (held.named, tuple(number_of.setdefault(block, len(number_of)) for block in held.blocks))
            for held in self.open
        )
        contents = tuple((number_of[block], block.content) for held in self.open for block in held.blocks)
        queue = tuple(block.content for block in self.queue)
        orders = tuple(
            tuple(number_of.get(block, -1) for block in copies) for copies in self.copies.values() if len(copies) > 1
        )
        return self.empty, holds, contents, queue, orders

    def faults(self) -> Iterator[str]:
        """What contradicts the ownership of blocks; nothing if all is well."""
        counts: dict[Block, int] = {}
        for held in self.open:
            for block in held.blocks:
                counts[block] = counts.get(block, 0) + 1
        if any(block.count != n for block, n in counts.items()) or any(block.count for block in self.queue):
            yield "a block's count is not the number of its holds"
        if len(counts) + len(self.queue) + self.empty != self.total:
            yield f"{len(counts)} blocks held, {len(self.queue)} in the queue, {self.empty} empty, of {self.total}"
        if self.pool.used != len(counts) * self.size:
            yield f"{self.pool.used} units in use, {len(counts)} blocks of {self.size:g} held"
        if self.pool.cached != self.size * sum(block.content != NO_CONTENT for block in self.queue):
            yield f"{self.pool.cached} units cached, which is not what the queue has"
        known = {block for copies in self.copies.values() for block in copies}
        if known != {block for block in (*counts, *self.queue) if block.content != NO_CONTENT}:
            yield "the contents that can be found are not those that the blocks have"


def _same(a: list[Part], b: list[Part]) -> bool:
    return len(a) == len(b) and all((x.key, x.start, x.end) == (y.key, y.start, y.end) for x, y in zip(a, b))
