"""The cache of compiled programs on disk: a second start compiles nothing that the first one compiled."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$SERQJAX_CACHE`, else `serqjax` in the user's cache folder."""
    if named := os.environ.get("SERQJAX_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serqjax"


def use_compilation_cache(path: str | os.PathLike[str] | None = None) -> None:
    """Keep compiled programs under `path` (default: `cache_dir()`) and use those that are there.

    Sets JAX's persistent compilation cache for the whole process, so it is for entry points: the command line
    calls it, `import serqjax` does not. A cache folder chosen before (JAX_COMPILATION_CACHE_DIR) stays. Where the
    folder cannot be made, nothing is kept and nothing fails.
    """
    import jax

    if path is None and getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    folder = Path(path) if path is not None else cache_dir() / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
