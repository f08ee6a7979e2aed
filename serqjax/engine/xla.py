"""Settings of XLA that the engine asks for, before the first compilation of the process.

They concern loops that XLA compiles for a CPU: those of tests and comparisons, and all where `serqjax.native` does not
know an operation.

On a CPU the loop of one instance is a few thousand tiny operations a turn; run one by one each costs a
call. XLA can compile a `while` loop that it thinks small as one function, and how large is small is
an option of its CPU back end. Raising it made a turn of an M/M/1 nine times cheaper and the compilation shorter
(`experiments/bench/notes.md`). Results do not depend on it.

The option can be given only through the environment and only before XLA reads its flags for the first time. A
process that has used JAX before keeps its own settings: such a loop runs, more slowly.
"""

from __future__ import annotations

import os

import jax

OPTION = "xla_cpu_small_while_loop_byte_threshold"
_FLAG = f"--xla_backend_extra_options={OPTION}={1 << 40}"
_LEVEL = "xla_backend_optimization_level"
_state = {"asked": False}


def prepare() -> None:
    """Ask for the option once; the environment is left as it was."""
    if _state["asked"]:
        return
    _state["asked"] = True
    before = os.environ.get("XLA_FLAGS")
    if before is not None and "xla_backend_extra_options" in before:
        return
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        return
    os.environ["XLA_FLAGS"] = _FLAG if before is None else f"{before} {_FLAG}"
    try:
        jax.block_until_ready(jax.jit(lambda x: x + 1)(0))  # XLA reads its flags here
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before


def compiler_options() -> dict[str, int | bool]:
    """Options of the engine's loop alone, on a CPU.

    Tables are updated in place: without region analysis XLA copies each table before most stores. At level 1 of 3 of
    the back end's own optimisation the loop runs as fast and compiles sooner (`experiments/bench/notes.md`); a level
    in `XLA_FLAGS` is kept.
    """
    options: dict[str, int | bool] = {"xla_cpu_copy_insertion_use_region_analysis": True}
    if _LEVEL not in os.environ.get("XLA_FLAGS", ""):
        options[_LEVEL] = 1
    return options
