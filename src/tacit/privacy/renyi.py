"""Renyi divergences of single releases, from their privacy profiles and with nothing understated.

A profile H(x), a bound on delta(x) for both orders of neighbouring data sets, belongs to a symmetric dominating pair
(P, Q). For an order a > 1, Taylor's formula for t -> t^a turns the divergence into an integral of the profile,

    sum_y P(y)^a Q(y)^(1-a)  =  1 + a (a-1) int_0^inf (e^{(a-1) x} + e^{-a x}) H(x) dx,

in which everything is positive, so that nothing cancels. Between the points at which the profile is read it is
replaced by its chord in e^x, which lies above because profiles are convex there. Where the profile has fallen to a
small mass m the integral ends. The pair is then split: with probability m something is disclosed for certain, and with
the rest the divergence is the integral of H - m. That mass has no Renyi divergence; whoever uses the divergence pays m
in delta.
"""

import dataclasses
import math

import numpy as np
from scipy import special

from tacit.privacy import cache
from tacit.privacy.discrete import effective_multiplier
from tacit.privacy.events import Event, PricingError
from tacit.privacy.gaussian import Floats
from tacit.privacy.pld import loss_scale, profile_range
from tacit.privacy.profiles import Profile
from tacit.privacy.schedule import is_subsampled, loss_parts

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
# Points in the bulk of the loss and beyond it: chords add less than 1e-4 to a divergence.
_BULK, _TAIL, _SPREADS = 1000, 2000, 10.0
_MOST_CELLS = 200_000
# Far above what rounding loses in a profile and in the sum, whose terms are all positive.
_ROUNDING = 1e-6


def profile_divergence(profile: Profile, order: float, tail: float) -> float:
    """Divergence of this order of a profile's dominating pair, but for a mass of at most ``tail``.

    Formal guarantee: a release with this profile is a post-processing of a pair (P, Q) that discloses everything with
    probability at most ``tail`` under P and under Q, and whose rest satisfies sum P^a Q^(1-a) <= e^{(a-1) r}, in both
    orders, where r is what is returned. Infinite where the profile does not fall to ``tail``.

    >>> from functools import partial
    >>> from tacit.privacy.gaussian import gauss_delta
    >>> round(profile_divergence(partial(gauss_delta, mu=0.5), 3.0, 1e-15), 4)
    0.375
    """
    farthest = profile_range(profile, tail)
    if float(profile(np.array([farthest]))[0]) > tail or farthest * order > _MOST_CELLS:
        return math.inf
    x = _grid(loss_scale(profile), farthest, order)
    height: Floats = np.minimum.accumulate(np.clip(profile(x), 0.0, 1.0))
    log_integral = _log_integral(x, height - height[-1], order)
    if log_integral == -math.inf:
        return 0.0
    log_moment = np.logaddexp(0.0, math.log(order) + math.log(order - 1) + log_integral)
    return float(log_moment) / (order - 1) * (1 + _ROUNDING)


def _grid(scale: float, farthest: float, order: float) -> Floats:
    """Where the profile is read: finely in the bulk, and nowhere more coarsely than the integrand changes."""
    cells = max(_TAIL, math.ceil(2 * farthest * order))
    bulk = np.linspace(0.0, min(_SPREADS * scale, farthest), _BULK)
    return np.unique(np.concatenate([bulk, np.linspace(0.0, farthest, cells)]))


def _log_integral(x: Floats, height: Floats, order: float) -> float:
    """log of int (e^{(a-1) x} + e^{-a x}) h(x) dx, where h is linear in e^x between the points."""
    width = np.diff(x)[:, None]
    inside = width * (1 + _NODES) / 2
    share = np.expm1(inside) / np.expm1(width)
    chord = height[:-1, None] * (1 - share) + height[1:, None] * share
    place = x[:-1, None] + inside
    with np.errstate(divide="ignore"):
        weight = np.log(chord) + np.log(width * _WEIGHTS / 2)
    up, down = special.logsumexp(weight + (order - 1) * place), special.logsumexp(weight - order * place)
    return float(np.logaddexp(up, down))


def release_divergence(event: Event, order: float, tail: float) -> float:
    """Divergence of one release of an event, but for a mass of at most ``tail`` in each of its `masses`.

    A Gaussian release that is not amplified by sampling has order / (2 z^2), exactly, and leaves no mass out. A sampled
    one is never counted above its base.

    Formal guarantee: as `profile_divergence`, for replacing one record (or what the event protects) and both orders.

    >>> full = Event(kind="g", noise_multiplier=5.0, count=1, records=50, batch=50, sampling="full")
    >>> round(release_divergence(full, 10.0, 1e-15), 9)
    0.2
    >>> sampled = dataclasses.replace(full, batch=5, sampling="poisson")
    >>> 0.0 < release_divergence(sampled, 10.0, 1e-15) < 0.02 * 0.2
    True
    """
    if not order > 1:
        raise PricingError(f"Expected order={order} > 1 for a Renyi divergence.")
    if event.noise_multiplier == 0.0:
        return math.inf
    base = math.inf if event.mechanism == "reports" else order * _most_square(event) / 2
    if not is_subsampled(event):
        return base
    once = dataclasses.replace(event, kind="one", count=1, participations=None, steps=1)

    def compute() -> float:
        return math.fsum(n * profile_divergence(profile, order, tail) for profile, n in loss_parts([once]))

    return min(base, cache.remember(f"renyi {order!r}", [once], tail, compute))


def _most_square(event: Event) -> float:
    """mu^2 of one release in which the record is sure to be, as often as a batch may hold it."""
    times = event.batch if event.sampling == "wr" and event.protects != "silo" else 1
    return (times / effective_multiplier(event)) ** 2


def masses(event: Event) -> int:
    """How many masses of at most ``tail`` one release leaves out of its divergence."""
    if not is_subsampled(event):
        return 0
    return sum(n for _, n in loss_parts([dataclasses.replace(event, count=1)]))
