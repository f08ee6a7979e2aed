"""Accelerator kernels (Pallas). Installed as `serqjax.kernels` and imported only where one is used.

`simulation`: a whole simulation as one kernel; `tables`: its tables. `docs/gpu.md` says what has a kernel.
"""
