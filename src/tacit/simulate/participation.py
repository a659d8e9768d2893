"""Who takes part in a round: all silos, a fixed number drawn at random, a random number, or one in turn.

Sampling silos amplifies nothing at record level, hidden or not: a silo that is in or out shifts a whole batch while
the noise hides one record. It is a fact of life (silos are not always there), not a privacy tool. So who comes is
settled in a roster before training, from a key alone, and a silo is never asked more often than it agreed to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from tacit.algorithm import Algorithm
from tacit.errors import TacitError


class Participation(NamedTuple):
    """Between ``min_silos`` and ``most`` silos a round (uniformly many, uniformly chosen).

    ``weights`` are the p_i of the objective sum_i p_i F_i (``None``: equal); ``cap`` is how often a silo answers at
    most; ``honest`` is the share of all silos that is sure not to collude, for channels that hide a record in
    a crowd.
    """

    min_silos: int
    most: int
    weights: tuple[float, ...] | None = None
    cap: int | None = None
    honest: float = 1.0


def participation(
    silos: int,
    participants: int | Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    cap: int | None = None,
    honest: float = 1.0,
) -> Participation:
    """Everyone (``None``), a fixed number, or a pair (min_silos, most) for a random number of silos each round.

    >>> participation(4)
    Participation(min_silos=4, most=4, weights=None, cap=None, honest=1.0)
    >>> participation(4, (2, 3))
    Participation(min_silos=2, most=3, weights=None, cap=None, honest=1.0)
    """
    if participants is None:
        min_silos = most = silos
    elif isinstance(participants, int):
        min_silos = most = participants
    else:
        min_silos, most = participants
    if not 1 <= min_silos <= most <= silos:
        raise TacitError(
            f"Expected 1 <= participants={participants} <= silos={silos}; lower the participants of a round."
        )
    if not 0 < honest <= 1:
        raise TacitError(f"Expected 0 < honest={honest} <= 1; it is the share of all silos that do not collude.")
    if weights is None:
        return Participation(min_silos, most, None, cap, honest)
    values = np.asarray(weights, float)
    if values.shape != (silos,) or not np.all(np.isfinite(values)) or values.min() < 0 or values.sum() <= 0:
        raise TacitError(f"Expected {silos} non-negative weights with a positive sum, got {tuple(weights)}.")
    return Participation(min_silos, most, tuple(float(v) for v in values / values.sum()), cap, honest)


class Roster(NamedTuple):
    """Who takes part in each round: rows are rounds, columns are places to fill.

    ``weights`` is the weight of each message in the mean, ``taken`` says which places are filled (a random number of
    silos fills only some), ``before`` is the round in which the silo last answered this kind of round (-1: never).
    """

    silo_indices: np.ndarray
    weights: np.ndarray
    taken: np.ndarray
    before: np.ndarray

    def answers(self, silos: int, rounds: int | None = None) -> np.ndarray:
        """How often each silo takes part, in the first ``rounds`` or in all."""
        return np.bincount(self.silo_indices[:rounds][self.taken[:rounds]], minlength=silos)


def width(kind: str, who: Participation, silos: int) -> int:
    """How many places a kind of round has."""
    return {"in turn": 1, "all": silos}.get(kind, who.most)


def everyone(kind: str, who: Participation, silos: int) -> bool:
    """Whether a kind of round always has every silo, in order."""
    return kind == "all" or (kind == "sampled" and who.min_silos == silos)


def roster(key: Array, algorithm: Algorithm, who: Participation, silos: int) -> Roster:
    """Settle who takes part in every round.

    The mean is (1/M) sum of N p_i x message_i over the M silos present, so that its expectation does not depend on who
    comes.
    """
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint64))
    relative = np.ones(silos) if who.weights is None else silos * np.asarray(who.weights)
    kinds = [algorithm.rounds[name].participants for name in algorithm.schedule]
    columns = max((width(kind, who, silos) for kind in kinds), default=1)
    silo_indices = np.zeros((len(kinds), columns), np.int32)
    weights = np.zeros((len(kinds), columns), np.float32)
    taken = np.zeros((len(kinds), columns), bool)
    before = np.full((len(kinds), columns), -1, np.int32)
    answered, turns = np.zeros(silos, int), algorithm.turns
    latest = {name: np.full(silos, -1, np.int32) for name in algorithm.rounds}
    for number, (name, kind) in enumerate(zip(algorithm.schedule, kinds, strict=True)):
        chosen = _present(generator, kind, who, silos, number, turns[number], answered)
        answered[chosen] += 1
        before[number, : len(chosen)] = latest[name][chosen]
        latest[name][chosen] = number
        silo_indices[number, : len(chosen)] = chosen
        weights[number, : len(chosen)] = relative[chosen] / len(chosen)
        taken[number, : len(chosen)] = True
    return Roster(silo_indices, weights, taken, before)


def _present(
    generator: np.random.Generator,
    kind: str,
    who: Participation,
    silos: int,
    number: int,
    turn: int,
    answered: np.ndarray,
) -> np.ndarray:
    willing = np.arange(silos) if who.cap is None else np.flatnonzero(answered < who.cap)
    if kind == "in turn":
        chosen = np.asarray([turn % silos])
    elif everyone(kind, who, silos):
        chosen = np.arange(silos)
    else:
        size = int(generator.integers(who.min_silos, who.most + 1))
        chosen = generator.permutation(willing)[:size]
    if len(chosen) < (who.min_silos if kind == "sampled" else 1) or not np.isin(chosen, willing).all():
        raise TacitError(
            f"Round {number + 1} finds too few silos that agreed to answer again: max_participations={who.cap} is used "
            "up; raise it, or lower the rounds or the participants of a round."
        )
    return chosen
