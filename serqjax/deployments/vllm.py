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
- speculative decoding: `1 + num_speculative_tokens` tokens of each decode are scheduled in a step, of the budget, and
  each gets `tokens_per_step` of them: `verify`, `decode`;
- requests find each other's blocks, from the moment these are scheduled: `sharing="content"`. Where no two sessions
  have a token in common, this is the same as each finding its own, which is faster to run.

**Source:** `design.md`, section 6; `oracle/vllm`.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

from ..builder import AbstractDeployment, Builder, Served
from ..costs import Cost, affine
from ..errors import Problem, ProgramError, UncalibratedWarning
from ..ir.expr import Expr, Num
from ..ir.program import EVICT_LRU, Enter, Lease, Leave, Op, Preempt, Recorded, Require, Run, Segment, Step
from ..traces import SPAN_TOK
from .offload import Offload
from .roofline import FirstGuess, first_guess

#: Engine versions whose rules are known (and recorded).
VERSIONS = ("0.33.0", "0.11.2")
#: Orders in which requests wait and are preempted.
POLICIES = ("fcfs", "priority")
#: KV blocks of a GPU of 80 GB beside a model of 8 B parameters, about.
NUM_GPU_BLOCKS = 27_000


@dataclasses.dataclass(frozen=True)
class Vllm(AbstractDeployment):
    """See `vllm`.

    Of a fleet each engine is a member of the arrays `reqs`, `kv` and `vllm`: `place` is its index as text (`[0]`, or
    `[replica]` for the one that serves a session), `own` what its own parameters begin with. `group` is what the names
    of a fleet's pools and common parameters begin with, where a deployment has several (`prefill.`).
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
    offload: Offload | None = None
    num_speculative_tokens: int | None = None
    tokens_per_step: int | None = None
    name: str = "vllm"
    group: str = ""
    place: str = ""
    own: str = ""
    arrival_tie: str = "serial"
    shared_structure: bool = False
    guess: FirstGuess | None = None

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
            if not _is_count(value, low):
                problems.append(Problem(name, f"{value!r} is not allowed", f"give a whole number of at least {low}"))
        problems += self._speculative_problems()
        if not isinstance(self.watermark, (int, float)) or not 0.0 <= self.watermark < 1.0:
            problems.append(Problem("watermark", f"{self.watermark!r} is not allowed",
                                    "give a fraction of the blocks, 0 <= watermark < 1"))
        if isinstance(self.shared_prefixes, str) and self.shared_prefixes != "hash_ids":
            problems.append(Problem("shared_prefixes", f"{self.shared_prefixes!r} is not allowed",
                                    'give pairs of session attributes, or "hash_ids" for what a trace has recorded'))
        if self.offload is not None:
            if not isinstance(self.offload, Offload):
                problems.append(Problem("offload", f"{self.offload!r} is no tier",
                                        "use `serqjax.deployments.offload(...)`"))
            if self.shared_prefixes:
                problems.append(Problem("offload", "blocks that sessions share cannot be moved to another tier",
                                        "leave out `shared_prefixes` or `offload`"))
            if not (self.enable_prefix_caching or self.shared_structure):
                problems.append(Problem("offload", "without prefix caching nothing is cached that could be moved",
                                        "leave it out, or set enable_prefix_caching=True"))
        if not isinstance(self.cost, (Cost, Expr)):
            problems.append(Problem("cost", f"{self.cost!r} is no cost", "use `serqjax.costs.affine(...)`"))
        if problems:
            raise ProgramError(problems)
        # vLLM 0.11.2 knows neither flag, and does what they say when they are off
        if self.engine_version == "0.11.2" and self.watermark:
            raise ProgramError.at("watermark", "vLLM 0.11.2 has no watermark", "leave it out, or use 0.33.0")

    def _speculative_problems(self) -> list[Problem]:
        """What is wrong with the two numbers of speculative decoding."""
        drafts, tokens = self.num_speculative_tokens, self.tokens_per_step
        if drafts is None and tokens is None:
            return []
        if drafts is None:
            what = "without drafts a decode gets one token a step"
            return [Problem("tokens_per_step", what, "give num_speculative_tokens too, or leave it out")]
        if not _is_count(drafts, 1):
            return [Problem("num_speculative_tokens", f"{drafts!r} is not allowed",
                            "give a whole number of at least 1, or leave it out")]
        if tokens is None:
            what = f"how many of the 1 + {drafts:g} tokens that a step verifies a decode gets is not said"
            return [Problem("tokens_per_step", what, f"give a whole number from 1 to {drafts + 1:g}")]
        if not _is_count(tokens, 1) or tokens > drafts + 1:
            return [Problem("tokens_per_step", f"{tokens!r} is not allowed: each step gives a decode the same number",
                            f"give a whole number from 1 to {drafts + 1:g}, num_speculative_tokens + 1")]
        return []

    def explain(self) -> str:
        """The arithmetic of what was derived from the model and the GPU.

        **Raises:** `ProgramError` if nothing was: `vllm(model=..., gpu=...)`.
        """
        if self.guess is None:
            raise ProgramError.at("model", "nothing was derived from a model", "give `model` and `gpu`")
        lines = [self.guess.explain()]
        if self.num_gpu_blocks != self.guess.num_gpu_blocks:
            lines.append(f"num_gpu_blocks = {self.num_gpu_blocks:,} was given and takes the place of the guess")
        if self.cost != self.guess.cost:
            lines.append("a cost was given and takes the place of the guess")
        return "\n".join(lines)

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
            return f"{self.group}long_prefill_token_threshold"
        # all who run or wait, whoever they are: 1 is a request that is alone
        return f"{self.group}long_prefill_token_threshold if {self._present} > 1 else 0"

    @property
    def reqs(self) -> str:
        """The pool of request slots, as text."""
        return f"{self.group}reqs{self.place}"

    @property
    def kv(self) -> str:
        """The pool of KV blocks, as text."""
        return f"{self.group}kv{self.place}"

    @property
    def stage(self) -> str:
        """The step stage, as text."""
        return f"{self.name}{self.place}"

    @property
    def label(self) -> str:
        """What the names of this engine's states and scopes begin with."""
        return self.stage if self.place[1:-1].isdigit() else self.name

    @property
    def caching(self) -> bool:
        """Whether a scope reads and keeps cached blocks (`shared_structure`: a parameter says how many)."""
        return self.enable_prefix_caching or self.shared_structure

    @property
    def _present(self) -> str:
        """Requests in the engine, running or waiting."""
        return f"Holders({self.reqs}) + Queued({self.reqs})"

    def member(self, array: str) -> dict[str, Any]:
        """Name of a pool or stage of this engine, and its place in an array if it has one."""
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
            b.param(f"{self.group}long_prefill_token_threshold", self.long_prefill_token_threshold, "tokens")
        b.pool(**self.member(f"{self.group}reqs"), cap=seqs, queue=b.order(*queue, tie="queued"),
               admit_via=self.stage)
        b.pool(**self.member(f"{self.group}kv"), cap=units, block=Num(float(self.block_size)), evict=EVICT_LRU,
               preempt=Preempt(order=b.order(*victims, tie="latest"), requeue=requeue),
               uncached="first" if self._newer else "in_order",
               spill=None if self.offload is None else self.offload.declare(b, self),
               sharing="content" if self.shared_prefixes else "own",
               content=self._content(b))
        decode, verify = self._speculation(b)
        b.stage(**self.member(self.name), kind=Step(
            budget=budget,
            cost=self.cost.declare(b, own) if isinstance(self.cost, Cost) else self.cost,
            chunk=None if self._threshold is None else b(self._threshold),
            decode=decode,
            verify=verify,
            memory=self.kv,
            after_own_preemption="go_on" if self._newer and self.scheduling_policy == "priority" else "stop",
        ))

    def _speculation(self, b: Builder) -> tuple[Expr | None, Expr | None]:
        """Tokens of a decode in a step: those it gets, and those that are scheduled; None without drafts."""
        if self.num_speculative_tokens is None or self.tokens_per_step is None:
            return None, None
        drafts = b.param(f"{self.group}num_speculative_tokens", self.num_speculative_tokens, "tokens")
        tokens = b.param(f"{self.group}tokens_per_step", self.tokens_per_step, "tokens")
        return tokens, b(f"1 + {drafts.name}")

    def _content(self, b: Builder) -> tuple[Segment | Recorded, ...]:
        """What the leading tokens of a session are."""
        if isinstance(self.shared_prefixes, str):
            # the prompt, which the recorded ids are of; the workload says how long it is
            return (Recorded(span=Num(float(SPAN_TOK)), length=b.attr("recorded_tok")),)
        return tuple(Segment(key=b.attr(key), length=b.attr(length)) for key, length in self.shared_prefixes)

    # ------------------------------------------------------------ one request

    def serve(self, b: Builder, *, input: str, output: str, then: str, parent: str | None = None) -> Served:
        name, known = self.name, self.known(b)
        send, output, oversize = self.send(b, input=input, output=output)
        self.hold(b, keep=f"{input} + {output}", input=input, oversize=oversize, parent=parent)
        b.state(f"{name}.send", *send, exit=Enter(f"{name}.request"), scope=parent)
        if self.offload is not None:
            self.offload.fetch(b, self)
        computed = "cached" if self.offload is None else f"(cached + {name}.loaded)"
        b.state(f"{name}.admitted" if self.offload is None else f"{name}.ready",
                b.observe(f"{name}.reused", "cached"), b.observe(f"{name}.prefill", f"{known} - {computed}"),
                exit=self.run(b, "Prefill", f"Max({known} - {computed}, 0)", f"{name}.first"), scope=f"{name}.request")
        b.state(f"{name}.first",
                exit=self.run(b, "Decode", f"{output} - 1 - ({known} - {input})", f"{name}.done"),
                scope=f"{name}.request")
        b.state(f"{name}.done", exit=Leave(then), scope=f"{name}.request")
        return Served(f"{name}.send", output)

    def known(self, b: Builder) -> str:
        """The attribute of the tokens that a request knows at its admission: its prompt, and its output so far."""
        return b.attr(f"{self.name}.known").name

    def run(self, b: Builder, mode: Literal["Prefill", "Decode"], work: str, then: str) -> Run:
        """Tokens on this engine, growing into its blocks."""
        return Run(b.resource(self.stage), mode, b(work), then, grows=b.resource(self.kv))

    def send(self, b: Builder, *, input: str, output: str) -> tuple[list[Op], str, str]:
        """How a request is sent: what it sets, the attribute with its tokens after the cut at `max_model_len`, and
        the slots of one that is refused (`oversize` of the slots)."""
        name = self.name
        set_known = b.set(self.known(b), input)
        sent = [b.set(f"{name}.sent_s", "Now")] if self.scheduling_policy == "priority" else []
        needs = Require(b(f"{output} >= 1"), "a request generates at least one token")
        if self.max_model_len is None:
            return [set_known, needs, *sent], output, "wait"
        # vLLM refuses a prompt that leaves no room for a token, and ends a request at the limit
        limit = b.param(f"{self.group}max_model_len", self.max_model_len, "tokens").name
        b.attr(f"{name}.output", hidden=True)
        cut = b.set(f"{name}.output", f"Min({output}, Max({limit} - {input}, 1))")
        refused = f"{self.own}max_num_seqs + 1 if {input} >= {limit} else 1"
        return [set_known, cut, needs, *sent], f"{name}.output", refused

    def hold(self, b: Builder, *, input: str, keep: str, oversize: str = "wait", first: str | None = None,
             lease: Lease | None = None, parent: str | None = None) -> None:
        """The scope `LABEL.request` that goes on at the state `LABEL.admitted`: a slot, and the blocks of what is
        computed now.

        - `keep`: tokens that stay cached at its end. `lease`: what its normal end leaves in use.
        - `first`: a test; while it is 1 all known tokens are taken at once (they come from elsewhere).
        """
        label, known, block = self.label, self.known(b), self.block_size
        lets = (b.let(known, f"Max({known}, {input} if computed < {input} else computed + 1)"),)
        reuse = f"Floor(({known} - 1) / {block}) * {block}" if self.caching else None
        kept = keep if self.caching else None
        if self.shared_structure:
            b.param("enable_prefix_caching", float(self.enable_prefix_caching))
            reuse, kept = (f"{text} if enable_prefix_caching else 0" for text in (reuse, kept))

        budget = f"BudgetLeft({self.stage})"
        if self._threshold is not None:
            alone = f" and {self._present} > 1" if self._newer else ""
            threshold = f"{self.group}long_prefill_token_threshold"
            budget = f"(Min({budget}, {threshold}) if {threshold} > 0{alone} else {budget})"
        hit = f"Min(CachedIn({self.kv}), {reuse})" if self.caching else "0"
        if self.offload is not None:
            hit = f"Min(CachedIn({self.kv}) + CachedIn({self.offload.tier(self)}), {reuse})"
        units = f"Min({known}, {hit} + {budget})" if self.caching else f"Min({known}, {budget})"
        if first is not None:
            units = f"({known} if {first} else {units})"
        b.scope(f"{label}.request",
                b.take(b.resource(self.reqs), 1, oversize=oversize),
                b.take(b.resource(self.kv), units, reserve=self._reserve(b, known, units), keep=kept),
                lets=lets, reuse=reuse, lease=lease, reentry=f"{label}.admitted", parent=parent)

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
        watermark = b.param(f"{self.group}watermark", self.watermark).name
        # in whole blocks, of all blocks (the one that is never given out included), while anything runs
        block = self.block_size
        blocks = f"Floor({watermark} * ((Used({self.kv}) + Free({self.kv})) / {block} + 1))"
        return f"Ceil({gate} / {block}) * {block} + ({blocks} * {block} if Holders({self.reqs}) > 0 else 0)"


#: What a first guess is made from, besides the engine's own flags.
OF_MODEL = ("model", "gpu", "tensor_parallel_size", "gpu_memory_utilization", "kv_cache_dtype")


def vllm(*, engine_version: Literal["0.33.0", "0.11.2"] = "0.33.0", max_num_seqs: int = 256,
         max_num_batched_tokens: int = 2048, num_gpu_blocks: int | None = None, block_size: int = 16,
         long_prefill_token_threshold: int = 0, max_model_len: int | None = None, enable_prefix_caching: bool = True,
         scheduling_policy: Literal["fcfs", "priority"] = "fcfs", scheduler_reserve_full_isl: bool = True,
         watermark: float = 0.0, shared_prefixes: Sequence[tuple[str, str]] | Literal["hash_ids"] | None = (),
         offload: Offload | None = None, num_speculative_tokens: int | None = None,
         tokens_per_step: int | None = None, cost: Cost | Expr | None = None, **extra: Any) -> Vllm:
    """A vLLM engine with vLLM's own flag names and defaults; synchronous scheduling (`async_scheduling=False`).

    **Arguments:**
    - `engine_version`: whose rules, `"0.33.0"` or `"0.11.2"`.
    - `max_num_seqs`: running requests. `max_num_batched_tokens`: tokens of one step.
    - `num_gpu_blocks`: KV blocks, of which one is never given out. vLLM measures this number at its start; the
      default, `NUM_GPU_BLOCKS`, is about what an 80 GB GPU has left beside an 8 B model (54 GB at 128 KiB per token).
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
    - `offload`: `serqjax.deployments.offload(...)`, a tier of CPU memory that takes blocks which eviction removes.
    - `num_speculative_tokens`, with `tokens_per_step`: speculative decoding. A step schedules one token and so many
      drafts of each decode, which gets `tokens_per_step` of them (1: no draft is accepted), the same in every step. The
      scheduled tokens come off `max_num_batched_tokens`; where that leaves fewer, the decode gets at most those.
      Not modelled: blocks that vLLM takes for drafts which are then rejected; how many are accepted by chance. What
      drafting and verifying cost is a matter of `cost`: `serqjax.costs.with_drafts(...)`; by default both are free.
    - `cost`: seconds of an iteration, `serqjax.costs.affine(...)` (the default) or an expression of the IR.
    - `model` with `gpu`, and `tensor_parallel_size`, `gpu_memory_utilization`, `kv_cache_dtype`: a first guess of
      `num_gpu_blocks` and `cost`, where they are not given; see `serqjax.deployments.roofline.first_guess`. Its
      arithmetic: `.explain()`, and said as an `UncalibratedWarning`.

    **Returns:** a deployment for `serqjax.program`; `.replace(max_num_seqs=...)` gives a changed one.
    **Raises:** `ProgramError` that names the argument, its value and the remedy.
    """
    internal = {"name", "group", "place", "own", "arrival_tie", "shared_structure"}
    if speculative := sorted(set(extra) & {"speculative_config", "speculative_model", "spec_method"}):
        what = "how drafts are made and accepted is not modelled"
        raise ProgramError.at(speculative[0], what, "give num_speculative_tokens and tokens_per_step")
    of_model = {name: extra.pop(name) for name in OF_MODEL if name in extra}
    if unknown := sorted(set(extra) - internal):
        raise ProgramError.at(unknown[0], "is no argument of `vllm`", _nearest_flag(unknown[0]))
    guess = None
    if of_model:
        if missing := [name for name in ("model", "gpu") if name not in of_model]:
            raise ProgramError.at(missing[0], f"is missing beside `{next(iter(of_model))}`", "give `model` and `gpu`")
        guess = first_guess(**of_model, block_size=block_size, max_num_seqs=max_num_seqs,
                            max_num_batched_tokens=max_num_batched_tokens)
        guessed = [what for what, given in (("num_gpu_blocks", num_gpu_blocks), ("cost", cost)) if given is None]
        if guessed:
            text = f"{' and '.join(guessed)} of the engine: not measured.\n{guess.explain()}"
            warnings.warn(text, UncalibratedWarning, stacklevel=2)
        num_gpu_blocks = guess.num_gpu_blocks if num_gpu_blocks is None else num_gpu_blocks
        cost = guess.cost if cost is None else cost
    num_gpu_blocks = NUM_GPU_BLOCKS if num_gpu_blocks is None else num_gpu_blocks
    return Vllm(
        guess=guess, engine_version=engine_version, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_gpu_blocks=num_gpu_blocks, block_size=block_size,
        long_prefill_token_threshold=long_prefill_token_threshold, max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching, scheduler_reserve_full_isl=scheduler_reserve_full_isl,
        watermark=watermark, shared_prefixes=_pairs(shared_prefixes),
        cost=affine() if cost is None else cost, scheduling_policy=scheduling_policy, offload=offload,
        num_speculative_tokens=num_speculative_tokens, tokens_per_step=tokens_per_step, **extra,
    )


def _is_count(value: Any, least: int) -> bool:
    """Whether a value is a whole number of at least `least`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value == int(value) and value >= least


def _pairs(given: Any) -> Any:
    """Pairs of attributes, and nothing, as a tuple; a word as it is, for the check."""
    return given if isinstance(given, str) else tuple((key, length) for key, length in given or ())


def _nearest_flag(name: str) -> str:
    from ..errors import nearest

    return nearest(name, [f.name for f in dataclasses.fields(Vllm)])
