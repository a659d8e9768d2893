"""Data sets, their partition into silos, and preprocessing that says what it touches.

>>> from tacit import data
>>> federation = data.load("heart-disease", seed=1)
>>> federation.feature_shape, federation.feature_norm
((13,), 1.0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.data.catalogue import load, names
    from tacit.data.describe import plot_partition, summary
    from tacit.data.federation import DataError, Federation, Records, SiloData, Step

__all__ = [
    "DataError",
    "Federation",
    "Records",
    "SiloData",
    "Step",
    "load",
    "names",
    "plot_partition",
    "summary",
]

# Looked up when first used: a silo's daemon reads one CSV file and loads no data set.
_HOMES = {"load": "catalogue", "names": "catalogue", "plot_partition": "describe", "summary": "describe"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tacit.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tacit.data.{_HOMES.get(name, 'federation')}"), name)


def __dir__() -> list[str]:
    return __all__
