"""Chains of shared prefixes (`prefix` of a hold or a request): pools whose blocks are shared by content.

The chain of IR 14 stands in the hold, that of the automaton form with the pool; so all holds that cache in one pool
must have one chain. A block can be found when it was released, as in the reference, and only pools with blocks share.
This gives the reference's samples and pool averages where holds do not overlap in time and lengths are whole blocks.
Else the reference's segments are no rows of blocks: a hold pins a whole segment of which it uses a part, and the last
part of a block is kept. Where a segment ends inside a block, two sessions have that block twice; the units of the
segment in it count twice here, as memory is taken, and once in the reference: its `mean_cached` is lower by them, and
in a pool that is full it evicts so much later (until then both find the same). `evicted_entries` counts blocks here,
segments there. What it does with a chain that ends, or under eviction keys, is not characterised.

**Source:** `spec/semantics.md`, section 8; `spec/ir14.md`, CRequest and Hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .. import ir
from .expressions import Expressions


class Prefixes:
    """What the holds read so far say about each pool; `apply` gives it to the pools."""

    def __init__(self, expressions: Expressions) -> None:
        self.expressions = expressions
        self.chains: dict[str, tuple[ir.Segment | ir.Recorded, ...]] = {}  # () where a hold caches without a chain
        self.places: dict[str, str] = {}

    def read(
        self, raw: Any, place: str, takes: list[ir.Take], request: Mapping[str, ir.Expr] | None = None
    ) -> None:
        """The `prefix` of a hold (None: it has none) that takes `takes`."""
        source = self.expressions.source
        chain: list[ir.Segment] = []
        links = source.list(raw, place) if raw else []
        for k, link in enumerate(links):
            parts = source.list(link, f"{place}[{k}]", 2)
            if not parts:
                continue
            key = self.expressions.read(parts[0], f"{place}[{k}][0]", request)
            length = self.expressions.read(parts[1], f"{place}[{k}][1]", request)
            last = k == len(links) - 1
            if last != (length == ir.Inf()):
                if last:
                    source.refuse(f"{place}[{k}][1]", "a shared prefix that ends", "end it with a length of inf")
                else:
                    source.fail(f"{place}[{k}][1]", "only the last length of a prefix is inf", "give a number of units")
            chain.append(ir.Segment(key=key, length=None if last else length))
        for take in takes:
            if take.keep is None:
                continue
            if not isinstance(take.pool, str):
                if chain:
                    source.refuse(place, "a shared prefix in a computed member of an array")
                continue
            known = self.chains.setdefault(take.pool, tuple(chain))
            self.places.setdefault(take.pool, place)
            if known != tuple(chain):
                source.refuse(place, f"one pool ({take.pool}) with and without a prefix, or with two of them")

    def apply(self, pools: tuple[ir.Pool, ...]) -> tuple[ir.Pool, ...]:
        """The pools, those with a chain as pools that share their blocks."""
        source, made = self.expressions.source, []
        for pool in pools:
            chain = self.chains.get(pool.name, ())
            if not chain or pool.block is None:
                made.append(pool)
                continue
            place = self.places[pool.name]
            if isinstance(pool.cap, ir.Inf):
                source.refuse(place, f"a shared prefix in a pool without a cap ({pool.name})")
            if pool.evict != ir.EVICT_LRU:
                source.refuse(place, f"a shared prefix in a pool evicted by keys ({pool.name})")
            made.append(msgspec.structs.replace(pool, sharing="content", content=chain, found="released"))
        return tuple(made)
