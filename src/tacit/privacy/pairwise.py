"""The price of pairwise sums: noise that silos share, the attempts of a round, and what is left if more silos collude.

Through the pairwise channel silo i of a roster of m says, modulo 2^64,

    y_i = S_i + e_i + (masks that cancel in the sum),      e_i a discrete Gaussian of variance (z 2B)^2 / (m - c).

Masks are shared by two silos each. Against the server and c silos of the roster, the y_i of the others are uniform
given their sum, so that all they see is the sum of S_i + e_i over m - c silos or more. Its noise has variance (z 2B)^2
at least, and replacing one record moves it by at most 2B: it is priced as one release with noise multiplier z.
(`tests/privacy/test_pairwise.py` enumerates both facts on small cases.) The promise is computational, and only against
c silos: if all others collude with the server, what hides a record is its own silo's share, z / sqrt(m - c).

A round in which somebody is missing is asked again with another roster. Each *attempt* is a release of its own, with a
fresh batch and fresh noise. Noise that came again under another roster would give away who left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tacit.algorithm import Round
from tacit.privacy.accountant import price
from tacit.privacy.events import Event, PricingError, integer


@dataclass(frozen=True)
class Peers:
    """Who shares the noise of pairwise sums: the records of all silos, and what the plan allows.

    At most ``colluding`` silos work together with the server, a round has at least ``min_silos`` silos, and up to
    ``spare_attempts`` rounds may be asked again.
    """

    records: tuple[int, ...]
    colluding: int
    min_silos: int
    spare_attempts: int = 0

    def __post_init__(self) -> None:
        silos = len(self.records)
        check_colluding(self.colluding, integer("min_silos", self.min_silos, 1))
        integer("spare_attempts", self.spare_attempts, 0)
        if self.min_silos > silos:
            raise PricingError(f"Expected min_silos={self.min_silos} of at most {silos}: there are no more silos.")


def check_colluding(colluding: int, silos: int) -> None:
    """Raise unless so many silos may collude in a round of so many.

    >>> check_colluding(1, 3)
    >>> check_colluding(0, 3)
    Traceback (most recent call last):
    tacit.privacy.events.PricingError: Expected colluding=0 >= 1: every silo sees the model and knows its own share ...
    """
    if integer("colluding", colluding, 0) < 1:
        raise PricingError(
            f"Expected colluding={colluding} >= 1: every silo sees the model and knows its own share of the noise, so "
            "a curious one is always there."
        )
    if colluding >= silos:
        raise PricingError(
            f"Expected colluding={colluding} < {silos}, the silos of the smallest round: somebody else must add noise; "
            "lower colluding, or let more silos come (pairwise.min_silos)."
        )


def share_multiplier(noise_multiplier: float, silos: int, colluding: int) -> float:
    """The noise multiplier of one silo's share in a round of so many silos.

    >>> share_multiplier(3.0, 10, 1)
    1.0
    """
    check_colluding(colluding, silos)
    return noise_multiplier / math.sqrt(silos - colluding)


def noise_of_mean(silos: int, colluding: int) -> float:
    """How many times the noise of a trusted server is in the mean: all shares, of which only some are counted on.

    >>> round(noise_of_mean(10, 1), 4)
    1.0541
    """
    return math.sqrt(silos) * share_multiplier(1.0, silos, colluding)


def with_attempts(events: tuple[Event, ...], rounds: Mapping[str, Round], peers: Peers) -> tuple[Event, ...]:
    """The events with the spare attempts that a plan reserves.

    Formal guarantee: every sequence of answers with at most ``spare_attempts`` more than the schedule has, whichever
    rounds are asked again, is covered, if it has no more answers of a kind that is not pairwise than are reserved:
    an account takes no more. In one pass a round that is asked again reads the same batch, so one record may be in as
    many more releases as there are spare attempts.
    """
    spare = peers.spare_attempts
    kinds = [event.kind for event in events if rounds[event.kind].silo.release.channel == "pairwise"]
    for event in events:
        if event.kind in kinds and event.mechanism == "cumulative" and (spare or peers.min_silos < len(peers.records)):
            raise PricingError(
                "Expected the same silos in all rounds of a running sum through the pairwise channel: when a silo "
                "leaves, later increments reveal the noise that the others added before. Set pairwise.spare_attempts "
                f"= 0 (got {spare}) and pairwise.min_silos = {len(peers.records)} (got {peers.min_silos}), or use an "
                "algorithm with fresh noise."
            )
    if not spare or not kinds:
        return events
    if any(event.sampling == "allocation" for event in events):
        raise PricingError(
            'Expected pairwise.spare_attempts = 0 for sampling="allocation": another attempt at a round would use its '
            f'batch again; got {spare}. Use sampling="poisson", which draws a fresh one.'
        )
    limits = {event.participations for event in events}
    common = limits.pop() if len(limits) == 1 else None
    if common is None and len(events) > 1:
        # Answers are limited, so a limit counts answers: local steps of one answer are no answers of their own.
        events = tuple(dataclasses.replace(event, steps=rounds[event.kind].silo.local_steps) for event in events)
        common = sum(-(-event.count // event.steps) for event in events)
    return tuple(_reserved(event, event.kind in kinds, spare, common) for event in events)


def _reserved(event: Event, is_pairwise: bool, spare: int, limit: int | None) -> Event:
    event = dataclasses.replace(event, participations=None if limit is None else limit + spare)
    if not is_pairwise:
        return event
    passes = event.passes + (spare if event.sampling == "one-pass" else 0)
    return dataclasses.replace(event, count=event.count + spare, passes=passes)


def if_all_collude(events: Iterable[Event], peers: Peers, *, delta: float) -> float:
    """Epsilon if all other silos collude with the server: each release has the noise of one silo's share."""
    return if_more_collude(events, peers, len(peers.records) - 1, delta=delta)


def if_more_collude(events: Iterable[Event], peers: Peers, colluding: int, *, delta: float) -> float:
    """Epsilon if so many silos collude with the server, which may be more than the plan counts on.

    In a round of m silos each adds a share of variance 1/(m - c), and m - ``colluding`` shares or at least a silo's own
    are unknown; the server chooses the roster with the least that is left. Events of other channels count as if they
    were pairwise too.
    """
    sizes = range(peers.min_silos, len(peers.records) + 1)
    left = min(math.sqrt(max(1, m - colluding)) * share_multiplier(1.0, m, peers.colluding) for m in sizes)
    try:
        return price([event.scaled(min(1.0, left)) for event in events], delta=delta).epsilon
    except PricingError:  # so little noise that no number is known
        return math.inf
