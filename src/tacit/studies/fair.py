"""What a study of fairness measures: violations, the divergence, and how far from stationary the model is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params, Record
from tacit.errors import TacitError
from tacit.fairness import chi_squared, violations
from tacit.objectives import Ermi, Model, ermi, untapped
from tacit.plans.assemble import Builder
from tacit.theory import fermi_stationarity

FairMeasure = Callable[[Params, Record], dict[str, Array]]


def predicted(model: Model, params: Params, x: Array) -> Array:
    """The class that a model predicts for each record."""
    outputs = model.apply(params, x, untapped)
    return (outputs[:, 0] > 0).astype(jnp.int32) if outputs.shape[1] == 1 else outputs.argmax(axis=1)


def fair_measure(builder: Builder, groups: int) -> FairMeasure:
    """Violations on some records, and ||grad Phi|| of loss + strength x divergence where the study has a strength.

    They read every record's attribute: numbers for people who evaluate, not for the server.
    """
    objective, fixed = builder.problem.objective, builder.fixed
    classes = int(fixed.get("classes", 2))
    declared = fixed.get("frequencies")
    term: Ermi | None = None
    if fixed.get("strength") is not None and declared is not None:
        notion = fixed.get("notion", "demographic-parity")
        term = ermi(objective.model, classes, declared, notion=notion)
        if len(term.frequencies[0]) != groups:
            raise TacitError(f"algorithm.frequencies: expected {groups} in a row, one for each group.")

    def measure(params: Params, records: Record) -> dict[str, Any]:
        guess = predicted(objective.model, params, records["x"])
        found = violations(guess, records["s"], records["y"], classes=classes, group_count=groups)
        plain = term if term is not None else ermi(objective.model, classes, [1 / groups] * groups)
        found["divergence"] = chi_squared(plain.probabilities(params, records["x"]), records["s"], group_count=groups)
        if term is not None:
            found["stationarity"] = fermi_stationarity(objective, term, params, records, fixed["strength"])
        return found

    return measure
