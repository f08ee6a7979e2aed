"""The cache of compiled programs on disk: a second start compiles nothing that the first one compiled."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .files import write_whole


def cache_dir() -> Path:
    """`$SERQJAX_CACHE`, else `serqjax` in the user's cache folder."""
    if named := os.environ.get("SERQJAX_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serqjax"


def kept_code(digest: str) -> Path | None:
    """Where the machine code with this digest is kept; None where nothing is kept."""
    import jax

    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    return None if folder is None else Path(folder) / f"native-{digest}.o"


def keep_code(path: Path, code: bytes) -> None:
    """Write machine code so that other processes see all of it or nothing; where that fails, nothing is kept."""
    with contextlib.suppress(OSError):
        write_whole(path, code)


def use_compilation_cache(path: str | os.PathLike[str] | None = None) -> None:
    """Keep compiled programs under `path` (default: `cache_dir()`) and use those that are there.

    Machine code of the engine's loops on a CPU is kept in the folder of JAX's persistent compilation cache, which this
    sets for the whole process, so it is for entry points: the command line
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
