"""The Lagrangian-dual method for fair learning with private sensitive attributes.

Tran, Fioretto and Van Hentenryck, "Differentially Private and Fair Deep Learning: A Lagrangian Dual Approach" (AAAI
2021, arXiv:2009.12562): a baseline. With c_r the gap between the mean prediction of group r and that of all records,

    primal    theta <- theta - eta [grad loss + sum_r a_r grad c_r + noise],     a_r = lambda_r sign(c_r)
    dual      lambda_r <- min(lambda_r + rho |c_r + noise|, largest_multiplier)

    c_r = mean over records of (1[s = r]/p_r - 1) F(x),    F the probability of the favourable class

    paper       here
    -----       ----
    alpha       step_size (eta above)
    s           multiplier_step (rho above)
    C_p         clip_norm

Equalized odds has a gap for each target, over the records that have it. The released gaps and the released gradients
come from one pass over all records in each round and are priced together; the paper's method updates the multipliers
once an epoch. It protects the sensitive attribute alone and is written for one holder of all records: with one silo it
is the paper's (central DP); with several it is its federated, ISRL-DP version.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Clip, Message, Number, Params, Record, Round, Server, Silo, Terms, recipe
from tacit.algorithms.sgda import SgdaPoint, shared_noise
from tacit.objectives import Ermi, Frequencies, Notion, Problem, Saddle, SaddleQuery, Tap, ermi


class LagrangianState(NamedTuple):
    """The model, the multipliers, and the signs of the gaps as they were last released."""

    params: Params
    multipliers: jax.Array
    signs: jax.Array


@recipe
def lagrangian_dual(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, frequencies: Frequencies,
                    multiplier_step: Number, largest_multiplier: Number = 10.0, dual_share: Number = 0.5,
                    notion: Notion = "demographic-parity", classes: int = 2, favourable: int = 1,
                    ) -> Algorithm:  # fmt: skip
    """Descent on the Lagrangian of the fairness constraints; ``frequencies`` of the groups are public.

    ``clip_norm`` bounds half of how far ``s`` can move a record's gradient, or with ``protects="record"`` the gradient.
    For a linear model the bound also follows the multipliers, which are public: where they are small, so is the noise.
    """
    _check_sampling(terms)
    # Only the conditions, cells and floored probabilities of the term are used here.
    term = ermi(problem.objective.model, classes, frequencies, notion=notion, floor=0.0, favourable=favourable)
    table = jnp.asarray(term.frequencies, jnp.float32)
    objective = problem.objective

    def centred(records: Record) -> jax.Array:
        own = jax.vmap(term.cell)(records)
        return own / table - own.sum(axis=2, keepdims=True)

    def values(params: Params, signed: jax.Array, records: Record, tap: Tap) -> jax.Array:
        outputs = objective.model.apply(params, records["x"], tap)
        pull = jnp.tensordot(centred(records), signed, 2)
        return objective.cost.value(outputs, records["y"]) + pull * term.chances(outputs)[:, favourable]

    def gaps_of(params: Params, signed: jax.Array, records: Record) -> jax.Array:
        return centred(records) * term.probabilities(params, records["x"])[:, favourable, None, None]

    def ask(state: LagrangianState) -> SgdaPoint:
        return SgdaPoint(state.params, state.multipliers * state.signs)

    def tell(state: LagrangianState, message: Message) -> LagrangianState:
        params, gaps = problem.descend(state.params, message["params"], step_size), message["duals"]
        raised = jnp.minimum(state.multipliers + multiplier_step * jnp.abs(gaps), largest_multiplier)
        return LagrangianState(params, raised, jnp.sign(gaps))

    zeros = jnp.zeros(table.shape)
    game = Saddle(objective.model, objective.cost, zeros, values, gaps_of)
    clip = _bounds(table, terms, _steepness(problem, term))
    release = terms.release(clip=clip, noise=shared_noise(dual_share), groups=table.shape[1])
    step = Round(Silo(SaddleQuery(game, lambda work: (work.params, work.duals)), release), Server(ask, tell))
    return Algorithm(
        lambda params: LagrangianState(params, zeros, zeros),
        {"step": step},
        ("step",) * num_rounds,
        lambda state: state.params,
        info=lambda state: {"multipliers_norm": jnp.linalg.norm(state.multipliers)},
    )


def _check_sampling(terms: Terms) -> None:
    if terms.protects == "sensitive-attribute" and terms.sampling not in ("full", "one-pass"):
        raise ValueError(
            f'Expected sampling="full" or "one-pass" where s alone is protected, got {terms.sampling!r}: the gradient '
            "of the loss would reveal a secret batch."
        )


def _steepness(problem: Problem, term: Ermi) -> float | None:
    """A bound on the derivative of the favourable probability alone; with one output both classes share theirs."""
    both, shape = term.steepness(problem.lipschitz, problem.objective.cost), term.model.linear
    return None if both is None else both * (0.5**0.5 if shape and shape.outputs == 1 else 1.0)


def _bounds(table: jax.Array, terms: Terms, steep: float | None) -> Clip:
    """The clips of both blocks, from the broadcast alone."""

    def clip(work: SgdaPoint) -> dict[str, Any]:
        inverse = jnp.sort(1.0 / table, axis=1)
        gap = 0.5 * jnp.sqrt(jnp.max(jnp.sum(inverse[:, -2:] ** 2, axis=1)))
        size = jnp.sqrt(jnp.max((inverse[:, -1] - 1.0) ** 2 + table.shape[1] - 1.0))
        if terms.protects == "record":
            return {"params": terms.clip_norm, "duals": size}
        params = jnp.asarray(terms.clip_norm, jnp.float32)
        if steep is not None:
            pulls = work.duals / table
            widest = jnp.max(jnp.abs(pulls[:, :, None] - pulls[:, None, :]))
            params = jnp.minimum(params, 0.5 * steep * widest)
        return {"params": params, "duals": gap}

    return clip
