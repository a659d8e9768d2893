"""Noisy federated descent-ascent for saddle problems that are nonconvex in one variable, strongly concave in the other.

Gupta, Poornash, Lowy and Razaviyayn, "A Stochastic Optimization Framework for Private and Fair Learning From
Decentralized Data" (arXiv:2411.07889), Algorithm 2, with its ascent step along H_w (H_theta is printed there).

    messages of silo i    H_theta = (1/K) sum over its batch of clip(grad_theta f(theta_t, w_t; record)) + noise
                          H_w     = (1/K) sum over its batch of clip(grad_w f(theta_t, w_t; record)) + noise
    server                theta_{t+1} = prox(theta_t - eta_theta mean_i H_theta)
                          w_{t+1} = Pi(w_t + eta_w mean_i H_w), onto the ball of Frobenius norm ``radius``
    output                a uniformly random iterate of theta_0 ... theta_{T-1}, their mean, or the last

    paper       here
    -----       ----
    T           num_rounds
    m           batch_size
    eta_theta   step_size, times ``decay`` after every ``decay_every`` rounds
    eta_w       dual_step_size
    L_theta     clip_norm
    L_w         dual_clip_norm

Both messages come from one batch, so they are one release with two blocks: the joint noise multiplier z is shared as
z^-2 = z_theta^-2 + z_w^-2, of which ``dual_share`` is the part of w. Each silo's messages together are differentially
private for each of its records, whatever the server broadcasts.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, PerBlock, Round, Server, Silo, Terms, recipe
from tacit.algorithms.output import index_of, keep_at
from tacit.geometry import frobenius_ball, tree_norm, zero
from tacit.objectives import Problem, Saddle, SaddleQuery, lifted

Output = Literal["random", "last", "average"]


class SgdaPoint(NamedTuple):
    """What the server says: a point of both variables."""

    params: Params
    duals: Any


class SgdaState(NamedTuple):
    """Both iterates, the output so far, and the index of the round."""

    params: Params
    duals: Any
    chosen: Params
    round_index: jax.Array


@recipe
def sgda(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, radius: Number | None = None,
         dual_step_size: Number | None = None, dual_clip_norm: Number | None = None, dual_share: Number = 0.5,
         decay: Number = 1.0, decay_every: int = 1, output: Output = "last", output_seed: int = 0,
         ) -> Algorithm:  # fmt: skip
    """Noisy descent-ascent on ``problem.objective``, a `Saddle`; a plain objective is lifted to one (see `lifted`).

    Step and clip of the duals are those of the parameters unless they are given; ``radius=None`` does not project.
    """
    game = problem.objective if isinstance(problem.objective, Saddle) else lifted(problem.objective)
    clips = {"params": terms.clip_norm, "duals": terms.clip_norm if dual_clip_norm is None else dual_clip_norm}
    dual_step = step_size if dual_step_size is None else dual_step_size
    wanted = index_of("random", output_seed, 0, num_rounds - 1)
    ascend = descent_ascent(problem, decayed(step_size, decay, decay_every), dual_step, output, wanted)
    ball = zero() if radius is None else frobenius_ball(radius)

    def init(params: Params) -> SgdaState:
        duals = jax.tree.map(jnp.asarray, game.init_duals)
        return SgdaState(params, duals, params, jnp.zeros((), jnp.int32))

    def ask(state: SgdaState) -> SgdaPoint:
        return SgdaPoint(state.params, state.duals)

    def tell(state: SgdaState, message: Message) -> SgdaState:
        after: SgdaState = ascend(state, message)
        return after._replace(duals=ball.prox(after.duals, 1.0))

    query = SaddleQuery(game, lambda work: (work.params, work.duals))
    release = terms.release(clip=lambda work: clips, noise=shared_noise(dual_share))
    step = Round(Silo(query, release), Server(ask, tell))
    return Algorithm(
        init,
        {"step": step},
        ("step",) * num_rounds,
        lambda state: state.params if output == "last" else state.chosen,
        info=lambda state: {"duals_norm": tree_norm(state.duals)},
    )


def decayed(step_size: Number, decay: Number, every: int) -> Any:
    """The step as a function of the round: times ``decay`` after every so many."""
    if every < 1:
        raise ValueError(f"Expected decay_every={every} >= 1; use decay=1 for a constant step.")
    return lambda round_index: step_size * jnp.asarray(decay, jnp.float32) ** (round_index // every)


def descent_ascent(problem: Problem, steps: Any, dual_step: Number, output: Output, wanted: Any) -> Any:
    """The server's step from a mean message with blocks ``params`` and ``duals``, for states like `SgdaState`.

    Duals are not projected. A random output is the iterate of the ``wanted`` index.
    """
    if output not in ("random", "last", "average"):
        raise ValueError(f'Expected output="random", "last" or "average", got {output!r}.')

    def tell(state: Any, message: Message) -> Any:
        params = problem.descend(state.params, message["params"], steps(state.round_index))
        duals = jax.tree.map(lambda w, g: w + dual_step * g, state.duals, message["duals"])
        share = 1.0 / (state.round_index + 1.0)
        chosen = jax.tree.map(lambda c, p: c + share * (p - c), state.chosen, state.params)
        if output == "random":
            chosen = keep_at(state.round_index, wanted, state.params, state.chosen)
        return state._replace(params=params, duals=duals, chosen=chosen, round_index=state.round_index + 1)

    return tell


def shared_noise(dual_share: Number) -> PerBlock:
    """Noise of two blocks, in units of that of one Gaussian release that is as private as both together.

    ``dual_share`` is the part of the budget that the duals take.

    >>> z = shared_noise(0.36)
    >>> round(z["params"], 6), round(z["duals"], 6)
    (1.25, 1.666667)
    """
    if isinstance(dual_share, float | int) and not 0 < dual_share < 1:
        raise ValueError(f"Expected 0 < dual_share={dual_share} < 1; each message needs noise.")
    return {"params": (1.0 - dual_share) ** -0.5, "duals": dual_share**-0.5}
