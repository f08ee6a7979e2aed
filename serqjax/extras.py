"""A missing optional library is one line that says what to install."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class MissingExtra(ImportError):
    """A library of an extra is not installed."""


@contextlib.contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around code that imports a library of `extra`. **Raises:** `MissingExtra` with the command to run."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{what} needs {error.name}: pip install 'serqjax[{extra}]'") from error
