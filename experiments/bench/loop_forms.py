"""Which form of the engine's loop is fast on a CPU, what the fences bring, and what each costs to compile.

    python experiments/bench/loop_forms.py [--form FORM]... [--program NAME]... [--out FILE.json] [--limit SECONDS]

Forms, each in a process of its own because the XLA option can be set only once:

- `native`: one instance after the other in machine code of our own (what the engine does);
- `scalar`: one instance after the other, each in its own loop compiled by XLA, its small-while option on;
- `scalar_no_fence`: the same, without `Lane.fence`;
- `scalar_no_option`: the same with fences, in a process where JAX was used before, so without the option;
- `together`: all instances take each turn together (`Config(form="together")`, the form for accelerators), option on;
- `together_no_option`: the same without the option.

All forms run the same seeds of the same program and give the same results (the script compares them). `compile_s` sums
what JAX spent tracing, lowering and compiling; `first_s` is the first call, which does all of it; then the minimum and
the median of `--repeats` further calls (fewer of a slow form). `us_per_turn` is the time inside the compiled loop, of
one core, per instance and turn; the rest of a call is the host's: tapes, drained buffers, results. The programs are
those of the reference's test material (`SERQJAX_SHARED`, default ../shared), with shorter horizons. A form that is not
done within `--limit` seconds is recorded as such.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FORMS = ("native", "scalar", "scalar_no_fence", "scalar_no_option", "together", "together_no_option")
#: Horizon and warm-up in seconds, and instances at once.
PROGRAMS = {"mm1": (2_000.0, 200.0, 16), "vllm_single": (60.0, 6.0, 16)}
#: Seconds of timed calls after which no further one is begun.
ENOUGH_S = 25.0


def measure(form: str, name: str, repeats: int) -> dict[str, Any]:
    """One form on one program, in this process."""
    import jax
    import msgspec

    from experiments.bench.machine import CompileClock

    if form.endswith("no_option"):
        jax.block_until_ready(jax.numpy.zeros(3) + 1)  # XLA reads its flags here, before the engine can set any
    import warnings

    import serqjax as sq
    from serqjax.engine import host
    from serqjax.engine.lane import Lane
    from serqjax.engine.make_plan import make_plan
    from serqjax.engine.step import Config, Form
    from serqjax.engine.xla import prepare
    from serqjax.ir.expr import Num
    from serqjax.progress import NoProgress

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the option is not set is the point
        prepare()
    if form == "scalar_no_fence":
        setattr(Lane, "fence", lambda self, *values: tuple(jax.numpy.asarray(v) for v in values))
    horizon_s, warmup_s, batch = PROGRAMS[name]
    prog = msgspec.structs.replace(sq.read(program_path(name)), horizon_s=Num(horizon_s), warmup_s=Num(warmup_s))
    turns: list[tuple[int, float]] = []
    kinds: dict[str, Form] = {"native": "native", "together": "together", "scalar": "one_by_one"}
    config = Config(form=kinds[form.split("_")[0]])
    made = {id(prog): make_plan(prog)}
    clock = CompileClock()

    def run(first_seed: int) -> tuple[float, list[Any]]:
        start = time.perf_counter()
        with host.settings():
            seeds = list(range(first_seed, first_seed + batch))
            units = host.Batch.build(made[id(prog)][0], made, [prog] * batch, seeds, config, False, False)
            units.make_loop = counted(host.loop, turns)
            capacities = dataclasses.replace(units.auto(), slots=128, entries=256)  # enough: nothing recompiles
            raws = units.run(capacities, host.SharedProgress(NoProgress(), batch))
        return time.perf_counter() - start, raws

    first_s, raws = run(0)
    compile_s, compiled = clock.total_s, clock.compiled
    turns.clear()
    calls: list[float] = []
    while not calls or (len(calls) < repeats and sum(calls) < ENOUGH_S):
        calls.append(run(0)[0])
    assert clock.compiled == compiled, "something was compiled again"
    # finished instances of a batch that goes on together are counted as turning
    done = sum(count for count, _ in turns) / len(calls) * (batch if config.together else 1)
    loop_s = sum(seconds for _, seconds in turns) / len(calls)
    return {
        "form": form,
        "program": name,
        "horizon_s": horizon_s,
        "batch": batch,
        "repeats": len(calls),
        "compile_s": compile_s,
        "first_s": first_s,
        "min_s": min(calls),
        "median_s": statistics.median(calls),
        "seeds_per_s": batch / min(calls),
        "turns": done,
        "loop_thread_s": loop_s,
        "us_per_turn": loop_s / done * 1e6,
        "digest": digest(raws),
    }


def counted(loop: Any, turns: list[tuple[int, float]]) -> Any:
    """`loop`, adding the turns and seconds of each call of what it compiles to `turns` (each core makes its own)."""

    def made(plan: Any, config: Any) -> Any:
        run = loop(plan, config)

        def call(*args: Any) -> Any:
            start = time.perf_counter()
            state, done = run(*args)
            turns.append((int(done), time.perf_counter() - start))  # the count waits for the result
            return state, done

        return call

    return made


def digest(raws: list[Any]) -> str:
    """Of the samples and the end of every instance: equal results have equal digests."""
    text = hashlib.sha256()
    for raw in raws:
        text.update(repr((raw.seed, raw.end_tick, str(raw.verdict), raw.arrivals)).encode())
        text.update(raw.samples_value.tobytes())
    return text.hexdigest()[:16]


def program_path(name: str) -> Path:
    return Path(os.environ.get("SERQJAX_SHARED", ROOT.parent / "shared")) / "programs" / name / "program.ir14.json"


def apart(form: str, name: str, repeats: int, limit_s: float) -> dict[str, Any]:
    """`measure` in a new process."""
    command = [sys.executable, __file__, "--here", "--form", form, "--program", name, "--repeats", str(repeats)]
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
    row = {"form": form, "program": name}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        return row | {"failed": f"not done within {limit_s:g} s, compilation included"}
    if done.returncode:
        return row | {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'program':<12} {'form':<19} {'compile s':>9} {'min s':>8} {'median s':>8} {'seeds/s':>8} {'us/turn':>8}"
    ]
    for row in rows:
        head = f"{row['program']:<12} {row['form']:<19}"
        if "failed" in row:
            lines.append(f"{head} {row['failed']}")
            continue
        lines.append(
            f"{head} {row['compile_s']:>9.3g} {row['min_s']:>8.3g} {row['median_s']:>8.3g} {row['seeds_per_s']:>8.4g} "
            f"{row['us_per_turn']:>8.3g}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Forms of the engine's loop, with and without fences.")
    parser.add_argument("--form", action="append", choices=FORMS, help="only this one (may be repeated)")
    parser.add_argument("--program", action="append", choices=list(PROGRAMS), help="only this one (may be repeated)")
    parser.add_argument("--repeats", type=int, default=10, help="timed calls after the first (default 10)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one form on one program (default 300)")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    forms, names = chosen.form or FORMS, chosen.program or list(PROGRAMS)
    if chosen.here:
        print(json.dumps(measure(forms[0], names[0], chosen.repeats)))
        return 0
    missing = [str(program_path(name)) for name in names if not program_path(name).exists()]
    if missing:
        print(f"not found: {', '.join(missing)}; set SERQJAX_SHARED to the reference's folder", file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    differ = False
    for name in names:
        for form in forms:
            rows.append(apart(form, name, chosen.repeats, chosen.limit))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
            if chosen.out:  # what is known so far is kept
                from experiments.bench.machine import machine

                chosen.out.parent.mkdir(parents=True, exist_ok=True)
                chosen.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
        digests = {row["digest"] for row in rows if row["program"] == name and "digest" in row}
        if len(digests) > 1:
            print(f"{name}: the forms give different results (see `digest`)", file=sys.stderr)
            differ = True
    print(table(rows))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
