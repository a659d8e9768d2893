"""SteFFLe: private and fair federated learning by descent-ascent on loss + strength x ERMI.

Gupta, Poornash, Lowy and Razaviyayn, "A Stochastic Optimization Framework for Private and Fair Learning From
Decentralized Data" (arXiv:2411.07889), Algorithm 1. psi is the chi-squared fairness term of `tacit.objectives.ermi`:
at the best W its mean is the divergence between prediction and group, so that descent makes the two independent.

    messages of silo i    params  mean over its batch of grad_theta [loss + strength psi](theta_t, W_t; x, y, s) + noise
                          duals   mean over its batch of grad_W psi(theta_t, W_t; x, y, s) + noise
    server                theta_{t+1} = prox(theta_t - eta_theta mean_i params)
                          W_{t+1} = Pi(W_t + eta_w mean_i duals), onto a Frobenius ball
    frequencies P_S       public by declaration, or one more message: a histogram with noise, paid for

    paper         here
    -----         ----
    lambda        strength
    eta_theta     step_size, times ``decay`` after every ``decay_every`` rounds
    lambda eta_w  dual_step_size
    W             duals; the ball has its centre at independence (or at zero, as printed) and radius ``radius``

What is protected is explicit. ``protects="record"``: everything is clipped, as in any other algorithm. The paper's
``protects="sensitive-attribute"``: features and target count as known. Its printed design, an un-noised gradient of
the loss beside amplified noise on that of psi, does not hold: the former reveals the batch, and each message takes the
whole budget. Here ``sampling`` chooses one of three designs that do hold:

    "full"                    every record in every round; s alone is bounded and hidden, nothing is amplified (default)
    "one-pass", passes=E      fixed batches; a record is used E times and pays for E releases
    "poisson", "wor", "wr"    a secret batch for psi, whose records are clipped whole so that the batch stays secret;
                              the loss comes from all records and is not handed s

At the same number of rounds the first needs the least noise. Bounds follow W_t, which is public: where predictions are
nearly independent of s there is little to hide.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm, Clip, Message, Number, Params, Record, Round, Server, Silo, Terms, recipe
from tacit.algorithms.output import index_of
from tacit.algorithms.sgda import Output, decayed, descent_ascent, shared_noise
from tacit.objectives import Ermi, Frequencies, Notion, Problem, Saddle, SaddleQuery, Tap, ermi, gradient_at

_HISTOGRAM_SHARE = 0.05  # of the budget, which a private histogram takes


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
    round_index: jax.Array
    frequencies: jax.Array
    gradient: Params


class Design(NamedTuple):
    """What sets designs apart: the terms and clips of a step, whether it has the loss in it, and what comes before."""

    terms: Terms
    clips: Clip
    with_loss: bool = True
    before: tuple[tuple[str, Round], ...] = ()


@recipe
def steffle(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, strength: Number, passes: int = 1,
            frequencies: Frequencies | None = None, groups: int | None = None, rarest: float = 0.02, classes: int = 2,
            notion: Notion = "demographic-parity", favourable: int = 1, floor: float = 1e-3,
            dual_step_size: Number = 0.5, dual_clip_norm: Number | None = None, dual_share: Number = 0.5,
            radius: Number = 2.0, around_independence: bool = True, histogram_ratio: Number | None = None,
            decay: Number = 1.0, decay_every: int = 1, output: Output = "last", output_seed: int = 0,
            ) -> Algorithm:  # fmt: skip
    """SteFFLe on the model and loss of ``problem``; records have a field ``s`` with ``groups`` values.

    ``frequencies`` declares P_S public (one row, or one for each target); without it ``groups`` is needed and a private
    histogram comes first, floored at ``rarest``. ``clip_norm`` bounds, per record, the gradient (``protects="record"``,
    or that of strength x psi under a secret batch), else half of how far ``s`` can move it.
    """
    rows = classes if notion == "equalized-odds" else 1
    table = _table_of(frequencies, groups, rows, rarest)
    term = ermi(problem.objective.model, classes, table, notion=notion, floor=floor, favourable=favourable)
    steps, wanted = decayed(step_size, decay, decay_every), index_of("random", output_seed, 0, num_rounds - 1)
    ascend = descent_ascent(problem, steps, dual_step_size, output, wanted)

    def centre(table: jax.Array) -> jax.Array:
        """The best duals of an independent prediction, or zero."""
        return jnp.sqrt(table)[:, :, None] * jnp.full((1, 1, classes), float(around_independence))

    def init(params: Params) -> SteffleState:
        table = jnp.asarray(term.frequencies, jnp.float32)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SteffleState(params, centre(table), params, jnp.zeros((), jnp.int32), table, zeros)

    def tell(state: SteffleState, message: Message) -> SteffleState:
        total = jax.tree.map(jnp.add, state.gradient, message["params"])
        after: SteffleState = ascend(state, {**message, "params": total})
        middle = centre(state.frequencies)
        away = after.duals - middle
        near = away * jnp.minimum(1.0, radius / jnp.maximum(jnp.sqrt(jnp.sum(away**2)), 1e-12))
        return after._replace(duals=middle + near, gradient=jax.tree.map(jnp.zeros_like, state.gradient))

    design = _design(problem, terms, term, strength, dual_clip_norm)
    values, noise = len(term.frequencies[0]), shared_noise(dual_share)
    release = design.terms.release(clip=design.clips, noise=noise, groups=values, passes=passes)
    query = _step_query(problem, term, strength, with_loss=design.with_loss)
    rounds = {**dict(design.before), "step": Round(Silo(query, release), Server(_ask, tell))}
    schedule = tuple(rounds) * num_rounds
    if frequencies is None:
        ratio = _histogram_noise(terms, num_rounds, passes) if histogram_ratio is None else histogram_ratio
        rounds["histogram"] = _histogram_round(term, design.terms, ratio, rarest, centre)
        schedule = ("histogram", *schedule)
    return Algorithm(
        init,
        rounds,
        schedule,
        lambda state: state.params if output == "last" else state.chosen,
        info=lambda state: {"dependence": jnp.linalg.norm(state.duals - centre(state.frequencies))},
    )


def _ask(state: SteffleState) -> SteffleSays:
    """What the server says in every kind of round."""
    return SteffleSays(state.params, state.duals, state.frequencies)


def _step_query(problem: Problem, term: Ermi, strength: Any, *, with_loss: bool) -> SaddleQuery:
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


def _design(problem: Problem, terms: Terms, term: Ermi, strength: Number, dual_clip_norm: Number | None) -> Design:
    """The design that what is protected, and how batches are drawn, ask for."""
    if terms.protects == "record":
        return _whole_records(terms, term, dual_clip_norm)
    if terms.sampling in ("poisson", "wor", "wr"):
        return _secret_batch(problem, terms, term, dual_clip_norm)
    return _attribute_alone(problem, terms, term, strength, dual_clip_norm)


def _attribute_alone(
    problem: Problem, terms: Terms, term: Ermi, strength: Number, dual_clip_norm: Number | None
) -> Design:
    """The designs of full batches and of fixed epochs: features and target count as known, so a batch is no secret.

    What is bounded is half of how far ``s`` can move a record's gradients, for the worst pair of groups r, q:

        in W       2 (p_r^(-1/2) e_r - p_q^(-1/2) e_q) F^T
        in theta   2 strength J^T (p_r^(-1/2) W_r - p_q^(-1/2) W_q),    J the derivative of the probabilities F

    Both follow from what the server says.
    """
    steep = term.steepness(problem.lipschitz, problem.objective.cost)

    def clips(work: SteffleSays) -> dict[str, Any]:
        inverse = 1.0 / jnp.sqrt(work.frequencies)
        rare = jnp.sort(inverse**2, axis=1)[:, -2:]
        duals = jnp.sqrt(jnp.max(jnp.sum(rare, axis=1))) * term.longest
        params = jnp.asarray(terms.clip_norm, jnp.float32)
        if steep is not None:
            rows = inverse[:, :, None] * work.duals
            gaps = rows[:, :, None, :] - rows[:, None, :, :]
            params = jnp.minimum(params, strength * steep * jnp.sqrt(jnp.max(jnp.sum(gaps**2, axis=-1))))
        return {"params": params, "duals": _bounded(duals, dual_clip_norm)}

    return Design(terms, clips)


def _whole_records(terms: Terms, term: Ermi, dual_clip_norm: Number | None) -> Design:
    """Everything that a record says is clipped and noised, as in any other algorithm.

    The bound on a record's part in the duals is that of -2 W diag(F) + 2 p_s^(-1/2) e_s F^T, from what the server says.
    """

    def clips(work: SteffleSays) -> dict[str, Any]:
        rarest = jnp.max(1.0 / jnp.sqrt(work.frequencies))
        duals = 2.0 * (jnp.sqrt(jnp.sum(work.duals**2)) + rarest) * term.longest
        return {"params": jnp.asarray(terms.clip_norm, jnp.float32), "duals": _bounded(duals, dual_clip_norm)}

    return Design(replace(terms, protects="record"), clips)


def _secret_batch(problem: Problem, terms: Terms, term: Ermi, dual_clip_norm: Number | None) -> Design:
    """The attribute alone is protected and batches are drawn at random.

    Noise that hides ``s`` does not hide the rest of a record, which would tell who is in the batch, and amplification
    would be void. So records of the batch are clipped whole, for psi alone. The gradient of the loss comes from all
    records, in a round of its own that is not handed ``s``: it is free.
    """
    free = Terms(1.0, None, None, "full", channel="open", protects="sensitive-attribute")
    query = gradient_at(problem.objective, lambda work: work.params)

    def tell(state: SteffleState, message: Message) -> SteffleState:
        return state._replace(gradient=message)

    silo = Silo(query, free.release(groups=len(term.frequencies[0])), reads=("x", "y"))
    before = (("loss", Round(silo, Server(_ask, tell))),)
    return _whole_records(terms, term, dual_clip_norm)._replace(with_loss=False, before=before)


def _bounded(duals: jax.Array, dual_clip_norm: Any) -> jax.Array:
    """The bound on a record's part in the duals: the largest that can occur, or what is given if that is less."""
    return duals if dual_clip_norm is None else jnp.minimum(duals, dual_clip_norm)


def _table_of(frequencies: Frequencies | None, groups: int | None, rows: int, rarest: float) -> Frequencies:
    """The frequencies that are declared, one row or one for each target; else equal ones, to be released."""
    if frequencies is not None:
        values = np.shape(frequencies)[-1]
        if groups is not None and values != groups:
            raise ValueError(f"Expected groups={groups} frequencies in a row, got {values}.")
        return frequencies
    if groups is None or groups < 2:
        raise ValueError(
            f"Expected frequencies, or groups={groups} >= 2 to release them as a private histogram; declare "
            "frequencies that are public, or say how many values s takes."
        )
    if not 0 < rarest <= 1 / groups:
        raise ValueError(f"Expected 0 < rarest={rarest} <= 1/groups={1 / groups:.3g}; no group can be rarer.")
    return [[1.0 / groups] * groups] * rows


def _histogram_round(term: Ermi, terms: Terms, ratio: Any, rarest: float, centre: Any) -> Round:
    """The share of records in each cell (condition, group), with noise.

    A record is in one cell, less 1/cells everywhere, so that replacing it moves the mean by sqrt(2)/n at most. The
    frequencies are the mean of all messages, made positive and floored at ``rarest``, in rows that sum to one.
    """
    groups = len(term.frequencies[0])
    middle = 1.0 / (len(term.frequencies) * groups)

    def query(work: SteffleSays, record: Record) -> jnp.ndarray:
        return term.cell(record) - middle

    def tell(state: SteffleState, message: Message) -> SteffleState:
        shares = message + middle
        # Twice, so that what was raised to the floor stays there after the rows sum to one again.
        for _ in range(2):
            shares = shares / jnp.maximum(jnp.sum(jnp.maximum(shares, 0.0), axis=1, keepdims=True), 1e-6)
            shares = jnp.maximum(shares, rarest)
        table = shares / jnp.sum(shares, axis=1, keepdims=True)
        return state._replace(frequencies=table, duals=centre(table))

    half = (1.0 - middle if terms.protects == "record" else 0.5) ** 0.5
    release = terms.drawn(None, "full").release(clip=lambda work: half, noise=ratio, groups=groups)
    return Round(Silo(query, release), Server(_ask, tell), participants="all")


def _histogram_noise(terms: Terms, num_rounds: int, passes: int) -> float:
    """Noise of the histogram over that of a step, so that it takes its share of the budget where that is known."""
    if terms.sampling not in ("full", "one-pass"):
        return 10.0
    releases = num_rounds if terms.sampling == "full" else passes
    return float(((1 - _HISTOGRAM_SHARE) / (_HISTOGRAM_SHARE * releases)) ** 0.5)
