"""FedProx-SPIDER: noisy recursive gradients with noise that shrinks with the step.

Lowy, Ghafelebashi and Razaviyayn, "Private Non-Convex Federated Learning Without a Trusted Server", Algorithm 3
(arXiv:2203.06735); through the shuffled-sum channel it is their Algorithm 10, and ``alternate_spider`` is their
Algorithm 11. In round r = 0, 1, ...:

    every q-th round      h_r = mean_i [(1/K1) sum over the batch of clip_C(grad f(w_r; record)) + noise]
    other rounds          D_r = min(2C, C_s ||w_r - w_{r-1}||)
                          h_r = h_{r-1} + mean_i [(1/K2) sum of clip_{D_r}(grad f(w_r; .) - grad f(w_{r-1}; .)) + noise]
    server                w_{r+1} = prox_{eta h}(w_r - eta h_r)
    output                w_R, or the iterate whose index was drawn in advance

    paper             here
    -----             ----
    R                 num_rounds (every release is a round; the paper's loop, from 0 to R, makes one more)
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

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Fixed, Number, Params, Round, Sampling, Server, Silo, Terms, preset, recipe
from tacit.algorithms.differences import TwoPoints, check_phase, difference_silo, info_of, scheduled
from tacit.algorithms.noise_split import difference_ratio, recursive
from tacit.algorithms.output import Output, index_of, keep_at
from tacit.objectives import Problem, gradient_at


class SpiderState(NamedTuple):
    """The iterate, the one before it, the running estimate of the gradient, the picked iterate, and the round."""

    params: Params
    before: Params
    estimate: Params
    picked: Params
    round_index: jax.Array


@recipe
def prox_spider(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, phase_length: int,
                difference_slope: Number | None, difference_noise: Number | None = None,
                difference_sampling: Sampling | None = None, difference_batch_size: Number | None = None,
                difference_capacity: Number | None = None, output: Output = "last",
                output_seed: Number = 0) -> Algorithm:  # fmt: skip
    """FedProx-SPIDER; ``phase_length=1`` is noisy proximal minibatch SGD.

    Differences are clipped to ``min(2 clip_norm, difference_slope x distance)`` (``None``: to ``2 clip_norm``), have
    ``difference_noise`` times the noise multiplier of gradients (``None``: what makes the noise of all estimates least,
    `tacit.algorithms.noise_split`), and batches like theirs unless
    ``difference_sampling`` says otherwise. ``step_size`` is one number, or one per round. ``output`` is the
    ``"last"`` iterate, one of w_0 ... w_{R-1} at ``"random"`` as in the paper (drawn by ``output_seed``), or an index.
    """
    check_phase(phase_length)
    last = output == "last"
    wanted = index_of(output, output_seed, 0, num_rounds if output != "random" else num_rounds - 1)
    steps = jnp.broadcast_to(jnp.asarray(step_size, jnp.float32), (num_rounds,))

    def init(params: Params) -> SpiderState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SpiderState(params, params, zeros, params, jnp.zeros((), jnp.int32))

    def move(state: SpiderState, estimate: Params) -> SpiderState:
        step, after = steps[state.round_index], state.round_index + 1
        params = problem.descend(state.params, estimate, step)
        picked = keep_at(after, wanted, params, state.picked)
        return SpiderState(params, state.params, estimate, picked, after)

    def tell_difference(state: SpiderState, change: Params) -> SpiderState:
        return move(state, jax.tree.map(jnp.add, state.estimate, change))

    def ask_difference(state: SpiderState) -> TwoPoints:
        return TwoPoints(state.params, state.before)

    others = terms.drawn(difference_batch_size, difference_sampling, difference_capacity)
    ratio = difference_noise
    if ratio is None:
        ratio = difference_ratio(*recursive(num_rounds, phase_length), difference_slope, terms, others)
    gradient = Silo(gradient_at(problem.objective), terms.release())
    difference = difference_silo(problem, others, difference_slope, ratio)
    rounds = {
        "gradient": Round(gradient, Server(lambda state: state.params, move)),
        "difference": Round(difference, Server(ask_difference, tell_difference)),
    }
    schedule = tuple("gradient" if r % phase_length == 0 else "difference" for r in range(num_rounds))
    return Algorithm(
        init,
        scheduled(rounds, schedule),
        schedule,
        lambda state: state.params if last else state.picked,
        info=info_of(ask_difference),
    )


@preset(prox_spider)
def alternate_spider(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int,
                     difference_noise: Number | None = None, output: Output = "last",
                     output_seed: Number = 0) -> Fixed:  # fmt: skip
    """The authors' alternate implementation (their Algorithm 11): a fresh gradient every second round.

    Unrolled, its two updates per communication are SPIDER with phases of two and differences clipped to ``2 clip_norm``
    however near the points are; here each of the two messages is a round. Its last gradient is never used and is
    not released here.
    """
    return {"phase_length": 2, "difference_slope": None}
