"""Exact prices of the shuffled vector sum, for any parameters: those that Cheu et al. print, and the least that do.

`tacit.privacy.binomial` has the argument, and the closed form that silos use.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

import numpy as np
from scipy import special, stats

from tacit.privacy import PricingError, gauss_delta, gdp_epsilon, gdp_mu
from tacit.privacy.binomial import EXCESS, FEWEST_FLIPS, REJECTION, grid_for, rounding_bound
from tacit.privacy.events import positive, probability

TAIL = 1e-18
"""Mass per coordinate and round outside the window of the domination argument."""
# Float error of an increment of Phi^-1 F is below 3e-8 at m = 1e9.
_SHAVE = 1 + 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorSum:
    """The public parameters of one shuffled vector sum.

    Args:
        contributors: Vectors that are expected to arrive.
        honest: Contributors whose noise counts: the fewest that may arrive less those that may collude.
        dimension: Coordinates of a vector.
        grid: Steps of the grid, an even number; coordinates become integers from 0 to ``grid``.
        bits: Coin flips that each contributor adds to each coordinate.
        probability: Of heads.
        rejection: Chance that a rounded vector is further than the rounding bound from the centre and is drawn again.
    """

    contributors: int
    honest: int
    dimension: int
    grid: int
    bits: int
    probability: float = 0.5
    rejection: float = REJECTION

    def __post_init__(self) -> None:
        if not 1 <= self.honest <= self.contributors:
            raise PricingError(f"Expected 1 <= honest={self.honest} <= contributors={self.contributors}.")
        if self.grid < 2 or self.grid % 2:
            raise PricingError(f"Expected grid={self.grid} to be an even number >= 2; its middle stands for zero.")
        if self.bits < 1 or self.dimension < 1:
            raise PricingError(f"Expected bits={self.bits} >= 1 and dimension={self.dimension} >= 1.")
        probability("probability", self.probability)

    @property
    def reach(self) -> float:
        """How far a rounded vector lies from the centre of the grid, at most."""
        return rounding_bound(self.grid, self.dimension, self.rejection)

    @property
    def deviation_of_mean(self) -> float:
        """Standard deviation per coordinate of the mean's noise, rounding included, in units of the clip."""
        flips = self.bits * self.probability * (1 - self.probability)
        return 2 / self.grid * math.sqrt((flips + 0.25) / self.contributors)


@lru_cache(maxsize=1024)
def shift_mu(flips: int, chance: float, tail: float, largest: int) -> tuple[float, float]:
    """(mu_1, tau): Bin(flips, chance) and its shift by k <= ``largest`` are tau-close to |k| mu_1-GDP.

    Infinite where the window does not fit inside the support: too few flips to hide anything.

    Examples:
        >>> mu, tau = shift_mu(100_000, 0.5, 1e-15, 64)
        >>> round(mu * 100_000**0.5 / 2, 4), tau < 1e-15
        (1.0002, True)
        >>> shift_mu(50, 0.5, 1e-15, 64)
        (inf, 1.0)
    """
    spread = math.sqrt(flips * chance * (1 - chance))
    reach = -special.ndtri(tail / 2) * 1.02 + 1
    low = math.floor(flips * chance - reach * spread) - largest - 1
    high = math.ceil(flips * chance + reach * spread) + largest + 1
    if low <= 0 or high >= flips:
        return math.inf, 1.0
    c = np.arange(low, high + 1)
    law = stats.binom(flips, chance)
    # Each tail through its own logarithm: the window reaches where 1 - F rounds to zero.
    upper, lower = -special.ndtri_exp(law.logsf(c)), special.ndtri_exp(law.logcdf(c))
    quantiles = np.where(c >= flips * chance, upper, lower)
    tau = max(law.sf(high - 1 - largest), law.cdf(low + 1 + largest))
    return float(np.diff(quantiles).max()) * _SHAVE, float(tau)


def sum_delta(protocol: VectorSum, epsilon: float, rounds: int = 1, tail: float = TAIL) -> float:
    """The delta of ``rounds`` shuffled sums at this epsilon.

    Formal guarantee: against everyone but the shuffler and the honest contributors, replacing one contributor's
    vector in every round is (epsilon, delta)-DP, adaptively.
    """
    flips = protocol.honest * protocol.bits
    mu, tau = shift_mu(flips, protocol.probability, tail, protocol.grid)
    if math.isinf(mu):
        return 1.0
    lost = min(1.0, rounds * protocol.dimension * tau)
    separation = 2 * protocol.reach * mu * math.sqrt(rounds)
    return lost + (1 - lost) * float(gauss_delta(epsilon, separation))


def sum_multiplier(protocol: VectorSum, tail: float = TAIL) -> float:
    """The noise multiplier z of a Gaussian release that one sum is as private as, up to d tau in delta."""
    mu, _ = shift_mu(protocol.honest * protocol.bits, protocol.probability, tail, protocol.grid)
    return 1 / (2 * protocol.reach * mu)


def calibrate_sum(
    *,
    epsilon: float,
    delta: float,
    dimension: int,
    contributors: int,
    rounds: int = 1,
    honest_share: float = 1.0,
    grid: int | None = None,
) -> VectorSum:
    """The least noise for ``rounds`` sums to be (epsilon, delta)-DP when this share of the contributors is honest.

    ``honest_share`` counts those that arrive *and* do not collude: with 75% arriving and 25% colluding it is 0.5.
    The shuffler, not the server, must refuse to open a sum with fewer arrivals.

    Examples:
        >>> found = calibrate_sum(epsilon=1.0, delta=1e-6, dimension=100, contributors=10_000)
        >>> found.grid, found.bits, f"{found.deviation_of_mean:.2e}"
        (200, 309, '8.80e-04')
    """
    positive("epsilon", epsilon)
    delta = probability("delta", delta)
    if not 0 < honest_share <= 1:
        raise PricingError(f"Expected 0 < honest_share={honest_share} <= 1.")
    honest = max(1, math.floor(honest_share * contributors))
    steps = grid_for(contributors, dimension) if grid is None else grid

    def protocol(bits: int) -> VectorSum:
        return VectorSum(contributors=contributors, honest=honest, dimension=dimension, grid=steps, bits=bits)

    goal = gdp_mu(epsilon, delta) / (2 * protocol(1).reach * math.sqrt(rounds))
    high = max(1, math.ceil(4 / (goal**2 * honest)))
    while sum_delta(protocol(high), epsilon, rounds, _tail(delta, dimension, rounds)) > delta:
        high = high + max(1, high // 8)
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        private = sum_delta(protocol(middle), epsilon, rounds, _tail(delta, dimension, rounds)) <= delta
        low, high = (low, middle) if private else (middle, high)
    return protocol(high)


def cheu_sum(*, epsilon: float, delta: float, dimension: int, contributors: int) -> VectorSum:
    """The parameters that Cheu et al. print, for one sum.

    Examples:
        >>> printed = cheu_sum(epsilon=1.0, delta=1e-6, dimension=100, contributors=10_000)
        >>> round(printed.deviation_of_mean, 3)
        0.402
    """
    if not (0 < epsilon <= 15 and 0 < delta < 0.5):
        raise PricingError(f"Expected 0 < epsilon={epsilon} <= 15 and 0 < delta={delta} < 1/2 for these constants.")
    share = epsilon / (18 * math.sqrt(math.log(2 / delta)))
    needed = math.log(2 * (dimension + 1) / delta) / (share**2 * contributors)
    grid = math.ceil(max(2 * math.sqrt(contributors), dimension, 4))
    grid += grid % 2
    bits = math.floor(180 * grid**2 * needed) + 1
    return VectorSum(
        contributors=contributors,
        honest=contributors,
        dimension=dimension,
        grid=grid,
        bits=bits,
        probability=90 * grid**2 * needed / bits,
    )


def large_sum_epsilon(protocol: VectorSum, delta: float) -> float:
    """Epsilon of one sum with so many flips that mu_1 sigma <= 1.002 is known; refuses fewer.

    Examples:
        >>> printed = cheu_sum(epsilon=1.0, delta=1e-6, dimension=100, contributors=10_000)
        >>> f"{large_sum_epsilon(printed, 1e-6):.4f}"
        '0.0013'
    """
    flips, chance = protocol.honest * protocol.bits, protocol.probability
    if flips < max(FEWEST_FLIPS, protocol.grid**2) or abs(chance - 0.5) > 1e-3:
        raise PricingError(f"Expected at least max({FEWEST_FLIPS}, grid^2) fair flips, got {flips}; use sum_delta.")
    spread = math.sqrt(flips * chance * (1 - chance))
    lost = protocol.dimension * TAIL
    return gdp_epsilon(2 * protocol.reach * EXCESS / spread, delta - lost)


def _tail(delta: float, dimension: int, rounds: int) -> float:
    return 1e-3 * delta / (dimension * rounds)
