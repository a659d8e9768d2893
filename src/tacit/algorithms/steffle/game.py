"""What all designs of SteFFLe share: the states, the saddle function, and what a design is.

    psi(theta, W; x, y, s) = -Tr(W diag(F) W^T) + 2 p_s^(-1/2) <W_s, F> - 1,    F the probabilities of the classes at x

At the best W the mean of psi is the chi-squared divergence between prediction and group, so that descent on
loss + strength x psi makes the two independent. With a condition (equalized odds) there is a matrix W for each target.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Clip, Params, Record, Round, Terms
from tacit.objectives import Ermi, Problem, Saddle, SaddleQuery, Tap


class SteffleSays(NamedTuple):
    """What the server says: both variables, and the frequencies of the groups, one row for each condition."""

    params: Params
    duals: jax.Array
    frequencies: jax.Array


class SteffleState(NamedTuple):
    """As `SgdaState`, with the frequencies, and the gradient of the loss where it comes as a message of its own."""

    params: Params
    duals: jax.Array
    chosen: Params
    number: jax.Array
    key: jax.Array
    frequencies: jax.Array
    gradient: Params


class Design(NamedTuple):
    """What sets designs apart: the terms and clips of a step, whether it has the loss in it, and what comes before."""

    terms: Terms
    clips: Clip
    with_loss: bool = True
    before: tuple[tuple[str, Round], ...] = ()


def say(state: SteffleState) -> SteffleSays:
    """The server's half of every kind of round before it hears anything."""
    return SteffleSays(state.params, state.duals, state.frequencies)


def step_query(problem: Problem, term: Ermi, strength: Any, *, with_loss: bool) -> SaddleQuery:
    """The gradients of loss + strength psi in theta and of psi in W, at the frequencies that the server says.

    So W ascends at its own pace, whatever the strength.
    """
    objective = problem.objective
    if objective.cost.smoothing is not None:
        raise ValueError("Expected a loss without smoothing; use logistic, softmax or squared.")

    def at(frequencies: Any) -> Saddle:
        table = jnp.asarray(frequencies, jnp.float32)

        def values(params: Params, duals: jax.Array, records: Record, tap: Tap) -> jax.Array:
            outputs = objective.model.apply(params, records["x"], tap)
            chances = term.chances(outputs)
            fair = term.values_at(chances, jax.lax.stop_gradient(duals), records, table)
            ascent = term.values_at(jax.lax.stop_gradient(chances), duals, records, table)
            plain = objective.cost.value(outputs, records["y"]) if with_loss else 0.0
            return plain + strength * fair + ascent

        def by_duals(params: Params, duals: jax.Array, records: Record) -> jax.Array:
            return term.dual_gradients_at(term.probabilities(params, records["x"]), duals, records, table)

        return Saddle(objective.model, objective.cost, term.init(), values, by_duals)

    return SaddleQuery(at(term.frequencies), lambda work: (work.params, work.duals), lambda work: at(work.frequencies))


def bounded(duals: jax.Array, dual_clip_norm: Any) -> jax.Array:
    """The bound on a record's part in the duals: the largest that can occur, or what is given if that is less."""
    return duals if dual_clip_norm is None else jnp.minimum(duals, dual_clip_norm)
