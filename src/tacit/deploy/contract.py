"""What a plan means, to silos and server alike: algorithm, shapes, releases and price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from tacit.algorithm import Algorithm
from tacit.deploy.wire import Plan
from tacit.plans.assemble import Builder, builder_of, problem_of, record_shape
from tacit.plans.price import Seat, afford
from tacit.plans.spec import study_from
from tacit.privacy import Event, Price
from tacit.privacy.plan import AnonymitySet, Budget


class _Facts(NamedTuple):
    """What a plan says about the records."""

    name: str
    task: str
    num_classes: int | None
    feature_shape: tuple[int, ...]
    feature_norm: float | None = None


def builder_from(plan: Plan, records: int) -> Builder:
    """The algorithm of a plan, at a silo with this many records, before noise is decided."""
    tree = {
        "name": plan.name,
        "data": {"name": "silo"},
        "objective": _tuples(plan.objective),
        "algorithm": _tuples(plan.algorithm),
        "privacy": {"epsilon": plan.epsilon, "delta": plan.delta},
    }
    study = study_from(tree)
    facts = _Facts(plan.name, plan.task, plan.classes, plan.features)
    # Every silo is given this one's count: no other is used.
    return builder_of(study, problem_of(study, facts), [records] * plan.silos)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(part) for key, part in value.items()}
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def record_of(plan: Plan) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of one record, as the plan says."""
    places = [column.get("place", 0) for column in plan.algorithm.get("columns", ()) if isinstance(column, dict)]
    return record_shape(plan.features, plan.task, 1 + max(places) if places else 0)


def seat_of(plan: Plan, records: int) -> Seat:
    """What the price of a plan depends on at its silo, with this many records."""
    shuffle = plan.shuffle
    anonymity_set = None if shuffle is None else AnonymitySet(shuffle.records, shuffle.honest, shuffle.min_silos)
    among, peers = plan.pairwise, None
    if among is not None:
        from tacit.privacy.pairwise import Peers

        peers = Peers(among.records, among.colluding, among.min_silos, among.spare_attempts)
    return Seat(plan.silo_index, plan.silos, records, plan.max_participations, anonymity_set, peers)


def affordable(
    builder: Builder, plan: Plan, records: int, dimensions: Mapping[str, int]
) -> tuple[Algorithm, tuple[Event, ...], Price]:
    """The algorithm with the noise that the plan's budget needs, its releases at this silo, and their price."""
    budget = Budget(epsilon=plan.epsilon, delta=plan.delta, max_participations=plan.max_participations)
    priced = afford(builder.noised, [seat_of(plan, records)], budget, dimensions=dimensions)
    return builder.noised(priced.noise[0]), priced.events[0], priced.prices[0]
