"""A real silo's part of a pairwise sum: its exact sum with a share of the noise, under masks that cancel over silos.

    y = S + e + masks   modulo 2^64,      e a discrete Gaussian of standard deviation  z 2 BOUND / sqrt(m - c)

S is the sum of checked integers of `tacit.silo.door`, scaled by what the silo's records count beside those that count
most. m silos are in the round, of which c may collude. `tacit.channel.pairwise` makes the masks and reads the sum. By
itself y is uniform to whoever lacks one of the masks; with all of them it would be a release with the noise of a share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt64

from tacit.privacy.pairwise import check_colluding
from tacit.silo.door import DiscreteGaussian, DoorError
from tacit.silo.integers import BOUND
from tacit.silo.release import Task

LEAST_SHARE = 1024.0
"""The least standard deviation of a share, in units of the sum: above it, sums of shares are discrete Gaussians."""


class Masked(NamedTuple):
    """What leaves, block after block in the order of names, and the noise in it, which must not leave."""

    values: UInt64[np.ndarray, " coordinates"]
    noise: dict[str, Int64[np.ndarray, " coordinates"]]


@dataclass(frozen=True)
class PairwiseShare(DiscreteGaussian):
    """As `DiscreteGaussian`, with a share of its noise and under masks.

    ``multiplier`` is the noise of the sum over silos over its sensitivity Delta: ``2 BOUND``, or ``sqrt(2) BOUND``
    where rows must be ``nonnegative``. ``silos`` are in the round, of which at most ``colluding`` collude. ``weight``
    is what this silo's records count beside those that count most.
    """

    silos: int
    colluding: int
    weight: float
    masks: UInt64[np.ndarray, " coordinates"]

    def __call__(self, task: Task) -> Masked:  # type: ignore[override]
        """The masked sum.

        Formal guarantee: each coordinate is S + e + mask modulo 2^64, whatever the records are. Replacing one record
        moves S by at most Delta. The sampler draws e with standard deviation at least
        multiplier x Delta / sqrt(silos - colluding), so that the noises of silos - colluding silos add up to
        multiplier x Delta. It does so for every clip: where one silo finds its own unusable and another does not, the
        other's records still have all shares. If the masks are uniform and nobody knows one of them, nothing but the
        sum over all silos of the round depends on S.
        """
        if task.silo.release.channel != "pairwise":
            raise DoorError('Expected channel="pairwise".')
        noised = self.noised(task)
        total = np.concatenate([leaf.ravel() for name in sorted(noised) for leaf in noised[name].leaves])
        if self.masks.shape != total.shape or self.masks.dtype != np.uint64:
            raise DoorError("Expected a mask of 64 bits for every coordinate.")
        with np.errstate(over="ignore"):
            values = total.view(np.uint64) + self.masks
        return Masked(values, {name: own.noise for name, own in noised.items()})

    @property
    def counted_on(self) -> bool:
        """Every share is: the records of other silos hide behind it."""
        return True

    @property
    def limit(self) -> int:
        """The largest norm of a record's integers in the sum: less where its silo's records count less."""
        return weighted_bound(self.weight)

    def scale(self, name: str) -> float:
        """The standard deviation of this silo's share of a block's noise, rounded up."""
        return share_scale(super().scale(name), self.silos, self.colluding)


def share_scale(sigma: float, silos: int, colluding: int) -> float:
    """The standard deviation of one silo's share of noise that is ``sigma`` without those that collude, rounded up."""
    check_colluding(colluding, silos)
    share = math.nextafter(sigma / math.sqrt(silos - colluding) * (1 + 2.0**-50), math.inf)
    if share < LEAST_SHARE:
        raise DoorError(f"Expected a share of the noise of at least {LEAST_SHARE:g} units, got {share:g}; add noise.")
    return share


def weighted_bound(weight: float) -> int:
    """The bound of the integers of a silo whose records count ``weight`` beside those that count most."""
    if not 0.0 <= weight <= 1.0:
        raise DoorError(f"Expected a weight between 0 and 1, got {weight}.")
    return math.floor(BOUND * weight)
