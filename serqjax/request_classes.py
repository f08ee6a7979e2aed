"""Requests of several classes in one workload: interactive and batch, short and long, each with its share and priority.

A request (of `sessions` a session) draws its class, and its amounts are those of the class. The class and the priority
are observed at every request, so that reports can be split by them.

**Source:** `serqjax.report.facts` (the observations).
"""

from __future__ import annotations

import dataclasses
import keyword
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .builder import Builder
from .errors import ProgramError
from .ir.program import Op

if TYPE_CHECKING:
    from .workloads import Amount


@dataclasses.dataclass(frozen=True)
class RequestClass:
    """See `request_class`."""

    name: str
    share: float
    priority: Amount | None
    amounts: tuple[tuple[str, Amount], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise ProgramError.at("name", f"{self.name!r} is not allowed", "give a word of letters, digits and _")
        share = self.share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not math.isfinite(share) or share <= 0:
            raise ProgramError.at(f"{self.name}.share", f"{share!r} is not allowed", "give a finite number above 0")


def request_class(name: str, *, share: float = 1.0, priority: Amount | None = None, **amounts: Amount) -> RequestClass:
    """A class of requests, for the argument `classes` of a workload.

    **Arguments:**
    - `name`: a word. `share`: of the requests, in proportion to the other classes' shares.
    - `priority`: a number or a distribution (a smaller number is more urgent), None: the workload's.
    - `amounts`: arguments of the workload that differ for this class: `input_len`, `output_len` of `requests`;
      `first_prompt`, `new_prompt`, `output_len` of `sessions`.

    Parameters of the program: `slo.NAME.share`, `slo.NAME.input_len`, ...
    **Raises:** `ProgramError` that names the argument.
    """
    return RequestClass(name, share, priority, tuple(amounts.items()))


@dataclasses.dataclass(frozen=True)
class Classes:
    """The classes of a workload, none of which may be there."""

    of: tuple[RequestClass, ...] = ()

    def check(self, amounts: dict[str, Callable[[str, Any], None]]) -> None:
        """Refuse names that come twice, and amounts that are not among `amounts` or that its check refuses."""
        for k, one in enumerate(self.of):
            if not isinstance(one, RequestClass):
                raise ProgramError.at(f"classes[{k}]", f"{one!r} is no class", "use `workloads.request_class(...)`")
            if one.name in [other.name for other in self.of[:k]]:
                raise ProgramError.at(f"classes[{k}]", f"a second class `{one.name}`", "rename one of them")
            for name, value in one.amounts:
                if name not in amounts:
                    raise ProgramError.at(f"{one.name}.{name}", "is no amount of this workload",
                                          "use " + ", ".join(amounts))
                amounts[name](f"{one.name}.{name}", value)

    def draw(self, b: Builder) -> tuple[Op, ...]:
        """Sets the attribute `klass`, a whole number from 0, in proportion to the shares."""
        if not self.of:
            return ()
        b.attr("klass")
        shares = [b.param(f"slo.{one.name}.share", one.share).name for one in self.of]
        ends = [" + ".join(shares[: k + 1]) for k in range(len(shares))]
        which = " else ".join(f"{k} if klass < {end}" for k, end in enumerate(ends[:-1]))
        last = len(shares) - 1
        return (b.set("klass", f"~Uniform(0, {ends[-1]})"), b.set("klass", f"{which} else {last}" if which else last))

    def pick(self, name: str, common: Any, text: Callable[[str, Any], str]) -> str:
        """The text of an amount: each class's own (named `slo.CLASS.name`), or the workload's, `common`."""
        own = [dict(one.amounts).get(name) for one in self.of]
        return self._by_class(name, common, own, text)

    def priority(self, common: Any, text: Callable[[str, Any], str]) -> str | None:
        """The text of the priority; None if neither the workload nor a class has one."""
        own = [one.priority for one in self.of]
        if common is None and all(value is None for value in own):
            return None
        return self._by_class("priority", 0.0 if common is None else common, own, text)

    def _by_class(self, name: str, common: Any, own: list[Any], text: Callable[[str, Any], str]) -> str:
        if all(value is None for value in own):
            return text(name, common)
        texts = [text(name, common) if value is None else text(f"slo.{one.name}.{name}", value)
                 for one, value in zip(self.of, own)]
        tests = [f"({made}) if klass < {k + 1} else " for k, made in enumerate(texts[:-1])]
        return "".join(tests) + f"({texts[-1]})"

    def say(self, b: Builder, priority: bool) -> tuple[Op, ...]:
        """What is observed at every request."""
        said = (b.observe("class", "klass"),) if self.of else ()
        return (*said, b.observe("priority", "priority")) if priority else said


def classes_of(given: Iterable[RequestClass]) -> Classes:
    """**Raises:** `ProgramError` if it is no list."""
    if isinstance(given, (str, RequestClass)) or not isinstance(given, Iterable):
        raise ProgramError.at("classes", f"{given!r} is no list of classes", "use [workloads.request_class(...), ...]")
    return Classes(tuple(given))
