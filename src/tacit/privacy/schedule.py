"""The pieces of a schedule: what may be composed, the Gaussian part, and the profiles of the rest.

A silo may answer a limited number of rounds, of all kinds together, and the server decides of which kinds they are. So
a schedule is priced at the allocation of the limit that costs most. Among kinds that dominate one another (of two
releases one is never more private than the other, whatever else is released) that is the dearest kind first. Kinds
that cannot be compared get the whole limit each: their sum is above every allocation. So do passes over the records
and running sums, whose price is not a sum over their releases.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tacit.privacy.discrete import effective_multiplier
from tacit.privacy.events import Event, PricingError, check_pass
from tacit.privacy.gaussian import gauss_delta
from tacit.privacy.strategy import REMEMBERS, strategy_of

if TYPE_CHECKING:
    from tacit.privacy.profiles import Profile


def payable(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events that cost something, after checking that they describe one silo and one guarantee."""
    events = tuple(events)
    for event in events:
        if not isinstance(event, Event):
            raise PricingError(f"Expected events of type tacit.privacy.Event, got {event!r}.")
    paid = tuple(e for e in events if e.count > 0)
    for name in ("records", "protects"):
        values = sorted({str(getattr(e, name)) for e in paid})
        if len(values) > 1:
            raise PricingError(
                f"Expected one value of {name} in a schedule, got {', '.join(values)}; "
                "price each silo, and each thing it protects, on its own."
            )
    check_pass(e for e in paid if e.sampling == "one-pass")
    correlated = any(e.mechanism == "correlated" for e in paid)
    check_running_sums([e for e in paid if e.sampling == "full" or e.protects == "silo" or correlated])
    return paid


def check_running_sums(events: Iterable[Event]) -> None:
    """Raise if several of these events have noise that remembers: their joint price depends on how they interleave."""
    several = [e.mechanism for e in events if e.mechanism in REMEMBERS]
    if len(several) > 1:
        raise PricingError(
            f'Expected at most one event with mechanism "{several[0]}" where a record is in every increment; the '
            "price depends on which running sum an increment enters, so merge them into one."
        )


def gaussian_mu(events: Iterable[Event]) -> float:
    """Total separation mu of releases that are not amplified by sampling.

    Formal guarantee: the composition is mu-GDP, fully adaptively; subsampled events are counted as if every
    record were in every batch (with all `batch` draws, if with replacement). Shuffled reports have no Gaussian
    separation and raise.
    """
    events = tuple(events)
    if has_reports(events):
        raise PricingError("Expected Gaussian releases; shuffled reports have a profile but no Gaussian separation.")
    shared = [e for e in events if e.sampling == "one-pass" and e.protects != "silo"]
    squares = [_pass_square(shared)]
    for event in events:
        if event in shared:
            continue
        base = effective_multiplier(event) ** -2
        if event.mechanism in REMEMBERS:
            squares.append(remembered_square(event, everywhere=True) * base)
        elif event.sampling == "wr" and event.protects != "silo":
            squares.append(event.count * event.batch**2 * base)
        elif event.sampling == "allocation" and event.protects != "silo":
            # Where a record is in an epoch, it is once, even if everybody knew where.
            squares.append(min(event.count, event.passes) * base)
        else:
            squares.append(event.count * base)
    return math.sqrt(math.fsum(squares))


def _pass_square(events: Sequence[Event]) -> float:
    """Largest mu^2 of one record over events that share a pass (parallel composition).

    With one pass a record is in one batch, so it pays for the worst of them; if that batch belongs to a
    running sum, it pays for every later release of the sum. With more passes it may be in several events,
    which are added up.
    """
    if not events:
        return 0.0
    passes = events[0].passes
    running = [e for e in events if e.mechanism in REMEMBERS]
    plain = [e for e in events if e.mechanism not in REMEMBERS]
    if len(running) == 1:
        sums = remembered_square(running[0], everywhere=False) * effective_multiplier(running[0]) ** -2
    else:
        sums = math.fsum(e.count * passes**2 * effective_multiplier(e) ** -2 for e in running)
    batches = min(passes, sum(e.count for e in plain))
    means = batches * max((effective_multiplier(e) ** -2 for e in plain), default=0.0)
    return max(sums, means) if passes == 1 else sums + means


def remembered_square(event: Event, *, everywhere: bool) -> float:
    """How far one record moves all of an event's releases before noise, squared; noise of one round is the unit.

    Formal guarantee: an upper bound over all rounds that a server may leave out. A running sum tells nothing about a
    round that is not answered, so what counts is that a record is in ``passes`` of ``count`` sums, the first ones at
    worst. With correlated noise the rounds left out are as good as said (`tacit.silo.noise`), so that a record comes
    again after as many rounds as a pass has batches. ``everywhere`` is for what is in every round.
    """
    if event.mechanism == "correlated":
        assert event.rounds is not None
        apart = 1 if everywhere else event.records // event.batch
        return strategy_of(event).square(range(0, event.rounds, apart)[: None if everywhere else event.passes])
    # sum_t min(t, m)^2, t = 1..count
    m = event.count if everywhere else min(event.count, event.passes)
    return m * (m + 1) * (2 * m + 1) / 6 + (event.count - m) * m * m


def is_subsampled(event: Event) -> bool:
    """Whether the event has a privacy loss of its own that is not a Gaussian's.

    Random batches make it cheaper than releases that contain every record; not if a batch is always everything, nor
    if the whole silo is protected: then every batch changes. Shuffled reports are never Gaussian, full batches of them
    included: they are composed by their distributions, so nothing that is claimed for Gaussians alone holds for them.
    """
    if event.mechanism == "reports":
        return True
    if event.sampling in ("full", "one-pass") or event.protects == "silo":
        return False
    if event.sampling == "allocation":
        from tacit.privacy.allocation import batches_of, is_amplified

        return is_amplified(batches_of(event.records, event.batch), effective_multiplier(event))
    return event.sampling == "wr" or event.batch < event.records


def has_reports(events: Iterable[Event]) -> bool:
    """Whether any of the events are shuffled reports."""
    return any(event.mechanism == "reports" for event in events)


def profile_for(event: Event) -> Profile:
    """The profile of one release of an event that `is_subsampled`."""
    if event.mechanism != "reports":
        from tacit.privacy.profiles import profile_of

        return profile_of(event, effective_multiplier(event))
    from tacit.privacy.reports import reports_profile

    assert event.reports is not None
    rate = 1.0 if event.sampling == "one-pass" else event.rate
    return reports_profile(event.local_epsilons, event.reports, rate)


def _own_parts(event: Event) -> list[tuple[Profile, int]]:
    """A subsampled event as profiles and counts; streams that no sampling joins are counted one by one."""
    if event.mechanism != "reports" or (event.sampling == "wor" and event.batch < event.records):
        return [(profile_for(event), entries_of(event))]
    from tacit.privacy.reports import reports_profile

    alike = Counter(event.local_epsilons)
    assert event.reports is not None
    return [(reports_profile((e,), event.reports, 1.0), entries_of(event) * n) for e, n in alike.items()]


def entries_of(event: Event) -> int:
    """How many releases of a subsampled event a record may enter: all, or those of its passes."""
    return min(event.count, event.passes) if event.sampling == "one-pass" else event.count


def loss_parts(events: Sequence[Event]) -> list[tuple[Profile, int]]:
    """Profiles and counts of a schedule: each subsampled kind, and one Gaussian for all the rest."""
    parts = [part for event in events if is_subsampled(event) for part in _own_parts(event)]
    rest = [e for e in events if not is_subsampled(e)]
    if rest:
        parts.append((partial(gauss_delta, mu=gaussian_mu(rest)), 1))
    return parts


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


def settled(events: Iterable[Event]) -> tuple[Event, ...]:
    """The releases of a schedule that is over, as they stand beside those of a later one.

    Within a schedule passes over the records share one order, running sums are one, and a limit of rounds is common.
    None of that holds between two schedules. So every release that is not subsampled goes into one Gaussian of the same
    separation, and a limit is taken at its worst allocation.

    Formal guarantee: composed with any later releases, adaptively, the result is no more private than the events are.

    >>> once = Event(kind="g", noise_multiplier=2.0, count=3, records=9, batch=3, sampling="one-pass")
    >>> [(e.kind, round(e.noise_multiplier, 9), e.sampling) for e in settled([once])]
    [('earlier', 2.0, 'full')]
    """
    paid = worst_allocation(payable(events))
    kept = [e for e in paid if is_subsampled(e)]
    if any(e.sampling == "one-pass" for e in kept):
        raise PricingError(
            'Expected no shuffled reports of sampling "one-pass" before other releases: no price is known for two '
            'passes of them; use sampling="wor".'
        )
    rest = [e for e in paid if not is_subsampled(e)]
    if not rest:
        return tuple(kept)
    if any(e.noise_multiplier == 0.0 for e in rest):
        raise PricingError("Expected noise in every earlier release; what left without noise has no price to add to.")
    first = rest[0]
    joint = Event(
        kind="earlier",
        # A little less noise, so that rounding cannot make it cheaper.
        noise_multiplier=(1 - 1e-12) / gaussian_mu(rest),
        count=1,
        records=first.records,
        batch=first.records,
        sampling="full",
        protects=first.protects,
    )
    return (*kept, joint)


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
    """Whether the price of an event is not a sum over its releases: passes over the records, noise that remembers."""
    is_known = event.sampling == "allocation" and not is_subsampled(event)
    return event.sampling == "one-pass" or event.mechanism in REMEMBERS or is_known


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
    return cheap.sampling not in ("wr", "allocation") and cheap.capacity is None


def _sampled_alike(one: Event, other: Event) -> bool:
    names = ("records", "batch", "sampling", "capacity", "protects")
    return all(getattr(one, name) == getattr(other, name) for name in names) and is_subsampled(other)
