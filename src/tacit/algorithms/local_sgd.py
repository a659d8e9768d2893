"""Noisy Local SGD (FedAvg with private local steps).

The baseline of Lowy, Ghafelebashi and Razaviyayn (arXiv:2203.06735) and of Lowy and Razaviyayn (arXiv:2106.09779):
McMahan et al. 2017 (arXiv:1602.05629) with every local gradient clipped per record and noised.

    silo i, from w = w_r, H times    w <- prox_{eta h}(w - eta [(1/K) sum clip_C(grad f(w; record)) + noise])
    server                           w_{r+1} = mean over silos of their w

    paper     here
    -----     ----
    R         num_rounds
    K, H      local_steps
    eta       step_size

Each of the R x H local steps is a release of its own and is priced; the model that a silo reports is
post-processing of them.
"""

import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Round, Server, Silo, Statistic, Terms, recipe
from tacit.objectives import Problem, gradient_at


@recipe
def local_sgd(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, local_steps: int) -> Algorithm:
    """Noisy Local SGD; ``local_steps=1`` is noisy minibatch SGD with the last iterate as its output."""
    if local_steps < 1:
        raise ValueError(f"Expected local_steps={local_steps} >= 1.")
    step = jnp.asarray(step_size, jnp.float32)

    def absorb(params: Params, gradient: Statistic) -> Params:
        return problem.descend(params, gradient, step)

    def tell(state: Params, mean: Message) -> Params:
        return mean

    silo = Silo(gradient_at(problem.objective), terms.release(), local_steps, absorb=absorb)
    local = Round(silo, Server(ask=lambda state: state, tell=tell))
    return Algorithm(lambda params: params, {"local": local}, ("local",) * num_rounds, lambda state: state)
