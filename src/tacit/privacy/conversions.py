"""From inter-silo record-level DP (ISRL-DP) to the privacy of a whole silo's data, and back.

Other notions need no computation. ISRL-DP implies central DP with the same numbers: the model is post-processing of all
messages, and one record is in one silo. Add-or-remove accountants quote twice the noise multiplier for the same noise,
because adding a record clipped to C moves a sum by C and replacing one by 2C. Group privacy gives all n records of a
silo (n epsilon, n e^((n-1) epsilon) delta); `user_level` is sharper.

References:
    Lowy, Ghafelebashi, Razaviyayn. Private non-convex federated learning without a trusted server.
    AISTATS 2023, appendices B (relations between notions) and G (ISRL-DP and user-level DP together).
"""

import dataclasses
import math
from collections.abc import Iterable

from tacit.privacy.calibration import scaled_to_fit
from tacit.privacy.discrete import effective_multiplier
from tacit.privacy.events import Event, PricingError, positive, probability
from tacit.privacy.gaussian import gdp_epsilon, gdp_mu
from tacit.privacy.schedule import check_running_sums, payable, remembered_square
from tacit.privacy.strategy import REMEMBERS

# What does not convert into anything.
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


def user_level_mu(events: Iterable[Event]) -> float:
    """Separation mu of two silos that differ in every record.

    A batch of b records divided by the fixed K moves by b times the replace-one sensitivity, so a release
    costs (b/z)^2, where b is K, or what a Poisson batch may hold (its capacity, else all records). Running
    sums move by 1, 2, ..., count batches.

    Formal guarantee: the releases are mu-GDP for replacing the whole data of the silo, against a server that
    sees every message; for full batches this is records times the record-level mu.

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
        releases = remembered_square(event, everywhere=True) if event.mechanism in REMEMBERS else t
        squares.append(releases * (batch / z) ** 2)
    return math.sqrt(math.fsum(squares))


def user_level(events: Iterable[Event], *, delta: float) -> Guarantee:
    """The user-level (whole-silo) guarantee of a schedule, beside its record-level one.

    Formal guarantee: as `user_level_mu`.

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
    return scaled_to_fit(events, factor, lambda scaled: user_level(scaled, delta=delta).epsilon <= epsilon)


def _largest_batch(event: Event) -> int:
    if event.protects == "silo":
        return 1  # The multiplier is already relative to the change of the whole silo.
    if event.sampling in ("poisson", "allocation"):
        return event.records if event.capacity is None else min(event.capacity, event.records)
    return event.batch
