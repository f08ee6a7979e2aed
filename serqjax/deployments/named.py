"""The ready-made deployments by the names of the command line: every argument a word or a number.

`replicas`: `n` engines alike behind `router`; all others are arguments of `vllm`. `disaggregated`: arguments of `vllm`
hold for both sides; `prefill.NAME` and `decode.NAME` for one (`prefill.n`: so many engines); `link.NAME`, `lease_s`,
`first_token`. Each engine costs what the command line says.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..builder import AbstractDeployment
from ..costs import Cost
from .disaggregated import disaggregated, link
from .fleet import Replicas, replicas
from .vllm import OF_MODEL, Vllm, vllm


def _names(maker: Callable[..., Any], *but: str) -> tuple[str, ...]:
    """What of a maker's arguments the command line can say."""
    parameters = inspect.signature(maker).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in but)


_VLLM = (*_names(vllm, "cost", "offload", "shared_prefixes"), *OF_MODEL)
_FLEET = ("n", "router")


@dataclasses.dataclass(frozen=True)
class Named:
    """A deployment that is made from settings: `names` are those it knows, `make` takes them and the cost."""

    names: tuple[str, ...]
    make: Callable[..., AbstractDeployment]

    def make_with(self, settings: Mapping[str, Any], cost: Cost, given: bool) -> AbstractDeployment:
        """The deployment; of a named model the first guess is the cost, unless all numbers of one were `given`."""
        guessed = any(name.rpartition(".")[2] == "model" for name in settings)
        return self.make(**settings, cost=None if guessed and not given else cost)


def _engines(settings: Mapping[str, Any], cost: Cost | None) -> Vllm | Replicas:
    """One engine, or several if `n` says so."""
    engine = vllm(cost=cost, **{name: value for name, value in settings.items() if name not in _FLEET})
    return replicas(engine, **{k: settings[k] for k in _FLEET if k in settings}) if "n" in settings else engine


def _replicas(*, cost: Cost | None, **settings: Any) -> AbstractDeployment:
    return _engines({"n": 2} | settings, cost)


def _disaggregated(*, cost: Cost | None, **settings: Any) -> AbstractDeployment:
    def of(part: str) -> dict[str, Any]:
        return {k.removeprefix(f"{part}."): v for k, v in settings.items() if k.startswith(f"{part}.")}

    both = {name: settings[name] for name in _VLLM if name in settings}
    whole = {name: settings[name] for name in ("lease_s", "first_token") if name in settings}
    return disaggregated(prefill=_engines(both | of("prefill"), cost), decode=_engines(both | of("decode"), cost),
                         link=link(**of("link")), **whole)


_PARTS = (*(f"{part}.{name}" for part in ("prefill", "decode") for name in (*_VLLM, *_FLEET)),
          *(f"link.{name}" for name in _names(link)))

#: Deployments by the name that the command line knows.
BY_NAME = {
    "vllm": Named((*_VLLM, "shared_prefixes"), vllm),
    "replicas": Named((*_FLEET, *_VLLM, "shared_prefixes"), _replicas),
    "disaggregated": Named((*_VLLM, *_PARTS, "lease_s", "first_token"), _disaggregated),
}
