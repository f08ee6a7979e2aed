"""A second tier for KV blocks: CPU memory, reached over a link.

Blocks that eviction removes from the GPU's pool are copied out and wait in the tier under the session's name; when
the session comes back, what the GPU still has is found at once, and what follows it is copied in before the rest of
the prompt is computed. Eviction takes the tail of an entry first, so what lies in the tier follows what stayed. The
copies out go one after the other, and so do the copies in, at the link's speed in each direction; blocks are free for
others as soon as they are evicted, as if their copy stood in a buffer. A session whose blocks are being copied in has
its slot and its memory already.

**Source:** `spec/semantics.md`, section 5 (Spill); vLLM's `OffloadingConnector`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from ..builder import AbstractArguments, Builder
from ..errors import ProgramError
from ..ir.expr import Num
from ..ir.program import Drop, Fifo, Goto, Load, Run, Spill

if TYPE_CHECKING:
    from .vllm import Vllm


def check_numbers(at_least: dict[str, float], above: dict[str, float]) -> None:
    """Refuse numbers by name that are not finite, below 0, or (of `above`) not above 0."""
    for name, value in (at_least | above).items():
        low = name in above
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0 \
                or (low and value == 0):
            raise ProgramError.at(name, f"{value!r} is not allowed",
                                  f"give a finite number {'above 0' if low else 'of at least 0'}")


@dataclasses.dataclass(frozen=True)
class Offload(AbstractArguments):
    """See `offload`."""

    cpu_blocks: int
    kv_bytes_per_tok: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        check_numbers({"kv_bytes_per_tok": self.kv_bytes_per_tok}, {"bytes_per_s": self.bytes_per_s})
        if isinstance(self.cpu_blocks, bool) or self.cpu_blocks != int(self.cpu_blocks) or self.cpu_blocks < 1:
            raise ProgramError.at("cpu_blocks", f"{self.cpu_blocks!r} is not allowed",
                                  "give a whole number of at least 1")

    @staticmethod
    def tier(engine: Vllm) -> str:
        """The pool of the tier of an engine, as text."""
        return f"{engine.group}cpu{engine.place}"

    @staticmethod
    def _copy(engine: Vllm, direction: str) -> str:
        return f"{engine.group}copy_{direction}"

    @staticmethod
    def _seconds(engine: Vllm, units: str) -> str:
        return f"{units} * ({engine.group}offload_bytes_per_tok / {engine.group}offload_bytes_per_s)"

    def declare(self, b: Builder, engine: Vllm) -> Spill:
        """The tier and the two directions of its link, for an engine; what its pool of blocks says of eviction."""
        group = engine.group
        b.attr(f"{engine.name}.loaded")
        cap = b.param(f"{group}cpu.cap", self.cpu_blocks * engine.block_size, "tokens")
        b.param(f"{group}offload_bytes_per_tok", self.kv_bytes_per_tok, "bytes")
        b.param(f"{group}offload_bytes_per_s", self.bytes_per_s, "bytes/s")
        b.pool(**engine.member(f"{group}cpu"), cap=cap, block=Num(float(engine.block_size)))
        for direction in ("out", "in"):
            b.stage(**engine.member(self._copy(engine, direction)), kind=Fifo(Num(1.0)))
        return Spill(to=self.tier(engine), via=f"{self._copy(engine, 'out')}{engine.place}",
                     work=b(self._seconds(engine, "Size")), when=Num(1.0))

    def fetch(self, b: Builder, engine: Vllm) -> None:
        """The states from `LABEL.admitted` to `LABEL.ready`: what lies in the tier is copied into the hold."""
        name, label, known, block = engine.name, engine.label, engine.known(b), engine.block_size
        scope, tier = f"{label}.request", self.tier(engine)
        most = f"Max(Floor(({known} - 1) / {block}) * {block} - cached, 0)"
        b.state(f"{label}.admitted", b.set(f"{name}.loaded", f"Min(CachedIn({tier}), {most})"),
                exit=Run(b.resource(f"{self._copy(engine, 'in')}{engine.place}"), "Plain",
                         b(self._seconds(engine, f"{name}.loaded")), f"{label}.copied"), scope=scope)
        # the copy is in the hold now: the tier's room is free for others
        b.state(f"{label}.copied", Load(b.resource(engine.kv), b(f"{name}.loaded")), Drop(b.resource(tier)),
                b.observe(f"{name}.loaded_tok", f"{name}.loaded"), exit=Goto(f"{label}.ready"), scope=scope)


def offload(*, cpu_blocks: int, kv_bytes_per_tok: float = 131_072.0, bytes_per_s: float = 25e9) -> Offload:
    """A tier of CPU memory for the blocks that eviction removes: `vllm(..., offload=offload(cpu_blocks=...))`.

    **Arguments:**
    - `cpu_blocks`: blocks that the tier holds; beyond them it loses its least recently used.
    - `kv_bytes_per_tok`: bytes of one token's KV (the default: an 8 B model with grouped queries, bf16).
    - `bytes_per_s`: of the link, in each direction (the default: PCIe 4.0 x16 as it is measured).

    **Raises:** `ProgramError` that names the argument.
    """
    return Offload(cpu_blocks, kv_bytes_per_tok, bytes_per_s)
