"""What silos have answered to a question: the released means of its tables, and the noise in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.counting.request import Table
from tacit.deploy.contract import affordable, builder_from, record_of
from tacit.deploy.server.coordinator import Coordinator
from tacit.plans.assemble import shapes_of
from tacit.simulate.participation import participation
from tacit.studies.statistics import ALL_SILOS, block_noise


class Answered(NamedTuple):
    """By silo, and of all together: how many records, the mean rows by block; and the noise by table."""

    sizes: dict[str, int]
    means: dict[str, Mapping[str, Any]]
    noise: list[dict[str, float]]


def answered(coordinator: Coordinator, tables: Sequence[Table]) -> Answered:
    """What a question of one round has brought, once it is through."""
    point = coordinator.point
    sizes = dict(zip(point.silos, point.records, strict=True))
    multipliers = [_multiplier(coordinator, silo_index) for silo_index in range(len(point.silos))]
    algorithm = builder_from(point.plan, point.records[0]).noised(np.asarray(multipliers))
    shuffle, peers = point.plan.shuffle, point.plan.pairwise
    colluding = 1 if peers is None else peers.colluding
    who = participation(len(sizes), honest=1.0 if shuffle is None else shuffle.honest, colluding=colluding)
    [once] = algorithm.rounds.values()
    means = {**coordinator.messages, ALL_SILOS: coordinator.params}
    return Answered(sizes, means, block_noise(once.silo.release, tables, sizes, who))


def _multiplier(coordinator: Coordinator, silo_index: int) -> float:
    """A silo's noise multiplier: as it said, or as the plan's budget needs where another process heard it."""
    point = coordinator.point
    consent = coordinator.consents.get(point.silos[silo_index])
    if consent is not None:
        return consent.noise_multipliers[coordinator.algorithm.schedule[0]]
    plan, records = point.plan.model_copy(update={"silo_index": silo_index}), point.records[silo_index]
    builder = builder_from(plan, records)
    shapes = shapes_of(builder.noised(1.0), builder.problem, record_of(plan))
    return affordable(builder, plan, records, shapes.dimensions)[1][0].noise_multiplier
