"""From a budget to noise: the smallest multipliers whose price fits, always on the private side."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from scipy.optimize import brentq

from tacit.privacy import cache
from tacit.privacy.accountant import Accountant, price
from tacit.privacy.events import Event, PricingError, positive, probability
from tacit.privacy.gaussian import gdp_mu
from tacit.privacy.participations import worst_allocation
from tacit.privacy.pld import loss_scale
from tacit.privacy.schedule import entries_of, gaussian_mu, has_reports, is_subsampled, payable, profile_for

_AIM = 2e-4
_MOST_STEPS = 60
_LEAST_NOISE = 1e-3
_NUDGE = 1e-12
_FINE = 1e6


def calibrate(
    events: Iterable[Event], *, epsilon: float, delta: float, accountant: Accountant = "tight"
) -> tuple[Event, ...]:
    """The events with all noise multipliers scaled by one common factor, so that the price fits epsilon.

    Only the ratios of the given multipliers matter; give 1.0 to each to have equal ones.

    Formal guarantee: `price(result, delta=delta).epsilon <= epsilon`, checked by pricing the result; it is at
    least 0.999 epsilon whenever the price can come that close.

    Examples:
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
    # A stored or rounded factor is never trusted: the result is priced, and nudged if rounding overshot.
    nudge = _NUDGE
    scaled = _scale(events, factor)
    while price(scaled, delta=delta, accountant=accountant).epsilon > epsilon:
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

    Examples:
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


def split_budget(
    events: Iterable[Event], sensitivities: Sequence[float], *, epsilon: float, delta: float
) -> tuple[Event, ...]:
    """The multipliers of least total injected variance, sum_k count_k (z_k Delta_k)^2, at this budget.

    `sensitivities` are the replace-one sensitivities Delta_k of the events (any common unit). Without
    subsampling the optimum is closed-form: z_k is proportional to (c_k / (count_k Delta_k^2))^(1/4), where
    c_k z_k^-2 is what the kind adds to mu^2. One-pass events share one multiplier, since only the smallest
    counts. With subsampling the split minimises the same objective for the second moment of the privacy
    loss, then all multipliers are scaled by one factor to the true price: near-optimal, never over budget.

    Formal guarantee: `price(result, delta=delta).epsilon <= epsilon`.

    Examples:
        >>> kinds = [
        ...     Event(kind=name, noise_multiplier=1.0, count=10, records=100, batch=100, sampling="full")
        ...     for name in ("anchor", "difference")
        ... ]
        >>> anchor, difference = split_budget(kinds, [4.0, 1.0], epsilon=1.0, delta=1e-6)
        >>> round(difference.noise_multiplier / anchor.noise_multiplier, 6)
        2.0
    """
    events = tuple(events)
    if len(sensitivities) != len(events):
        raise PricingError(f"Expected as many sensitivities as events, got {len(sensitivities)} for {len(events)}.")
    spread = [positive("sensitivity", s) for s in sensitivities]
    payable(events)
    unit = [_with_multiplier(e, 1.0) for e in events]
    groups = _groups(unit, spread)
    multipliers = np.ones(len(events))
    for (members, _, _), z in zip(groups, _best_split(groups, gdp_mu(epsilon, delta)), strict=True):
        multipliers[members] = z
    split = [_with_multiplier(e, float(z)) for e, z in zip(unit, multipliers, strict=True)]
    return calibrate(split, epsilon=epsilon, delta=delta)


Group = tuple[list[int], float, Callable[[float], float]]


def _groups(events: Sequence[Event], sensitivities: Sequence[float]) -> list[Group]:
    """Members, variance at multiplier 1, and second moment of the loss as a function of the multiplier."""
    groups: list[Group] = []
    shared = [i for i, e in enumerate(events) if e.sampling == "one-pass" and e.protects != "silo" and e.count]
    alone = [[i] for i, e in enumerate(events) if e.count and i not in shared]
    for members in ([shared] if shared else []) + alone:
        inside = [events[i] for i in members]
        variance = math.fsum(events[i].count * sensitivities[i] ** 2 for i in members)
        groups.append((members, variance, partial(_second_moment, inside)))
    return groups


def _second_moment(events: Sequence[Event], multiplier: float) -> float:
    scaled = [_with_multiplier(e, multiplier) for e in events]
    if not is_subsampled(scaled[0]):
        return gaussian_mu(scaled) ** 2
    return entries_of(scaled[0]) * loss_scale(profile_for(scaled[0])) ** 2


def _best_split(groups: Sequence[Group], mu: float) -> list[float]:
    """Minimise sum_g variance_g z_g^2 subject to sum_g moment_g(z_g) <= mu^2, by one Lagrange multiplier."""

    def at(log_weight: float) -> list[float]:
        return [_balance(variance, moment, log_weight) for _, variance, moment in groups]

    def excess(log_weight: float) -> float:
        spent = math.fsum(moment(z) for (_, _, moment), z in zip(groups, at(log_weight), strict=True))
        return math.log(mu * mu / spent)

    return at(_increasing_root(excess, 0.0))


def _balance(variance: float, moment: Callable[[float], float], log_weight: float) -> float:
    """The z that minimises variance z^2 + weight moment(z), where 2 variance z^2 = weight p moment(z).

    p is the exponent of the moment's local power law z^-p: 2 for a Gaussian, less for little noise.
    """

    def excess(log_z: float) -> float:
        here, there = moment(math.exp(log_z)), moment(math.exp(log_z + 0.01))
        exponent = max(math.log(here / there) / 0.01, 1e-6)
        return math.log(2 * variance) + 2 * log_z - log_weight - math.log(exponent * here)

    return math.exp(_increasing_root(excess, 0.0))


def _increasing_root(function: Callable[[float], float], guess: float) -> float:
    low = high = guess
    while function(low) > 0:
        low -= 2.0
    while function(high) < 0:
        high += 2.0
    return low if low == high else float(brentq(function, low, high, xtol=1e-6))


def _is_plain(events: Sequence[Event], accountant: Accountant) -> bool:
    """Whether the Gaussian factor is exact, or so near that a nudge finishes: a fine grid costs next to nothing."""
    coarse = any(e.mechanism == "discrete-gaussian" and (e.dimension or (e.grid_sigma or 0.0) < _FINE) for e in events)
    return accountant == "tight" and not coarse and not any(is_subsampled(e) for e in events)


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


def _with_multiplier(event: Event, multiplier: float) -> Event:
    """The event with this multiplier on the same grid, whatever (positive) multiplier it had."""
    if event.noise_multiplier == 0.0:
        return dataclasses.replace(event, noise_multiplier=multiplier)
    return event.scaled(multiplier / event.noise_multiplier)
