"""A run as a trace: who sent what when, so that another deployment (or the same one) can be given the same requests.

The prompt of a request is what its engine knew at its first admission: the observations `reused` and `prefill` of the
ready-made deployments. Its output is what was generated.

**Source:** `docs/traces.md`, section Export.
"""

from __future__ import annotations

import numpy as np

from ..ir.program import Fork, Listed, Program
from ..traces import Request, SessionTurn, TraceFile
from .raw import RawRun, RequestStatus
from .units import seconds


def trace_of(program: Program, raw: RawRun) -> TraceFile:
    """The requests of a run that served all of them: sessions if one has several turns, else single requests.

    **Raises:** `ValueError` that says why the run cannot be written as a trace.
    """
    _refuse(program, raw)
    prompts = _prompts(program, raw)
    status = np.asarray(raw.request_status)
    kept = np.flatnonzero(status == RequestStatus.finished)
    rejected = int(np.sum(status == RequestStatus.rejected))
    if not len(kept):
        raise ValueError("the run served no request: there is nothing to export")
    dropped = {"rejected": rejected} if rejected else {}
    serials = [int(raw.request_serial[i]) for i in kept]
    lengths = [
        (prompts[serial, int(raw.request_turn[i])], int(raw.request_tokens[i])) for serial, i in zip(serials, kept)
    ]  # fmt: skip
    sent_s = seconds(np.asarray(raw.request_sent)[kept], raw.tick_s)
    if len(set(serials)) == len(serials):
        contents = program.arrival.contents if isinstance(program.arrival, Listed) else ()
        rows = tuple(
            Request(float(at), prompt, output, contents[serial] if contents else ())
            for at, serial, (prompt, output) in zip(sent_s, serials, lengths)
        )
        columns = _priority(program, serials)
        return TraceFile(program.name, "serqjax_requests", rows=rows, dropped=dropped, columns=columns)
    return _sessions(program, raw, kept, serials, lengths, dropped)


def _refuse(program: Program, raw: RawRun) -> None:
    open_ = int(np.sum(np.isin(raw.request_status, (RequestStatus.running, RequestStatus.queued))))
    if open_:
        raise ValueError(f"{open_} requests had not finished, so that their lengths are not known: run until all are "
                         "served (a number of requests and no horizon) to export a trace")
    if raw.warmup_tick > 0:
        raise ValueError("lengths of requests before the warm-up are not kept: run with warm-up 0 to export a trace")
    for state in program.states:
        if getattr(state.exit, "deadline", None) is not None:
            raise ValueError(f"state `{state.name}` has a deadline: requests that are withdrawn and sent again are no "
                             "rows of a trace")
        if isinstance(state.exit, Fork):
            raise ValueError(f"state `{state.name}` forks: the requests of legs are no rows of a trace")
    if len(raw.request_turn) and int(np.min(raw.request_turn)) == 0:
        raise ValueError("the program has no turns: its sessions are no requests of a trace")
    drawn = any(attr.name == "priority" for attr in program.attrs) and any(
        getattr(op, "attr", None) == "priority" for op in program.init
    )
    if drawn:
        raise ValueError("priorities that a workload draws are not kept: requests with them cannot be exported")


def _prompts(program: Program, raw: RawRun) -> dict[tuple[int, int], int]:
    """Tokens of each request's prompt, by session and turn."""
    names = list(program.observes)
    pairs = [(names.index(name), names.index(f"{name[:-7]}.prefill")) for name in names
             if name.endswith(".reused") and f"{name[:-7]}.prefill" in names]  # fmt: skip
    if len(pairs) != 1:
        raise ValueError(f"the program observes the prompts of {len(pairs)} engines (`NAME.reused` and "
                         "`NAME.prefill`): a trace has those of one")
    parts: list[dict[tuple[int, int], float]] = []
    for observe in pairs[0]:
        mine = raw.samples_observe == observe
        # of a request that was admitted again the first time counts
        found: dict[tuple[int, int], float] = {}
        for serial, turn, value in zip(raw.samples_serial[mine], raw.samples_turn[mine], raw.samples_value[mine]):
            found.setdefault((int(serial), int(turn)), float(value))
        parts.append(found)
    reused, prefill = parts
    return {key: round(reused[key] + prefill[key]) for key in reused}


def _priority(program: Program, serials: list[int]) -> dict[str, tuple[float, ...]]:
    """Recorded priorities of the requests, if the program lists them."""
    arrival = program.arrival
    if not isinstance(arrival, Listed) or "priority" not in arrival.attrs:
        return {}
    at = arrival.attrs.index("priority")
    return {"priority": tuple(arrival.values[serial][at] or 0.0 for serial in serials)}


def _sessions(program: Program, raw: RawRun, kept: np.ndarray, serials: list[int], lengths: list[tuple[int, int]],
              dropped: dict[str, int]) -> TraceFile:  # fmt: skip
    rows: dict[int, list[int]] = {}
    for k, serial in enumerate(serials):
        rows.setdefault(serial, []).append(k)
    if dropped:
        raise ValueError(f"{dropped['rejected']} turns were rejected, which ended their sessions: no trace says so")
    if _priority(program, [0]):
        raise ValueError("sessions with priorities cannot be exported")
    sessions, starts = [], []
    for serial, mine in rows.items():
        turns: list[SessionTurn] = []
        context = 0
        for k, after in zip(mine, [*mine[1:], None]):
            prompt, output = lengths[k]
            if prompt < context:
                raise ValueError(f"session {serial}: a prompt of {prompt} tokens does not continue a conversation of "
                                 f"{context}")
            think = 0
            if after is not None:
                think = int(raw.request_sent[kept[after]]) - int(raw.request_responded[kept[k]])
            turns.append(SessionTurn(prompt - context, output, float(seconds(np.asarray([think]), raw.tick_s)[0])))
            context = prompt + output
        sessions.append(tuple(turns))
        starts.append(float(seconds(np.asarray([raw.request_sent[kept[mine[0]]]]), raw.tick_s)[0]))
    return TraceFile(program.name, "serqjax_sessions", sessions=tuple(sessions), starts_s=tuple(starts))
