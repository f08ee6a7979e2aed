"""A traced function as machine code for one core, called on numpy arrays.

**Source:** llvmlite's binding layer.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from .emitter import TYPES, Block, Emitter
from .lowering import FEW, Lowering
from .values import Array, Buffer, Cells, Root, Value

_lock = threading.Lock()

def machine() -> Any:
    """The target: this machine. An engine owns its own."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True)


def argument(em: Emitter, number: int, shape: tuple[int, ...], dtype: np.dtype, fixed: bool) -> Root:
    """Memory that the caller names."""
    place, name = em.name(), em.name()
    em.heads.append(f"{place} = getelementptr inbounds ptr, ptr %arguments, i64 {number}")
    em.heads.append(f"{name} = load ptr, ptr {place}")
    return Root(name, em.alias(), math.prod(shape), dtype, fixed=fixed)


def lower(jaxpr: Any, moved: int = 0) -> tuple[str, int]:
    """The text of a closed jaxpr's function, and the bytes of memory that it works in.

    The first `moved` operands are written over by the first results.
    """
    low = Lowering()
    em = low.em
    inputs: list[Value] = []
    homes: list[Root] = []
    for k, v in enumerate(jaxpr.jaxpr.invars):
        shape, dtype = tuple(v.aval.shape), np.dtype(v.aval.dtype)
        whole = Buffer(shape, dtype, argument(em, k, shape, dtype, fixed=k >= moved or math.prod(shape) <= FEW))
        homes.append(whole.root)
        if not shape:
            inputs.append(em.load(whole.root, 0))
        else:
            inputs.append(Cells(shape, dtype, em.elements(whole)) if whole.size <= FEW else whole)
    count = len(inputs)
    outs = jaxpr.jaxpr.outvars
    found = low.closed(jaxpr, inputs, [True] * len(outs))
    targets: dict[int, tuple[Buffer, Value]] = {}
    for k, (v, value) in enumerate(zip(outs, found)):
        shape, dtype = tuple(v.aval.shape), np.dtype(v.aval.dtype)
        root = homes[k] if k < moved else argument(em, count + k - moved, shape, dtype, fixed=False)
        if isinstance(value, Array):
            targets[k] = Buffer(shape, dtype, root), value
        else:
            em.store(root, 0, value)
    low.bring(targets)
    em.do("ret void")
    return em.text(), em.bytes


def optimise(module: Any, target: Any) -> None:
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))
    for name in PASSES:
        if name[0] == "O":
            options = llvm.create_pipeline_tuning_options(speed_level=int(name[1]))
            options.loop_vectorization = "v" in name
            options.slp_vectorization = "s" in name
            options.loop_unrolling = "u" in name
            b = llvm.create_pass_builder(target, options)
            b.getModulePassManager().run(module, b)
            continue
        passes = llvm.create_new_module_pass_manager()
        getattr(passes, f"add_{name}_pass")()
        passes.run(module, builder)


PASSES = ("simplify_cfg", "instruction_combine", "new_gvn", "simplify_cfg")


class Compiled:
    """Machine code of a closed jaxpr.

    `self(addresses, space)`: the addresses of operands and results, contiguous and of the jaxpr's dtypes, and `space`
    bytes of memory of the caller. Releases the interpreter's lock.
    """

    def __init__(self, jaxpr: Any, moved: int = 0):
        text, self.space = lower(jaxpr, moved)
        self.text = text
        with _lock:
            module = llvm.parse_assembly(text)
            target = machine()
            module.triple = target.triple
            module.data_layout = str(target.target_data)
            optimise(module, target)
            self.engine = llvm.create_mcjit_compiler(module, target)
            self.engine.finalize_object()
            address = self.engine.get_function_address("run")
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)

    def __call__(self, addresses: np.ndarray, space: np.ndarray) -> None:
        self.call(addresses.ctypes.data, space.ctypes.data)
