"""Seeds per second of serqjax beside pyserq, the reference interpreter, on the same programs.

    python experiments/bench/vs_pyserq.py [--quick] [--json] [--out FILE.json] [--program NAME]... [--batch N]
                                          [--repeats R] [--threads T]

Each repeat runs one batch of seeds in serqjax and then, at once, other seeds of the same program in pyserq in
`--threads` threads (it does not hold the GIL while it runs), so that both meet the same machine. Medians of the
repeats. Compilation is apart: batches are run until one compiles nothing, and a repeat that still compiles (a table ran
full for the first time) is counted there and run again. Full statistics on both sides. Result on stdout, progress on
stderr. Needs pyserq.

Also printed: the memory of an instance as it ran, and the state of one with room for 1,000 live sessions, which with
its tape must be below 2 MiB (exit 1 if not; the output buffers, drained between calls of the loop, are apart).

Without `--quick`: mm1 and the four vLLM loads at their whole horizon. With it: mm1 and `low`, shorter, a few minutes
(`--program` adds the others).
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


@dataclasses.dataclass(frozen=True)
class Load:
    """A program in serQ text with its numbers; `quick`: horizon and warm-up with `--quick`, None: left out."""

    deployment: str
    workload: str
    settings: dict[str, float]
    horizon_s: float
    warmup_s: float
    quick: tuple[float, float] | None = None


def vllm(max_seqs: int, blocks: int, lam: float, quick: tuple[float, float] | None = None) -> Load:
    settings = {"max_seqs": float(max_seqs), "blocks": float(blocks), "lam": lam}
    return Load(VLLM_DEPLOYMENT, VLLM_WORKLOAD, settings, 3000.0, 300.0, quick)


LOADS = {
    "mm1": Load(MM1_DEPLOYMENT, MM1_WORKLOAD, {"lam": 0.7}, 20_000.0, 1_000.0, (2_000.0, 100.0)),
    "low": vllm(64, 8_010, 0.05, (300.0, 30.0)),
    "medium": vllm(256, 80_100, 0.1),
    "busy": vllm(256, 80_100, 0.2),
    "collapsed": vllm(64, 8_010, 0.3),
}


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
    path.write_text(text)
    return json.loads(text), sq.read(path)


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


def run_serqjax(prog: sq.ir.Program, seeds: range) -> tuple[float, sq.Runs]:
    start = time.perf_counter()
    runs = sq.run(prog, seeds=seeds)
    elapsed = time.perf_counter() - start
    return elapsed, runs.raise_for_verdict(allow_stuck=True)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def compare(
    name: str, span_s: tuple[float, float], batch: int, repeats: int, threads: int, clock: CompileClock
) -> dict[str, Any]:
    """One row: seconds per batch, seeds per second of both sides, their ratio within each repeat."""
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
    beside = threads * max(1, min(500, round(BESIDE_S / trial_s)))
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
    return {
        "program": name,
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
        "ratio": spread([a / b for a, b in zip(ours, theirs)]),
        "requests_per_seed": runs.request_counts["in"] / batch,
        "memory_bytes_per_instance": used,
        "memory_bytes_1000_live": memory_of(prog, used.get("tape", 0)),
    }


def memory(runs: sq.Runs) -> dict[str, int]:
    """Bytes of one instance by kind (`state`, `tape`, `buffers`), the largest that any instance needed."""
    kinds: dict[str, int] = {}
    for raw in runs.raws:
        for kind, size in raw.extra.get("memory_bytes", {}).items():
            kinds[kind] = max(kinds.get(kind, 0), int(size))
    return kinds


def memory_of(prog: sq.ir.Program, tape: int) -> dict[str, int]:
    """Bytes of an instance with tables for `LIVE_SESSIONS`; its tape has the size that it had in the runs."""
    from serqjax.engine.lane import Capacities, fields
    from serqjax.engine.plan import make_plan
    from serqjax.engine.result import Drained

    slots = 1 << LIVE_SESSIONS.bit_length()
    state = fields(make_plan(prog)[0], Capacities(slots=slots, entries=2 * slots, gaps=3 * slots), prog.tick_s)
    return {
        "slots": slots,
        "state": sum(v.nbytes for k, v in state.items() if k not in Drained.NAMES),
        "tape": tape,
        "buffers": sum(v.nbytes for k, v in state.items() if k in Drained.NAMES),
    }


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'program':<10} {'batch':>6} {'serqjax seeds/s':>16} {'pyserq seeds/s':>15} {'ratio':>7} {'compile s':>10}"
        "  bytes per instance; with 1,000 live sessions"
    ]
    for row in rows:
        sizes = [
            ", ".join(f"{kind} {row[key][kind]:,}" for kind in ("state", "tape", "buffers"))
            for key in ("memory_bytes_per_instance", "memory_bytes_1000_live")
        ]
        ours, theirs, ratio = (row[key]["median"] for key in ("serqjax_seeds_per_s", "pyserq_seeds_per_s", "ratio"))
        lines.append(
            f"{row['program']:<10} {row['batch']:>6} {ours:>16.4g} {theirs:>15.4g} {ratio:>7.3g} "
            f"{row['compile_s']:>10.3g}  {'; '.join(sizes)}"
        )
    return "\n".join(lines)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: need 1 or more")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description="Seeds per second of serqjax beside pyserq.")
    parser.add_argument("--quick", action="store_true", help="mm1 and low with short horizons, batch 64, 3 repeats")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--out", type=Path, help="also write the result to this file, as JSON")
    parser.add_argument("--program", action="append", choices=list(LOADS), help="only this one (may be repeated)")
    parser.add_argument("--batch", type=positive, help="seeds at once in serqjax (default 256; 64 with --quick)")
    parser.add_argument("--repeats", type=positive, help="paired repeats (default 10; 3 with --quick)")
    parser.add_argument("--threads", type=positive, default=2, help="threads of pyserq (default 2)")
    chosen = parser.parse_args()
    try:
        reference()
    except ImportError:
        note("vs_pyserq.py compares with pyserq, which is not installed: pip install pyserq")
        return 1
    # No `use_compilation_cache()`: the compile time is that of a first run.
    batch, repeats = chosen.batch or (64 if chosen.quick else 256), chosen.repeats or (3 if chosen.quick else 10)
    rows: list[dict[str, Any]] = []
    clock = CompileClock()
    for name, load in LOADS.items():
        if chosen.program and name not in chosen.program:
            continue
        span_s = (load.horizon_s, load.warmup_s)
        if chosen.quick:
            if load.quick is None and not chosen.program:
                continue
            span_s = load.quick or (300.0, 30.0)
        rows.append(compare(name, span_s, batch, repeats, chosen.threads, clock))
        result = json.dumps({"machine": machine(), "programs": rows}, indent=1)
        if chosen.out:  # what is known so far is kept
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            chosen.out.write_text(result + "\n")
    print(result if chosen.json else table(rows))
    kinds = ("state", "tape")
    large = [r["program"] for r in rows if sum(r["memory_bytes_1000_live"][k] for k in kinds) >= MEMORY_LIMIT]
    if large:
        note(f"state and tape of {', '.join(large)} exceed {MEMORY_LIMIT:,} bytes with {LIVE_SESSIONS:,} live sessions")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
