"""How often does the interval of `capacity` hold the truth? An M/M/1 queue knows the answer.

The sojourn time of an M/M/1 is exponential with rate mu - lambda, so that its 99th percentile is below T exactly if
lambda <= mu - ln(100) / T (Kleinrock, *Queueing Systems* I, 1975, section 5.12). The question is asked again and again,
each time with seeds of its own; counted is how often the interval holds the true rate, and how wide it is.

    python experiments/capacity_coverage.py --repetitions 100
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time

import serqjax as sq
from serqjax import ir
from serqjax.ir.expr import Attr, Num, Param, Sample
from serqjax.study.capacity import Capacity

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
    parser.add_argument("--out", help="write a JSON line for each repetition to this file")
    options = parser.parse_args(argv)
    sq.use_compilation_cache()
    held, halves, begun = 0, [], time.monotonic()
    lines = []
    for repetition in range(options.repetitions):
        found = ask(repetition)
        low, high = found.interval
        holds = bool(low <= TRUE_RATE <= high)
        held += holds
        halves.append((high - low) / 2 / found.value)
        lines.append(json.dumps({"repetition": repetition, "verdict": found.verdict, "value": round(found.value, 6),
                                 "interval": [round(low, 6), round(high, 6)], "holds": holds, "runs": found.runs}))
        print(f"{repetition:4d}  {found.value:.4f}  [{low:.4f}, {high:.4f}]  {'' if holds else 'not held'}", flush=True)
    took = time.monotonic() - begun
    summary = {"true_rate": TRUE_RATE, "repetitions": options.repetitions, "held": held,
               "median_half_width": round(statistics.median(halves), 5), "largest_half_width": round(max(halves), 5)}
    print(f"the true rate {TRUE_RATE} lies in {held} of {options.repetitions} intervals; half-widths: median "
          f"{summary['median_half_width']:.2%}, largest {summary['largest_half_width']:.2%}; {took:.0f} s")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write("\n".join([json.dumps(summary), *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
