"""Arrays of a model under plain names, and the file of silos' own models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tacit.algorithm import Params
from tacit.errors import TacitError


def named_leaves(params: Params) -> dict[str, np.ndarray]:
    """The arrays of a tree under the names of their places.

    >>> list(named_leaves({"linear": {"b": np.zeros(1), "w": np.zeros((3, 1))}}))
    ['linear.b', 'linear.w']
    """
    found: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = leaf_name(path)
        if name in found or name.startswith("encoding."):
            raise TacitError(f"Expected parameters with different names, none of them encoding, got {name!r} twice.")
        found[name] = np.asarray(leaf)
    return found


def leaf_name(path: tuple[Any, ...]) -> str:
    """The name of a place in a tree."""
    parts = (str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
    return ".".join(parts) or "value"


def personal_bytes(models: Mapping[str, Params]) -> bytes:
    """Models by the name of their silo as one safetensors file: every array has a leading axis of silos."""
    from safetensors.numpy import save

    leaves = [named_leaves(params) for params in models.values()]
    stacked = {name: np.stack([own[name] for own in leaves]) for name in leaves[0]}
    return save(stacked, metadata={"format": "tacit", "silos": json.dumps(list(models))})
