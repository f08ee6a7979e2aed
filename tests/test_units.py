"""Units of work on the host: shares of a batch, and one compilation for all threads."""

from __future__ import annotations

import heapq
import threading
import time

import equinox as eqx
import pytest
from compare_runs import exact_difference

from experiments.erlang_grid import queue
from serqjax.engine import host, loop, simulate
from serqjax.engine.units import Once, unit_sizes
from serqjax.overrides import with_span


@pytest.mark.parametrize(("count", "workers"), [(0, 2), (1, 2), (2, 2), (3, 2), (16, 2), (17, 1), (256, 2), (1000, 16)])
def test_shares_are_all_of_it_and_fit_in_the_lanes(count: int, workers: int) -> None:
    sizes = unit_sizes(count, 16, workers)
    assert sum(sizes) == count and all(0 < size <= 16 for size in sizes)
    assert sizes == sorted(sizes, reverse=True)
    assert count < workers or len(sizes) >= workers or not count


def makespan(lengths: list[float], sizes: list[int], workers: int) -> float:
    """When the last of the workers ends, each taking the next unit as soon as it is free."""
    free, place = [0.0] * workers, 0
    for size in sizes:
        heapq.heappush(free, heapq.heappop(free) + sum(lengths[place : place + size]))
        place += size
    return max(free)


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_long_instances_at_the_end_keep_all_workers_busy(workers: int) -> None:
    """90 % of 256 instances are ten times shorter, the long ones the last: with units of 16 four workers would take
    1.6 times as long as they need."""
    lengths = [0.1] * 230 + [1.0] * 26
    least = max(sum(lengths) / workers, 1.0)
    assert makespan(lengths, unit_sizes(256, 16, workers), workers) <= 1.25 * least


def test_the_first_of_a_kind_goes_alone() -> None:
    once, done = Once(), []

    def work() -> None:
        once("kind", lambda: (time.sleep(0.05), done.append(threading.get_ident())))
        assert len(done) == 1, "the others wait until it is done"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    once("other", lambda: done.append(0))
    assert len(done) == 2


def test_two_instances_run_on_two_threads_and_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()
    run_unit = host.Batch._run_unit

    def noted(self, todo, *rest):
        used.add((threading.get_ident(), *todo))
        return run_unit(self, todo, *rest)

    monkeypatch.setattr(loop, "turn", eqx.debug.assert_max_traces(loop.turn, max_traces=1))
    monkeypatch.setattr(host.Batch, "_run_unit", noted)
    monkeypatch.setattr(host, "cores", lambda: 2)
    loop.loop.cache_clear()
    program = with_span(queue(), horizon_s=80.0, warmup_s=0.0)
    both = simulate(program, [1, 2])
    assert eqx.debug.get_num_traces(loop.turn) == 1
    monkeypatch.undo()
    loop.loop.cache_clear()
    assert len({thread for thread, *_ in used}) == 2 and {place for _, place in used} == {0, 1}
    alone = [simulate(program, [seed])[0] for seed in (1, 2)]
    for a, b in zip(both, alone):
        assert a is not None and b is not None and exact_difference(a, b) is None
