"""What stands between a client and the engine: an API server that takes a fixed time before and after.

A request is parsed and tokenized before the engine sees it; each of its tokens is detokenized and sent after the engine
has made it. Both times are constants and nobody waits for anybody: a composition of one delay around any deployment.
The client's TTFT and E2E have them, the engine's own TTFT has not; the gaps between tokens are the same for both.

**Source:** `serqjax.report.facts` (the observations that tell the report).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..builder import AbstractDeployment, Builder, Served
from ..errors import ProgramError
from ..ir.program import Delay, Goto, Run
from .offload import check_numbers


@dataclasses.dataclass(frozen=True)
class BehindApi(AbstractDeployment):
    """See `behind_api`."""

    deployment: AbstractDeployment
    before_s: float
    after_s: float

    def __post_init__(self) -> None:
        if not isinstance(self.deployment, AbstractDeployment) or isinstance(self.deployment, BehindApi):
            raise ProgramError.at("deployment", f"{type(self.deployment).__name__} cannot stand behind an API server",
                                  "use `vllm(...)`, `replicas(...)` or `disaggregated(...)`")
        check_numbers({"before_s": self.before_s, "after_s": self.after_s}, {})

    def arguments(self) -> dict[str, Any]:
        """Those of the deployment, and `before_s`, `after_s`."""
        return self.deployment.arguments() | super().arguments()

    def replace(self, **changes: Any) -> BehindApi:
        """The same with other arguments, those of the deployment too."""
        own = {name: changes.pop(name) for name in ("before_s", "after_s") if name in changes}
        return dataclasses.replace(self, deployment=self.deployment.replace(**changes), **own)

    def declare(self, b: Builder) -> None:
        b.param("api_before_s", self.before_s, "s")
        b.param("api_after_s", self.after_s, "s")
        b.stage("api", Delay())
        self.deployment.declare(b)

    def serve(self, b: Builder, *, input: str, output: str, then: str, parent: str | None = None) -> Served:
        served = self.deployment.serve(b, input=input, output=output, then="api.answer", parent=parent)
        b.state("api.request", exit=Run("api", "Plain", b("api_before_s"), "api.passed"), scope=parent)
        b.state("api.passed", b.observe("engine_arrival", "Now"), b.observe("api_after_s", "api_after_s"),
                exit=Goto(served.entry), scope=parent)
        b.state("api.answer", exit=Run("api", "Plain", b("api_after_s"), then), scope=parent)
        return Served("api.request", served.output)


def behind_api(deployment: AbstractDeployment, *, before_s: float = 0.0, after_s: float = 0.0) -> BehindApi:
    """A deployment behind an API server.

    **Arguments:**
    - `deployment`: any of `serqjax.deployments`.
    - `before_s`: seconds from the client's sending until the engine sees the request.
    - `after_s`: seconds from a token, and from the end of the answer, until the client has it.

    **Returns:** a deployment for `serqjax.program`. Reports have TTFT (the client's) and TTFT (engine) apart; time on
    the CPU in every step is part of the engine's cost (`serqjax.costs.with_cpu`).
    **Raises:** `ProgramError` that names the argument.
    """
    return BehindApi(deployment, before_s, after_s)
