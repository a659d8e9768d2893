"""FedFDP: federated learning whose losses are balanced between silos, with differential privacy.

Ling, Fu, Chen, Wang, Li, Cheng, Xu and Li, "FedFDP: Federated Learning with Fairness and Differential Privacy"
(arXiv:2402.16028): a baseline. Fair means here that silos have similar losses, F_i near their mean; neither demographic
parity nor equalized odds is asked for. Gradients of silos that do worse than the mean count for more:

    message of silo i    gradient  (1/K) sum over its batch of grad f min(1 + fairness D_i, C/||grad f||) + noise
                         loss      (1/K) sum over its batch of min(f, C_l) + noise
    D_i                  the loss that silo i last released, less the mean of all silos'
    server               w <- w - eta mean_i gradient, and the mean of the losses
    C_l                  follows the mean of the losses last released, and is at most ``loss_clip``

    paper       here
    -----       ----
    T           num_rounds
    eta         step_size
    lambda      fairness
    C           clip_norm
    C_l         at most loss_clip

Both parts come from one batch and are one release. Each silo's messages are differentially private for its records,
everything about them included; a silo remembers only what it released. One gradient step a round.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Memory, Message, Number, Params, Record, Round, Server, Silo, Terms, recipe
from tacit.algorithms.sgda import shared_noise
from tacit.objectives import Problem, Saddle, SaddleQuery, Tap


class FedFdpWork(NamedTuple):
    """What a silo works with: the model, the weight of its gradient, and what it released in this round."""

    params: Params
    weight: jax.Array
    limit: jax.Array
    released: Any


class FedFdpState(NamedTuple):
    """What the server knows and says: the model, and the mean of the losses that were last released."""

    params: Params
    loss: jax.Array


@recipe
def fedfdp(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int,
           fairness: Number, loss_clip: Number = 1.0, loss_share: Number = 0.1) -> Algorithm:  # fmt: skip
    """FedFDP; ``fairness`` is its lambda and ``loss_share`` the part of the budget that the losses take."""
    objective = problem.objective

    def values(params: Params, scale: jax.Array, records: Record, tap: Tap) -> jax.Array:
        # The gradient in the parameters is weighted; that in the scale is the loss itself.
        losses = objective.losses(params, records, tap)
        weight, one = scale
        return jax.lax.stop_gradient(weight) * losses + one * jax.lax.stop_gradient(losses)

    game = Saddle(objective.model, objective.cost, (jnp.ones(()), jnp.zeros(())), values)

    def start(broadcast: FedFdpState, memory: Memory) -> FedFdpWork:
        own, answered = memory
        gap = jnp.where(answered, own - broadcast.loss, 0.0)
        weight = jnp.maximum(1.0 + fairness * gap, 0.0)
        limit = jnp.clip(2.0 * broadcast.loss, 0.1 * jnp.asarray(loss_clip), loss_clip)
        zeros = {"params": jax.tree.map(jnp.zeros_like, broadcast.params), "duals": (jnp.zeros(()), jnp.zeros(()))}
        return FedFdpWork(broadcast.params, weight, limit, zeros)

    def report(work: FedFdpWork, memory: Memory) -> tuple[Message, Memory]:
        loss = work.released["duals"][1]
        return {"gradient": work.released["params"], "loss": loss}, (loss, jnp.ones((), bool))

    def tell(state: FedFdpState, message: Message) -> FedFdpState:
        return FedFdpState(problem.descend(state.params, message["gradient"], step_size), message["loss"])

    query = SaddleQuery(game, lambda work: (work.params, (work.weight, jnp.zeros(()))))
    release = terms.release(
        clip=lambda work: {"params": terms.clip_norm, "duals": work.limit}, noise=shared_noise(loss_share)
    )
    silo = Silo(query, release, 1, start, lambda work, released: work._replace(released=released), report)
    step = Round(silo, Server(lambda state: state, tell))
    return Algorithm(
        lambda params: FedFdpState(params, jnp.asarray(loss_clip, jnp.float32) / 2.0),
        {"step": step},
        ("step",) * num_rounds,
        lambda state: state.params,
        lambda params: (jnp.zeros(()), jnp.zeros((), bool)),
        lambda state: {"released_loss": state.loss},
    )
