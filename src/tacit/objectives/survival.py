"""Survival regression as a sum over records: piecewise-exponential hazards over public bins of time.

Cox's partial likelihood compares a subject with all others and is no sum over records. With a constant hazard
exp(o_k) in each bin k of time, the likelihood is one (Friedman 1982; a Poisson regression):

    loss of a record      sum over bins k of  exposure_k exp(o_k)  -  event x o_(bin of the event)
    outputs               o_k = x . w + b_k

A subject's bins are summed before anything is clipped. A target is the time until the event in shares of a public
horizon, with a minus where the subject was last seen without it. exp(w) are hazard ratios, one for each feature.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params
from tacit.errors import TacitError
from tacit.objectives.losses import SURVIVAL
from tacit.objectives.objective import Architecture, Loss, Model, Tap

BINS = 5
"""Equal parts of the horizon, unless a study says how many."""

MOST_COMPARED = 4096
"""Records that a concordance compares with each other, at most: the first."""

_LEAST_COUNT = 0.5


def piecewise_exponential(bins: int = BINS) -> Loss:
    """The loss of hazards that are constant in each of so many equal bins; outputs are logarithms, one for each bin.

    >>> loss = piecewise_exponential(2)
    >>> loss.value(jnp.zeros((2, 2)), jnp.array([0.75, -0.75])).tolist()
    [0.75, 0.75]
    """
    if not 1 <= bins <= 1000:
        raise TacitError(f"Expected bins={bins} of time from 1 to 1000.")
    width = 1.0 / bins
    starts = jnp.arange(bins) * width

    def exposure(targets: Array) -> Array:
        return jnp.clip(jnp.abs(targets)[:, None] - starts, 0.0, width)

    def happened(targets: Array) -> Array:
        """One in the bin of the event; at the horizon nobody is watched any longer."""
        time = jnp.abs(targets)[:, None]
        inside = (time >= starts) & (time < starts + width)
        return inside & (targets > 0)[:, None]

    def value(outputs: Array, targets: Array) -> Array:
        return jnp.sum(exposure(targets) * jnp.exp(outputs) - jnp.where(happened(targets), outputs, 0.0), axis=1)

    def constant(targets: Array) -> Array:
        events, time = happened(targets).sum(axis=0), exposure(targets).sum(axis=0)
        return jnp.log((events + _LEAST_COUNT) / (time + width))

    return Loss(value, joint={"concordance": concordance}, constant=constant, name=SURVIVAL)


def hazards(features: int, bins: int) -> Model:
    """Proportional hazards: a linear risk that all bins share, and a hazard of each; started at zero.

    >>> import jax
    >>> hazards(3, 4).init(jax.random.key(0))["linear"]["b"].shape
    (4,)
    """

    def init(key: Array) -> Params:
        return {"linear": {"w": jnp.zeros((features, 1)), "b": jnp.zeros(bins)}}

    def apply(params: Params, x: Array, tap: Tap) -> Array:
        return x @ params["linear"]["w"] + params["linear"]["b"]

    return Model(init, apply, architecture=Architecture("hazards", {"features": features, "bins": bins}))


def concordance(outputs: Array, targets: Array) -> Array:
    """The share of pairs in which the subject with the higher risk has its event first (Harrell's C).

    Pairs count in which the earlier time is that of an event; equal risks count half. Not a number without such pairs.

    >>> float(concordance(jnp.array([[2.0], [1.0], [0.0]]), jnp.array([0.1, 0.2, -0.3])))
    1.0
    """
    risk, target = outputs[:MOST_COMPARED, 0], targets[:MOST_COMPARED]
    time, event = jnp.abs(target), target > 0
    first = event[:, None] & (time[:, None] < time[None, :])
    right = (risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :])
    return jnp.sum(jnp.where(first, right, 0.0)) / jnp.sum(first)
