"""One price for everybody: the noise that fits a budget, and what an algorithm's releases then cost each silo.

`fit`, `plan` and `run` price all silos here, a daemon itself, a server those that it needs. All price the releases that
a silo's door makes: integers with discrete Gaussian noise, binomial shares, local reports. The simulator adds noise of
the same size, in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacit.algorithm import SHUFFLED_CHANNELS, Algorithm, Release
from tacit.privacy import Event, Price, PricingError, calibrate, events_of, price
from tacit.privacy.calibration import calibrate_beside
from tacit.privacy.discrete import effective_multiplier
from tacit.privacy.plan import AnonymitySet, Budget, SiloPlan, own_term
from tacit.privacy.strategy import REMEMBERS
from tacit.silo.door import DoorError, noise_scale
from tacit.silo.noise import ROUNDING
from tacit.silo.sampler import sampler_delta

if TYPE_CHECKING:
    from tacit.privacy.pairwise import Peers

TAILS = 1e-12
"""The part of delta that a study keeps for the tails of binomial noise: 1e-23 per round and coordinate, with room."""

MOST_KEPT = 1e-3
"""The largest share of delta that a study may keep because discrete Gaussians are drawn from tables. A door refuses to
draw more."""

MOST_SIZES = 8
"""How many sizes of silos in an anonymity set are priced: the smallest, which pay most. Each takes seconds, and a plan
may list thousands."""

_UNSEEN = 1e-4  # prices are rounded up on grids of their own: room for a silo that was not looked at
LEAST_DELTA = 1e-9
"""The smallest delta that a shuffled sum may have: its noise has short tails."""

_DISCRETE = (*REMEMBERS, "discrete-gaussian")

Build = Callable[[Any], Algorithm]
"""Builds an algorithm with a noise multiplier."""


class Seat(NamedTuple):
    """All of a silo that its price depends on: its index and records, its limit of answers, and the other silos.

    The others are an anonymity set in shuffled channels, and ``peers`` in pairwise sums.
    """

    silo_index: int
    silos: int
    records: int
    max_participations: int | None = None
    anonymity_set: AnonymitySet | None = None
    peers: Peers | None = None

    @property
    def noises(self) -> int:
        """How many silos' noise a release counts on."""
        return 1 if self.peers is None else len(self.peers.records)

    def events(self, algorithm: Algorithm) -> tuple[Event, ...]:
        """The releases of the algorithm at this silo, with continuous noise."""
        return events_of(algorithm, **self._asdict())


def releases_of(algorithm: Algorithm, seat: Seat) -> tuple[Event, ...]:
    """The releases of the algorithm at this silo, as a silo's door makes them.

    Noise that remembers, made of discrete Gaussians, is post-processing of continuous noise that is a little smaller,
    and is priced as that. What no door does (other channels, an attribute alone, noise beyond the door's limits) is
    priced as it is.
    """
    terms = {kind: part.silo.release for kind, part in algorithm.rounds.items()}
    return tuple(_at_the_door(event, terms[event.kind], seat.silo_index) for event in seat.events(algorithm))


def _at_the_door(event: Event, release: Release, silo_index: int) -> Event:
    if release.channel not in ("direct", "pairwise") or event.mechanism == "reports" or event.protects != "record":
        return event
    # The narrowest noise of all blocks is the farthest from a continuous one.
    multipliers = release.noise_multiplier
    blocks = list(multipliers.values()) if isinstance(multipliers, Mapping) else [multipliers]
    try:
        width = noise_scale(min(float(own_term(z, silo_index)) for z in blocks), release.sensitivity)
    except DoorError:
        return event
    discrete = dataclasses.replace(event, mechanism="discrete-gaussian", grid_sigma=width, rounds=None, strategy=None)
    if event.mechanism in REMEMBERS:
        # Rounding what is remembered moves a sum a little farther than its sensitivity.
        rounding = ROUNDING if event.mechanism == "correlated" else 0.0
        return dataclasses.replace(event, noise_multiplier=effective_multiplier(discrete) / (1 + rounding))
    return discrete


def samples_of(events: Sequence[Event], dimensions: Mapping[str, int], noises: int = 1) -> int:
    """How many discrete Gaussians are in these releases: one for every coordinate of each, of so many silos.

    Correlated noise has those of all rounds that it is made for, answered or not.
    """
    drawn = [event for event in events if event.mechanism in _DISCRETE]
    return noises * sum((event.rounds or event.count) * dimensions[event.kind] for event in drawn)


@dataclass(frozen=True)
class Afforded:
    """The noise multiplier of each silo (in float32, as it is added), what it releases, and what that costs.

    ``kept`` is the part of delta that each keeps for the tails of binomial noise and for tables of discrete Gaussians.
    """

    noise: np.ndarray
    events: tuple[tuple[Event, ...], ...]
    prices: tuple[Price, ...]
    kept: tuple[float, ...]


def afford(
    build: Build,
    seats: Sequence[Seat],
    budget: Budget,
    *,
    dimensions: Mapping[str, int],
    before: Sequence[tuple[Event, ...]] = (),
    aside: float = 0.0,
) -> Afforded:
    """The least noise with which the releases of an algorithm cost each of these silos no more than the budget.

    Silos that hide among each other must add the same noise, so there the strictest decides. ``before`` holds what each
    silo releases besides, with noise that is settled. Both are priced together, and the algorithm has the rest.
    ``aside`` is the part of delta that earlier releases keep for noise that is not quite as their events say.
    ``dimensions`` are those of the statistic of each kind of round; without them the noise is for simulation alone.

    Formal guarantee: an algorithm built with the noise returned here makes, at each of these silos, releases that are
    (epsilon, delta)-DP for each record, as its price says.
    """
    ledger = _Pricing(build, budget, dimensions, aside)
    settled = before or [()] * len(seats)
    goals = _epsilons(budget, seats)
    if budget.noise_multiplier is not None:
        noise = [_rounded_up(budget.noise_multiplier)] * len(seats)
    elif _is_common(ledger.unit):
        noise = [_common_noise(ledger, list(zip(seats, settled, goals, strict=True)))] * len(seats)
    else:
        rows = zip(seats, settled, goals, strict=True)
        noise = [ledger.noise(seat, first, epsilon) for seat, first, epsilon in rows]
    events = tuple((*first, *ledger.events(z, seat)) for z, seat, first in zip(noise, seats, settled, strict=True))
    kept = tuple(ledger.kept(seat, goal) for seat, goal in zip(seats, goals, strict=True))
    prices = tuple(ledger.price(paid, held) for paid, held in zip(events, kept, strict=True))
    for cost, goal in zip(prices, goals, strict=True):
        if goal is not None and not budget.user_level and cost.epsilon > goal:
            raise PricingError(f"Expected epsilon={goal}, got {cost.epsilon}; this silo pays more than the others.")
    return Afforded(np.asarray(noise, np.float32), events, prices, kept)


class _Pricing:
    """An algorithm under a budget: events and prices at given noise, and the noise of one silo."""

    def __init__(self, build: Build, budget: Budget, dimensions: Mapping[str, int], aside: float) -> None:
        self.unit, self.budget, self._dimensions = build(1.0), budget, dimensions
        self._build = lru_cache(maxsize=256)(build)
        self._unit_releases = lru_cache(maxsize=None)(partial(releases_of, self.unit))
        self._tails = aside + _tails(self.unit, budget.delta)
        if budget.user_level:
            _check_whole_silos(self.unit)

    def kept(self, seat: Seat, epsilon: float | None) -> float:
        """The part of delta that is kept for tails and tables; none for tables where no door would draw the noise."""
        if epsilon is None or not self._dimensions:
            return self._tails
        samples = samples_of(self._unit_releases(seat), self._dimensions, seat.noises)
        tables = sampler_delta(samples, epsilon)
        return self._tails + (tables if tables <= MOST_KEPT * self.budget.delta else 0.0)

    def events(self, noise: np.float32, seat: Seat) -> tuple[Event, ...]:
        """The releases of a silo with this noise."""
        return releases_of(self._build(noise), seat)

    def price(self, events: tuple[Event, ...], kept: float) -> Price:
        """What releases cost at the budget's delta, less what is kept of it."""
        delta = self.budget.delta
        return dataclasses.replace(_priced(events, delta - kept, self.budget.accountant), delta=delta)

    def factor(self, seat: Seat, first: tuple[Event, ...], epsilon: float) -> float:
        """The noise multiplier, before it is rounded to what is added."""
        events, budget = self._unit_releases(seat), self.budget
        if first and budget.user_level:
            raise PricingError("Expected an epsilon, not of whole silos, to price other releases together with these.")
        delta = budget.delta - self.kept(seat, epsilon)
        paid = _calibrated(first, events, epsilon, delta, budget.accountant, budget.user_level)
        return paid[0].noise_multiplier / events[0].noise_multiplier

    def noise(self, seat: Seat, first: tuple[Event, ...], epsilon: float | None) -> np.float32:
        if epsilon is None:
            raise PricingError("Expected an epsilon to find the noise for.")
        factor = self.factor(seat, first, epsilon)
        if self.budget.user_level:
            return _rounded_up(factor)
        return self.fitting(factor, lambda noise: self.fits(noise, seat, first, epsilon))

    def fits(self, noise: np.float32, seat: Seat, first: tuple[Event, ...], epsilon: float) -> bool:
        """Whether the releases with this noise cost no more than epsilon."""
        return self.price((*first, *self.events(noise, seat)), self.kept(seat, epsilon)).epsilon <= epsilon

    def fitting(self, factor: float, fits: Callable[[np.float32], bool]) -> np.float32:
        """The multiplier, or one a little larger, with which the algorithm as built fits."""
        nudge = 1e-7
        while nudge < 0.1:
            noise = _rounded_up(factor)
            if fits(noise):
                return noise
            factor, nudge = factor * (1 + nudge), 2 * nudge
        raise PricingError(f"No noise was found that fits epsilon={self.budget.epsilon}.")


def _common_noise(ledger: _Pricing, rows: list[tuple[Seat, tuple[Event, ...], float | None]]) -> np.float32:
    """The noise of silos that hide among each other, from what each releases besides and its epsilon."""
    looked, room = [(seat, first, goal or 0.0) for seat, first, goal in rows], 1.0
    if len({row[1:] for row in looked}) == 1:
        [(seat, first, epsilon), *_] = looked
        strictest, skipped = strictest_seats(ledger.unit, seat)
        looked, room = [(seat, first, epsilon) for seat in strictest], 1 + _UNSEEN * skipped
    factor = room * max(ledger.factor(*row) for row in looked)
    return ledger.fitting(factor, lambda noise: all(ledger.fits(noise, *row) for row in looked))


def strictest_seats(unit: Algorithm, seat: Seat) -> tuple[list[Seat], bool]:
    """The silos among whom a record hides that pay most, and whether others were skipped.

    They are the smallest, whose batches are amplified least. Where silos take turns, nobody's turn comes oftener than
    that of the first.
    """
    others = seat.anonymity_set or seat.peers
    assert others is not None
    records = others.records
    sizes = sorted(set(records))
    skipped = len(sizes) > MOST_SIZES
    in_turn = any(part.participants == "in turn" for part in unit.rounds.values())
    index = {n: 0 if skipped or not in_turn else records.index(n) for n in sizes}
    return [seat._replace(silo_index=index[n], records=n) for n in sizes[:MOST_SIZES]], skipped


def plan_silos(
    build: Build,
    names: Sequence[str],
    records: Sequence[int],
    budget: Budget | None,
    *,
    dimensions: Mapping[str, int],
    before: Sequence[tuple[Event, ...]] = (),
    aside: float = 0.0,
) -> tuple[tuple[SiloPlan, ...], np.ndarray | None]:
    """Price every silo by itself, with its own number of records, and find its noise: see `afford`.

    Returns the plans and, for each silo, the noise multiplier to build the algorithm with. No budget means no noise and
    no price.
    """
    cap, unit = None if budget is None else budget.max_participations, build(1.0)
    others = anonymity_set_of(unit, tuple(records), budget), peers_of(unit, tuple(records), budget)
    seats = [Seat(i, len(names), n, cap, *others) for i, n in enumerate(records)]
    if budget is None:
        rows = zip(names, records, seats, strict=True)
        return tuple(SiloPlan(name, n, seat.events(unit), None) for name, n, seat in rows), None
    found = afford(build, seats, budget, dimensions=dimensions, before=before, aside=aside)
    rows_priced = zip(names, records, found.events, found.prices, found.kept, strict=True)
    return tuple(SiloPlan(*row) for row in rows_priced), found.noise


def anonymity_set_of(unit: Algorithm, records: tuple[int, ...], budget: Budget | None) -> AnonymitySet | None:
    """The anonymity set that the budget describes; none where no channel shuffles."""
    hidden = [part for part in unit.rounds.values() if part.silo.release.channel in SHUFFLED_CHANNELS]
    if not hidden:
        return None
    if budget is None:  # Nothing is priced.
        return AnonymitySet(records, 1.0, len(records))
    min_silos = budget.min_silos
    if min_silos is None and all(part.participants != "sampled" for part in hidden):
        min_silos = len(records)
    if budget.honest is None or min_silos is None:
        raise PricingError(
            f'Expected a budget for channel="{hidden[0].silo.release.channel}" to say what its price counts on: '
            "Budget(honest=share of all silos that do not collude, min_silos=how few silos a round may have)."
        )
    return AnonymitySet(records, budget.honest, min_silos)


def peers_of(unit: Algorithm, records: tuple[int, ...], budget: Budget | None) -> Peers | None:
    """Who shares the noise of pairwise sums, as the budget says; none where no channel is pairwise."""
    if all(part.silo.release.channel != "pairwise" for part in unit.rounds.values()):
        return None
    from tacit.privacy.pairwise import Peers

    if budget is None:  # Nothing is priced.
        return Peers(records, 1, len(records))
    min_silos = len(records) if budget.min_silos is None else budget.min_silos
    return Peers(records, budget.colluding, min_silos, budget.spare_attempts)


def _is_common(unit: Algorithm) -> bool:
    """Whether all silos must add the same noise."""
    common = ("pairwise", *SHUFFLED_CHANNELS)
    return any(part.silo.release.channel in common for part in unit.rounds.values())


def _check_whole_silos(unit: Algorithm) -> None:
    if any(kind.silo.is_free or kind.silo.release.channel == "open" for kind in unit.rounds.values()):
        raise PricingError(
            "Expected every round to be private for user_level=True; this plan has one that is not noised."
        )
    if any(kind.silo.release.channel in ("pairwise", "shuffled-sum") for kind in unit.rounds.values()):
        raise PricingError(
            'Expected channel="direct" or "trusted" for user_level=True: sums over silos are priced for the change of '
            "one record, and have not been shown to hide that of a whole silo."
        )


def _tails(unit: Algorithm, delta: float) -> float:
    if all(kind.silo.release.channel != "shuffled-sum" for kind in unit.rounds.values()):
        return 0.0
    if delta < LEAST_DELTA:
        raise PricingError(
            f'Expected delta={delta} >= {LEAST_DELTA} for channel="shuffled-sum", whose noise has short tails.'
        )
    return TAILS


def _epsilons(budget: Budget, seats: Sequence[Seat]) -> list[float | None]:
    if not isinstance(budget.epsilon, tuple):
        return [budget.epsilon] * len(seats)
    if len(budget.epsilon) != seats[0].silos:
        raise PricingError(
            f"Expected epsilon to be one number or {seats[0].silos} of them (one per silo), got {len(budget.epsilon)}."
        )
    return [budget.epsilon[seat.silo_index] for seat in seats]


def _rounded_up(noise: float) -> np.float32:
    """The next float32, which is what a silo computes with."""
    nearest = np.float32(noise)
    return nearest if float(nearest) >= noise else np.nextafter(nearest, np.float32(np.inf))


@lru_cache(maxsize=1024)
def _calibrated(
    first: tuple[Event, ...], events: tuple[Event, ...], epsilon: float, delta: float, accountant: Any, user_level: bool
) -> tuple[Event, ...]:
    if user_level:
        from tacit.privacy.conversions import calibrate_user_level

        return calibrate_user_level(events, epsilon=epsilon, delta=delta)
    if first:
        return calibrate_beside(first, events, epsilon=epsilon, delta=delta, accountant=accountant)
    return calibrate(events, epsilon=epsilon, delta=delta, accountant=accountant)


@lru_cache(maxsize=1024)
def _priced(events: tuple[Event, ...], delta: float, accountant: Any) -> Price:
    return price(events, delta=delta, accountant=accountant)
