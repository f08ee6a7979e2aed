"""How often does the interval of `capacity` hold the truth? An M/M/1 queue knows the answer.

The sojourn time of an M/M/1 is exponential with rate mu - lambda, so that its 99th percentile is below T exactly if
lambda <= mu - ln(100) / T (Kleinrock, *Queueing Systems* I, 1975, section 5.12). The question is asked again and again,
each time with seeds of its own; counted is how often the interval holds the true rate, and how wide it is.

    python experiments/capacity_coverage.py --repetitions 100 --out experiments/results/capacity_coverage.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import serqjax as sq  # noqa: E402
from experiments.rows import append_row, rows_of  # noqa: E402
from serqjax import ir  # noqa: E402
from serqjax.ir.expr import Attr, Num, Param, Sample  # noqa: E402
from serqjax.study.capacity import Capacity  # noqa: E402

MEAN_SERVICE_S = 1.0
TRUE_RATE = 0.7
LIMIT_S = math.log(100) / (1 / MEAN_SERVICE_S - TRUE_RATE)
#: Half-width that is asked for, over the value.
PRECISION = 0.025
#: Seeds of one repetition, so that no two share any.
SEEDS_EACH = 100_000


def mm1(horizon_s: float = 5000.0, warmup_s: float = 500.0) -> ir.Program:
    """Poisson arrivals at the parameter `request_rate`, one server, exponential work of mean 1 s."""
    return ir.Program(
        name="M/M/1",
        attrs=(ir.Attribute(name="service"),),
        params=(ir.Parameter(name="request_rate", value=0.5),),
        stages=(ir.Stage(name="server", kind=ir.Fifo(Num(1.0))),),
        states=(
            ir.State(name="served", exit=ir.Run(stage="server", mode="Plain", work=Attr("service"), then="gone")),
            ir.State(name="gone", exit=ir.End()),
        ),
        start="served",
        init=(ir.Set("service", Sample("Exp", (Num(MEAN_SERVICE_S),))),),
        arrival=ir.Poisson(Param("request_rate")),
        horizon_s=Num(horizon_s),
        warmup_s=Num(warmup_s),
    )


def ask(repetition: int) -> Capacity:
    target = f"e2e.p99<{LIMIT_S:.9f}s"
    return sq.capacity(mm1(), over="request_rate", between=(0.3, 1.5), slo=[target], precision=PRECISION,
                       seed=repetition * SEEDS_EACH)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first repetition, which sets its seeds")
    parser.add_argument("--out", type=Path, help="a JSON line each; those that are there stay")
    options = parser.parse_args(argv)
    sq.use_compilation_cache()
    rows = rows_of(options.out)
    for repetition in range(options.first + len(rows), options.first + options.repetitions):
        found = ask(repetition)
        low, high = found.interval
        row = {"repetition": repetition, "verdict": found.verdict, "value": round(found.value, 4),
               "interval": [round(low, 4), round(high, 4)], "holds": bool(low <= TRUE_RATE <= high)}
        rows.append(row)
        print(json.dumps(row), flush=True)
        append_row(options.out, row)
    halves = [(row["interval"][1] - row["interval"][0]) / 2 / row["value"] for row in rows]
    print(f"the true rate {TRUE_RATE} lies in {sum(row['holds'] for row in rows)} of {len(rows)} intervals; "
          f"half-widths: median {statistics.median(halves):.2%}, largest {max(halves):.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
