"""Prefill and decode on engines of their own, and the KV moved between them over a link.

A request is computed by a prefill engine, which gives its first token. If that is not its last one, the KV of the
prompt stays on the prefill engine (a *lease*: in use, of no running request) until it has been copied: the decode
engine takes a slot and memory for the whole prompt, the copy runs over the link, the lease ends, and the decode engine
goes on from there. What the decode engine has cached of the session is not copied. A request that the decode engine
preempts is computed again there, as in any vLLM engine; one that has no token of the decode engine by then has its
first token from there.

All copies share one link, each getting the same part of its bandwidth; each starts after the link's latency. A lease
that ends before its copy does not stop the copy.

`first_token` says who gives the first token, and so what TTFT means:

- `"prefill"`: the prefill engine, at the end of its prefill. TTFT has neither copy nor decode queue in it; they stand
  between the first and the second token.
- `"decode"`, as with vLLM's `NixlConnector`: the prefill engine's token is thrown away. The KV of all tokens but the
  last is copied, the decode engine computes the last one and gives the first token. Requests of one token go that
  way too.

**Source:** `spec/semantics.md`, section 7 (leases) and 9 (shared stages).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from ..builder import AbstractArguments, AbstractDeployment, Builder, Served
from ..errors import ProgramError
from ..ir.expr import Num
from ..ir.program import Branch, Enter, Exit, Goto, Lease, Leave, Load, Op, ProcessorSharing, Release, Run
from .fleet import Replicas
from .offload import check_numbers
from .vllm import Vllm

FirstToken = Literal["prefill", "decode"]


@dataclasses.dataclass(frozen=True)
class Link(AbstractArguments):
    """See `link`."""

    bytes_per_s: float
    latency_s: float
    kv_bytes_per_tok: float

    def __post_init__(self) -> None:
        check_numbers({"latency_s": self.latency_s, "kv_bytes_per_tok": self.kv_bytes_per_tok},
                      {"bytes_per_s": self.bytes_per_s})

    def declare(self, b: Builder) -> None:
        b.param("link.bytes_per_s", self.bytes_per_s, "bytes/s")
        b.param("link.latency_s", self.latency_s, "s")
        b.param("link.kv_bytes_per_tok", self.kv_bytes_per_tok, "bytes")
        b.stage("link", ProcessorSharing(Num(1.0)))

    def copy(self, b: Builder, tokens: str, then: str) -> Run:
        """The KV of so many tokens over the link: seconds of the whole bandwidth, shared with the other copies."""
        seconds = b(f"{tokens} * (link.kv_bytes_per_tok / link.bytes_per_s)")
        return Run("link", "Plain", seconds, then, latency=b("link.latency_s"))


def link(*, bytes_per_s: float = 50e9, latency_s: float = 10e-6, kv_bytes_per_tok: float = 131_072.0) -> Link:
    """The link between prefill and decode engines.

    **Arguments:**
    - `bytes_per_s`: bandwidth of all copies together (the default: one 400 Gb/s port).
    - `latency_s`: seconds before a copy begins.
    - `kv_bytes_per_tok`: bytes of one token's KV (the default: an 8 B model with grouped queries, bf16). 0 with a
      latency of 0 is a free link.

    **Raises:** `ProgramError` that names the argument.
    """
    return Link(bytes_per_s, latency_s, kv_bytes_per_tok)


@dataclasses.dataclass(frozen=True)
class Disaggregated(AbstractDeployment):
    """See `disaggregated`."""

    prefill: Vllm | Replicas
    decode: Vllm | Replicas
    link: Link
    lease_s: float
    first_token: FirstToken

    def __post_init__(self) -> None:
        check_numbers({}, {"lease_s": self.lease_s})
        if self.first_token not in get_args(FirstToken):
            raise ProgramError.at("first_token", f"{self.first_token!r} is not known", 'use "prefill" or "decode"')
        for name in ("prefill", "decode"):
            given = getattr(self, name)
            if not isinstance(given, (Vllm, Replicas)):
                raise ProgramError.at(name, f"{type(given).__name__} is no engine",
                                      "use `vllm(...)` or `replicas(vllm(...), n)`")
            for engine in _engines(given):
                if engine.shared_prefixes:
                    raise ProgramError.at(f"{name}.shared_prefixes", "blocks that sessions share cannot be leased or "
                                          "copied", "leave it out")
        if any(engine.offload is not None for engine in _engines(self.decode)):
            raise ProgramError.at("decode.offload", "a decode engine gets its blocks over the link",
                                  "give the tier to `prefill`")
        if not isinstance(self.link, Link):
            raise ProgramError.at("link", f"{self.link!r} is no link", "use `serqjax.deployments.link(...)`")

    def arguments(self) -> dict[str, Any]:
        """Those of its parts, as `prefill.max_num_seqs`, `decode.num_gpu_blocks`, `link.bytes_per_s`; and `lease_s`."""
        parts = {"prefill": self.prefill, "decode": self.decode, "link": self.link}
        named = {f"{part}.{k}": v for part, made in parts.items() for k, v in made.arguments().items()}
        return named | {"lease_s": self.lease_s}

    def replace(self, **changes: Any) -> Disaggregated:
        """The same deployment with other arguments; those of a part by its name, `**{"decode.max_num_seqs": 64}`."""
        own = {name: change for name, change in changes.items() if "." not in name}
        for part in ("prefill", "decode", "link"):
            inner = {name.removeprefix(f"{part}."): v for name, v in changes.items() if name.startswith(f"{part}.")}
            if inner:
                own[part] = getattr(self, part).replace(**inner)
        for name in changes:
            if "." in name and name.split(".", 1)[0] not in ("prefill", "decode", "link"):
                raise ProgramError.at(name, "is no argument of Disaggregated", "begin with prefill., decode. or link.")
        return super().replace(**own)

    def declare(self, b: Builder) -> None:
        self.link.declare(b)
        b.param("lease_s", self.lease_s, "s")
        b.attr("copied")
        b.attr("copy_began_s")
        for name in ("prefill", "decode"):
            _grouped(getattr(self, name), name).declare(b)

    def serve(self, b: Builder, *, input: str, output: str, then: str, parent: str | None = None) -> Served:
        # each engine has states of its own: a lease, and what is loaded, belong to one pool that is known beforehand
        prefill, decode = _members(self.prefill, "prefill"), _members(self.decode, "decode")
        sent = [p.send(b, input=input, output=output) for p in prefill]
        moved = [d.send(b, input=input, output=sent[0][1]) for d in decode]
        tokens = Tokens(input, moved[0][1], then, parent)
        at_decode = _route(b, self.decode, "decode", parent)
        if self.first_token == "prefill":
            # all is said after one token: nothing is copied
            b.state("prefill.left", exit=Branch(b(f"{tokens.output} > 1"), at_decode, "prefill.drop"), scope=parent)
            b.state("prefill.drop", exit=_release(b, "prefill.drop", prefill, then, parent), scope=parent)
        for p, (ops, _, slots) in zip(prefill, sent):
            self._prefill(b, p, ops, slots, tokens, at_decode if self.first_token == "decode" else "prefill.left")
        for d, (ops, _, slots) in zip(decode, moved):
            self._decode(b, prefill, d, ops, slots, tokens)
        return Served(_route(b, self.prefill, "prefill", parent), tokens.output)

    def _prefill(self, b: Builder, p: Vllm, send: list[Op], oversize: str, tokens: Tokens, then: str) -> None:
        """The prompt on one prefill engine, and the lease that its end leaves."""
        label, known, scope = p.label, p.known(b), f"{p.label}.request"
        p.hold(b, input=tokens.input, keep=tokens.input, oversize=oversize, parent=tokens.parent,
               lease=Lease(pool=b.resource(p.kv), after_s=b("lease_s")))
        b.state(f"{label}.send", *send, exit=Enter(scope), scope=tokens.parent)
        computed, ready = "cached", f"{label}.admitted"
        if p.offload is not None:
            p.offload.fetch(b, p)
            computed, ready = "(cached + prefill.loaded)", f"{label}.ready"
        b.state(ready,
                b.observe("prefill.reused", "cached"), b.observe("prefill.prefill", f"{known} - {computed}"),
                exit=p.run(b, "Prefill", f"Max({known} - {computed}, 0)", f"{label}.done"), scope=scope)
        b.state(f"{label}.done", exit=Leave(then), scope=scope)

    def _decode(self, b: Builder, prefill: list[Vllm], d: Vllm, send: list[Op], refused: str, tokens: Tokens) -> None:
        """The copy to one decode engine, and all tokens that it gives."""
        input, output = tokens.input, tokens.output
        by_decode, label, known, scope = self.first_token == "decode", d.label, d.known(b), f"{d.label}.request"
        # what the decode engine has, and the token that it computes itself, are not copied
        copied = f"Max({known} - cached - 1, 0)" if by_decode else f"({known} - cached)"
        d.hold(b, input=input, keep=f"{input} + {output}", oversize=refused, first="copied < 1", parent=tokens.parent)
        b.state(f"{label}.send", *send, b.set("copied", 0), exit=Enter(scope), scope=tokens.parent)
        b.state(f"{label}.admitted", b.observe("decode.reused", "cached"),
                exit=Branch(b("copied > 0"), f"{label}.again", f"{label}.copy"), scope=scope)
        b.state(f"{label}.copy", b.set("copy_began_s", "Now"), exit=self.link.copy(b, copied, f"{label}.copied"),
                scope=scope)
        after = f"{label}.last" if by_decode else f"{label}.first"
        b.state(f"{label}.copied", Load(b.resource(d.kv), b(copied)), b.set("copied", 1),
                b.observe("copied_tok", copied), b.observe("copy_s", "Now - copy_began_s"),
                exit=_release(b, f"{label}.release", prefill, after, scope), scope=scope)
        if by_decode:
            b.state(f"{label}.last", exit=d.run(b, "Prefill", f"{known} - cached - {copied}", f"{label}.first"),
                    scope=scope)
        # preempted: what is not cached is computed here
        b.state(f"{label}.again", exit=d.run(b, "Prefill", f"Max({known} - cached, 0)", f"{label}.first"), scope=scope)
        b.state(f"{label}.first", exit=d.run(b, "Decode", f"{output} - 1 - ({known} - {input})", f"{label}.done"),
                scope=scope)
        b.state(f"{label}.done", exit=Leave(tokens.then), scope=scope)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A request: the attributes of its prompt and answer, where it goes on, and the scope around it."""

    input: str
    output: str
    then: str
    parent: str | None


def _release(b: Builder, name: str, prefill: list[Vllm], then: str, scope: str | None) -> Exit:
    """The end of the lease on the engine that computed the prompt; of several by the state `name.which`."""
    if len(prefill) == 1:
        return Release(b.resource(prefill[0].kv), then)
    ends = [b.state(f"{name}{p.place}", exit=Release(b.resource(p.kv), then), scope=scope) for p in prefill]
    return Goto(_pick(b, f"{name}.which", "prefill.replica", ends, scope))


def _pick(b: Builder, name: str, attr: str, targets: list[str], scope: str | None) -> str:
    """The state `name`, and more, that go on at the target whose place is the value of `attr`."""
    for k, target in reversed(list(enumerate(targets[:-1]))):
        rest = targets[-1] if k == len(targets) - 2 else f"{name}.after{k}"
        b.state(name if k == 0 else f"{name}.after{k - 1}", exit=Branch(b(f"{attr} < {k + 1}"), target, rest),
                scope=scope)
    return name


def _route(b: Builder, given: Vllm | Replicas, name: str, parent: str | None) -> str:
    """The state in which a request is sent to the engine, or to one of several."""
    sends = [f"{engine.label}.send" for engine in _members(given, name)]
    if len(sends) == 1:
        return sends[0]
    fleet = _grouped(given, name)
    assert isinstance(fleet, Replicas)
    return fleet.route(b, _pick(b, f"{name}.routed", fleet.replica, sends, parent), parent)


def _members(given: Vllm | Replicas, name: str) -> list[Vllm]:
    """The engines in their places, under names of their own."""
    grouped = _grouped(given, name)
    return grouped.members if isinstance(grouped, Replicas) else [grouped]


def _engines(given: Vllm | Replicas) -> tuple[Vllm, ...]:
    return given.engines if isinstance(given, Replicas) else (given,)


def _grouped(given: Vllm | Replicas, name: str) -> Vllm | Replicas:
    """The engines under names of their own: the stage `name`, pools and parameters that begin with `name.`."""
    if isinstance(given, Vllm):
        return dataclasses.replace(given, name=name, group=f"{name}.", own=f"{name}.")
    return dataclasses.replace(given, engines=tuple(
        dataclasses.replace(engine, name=name, group=f"{name}.") for engine in given.engines))


def disaggregated(*, prefill: Vllm | Replicas, decode: Vllm | Replicas, link: Link | None = None,
                  lease_s: float = 480.0, first_token: FirstToken = "prefill") -> Disaggregated:
    """Prefill and decode on engines of their own.

    **Arguments:**
    - `prefill`, `decode`: `vllm(...)`, or several with a router, `replicas(vllm(...), 4, router=...)`. Names of
      parameters and pools begin with `prefill.` and `decode.`; the stages are `prefill`, `decode` and `link`.
    - `link`: `serqjax.deployments.link(...)` (the default), shared by all copies.
    - `lease_s`: most seconds that a prefill engine keeps the KV of a prompt that is not yet copied (the default is that
      of vLLM's `NixlConnector`); it ends earlier with the copy. One whose client has withdrawn its request stays so
      long, or until the session ends.
    - `first_token`: who gives it, `"prefill"` or `"decode"`; the module says what TTFT is then.

    **Returns:** a deployment for `serqjax.program`.
    **Raises:** `ProgramError` that names the argument, its value and the remedy.
    """
    return Disaggregated(prefill, decode, _LINK if link is None else link, lease_s, first_token)


_LINK = link()
