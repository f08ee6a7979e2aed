"""Progress of a long run: an object with a no-op default, not a flag.

The engine calls `start(total)` once, `advance(done)` between loop calls and `close()` at the end,
also when it is interrupted. `done` counts the seeds finished so far (a total, not an increment).
"""

from __future__ import annotations

import abc
import sys
from typing import Any, final


class AbstractProgress(abc.ABC):
    """What a run reports to while it works."""

    @abc.abstractmethod
    def start(self, total: int) -> None:
        """The run begins; it has `total` seeds."""

    @abc.abstractmethod
    def advance(self, done: int) -> None:
        """`done` seeds have finished so far."""

    @abc.abstractmethod
    def close(self) -> None:
        """The run is over, finished or interrupted. May be called twice."""


@final
class NoProgress(AbstractProgress):
    """Says nothing."""

    def start(self, total: int) -> None:
        pass

    def advance(self, done: int) -> None:
        pass

    def close(self) -> None:
        pass


@final
class BarProgress(AbstractProgress):
    """A bar with seeds done and time left: on a terminal's stderr, and in notebooks.

    Elsewhere (a pipe, a log file) nothing is drawn. Needs the extra `cli`; without it nothing is drawn either.

    **Arguments:**
    - `label`: the word in front of the bar.
    - `force`: draw even where stderr is no terminal (tests).
    """

    def __init__(self, label: str = "seeds", *, force: bool = False):
        self.label = label
        self._force = force
        self._bar: Any = None
        self._task: Any = None

    def start(self, total: int) -> None:
        notebook = in_notebook()
        if not (self._force or notebook or sys.stderr.isatty()):
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            return
        console = Console() if notebook else Console(stderr=True, force_terminal=True if self._force else None)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self.label, total=total)

    def advance(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return False
    shell = ipython.get_ipython()
    return shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"
