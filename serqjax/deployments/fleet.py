"""Several engines behind a router.

A fleet is arrays of the pools and stages that one engine has, and a choice before each request: `Choose` sets the
attribute `replica`, and the request's hold and runs name the members of that index. A router is a tuple of keys; the
replica with the least keys gets the request, ties go to the lowest index. A preempted request stays where it was.

**Source:** `design.md`, section 2.3 (orders); the routers are those of common load balancers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

from ..builder import AbstractDeployment, Builder, Served
from ..errors import ProgramError
from ..ir.program import Goto
from .vllm import Vllm

Router = Literal["round_robin", "random", "least_requests", "least_kv", "prefix_affinity"]

_REQUESTS = "Holders(reqs[replica]) + Queued(reqs[replica])"
#: Keys of each router, read for every replica.
ROUTERS: dict[Router, tuple[str, ...]] = {
    # who has got the fewest requests so far
    "round_robin": ("Joined(reqs[replica])",),
    "random": ("~Uniform(0, 1)",),
    "least_requests": (_REQUESTS,),
    "least_kv": ("Used(kv[replica])",),
    # where most of the session's prefix lies; a new session where the fewest requests are
    "prefix_affinity": ("-CachedIn(kv[replica])", _REQUESTS),
}
assert set(ROUTERS) == set(get_args(Router))

#: What replicas may differ in.
OWN = ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "cost")


@dataclasses.dataclass(frozen=True)
class Replicas(AbstractDeployment):
    """See `replicas`."""

    engines: tuple[Vllm, ...]
    router: Router

    def __post_init__(self) -> None:
        if not self.engines:
            raise ProgramError.at("n", "a fleet has at least one engine")
        if self.router not in ROUTERS:
            raise ProgramError.at("router", f"{self.router!r} is not known", "use one of " + ", ".join(ROUTERS))
        first = self.engines[0]
        for k, engine in enumerate(self.engines):
            if not isinstance(engine, Vllm):
                what = f"{type(engine).__name__} cannot be a replica"
                raise ProgramError.at(f"engines[{k}]", what, "use `vllm(...)`")
            for field in dataclasses.fields(Vllm):
                if field.name not in OWN and getattr(engine, field.name) != getattr(first, field.name):
                    what = f"{field.name} differs from the first engine's"
                    raise ProgramError.at(f"engines[{k}]", what, "replicas may differ in " + ", ".join(OWN))

    @property
    def _members(self) -> list[Vllm]:
        """The engines in their places; where they differ each has parameters of its own, `replica2.max_num_seqs`."""
        alike = all(engine == self.engines[0] for engine in self.engines)
        return [
            dataclasses.replace(engine, place=f"[{k}]", own="" if alike else f"replica{k}.")
            for k, engine in enumerate(self.engines)
        ]

    def arguments(self) -> dict[str, Any]:
        """Those of the engine, if all are alike."""
        alike = all(engine == self.engines[0] for engine in self.engines)
        return {"n": len(self.engines)} | (self.engines[0].arguments() if alike else {})

    def names(self) -> list[str]:
        """`n`, `router`, and the arguments of its engines."""
        return ["n", "router", *self.engines[0].names()]

    def replace(self, **changes: Any) -> Replicas:
        """The same fleet with other arguments: `n`, `router`, or an argument of all its engines."""
        engines, router = self.engines, changes.pop("router", self.router)
        if "n" in changes:
            n = changes.pop("n")
            if any(engine != engines[0] for engine in engines):
                raise ProgramError.at("n", "the engines differ", "give a list of engines")
            engines = _copies(engines[0], n)
        return Replicas(tuple(engine.replace(**changes) for engine in engines), router)

    def declare(self, b: Builder) -> None:
        b.attr("replica")
        for member in self._members:
            member.declare(b)

    def serve(self, b: Builder, *, input: str, output: str, then: str, parent: str | None = None) -> Served:
        # the largest, so that what is above its slots is above everybody's
        serving = dataclasses.replace(max(self._members, key=lambda engine: engine.max_num_seqs), place="[replica]")
        served = serving.serve(b, input=input, output=output, then=then, parent=parent)
        route = b.choose("replica", len(self.engines), *ROUTERS[self.router])
        return Served(b.state(f"{serving.name}.route", route, exit=Goto(served.entry), scope=parent), served.output)


def _copies(engine: Vllm, n: Any) -> tuple[Vllm, ...]:
    if isinstance(n, bool) or not isinstance(n, (int, float)) or n != int(n) or n < 1:
        raise ProgramError.at("n", f"{n!r} is not allowed", "give a whole number of at least 1")
    return (engine,) * int(n)


def replicas(deployment: Vllm | Sequence[Vllm], n: int | None = None, *, router: Router = "least_requests") -> Replicas:
    """A fleet of vLLM engines behind a router.

    **Arguments:**
    - `deployment`: one engine, which `n` replicas are like, or a list of engines that differ in `max_num_seqs`,
      `max_num_batched_tokens`, `num_gpu_blocks` or `cost`.
    - `router`: which replica a request goes to, ties to the lowest index: `round_robin` (who has got the fewest so
      far), `random`, `least_requests` (running and waiting), `least_kv` (units in use), `prefix_affinity` (most of the
      session's own prefix cached, then `least_requests`).

    **Returns:** a deployment for `serqjax.program`.
    **Raises:** `ProgramError` that names the argument, its value and the remedy.
    """
    if isinstance(deployment, Vllm):
        if n is None:
            raise ProgramError.at("n", "how many replicas is not said", "give n, or a list of engines")
        return Replicas(_copies(deployment, n), router)
    engines = tuple(deployment)
    if n is not None and n != len(engines):
        raise ProgramError.at("n", f"{n!r} is not the number of engines ({len(engines)})", "leave it out")
    return Replicas(engines, router)
