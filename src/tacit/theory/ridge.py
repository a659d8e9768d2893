"""What ridge regression from private second moments promises: a quadratic that noise has moved a little.

Write H(w) = w.Aw/2 - c.w for the empirical risk with the best intercept, A and c with centred features. Noise gives
A + E and c + e, and the solver makes the first positive, which at most doubles E. For |w*| <= R and lambda >= 2|E|

    H(w) - H(w*)  <=  (lambda + |E|) R^2 / 2 + |e| R + |e|^2 / lambda

from the optimality of w for the noisy, regularised quadratic. The intercept adds half the square of its own error.
Norms of Gaussian matrices and vectors are bounded with probability 0.95 together: |G| <= s(2 sqrt d + sqrt(2 t)) for a
symmetric matrix with entries of deviation s off the diagonal and sqrt(2) s on it, and |g| <= s(sqrt d + sqrt(2 t)).

The bound is ours and has all constants. It is far from tight where noise is large; a rehearsal says more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tacit.privacy.gaussian import gdp_mu

_T = math.log(4 / 0.05)


class RidgeBound(NamedTuple):
    """The empirical excess risk, at most, and the strength that it is for."""

    bound: float
    strength: float


def ridge_bound(
    *, features: int, feature_norm: float, radius: float, records: int, silos: int, epsilon: float, delta: float
) -> RidgeBound:
    """The bound for silos of so many records each, through the direct channel, with the strength that it suggests.

    >>> few, many = (
    ...     ridge_bound(features=5, feature_norm=1.0, radius=1.0, records=n, silos=4, epsilon=1.0, delta=1e-6)
    ...     for n in (1000, 100_000)
    ... )
    >>> 50 < few.bound / many.bound < 300
    True
    """
    # Of an entry off the diagonal of the matrix of `tacit.algorithms.ridge`, the mean of two.
    unit = 1.5 * feature_norm**2 / (gdp_mu(epsilon, delta) * records * math.sqrt(silos))
    slack = math.sqrt(2 * _T)
    vector = math.sqrt(features) + slack
    of_gram = unit * (2 * math.sqrt(features) + slack)
    of_mean = unit * vector / (feature_norm / 2)
    of_cross = unit * vector / feature_norm
    of_target = unit * (1 + slack) / (feature_norm**2 / 2)
    matrix = 2 * (of_gram + 2 * feature_norm * of_mean + of_mean**2)
    linear = of_cross + 0.5 * of_mean + of_target * (feature_norm + of_mean)
    strength = max(2 * matrix, math.sqrt(2) * linear / radius)
    slope = (strength + matrix) * radius**2 / 2 + linear * radius + linear**2 / strength
    length = math.sqrt(4 * slope / strength)
    return RidgeBound(slope + (of_target + of_mean * length) ** 2 / 2, strength)
