"""One release path: the only place where records, clip and noise meet, in every runtime.

    broadcast -> start -> local_steps x [ batch -> query -> clip -> sum -> noise -> absorb ] -> report -> message
                                          \\__________ release ____________/
                 \\_______________________________ respond _________________________________/

What differs between runtimes is injected. A *mechanism* takes the records of a batch to a statistic that may be said:

    `tacit.silo.simulated`   fused float32 and Gaussian noise, for the compiled program and the plain loop. Fast, of the
                             right distribution up to rounding, and not hardened: no guarantee rests on it.
    `tacit.silo.door`        stored integers, checked and added exactly, and exact noise, for a real silo and for the
                             audit. Every guarantee to a record rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from tacit.algorithm import Broadcast, Memory, Message, PerBlock, Record, Release, Silo, Statistic, Work


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


class Mechanism(Protocol):
    """From the records of a batch to a statistic that may be said: query, clip, sum and noise."""

    def __call__(self, silo: Silo, work: Work, records: Record, present: Any, bound: PerBlock, size: Any) -> Any:
        """``present`` marks the records of the batch, ``bound`` is the clip, ``size`` the fixed divisor."""
        ...


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
    ``steps``, of the broadcast and of the memory. No record is in reach of anything here but ``say``.
    """
    work = silo.start(broadcast, memory)
    work = repeat(lambda work, step: silo.absorb(work, say(work, step)), work, steps)
    return silo.report(work, memory)


def one_by_one(act: Callable[[Work, Any], Work], work: Work, steps: Sequence[Any]) -> Work:
    """Repeat for each step, in a plain loop."""
    for step in steps:
        work = act(work, step)
    return work


def release(
    silo: Silo, work: Work, records: Record, present: Any, *, bound: PerBlock, size: Any, mechanism: Mechanism
) -> Statistic:
    """One release: what a mechanism says about the records of one batch.

    Formal guarantee: the mechanism's own. It is handed the fields that the query may read, and a clip that is computed
    from public values alone.
    """
    return mechanism(silo, work, handed(silo, records), present, bound, size)


def handed(silo: Silo, records: Record) -> Record:
    """The fields of the records that the query may read."""
    return records if silo.reads is None else {name: records[name] for name in silo.reads}


def clip_of(terms: Release, work: Work) -> PerBlock:
    """The clip of a release for this work, block by block.

    A running sum mixes all rounds: a clip that followed the broadcasts would let noise and sensitivity part.
    """
    return terms.clip(None if terms.mechanism == "cumulative" else work)


def own_entry(value: Any, silo_index: Array | int) -> Any:
    """A silo's own entry of a term that may differ by silo."""
    value = jnp.asarray(value)
    return value[silo_index] if value.ndim else value


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
    """Where in the order of a pass a batch begins.

    With several passes it is the same whole batches in each, so that a record is in at most so many of them.
    """
    return position if terms.passes <= 1 else (position // size) % jnp.maximum(count // size, 1) * size


def in_blocks(value: PerBlock, name: str) -> Any:
    """The entry of a block; a statistic without blocks has one of them, without a name."""
    return value[name] if isinstance(value, Mapping) else value
