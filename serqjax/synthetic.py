"""Synthetic traces: arrivals of any renewal law or of a rate that changes with the hour, lengths as in a trace.

The language draws arrivals itself where it can (`workloads.requests`: Poisson, Erlang and Weibull gaps), anew for each
seed of a run. What it cannot say is drawn here, on the host, into a trace: `trace(..., seed=s)` is one realisation, and
`sq.run(..., seeds=...)` would replay the same arrivals under every seed. Give each seed its own:

    programs = [sq.program(engine, sq.workloads.from_trace(sq.synthetic.trace(arrivals, seed=s, num_requests=1000)))
                for s in range(64)]
    runs = sq.run_many(programs)                         # one compilation: only the lists differ

**Source:** inverse transforms and thinning as in Devroye, *Non-Uniform Random Variate Generation* (1986), II.2, VI.1.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from .errors import ProgramError
from .traces import Request, TraceFile
from .workloads import Amount, Distribution, constant

if TYPE_CHECKING:
    import numpy as np


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        raise ProgramError.at(name, f"{value!r} is not allowed", "give a finite number above 0")


@dataclasses.dataclass(frozen=True)
class Gaps:
    """Arrivals at `rate` requests per second with independent gaps: `law` `gamma` or `weibull` of this `shape`.

    Shape 1 is Poisson for both. The squared coefficient of variation of gamma gaps is 1 / shape (`burstiness` of
    `vllm bench serve` is this shape).
    """

    law: str
    rate: float
    shape: float

    def __post_init__(self) -> None:
        _positive("rate", self.rate)
        _positive("shape", self.shape)

    def times(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """The first `n` arrivals, seconds; the first comes after one gap."""
        if self.law == "gamma":
            gaps = rng.standard_gamma(self.shape, n) / self.shape
        else:
            gaps = rng.weibull(self.shape, n) / math.gamma(1.0 + 1.0 / self.shape)
        return gaps.cumsum() / self.rate


@dataclasses.dataclass(frozen=True)
class Diurnal:
    """Poisson arrivals whose rate swings: `rate * (1 + swing * cos(2 pi (t - peak_s) / period_s))` per second."""

    rate: float
    swing: float
    period_s: float
    peak_s: float

    def __post_init__(self) -> None:
        _positive("rate", self.rate)
        _positive("period_s", self.period_s)
        for name, value, most in (("swing", self.swing, 1.0), ("peak_s", self.peak_s, math.inf)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= most \
                    or value == math.inf:  # fmt: skip
                raise ProgramError.at(name, f"{value!r} is not allowed", "give 0 to 1" if most == 1 else "give seconds")

    def times(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """The first `n` arrivals, seconds, by thinning a Poisson stream of the greatest rate."""
        import numpy as np

        most = self.rate * (1.0 + self.swing)
        kept, last = [np.zeros(0)], 0.0
        while sum(map(len, kept)) < n:
            times = last + np.cumsum(rng.standard_exponential(max(2 * n, 64))) / most
            rate = self.rate * (1.0 + self.swing * np.cos(2.0 * np.pi * (times - self.peak_s) / self.period_s))
            kept.append(times[rng.random(len(times)) * most < rate])
            last = float(times[-1])
        return np.concatenate(kept)[:n]


def gamma(rate: float, shape: float) -> Gaps:
    """Gamma distributed gaps of any shape above 0; below 1 they are burstier than Poisson's."""
    return Gaps("gamma", rate, shape)


def weibull(rate: float, shape: float) -> Gaps:
    """Weibull distributed gaps of any shape above 0; below 1 they are burstier than Poisson's."""
    return Gaps("weibull", rate, shape)


def poisson(rate: float) -> Gaps:
    """Poisson arrivals, `rate` per second."""
    return Gaps("gamma", rate, 1.0)


def diurnal(rate: float, *, swing: float = 0.5, period_s: float = 86_400.0, peak_s: float = 0.0) -> Diurnal:
    """Poisson arrivals of a mean rate that swings by the fraction `swing`, highest at `peak_s` and every `period_s`."""
    return Diurnal(rate, swing, period_s, peak_s)


def trace(arrivals: Gaps | Diurnal, *, num_requests: int, seed: int, input_len: Amount = 1024, output_len: Amount = 128,
          lengths_of: TraceFile | None = None, tenant: str | None = None) -> TraceFile:
    """One realisation of a synthetic workload, for `workloads.from_trace` or `traces.write`.

    **Arguments:**
    - `arrivals`: `gamma`, `weibull`, `poisson` or `diurnal`. `num_requests`: how many.
    - `seed`: 0 or more; equal seeds give equal traces. Times and lengths have streams of their own, so that another
      arrival law meets the same lengths.
    - `input_len`, `output_len`: tokens, a number or a distribution of `workloads`; draws are rounded up, at least 1.
    - `lengths_of`: draw rows of this trace instead, with replacement: input and output of one row stay together, with
      their `hash_ids`.
    - `tenant`: a column that names all rows.

    **Raises:** `ProgramError` that names the argument.
    """
    import numpy as np

    for name, value, least in (("num_requests", num_requests, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ProgramError.at(name, f"{value!r} is not allowed", f"give a whole number of at least {least}")
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3)]
    times = arrivals.times(streams[0], num_requests)
    columns = {"tenant": (tenant,) * num_requests} if tenant is not None else {}
    if lengths_of is not None:
        if not lengths_of.rows:
            raise ProgramError.at("lengths_of", f"{lengths_of.path}: the trace has sessions, not requests",
                                  "give a trace of timed requests")
        chosen = streams[1].integers(0, len(lengths_of.rows), num_requests)
        rows = tuple(dataclasses.replace(lengths_of.rows[k], at_s=float(t)) for t, k in zip(times, chosen))
    else:
        inputs = _draw("input_len", input_len, streams[1], num_requests)
        outputs = _draw("output_len", output_len, streams[2], num_requests)
        rows = tuple(Request(float(t), int(a), int(b)) for t, a, b in zip(times, inputs, outputs))
    return TraceFile("synthetic", "serqjax_requests", rows=rows, columns=columns)


def merged(*parts: TraceFile) -> TraceFile:
    """Several traces of timed requests as one, in the order of time (equal times: in the order given); the columns
    `tenant` and `priority` are kept if all parts have them. **Raises:** `ProgramError` for `hash_ids` or sessions."""
    for part in parts:
        if not part.rows or part.has_prefixes:
            what = "has hash_ids, which other files number anew" if part.rows else "has no timed requests"
            raise ProgramError.at(part.path, what, "merge traces of plain timed requests")
    names = [n for n in ("priority", "tenant") if all(n in part.columns for part in parts)]
    every = [(row, [part.columns[n][i] for n in names]) for part in parts for i, row in enumerate(part.rows)]
    every.sort(key=lambda item: item[0].at_s)
    dropped: dict[str, int] = {}
    for part in parts:
        for reason, count in part.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    return TraceFile("merged", "serqjax_requests", rows=tuple(row for row, _ in every), dropped=dropped,
                     columns={n: tuple(extra[k] for _, extra in every) for k, n in enumerate(names)})


def _draw(name: str, amount: Amount, rng: np.random.Generator, n: int) -> np.ndarray:
    """Whole numbers of tokens, at least 1."""
    import numpy as np

    if not isinstance(amount, Distribution):
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or amount != int(amount) or amount < 1:
            raise ProgramError.at(name, f"{amount!r} is not allowed", "give whole tokens or a distribution")
        amount = constant(amount)
    return np.maximum(1, np.ceil(amount.sample(rng, n))).astype(np.int64)
