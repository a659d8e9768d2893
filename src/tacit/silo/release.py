"""One release path: the only place where records, clip and noise meet, in every runtime.

    broadcast -> start -> local_steps x [ batch -> query -> clip -> sum -> noise -> absorb ] -> report -> message
                                          \\__________ release ____________/
                 \\_______________________________ respond _________________________________/

What differs between runtimes is injected: a *mechanism* turns the records of a batch into a statistic that may be said.

    `tacit.silo.simulated`   fused float32 and Gaussian noise, for simulations. No guarantee rests on it.
    `tacit.silo.door`        stored integers, checked and added exactly, and exact noise, for a real silo and for the
                             audit. Every guarantee to a record rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from tacit.algorithm import Broadcast, Memory, Message, PerBlock, Record, Release, Silo, Statistic, Work
from tacit.silo.integers import usable_clip


@dataclass(frozen=True)
class SiloView:
    """What one silo brings to an answer.

    ``fetch`` hands out rows of its records (``None``: all), which are finite (``enrol`` checks) and padded to
    ``padded`` rows; the first ``count`` are real. ``order`` is the silo's random order for one-pass sampling.
    ``silo_index`` picks the silo's entry from terms that differ by silo.
    """

    fetch: Callable[[Int[Array, " slots"] | None], Record]
    padded: int
    count: Int[Array, ""] | int
    order: Int[Array, " padded"] | None
    silo_index: Int[Array, ""] | int


class Task(NamedTuple):
    """What a mechanism is given: ``present`` marks the records of the batch, ``size`` is the fixed divisor."""

    silo: Silo
    work: Work
    records: Record
    present: Any
    bound: PerBlock
    size: Any


Mechanism = Callable[[Task], Any]
"""From the records of a batch to a statistic that may be said: query, clip, sum and noise."""


def view_of(records: Record, count: Array | int, order: Array | None, silo_index: Array | int) -> SiloView:
    """The view of a silo whose records lie in one pytree of arrays."""

    def fetch(rows: Array | None) -> Record:
        return records if rows is None else jax.tree.map(lambda leaf: leaf[rows], records)

    return SiloView(fetch, int(jax.tree.leaves(records)[0].shape[0]), count, order, silo_index)


def respond(
    silo: Silo,
    broadcast: Broadcast,
    memory: Memory,
    *,
    steps: Any,
    say: Callable[[Work, Any], Statistic],
    repeat: Callable[[Callable[[Work, Any], Work], Work, Any], Work],
) -> tuple[Message, Memory]:
    """Start, then local steps of release and absorb, then report.

    Formal guarantee: the message and the memory are post-processing of what ``say`` returned, once for each of
    ``steps``, of the broadcast and of the memory. Only ``say`` can reach a record.
    """
    work = silo.start(broadcast, memory)
    work = repeat(lambda work, step: silo.absorb(work, say(work, step)), work, steps)
    return silo.report(work, memory)


def release(task: Task, mechanism: Mechanism) -> Any:
    """One release: what a mechanism says about the records of one batch.

    Formal guarantee: the mechanism's own. It is handed the fields that the query may read, and a clip that is computed
    from public values alone.
    """
    reads = task.silo.reads
    return mechanism(task if reads is None else task._replace(records={name: task.records[name] for name in reads}))


def clip_of(terms: Release, work: Work) -> PerBlock:
    """The clip of a release for this work, block by block; noise that remembers mixes all rounds and needs one clip."""
    return terms.clip(None if terms.mechanism != "gaussian" else work)


def own_entry(value: Any, silo_index: Array | int) -> Any:
    """A silo's own entry of a term that may differ by silo."""
    value = jnp.asarray(value)
    return value[silo_index] if value.ndim else value


def usable_clips(terms: Release, work: Work) -> PerBlock:
    """The clips of a round as silos use them and the server reads them, where they are one for all silos."""
    return jax.tree.map(usable_clip, clip_of(terms, work))


def own_clip(terms: Release, work: Work, silo_index: Array | int) -> PerBlock:
    """A silo's own clip, block by block."""
    return jax.tree.map(lambda limit: own_entry(limit, silo_index), clip_of(terms, work))


def own_multiplier(terms: Release, silo_index: Array | int) -> PerBlock:
    """A silo's own noise multiplier, block by block; a private release has one for each clip."""
    if terms.noise_multiplier is None:
        raise ValueError('Expected a noise multiplier for a private release; use channel="open" for none.')
    return jax.tree.map(lambda z: own_entry(z, silo_index), terms.noise_multiplier)


def batch_sizes(terms: Release, count: Any, silo_index: Array | int) -> tuple[Any, Any]:
    """The fixed divisor of a release at a silo, and the most records that a batch of it holds."""
    size = count if terms.batch_size is None else own_entry(terms.batch_size, silo_index)
    return size, count if terms.capacity is None else own_entry(terms.capacity, silo_index)


def pass_position(terms: Release, position: Any, size: Any, count: Any) -> Any:
    """Where in the order of a pass a batch begins; all passes have the same whole batches, and a part stays."""
    if terms.part is not None:
        return terms.part
    return position if terms.passes <= 1 else (position // size) % jnp.maximum(count // size, 1) * size


def in_blocks(value: PerBlock, name: str) -> Any:
    """The entry of a block; a statistic without blocks has one of them, without a name."""
    return value[name] if isinstance(value, Mapping) else value
