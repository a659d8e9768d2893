"""How large the noise of a plan is, in units of the clip: in what a silo says, and in the mean of all silos."""

from __future__ import annotations

import math

import numpy as np

from tacit.algorithm import SHUFFLED_CHANNELS, Algorithm
from tacit.plans.spec import Study
from tacit.privacy import Event
from tacit.privacy.anonymity import counted_silos, record_weights
from tacit.privacy.pairwise import share_multiplier
from tacit.privacy.plan import SiloPlan
from tacit.privacy.randomisers import noise_over_clip


def said_over_clip(study: Study, silos: tuple[SiloPlan, ...], event: Event, min_silos: int) -> float:
    """Deviation per coordinate of the noise that a silo itself adds to its mean.

    Through the shuffled sum and pairwise sums that is its share, which protects a record only together with those of
    the others.
    """
    if study.algorithm.channel == "pairwise" and event.kind != "statistics":
        return noise_over_clip(event) * share_multiplier(1.0, len(silos), study.pairwise.colluding)
    if study.algorithm.channel != "shuffled-sum" or event.kind == "statistics":
        return noise_over_clip(event)
    sizes = sorted(other.batch for silo in silos for other in silo.events if other.kind == event.kind)
    honest = sum(sizes[: counted_silos(len(sizes), min(min_silos, len(sizes)), study.run.honest)])
    return noise_over_clip(event) * math.sqrt(event.batch / honest)


def mean_over_clip(study: Study, silos: tuple[SiloPlan, ...], algorithm: Algorithm, min_silos: int) -> dict[str, float]:
    """Deviation per coordinate of the noise in the mean of all silos, for each kind of round to which all come."""
    channel, found = study.algorithm.channel, {}
    for kind, part in algorithm.rounds.items():
        events = [event for silo in silos for event in silo.events if event.kind == kind]
        if part.participants == "in turn" or len(events) != len(silos):
            continue
        by_records = study.run.weights == "records"
        counts = np.asarray([silo.records for silo in silos], float)
        weights = counts / counts.sum() if by_records else np.full(len(silos), 1 / len(silos))
        if channel == "pairwise" or channel in SHUFFLED_CHANNELS:
            # The noise of a record is as large at a silo whose records count little.
            sizes = np.asarray([event.batch for event in events])
            weights = sizes * record_weights(weights, sizes)[1]
        own = np.asarray([said_over_clip(study, silos, event, min_silos) for event in events]) * weights
        found[kind] = float(own.max() if channel == "trusted" else np.sqrt(np.sum(own**2)))
    return found
