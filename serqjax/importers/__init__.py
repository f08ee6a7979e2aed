"""Programs from files: serQ IR JSON (14, 12), automaton JSON, serQ text.

Everything that cannot be read is one `ProgramError` that names the file or the place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import ir
from ..errors import ProgramError
from ..ir.codec import describe, from_tree, parse_json
from .ir14 import read as read_ir
from .ir14 import read_bytes, read_tree
from .text import read_text

__all__ = ["read_ir", "read_program", "read_text"]


def read_program(
    path: str | Path,
    workload: str | Path | None = None,
    *,
    sets: Mapping[str, float | str] | None = None,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    seed: int | None = None,
    arrivals: int | None = None,
) -> ir.Program:
    """The program in a file, whatever its form.

    **Arguments:**
    - `path`: a `.serq` file (serQ text), or JSON: the automaton form (has `format`) or serQ IR (has `version`).
    - `workload`: a workload file; only for serQ text.
    - `sets`, `horizon_s`, `warmup_s`, `seed`, `arrivals`: for serQ text, which declares inputs
      (`args.number`) and has no run settings of its own; ignored for JSON, whose numbers are set afterwards.

    **Raises:** `ProgramError`.
    """
    path = Path(path)
    if path.suffix == ".serq":
        return read_text(
            path, workload, sets=sets, horizon_s=horizon_s, warmup_s=warmup_s, seed=seed, arrivals=arrivals
        )
    if workload is not None:
        raise ProgramError.at(str(workload), "a workload file goes with a .serq deployment", f"{path} is complete")
    if path.is_dir():
        raise ProgramError.at(str(path), "this is a folder", "name the program file in it")
    tree = parse_json(read_bytes(path), str(path))
    if not isinstance(tree, dict):
        raise ProgramError.at(str(path), f"a program is a JSON object, not {describe(tree)}")
    if "format" in tree:
        return from_tree(tree)
    if "version" in tree:
        return read_tree(tree, path)
    raise ProgramError.at(
        str(path), "this is no program", 'a serQ IR program has a field "version", an automaton "format"'
    )
