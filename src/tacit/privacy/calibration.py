"""From a budget to noise: the smallest multipliers whose price fits, always on the private side."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from tacit.privacy import cache
from tacit.privacy.accountant import Accountant, price
from tacit.privacy.events import Event, PricingError, positive, probability
from tacit.privacy.gaussian import gdp_mu
from tacit.privacy.schedule import gaussian_mu, has_reports, is_subsampled, payable, worst_allocation

_AIM = 2e-4
_MOST_STEPS = 60
_LEAST_NOISE = 1e-3
_FINE = 1e6


def calibrate(
    events: Iterable[Event], *, epsilon: float, delta: float, accountant: Accountant = "tight"
) -> tuple[Event, ...]:
    """The events with all noise multipliers scaled by one common factor, so that the price fits epsilon.

    Only the ratios of the given multipliers matter; give 1.0 to each to have equal ones.

    Formal guarantee: `price(result, delta=delta).epsilon <= epsilon`, checked by pricing the result; it is at
    least 0.999 epsilon whenever the price can come that close.

    >>> plan = Event(kind="g", noise_multiplier=1.0, count=50, records=1234, batch=1234, sampling="full")
    >>> [tuned] = calibrate([plan], epsilon=1.0, delta=1 / 1234**2)
    >>> round(tuned.noise_multiplier, 3)
    30.479
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    events = tuple(events)
    paid = worst_allocation(payable(events))
    if any(e.noise_multiplier == 0.0 for e in paid):
        raise PricingError(
            "Expected noise_multiplier > 0 for every kind; only ratios matter here, so give 1.0 for each."
        )
    if not paid:
        return events
    factor = _gaussian_factor(paid, epsilon, delta) if _is_plain(paid, accountant) else None
    if factor is None:
        question = f"calibrate {accountant} {epsilon!r}"
        factor = cache.remember(question, paid, delta, lambda: _factor(paid, epsilon, delta, accountant))
    return scaled_to_fit(
        events, factor, lambda scaled: price(scaled, delta=delta, accountant=accountant).epsilon <= epsilon
    )


def scaled_to_fit(
    events: tuple[Event, ...], factor: float, fits: Callable[[tuple[Event, ...]], bool]
) -> tuple[Event, ...]:
    """The events scaled by a factor that nearly fits, and nudged until they do.

    A stored or rounded factor is never trusted: its result is priced.
    """
    nudge = 1e-12
    scaled = _scale(events, factor)
    while not fits(scaled):
        factor, nudge = factor * (1 + nudge), 2 * nudge
        scaled = _scale(events, factor)
    return scaled


def calibrate_beside(
    settled: Iterable[Event],
    events: Iterable[Event],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = "tight",
) -> tuple[Event, ...]:
    """The events scaled by one common factor, so that they and the ``settled`` ones together fit epsilon.

    Formal guarantee: `price([*settled, *result], delta=delta).epsilon <= epsilon`, checked by pricing; it is at least
    0.999 epsilon whenever the price can come that close.

    >>> first = Event(kind="statistics", noise_multiplier=25.0, count=1, records=99, batch=99, sampling="full")
    >>> plan = Event(kind="g", noise_multiplier=1.0, count=50, records=99, batch=99, sampling="full")
    >>> [tuned] = calibrate_beside([first], [plan], epsilon=1.0, delta=1e-6)
    >>> 0.999 < price([first, tuned], delta=1e-6).epsilon <= 1.0
    True
    """
    settled, events = tuple(settled), tuple(events)
    alone = price(settled, delta=delta, accountant=accountant).epsilon
    if not alone < epsilon:
        raise PricingError(
            f"Expected what is settled to cost less than epsilon={epsilon}, got {alone:.4f}; give it a smaller share."
        )

    def cost(factor: float) -> float:
        return price((*settled, *_scale(bare, factor)), delta=delta, accountant=accountant).epsilon

    bare = calibrate(events, epsilon=epsilon, delta=delta, accountant=accountant)
    low, high = 1.0, 1.05
    while cost(high) > epsilon:
        low, high = high, high * 1.3
    for _ in range(_MOST_STEPS):
        if cost(high) >= 0.999 * epsilon or high / low - 1 < 1e-9:
            break
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return _scale(bare, high)


def _is_plain(events: Sequence[Event], accountant: Accountant) -> bool:
    """Whether the Gaussian factor is exact, or so near that a nudge finishes: a fine grid costs next to nothing."""
    coarse = any(e.mechanism == "discrete-gaussian" and (e.dimension or (e.grid_sigma or 0.0) < _FINE) for e in events)
    # Whether the secret of an epoch is worth anything depends on the noise that is looked for.
    sampled = any(is_subsampled(e) or e.sampling == "allocation" for e in events)
    return accountant == "tight" and not coarse and not sampled


def _gaussian_factor(events: Sequence[Event], epsilon: float, delta: float) -> float:
    """Exact for un-subsampled Gaussians, whose mu is inversely proportional to the factor; else a start."""
    if has_reports(events):
        return _reports_factor(events, epsilon, delta)
    once = [dataclasses.replace(e, sampling="wor") if e.sampling == "wr" else e for e in events]
    return gaussian_mu(once) / gdp_mu(epsilon, delta)


def _reports_factor(events: Sequence[Event], epsilon: float, delta: float) -> float:
    """A start for schedules with shuffled reports: a local epsilon of one, and enough for the Gaussians alone."""
    rest = [e for e in events if e.mechanism != "reports"]
    start = max(1 / e.noise_multiplier for e in events if e.mechanism == "reports")
    return max(start, _gaussian_factor(rest, epsilon, delta)) if rest else start


def _factor(events: Sequence[Event], epsilon: float, delta: float, accountant: Accountant) -> float:
    """Smallest common factor whose price fits: a root in log-log scale, where prices are nearly straight.

    The Illinois method aims at the middle of the tolerance below the budget, and stops inside it.
    """

    def excess(log_factor: float) -> float:
        scaled = _scale(events, math.exp(log_factor))
        paid = price(scaled, delta=delta, accountant=accountant).epsilon
        return min(math.log(max(paid, 1e-300) / epsilon), 700.0)

    low, at_low, high, at_high = _bracket(excess, events, _gaussian_factor(events, epsilon, delta))
    weigh_low, weigh_high = at_low + _AIM, at_high + _AIM
    for _ in range(_MOST_STEPS):
        if at_high > -2 * _AIM or high - low < 1e-9:
            break
        guess = (low * weigh_high - high * weigh_low) / (weigh_high - weigh_low)
        if not low < guess < high:
            guess = (low + high) / 2
        at_guess = excess(guess)
        if at_guess > 0:
            low, weigh_low, weigh_high = guess, at_guess + _AIM, weigh_high / 2
        else:
            high, at_high, weigh_high, weigh_low = guess, at_guess, at_guess + _AIM, weigh_low / 2
    return math.exp(high)


def _bracket(
    excess: Callable[[float], float], events: Sequence[Event], start: float
) -> tuple[float, float, float, float]:
    """Walk from a factor that fits down to one that does not, by strides that grow with the distance left."""
    high = math.log(start)
    at_high = excess(high)
    while at_high > 0:
        high += max(1.1 * min(at_high, 2.0), 0.01)
        at_high = excess(high)
    smallest = math.log(_LEAST_NOISE / min(e.noise_multiplier for e in events))
    low, at_low = high, at_high
    while at_low <= 0:
        high, at_high = low, at_low
        if low <= smallest:
            raise PricingError(
                "Expected delta below the chance that a record is sampled at all; here the price stays under "
                "epsilon with (almost) no noise, because delta covers the disclosure of a whole record. "
                "Lower delta, or sample more."
            )
        low -= max(0.8 * min(-at_low, 2.0), 0.01)
        at_low = excess(low)
    return low, at_low, high, at_high


def _scale(events: Iterable[Event], factor: float) -> tuple[Event, ...]:
    return tuple(e.scaled(factor) if e.count > 0 else e for e in events)
