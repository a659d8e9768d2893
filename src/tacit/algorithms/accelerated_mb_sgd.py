"""Accelerated noisy minibatch SGD.

Lowy and Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for Convex Losses",
Algorithm 2 (arXiv:2106.09779): the AC-SA method of Ghadimi and Lan 2012 on noisy gradients, with the restarts of
Ghadimi and Lan 2013 for strongly convex losses, and its one-pass version for heterogeneous population risk. In round
r = 1, 2, ... of a stage, with a = 2/(r+1) and c = 4/(step r(r+1)):

    query point           md = [(1-a)(mu+c) ag + a((1-a)mu+c) w] / [c + (1-a^2)mu]
    message of silo i     g_i = (1/K) sum over its batch of clip_C(grad f(md; record)) + N(0, sigma^2 I)
    server                w  <- prox_{a/(mu+c) h}([a mu md + ((1-a)mu+c) w - a mean_i g_i] / (mu+c))
                          ag <- a w + (1-a) ag
    next stage            w  <- ag
    output                ag

    paper     here
    -----     ----
    R         num_rounds
    K         batch_size
    1/eta     step_size (eta is an inverse step; at most 1/(2 beta))
    mu        strong_convexity
    U         the number of stages

Every message is the Gaussian mechanism on a clipped mean, so all of them together are differentially private for
each record of the silo, whatever points the server asks about; in one pass each record is in one message only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm, Fixed, Message, Number, Params, Round, Server, Silo, Terms, preset, recipe
from tacit.objectives import Problem, gradient_at


class AcceleratedState(NamedTuple):
    """The proximal iterate, the aggregate that is the output, and the index of the round."""

    params: Params
    aggregate: Params
    round_index: jax.Array


@recipe
def accelerated_mb_sgd(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int,
                       strong_convexity: Number = 0.0, stages: Sequence[int] | None = None) -> Algorithm:  # fmt: skip
    """Accelerated noisy minibatch SGD.

    ``stages`` are the rounds of each stage (default: one stage); ``step_size`` is one number, or one per stage.
    """
    within, steps = _timetable(stages, num_rounds, step_size)
    mu = jnp.asarray(strong_convexity, jnp.float32)

    def init(params: Params) -> AcceleratedState:
        return AcceleratedState(params, params, jnp.zeros((), jnp.int32))

    def weights(state: AcceleratedState) -> tuple[jax.Array, jax.Array]:
        r = within[state.round_index]
        return 2.0 / (r + 1.0), 4.0 / (steps[state.round_index] * r * (r + 1.0))

    def start_of(state: AcceleratedState) -> Params:
        first = within[state.round_index] == 1
        return jax.tree.map(lambda w, ag: jnp.where(first, ag, w), state.params, state.aggregate)

    def ask(state: AcceleratedState) -> Params:
        a, c = weights(state)
        total = c + (1 - a**2) * mu
        to_aggregate, to_params = (1 - a) * (mu + c) / total, a * ((1 - a) * mu + c) / total
        return jax.tree.map(lambda ag, w: to_aggregate * ag + to_params * w, state.aggregate, start_of(state))

    def tell(state: AcceleratedState, gradient: Message) -> AcceleratedState:
        a, c = weights(state)
        keep = (1 - a) * mu + c
        moved = jax.tree.map(
            lambda md, w, g: (a * mu * md + keep * w - a * g) / (mu + c), ask(state), start_of(state), gradient
        )
        params = problem.regulariser.prox(moved, a / (mu + c))
        aggregate = jax.tree.map(lambda w, ag: a * w + (1 - a) * ag, params, state.aggregate)
        return AcceleratedState(params, aggregate, state.round_index + 1)

    gradient = Round(Silo(gradient_at(problem.objective), terms.release()), Server(ask, tell))
    schedule = ("gradient",) * num_rounds
    return Algorithm(init, {"gradient": gradient}, schedule, lambda state: state.aggregate)


@preset(accelerated_mb_sgd, sampling="one-pass")
def one_pass_accelerated(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int,
                         strong_convexity: Number = 0.0, stages: Sequence[int] | None = None) -> Fixed:  # fmt: skip
    """One pass of accelerated noisy minibatch SGD over disjoint batches: the preset for heterogeneous population risk.

    A record is in one batch, so it pays for one release however many rounds there are.
    """
    return {}


def _timetable(stages: Sequence[int] | None, num_rounds: int, step_size: Number) -> tuple[jax.Array, jax.Array]:
    """For each round, its number within its stage (from one) and its step size."""
    lengths = np.asarray([num_rounds] if stages is None else stages, int)
    if lengths.min() < 1 or lengths.sum() != num_rounds:
        raise ValueError(f"Expected stages of at least one round that add up to num_rounds={num_rounds}, got {stages}.")
    within = np.concatenate([np.arange(1, length + 1) for length in lengths])
    steps = jnp.broadcast_to(jnp.asarray(step_size, jnp.float32), lengths.shape)
    return jnp.asarray(within, jnp.float32), steps[np.repeat(np.arange(len(lengths)), lengths)]
