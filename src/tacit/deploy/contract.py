"""What a plan means, to silos and server alike: algorithm, shapes, releases, and what deposits are bound to.

A share or a report is private only in its anonymity set, so a silo trusts nobody's word for it. Every honest silo
checks its own count of records in the plan. All deposits are bound to a digest of the whole plan and of its coins, and
a shuffler combines only deposits that are bound to the same, one for each silo of the plan. So honest silos have the
records that the plan says. Each deposit tells the shuffler how many silos it needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from tacit.algorithm import Algorithm
from tacit.channel.sealing import Binding, PublicKey, public_key
from tacit.channel.shuffled_reports import ReportTerms, report_terms
from tacit.channel.shuffled_sum import BlockTerms, share_terms
from tacit.deploy.wire import Plan, RefusalError
from tacit.plans.assemble import Builder, builder_of, problem_of
from tacit.plans.price import Seat, afford
from tacit.plans.shapes import coordinates, record_shape
from tacit.plans.spec import study_from
from tacit.privacy import Event, Price
from tacit.privacy.plan import AnonymitySet, Budget

REPORTS = "shuffled-reports"
Streams = Mapping[str, Mapping[str, ReportTerms]]
"""The terms of shuffled reports, by kind of round and stream."""

_WHOLE = "whole"
_MOST_COORDINATES = 10**10


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
    return record_shape(plan.features, plan.task)


def seat_of(plan: Plan, records: int) -> Seat:
    """What the price of a plan depends on at its silo, with this many records."""
    shuffle = plan.shuffle
    anonymity_set = None if shuffle is None else AnonymitySet(shuffle.records, shuffle.honest, shuffle.min_silos)
    return Seat(plan.silo_index, plan.silos, records, plan.max_participations, anonymity_set)


def affordable(
    builder: Builder, plan: Plan, records: int, dimensions: Mapping[str, int]
) -> tuple[Algorithm, tuple[Event, ...], Price]:
    """The algorithm with the noise that the plan's budget needs, its releases at this silo, and their price."""
    budget = Budget(epsilon=plan.epsilon, delta=plan.delta, max_participations=plan.max_participations)
    priced = afford(builder.noised, [seat_of(plan, records)], budget, dimensions=dimensions)
    return builder.noised(priced.noise[0]), priced.events[0], priced.prices[0]


def share_terms_of(algorithm: Algorithm, plan: Plan, statistics: Mapping[str, Any]) -> dict[str, BlockTerms]:
    """Grid and coins of every kind of round, block by block: the same at all silos and the server.

    ``statistics`` are the shapes of what is released.
    """
    shuffle = plan.shuffle
    assert shuffle is not None
    if len(algorithm.schedule) * max(map(coordinates, statistics.values())) > _MOST_COORDINATES:
        raise RefusalError("not-allowed", f"expected rounds x parameters of at most {_MOST_COORDINATES}")
    terms: dict[str, BlockTerms] = {}
    for event in seat_of(plan, shuffle.records[plan.silo_index]).events(algorithm):
        release = algorithm.rounds[event.kind].silo.release
        size, shape = release.batch_size, statistics[event.kind]
        sizes = shuffle.records if size is None else [int(np.max(size))] * len(shuffle.records)
        own = partial(share_terms, sizes=sizes, min_silos=shuffle.min_silos, honest=shuffle.honest)
        if isinstance(release.noise_multiplier, Mapping):
            blocks = {name: float(z) for name, z in release.noise_multiplier.items()}
            terms[event.kind] = {name: own(z, dimension=coordinates(shape[name])) for name, z in blocks.items()}
        else:
            terms[event.kind] = own(event.noise_multiplier, dimension=coordinates(shape))
    return terms


def reporting(algorithm: Algorithm) -> dict[str, Any]:
    """The kinds of round that travel as shuffled reports."""
    return {kind: part for kind, part in algorithm.rounds.items() if part.silo.release.channel == REPORTS}


def streams_of(algorithm: Algorithm, statistics: Mapping[str, Any]) -> dict[str, dict[str, ReportTerms]]:
    """The terms of every stream of every kind of round: the same at all silos and the server."""
    streams = {}
    for kind, part in reporting(algorithm).items():
        noise, shape = part.silo.release.noise_multiplier, statistics[kind]
        if isinstance(noise, Mapping):
            blocks = sorted(noise.items())
            streams[kind] = {name: report_terms(float(z), coordinates(shape[name])) for name, z in blocks}
        else:
            streams[kind] = {"": report_terms(float(noise), coordinates(shape))}
    return streams


def min_silos_of(algorithm: Algorithm, plan: Plan, kind: str) -> int:
    """The fewest silos of a round: its price counts on them, and its deposits ask for them."""
    assert plan.shuffle is not None
    return plan.silos if algorithm.rounds[kind].participants == "all" else plan.shuffle.min_silos


def bound_to(plan: Plan, terms: Mapping[str, Any], *, noise: bool) -> bytes:
    """Digest of a plan, of its terms here (grids and coins, or epsilon_0), and of whether there is noise.

    Deposits are bound to it. So silos that flip fewer coins, like another version of Tacit, or none, like a test build
    (``noise=False``), are never combined with silos that count on them.
    """
    made = json.dumps({"noise": noise, "terms": terms}, sort_keys=True)
    return hashlib.sha256(b"tacit terms 2" + plan.consortium + made.encode()).digest()


def stream_binding(bound: bytes, stream: str, round_index: int, broadcast: bytes) -> Binding:
    """What the reports of a stream are bound to: each stream of a study is a shuffle of its own."""
    consortium = hashlib.sha256(b"tacit stream 2" + bound + stream.encode()).digest()
    return Binding(consortium, round_index, broadcast)


def route_of(plan: Plan) -> list[PublicKey]:
    """The keys that a report is sealed for in turn: the shufflers', then the server's."""
    shuffle = plan.shuffle
    assert shuffle is not None
    assert shuffle.server is not None
    return [public_key(key) for key in (*shuffle.shufflers.values(), shuffle.server)]


def stream_name(stream: str) -> str:
    """The name of a stream's frame in a sealed answer."""
    return stream or _WHOLE
