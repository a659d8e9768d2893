"""A silo that answers a limited number of rounds: the dearest way in which a server can choose them.

The limit is on rounds of all kinds together, and the server decides of which kinds they are. So a schedule is priced
at the allocation of the limit that costs most. Among kinds that dominate one another (of two releases one is never
more private than the other, whatever else is released) that is the dearest kind first. Kinds that cannot be compared
get the whole limit each: their sum is above every allocation. So do passes over the records and running sums, whose
price is not a sum over their releases.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from tacit.privacy.discrete import effective_multiplier
from tacit.privacy.events import Event, PricingError
from tacit.privacy.schedule import is_subsampled


def worst_allocation(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events without a common limit that cost at least as much as any allocation of it.

    Formal guarantee: every sequence of rounds that respects each event's `count` and the common `participations` is
    dominated by the returned events, adaptively: an exchange of a round for one of a dearer kind never makes the whole
    more private.

    >>> terms = dict(count=8, records=9, batch=9, sampling="full", participations=10)
    >>> dear, cheap = (Event(kind=str(z), noise_multiplier=z, **terms) for z in (2.0, 3.0))
    >>> [(e.kind, e.count) for e in worst_allocation([cheap, dear])]
    [('3.0', 2), ('2.0', 8)]
    """
    events = tuple(events)
    limit = limit_of(events)
    if limit is None:
        return tuple(dataclasses.replace(e, steps=1) for e in events)
    counts = [e.count for e in events]
    for chain in _chains(events):
        left = limit
        for i in chain:
            rounds = min(rounds_of(events[i]), left)
            counts[i] = min(events[i].count, rounds * events[i].steps)
            left -= rounds
    return tuple(
        dataclasses.replace(e, count=n, participations=None, steps=1)
        for e, n in zip(events, counts, strict=True)
        if n > 0
    )


def limit_of(events: Iterable[Event]) -> int | None:
    """The common limit on rounds, if there is one; several limits in one schedule raise."""
    limits = {e.participations for e in events if e.participations is not None}
    if len(limits) > 1:
        listed = ", ".join(map(str, sorted(limits)))
        raise PricingError(f"Expected one limit of participations in a schedule, got {listed}; they are of one silo.")
    return limits.pop() if limits else None


def rounds_of(event: Event) -> int:
    """How many rounds make an event's releases."""
    return -(-event.count // event.steps)


def is_whole(event: Event) -> bool:
    """Whether the price of an event is not a sum over its releases: passes over the records, and running sums."""
    return event.sampling == "one-pass" or event.mechanism == "cumulative"


def is_split_exactly(events: Iterable[Event]) -> bool:
    """Whether the worst allocation can happen: the limit binds nothing, or nothing was counted twice."""
    limited = [e for e in events if e.participations is not None and e.count > 0]
    limit = limit_of(limited)
    if limit is None or sum(rounds_of(e) for e in limited) <= limit:
        return True
    return not any(map(is_whole, limited)) and len(_chains(limited)) == 1


def _chains(events: Sequence[Event]) -> list[list[int]]:
    """The limited events in groups, dearest first, in each of which every event dominates all that follow."""
    limited = [i for i, e in enumerate(events) if e.participations is not None and not is_whole(e)]
    chains: list[list[int]] = []
    for i in sorted(limited, key=lambda i: _round_square(events[i]), reverse=True):
        for chain in chains:
            if all(_dominates(events[j], events[i]) for j in chain):
                chain.append(i)
                break
        else:
            chains.append([i])
    return chains


def _round_square(event: Event) -> float:
    """What a round would add to mu^2 if every batch were everything: an order to try, nothing more."""
    multiplier = effective_multiplier(event)
    return float("inf") if multiplier == 0.0 else event.steps / multiplier**2


def _dominates(dear: Event, cheap: Event) -> bool:
    """Whether a round of ``dear`` is known never to be more private than one of ``cheap``."""
    if not is_subsampled(dear) and not is_subsampled(cheap):
        return _round_square(dear) >= _round_square(cheap)
    if dear.steps < cheap.steps or effective_multiplier(dear) > effective_multiplier(cheap):
        return False
    if "reports" in (dear.mechanism, cheap.mechanism):
        return False
    if is_subsampled(dear):
        # Of one way to sample, less noise is dearer: the other adds noise of its own to the same release.
        return _sampled_alike(dear, cheap)
    # A batch drawn at random is cheaper than everything: given the batch, the record is in it or it is not. A record
    # that may be drawn several times, or that displaces another, moves a release by more than full batches do.
    return cheap.sampling != "wr" and cheap.capacity is None


def _sampled_alike(one: Event, other: Event) -> bool:
    names = ("records", "batch", "sampling", "capacity", "protects")
    return all(getattr(one, name) == getattr(other, name) for name in names) and is_subsampled(other)
