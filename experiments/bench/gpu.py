"""What a GPU brings: the XLA loop and the Pallas kernels, checked against the CPU and timed.

    python experiments/bench/gpu.py [--batches 256,4096,16384,65536] [--budget 240] [--out FILE.json]
    python experiments/bench/gpu.py --interpret

With a GPU: first the kernels run on it under `SEEDS` seeds and are compared with the engine on the CPU, then the kernel
(`kernels/simulation.py`) and the XLA loop (`Config(form="together")`) are timed on equal batches, `--budget` seconds of
wall time altogether; what no longer fits is named. `ms_per_seed` is the best of three calls that run every instance
from its start to its horizon, tables on the device, without the host's part (draining, results). Compile time apart.

On a GPU the logarithm may differ from libm's in the last bit, so a time may differ by a tick; anything more is a
failure (exit 1). Without a GPU the script says so and exits 2; `--interpret` runs the comparison alone, exactly, in
Pallas' interpreter on the CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from serqjax.ir import program as p  # noqa: E402
from serqjax.ir.expr import Attr, Binary, Ctx, Inf, Num, Sample  # noqa: E402

SEEDS = 64
#: Rows of the output buffers; enough for the horizons below, so that a run is one call.
ROWS = 512
TICKS_APART = 1000


def mm1(horizon_s: float) -> p.Program:
    """An M/M/1 at load 0.7."""
    return p.Program(
        name="mm1",
        attrs=(p.Attribute(name="t0"),),
        stages=(p.Stage(name="server", kind=p.Fifo(Num(1.0))),),
        states=(
            p.State(
                name="ask",
                ops=(p.Turn(), p.Set("t0", Ctx("Now"))),
                exit=p.Run("server", "Plain", Sample("Exp", (Num(1.0),)), "over"),
            ),
            p.State(name="over", ops=(p.Observe("response", _since("t0")), p.Respond()), exit=p.End()),
        ),
        start="ask",
        observes=("response",),
        arrival=p.Poisson(Num(0.7)),
        horizon_s=Num(horizon_s),
        warmup_s=Num(horizon_s / 10),
    )


def fifo_hold(horizon_s: float) -> p.Program:
    """Sessions hold one or two units of a finite pool while they are served by one of two servers."""
    return p.Program(
        name="fifo hold",
        attrs=(p.Attribute(name="t0"), p.Attribute(name="need")),
        pools=(p.Pool(name="mem", cap=Num(3.0)),),
        stages=(p.Stage(name="disk", kind=p.Fifo(Num(2.0))),),
        scopes=(p.Scope(name="held", takes=(p.Take(pool="mem", units=Attr("need")),), reentry="run"),),
        states=(
            p.State(
                name="ask",
                ops=(
                    p.Turn(),
                    p.Set("t0", Ctx("Now")),
                    p.Set("need", Binary("Add", Num(1.0), Sample("Bernoulli", (Num(0.4),)))),
                ),
                exit=p.Enter("held"),
            ),
            p.State(
                name="run",
                scope="held",
                ops=(p.Observe("wait", _since("t0")),),
                exit=p.Run("disk", "Plain", Sample("Exp", (Num(0.5),)), "leave"),
            ),
            p.State(name="leave", scope="held", exit=p.Leave("over")),
            p.State(name="over", ops=(p.Observe("response", _since("t0")), p.Respond()), exit=p.End()),
        ),
        start="ask",
        observes=("wait", "response"),
        arrival=p.Poisson(Num(2.0)),
        horizon_s=Num(horizon_s),
        warmup_s=Num(horizon_s / 10),
    )


def three_of_each(horizon_s: float) -> p.Program:
    """Three pools (one of blocks, one of requests, one without a cap) and three stages: sizes that are no powers of
    two."""
    return p.Program(
        name="three of each",
        attrs=(p.Attribute(name="t0"), p.Attribute(name="size")),
        pools=(
            p.Pool(name="requests", cap=Num(4.0)),
            p.Pool(name="mem", cap=Num(24.0), block=Num(4.0)),
            p.Pool(name="log", cap=Inf()),
        ),
        stages=(
            p.Stage(name="disk", kind=p.Fifo(Num(2.0))),
            p.Stage(name="user", kind=p.Delay()),
            p.Stage(name="net", kind=p.Fifo(Num(1.0))),
        ),
        scopes=(
            p.Scope(
                name="held",
                takes=(
                    p.Take(pool="requests", units=Num(1.0)),
                    p.Take(pool="mem", units=Attr("size")),
                    p.Take(pool="log", units=Num(1.5)),
                ),
                reentry="run",
            ),
        ),
        states=(
            p.State(
                name="ask",
                ops=(p.Turn(), p.Set("t0", Ctx("Now")), p.Set("size", Sample("Uniform", (Num(1.0), Num(9.0))))),
                exit=p.Enter("held"),
            ),
            p.State(name="run", scope="held", exit=p.Run("disk", "Plain", Sample("Exp", (Num(0.5),)), "send")),
            p.State(name="send", scope="held", exit=p.Run("net", "Plain", Num(0.2), "leave")),
            p.State(name="leave", scope="held", exit=p.Leave("read")),
            p.State(
                name="read",
                ops=(p.Observe("response", _since("t0")), p.Respond()),
                exit=p.Run("user", "Plain", Sample("Exp", (Num(1.0),)), "over"),
            ),
            p.State(name="over", exit=p.End()),
        ),
        start="ask",
        observes=("response",),
        arrival=p.Poisson(Num(2.0)),
        horizon_s=Num(horizon_s),
        warmup_s=Num(horizon_s / 10),
    )


def _since(name: str) -> Binary:
    return Binary("Sub", Ctx("Now"), Attr(name))


# ---------------------------------------------------------------- equal to the CPU


def difference(a: Any, b: Any, ticks_apart: int = 0) -> str | None:
    """Where two raw runs part: everything exactly, or with times `ticks_apart` ticks apart and sums accordingly."""
    for field in dataclasses.fields(a):
        if field.name == "extra":
            continue
        x, y = getattr(a, field.name), getattr(b, field.name)
        if not ticks_apart:
            same = np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y
        elif isinstance(x, np.ndarray):
            slack = ticks_apart * a.tick_s if field.name == "samples_value" else ticks_apart
            same = x.shape == y.shape and bool(np.all(np.abs(x - y) <= slack))
        elif isinstance(x, list):
            pairs = [(dataclasses.asdict(row), dataclasses.asdict(other)) for row, other in zip(x, y)]
            same = all(_near(row[name], other[name]) for row, other in pairs for name in row)
        else:
            same = _near(x, y)
        if not same:
            return f"seed {a.seed}: {field.name}: {x} and {y}"[:300]
    return None


def _near(x: Any, y: Any) -> bool:
    if isinstance(x, (int, float)) and isinstance(y, (int, float)):
        return abs(x - y) <= 1e-6 * abs(x) + TICKS_APART
    return x == y


def on_cpu(program: p.Program, seeds: list[int]) -> list[Any]:
    """The engine's runs on the CPU, in its scalar form, whatever the default device is."""
    import jax

    from serqjax.engine import host
    from serqjax.engine.make_plan import make_plan
    from serqjax.engine.step import Config
    from serqjax.progress import NoProgress

    host.prepare()
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    try:
        with host.settings():
            made = {id(program): make_plan(program)}
            plan = made[id(program)][0]
            batch = host.Batch.build(plan, made, [program] * len(seeds), seeds, Config(), False, False)
            return batch.run(None, host.SharedProgress(NoProgress(), len(seeds)))
    finally:
        jax.config.update("jax_default_device", None)


def check(horizon_s: float, seeds: list[int], interpret: bool) -> list[dict[str, Any]]:
    """Each program on the CPU and as a kernel: how many seeds are equal, and the first that is not."""
    from kernels.simulation import simulate

    rows = []
    for make in (mm1, fifo_hold, three_of_each):
        program = make(horizon_s)
        expected, found = on_cpu(program, seeds), simulate(program, seeds, interpret=interpret)
        exact = [difference(a, b) for a, b in zip(expected, found)]
        near = [difference(a, b, 0 if interpret else TICKS_APART) for a, b in zip(expected, found)]
        row = {
            "program": program.name, "seeds": len(seeds), "samples": sum(len(a.samples_value) for a in expected),
            "equal": sum(d is None for d in exact), "near": sum(d is None for d in near),
            "first_difference": next((d for d in near if d), None) or next((d for d in exact if d), None),
        }  # fmt: skip
        print(
            f"{row['program']}: {row['equal']} of {row['seeds']} seeds equal to the CPU, {row['near']} within rounding "
            f"({row['samples']} samples)" + (f"; {row['first_difference']}" if row["first_difference"] else "")
        )
        rows.append(row)
    return rows


# ---------------------------------------------------------------- time


def timed(program: p.Program, batch: int, kernel: bool, deadline: float) -> dict[str, Any]:
    """Milliseconds a seed of one loop on one batch, from the start to the horizon."""
    import jax

    from kernels.simulation import kernel_loop
    from serqjax.engine import host, lane, state
    from serqjax.engine.layout import Packed
    from serqjax.engine.loop import loop
    from serqjax.engine.make_plan import make_plan
    from serqjax.engine.step import Config

    with host.settings():
        plan, numbers, integers = make_plan(program)
        cap = state.Capacities(samples=ROWS, requests=ROWS, phases=0)
        layout, first, memory = host.beginning(plan, cap)
        horizon, warmup, limit = host.run_bounds(program)
        same: dict[str, Any] = {
            "numbers": np.asarray(numbers, np.float64), "integers": np.asarray(integers, np.int64),
            "horizon": np.int64(horizon), "warmup": np.int64(warmup), "limit": np.int64(limit),
            "which": np.int32(0), "stop": np.bool_(False),
        }  # fmt: skip
        columns: dict[str, Any] = {name: np.repeat(np.asarray(x)[None], batch, axis=0) for name, x in same.items()}
        columns["seed"] = np.arange(1, batch + 1, dtype=np.uint64)
        job = jax.device_put(lane.Job(**columns))
        replayed: dict[str, Any] = {"base": np.zeros(batch, np.int64), "script": np.zeros((batch, 1), np.int32)}
        tape = jax.device_put(lane.Tape(**replayed))
        data = jax.device_put(host.session_data([program]))
        rows = jax.device_put({dtype: np.repeat(row[None], batch, axis=0) for dtype, row in first.items()})
        state = Packed(rows, layout)
        config = Config(form="together")
        made = kernel_loop(plan, config) if kernel else loop(plan, config)
        arguments = (state, job, data, tape, np.int64(1 << 40))
        begun = time.perf_counter()
        run = made.lower(*arguments).compile()
        compile_s = time.perf_counter() - begun
        best, repeats = float("inf"), 0
        while repeats < 3 and (not repeats or time.perf_counter() + best < deadline):
            begun = time.perf_counter()
            (after, _), turns = jax.block_until_ready(run(*arguments))
            best, repeats = min(best, time.perf_counter() - begun), repeats + 1
        left = int((layout.view({d: np.asarray(x) for d, x in after.rows.items()}, "verdict") < 0).sum())
    return {
        "program": program.name, "form": "kernel" if kernel else "xla", "batch": batch, "compile_s": compile_s,
        "run_s": best, "ms_per_seed": best / batch * 1e3, "repeats": repeats, "turns": int(turns), "unfinished": left,
        "state_bytes_per_seed": sum(memory.values()),
    }  # fmt: skip


def time_all(batches: list[int], horizon_s: float, deadline: float) -> tuple[list[dict[str, Any]], list[str]]:
    """All figures that fit before `deadline`: kernels first, then the XLA loop, large batches last."""
    rows, left_out, slowest = [], [], {True: 0.0, False: 0.0}
    for kernel in (True, False):
        for make in (mm1, fifo_hold):
            for batch in batches:
                name = f"{'kernel' if kernel else 'xla'} {make.__name__} {batch}"
                if time.perf_counter() + 1.5 * slowest[kernel] > deadline:
                    left_out.append(name)
                    continue
                begun = time.perf_counter()
                try:
                    row = timed(make(horizon_s), batch, kernel, deadline)
                except Exception as error:  # out of memory at a large batch ends this figure, not the script
                    print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
                    left_out.append(name)
                    continue
                slowest[kernel] = max(slowest[kernel], time.perf_counter() - begun)
                rows.append(row)
                print(
                    f"{name}: {row['ms_per_seed']:.5f} ms/seed, {row['run_s']:.3f} s a run, compile "
                    f"{row['compile_s']:.1f} s" + (f", {row['unfinished']} NOT FINISHED" if row["unfinished"] else "")
                )
    return rows, left_out


def main() -> int:
    parser = argparse.ArgumentParser(description="kernels and the XLA loop on a GPU, checked against the CPU and timed")
    parser.add_argument("--interpret", action="store_true", help="only the comparison, interpreted on the CPU")
    parser.add_argument("--batches", default="256,4096,16384,65536", help="seeds at once (default: %(default)s)")
    parser.add_argument("--horizon", type=float, default=200.0, help="of timed runs, seconds (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=240.0, help="wall time, seconds (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args()
    deadline = time.perf_counter() + given.budget

    import jax

    if given.interpret:
        rows = check(60.0, [1, 2, 3], True)
        return 0 if all(row["equal"] == row["seeds"] for row in rows) else 1
    if jax.default_backend() != "gpu":
        print("no GPU here: nothing measured (--interpret compares the kernels with the engine on the CPU)")
        return 2
    found: dict[str, Any] = {"device": str(jax.devices()[0].device_kind)}
    found["check"] = check(200.0, list(range(SEEDS)), False)
    batches = [int(x) for x in given.batches.split(",")]
    found["times"], found["left_out"] = time_all(batches, given.horizon, deadline)
    if found["left_out"]:
        print("left out for time or memory: " + ", ".join(found["left_out"]))
    if given.out is not None:
        from experiments.bench.machine import machine

        given.out.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    return 0 if all(row["near"] == row["seeds"] for row in found["check"]) else 1


if __name__ == "__main__":
    sys.exit(main())
