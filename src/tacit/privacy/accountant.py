"""What a schedule of releases costs: events -> (epsilon, delta).

The `tight` accountant uses, for each schedule, the sharpest rigorous statement that is known:

- un-subsampled Gaussians (full batch, one-pass, cumulative, and discrete ones through a dominating
  Gaussian) compose exactly: mu^2 is a sum, whatever the order and however adaptive;
- with subsampled releases or shuffled reports, each kind's privacy profile becomes a privacy loss distribution;
  they are convolved, together with one Gaussian for everything else.

Sampling *silos* amplifies nothing for records: whether or not participation is secret, a silo that is in or
out moves the mean by K records while the noise hides one. So a silo pays for each round it takes part in.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from tacit.privacy import cache, views
from tacit.privacy.events import Event, PricingError, probability
from tacit.privacy.gaussian import gdp_epsilon
from tacit.privacy.pld import Composition
from tacit.privacy.schedule import entries_of, gaussian_mu, has_reports, is_subsampled, loss_parts, payable

Accountant = Literal["tight", "rdp", "zcdp"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Price:
    """A certified price: the events are (epsilon, delta)-DP.

    Args:
        epsilon: Upper bound; infinite if something is released without noise.
        delta: The delta at which epsilon was read.
        accountant: What proved it: `gdp`, `pld`, `rdp` or `zcdp`.
        mu: The schedule's Gaussian separation where it is mu-GDP, else None.
        exact: Whether the price is attained: some neighbouring data sets and queries are no more private.
        events: What was priced.
    """

    epsilon: float
    delta: float
    accountant: str
    mu: float | None
    exact: bool
    events: tuple[Event, ...]


def price(events: Iterable[Event], *, delta: float, accountant: Accountant = "tight") -> Price:
    """Price the releases of one silo at this delta.

    Formal guarantee: the silo's messages, all together and against a server that chooses every query from
    earlier messages, are (epsilon, delta)-DP for replacing one record (or what the events protect). Nothing
    is assumed about the server or other silos. Unsupported combinations raise `PricingError`.

    Examples:
        >>> plan = Event(kind="g", noise_multiplier=30.48, count=50, records=99, batch=99, sampling="full")
        >>> spent = price([plan], delta=1 / 1234**2)
        >>> round(spent.epsilon, 3), spent.accountant, spent.exact
        (1.0, 'gdp', True)
    """
    delta = probability("delta", delta)
    if accountant not in get_args(Accountant):
        raise PricingError(
            f"Expected accountant={accountant!r} to be one of {', '.join(get_args(Accountant))}; "
            "for the noise a paper prints, see tacit.algorithms.paper_noise."
        )
    events = tuple(events)
    paid = payable(events)
    if any(e.noise_multiplier == 0.0 for e in paid):
        return Price(epsilon=math.inf, delta=delta, accountant="none", mu=math.inf, exact=True, events=events)
    if accountant == "rdp":
        epsilon = views.rdp_epsilon(paid, delta)
        return Price(epsilon=epsilon, delta=delta, accountant="rdp", mu=None, exact=False, events=events)
    if accountant == "zcdp":
        epsilon = views.zcdp_epsilon(views.zcdp_rho(paid), delta)
        return Price(epsilon=epsilon, delta=delta, accountant="zcdp", mu=None, exact=False, events=events)
    return _tight(events, paid, delta)


def _tight(events: tuple[Event, ...], paid: tuple[Event, ...], delta: float) -> Price:
    if has_reports(paid):
        epsilon = min(_composed(paid, delta), _pure(paid))
        return Price(epsilon=epsilon, delta=delta, accountant="pld", mu=None, exact=False, events=events)
    mu = gaussian_mu(paid)
    by_gdp = gdp_epsilon(mu, delta)
    plain = Price(
        epsilon=by_gdp,
        delta=delta,
        accountant="gdp",
        mu=mu,
        exact=all(e.mechanism != "discrete-gaussian" for e in paid),
        events=events,
    )
    if not any(is_subsampled(e) for e in paid):
        return plain
    epsilon = _composed(paid, delta)
    if by_gdp <= epsilon:
        return dataclasses.replace(plain, exact=False)
    return Price(epsilon=epsilon, delta=delta, accountant="pld", mu=None, exact=False, events=events)


def _composed(paid: tuple[Event, ...], delta: float) -> float:
    return cache.remember("epsilon", paid, delta, lambda: Composition(loss_parts(paid), delta).epsilon_at(delta))


def _pure(paid: tuple[Event, ...]) -> float:
    """The sum of the local randomisers' epsilons: a bound with delta = 0 that needs no crowd."""
    if any(e.mechanism != "reports" for e in paid):
        return math.inf
    return math.fsum(entries_of(e) * math.fsum(e.local_epsilons) for e in paid)


def colluding(events: Iterable[Event], *, delta: float) -> Price:
    """What is left of the price if the shuffler colludes with the server, or there is none.

    Every report then stands alone: the local randomiser's epsilon, composed over all releases and streams, is the
    inter-silo record-level guarantee (the batch is still the silo's secret). Gaussian releases cost what they cost.

    Examples:
        >>> plan = Event(kind="g", noise_multiplier=2.0, count=3, records=50, batch=50, sampling="full",
        ...              mechanism="reports", reports=500, streams=(1.0,))
        >>> round(price([plan], delta=1e-6).epsilon, 3), round(colluding([plan], delta=1e-6).epsilon, 3)
        (0.164, 1.5)
    """
    alone = [dataclasses.replace(e, reports=1) if e.mechanism == "reports" else e for e in events]
    return price(alone, delta=delta)


def capped(events: Iterable[Event], max_participations: int | None) -> tuple[Event, ...]:
    """The events with each count limited to the participations that the silo agreed to.

    A plan is priced at this cap, and the silo refuses to answer beyond it; hidden or not, being left out of
    other rounds amplifies nothing.

    Examples:
        >>> plan = Event(kind="g", noise_multiplier=9.0, count=50, records=99, batch=99, sampling="full")
        >>> [silo] = capped([plan], 20)
        >>> silo.count
        20
    """
    if max_participations is None:
        return tuple(events)
    if max_participations < 0:
        raise PricingError(f"Expected max_participations={max_participations} >= 0.")
    return tuple(dataclasses.replace(e, count=min(e.count, max_participations)) for e in events)


def spent(events: Iterable[Event], participations: Mapping[str, int], *, delta: float) -> Price:
    """What the realised participations cost, to be reported beside the price that was reserved.

    `participations` maps a kind to how many of its releases this silo really made; a missing kind made none.

    Formal guarantee: (epsilon, delta)-DP if the rounds to take part in were chosen without looking at this
    silo's messages. If they were, only the price that was reserved is a guarantee.

    Examples:
        >>> plan = Event(kind="g", noise_multiplier=30.48, count=50, records=99, batch=99, sampling="full")
        >>> round(spent([plan], {"g": 20}, delta=1 / 1234**2).epsilon, 3)
        0.612
    """
    events = tuple(events)
    unknown = set(participations) - {e.kind for e in events}
    if unknown:
        raise PricingError(f"Expected participations in priced kinds only, got {', '.join(sorted(unknown))}.")
    made = []
    for event in events:
        count = participations.get(event.kind, 0)
        if count > event.count:
            raise PricingError(
                f"Expected participations={count} <= count={event.count} of kind {event.kind!r}; "
                "the price reserved does not cover it."
            )
        made.append(dataclasses.replace(event, count=count))
    return price(made, delta=delta)
