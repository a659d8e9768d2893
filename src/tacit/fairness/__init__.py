"""Fairness metrics: how far predictions depend on a group. A leaf: it sees predictions, never a model.

Violations of demographic parity, equalized odds and equal opportunity are pure functions that can be compiled. The
numbers in brackets are the equations of Gupta, Poornash, Lowy and Razaviyayn (arXiv:2411.07889). Rates are of hard
predictions over the records given; a group without records (that meet the condition) takes no part. They read the
attribute of every record: what is computed from private records is not private.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def _rates(predictions: Array, groups: Array, kept: Array, classes: int, group_count: int) -> tuple[Array, Array]:
    """P(prediction = u | group = r) among the records kept, (groups, classes), and which groups have any."""
    inside = jax.nn.one_hot(groups, group_count) * kept[:, None]
    total = inside.sum(axis=0)
    counts = jnp.einsum("nr,nu->ru", inside, jax.nn.one_hot(predictions, classes))
    return counts / jnp.maximum(total, 1.0)[:, None], total > 0


def _widest(rates: Array, there: Array) -> Array:
    """The largest difference of a rate between two groups that are there, for each class."""
    high = jnp.max(jnp.where(there[:, None], rates, -jnp.inf), axis=0)
    low = jnp.min(jnp.where(there[:, None], rates, jnp.inf), axis=0)
    return jnp.where(jnp.any(there), high - low, 0.0)


def demographic_parity_violation(predictions: Array, groups: Array, *, classes: int, group_count: int) -> Array:
    """(2): the largest |P(prediction = u | group = r) - P(prediction = u)| over classes and groups."""
    rates, there = _rates(predictions, groups, jnp.ones(predictions.shape), classes, group_count)
    overall = jax.nn.one_hot(predictions, classes).mean(axis=0)
    return jnp.max(jnp.where(there[:, None], jnp.abs(rates - overall), 0.0))


def demographic_parity_gap(predictions: Array, groups: Array, *, classes: int, group_count: int) -> Array:
    """(11): the largest difference of P(prediction = u | group) between two groups.

    >>> s, guess = jnp.asarray([0, 0, 0, 1]), jnp.asarray([1, 1, 0, 0])
    >>> round(float(demographic_parity_gap(guess, s, classes=2, group_count=2)), 4)
    0.6667
    """
    return jnp.max(_widest(*_rates(predictions, groups, jnp.ones(predictions.shape), classes, group_count)))


def equalized_odds_gap(predictions: Array, groups: Array, targets: Array, *, classes: int, group_count: int) -> Array:
    """(12): the largest difference between groups of P(prediction = u | group, target = u) or (..., target != u)."""
    gaps = []
    for u in range(classes):
        for kept in (targets == u, targets != u):
            rates, there = _rates(predictions, groups, kept.astype(jnp.float32), classes, group_count)
            gaps.append(_widest(rates, there)[u])
    return jnp.max(jnp.stack(gaps))


def equal_opportunity_gap(
    predictions: Array, groups: Array, targets: Array, *, classes: int, group_count: int
) -> Array:
    """The largest difference between two groups of P(prediction = 1 | group, target = 1); class 1 is favourable."""
    kept = (targets == 1).astype(jnp.float32)
    return _widest(*_rates(predictions, groups, kept, classes, group_count))[1]


def chi_squared(chances: Array, groups: Array, *, group_count: int) -> Array:
    """The chi-squared divergence of a prediction drawn from ``chances`` and the group: what ERMI makes small."""
    joint = jnp.einsum("nr,nu->ru", jax.nn.one_hot(groups, group_count), chances) / chances.shape[0]
    product = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return jnp.sum(jnp.where(product > 0, joint**2 / jnp.where(product > 0, product, 1.0), 0.0)) - 1.0


def violations(
    predictions: Array, groups: Array, targets: Array, *, classes: int, group_count: int
) -> dict[str, Array]:
    """All of them, by name."""
    predictions, groups, targets = (leaf.astype(jnp.int32) for leaf in (predictions, groups, targets))
    sizes = {"classes": classes, "group_count": group_count}
    return {
        "parity_violation": demographic_parity_violation(predictions, groups, **sizes),
        "parity_gap": demographic_parity_gap(predictions, groups, **sizes),
        "odds_gap": equalized_odds_gap(predictions, groups, targets, **sizes),
        "opportunity_gap": equal_opportunity_gap(predictions, groups, targets, **sizes),
    }
