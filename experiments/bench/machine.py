"""What every recorded figure needs beside it: the machine, the versions, and the time spent on compiling."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

MADE = ("/jax/core/compile/backend_compile_duration", "/serqjax/native/compile_duration")
COMPILING = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration", *MADE)


def machine() -> dict[str, Any]:
    """The machine and the versions, for a JSON file of results."""
    import serqjax

    return {
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "backend": jax.default_backend(),
        "serqjax": serqjax.__version__,
        "pyserq": pyserq_version(),
        "dtype": "int64, float64",
    }


def pyserq_version() -> str | None:
    try:
        return version("pyserq")
    except PackageNotFoundError:
        return None


def cpu_model() -> str | None:
    """Model and vector extension, where the system tells them."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return None
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    flags = found.get("flags", "").split()
    vector = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return f"{found.get('model name', 'unknown')} ({vector})"


class CompileClock:
    """Seconds that JAX and the engine have spent tracing, lowering and compiling in this process (summed over threads),
    and how many functions they have compiled."""

    def __init__(self) -> None:
        self.total_s, self.compiled = 0.0, 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in COMPILING:
            self.total_s += duration_secs
            self.compiled += event in MADE
