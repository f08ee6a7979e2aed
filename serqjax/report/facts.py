"""What a program says of its requests, beyond what every run records: observations under names that the report knows.

An observation says it of the request (session and turn) in which it is made. Like all observations these are recorded
from the end of warm-up on, so they are known of every request sent in the measured window; of an earlier request
nothing is known.

- `gave_up`: above 0: the client has given the request up.
- `class`, `priority`: a number of the request. Names of classes are those of parameters `slo.NAME.share`, in order.
- `engine_arrival`: the request has reached the engine now (again, if it was sent again).
- `api_after_s`: seconds between a token and the client's having it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..ir.program import Program
from .raw import RawRun

#: Names of the observations.
GAVE_UP, CLASS, PRIORITY, ENGINE_ARRIVAL, API_AFTER_S = NAMES = (
    "gave_up", "class", "priority", "engine_arrival", "api_after_s",
)


def class_names(program: Program | None) -> tuple[str, ...]:
    """Of a workload's classes, in the order of their numbers."""
    parts = [p.name.split(".") for p in program.params] if program is not None else []
    return tuple(part[1] for part in parts if len(part) == 3 and part[0] == "slo" and part[2] == "share")


def may_abandon(program: Program | None) -> bool:
    """Whether a program has clients that give requests up."""
    return program is not None and GAVE_UP in program.observes


@dataclasses.dataclass(frozen=True)
class Facts:
    """Arrays over the requests of a run; NaN (of `engine_tick` -1, of `gave_up` false) where nothing was said."""

    gave_up: np.ndarray
    class_: np.ndarray
    priority: np.ndarray
    engine_tick: np.ndarray
    api_after_s: np.ndarray


def facts(program: Program | None, raw: RawRun) -> Facts:
    """What the observations say of each request of a run; without the program nothing."""
    n = len(raw.request_serial)
    observes = () if program is None else program.observes
    if not n or not set(NAMES) & set(observes):
        unknown = np.full(n, np.nan)
        return Facts(np.zeros(n, bool), unknown, unknown, np.full(n, -1, np.int64), np.zeros(n))
    width = 1 + max(int(raw.request_turn.max(initial=0)), int(raw.samples_turn.max(initial=0)))
    keys = np.asarray(raw.request_serial) * width + np.asarray(raw.request_turn)
    order = np.argsort(keys, kind="stable")

    def said(name: str) -> tuple[np.ndarray, np.ndarray]:
        """Requests of which an observation speaks, and the places of the samples, in the order of time."""
        if name not in observes:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        at = np.flatnonzero(raw.samples_observe == observes.index(name))
        wanted = raw.samples_serial[at] * width + raw.samples_turn[at]
        place = np.minimum(np.searchsorted(keys[order], wanted), n - 1)
        found = keys[order[place]] == wanted
        return order[place[found]], at[found]

    def value(name: str) -> np.ndarray:
        out = np.full(n, np.nan)
        request, sample = said(name)
        out[request] = raw.samples_value[sample]  # of several the last
        return out

    engine_tick = np.full(n, -1, np.int64)
    request, sample = said(ENGINE_ARRIVAL)
    tick, first = raw.samples_tick[sample], raw.request_first[request]
    before = (first < 0) | (tick <= first)  # the attempt that gave the first token
    engine_tick[request[before]] = tick[before]
    return Facts(value(GAVE_UP) > 0, value(CLASS), value(PRIORITY), engine_tick, np.nan_to_num(value(API_AFTER_S)))
