"""Transcripts of simulated silos: what no daemon takes, and what is attacked in the simulator therefore.

That is the trusted and the open channel, releases that protect the sensitive attribute alone, and running sums and
local steps beside a shuffled sum. A trial plays the schedule with a fresh key; the messages come out of
``tacit.silo.simulated``. What is attacked here is a simulation: no guarantee to a record rests on it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from tacit.algorithm import Algorithm, Broadcast, Params, Round
from tacit.audit.worst_case import (
    Canary,
    hostile_broadcasts,
    message_shapes,
    neighbours,
    protects_attribute,
    start_point,
)
from tacit.privacy import Price, price
from tacit.privacy.plan import events_of
from tacit.silo import AnonymityCounts, SiloView, answer, view_of
from tacit.simulate import program
from tacit.simulate.participation import participation

_MOST_FLOATS = 1 << 20
_LARGEST_CHUNK = 1 << 13


class Seat(NamedTuple):
    """Which silo is attacked: its place among how many, its records, and how often it agreed to answer."""

    records: int
    silo_index: int = 0
    silos: int = 1
    max_participations: int | None = None


@dataclasses.dataclass(frozen=True)
class SimulatedScene:
    """A scene in the simulator; see `tacit.audit.transcript.Scene`.

    ``play`` is the compiled schedule; ``said`` holds the broadcasts of each kind of round, stacked; ``heard`` marks
    the rounds that the attacker listens to; ``keys`` draws a fresh key for every chunk of trials.
    """

    play: Callable[..., Array]
    records: dict[str, np.ndarray]
    said: tuple[Any, ...]
    heard: np.ndarray
    chunk: int
    varied: bool
    keys: np.random.Generator

    def draw(self, world: int, trials: int, *, quiet: bool = False) -> np.ndarray:
        """Fresh transcripts, in chunks of one size, so that one program serves them all."""
        records = {name: jnp.asarray(column[world]) for name, column in self.records.items()}
        loudness, found = jnp.float32(0.0 if quiet else 1.0), []
        for _ in range(-(-trials // self.chunk)):
            keys = jax.random.split(jax.random.key(int(self.keys.integers(2**62))), self.chunk)
            found.append(np.asarray(self.play(keys, records, self.said, loudness))[:, self.heard])
        return np.concatenate(found)[:trials].astype(np.float64)


@dataclasses.dataclass(frozen=True)
class SimulatedTarget:
    """A silo in the simulator."""

    algorithm: Algorithm
    seat: Seat
    delta: float
    path: str = "simulated"

    def claim(self, kind: str | None) -> Price:
        """What the accountant says about the silo's releases, or about those of one kind."""
        seat = self.seat
        own = {"silo_index": seat.silo_index, "silos": seat.silos, "records": seat.records}
        events = events_of(self.algorithm, **own, max_participations=seat.max_participations)  # type: ignore[arg-type]
        return price([e for e in events if kind in (None, e.kind)], delta=self.delta)

    def scenes(self, *, canary: Canary, kind: str | None, seed: int) -> Sequence[SimulatedScene]:
        """A turning and a steady server."""
        algorithm, seat, params = self.algorithm, self.seat, start_point()
        numbers = rounds_answered(algorithm, seat)
        samplings = {algorithm.rounds[algorithm.schedule[n]].silo.release.sampling for n in numbers}
        order = program.silo_order(
            algorithm, program.split_keys(jax.random.key(1)), seat.silo_index, seat.records, seat.records
        )
        # The order of a pass is not secret, so the record that differs may be the first of it.
        target = 0 if order is None else int(order[0])
        records = neighbours(canary, seat.records, target, samplings, protects_attribute(algorithm))
        shapes = message_shapes(algorithm, params, records)
        heard = np.asarray([kind is None or algorithm.schedule[n] == kind for n in numbers])
        play = _compiled(algorithm, seat, params, order, numbers, shapes)
        most = _LARGEST_CHUNK >> 3 if any(_is_called_out(algorithm, n) for n in numbers) else _LARGEST_CHUNK
        chunk = 1 << int(math.log2(min(most, max(256, _MOST_FLOATS / (4 * seat.records)))))
        keys, varied = np.random.default_rng(seed), bool(samplings - {"full", "one-pass"})
        varied = varied or any(_is_called_out(algorithm, n) for n in numbers)

        def staged(turning: bool) -> SimulatedScene:
            said = hostile_broadcasts(algorithm, params, shapes, turning)
            return SimulatedScene(play, records, _stacks(algorithm, numbers, said), heard, chunk, varied, keys)

        return staged(True), staged(False)


def lonely_crowd(part: Round, desk: SiloView) -> AnonymityCounts | None:
    """The crowd of a shuffled sum in which no other silo hides this one, so that its share is the whole sum."""
    sizes = program.batch_sizes(part, jnp.asarray([desk.count]))
    return program.crowd_of(part, sizes, participation(1))


def rounds_answered(algorithm: Algorithm, seat: Seat) -> tuple[int, ...]:
    """The rounds in which a hostile server asks this silo: all that it agreed to."""
    share: dict[str, int] = {}
    for kind, part in algorithm.rounds.items():
        turns = [part.participants != "in turn" or turn % seat.silos == seat.silo_index for turn in algorithm.turns]
        share[kind] = sum(name == kind and own for name, own in zip(algorithm.schedule, turns, strict=True))
    found: list[int] = []
    for number, kind in enumerate(algorithm.schedule):
        if share[kind] > 0 and (seat.max_participations is None or len(found) < seat.max_participations):
            share[kind] -= 1
            found.append(number)
    return tuple(found)


def _is_called_out(algorithm: Algorithm, number: int) -> bool:
    """Whether noise is drawn outside the compiled program, so that trials that nobody needs are dear."""
    return algorithm.rounds[algorithm.schedule[number]].silo.release.channel == "shuffled-sum"


def _stacks(algorithm: Algorithm, numbers: Sequence[int], said: Sequence[Broadcast]) -> tuple[Any, ...]:
    """The broadcasts of each kind of round that is played, stacked."""
    own = [[said[n] for n in numbers if algorithm.schedule[n] == kind] for kind in _kinds(algorithm, numbers)]
    return tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *part) for part in own)


def _kinds(algorithm: Algorithm, numbers: Sequence[int]) -> list[str]:
    return sorted({algorithm.schedule[number] for number in numbers})


def _compiled(
    algorithm: Algorithm,
    seat: Seat,
    params: Params,
    order: Array | None,
    numbers: Sequence[int],
    shapes: dict[str, Any],
) -> Callable[..., Array]:
    """The whole schedule as one program over many keys."""
    kinds = _kinds(algorithm, numbers)
    which = np.asarray([kinds.index(algorithm.schedule[n]) for n in numbers], np.int32)
    index = np.asarray([int(np.sum(which[:i] == kind)) for i, kind in enumerate(which)], np.int32)
    everyone, keys = participation(seat.silos), program.split_keys(jax.random.key(0))
    positions = program.turns_of(algorithm, 0, everyone, seat.silos, keys).position[list(numbers)]
    last = np.asarray([_last(numbers[:i], which[:i] == kind) for i, kind in enumerate(which)], np.int32)
    turns = np.asarray(numbers, np.int32), which, index, positions, last
    width = max(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes[kind])) for kind in kinds)

    def trial(key: Array, records: Any, said: tuple[Any, ...], loudness: Array) -> Array:
        desk = view_of(records, seat.records, order, seat.silo_index)
        keys = program.split_keys(key)
        players = [
            _player(algorithm, kind, stack, desk, keys, loudness, width)
            for kind, stack in zip(kinds, said, strict=True)
        ]

        def body(memory: Any, turn: Any) -> Any:
            number, kind, *rest = turn
            if len(players) == 1:
                return players[0](memory, number, *rest)
            return jax.lax.switch(kind, players, memory, number, *rest)

        return jax.lax.scan(body, algorithm.memory(params), turns)[1]

    return jax.jit(jax.vmap(trial, in_axes=(0, None, None, None)))


def _last(numbers: Sequence[int], same: np.ndarray) -> int:
    """The round in which the silo last answered this kind of round; -1 if never."""
    return max((n for n, is_same in zip(numbers, same, strict=True) if is_same), default=-1)


def _player(
    algorithm: Algorithm, kind: str, said: Any, desk: SiloView, keys: program.Keys, loudness: Array, width: int
) -> Callable[..., Any]:
    """One kind of round, what the attacker sees of it flat and padded to the longest."""
    part = algorithm.rounds[kind]
    part = dataclasses.replace(part, silo=_louder(part.silo, loudness))
    anonymity = lonely_crowd(part, desk)

    def play(memory: Any, number: Array, at: Array, position: Array, last: Array) -> Any:
        broadcast = jax.tree.map(lambda leaf: leaf[at], said)
        if part.silo.release.channel == "trusted":
            seen = _trusted(part, broadcast, memory, desk, keys, number, position, last)
        else:
            key, before = (
                program.silo_key(keys, desk.silo_index, number),
                program.silo_before(keys, desk.silo_index, last),
            )
            seen, memory = answer(
                part.silo, broadcast, memory, desk, key=key, position=position, previous=before, anonymity=anonymity
            )
        flat = ravel_pytree(seen)[0].astype(jnp.float32)
        return memory, jnp.pad(flat, (0, width - flat.size))

    return play


def _trusted(
    part: Round,
    broadcast: Broadcast,
    memory: Any,
    desk: SiloView,
    keys: program.Keys,
    number: Array,
    position: Array,
    last: Array,
) -> Any:
    """What a trusted server lets out: the mean with its noise; no other silo hides this one."""
    mean, deviation = program.exact_answer(part, broadcast, memory, desk, keys, number, position)
    return program.noised(part, mean, deviation, jnp.ones(1), keys, number, last)


def _louder(silo: Any, loudness: Array) -> Any:
    """The silo with its noise multiplied, for trials that tell noise from signal."""
    release = silo.release
    if release.channel == "open":
        return silo
    louder = jax.tree.map(lambda z: jnp.asarray(z, jnp.float32) * loudness, release.noise_multiplier)
    return dataclasses.replace(silo, release=dataclasses.replace(release, noise_multiplier=louder))
