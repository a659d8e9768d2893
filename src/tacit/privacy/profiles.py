"""Privacy profiles of one subsampled release: epsilon -> a bound on delta, over neighbours and both orders.

The bounds hold for a fresh, independent and secret batch, and for a base mechanism whose profile bounds the
swap of a whole sampled record for any other (true for clipped records; false where adjacency changes only
part of a record). Each profile is convex in e^epsilon, so that `tacit.privacy.pld` may connect its dots.

References:
    Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018 (advanced joint convexity).
    Truncated Poisson sampling: arXiv 2508.15089 and dp_accounting.TruncatedSubsampledGaussianDpEvent.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import special

from tacit.privacy.allocation import EPOCH_FAILURE, batches_of, dominating_rate
from tacit.privacy.events import Event, PricingError
from tacit.privacy.gaussian import Floats, gauss_delta, log_gauss_delta

Profile = Callable[[Floats], Floats]

_MULTIPLICITY_TAIL = 1e-26


def profile_of(event: Event, multiplier: float) -> Profile:
    """The profile of one release of a subsampled event whose base is a Gaussian of this multiplier.

    Formal guarantee: an upper bound on delta(epsilon) for epsilon >= 0, for every pair of neighbouring
    silos and both orders; attained for Poisson sampling, not always for the others.
    """
    if event.protects == "sensitive-attribute":
        return _revealed_profile(event, multiplier)
    if event.sampling == "wor":
        return partial(without_replacement, multiplier=multiplier, rate=event.rate)
    if event.sampling == "wr":
        return partial(with_replacement, multiplier=multiplier, draws=event.batch, records=event.records)
    if event.sampling == "allocation":
        records, batch, capacity = event.records, event.batch, event.capacity
        return partial(allocated, multiplier=multiplier, records=records, batch=batch, capacity=capacity)
    if event.sampling == "poisson" and event.capacity is None:
        return partial(poisson, multiplier=multiplier, rate=event.rate)
    if event.capacity is not None:
        return partial(
            truncated_poisson,
            multiplier=multiplier,
            rate=event.rate,
            records=event.records,
            capacity=event.capacity,
        )
    raise PricingError(f'Expected a subsampled event, got sampling "{event.sampling}".')


def _revealed_profile(event: Event, multiplier: float) -> Profile:
    """Adjacency that changes only part of a record: count the batch as known to everybody.

    The noise hides the part that may change, not the rest of the record, so it need not hide who is in the
    batch. Given the batch, a record that is in it k times costs a Gaussian of k/z, and nothing otherwise.
    """
    if event.sampling == "wr":
        weights, tail = _multiplicities(event.batch, event.records)
    else:
        weights, tail = np.array([event.rate]), 0.0

    def profile(epsilon: Floats) -> Floats:
        terms = (w * gauss_delta(epsilon, (k + 1) / multiplier) for k, w in enumerate(weights))
        return np.minimum(sum(terms, start=np.full(np.shape(epsilon), tail)), 1.0)

    return profile


def without_replacement(epsilon: Floats, *, multiplier: float, rate: float) -> Floats:
    """K = rate * n records without replacement: H_{1 + q(a-1)} <= q H_a.

    Formal guarantee: valid for any base mechanism that is (1/multiplier)-GDP under the swap of one record of
    the batch for any other.
    """
    return sampled(epsilon, base=partial(gauss_delta, mu=1 / multiplier), rate=rate)


def sampled(epsilon: Floats, *, base: Profile, rate: float) -> Floats:
    """Any base mechanism on a secret batch that is drawn without replacement.

    Formal guarantee: as `without_replacement`, for a base profile that bounds the swap of one record of the batch for
    any other.
    """
    return rate * base(_unsampled_epsilon(epsilon, rate))


def poisson(epsilon: Floats, *, multiplier: float, rate: float) -> Floats:
    """Each record with probability `rate`, sum divided by the fixed K.

    The pair is (1-q) N(0, s^2) + q N(+-1, s^2) with s = sigma K/C = 2 * multiplier. The antipodal pair is the
    worst one in any dimension and under adaptive composition, so this profile is exact. dp_accounting has the
    same pair, one grid point at a time; this form is vectorised, and a test holds the two equal.
    """
    eps = np.asarray(epsilon, dtype=np.float64)
    if rate == 1.0:
        return gauss_delta(eps, 1 / multiplier)
    s, c = 2 * multiplier, 0.5 / multiplier
    with np.errstate(divide="ignore"):
        # The likelihood ratio is e^eps at x = s (eps/2 + asinh(w)) deviations, with log w as follows.
        log_sinh = eps / 2 + np.log(-np.expm1(-eps)) - math.log(2.0)
        log_w = log_sinh + math.log1p(-rate) - math.log(rate) + 0.5 * c * c
    x = s * (eps / 2 + _asinh_exp(log_w))
    # There the weight 1-q cancels against the two others, each of which is a Gaussian's delta: nothing is subtracted.
    here, there = c * (x - c / 2), c * (x + c / 2)
    delta = np.exp(log_gauss_delta(here, c)) + np.exp(eps - there + log_gauss_delta(there, c))
    return np.clip(rate * delta, 0.0, 1.0)


def truncated_poisson(epsilon: Floats, *, multiplier: float, rate: float, records: int, capacity: int) -> Floats:
    """Poisson sampling with a physical batch limit: above it a uniformly random subset of that size is kept.

    Whether the other records alone fill the batch does not depend on the record in question, so revealing it
    costs nothing: the profile is the mixture of two. Below the limit the record is added to the sum, as in
    Poisson sampling. At the limit it displaces another one, which doubles the distance to the world without
    it, but happens with a smaller probability.

    Formal guarantee: an upper bound; it tends to `poisson` as the capacity grows, and equals it at n.
    """
    base = poisson(epsilon, multiplier=multiplier, rate=rate)
    full = _binomial_tail(capacity - 1, records - 1, rate) if capacity < records else 0.0
    if full == 0.0:
        return base
    kept = _binomial_tail(capacity, records, rate) * capacity / (records * full)
    displacing = poisson(epsilon, multiplier=multiplier / 2, rate=min(kept, 1.0))
    return (1 - full) * base + full * displacing


def allocated(epsilon: Floats, *, multiplier: float, records: int, batch: int, capacity: int | None) -> Floats:
    """One release of an epoch in which each record is in one of ceil(records / batch) secret batches.

    Whether the other records fill a batch does not depend on the record in question. Where they fill none, nothing is
    left out, and the epoch is as `tacit.privacy.allocation` proves; that they fill any of them counts as disclosure.

    Formal guarantee: the composition of as many of these profiles as releases were made, over any number of epochs,
    bounds all of them together, for every pair of neighbouring silos and both orders.
    """
    batches = batches_of(records, batch)
    rate = dominating_rate(batches, multiplier)
    filled = 0.0 if capacity is None else _binomial_tail(capacity - 1, records - 1, 1 / batches)
    mass = 0.0 if rate == 1.0 else 2 * (EPOCH_FAILURE + batches * filled)
    return np.minimum(poisson(epsilon, multiplier=multiplier, rate=rate) + mass, 1.0)


def with_replacement(epsilon: Floats, *, multiplier: float, draws: int, records: int) -> Floats:
    """`draws` independent uniform draws: the multiplicity k of a record is Bin(draws, 1/records).

    With w_k its weights, P_k and Q_k the two worlds given k, and P_0 = Q_0, any c_k >= 0 that sum to
    (a-1) w_0 give H_a <= sum_k w_k H_{a_k}(N(k/z) | N(0)), a_k = a + c_k/w_k: both Q_k and P_0 are within k
    swaps of P_k. The best c equalises the thresholds, a_k = max(a, LR_k(t)) at one common t.

    Formal guarantee: an upper bound for every t that is used (weights are rescaled so that they never exceed
    (a-1) w_0); multiplicities beyond the last one kept count as certain disclosure.
    """
    eps = np.asarray(epsilon, dtype=np.float64).ravel()
    weights, tail = _multiplicities(draws, records)
    k = np.arange(1, len(weights) + 1, dtype=np.float64)
    w0 = math.exp(draws * math.log1p(-1 / records)) if records > 1 else 0.0
    mu = k / multiplier
    slack = _budget_split(eps, weights, mu, w0)
    delta = np.full(eps.shape, tail)
    for j, weight in enumerate(weights):
        threshold = eps + np.log1p(slack[:, j])
        delta += weight * gauss_delta(threshold, float(mu[j]))
    return np.clip(delta, 0.0, 1.0).reshape(np.shape(epsilon))


def _budget_split(eps: Floats, weights: Floats, mu: Floats, w0: float) -> Floats:
    """The split (a_k - a)/a per epsilon and multiplicity, from Newton's method on the common threshold t.

    The excess sum_k w_k (LR_k(t)/a - 1)_+ is convex and increasing in t; from the right, Newton decreases
    monotonically to the root. What is left is scaled to the budget exactly, so validity does not hang on it.
    """
    budget = -np.expm1(-eps) * w0
    t = (eps[:, None] + np.log1p(budget[:, None] / weights[None, :])) / mu + mu / 2
    t = np.min(t, axis=1)
    for _ in range(60):
        ratio = np.exp(np.minimum(t[:, None] * mu - mu * mu / 2 - eps[:, None], 700.0))
        above = ratio > 1
        excess = np.where(above, ratio - 1, 0.0) @ weights - budget
        slope = np.where(above, ratio * mu, 0.0) @ weights
        step = np.where(slope > 0, excess / np.where(slope > 0, slope, 1.0), 0.0)
        t = t - step
        if np.max(np.abs(step)) < 1e-13 * (1 + np.max(np.abs(t))):
            break
    slack = np.maximum(np.expm1(np.minimum(t[:, None] * mu - mu * mu / 2 - eps[:, None], 700.0)), 0.0)
    spent = slack @ weights
    scale = np.where(spent > budget, budget / np.where(spent > 0, spent, 1.0), 1.0)
    return slack * scale[:, None]


def _multiplicities(draws: int, records: int) -> tuple[Floats, float]:
    """Weights of multiplicities 1, 2, ... down to a negligible tail, and the mass of that tail."""
    weights: list[float] = []
    for k in range(1, draws + 1):
        tail = _binomial_tail(k, draws, 1 / records)
        weights.append(_binomial_tail(k - 1, draws, 1 / records) - tail)
        if tail < _MULTIPLICITY_TAIL:
            break
    return np.array(weights), tail


def _binomial_tail(k: int, trials: int, chance: float) -> float:
    """P(Bin(trials, chance) > k)."""
    if k >= trials:
        return 0.0
    if chance == 1.0:
        return 1.0
    return float(special.betainc(k + 1, trials - k, chance))


def _unsampled_epsilon(epsilon: Floats, rate: float) -> Floats:
    """log(1 + (e^epsilon - 1)/rate), without overflow."""
    eps = np.asarray(epsilon, dtype=np.float64)
    small = np.log1p(np.expm1(np.minimum(eps, 1.0)) / rate)
    large = eps - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(eps, 1.0)))
    return np.where(eps < 1.0, small, large)


def _asinh_exp(y: Floats) -> Floats:
    """asinh(e^y) without overflow."""
    positive = np.maximum(y, 0.0)
    return np.where(
        y > 0, positive + np.log1p(np.sqrt(1 + np.exp(-2 * positive))), np.arcsinh(np.exp(np.minimum(y, 0.0)))
    )
