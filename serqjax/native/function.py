"""A traced function as machine code for one core, called on numpy arrays.

**Source:** llvmlite's binding layer.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import llvmlite
import llvmlite.binding as llvm
import numpy as np

from ..cache import keep_code, kept_code
from .emitter import Emitter
from .lowering import Lowering
from .values import FEW, Array, Buffer, Cells, Root, Value

#: What listeners of `jax.monitoring` hear after each compilation, with its seconds (tracing is an event of JAX's own).
COMPILED = "/serqjax/native/compile_duration"

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
    return em.text(count + len(outs) - moved), em.bytes


#: LLVM's passes. Loops are written wide and short ones written out already (`emitter.py`): the costly passes are not
#: needed, its own -O2 takes five times as long for code that is as fast (`experiments/bench/notes.md`).
PASSES = ("simplify_cfg", "instruction_combine", "simplify_cfg")


def object_code(text: str) -> bytes:
    """Machine code of a module, from the folder of compiled programs if it is there."""
    host = f"{llvmlite.__version__} {PASSES} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    kept = kept_code(hashlib.sha256(f"{host}\n{text}".encode()).hexdigest())
    if kept is not None and kept.exists():
        return kept.read_bytes()
    module, target = llvm.parse_assembly(text), machine()
    module.triple = target.triple
    module.data_layout = str(target.target_data)
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)
    code = target.emit_object(module)
    if kept is not None:
        keep_code(kept, code)
    return code


class Compiled:
    """Machine code of a closed jaxpr whose first `moved` operands are written over by the first results.

    `self(addresses)`: a row `[lanes, operands and other results]` int64 for each lane, the places of contiguous arrays
    of the jaxpr's dtypes. The interpreter's lock is free meanwhile.
    """

    def __init__(self, jaxpr: Any, moved: int = 0):
        text, self.space = lower(jaxpr, moved)
        with _lock:
            code = object_code(text)
            self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine())
            self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self.engine.finalize_object()
            address = self.engine.get_function_address("lanes")
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(address)

    def __call__(self, addresses: np.ndarray) -> None:
        space = np.empty((self.space,), np.uint8)
        self.call(addresses.ctypes.data, len(addresses), space.ctypes.data)


class Function:
    """A function of pytrees of arrays as machine code, compiled once for each set of shapes.

    `function(moved, each, shared) -> (moved, results)`: traced for one lane; `moved` is written over by what the
    function returns in its place.

    **Raises:** `NotImplementedError` at the first call, naming what of JAX is not known here.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.made: dict[Any, tuple[Compiled, Any, list[tuple[tuple[int, ...], np.dtype]]]] = {}
        self.lock = threading.Lock()

    def __call__(self, moved: Any, each: Any, shared: Any) -> Any:
        """Run all lanes, one after the other.

        **Arguments:** numpy arrays; those of `moved` (contiguous in all axes but the first) and `each` have the lanes
        on their first axis. At least one lane.

        **Returns:** the results, with the lanes on their first axis. Those of `moved` are in its arrays.
        """
        first, tree_moved = jax.tree.flatten(moved)
        second, tree_each = jax.tree.flatten(jax.tree.map(contiguous_rows, each))
        third, tree_shared = jax.tree.flatten(jax.tree.map(contiguous, shared))
        lanes = (first or second)[0].shape[0]
        of_each = [*first, *second]
        key = tuple((x.shape[1:], x.dtype) for x in of_each), tuple((x.shape, x.dtype) for x in third)
        trees = tree_moved, tree_each, tree_shared
        with self.lock:
            if (key, trees) not in self.made:
                self.made[key, trees] = self.compile(trees, key)
        code, tree, kinds = self.made[key, trees]
        results = [np.empty((lanes, *shape), dtype) for shape, dtype in kinds]
        starts = np.array([x.ctypes.data for x in (*of_each, *third, *results)], np.int64)
        strides = np.array(
            [x.strides[0] for x in of_each] + [0] * len(third) + [x.strides[0] for x in results], np.int64
        )
        code(starts + np.arange(lanes)[:, None] * strides)
        return jax.tree.unflatten(tree, results)

    def compile(self, trees: Any, kinds: Any) -> Any:
        structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (*kinds[0], *kinds[1])]
        sizes = [tree.num_leaves for tree in trees]
        out: list[Any] = []

        def flat(*leaves: Any) -> Any:
            parts, start = [], 0
            for tree, size in zip(trees, sizes):
                parts.append(jax.tree.unflatten(tree, leaves[start : start + size]))
                start += size
            moved, results = self.function(*parts)
            again, tree = jax.tree.flatten(moved)
            assert tree == trees[0], "what is written over keeps its structure"
            found, tree = jax.tree.flatten(results)
            out.append(tree)
            return [*again, *found]

        jaxpr = jax.make_jaxpr(flat)(*structs)
        results = [(tuple(v.aval.shape), np.dtype(v.aval.dtype)) for v in jaxpr.jaxpr.outvars[sizes[0] :]]
        begun = time.perf_counter()
        compiled = Compiled(jaxpr, moved=sizes[0])
        jax.monitoring.record_event_duration_secs(COMPILED, time.perf_counter() - begun)
        return compiled, out[-1], results


def contiguous(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def contiguous_rows(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x if x[0].flags.c_contiguous else np.ascontiguousarray(x)
