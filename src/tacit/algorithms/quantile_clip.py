"""Noisy minibatch SGD whose clip follows a private quantile of the gradients' norms.

Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping" (arXiv:1905.03871),
Algorithm 1, for records in place of users:

    message of silo i    gradient  (1/K) sum over its batch of clip_C(grad f(w; record)) + noise
                         below     (1/K) sum over its batch of (1 if ||grad f(w; record)|| <= C, else 0) - 1/2, + noise
    server               w <- prox(w - eta mean_i gradient)
                         C <- C exp(-clip_step (mean_i below + 1/2 - quantile))
    output               w

    paper        here
    -----        ----
    eta_C        clip_step
    gamma        quantile
    C_0          clip_norm
    sigma_b      count_share (the part of the budget that the count takes)

Both parts come from one batch and are one release. A record moves the count by at most one, and the gradient by at most
two clips, whatever clip the server says: noise is measured in the clip of the round. What the clip tells about records
is in the counts alone, which have noise of their own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Record, Round, Server, Silo, Statistic, Terms, recipe
from tacit.algorithms.sgda import shared_noise
from tacit.geometry import tree_norm
from tacit.objectives import Problem
from tacit.objectives.query import gradients


class QuantileClipState(NamedTuple):
    """What the server knows and says: the iterate and the clip."""

    params: Params
    clip: jax.Array


@recipe
def quantile_clip(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, quantile: Number = 0.5,
                  clip_step: Number = 0.2, count_share: Number = 0.05) -> Algorithm:  # fmt: skip
    """Noisy minibatch SGD with adaptive clipping; ``clip_norm`` is the first clip.

    ``quantile`` is the share of gradients that the clip should leave as they are; ``clip_step=0`` never moves the clip.
    """
    _check(quantile, clip_step)
    if jnp.ndim(1.0 if terms.clip_norm is None else terms.clip_norm):
        raise ValueError("Expected one clip_norm for all silos: they count how many gradients are within one clip.")

    def init(params: Params) -> QuantileClipState:
        return QuantileClipState(params, jnp.asarray(1.0 if terms.clip_norm is None else terms.clip_norm, jnp.float32))

    def query(work: QuantileClipState, record: Record) -> Statistic:
        [gradient] = gradients(problem.objective, (work.params,), record)
        return {"params": gradient, "duals": jnp.where(tree_norm(gradient) <= work.clip, 0.5, -0.5)}

    def tell(state: QuantileClipState, message: Message) -> QuantileClipState:
        # Noise may carry a share beyond all or none.
        share = jnp.clip(message["duals"] + 0.5, 0.0, 1.0)
        clip = state.clip * jnp.exp(-clip_step * (share - quantile))
        return QuantileClipState(problem.descend(state.params, message["params"], step_size), clip)

    release = terms.release(
        clip=lambda work: {"params": work.clip, "duals": jnp.float32(0.5)}, noise=shared_noise(count_share)
    )
    step = Round(Silo(query, release), Server(lambda state: state, tell))
    return Algorithm(
        init,
        {"step": step},
        ("step",) * num_rounds,
        lambda state: state.params,
        info=lambda state: {"clip": state.clip},
    )


def _check(quantile: Number, clip_step: Number) -> None:
    if isinstance(quantile, float | int) and not 0 < quantile < 1:
        raise ValueError(f"Expected 0 < quantile={quantile} < 1, the share of gradients that the clip leaves alone.")
    if isinstance(clip_step, float | int) and not 0 <= clip_step < float("inf"):
        raise ValueError(f"Expected a finite clip_step={clip_step} >= 0; 0.2 is usual.")
