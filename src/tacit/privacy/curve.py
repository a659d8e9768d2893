"""The privacy curve of a schedule, epsilon -> delta: the one source of its price and of every reading of its risk.

A curve is the lowest of the bounds that are known for the schedule:

- `gdp`: all releases as Gaussians, as if every record were in every batch; exact where nothing is subsampled;
- `pld`: privacy loss distributions of subsampled releases and shuffled reports, convolved with one Gaussian for
  everything else;
- `pure`: the sum of local randomisers' epsilons, where nothing but reports is released.

Each holds at every epsilon, so the lowest does. Epsilon at a delta, the advantage of an attacker and whatever else
is said of a schedule are points of this curve; none of them has a computation of its own.
"""

import math
from collections.abc import Callable
from functools import cached_property, lru_cache

from scipy.optimize import minimize_scalar

from tacit.privacy import cache
from tacit.privacy.events import Event
from tacit.privacy.gaussian import gauss_delta, gdp_epsilon, gdp_tpr
from tacit.privacy.pld import Composition
from tacit.privacy.schedule import entries_of, gaussian_mu, has_reports, is_subsampled, loss_parts

_LEAST_EPSILON = 1e-12


class PrivacyCurve:
    """Upper bounds on delta at every epsilon for one schedule; see `curve_of`.

    Args:
        paid: Events that cost something, as `payable` returns them, each with noise.
        delta: Near which a composed curve is as tight as its price; it is valid everywhere.

    Formal guarantee: the schedule is (epsilon, delta_at(epsilon))-DP for every epsilon >= 0, and all other methods
    return what follows from that.
    """

    def __init__(self, paid: tuple[Event, ...], delta: float) -> None:
        self.events, self.delta = paid, delta
        self.is_composed = any(is_subsampled(e) for e in paid)
        self.mu = None if has_reports(paid) else gaussian_mu(paid)
        self.pure = _pure_epsilon(paid)

    @cached_property
    def price(self) -> tuple[float, str]:
        """The least epsilon at the curve's delta, and the bound that proves it: `gdp`, `pld` or `pure`."""
        known = [(gdp_epsilon(self.mu, self.delta), "gdp")] if self.mu is not None else []
        if self.is_composed:
            known.append((self._remember("epsilon", lambda: self._composition.epsilon_at(self.delta)), "pld"))
        if self.pure is not None:
            known.append((self.pure, "pure"))
        return min(known, key=lambda pair: pair[0])

    def delta_at(self, epsilon: float) -> float:
        """The least delta at this epsilon."""
        known = [1.0]
        if self.mu is not None:
            known.append(float(gauss_delta(epsilon, self.mu)) if self.mu > 0.0 else 0.0)
        if self.is_composed:
            known.append(self._composition.delta_at(epsilon))
        if self.pure is not None:
            known.append(_pure_delta(epsilon, self.pure))
        return min(known)

    @cached_property
    def advantage(self) -> float:
        """The most that a true-positive rate can exceed its false-positive rate: delta at epsilon 0."""
        if not self.is_composed:
            return self.delta_at(0.0)
        return self._remember("advantage", lambda: self.delta_at(0.0))

    def true_positive_rate(self, rate: float) -> float:
        """The best true-positive rate at a false-positive rate, at most e^epsilon rate + delta for every epsilon."""
        plain = 1.0 if self.mu is None else gdp_tpr(self.mu, rate)
        if not self.is_composed:
            return plain
        return min(plain, self._remember(f"true-positive rate at {rate!r}", lambda: self._least_rate(rate)))

    def _least_rate(self, rate: float) -> float:
        """The bound is convex in e^epsilon, so that one search finds its minimum; any epsilon gives a valid one."""

        def bound(epsilon: float) -> float:
            return math.exp(epsilon) * rate + self.delta_at(epsilon)

        ends = (math.log(_LEAST_EPSILON), math.log(-math.log(rate)))
        least = minimize_scalar(lambda x: bound(math.exp(x)), bounds=ends, method="bounded", options={"xatol": 1e-4})
        return min(1.0, bound(0.0), float(least.fun))

    def _remember(self, question: str, compute: Callable[[], float]) -> float:
        return cache.remember(question, self.events, self.delta, compute)

    @cached_property
    def _composition(self) -> Composition:
        return Composition(loss_parts(self.events), self.delta)


@lru_cache(maxsize=2)
def curve_of(paid: tuple[Event, ...], delta: float) -> PrivacyCurve:
    """The curve of a schedule; the last two are kept, so that price and risk of one are read from one composition."""
    return PrivacyCurve(paid, delta)


def _pure_epsilon(paid: tuple[Event, ...]) -> float | None:
    """The sum of the local randomisers' epsilons: a bound with delta = 0 that needs no crowd."""
    if not paid or any(e.mechanism != "reports" for e in paid):
        return None
    return math.fsum(entries_of(e) * math.fsum(e.local_epsilons) for e in paid)


def _pure_delta(epsilon: float, most: float) -> float:
    """delta of a `most`-DP mechanism: that of randomised response."""
    return -math.expm1(min(epsilon - most, 0.0)) / (1 + math.exp(-most))
