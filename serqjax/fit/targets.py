"""What candidates are compared with: the times of each request of a run, or the summaries of one."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ProgramError
from ..ir.program import Listed, Program
from .data import RunData, SummaryData
from .errors import metrics, relative_errors

#: `first_s`, `last_s` `[requests]`; where asked for, `gaps_s`: an array per request.
Times = dict[str, Any]


class AbstractTarget(abc.ABC):
    """A measured run. `requests`: of its program. `kinds`, `moments`: of each residual, its metric and its time."""

    name: str
    requests: int
    kinds: np.ndarray
    moments: np.ndarray

    @abc.abstractmethod
    def residuals(self, found: Times) -> np.ndarray:
        """(predicted - measured) / scale, NaN where a request did not finish."""

    @abc.abstractmethod
    def errors(self, found: Times) -> dict[str, dict[str, float]]:
        """Relative errors by part and metric."""

    @abc.abstractmethod
    def pairs(self, found: Times) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Measured and predicted times of requests by part and metric."""


class Requests(AbstractTarget):
    """Each request of a run; the last ones sent, the share `holdout`, are not scored.

    The scale is for TTFT and E2E the measured value and a tenth of the mean, for TPOT the measured value.
    """

    def __init__(self, run: RunData, loss: Sequence[str], holdout: float):
        self.run, self.loss, self.name, self.requests = run, tuple(loss), run.name, len(run)
        self.keep = np.arange(len(run)) < round(len(run) * (1.0 - holdout))
        scored = run.first_s[self.keep]
        self.kinds = np.repeat(np.arange(len(self.loss)), len(scored))
        self.moments = np.tile(scored, len(self.loss))

    def residuals(self, found: Times) -> np.ndarray:
        run, keep, parts = self.run, self.keep, []
        for name in self.loss:
            measured = getattr(run, f"{name}_s")[keep]
            first, last = found["first_s"][keep], found["last_s"][keep]
            sent, many = run.sent_s[keep], np.maximum(run.output_tok[keep] - 1, 1)
            predicted = {"ttft": first - sent, "tpot": (last - first) / many, "e2e": last - sent}[name]
            scale = measured if name == "tpot" else measured + 0.1 * np.nanmean(measured)
            # a request of one token has no TPOT
            parts.append(np.where(np.isnan(measured), 0.0, (predicted - measured) / scale))
        return np.concatenate(parts)

    def _parts(self) -> dict[str, np.ndarray]:
        parts = {"fitted": self.keep, "held_out": ~self.keep}
        return {part: rows for part, rows in parts.items() if rows.any()}

    def errors(self, found: Times) -> dict[str, dict[str, float]]:
        return {part: relative_errors(self.run, found, rows) for part, rows in self._parts().items()}

    def pairs(self, found: Times) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
        return {part: metrics(self.run, found, rows) for part, rows in self._parts().items()}


class Summaries(AbstractTarget):
    """Means and percentiles of a run whose requests are those of the program; nothing is held out."""

    def __init__(self, summary: SummaryData, program: Program):
        assert isinstance(program.arrival, Listed)
        arrival = program.arrival
        self.summary, self.name, self.requests = summary, summary.name, len(arrival.at)
        if summary.requests not in (None, self.requests):
            text = f"is of {summary.requests} requests, and the program has {self.requests}"
            raise ProgramError.at(summary.name, text, "give the trace of the run")
        self.sent_s = np.asarray(arrival.at)
        self.output_tok = np.asarray([turns[-1][1] for turns in arrival.turns])
        self.kinds = np.zeros(len(summary.values), np.int64)
        self.moments = np.arange(len(summary.values), dtype=np.float64)

    def predicted(self, found: Times) -> np.ndarray:
        """Each of the summary's values, seconds."""
        first, last, many = found["first_s"], found["last_s"], self.output_tok > 1
        gaps = np.maximum(self.output_tok - 1, 1)
        times = {"ttft": first - self.sent_s, "e2e": last - self.sent_s, "tpot": ((last - first) / gaps)[many]}
        made = []
        for name in self.summary.values:
            metric, _, what = name.partition("_")
            values: Any = times[metric]
            made.append(values.mean() if what == "mean" else np.percentile(values, float(what[1:])))
        return np.asarray(made)

    def residuals(self, found: Times) -> np.ndarray:
        return self.predicted(found) / np.asarray(list(self.summary.values.values())) - 1.0

    def errors(self, found: Times) -> dict[str, dict[str, float]]:
        return {"fitted": dict(zip(self.summary.values, map(float, self.residuals(found))))}

    def pairs(self, found: Times) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
        return {}
