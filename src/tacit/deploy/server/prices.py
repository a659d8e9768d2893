"""What a server can reckon of silos' prices: the releases of the public plan, with the noise that silos consented to.

A silo's own ledger decides what it has spent. Plan and noise are public, so the server can read the same schedule of
releases, and with it more than epsilon and delta tell.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from tacit.deploy.contract import builder_from, seat_of
from tacit.deploy.server.coordinator import Coordinator
from tacit.plans.price import releases_of
from tacit.privacy import Event, PricingError, price, risk_of_price

_SAME = 1e-3
"""How far the price of a schedule may lie from what the silo named, relatively, to be taken for that schedule."""


def releases(coordinator: Coordinator, silo_index: int, made: Counter[str] | None = None) -> tuple[Event, ...] | None:
    """The releases of the silo at a place: all that its plan has, or of each kind those of ``made`` rounds.

    None where the silo's noise is not known: it has not consented, or this process has not heard it.
    """
    point = coordinator.point
    consent = coordinator.consents.get(point.silos[silo_index])
    if consent is None:
        return None
    plan = point.plan.model_copy(update={"silo_index": silo_index})
    builder = builder_from(plan, point.records[silo_index])
    seat = seat_of(plan, point.records[silo_index])
    [(kind, unit), *_] = [(event.kind, event.noise_multiplier) for event in releases_of(builder.noised(1.0), seat)]
    algorithm = builder.noised(np.float32(consent.noise_multipliers[kind] / unit))
    found = []
    for event in releases_of(algorithm, seat):
        count = event.count if made is None else made[event.kind] * algorithm.rounds[event.kind].silo.local_steps
        if count:
            found.append(dataclasses.replace(event, count=count))
    return tuple(found)


def spent(coordinator: Coordinator) -> float | None:
    """The largest price of the answers so far; silos' own ledgers say it exactly."""
    point, found = coordinator.point, []
    for silo_index, name in enumerate(point.silos):
        # A silo that was left out of a sum has paid for its answer.
        answered = [row for row in point.history if name in (*row["silos"], *row.get("left_out", ()))]
        events = releases(coordinator, silo_index, Counter(row["kind"] for row in answered))
        if not events:
            continue
        try:
            found.append(price(events, delta=point.plan.delta).epsilon)
        except PricingError:
            continue
    return max(found, default=None)


def risk_at(coordinator: Coordinator, silo_index: int) -> dict[str, Any] | None:
    """How well an attacker could do against the silo at a place, from its schedule of releases, as in a simulation.

    None where the schedule is not known, or does not cost what the silo named: then epsilon and delta are all there is.
    """
    point = coordinator.point
    events = releases(coordinator, silo_index)
    if not events:
        return None
    named = coordinator.consents[point.silos[silo_index]].epsilon
    try:
        paid = price(events, delta=point.plan.delta)
        return vars(risk_of_price(paid)) if abs(paid.epsilon - named) <= _SAME * named else None
    except PricingError:
        return None
