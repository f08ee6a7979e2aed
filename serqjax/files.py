"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    replace_whole(path, lambda temporary: temporary.write_bytes(data))


def replace_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, flush it to the disk, and give it the name `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
