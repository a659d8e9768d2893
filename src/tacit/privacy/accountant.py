"""What a schedule of releases costs: events -> (epsilon, delta).

The `tight` accountant reads the schedule's privacy curve (`tacit.privacy.curve`). What cannot be computed tightly is
refused, never replaced by a looser number. A price says which bound proved it.

Sampling *silos* amplifies nothing for records: whether or not participation is secret, a silo that is in or
out moves the mean by K records while the noise hides one. So a silo pays for each round it takes part in.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from tacit.privacy.curve import curve_of
from tacit.privacy.events import Event, PricingError, probability
from tacit.privacy.schedule import is_split_exactly, payable, worst_allocation

Accountant = Literal["tight", "rdp", "zcdp"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Price:
    """A certified price: the events are (epsilon, delta)-DP.

    Args:
        epsilon: Upper bound; infinite if something is released without noise.
        delta: The delta at which epsilon was read.
        accountant: What proved it: `gdp`, `pld` or `pure` (see `tacit.privacy.curve`), `rdp`, `zcdp`, or `none`
            where there is no noise.
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

    >>> plan = Event(kind="g", noise_multiplier=30.48, count=50, records=99, batch=99, sampling="full")
    >>> spent = price([plan], delta=1 / 1234**2)
    >>> round(spent.epsilon, 3), spent.accountant, spent.exact
    (1.0, 'gdp', True)
    """
    delta = probability("delta", delta)
    if accountant not in get_args(Accountant):
        raise PricingError(
            f"Expected accountant={accountant!r} to be one of {', '.join(get_args(Accountant))}; "
            "for the noise a paper prints, see tacit.plans.catalogue.paper_noise."
        )
    events = tuple(events)
    paid = worst_allocation(payable(events))
    if any(e.noise_multiplier == 0.0 for e in paid):
        return Price(epsilon=math.inf, delta=delta, accountant="none", mu=math.inf, exact=True, events=events)
    if accountant != "tight":
        from tacit.privacy import views

        rdp = accountant == "rdp"
        epsilon = views.rdp_epsilon(paid, delta) if rdp else views.zcdp_epsilon(views.zcdp_rho(paid), delta)
        return Price(epsilon=epsilon, delta=delta, accountant=accountant, mu=None, exact=False, events=events)
    curve = curve_of(paid, delta)
    epsilon, proof = curve.price
    continuous = all(e.mechanism != "discrete-gaussian" and e.sampling != "allocation" for e in paid)
    exact = is_split_exactly(events) and continuous and not curve.is_composed
    mu = curve.mu if proof == "gdp" else None
    return Price(epsilon=epsilon, delta=delta, accountant=proof, mu=mu, exact=exact, events=events)


def colluding(events: Iterable[Event], *, delta: float) -> Price:
    """What is left of the price if the shuffler colludes with the server, or there is none.

    Every report then stands alone: the local randomiser's epsilon, composed over all releases and streams, is the
    inter-silo record-level guarantee (the batch is still the silo's secret). Gaussian releases cost what they cost.

    >>> plan = Event(kind="g", noise_multiplier=2.0, count=3, records=50, batch=50, sampling="full",
    ...              mechanism="reports", reports=500, streams=(1.0,))
    >>> round(price([plan], delta=1e-6).epsilon, 3), round(colluding([plan], delta=1e-6).epsilon, 3)
    (0.164, 1.5)
    """
    alone = [dataclasses.replace(e, reports=1) if e.mechanism == "reports" else e for e in events]
    return price(alone, delta=delta)


def capped(events: Iterable[Event], max_participations: int | None) -> tuple[Event, ...]:
    """The events of a silo that answers at most this many rounds, of all kinds together.

    A plan is priced at this cap, and the silo refuses to answer beyond it. The server chooses which kinds are
    answered, so `price` counts the dearest choice (`tacit.privacy.schedule`).

    >>> plan = Event(kind="g", noise_multiplier=9.0, count=50, records=99, batch=99, sampling="full")
    >>> capped([plan], 20)[0].count
    20
    """
    if max_participations is None:
        return tuple(events)
    if max_participations < 0:
        raise PricingError(f"Expected max_participations={max_participations} >= 0.")
    return tuple(
        dataclasses.replace(e, count=min(e.count, max_participations * e.steps), participations=max_participations)
        for e in events
    )


def spent(events: Iterable[Event], participations: Mapping[str, int], *, delta: float) -> Price:
    """What the realised participations cost, to be reported beside the price that was reserved.

    `participations` maps a kind to how many of its releases this silo really made; a missing kind made none.

    Formal guarantee: (epsilon, delta)-DP if the rounds to take part in were chosen without looking at this
    silo's messages. If they were, only the price that was reserved is a guarantee.

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
