"""A measured run as a program: its requests at their times in a vLLM engine with its settings.

The files of one run share a name: `NAME_requests.jsonl`, `NAME_meta.json`, tables of the layers, and what prompts
share.

**Source:** `data/README.md`, the closed loop.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..builder import compose
from ..costs import Cost
from ..deployments import vllm
from ..errors import ProgramError
from ..ir.expr import Attr, Num
from ..ir.program import Listed, Program, Recorded
from ..report.raw import Action
from ..traces import Request
from ..workloads import from_trace
from .data import RunData

#: Settings of a log that a deployment takes, by vLLM's names; the others say nothing about scheduling.
SETTINGS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "long_prefill_token_threshold",
            "enable_prefix_caching", "scheduling_policy")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shares:
    """Prompts that begin alike: request `request` begins with the first `blocks` blocks of request `donor`."""

    request: int
    donor: int
    blocks: int


def read_shares(path: str | Path, requests: int) -> tuple[Shares, ...]:
    """Rows `request,donor,blocks`. **Raises:** `ProgramError` for a request that is not there, or a later donor."""
    found = []
    with open(path, newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                share = Shares(*(int(row[key]) for key in ("request", "donor", "blocks")))
            except (KeyError, TypeError, ValueError):
                raise ProgramError.at(f"{path}:{number}", "needs whole numbers `request`, `donor`, `blocks`") from None
            if not 0 <= share.donor < share.request < requests or share.blocks < 0:
                text = f"request {share.request} cannot share {share.blocks} blocks of request {share.donor}"
                hint = f"the run has {requests} requests; a donor comes before"
                raise ProgramError.at(f"{path}:{number}", text, hint)
            found.append(share)
    return tuple(sorted(found, key=lambda s: s.request))


def block_names(shares: tuple[Shares, ...], requests: int) -> tuple[tuple[int, ...], ...]:
    """Names of the first blocks of each request, as far as another has them too; handed down in request order."""
    needed = [0] * requests
    for share in shares:
        needed[share.request] = max(needed[share.request], share.blocks)
    for share in reversed(shares):  # a donor needs names for what it gives on, and so do its own donors
        needed[share.donor] = max(needed[share.donor], share.blocks)
    by_request: dict[int, list[Shares]] = {}
    for share in shares:
        by_request.setdefault(share.request, []).append(share)
    names: list[list[int]] = []
    fresh = 0
    for i in range(requests):
        mine = list(range(fresh, fresh + needed[i]))
        fresh += needed[i]
        for share in by_request.get(i, ()):
            mine[: share.blocks] = names[share.donor][: share.blocks]
        names.append(mine)
    return tuple(map(tuple, names))


def read_settings(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Engine settings of a `_meta.json`: flags for `deployments.vllm`, and the whole file."""
    try:
        meta = json.loads(Path(path).read_text(encoding="utf-8"))
        flags = {key: value for key in SETTINGS if (value := meta["engine_kwargs"].get(key)) is not None}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        text = f"no engine settings can be read: {error!r}"
        raise ProgramError.at(str(path), text, "needed: engine_kwargs") from None
    cache = meta.get("kv_cache") or {}
    flags |= {key: cache[key] for key in ("num_gpu_blocks", "block_size") if cache.get(key)}
    return flags, meta


def roomy_blocks(data: RunData, block_size: int) -> int:
    """Blocks of a pool in which all requests of the run have room at once."""
    return 1 + int(np.sum(-(-(data.input_tok + data.output_tok) // block_size)))


def program_of(data: RunData, cost: Cost | Any, settings: Mapping[str, Any], shares: tuple[Shares, ...] = (),
               name: str = "measured") -> Program:
    """The run as a program: request i of the program is row i of the data.

    **Arguments:** `settings`: flags for `deployments.vllm`; `shares`: what prompts have in common, by the row.
    """
    deployment = vllm(cost=cost, shared_prefixes=(("prefix.key", "prefix.length"),) if shares else (), **settings)
    rows = [Request(float(at), int(i), int(o)) for at, i, o in zip(data.sent_s, data.input_tok, data.output_tok)]
    program = compose(deployment, from_trace(rows), name=name)
    if not shares:
        return program
    content = (Recorded(span=Num(float(deployment.block_size)), length=Attr("new")),)
    pools = tuple(
        msgspec.structs.replace(pool, content=content) if pool.sharing == "content" else pool for pool in program.pools
    )
    assert isinstance(program.arrival, Listed)
    arrival = msgspec.structs.replace(program.arrival, contents=block_names(shares, len(data)))
    return msgspec.structs.replace(program, pools=pools, arrival=arrival)


def times_of(run: Any, requests: int) -> dict[str, np.ndarray]:
    """Seconds of a run's requests in the order of the data: `first_s` and `last_s` since the start, NaN where
    missing."""
    raw = run.raw
    order = np.full(requests, -1)
    order[raw.request_serial] = np.arange(len(raw.request_serial))
    found = {}
    for name, ticks in (("first_s", raw.request_confirmed), ("last_s", raw.request_last)):
        picked = np.where(order >= 0, ticks[order], -1)
        found[name] = np.where(picked >= 0, picked * raw.tick_s, np.nan)
    return found


def gaps_of(run: Any, requests: int) -> list[np.ndarray]:
    """Seconds between the tokens of each request of a run made with `trace=True`, in the order of the data."""
    tick, kind, serial = run.raw.trace[:, :3].astype(np.int64).T
    tokens = kind == Action.token
    order = np.argsort(serial[tokens], kind="stable")  # those of one request stay in the order of time
    serial, tick = serial[tokens][order], tick[tokens][order]
    ends = np.searchsorted(serial, np.arange(requests + 1))
    return [np.diff(tick[low:high]) * run.raw.tick_s for low, high in zip(ends, ends[1:])]
