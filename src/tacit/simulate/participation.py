"""Who takes part in a round: all silos, a fixed number drawn at random, a random number, or one in turn.

Drawing silos amplifies nothing at record level: a silo that comes or stays away shifts a whole batch, and the noise
hides one record. It is there because real silos may be away. A roster settles who comes before training, from a key
alone; no silo is asked more often than it agreed to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from tacit.algorithm import Algorithm
from tacit.errors import TacitError

_MANY = 10_000


class Participation(NamedTuple):
    """Between ``min_silos`` and ``most`` silos a round (uniformly many, uniformly chosen).

    ``weights`` are the p_i of the objective sum_i p_i F_i (``None``: equal); ``cap`` is how often a silo answers at
    most; ``honest`` is the share of all silos that do not collude, on which shuffled channels count; ``colluding`` is
    how many silos may collude, on which pairwise sums count.
    """

    min_silos: int
    most: int
    weights: tuple[float, ...] | None = None
    cap: int | None = None
    honest: float = 1.0
    colluding: int = 1


def participation(
    silos: int,
    participants: int | Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    cap: int | None = None,
    honest: float = 1.0,
    colluding: int = 1,
) -> Participation:
    """Everyone (``None``), a fixed number, or a pair (min_silos, most) for a random number of silos each round.

    >>> participation(4)
    Participation(min_silos=4, most=4, weights=None, cap=None, honest=1.0, colluding=1)
    >>> participation(4, (2, 3))
    Participation(min_silos=2, most=3, weights=None, cap=None, honest=1.0, colluding=1)
    """
    fixed = silos if participants is None else participants
    min_silos, most = (fixed, fixed) if isinstance(fixed, int) else fixed
    if not 1 <= min_silos <= most <= silos:
        raise TacitError(
            f"Expected 1 <= participants={participants} <= silos={silos}; lower the participants of a round."
        )
    if not 0 < honest <= 1:
        raise TacitError(f"Expected 0 < honest={honest} <= 1; it is the share of all silos that do not collude.")
    if weights is not None:
        values = np.asarray(weights, float)
        if values.shape != (silos,) or not np.all(np.isfinite(values)) or values.min() < 0 or values.sum() <= 0:
            raise TacitError(f"Expected {silos} non-negative weights with a positive sum, got {tuple(weights)}.")
        weights = tuple((values / values.sum()).tolist())
    return Participation(min_silos, most, weights, cap, honest, colluding)


class Roster(NamedTuple):
    """Who takes part in each round: rows are rounds, columns are slots, of which some may stay empty.

    ``silo_indices`` has the silo in each slot (within a program, ``None``: all, in order), ``weights`` the weight of
    its message in the mean, ``taken`` whether anybody is there.
    """

    silo_indices: Any
    weights: Any
    taken: Any

    def answers(self, silos: int, rounds: int | None = None) -> np.ndarray:
        """How often each silo takes part, in the first ``rounds`` or in all."""
        return np.bincount(self.silo_indices[:rounds][self.taken[:rounds]], minlength=silos)


def width(kind: str, who: Participation, silos: int) -> int:
    """How many slots a kind of round has."""
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
    shape = len(kinds), max((width(kind, who, silos) for kind in kinds), default=1)
    found = Roster(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, bool))
    answered, turns = np.zeros(silos, int), algorithm.turns
    for round_index, kind in enumerate(kinds):
        chosen = _present(generator, kind, who, round_index, turns[round_index], answered)
        places = round_index, slice(len(chosen))
        found.silo_indices[places] = chosen
        found.weights[places] = relative[chosen] / len(chosen)
        found.taken[places] = True
        answered[chosen] += 1
    return found


def _present(
    generator: np.random.Generator, kind: str, who: Participation, round_index: int, turn: int, answered: np.ndarray
) -> np.ndarray:
    silos = len(answered)
    if kind == "in turn":
        chosen = np.asarray([turn % silos])
    elif everyone(kind, who, silos):
        chosen = np.arange(silos)
    else:
        size = int(generator.integers(who.min_silos, who.most + 1))
        chosen = _drawn(generator, size, silos if who.cap is None else np.flatnonzero(answered < who.cap))
    tired = who.cap is not None and np.any(answered[chosen] >= who.cap)
    if len(chosen) < (who.min_silos if kind == "sampled" else 1) or tired:
        raise TacitError(
            f"Round {round_index + 1} finds too few silos that agreed to answer again: max_participations={who.cap} is "
            "used up; raise it, or lower the rounds or the participants of a round."
        )
    return chosen


def _drawn(generator: np.random.Generator, size: int, willing: int | np.ndarray) -> np.ndarray:
    """Some of the willing (a number: the first so many); of very many, in time that grows with those drawn."""
    if isinstance(willing, int) and willing > _MANY:
        return generator.choice(willing, size, replace=False)
    return generator.permutation(willing)[:size]
