"""The plain loop: silo after silo, round after round, nothing compiled together.

It gives what ``simulate(..., noise="each")`` gives, to rounding, and names the silo, the round and the stage that
failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.algorithm import SHUFFLED_CHANNELS, Algorithm, Message, Params, Record, Round
from tacit.channel import mean_of_shares, weighted_mean
from tacit.privacy.anonymity import record_weights
from tacit.silo import AnonymityCounts, SiloView, answer, view_of
from tacit.simulate.compiled import Outcome
from tacit.simulate.participation import Participation, Roster, participation
from tacit.simulate.program import (
    Keys,
    anonymity_of,
    batch_sizes,
    exact_answer,
    first_buffers,
    joint_deviation,
    noised,
    silo_key,
    silo_order,
    split_keys,
    turns_of,
)

_AT_ONCE = ("pairwise", "trusted")
"""Channels in which noise is drawn once, for the sum over silos."""


class StageError(RuntimeError):
    """Something failed; the message says at which silo, in which round, at which stage."""


def debug(
    algorithm: Algorithm,
    params: Params,
    tables: Sequence[Record],
    *,
    key: Array,
    who: Participation | None = None,
    measure: Callable[[Params], dict[str, Array]] | None = None,
    names: Sequence[str] | None = None,
) -> Outcome:
    """Run an algorithm on tables of records, one after the other, unpadded."""
    who = participation(len(tables)) if who is None else who
    names = [f"silo {i}" for i in range(len(tables))] if names is None else names
    keys = split_keys(key)
    turns = turns_of(algorithm, 1, who, len(tables), keys)
    desks = [_desk(algorithm, keys, table, silo_index) for silo_index, table in enumerate(tables)]
    state = _stage("init", "server", 0, algorithm.init, params)
    memories = [algorithm.memory(params) for _ in tables]
    joint, *noises = [_first_noise(algorithm, state, desks[0]) for _ in range(1 + len(tables))]
    counts = jnp.asarray([desk.count for desk in desks])
    sizes = {kind: batch_sizes(part, counts) for kind, part in algorithm.rounds.items()}
    compiled = {
        kind: _answerer(part, keys, anonymity_of(part, sizes[kind], who)) for kind, part in algorithm.rounds.items()
    }
    trace: list[dict[str, Array]] = []
    for number, kind in enumerate(algorithm.schedule):
        server = algorithm.rounds[kind].server
        broadcast = _stage("ask", "server", number, server.ask, state)
        silo_indices, weights, taken = (row[number] for row in turns.roster)
        messages: list[Message] = []
        for silo_index in silo_indices[taken]:
            stage, position, noise = f"answer to {kind!r}", turns.position[number], noises[silo_index]
            own = _bring(desks[silo_index]), broadcast, memories[silo_index], number, position, noise[kind]
            message, memories[silo_index], noise[kind] = _stage(stage, names[silo_index], number, compiled[kind], *own)
            messages.append(_finite(message, names[silo_index], number, kind))
        stacked, shares = jax.tree.map(lambda *leaves: jnp.stack(leaves), *messages), jnp.asarray(weights[taken])
        if algorithm.rounds[kind].silo.release.channel in _AT_ONCE:
            means, deviations = stacked
            exact, present = weighted_mean(means, shares), Roster(silo_indices, shares, taken)
            deviation = joint_deviation(algorithm.rounds[kind], broadcast, deviations, present, counts, who)
            mean, joint[kind] = noised(algorithm.rounds[kind], exact, deviation, keys, number, joint[kind])
        elif algorithm.rounds[kind].silo.release.channel in SHUFFLED_CHANNELS:
            largest = record_weights(who.weights, sizes[kind])[1]
            mean = mean_of_shares(stacked, sizes[kind][silo_indices[taken]], largest, len(tables))
        else:
            mean = weighted_mean(stacked, shares)
        state = _stage("tell", "server", number, server.tell, state, mean)
        if measure is not None:
            trace.append(measure(algorithm.output(state)))
    joined = {name: np.asarray([row[name] for row in trace]) for name in (trace[0] if trace else {})}
    return Outcome(algorithm.output(state), state, joined, np.arange(len(trace)) + 1, _personal(algorithm, memories))


def _personal(algorithm: Algorithm, memories: Sequence[Any]) -> Params | None:
    """The silos' own models, from their memories."""
    if algorithm.personal is None:
        return None
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(algorithm.personal, memories))


def _first_noise(algorithm: Algorithm, state: Any, desk: SiloView) -> dict[str, Any]:
    """What is remembered of the noise of each kind of round before the first."""
    record = jax.tree.map(lambda leaf: leaf[0], desk.fetch(None))
    return {kind: first_buffers(part, state, record) for kind, part in algorithm.rounds.items()}


def _answerer(part: Round, keys: Keys, anonymity: AnonymityCounts | None) -> Callable[..., Any]:
    """A silo's answer, compiled once for silos of one size; where the sum is noised, the message and its noise."""

    @jax.jit
    def act(own: tuple[Any, Any, Any], broadcast: Any, memory: Any, number: Any, position: Any, buffers: Any) -> Any:
        records, order, silo_index = own
        desk = view_of(records, int(jax.tree.leaves(records)[0].shape[0]), order, silo_index)
        if part.silo.release.channel in _AT_ONCE:
            return exact_answer(part, broadcast, memory, desk, keys, number, position), memory, buffers
        terms = {"key": silo_key(keys, silo_index, number), "position": position, "anonymity": anonymity}
        return answer(part.silo, broadcast, memory, desk, buffers=buffers, **terms)

    return act


def _bring(desk: SiloView) -> tuple[Any, Any, Any]:
    """What one silo brings, as arrays."""
    return desk.fetch(None), desk.order, desk.silo_index


def _desk(algorithm: Algorithm, keys: Keys, table: Record, silo_index: int) -> SiloView:
    records = jax.tree.map(jnp.asarray, table)
    count = int(jax.tree.leaves(records)[0].shape[0])
    return view_of(records, count, silo_order(algorithm, keys, silo_index, count, count), silo_index)


def _stage(stage: str, name: str, number: int, act: Callable[..., Any], *args: Any) -> Any:
    try:
        return act(*args)
    except Exception as error:
        raise StageError(f"{stage} failed at {name} in round {number + 1}: {error}") from error


def _finite(message: Message, name: str, number: int, kind: str) -> Message:
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(message)):
        raise StageError(f"answer to {kind!r} of {name} in round {number + 1} is not finite; lower the step size.")
    return message
