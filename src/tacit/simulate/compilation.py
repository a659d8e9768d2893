"""Compiled programs kept on disk, so that a study that ran before starts sooner in the next process.

They lie beside the prices, under `TACIT_CACHE`: whoever may write there decides what a simulation computes. A silo's
daemon never reads them. Every kind of processor has a folder of its own.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import jax

from tacit.privacy.cache import cache_folder

_WORTH_KEEPING = 0.2  # seconds of compilation


def keep_compiled() -> Path | None:
    """Let jax keep what it compiles; returns the folder, or none if `TACIT_CACHE` is empty.

    A folder set elsewhere (`JAX_COMPILATION_CACHE_DIR`) stays. Call this before the first compilation.
    """
    already: str | None = jax.config.values["jax_compilation_cache_dir"]
    if already is not None:
        return Path(already)
    folder = cache_folder("programs")
    if folder is not None:
        folder = folder / _processor()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return folder


def _processor() -> str:
    """A name for this processor's instruction set: a program compiled for another one could crash."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:12]}"
