"""Transcripts of simulated silos: studies that no daemon takes are attacked in the simulator.

These are the trusted and the open channel, releases that protect the sensitive attribute alone, and running sums and
local steps beside a shuffled sum. A trial plays the schedule with a fresh key; the messages come out of
``tacit.silo.simulated``. No guarantee to a record rests on a simulation.
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

from tacit.algorithm import Algorithm, Params
from tacit.audit.worst_case import (
    Canary,
    hostile_broadcasts,
    message_shapes,
    neighbours,
    protects_attribute,
    start_point,
)
from tacit.privacy import Price, price
from tacit.privacy.pairwise import Peers
from tacit.privacy.plan import events_of
from tacit.silo import SiloView, answer, view_of
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
    peers: Peers | None = None


@dataclasses.dataclass(frozen=True)
class SimulatedScene:
    """A scene in the simulator; see `tacit.audit.attack.Scene`.

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
        loudness, transcripts = jnp.float32(0.0 if quiet else 1.0), []
        for _ in range(-(-trials // self.chunk)):
            keys = jax.random.split(jax.random.key(int(self.keys.integers(2**62))), self.chunk)
            transcripts.append(np.asarray(self.play(keys, records, self.said, loudness))[:, self.heard])
        return np.concatenate(transcripts)[:trials].astype(np.float64)


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
        events = events_of(self.algorithm, **seat._asdict())
        return price([e for e in events if kind in (None, e.kind)], delta=self.delta)

    def scenes(self, *, canary: Canary, kind: str | None, seed: int) -> Sequence[SimulatedScene]:
        """A turning and a steady server."""
        algorithm, seat, params = self.algorithm, self.seat, start_point()
        rounds = rounds_answered(algorithm, seat)
        names = [algorithm.schedule[n] for n in rounds]
        releases = [algorithm.rounds[name].silo.release for name in names]
        samplings = {release.sampling for release in releases}
        # Noise that is drawn outside the compiled program makes trials that nobody needs dear.
        called_out = any(release.channel == "shuffled-sum" for release in releases)
        keys = program.split_keys(jax.random.key(1))
        order = program.silo_order(algorithm, keys, seat.silo_index, seat.records, seat.records)
        # The order of a pass is not secret, so the record that differs may be the first of it.
        target = int(order[0]) if order is not None and "one-pass" in samplings else 0
        records = neighbours(canary, seat.records, target, samplings, protects_attribute(algorithm))
        shapes = message_shapes(algorithm, params, records)
        heard = np.asarray([kind in (None, name) for name in names])
        play = _compiled(algorithm, seat, params, order, rounds, shapes)
        most = _LARGEST_CHUNK >> 3 if called_out else _LARGEST_CHUNK
        chunk = 1 << int(math.log2(min(most, max(256, _MOST_FLOATS / (4 * seat.records)))))
        varied = bool(samplings - {"full", "one-pass"}) or called_out
        generator = np.random.default_rng(seed)

        def staged(turning: bool) -> SimulatedScene:
            broadcasts = hostile_broadcasts(algorithm, params, shapes, turning)
            of_kinds = [
                [broadcasts[n] for n, name in zip(rounds, names, strict=True) if name == k] for k in sorted(set(names))
            ]
            said = tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *own) for own in of_kinds)
            return SimulatedScene(play, records, said, heard, chunk, varied, generator)

        return staged(True), staged(False)


def rounds_answered(algorithm: Algorithm, seat: Seat) -> tuple[int, ...]:
    """The rounds in which a hostile server asks this silo: all that it agreed to."""
    left: dict[str, int] = {}
    for kind, part in algorithm.rounds.items():
        turns = [part.participants != "in turn" or turn % seat.silos == seat.silo_index for turn in algorithm.turns]
        left[kind] = sum(name == kind and own for name, own in zip(algorithm.schedule, turns, strict=True))
    rounds: list[int] = []
    for index, kind in enumerate(algorithm.schedule):
        if left[kind] > 0 and (seat.max_participations is None or len(rounds) < seat.max_participations):
            left[kind] -= 1
            rounds.append(index)
    return tuple(rounds)


def _compiled(
    algorithm: Algorithm, seat: Seat, params: Params, order: Array | None, rounds: Sequence[int], shapes: dict[str, Any]
) -> Callable[..., Array]:
    """The whole schedule as one program over many keys."""
    kinds = sorted({algorithm.schedule[n] for n in rounds})
    everyone, keys = participation(seat.silos), program.split_keys(jax.random.key(0))
    positions = program.turns_of(algorithm, 0, everyone, seat.silos, keys).position
    rows, made = [], dict.fromkeys(kinds, 0)
    for n in rounds:
        kind = algorithm.schedule[n]
        rows.append((n, kinds.index(kind), made[kind], positions[n]))
        made[kind] += 1
    turns = tuple(np.asarray(rows, np.int32).T)
    width = max(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes[kind])) for kind in kinds)

    def trial(key: Array, records: Any, said: tuple[Any, ...], loudness: Array) -> Array:
        keys = program.split_keys(key)
        # Where a record is in an epoch is a secret, which every trial draws anew.
        own = order if order is None or jnp.issubdtype(order.dtype, jnp.integer) else keys.passes
        desk = view_of(records, seat.records, own, seat.silo_index)
        stacks = zip(kinds, said, strict=True)
        players = [_player(algorithm, kind, own, desk, keys, loudness, width) for kind, own in stacks]

        def body(kept: Any, turn: Any) -> Any:
            number, kind, *rest = turn
            if len(players) == 1:
                return players[0](kept, number, *rest)
            return jax.lax.switch(kind, players, kept, number, *rest)

        record = jax.tree.map(lambda leaf: leaf[0], records)
        state = algorithm.init(params)
        buffers = {kind: program.first_buffers(algorithm.rounds[kind], state, record) for kind in kinds}
        return jax.lax.scan(body, (algorithm.memory(params), buffers), turns)[1]

    return jax.jit(jax.vmap(trial, in_axes=(0, None, None, None)))


def _player(
    algorithm: Algorithm, kind: str, said: Any, desk: SiloView, keys: program.Keys, loudness: Array, width: int
) -> Callable[..., Any]:
    """One kind of round, what the attacker sees of it flat and padded to the longest."""
    part = algorithm.rounds[kind]
    part = dataclasses.replace(part, silo=_louder(part.silo, loudness))
    # No other silo hides this one: its share is the whole sum.
    anonymity = program.anonymity_of(part, program.batch_sizes(part, jnp.asarray([desk.count])), participation(1))

    def play(kept: Any, number: Array, at: Array, position: Array) -> Any:
        memory, noise = kept
        broadcast = jax.tree.map(lambda leaf: leaf[at], said)
        if part.silo.release.channel in ("pairwise", "trusted"):
            # What a trusted server lets out, or the honest silos' sum: the mean with its noise.
            mean, deviation = program.exact_answer(part, broadcast, memory, desk, keys, number, position)
            seen, after = program.noised(part, mean, deviation, keys, number, noise[kind])
        else:
            key = program.silo_key(keys, desk.silo_index, number)
            own: Any = {"key": key, "position": position, "buffers": noise[kind], "anonymity": anonymity}
            seen, memory, after = answer(part.silo, broadcast, memory, desk, **own)
        flat = ravel_pytree(seen)[0].astype(jnp.float32)
        return (memory, {**noise, kind: after}), jnp.pad(flat, (0, width - flat.size))

    return play


def _louder(silo: Any, loudness: Array) -> Any:
    """The silo with its noise multiplied, for trials that tell noise from signal."""
    release = silo.release
    if release.channel == "open":
        return silo
    louder = jax.tree.map(lambda z: jnp.asarray(z, jnp.float32) * loudness, release.noise_multiplier)
    return dataclasses.replace(silo, release=dataclasses.replace(release, noise_multiplier=louder))
