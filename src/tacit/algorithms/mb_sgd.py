"""Noisy minibatch SGD.

Lowy and Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for Convex Losses",
Algorithm 1 (arXiv:2106.09779). With a proximal step, in one pass, it is noisy proximal SGD: Lowy, Ghafelebashi and
Razaviyayn (arXiv:2203.06735), Algorithm 6, and Algorithm 7 through the shuffled-sum channel (``prox_sgd``). With noise
that remembers it is DP-FTRL: Kairouz et al. 2021 (arXiv:2103.00039), with a matrix in place of their tree as in Denisov
et al. 2022 (arXiv:2202.08312) (``dp_ftrl``).

    message of silo i     g_i = (1/K) sum over its batch of clip_C(grad f(w_r; record)) + N(0, sigma^2 I)
    server                w_{r+1} = prox_{eta_r h}(w_r - eta_r mean_i g_i)
    output                weighted mean of w_0 ... w_{R-1} (of all, or of the second half), a random one, or w_R

    paper     here
    -----     ----
    R         num_rounds
    K         batch_size
    eta_r     step_size (one number, or one per round)
    L         clip_norm
    gamma_r   output (weights of the iterates)
    C         mechanism (the strategy of the noise: `tacit.privacy.strategy`)

Every message is the Gaussian mechanism on a clipped mean, so all of them together are differentially private for
each record of the silo, whatever the server broadcasts. Noise that remembers is private over all rounds together.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm, Fixed, Mechanism, Number, Params, Round, Server, Silo, Terms, preset, recipe
from tacit.objectives import Problem, gradient_at


class MbSgdState(NamedTuple):
    """The iterate, the weighted mean of the iterates before it with its total weight, and the index of the round."""

    params: Params
    average: Params
    weight: jax.Array
    round_index: jax.Array


@recipe
def mb_sgd(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, output: Any = "average",
           output_seed: Number = 0, mechanism: Mechanism = "gaussian", passes: int = 1) -> Algorithm:  # fmt: skip
    """Noisy minibatch SGD.

    ``output`` is ``"average"``, ``"tail"`` (the mean of the second half), ``"last"``, ``"random"`` (one of the iterates
    w_0 ... w_{R-1}, drawn in advance by ``output_seed``), or one weight for each of them. ``mechanism`` is
    ``"gaussian"``, noise that is fresh in every round, or ``"correlated"``: then later rounds take off again part of
    what earlier ones added. ``passes`` is how often one-pass sampling may go through the records.
    """
    _check_mechanism(mechanism)
    steps = jnp.broadcast_to(jnp.asarray(step_size, jnp.float32), (num_rounds,))
    weights = _iterate_weights(output, output_seed, num_rounds)

    def init(params: Params) -> MbSgdState:
        return MbSgdState(params, params, jnp.zeros(()), jnp.zeros((), jnp.int32))

    def ask(state: MbSgdState) -> Params:
        return state.params

    def tell(state: MbSgdState, gradient: Params) -> MbSgdState:
        step, weight = steps[state.round_index], weights[state.round_index]
        total = state.weight + weight
        # Until an iterate counts, whoever looks is shown the newest; the first that counts takes its place.
        share = jnp.where(total > 0, weight / jnp.maximum(total, 1e-30), 1.0)
        average = jax.tree.map(lambda a, w: a + share * (w - a), state.average, state.params)
        return MbSgdState(problem.descend(state.params, gradient, step), average, total, state.round_index + 1)

    release = terms.release(mechanism=mechanism, rounds=num_rounds, passes=passes)
    gradient = Round(Silo(gradient_at(problem.objective), release), Server(ask, tell))
    return Algorithm(
        init,
        {"gradient": gradient},
        ("gradient",) * num_rounds,
        lambda state: state.params if isinstance(output, str) and output == "last" else state.average,
    )


@preset(mb_sgd, sampling="one-pass")
def prox_sgd(problem: Problem, terms: Terms, *, step_size: Number | None = None, num_rounds: int) -> Fixed:
    """Noisy proximal SGD for proximal-PL losses: one pass over disjoint batches, and the last iterate.

    ``step_size=None`` is the theorem's 1/(2 smoothness). A record is in one batch, so it pays for one release however
    many rounds there are; to see records again use mb-sgd.
    """
    if step_size is None:
        if problem.smoothness is None:
            raise ValueError("Expected a step_size, or a problem whose smoothness is known (the step is 1/(2 beta)).")
        step_size = 1.0 / (2.0 * problem.smoothness)
    return {"step_size": step_size, "output": "last"}


@preset(mb_sgd, sampling="one-pass")
def dp_ftrl(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, passes: int = 1,
            output: Any = "last") -> Fixed:  # fmt: skip
    """Minibatch SGD with correlated noise, over the same batches in every pass: DP-FTRL without momentum.

    A step is a sum of gradients, and sums of many rounds have little noise: in one pass of 100 batches 2.5 times that
    of a full batch, where independent noise has 10 times as much. Batches need not be secret.
    """
    return {"mechanism": "correlated"}


def _check_mechanism(mechanism: str) -> None:
    if mechanism not in ("gaussian", "correlated"):
        raise ValueError(f'Expected mechanism="gaussian" or "correlated" for minibatch SGD, got {mechanism!r}.')


def _iterate_weights(output: Any, seed: Number, num_rounds: int) -> jax.Array:
    if isinstance(output, str):
        if output not in ("average", "tail", "last", "random"):
            named = '"average", "tail", "last", "random"'
            raise ValueError(f"Expected output={named} or {num_rounds} weights, got {output!r}.")
        if output == "random":
            from tacit.algorithms.output import index_of

            return (jnp.arange(num_rounds) == index_of("random", seed, 0, num_rounds - 1)).astype(jnp.float32)
        return (jnp.arange(num_rounds) >= (num_rounds // 2 if output == "tail" else 0)).astype(jnp.float32)
    weights = np.asarray(output, np.float32)
    if weights.shape != (num_rounds,) or weights.min() < 0 or not 0 < weights.sum() < np.inf:
        raise ValueError(f"Expected {num_rounds} non-negative weights with a positive sum, got shape {weights.shape}.")
    return jnp.asarray(weights)
