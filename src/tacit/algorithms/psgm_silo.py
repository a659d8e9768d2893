"""The silo halves of CE-PSGM: a STORM estimate from the batch of a round, and SARAH steps at one silo in turn.

Every step that reads records is clipped and noised, so the model that a silo reports is post-processing.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Memory, Message, Number, Params, PerBlock, Record, Silo, Statistic, Terms, Work
from tacit.algorithms.differences import difference_clip, difference_silo
from tacit.algorithms.output import keep_at
from tacit.objectives import Problem, gradients


class LocalWork(NamedTuple):
    """Where the silo in turn is: the point, the one before it, its estimate of the gradient there, and what it kept."""

    new: Params
    old: Params
    estimate: Params
    kept: Params = ()
    steps: Any = ()


class Ends(NamedTuple):
    """What the silo in turn says where an iterate of its own may be the output: the end point and the kept one."""

    new: Params
    kept: Params


def estimate_silo(problem: Problem, terms: Terms, slope: Number, noise: Number, momentum: Number, by: Any) -> Silo:
    """The silo half of a round after the first: differences, and fresh gradients where momentum weighs them."""
    if is_none(momentum):
        return difference_silo(problem, terms, slope, noise, randomiser=by)
    distance_clip = difference_clip(terms.clip_norm, slope)

    def both(work: Work, record: Record) -> Statistic:
        fresh, stale = gradients(problem.objective, (work.new, work.old), record)
        return {"difference": jax.tree.map(jnp.subtract, fresh, stale), "gradient": fresh}

    def clips(work: Work) -> PerBlock:
        return {"difference": distance_clip(work), "gradient": terms.clip_norm}

    return Silo(both, terms.release(clip=clips, noise={"difference": noise, "gradient": 1.0}, randomiser=by))


def local_terms(terms: Terms, batch_size: Number | None) -> Terms:
    """The terms of local steps: noised by the silo itself whatever the channel, in batches without replacement."""
    size = terms.batch_size if batch_size is None else batch_size
    own = terms.drawn(size, "full" if size is None else "wor")
    return replace(own, channel="open" if terms.channel == "open" else "direct")


def local_silo(problem: Problem, terms: Terms, step: Any, releases: int, slope: Any, noise: Any, keep: Any) -> Silo:
    """The silo half of the local phase: the first step is free, each other one releases a difference.

    ``keep`` is the number of the step whose point is said besides the last one's; none is without it.
    """

    def start(state: Any, memory: Memory) -> LocalWork:
        new = problem.descend(state.params, state.estimate, step)
        kept = () if keep is None else (new, jnp.ones((), jnp.int32))
        return LocalWork(new, state.params, state.estimate, *kept)

    def absorb(work: LocalWork, change: Statistic) -> LocalWork:
        estimate = jax.tree.map(jnp.add, work.estimate, change)
        new = problem.descend(work.new, estimate, step)
        if keep is None:
            return LocalWork(new, work.new, estimate)
        return LocalWork(new, work.new, estimate, keep_at(work.steps + 1, keep, new, work.kept), work.steps + 1)

    def report(work: LocalWork, memory: Memory) -> tuple[Message, Memory]:
        return (work.new if keep is None else Ends(work.new, work.kept)), memory

    once = difference_silo(problem, terms, slope, noise)
    return Silo(once.query, once.release, releases, start, absorb, report)


def is_none(momentum: Number) -> bool:
    """Whether it is known in advance that fresh gradients have no weight."""
    return isinstance(momentum, int | float) and momentum == 0
