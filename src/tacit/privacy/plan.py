"""From an algorithm to what one silo would release: the plan, read off the static part of the types."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tacit.algorithm import CROWDED, Algorithm, Round
from tacit.privacy.accountant import Accountant, Price, price
from tacit.privacy.anonymity import check_anonymity, counted_silos
from tacit.privacy.calibration import calibrate, calibrate_beside
from tacit.privacy.conversions import calibrate_user_level
from tacit.privacy.events import Event, PricingError, joint_multiplier


@dataclass(frozen=True)
class Budget:
    """What every record may be charged: an epsilon (or one per silo) and a delta, or a noise multiplier to be priced.

    With ``user_level`` the epsilon holds for all records of a silo together, and so, much smaller, for each of them:
    user-level DP and ISRL-DP from one noise.
    ``honest`` and ``min_silos`` are what shuffled channels may count on: the share of all silos that does not collude,
    and how few silos a round may have. Those channels need them: there the price rests on an assumption about others.

    >>> Budget(epsilon=1.0, delta=1e-5).epsilon
    1.0
    """

    epsilon: float | tuple[float, ...] | None = None
    delta: float = 1e-6
    noise_multiplier: float | None = None
    accountant: Accountant = "tight"
    max_participations: int | None = None
    user_level: bool = False
    honest: float | None = None
    min_silos: int | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise PricingError("Expected an epsilon or a noise_multiplier, and not both: each follows from the other.")
        if self.user_level and self.epsilon is None:
            raise PricingError("Expected an epsilon for user_level=True; it is that of a whole silo's data.")


@dataclass(frozen=True)
class AnonymitySet:
    """Among whom a record's reports hide: the records of all silos, the honest share, the fewest silos of a round."""

    records: tuple[int, ...]
    honest: float
    min_silos: int

    def __post_init__(self) -> None:
        check_anonymity(len(self.records), self.min_silos, self.honest)


@dataclass(frozen=True)
class SiloPlan:
    """What one silo would release and what it costs; no price where nothing is protected."""

    name: str
    records: int
    events: tuple[Event, ...]
    price: Price | None

    @property
    def multipliers(self) -> dict[str, float]:
        """The noise multiplier of each kind of round."""
        return {event.kind: event.noise_multiplier for event in self.events}


def plan_silos(
    unit: Algorithm,
    names: Sequence[str],
    records: Sequence[int],
    budget: Budget | None,
    before: Sequence[tuple[Event, ...]] = (),
) -> tuple[tuple[SiloPlan, ...], np.ndarray | None]:
    """Price every silo by itself, with its own number of records, and find its noise.

    ``unit`` is the algorithm built with noise multiplier one. Returns the plans and, for each silo, the noise
    multiplier to build the algorithm with; no budget means no noise and no price. ``before`` holds what each silo
    releases besides, at noise that is settled: it is priced together with the algorithm and leaves it the rest.

    Formal guarantee: an algorithm built with the noise returned here makes, at each silo, releases that are
    (epsilon, delta)-DP for each record, as its plan says.
    """
    cap = None if budget is None else budget.max_participations
    anonymity_set = _anonymity_set(unit, tuple(records), budget)
    bare = [
        events_of(unit, silo_index=i, silos=len(names), records=n, max_participations=cap, anonymity_set=anonymity_set)
        for i, n in enumerate(records)
    ]
    if budget is None:
        return tuple(SiloPlan(*row, None) for row in zip(names, records, bare, strict=True)), None
    if budget.user_level:
        _check_whole_silos(unit)
    delta = budget.delta - _reserved(unit, budget.delta)
    plans, noise = [], []
    settled = before or [()] * len(names)
    for name, n, events, first, epsilon in zip(
        names, records, bare, settled, _epsilons(budget, len(names)), strict=True
    ):
        if first and (epsilon is None or budget.user_level):
            raise PricingError("Expected an epsilon, not of whole silos, to price other releases together with these.")
        if epsilon is None:
            paid = tuple(event.scaled(budget.noise_multiplier or 0.0) for event in events)
        elif budget.user_level:
            paid = calibrate_user_level(events, epsilon=epsilon, delta=delta)
        elif first:
            paid = _calibrated_beside(first, events, epsilon, delta, budget.accountant)
        else:
            paid = _calibrated(events, epsilon, delta, budget.accountant)
        priced = dataclasses.replace(_priced((*first, *paid), delta, budget.accountant), delta=budget.delta)
        plans.append(SiloPlan(name, n, (*first, *paid), priced))
        noise.append(paid[0].noise_multiplier / events[0].noise_multiplier)
    # Rounded up to float32, which is what the silo computes with.
    return tuple(plans), np.nextafter(np.asarray(noise, np.float32), np.float32(np.inf))


def _anonymity_set(unit: Algorithm, records: tuple[int, ...], budget: Budget | None) -> AnonymitySet | None:
    """Among whom a record hides by the budget; none where no channel shuffles."""
    hidden = [part for part in unit.rounds.values() if part.silo.release.channel in CROWDED]
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


def _check_whole_silos(unit: Algorithm) -> None:
    if any(kind.silo.is_free or kind.silo.release.channel == "open" for kind in unit.rounds.values()):
        raise PricingError(
            "Expected every round to be private for user_level=True; this plan has one that is not noised."
        )
    if any(kind.silo.release.channel == "shuffled-sum" for kind in unit.rounds.values()):
        raise PricingError(
            'Expected channel="direct" or "trusted" for user_level=True: the shuffled sum is priced for the change of '
            "one record, and binomial noise has not been shown to hide that of a whole silo."
        )


def _reserved(unit: Algorithm, delta: float) -> float:
    """The part of delta that is kept for the tails of binomial noise: 1e-23 per round and coordinate, with room."""
    if all(kind.silo.release.channel != "shuffled-sum" for kind in unit.rounds.values()):
        return 0.0
    if delta < 1e-9:
        raise PricingError(f'Expected delta={delta} >= 1e-9 for channel="shuffled-sum", whose noise has short tails.')
    return 1e-12


def _epsilons(budget: Budget, silos: int) -> list[float | None]:
    if not isinstance(budget.epsilon, tuple):
        return [budget.epsilon] * silos
    if len(budget.epsilon) != silos:
        raise PricingError(
            f"Expected epsilon to be one number or {silos} of them (one per silo), got {len(budget.epsilon)}."
        )
    return list(budget.epsilon)


@lru_cache(maxsize=1024)
def _calibrated(events: tuple[Event, ...], epsilon: float, delta: float, accountant: Any) -> tuple[Event, ...]:
    return calibrate(events, epsilon=epsilon, delta=delta, accountant=accountant)


@lru_cache(maxsize=1024)
def _calibrated_beside(
    first: tuple[Event, ...], events: tuple[Event, ...], epsilon: float, delta: float, accountant: Any
) -> tuple[Event, ...]:
    return calibrate_beside(first, events, epsilon=epsilon, delta=delta, accountant=accountant)


@lru_cache(maxsize=1024)
def _priced(events: tuple[Event, ...], delta: float, accountant: Any) -> Price:
    return price(events, delta=delta, accountant=accountant)


def events_of(
    algorithm: Algorithm,
    *,
    silo_index: int,
    silos: int,
    records: int,
    max_participations: int | None = None,
    anonymity_set: AnonymitySet | None = None,
) -> tuple[Event, ...]:
    """The releases that the silo at ``silo_index`` would make, one event per kind of round.

    Formal guarantee: every release of a run of ``algorithm`` in which the silo takes part in at most
    ``max_participations`` rounds of all kinds together (default: all) is covered. Everything is read from the plan;
    nothing depends on records or broadcasts. Shuffled reports are priced among the ``anonymity_set``, which one silo
    alone need not name. A release whose query is not handed the protected field has no event.
    """
    if max_participations is not None and max_participations < 1:
        raise PricingError(f"Expected max_participations={max_participations} >= 1.")
    if anonymity_set is None and silos == 1:
        anonymity_set = AnonymitySet((records,), 1.0, 1)
    turns = algorithm.turns
    _check_passes(algorithm)
    events = []
    for kind in sorted(algorithm.rounds):
        if algorithm.rounds[kind].silo.is_free:
            continue
        in_turn = algorithm.rounds[kind].participants == "in turn"
        mine = [not in_turn or turn % silos == silo_index for turn in turns]
        rounds = sum(name == kind and own for name, own in zip(algorithm.schedule, mine, strict=True))
        if rounds:
            event = _event(kind, algorithm.rounds[kind], rounds, silo_index, silos, records, max_participations)
            events.append(_shuffled(event, algorithm.rounds[kind], silo_index, anonymity_set))
    return tuple(events)


def _shuffled(event: Event, part: Round, silo_index: int, anonymity_set: AnonymitySet | None) -> Event:
    """The event as it is priced: releases through shuffled reports hide among those of the company."""
    release = part.silo.release
    if release.channel != "shuffled-reports":
        return event
    if anonymity_set is None:
        raise PricingError(
            'Expected the records of all silos for channel="shuffled-reports", whose price depends on how many reports '
            "are shuffled together; pass anonymity_set=AnonymitySet(records, honest, min_silos)."
        )
    multipliers = release.noise_multiplier
    blocks = list(multipliers.values()) if isinstance(multipliers, Mapping) else [multipliers]
    # All silos' reports must look alike, so one randomiser serves all: that of the strictest.
    own = [float(_own(z, silo_index)) for z in blocks]
    least = min(own)
    return dataclasses.replace(
        event,
        noise_multiplier=least,
        mechanism="reports",
        reports=honest_reports(part, anonymity_set),
        streams=tuple(z / least if least > 0 else 1.0 for z in own),
    )


def _check_passes(algorithm: Algorithm) -> None:
    """Several passes are counted for one kind of round that everybody answers, and for nothing else."""
    passing = [part for part in algorithm.rounds.values() if part.silo.release.sampling == "one-pass"]
    several = any(part.silo.release.passes > 1 for part in passing)
    if several and (len(passing) > 1 or any(part.participants == "in turn" for part in passing)):
        raise PricingError(
            "Expected passes=1 with several kinds of one-pass rounds or rounds in turn: batches would not repeat in "
            "step."
        )


def honest_reports(part: Round, anonymity_set: AnonymitySet) -> int:
    """Reports that are sure to be shuffled together: of as few silos as may come, the honest, the smallest of all."""
    silos = len(anonymity_set.records)
    least = {"all": silos, "in turn": 1}.get(part.participants, anonymity_set.min_silos)
    size = part.silo.release.batch_size
    sizes = [n if size is None else _whole("batch_size", size, i) for i, n in enumerate(anonymity_set.records)]
    return sum(sorted(sizes)[: counted_silos(silos, least, anonymity_set.honest)])


def _event(kind: str, part: Round, rounds: int, silo_index: int, silos: int, records: int, cap: int | None) -> Event:
    silo, release = part.silo, part.silo.release
    batch = records if release.batch_size is None else _whole("batch_size", release.batch_size, silo_index)
    if release.sampling == "one-pass" and rounds * silo.local_steps > release.passes * (records // batch):
        times = f"passes={release.passes} x " if release.passes > 1 else ""
        raise PricingError(
            f"Expected rounds={rounds} x local_steps={silo.local_steps} x batch={batch} <= {times}records={records} "
            'for sampling "one-pass"; lower the rounds or the batch, or use sampling="poisson" to see records again.'
        )
    capacity = None if release.capacity is None else min(_whole("capacity", release.capacity, silo_index), records)
    return Event(
        kind=kind,
        noise_multiplier=_joint(release, silo_index),
        count=(rounds if cap is None else min(rounds, cap)) * silo.local_steps,
        participations=cap,
        steps=1 if cap is None else silo.local_steps,
        records=records,
        batch=batch,
        sampling=release.sampling,
        mechanism=release.mechanism,
        capacity=capacity if release.sampling == "poisson" else None,
        passes=release.passes if release.sampling == "one-pass" else 1,
        protects=release.protects,
    )


def _joint(release: Any, silo_index: int) -> float:
    """The multiplier of all blocks together; a release through the open channel has no noise."""
    if release.channel == "open":
        return 0.0
    multiplier = release.noise_multiplier
    if multiplier is None:
        raise PricingError('Expected a noise multiplier for a private release; use channel="open" for none.')
    if not isinstance(multiplier, Mapping):
        return joint_multiplier([float(_own(multiplier, silo_index))])
    return joint_multiplier([float(_own(z, silo_index)) for z in multiplier.values()])


def _whole(name: str, value: Any, silo_index: int) -> int:
    """A silo's own whole number: what is priced must be what is sampled."""
    own = float(_own(value, silo_index))
    if not own.is_integer():
        raise PricingError(f"Expected {name}={own} to be a whole number of records; round it.")
    return int(own)


def _own(value: Any, silo_index: int) -> Any:
    """A silo's own entry of a term that may differ by silo."""
    array = np.asarray(value)
    return array[silo_index] if array.ndim else array[()]
