"""Units of work: how a batch is shared among threads, and a compiled loop among units.

A unit is some instances in the lanes of one compiled loop. Native code takes any number of lanes. What XLA compiles has
equally many in all units, so that a program compiles once; a lane without an instance costs next to nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


def unit_sizes(count: int, lanes: int, workers: int) -> list[int]:
    """How many of `count` instances each unit takes, at most `lanes`, for `workers` that take one unit after the other.

    Each takes its share of half of what is left (*guided self-scheduling*): large units first, single
    instances at the end, so that all workers end at about the same time however long the instances are.

    **Source:** C. D. Polychronopoulos and D. J. Kuck, IEEE Trans. Computers C-36 (1987).
    """
    sizes = []
    while count:
        sizes.append(min(lanes, -(-count // (2 * workers)) if workers > 1 else count))
        count -= sizes[-1]
    return sizes


class Once:
    """Something to be done before the first unit of each kind goes on, while the others of its kind wait.

    Threads that call a jitted function for the first time at once would each compile it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: set[Hashable] = set()

    def __call__(self, kind: Hashable, action: Callable[[], object]) -> None:
        with self._lock:
            if kind not in self._done:
                action()
                self._done.add(kind)
