"""From an algorithm to what one silo would release: the plan, read off the static part of the types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit.algorithm import Algorithm, Round
from tacit.privacy.events import Event, PricingError, joint_multiplier


def events_of(
    algorithm: Algorithm, *, place: int, silos: int, records: int, max_participations: int | None = None
) -> tuple[Event, ...]:
    """The releases that the silo at ``place`` would make, one event per kind of round.

    Formal guarantee: every release of a run of ``algorithm`` in which the silo takes part in at most
    ``max_participations`` rounds (default: all) is covered. Everything is read from the plan; nothing depends
    on records or broadcasts.
    """
    if max_participations is not None and max_participations < 1:
        raise PricingError(f"Expected max_participations={max_participations} >= 1.")
    events = []
    for kind in sorted(algorithm.rounds):
        rounds = sum(name == kind for name in algorithm.schedule)
        if rounds:
            events.append(_event(kind, algorithm.rounds[kind], rounds, place, silos, records, max_participations))
    return tuple(events)


def _event(kind: str, part: Round, rounds: int, place: int, silos: int, records: int, cap: int | None) -> Event:
    silo, release = part.silo, part.silo.release
    batch = records if release.batch_size is None else int(_own(release.batch_size, place))
    if part.participants == "in turn":
        rounds = math.ceil(rounds / silos)
    if release.sampling == "one-pass" and rounds * silo.local_steps * batch > records:
        raise PricingError(
            f"Expected rounds={rounds} x local_steps={silo.local_steps} x batch={batch} <= records={records} for "
            'sampling "one-pass"; lower the rounds or the batch, or use sampling="poisson" to see records again.'
        )
    capacity = None if release.capacity is None else min(int(_own(release.capacity, place)), records)
    return Event(
        kind=kind,
        noise_multiplier=_joint(release, place),
        count=(rounds if cap is None else min(rounds, cap)) * silo.local_steps,
        records=records,
        batch=batch,
        sampling=release.sampling,
        mechanism=release.mechanism,
        capacity=capacity if release.sampling == "poisson" else None,
        protects=release.protects,
    )


def _joint(release: Any, place: int) -> float:
    """The multiplier of all blocks together; a release through the open channel has no noise."""
    if release.channel == "open":
        return 0.0
    multiplier = release.noise_multiplier
    if multiplier is None:
        raise PricingError('Expected a noise multiplier for a private release; use channel="open" for none.')
    if not isinstance(multiplier, Mapping):
        return joint_multiplier([float(_own(multiplier, place))])
    return joint_multiplier([float(_own(z, place)) for z in multiplier.values()])


def _own(value: Any, place: int) -> Any:
    """A silo's own entry of a term that may differ by silo."""
    array = np.asarray(value)
    return array[place] if array.ndim else array[()]
