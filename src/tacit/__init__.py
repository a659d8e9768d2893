"""Tacit: private federated learning without a trusted server.

>>> import tacit
>>> tacit.Budget(epsilon=1.0, delta=1e-5).delta
1e-05
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.fitting import Fit as Fit
    from tacit.fitting import fit as fit
    from tacit.objectives import Problem as Problem
    from tacit.privacy import Budget as Budget

__version__ = "0.1.0"
__all__ = ["Budget", "Fit", "Problem", "__version__", "fit"]

# Looked up when first used: prices and data need no jax, and the command line answers quickly.
_HOMES = {"Budget": "tacit.privacy", "Fit": "tacit.fitting", "Problem": "tacit.objectives", "fit": "tacit.fitting"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
