"""One vLLM engine (the v1 scheduler, synchronous), as a policy of the language.

The rules, and where each stands below:

- one block of the pool is never given out: `kv` has `(num_gpu_blocks - 1) * block_size` units;
- running requests are served in the order of admission, then waiting ones while budget is left, not in an
  iteration that preempted: the default plan of a step stage;
- a waiting request takes what it computes now: its cached prefix and as much as budget and threshold let it;
  0.33.0 admits it only if all its known tokens fit the free blocks (`scheduler_reserve_full_isl`), and, while
  others run, a fraction `watermark` of the blocks stays free: `reserve`;
- what cannot fit waits at the head of the line for ever, as in vLLM: `oversize="wait"`;
- the hit is at most the whole blocks before the last known token: `reuse`;
- growth that does not fit preempts the request admitted last, which goes back to the head of the line and
  recomputes its output as prefill: `preempt`, `known`;
- requests that arrive at one time queue by place: keys `[-Waited, serial]`;
- under `priority` the line is ordered by priority (a smaller number is more urgent), the time of sending and place, for
  preempted requests too; the victim is the last in that order, and 0.33.0 serves the others when it is the one served:
  `after_own_preemption`;
- 0.33.0 lifts `long_prefill_token_threshold` while a request is alone in the engine: `chunk`;
- 0.11.2 keeps free and cached blocks in one list in the order of release: `uncached="in_order"`;
- requests find each other's blocks, from the moment these are scheduled: `sharing="content"`. Where no two sessions
  have a token in common, this is the same as each finding its own, which is faster to run.

**Source:** `design.md`, section 6; `oracle/vllm`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from ..builder import AbstractDeployment, Builder, Served
from ..costs import Cost, affine
from ..errors import Problem, ProgramError
from ..ir.expr import Expr, Num
from ..ir.program import EVICT_LRU, Enter, Leave, Op, Preempt, Recorded, Require, Run, Segment, Step
from ..traces import SPAN_TOK

#: Engine versions whose rules are known (and recorded).
VERSIONS = ("0.33.0", "0.11.2")
#: Orders in which requests wait and are preempted.
POLICIES = ("fcfs", "priority")


@dataclasses.dataclass(frozen=True)
class Vllm(AbstractDeployment):
    """See `vllm`.

    Of a fleet each engine is a member of the arrays `reqs`, `kv` and `vllm`: `place` is its index as text (`[0]`, or
    `[replica]` for the one that serves a session), `own` what its own parameters begin with.
    """

    engine_version: str
    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int
    long_prefill_token_threshold: int
    max_model_len: int | None
    enable_prefix_caching: bool
    scheduler_reserve_full_isl: bool
    watermark: float
    cost: Cost | Expr
    scheduling_policy: str = "fcfs"
    shared_prefixes: tuple[tuple[str, str], ...] | Literal["hash_ids"] = ()
    name: str = "vllm"
    place: str = ""
    own: str = ""
    arrival_tie: str = "serial"
    shared_structure: bool = False

    def __post_init__(self) -> None:
        problems = []
        if self.engine_version not in VERSIONS:
            problems.append(Problem("engine_version", f"{self.engine_version!r} is not known",
                                    "use one of " + ", ".join(VERSIONS)))
        if self.scheduling_policy not in POLICIES:
            problems.append(Problem("scheduling_policy", f"{self.scheduling_policy!r} is not known",
                                    "use one of " + ", ".join(POLICIES)))
        least = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "num_gpu_blocks": 2, "block_size": 1,
                 "long_prefill_token_threshold": 0, "max_model_len": 2}
        for name, low in least.items():
            value = getattr(self, name)
            if value is None and name == "max_model_len":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) \
                    or value != int(value) or value < low:
                problems.append(Problem(name, f"{value!r} is not allowed", f"give a whole number of at least {low}"))
        if not isinstance(self.watermark, (int, float)) or not 0.0 <= self.watermark < 1.0:
            problems.append(Problem("watermark", f"{self.watermark!r} is not allowed",
                                    "give a fraction of the blocks, 0 <= watermark < 1"))
        if isinstance(self.shared_prefixes, str) and self.shared_prefixes != "hash_ids":
            problems.append(Problem("shared_prefixes", f"{self.shared_prefixes!r} is not allowed",
                                    'give pairs of session attributes, or "hash_ids" for what a trace has recorded'))
        if not isinstance(self.cost, (Cost, Expr)):
            problems.append(Problem("cost", f"{self.cost!r} is no cost", "use `serqjax.costs.affine(...)`"))
        if problems:
            raise ProgramError(problems)
        # vLLM 0.11.2 knows neither flag, and does what they say when they are off
        if self.engine_version == "0.11.2" and self.watermark:
            raise ProgramError.at("watermark", "vLLM 0.11.2 has no watermark", "leave it out, or use 0.33.0")

    # ------------------------------------------------------------ pools and stages

    @property
    def _newer(self) -> bool:
        return self.engine_version != "0.11.2"

    @property
    def _threshold(self) -> str | None:
        """The cap of one prefill's tokens in an iteration (0: none), or None without a threshold."""
        if not (self.long_prefill_token_threshold or self.shared_structure):
            return None
        if not self._newer:
            return "long_prefill_token_threshold"
        # all who run or wait, whoever they are: 1 is a request that is alone
        return f"long_prefill_token_threshold if {self._present} > 1 else 0"

    @property
    def _present(self) -> str:
        """Requests in the engine, running or waiting."""
        return f"Holders(reqs{self.place}) + Queued(reqs{self.place})"

    def _member(self, array: str) -> dict[str, Any]:
        """Name of a pool or stage, and its place in an array if it has one."""
        if not self.place:
            return {"name": array}
        return {"name": f"{array}{self.place}", "array": array, "index": int(self.place[1:-1])}

    @property
    def _urgency(self) -> tuple[str, ...]:
        """Attributes by which requests are ordered under `priority`, the most urgent least."""
        return ("priority", f"{self.name}.sent_s", self.arrival_tie)

    def declare(self, b: Builder) -> None:
        for attr in ("cached", "computed", "serial", self.arrival_tie):
            b.attr(attr)
        queue, victims = ("-Waited", self.arrival_tie), ("-Admission",)
        requeue: Literal["head", "tail"] = "head"
        if self.scheduling_policy == "priority":
            for attr in self._urgency:
                b.attr(attr)
            queue, victims, requeue = self._urgency, tuple(f"-{attr}" for attr in self._urgency), "tail"
        own = self.own
        seqs = b.param(f"{own}max_num_seqs", self.max_num_seqs, "requests")
        budget = b.param(f"{own}max_num_batched_tokens", self.max_num_batched_tokens, "tokens")
        units = b.param(f"{own}kv.cap", (self.num_gpu_blocks - 1) * self.block_size, "tokens")
        if self._threshold is not None:
            b.param("long_prefill_token_threshold", self.long_prefill_token_threshold, "tokens")
        b.pool(**self._member("reqs"), cap=seqs, queue=b.order(*queue, tie="queued"),
               admit_via=f"{self.name}{self.place}")
        b.pool(**self._member("kv"), cap=units, block=Num(float(self.block_size)), evict=EVICT_LRU,
               preempt=Preempt(order=b.order(*victims, tie="latest"), requeue=requeue),
               uncached="first" if self._newer else "in_order",
               sharing="content" if self.shared_prefixes else "own",
               content=self._content(b))
        b.stage(**self._member(self.name), kind=Step(
            budget=budget,
            cost=self.cost.declare(b, own) if isinstance(self.cost, Cost) else self.cost,
            chunk=None if self._threshold is None else b(self._threshold),
            memory=f"kv{self.place}",
            after_own_preemption="go_on" if self._newer and self.scheduling_policy == "priority" else "stop",
        ))

    def _content(self, b: Builder) -> tuple[Segment | Recorded, ...]:
        """What the leading tokens of a session are."""
        if isinstance(self.shared_prefixes, str):
            # the prompt, which the recorded ids are of; the workload says how long it is
            return (Recorded(span=Num(float(SPAN_TOK)), length=b.attr("recorded_tok")),)
        return tuple(Segment(key=b.attr(key), length=b.attr(length)) for key, length in self.shared_prefixes)

    # ------------------------------------------------------------ one request

    def serve(self, b: Builder, *, input: str, output: str, then: str, parent: str | None = None) -> Served:
        name = self.name
        known = f"{name}.known"
        b.attr(known)
        send: list[Op] = [b.set(known, input), Require(b(f"{output} >= 1"), "a request generates at least one token")]
        slot_oversize: str = "wait"
        if self.scheduling_policy == "priority":
            send.append(b.set(f"{name}.sent_s", "Now"))
        if self.max_model_len is not None:
            # vLLM refuses a prompt that leaves no room for a token, and ends a request at the limit
            b.param("max_model_len", self.max_model_len, "tokens")
            b.attr(f"{name}.output", hidden=True)
            send.insert(1, b.set(f"{name}.output", f"Min({output}, Max(max_model_len - {input}, 1))"))
            output = f"{name}.output"
            slot_oversize = f"{self.own}max_num_seqs + 1 if {input} >= max_model_len else 1"

        block = self.block_size
        lets = (b.let(known, f"Max({known}, {input} if computed < {input} else computed + 1)"),)
        caching = self.enable_prefix_caching or self.shared_structure
        reuse = f"Floor(({known} - 1) / {block}) * {block}" if caching else None
        keep = f"{input} + {output}" if caching else None
        if self.shared_structure:
            b.param("enable_prefix_caching", float(self.enable_prefix_caching))
            reuse, keep = (f"{text} if enable_prefix_caching else 0" for text in (reuse, keep))

        place = self.place
        budget = f"BudgetLeft({name}{place})"
        if self._threshold is not None:
            alone = f" and {self._present} > 1" if self._newer else ""
            budget = (f"(Min({budget}, long_prefill_token_threshold) "
                      f"if long_prefill_token_threshold > 0{alone} else {budget})")
        hit = f"Min(CachedIn(kv{place}), {reuse})" if caching else "0"
        units = f"Min({known}, {hit} + {budget})" if caching else f"Min({known}, {budget})"

        engine, memory = b.resource(f"{name}{place}"), b.resource(f"kv{place}")
        b.scope(f"{name}.request",
                b.take(b.resource(f"reqs{place}"), 1, oversize=slot_oversize),
                b.take(b.resource(f"kv{place}"), units, reserve=self._reserve(b, known, units), keep=keep),
                lets=lets, reuse=reuse, reentry=f"{name}.admitted", parent=parent)
        b.state(f"{name}.send", *send, exit=Enter(f"{name}.request"), scope=parent)
        b.state(f"{name}.admitted",
                b.observe(f"{name}.reused", "cached"), b.observe(f"{name}.prefill", f"{known} - cached"),
                exit=Run(engine, "Prefill", b(f"Max({known} - cached, 0)"), f"{name}.first", grows=memory),
                scope=f"{name}.request")
        b.state(f"{name}.first",
                exit=Run(engine, "Decode", b(f"{output} - 1 - ({known} - {input})"), f"{name}.done", grows=memory),
                scope=f"{name}.request")
        b.state(f"{name}.done", exit=Leave(then), scope=f"{name}.request")
        return Served(f"{name}.send", output)

    def _reserve(self, b: Builder, known: str, units: str) -> str | None:
        """What must fit at admission beyond the units taken."""
        if not self._newer:
            return None
        gate = known if self.scheduler_reserve_full_isl else units
        if self.shared_structure:
            b.param("scheduler_reserve_full_isl", float(self.scheduler_reserve_full_isl))
            gate = f"({known} if scheduler_reserve_full_isl else {units})"
        if not (self.watermark or self.shared_structure):
            return gate if gate == known else None
        b.param("watermark", self.watermark)
        # in whole blocks, of all blocks (the one that is never given out included), while anything runs
        blocks = f"Floor(watermark * ((Used(kv{self.place}) + Free(kv{self.place})) / {self.block_size} + 1))"
        block = self.block_size
        return f"Ceil({gate} / {block}) * {block} + ({blocks} * {block} if Holders(reqs{self.place}) > 0 else 0)"


def vllm(*, engine_version: Literal["0.33.0", "0.11.2"] = "0.33.0", max_num_seqs: int = 256,
         max_num_batched_tokens: int = 2048, num_gpu_blocks: int = 27_000, block_size: int = 16,
         long_prefill_token_threshold: int = 0, max_model_len: int | None = None, enable_prefix_caching: bool = True,
         scheduling_policy: Literal["fcfs", "priority"] = "fcfs", scheduler_reserve_full_isl: bool = True,
         watermark: float = 0.0, shared_prefixes: Sequence[tuple[str, str]] | Literal["hash_ids"] | None = (),
         cost: Cost | Expr | None = None, **extra: Any) -> Vllm:
    """A vLLM engine with vLLM's own flag names and defaults; synchronous scheduling (`async_scheduling=False`).

    **Arguments:**
    - `engine_version`: whose rules, `"0.33.0"` or `"0.11.2"`.
    - `max_num_seqs`: running requests. `max_num_batched_tokens`: tokens of one step.
    - `num_gpu_blocks`: KV blocks, of which one is never given out. vLLM measures this number at its start; the
      default is about what an 80 GB GPU has left beside an 8 B model (54 GB at 128 KiB per token).
    - `block_size`: tokens of a block. `long_prefill_token_threshold`: most tokens of one prefill in a step (0: none).
    - `max_model_len`: tokens of prompt and output together at which a request ends (None: no limit); a prompt that
      leaves no room for a token is rejected.
    - `enable_prefix_caching`: a finished or preempted request's blocks serve the session's next request.
    - `shared_prefixes`: what sessions have in common, as pairs of session attributes: the first so many tokens
      (the second attribute) are those of all sessions with an equal first attribute; then the next pair. All that
      follows is the session's own. They find each other's blocks, as soon as these are scheduled. `"hash_ids"`:
      what they have in common is recorded in their trace (`workloads.from_trace` of a Mooncake file).
    - `scheduling_policy`: `"fcfs"`, or `"priority"`: the workload gives each request a `priority`, smaller first.
    - `scheduler_reserve_full_isl`, `watermark`: 0.33.0 only; admission needs room for all known tokens, and
      a fraction of the blocks kept free while anything runs.
    - `cost`: seconds of an iteration, `serqjax.costs.affine(...)` (the default) or an expression of the IR.

    **Returns:** a deployment for `serqjax.program`; `.replace(max_num_seqs=...)` gives a changed one.
    **Raises:** `ProgramError` that names the argument, its value and the remedy.
    """
    internal = {"name", "place", "own", "arrival_tie", "shared_structure"}
    if unknown := sorted(set(extra) - internal):
        raise ProgramError.at(unknown[0], "is no argument of `vllm`", _nearest_flag(unknown[0]))
    return Vllm(
        engine_version=engine_version, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
        num_gpu_blocks=num_gpu_blocks, block_size=block_size,
        long_prefill_token_threshold=long_prefill_token_threshold, max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching, scheduler_reserve_full_isl=scheduler_reserve_full_isl,
        watermark=watermark,
        shared_prefixes=shared_prefixes if isinstance(shared_prefixes, str)  # type: ignore[arg-type]
        else tuple((key, length) for key, length in shared_prefixes or ()),
        cost=affine() if cost is None else cost, scheduling_policy=scheduling_policy, **extra,
    )


def _nearest_flag(name: str) -> str:
    from ..builder import nearest

    return nearest(name, [f.name for f in dataclasses.fields(Vllm)])
