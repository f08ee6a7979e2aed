"""A plain model of vLLM's synchronous scheduler and prefix cache, for requests whose prompts carry hash ids.

It is written after vLLM's own code (one block table a request, one queue of free blocks, hashes of whole blocks made
when they are scheduled) and knows nothing of serqjax: every step lasts 1, first come first served.

**Source:** `vllm/v1/core/sched/scheduler.py`, `kv_cache_manager.py`, `block_pool.py`, as recorded in `oracle/vllm`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field


@dataclass
class Request:
    """`prefix`: leading tokens that are the `group`'s. `ids`: hash ids of the prompt's tokens after these, each of
    `span` tokens but for the last, which may have fewer."""

    name: int
    arrive: int
    prompt: int
    out: int
    ids: tuple[int, ...] = ()
    span: int = 512
    group: int = 0
    prefix: int = 0
    generated: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    hashed: int = 0
    hashes: list[int] = field(default_factory=list)
    admissions: list[tuple[int, int]] = field(default_factory=list)  # step, tokens found
    first: int | None = None
    last: int | None = None

    @property
    def known(self) -> int:
        return self.prompt + self.generated

    def runs(self, low: int, high: int) -> tuple[tuple[str, int, int, int], ...]:
        """The tokens from `low` to `high`, equal where the tokens are equal: whose, which of them is the first, how
        many."""
        found = []
        while low < high:
            at, inside = divmod(low - self.prefix, self.span)
            if low < self.prefix:
                whose, first, end = ("group", self.group), low, self.prefix
            elif low < self.prompt and at < len(self.ids):
                whose, first, end = ("id", self.ids[at]), inside, min(low - inside + self.span, self.prompt)
            else:
                whose, first, end = ("own", self.name), low, high
            end = min(end, high)
            found.append((*whose, first, end - low))
            low = end
        return tuple(found)


class Engine:
    """The scheduler; `in_order`: vLLM 0.11.2 (one queue, no gate), else 0.33.0."""

    def __init__(self, *, budget: int, max_seqs: int, block: int, num_blocks: int, in_order: bool = False):
        self.budget, self.max_seqs, self.block, self.in_order = budget, max_seqs, block, in_order
        self.gate = not in_order
        self.free: OrderedDict[int, None] = OrderedDict((b, None) for b in range(1, num_blocks))
        self.count = [0] * num_blocks
        self.hash_of: list[int | None] = [None] * num_blocks
        self.cached: dict[int, list[int]] = {}  # blocks of a hash, the one cached first in front
        self.known_hashes: dict[tuple, int] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    # ------------------------------------------------------------ blocks

    def hash(self, r: Request, j: int) -> int:
        while len(r.hashes) <= j:
            k = len(r.hashes)
            parent = r.hashes[-1] if r.hashes else -1
            tokens = r.runs(k * self.block, (k + 1) * self.block)
            r.hashes.append(self.known_hashes.setdefault((parent, tokens), len(self.known_hashes)))
        return r.hashes[j]

    def find(self, r: Request) -> list[int]:
        found = []
        for j in range((r.known - 1) // self.block):
            copies = self.cached.get(self.hash(r, j))
            if not copies:
                break
            found.append(copies[0])
        return found

    def needs(self, r: Request, tokens: int, hits: list[int]) -> int:
        """Blocks that leave the free queue if the request is to have room for `tokens`."""
        required = -(-tokens // self.block)
        return required - len(hits) - len(r.blocks) + sum(self.count[b] == 0 for b in hits)

    def allocate(self, r: Request, computed: int, n: int, hits: list[int]) -> bool:
        new = self.needs(r, computed + n, hits)
        if new > len(self.free):
            return False
        for b in hits:
            if self.count[b] == 0:
                del self.free[b]
                new -= 1
            self.count[b] += 1
        r.blocks += hits
        for _ in range(-(-(computed + n) // self.block) - len(r.blocks)):
            b, _ = self.free.popitem(last=False)
            if (old := self.hash_of[b]) is not None:
                self.cached[old].remove(b)
                self.hash_of[b] = None
            self.count[b] = 1
            r.blocks.append(b)
        r.hashed = max(r.hashed, len(hits))
        for j in range(r.hashed, min(computed + n, r.known) // self.block):
            self.hash_of[r.blocks[j]] = self.hash(r, j)
            self.cached.setdefault(self.hash(r, j), []).append(r.blocks[j])
            r.hashed = j + 1
        return True

    def release(self, r: Request) -> None:
        for b in reversed(r.blocks):
            self.count[b] -= 1
            if self.count[b] == 0:
                self.free[b] = None
                if self.hash_of[b] is None and not self.in_order:
                    self.free.move_to_end(b, last=False)
        r.blocks, r.hashed = [], 0

    # ------------------------------------------------------------ a step

    def schedule(self, step: int) -> dict[int, int]:
        """Tokens by request name."""
        left, given, preempted = self.budget, {}, False
        i = 0
        while i < len(self.running) and left > 0:
            r = self.running[i]
            n = min(r.known - r.computed, left)
            while not self.allocate(r, r.computed, n, []):
                victim = self.running.pop()
                self.release(victim)
                victim.computed = 0
                self.waiting.appendleft(victim)
                preempted = True
                if victim is r:
                    break
            if not r.blocks:
                break
            given[r.name] = n
            left -= n
            i += 1
        while not preempted and self.waiting and left > 0 and len(self.running) < self.max_seqs:
            r = self.waiting[0]
            hits = self.find(r)
            computed = len(hits) * self.block
            n = min(r.known - computed, left)
            if self.gate and self.needs(r, r.known, hits) > len(self.free):
                break
            if not self.allocate(r, computed, n, hits):
                break
            self.waiting.popleft()
            self.running.append(r)
            r.admissions.append((step, computed))
            r.computed = computed
            given[r.name] = n
            left -= n
        return given

    def run(self, requests: list[Request], most_steps: int = 1_000_000) -> bool:
        """All requests, to the end; False if they cannot all end."""
        coming = deque(sorted(requests, key=lambda r: r.arrive))
        step = 0
        for _ in range(most_steps):
            while coming and coming[0].arrive <= step:
                self.waiting.append(coming.popleft())
            if not self.running and not self.waiting:
                if not coming:
                    return True
                step = coming[0].arrive
                continue
            given = self.schedule(step)
            if not given and not self.running and not coming:
                return False
            for r in list(self.running):
                if r.name not in given:
                    continue
                r.computed += given[r.name]
                if r.computed < r.known:
                    continue
                r.generated += 1
                r.first = step if r.first is None else r.first
                if r.generated == r.out:
                    r.last = step
                    self.running.remove(r)
                    self.release(r)
            step += 1
        return False
