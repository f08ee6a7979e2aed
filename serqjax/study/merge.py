"""Folders of shards as one grid: the same table, byte for byte, as if it had been run in one piece."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..extras import needs
from ..files import replace_whole
from . import manifest as manifests
from .checkpoint import Folder
from .grid import chunks_of_shard, peak_memory_bytes

if TYPE_CHECKING:
    from .grid_result import Grid

#: At most so many missing chunks are listed.
MOST_LISTED = 5


def merge(folders: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Grid:
    """Join the folders of a grid's shards (`grid(..., shard=(i, n))`) into one.

    **Arguments:** `folders`: of all n shards, finished, in any order. `out`: a folder for the whole grid.

    **Returns:** the `Grid` in `out`: table and manifest are those of a grid that was run in one piece.

    **Raises:** `ValueError` for a folder that is no shard, shards of different grids, a shard that is missing, not
    finished or there twice, and for an `out` that holds something else.
    """
    from .grid_result import Grid

    with needs("tables", "a grid"):
        import polars  # noqa: F401
    given = [Path(folder) for folder in folders]
    if not given:
        raise ValueError("merge: give the folders of the shards")
    shards = _shards(given)
    first = next(iter(shards.values()))[1]
    whole: dict[str, Any] = {**first, "shard": None}
    target = Folder(out)
    there = manifests.read(target.path)
    if there is not None and (manifests.differences(whole, there) or there.get("shard") is not None):
        raise ValueError(f"{target.path} holds another grid: give another folder")
    if there is None and ((target.path / "chunks").exists() or target.table.exists()):
        raise ValueError(f"{target.path} holds results without a manifest: give another folder")
    target.prepare()
    from shutil import copyfile

    for i, (folder, _) in shards.items():
        for k in chunks_of_shard(whole["chunks"], (i, len(shards))):
            source = Folder(folder).chunk(k)
            if not target.chunk(k).exists():
                replace_whole(target.chunk(k), lambda to, source=source: copyfile(source, to))
    manifests.write(target.path, whole)
    target.write_table(range(whole["chunks"]))
    return Grid(whole, target.path, None, peak_memory_bytes())


def _shards(folders: list[Path]) -> dict[int, tuple[Path, dict[str, Any]]]:
    """Folder and manifest of each shard by its number: all of one grid, each once, each finished."""
    found: dict[int, tuple[Path, dict[str, Any]]] = {}
    like: tuple[Path, dict[str, Any]] | None = None
    for folder in folders:
        manifest = manifests.read(folder)
        if manifest is None:
            raise ValueError(f"{folder}: no grid here (manifest.json is missing)")
        if manifest.get("shard") is None:
            raise ValueError(f"{folder}: this is a whole grid, not a shard of one")
        like = like or (folder, manifest)
        differences = manifests.differences(manifest, like[1])
        if differences:
            raise ValueError(f"{folder} is of another grid than {like[0]}: it differs in {'; '.join(differences)}")
        i, n = manifest["shard"]
        if n != like[1]["shard"][1]:
            raise ValueError(f"{folder} is shard {i}/{n}, {like[0]} one of {like[1]['shard'][1]}")
        if i in found:
            raise ValueError(f"shard {i}/{n} is there twice: {found[i][0]} and {folder}")
        found[i] = (folder, manifest)
    assert like is not None
    n = like[1]["shard"][1]
    missing = [f"{i}/{n}" for i in range(1, n + 1) if i not in found]
    if missing:
        raise ValueError(f"missing: shard{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    for i, (folder, manifest) in sorted(found.items()):
        mine = chunks_of_shard(manifest["chunks"], (i, n))
        there = set(Folder(folder).done(mine))
        lacking = [str(k) for k in mine if k not in there]
        if lacking:
            more = f" and {len(lacking) - MOST_LISTED} more" if len(lacking) > MOST_LISTED else ""
            raise ValueError(
                f"{folder}: shard {i}/{n} is not finished, chunks {', '.join(lacking[:MOST_LISTED])}{more} are "
                "missing: run it again, it goes on"
            )
    return dict(sorted(found.items()))


__all__ = ["merge"]
