"""A silo's answer to one round: the only place where records, clip and noise meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from tacit.algorithm import Broadcast, Memory, Message, PerBlock, Record, Release, Silo, Statistic, Work
from tacit.silo.attribute import attribute_sum
from tacit.silo.gradients import clipped_sum, plain_sum
from tacit.silo.noise import add_gaussian, standard_deviation
from tacit.silo.reports import reports_sum
from tacit.silo.sampling import Batch, draw, slots_needed
from tacit.silo.shuffled import Crowd, shuffled_share


@dataclass(frozen=True)
class Desk:
    """What one silo brings to an answer.

    ``fetch`` hands out rows of its records (``None``: all), which are finite (``enrol`` checks) and padded to
    ``padded`` rows; the first ``count`` are real. ``order`` is the silo's random order for one-pass sampling. ``place``
    picks the silo's entry from terms that differ by silo.
    """

    fetch: Callable[[Int[Array, " slots"] | None], Record]
    padded: int
    count: Int[Array, ""] | int
    order: Int[Array, " padded"] | None
    place: Int[Array, ""] | int


class Before(NamedTuple):
    """A silo's previous answer to the same kind of round: its key, and whether there was one."""

    key: Array
    exists: Array | bool


def desk_of(records: Record, count: Array | int, order: Array | None, place: Array | int) -> Desk:
    """The desk of a silo whose records lie in one pytree of arrays."""

    def fetch(rows: Array | None) -> Record:
        return records if rows is None else jax.tree.map(lambda leaf: leaf[rows], records)

    return Desk(fetch, int(jax.tree.leaves(records)[0].shape[0]), count, order, place)


def answer(
    silo: Silo,
    broadcast: Broadcast,
    memory: Memory,
    desk: Desk,
    *,
    key: Array,
    position: Array | int,
    before: Before | None = None,
    crowd: Crowd | None = None,
) -> tuple[Message, Memory]:
    """Start, then local steps of release and absorb, then report.

    Formal guarantee: the message is post-processing of ``local_steps`` releases, each of which is the Gaussian
    mechanism with the release's noise multiplier on a statistic of replace-one sensitivity computed from its clip
    and batch size; each is priced by its sampling scheme. Of a cumulative release it is the running sum over the
    silo's answers that is such a statistic, whichever rounds the silo missed. Through the trusted channel nothing
    is private before the server adds noise, so a silo that is asked to answer by itself refuses. Through the shuffled
    sum the message is a share: private only in the sum over its ``crowd``. Through shuffled reports it stands for the
    silo's reports, of which it is the mean: each is as private as its local randomiser makes it, and the crowd does the
    rest.
    """
    if silo.release.channel == "trusted":
        raise ValueError('Expected the server to add the noise for channel="trusted"; a silo cannot answer alone.')
    work = silo.start(broadcast, memory)
    keys = step_keys(key, silo.local_steps)

    def step(work: Work, now: tuple[Array, Array]) -> tuple[Work, None]:
        own_keys, offset = now
        released = privatise(silo, work, desk, keys=own_keys, position=position + offset, before=before, crowd=crowd)
        return silo.absorb(work, released), None

    offsets = jnp.arange(silo.local_steps) * silo.stride
    if silo.local_steps == 1:
        work, _ = step(work, (keys[0], offsets[0]))
    else:
        work, _ = jax.lax.scan(step, work, (keys, offsets))
    return silo.report(work, memory)


def step_keys(key: Array, local_steps: int) -> Array:
    """For each local step, a key for the batch and a key for the noise."""
    return jax.random.split(key, (local_steps, 2))


def privatise(
    silo: Silo,
    work: Work,
    desk: Desk,
    *,
    keys: Array,
    position: Array | int,
    before: Before | None = None,
    crowd: Crowd | None = None,
) -> Statistic:
    """One release: sample, query, clip, mean, noise."""
    key_batch, key_noise = keys[0], keys[1]
    if silo.release.channel == "shuffled-sum":
        return _share(silo, work, desk, keys, position, crowd)
    if silo.release.channel == "shuffled-reports":
        return _reports(silo, work, desk, keys, position, crowd)
    known, mean, deviation = parted_statistic(silo, work, desk, key=key_batch, position=position)
    if deviation is None:
        return mean
    if known is not None:
        # Noise first: what is rounded after it is post-processing.
        return jax.tree.map(jnp.add, known, add_gaussian(key_noise, mean, deviation))
    if silo.release.mechanism != "cumulative":
        return add_gaussian(key_noise, mean, deviation)
    if before is None:
        raise ValueError(
            "Expected the silo's previous answer for a cumulative release; say Before(key, False) if none."
        )
    earlier = Before(step_keys(before.key, 1)[0, 1], before.exists)
    return add_cumulative(key_noise, earlier, mean, deviation)


def add_cumulative(key: Array, before: Before, increment: Statistic, deviation: PerBlock) -> Statistic:
    """An increment of a running sum that has fresh noise in every round: add this round's, take off the last one's.

    Formal guarantee: the sum of all increments so far is the sum of the statistics plus one N(0, deviation^2), and
    is independent of earlier noise. The deviation must be the same in all rounds.
    """
    taken_off = jax.tree.map(lambda s: -s * jnp.asarray(before.exists, jnp.float32), deviation)
    return add_gaussian(before.key, add_gaussian(key, increment, deviation), taken_off)


def exact_statistic(
    silo: Silo, work: Work, desk: Desk, *, key: Array, position: Array | int
) -> tuple[Statistic, PerBlock | None]:
    """The clipped mean of a release *before* noise, and the standard deviation that its noise must have.

    Not private by itself: whoever calls this must add the noise before anything is said. ``None`` in place of a
    deviation marks a release through the open channel, which is not private.
    """
    known, hidden, deviation = parted_statistic(silo, work, desk, key=key, position=position)
    return hidden if known is None else jax.tree.map(jnp.add, known, hidden), deviation


def parted_statistic(
    silo: Silo, work: Work, desk: Desk, *, key: Array, position: Array | int
) -> tuple[Statistic | None, Statistic, PerBlock | None]:
    """The statistic in two parts, and the deviation that the noise of the second must have.

    The first part is ``None`` but where the sensitive attribute alone is protected: then it is what does not depend on
    it, and needs no noise.
    """
    release = silo.release
    size, batch = batch_of(release, desk, key, position)
    records = _handed(silo, desk.fetch(batch.rows))
    if release.channel == "open":
        return None, _over(plain_sum(silo.query, work, records, batch.present), size), None
    bound, deviation = _terms(release, work, desk.place, size)
    known = None
    if release.protects == "sensitive-attribute":
        groups = release.groups or 1
        known, total = attribute_sum(silo.query, work, records, batch.present, bound, groups=groups)
        known = _over(known, size)
    else:
        total = clipped_sum(silo.query, work, records, batch.present, bound)
    return known, _over(total, size), deviation


class Sampled(NamedTuple):
    """One silo's batch before anything is computed: records, which are there, the divisor, the noise it must have."""

    records: Record
    present: Bool[Array, " slots"]
    size: Any
    deviation: PerBlock | None


def is_poolable(release: Release, work: Work) -> bool:
    """Whether batches of different silos can be summed as one: the same clip and the same batch size at all of them.

    Decided by shapes alone; where the sensitive attribute alone is protected, silos keep to themselves.
    """
    if release.batch_size is None or jnp.ndim(release.batch_size) or release.protects == "sensitive-attribute":
        return False
    return release.channel == "open" or all(jnp.ndim(bound) == 0 for bound in jax.tree.leaves(_bound(release, work)))


def sampled(silo: Silo, work: Work, desk: Desk, *, key: Array, position: Array | int) -> Sampled:
    """The batch that `exact_statistic` would take, for `pooled_mean`."""
    release = silo.release
    size, batch = batch_of(release, desk, key, position)
    records = _handed(silo, desk.fetch(batch.rows))
    deviation = None if release.channel == "open" else _terms(release, work, desk.place, size)[1]
    return Sampled(records, batch.present, size, deviation)


def pooled_mean(silo: Silo, work: Work, batches: Sampled, taken: Bool[Array, " silos"]) -> Statistic:
    """The sum over the silos that are taken of their clipped means, as `exact_statistic` has them, in one sum.

    Each record is clipped as at its own silo. It says what only those know who may see all silos' records: the
    simulator, which adds the noise of all of them to it. ``batches`` has a leading axis of silos, see `is_poolable`.
    """
    records = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batches.records)
    present = (batches.present & taken[:, None]).reshape(-1)
    if silo.release.channel == "open":
        total = plain_sum(silo.query, work, records, present)
    else:
        total = clipped_sum(silo.query, work, records, present, _bound(silo.release, work))
    return _over(total, batches.size[0])


def _handed(silo: Silo, records: Record) -> Record:
    """The fields of the records that the query may read."""
    return records if silo.reads is None else {name: records[name] for name in silo.reads}


def _check_crowd(release: Release, crowd: Crowd | None, what: str) -> Crowd:
    """A random batch size would let the crowd shrink, so it must be fixed."""
    if release.sampling in ("poisson", "wr"):
        raise ValueError(
            f'Expected sampling "full", "wor" or "one-pass" through {what}, got "{release.sampling}": every '
            "record counts once and the crowd has a fixed size."
        )
    if crowd is None:
        raise ValueError(f"Expected a crowd for {what}; alone, a message does not have the privacy that is priced.")
    return crowd


def _reports(silo: Silo, work: Work, desk: Desk, keys: Array, position: Array | int, crowd: Crowd | None) -> Statistic:
    """The mean of a silo's reports about its batch."""
    release = silo.release
    _check_crowd(release, crowd, "shuffled reports")
    size, batch = batch_of(release, desk, keys[0], position)
    total = reports_sum(
        silo.query,
        work,
        _handed(silo, desk.fetch(batch.rows)),
        batch.present,
        release.clip(work),
        key=keys[1],
        noise_multiplier=release.noise_multiplier,
        randomiser=release.randomiser,
    )
    return _over(total, size)


def _share(silo: Silo, work: Work, desk: Desk, keys: Array, position: Array | int, crowd: Crowd | None) -> Statistic:
    """A share of a shuffled sum."""
    release = silo.release
    crowd = _check_crowd(release, crowd, "the shuffled sum")
    size, batch = batch_of(release, desk, keys[0], position)
    records, bounds = desk.fetch(batch.rows), release.clip(work)

    def share(query: Any, bound: Any, key: Array, multiplier: Any) -> Statistic:
        if jnp.ndim(bound):
            raise ValueError("Expected one clip for all silos through the shuffled sum: they share one grid.")
        own = {"keys": jax.random.split(key), "size": size, "noise_multiplier": multiplier, "crowd": crowd}
        return shuffled_share(query, work, records, batch.present, jnp.asarray(bound), **own)

    if not isinstance(bounds, Mapping):
        return share(silo.query, bounds, keys[1], release.noise_multiplier)
    # Every block has a grid of its own; blocks of one batch are priced together.
    blocks = zip(sorted(bounds), jax.random.split(keys[1], len(bounds)), strict=True)
    return {
        name: share(lambda w, r, n=name: silo.query(w, r)[n], bounds[name], key, release.noise_multiplier[name])
        for name, key in blocks
    }


def batch_of(release: Release, desk: Desk, key: Array, position: Array | int) -> tuple[Any, Batch]:
    """The fixed divisor of a release, and the batch of this round."""
    size = desk.count if release.batch_size is None else _own(release.batch_size, desk.place)
    capacity = desk.count if release.capacity is None else _own(release.capacity, desk.place)
    if release.passes > 1:
        # The same whole batches in every pass, so that a record is in at most so many of them.
        position = (position // size) % jnp.maximum(desk.count // size, 1) * size
    batch = draw(
        key,
        release.sampling,
        count=desk.count,
        batch_size=size,
        capacity=capacity,
        slots=slots_needed(release.sampling, release.batch_size, release.capacity, desk.padded),
        padded=desk.padded,
        order=desk.order,
        position=position,
    )
    return size, batch


def _own(value: Any, place: Array | int) -> Array:
    """A silo's own entry of a term that may differ by silo."""
    value = jnp.asarray(value)
    return value[place] if value.ndim else value


def _terms(release: Release, work: Work, place: Array | int, size: Any) -> tuple[PerBlock, PerBlock]:
    """A silo's own clip, and the deviation that its noise must have."""
    if release.noise_multiplier is None:
        raise ValueError('Expected a noise multiplier for a private release; use channel="open" for none.')
    bound = _own_terms(release, work, place)
    multiplier = jax.tree.map(lambda z: _own(z, place), release.noise_multiplier)
    return bound, standard_deviation(bound, multiplier, size)


def _own_terms(release: Release, work: Work, place: Array | int) -> PerBlock:
    return jax.tree.map(lambda limit: _own(limit, place), _bound(release, work))


def _bound(release: Release, work: Work) -> PerBlock:
    # A running sum mixes all rounds: a clip that followed the broadcasts would let noise and sensitivity part.
    return release.clip(None if release.mechanism == "cumulative" else work)


def _over(total: Statistic, size: Any) -> Statistic:
    return jax.tree.map(lambda leaf: leaf / size, total)
