"""Transcripts: everything that a silo says in a schedule, many times over, through the door of a real silo.

A trial plays every round of the schedule against one silo, whose daemon's own worker answers: it draws the batch,
checks and adds the records' integers and adds exact noise, in every trial anew. All of that comes from the system's
entropy, so no seed makes a transcript again. The server is hostile and does not adapt: what it says is settled before
the trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from tacit.algorithm import Algorithm, Broadcast
from tacit.audit.deployed import Cast, Deployed, Engines, cast_of
from tacit.audit.worst_case import (
    LOUD,
    Canary,
    hostile_broadcasts,
    message_shapes,
    neighbours,
    start_point,
)
from tacit.privacy import Price
from tacit.silo.batches import pass_order

_CHUNK = 4096


class Scene(Protocol):
    """Two neighbouring sets of records of a silo, and a hostile server: what there is to attack.

    ``varied`` says whether a transcript without noise differs from trial to trial, as it does where batches are random.
    """

    @property
    def varied(self) -> bool:
        """Whether quiet transcripts differ."""
        ...

    def draw(self, world: int, trials: int, *, quiet: bool = False) -> np.ndarray:
        """Fresh transcripts with axes (trials, rounds, numbers in a message); ``quiet`` ones are without noise."""
        ...


class Target(Protocol):
    """A silo that can be attacked; ``path`` says through which code its messages come."""

    @property
    def path(self) -> str:
        """``"door"`` or ``"simulated"``."""
        ...

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with its noise."""
        ...

    def claim(self, kind: str | None) -> Price:
        """What is claimed about its releases, or about those of one kind."""
        ...

    def scenes(self, *, canary: Canary, kind: str | None, seed: int) -> Sequence[Scene]:
        """The worst scenes that are known for it; ``kind`` listens to one kind of round only."""
        ...


def stream(scene: Scene, world: int, trials: int) -> Iterator[np.ndarray]:
    """As ``draw``, in chunks that fit into memory."""
    for first in range(0, trials, _CHUNK):
        yield scene.draw(world, min(_CHUNK, trials - first))


@dataclass(frozen=True)
class DoorScene:
    """A scene at the door. ``loud`` and ``quiet`` are the casts of both worlds, with and without noise.

    ``said`` is what the server says in the rounds that the silo answers, whose ``numbers`` are those of the schedule;
    ``heard`` marks the rounds that the attacker listens to.
    """

    loud: tuple[Cast, Cast]
    quiet: tuple[Cast, Cast]
    numbers: tuple[int, ...]
    said: tuple[Broadcast, ...]
    heard: np.ndarray
    width: int
    varied: bool

    def draw(self, world: int, trials: int, *, quiet: bool = False) -> np.ndarray:
        """Fresh transcripts; see `Scene`."""
        cast = (self.quiet if quiet else self.loud)[world]
        transcripts = np.zeros((trials, len(self.numbers), self.width))
        for row in transcripts:
            kept = cast.begun[0]
            for at, (number, broadcast) in enumerate(zip(self.numbers, self.said, strict=True)):
                heard, kept = cast.heard(number, broadcast, kept)
                row[at, : len(heard)] = heard
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
        """What the daemon says that it costs."""
        return self.deployed.claim(kind)

    def scenes(self, *, canary: Canary, kind: str | None, seed: int) -> Sequence[Scene]:
        """A turning and a steady server. The seed decides nothing: everything random is the door's own."""
        deployed, offer, algorithm = self.deployed, self.deployed.own, self.algorithm
        plan, records = offer.plan, deployed.records
        numbers = tuple(n for n in range(offer.rounds) if offer.may_answer(n))[: plan.max_participations]
        samplings = {algorithm.rounds[algorithm.schedule[n]].silo.release.sampling for n in numbers}
        others = [_bystanders(n) for n in records[1:]]
        engines = Engines()
        # A study draws the order of its pass once, and it is not secret: the record that differs may be its first.
        blank = cast_of(deployed, [_bystanders(records[0]), *others], (), engines=engines, quiet=False)
        order = pass_order(blank.begun[0].order_seed.tobytes(), records[0])
        pairs = neighbours(canary, records[0], int(order[0]) if "one-pass" in samplings else 0, samplings)
        worlds = [{name: pairs[name][world] for name in ("x", "y")} for world in (0, 1)]
        loud, quiet = (
            tuple(cast_of(deployed, [w, *others], blank.begun, engines=engines, quiet=still) for w in worlds)
            for still in (False, True)
        )
        shapes = message_shapes(algorithm, start_point(), pairs)
        width = max(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shape)) for shape in shapes.values())
        heard = np.asarray([kind is None or algorithm.schedule[n] == kind for n in numbers])
        varied = bool(samplings - {"full", "one-pass"}) or bool(offer.shares) or bool(offer.streams)

        def staged(turning: bool) -> DoorScene:
            broadcasts = hostile_broadcasts(algorithm, start_point(), shapes, turning)
            said = tuple(_as_read(loud[0], number, broadcasts[number]) for number in numbers)
            return DoorScene(loud, quiet, numbers, said, heard, width, varied)  # type: ignore[arg-type]

        return staged(True), staged(False)


def _bystanders(records: int) -> dict[str, np.ndarray]:
    """Records that the attacker knows."""
    return {"x": np.ones((records, 1), np.float32), "y": np.full(records, -LOUD, np.float32)}


def _as_read(cast: Cast, number: int, broadcast: Any) -> Broadcast:
    """A broadcast as the daemon reads it from the wire."""
    return cast.workers[0].broadcast(number, [np.asarray(leaf) for leaf in jax.tree.leaves(broadcast)])
