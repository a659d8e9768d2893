"""From an algorithm to what one silo would release, read off the static part of the types; budgets, and doubts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tacit.algorithm import Algorithm, Round
from tacit.errors import unknown
from tacit.privacy.accountant import Accountant, Price
from tacit.privacy.events import Event, PricingError, integer, joint_multiplier, positive, probability
from tacit.privacy.strategy import strategy_of

if TYPE_CHECKING:
    from tacit.privacy.pairwise import Peers


@dataclass(frozen=True)
class Budget:
    """What every record may be charged: an epsilon (or one per silo) and a delta, or a noise multiplier to be priced.

    With ``user_level`` the epsilon holds for all records of a silo together, and so, much smaller, for each of them:
    user-level DP and ISRL-DP from one noise.
    ``honest`` and ``min_silos`` are what shuffled channels may count on: the share of all silos that does not collude,
    and how few silos a round may have. Those channels need them: there the price rests on an assumption about others.
    ``colluding``, ``min_silos`` and ``spare_attempts`` are what pairwise sums count on: how many silos work together
    with the server at most, how few silos a round may have, and how many rounds may be asked again.

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
    colluding: int = 1
    spare_attempts: int = 0

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise PricingError("Expected an epsilon or a noise_multiplier, and not both: each follows from the other.")
        if self.user_level and self.epsilon is None:
            raise PricingError("Expected an epsilon for user_level=True; it is that of a whole silo's data.")
        if isinstance(self.epsilon, list | np.ndarray):
            object.__setattr__(self, "epsilon", tuple(self.epsilon))
        for epsilon in self.epsilon if isinstance(self.epsilon, tuple) else (self.epsilon,):
            if epsilon is not None:
                positive("epsilon", epsilon)
        if self.noise_multiplier is not None:
            positive("noise_multiplier", self.noise_multiplier)
        if probability("delta", self.delta) >= MOST_DELTA:
            raise PricingError(
                f"Expected delta={self.delta:g} < {MOST_DELTA:g}, for with that probability nothing is promised; 1e-6 "
                "is usual."
            )
        integer("colluding", self.colluding, 1)
        integer("spare_attempts", self.spare_attempts, 0)
        if self.accountant not in get_args(Accountant):
            raise PricingError(unknown("accountant", self.accountant, get_args(Accountant)))


@dataclass(frozen=True)
class AnonymitySet:
    """Among whom a record's reports hide: the records of all silos, the honest share, the fewest silos of a round."""

    records: tuple[int, ...]
    honest: float
    min_silos: int

    def __post_init__(self) -> None:
        from tacit.privacy.anonymity import check_anonymity  # only shuffled plans need it

        check_anonymity(len(self.records), self.min_silos, self.honest)


@dataclass(frozen=True)
class SiloPlan:
    """What one silo would release and what it costs; no price where nothing is protected.

    ``kept`` is the part of delta that the price keeps for noise that is not quite as the events say. ``stated`` is the
    epsilon and delta of earlier releases that are known by their price alone; the price has it added.
    """

    name: str
    records: int
    events: tuple[Event, ...]
    price: Price | None
    kept: float = 0.0
    stated: tuple[float, float] = (0.0, 0.0)

    @property
    def multipliers(self) -> dict[str, float]:
        """The noise multiplier of each kind of round."""
        return {event.kind: event.noise_multiplier for event in self.events}


def events_of(
    algorithm: Algorithm,
    *,
    silo_index: int,
    silos: int,
    records: int,
    max_participations: int | None = None,
    anonymity_set: AnonymitySet | None = None,
    peers: Peers | None = None,
) -> tuple[Event, ...]:
    """The releases that the silo at ``silo_index`` would make, one event per kind of round.

    Formal guarantee: every release of a run of ``algorithm`` in which the silo takes part in at most
    ``max_participations`` rounds of all kinds together (default: all) is covered. Everything is read from the plan;
    nothing depends on records or broadcasts. Shuffled reports are priced among the ``anonymity_set``, which one silo
    alone need not name. Pairwise sums are priced with the attempts that their ``peers`` reserve. A release whose query
    is not handed the protected field has no event.
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
    return _attempted(tuple(events), algorithm, peers)


def _attempted(events: tuple[Event, ...], algorithm: Algorithm, peers: Peers | None) -> tuple[Event, ...]:
    """The events with spare attempts of pairwise sums, of which one silo alone cannot make any."""
    for event in events:
        part = algorithm.rounds[event.kind]
        if part.silo.release.channel != "pairwise":
            continue
        if part.participants == "in turn":
            raise PricingError(f'Expected rounds of many silos for channel="pairwise"; {event.kind} is of one in turn.')
        if peers is None:
            raise PricingError(
                'Expected the silos that share the noise for channel="pairwise"; pass peers=Peers(records, colluding, '
                "min_silos, spare_attempts)."
            )
    if peers is None:
        return events
    from tacit.privacy.pairwise import with_attempts

    return with_attempts(events, algorithm.rounds, peers)


def _shuffled(event: Event, part: Round, silo_index: int, anonymity_set: AnonymitySet | None) -> Event:
    """The event as it is priced: reports hide among those of the anonymity set."""
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
    own = [float(own_term(z, silo_index)) for z in blocks]
    least = min(own)
    return dataclasses.replace(
        event,
        noise_multiplier=least,
        mechanism="reports",
        reports=honest_reports(part, anonymity_set),
        streams=tuple(z / least if least > 0 else 1.0 for z in own),
    )


def _check_passes(algorithm: Algorithm) -> None:
    """Several passes, and epochs, are counted for one kind of round that everybody answers, or for parts of records.

    Formal guarantee: if this returns, a record is in at most ``passes`` one-pass releases of any kind, and in one
    release of each epoch. It has one place in the silo's order: parts that do not overlap have it once at most, and no
    part is read more often.
    """
    _check_epochs(algorithm)
    passing = [part for part in algorithm.rounds.values() if part.silo.release.sampling == "one-pass"]
    if any(part.silo.release.part is not None for part in passing):
        _check_parts(algorithm)
        return
    several = any(part.silo.release.passes > 1 for part in passing)
    if several and (len(passing) > 1 or any(part.participants == "in turn" for part in passing)):
        raise PricingError(
            "Expected passes=1 with several kinds of one-pass rounds or rounds in turn: batches would not repeat in "
            "step."
        )


def _check_epochs(algorithm: Algorithm) -> None:
    """Raise unless epochs belong to one kind of round alone, which everybody answers: one is priced as a whole."""
    samplings = [part.silo.release.sampling for part in algorithm.rounds.values()]
    in_turn = any(
        part.participants == "in turn" and part.silo.release.sampling == "allocation"
        for part in algorithm.rounds.values()
    )
    if "allocation" in samplings and (samplings.count("allocation") > 1 or "one-pass" in samplings or in_turn):
        raise PricingError(
            'Expected sampling="allocation" in one kind of round, which everybody answers, and no one-pass rounds '
            'beside it: an epoch is priced as a whole; use sampling="poisson".'
        )


def _check_parts(algorithm: Algorithm) -> None:
    """Raise unless all one-pass rounds have parts of one number of passes, which do not overlap."""
    end = 0
    kinds = [kind for kind in algorithm.rounds if algorithm.rounds[kind].silo.release.sampling == "one-pass"]
    found = {kind: algorithm.rounds[kind].silo for kind in kinds}
    for kind, silo in sorted(found.items(), key=lambda own: -1 if own[1].release.part is None else own[1].release.part):
        release, asked = silo.release, list(algorithm.schedule).count(kind) * silo.local_steps
        if release.part is None or release.part < end:
            raise PricingError(f"Expected parts of the records that do not overlap; {kind} begins at {release.part}.")
        if asked > release.passes:
            raise PricingError(f"Expected at most passes={release.passes} releases of the part of {kind}, got {asked}.")
        end = release.part + int(release.batch_size or 0)


def honest_reports(part: Round, anonymity_set: AnonymitySet) -> int:
    """Reports that are sure to be shuffled together: of as few silos as may come, the honest, the smallest of all."""
    silos = len(anonymity_set.records)
    least = {"all": silos, "in turn": 1}.get(part.participants, anonymity_set.min_silos)
    size = part.silo.release.batch_size
    sizes = [n if size is None else _whole("batch_size", size, i) for i, n in enumerate(anonymity_set.records)]
    from tacit.privacy.anonymity import counted_silos

    return sum(sorted(sizes)[: counted_silos(silos, least, anonymity_set.honest)])


def _event(kind: str, part: Round, rounds: int, silo_index: int, silos: int, records: int, cap: int | None) -> Event:
    silo, release = part.silo, part.silo.release
    batch = records if release.batch_size is None else _whole("batch_size", release.batch_size, silo_index)
    if release.part is not None and release.part + batch > records:
        raise PricingError(
            f"Expected the part of {kind}, up to record {release.part + batch}, among records={records}; lower "
            "batch_size, which is that of the first part, to at most half of the records."
        )
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
        capacity=capacity if release.sampling in ("poisson", "allocation") else None,
        passes=_passes(release, rounds * silo.local_steps, records, batch),
        protects=release.protects,
        rounds=release.rounds,
        strategy=None if release.rounds is None else _strategy(release),
    )


def _passes(release: Any, releases: int, records: int, batch: int) -> int:
    """The most batches that a record may enter: those of its passes, or one for each epoch that is begun."""
    if release.sampling == "allocation":
        from tacit.privacy.allocation import batches_of

        return -(-releases // batches_of(records, batch))
    return release.passes if release.sampling == "one-pass" else 1


def _strategy(release: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = strategy_of(release)
    return found.weights, found.decays


def _joint(release: Any, silo_index: int) -> float:
    """The multiplier of all blocks together; a release through the open channel has no noise."""
    if release.channel == "open":
        return 0.0
    multiplier = release.noise_multiplier
    if multiplier is None:
        raise PricingError('Expected a noise multiplier for a private release; use channel="open" for none.')
    if not isinstance(multiplier, Mapping):
        return joint_multiplier([float(own_term(multiplier, silo_index))])
    return joint_multiplier([float(own_term(z, silo_index)) for z in multiplier.values()])


def _whole(name: str, value: Any, silo_index: int) -> int:
    """A silo's own whole number: what is priced must be what is sampled."""
    own = float(own_term(value, silo_index))
    if not own.is_integer():
        raise PricingError(f"Expected {name}={own} to be a whole number of records; round it.")
    return int(own)


def own_term(value: Any, silo_index: int) -> Any:
    """A silo's own entry of a term that may differ by silo."""
    array = np.asarray(value)
    return array[silo_index] if array.ndim else array[()]


FEW_RECORDS = 10
"""A silo with fewer training records is warned about."""
_LISTED = 5
MOST_EPSILON = 10.0
"""Above this a budget is said to promise little."""
MOST_DELTA = 0.1
"""A delta as large as this is refused: with that probability nothing is promised."""


def scarce(names: Sequence[str], records: Sequence[int]) -> list[str]:
    """A warning about each silo that has next to nothing to train on.

    >>> scarce(["bergen", "oslo"], [2, 100])[0][:33]
    'bergen has 2 training records: to'
    """
    few = [(name, n) for name, n in zip(names, records, strict=True) if n < FEW_RECORDS]
    listed = [f"{name} has {n} training record{'s' * (n != 1)}" for name, n in few[:_LISTED]]
    if len(few) > _LISTED:
        listed.append(f"{len(few) - _LISTED} more silos have fewer than {FEW_RECORDS}")
    if not listed:
        return []
    return [
        f"{', '.join(listed)}: too few to learn from, and a private message about so few is nearly all noise. Give it "
        "more records, or leave it out."
    ]


def idle(events: Iterable[Event]) -> list[str]:
    """A note about each kind of round whose correlated noise is fresh noise after all.

    >>> full = dict(kind="g", noise_multiplier=2.0, count=9, records=9, batch=9, sampling="full")
    >>> idle([Event(mechanism="correlated", rounds=9, **full)])[0][:59]
    'Correlated noise gains nothing in g: every record is in eve'
    """
    kinds = {event.kind for event in events if event.mechanism == "correlated" and not strategy_of(event).weights}
    return [
        f"Correlated noise gains nothing in {kind}: every record is in every round, and there fresh noise is best. It "
        'is drawn and priced as fresh noise; use sampling="one-pass" with small batches.'
        for kind in sorted(kinds)
    ]


def doubts(epsilons: Sequence[float | None], delta: float, records: Sequence[int]) -> list[str]:
    """Plain warnings about a budget; none where nothing is private.

    >>> doubts([1.0], 1e-6, [100])
    []
    >>> doubts([12.0], 0.02, [100])[0]
    'epsilon = 12 promises little: one record may change the odds of anything that others see by a factor of 2e+05.'
    """
    priced = [epsilon for epsilon in epsilons if epsilon is not None]
    if not priced:
        return []
    warnings, worst, smallest = [], max(priced), min(records)
    if worst > MOST_EPSILON:
        factor = f"a factor of {math.exp(worst):.0e}" if worst < 600 else "any factor"
        warnings.append(
            f"epsilon = {worst:.4g} promises little: one record may change the odds of anything that others see by "
            f"{factor}."
        )
    if delta * smallest > 1:
        warnings.append(
            f"delta = {delta:g} is above 1/{smallest}, one over the records of the smallest silo: publishing one "
            f"of its records at random would satisfy it. Choose delta well below, such as {1 / smallest**2:.0e}."
        )
    return warnings
