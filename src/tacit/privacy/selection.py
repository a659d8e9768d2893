"""The best of a random number of private runs: what choosing hyperparameters costs.

A mechanism Q (draw hyperparameters at random, train, release a score; all of it private) is run K times, where K is
random, and only the run with the best score is told. Papernot and Steinke, "Hyperparameter tuning with Renyi
differential privacy" (ICLR 2022, arXiv:2110.03620), Theorem 2, bound the Renyi divergence of that at every order a > 1,
for a truncated negative binomial K with parameters eta and gamma:

    e'(a) = e(a) + (1 + eta) min over b >= 1 of [ (1 - 1/b) e(b) + ln(1/gamma)/b ]  +  ln E[K] / (a - 1)

where e(a) bounds the divergence of one run. **Everything hinges on the losers and K staying secret.** Whoever watches
the runs sees both: a server that is not trusted, and, in federated training, every other silo, to which each iterate of
each run is broadcast. Against them the price is that of all runs together: for a fixed number of runs their
composition, and for a random one its average over K (`watched_epsilon`), because (K, all runs) has

    delta(e) = sum over k of P[K = k] delta_k(e),    delta_k(e) that of k runs composed.

The theorem needs the whole distribution of K, and no computer draws it: K is cut at `MOST_TRIES`. What is beyond is
charged to delta, and refused where it is not negligible.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import special
from scipy.optimize import brentq, minimize_scalar

from tacit.privacy.events import PricingError, positive, probability

MOST_TRIES = 10**6
"""K is never drawn larger."""
_TAIL_SHARE = 1e-3  # of delta, at most, for the cut at MOST_TRIES

Curve = Callable[[float], float]
"""Order above one -> a bound on the Renyi divergence of one run."""


@dataclasses.dataclass(frozen=True)
class NegativeBinomial:
    """How many runs, K >= 1: P[K = k] proportional to (1 - gamma)^k prod_{l<k} (l + eta)/(l + 1), k = 1, 2, ...

    ``eta = 1`` is geometric, ``eta = 0`` logarithmic, which costs least.

    >>> geometric = NegativeBinomial(1.0, 0.25)
    >>> geometric.mean, round(geometric.chance(2), 6)
    (4.0, 0.1875)
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (self.eta > -1 and math.isfinite(self.eta)):
            raise PricingError(f"Expected eta={self.eta} > -1; 0 is the logarithmic distribution, 1 the geometric.")
        probability("gamma", self.gamma)

    @property
    def mean(self) -> float:
        """E[K]."""
        if self.eta == 0:
            return (1 / self.gamma - 1) / math.log(1 / self.gamma)
        return self.eta * (1 - self.gamma) / (self.gamma * (1 - self.gamma**self.eta))

    def chance(self, count: int) -> float:
        """P[K = count]."""
        if count < 1:
            return 0.0
        if self.eta == 0:
            return (1 - self.gamma) ** count / (count * math.log(1 / self.gamma))
        # The product is gamma(k + eta) / (gamma(eta) k!), below zero with its divisor where eta is.
        log_product = math.lgamma(count + self.eta) - math.lgamma(self.eta) - math.lgamma(count + 1)
        log_chance = log_product + count * math.log1p(-self.gamma)
        return math.exp(log_chance) / abs(self.gamma**-self.eta - 1)

    def beyond(self, count: int) -> float:
        """P[K > count], or a little more: chances fall at least as fast as a geometric series from there on."""
        first = max(count, 0) + 1
        slowest = (1 - self.gamma) * max(1.0, (first + self.eta) / (first + 1))
        return min(1.0, self.chance(first) / (1 - slowest)) if slowest < 1 else 1.0

    def draw(self, generator: np.random.Generator) -> int:
        """One K, by inversion, cut at `MOST_TRIES`."""
        left, count = float(generator.uniform()), 1
        while left > (here := self.chance(count)) and count < MOST_TRIES:
            left -= here
            count += 1
        return count

    @staticmethod
    def of_mean(mean: float, eta: float = 0.0) -> NegativeBinomial:
        """The distribution with this mean.

        >>> round(NegativeBinomial.of_mean(10.0).mean, 6)
        10.0
        """
        if not mean > 1:
            raise PricingError(f"Expected more than one run on average, got {mean}; one run needs no selection.")

        def excess(log_odds: float) -> float:
            return math.log(NegativeBinomial(eta, 1 / (1 + math.exp(log_odds))).mean / mean)

        return NegativeBinomial(eta, 1 / (1 + math.exp(float(brentq(excess, -20.0, 30.0, xtol=1e-13)))))


def selected_rdp(order: float, curve: Curve, tries: NegativeBinomial) -> float:
    """A bound on the Renyi divergence, at this order, of the best of K runs; ``curve`` bounds that of one run.

    Formal guarantee: Theorem 2 of Papernot and Steinke.
    """
    if order <= 1:
        raise PricingError(f"Expected order={order} > 1.")
    extra = _least_extra(curve, math.log(1 / tries.gamma))
    return curve(order) + (1 + tries.eta) * extra + math.log(tries.mean) / (order - 1)


def _least_extra(curve: Curve, log_gamma: float) -> float:
    """min over b >= 1 of (1 - 1/b) e(b) + ln(1/gamma)/b; any b is valid, so a rough minimum is on the private side."""

    def at(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return (1 - 1 / order) * curve(order) + log_gamma / order

    least = minimize_scalar(at, bounds=(-12.0, 16.0), method="bounded", options={"xatol": 1e-9})
    return min(log_gamma, float(least.fun))


def epsilon_of_rdp(curve: Curve, delta: float) -> float:
    """The least epsilon at delta that a Renyi curve implies, by the conversion of Canonne, Kamath and Steinke (2020).

    Formal guarantee: any order is valid, so a rough minimum is on the private side.
    """
    delta = probability("delta", delta)

    def at(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return curve(order) + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    grid = np.linspace(-6.0, 14.0, 81)
    best = min(grid, key=at)
    least = minimize_scalar(at, bounds=(best - 0.25, best + 0.25), method="bounded", options={"xatol": 1e-10})
    return max(0.0, min(float(least.fun), at(float(best))))


def selection_epsilon(mu: float, tries: NegativeBinomial, *, delta: float) -> float:
    """What the best of K runs costs, each run mu-GDP, against those who learn neither K nor the other runs.

    Formal guarantee: holds for K as it is drawn, cut at `MOST_TRIES`. With tau = P[K > MOST_TRIES] the cut changes the
    answer with probability tau at most, which costs (1 + e^epsilon) tau of delta.

    >>> round(selection_epsilon(0.2, NegativeBinomial.of_mean(10.0), delta=1e-6), 2)
    1.51
    """
    price = _selection_epsilon(positive("mu", mu), tries, probability("delta", delta))
    if math.isinf(price):
        raise PricingError(_TOO_MANY.format(mean=tries.mean))
    return price


_TOO_MANY = (
    "Expected fewer runs than {mean:.3g} on average: counts are drawn up to "
    f"{MOST_TRIES:,}, and what lies beyond would cost too much of delta; lower the number of runs."
)


def _selection_epsilon(mu: float, tries: NegativeBinomial, delta: float) -> float:
    """As `selection_epsilon`; infinite where the cut of K costs more than its share of delta."""
    rho, tail = mu * mu / 2, tries.beyond(MOST_TRIES)
    kept = delta * (1 - _TAIL_SHARE) if tail else delta
    epsilon = epsilon_of_rdp(lambda order: selected_rdp(order, lambda a: rho * a, tries), kept)
    if tail and epsilon + math.log1p(math.exp(-epsilon)) + math.log(tail) > math.log(delta * _TAIL_SHARE):
        return math.inf
    return epsilon


def watched_epsilon(mu: float, tries: NegativeBinomial, *, delta: float) -> float:
    """What K runs cost, each run mu-GDP, against those who watch all of them and so learn K.

    Formal guarantee: exact (but for rounding to the private side) for a K that is drawn without looking at records: the
    delta of K and k runs together is the average over K of that of k Gaussian runs, sqrt(k) mu-GDP composed.

    >>> tries = NegativeBinomial.of_mean(4.0)
    >>> round(watched_epsilon(selection_mu(1.0, tries, delta=1e-6), tries, delta=1e-6), 2)
    3.57
    """
    mu, delta = positive("mu", mu), probability("delta", delta)
    most = 1
    while most < MOST_TRIES and tries.beyond(most) > 1e-6 * delta:
        most = min(2 * most, MOST_TRIES)
    tail = tries.beyond(most)
    if tail > _TAIL_SHARE * delta:
        raise PricingError(_TOO_MANY.format(mean=tries.mean))
    counts = np.arange(1, most + 1)
    chances = np.array([tries.chance(int(count)) for count in counts])
    separations = mu * np.sqrt(counts)

    def excess(epsilon: float) -> float:
        near, far = epsilon / separations - separations / 2, epsilon / separations + separations / 2
        exceeding, allowed = special.ndtr(-near), np.exp(epsilon + special.log_ndtr(-far))
        # The difference is rounded up: each part is right to some 1e-13 of itself.
        return float(chances @ np.clip(exceeding - allowed + 1e-12 * exceeding, 0, 1)) + tail - delta

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return low
    while excess(high) > 0:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def selection_mu(epsilon: float, tries: NegativeBinomial, *, delta: float) -> float:
    """The largest separation mu of one run for which the best of K costs at most epsilon, on the private side.

    >>> tries = NegativeBinomial.of_mean(5.0)
    >>> mu = selection_mu(1.0, tries, delta=1e-6)
    >>> 0.999 < selection_epsilon(mu, tries, delta=1e-6) <= 1.0
    True
    """
    epsilon = positive("epsilon", epsilon)
    low, high = 1e-6, 1.0
    if selection_epsilon(low, tries, delta=delta) > epsilon:
        raise PricingError(
            f"Expected an epsilon above what choosing alone costs, got {epsilon} for {tries.mean:.3g} runs on average; "
            "lower the number of runs, or raise epsilon or delta."
        )
    while _selection_epsilon(high, tries, delta) <= epsilon:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _selection_epsilon(middle, tries, delta) <= epsilon else (low, middle)
        if high / low - 1 < 1e-7:
            break
    return low
