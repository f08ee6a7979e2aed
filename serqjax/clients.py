"""Clients that lose patience: a deployment behind a time limit and a number of retries.

A composition of deadlines around any deployment: every state in which its request may block gets what is left of the
client's patience as its deadline; when it comes, the request is withdrawn from wherever it is and sent again, or
given up.

**Source:** `serqjax.ir.program.Deadline`.
"""

from __future__ import annotations

import dataclasses
import math

from .builder import AbstractDeployment, Builder, Served
from .errors import ProgramError
from .ir.program import Branch, Deadline, Goto, Respond


@dataclasses.dataclass(frozen=True)
class Patience:
    """`timeout_s`: seconds from sending to the whole answer, None: without end. `retries`: times it is sent again.

    Each attempt has the whole time anew. The client sees one request: its times begin with the first attempt. One that
    is given up has ended then; the observation `gave_up` says so, and it counts as abandoned.
    """

    timeout_s: float | None = None
    retries: int = 0

    def __post_init__(self) -> None:
        timeout_s, retries = self.timeout_s, self.retries
        if timeout_s is not None and (isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float))
                                      or not math.isfinite(timeout_s) or timeout_s <= 0):
            raise ProgramError.at("timeout_s", f"{timeout_s!r} is not allowed", "give seconds above 0, or None")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ProgramError.at("retries", f"{retries!r} is not allowed", "give a whole number of at least 0")
        if retries and timeout_s is None:
            raise ProgramError.at("retries", "nothing is sent again without a time limit", "give `timeout_s` too")

    def serve(self, b: Builder, deployment: AbstractDeployment, *, input: str, output: str, then: str, gave_up: str,
              parent: str | None = None) -> Served:
        """As `AbstractDeployment.serve`, for a client with this patience; `gave_up`: where it goes on without answer.

        Observes `timeouts` (the number of the attempt, from 0) at each time limit, and `gave_up` (seconds since the
        request was sent first).
        """
        if self.timeout_s is None:
            return deployment.serve(b, input=input, output=output, then=then, parent=parent)
        b.param("timeout_s", self.timeout_s, "s")
        b.param("retries", self.retries)
        for attr in ("client.sent", "client.until", "client.attempt"):
            b.attr(attr)
        mark = b.mark()
        served = deployment.serve(b, input=input, output=output, then=then, parent=parent)
        b.limit(mark, Deadline(after=b("Max(client.until - Now, 0)"), target="client.timeout"))
        again = b.set("client.until", "Now + timeout_s")
        b.state("client.send", b.set("client.sent", "Now"), b.set("client.attempt", 0), again,
                exit=Goto(served.entry), scope=parent)
        b.state("client.timeout", b.observe("timeouts", "client.attempt"),
                b.set("client.attempt", "client.attempt + 1"),
                exit=Branch(b("client.attempt <= retries"), "client.again", "client.give_up"), scope=parent)
        b.state("client.again", again, exit=Goto(served.entry), scope=parent)
        b.state("client.give_up", b.observe("gave_up", "Now - client.sent"), Respond(), exit=Goto(gave_up),
                scope=parent)
        return Served("client.send", served.output)
