"""Gaussian differential privacy: exact conversions between mu and (epsilon, delta).

A release with noise multiplier z separates neighbouring data sets by mu = 1/z standard deviations, and
un-subsampled releases compose exactly: mu^2 = sum_r z_r^-2. The composition is fully adaptive as long as each
multiplier is fixed in advance (the queries, clips and noise scales may depend on everything released before).

References:
    Balle, Wang. Improving the Gaussian mechanism for differential privacy. ICML 2018.
    Dong, Roth, Su. Gaussian differential privacy. JRSS-B 2022.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.optimize import brentq

from tacit.privacy.events import non_negative, probability

Floats = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_LARGE_MU = 60.0
_ROOT_TOLERANCE = 1e-13


def gauss_delta(epsilon: ArrayLike, mu: float) -> Floats:
    """Exact delta(epsilon) of N(mu, 1) against N(0, 1), for epsilon >= 0.

    Formal guarantee: a mu-GDP mechanism is (epsilon, gauss_delta(epsilon, mu))-DP, and Gaussian releases
    with total separation mu are no better.

    >>> gauss_delta([1.0, 2.0], 0.5).round(6).tolist()
    [0.00683, 9e-06]
    """
    return np.exp(log_gauss_delta(epsilon, mu))


def log_gauss_delta(epsilon: ArrayLike, mu: float) -> Floats:
    """Logarithm of `gauss_delta`, finite where delta itself underflows."""
    eps = np.asarray(epsilon, dtype=np.float64)
    near, far = eps / mu - mu / 2, eps / mu + mu / 2
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # e^eps sf(far) = phi(near) mills(far), because far^2/2 - near^2/2 = eps: nothing large is subtracted.
        log_delta = -0.5 * near * near - 0.5 * math.log(2 * math.pi) + np.log(_mills_gap(near, far, mu))
        if mu > _LARGE_MU:
            direct = special.ndtr(-near) - np.exp(eps + special.log_ndtr(-far))
            log_delta = np.where(near < -_LARGE_MU / 2, np.log(direct), log_delta)
    return np.minimum(log_delta, 0.0)


def gdp_mu(epsilon: float, delta: float) -> float:
    """Largest mu for which mu-GDP implies (epsilon, delta)-DP.

    Formal guarantee: the returned mu never exceeds the exact value beyond float rounding of delta, and is
    below it by less than 1e-11 of it.

    >>> round(gdp_mu(1.0, 1 / 1234**2), 5)
    0.232
    """
    epsilon, delta = non_negative("epsilon", epsilon), probability("delta", delta)
    goal = math.log(delta)

    def excess(log_mu: float) -> float:
        return max(float(log_gauss_delta(epsilon, math.exp(log_mu))), -1e12) - goal

    log_mu = _root(excess, 0.5 * math.log1p(2 * epsilon) - 1.0)
    mu = math.exp(log_mu)
    while float(log_gauss_delta(epsilon, mu)) > goal:
        mu *= 1 - 1e-12
    return mu


def gdp_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon for which mu-GDP implies (epsilon, delta)-DP.

    Formal guarantee: the returned epsilon is never below the exact value beyond float rounding of delta, and
    above it by less than 1e-11 of it. Zero if delta alone covers the mechanism.

    >>> round(gdp_epsilon(0.232, 1 / 1234**2), 3)
    1.0
    """
    mu, delta = non_negative("mu", mu), probability("delta", delta)
    goal = math.log(delta)
    if mu == 0.0 or float(log_gauss_delta(0.0, mu)) <= goal:
        return 0.0

    def excess(log_epsilon: float) -> float:
        return goal - max(float(log_gauss_delta(math.exp(log_epsilon), mu)), -1e12)

    epsilon = math.exp(_root(excess, math.log(mu) + math.log1p(mu)))
    while float(log_gauss_delta(epsilon, mu)) > goal:
        epsilon *= 1 + 1e-12
    return epsilon


def gdp_tpr(mu: float, false_positive_rate: float) -> float:
    """True-positive rate of the best attack on a mu-GDP mechanism at a false-positive rate.

    >>> round(gdp_tpr(1.0, 0.01), 4)
    0.0924
    """
    mu, rate = non_negative("mu", mu), probability("false_positive_rate", false_positive_rate)
    return float(special.ndtr(special.ndtri(rate) + mu))


def _mills(x: Floats) -> Floats:
    return math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))


def _mills_gap(near: Floats, far: Floats, mu: float) -> Floats:
    """mills(near) - mills(far); for a small mu as the integral of -mills' = 1 - x mills(x) > 0."""
    if mu >= 0.05:
        return np.maximum(_mills(near) - _mills(far), 0.0)
    x = near[..., None] + mu * (1 + _NODES) / 2
    slope = 1 - x * _mills(x)
    y = np.maximum(x, 50.0) ** -2
    slope = np.where(x > 50.0, y * (1 - 3 * y * (1 - 5 * y * (1 - 7 * y))), slope)
    return (slope @ _WEIGHTS) * mu / 2


def _root(increasing: Callable[[float], float], guess: float) -> float:
    """Root of an increasing function of a logarithm, bracketed outward from `guess`."""
    low, high, step = guess, guess, 0.5
    while increasing(low) > 0:
        low, step = low - step, min(2 * step, 4.0)
    step = 0.5
    while increasing(high) < 0:
        high, step = high + step, min(2 * step, 4.0)
    if low == high:
        return low
    return float(brentq(increasing, low, high, xtol=_ROOT_TOLERANCE, rtol=4 * np.finfo(float).eps))
