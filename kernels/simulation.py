"""A whole simulation as one Pallas kernel: an instance is a program of the grid, and the loop runs inside it.

The phases are those of the engine (`serqjax/engine/step.py`), traced once more over `RefTable`s. The arrays of an
instance stay in memory, its scalars are carried by the loop in registers.

**Source:** `design.md`, section 4; `measurements.md`, "GPU, on paper only".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array

from serqjax.engine.access import CHAIN, OneByOne
from serqjax.engine.lane import Data, Job, Tape
from serqjax.engine.layout import Packed
from serqjax.engine.loop import running
from serqjax.engine.plan import Plan
from serqjax.engine.step import Config, turn

from .tables import Places, RefTable

#: Columns of a job that are vectors; the others are scalars.
VECTORS = ("numbers", "integers")
SCALARS = ("horizon", "warmup", "limit", "which", "seed", "stop")


def unsupported(plan: Plan) -> list[str]:
    """Why a program cannot run as a kernel, one sentence each; empty if it can."""
    found = []
    if plan.step_stages:
        found.append("a step stage: its plan sorts and searches vectors, which Triton does not lower")
    if plan.groups:
        found.append("a stage whose jobs share it: finding who finishes next needs 64-bit argmin, as above")
    if plan.has_latency:
        found.append("a latency: it is passed by the phases of sharing stages")
    if plan.has_cache:
        found.append("a pool that caches: finding a free entry needs 64-bit argmax, which Triton does not lower")
    if plan.by_content:
        found.append("a pool whose blocks are shared by content: it searches and scatters vectors")
    if plan.has_growth:
        found.append("a pool that grows: its column is read from a constant array, which a kernel cannot hold")
    if plan.listed or plan.skeleton.trace is not None:
        found.append("listed sessions or a trace: session data is not handed to kernels")
    if plan.deadlines:
        found.append("a deadline: finding the next one needs 64-bit argmax, which Triton does not lower")
    if plan.gauges or plan.claims:
        found.append("a gauge or a claim: what they read is not handed out of kernels")
    if max(len(plan.states), len(plan.scopes)) > CHAIN:
        found.append(f"more than {CHAIN} states or scopes: constant tables are chains of selects")
    return found


def kernel_loop(
    plan: Plan, config: Config, *, interpret: bool = False, warps: int = 1, barriers: bool = False
) -> Callable[..., Any]:
    """The engine's compiled loop (`serqjax.engine.loop.loop`) as a kernel.

    **Arguments:**
    - `plan`, `config`: as there; `config.check` is possible, an action trace is not.
    - `interpret`: run in Pallas' interpreter on any backend (slow, for tests).
    - `warps`, `barriers`: of one instance. With one warp all threads are at the same instruction, so that each sees
      what another has stored; with more, `barriers` must be on.

    **Returns:** `(state, job, data, tape, turns) -> ((state, buffers), turns done)`, jitted, for a batch on the first
    axis.

    **Raises:** `ValueError` for a program that has no kernel, with the reasons.
    """
    reasons = unsupported(plan)
    if reasons:
        raise ValueError("this program has no kernel: " + "; ".join(reasons))
    if warps > 1 and not barriers:
        raise ValueError(f"warps: {warps} threads of several warps share the tables of an instance, so set barriers")
    return _kernel_loop(plan, config, interpret, warps, barriers and not interpret)


@functools.lru_cache(maxsize=64)
def _kernel_loop(plan: Plan, config: Config, interpret: bool, warps: int, barriers: bool) -> Callable[..., Any]:
    def run(state: Packed, job: Job, data: Data, tape: Tape, turns: Array) -> tuple[Any, Array]:
        del data
        layout = state.layout
        places = Places.of(layout)
        batch = tape.base.shape[0]
        first = jax.vmap(lambda rows: places.rows(layout.unpack(rows)))(state.rows)
        columns = _job_columns(job, tape)
        names, dtypes = list(columns), [dtype for dtype, _ in places.sizes]
        buffers = [(name, dtype, shape) for name, dtype, shape in layout.buffers if name in USED]
        outputs = [jax.ShapeDtypeStruct((batch, n), dtype) for dtype, n in places.sizes]
        outputs += [jax.ShapeDtypeStruct((batch, shape[0] * shape[1]), dtype) for _, dtype, shape in buffers]
        outputs.append(jax.ShapeDtypeStruct((batch, 1), jnp.int64))

        def kernel(*refs: Any) -> None:
            inputs, results = refs[: len(dtypes) + len(names) + 1], refs[len(dtypes) + len(names) + 1 :]
            memory = dict(zip(dtypes, results))
            given = dict(zip(names, inputs[len(dtypes) :]))
            limit = inputs[-1][0]
            tables: dict[str, Any] = {
                name: RefTable(memory[dtype], start, shape, dtype, barriers)
                for name, dtype, start, shape in places.where
                if shape
            }
            for (name, dtype, shape), ref in zip(buffers, results[len(dtypes) :]):
                tables[name] = RefTable(ref, 0, shape, dtype, barriers)
            loads = [(name, memory[dtype], start) for name, dtype, start, shape in places.where if not shape]
            scalars = {name: ref[start] for name, ref, start in loads}
            values: dict[str, Any] = {name: given[name][0] for name in SCALARS}
            for name in VECTORS:
                values[name] = RefTable(given[name], 0, given[name].shape, given[name].dtype)
            one = Job(**values)
            script = given["script"]
            columns: dict[str, Any] = {
                "base": given["base"][0], "script": RefTable(script, 0, script.shape, script.dtype),
            }  # fmt: skip
            replay = Tape(**columns)

            def body(carry: tuple[dict[str, Array], Array]) -> tuple[dict[str, Array], Array]:
                s, k = carry
                after = turn(plan, config, s | tables, one, None, replay, None, OneByOne())  # type: ignore[arg-type]
                return {name: after[name] for name in s}, k + 1

            s, done = lax.while_loop(lambda c: running(c[0]) & (c[1] < limit), body, (scalars, jnp.int64(0)))
            for name, ref, start in loads:
                ref[start] = s[name]
            results[-1][0] = done

        operands = [first[dtype] for dtype in dtypes] + [columns[name] for name in names]
        results = pl.pallas_call(
            kernel,
            grid=(batch,),
            in_specs=[_row(x.shape[1]) for x in operands] + [pl.BlockSpec((1,), lambda i: (jnp.int32(0),))],
            out_specs=[_row(x.shape[1]) for x in outputs],
            out_shape=outputs,
            input_output_aliases={i: i for i in range(len(dtypes))},
            interpret=interpret,
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=1),
        )(*operands, jnp.asarray(turns, jnp.int64).reshape(1))
        last = jax.vmap(places.state)(dict(zip(dtypes, results)))
        for (name, _, shape), buffer in zip(buffers, results[len(dtypes) :]):
            last[name] = buffer.reshape(batch, *shape)
        for name, dtype, shape in layout.buffers:
            if name not in USED:
                last[name] = jnp.zeros((batch, *shape), dtype)
        rows, filled = jax.vmap(layout.pack)(last)
        return (Packed(rows, layout), filled), jnp.sum(results[-1])

    return jax.jit(run)


#: Output buffers that a kernel writes.
USED = ("samples", "requests")


def _row(n: int) -> pl.BlockSpec:
    """One instance's row of an array `[batch, n]`."""
    return pl.BlockSpec((None, n), lambda i: (i, jnp.int32(0)))


def _job_columns(job: Job, tape: Tape) -> dict[str, Array]:
    """What the instances are given, each `[batch, n]` with n at least 1."""
    found: dict[str, Array] = {name: jnp.asarray(getattr(job, name))[:, None] for name in SCALARS}
    for name in VECTORS:
        column = jnp.asarray(getattr(job, name))
        found[name] = jnp.pad(column, ((0, 0), (0, max(0, 1 - column.shape[1]))))
    return found | {"base": tape.base[:, None], "script": tape.script}


def simulate(
    program: Any,
    seeds: Sequence[int],
    *,
    interpret: bool = False,
    warps: int = 1,
    barriers: bool = False,
    capacities: Any = None,
) -> list[Any]:
    """Run one program under several seeds, an instance a kernel program.

    **Arguments:** `program`, `seeds`, `capacities`: as for `serqjax.engine.simulate`; the others as for `kernel_loop`.

    **Returns:** one `RawRun` per seed, the same as the engine's (on a GPU, whose logarithm is not libm's, times may
    differ by a tick).

    **Raises:** `ValueError` for a program that has no kernel; `ProgramError` for one that the engine cannot run.
    """
    from serqjax.check.fragment import unsupported as outside
    from serqjax.engine.host import Batch, SharedProgress, prepare, settings
    from serqjax.engine.make_plan import make_plan
    from serqjax.errors import ProgramError
    from serqjax.progress import NoProgress

    problems = outside(program)
    if problems:
        raise ProgramError(problems)
    plan, numbers, integers = make_plan(program)
    prepare()
    with settings():
        config = Config(form="together")
        made = {id(program): (plan, numbers, integers)}
        seeds = list(seeds)
        batch = Batch.build(plan, made, [program] * len(seeds), seeds, config, False, False, False)
        batch.make_loop = functools.partial(kernel_loop, interpret=interpret, warps=warps, barriers=barriers)
        return batch.run(capacities, SharedProgress(NoProgress(), len(seeds)))


def lower(program: Any, batch: int, platform: str = "cuda", **options: Any) -> Any:
    """The kernel of a program, lowered for a platform that need not be here (`jax.stages.Lowered`).

    **Arguments:** `program`: a checked program. `batch`: instances. `options`: of `kernel_loop`.

    **Raises:** as `kernel_loop`, and what Pallas raises for an operation that it cannot lower.
    """
    from serqjax.engine.host import beginning, prepare, settings
    from serqjax.engine.make_plan import make_plan
    from serqjax.engine.state import Capacities

    prepare()
    plan, numbers, integers = make_plan(program)
    layout, row, _ = beginning(plan, Capacities(phases=0))
    made = kernel_loop(plan, Config(form="together"), **options)

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((batch, *shape), dtype)

    with settings():
        state = Packed({dtype: array(dtype, len(x)) for dtype, x in row.items()}, layout)
        job = Job(
            numbers=array("float64", len(numbers)), integers=array("int64", len(integers)), horizon=array("int64"),
            warmup=array("int64"), limit=array("int64"), which=array("int32"), seed=array("uint64"), stop=array("bool"),
        )  # fmt: skip
        tape = Tape(base=array("int64"), script=array("int32", 1))
        traced = made.trace(state, job, None, tape, jax.ShapeDtypeStruct((), "int64"))
        return traced.lower(lowering_platforms=(platform,))


__all__ = ["kernel_loop", "lower", "simulate", "unsupported"]
