"""Speed of whole runs, with full statistics, at batch 1, 32 and 1,024, beside pyserq on the same program.

    pytest experiments/bench/test_engine_speed.py -o addopts= --benchmark-only --benchmark-json=engine.json

An M/M/1 of 200 s and the vLLM load `low` of 30 s (programs: `vs_pyserq.py`). `extra_info` holds seeds and requests per
second of the fastest call and of the median, and the compile time, which is outside the timed calls.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("EQX_ON_ERROR", "off")

import pytest

import serqjax as sq
from experiments.bench.machine import CompileClock, machine
from experiments.bench.vs_pyserq import LOADS, compile_load, run_pyserq

pytest.importorskip("pyserq", reason="the programs are compiled and compared by pyserq: pip install pyserq")
SPANS = {"mm1": (200.0, 20.0), "low": (30.0, 3.0)}
THREADS = 2
CLOCK = CompileClock()


@pytest.fixture(scope="module", params=SPANS)
def load(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Any]:
    name = request.param
    return name, *compile_load(LOADS[name], SPANS[name], Path(tmp_path_factory.mktemp("bench")))


def record(benchmark: Any, batch: int, requests: float) -> None:
    """Rates of the fastest and the median call; `requests`: of one seed, in the mean."""
    benchmark.extra_info |= machine() | {"batch": batch, "requests_per_seed": requests}
    for name in ("min", "median"):
        seconds = getattr(benchmark.stats.stats, name)
        benchmark.extra_info |= {
            f"{name}_seeds_per_s": batch / seconds,
            f"{name}_requests_per_s": batch * requests / seconds,
        }


@pytest.mark.parametrize("batch", [1, 32, 1024])
def test_serqjax(benchmark: Any, load: tuple[str, dict[str, Any], Any], batch: int) -> None:
    _, _, prog = load
    before_s = CLOCK.total_s
    runs = sq.run(prog, seeds=range(batch))  # compiles; the result is on the host when it returns
    compile_s = CLOCK.total_s - before_s
    benchmark.pedantic(lambda: sq.run(prog, seeds=range(batch)), rounds=10)
    record(benchmark, batch, runs.request_counts["in"] / batch)
    benchmark.extra_info["compile_s"] = compile_s


def test_pyserq(benchmark: Any, load: tuple[str, dict[str, Any], Any]) -> None:
    _, ir14, prog = load
    seeds = range(64)
    requests = sq.run(prog, seeds=range(8)).request_counts["in"] / 8
    benchmark.pedantic(lambda: run_pyserq(ir14, seeds, THREADS), rounds=10)
    record(benchmark, len(seeds), requests)
    benchmark.extra_info["threads"] = THREADS
