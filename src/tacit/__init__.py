"""Tacit: private federated learning without a trusted server.

Every algorithm is a function here, such as `tacit.mb_sgd`; its recipe goes to `tacit.fit`.

>>> import tacit
>>> tacit.Budget(epsilon=1.0, delta=1e-5).delta
1e-05
>>> tacit.mb_sgd(step_size=8.0, num_rounds=30).name
'mb-sgd'
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.algorithm import Recipe as Recipe
    from tacit.algorithm import Terms as Terms
    from tacit.estimators import PrivateClassifier as PrivateClassifier
    from tacit.estimators import PrivateRegressor as PrivateRegressor
    from tacit.fitting import Fit as Fit
    from tacit.fitting import fit as fit
    from tacit.models import TrainedModel as TrainedModel
    from tacit.models import load_model as load_model
    from tacit.objectives import Problem as Problem
    from tacit.objectives import register_loss as register_loss
    from tacit.objectives import register_model as register_model
    from tacit.plans.catalogue import *  # noqa: F403
    from tacit.plans.catalogue import register_algorithm as register_algorithm
    from tacit.privacy import Budget as Budget

__version__ = "0.2.0.dev0"
__all__ = [
    "Budget",
    "Fit",
    "PrivateClassifier",
    "PrivateRegressor",
    "Problem",
    "Recipe",
    "Terms",
    "TrainedModel",
    "__version__",
    "fit",
    "load_model",
    "register_algorithm",
    "register_loss",
    "register_model",
]

# Looked up when first used: prices and data need no jax, and the command line answers quickly.
_HOMES = {
    "Budget": "tacit.privacy",
    "Fit": "tacit.fitting",
    "PrivateClassifier": "tacit.estimators",
    "PrivateRegressor": "tacit.estimators",
    "Problem": "tacit.objectives",
    "Recipe": "tacit.algorithm",
    "Terms": "tacit.algorithm",
    "TrainedModel": "tacit.models",
    "fit": "tacit.fitting",
    "load_model": "tacit.models",
    "register_algorithm": "tacit.plans.catalogue",
    "register_loss": "tacit.objectives",
    "register_model": "tacit.objectives",
}
_FOLDERS = ("data", "fairness", "geometry", "models", "objectives", "privacy")
"""What else people use: data sets, metrics, regularisers, models and losses, accounting."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _FOLDERS:
        return importlib.import_module(f"tacit.{name}")
    # Python asks here for a submodule before it imports it.
    found = None if name.startswith("_") or find_spec(f"tacit.{name}") else _algorithms().get(name)
    if found is None:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, *_FOLDERS, *_algorithms()])


def _algorithms() -> dict[str, Any]:
    """The algorithms by the names of their functions."""
    catalogue = importlib.import_module("tacit.plans.catalogue")
    rows = (*catalogue.ALGORITHMS.values(), *catalogue.SOLVERS.values())
    return {row.recipe.__name__: row.recipe for row in rows}
