"""One training run as a pure function of its keys: a scan over rounds, a vmap over silos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.algorithm import Algorithm, Memory, Message, Params, PerBlock, Round, State
from tacit.channel import weighted_mean
from tacit.runtime.participation import Participation, Roster, everyone, roster, width
from tacit.silo import Desk, Silos, add_gaussian, answer, desk_of, exact_statistic, pass_order, step_keys

Noise = Literal["each", "summed"]
Measure = Callable[[Params, Any], dict[str, Array]]


class Keys(NamedTuple):
    """Independent streams of randomness: the silos', their passes', and the choice of silos."""

    silos: Array
    passes: Array
    choice: Array
    summed: Array


class Carry(NamedTuple):
    """What goes from round to round."""

    state: State
    memory: Memory


class Turn(NamedTuple):
    """What is settled about each round before training, as (numpy or jax) arrays to scan over."""

    number: Any
    kind: Any
    position: Any
    measured: Any
    roster: Roster


class Present(NamedTuple):
    """The silos of one round: their places (``None``: everyone, in order), weights in the mean, and which are taken."""

    places: Any
    weights: Any
    taken: Any


def split_keys(key: Array) -> Keys:
    """The streams of one run."""
    return Keys(*jax.random.split(key, 4))


def silo_key(keys: Keys, place: Array | int, number: Array | int) -> Array:
    """A silo's key for one round."""
    return jax.random.fold_in(jax.random.fold_in(keys.silos, number), place)


def silo_order(algorithm: Algorithm, keys: Keys, place: Array | int, count: Array | int, padded: int) -> Array | None:
    """A silo's order for one-pass sampling, where the algorithm uses it."""
    if not any(kind.silo.release.sampling == "one-pass" for kind in algorithm.rounds.values()):
        return None
    return pass_order(jax.random.fold_in(keys.passes, place), count, padded)


def turns_of(algorithm: Algorithm, measure_every: int, who: Participation, silos: int, keys: Keys) -> Turn:
    """The schedule as arrays; ``measure_every=0`` measures nothing, and the last round is always measured."""
    kinds = sorted(algorithm.rounds)
    total = len(algorithm.schedule)
    number = np.arange(total, dtype=np.int32)
    measured = np.zeros(total, bool)
    if measure_every:
        measured = ((number + 1) % measure_every == 0) | (number == total - 1)
    positions, used = [], 0
    for name in algorithm.schedule:
        positions.append(used)
        silo = algorithm.rounds[name].silo
        used += silo.stride * silo.local_steps
    kind = np.asarray([kinds.index(name) for name in algorithm.schedule], np.int32)
    return Turn(number, kind, np.asarray(positions, np.int32), measured, roster(keys.choice, algorithm, who, silos))


def start(algorithm: Algorithm, params: Params, silos: int) -> Carry:
    """The state before the first round; every silo has a memory of its own."""
    memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *leaf.shape)), algorithm.memory(params))
    return Carry(algorithm.init(params), memory)


def advance(
    algorithm: Algorithm,
    silos: Silos,
    keys: Keys,
    carry: Carry,
    turns: Turn,
    *,
    who: Participation,
    noise: Noise,
    measure: Callable[[Params], dict[str, Array]] | None,
) -> tuple[Carry, dict[str, Array]]:
    """Play the rounds of ``turns``; returns the carry and measurements by round (NaN where not measured)."""
    padded = jax.tree.leaves(silos.records)[0].shape[1]
    orders = jax.vmap(lambda i, n: silo_order(algorithm, keys, i, n, padded))(jnp.arange(silos.number), silos.counts)
    branches = [_player(algorithm.rounds[kind], silos, orders, keys, who, noise) for kind in sorted(algorithm.rounds)]

    def body(carry: Carry, turn: Turn) -> tuple[Carry, dict[str, Array]]:
        play = branches[0] if len(branches) == 1 else None
        carry = play(carry, turn) if play else jax.lax.switch(turn.kind, branches, carry, turn)
        return carry, _measured(algorithm, carry, turn, measure)

    return jax.lax.scan(body, carry, turns)


def _measured(
    algorithm: Algorithm, carry: Carry, turn: Turn, measure: Callable[[Params], dict[str, Array]] | None
) -> dict[str, Array]:
    if measure is None:
        return {}

    def now(carry: Carry) -> dict[str, Array]:
        return measure(algorithm.output(carry.state))

    shapes = jax.eval_shape(now, carry)
    missing = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), shapes)
    return jax.lax.cond(turn.measured, now, lambda carry: missing, carry)


def _player(
    kind: Round, silos: Silos, orders: Array | None, keys: Keys, who: Participation, noise: Noise
) -> Callable[[Carry, Turn], Carry]:
    """One kind of round as a function of carry and turn."""
    summed = noise == "summed" and kind.silo.says_what_it_released
    in_order = everyone(kind.participants, who, silos.number)
    columns = width(kind.participants, who, silos.number)

    def play(carry: Carry, turn: Turn) -> Carry:
        places, weights, taken = (row[:columns] for row in turn.roster)
        present = Present(None if in_order else places, weights, taken)
        broadcast = kind.server.ask(carry.state)
        if summed:
            mean = _summed_mean(kind, broadcast, silos, orders, present, keys, turn)
            return carry._replace(state=kind.server.tell(carry.state, mean))

        def one(desk: Desk, memory: Memory) -> tuple[Message, Memory]:
            key = silo_key(keys, desk.place, turn.number)
            return answer(kind.silo, broadcast, memory, desk, key=key, position=turn.position)

        messages, memory = _at_each_desk(one, silos, orders, present, carry.memory)
        mean = weighted_mean(messages, present.weights)
        return Carry(kind.server.tell(carry.state, mean), _remembered(carry.memory, memory, present))

    return play


def _summed_mean(
    kind: Round, broadcast: Any, silos: Silos, orders: Array | None, present: Present, keys: Keys, turn: Turn
) -> Message:
    """The mean of all messages, its noise drawn at once: independent Gaussians add up to a Gaussian."""

    def one(desk: Desk, memory: Memory) -> tuple[Message, PerBlock | None]:
        # The same batches as `answer` draws, so that the two ways of drawing noise share everything else.
        key_batch = step_keys(silo_key(keys, desk.place, turn.number), 1)[0, 0]
        work = kind.silo.start(broadcast, memory)
        return exact_statistic(kind.silo, work, desk, key=key_batch, position=turn.position)

    means, deviations = _at_each_desk(one, silos, orders, present, ())
    mean = weighted_mean(means, present.weights)
    if deviations is None:
        return mean
    joint = jax.tree.map(lambda s: jnp.sqrt(jnp.sum((present.weights * s) ** 2)), deviations)
    return add_gaussian(jax.random.fold_in(keys.summed, turn.number), mean, joint)


def _at_each_desk(
    act: Callable[[Desk, Memory], Any], silos: Silos, orders: Array | None, present: Present, memory: Memory
) -> Any:
    """Map ``act`` over the silos present. Where everyone is, no record is copied."""
    if present.places is None:
        return jax.vmap(lambda r, n, o, i, m: act(desk_of(r, n, o, i), m))(
            silos.records, silos.counts, orders, jnp.arange(silos.number), memory
        )
    padded = jax.tree.leaves(silos.records)[0].shape[1]

    def one(place: Array) -> Any:
        def fetch(rows: Array | None) -> Any:
            return jax.tree.map(lambda leaf: leaf[place] if rows is None else leaf[place, rows], silos.records)

        order = None if orders is None else orders[place]
        own = jax.tree.map(lambda leaf: leaf[place], memory)
        return act(Desk(fetch, padded, silos.counts[place], order, place), own)

    return jax.vmap(one)(present.places)


def _remembered(before: Memory, after: Memory, present: Present) -> Memory:
    """The memories of all silos after a round; who was not there keeps what it had."""
    if present.places is None:
        return after

    def one(old: Array, new: Array) -> Array:
        shape = (-1,) + (1,) * (new.ndim - 1)
        kept = jnp.where(present.taken.reshape(shape), new, old[present.places])
        return old.at[present.places].set(kept)

    return jax.tree.map(one, before, after)
