"""The simulator's mechanisms: fused float32 arithmetic and jax's random numbers, for experiments.

The same path as at a real silo's door (`tacit.silo.release`), compiled as one program with everything around it. What
it draws has the right distribution up to rounding. It is not the door: a compiler may round a record's statistic once
for its norm and otherwise for the sum, and float32 noise leaves traces of what it was added to. No guarantee to a
record rests on this file; a conformance test holds it to the door for every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from tacit.algorithm import Broadcast, Memory, Message, PerBlock, Record, Release, Silo, Statistic, Work
from tacit.silo.attribute import attribute_sum
from tacit.silo.gradients import clipped_sum, plain_sum
from tacit.silo.noise import add_gaussian, standard_deviation
from tacit.silo.release import (
    Mechanism,
    SiloView,
    batch_sizes,
    clip_of,
    own_clip,
    own_multiplier,
    pass_position,
    release,
    respond,
)
from tacit.silo.reports import reports_sum
from tacit.silo.sampling import Batch, draw, slots_needed
from tacit.silo.shuffled import AnonymityCounts, shuffled_share


class Previous(NamedTuple):
    """A silo's previous answer to the same kind of round: its key, and whether there was one."""

    key: Array
    exists: Array | bool


def answer(
    silo: Silo,
    broadcast: Broadcast,
    memory: Memory,
    view: SiloView,
    *,
    key: Array,
    position: Array | int,
    previous: Previous | None = None,
    anonymity: AnonymityCounts | None = None,
) -> tuple[Message, Memory]:
    """A simulated silo's answer to one round.

    Through the trusted channel nothing is private before the server adds noise, so a silo that is asked to answer by
    itself refuses. Through the shuffled sum the message is a share: private only in the sum. Through shuffled
    reports it stands for the silo's reports, of which it is the mean.
    """
    if silo.release.channel == "trusted":
        raise ValueError('Expected the server to add the noise for channel="trusted"; a silo cannot answer alone.')

    def say(work: Work, step: tuple[Array, Array]) -> Statistic:
        keys, offset = step
        return privatise(
            silo, work, view, keys=keys, position=position + offset, previous=previous, anonymity=anonymity
        )

    steps = step_keys(key, silo.local_steps), jnp.arange(silo.local_steps) * silo.stride
    return respond(silo, broadcast, memory, steps=steps, say=say, repeat=_scanned)


def _scanned(act: Callable[[Work, Any], Work], work: Work, steps: tuple[Array, Array]) -> Work:
    if len(steps[0]) == 1:
        return act(work, (steps[0][0], steps[1][0]))
    return jax.lax.scan(lambda work, step: (act(work, step), None), work, steps)[0]


def step_keys(key: Array, local_steps: int) -> Array:
    """For each local step, a key for the batch and a key for the noise."""
    return jax.random.split(key, (local_steps, 2))


def privatise(
    silo: Silo,
    work: Work,
    view: SiloView,
    *,
    keys: Array,
    position: Array | int,
    previous: Previous | None = None,
    anonymity: AnonymityCounts | None = None,
) -> Statistic:
    """One simulated release: sample, query, clip, mean, noise."""
    terms = silo.release
    size, batch = batch_of(terms, view, keys[0], position)
    if terms.channel == "open":
        mechanism: Mechanism = open_mean
    elif terms.channel == "shuffled-sum":
        anonymity = _check_crowd(terms, anonymity, "the shuffled sum")
        mechanism = _share(keys[1], anonymity, anonymity.weights[view.silo_index])
    elif terms.channel == "shuffled-reports":
        anonymity = _check_crowd(terms, anonymity, "shuffled reports")
        mechanism = _reports(keys[1], anonymity.weights[view.silo_index])
    else:
        mechanism = _gaussian(keys[1], own_multiplier(terms, view.silo_index), previous)
    bound = _bound(terms, work, view.silo_index)
    return release(silo, work, view.fetch(batch.rows), batch.present, bound=bound, size=size, mechanism=mechanism)


def open_mean(silo: Silo, work: Work, records: Record, present: Any, bound: Any, size: Any) -> Statistic:
    """The mean as it is: no clip, no noise, nothing private."""
    return _over(plain_sum(silo.query, work, records, present), size)


def _gaussian(key: Array, multiplier: PerBlock, previous: Previous | None) -> Mechanism:
    """Fresh Gaussian noise on the clipped mean, or on the running sum of all of them."""

    def mechanism(silo: Silo, work: Work, records: Record, present: Any, bound: PerBlock, size: Any) -> Statistic:
        deviation = standard_deviation(bound, multiplier, size)
        known, mean = _clipped(silo, work, records, present, bound, size)
        if known is not None:
            # Noise first: what is rounded after it is post-processing.
            return jax.tree.map(jnp.add, known, add_gaussian(key, mean, deviation))
        if silo.release.mechanism != "cumulative":
            return add_gaussian(key, mean, deviation)
        if previous is None:
            raise ValueError(
                "Expected the silo's previous answer for a cumulative release; say Previous(key, False) if none."
            )
        earlier = Previous(step_keys(previous.key, 1)[0, 1], previous.exists)
        return add_cumulative(key, earlier, mean, deviation)

    return mechanism


def add_cumulative(key: Array, previous: Previous, increment: Statistic, deviation: PerBlock) -> Statistic:
    """An increment of a running sum that has fresh noise in every round: add this round's, take off the last one's.

    Formal guarantee: the sum of all increments so far is the sum of the statistics plus one N(0, deviation^2), and
    is independent of earlier noise. The deviation must be the same in all rounds.
    """
    taken_off = jax.tree.map(lambda s: -s * jnp.asarray(previous.exists, jnp.float32), deviation)
    return add_gaussian(previous.key, add_gaussian(key, increment, deviation), taken_off)


def _clipped(
    silo: Silo, work: Work, records: Record, present: Any, bound: PerBlock, size: Any
) -> tuple[Statistic | None, Statistic]:
    """The clipped mean in two parts.

    The first is ``None`` but where the sensitive attribute alone is protected: then it is what does not depend on it,
    and needs no noise.
    """
    if silo.release.protects != "sensitive-attribute":
        return None, _over(clipped_sum(silo.query, work, records, present, bound), size)
    groups = silo.release.groups or 1
    known, total = attribute_sum(silo.query, work, records, present, bound, groups=groups)
    return _over(known, size), _over(total, size)


def exact_statistic(
    silo: Silo, work: Work, view: SiloView, *, key: Array, position: Array | int
) -> tuple[Statistic, PerBlock | None]:
    """The clipped mean of a release *before* noise, and the standard deviation that its noise must have.

    Not private by itself: whoever calls this must add the noise before anything is said. ``None`` in place of a
    deviation marks a release through the open channel, which is not private.
    """
    known, hidden, deviation = parted_statistic(silo, work, view, key=key, position=position)
    return hidden if known is None else jax.tree.map(jnp.add, known, hidden), deviation


def parted_statistic(
    silo: Silo, work: Work, view: SiloView, *, key: Array, position: Array | int
) -> tuple[Statistic | None, Statistic, PerBlock | None]:
    """The statistic in two parts, see `_clipped`, and the deviation that the noise of the second must have."""
    terms = silo.release
    size, batch = batch_of(terms, view, key, position)
    own = {"bound": _bound(terms, work, view.silo_index), "size": size}
    records = view.fetch(batch.rows)
    if terms.channel == "open":
        return None, release(silo, work, records, batch.present, **own, mechanism=open_mean), None
    known, mean = release(silo, work, records, batch.present, **own, mechanism=_clipped)
    return known, mean, standard_deviation(own["bound"], own_multiplier(terms, view.silo_index), size)


class Sampled(NamedTuple):
    """One silo's batch before anything is computed: records, which are there, the divisor, the noise it must have."""

    records: Record
    present: Bool[Array, " slots"]
    size: Any
    deviation: PerBlock | None


def is_poolable(terms: Release, work: Work) -> bool:
    """Whether batches of different silos can be summed as one: the same clip and the same batch size at all of them.

    Decided by shapes alone; where the sensitive attribute alone is protected, silos keep to themselves.
    """
    if terms.batch_size is None or jnp.ndim(terms.batch_size) or terms.protects == "sensitive-attribute":
        return False
    return terms.channel == "open" or all(jnp.ndim(bound) == 0 for bound in jax.tree.leaves(clip_of(terms, work)))


def sampled(silo: Silo, work: Work, view: SiloView, *, key: Array, position: Array | int) -> Sampled:
    """The batch that `exact_statistic` would take, for `pooled_mean`."""
    terms = silo.release
    size, batch = batch_of(terms, view, key, position)
    deviation = None
    if terms.channel != "open":
        deviation = standard_deviation(
            own_clip(terms, work, view.silo_index), own_multiplier(terms, view.silo_index), size
        )
    return Sampled(view.fetch(batch.rows), batch.present, size, deviation)


def pooled_mean(silo: Silo, work: Work, batches: Sampled, taken: Bool[Array, " silos"]) -> Statistic:
    """The sum over the silos that are taken of their clipped means, as `exact_statistic` has them, in one sum.

    Each record is clipped as at its own silo. It says what only those know who may see all silos' records: the
    simulator, which adds the noise of all of them to it. ``batches`` has a leading axis of silos, see `is_poolable`.
    """
    records = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batches.records)
    present = (batches.present & taken[:, None]).reshape(-1)
    own = {"bound": _bound(silo.release, work, 0), "size": batches.size[0]}
    if silo.release.channel == "open":
        return release(silo, work, records, present, **own, mechanism=open_mean)
    return release(silo, work, records, present, **own, mechanism=_clipped)[1]


def _bound(terms: Release, work: Work, silo_index: Array | int) -> PerBlock:
    """A silo's own clip; a release that is not private has none."""
    return None if terms.channel == "open" else own_clip(terms, work, silo_index)


def _check_crowd(terms: Release, anonymity: AnonymityCounts | None, what: str) -> AnonymityCounts:
    """A random batch size would let the crowd shrink, so it must be fixed."""
    if terms.sampling in ("poisson", "wr"):
        raise ValueError(
            f'Expected sampling "full", "wor" or "one-pass" through {what}, got "{terms.sampling}": every '
            "record counts once and the crowd has a fixed size."
        )
    if anonymity is None:
        raise ValueError(f"Expected an anonymity set for {what}; alone, a message is not as private as it is priced.")
    return anonymity


def _reports(key: Array, weight: Any) -> Mechanism:
    """The mean of a silo's reports about its batch."""

    def mechanism(silo: Silo, work: Work, records: Record, present: Any, bound: PerBlock, size: Any) -> Statistic:
        terms = silo.release
        own = {"noise_multiplier": terms.noise_multiplier, "randomiser": terms.randomiser, "weight": weight}
        return _over(reports_sum(silo.query, work, records, present, terms.clip(work), key=key, **own), size)

    return mechanism


def _share(key: Array, anonymity: AnonymityCounts, weight: Any) -> Mechanism:
    """A share of a shuffled sum."""

    def mechanism(silo: Silo, work: Work, records: Record, present: Any, bound: PerBlock, size: Any) -> Statistic:
        bounds, multipliers = silo.release.clip(work), silo.release.noise_multiplier

        def share(query: Any, own: Any, key: Array, multiplier: Any) -> Statistic:
            if jnp.ndim(own):
                raise ValueError("Expected one clip for all silos through the shuffled sum: they share one grid.")
            terms = {
                "keys": jax.random.split(key),
                "size": size,
                "noise_multiplier": multiplier,
                "anonymity": anonymity,
            }
            terms["weight"] = weight
            return shuffled_share(query, work, records, present, jnp.asarray(own), **terms)

        if not isinstance(bounds, Mapping):
            return share(silo.query, bounds, key, multipliers)
        # Every block has a grid of its own; blocks of one batch are priced together.
        blocks = zip(sorted(bounds), jax.random.split(key, len(bounds)), strict=True)
        return {
            name: share(lambda w, r, n=name: silo.query(w, r)[n], bounds[name], own, multipliers[name])
            for name, own in blocks
        }

    return mechanism


def batch_of(terms: Release, view: SiloView, key: Array, position: Array | int) -> tuple[Any, Batch]:
    """The fixed divisor of a release, and the batch of this round."""
    size, capacity = batch_sizes(terms, view.count, view.silo_index)
    batch = draw(
        key,
        terms.sampling,
        count=view.count,
        batch_size=size,
        capacity=capacity,
        slots=slots_needed(terms.sampling, terms.batch_size, terms.capacity, view.padded),
        padded=view.padded,
        order=view.order,
        position=pass_position(terms, position, size, view.count),
    )
    return size, batch


def _over(total: Statistic, size: Any) -> Statistic:
    return jax.tree.map(lambda leaf: leaf / size, total)
