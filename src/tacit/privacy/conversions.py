"""From inter-silo record-level DP (ISRL-DP) to other notions of privacy, and back.

`SILO_SAMPLING` states what does not convert into anything: sampling of silos.

References:
    Lowy, Ghafelebashi, Razaviyayn. Private non-convex federated learning without a trusted server.
    AISTATS 2023, appendices B (relations between notions) and G (ISRL-DP and user-level DP together).
"""

import dataclasses
import math
from collections.abc import Iterable

from tacit.privacy.discrete import effective_multiplier
from tacit.privacy.events import Event, PricingError, non_negative, positive, probability
from tacit.privacy.gaussian import gdp_epsilon, gdp_mu
from tacit.privacy.schedule import check_running_sums, payable

SILO_SAMPLING = (
    "Sampling silos amplifies nothing at record level, whether participation is hidden or not: a silo that "
    "is in or out of a round moves the average by all of its records, while its noise hides one. A silo pays "
    "for every round in which it takes part."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An (epsilon, delta) guarantee, and for whom it holds."""

    epsilon: float
    delta: float
    protects: str


def to_central(epsilon: float, delta: float) -> Guarantee:
    """ISRL-DP implies central DP with the same numbers, for replacing one record of the pooled data.

    The trained model is post-processing of all silos' messages, and one record is in one silo.

    Examples:
        >>> to_central(1.0, 1e-6).epsilon
        1.0
    """
    return Guarantee(
        epsilon=non_negative("epsilon", epsilon),
        delta=probability("delta", delta),
        protects="one record of all silos' pooled data, against whoever sees the model",
    )


def to_user_level(epsilon: float, delta: float, records: int) -> Guarantee:
    """Group privacy: (n epsilon, n e^((n-1) epsilon) delta) for all n records of a silo.

    Usually vacuous; `user_level` is sharper for Gaussian releases, and much sharper for one pass.

    Examples:
        >>> whole = to_user_level(0.01, 1e-9, 100)
        >>> round(whole.epsilon, 9), f"{whole.delta:.2g}"
        (1.0, '2.7e-07')
    """
    epsilon, delta = non_negative("epsilon", epsilon), probability("delta", delta)
    log_delta = math.log(records) + (records - 1) * epsilon + math.log(delta)
    return Guarantee(epsilon=records * epsilon, delta=math.exp(min(0.0, log_delta)), protects="all records of one silo")


def user_level_mu(events: Iterable[Event]) -> float:
    """Separation mu of two silos that differ in every record.

    A batch of b records divided by the fixed K moves by b times the replace-one sensitivity, so a release
    costs (b/z)^2, where b is K, or what a Poisson batch may hold (its capacity, else all records). Running
    sums move by 1, 2, ..., count batches.

    Formal guarantee: the releases are mu-GDP for replacing the whole data of the silo, against a server that
    sees every message; for full batches this is records times the record-level mu.

    Examples:
        >>> plan = Event(kind="g", noise_multiplier=500.0, count=4, records=100, batch=100, sampling="full")
        >>> user_level_mu([plan])
        0.4
    """
    squares = []
    paid = payable(events)
    check_running_sums(paid)
    for event in paid:
        if event.protects == "sensitive-attribute":
            raise PricingError(
                "Expected events that protect whole records; noise for a sensitive attribute does not cover "
                "the rest of the silo's data."
            )
        z, t = effective_multiplier(event), event.count
        if z == 0.0:
            return math.inf
        if event.mechanism == "reports":
            return math.inf  # Reports hide a record among others, not a whole silo.
        batch = _largest_batch(event)
        releases = t * (t + 1) * (2 * t + 1) / 6 if event.mechanism == "cumulative" else t
        squares.append(releases * (batch / z) ** 2)
    return math.sqrt(math.fsum(squares))


def user_level(events: Iterable[Event], *, delta: float) -> Guarantee:
    """The user-level (whole-silo) guarantee of a schedule, beside its record-level one.

    Formal guarantee: as `user_level_mu`.

    Examples:
        >>> plan = Event(kind="g", noise_multiplier=500.0, count=4, records=100, batch=100, sampling="full")
        >>> round(user_level([plan], delta=1e-6).epsilon, 2)
        1.77
    """
    mu = user_level_mu(events)
    epsilon = math.inf if mu == math.inf else gdp_epsilon(mu, delta)
    return Guarantee(epsilon=epsilon, delta=probability("delta", delta), protects="all records of one silo")


def calibrate_user_level(events: Iterable[Event], *, epsilon: float, delta: float) -> tuple[Event, ...]:
    """Scale all noise by one factor so that the whole silo's data is protected at (epsilon, delta).

    Formal guarantee: the result is (epsilon, delta)-DP for replacing all records of a silo and a fortiori
    for replacing one, against a server that sees every message: ISRL-DP and user-level DP together.

    Examples:
        >>> plan = Event(kind="g", noise_multiplier=1.0, count=50, records=100, batch=100, sampling="full")
        >>> tuned = calibrate_user_level([plan], epsilon=1.0, delta=1e-6)
        >>> user_level(tuned, delta=1e-6).epsilon <= 1.0
        True
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    events = tuple(events)
    factor = user_level_mu(events) / gdp_mu(epsilon, delta)
    if not math.isfinite(factor):
        raise PricingError("Expected noise_multiplier > 0 for every kind; only their ratios matter here.")
    nudge = 1e-12
    scaled = tuple(e.scaled(factor) if e.count > 0 else e for e in events)
    while user_level(scaled, delta=delta).epsilon > epsilon:
        factor, nudge = factor * (1 + nudge), 2 * nudge
        scaled = tuple(e.scaled(factor) if e.count > 0 else e for e in events)
    return scaled


def record_budget_for_user_level(epsilon: float, delta: float, records: int) -> Guarantee:
    """The record-level budget from which group privacy gives this user-level one (appendix G).

    Record level epsilon/n and delta / (n e^((n-1) epsilon/n)); the paper's delta/(4n) is a simplification
    valid for epsilon <= 1. For Gaussian releases `calibrate_user_level` needs less noise.

    Examples:
        >>> small = record_budget_for_user_level(1.0, 1e-6, 100)
        >>> back = to_user_level(small.epsilon, small.delta, 100)
        >>> round(back.epsilon, 9), f"{back.delta:.3g}"
        (1.0, '1e-06')
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    per_record = epsilon / records
    small = math.exp(math.log(delta) - math.log(records) - (records - 1) * per_record)
    return Guarantee(epsilon=per_record, delta=small, protects="one record of one silo")


def replace_from_add_remove(epsilon: float, delta: float) -> Guarantee:
    """A guarantee for adding or removing a record, restated for replacing one: remove one, then add one.

    Formal guarantee: (2 epsilon, (1 + e^epsilon) delta) for replace-one.

    Examples:
        >>> replace_from_add_remove(0.5, 1e-6).epsilon
        1.0
    """
    epsilon, delta = non_negative("epsilon", epsilon), probability("delta", delta)
    return Guarantee(
        epsilon=2 * epsilon, delta=min(1.0, (1 + math.exp(epsilon)) * delta), protects="replacing one record"
    )


def add_remove_multiplier(noise_multiplier: float) -> float:
    """The multiplier that add-or-remove accountants would quote for the same noise.

    A sum of vectors clipped to C moves by C when one is added and by 2C when one is replaced, so the same
    sigma is sigma/C = 2 z. Guarantees with public sizes (replace-one) do not imply add-or-remove ones: they
    say nothing about the number of records.

    Examples:
        >>> add_remove_multiplier(4.0)
        8.0
    """
    return 2 * non_negative("noise_multiplier", noise_multiplier)


def _largest_batch(event: Event) -> int:
    if event.protects == "silo":
        return 1  # The multiplier is already relative to the change of the whole silo.
    if event.sampling == "poisson":
        return event.records if event.capacity is None else min(event.capacity, event.records)
    return event.batch
