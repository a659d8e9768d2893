"""How far replacing one record moves what a door adds up, before noise.

Everything runs as it ships, from the engine to the sum; noise and coins are those of a test build. The noise is made
for a distance of 2 BOUND (of a shuffled sum: twice the reach of the grid), so a ratio above one is a price that is too
low.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import numpy as np

from tacit.algorithm import Broadcast, PerBlock, Record, Silo, Work
from tacit.privacy.binomial import rounding_bound
from tacit.silo.batches import SecretBatch
from tacit.silo.door import DiscreteGaussian, Door, no_noise
from tacit.silo.integers import BOUND, usable_clip
from tacit.silo.release import in_blocks
from tacit.silo.shares import BinomialShare, BlockTerms, in_order, no_coins, share_terms

Table = dict[str, np.ndarray]
Blocks = dict[str, np.ndarray]


class Measured(Protocol):
    """A door that can be measured."""

    def moved(self, broadcast: Broadcast, one: Table, zero: Table) -> float:
        """The distance of two neighbouring silos' sums, over that which the noise is made for."""
        ...


def measured(silo: Silo, memory: Any, multiplier: float) -> Measured | None:
    """The door of a silo whose blocks are priced together at this multiplier; none where a daemon has none."""
    release = silo.release
    if release.protects != "record" or release.channel not in ("direct", "shuffled-sum"):
        return None
    return (MeasuredSum if release.channel == "direct" else MeasuredShare)(silo, memory, multiplier)


class MeasuredSum:
    """The sum of a direct release, over all records of a silo."""

    form, batch = False, slice(None)

    def __init__(self, silo: Silo, memory: Any, multiplier: float) -> None:
        self._silo, self._memory, self._joint = silo, memory, multiplier
        self._door: Door | None = None
        self._start = jax.jit(silo.start)

    def moved(self, broadcast: Broadcast, one: Table, zero: Table) -> float:
        """The ratio; blocks count as they are priced together."""
        work = self._start(broadcast, self._memory)
        first, second = ({name: own[self.batch] for name, own in table.items()} for table in (one, zero))
        sums, others = self._said(work, first), self._said(work, second)
        total = 0.0
        for name, values in sums.items():
            # Python's integers: this measure rounds nothing before the root.
            gap = math.sqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(values, others[name], strict=True)))
            multiplier = float(np.max(in_blocks(self._silo.release.noise_multiplier, name)))
            total += (gap / self.distance(name) * self._joint / multiplier) ** 2
        return math.sqrt(total)

    def distance(self, block: str) -> float:
        """What the noise of a block is made for."""
        return 2.0 * BOUND

    def _said(self, work: Work, table: Table) -> Blocks:
        count = len(table["y"])
        if self._door is None:
            self._door = Door(self._silo, table, silo_index=0, form=self.form)
        self._door.records = table
        batch = SecretBatch(np.arange(count), np.ones(count, bool))
        return self._door.release(work, batch, self.mechanism)

    def mechanism(self, silo: Silo, work: Work, records: Record, present: Any, bound: PerBlock, size: Any) -> Blocks:
        """The sums of a discrete Gaussian release, block by block."""
        assert self._door is not None
        engine = self._door.engine
        clips = {name: usable_clip(in_blocks(bound, name)) for name in engine.blocks(work, records)}
        sums = DiscreteGaussian(engine, self._door.multiplier, no_noise, None).sums(work, records, present, clips)
        return {
            name: np.concatenate([own.formed, *(layer.ravel() for layer in own.layers.values())])
            for name, own in sums.items()
        }


class MeasuredShare(MeasuredSum):
    """The share of a shuffled sum, of one record: those of others are rounded by coins of their own."""

    form, batch = True, slice(1)
    terms: BlockTerms | None = None

    def distance(self, block: str) -> float:
        """Twice the reach of the block's grid."""
        assert self.terms is not None
        [own] = [terms for name, terms in in_order(self.terms) if (name or "") == block]
        return 2.0 * rounding_bound(own.grid, own.dimension)

    def mechanism(self, silo: Silo, work: Work, records: Record, present: Any, bound: PerBlock, size: Any) -> Blocks:
        """The integers of a share, block by block."""
        assert self._door is not None
        blocks = self._door.engine.blocks(work, records)
        if self.terms is None:
            self.terms = _terms(silo, {name: layout.shape for name, layout in blocks.items()})
        share = BinomialShare(self._door.engine, self.terms, no_coins, 1.0)
        said = share(silo, work, records, present, bound, size)
        named = in_order(self.terms)
        cuts = np.cumsum([own.dimension for _, own in named])[:-1]
        return {name or "": part for (name, _), part in zip(named, np.split(said, cuts), strict=True)}


def _terms(silo: Silo, shapes: Mapping[str, Any]) -> BlockTerms:
    """The terms of a share in a crowd of two silos of one record each, of which the other colludes."""
    found = {}
    for name, shape in shapes.items():
        width = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shape))
        z = float(np.max(in_blocks(silo.release.noise_multiplier, name)))
        found[name] = share_terms(z, [1, 1], min_silos=2, honest=0.5, dimension=width)
    return found if isinstance(silo.release.noise_multiplier, Mapping) else found[""]
