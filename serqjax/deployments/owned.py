"""What a deployment stands on: its GPUs and their price. Nothing of it is simulated.

They become the parameters `gpus` and `price_per_gpu_hour` of the program: `--set gpus=8` changes them, a grid may
vary them, and
the metrics `requests_per_gpu` and `cost_per_mtok` read them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..builder import AbstractDeployment, Builder, Served
from ..errors import ProgramError


@dataclasses.dataclass(frozen=True)
class Owned(AbstractDeployment):
    """See `owned`."""

    deployment: AbstractDeployment
    gpus: float
    price_per_gpu_hour: float | None

    def __post_init__(self) -> None:
        if not isinstance(self.deployment, AbstractDeployment):
            raise ProgramError.at("deployment", f"{type(self.deployment).__name__} is not a deployment",
                                  "take one of `serqjax.deployments`")
        _number("gpus", self.gpus, above=True)
        if self.price_per_gpu_hour is not None:
            _number("price_per_gpu_hour", self.price_per_gpu_hour, above=False)

    def arguments(self) -> dict[str, Any]:
        return self.deployment.arguments() | super().arguments()

    def replace(self, **changes: Any) -> Owned:
        """The same with other arguments, of the deployment too."""
        own = {name: changes.pop(name) for name in ("gpus", "price_per_gpu_hour") if name in changes}
        return dataclasses.replace(self, deployment=self.deployment.replace(**changes), **own)

    def declare(self, b: Builder) -> None:
        self.deployment.declare(b)
        b.param("gpus", self.gpus, "GPUs")
        if self.price_per_gpu_hour is not None:
            b.param("price_per_gpu_hour", self.price_per_gpu_hour, "per GPU and hour")

    def serve(self, b: Builder, *, input: str, output: str, then: str, parent: str | None = None) -> Served:
        return self.deployment.serve(b, input=input, output=output, then=then, parent=parent)


def _number(name: str, value: Any, *, above: bool) -> None:
    wrong = isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
    if wrong or value < 0 or (above and value == 0):
        bound = "above 0" if above else "of at least 0"
        raise ProgramError.at(name, f"{value!r} is not allowed", f"give a number {bound}")


def owned(deployment: AbstractDeployment, *, gpus: float = 1, price_per_gpu_hour: float | None = None) -> Owned:
    """A deployment with the number of its GPUs, all engines together, and the price of one for an hour (any currency).

    **Returns:** a deployment for `serqjax.program`; the metrics `requests_per_gpu` and `cost_per_mtok` then have a
    value.
    **Raises:** `ProgramError` that names the argument.
    """
    return Owned(deployment, gpus, price_per_gpu_hour)
