"""Warm start: minibatch SGD finds a point of small risk, and SPIDER goes on from there to a small gradient.

Lowy, Ullman and Wright, "How to Make the Gradients Small Privately" (arXiv:2402.11173): a private risk minimiser, then
a private finder of stationary points from where it ended, on two parts of one budget. Here the first is noisy proximal
minibatch SGD, and the second `tacit.algorithms.prox_spider`, both through any channel:

    first W rounds        w <- prox_{eta_W h}(w - eta_W mean_i [clipped mean gradient at w + noise])
    other rounds          FedProx-SPIDER from there
    output                that of SPIDER

    paper           here
    -----           ----
    T               num_rounds, warm_rounds among them
    eps/2, eps/2    warm_noise (the noise of warm rounds over that of SPIDER's gradients; less is more of the budget)

Every message is the Gaussian mechanism on a clipped mean, and all of both parts are priced together.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from tacit.algorithm import Algorithm, Number, Params, Round, Server, Silo, Terms, recipe
from tacit.algorithms.prox_spider import SpiderState, prox_spider
from tacit.objectives import Problem, gradient_at


@recipe
def warm_spider(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, warm_rounds: int,
                phase_length: int, difference_slope: Number | None, difference_noise: Number | None = None,
                warm_step_size: Number | None = None, warm_noise: Number = 1.0) -> Algorithm:  # fmt: skip
    """SPIDER from where ``warm_rounds`` of minibatch SGD end; ``warm_rounds=0`` is prox-spider.

    ``warm_step_size`` is that of the warm rounds (``None``: ``step_size``). The others are those of prox-spider.
    """
    if not 0 <= warm_rounds < num_rounds:
        raise ValueError(f"Expected 0 <= warm_rounds={warm_rounds} < num_rounds={num_rounds}; SPIDER needs a round.")
    step = jnp.asarray(step_size if warm_step_size is None else warm_step_size, jnp.float32)
    differences: dict[str, Any] = {"phase_length": phase_length, "difference_slope": difference_slope}
    spider = prox_spider(
        step_size=step_size, num_rounds=num_rounds - warm_rounds, difference_noise=difference_noise, **differences
    )(problem, terms)
    if not warm_rounds:
        return spider

    def tell(state: SpiderState, gradient: Params) -> SpiderState:
        params = problem.descend(state.params, gradient, step)
        return state._replace(params=params, before=params, picked=params)

    silo = Silo(gradient_at(problem.objective), terms.release(noise=warm_noise))
    warm = Round(silo, Server(lambda state: state.params, tell))
    schedule = (*("warm",) * warm_rounds, *spider.schedule)
    return replace(spider, rounds={**spider.rounds, "warm": warm}, schedule=schedule)
