"""Accelerator kernels (Pallas). Installed as `serqjax.kernels` and imported only where one is used."""
