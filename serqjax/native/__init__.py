"""Machine code of a function that JAX has traced, for one core of this machine. It knows nothing of serQ.

`function.Function` traces, compiles and calls. In order: `values.py` (what a value is), `emitter.py` (instructions),
`scalars.py` and `arrays.py` (the operations of JAX), `lowering.py` (jaxprs, branches, loops), `function.py`.

**Source:** `docs/decisions.md`, "On a CPU the loop is machine code of our own".
"""
