"""The aggregating shuffler: it adds up sealed contributions, opens the sum only if enough arrived, and says no more.

Also the protocol bit by bit, for small sizes: what it would cost to shuffle g + b labelled bits for every record and
coordinate, and the analyser that counts them. It exists to prove that drawing the sum at once draws the same.

Lowy, Ghafelebashi and Razaviyayn (arXiv:2203.06735), Algorithms 4 and 5 after Cheu, Joseph, Mao and Peng, with two
corrections: the noise of all N contributors is taken off (p b N, not p b n), and a vector shifted by L lies in
[0, 2L], so that the sum is recentred by N L.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from tacit.algorithm import Message
from tacit.channel.mean import weighted_mean
from tacit.errors import TacitError


class TooFewError(TacitError):
    """Fewer contributors arrived than the noise was made for; the sum stays shut."""


class SumShuffler:
    """Adds contributions up; the noise was calibrated for at least ``min_silos`` contributors.

    The shuffler refuses, and not the server, which gains from a small crowd. A contribution counts once and whole.

    >>> shuffler = SumShuffler(least=2)
    >>> shuffler.receive("a", np.ones(3)); shuffler.receive("b", 2 * np.ones(3))
    >>> shuffler.open().tolist()
    [3.0, 3.0, 3.0]
    """

    def __init__(self, min_silos: int) -> None:
        if min_silos < 2:
            raise TacitError(f"Expected min_silos={min_silos} >= 2: nobody hides in a crowd of one.")
        self.min_silos = min_silos
        self._arrived: dict[str, np.ndarray] = {}

    def receive(self, sender: str, share: np.ndarray) -> None:
        """Take a contributor's share; a repeated one is ignored, so that a retry adds nothing."""
        self._arrived.setdefault(sender, np.asarray(share))

    def open(self) -> np.ndarray:
        """The sum of all shares, or an error if too few arrived."""
        if len(self._arrived) < self.min_silos:
            raise TooFewError(
                f"Expected at least {self.min_silos} contributors, got {len(self._arrived)}; the noise of fewer "
                "does not hide a record. Repeat the round with everyone, or plan for a smaller honest share."
            )
        return np.sum(list(self._arrived.values()), axis=0)


def mean_of_shares(shares: Message, sizes: jax.Array, largest: jax.Array, silos: int) -> Message:
    """The mean that silos' shares stand for; shares have a leading axis of silos, and ``sizes`` of zero are away.

    Each share is a silo's mean over ``sizes`` records, weighted as `tacit.privacy.anonymity.record_weights` says beside
    the ``largest``. Of all ``silos`` some may be away, which does not change what is expected.
    """
    return weighted_mean(shares, sizes * largest * silos / (sizes > 0).sum())


def contributor_bits(
    rng: np.random.Generator, vector: np.ndarray, *, bound: float, grid: int, bits: int, chance: float, reach: float
) -> np.ndarray:
    """The local randomiser bit by bit: (coordinates, grid + bits) zeros and ones, whose order says nothing."""
    y = (vector + bound) * grid / (2 * bound)
    rounded = np.full(len(vector), grid // 2)
    for _ in range(64):
        drawn = np.floor(y).astype(int) + (rng.random(len(y)) < y - np.floor(y))
        if np.linalg.norm(drawn - grid / 2) <= reach:
            rounded = drawn
            break
    ones = rounded + rng.binomial(1, chance, (len(vector), bits)).sum(axis=1)
    return (np.arange(grid + bits) < ones[:, None]).astype(np.int8)


def shuffle_bits(rng: np.random.Generator, contributions: Iterable[np.ndarray]) -> np.ndarray:
    """All bits of each coordinate, in random order."""
    return rng.permuted(np.concatenate(list(contributions), axis=1), axis=1)


def analyse(shuffled: np.ndarray, *, bound: float, grid: int, bits: int, chance: float) -> np.ndarray:
    """The estimate of the sum: ones counted, noise and shift of the contributors that really arrived taken off."""
    arrived = shuffled.shape[1] // (grid + bits)
    return 2 * bound / grid * (shuffled.sum(axis=1) - chance * bits * arrived) - arrived * bound
