"""What a folder of results was made of: `manifest.json`, the same bytes for the same study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__, ir
from ..files import write_whole
from ..ir.codec import to_json

NAME = "manifest.json"
FORMAT = 1
#: What must be equal for results to stand in one table.
IDENTITY = ("format", "kind", "serqjax", "program", "vary", "seeds", "span", "options", "chunk_runs")


def program_hash(program: ir.Program) -> str:
    """SHA-256 of the program's automaton JSON."""
    import hashlib

    return hashlib.sha256(to_json(program).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Of what takes part in the numbers."""
    import importlib.metadata
    import platform

    found = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "polars")}
    return {"python": platform.python_version(), **found}


def seeds_text(seeds: Sequence[int]) -> str | list[int]:
    """`"0:64"` for consecutive seeds, else the list."""
    return f"{seeds[0]}:{seeds[-1] + 1}" if list(seeds) == list(range(seeds[0], seeds[-1] + 1)) else list(seeds)


def make(kind: str, program: ir.Program, **what: Any) -> dict[str, Any]:
    """A manifest: format, kind, versions, the program's name and hash, and what else describes the study."""
    head = {"format": FORMAT, "kind": kind, "serqjax": __version__}
    return head | {"program": {"name": program.name, "sha256": program_hash(program)}} | what | {"versions": versions()}


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder, None without one. **Raises:** `ValueError` for one that is not ours."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict) or found.get("kind") != "grid" or found.get("format") != FORMAT:
        raise ValueError(f"{path}: this is no manifest of a grid that this version reads")
    return found


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_whole(folder / NAME, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """In words, what keeps two manifests from being of one study; [] if nothing does."""
    found = []
    for key in IDENTITY:
        mine, theirs = one.get(key), other.get(key)
        if mine != theirs:
            if key == "program" and isinstance(mine, dict) and isinstance(theirs, dict):
                found.append(f"the program ({_program(mine)}, not {_program(theirs)})")
            else:
                found.append(f"{key} ({json.dumps(mine)}, not {json.dumps(theirs)})")
    return found


def _program(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('name')} {str(entry.get('sha256'))[:12]}"
