"""Mean-regularised multi-task learning: a model for every silo, held near the mean of all.

Liu, Hu, Wu and Smith, "On Privacy and Personalization in Cross-Silo Federated Learning" (arXiv:2206.07902), MR-MTL.
Silo i has a model w_i of its own, and together they minimise

    sum_i F_i(w_i) + lambda/2 |w_i - mean_j w_j|^2

    message of silo i     g_i = (1/K) sum over its batch of clip_C(grad f(w_i; record)) + N(0, sigma^2 I)
    silo i                w_i <- prox_{eta h}(w_i - eta [g_i + lambda (w_i - w)])
    server                w   <- prox_{eta h}(w - eta mean_i g_i)
    output                w_i for silo i; w for everybody else

    paper     here
    -----     ----
    T         num_rounds
    lambda    strength
    eta       step_size

In the paper silos say their models and the server takes their mean. They start at one point and every silo is in every
round, so without a regulariser h the server's w is that mean: pulls towards it cancel in the mean of all. A silo that
says g_i instead says nothing but its release, and its model stays where it is.

Every message is the Gaussian mechanism on a clipped mean, whatever the server broadcasts. The silo's own model follows
from its releases and broadcasts alone: it costs nothing beyond them, and would be as private if it were published.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Round, Server, Silo, Statistic, Terms, recipe
from tacit.objectives import Problem, gradient_at


class OwnModel(NamedTuple):
    """A silo's memory: its model, and whether it has one yet."""

    params: Params
    begun: jax.Array


class MrMtlWork(NamedTuple):
    """The silo's model, the mean that was broadcast, and the release, once it is there."""

    params: Params
    mean: Params
    gradient: Statistic = ()


@recipe
def mr_mtl(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, strength: Number = 1.0) -> Algorithm:
    """Mean-regularised personal models; ``strength=0`` is every silo alone.

    Steps are stable below 2 / (smoothness + strength).
    """
    _check_strength(strength)
    step = jnp.asarray(step_size, jnp.float32)

    def memory(params: Params) -> OwnModel:
        return OwnModel(jax.tree.map(jnp.zeros_like, params), jnp.zeros((), bool))

    def start(mean: Params, own: OwnModel) -> MrMtlWork:
        return MrMtlWork(jax.tree.map(lambda w, m: jnp.where(own.begun, w, m), own.params, mean), mean)

    def absorb(work: MrMtlWork, gradient: Statistic) -> MrMtlWork:
        return work._replace(gradient=gradient)

    def report(work: MrMtlWork, own: OwnModel) -> tuple[Message, OwnModel]:
        pulled = jax.tree.map(lambda g, w, m: g + strength * (w - m), work.gradient, work.params, work.mean)
        return work.gradient, OwnModel(problem.descend(work.params, pulled, step), jnp.ones((), bool))

    def tell(mean: Params, gradient: Message) -> Params:
        return problem.descend(mean, gradient, step)

    query = gradient_at(problem.objective, lambda work: work.params)
    silo = Silo(query, terms.release(), start=start, absorb=absorb, report=report)
    gradient = Round(silo, Server(lambda mean: mean, tell), participants="all")
    return Algorithm(
        lambda params: params,
        {"gradient": gradient},
        ("gradient",) * num_rounds,
        lambda mean: mean,
        memory,
        personal=lambda own: own.params,
    )


def _check_strength(strength: Number) -> None:
    if isinstance(strength, int | float) and not 0 <= strength < float("inf"):
        raise ValueError(f"Expected strength={strength!r} of mr-mtl to be a finite number >= 0.")
