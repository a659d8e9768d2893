"""SteFFLe: private and fair federated learning by descent-ascent on loss + strength x ERMI.

Gupta, Poornash, Lowy and Razaviyayn, "A Stochastic Optimization Framework for Private and Fair Learning From
Decentralized Data" (arXiv:2411.07889), Algorithm 1. psi is the chi-squared fairness term of `tacit.objectives.ermi`.

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

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Round, Server, Silo, Terms, recipe
from tacit.algorithms.sgda import Output, decayed, descent_ascent, shared_noise
from tacit.algorithms.steffle import attribute, whole
from tacit.algorithms.steffle.frequencies import histogram_noise, histogram_round, table_of
from tacit.algorithms.steffle.game import Design, SteffleState, say, step_query
from tacit.objectives import Ermi, Frequencies, Notion, Problem, ermi


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
    table = table_of(frequencies, groups, rows, rarest)
    term = ermi(problem.objective.model, classes, table, notion=notion, floor=floor, favourable=favourable)
    values = len(term.frequencies[0])
    if groups is not None and values != groups:
        raise ValueError(f"Expected groups={groups} frequencies in a row, got {values}.")
    ascend = descent_ascent(problem, decayed(step_size, decay, decay_every), dual_step_size, output)

    def centre(table: jax.Array) -> jax.Array:
        """The best duals of an independent prediction, or zero."""
        return jnp.sqrt(table)[:, :, None] * jnp.full((1, 1, classes), float(around_independence))

    def init(params: Params) -> SteffleState:
        table = jnp.asarray(term.frequencies, jnp.float32)
        zeros = jax.tree.map(jnp.zeros_like, params)
        start = jnp.zeros((), jnp.int32), jax.random.key(output_seed), table, zeros
        return SteffleState(params, centre(table), params, *start)

    def tell(state: SteffleState, message: Message) -> SteffleState:
        total = jax.tree.map(jnp.add, state.gradient, message["params"])
        after: SteffleState = ascend(state, {**message, "params": total})
        middle = centre(state.frequencies)
        away = after.duals - middle
        near = away * jnp.minimum(1.0, radius / jnp.maximum(jnp.sqrt(jnp.sum(away**2)), 1e-12))
        return after._replace(duals=middle + near, gradient=jax.tree.map(jnp.zeros_like, state.gradient))

    design = _design(problem, terms, term, strength, dual_clip_norm)
    release = design.terms.release(clip=design.clips, noise=shared_noise(dual_share), groups=values, passes=passes)
    query = step_query(problem, term, strength, with_loss=design.with_loss)
    rounds = {**dict(design.before), "step": Round(Silo(query, release), Server(say, tell))}
    schedule = tuple(rounds) * num_rounds
    if frequencies is None:
        noise = histogram_noise(terms, num_rounds, passes) if histogram_ratio is None else histogram_ratio
        rounds["histogram"] = histogram_round(term, design.terms, noise, rarest, centre)
        schedule = ("histogram", *schedule)
    return Algorithm(
        init,
        rounds,
        schedule,
        lambda state: state.params if output == "last" else state.chosen,
        info=lambda state: {"dependence": jnp.linalg.norm(state.duals - centre(state.frequencies))},
    )


def _design(problem: Problem, terms: Terms, term: Ermi, strength: Number, dual_clip_norm: Number | None) -> Design:
    """The design that what is protected, and how batches are drawn, ask for."""
    if terms.protects == "record":
        return whole.design(terms, term, dual_clip_norm)
    if terms.sampling in ("poisson", "wor", "wr"):
        return whole.secret(problem, terms, term, dual_clip_norm)
    return attribute.design(problem, terms, term, strength, dual_clip_norm)
