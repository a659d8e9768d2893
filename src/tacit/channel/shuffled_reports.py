"""The blind shuffler: it hands on reports in an order that says nothing, and only if enough of them came.

A report must not tell its silo by anything but its content. The norm of a report follows from the clip, so a server
that shows one silo other points than the rest would know that silo's reports again: every silo seals with its reports a
digest of the broadcast that it answered, and the shuffler hands on nothing unless all are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from tacit.channel.shuffled_sum import TooFewError
from tacit.errors import TacitError
from tacit.privacy.randomisers import Terms, expand


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

    >>> shuffler = ReportShuffler(least=3)
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
