"""The simulator's mechanisms: fused float32 arithmetic and jax's random numbers, for experiments.

They take the path of a real silo's door (`tacit.silo.release`), compiled as one program. What they draw has the right
distribution up to rounding. They are not the door: a compiler may round a statistic one way for its norm and another
way for the sum, and float32 noise leaves traces of what it hides. No guarantee to a record rests on this file; a
conformance test holds it to the door for every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from tacit.algorithm import (
    SHUFFLED_CHANNELS,
    Broadcast,
    Memory,
    Message,
    PerBlock,
    Record,
    Release,
    Silo,
    Statistic,
    Work,
)
from tacit.privacy.strategy import ONE, Strategy, strategy_of
from tacit.silo.attribute import attribute_sum
from tacit.silo.gradients import by_block, clipped_sum, plain_sum, usable
from tacit.silo.release import (
    Mechanism,
    SiloView,
    Task,
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


def answer(
    silo: Silo,
    broadcast: Broadcast,
    memory: Memory,
    view: SiloView,
    *,
    key: Array,
    position: Array | int,
    buffers: Any = (),
    anonymity: AnonymityCounts | None = None,
) -> tuple[Message, Memory, Any]:
    """A simulated silo's answer to one round: the message, its memory, and what it remembers of its noise.

    ``buffers`` are what it remembers of the noise of earlier rounds; `no_buffers` makes those before the first. Through
    a shuffler a message is private only among those of the others.
    """
    if silo.release.channel in ("pairwise", "trusted"):
        raise ValueError(f'Expected noise on the sum for channel="{silo.release.channel}"; a silo cannot answer alone.')
    given: dict[str, Any] = {"buffers": buffers, "anonymity": anonymity}
    after = buffers

    def say(work: Work, step: tuple[Array, Array]) -> Statistic:
        nonlocal after
        keys, offset = step
        statistic, remembered = privatise(silo, work, view, keys=keys, position=position + offset, **given)
        if strategy_of(silo.release).weights:  # There is one step then.
            after = remembered
        return statistic

    steps = step_keys(key, silo.local_steps), jnp.arange(silo.local_steps) * silo.stride
    message, memory = respond(silo, broadcast, memory, steps=steps, say=say, repeat=_scanned)
    return message, memory, after


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
    buffers: Any = (),
    anonymity: AnonymityCounts | None = None,
) -> tuple[Statistic, Any]:
    """One simulated release: sample, query, clip, mean, noise; and what is remembered of the noise."""
    terms = silo.release
    if terms.channel in ("direct", "pairwise", "trusted"):
        multiplier = own_multiplier(terms, view.silo_index)
        noised = partial(_gaussian, key=keys[1], multiplier=multiplier, buffers=buffers)
        return _released(silo, work, view, keys[0], position, noised)[0]
    if terms.channel == "open":
        mechanism: Mechanism = _open
    else:
        crowd = _check_anonymity(terms, anonymity)
        key, weight = keys[1], crowd.weights[view.silo_index]
        mechanism = partial(_reports, key=key, weight=weight)
        if terms.channel == "shuffled-sum":
            mechanism = partial(_share, key=key, anonymity=crowd, weight=weight)
    return _released(silo, work, view, keys[0], position, mechanism)[0], buffers


def _released(
    silo: Silo, work: Work, view: SiloView, key: Array, position: Array | int, mechanism: Mechanism
) -> tuple[Any, Any]:
    """What a mechanism says about the batch of this key, and the divisor."""
    size, batch = batch_of(silo.release, view, key, position)
    bound, records = _bound(silo.release, work, view.silo_index), view.fetch(batch.rows)
    return release(Task(silo, work, records, batch.present, bound, size), mechanism), size


def _open(task: Task) -> Statistic:
    """The mean as it is: no clip, no noise, nothing private."""
    return _over(plain_sum(task.silo.query, task.work, task.records, task.present), task.size)


def _gaussian(task: Task, *, key: Array, multiplier: PerBlock, buffers: Any) -> tuple[Statistic, Any]:
    """Gaussian noise on the clipped mean, less what the strategy takes off of earlier noise."""
    deviation = standard_deviation(task.bound, multiplier, task.size, task.silo.release.sensitivity)
    known, mean = _clipped(task)
    if known is not None:
        # Noise first: what is rounded after it is post-processing.
        return jax.tree.map(jnp.add, known, add_gaussian(key, mean, deviation)), buffers
    return add_remembering(key, strategy_of(task.silo.release), buffers, mean, deviation)


def no_buffers(silo: Silo, statistic: Statistic) -> Any:
    """What a silo remembers of its noise before the first round, for statistics of this form."""
    strategy = strategy_of(silo.release)
    if not strategy.weights or silo.release.channel in ("open", *SHUFFLED_CHANNELS):
        return ()
    return jax.tree.map(lambda leaf: jnp.zeros((len(strategy.weights), *leaf.shape), leaf.dtype), statistic)


def add_remembering(
    key: Array, strategy: Strategy, buffers: Any, statistic: Statistic, deviation: PerBlock
) -> tuple[Statistic, Any]:
    """A statistic with the noise of its round, and the buffers after it: `tacit.silo.noise` in float32.

    Formal guarantee: over all rounds the noise is C^-1 z, where z has independent entries N(0, deviation^2). The
    deviation must be the same in all rounds.
    """
    if not strategy.weights:
        return add_gaussian(key, statistic, deviation), buffers
    if not jax.tree.leaves(buffers):
        raise ValueError("Expected what the silo remembers of its noise; say no_buffers(silo, statistic) if nothing.")
    weights = jnp.asarray(strategy.weights, jnp.float32) / ONE
    drawn = add_gaussian(key, jax.tree.map(jnp.zeros_like, statistic), deviation)
    noise = jax.tree.map(lambda z, h: z - jnp.tensordot(weights, h, 1), drawn, buffers)
    after = jax.tree.map(partial(_after, strategy), noise, buffers)
    return jax.tree.map(jnp.add, statistic, noise), after


def _after(strategy: Strategy, noise: Array, buffers: Array) -> Array:
    """The buffers after a round with this noise."""
    if not strategy.decays:
        return jnp.concatenate([noise[None], buffers[:-1]])
    decays = jnp.asarray(strategy.decays, jnp.float32) / ONE
    return decays.reshape(-1, *[1] * noise.ndim) * buffers + noise


def _clipped(task: Task) -> tuple[Statistic | None, Statistic]:
    """The clipped mean: what needs no noise (``None`` unless only the attribute is protected), and what needs it."""
    silo, work, records, present, bound, size = task
    if silo.release.protects != "sensitive-attribute":
        return None, _over(clipped_sum(silo.query, work, records, present, bound), size)
    groups = silo.release.groups or 1
    known, total = attribute_sum(silo.query, work, records, present, bound, groups=groups)
    return _over(known, size), _over(total, size)


def exact_statistic(
    silo: Silo, work: Work, view: SiloView, *, key: Array, position: Array | int
) -> tuple[Statistic, PerBlock | None]:
    """The clipped mean *before* noise, and the deviation of the noise to add (``None``: an open channel)."""
    known, hidden, deviation = parted_statistic(silo, work, view, key=key, position=position)
    return hidden if known is None else jax.tree.map(jnp.add, known, hidden), deviation


def parted_statistic(
    silo: Silo, work: Work, view: SiloView, *, key: Array, position: Array | int
) -> tuple[Statistic | None, Statistic, PerBlock | None]:
    """The statistic in two parts, see `_clipped`, and the deviation that the noise of the second must have."""
    if silo.release.channel == "open":
        return None, _released(silo, work, view, key, position, _open)[0], None
    (known, mean), size = _released(silo, work, view, key, position, _clipped)
    return known, mean, _deviation(silo.release, work, view, size)


class Sampled(NamedTuple):
    """One silo's batch before anything is computed: records, which are there, the divisor, the noise it must have."""

    records: Record
    present: Bool[Array, " slots"]
    size: Any
    deviation: PerBlock | None


def is_poolable(terms: Release, work: Work) -> bool:
    """Whether batches of silos can be summed as one, by shapes alone: all have one clip and one batch size."""
    if terms.batch_size is None or jnp.ndim(terms.batch_size) or terms.protects == "sensitive-attribute":
        return False
    return terms.channel == "open" or all(jnp.ndim(bound) == 0 for bound in jax.tree.leaves(clip_of(terms, work)))


def sampled(silo: Silo, work: Work, view: SiloView, *, key: Array, position: Array | int) -> Sampled:
    """The batch that `exact_statistic` would take, for `pooled_mean`."""
    size, batch = batch_of(silo.release, view, key, position)
    deviation = None if silo.release.channel == "open" else _deviation(silo.release, work, view, size)
    return Sampled(view.fetch(batch.rows), batch.present, size, deviation)


def pooled_mean(silo: Silo, work: Work, batches: Sampled, taken: Bool[Array, " silos"]) -> Statistic:
    """The sum of the clipped means of `exact_statistic` of the silos taken; ``batches`` has an axis of silos first."""
    records = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batches.records)
    present = (batches.present & taken[:, None]).reshape(-1)
    task = Task(silo, work, records, present, _bound(silo.release, work, 0), batches.size[0])
    return release(task, _open) if silo.release.channel == "open" else release(task, _clipped)[1]


def _bound(terms: Release, work: Work, silo_index: Array | int) -> PerBlock:
    """A silo's own clip; a release that is not private has none."""
    return None if terms.channel == "open" else own_clip(terms, work, silo_index)


def _deviation(terms: Release, work: Work, view: SiloView, size: Any) -> PerBlock:
    clips, multipliers = own_clip(terms, work, view.silo_index), own_multiplier(terms, view.silo_index)
    return standard_deviation(clips, multipliers, size, terms.sensitivity)


def _check_anonymity(terms: Release, anonymity: AnonymityCounts | None) -> AnonymityCounts:
    """A random batch size would let the crowd shrink, so it must be fixed."""
    what = "the shuffled sum" if terms.channel == "shuffled-sum" else "shuffled reports"
    if terms.sampling in ("poisson", "allocation", "wr"):
        raise ValueError(
            f'Expected sampling "full", "wor" or "one-pass" through {what}, got "{terms.sampling}": every '
            "record counts once and the crowd has a fixed size."
        )
    if anonymity is None:
        raise ValueError(f"Expected an anonymity set for {what}; alone, a message is not as private as it is priced.")
    return anonymity


def _reports(task: Task, *, key: Array, weight: Any) -> Statistic:
    """The mean of a silo's reports about its batch."""
    silo, work, records, present, _, size = task
    terms = silo.release
    own = {"noise_multiplier": terms.noise_multiplier, "randomiser": terms.randomiser, "weight": weight}
    return _over(reports_sum(silo.query, work, records, present, terms.clip(work), key=key, **own), size)


def _share(task: Task, *, key: Array, anonymity: AnonymityCounts, weight: Any) -> Statistic:
    """A share of a shuffled sum."""
    silo, work, records, present, _, size = task
    bounds, multipliers = silo.release.clip(work), silo.release.noise_multiplier

    def share(query: Any, own: Any, key: Array, multiplier: Any) -> Statistic:
        if jnp.ndim(own):
            raise ValueError("Expected one clip for all silos through the shuffled sum: they share one grid.")
        terms = {"size": size, "noise_multiplier": multiplier, "anonymity": anonymity, "weight": weight}
        return shuffled_share(query, work, records, present, jnp.asarray(own), keys=jax.random.split(key), **terms)

    if not isinstance(bounds, Mapping):
        return share(silo.query, bounds, key, multipliers)
    # Every block has a grid of its own; blocks of one batch are priced together.
    blocks = zip(sorted(bounds), jax.random.split(key, len(bounds)), strict=True)
    return {
        name: share(lambda w, r, n=name: silo.query(w, r)[n], bounds[name], own, multipliers[name])
        for name, own in blocks
    }


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


def standard_deviation(bound: PerBlock, noise_multiplier: PerBlock, batch_size: Any, sensitivity: float) -> PerBlock:
    """Noise multiplier x replace-one sensitivity of a mean (here up to ``SLACK``), for each block.

    ``sensitivity`` is that of a sum of clipped rows, in clips: `Release.sensitivity`.
    """

    def one(limit: Any, multiplier: Any) -> Array:
        return jnp.asarray(multiplier, jnp.float32) * (sensitivity * usable(limit) / batch_size)

    if isinstance(bound, Mapping) != isinstance(noise_multiplier, Mapping):
        # One number for several blocks would be ambiguous: the price joins the blocks that it is told of.
        raise ValueError("Expected a noise multiplier for each block exactly where there is a clip for each block.")
    if not isinstance(bound, Mapping):
        return one(bound, noise_multiplier)
    if set(noise_multiplier) != set(bound):
        names = sorted(bound), sorted(noise_multiplier)
        raise ValueError(f"Expected noise multipliers for the blocks {names[0]}, got {names[1]}.")
    return {name: one(bound[name], noise_multiplier[name]) for name in bound}


def pairwise_deviation(silo: Silo, work: Work, weight: Any, silos: Any, colluding: int) -> PerBlock:
    """The deviation of the noise in a mean of pairwise sums over ``silos`` silos.

    ``weight`` is what a record counts in the mean, at the silo of the plan whose records count most.
    """
    terms = silo.release
    bound = clip_of(terms, work)
    if any(jnp.ndim(limit) for limit in jax.tree.leaves(bound)):
        raise ValueError("Expected one clip for all silos through the pairwise channel: they add up in one unit.")
    if terms.noise_multiplier is None:
        raise ValueError('Expected a noise multiplier for a private release; use channel="open" for none.')
    # One noise serves all silos: that of the strictest.
    largest = jax.tree.map(lambda z: jnp.max(jnp.asarray(z, jnp.float32)), terms.noise_multiplier)
    size = 1.0 / (weight * jnp.sqrt(silos / (silos - colluding)))
    return standard_deviation(bound, largest, size, terms.sensitivity)


def add_gaussian(key: Array, statistic: Statistic, deviation: PerBlock) -> Statistic:
    """Add independent N(0, deviation^2) to every coordinate, with the deviation of its block."""
    deviations = by_block(deviation, statistic)
    if isinstance(deviations, Mapping):
        keys = dict(zip(sorted(statistic), jax.random.split(key, len(statistic)), strict=True))
        return {name: add_gaussian(keys[name], statistic[name], deviations[name]) for name in statistic}
    # One draw for all leaves: every call of the generator is compiled code of its own.
    flat, restore = ravel_pytree(statistic)
    return restore(flat + deviations * jax.random.normal(key, flat.shape, flat.dtype))
