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
from ..ir.program import Branch, Enter, Lease, Leave, Load, Op, ProcessorSharing, Release, Run
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
        prefill, p = _serving(_grouped(self.prefill, "prefill"))
        decode, d = _serving(_grouped(self.decode, "decode"))
        by_decode = self.first_token == "decode"

        # the prompt, and the lease that its end leaves
        send, output, oversize = p.send(b, input=input, output=output)
        to_decode, output, refused = d.send(b, input=input, output=output)
        p.hold(b, input=input, keep=input, oversize=oversize, parent=parent,
               lease=Lease(pool=b.resource(p.kv), after_s=b("lease_s")))
        if p.offload is not None:
            p.offload.fetch(b, p)
        computed, ready = ("cached", "admitted") if p.offload is None else ("(cached + prefill.loaded)", "ready")
        known = p.known(b)
        b.state("prefill.send", *send, exit=Enter("prefill.request"), scope=parent)
        b.state(f"prefill.{ready}",
                b.observe("prefill.reused", "cached"), b.observe("prefill.prefill", f"{known} - {computed}"),
                exit=p.run(b, "Prefill", f"Max({known} - {computed}, 0)", "prefill.done"), scope="prefill.request")
        at_decode = decode.route(b, "decode.send", parent) if isinstance(decode, Replicas) else "decode.send"
        b.state("prefill.done", exit=Leave(at_decode if by_decode else "prefill.left"), scope="prefill.request")
        if not by_decode:
            # all is said after one token: nothing is copied
            b.state("prefill.left", exit=Branch(b(f"{output} > 1"), at_decode, "prefill.drop"), scope=parent)
            b.state("prefill.drop", exit=Release(b.resource(p.kv), then), scope=parent)

        self._decode(b, p, d, to_decode, refused, input=input, output=output, then=then, parent=parent)
        entry = "prefill.send" if isinstance(prefill, Vllm) else prefill.route(b, "prefill.send", parent)
        return Served(entry, output)

    def _decode(self, b: Builder, p: Vllm, d: Vllm, send: list[Op], refused: str, *, input: str, output: str, then: str,
                parent: str | None) -> None:
        """The copy, and all tokens that the decode engine gives."""
        by_decode, known, scope = self.first_token == "decode", d.known(b), "decode.request"
        # what the decode engine has, and the token that it computes itself, are not copied
        tokens = f"Max({known} - cached - 1, 0)" if by_decode else f"({known} - cached)"
        d.hold(b, input=input, keep=f"{input} + {output}", oversize=refused, first="copied < 1", parent=parent)
        b.state("decode.send", *send, b.set("copied", 0), exit=Enter(scope), scope=parent)
        b.state("decode.admitted", b.observe("decode.reused", "cached"),
                exit=Branch(b("copied > 0"), "decode.again", "decode.copy"), scope=scope)
        b.state("decode.copy", b.set("copy_began_s", "Now"), exit=self.link.copy(b, tokens, "decode.copied"),
                scope=scope)
        b.state("decode.copied", Load(b.resource(d.kv), b(tokens)), b.set("copied", 1),
                b.observe("copied_tok", tokens), b.observe("copy_s", "Now - copy_began_s"),
                exit=Release(b.resource(p.kv), "decode.last" if by_decode else "decode.first"), scope=scope)
        if by_decode:
            b.state("decode.last", exit=d.run(b, "Prefill", f"{known} - cached - {tokens}", "decode.first"),
                    scope=scope)
        # preempted: what is not cached is computed here
        b.state("decode.again", exit=d.run(b, "Prefill", f"Max({known} - cached, 0)", "decode.first"), scope=scope)
        b.state("decode.first", exit=d.run(b, "Decode", f"{output} - 1 - ({known} - {input})", "decode.done"),
                scope=scope)
        b.state("decode.done", exit=Leave(then), scope=scope)


def _engines(given: Vllm | Replicas) -> tuple[Vllm, ...]:
    return given.engines if isinstance(given, Replicas) else (given,)


def _grouped(given: Vllm | Replicas, name: str) -> Vllm | Replicas:
    """The engines under names of their own: the stage `name`, pools and parameters that begin with `name.`."""
    if isinstance(given, Vllm):
        return dataclasses.replace(given, name=name, group=f"{name}.", own=f"{name}.")
    return dataclasses.replace(given, engines=tuple(
        dataclasses.replace(engine, name=name, group=f"{name}.") for engine in given.engines))


def _serving(given: Vllm | Replicas) -> tuple[Vllm | Replicas, Vllm]:
    return given, given.serving if isinstance(given, Replicas) else given


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
