"""Seeds per second of serqjax beside pyserq, the reference interpreter, on the same programs.

    python experiments/bench/vs_pyserq.py [--quick] [--json] [--out FILE.json] [--case NAME]... [--batch N]
                                          [--repeats R] [--threads T] [--batches]

Cases: the loads of a vLLM-like engine with multi-turn sessions (`low`, `medium`, `busy`, `collapsed`), `mm1`,
`fifo_hold` (units of a pool held while a fifo stage works), `no_licence` (the busy engine with a cost that multiplies
two moving variables: no windows) and `srpt` (the busy engine serving the least remaining work first).

Each repeat runs one batch of seeds in serqjax and then, at once, other seeds of the same program in pyserq in
`--threads` threads (it does not hold the GIL while it runs), so that both meet the same machine. `ratio` is the median
over the repeats of seeds per second at the batch size over pyserq's. Compilation is apart: batches are run until one
compiles nothing, and a repeat that still compiles (a table ran full for the first time) is counted there and run
again. Full statistics on both sides. Result on stdout, progress on stderr. Needs pyserq.

Also: seeds per second of other batch sizes and with `coalesce=False` (`--batches`), the memory of an instance as it
ran, and the state of one with room for 1,000 live sessions, which with its tape must be below 2 MiB (exit 1 if not;
the output buffers, drained between calls of the loop, are apart).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import serqjax as sq  # noqa: E402
from experiments.bench.machine import CompileClock, machine  # noqa: E402

#: Bytes that state and tape of an instance with 1,000 live sessions may take.
MEMORY_LIMIT = 2 << 20
LIVE_SESSIONS = 1_000
#: Seconds that pyserq runs in each repeat, about.
BESIDE_S = 2.0
QUICK_BESIDE_S = 1.0

MM1_DEPLOYMENT = """
use "std/args";
fn main() {
  let c = args.number("c", 1);
  stage svc : fifo(c);
  server (work) {
    set t0 = now;
    run svc (cost(svc, work));
    observe response = now - t0;
  }
}
"""
MM1_WORKLOAD = """
use "std/args";
let lam = args.number("lam", 0.7);
workload {
  arrive poisson(lam);
  turn { set work = ~exp(1); }
  session { turn; }
  send (work);
}
"""
# A100-like iteration costs; budget 512 tokens, blocks of 16; prefix cache, reuse of whole blocks below the last token.
VLLM_DEPLOYMENT = """
use "std/args";
let bs = 16;
def reusable(x) { floor((x - 1) / bs) * bs }
fn main() {
  let max_seqs = args.number("max_seqs", 64);
  let blocks = args.number("blocks", 8010);
  device gpu {
    compute (p, a) = 51.5e-6 * p + 4.02e-9 * a;
    hbm (d, k) = 13.9e-3 + 41e-6 * d + 0.138e-6 * k;
    kv cap blocks * bs;
  }
  engine vllm on gpu {
    reqs cap max_seqs;
    tokens cap 512;
    scheduler {
      advance running;
      admit waiting while (running.preempted == 0)
        taking reqs (1), kv (min(request.known, min(request.hit, reusable(request.known)) + budget_left(vllm)))
        reuse (reusable(request.known))
        cache (request.input + request.output);
    }
    worker { forward (hbm(batch.decoding, batch.kv_decode) + compute(batch.prefilled, batch.attention)); }
  }
  pool kv on gpu { block bs; evict lru; preempt lifo; }
  pool reqs on vllm { queue fifo; }
  server (K, n, hidden o) {
    set t0 = now;
    vllm (K + n, o);
    observe response = now - t0;
  }
}
"""
VLLM_WORKLOAD = """
use "std/args";
let lam = args.number("lam", 0.1);
let Z = args.number("Z", 3);
let p = 0.9;
stage tool : delay;
workload {
  arrive poisson(lam);
  init { set K = 0; }
  turn {
    set n = ceil(K == 0 ? ~uniform(1000, 3000) : ~exp(500));
    set o = floor(~exp(200)) + 1;
    set again = ~bernoulli(p);
  }
  session {
    turn;
    while (again) {
      set K = K + n + o;
      tool (~exp(Z));
      turn;
    }
  }
  send (K, n, o);
}
"""


FIFO_HOLD_DEPLOYMENT = """
fn main() {
  pool mem { cap 20; }
  stage svc : fifo(4);
  server (work, units) {
    set t0 = now;
    hold mem (cost(mem, units)) { run svc (cost(svc, work)); }
    observe response = now - t0;
  }
}
"""
FIFO_HOLD_WORKLOAD = """
use "std/args";
let lam = args.number("lam", 2);
workload {
  arrive poisson(lam);
  turn { set work = ~exp(1); set units = ceil(~uniform(0, 8)); }
  session { turn; }
  send (work, units);
}
"""


def two_moving_variables(ir14: dict[str, Any]) -> None:
    """Add a product of two quantities that move from iteration to iteration to the engine's cost, a tiny one."""
    step = next(stage["kind"]["Step"] for stage in ir14["stages"] if "Step" in stage["kind"])
    square = {"Binary": ["Mul", {"Binary": ["Mul", {"Num": 1e-18}, {"Ctx": "Kvb"}]}, {"Ctx": "Attn"}]}
    step["cost"] = {"Binary": ["Add", step["cost"], square]}


def least_remaining_first(ir14: dict[str, Any]) -> None:
    step = next(stage["kind"]["Step"] for stage in ir14["stages"] if "Step" in stage["kind"])
    step["serve"] = {"By": [{"Ctx": "Remaining"}]}


@dataclasses.dataclass(frozen=True)
class Load:
    """A program in serQ text with its numbers; `quick`: horizon and warm-up with `--quick`; `change`: of its IR 14."""

    deployment: str
    workload: str
    settings: dict[str, float]
    horizon_s: float
    warmup_s: float
    quick: tuple[float, float]
    change: Callable[[dict[str, Any]], None] | None = None


def vllm(
    max_seqs: int, blocks: int, lam: float, quick_s: float, change: Callable[[dict[str, Any]], None] | None = None
) -> Load:
    settings = {"max_seqs": float(max_seqs), "blocks": float(blocks), "lam": lam}
    return Load(VLLM_DEPLOYMENT, VLLM_WORKLOAD, settings, 3000.0, 300.0, (quick_s, quick_s / 10), change)


LOADS = {
    "low": vllm(64, 8_010, 0.05, 600.0),
    "medium": vllm(256, 80_100, 0.1, 600.0),
    "busy": vllm(256, 80_100, 0.2, 400.0),
    "collapsed": vllm(64, 8_010, 0.3, 400.0),
    "mm1": Load(MM1_DEPLOYMENT, MM1_WORKLOAD, {"lam": 0.7}, 20_000.0, 1_000.0, (6_000.0, 300.0)),
    "fifo_hold": Load(FIFO_HOLD_DEPLOYMENT, FIFO_HOLD_WORKLOAD, {"lam": 2.0}, 5_000.0, 500.0, (1_500.0, 150.0)),
    "no_licence": vllm(256, 80_100, 0.2, 100.0, two_moving_variables),
    "srpt": vllm(256, 80_100, 0.2, 60.0, least_remaining_first),
}
#: Other batch sizes measured with `--batches`.
BATCHES = (1, 32, 1_024)


def reference() -> Any:
    """The module pyserq (its types are not visible from Python)."""
    return importlib.import_module("pyserq")


def compile_load(load: Load, span_s: tuple[float, float], folder: Path) -> tuple[dict[str, Any], sq.ir.Program]:
    """The IR 14 of a load, and the same file read by serqjax."""
    compiled = reference().compile(
        source=load.deployment,
        workload_source=load.workload,
        sets=load.settings,
        horizon=span_s[0],
        warmup=span_s[1],
        seed=0,
    )
    text = compiled.to_json()
    path = folder / "program.ir14.json"
    ir14 = json.loads(text)
    if load.change is not None:
        load.change(ir14)
    path.write_text(json.dumps(ir14))
    return ir14, sq.read(path)


def run_pyserq(ir14: dict[str, Any], seeds: range, threads: int) -> float:
    """Seconds for the seeds in `threads` threads, reading the programs apart."""
    pyserq = reference()
    programs = [pyserq.Program.from_json(json.dumps(ir14 | {"seed": seed})) for seed in seeds]
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        reports = list(pool.map(pyserq.run, programs))
        elapsed = time.perf_counter() - start
    if any(report.arrivals == 0 for report in reports):
        raise SystemExit("pyserq ran a program in which nobody arrived: there is nothing to compare")
    return elapsed


def run_serqjax(prog: sq.ir.Program, seeds: range, coalesce: bool = True) -> tuple[float, sq.Runs]:
    start = time.perf_counter()
    runs = sq.run(prog, seeds=seeds, coalesce=coalesce)
    elapsed = time.perf_counter() - start
    return elapsed, runs.raise_for_verdict(allow_stuck=True)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def compare(
    name: str, span_s: tuple[float, float], batch: int, repeats: int, threads: int, beside_s: float,
    others: bool, clock: CompileClock,
) -> dict[str, Any]:  # fmt: skip
    """One case: seconds per batch, seeds per second of both sides, their ratio within each repeat."""
    with tempfile.TemporaryDirectory() as folder:
        ir14, prog = compile_load(LOADS[name], span_s, Path(folder))
    note(f"{name}: compiling for a batch of {batch}")
    compile_before_s, seed = clock.total_s, 0
    first_s, compiled = None, -1
    while clock.compiled != compiled:
        compiled = clock.compiled
        elapsed, runs = run_serqjax(prog, range(seed, seed + batch))
        first_s = elapsed if first_s is None else first_s
        seed += batch
    trial_s = run_pyserq(ir14, range(1_000_000, 1_000_000 + threads), threads)
    # seeds of pyserq a repeat; each is a whole run
    beside = threads * max(1, min(500, round(beside_s / trial_s)))
    ours, theirs, recompiled = [], [], 0
    while len(ours) < repeats:
        compiled = clock.compiled
        elapsed, runs = run_serqjax(prog, range(seed, seed + batch))
        seed += batch
        if clock.compiled != compiled:
            recompiled += 1
            continue
        ours.append(batch / elapsed)
        start = 1_000_000 + len(ours) * beside
        theirs.append(beside / run_pyserq(ir14, range(start, start + beside), threads))
        note(f"{name}: repeat {len(ours)} of {repeats}: serqjax {ours[-1]:.4g}, pyserq {theirs[-1]:.4g} seeds/s")
    assert runs is not None
    used = memory(runs)
    requests = runs.request_counts["in"] / batch
    ratios = [a / b for a, b in zip(ours, theirs)]
    turns = statistics.mean(raw.extra["turns"] for raw in runs.raws)
    extra: dict[str, Any] = {}
    if others:
        pyserq = statistics.median(theirs)
        extra["batches"] = {str(n): rate(prog, n, clock) / pyserq for n in BATCHES}
        extra["batches"]["64, no windows"] = rate(prog, min(batch, 64), clock, coalesce=False) / pyserq
    return {
        "ratio": statistics.median(ratios),
        "ratio_spread": spread(ratios),
        "ns_per_request": 1e9 / statistics.median(ours) / requests,
        "turns_per_request": turns / requests,
        **extra,
        "horizon_s": span_s[0],
        "warmup_s": span_s[1],
        "settings": LOADS[name].settings,
        "batch": batch,
        "repeats": repeats,
        "repeats_that_compiled": recompiled,
        "pyserq_threads": threads,
        "pyserq_seeds_per_repeat": beside,
        "first_call_s": first_s,
        "compile_s": clock.total_s - compile_before_s,
        "serqjax_seeds_per_s": spread(ours),
        "pyserq_seeds_per_s": spread(theirs),
        "requests_per_seed": requests,
        "memory_bytes_per_instance": used,
        "memory_bytes_1000_live": memory_of(prog, used.get("tape", 0)),
    }


def rate(prog: sq.ir.Program, batch: int, clock: CompileClock, coalesce: bool = True) -> float:
    """Seeds per second of a batch, the best of three that compile nothing."""
    best, seed, left = 0.0, 0, 3
    while left:
        compiled = clock.compiled
        elapsed, _ = run_serqjax(prog, range(seed, seed + batch), coalesce)
        seed += batch
        if clock.compiled == compiled:
            best, left = max(best, batch / elapsed), left - 1
    return best


def memory(runs: sq.Runs) -> dict[str, int]:
    """Bytes of one instance by kind (`state`, `tape`, `buffers`), the largest that any instance needed."""
    kinds: dict[str, int] = {}
    for raw in runs.raws:
        for kind, size in raw.extra.get("memory_bytes", {}).items():
            kinds[kind] = max(kinds.get(kind, 0), int(size))
    return kinds


def memory_of(prog: sq.ir.Program, tape: int) -> dict[str, int]:
    """Bytes of an instance with tables for `LIVE_SESSIONS`; its tape has the size that it had in the runs."""
    from serqjax.engine.layout import BUFFERS
    from serqjax.engine.make_plan import make_plan
    from serqjax.engine.state import Capacities, fields

    slots = 1 << LIVE_SESSIONS.bit_length()
    state = fields(make_plan(prog)[0], Capacities(slots=slots, entries=2 * slots, gaps=3 * slots), prog.tick_s)
    return {
        "slots": slots,
        "state": sum(v.nbytes for k, v in state.items() if k not in BUFFERS),
        "tape": tape,
        "buffers": sum(v.nbytes for k, v in state.items() if k in BUFFERS),
    }


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(cases: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"{'case':<10} {'batch':>6} {'serqjax seeds/s':>16} {'pyserq seeds/s':>15} {'ratio':>7} {'compile s':>10}"
        f" {'turns/request':>14} {'ns/request':>11}  bytes per instance; with 1,000 live sessions"
    ]
    for name, row in cases.items():
        sizes = [
            ", ".join(f"{kind} {row[key][kind]:,}" for kind in ("state", "tape", "buffers"))
            for key in ("memory_bytes_per_instance", "memory_bytes_1000_live")
        ]
        ours, theirs = (row[key]["median"] for key in ("serqjax_seeds_per_s", "pyserq_seeds_per_s"))
        lines.append(
            f"{name:<10} {row['batch']:>6} {ours:>16.4g} {theirs:>15.4g} {row['ratio']:>7.3g} {row['compile_s']:>10.3g}"
            f" {row['turns_per_request']:>14.3g} {row['ns_per_request']:>11.4g}  {'; '.join(sizes)}"
        )
        if "batches" in row:
            lines.append("    ratio at batch " + ", ".join(f"{n}: {r:.3g}" for n, r in row["batches"].items()))
    return "\n".join(lines)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: need 1 or more")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description="Seeds per second of serqjax beside pyserq.")
    parser.add_argument("--quick", action="store_true", help="short horizons: all cases in a few minutes")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--out", type=Path, help="also write the result to this file, as JSON")
    parser.add_argument("--case", action="append", choices=list(LOADS), help="only this one (may be repeated)")
    parser.add_argument("--batch", type=positive, default=256, help="seeds at once in serqjax (default 256)")
    parser.add_argument("--repeats", type=positive, default=5, help="paired repeats (default 5)")
    parser.add_argument("--threads", type=positive, default=2, help="threads of pyserq (default 2)")
    parser.add_argument("--batches", action="store_true", help="also other batch sizes and without windows")
    chosen = parser.parse_args()
    try:
        reference()
    except ImportError:
        note("vs_pyserq.py compares with pyserq, which is not installed: pip install pyserq")
        return 1
    # No `use_compilation_cache()`: the compile time is that of a first run.
    cases: dict[str, dict[str, Any]] = {}
    clock = CompileClock()
    result = ""
    for name, load in LOADS.items():
        if chosen.case and name not in chosen.case:
            continue
        span_s = load.quick if chosen.quick else (load.horizon_s, load.warmup_s)
        beside_s = QUICK_BESIDE_S if chosen.quick else BESIDE_S
        cases[name] = compare(
            name, span_s, chosen.batch, chosen.repeats, chosen.threads, beside_s, chosen.batches, clock
        )
        result = json.dumps({"machine": machine(), "cases": cases}, indent=1)
        if chosen.out:  # what is known so far is kept
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            chosen.out.write_text(result + "\n")
    print(result if chosen.json else table(cases))
    kinds = ("state", "tape")
    large = [n for n, row in cases.items() if sum(row["memory_bytes_1000_live"][k] for k in kinds) >= MEMORY_LIMIT]
    if large:
        note(f"state and tape of {', '.join(large)} exceed {MEMORY_LIMIT:,} bytes with {LIVE_SESSIONS:,} live sessions")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
