"""A problem: what is minimised, over what set, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
from jax import Array

from tacit.algorithm import Params
from tacit.geometry import Regulariser, zero
from tacit.objectives.objective import Objective


@dataclass(frozen=True)
class Problem:
    """Minimise the mean of the objective's losses plus a regulariser that is known by its proximal operator.

    The constants are public bounds where they are known: ``lipschitz`` (L) and ``smoothness`` (beta) of each record's
    loss, ``strong_convexity`` (mu) of the average, ``radius`` of a ball that holds the initial point and an optimum.
    The objective of a saddle problem is a `Saddle`, which descent-ascent alone can read.
    """

    objective: Objective
    regulariser: Regulariser = field(default_factory=zero)
    lipschitz: float | None = None
    smoothness: float | None = None
    strong_convexity: float | None = None
    radius: float | None = None

    def descend(self, params: Params, direction: Params, step: float | Array) -> Params:
        """The proximal step ``prox_{step h}(params - step x direction)``."""
        return self.regulariser.prox(jax.tree.map(lambda w, g: w - step * g, params, direction), step)
