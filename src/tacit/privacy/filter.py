"""Rules by which an account of many studies is closed: sound when plans and ends follow earlier messages.

A price holds for a plan that was settled before the first message. An account lives longer: later plans, and the moment
at which a server ends a study, may depend on messages that it has read. A *filter* is a rule that is fixed before the
first study, adds up what every release costs in one currency, and stops before a limit. Two are known to be sound:

- `gdp`: Gaussian releases that are not amplified by sampling. Their mu^2 add up; the limit is mu*^2, where mu* is the
  largest mu that (epsilon, delta) allows. It loses nothing.
- `renyi`: every release that Tacit can price. Renyi divergences of one order add up; the limit is epsilon less the
  conversion of that order at delta. The order is a function of epsilon and delta alone (`filter_order`).

A third rule is no filter. `fixed-in-advance` prices all studies as one composition, which is proved only if every plan
and every end was settled without reading messages; nothing that a study did not use may come back.

**One rule for life.** An account that changes its rule, or its order, by what it has heard is not private: a Gaussian
of 0.6 mu* followed by whichever of the two filters suits its message has been seen to reach 1.13 delta. The budget may
change while rule, order and delta stay: a bound on the sum is a bound, whenever it was chosen. What holds then is the
largest epsilon that the account ever had.

**Mass that has no divergence.** Discretised and truncated losses leave a mass of certain disclosure in each release,
and samplers have tails. Both are paid in delta, from a part that the rule sets aside for the life of the account.

References:
    Feldman, Zrnic. Individual privacy accounting via a Renyi filter (NeurIPS 2021; arXiv:2008.11193).
    Smith, Thakurta. Fully adaptive composition for Gaussian differential privacy (arXiv:2210.17520).
    Canonne, Kamath, Steinke. The discrete Gaussian for differential privacy (NeurIPS 2020): the conversion.
    Haney et al. Concurrent composition for interactive differential privacy with adaptive privacy-loss parameters
    (CCS 2023; arXiv:2309.05901): studies that run at the same time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
from scipy import special
from scipy.optimize import minimize_scalar

from tacit.privacy import cache
from tacit.privacy.discrete import effective_multiplier
from tacit.privacy.events import Event, PricingError, positive, probability
from tacit.privacy.gaussian import Floats, gdp_mu
from tacit.privacy.schedule import (
    entries_of,
    gaussian_mu,
    is_subsampled,
    is_whole,
    limit_of,
    loss_parts,
    payable,
    rounds_of,
)

RuleName = Literal["renyi", "gdp", "fixed-in-advance"]

# Below the best order for Gaussians alone: sampled releases with little noise need lower ones. See `filter_order`.
_CAUTION = 0.8
# The share of delta that is set aside.
_SET_ASIDE = {"renyi": 1e-2, "gdp": 1e-3, "fixed-in-advance": 1e-3}
# How many releases of sampled batches an account can pay the masses of, at least where delta is not tiny.
_MOST_RELEASES = 1 << 20
# Below it a mass is lost in the rounding of a profile.
_LEAST_TAIL = 1e-16
# Float arithmetic may round a sum to the cheap side; this is far above what it loses.
_SHAVE = 1 + 1e-12


class Cost(NamedTuple):
    """What releases take from an account: of the rule's limit, and of the delta that is set aside."""

    loss: float
    mass: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """The rule of an account, settled before its first study.

    Args:
        name: `renyi`, `gdp` or `fixed-in-advance`.
        epsilon: What all studies together may cost each record.
        delta: The probability with which that may fail.
        order: The Renyi order; None for the other rules.
        set_aside: The part of delta that pays for masses without a divergence and for tails of samplers.
        tail: The mass that one sampled release may leave out of its divergence.
    """

    name: RuleName
    epsilon: float
    delta: float
    order: float | None
    set_aside: float
    tail: float

    def __post_init__(self) -> None:
        if self.name not in get_args(RuleName):
            raise PricingError(f"Expected rule={self.name!r} to be one of {', '.join(get_args(RuleName))}.")
        positive("epsilon", self.epsilon)
        probability("delta", self.delta)
        if (self.order is None) != (self.name != "renyi") or not (self.order is None or self.order > 1):
            raise PricingError(f'Expected an order > 1 exactly for rule "renyi", got {self.order} for "{self.name}".')
        if not (0 < self.set_aside < self.delta and self.tail > 0):
            raise PricingError(
                f"Expected 0 < set_aside={self.set_aside} < delta={self.delta} and tail={self.tail} > 0."
            )

    @property
    def limit(self) -> float:
        """The largest sum of losses, in the rule's currency; zero where epsilon is too small for the order.

        Formal guarantee: if the losses of all releases add up to at most this, whatever decided on each of them, and
        their masses and tails to at most ``set_aside``, then all messages are (epsilon, delta)-DP for each record.
        """
        filtered = self.delta - self.set_aside
        if self.name == "gdp":
            return gdp_mu(self.epsilon, filtered) ** 2
        if self.order is None:
            raise PricingError(f'Rule "{self.name}" is no filter; its price is that of all studies together.')
        return max(0.0, self.epsilon - conversion(self.order, filtered))


def rule_for(name: RuleName, epsilon: float, delta: float) -> Rule:
    """The rule of this name for a new account.

    >>> rule = rule_for("renyi", 4.0, 1e-6)
    >>> round(rule.order, 2), round(rule.limit, 3)
    (5.94, 1.747)
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    if name not in get_args(RuleName):
        raise PricingError(f"Expected rule={name!r} to be one of {', '.join(get_args(RuleName))}.")
    kept = _SET_ASIDE[name] * delta
    order = filter_order(epsilon, delta - kept) if name == "renyi" else None
    tail = max(kept / _MOST_RELEASES, _LEAST_TAIL)
    return Rule(name=name, epsilon=epsilon, delta=delta, order=order, set_aside=kept, tail=tail)


def conversion(order: float, delta: float) -> float:
    """What a bound on the Renyi divergence of this order gains to become an epsilon at delta.

    Formal guarantee: a divergence of at most r, both ways, implies (r + conversion, delta)-DP. It holds for measures of
    mass below one too, so that masses that were set apart are only added to delta.

    >>> round(conversion(10.0, 1e-6), 4)
    1.1739
    """
    delta = probability("delta", delta)
    if not 1 < order < math.inf:
        raise PricingError(f"Expected order={order} > 1 and finite.")
    return math.log1p(-1 / order) - math.log(order * delta) / (order - 1)


@lru_cache(maxsize=256)
def filter_order(epsilon: float, delta: float) -> float:
    """The order of an account, from its epsilon and delta alone: 1 + 0.8 (a - 1), where a suits Gaussians best.

    The best order for Gaussian releases is the a that maximises (epsilon - conversion(a)) / a, how much mu^2 / 2 an
    account holds. Sampled releases have heavier tails, and a plan that takes most of an account with little noise (a
    multiplier below 1/2) costs many times its price at that order. 0.8 gives up 3 percent of an account of Gaussians
    for that. Over 96 accounts filled with one kind of plan (epsilon 1 to 8; full, Poisson, without and with
    replacement; plans of 85, 50 and 25 percent of epsilon), the releases that fit cost, by their joint price, 88 to 90
    percent of epsilon in the median.

    >>> filter_order(1.0, 1e-6) > filter_order(4.0, 1e-6) > filter_order(20.0, 1e-6) > 1
    True
    """

    def emptiness(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return -(epsilon - conversion(order, delta)) / order

    start = math.log(-2 * math.log(delta) / epsilon)
    best = minimize_scalar(emptiness, bounds=(start - 6, start + 4), method="bounded", options={"xatol": 1e-9})
    # Few digits: the order is written down and compared.
    return float(f"{1 + _CAUTION * math.exp(float(best.x)):.7g}")


def cost(rule: Rule, events: Iterable[Event]) -> Cost:
    """What the releases of one study take from an account by its rule.

    Releases of a sampled or full batch count one by one; passes over the records and running sums count whole. With a
    limit on participations the dearest rounds are counted.

    Formal guarantee: at least the sum of the losses (and masses) of any releases that these events allow, in whatever
    order, number and interleaving a server asks for them.

    >>> rule = rule_for("renyi", 4.0, 1e-6)
    >>> plan = Event(kind="g", noise_multiplier=30.0, count=50, records=99, batch=99, sampling="full")
    >>> round(cost(rule, [plan]).loss / rule.limit, 3)
    0.094
    """
    paid = payable(events)
    if any(event.noise_multiplier == 0.0 for event in paid):
        return Cost(math.inf, 0.0)
    if rule.name == "fixed-in-advance":
        raise PricingError(f'Rule "{rule.name}" is no filter; its price is that of all studies together.')
    if rule.name == "gdp":
        _check_plain(paid)
    whole = [event for event in paid if is_whole(event)]
    single = [event for event in paid if not is_whole(event)]
    loss = math.fsum([_whole_loss(rule, whole), _dearest(rule, single)])
    mass = rule.tail * sum(entries_of(event) * masses(event) for event in paid)
    return Cost(loss * _SHAVE, mass)


def _check_plain(paid: Iterable[Event]) -> None:
    for event in paid:
        if is_subsampled(event):
            how = "shuffled reports" if event.mechanism == "reports" else f'sampling "{event.sampling}"'
            raise PricingError(
                f'Expected full batches or one pass, of Gaussian releases, under the rule "gdp", not {how} (kind '
                f'{event.kind!r}); use sampling="full", or a silo whose account has the rule "renyi".'
            )


def _whole_loss(rule: Rule, whole: list[Event]) -> float:
    """Passes and running sums of one study: one Gaussian, and each report of a pass as often as a record enters it."""
    plain = [event for event in whole if not is_subsampled(event)]
    parts = [_gaussian_loss(rule, gaussian_mu(plain) ** 2)] if plain else []
    parts += [entries_of(event) * _single_loss(rule, event) for event in whole if is_subsampled(event)]
    return math.fsum(parts)


def _dearest(rule: Rule, single: list[Event]) -> float:
    """The largest sum of losses over all choices of rounds: the dearest rounds first, until the limit."""
    limit = limit_of(single)
    limited = [event for event in single if event.participations is not None]
    losses = [event.count * _single_loss(rule, event) for event in single if event.participations is None]
    left = math.inf if limit is None else limit
    rounds = [(event.steps * _single_loss(rule, event), rounds_of(event)) for event in limited]
    for one, count in sorted(rounds, reverse=True):
        taken = min(count, left)
        losses.append(one * taken if taken else 0.0)
        left -= taken
    return math.fsum(losses)


def _single_loss(rule: Rule, event: Event) -> float:
    if rule.order is None:
        return _gaussian_loss(rule, gaussian_mu([dataclasses.replace(event, count=1)]) ** 2)
    return release_divergence(event, rule.order, rule.tail)


def _gaussian_loss(rule: Rule, square: float) -> float:
    return square if rule.order is None else rule.order * square / 2


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
if TYPE_CHECKING:
    from tacit.privacy.profiles import Profile

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
    from tacit.privacy.pld import loss_scale, profile_range

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
