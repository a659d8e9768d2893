"""Arrays on disk between two runs: one file, written whole or not at all, and trees that may carry random keys."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def save_arrays(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write plain data and arrays so that a crash leaves the old file or the new one."""
    raw = io.BytesIO()
    np.savez(raw, allow_pickle=False, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(raw.getvalue())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load_arrays(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `save_arrays` wrote; a file that is not such a one raises OSError, ValueError or KeyError."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return json.loads(arrays.pop("meta").tobytes()), arrays


def plain(leaf: Any) -> np.ndarray:
    """A leaf as a file holds it; states may carry random keys."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def restored(stored: np.ndarray, like: Any) -> Any:
    """A leaf from a file, in the form of ``like``."""
    found = jnp.asarray(stored)
    return jax.random.wrap_key_data(found, impl=jax.random.key_impl(like)) if _is_key(like) else found


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key))
