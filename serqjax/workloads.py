"""Ready-made workloads: multi-turn `sessions`, single `requests`, and recorded ones (`from_trace`).

Numbers of tokens are a number or a distribution (`uniform`, `exponential`, ...); drawn values are rounded up to whole
tokens, at least 1. Every number is a parameter under the name of its argument (`input_len`; of a
distribution: `input_len.mean`, ...).

**Source:** `vllm bench serve` (names of `requests`); `design.md`, section 8 (defaults of `sessions`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from .builder import AbstractDeployment, AbstractWorkload, Builder, Sessions
from .clients import Patience
from .errors import ProgramError
from .ir.expr import Param
from .ir.program import (
    Batch,
    Branch,
    Closed,
    Delay,
    End,
    Enter,
    Goto,
    Leave,
    Listed,
    Op,
    Poisson,
    Renewal,
    Respond,
    Run,
    Trace,
    Turn,
)
from .request_classes import Classes, RequestClass, classes_of
from .request_classes import request_class as request_class
from .traces import Request, TraceFile

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Distribution:
    """A distribution of the language with its arguments by name."""

    kind: str
    args: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        for name, value in self.args:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise ProgramError.at(name, f"{value!r} is not allowed", "give a finite number, 0 or more")

    def text(self, b: Builder, name: str, unit: str) -> str:
        """The draw as text; its numbers are parameters `name.ARG` (a constant: `name`)."""
        if self.kind == "Det":
            return b.param(name, self.args[0][1], unit).name
        if self.kind == "Table":
            return self._table(b, name)
        pure = {"k": "", "cv2": "", "p": ""}
        names = [b.param(f"{name}.{arg}", value, pure.get(arg, unit)).name for arg, value in self.args]
        return f"~{self.kind}({', '.join(names)})"

    def prepare(self, b: Builder, name: str) -> tuple[Op, ...]:
        """What a session sets before it evaluates `text`."""
        if self.kind != "Table":
            return ()
        b.attr(f"{name}.u")
        return (b.set(f"{name}.u", "~Uniform(0, 1)"),)

    def _table(self, b: Builder, name: str) -> str:
        """The quantile function at the attribute `name.u`, linear between the points of the table."""
        points = [value for _, value in self.args]
        terms = [repr(float(points[0]))]
        for low, high, a, z in zip(TABLE_AT, TABLE_AT[1:], points, points[1:]):
            if z > a:
                part = f"Min(Max({name}.u - {low!r}, 0), {high - low!r})"
                terms.append(f"{part} * {(z - a) / (high - low)!r}")
        return " + ".join(terms)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """`n` draws on the host."""
        import numpy as np

        args = dict(self.args)
        match self.kind:
            case "Det":
                return np.full(n, args["value"])
            case "Uniform":
                return rng.uniform(args["low"], args["high"], n)
            case "Exp":
                return rng.exponential(args["mean"], n)
            case "Erlang":
                return rng.gamma(args["k"], args["mean"] / args["k"], n)
            case "H2":
                # balanced means, as the language defines it
                p = 0.5 * (1.0 + math.sqrt((args["cv2"] - 1.0) / (args["cv2"] + 1.0)))
                means = np.where(rng.random(n) < p, args["mean"] / (2.0 * p), args["mean"] / (2.0 * (1.0 - p)))
                return means * rng.standard_exponential(n)
            case "Bernoulli":
                return (rng.random(n) < args["p"]).astype(np.float64)
            case _:
                return np.interp(rng.random(n), TABLE_AT, [value for _, value in self.args])


#: Probabilities of the points of a fitted distribution: finer where the tail is.
TABLE_AT = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.999, 1.0)


def fitted(values: Iterable[float]) -> Distribution:
    """The distribution of recorded numbers: their quantiles at the probabilities `TABLE_AT`, linear between, from the
    least to the greatest.

    `fitted(r.input_tok for r in trace.rows)` for `input_len`, and `output_tok` for `output_len`: drawn by themselves,
    so that what ties long prompts to long answers is lost (`synthetic.trace(lengths_of=...)` keeps it).

    **Raises:** `ProgramError` without a value, or for one that is not a finite number of at least 0.
    """
    ordered = sorted(float(v) for v in values)
    if not ordered:
        raise ProgramError.at("values", "there are none to fit", "give at least one")
    points = []
    for p in TABLE_AT:
        place = p * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        points.append(ordered[low] + (place - low) * (ordered[high] - ordered[low]))
    return Distribution("Table", tuple((f"p{p:g}", value) for p, value in zip(TABLE_AT, points)))


def constant(value: float) -> Distribution:
    """Always `value`."""
    return Distribution("Det", (("value", value),))


def uniform(low: float, high: float) -> Distribution:
    """Between `low` and `high`."""
    return Distribution("Uniform", (("low", low), ("high", high)))


def exponential(mean: float) -> Distribution:
    return Distribution("Exp", (("mean", mean),))


def erlang(k: int, mean: float) -> Distribution:
    """Sum of `k` exponentials, `mean` in all."""
    return Distribution("Erlang", (("k", k), ("mean", mean)))


def hyperexponential(mean: float, cv2: float) -> Distribution:
    """Two exponentials with balanced means; `cv2` is the squared coefficient of variation, 1 or more."""
    return Distribution("H2", (("mean", mean), ("cv2", cv2)))


def bernoulli(p: float) -> Distribution:
    """1 with probability `p`, else 0: two classes of priority, for example."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0.0 <= p <= 1.0:
        raise ProgramError.at("p", f"{p!r} is not allowed", "give a probability, 0 to 1")
    return Distribution("Bernoulli", (("p", p),))


#: A number or a distribution.
Amount = float | Distribution


def _distribution(name: str, value: Amount, least: float = 0.0) -> Distribution:
    if isinstance(value, Distribution):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise ProgramError.at(name, f"{value!r} is not allowed",
                              f"give a number of at least {least:g}, or a distribution such as exponential(500)")
    return constant(value)


def _amount_tok(name: str, value: Amount, least: int) -> None:
    """A constant number of tokens is whole; draws are rounded up."""
    made = _distribution(name, value, least)
    if made.kind == "Det":
        _whole(name, made.args[0][1], least)


def _tokens(b: Builder, name: str, value: Distribution) -> str:
    text = value.text(b, name, "tokens")
    return text if value.kind == "Det" else f"Max(1, Ceil({text}))"


def _amounts(b: Builder, classes: Classes, given: dict[str, Amount]) -> tuple[list[Op], list[str]]:
    """What a session sets before its amounts of tokens are evaluated, and the texts of these."""
    prepared: list[Op] = []

    def text(name: str, value: Amount) -> str:
        drawn = _distribution(name, value)
        prepared.extend(drawn.prepare(b, name))
        return _tokens(b, name, drawn)

    return prepared, [classes.pick(name, value, text) for name, value in given.items()]


def _priority(b: Builder, value: Amount | None, classes: Classes) -> tuple[Op, ...]:
    """What sets the priority of a session or request, if it has one."""
    text = classes.priority(value, lambda name, given: _distribution(name, given, -math.inf).text(b, name, ""))
    if text is None:
        return ()
    b.attr("priority")
    return (b.set("priority", text),)


def _check_priorities(value: Amount | None, classes: Classes) -> None:
    for name, given in [("priority", value), *((f"{one.name}.priority", one.priority) for one in classes.of)]:
        _distribution(name, given or 0.0, -math.inf)


#: `shared_prefixes` of a deployment under a workload with `system_prompts`.
SYSTEM_PROMPTS = (("system", "system_tok"),)


def _system(b: Builder, count: int, tokens: int) -> tuple[Op, ...]:
    """What a session sets of the prompt that it has in common with others."""
    if not count:
        return ()
    for attr in SYSTEM_PROMPTS[0]:
        b.attr(attr)
    b.param("system_prompts", count)
    b.param("system_prompt_len", tokens, "tokens")
    return (b.set("system", "Floor(~Uniform(0, system_prompts))"), b.set("system_tok", "system_prompt_len"))


def _system_arguments(count: int, tokens: int) -> None:
    _whole("system_prompts", count, 0)
    _whole("system_prompt_len", tokens, 1)


def _whole(name: str, value: float | None, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != math.floor(value) or value < least:
        raise ProgramError.at(name, f"{value!r} is not allowed", f"give a whole number of at least {least}")


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ProgramError.at(name, f"{value!r} is not allowed", "give a finite number above 0")


# ---------------------------------------------------------------- multi-turn sessions


def conversation(b: Builder, deployment: AbstractDeployment, more: str, think: str, new: str = "new",
                 output: str = "out", patience: Patience = Patience(), said: tuple[Op, ...] = ()) -> str:
    """States of a session that takes turns; the prompt of a turn is all of the conversation and `new` tokens.

    **Arguments:** `more`: expression, another turn follows. `think`: expression, seconds before it. `new`,
    `output`: attributes that each turn sets. `patience`: of the client; one that gives up leaves. `said`: what is
    observed at each turn.
    **Returns:** the start state.
    """
    b.attr("context")
    b.attr("prompt")
    b.stage("think", Delay())
    served = patience.serve(b, deployment, input="prompt", output=output, then="answered", gave_up="leaving")
    b.state("turn", Turn(), *said, b.set("prompt", f"context + {new}"), exit=Goto(served.entry))
    b.state("answered", Respond(), b.set("context", f"prompt + {served.output}"),
            exit=Branch(b(more), "thinking", "leaving"))
    b.state("thinking", exit=Run("think", "Plain", b(think), "turn"))
    b.state("leaving", exit=End())
    return "turn"


@dataclasses.dataclass(frozen=True)
class MultiTurn(AbstractWorkload):
    """See `sessions`."""

    session_rate: float
    turns: int | None
    continue_probability: float
    first_prompt: Amount
    new_prompt: Amount
    output_len: Amount
    think_s: Amount
    context_limit: int | None
    num_sessions: int | None
    horizon_s: float | None
    warmup_s: float | None
    priority: Amount | None = None
    timeout_s: float | None = None
    retries: int = 0
    classes: Classes = Classes()
    system_prompts: int = 0
    system_prompt_len: int = 512

    @property
    def _patience(self) -> Patience:
        return Patience(self.timeout_s, self.retries)

    def __post_init__(self) -> None:
        Patience(self.timeout_s, self.retries)  # refuses what makes no sense
        _system_arguments(self.system_prompts, self.system_prompt_len)
        if isinstance(self.think_s, Distribution) and self.think_s.kind == "Table":
            raise ProgramError.at("think_s", "a fitted distribution is for numbers of tokens", "use exponential(mean)")
        _positive("session_rate", self.session_rate)
        _whole("turns", self.turns, 1)
        _whole("context_limit", self.context_limit, 1)
        _whole("num_sessions", self.num_sessions, 1)
        if not 0.0 <= self.continue_probability <= 1.0:
            raise ProgramError.at("continue_probability", f"{self.continue_probability!r} is not allowed",
                                  "give a probability, 0 to 1")
        if self.turns is None and self.continue_probability == 1.0 and self.context_limit is None:
            raise ProgramError.at("continue_probability", "1 lets no session end",
                                  "give less than 1, `turns` or `context_limit`")
        for name, least in (("first_prompt", 1), ("new_prompt", 0), ("output_len", 1)):
            _amount_tok(name, getattr(self, name), least)
        _distribution("think_s", self.think_s)
        self.classes.check({
            "first_prompt": lambda name, value: _amount_tok(name, value, 1),
            "new_prompt": lambda name, value: _amount_tok(name, value, 0),
            "output_len": lambda name, value: _amount_tok(name, value, 1),
        })
        _check_priorities(self.priority, self.classes)

    def declare(self, b: Builder, deployment: AbstractDeployment) -> Sessions:
        b.attr("new")
        b.attr("out", hidden=True)
        b.attr("context")
        b.param("session_rate", self.session_rate, "sessions/s")
        drawn, priority = self.classes.draw(b), _priority(b, self.priority, self.classes)
        init = (*drawn, *priority, *_system(b, self.system_prompts, self.system_prompt_len))
        names = ("first_prompt", "new_prompt", "output_len")
        prepared, (first, new, out) = _amounts(b, self.classes, {name: getattr(self, name) for name in names})
        if self.system_prompts:
            first = f"system_tok + ({first})"
        turn = [*prepared, b.set("new", f"({first}) if context == 0 else ({new})"), b.set("out", out)]
        if self.turns is None:
            b.attr("again")
            b.param("continue_probability", self.continue_probability)
            more = "~Bernoulli(continue_probability)"
        else:
            b.attr("turn_no")
            b.attr("again")
            b.param("turns", self.turns)
            more = "turn_no < turns"
        if self.context_limit is not None:
            b.param("context_limit", self.context_limit, "tokens")
            more += " and context + new + out < context_limit"
        turn.append(b.set("again", more))
        thinks = _distribution("think_s", self.think_s)
        turn += thinks.prepare(b, "think_s")
        think = thinks.text(b, "think_s", "s")
        start = conversation(b, deployment, "again", think, patience=self._patience,
                             said=self.classes.say(b, priority=bool(priority)))
        horizon_s, warmup_s = self.horizon_s, self.warmup_s
        if horizon_s is None and self.num_sessions is None:
            horizon_s = 3000.0
        if warmup_s is None:
            warmup_s = 300.0 if self.num_sessions is None else 0.0
        return Sessions(start, Poisson(Param("session_rate")), init=init, turn=tuple(turn),
                        arrivals=self.num_sessions, horizon_s=horizon_s, warmup_s=warmup_s)


def sessions(*, session_rate: float = 0.05, turns: int | None = None, continue_probability: float = 0.9,
             first_prompt: Amount = Distribution("Uniform", (("low", 1000.0), ("high", 3000.0))),
             new_prompt: Amount = Distribution("Exp", (("mean", 500.0),)),
             output_len: Amount = Distribution("Exp", (("mean", 200.0),)),
             think_s: Amount = Distribution("Exp", (("mean", 3.0),)), context_limit: int | None = None,
             num_sessions: int | None = None, horizon_s: float | None = None,
             warmup_s: float | None = None, priority: Amount | None = None, timeout_s: float | None = None,
             retries: int = 0, classes: Iterable[RequestClass] = (), system_prompts: int = 0,
             system_prompt_len: int = 512) -> MultiTurn:
    """Conversations: each turn sends everything said so far and a new prompt, then thinks.

    **Arguments:**
    - `session_rate`: new sessions per second (Poisson).
    - `turns`: turns of every session; None: after each turn another follows with `continue_probability`.
    - `first_prompt`, `new_prompt`, `output_len`: tokens; a number or a distribution. `think_s`: seconds.
    - `context_limit`: no turn follows once prompt and answer reach so many tokens (None: no limit).
    - `num_sessions`: exactly so many, then drain; None: without end.
    - `horizon_s`, `warmup_s`: seconds of a run, and those not measured; without them 3000 and 300, or with
      `num_sessions` until all are served and 0.
    - `priority`: of each session, a number or a distribution (a smaller number is more urgent), for deployments that
      order by it.
    - `timeout_s`, `retries`: a request that is not answered whole after so many seconds is withdrawn and sent again, so
      many times; then the client leaves (None: it waits for ever). The observations `timeouts` and `gave_up` count.
    - `classes`: `[request_class("chat", share=3, priority=0), request_class("batch", share=1, priority=1,
      output_len=1000)]`: of sessions, what differs between them, and in which proportion they come. The requests
      table has the class and the priority of each request.
    - `system_prompts`, `system_prompt_len`: as in `requests`; one for each session, before its first prompt.

    **Raises:** `ProgramError` that names the argument.
    """
    return MultiTurn(session_rate, turns, continue_probability, first_prompt, new_prompt, output_len, think_s,
                     context_limit, num_sessions, horizon_s, warmup_s, priority, timeout_s, retries,
                     classes_of(classes), system_prompts, system_prompt_len)


# ---------------------------------------------------------------- single requests


@dataclasses.dataclass(frozen=True)
class Requests(AbstractWorkload):
    """See `requests`."""

    request_rate: float
    burstiness: float
    max_concurrency: int | None
    num_prompts: int | None
    input_len: Amount
    output_len: Amount
    horizon_s: float | None
    warmup_s: float
    priority: Amount | None = None
    timeout_s: float | None = None
    retries: int = 0
    classes: Classes = Classes()
    gap_law: str = "gamma"
    system_prompts: int = 0
    system_prompt_len: int = 512

    @property
    def _patience(self) -> Patience:
        return Patience(self.timeout_s, self.retries)

    def __post_init__(self) -> None:
        Patience(self.timeout_s, self.retries)  # refuses what makes no sense
        self.classes.check(dict.fromkeys(("input_len", "output_len"), lambda name, value: _amount_tok(name, value, 1)))
        _check_priorities(self.priority, self.classes)
        if self.request_rate != math.inf:
            _positive("request_rate", self.request_rate)
        _whole("max_concurrency", self.max_concurrency, 1)
        _whole("num_prompts", self.num_prompts, 1)
        for name in ("input_len", "output_len"):
            _amount_tok(name, getattr(self, name), 1)
        if self.burstiness != 1.0:
            if not isinstance(self.burstiness, (int, float)) or not math.isfinite(self.burstiness) \
                    or self.burstiness <= 0:
                raise ProgramError.at("burstiness", f"{self.burstiness!r} is not allowed", "give a number above 0")
            if self.gap_law == "gamma" and self.burstiness != int(self.burstiness):
                raise ProgramError.at(
                    "burstiness", f"{self.burstiness!r} needs gamma distributed gaps of a fractional shape, which the "
                    "language has not", "use a whole number (1: Poisson; k: the sum of k exponentials), "
                    "gap_law='weibull', or draw a trace with `synthetic.gamma`")
        if self.gap_law not in ("gamma", "weibull"):
            raise ProgramError.at("gap_law", f"{self.gap_law!r} is not known", "use gamma or weibull")
        _system_arguments(self.system_prompts, self.system_prompt_len)
        if self.num_prompts is None and self.request_rate == math.inf and self.max_concurrency is None:
            raise ProgramError.at("num_prompts", "without it, `request_rate` inf sends requests without end",
                                  "give num_prompts, request_rate or max_concurrency")

    def declare(self, b: Builder, deployment: AbstractDeployment) -> Sessions:
        b.attr("prompt")
        b.attr("out", hidden=True)
        drawn = self.classes.draw(b)
        priority = _priority(b, self.priority, self.classes)
        init = (*drawn, *priority)
        said = self.classes.say(b, priority=bool(priority))
        amounts = {"input_len": self.input_len, "output_len": self.output_len}
        prepared, (prompt, out) = _amounts(b, self.classes, amounts)
        if self.system_prompts:
            prompt = f"system_tok + ({prompt})"
        turn = (*_system(b, self.system_prompts, self.system_prompt_len), *prepared, b.set("prompt", prompt),
                b.set("out", out))
        count, closed = self.num_prompts, False
        if self.request_rate == math.inf:
            # without an end, each of the clients sends its next request when the last is answered
            closed = count is None or (self.max_concurrency is not None and self.max_concurrency >= count)
            many = count if count is not None else self.max_concurrency
            name = "num_prompts" if count is not None else "max_concurrency"
            b.param(name, float(many or 0), "requests")
            arrival = Batch(Param(name)) if count is not None else Closed(Param(name))
            count = None
        else:
            rate = b.param("request_rate", self.request_rate, "requests/s")
            if self.burstiness == 1.0:
                arrival = Poisson(rate)
            elif self.gap_law == "weibull":
                # the inverse of the distribution; the mean of E^(1/k) is Gamma(1 + 1/k), which the shape decides
                shape, mean = float(self.burstiness), math.gamma(1.0 + 1.0 / self.burstiness)
                arrival = Renewal(b(f"Exp(Ln(~Exp(1)) / {shape!r}) / ({mean!r} * request_rate)"))
            else:
                b.param("burstiness", self.burstiness)
                arrival = Renewal(b("~Erlang(burstiness, 1 / request_rate)"))
        horizon_s, warmup_s = self.horizon_s, self.warmup_s
        if self.max_concurrency is None or closed:
            served = self._patience.serve(b, deployment, input="prompt", output="out", then="answered",
                                          gave_up="answered")
            b.state("turn", Turn(), *said, exit=Goto(served.entry))
            b.state("answered", Respond(), exit=End())
            start = "turn"
        else:
            # the client's semaphore: a request is sent when one of `max_concurrency` clients is free
            b.param("max_concurrency", self.max_concurrency, "requests")
            b.pool("clients", cap=Param("max_concurrency"))
            served = self._patience.serve(b, deployment, input="prompt", output="out", then="answered",
                                          gave_up="answered", parent="client")
            b.scope("client", b.take("clients", 1), reentry="turn")
            b.state("turn", Turn(), *said, exit=Goto(served.entry), scope="client")
            b.state("answered", Respond(), exit=Leave("leaving"), scope="client")
            b.state("leaving", exit=End())
            b.state("arrived", exit=Enter("client"))
            start = "arrived"
        return Sessions(start, arrival, init=init, turn=turn, arrivals=count,
                        horizon_s=horizon_s, warmup_s=warmup_s)


def requests(*, request_rate: float = math.inf, burstiness: float = 1.0, max_concurrency: int | None = None,
             num_prompts: int | None = 1000, input_len: Amount = 1024, output_len: Amount = 128,
             horizon_s: float | None = None, warmup_s: float = 0.0, priority: Amount | None = None,
             timeout_s: float | None = None, retries: int = 0, classes: Iterable[RequestClass] = (),
             gap_law: Literal["gamma", "weibull"] = "gamma", system_prompts: int = 0,
             system_prompt_len: int = 512) -> Requests:
    """Single requests, with the names and defaults of `vllm bench serve` (random dataset).

    **Arguments:**
    - `request_rate`: requests per second; inf: all at time 0.
    - `burstiness`: shape of the gaps; 1: Poisson. `gap_law`: `gamma` (a whole number k: Erlang; others are refused, see
      `synthetic.gamma`) or `weibull` (any shape above 0).
    - `max_concurrency`: requests in the system at most; those beyond wait at the client, and their latency
      starts when they are sent.
    - `num_prompts`: requests in all; None: without end (give `horizon_s`).
    - `input_len`, `output_len`: tokens; a number or a distribution.
    - `horizon_s`, `warmup_s`: seconds of a run, and those not measured.
    - `priority`: of each request, a number or a distribution (a smaller number is more urgent), for deployments that
      order by it.
    - `timeout_s`, `retries`: a request that is not answered whole after so many seconds is withdrawn and sent again, so
      many times, and then given up (None: never). The observations `timeouts` and `gave_up` count.
    - `classes`: `[request_class("chat", share=3, priority=0), request_class("batch", share=1, priority=1,
      output_len=1000)]`: what differs between them, and in which proportion they come. The requests table has the
      class and the priority of each request.
    - `system_prompts`: each request begins with one of so many prompts of `system_prompt_len` tokens, drawn evenly;
      `input_len` comes after it. Deployments with `shared_prefixes=SYSTEM_PROMPTS` find each other's blocks of them.

    **Raises:** `ProgramError` that names the argument.
    """
    return Requests(request_rate, burstiness, max_concurrency, num_prompts, input_len, output_len, horizon_s, warmup_s,
                    priority, timeout_s, retries, classes_of(classes), gap_law, system_prompts, system_prompt_len)


# ---------------------------------------------------------------- recorded requests


@dataclasses.dataclass(frozen=True)
class Replay(AbstractWorkload):
    """See `from_trace`."""

    rows: tuple[Request, ...]
    sessions: tuple[tuple[tuple[float, ...], ...], ...]
    session_rate: float | None
    ordered: bool
    starts_s: tuple[float, ...] = ()
    priorities: tuple[float, ...] = ()

    def declare(self, b: Builder, deployment: AbstractDeployment) -> Sessions:
        b.attr("new")
        b.attr("out", hidden=True)
        if self.rows:
            served = deployment.serve(b, input="new", output="out", then="answered")
            b.state("turn", Turn(), exit=Goto(served.entry))
            b.state("answered", Respond(), exit=End())
            return Sessions("turn", self._listed(b))
        columns = ("new", "out", "think", "forced")
        for attr in ("think", "forced", "more"):
            b.attr(attr)
        start = conversation(b, deployment, "more", "think")
        if self.session_rate is None:
            at = self.starts_s or (0.0,) * len(self.sessions)
            return Sessions(start, Listed(at=at, turn_attrs=columns, turns=self.sessions))
        b.param("session_rate", self.session_rate, "sessions/s")
        return Sessions(start, Poisson(Param("session_rate")), arrivals=len(self.sessions),
                        trace=Trace(ordered=self.ordered, attrs=columns, turns=self.sessions))

    def _listed(self, b: Builder) -> Listed:
        """The rows, with what the deployment asks for beside their lengths."""
        asked: dict[str, tuple[float, ...]] = {}
        contents: tuple[tuple[int, ...], ...] = ()
        if b.declares("recorded_tok"):
            asked["recorded_tok"] = tuple(float(r.input_tok) for r in self.rows)
            contents = tuple(r.hash_ids for r in self.rows)
        if b.declares("priority") and self.priorities:
            asked["priority"] = self.priorities
        return Listed(
            at=tuple(float(r.at_s) for r in self.rows), turn_attrs=("new", "out"),
            turns=tuple(((float(r.input_tok), float(r.output_tok)),) for r in self.rows),
            attrs=tuple(asked), values=tuple(zip(*asked.values())), contents=contents,
        )  # fmt: skip


def from_trace(trace: TraceFile | Iterable[Request], *, session_rate: float | None = None,
               ordered: bool = True, rate_scale: float = 1.0) -> Replay:
    """Recorded requests, replayed: every row arrives once, then the run drains.

    Rows of one time arrive in the order of the file. A deployment with `shared_prefixes="hash_ids"` shares the blocks
    that the rows' `hash_ids` have in common; one that schedules by `priority` reads the column of this name.

    **Arguments:**
    - `trace`: what `serqjax.traces.read` returned, or rows with `at_s`, `input_tok`, `output_tok` in the order of time.
    - `session_rate`: only for files of sessions without times (serQ): sessions start as a Poisson stream of this
      rate; None: all at time 0. `ordered`: session n of the run replays session n of the file, else a drawn one.
    - `rate_scale`: times the rate of the file: 2 halves every gap between arrivals, fractions kept; think times stay.

    **Raises:** `ProgramError` for rows that are not in order, with the row number.
    """
    if isinstance(rate_scale, bool) or not isinstance(rate_scale, (int, float)) or not 0.0 < rate_scale < math.inf:
        raise ProgramError.at("rate_scale", f"{rate_scale!r} is not allowed", "give a finite number above 0")
    if not isinstance(trace, TraceFile):
        trace = TraceFile("trace", "serqjax_requests", rows=tuple(trace))
    timed = bool(trace.rows or trace.starts_s)
    if trace.sessions:
        if timed and session_rate is not None:
            raise ProgramError.at("session_rate", "the sessions of this trace have times of their own", "leave it out")
        if session_rate is not None:
            _positive("session_rate", session_rate)
        turns = tuple(tuple((float(t.new_tok), float(t.output_tok), t.think_s, t.forced) for t in session)
                      for session in trace.sessions)
        if rate_scale != 1.0:
            if not timed:
                raise ProgramError.at("rate_scale", "the sessions of this trace have no times", "give `session_rate`")
            trace = trace.scaled(rate_scale)
        return Replay((), turns, session_rate, ordered, trace.starts_s)
    if session_rate is not None:
        raise ProgramError.at("session_rate", "the rows of this trace have times of their own", "leave it out")
    if not trace.rows:
        raise ProgramError.at("trace", "has no rows to replay")
    last = 0.0
    for number, row in enumerate(trace.rows, 1):
        if not math.isfinite(row.at_s) or row.at_s < last:
            raise ProgramError.at(f"trace:{number}", f"at_s is {row.at_s!r}, after a row at {last!r}",
                                  "give rows in the order of time, from 0 on")
        last = row.at_s
        for name in ("input_tok", "output_tok"):
            if not math.isfinite(getattr(row, name)) or getattr(row, name) < 1:
                raise ProgramError.at(f"trace:{number}", f"{name} is {getattr(row, name)!r}", "give at least 1 token")
    priorities = tuple(_finite(f"trace:{n}", "priority", v)
                       for n, v in enumerate(trace.columns.get("priority", ()), 1))
    if rate_scale != 1.0:
        trace = trace.scaled(rate_scale)
    return Replay(trace.rows, (), None, True, priorities=priorities)


def _finite(place: str, name: str, value: object) -> float:
    """A number as a file has it."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ProgramError.at(place, f"{name} is {value!r}", "give every row a finite number")
    return number


#: Workloads by the name that the command line knows.
BY_NAME = {"sessions": sessions, "requests": requests}
