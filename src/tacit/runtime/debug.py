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

from tacit.algorithm import Algorithm, Message, Params, Record, Round
from tacit.channel import weighted_mean
from tacit.runtime.participation import Participation, participation
from tacit.runtime.program import Keys, silo_key, silo_order, split_keys, turns_of
from tacit.runtime.simulate import Outcome
from tacit.silo import Desk, answer, desk_of


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
    desks = [_desk(algorithm, keys, table, place) for place, table in enumerate(tables)]
    state = _stage("init", "server", 0, algorithm.init, params)
    memories = [algorithm.memory(params) for _ in tables]
    compiled = {
        (kind, place): _answerer(algorithm.rounds[kind], desk)
        for kind in algorithm.rounds
        for place, desk in enumerate(desks)
    }
    trace: list[dict[str, Array]] = []
    for number, kind in enumerate(algorithm.schedule):
        server = algorithm.rounds[kind].server
        broadcast = _stage("ask", "server", number, server.ask, state)
        places, weights, taken = (row[number] for row in turns.roster)
        messages: list[Message] = []
        for place in places[taken]:
            stage, own_key = f"answer to {kind!r}", silo_key(keys, int(place), number)
            own = broadcast, memories[place], own_key, turns.position[number]
            message, memories[place] = _stage(stage, names[place], number, compiled[kind, int(place)], *own)
            messages.append(_finite(message, names[place], number, kind))
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *messages)
        mean = weighted_mean(stacked, jnp.asarray(weights[taken]))
        state = _stage("tell", "server", number, server.tell, state, mean)
        if measure is not None:
            trace.append(measure(algorithm.output(state)))
    joined = {name: np.asarray([row[name] for row in trace]) for name in (trace[0] if trace else {})}
    return Outcome(algorithm.output(state), state, joined, np.arange(len(trace)) + 1)


def _answerer(part: Round, desk: Desk) -> Callable[..., Any]:
    """One silo's answer, compiled by itself."""

    @jax.jit
    def act(broadcast: Any, memory: Any, key: Array, position: Any) -> Any:
        return answer(part.silo, broadcast, memory, desk, key=key, position=position)

    return act


def _desk(algorithm: Algorithm, keys: Keys, table: Record, place: int) -> Desk:
    records = jax.tree.map(jnp.asarray, table)
    count = int(jax.tree.leaves(records)[0].shape[0])
    return desk_of(records, count, silo_order(algorithm, keys, place, count, count), place)


def _stage(stage: str, name: str, number: int, act: Callable[..., Any], *args: Any) -> Any:
    try:
        return act(*args)
    except Exception as error:
        raise StageError(f"{stage} failed at {name} in round {number + 1}: {error}") from error


def _finite(message: Message, name: str, number: int, kind: str) -> Message:
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(message)):
        raise StageError(f"answer to {kind!r} of {name} in round {number + 1} is not finite; lower the step size.")
    return message
