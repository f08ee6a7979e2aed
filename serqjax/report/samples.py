"""Samples of runs as a Parquet file in long form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..ir.program import Program
from .measures import gauge_points
from .raw import RawRun
from .reference import client_observations, observations
from .units import seconds

if TYPE_CHECKING:
    import polars


def samples_frame(program: Program, raws: RawRun | Sequence[RawRun]) -> polars.DataFrame:
    """Columns `run, observation, time_s, session, turn, value`, one row per sample.

    The program's observations stand under their names, the client's as `client.ttft`, `client.tpot` and
    `client.response` (seconds); both in the order of recording, after warm-up. Change points of gauges stand under
    `gauge.NAME`, of the whole run, without a session and a turn (-1).
    """
    import polars

    many = [raws] if isinstance(raws, RawRun) else list(raws)
    names, parts = [], []
    for run, raw in enumerate(many):
        client = {f"client.{name}": rows for name, rows in client_observations(raw).items()}
        gauges = {
            f"gauge.{name}": rows | dict.fromkeys(("session", "turn"), np.full(len(rows["value"]), -1))
            for name, rows in gauge_points(program, raw).items()
        }
        for name, rows in (observations(program, raw) | client | gauges).items():
            count = len(rows["value"])
            names.append(np.full(count, name, dtype=object))
            parts.append(
                (
                    np.full(count, run, dtype=np.int64),
                    seconds(np.asarray(rows["tick"], dtype=np.int64), raw.tick_s),
                    np.asarray(rows["session"], dtype=np.int64),
                    np.asarray(rows["turn"], dtype=np.int64),
                    np.asarray(rows["value"], dtype=np.float64),
                )
            )
    empty = [np.zeros(0, dtype=kind) for kind in (np.int64, np.float64, np.int64, np.int64, np.float64)]
    run, time_s, session, turn, value = (np.concatenate(c) for c in zip(*parts)) if parts else empty
    observation = np.concatenate(names).tolist() if names else []
    columns = {"run": run, "observation": polars.Series(observation, dtype=polars.String), "time_s": time_s}
    return polars.DataFrame(columns | {"session": session, "turn": turn, "value": value})


def write_samples(path: str | Path, program: Program, raws: RawRun | Sequence[RawRun]) -> None:
    """Write `samples_frame` to the Parquet file `path` (replaced if it exists).

    **Raises:** `ValueError` if the name does not end in `.parquet`; `OSError` if it cannot be written.
    """
    path = Path(path)
    if path.suffix != ".parquet":
        raise ValueError(f"samples file {path}: the format is Parquet, let the name end in .parquet")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"samples file {path}: the folder {path.parent} does not exist, create it first")
    samples_frame(program, raws).write_parquet(path)
