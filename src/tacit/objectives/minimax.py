"""Saddle problems that are averages over records: minimised over parameters, maximised over duals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params, Record, Work
from tacit.objectives.objective import Loss, Model, Objective, Tap, untapped

Duals = Any
"""A pytree of arrays: the variables of the inner maximum."""


@dataclass(frozen=True)
class Saddle(Objective):
    """The average over records of ``f(params, duals; record)``, beside the plain loss that people read.

    ``values(params, duals, records, tap)`` is one number per record; the model is the one that is tapped;
    ``init_duals`` are duals to start from. ``dual_gradients(params, duals, records)`` is each record's gradient in the
    duals, where it is known in closed form.
    """

    init_duals: Duals
    values: Callable[[Params, Duals, Record, Tap], Array]
    dual_gradients: Callable[[Params, Duals, Record], Duals] | None = None

    def at(self, duals: Duals) -> Objective:
        """The objective in the parameters alone, at these duals."""
        return _Slice(self.model, self.cost, self, duals)

    def by_duals(self, params: Params, duals: Duals, records: Record) -> Duals:
        """Each record's gradient in the duals."""
        if self.dual_gradients is not None:
            return self.dual_gradients(params, duals, records)
        return jax.vmap(lambda record: jax.grad(self.value, argnums=1)(params, duals, record))(records)

    def value(self, params: Params, duals: Duals, record: Record) -> Array:
        """f of one record."""
        return self.values(params, duals, jax.tree.map(lambda leaf: leaf[None], record), untapped)[0]


@dataclass(frozen=True)
class _Slice(Objective):
    """A saddle function at fixed duals, for the code that clips gradients with respect to parameters."""

    saddle: Saddle
    duals: Duals

    def losses(self, params: Params, records: Record, tap: Tap = untapped) -> Array:
        return self.saddle.values(params, self.duals, records, tap)


@dataclass(frozen=True)
class SaddleQuery:
    """The statistic ``{"params": grad_params f, "duals": grad_duals f}`` at the point that the work names.

    Calling it evaluates one record plainly; the silo recognises the structure and takes the tapped path for the
    parameters where the model allows. Where the function depends on something public beside the point, ``saddle_of``
    makes it from the work.
    """

    saddle: Saddle
    point: Callable[[Work], tuple[Params, Duals]]
    saddle_of: Callable[[Work], Saddle] | None = None

    def game(self, work: Work) -> Saddle:
        """The saddle function of this work."""
        return self.saddle if self.saddle_of is None else self.saddle_of(work)

    def __call__(self, work: Work, record: Record) -> dict[str, Any]:
        """Evaluate the statistic of one record."""
        params, duals = self.point(work)
        by_params, by_duals = jax.grad(self.game(work).value, argnums=(0, 1))(params, duals, record)
        return {"params": by_params, "duals": by_duals}


def saddle(value: Callable[[Params, Duals, Record], Array], params: Params, duals: Duals) -> Saddle:
    """A saddle problem from any ``value(params, duals, record)`` and initial points.

    >>> f = saddle(lambda p, w, z: w * p - w**2 / 2 + z["y"] * p, jnp.ones(()), jnp.zeros(()))
    >>> float(f.value(jnp.asarray(2.0), jnp.asarray(1.0), {"y": jnp.asarray(3.0)}))
    7.5
    """

    def apply(params: Params, x: Array, tap: Tap) -> Array:
        return x

    def values(params: Params, duals: Duals, records: Record, tap: Tap) -> Array:
        return jax.vmap(lambda record: value(params, duals, record))(records)

    silent = Loss(lambda outputs, targets: jnp.zeros(targets.shape))
    return Saddle(Model(lambda key: params, apply), silent, duals, values)


def lifted(objective: Objective) -> Saddle:
    """A plain objective as a saddle problem: f = (1 + w) loss - w^2/2, strongly concave in the number w.

    The maximum over w of the average is F + F^2/2 for the mean loss F, which rises with F wherever F > -1: the
    minimisers are the same.
    """

    def values(params: Params, duals: Duals, records: Record, tap: Tap) -> Array:
        return (1.0 + duals) * objective.losses(params, records, tap) - 0.5 * duals**2

    return Saddle(objective.model, objective.cost, jnp.zeros(()), values)
