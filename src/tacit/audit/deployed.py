"""Silos under attack as a daemon runs them: a plan is considered, priced and answered by the daemon's own code.

The contract builds the algorithm and decides its noise, grids and coins; a worker answers rounds through the door, with
the samplers that ship. Only two things are the attacker's: the problem (`tacit.audit.worst_case`), on which no promise
may depend, and an engine that remembers (`tacit.audit.stored_engine`).

A trial plays every round of the schedule against one silo. Batches, checks, sums and exact noise are the door's own, in
every trial anew, from the system's entropy: no seed makes a transcript again. The server is hostile and does not adapt:
what it says is settled before the trials.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.algorithm import SHUFFLED_CHANNELS, Algorithm, Broadcast, Sampling
from tacit.audit.attack import Scene
from tacit.audit.stored_engine import StoredEngine
from tacit.audit.worst_case import (
    Canary,
    attackers_problem,
    hostile_broadcasts,
    message_shapes,
    neighbours,
    others_of,
    start_point,
)
from tacit.channel.pairwise import Member, masks_of, new_study_key
from tacit.channel.pairwise import in_order as in_order_of_keys
from tacit.channel.pairwise import public_key as public_of
from tacit.channel.sealing import new_secret, public_key
from tacit.channel.shuffled_reports import MOST_LOCAL, total_of_reports
from tacit.channel.shuffled_sum import in_order, joined
from tacit.deploy.contract import builder_from
from tacit.deploy.server.deployment import DEPLOYED, description_of, plan_for
from tacit.deploy.signing import Signer
from tacit.deploy.silo.answering import EXACT, TEST_BUILD, Remembered, Worker
from tacit.deploy.silo.consent import Offer, consider
from tacit.deploy.silo.pairwise import Masks
from tacit.deploy.silo.policy import AllowSection, PairwiseSection, ShuffleSection
from tacit.deploy.wire import VERSION, Description, Plan, Welcome
from tacit.plans.assemble import Builder
from tacit.plans.catalogue import shipped
from tacit.privacy import Price, price
from tacit.privacy.anonymity import counted_silos
from tacit.silo.batches import pass_order
from tacit.studies.run import Prepared

# The shape of a record of the attacker's problem.
_RECORD = {"x": jax.ShapeDtypeStruct((1,), jnp.float32), "y": jax.ShapeDtypeStruct((), jnp.float32)}
SHUFFLER = "shuffler"
Table = dict[str, np.ndarray]


@dataclass(frozen=True)
class Deployed:
    """A plan as the silo under attack would run it, and as the honest silos would whose noise its price counts on."""

    own: Offer
    others: tuple[Offer, ...]
    records: tuple[int, ...]


@lru_cache(maxsize=2)
def spare_key(index: int) -> str:
    """A key that nobody needs."""
    return str(new_secret().public)


def attacked(plan: Plan, records: int) -> Offer:
    """What a daemon offers for a plan whose problem is the attacker's."""

    def build(plan: Plan, records: int) -> Builder:
        return dataclasses.replace(builder_from(plan, records), problem=attackers_problem())

    return offer(plan, records, record=_RECORD, build=build)


def deploy(plan: Plan, records: tuple[int, ...], offered: Callable[[Plan, int], Offer] = attacked) -> Deployed:
    """The plan at its place, and at the smallest honest silos that its price counts on; the server knows the rest."""
    own = offered(plan, records[plan.silo_index])
    if plan.pairwise is not None:
        counted = plan.pairwise.min_silos - plan.pairwise.colluding
    elif plan.shuffle is None:
        return Deployed(own, (), (records[plan.silo_index],))
    else:
        counted = counted_silos(plan.silos, plan.shuffle.min_silos, plan.shuffle.honest)
    smallest = sorted((n, i) for i, n in enumerate(records) if i != plan.silo_index)[: counted - 1]
    others = tuple(offered(plan.model_copy(update={"silo_index": i}), n) for n, i in smallest)
    return Deployed(own, others, (records[plan.silo_index], *(n for n, _ in smallest)))


def offer(plan: Plan, records: int, *, record: Any, build: Callable[[Plan, int], Builder]) -> Offer:
    """What a daemon offers whose owner allows everything."""
    allow = AllowSection(algorithms=tuple(shipped()), channels=DEPLOYED, min_silos=1)  # type: ignore[arg-type]
    others: dict[str, Any] = {
        "shuffle": ShuffleSection(
            shufflers={SHUFFLER: spare_key(0)}, colluding=0, min_shufflers=1, max_local_epsilon=1e6
        )
    }
    if plan.pairwise is not None:
        peers = {name: Signer(_identity(name)).public for name in plan.pairwise.silos}
        own = plan.pairwise.silos[plan.silo_index]
        del peers[own]
        others = {"pairwise": PairwiseSection(peers=peers, colluding=1, min_silos=2), "silo": own}
    return consider(plan, records=records, record=record, allow=allow, build=build, **others)


def _identity(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def proposed(prepared: Prepared) -> Plan:
    """The plan that a server would propose for a study, at place 0; a study that cannot be deployed raises."""
    federation, study = prepared.federations[0], prepared.study
    shape = Description(features=federation.feature_shape, task=federation.task, classes=federation.num_classes)
    described = description_of(study) or shape
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
            schema_digest=described.digest,
            description=described,
        )
        for silo in prepared.plan.silos
    ]
    if study.algorithm.channel not in SHUFFLED_CHANNELS:
        return plan_for(study, facts, {})
    return plan_for(study, facts, {SHUFFLER: spare_key(0)}, public_key(spare_key(1)))


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
    known: dict[int, tuple[list[Masks], list[np.ndarray]]] = field(default_factory=dict)

    def begin(self, *, afresh: bool) -> tuple[Remembered, ...]:
        """What everybody remembers before the first round of a trial; ``afresh`` the silo under attack forgets all."""
        return (self.workers[0].begin(), *self.begun[1:]) if afresh else self.begun

    def heard(
        self, index: int, broadcast: Any, kept: tuple[Remembered, ...]
    ) -> tuple[np.ndarray, tuple[Remembered, ...]]:
        """What the server gets to read of a round, as one row of numbers, and what everybody remembers then."""
        own = self.workers[0]
        kind = own.offer.algorithm.schedule[index]
        everyone = list(zip(self.workers, kept, strict=True))
        if kind in own.offer.shares:
            total = sum(worker.share(index, broadcast, its) for worker, its in everyone)
            return total - self._heads(kind), kept
        if kind in own.offer.streams:
            streams = own.offer.streams[kind]
            said = [worker.reports(index, broadcast, its) for worker, its in everyone]
            # Reports of all silos are added up, stream by stream; the order in which they come is lost.
            merged = {name: [report for own in said for report in own[name]] for name in streams}
            return np.concatenate([total_of_reports(merged[name], streams[name]) for name in sorted(streams)]), kept
        if kind in own.offer.sums:
            masks, known = self._masks(index)
            parts = zip(everyone, masks, strict=True)
            masked = [worker.masked(index, broadcast, its, own_masks) for (worker, its), own_masks in parts]
            # Those that collude take off all masks that they know: the honest silos' sum is left.
            total = joined([*(values for values, _ in masked), *known])
            return total.astype(np.float64), tuple(its for _, its in masked)
        arrays, after = own.answer(index, broadcast, kept[0])
        return np.concatenate([array.ravel() for array in arrays]).astype(np.float64), (after, *kept[1:])

    def _masks(self, index: int) -> tuple[list[Masks], list[np.ndarray]]:
        """The masks of the honest silos in the smallest round, and those of the colluding; the same in every trial."""
        if index not in self.known:
            offer = self.workers[0].offer
            among, terms = offer.plan.pairwise, offer.sums[offer.algorithm.schedule[index]]
            assert among is not None
            keys = [kept.study_key for kept in self.begun] + [new_study_key() for _ in range(among.colluding)]
            members = [Member(f"silo-{i}", _identity(str(i)), public_of(key)) for i, key in enumerate(keys)]
            roster, context = in_order_of_keys(members, members[0]), hashlib.sha256(str(index).encode()).digest()
            dimension = sum(own.dimension for own in terms.values())
            drawn = [masks_of(key, roster, context, dimension) for key in keys]
            honest = [Masks(values, len(keys), context) for values in drawn[: len(self.begun)]]
            self.known[index] = honest, drawn[len(self.begun) :]
        return self.known[index]

    def _heads(self, kind: str) -> np.ndarray:
        """How many coins of a sum show their heads on average."""
        offer = self.workers[0].offer
        size = offer.algorithm.rounds[kind].silo.release.batch_size
        batch = sum(self.records) if size is None else len(self.records) * int(np.max(size))
        blocks = in_order(offer.shares[kind])
        return np.concatenate([np.full(terms.dimension, terms.coins * batch / 2) for _, terms in blocks])


def cast_of(
    deployed: Deployed,
    tables: list[Table],
    begun: tuple[Remembered, ...],
    *,
    engines: Engines,
    quiet: bool,
) -> Cast:
    """Workers with these records; ``quiet`` ones have no noise, and reports that hardly lie."""
    offers = (deployed.own, *deployed.others)
    if quiet:
        offers = tuple(dataclasses.replace(offer, streams=_truthful(offer.streams)) for offer in offers)
    samplers = TEST_BUILD if quiet else EXACT
    pairs = zip(offers, tables, strict=True)
    workers = tuple(Worker(offer, table, samplers, engine=engines) for offer, table in pairs)
    return Cast(workers, begun or tuple(worker.begin() for worker in workers), deployed.records)


def casts_of(
    deployed: Deployed,
    worlds: Sequence[Table],
    others: Sequence[Table],
    begun: tuple[Remembered, ...],
    *,
    engines: Engines,
) -> tuple[tuple[Cast, Cast], tuple[Cast, Cast]]:
    """The casts of both worlds, with noise and without; ``worlds`` are the records of the silo under attack."""
    loud, quiet = (
        tuple(cast_of(deployed, [world, *others], begun, engines=engines, quiet=still) for world in worlds)
        for still in (False, True)
    )
    return loud, quiet  # type: ignore[return-value]


def _truthful(streams: Mapping[str, Any]) -> dict[str, Any]:
    return {
        kind: {name: terms._replace(local_epsilon=MOST_LOCAL) for name, terms in own.items()}
        for kind, own in streams.items()
    }


@dataclass(frozen=True)
class DoorScene:
    """A scene at the door. ``loud`` and ``quiet`` are the casts of both worlds, with and without noise.

    ``rounds`` are the rounds of the schedule that the silo answers, ``said`` the broadcasts in them; ``heard`` marks
    those that the attacker listens to.
    """

    loud: tuple[Cast, Cast]
    quiet: tuple[Cast, Cast]
    rounds: tuple[int, ...]
    said: tuple[Broadcast, ...]
    heard: np.ndarray
    width: int
    varied: bool
    secret: bool

    def draw(self, world: int, trials: int, *, quiet: bool = False) -> np.ndarray:
        """Fresh transcripts; see `Scene`."""
        cast = (self.quiet if quiet else self.loud)[world]
        transcripts = np.zeros((trials, len(self.rounds), self.width))
        for rows in transcripts:
            # The seed of epochs is a secret of the study, which every trial begins anew; the order of a pass is none.
            kept = cast.begin(afresh=self.secret)
            for row, index, broadcast in zip(rows, self.rounds, self.said, strict=True):
                heard, kept = cast.heard(index, broadcast, kept)
                row[: len(heard)] = heard
        return transcripts[:, self.heard]


@dataclass(frozen=True)
class DoorTarget:
    """A silo behind its door."""

    deployed: Deployed
    path: str = "door"

    @property
    def algorithm(self) -> Algorithm:
        """What the daemon built."""
        return self.deployed.own.algorithm

    def claim(self, kind: str | None) -> Price:
        """What the daemon says that its releases cost, or those of one kind."""
        offer = self.deployed.own
        if kind is None:
            return offer.price
        return price([e for e in offer.events if e.kind == kind], delta=offer.price.delta)

    def scenes(self, *, canary: Canary, kind: str | None, seed: int) -> Sequence[Scene]:
        """A turning and a steady server. The seed decides nothing: everything random is the door's own."""
        deployed, offer, algorithm = self.deployed, self.deployed.own, self.algorithm
        records = deployed.records
        rounds = tuple(n for n in range(offer.rounds) if offer.may_answer(n))[: offer.plan.max_participations]
        samplings = {algorithm.rounds[algorithm.schedule[n]].silo.release.sampling for n in rounds}
        others = [_bystanders(n, samplings) for n in records[1:]]
        engines = Engines()
        # A study draws the order of its pass once, and it is not secret: the record that differs may be its first.
        blank = cast_of(deployed, [_bystanders(records[0], samplings), *others], (), engines=engines, quiet=False)
        order = pass_order(blank.begun[0].order_seed.tobytes(), records[0])
        pairs = neighbours(canary, records[0], int(order[0]) if "one-pass" in samplings else 0, samplings)
        worlds = [{name: pairs[name][world] for name in ("x", "y")} for world in (0, 1)]
        loud, quiet = casts_of(deployed, worlds, others, blank.begun, engines=engines)
        shapes = message_shapes(algorithm, start_point(), pairs)
        width = max(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shape)) for shape in shapes.values())
        heard = np.asarray([kind is None or algorithm.schedule[n] == kind for n in rounds])
        varied = bool(samplings - {"full", "one-pass"}) or bool(offer.shares) or bool(offer.streams)

        def staged(turning: bool) -> DoorScene:
            broadcasts = hostile_broadcasts(algorithm, start_point(), shapes, turning)
            leaves = {n: [np.asarray(leaf) for leaf in jax.tree.leaves(broadcasts[n])] for n in rounds}
            # As the daemon reads them from the wire.
            said = tuple(loud[0].workers[0].broadcast(n, own) for n, own in leaves.items())
            secret = "allocation" in samplings
            return DoorScene(loud, quiet, rounds, said, heard, width, varied, secret)

        return staged(True), staged(False)


def _bystanders(records: int, samplings: set[Sampling]) -> Table:
    """Records that the attacker knows; as in `neighbours`, those of batches of random size are silent."""
    y = np.full(records, others_of(samplings), np.float32)
    return {"x": np.ones((records, 1), np.float32), "y": y}
