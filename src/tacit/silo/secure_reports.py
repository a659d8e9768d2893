"""A real silo's reports: for each record of a batch a seed and a sign, with coins of the operating system.

The hemisphere of Duchi et al. (`tacit.privacy.randomisers`), said in nine bytes. The seed stands for a direction and
has nothing to do with the record. The sign says on which side of it the record's clipped statistic lies, turned over

    by a coin that leans with the norm of the statistic      which makes the report right on average
    by a coin of odds at most exp(epsilon_0) : 1             which makes it private

The last coin is an integer of 64 bits against an integer threshold, rounded towards a fair coin. Everything before it
(gradients, norms, the product with the direction) is floating point, and decides no more than which sign goes in. So
the promise does not rest on any rounding. Of the other randomisers, whose reports are floating-point numbers, that
could not be said; a real silo does not use them.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from tacit.algorithm import Broadcast, Memory, Record, Silo, Statistic, Work
from tacit.privacy.randomisers import direction, duchi_scale
from tacit.silo.answer import batch_of, desk_of
from tacit.silo.clipping import by_block, scales, squared_norms, usable
from tacit.silo.sampling import Batch

REPORT_BYTES = 9
MOST_LOCAL = 30.0
"""A larger epsilon_0 than this is used as this one, which is more private."""

_CHUNK_FLOATS = 1 << 22
_REPORT = struct.Struct(">QB")
# Far above what a float loses, far below what anybody would notice.
_MARGIN = 1e-12


class ReportTerms(NamedTuple):
    """What all silos of a round agree on for one stream: epsilon_0 and the number of coordinates."""

    local_epsilon: float
    dimension: int


def report_terms(noise_multiplier: float, dimension: int) -> ReportTerms:
    """The terms of a stream whose noise multiplier is the reciprocal of epsilon_0.

    >>> report_terms(0.5, 3)
    ReportTerms(local_epsilon=2.0, dimension=3)
    """
    return ReportTerms(min(1.0 / noise_multiplier, MOST_LOCAL), dimension)


def threshold(local_epsilon: float) -> int:
    """How many of 2^64 equally likely numbers leave a sign as it is.

    Formal guarantee: the odds of leaving it are at most exp(local_epsilon) and at least 1.

    >>> threshold(1e-13) == 2**63
    True
    >>> kept = threshold(2.0)
    >>> -1e-10 < math.log(kept / (2**64 - kept)) - 2.0 < 0
    True
    """
    chance = 1.0 / (1.0 + math.exp(-local_epsilon))
    return int(max(0.5, chance - _MARGIN) * 2.0**64)


def reports_of(units: Float[np.ndarray, "records dimension"], local_epsilon: float) -> list[bytes]:
    """A report about each vector of norm at most one.

    Formal guarantee: each is epsilon_0-LDP, exactly: its seed is drawn without looking at the vector, and given the
    seed and whatever was computed from the vector, its sign is randomised response with an integer coin.
    """
    number, kept = len(units), threshold(local_epsilon)
    seeds, leans, coins = np.frombuffer(os.urandom(24 * number), ">u8").reshape(3, number)
    norms = np.minimum(np.linalg.norm(units.astype(np.float64), axis=1), 1.0)
    away = leans.astype(np.float64) / 2.0**64 >= 0.5 + norms / 2
    found = []
    for unit, seed, turned, coin in zip(units, seeds.tolist(), away.tolist(), coins.tolist(), strict=True):
        side = bool(direction(seed, units.shape[1]) @ unit >= 0)
        found.append(_REPORT.pack(seed, int((side != turned) == (coin < kept))))
    return found


class ReportResponder:
    """The silo half of one kind of round through shuffled reports, at one silo; ``terms`` are those of each block.

    A statistic without blocks is one block without a name.
    """

    def __init__(self, silo: Silo, records: Record, *, place: int, terms: Mapping[str, ReportTerms]) -> None:
        self._silo, self._terms = silo, dict(terms)
        self._records = {name: np.asarray(column) for name, column in records.items()}
        count = len(next(iter(self._records.values())))
        release = silo.release
        self.size = count if release.batch_size is None else int(np.max(release.batch_size))

        def batch(records: Record, order: Array | None, key: Array, position: Array) -> Batch:
            return batch_of(release, desk_of(records, count, order, place), key, position)[1]

        self._batch, self._units = jax.jit(batch), jax.jit(lambda work, some: unit_statistics(silo, work, some))

    def answer(
        self, broadcast: Broadcast, memory: Memory, *, key: Array, position: int, order: Array | None
    ) -> dict[str, list[bytes]]:
        """The reports of each stream, one for each place of the batch.

        Formal guarantee: those of `reports_of`, for vectors that depend on one record each; always as many as the batch
        has places, whatever the batch turned out to be.
        """
        work = self._silo.start(broadcast, memory)
        batch = self._batch(self._records, order, key, position)
        rows = np.arange(self.size) if batch.rows is None else np.asarray(batch.rows)[: self.size]
        present = np.asarray(batch.present)[: self.size]
        width = max(terms.dimension for terms in self._terms.values())
        chunk = max(1, min(self.size, _CHUNK_FLOATS // width))
        found: dict[str, list[bytes]] = {name: [] for name in self._terms}
        for at in range(0, self.size, chunk):
            own = rows[at : at + chunk]
            padded = np.pad(own, (0, chunk - len(own)))
            units = self._units(work, {name: column[padded] for name, column in self._records.items()})
            for name, terms in self._terms.items():
                here = np.asarray(units[name])[: len(own)] * present[at : at + chunk, None]
                found[name] += reports_of(here, terms.local_epsilon)
        return found


def unit_statistics(silo: Silo, work: Work, records: Record) -> dict[str, Float[Array, "records dimension"]]:
    """Each record's statistic over its clip, block by block: norms of at most one, and zero where it is not finite."""
    values = jax.vmap(lambda record: silo.query(work, record))(records)
    limits = by_block(silo.release.clip(work), values)
    if not isinstance(limits, Mapping):
        return {"": _unit(values, limits)}
    return {name: _unit(values[name], limits[name]) for name in sorted(limits)}


def _unit(values: Statistic, bound: Any) -> Float[Array, "records dimension"]:
    limit, squared = jnp.asarray(bound), squared_norms(values)
    if limit.ndim:
        raise ValueError("Expected one clip for all silos through shuffled reports: the server reads them alike.")
    limit = usable(limit)
    factor, counts = scales(squared, squared, limit, jnp.ones(squared.shape, bool))
    flat = jax.vmap(lambda value: ravel_pytree(value)[0])(values)
    return jnp.where(counts[:, None], flat * (factor / jnp.where(limit > 0, limit, 1.0))[:, None], 0.0)


def mean_of_reports(
    reports: Mapping[str, Sequence[bytes]], kind: Silo, work: Work, shape: Any, terms: Mapping[str, ReportTerms]
) -> Any:
    """The mean that the reports of each stream stand for, in the shape of the statistic; nonsense counts as zero."""
    bounds, found = kind.release.clip(work), {}
    for name, own in terms.items():
        total = np.zeros(own.dimension)
        for report in reports[name]:
            seed, sign = _REPORT.unpack(report) if len(report) == REPORT_BYTES else (0, -1)
            if sign in (0, 1):
                total += (1 if sign else -1) * direction(seed, own.dimension)
        bound = float(usable(jnp.asarray(bounds[name] if name else bounds)))
        mean = bound * duchi_scale(own.dimension, own.local_epsilon) * total / max(1, len(reports[name]))
        like = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape[name] if name else shape)
        found[name] = ravel_pytree(like)[1](jnp.asarray(mean, jnp.float32))
    return found.get("", found)
