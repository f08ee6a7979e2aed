"""What a grid of 1,000 points costs, whether it survives, and whether uneven runs slow it down.

    python experiments/bench/grid_scale.py [--out FILE.json] [--part NAME]...

- `scale`: 1,000 points of a vLLM engine (20 rates, 50 values of max_num_seqs) x 8 seeds by the command line, in a
  process of its own: seconds, peak memory as it prints it, functions compiled with a cold cache; before it, the same
  with 100 points, whose peak is that of compiling.
- `memory`: an M/M/1 at 500 and at 2,000 points x 8 seeds, compiled before: the peak memory of each process.
- `killed`: the grid of 1,000 points killed with SIGKILL at five random moments and started again: all files
  byte for byte as those of the grid that was left alone.
- `single`: rows of 20 random points and seeds against single runs, bit for bit.
- `uneven`: an M/M/1 at 256 points in one chunk; all long, and with 90 % of them ten times shorter, the long ones side
  by side, which is the worst order. Customers a second of wall time of the second over the first, median of seven
  pairs. Runs last long enough that the constant cost of a point (making and checking its program) does not count.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import polars  # noqa: E402

import serqjax as sq  # noqa: E402
from experiments.bench.machine import machine  # noqa: E402
from experiments.erlang_grid import queue  # noqa: E402
from serqjax.engine.host import UNIT, cores  # noqa: E402
from serqjax.engine.units import unit_sizes  # noqa: E402

SETTINGS = {"num_prompts": 30, "input_len": 256, "output_len": 32}
RATES = "request_rate=0.5:10:20"
SEQS = [str(n) for n in range(1, 51)]
SEEDS = 8
KILLS = 5
#: Seconds that the runs of an uneven grid last: short ones take some ten times what is constant about a point.
UNEVEN_S = 140_000.0
#: Pairs of an even and an uneven grid.
UNEVEN_PAIRS = 7


def command(seqs: list[str], out: Path) -> list[str]:
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "serqjax", "grid", "vllm", "--workload", "requests", *sets, "--vary", RATES, "--vary",
            f"max_num_seqs={','.join(seqs)}", "--seeds", f"0:{SEEDS}", "--out", str(out)]  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def start(seqs: list[str], out: Path, cache: Path, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(command(seqs, out), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            env=os.environ | {"SERQJAX_CACHE": str(cache)} | environment)  # fmt: skip


def scale(work: Path) -> dict[str, Any]:
    """The grids of 100 and of 1,000 points, one after the other; `work/whole` holds the second."""
    found: dict[str, Any] = {}
    for seqs, folder in ((SEQS[:5], "tenth"), (SEQS, "whole")):
        begun = time.perf_counter()
        process = start(seqs, work / folder, work / "cache")
        said = process.communicate()[1]
        assert process.returncode == 0, said
        peak = re.search(r"peak memory (\d+) MiB", said)
        assert peak is not None, said
        points = len(seqs) * 20
        table = polars.read_parquet(work / folder / "table.parquet")
        assert table.height == points * SEEDS and set(table["verdict"]) == {"drained"}
        found[f"{points} points x {SEEDS} seeds"] = {
            "wall_s": round(time.perf_counter() - begun, 1),
            "peak_memory_mib": int(peak.group(1)),
            "rows": table.height,
            "table_mib": round((work / folder / "table.parquet").stat().st_size / 2**20, 2),
        }
    found["functions_compiled"] = len(list((work / "cache").rglob("native-*.o")))
    return found


def memory(work: Path) -> dict[str, Any]:
    program = work / "queue.json"
    program.write_text(sq.to_json(queue()))
    found = {}
    for points in (10, 500, 2000):  # the first one compiles
        words = [sys.executable, "-m", "serqjax", "grid", str(program), "--vary", f"rate=0.1:0.8:{points}",
                 "--seeds", f"0:{SEEDS}", "--horizon", "100", "--warmup", "10", "--out",
                 str(work / f"memory{points}")]  # fmt: skip
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True,
                              env=os.environ | {"SERQJAX_CACHE": str(work / "cache")})  # fmt: skip
        peak = re.search(r"peak memory (\d+) MiB", done.stderr)
        assert peak is not None, done.stderr
        found[f"{points} points x {SEEDS} seeds, peak_memory_mib"] = int(peak.group(1))
    return found


def killed(work: Path) -> dict[str, Any]:
    out, draw, moments = work / "killed", random.Random(20), []
    total = len(list((work / "whole" / "chunks").iterdir()))
    marks = sorted(draw.sample(range(1, total), KILLS))
    for mark in marks:
        process = start(SEQS, out, work / "cache")
        while process.poll() is None and len(list((out / "chunks").glob("0*.parquet"))) < mark:
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 0.5))
        assert process.poll() is None, "it had ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        moments.append(len(list((out / "chunks").glob("0*.parquet"))))
    process = start(SEQS, out, work / "cache")
    said = process.communicate()[1]
    assert process.returncode == 0, said
    same = files(out) == files(work / "whole")
    return {"killed_after_chunks": moments, "of_chunks": total, "files_byte_identical": same, "files": len(files(out))}


def single(work: Path) -> dict[str, Any]:
    """Random rows against single runs made by `serqjax.run`."""
    sq.use_compilation_cache(work / "cache" / "jax")
    table = polars.read_parquet(work / "whole" / "table.parquet").sample(20, seed=3)
    different = []
    for row in table.iter_rows(named=True):
        prog = sq.read("vllm", workload="requests",
                       settings={**SETTINGS, "request_rate": row["request_rate"], "max_num_seqs": row["max_num_seqs"]})
        run = sq.run(prog, seed=row["seed"])
        pairs = [(row["verdict"], run.verdict), (row["end_s"], run.report["end"]),
                 (row["stages.vllm.iterations"], run.report["stages"][0]["iterations"]),
                 (row["pools.kv.mean_used"], run.report["pools"][1]["mean_used"])]  # fmt: skip
        for metric in run.summary().per_seed().iter_rows(named=True):
            head = metric["metric"].removesuffix("_s")
            pairs += [(row[f"{head}_{k}_s"], metric[k]) for k in ("mean", "p50", "p90", "p95", "p99")]
        different += [pair for pair in pairs if pair[0] != pair[1]]
    return {"rows": table.height, "values_that_differ": len(different)}


def uneven(work: Path) -> dict[str, Any]:
    """Pairs of grids, one after the other, each in both orders, so that a load that comes or goes meets both alike.

    The bound that no scheduling can beat is given beside it: on many cores the 26 long points do not fill them all.
    """
    sq.use_compilation_cache(work / "cache" / "jax")
    prog = queue()
    long = [0.5 + k * 1e-6 for k in range(256)]
    mixed = [0.05 + k * 1e-6 for k in range(230)] + long[:26]  # the long ones side by side, at the end

    def customers_per_s(rates: list[float]) -> tuple[float, float]:
        """A second of wall time, and of processor time of all threads (which other processes do not disturb)."""
        begun, busy = time.perf_counter(), time.process_time()
        table = sq.grid(prog, vary={"rate": rates}, seeds=[1], horizon_s=UNEVEN_S).to_polars()
        count = float(table["sessions_arrivals"].sum())
        return count / (time.perf_counter() - begun), count / (time.process_time() - busy)

    customers_per_s(long[:32])  # compiles
    pairs = []
    for k in range(UNEVEN_PAIRS):
        order = (long, mixed) if k % 2 == 0 else (mixed, long)
        found = [customers_per_s(rates) for rates in order]
        pairs.append((found[k % 2], found[1 - k % 2]))
    wall, processor = ([round(m[k] / e[k], 3) for e, m in pairs] for k in (0, 1))
    lengths = [rate * 1.0 for rate in mixed]
    workers = cores()
    bound = sum(lengths) / workers / max(sum(lengths) / workers, max(lengths))
    return {"throughput_of_the_even_one": statistics.median(wall), "each": wall,
            "median_by_processor_time": statistics.median(processor), "each_by_processor_time": processor,
            "cores": workers, "bound_by_the_longest_point": round(bound, 3),
            "by_units": round(min(1.0, sum(lengths) / workers / last_end(lengths, unit_sizes(256, UNIT, workers),
                                                                            workers)), 3)}  # fmt: skip


def last_end(lengths: list[float], sizes: list[int], workers: int) -> float:
    """When the last of the workers ends, each taking the next unit as soon as it is free."""
    free, place = [0.0] * workers, 0
    for size in sizes:
        heapq.heappush(free, heapq.heappop(free) + sum(lengths[place : place + size]))
        place += size
    return max(free)


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "scale": scale, "memory": memory, "killed": killed, "single": single, "uneven": uneven,
}  # fmt: skip


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this (`killed`, `single` need `scale`)")
    options = parser.parse_args(words)
    work = Path(tempfile.mkdtemp(prefix="grid_scale_"))
    found: dict[str, Any] = {}
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text())
    try:
        for name in options.part or PARTS:
            found[name] = PARTS[name](work) | {"load_average": os.getloadavg()[0]}
            print(json.dumps({name: found[name]}), flush=True)
    finally:
        shutil.rmtree(work)
    found["machine"] = machine()
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
