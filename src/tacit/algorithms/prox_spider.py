"""FedProx-SPIDER: noisy recursive gradients with noise that shrinks with the step.

Lowy, Ghafelebashi and Razaviyayn, "Private Non-Convex Federated Learning Without a Trusted Server", Algorithm 3
(arXiv:2203.06735); through the shuffled-sum channel it is their Algorithm 10, and ``alternate_spider`` is their
Algorithm 11. In round r = 0, 1, ...:

    every q-th round      h_r = mean_i [(1/K1) sum over the batch of clip_C(grad f(w_r; record)) + noise]
    other rounds          D_r = min(2C, C_s ||w_r - w_{r-1}||)
                          h_r = h_{r-1} + mean_i [(1/K2) sum of clip_{D_r}(grad f(w_r; .) - grad f(w_{r-1}; .)) + noise]
    server                w_{r+1} = prox_{eta h}(w_r - eta h_r)
    output                w_R, or the iterate whose number was drawn in advance

    paper             here
    -----             ----
    R + 1             num_rounds (every release is a round)
    q                 phase_length
    K1, K2            batch_size, difference_batch_size
    L                 clip_norm
    beta              difference_slope
    sigma_1           noise_multiplier x 2C/K1
    min(sigma_2 ||dw||, hat sigma_2)    noise_multiplier x difference_noise x 2 D_r/K2

Every message is the Gaussian mechanism on a clipped mean, and the bound D_r comes from the broadcast alone, so all of
them together are differentially private for each record whatever the server broadcasts. The paper bounds differences
by smoothness; here the silo clips them, so that beta need not be known and the server need not be honest. Both kinds
of release share one budget, of which the paper gives each the whole.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Algorithm, Channel, Message, Number, Params, Release, Round, Sampling, Server, Silo, Work
from tacit.geometry.proximal import tree_norm
from tacit.objectives import Problem, gradient_at, gradient_difference


class TwoPoints(NamedTuple):
    """What the server says before a difference: the point of this round and the one to compare it with."""

    new: Params
    old: Params


class SpiderState(NamedTuple):
    """The iterate, the one before it, the running estimate of the gradient, the picked iterate, and the round."""

    params: Params
    before: Params
    estimate: Params
    picked: Params
    number: Array


def prox_spider(
    problem: Problem,
    *,
    step_size: Number,
    num_rounds: int,
    clip_norm: Number,
    noise_multiplier: Number,
    batch_size: Number | None,
    sampling: Sampling,
    phase_length: int,
    difference_slope: Number | None,
    capacity: Number | None = None,
    channel: Channel = "direct",
    difference_noise: Number = 1.0,
    difference_sampling: Sampling | None = None,
    difference_batch_size: Number | None = None,
    difference_capacity: Number | None = None,
    pick: int | None = None,
) -> Algorithm:
    """FedProx-SPIDER; ``phase_length=1`` is noisy proximal minibatch SGD.

    Differences are clipped to ``min(2 clip_norm, difference_slope x distance)`` (``None``: to ``2 clip_norm``), have
    ``difference_noise`` times the noise multiplier of gradients, and batches like theirs unless
    ``difference_sampling`` says otherwise. ``step_size`` is one number, or one per round. ``pick`` is the number of
    the iterate that is the output, from 0 (the start) to ``num_rounds``; the paper's is drawn uniformly.
    """
    check_phase(phase_length, num_rounds, pick)
    steps = jnp.broadcast_to(jnp.asarray(step_size, jnp.float32), (num_rounds,))

    def init(params: Params) -> SpiderState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SpiderState(params, params, zeros, params, jnp.zeros((), jnp.int32))

    def move(state: SpiderState, estimate: Params) -> SpiderState:
        step, number = steps[state.number], state.number + 1
        moved = jax.tree.map(lambda w, g: w - step * g, state.params, estimate)
        params = problem.regulariser.prox(moved, step)
        picked = keep_at(number, num_rounds if pick is None else pick, params, state.picked)
        return SpiderState(params, state.params, estimate, picked, number)

    def tell_difference(state: SpiderState, change: Message) -> SpiderState:
        return move(state, jax.tree.map(jnp.add, state.estimate, change))

    anchor = Release(lambda work: clip_norm, noise_multiplier, batch_size, sampling, capacity, channel=channel)
    batch = (batch_size, sampling, capacity)
    if difference_sampling is not None:
        batch = (difference_batch_size, difference_sampling, difference_capacity)
    difference = Release(
        difference_clip(clip_norm, difference_slope),
        scaled(noise_multiplier, difference_noise),
        *batch,
        channel=channel,
    )
    between = gradient_difference(problem.objective, lambda work: work.new, lambda work: work.old)
    rounds = {
        "anchor": Round(Silo(gradient_at(problem.objective), anchor), Server(lambda state: state.params, move)),
        "difference": Round(
            Silo(between, difference), Server(lambda state: TwoPoints(state.params, state.before), tell_difference)
        ),
    }
    schedule = tuple("anchor" if r % phase_length == 0 else "difference" for r in range(num_rounds))
    kinds = {kind: rounds[kind] for kind in sorted(set(schedule))}
    return Algorithm(init, kinds, schedule, lambda state: state.params if pick is None else state.picked)


def alternate_spider(
    problem: Problem,
    *,
    step_size: Number,
    num_rounds: int,
    clip_norm: Number,
    noise_multiplier: Number,
    batch_size: Number | None,
    sampling: Sampling,
    capacity: Number | None = None,
    channel: Channel = "direct",
    difference_noise: Number = 1.0,
    pick: int | None = None,
) -> Algorithm:
    """The authors' alternate implementation (their Algorithm 11): a fresh gradient every second round.

    Unrolled, its two updates per communication are SPIDER with phases of two and differences clipped to ``2 clip_norm``
    however near the points are; here each of the two messages is a round. Its last gradient is never used and is
    not released here.
    """
    return prox_spider(
        problem,
        step_size=step_size,
        num_rounds=num_rounds,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        sampling=sampling,
        capacity=capacity,
        channel=channel,
        phase_length=2,
        difference_slope=None,
        difference_noise=difference_noise,
        pick=pick,
    )


def difference_clip(clip_norm: Number, slope: Number | None) -> Any:
    """The bound on a record's difference of gradients: ``min(2 clip_norm, slope x distance of the two points)``."""

    def clip(work: Work) -> Array:
        most = 2.0 * jnp.asarray(clip_norm, jnp.float32)
        if slope is None:
            return most
        return jnp.minimum(most, slope * tree_norm(jax.tree.map(jnp.subtract, work.new, work.old)))

    return clip


def scaled(noise_multiplier: Number, ratio: Number) -> Number:
    """The noise multiplier of differences; none where there is no noise."""
    if noise_multiplier is None:
        return None
    by_silo = isinstance(noise_multiplier, list | tuple)
    return (np.asarray(noise_multiplier) if by_silo else noise_multiplier) * ratio


def keep_at(number: Array, wanted: Any, now: Params, kept: Params) -> Params:
    """``now`` if this is the wanted number, else what was kept."""
    return jax.tree.map(lambda new, old: jnp.where(number == wanted, new, old), now, kept)


def check_phase(length: int, num_rounds: int, pick: int | None) -> None:
    """Raise unless a phase has a round and the picked iterate exists."""
    if length < 1:
        raise ValueError(f"Expected phases of at least one round, got {length}; one is proximal SGD.")
    if pick is not None and not 0 <= pick <= num_rounds:
        raise ValueError(f"Expected 0 <= pick={pick} <= num_rounds={num_rounds}.")
