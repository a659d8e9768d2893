"""Constants of a problem where they are known: linear models on features of bounded norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp

from tacit.errors import TacitError
from tacit.objectives.objective import Objective


@dataclass(frozen=True)
class Constants:
    """Public bounds, ``None`` where none is known.

    ``lipschitz`` (L) and ``smoothness`` (beta) are of each record's loss as a function of all parameters together,
    on the ball that ``radius`` gives where L depends on it; ``strong_convexity`` (mu) is of the regularised average.
    """

    lipschitz: float | None = None
    smoothness: float | None = None
    strong_convexity: float | None = None


def constants(
    objective: Objective,
    *,
    feature_norm: float | None,
    radius: float | None = None,
    target_bound: float | None = None,
    strength: float = 0.0,
) -> Constants:
    """L, beta and mu of a linear model whose features have norm at most ``feature_norm``.

    A bias is one more feature, equal to one. L of the squared loss also needs the ``radius`` of a ball around zero
    that holds the parameters, and a ``target_bound`` on the targets' magnitudes. ``strength`` is that of a
    ``squared_l2`` regulariser: it alone makes the average strongly convex whatever the records are. Of the other
    models nothing is known.

    >>> from tacit.objectives import linear, logistic
    >>> constants(Objective(linear(4, 1, bias=False), logistic()), feature_norm=2.0)
    Constants(lipschitz=2.0, smoothness=1.0, strong_convexity=None)
    """
    for name, value in (("feature_norm", feature_norm), ("radius", radius), ("target_bound", target_bound)):
        if value is not None and not 0 <= value < math.inf:
            raise TacitError(f"Expected 0 <= {name}={value} < infinity; leave it out if no bound is known.")
    convexity = strength if strength > 0 else None
    shape, cost = objective.model.linear, objective.cost
    if shape is None or feature_norm is None:
        return Constants(strong_convexity=convexity)
    norm = math.sqrt(feature_norm**2 + shape.bias)
    slope = cost.slope
    if callable(slope):
        slope = None if radius is None or target_bound is None else slope(norm * radius, target_bound)
    smoothness = None if cost.curvature is None else cost.curvature * norm**2
    if cost.smoothing is not None:
        smoothness = cost.smoothing.smoothness
    return Constants(None if slope is None else slope * norm, smoothness, convexity)


def start_risk(objective: Objective) -> float | None:
    """The largest loss of any record where a linear model starts, at zero; ``None`` where targets have no bound.

    Losses are never negative, so that the excess risk of the start is no more: a promise above it promises nothing.

    >>> from tacit.objectives import linear, softmax
    >>> round(start_risk(Objective(linear(4, 3), softmax())), 4)
    1.0986
    """
    shape, cost = objective.model.linear, objective.cost
    if shape is None or "error" not in cost.metrics:
        return None
    classes = max(2, shape.outputs)
    return float(jnp.max(cost.value(jnp.zeros((classes, shape.outputs)), jnp.arange(classes))))
