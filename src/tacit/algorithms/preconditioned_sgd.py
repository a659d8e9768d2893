"""Noisy minibatch SGD in coordinates that private second moments of gradients have made alike.

After Li, Zaheer, Reddi and Smith 2022 (AdaDPS, arXiv:2202.05963), where a gradient is rescaled by public side
information before it is clipped: here the information is a release of its own. The noise follows the geometry, as in
Asi et al. 2021 (arXiv:2106.13756). The scale s has a positive entry for each parameter and begins as ones; products,
squares and roots are entry by entry:

    moments     m = mean_i [(1/K) sum over its batch of clip_{C^2}((s grad f(w; record))^2) + noise]
                v = max(m, floor x mean of m, -min of m),      s <- s sqrt(mean of v / v)
    gradient    g = mean_i [(1/K) sum over its batch of clip_C(s grad f(w; record)) + noise]
                w <- prox_{eta h}(w - eta s g)
    output      that of `tacit.algorithms.mb_sgd`

    paper      here
    -----      ----
    T          num_rounds, moment_rounds among them
    A          1/s, measured in moment_rounds
    epsilon    floor (s grows by at most sqrt(2 + 1/floor) in a round)

m is the mean of what was clipped, without bias: the noise has mean zero. A square of a released gradient would have
the variance of its noise to be taken off, as in DP-AdamBC (arXiv:2312.14334), and vanishes where records cancel. Only v
is above m: true moments are not negative, so the least entry tells how far noise reaches, and nothing below that is
believed. Another round measures in the new coordinates what the last one could not see.

The rest is mb-sgd of u = w / s, and its theorems hold with the constants of F(s u). A linear model whose slopes and
curvatures do not depend on its features has a Hessian with a diagonal in proportion to v, where the clip leaves moments
as they are. Then s makes the diagonal constant, and no diagonal scaling of d parameters has a condition number below
1/d of the one that it leaves (van der Sluis 1969). The mean of v is kept, and gradients are about as long as they were:
clip and step mean what they mean to mb-sgd. A regulariser acts on w by its own prox, which is exact for boxes only;
with a penalty this ends elsewhere, as an adaptive server does.

Every message is the Gaussian mechanism on a mean of what was rescaled first and clipped then: whatever s a server says,
a record moves it by no more than is priced. Scales follow from messages and cost nothing more.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Record, Round, Server, Silo, Statistic, Terms, recipe
from tacit.algorithms.mb_sgd import MbSgdState, mb_sgd
from tacit.algorithms.noise_split import moment_ratio
from tacit.objectives import Problem
from tacit.objectives.query import gradients

_TINY = 1e-30  # where every moment is zero, all are alike


class ScaledPoint(NamedTuple):
    """What the server says: a point, and what each coordinate of a gradient there is multiplied by."""

    params: Params
    scale: Params


class PreconditionedState(NamedTuple):
    """Minibatch SGD at work, and the scale."""

    inner: MbSgdState
    scale: Params


@recipe
def preconditioned_sgd(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, moment_rounds: int = 2,
                       moment_noise: Number | None = None, floor: Number = 0.01, output: Any = "average",
                       ) -> Algorithm:  # fmt: skip
    """Noisy minibatch SGD after ``moment_rounds`` that measure each coordinate; ``moment_rounds=0`` is mb-sgd.

    ``moment_noise`` is how many times the noise multiplier of a gradient a moment has (``None``: the least noisy
    split, `tacit.algorithms.noise_split`). ``step_size`` and ``output`` are those of mb-sgd, for rounds of gradients.
    """
    _check(num_rounds, moment_rounds, floor)
    steps = num_rounds - moment_rounds
    inner = mb_sgd(step_size=step_size, num_rounds=steps, output=output)(problem, terms)
    if not moment_rounds:
        return inner
    [plain] = [part.server for part in inner.rounds.values()]
    shapes = jax.eval_shape(problem.objective.init, jax.eval_shape(lambda: jax.random.key(0)))
    ratio = moment_ratio(moment_rounds, steps, sum(leaf.size for leaf in jax.tree.leaves(shapes)))

    def init(params: Params) -> PreconditionedState:
        return PreconditionedState(inner.init(params), jax.tree.map(jnp.ones_like, params))

    def ask(state: PreconditionedState) -> ScaledPoint:
        return ScaledPoint(plain.ask(state.inner), state.scale)

    def scaled(work: ScaledPoint, record: Record) -> Statistic:
        [gradient] = gradients(problem.objective, (work.params,), record)
        return _times(work.scale, gradient)

    def squared(work: ScaledPoint, record: Record) -> Statistic:
        return jax.tree.map(jnp.square, scaled(work, record))

    def measure(state: PreconditionedState, moments: Message) -> PreconditionedState:
        return state._replace(scale=_times(state.scale, _even(moments, floor)))

    def step(state: PreconditionedState, gradient: Message) -> PreconditionedState:
        return state._replace(inner=plain.tell(state.inner, _times(state.scale, gradient)))

    squares = terms.release(
        clip=lambda work: None if terms.clip_norm is None else jnp.asarray(terms.clip_norm, jnp.float32) ** 2,
        noise=ratio if moment_noise is None else moment_noise,
        # Prices of batches of random size count on rows of any sign.
        nonnegative=terms.sampling not in ("poisson", "allocation"),
    )
    rounds = {
        "moments": Round(Silo(squared, squares), Server(ask, measure)),
        "gradient": Round(Silo(scaled, terms.release()), Server(ask, step)),
    }
    schedule = ("moments",) * moment_rounds + ("gradient",) * steps
    return Algorithm(init, rounds, schedule, lambda state: inner.output(state.inner))


def _times(one: Params, other: Params) -> Params:
    return jax.tree.map(jnp.multiply, one, other)


def _even(moments: Message, floor: Number) -> Params:
    """What makes coordinates of these moments alike, and keeps their mean."""
    every = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(moments)])
    least = jnp.maximum(jnp.maximum(floor * every.mean(), -every.min()), _TINY)
    mean = jnp.maximum(every, least).mean()
    return jax.tree.map(lambda leaf: jnp.sqrt(mean / jnp.maximum(leaf, least)), moments)


def _check(num_rounds: int, moment_rounds: int, floor: Number) -> None:
    if not 0 <= moment_rounds < num_rounds:
        raise ValueError(
            f"Expected 0 <= moment_rounds={moment_rounds} < num_rounds={num_rounds}; a round must make a step."
        )
    if isinstance(floor, float | int) and not 0 < floor <= 1:
        raise ValueError(f"Expected 0 < floor={floor} <= 1, a share of the mean moment; 0.01 is usual.")
