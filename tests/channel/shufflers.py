"""Shufflers in memory, and the shuffled sum bit by bit: small oracles beside the real ones of `tacit.deploy.shuffler`.

Lowy, Ghafelebashi and Razaviyayn (arXiv:2203.06735), Algorithms 4 and 5 after Cheu, Joseph, Mao and Peng, with two
corrections: the noise of all N contributors is taken off (p b N, not p b n), and a vector shifted by L lies in
[0, 2L], so that the sum is recentred by N L.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from tacit.errors import TacitError
from tacit.privacy.randomisers import Terms, expand


class TooFewError(TacitError):
    """Fewer contributors arrived than the noise was made for; the sum stays shut."""


class SumShuffler:
    """Adds contributions up; the noise was calibrated for at least ``min_silos`` contributors.

    The shuffler refuses, and not the server, which gains from a small crowd. A contribution counts once and whole.

    >>> shuffler = SumShuffler(min_silos=2)
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


class MismatchError(TacitError):
    """Silos answered different broadcasts, so their reports can be told apart; nothing is handed on."""


def digest(broadcast: Any) -> str:
    """A fingerprint of a broadcast: its form and every bit of its numbers.

    >>> digest({"w": np.zeros(2)}) == digest({"w": np.zeros(2)})
    True
    >>> digest({"w": np.zeros(2)}) == digest({"w": np.ones(2)})
    False
    """
    leaves, form = jax.tree.flatten(broadcast)
    found = hashlib.sha256(str(form).encode())
    for leaf in leaves:
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()


class ReportShuffler:
    """Collects the reports of a round, stream by stream; the price counts on at least ``min_silos`` of them in each.

    The shuffler refuses, and not the server, which gains from a small crowd. A silo's reports count once and whole.

    >>> shuffler = ReportShuffler(min_silos=3)
    >>> shuffler.receive("a", "f00d", {"gradient": ["a1", "a2"]}); shuffler.receive("b", "f00d", {"gradient": ["b1"]})
    >>> sorted(shuffler.open(np.random.default_rng(0))["gradient"])
    ['a1', 'a2', 'b1']
    """

    def __init__(self, min_silos: int) -> None:
        if min_silos < 2:
            raise TacitError(f"Expected min_silos={min_silos} >= 2: nobody hides in a crowd of one.")
        self.min_silos = min_silos
        self._arrived: dict[str, tuple[str, dict[str, list[Any]]]] = {}

    def receive(self, sender: str, broadcast: str, reports: dict[str, Sequence[Any]]) -> None:
        """Take a silo's reports with the digest of what it answered; a repeated delivery is ignored."""
        own = {stream: list(some) for stream, some in reports.items()}
        if len({len(some) for some in own.values()}) > 1:
            raise TacitError("Expected one report of each record in every stream.")
        self._arrived.setdefault(sender, (broadcast, own))

    def open(self, generator: np.random.Generator) -> dict[str, list[Any]]:
        """All reports of each stream, each stream in a random order of its own; or an error."""
        if len({said for said, _ in self._arrived.values()}) > 1:
            raise MismatchError(
                "Expected one broadcast for all silos, got several; the server showed silos different points. Repeat "
                "the round with one broadcast."
            )
        streams: dict[str, list[Any]] = {}
        for _, own in self._arrived.values():
            for stream, some in own.items():
                streams.setdefault(stream, []).extend(some)
        smallest = min((len(some) for some in streams.values()), default=0)
        if smallest < self.min_silos:
            raise TooFewError(
                f"Expected at least {self.min_silos} reports in each stream, got {smallest}; the price counts on "
                "them. Repeat the round with everyone, or plan for a smaller honest share."
            )
        return {stream: [some[i] for i in generator.permutation(len(some))] for stream, some in streams.items()}


def mean_of_reports(reports: Iterable[tuple[int, int]], terms: Terms, bound: float) -> np.ndarray:
    """The mean that the server computes from reports that came as a seed and a sign."""
    vectors = [expand(seed, sign, terms, bound) for seed, sign in reports]
    if not vectors:
        raise TacitError("Expected at least one report.")
    mean: np.ndarray = np.mean(vectors, axis=0)
    return mean
