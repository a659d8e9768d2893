"""The discrete Gaussian on a grid, priced as a Gaussian that dominates it, rounding included.

A silo that sends integers adds a discrete Gaussian of width `s`, in grid units. Where its statistic is made of integers
(`tacit.silo.integers`) their sensitivity is exact; where a sum was rounded to the grid, as in version 0.1, rounding
adds at most sqrt(dimension) grid units to the l2 distance of two statistics. The noise itself is dominated by a
continuous Gaussian in one of two ways:

- *Thresholds*, for one pair of data sets at a time. The discrete Gaussian is log-concave, so the best test
  between it and its shift by an integer k is a threshold; with F its distribution function the shift is
  dominated by |k| mu_1-GDP, mu_1 = max_c [Phi^-1 F(c) - Phi^-1 F(c-1)]. Coordinates compose.
- *Smoothing*, for all shifts at once, as sampling needs. Rounding a continuous Gaussian of variance s^2 - t^2
  at random, by a discrete Gaussian of width t around it, gives the discrete Gaussian of variance s^2 up to a
  relative error below 5 exp(-2 pi^2 t^2) in each probability, wherever the centre is: with t = 2, below
  1e-33. So the discrete mechanism is post-processing of a continuous one with standard deviation
  sqrt(s^2 - 4), in any composition and under any sampling.

References:
    Canonne, Kamath, Steinke. The discrete Gaussian for differential privacy. NeurIPS 2020.
    Peikert. An efficient and parallel Gaussian sampler for lattices. CRYPTO 2010 (smoothing).
"""

import math
from functools import lru_cache

import numpy as np
from scipy import special

from tacit.privacy.events import Event, PricingError, positive

_SMOOTHING = 2.0
_WINDOW = 38.0
_LARGEST_TABLE = 200.0
# Covers the relative errors that the domination argument and float arithmetic leave (below 1e-10).
_SHAVE = 1 - 1e-9


def effective_multiplier(event: Event) -> float:
    """Multiplier of a continuous Gaussian release that is no more private than this one.

    Formal guarantee: the event is a post-processing of (or dominated by) continuous Gaussian noise of the
    returned multiplier under the same sampling. For any other mechanism it is the event's own multiplier.

    >>> release = dict(kind="g", count=1, records=100, batch=100, sampling="full")
    >>> fine = Event(noise_multiplier=4.0, mechanism="discrete-gaussian", grid_sigma=4e6, dimension=100,
    ...              **release)
    >>> round(effective_multiplier(fine), 4)
    4.0
    """
    if event.mechanism != "discrete-gaussian" or event.noise_multiplier == 0.0:
        return event.noise_multiplier
    assert event.grid_sigma is not None
    s, rounding = event.grid_sigma, math.sqrt(event.dimension or 0)
    if event.sampling in ("full", "one-pass") and s <= _LARGEST_TABLE:
        return _SHAVE / ((s / event.noise_multiplier + rounding) * mu_one(s))
    if s < 2 * _SMOOTHING:
        raise PricingError(
            f'Expected grid_sigma={s} >= {2 * _SMOOTHING} for sampling "{event.sampling}"; use a finer grid.'
        )
    # These compare both worlds with the one where the record is absent: two roundings, half the distance.
    roundings = 2 * rounding if event.sampling in ("poisson", "allocation") else rounding
    return _SHAVE * math.sqrt(s * s - _SMOOTHING**2) / (s / event.noise_multiplier + roundings)


@lru_cache(maxsize=256)
def mu_one(sigma: float) -> float:
    """Separation of a discrete Gaussian from its shift by one grid unit: max_c [Phi^-1 F(c) - Phi^-1 F(c-1)].

    Formal guarantee: the discrete Gaussian of parameter sigma and its shift by the integer vector k are
    dominated by (||k||_2 mu_one)-GDP. mu_one * sigma decreases to 1 as sigma grows.

    >>> round(2.0 * mu_one(2.0), 5)
    1.01065
    """
    sigma = positive("sigma", sigma)
    last = math.ceil(_WINDOW * sigma)
    # Two more standard deviations, so that cutting the sum does not show in the tails that are used.
    c = np.arange(last + math.ceil(2 * sigma) + 8, dtype=np.float64)
    log_weight = -0.5 * (c / sigma) ** 2
    log_total = math.log(2 * math.fsum(np.exp(log_weight)) - 1)
    log_sf = np.logaddexp.accumulate(log_weight[:0:-1])[::-1] - log_total
    quantiles = -special.ndtri_exp(log_sf[:last])
    # F(-1) = 1 - F(0) by symmetry, so the increment at the centre is twice the first quantile.
    return float(max(2 * quantiles[0], np.max(np.diff(quantiles), initial=0.0)))
