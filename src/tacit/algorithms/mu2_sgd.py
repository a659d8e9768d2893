"""DP-mu^2: noisy SGD with two momenta and a running sum that is released with fresh noise.

Reshef and Levy, "Private and Federated Stochastic Convex Optimization: Efficient Strategies for Centralized Systems",
Algorithm 1 (untrusted server) and, through the trusted channel, Algorithm 2. In round t, with weights alpha_t = t:

    increment of silo i   s_t = (1/K) sum over its batch of clip_S(t grad f(x_t; .) - (t-1) grad f(x_{t-1}; .))
    what is released      q_t = s_1 + ... + s_t + N(0, sigma^2 I), an estimate of t grad F(x_t) (corrected momentum)
    server                w_{t+1} = Pi(w_t - eta mean_i q_t)
                          x_{t+1} = x_t + 2/(t+2) (w_{t+1} - x_t)
    output                x_T (anytime: any x_t will do)

    paper     here
    -----     ----
    T         num_rounds
    eta       step_size
    S         clip_norm (S = G + 2LD where the gradients are G-Lipschitz, L-smooth and the set has diameter D)
    sigma     noise_multiplier x 2S/K
    rho       sqrt(T) / noise_multiplier in one pass

A record's increment stays in all later sums, so all releases together are as private as sqrt(T)/noise_multiplier-GDP
for each record. The paper's S bounds increments only if the server moves its points as it should; here the silo clips
the increment itself, so that the guarantee holds whatever the server broadcasts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Round, Server, Silo, Terms, recipe
from tacit.geometry import tree_norm
from tacit.objectives import GradientQuery, Problem


class Mu2Points(NamedTuple):
    """What the server says: the point of this round, the one of the round before, and the weight t."""

    point: Params
    before: Params
    weight: jax.Array


class Mu2State(NamedTuple):
    """The iterate, the averaged points of this round and the one before, the running sum, and the round t."""

    params: Params
    point: Params
    before: Params
    total: Params
    t: jax.Array


@recipe
def mu2_sgd(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int) -> Algorithm:
    """DP-mu^2; the ``"trusted"`` channel is its version for a trusted server.

    Sampling is ``"one-pass"`` (the paper's, with ``batch_size=1``) or ``"full"``, which costs far more: a batch
    stays in every later sum.
    """
    step = jnp.asarray(step_size, jnp.float32)

    def init(params: Params) -> Mu2State:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Mu2State(params, params, params, zeros, jnp.ones(()))

    def ask(state: Mu2State) -> Mu2Points:
        return Mu2Points(state.point, state.before, state.t)

    increment = GradientQuery(
        problem.objective,
        points=lambda work: (work.point, work.before),
        weights=lambda work: (work.weight, 1.0 - work.weight),
    )

    def tell(state: Mu2State, message: Message) -> Mu2State:
        t = state.t
        total = jax.tree.map(jnp.add, state.total, message)
        moved = jax.tree.map(lambda w, q: w - step * q, state.params, total)
        params = problem.regulariser.prox(moved, step * t)
        point = jax.tree.map(lambda x, w: x + 2.0 / (t + 2.0) * (w - x), state.point, params)
        return Mu2State(params, point, state.point, total, t + 1.0)

    rounds = {"increment": Round(Silo(increment, terms.release(mechanism="cumulative")), Server(ask, tell))}
    return Algorithm(
        init,
        rounds,
        ("increment",) * num_rounds,
        lambda state: state.before,
        # The running sum estimates t times the gradient, and the round that comes next is t + 1.
        info=lambda state: {"estimate_norm": tree_norm(state.total) / jnp.maximum(state.t - 1.0, 1.0)},
    )
