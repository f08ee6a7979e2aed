"""`python -m oracle PROGRAM`: one seed, run sequentially, the same JSON as `serqjax run PROGRAM --seed S --json`.

Exit codes as there: 0 drained, horizon, unstable; 1 deadlock, livelock, error; 2 usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from serqjax.errors import ProgramError
from serqjax.overrides import with_span
from serqjax.report.document import dumps, run_document
from serqjax.report.raw import Action, RawRun, Verdict
from serqjax.report.units import seconds
from serqjax.sources import read

from .machine import simulate

GOOD = (Verdict.drained, Verdict.horizon, Verdict.unstable)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m oracle", description="Run one seed of a program sequentially.")
    p.add_argument("program", help="serQ IR or automaton JSON file, .serq file, or a ready-made deployment")
    p.add_argument("--workload", help="workload file of a .serq deployment, or the name of a ready-made one")
    p.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another number by name")
    p.add_argument("--trace", metavar="FILE", help="recorded requests instead of the program's arrivals")
    p.add_argument("--seed", type=int, help="seed of all random streams (default: the program's)")
    p.add_argument("--horizon", type=float, metavar="SECONDS", help="end of the run (default: the program's)")
    p.add_argument("--warmup", type=float, metavar="SECONDS", help="start of the measurement (default: the program's)")
    p.add_argument("--arrivals", type=int, metavar="N", help="exactly N open arrivals, then drain")
    p.add_argument("--check", action="store_true", help="verify the ownership equation after every action")
    p.add_argument("--stop-on-verdict", action="store_true", help="end at a livelock or deadlock")
    p.add_argument("--actions", metavar="FILE", help="write the action trace, one line per action")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    settings = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            return complain(f"--set {text}: write NAME=VALUE", 2)
        settings[name] = value
    try:
        program = read(args.program, workload=args.workload, settings=settings, trace=args.trace)
        program = with_span(program, horizon_s=args.horizon, warmup_s=args.warmup, arrivals=args.arrivals)
        raw = simulate(
            program,
            args.seed,
            trace=args.actions is not None,
            check=args.check,
            stop_on_verdict=args.stop_on_verdict,
        )
    except ProgramError as error:
        return complain(str(error), 1)
    except (ValueError, OSError) as error:
        return complain(str(error), 2)
    if args.actions is not None:
        Path(args.actions).write_text("".join(f"{line}\n" for line in actions(raw)))
    sys.stdout.write(dumps(run_document(program, raw)))
    return 0 if raw.verdict in GOOD else 1


def actions(raw: RawRun) -> list[str]:
    """`time kind session place amount`, one line per action."""
    rows = [] if raw.trace is None else raw.trace.tolist()
    return [
        f"{float(seconds(int(tick), raw.tick_s)):.9f} {Action(int(kind)).name} {int(serial)} {int(place)} {amount:g}"
        for tick, kind, serial, place, amount in rows
    ]


def complain(message: str, code: int) -> int:
    print(f"oracle: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
