"""Results on disk, chunk by chunk: what is there is whole, whenever the process dies.

A file gets its name by a rename after it is written and flushed, so a chunk is there or it is not. The table is
made of the chunks in their order, as a stream: it needs the memory of a few chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import replace_whole

if TYPE_CHECKING:
    import polars

TABLE = "table.parquet"
CHUNKS = "chunks"
#: Rows of a group in the table, whatever the chunks were.
GROUP = 8192


class Folder:
    """The results of a study in a folder: `chunks/000000.parquet`, ... and `table.parquet`."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def prepare(self) -> None:
        """Make the folder, and remove what a killed process left half written."""
        (self.path / CHUNKS).mkdir(parents=True, exist_ok=True)
        for place in (self.path, self.path / CHUNKS):
            for left in place.glob(".*.part"):
                left.unlink(missing_ok=True)

    def chunk(self, number: int) -> Path:
        return self.path / CHUNKS / f"{number:06d}.parquet"

    @property
    def table(self) -> Path:
        return self.path / TABLE

    def done(self, numbers: Iterable[int]) -> list[int]:
        """Those of the chunks that are there."""
        return [k for k in numbers if self.chunk(k).exists()]

    def save(self, number: int, frame: polars.DataFrame) -> None:
        replace_whole(self.chunk(number), frame.write_parquet)

    def write_table(self, numbers: Sequence[int]) -> None:
        """`table.parquet` of these chunks, in this order; equal chunks give equal bytes."""
        import polars

        parts = [polars.scan_parquet(self.chunk(k)) for k in numbers]
        whole = polars.concat(parts, how="diagonal")
        replace_whole(
            self.table, lambda to: whole.sink_parquet(to, maintain_order=True, row_group_size=GROUP, mkdir=False)
        )
