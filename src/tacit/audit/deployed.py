"""Silos under attack as a daemon runs them: a plan is considered, priced and answered by the daemon's own code.

The contract builds the algorithm and decides its noise, grids and coins; a worker answers rounds through the door, with
the samplers that ship. Only two things are the attacker's: the problem (`tacit.audit.worst_case`), of which no promise
may depend, and an engine that remembers (`tacit.audit.stored_engine`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.algorithm import CROWDED
from tacit.algorithms import ALGORITHMS
from tacit.audit.stored_engine import StoredEngine
from tacit.audit.worst_case import attackers_problem
from tacit.channel.sealing import new_secret, public_key
from tacit.deploy.contract import builder_from
from tacit.deploy.server.deployment import plan_for
from tacit.deploy.silo.answering import EXACT, TEST_BUILD, Remembered, Worker
from tacit.deploy.silo.consent import Offer, consider
from tacit.deploy.silo.policy import AllowSection, ShuffleSection
from tacit.deploy.wire import VERSION, Plan, Shuffle, Welcome
from tacit.plans.assemble import Builder
from tacit.privacy import Price, price
from tacit.privacy.anonymity import counted_silos
from tacit.silo.local_reports import MOST_LOCAL, total_of_reports
from tacit.silo.shares import in_order
from tacit.studies.run import Prepared

RECORD = {"x": jax.ShapeDtypeStruct((1,), jnp.float32), "y": jax.ShapeDtypeStruct((), jnp.float32)}
"""The shape of a record of the attacker's problem."""

_SHUFFLER = "shuffler"


@dataclass(frozen=True)
class Deployed:
    """A plan as the silo under attack would run it, and as the honest silos would whose noise its price counts on."""

    own: Offer
    others: tuple[Offer, ...]
    records: tuple[int, ...]

    def claim(self, kind: str | None) -> Price:
        """What the daemon says that its releases cost, or those of one kind."""
        if kind is None:
            return self.own.price
        return price([e for e in self.own.events if e.kind == kind], delta=self.own.price.delta)


def anonymity_set(
    records: tuple[int, ...], channel: str, *, min_silos: int, honest: float, weights: str
) -> Shuffle | None:
    """The crowd of a plan through shufflers, with keys that nobody needs; none where every silo speaks for itself."""
    if channel not in CROWDED:
        return None
    to = {"shufflers": {_SHUFFLER: _key(0)}, "server": _key(1)}
    return Shuffle(records=records, min_silos=min_silos, honest=honest, weights=weights, **to)  # type: ignore[arg-type]


@lru_cache(maxsize=2)
def _key(number: int) -> str:
    return str(new_secret().public)


def deploy(plan: Plan, records: tuple[int, ...]) -> Deployed:
    """The plan at its place, and at those of the honest silos that its price counts on; a refusal is the daemon's own.

    The other honest silos are the smallest. Those that collude are left out: the server knows what they say.
    """
    own = _offer(plan, records[plan.silo_index])
    if plan.shuffle is None:
        return Deployed(own, (), (records[plan.silo_index],))
    counted = counted_silos(plan.silos, plan.shuffle.min_silos, plan.shuffle.honest)
    smallest = sorted((n, silo_index) for silo_index, n in enumerate(records) if silo_index != plan.silo_index)[
        : counted - 1
    ]
    others = tuple(_offer(plan.model_copy(update={"silo_index": silo_index}), n) for n, silo_index in smallest)
    return Deployed(own, others, (records[plan.silo_index], *(n for n, _ in smallest)))


def _offer(plan: Plan, records: int) -> Offer:
    return offer(plan, records, record=RECORD, build=_attackers)


def offer(plan: Plan, records: int, *, record: Any, build: Callable[[Plan, int], Builder]) -> Offer:
    """What a daemon offers whose owner allows everything."""
    allow = AllowSection(algorithms=tuple(ALGORITHMS), channels=("direct", *CROWDED), min_silos=1)  # type: ignore[arg-type]
    trusted = ShuffleSection(shufflers={_SHUFFLER: _key(0)}, colluding=0, min_shufflers=1, max_local_epsilon=1e6)
    return consider(plan, records=records, record=record, allow=allow, shuffle=trusted, build=build)


def proposed(prepared: Prepared) -> Plan:
    """The plan that a server would propose for a study, at place 0; a study that cannot be deployed raises."""
    federation, study = prepared.federations[0], prepared.study
    facts = [
        Welcome(
            version=VERSION,
            tacit=tacit.__version__,
            silo=silo.name,
            records=silo.records,
            features=federation.feature_shape,
            task=federation.task,
            classes=federation.num_classes,
            noise="",
        )
        for silo in prepared.plan.silos
    ]
    if study.algorithm.channel not in CROWDED:
        return plan_for(study, facts, {})
    return plan_for(study, facts, {_SHUFFLER: _key(0)}, public_key(_key(1)))


def _attackers(plan: Plan, records: int) -> Builder:
    return dataclasses.replace(builder_from(plan, records), problem=attackers_problem())


class Engines:
    """One engine for each kind of round: both worlds, and all trials, share what it computed."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, bool], StoredEngine] = {}
        self._silos: list[Any] = []

    def __call__(self, silo: Any, *, form: bool) -> StoredEngine:
        """The engine of a silo; the silo is kept, so that its identity stays its own."""
        self._silos.append(silo)
        return self._made.setdefault((id(silo), form), StoredEngine(silo, form=form))


@dataclass(frozen=True)
class Cast:
    """The workers of one world, the silo under attack first, and what each remembers before the first round."""

    workers: tuple[Worker, ...]
    begun: tuple[Remembered, ...]
    records: tuple[int, ...]

    def heard(self, number: int, broadcast: Any, kept: Remembered) -> tuple[np.ndarray, Remembered]:
        """What the server gets to read of a round, as one row of numbers, and what the silo remembers."""
        own = self.workers[0]
        kind = own.offer.algorithm.schedule[number]
        everyone = list(zip(self.workers, (kept, *self.begun[1:]), strict=True))
        if kind in own.offer.shares:
            total = sum(worker.share(number, broadcast, its) for worker, its in everyone)
            return total - self._heads(kind), kept
        if kind in own.offer.streams:
            said = [worker.reports(number, broadcast, its) for worker, its in everyone]
            return _read(said, own.offer.streams[kind]), kept
        arrays, kept = own.answer(number, broadcast, kept)
        return np.concatenate([array.ravel() for array in arrays]).astype(np.float64), kept

    def _heads(self, kind: str) -> np.ndarray:
        """How many coins of a sum show their heads on average."""
        offer = self.workers[0].offer
        size = offer.algorithm.rounds[kind].silo.release.batch_size
        batch = sum(self.records) if size is None else len(self.records) * int(np.max(size))
        return np.concatenate(
            [np.full(own.dimension, own.coins * batch / 2) for _, own in in_order(offer.shares[kind])]
        )


def _read(said: list[dict[str, list[bytes]]], streams: Mapping[str, Any]) -> np.ndarray:
    """The reports of all silos, stream by stream, as the server adds them up; in which order they come is lost."""
    merged = {name: [report for own in said for report in own[name]] for name in streams}
    return np.concatenate([total_of_reports(merged[name], streams[name]) for name in sorted(streams)])


def cast_of(
    deployed: Deployed,
    tables: list[dict[str, np.ndarray]],
    begun: tuple[Remembered, ...],
    *,
    engines: Engines,
    quiet: bool,
) -> Cast:
    """Workers with these records.

    ``quiet`` ones have the samplers of a test build, and reports that hardly lie: that is how an attacker learns what
    a transcript looks like without noise.
    """
    offers = (deployed.own, *deployed.others)
    if quiet:
        offers = tuple(dataclasses.replace(offer, streams=_truthful(offer.streams)) for offer in offers)
    samplers = TEST_BUILD if quiet else EXACT
    pairs = zip(offers, tables, strict=True)
    workers = tuple(Worker(offer, table, samplers, engine=engines) for offer, table in pairs)
    return Cast(workers, begun or tuple(worker.begin() for worker in workers), deployed.records)


def _truthful(streams: Mapping[str, Any]) -> dict[str, Any]:
    return {
        kind: {name: terms._replace(local_epsilon=MOST_LOCAL) for name, terms in own.items()}
        for kind, own in streams.items()
    }
