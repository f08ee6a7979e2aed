"""Helpers of the tests: where the shared reference material lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_dir() -> Path:
    """The folder of reference programs and recordings, or a skip with the reason."""
    path = Path(os.environ.get("SERQJAX_SHARED", ROOT.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"reference material not found at {path}: set SERQJAX_SHARED to its folder")
    return path
