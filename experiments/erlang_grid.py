"""How often does a 95 % interval of a grid cover the truth? 400 points of M/M/c against Erlang's formula.

    python experiments/erlang_grid.py [--json FILE]

Servers 1 to 4, 100 arrival rates from 0.1 to 0.8 a second, service of mean 1 s; the mean number present, 20 seeds a
point.
Points under common seeds err together, which moves their share of covering intervals as one; so each rate has seeds of
its own here (100 grids of four points). The one grid of 400 points under common seeds is reported beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import serqjax as sq  # noqa: E402
from serqjax import ir  # noqa: E402
from serqjax.builder import Builder  # noqa: E402

SERVERS = (1, 2, 3, 4)
RATES = tuple(round(0.1 + 0.7 * k / 99, 12) for k in range(100))
SEEDS = 20
HORIZON_S, WARMUP_S = 3000.0, 300.0
METRIC = "stages.svc.mean_number"


def queue() -> ir.Program:
    """M/M/c: `servers` servers of mean 1 s, Poisson arrivals at `rate`."""
    b = Builder("mmc")
    servers, rate = b.param("servers", 1), b.param("rate", 0.5, "1/s")
    b.attr("service")
    b.stage("svc", ir.Fifo(servers))
    b.state("start", exit=ir.Run("svc", "Plain", b("service"), "done"))
    b.state("done", exit=ir.End())
    return b.program("start", ir.Poisson(rate), init=(b.set("service", "~Exp(1)"),), horizon_s=HORIZON_S,
                     warmup_s=WARMUP_S)


def mean_number(servers: int, rate: float) -> float:
    """Mean number present in an M/M/c of mean service 1 s.

    **Source:** Erlang (1917); Cooper, *Introduction to Queueing Theory* (1981), sections 3.3 and 3.4.
    """
    blocked = 1.0
    for c in range(1, servers + 1):
        blocked = rate * blocked / (c + rate * blocked)
    waits = servers * blocked / (servers - rate * (1 - blocked))
    return rate * (1.0 + waits / (servers - rate))


def covered(grid: sq.Grid) -> list[bool]:
    rows = grid.summary([METRIC]).iter_rows(named=True)
    return [row["low"] <= mean_number(row["servers"], row["rate"]) <= row["high"] for row in rows]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args(words)
    sq.use_compilation_cache()
    prog = queue()
    begun = time.perf_counter()
    own: list[bool] = []
    for k, rate in enumerate(RATES):
        seeds = range(k * SEEDS, (k + 1) * SEEDS)
        own += covered(sq.grid(prog, vary={"servers": SERVERS, "rate": [rate]}, seeds=seeds))
    common = covered(sq.grid(prog, vary={"servers": SERVERS, "rate": RATES}, seeds=range(SEEDS)))
    share = 100.0 * sum(own) / len(own)
    result = {
        "points": len(own),
        "seeds_per_point": SEEDS,
        "horizon_s": HORIZON_S,
        "covered_percent": share,
        "covered_percent_under_common_seeds": 100.0 * sum(common) / len(common),
        "wall_s": round(time.perf_counter() - begun, 1),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if 92.0 <= share <= 98.0 else 1


if __name__ == "__main__":
    sys.exit(main())
