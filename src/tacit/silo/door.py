"""A real silo's door: releases whose bound is an integer fact, with exact noise from the system's entropy.

`tacit silo serve` runs these mechanisms and the audit attacks them. They share one way from a record to stored integers
(`tacit.silo.engine`, `tacit.silo.integers`) and differ in what they add:

    `DiscreteGaussian`   direct messages: the exact sum with discrete Gaussian noise, less what its strategy takes off
                         of the noise of earlier rounds (`tacit.silo.noise`)
    `PairwiseShare`      the same sum with a share of the noise, under masks that cancel in the sum over silos
    `BinomialShare`      a share of a shuffled sum: each record rounded at random to a coarser grid, and fair coins
    `LocalReports`       one report through a local randomiser for each record

A test build replaces the sampler of the noise by zeros (`no_noise`, `no_coins`) and changes nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Int64

from tacit.algorithm import Broadcast, Memory, Message, PerBlock, Record, Release, Silo, Work
from tacit.privacy.strategy import Strategy, strategy_of
from tacit.silo.batches import SecretBatch, allotted, pass_order, secret_batch
from tacit.silo.engine import Layout, is_square, layouts, outside_vectors, vectors_of, whole
from tacit.silo.gradients import is_outside
from tacit.silo.integers import (
    BOUND,
    MOST_RECORDS,
    MOST_TERMS,
    Integers,
    Sums,
    Vectors,
    checked_sum,
    quantise,
    quantise_squares,
    usable_clip,
)
from tacit.silo.noise import Buffers, check_rounding, no_buffers, remembered
from tacit.silo.release import Mechanism, Task, batch_sizes, in_blocks, own_clip, pass_position, release, respond

Sampler = Callable[[int, float], Int64[np.ndarray, " size"]]
"""So many independent integers of this standard deviation."""

LARGEST_NOISE = 2.0**56
"""More noise than this, in units of a sum, would not fit 64 bits with its tails."""

_STORED_FLOATS = 2**21
_MOST_AT_ONCE = 2**13
_SAID_AT_ONCE = 2**14


class DoorError(ValueError):
    """A release that the door cannot make; it depends on shapes and terms, never on a record."""


def no_noise(size: int, sigma: float) -> Int64[np.ndarray, " size"]:
    """The sampler of a test build."""
    return np.zeros(size, np.int64)


class Engine:
    """Computes and stores each record's vector, in batches of a fixed shape; ``form`` forms every vector in full."""

    def __init__(self, silo: Silo, *, form: bool) -> None:
        self._silo, self._form = silo, form
        self._blocks: dict[str, Layout] | None = None

        def vectors(work: Work, records: Record) -> Any:
            assert self._blocks is not None
            if is_outside(silo.query):
                return outside_vectors(silo.query, self._blocks, work, records)
            return vectors_of(silo, self._blocks, work, records)

        self._vectors = vectors if is_outside(silo.query) else jax.jit(vectors)

    def blocks(self, work: Work, records: Record) -> dict[str, Layout]:
        """The layout of the blocks, from shapes alone."""
        if self._blocks is None:
            record = {name: jax.ShapeDtypeStruct(c.shape[1:], c.dtype) for name, c in records.items()}
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), work)
            own = layouts(self._silo, shapes, record)
            self._blocks = {name: whole(layout.shape) for name, layout in own.items()} if self._form else own
        return self._blocks

    def stored(
        self, work: Work, records: Record, present: Bool[np.ndarray, " slots"]
    ) -> Iterator[tuple[dict[str, Vectors], Bool[np.ndarray, " some"]]]:
        """The vectors of every slot, some slots at a time, as NumPy arrays; slots without a record hold zeros."""
        blocks, slots = self.blocks(work, records), len(present)
        terms = max(layout.terms for layout in blocks.values())
        width = max(1, sum(layout.width for layout in blocks.values()))
        chunk = min(slots, _MOST_AT_ONCE, MOST_TERMS // terms, max(1, _STORED_FLOATS // width))
        for first in range(0, slots, chunk):
            there = np.zeros(chunk, bool)
            here = present[first : first + chunk]
            there[: len(here)] = here
            some = {name: _public_where_absent(c[first : first + chunk], there) for name, c in records.items()}
            # Stored: what is rounded, checked and added from here on are these very numbers.
            yield jax.tree.map(np.asarray, self._vectors(work, some)), there

    def integers(
        self,
        work: Work,
        records: Record,
        present: Bool[np.ndarray, " slots"],
        clips: Mapping[str, float],
        limit: int = BOUND,
    ) -> Iterator[tuple[dict[str, Integers], Bool[np.ndarray, " some"]]]:
        """The integers of every slot, some slots at a time: vectors clipped and rounded, not yet checked.

        A ``limit`` below BOUND makes them smaller, by the weight of their silo.
        """
        rounded = quantise_squares if is_square(self._silo.query) and not self._form else quantise
        for stored, there in self.stored(work, records, present):
            yield {name: rounded(own, clips[name], limit) for name, own in stored.items()}, there


def _public_where_absent(column: np.ndarray, there: Bool[np.ndarray, " chunk"]) -> np.ndarray:
    """A column with zeros, a public record, in every slot that holds no record of the batch."""
    if len(column) == len(there) and there.all():
        return column
    padded = np.zeros((len(there), *column.shape[1:]), column.dtype)
    padded[: len(column)][there[: len(column)]] = column[there[: len(column)]]
    return padded


class NoisedSum(NamedTuple):
    """The sum of a block with its noise, leaf after leaf, what is remembered of the noise, clip and layout."""

    leaves: list[Int64[np.ndarray, ...]]
    noise: Buffers
    clip: float
    layout: Layout


class Said(NamedTuple):
    """What a direct release says, and what is remembered of the noise in it, which must not leave."""

    statistic: Any
    noise: dict[str, Buffers]


class Past(NamedTuple):
    """What a silo remembers of the noise of a kind of round: buffers by block, and the rounds left out since then."""

    buffers: Mapping[str, Buffers]
    missed: int


NO_PAST = Past({}, 0)
"""Before the first round."""


@dataclass(frozen=True)
class DiscreteGaussian:
    """The exact sum of checked integers, with discrete Gaussian noise.

    ``multiplier`` is the noise of each block over its sensitivity: ``2 BOUND``, or ``sqrt(2) BOUND`` where rows must be
    ``nonnegative``. ``strategy`` says what is taken off of the noise of the ``past``.
    """

    engine: Engine
    multiplier: PerBlock
    sampler: Sampler
    strategy: Strategy
    past: Past
    nonnegative: bool

    def __call__(self, task: Task) -> Said:
        """The mean of the batch with noise, and what is remembered of the noise.

        Formal guarantee: each block leaves as clip / (BOUND size) times S + e, whatever the records are. S is the
        `checked_sum` of the batch: replacing one record moves it by at most 2 BOUND, or sqrt(2) BOUND where rows must
        be nonnegative. The sampler draws with standard deviation multiplier x that in every coordinate, and e is what
        the strategy makes of what was drawn, in this round and earlier ones. A clip that is not usable makes a block
        zero, whatever the records are.
        """
        said: dict[str, Any] = {}
        noised = self.noised(task)
        for name, own in noised.items():
            said[name] = own.layout.shaped(_in_units(own.leaves, own.clip / (BOUND * int(task.size))))
        noise = {name: own.noise for name, own in noised.items()}
        return Said(said if isinstance(task.bound, Mapping) else said[""], noise)

    def noised(self, task: Task) -> dict[str, NoisedSum]:
        """The sum of each block with noise, in units of clip / BOUND."""
        _, work, records, present, bound, _ = task
        blocks = self.engine.blocks(work, records)
        clips = {name: usable_clip(in_blocks(bound, name)) for name in blocks}
        totals = dict(self.sums(work, records, present, clips))
        found: dict[str, NoisedSum] = {}
        for name, layout in blocks.items():
            leaves, clip = layout.leaves(totals.pop(name)), clips[name]
            for leaf in leaves if clip == 0.0 else ():
                leaf[...] = 0
            buffers = self._add_noise(name, leaves, said=clip > 0.0 or self.counted_on)
            found[name] = NoisedSum(leaves, buffers, clip, layout)
        return found

    def _add_noise(self, name: str, leaves: list[Int64[np.ndarray, ...]], *, said: bool) -> Buffers:
        """Add the noise of a block where its sum lies, and return what is remembered of it.

        Fresh noise is drawn in parts, so that sums of millions need no second vector. It is drawn in any case; of a
        block that nothing is said about it is dropped, and what was remembered stays.
        """
        size, at = sum(leaf.size for leaf in leaves), 0
        before = self._buffers(name, size)
        noise, after = self._noise(name, before) if self.strategy.weights else (None, before)
        for entries, some in _in_parts(leaves):
            count = some.stop - some.start
            part = self._drawn(name, count) if noise is None else noise[at : at + count]
            at += count
            if said:
                entries[some] = entries[some] + part
        return after if said else before

    def _noise(self, name: str, buffers: Buffers) -> tuple[Int64[np.ndarray, " size"], Buffers]:
        """The noise of this round and of those left out before it, and what is remembered of it."""
        if self.past.missed < 0:
            raise DoorError("Expected a round whose noise was not drawn before: rounds only go forward.")
        size = buffers.shape[1]
        total, buffers = remembered(self.strategy, buffers, self._drawn(name, size))
        for _ in range(self.past.missed):
            noise, buffers = remembered(self.strategy, buffers, self._drawn(name, size))
            total = total + noise
        return total, buffers

    def _buffers(self, name: str, size: int) -> Buffers:
        sigma = self.scale(name)
        try:
            check_rounding(self.strategy, size, sigma, sigma / float(in_blocks(self.multiplier, name)))
        except ValueError as error:
            raise DoorError(str(error)) from None
        kept = self.past.buffers.get(name)
        return no_buffers(self.strategy, size) if kept is None else kept.reshape(len(self.strategy.weights), size)

    @property
    def counted_on(self) -> bool:
        """Whether others count on this noise: then it is added whatever the clip is."""
        return False

    @property
    def limit(self) -> int:
        """The largest norm of a record's integers in the sum."""
        return BOUND

    def scale(self, name: str) -> float:
        """The standard deviation of a block's noise, in units of the sum."""
        return noise_scale(float(in_blocks(self.multiplier, name)), NONNEGATIVE if self.nonnegative else 2.0)

    def _drawn(self, name: str, size: int) -> Int64[np.ndarray, " size"]:
        drawn = np.asarray(self.sampler(size, self.scale(name)))
        if drawn.shape != (size,) or drawn.dtype != np.int64:
            raise DoorError("Expected as many 64-bit integers of noise as there are coordinates.")
        return drawn

    def sums(self, work: Work, records: Record, present: Any, clips: Mapping[str, float]) -> dict[str, Sums]:
        """The exact sum of each block over the batch, before noise: it stays inside.

        Formal guarantee: replacing one record moves each block by at most twice the limit in l2 norm, or by sqrt(2)
        times the limit where rows must be nonnegative, whatever the engine says.
        """
        totals: dict[str, Sums] = {}
        for stored, there in self.engine.integers(work, records, present, clips, self.limit):
            for name, integers in stored.items():
                some = checked_sum(integers, there, self.limit, nonnegative=self.nonnegative)
                totals[name] = _plus(totals[name], some) if name in totals else some
        return totals


NONNEGATIVE = math.sqrt(2.0)
"""The sensitivity of a sum of rows without negative products, in BOUNDs; the nearest float is above the root."""


def noise_scale(multiplier: float, sensitivity: float) -> float:
    """The standard deviation of the noise of a sum of this sensitivity in BOUNDs, or an error where it does not fit."""
    sigma = multiplier * sensitivity * BOUND
    if not 8.0 <= sigma <= LARGEST_NOISE:
        unit = sensitivity * BOUND
        raise DoorError(
            f"Expected a noise multiplier from {8 / unit:.3g} to {LARGEST_NOISE / unit:.3g}, got "
            f"{multiplier:.6g}; change epsilon, or the number of rounds."
        )
    return sigma


def priced_multiplier(terms: Release, silo_index: int) -> PerBlock:
    """A silo's own noise multiplier, block by block, as the price reads it: in double precision, never rounded."""
    if terms.noise_multiplier is None:
        raise DoorError("Expected a private release; this one has no noise.")

    def own(value: Any) -> float:
        every = np.asarray(value, np.float64)
        return float(every[silo_index] if every.ndim else every)

    z = terms.noise_multiplier
    return {name: own(value) for name, value in z.items()} if isinstance(z, Mapping) else own(z)


def _plus(one: Sums, other: Sums) -> Sums:
    """The sum of two, in the place of the first."""
    np.add(one.formed, other.formed, out=one.formed)
    for name, matrix in one.layers.items():
        np.add(matrix, other.layers[name], out=matrix)
    return one


def _in_units(leaves: list[Int64[np.ndarray, ...]], unit: float) -> Float32[np.ndarray, " coordinates"]:
    """A noised sum as it is said, in 32-bit floats, leaf after leaf."""
    said, at = np.empty(sum(leaf.size for leaf in leaves), np.float32), 0
    for entries, some in _in_parts(leaves):
        count = some.stop - some.start
        said[at : at + count] = entries[some].astype(np.float64) * unit
        at += count
    return said


def _in_parts(leaves: list[Int64[np.ndarray, ...]]) -> Iterator[tuple[Any, slice]]:
    """The entries of leaves, some at a time, in the order of their rows whatever their layout in memory."""
    for leaf in leaves:
        for first in range(0, leaf.size, _SAID_AT_ONCE):
            yield leaf.flat, slice(first, min(first + _SAID_AT_ONCE, leaf.size))


class Answered(NamedTuple):
    """The message, the silo's memory, and what later rounds need of the noise, which stays inside.

    Of fresh noise nothing is kept: beside a stored message it would give the sum away.
    """

    message: Message
    memory: Memory
    noise: dict[str, Buffers]


class Door:
    """The silo half of one kind of round, at one real silo.

    ``form`` says whether the mechanism needs every vector in full. ``engine`` may replace the one that ships: no
    guarantee rests on it.
    """

    def __init__(
        self, silo: Silo, records: Record, *, silo_index: int, form: bool, engine: Engine | None = None
    ) -> None:
        self.silo, self.silo_index = silo, silo_index
        self.records = {name: np.asarray(column) for name, column in records.items()}
        self.count = len(next(iter(self.records.values())))
        if self.count > MOST_RECORDS:
            raise DoorError(f"Expected at most {MOST_RECORDS} records, got {self.count}.")
        size, capacity = batch_sizes(silo.release, self.count, silo_index)
        self.size, self.capacity = int(size), int(capacity)
        self.engine = Engine(silo, form=form) if engine is None else engine
        self._clip = jax.jit(lambda work: own_clip(silo.release, work, silo_index))
        self._start, self._absorb, self._report = jax.jit(silo.start), jax.jit(silo.absorb), jax.jit(silo.report)

    @cached_property
    def strategy(self) -> Strategy:
        """What is taken off of the noise of earlier rounds."""
        return strategy_of(self.silo.release)

    @cached_property
    def multiplier(self) -> PerBlock:
        """The silo's own noise multiplier of each block."""
        return priced_multiplier(self.silo.release, self.silo_index)

    def order(self, position: int, seed: bytes) -> Int64[np.ndarray, " count"] | None:
        """The order of a study's pass, or every record's batch in the epoch of ``position``, from the study's seed."""
        if self.silo.release.sampling == "one-pass":
            return pass_order(seed, self.count)
        if self.silo.release.sampling == "allocation":
            return allotted(seed, position // self._batches, self.count, self._batches)
        return None

    @cached_property
    def _batches(self) -> int:
        """Into how many batches the records of an epoch go."""
        from tacit.privacy.allocation import batches_of

        return batches_of(self.count, self.size)

    def batch(self, position: int, order: Int64[np.ndarray, " count"] | None) -> SecretBatch:
        """A secret batch for one release; in a pass it begins at ``position``, of epochs it is that batch."""
        at = int(pass_position(self.silo.release, position, self.size, self.count))
        if self.silo.release.sampling == "allocation":
            at %= self._batches
        own = {"count": self.count, "size": self.size, "capacity": self.capacity, "order": order, "position": at}
        return secret_batch(self.silo.release.sampling, **own)  # type: ignore[arg-type]

    def release(self, work: Work, batch: SecretBatch, mechanism: Mechanism) -> Any:
        """What a mechanism says about a batch."""
        rows = self.records
        if self.silo.release.sampling != "full":
            rows = {name: column[batch.rows] for name, column in self.records.items()}
        bound = jax.tree.map(np.asarray, self._clip(work))
        return release(Task(self.silo, work, rows, batch.present, bound, self.size), mechanism)

    def answer(
        self,
        broadcast: Broadcast,
        memory: Memory,
        *,
        batches: Sequence[SecretBatch],
        sampler: Sampler,
        past: Past,
    ) -> Answered:
        """The direct answer to a round: start, a release for each batch, report.

        Formal guarantee: the message is post-processing of one `DiscreteGaussian` release for each batch. Everything is
        computed to the end whatever the records are.
        """
        if self.silo.release.channel != "direct":
            raise DoorError('Expected channel="direct": a silo adds its noise itself, or says nothing.')
        if len(batches) != self.silo.local_steps:
            raise DoorError(f"Expected a batch for each of {self.silo.local_steps} local steps, got {len(batches)}.")
        mechanism = DiscreteGaussian(
            self.engine, self.multiplier, sampler, self.strategy, past, nonnegative=self.silo.release.nonnegative
        )
        noise: dict[str, Buffers] = {}

        def say(work: Work, batch: SecretBatch) -> Any:
            nonlocal noise
            said = self.release(work, batch, mechanism)
            noise = said.noise if self.strategy.weights else {}
            return said.statistic

        # A message that is its release needs no program around it.
        plain = self.silo.says_what_it_released
        parts = self.silo if plain else SimpleNamespace(start=self._start, absorb=self._absorb, report=self._report)
        message, kept = respond(parts, broadcast, memory, steps=batches, say=say, repeat=_one_by_one)  # type: ignore[arg-type]
        return Answered(message, kept, noise)


def _one_by_one(act: Callable[[Work, Any], Work], work: Work, steps: Sequence[Any]) -> Work:
    for step in steps:
        work = act(work, step)
    return work
