"""serQ text (`.serq`) through pyserq, where it is installed.

pyserq compiles a deployment and a workload to IR JSON, which is then read like any other.

**Source:** `pyserq.compile`; `spec/ir14.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from .. import ir
from ..errors import ProgramError
from .ir14 import read

#: Stand-in while compiling a program whose horizon is given later.
_SOME_HORIZON = 1e9


def read_text(
    path: str | Path,
    workload: str | Path | None = None,
    *,
    sets: Mapping[str, float | str] | None = None,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    seed: int | None = None,
    arrivals: int | None = None,
    trace: str | Path | None = None,
) -> ir.Program:
    """A deployment (and its workload file) in serQ text as an automaton program.

    **Arguments:**
    - `path`, `workload`: the `.serq` files; without a workload the deployment must hold its own.
    - `sets`: values of inputs declared with `args.number`, by name.
    - `horizon_s`, `warmup_s`: seconds; a text has none of its own, so without `horizon_s` the
      program's horizon is None. `seed`, `arrivals`, `trace` (serQ trace CSV) likewise.

    **Raises:** `ProgramError` with pyserq's message; with the pip command if pyserq is missing.
    """
    place = str(path)
    for file in (path, workload):
        if file is not None and not Path(file).is_file():
            raise ProgramError.at(str(file), "the file cannot be opened", "check the path")
    try:
        import pyserq as pyserq_module
    except ImportError:
        raise ProgramError.at(
            place, "reading serQ text needs pyserq", "pip install pyserq (or give the program as IR JSON)"
        ) from None
    pyserq: Any = pyserq_module  # a compiled module without type hints
    options: dict[str, Any] = {
        "workload": None if workload is None else str(workload),
        "sets": {name: str(value) for name, value in (sets or {}).items()},
        "horizon": _SOME_HORIZON if horizon_s is None else horizon_s,
        "warmup": warmup_s,
        "seed": seed,
        "arrivals": arrivals,
        "trace": None if trace is None else str(trace),
    }
    try:
        text = pyserq.compile(place, **{k: v for k, v in options.items() if v is not None}).to_json()
    except BaseException as error:  # pyserq's own errors derive from several bases
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        raise ProgramError.at(place, str(error) or type(error).__name__) from None
    program = read(text, directory=Path(path).parent)
    changes: dict[str, Any] = {"name": Path(path).stem}
    if horizon_s is None:
        changes["horizon_s"] = None
    return msgspec.structs.replace(program, **changes)
