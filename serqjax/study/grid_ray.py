"""Chunks of a grid as tasks of a Ray cluster.

A task runs one chunk on one core and returns its rows; the process that was called writes them. So a chunk that is run
twice, because its worker was lost, is written once.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..extras import needs
from ..progress import AbstractProgress, NoProgress

if TYPE_CHECKING:
    import polars

    from .grid import Spec

#: How often a chunk is run again after its worker was lost.
RETRIES = 5
#: Chunks in the hands of the cluster for each of its cores: enough that no worker waits.
AHEAD = 2


def _rows_of_chunk(spec: Spec, chunk: int) -> bytes:
    """On a worker: run a chunk. **Returns:** its rows as Arrow data."""
    from ..cache import use_compilation_cache

    use_compilation_cache()
    out = io.BytesIO()
    spec.run_chunk(chunk, NoProgress()).write_ipc(out)
    return out.getvalue()


def chunks(
    spec: Spec, todo: list[int], progress: AbstractProgress, before: int
) -> Iterator[tuple[int, polars.DataFrame]]:
    """The chunks and their rows, in the order in which they are finished.

    Uses the cluster that this process is connected to or that `RAY_ADDRESS` names; else starts one on this machine,
    and ends it.

    **Raises:** `MissingExtra` without Ray; `RuntimeError` if a chunk's worker was lost `RETRIES` times over.
    """
    with needs("ray", "a grid over Ray"):
        import ray  # pyright: ignore[reportMissingImports]  # an extra that is not among those of development
    import polars

    started = not ray.is_initialized()
    if started:
        # nothing of the grid is written by workers, so their logs are not repeated here
        ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    try:
        run = ray.remote(_rows_of_chunk).options(
            num_cpus=1, max_retries=RETRIES, runtime_env={"env_vars": {"SERQJAX_CORES": "1"}}
        )
        shared = ray.put(spec)
        waiting = list(todo)
        running: dict[Any, int] = {}
        most = max(1, AHEAD * int(ray.cluster_resources().get("CPU", 1)))
        while waiting or running:
            while waiting and len(running) < most:
                chunk = waiting.pop(0)
                running[run.remote(shared, chunk)] = chunk
            ready, _ = ray.wait(list(running), num_returns=1)
            chunk = running.pop(ready[0])
            yield chunk, polars.read_ipc(io.BytesIO(_answer(ray, ready[0], chunk)))
            before += len(spec.places(chunk))
            progress.advance(before)
    finally:
        if started:
            ray.shutdown()


def _answer(ray: Any, task: Any, chunk: int) -> bytes:
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:  # what the chunk itself raised, as the exception it was
        raise error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error)) from None
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"chunk {chunk}: its worker was lost {RETRIES + 1} times ({type(error).__name__}); "
                           "the finished chunks are kept, resume to go on") from None  # fmt: skip


__all__ = ["chunks"]
