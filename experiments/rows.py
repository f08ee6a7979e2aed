"""Rows of a long experiment, a JSON line each: a second start goes on where the first one ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows_of(path: Path | None) -> list[dict[str, Any]]:
    """The rows that are there."""
    if path is None or not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def append_row(path: Path | None, row: dict[str, Any]) -> None:
    """Add a row to the file, if there is to be one."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
