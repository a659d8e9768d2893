"""What a plan through shufflers means, to silos and server alike: terms, and what deposits are bound to.

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
from typing import Any

import numpy as np

from tacit.algorithm import Algorithm
from tacit.channel.sealing import Binding, PublicKey, public_key
from tacit.channel.shuffled_reports import ReportTerms, report_terms
from tacit.channel.shuffled_sum import BlockTerms, share_terms
from tacit.deploy.contract import seat_of
from tacit.deploy.wire import REPORTS, Plan, RefusalError
from tacit.plans.assemble import coordinates

Streams = Mapping[str, Mapping[str, ReportTerms]]
"""The terms of shuffled reports, by kind of round and stream."""

_WHOLE = "whole"
_MOST_COORDINATES = 10**10


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
