"""One training run as a pure function of its keys: a scan over rounds, a vmap over silos."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.algorithm import SHUFFLED_CHANNELS, Algorithm, Memory, Message, Params, PerBlock, Round, State
from tacit.channel import mean_of_shares, weighted_mean
from tacit.errors import TacitError
from tacit.privacy.anonymity import counted_silos, record_weights
from tacit.privacy.pairwise import check_colluding
from tacit.privacy.strategy import strategy_of
from tacit.silo import (
    AnonymityCounts,
    Sampled,
    Silos,
    SiloView,
    StoredSilos,
    add_remembering,
    answer,
    exact_statistic,
    is_poolable,
    no_buffers,
    pairwise_deviation,
    pass_order,
    pooled_mean,
    sampled,
    step_keys,
    view_of,
)
from tacit.simulate.participation import Participation, Roster, everyone, roster, width
from tacit.simulate.threefry import written_out

Noise = Literal["each", "summed"]
Measure = Callable[[Params, Any], dict[str, Array]]
OrderOf = Callable[[Array], Array | None]
"""A silo's order for one-pass sampling, by its index; none where no round needs it."""


class Keys(NamedTuple):
    """Independent streams of randomness: of silos, their passes, the choice of silos, and noise that is summed."""

    silos: Array
    passes: Array
    choice: Array
    summed: Array


class Carry(NamedTuple):
    """What goes from round to round; ``noise`` is what is remembered of the noise of each kind of round.

    It is that of every silo, or that of the mean where noise is drawn once.
    """

    state: State
    memory: Memory
    noise: Any = ()


class Turn(NamedTuple):
    """What is settled about each round before training, as (numpy or jax) arrays to scan over."""

    round_index: Any
    kind: Any
    position: Any
    measured: Any
    roster: Roster


def split_keys(key: Array) -> Keys:
    """The streams of one run."""
    return Keys(*jax.random.split(written_out(key), 4))


def silo_key(keys: Keys, silo_index: Array | int, round_index: Array | int) -> Array:
    """A silo's key for one round."""
    return jax.random.fold_in(jax.random.fold_in(keys.silos, round_index), silo_index)


def silo_order(
    algorithm: Algorithm, keys: Keys, silo_index: Array | int, count: Array | int, padded: int
) -> Array | None:
    """A silo's order for one-pass sampling, or its key for epochs, where the algorithm uses it."""
    samplings = {kind.silo.release.sampling for kind in algorithm.rounds.values()}
    if "allocation" in samplings:
        if "one-pass" in samplings:
            raise ValueError('Expected one of sampling="one-pass" and "allocation" in an algorithm, got both.')
        return jax.random.fold_in(keys.passes, silo_index)
    if "one-pass" not in samplings:
        return None
    return pass_order(jax.random.fold_in(keys.passes, silo_index), count, padded)


def turns_of(algorithm: Algorithm, measure_every: int, who: Participation, silos: int, keys: Keys) -> Turn:
    """The schedule as arrays; ``measure_every=0`` measures nothing, and the last round is always measured."""
    _check_sums(algorithm, who, silos)
    kinds = sorted(algorithm.rounds)
    total = len(algorithm.schedule)
    index = np.arange(total, dtype=np.int32)
    measured = np.zeros(total, bool)
    if measure_every:
        measured = ((index + 1) % measure_every == 0) | (index == total - 1)
    kind = np.asarray([kinds.index(name) for name in algorithm.schedule], np.int32)
    return Turn(
        index, kind, np.asarray(algorithm.positions, np.int32), measured, roster(keys.choice, algorithm, who, silos)
    )


def _check_sums(algorithm: Algorithm, who: Participation, silos: int) -> None:
    for kind in algorithm.rounds.values():
        release = kind.silo.release
        if release.channel == "pairwise":
            check_colluding(who.colluding, 1 if kind.participants == "in turn" else who.min_silos)
        if everyone(kind.participants, who, silos):
            continue
        if release.channel in ("pairwise", "trusted") and release.mechanism == "cumulative":
            raise ValueError(
                f"Expected every silo in every round for a cumulative release through the {release.channel} channel: "
                'its noise is on the sum over all of them; drop participants, or use channel="direct".'
            )
        if release.mechanism == "correlated":
            raise ValueError(
                "Expected every silo in every round for correlated noise, which is made for sums over all rounds; drop "
                'participants, or use mechanism="gaussian".'
            )


def start(
    algorithm: Algorithm, params: Params, silos: Silos | StoredSilos, *, who: Participation, noise: Noise
) -> Carry:
    """The state before the first round; every silo has a memory of its own, and noise where noise is its own."""
    count = silos.number

    def each(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), tree)

    state, memory = algorithm.init(params), algorithm.memory(params)
    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), silos.records)
    remembered = {}
    for name, kind in sorted(algorithm.rounds.items()):
        buffers = first_buffers(kind, state, record)
        at_once = noised_at_once(kind, noise, everyone(kind.participants, who, count))
        remembered[name] = buffers if at_once else each(buffers)
    return Carry(state, each(memory), remembered)


def first_buffers(kind: Round, state: State, record: Any) -> Any:
    """What is remembered of the noise of a kind of round before the first; nothing where noise is fresh."""
    if kind.silo.release.mechanism == "gaussian":
        return ()
    statistic = jax.eval_shape(lambda s, r: kind.silo.query(kind.server.ask(s), r), state, record)
    return no_buffers(kind.silo, statistic)


def advance(
    algorithm: Algorithm,
    silos: Silos | StoredSilos,
    keys: Keys,
    carry: Carry,
    turns: Turn,
    *,
    who: Participation,
    noise: Noise,
    measure: Callable[[Params], dict[str, Array]] | None,
) -> tuple[Carry, dict[str, Array]]:
    """Play the rounds of ``turns``; returns the carry and measurements by round (NaN where not measured)."""
    order_of = _orders(algorithm, silos, keys)
    branches = [_player(algorithm, name, silos, order_of, keys, who, noise) for name in sorted(algorithm.rounds)]

    def body(carry: Carry, turn: Turn) -> tuple[Carry, dict[str, Array]]:
        play = branches[0] if len(branches) == 1 else None
        carry = play(carry, turn) if play else jax.lax.switch(turn.kind, branches, carry, turn)
        return carry, _measured(algorithm, carry, turn, measure)

    return jax.lax.scan(body, carry, turns)


def _orders(algorithm: Algorithm, silos: Silos | StoredSilos, keys: Keys) -> OrderOf:
    """The order of any silo: drawn once where all records are in memory, and when its silo comes where they are not."""
    padded = jax.tree.leaves(silos.records)[0].shape[1]

    def drawn(silo_index: Array) -> Array | None:
        return silo_order(algorithm, keys, silo_index, silos.counts[silo_index], padded)

    if isinstance(silos, StoredSilos):
        return drawn
    table = jax.vmap(drawn)(jnp.arange(silos.number))
    return lambda silo_index: None if table is None else table[silo_index]


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
    algorithm: Algorithm,
    name: str,
    silos: Silos | StoredSilos,
    order_of: OrderOf,
    keys: Keys,
    who: Participation,
    noise: Noise,
) -> Callable[[Carry, Turn], Carry]:
    """One kind of round as a function of carry and turn."""
    kind = algorithm.rounds[name]
    in_order = everyone(kind.participants, who, silos.number)
    if in_order:
        _check_stored(silos, kind)
    columns = width(kind.participants, who, silos.number)
    at_once = noised_at_once(kind, noise, in_order)

    def play(carry: Carry, turn: Turn) -> Carry:
        silo_indices, weights, taken = (row[:columns] for row in turn.roster)
        present = Roster(None if in_order else silo_indices, weights, taken)
        broadcast, buffers = kind.server.ask(carry.state), carry.noise[name]
        if at_once:
            at_desks = partial(_at_each_desk, silos=silos, order_of=order_of, present=present, kept=())
            mean, deviations = _exact_mean(kind, broadcast, keys, turn, present, who.weights is None, at_desks)
            deviation = joint_deviation(kind, broadcast, deviations, present, silos.counts, who)
            mean, buffers = noised(kind, mean, deviation, keys, turn.round_index, buffers)
            return Carry(kind.server.tell(carry.state, mean), carry.memory, {**carry.noise, name: buffers})

        sizes = batch_sizes(kind, silos.counts)
        anonymity = anonymity_of(kind, sizes, who)

        def one(desk: SiloView, kept: tuple[Memory, Any]) -> tuple[Message, tuple[Memory, Any]]:
            key, (memory, earlier) = silo_key(keys, desk.silo_index, turn.round_index), kept
            own = {"key": key, "position": turn.position, "buffers": earlier, "anonymity": anonymity}
            message, *after = answer(kind.silo, broadcast, memory, desk, **own)
            return message, tuple(after)

        before = carry.memory, buffers
        messages, after = _at_each_desk(one, silos, order_of, present, before)
        if anonymity is None:
            mean = weighted_mean(messages, present.weights)
        else:
            present_sizes = (sizes if in_order else sizes[silo_indices]) * taken
            mean = mean_of_shares(messages, present_sizes, record_weights(who.weights, sizes)[1], silos.number)
        memory, buffers = _remembered(before, after, present)
        return Carry(kind.server.tell(carry.state, mean), memory, {**carry.noise, name: buffers})

    return play


def _check_stored(silos: Silos | StoredSilos, kind: Round) -> None:
    """Raise where a round of every silo would hold all stored records at once."""
    if isinstance(silos, StoredSilos) and kind.silo.release.sampling == "full":
        raise TacitError(
            'Expected batches of stored records, got sampling "full" of every silo, which would hold all of them at '
            'once; sample ("wor", "poisson", "one-pass"), let fewer silos come, or enrol the records in memory.'
        )


def _exact_mean(
    kind: Round,
    broadcast: Any,
    keys: Keys,
    turn: Turn,
    present: Roster,
    weigh_alike: bool,
    at_desks: Callable[[Callable[[SiloView, Any], Any]], Any],
) -> tuple[Message, PerBlock | None]:
    """The mean of all messages before noise, and silos' deviations; if all batches count alike, in one sum over them.

    One product of large matrices takes a fraction of the time of a small one for each silo.
    """
    work = kind.silo.start(broadcast, ())
    if not (weigh_alike and is_poolable(kind.silo.release, work)):

        def plain(desk: SiloView, memory: Memory) -> tuple[Message, PerBlock | None]:
            return exact_answer(kind, broadcast, memory, desk, keys, turn.round_index, turn.position)

        means, deviations = at_desks(plain)
        return weighted_mean(means, present.weights), deviations

    def batch(desk: SiloView, memory: Memory) -> Sampled:
        return sampled(kind.silo, work, desk, key=_batch_key(keys, desk, turn.round_index), position=turn.position)

    batches = at_desks(batch)
    mean = pooled_mean(kind.silo, work, batches, present.taken)
    return jax.tree.map(lambda leaf: jnp.max(present.weights).astype(leaf.dtype) * leaf, mean), batches.deviation


def _batch_key(keys: Keys, desk: SiloView, round_index: Array) -> Array:
    """The key of a silo's batch where a round is one step."""
    return step_keys(silo_key(keys, desk.silo_index, round_index), 1)[0, 0]


def noised_at_once(kind: Round, noise: Noise, in_order: bool) -> bool:
    """Whether the noise of a round is drawn once, on the mean.

    A trusted server draws it so; for pairwise sums, and as a short cut, it stands for the sum of all silos' noises.

    For noise that remembers the short cut needs everyone in every round: all silos then remember the same rounds.
    """
    release = kind.silo.release
    if release.channel in SHUFFLED_CHANNELS:
        return False
    summed = noise == "summed" and kind.silo.says_what_it_released
    return release.channel in ("pairwise", "trusted") or (summed and (in_order or release.mechanism == "gaussian"))


def batch_sizes(kind: Round, counts: Array) -> Array:
    """The fixed batch size of every silo, in records."""
    size = kind.silo.release.batch_size
    return counts if size is None else jnp.broadcast_to(jnp.asarray(size, counts.dtype), counts.shape)


def anonymity_of(kind: Round, sizes: Array, who: Participation) -> AnonymityCounts | None:
    """The records that hide one in a shuffled round, if only ``min_silos`` come and the honest are the smallest."""
    if kind.silo.release.channel not in SHUFFLED_CHANNELS:
        return None
    least = len(sizes) if kind.participants == "all" else (1 if kind.participants == "in turn" else who.min_silos)
    # All that collude may come, and the others that come may be the smallest.
    honest = counted_silos(len(sizes), least, who.honest)
    counted = jnp.sum(jnp.sort(sizes)[:honest]).astype(jnp.float32)
    return AnonymityCounts(jnp.sum(sizes).astype(jnp.float32), counted, record_weights(who.weights, sizes)[0])


def exact_answer(
    kind: Round, broadcast: Any, memory: Memory, desk: SiloView, keys: Keys, round_index: Array, position: Array
) -> tuple[Message, PerBlock | None]:
    """A silo's message before noise, and the deviation that its noise must have; batches are those of `answer`."""
    work = kind.silo.start(broadcast, memory)
    return exact_statistic(kind.silo, work, desk, key=_batch_key(keys, desk, round_index), position=position)


def joint_deviation(
    kind: Round, broadcast: Any, deviations: PerBlock | None, present: Roster, counts: Array, who: Participation
) -> PerBlock | None:
    """The deviation of the noise in a mean, from those of the silos that are present.

    The noises of silos are independent Gaussians and add up to one. A trusted server hides a record of any silo: the
    mean moves by at most the largest weight x sensitivity. So do pairwise sums, for all silos of the plan, and the mean
    has the shares of those that collude besides.
    """
    channel, weights = kind.silo.release.channel, present.weights
    if deviations is None:
        return None
    if channel == "pairwise":
        sizes, came = batch_sizes(kind, counts), jnp.sum(present.taken)
        largest = record_weights(who.weights, sizes)[1] * len(sizes) / came
        return pairwise_deviation(kind.silo, broadcast, largest, came, who.colluding)
    if channel == "trusted":
        return jax.tree.map(lambda s: jnp.max(weights * s), deviations)
    return jax.tree.map(lambda s: jnp.sqrt(jnp.sum((weights * s) ** 2)), deviations)


def noised(
    kind: Round, mean: Message, joint: PerBlock | None, keys: Keys, round_index: Any, buffers: Any
) -> tuple[Message, Any]:
    """A mean with noise of this deviation, drawn at once, and what is remembered of it."""
    if joint is None:
        return mean, buffers
    key = jax.random.fold_in(keys.summed, round_index)
    return add_remembering(key, strategy_of(kind.silo.release), buffers, mean, joint)


def _at_each_desk(
    act: Callable[[SiloView, Any], Any],
    silos: Silos | StoredSilos,
    order_of: OrderOf,
    present: Roster,
    kept: Any,
) -> Any:
    """Map ``act`` over the silos present and what each keeps. Where everyone is, no record in memory is copied."""
    if present.silo_indices is None and isinstance(silos, Silos):
        return jax.vmap(lambda r, n, i, k: act(view_of(r, n, order_of(i), i), k))(
            silos.records, silos.counts, jnp.arange(silos.number), kept
        )
    padded = jax.tree.leaves(silos.records)[0].shape[1]
    silo_indices = jnp.arange(silos.number) if present.silo_indices is None else present.silo_indices

    def one(silo_index: Array) -> Any:
        own, fetch = jax.tree.map(lambda leaf: leaf[silo_index], kept), partial(silos.fetch, silo_index)
        return act(SiloView(fetch, padded, silos.counts[silo_index], order_of(silo_index), silo_index), own)

    return jax.vmap(one)(silo_indices)


def _remembered(before: Any, after: Any, present: Roster) -> Any:
    """What all silos keep after a round; absent silos keep what they had."""
    if present.silo_indices is None:
        return after

    def one(old: Array, new: Array) -> Array:
        shape = (-1,) + (1,) * (new.ndim - 1)
        kept = jnp.where(present.taken.reshape(shape), new, old[present.silo_indices])
        # Empty slots point nowhere, or they would write over the memory of a silo that was there.
        return old.at[jnp.where(present.taken, present.silo_indices, old.shape[0])].set(kept, mode="drop")

    return jax.tree.map(one, before, after)
