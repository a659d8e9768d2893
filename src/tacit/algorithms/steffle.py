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

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import (
    Algorithm,
    Broadcast,
    Channel,
    Message,
    Number,
    Params,
    PerBlock,
    Protects,
    Record,
    Release,
    Round,
    Sampling,
    Server,
    Silo,
    State,
    Work,
)
from tacit.algorithms.fed_sgda import Output, output_of, server_half, shared_noise
from tacit.objectives import Ermi, Problem, Saddle, SaddleQuery, ermi, gradient_at
from tacit.objectives.fairness import Notion
from tacit.objectives.objective import Tap

_HISTOGRAM = 0.05  # the share of the budget that a private histogram takes


class SteffleSays(NamedTuple):
    """What the server says: both variables, and the frequencies of the groups, one row for each condition."""

    params: Params
    duals: Array
    frequencies: Array


class SteffleState(NamedTuple):
    """As `SgdaState`, with the frequencies, and the gradient of the loss where it comes as a message of its own."""

    params: Params
    duals: Array
    chosen: Params
    number: Array
    key: Array
    frequencies: Array
    gradient: Params


def steffle(
    problem: Problem,
    *,
    step_size: Number,
    num_rounds: int,
    clip_norm: Number,
    noise_multiplier: Number,
    batch_size: Number | None,
    sampling: Sampling,
    strength: Number,
    frequencies: Sequence[float] | Sequence[Sequence[float]] | None = None,
    groups: int | None = None,
    classes: int = 2,
    notion: Notion = "demographic-parity",
    favourable: int = 1,
    protects: Protects = "sensitive-attribute",
    passes: int = 1,
    capacity: Number | None = None,
    channel: Channel = "direct",
    dual_step_size: Number = 0.5,
    dual_clip_norm: Number | None = None,
    dual_share: Number = 0.5,
    radius: Number = 2.0,
    around_independence: bool = True,
    floor: float = 1e-3,
    rarest: float = 0.02,
    histogram_ratio: Number | None = None,
    decay: Number = 1.0,
    decay_every: int = 1,
    output: Output = "last",
    output_seed: int = 0,
) -> Algorithm:
    """SteFFLe on the model and loss of ``problem``; records have a field ``s`` with ``groups`` values.

    ``frequencies`` declares P_S public (one row, or one for each target); without it ``groups`` is needed and a private
    histogram comes first, floored at ``rarest``. ``clip_norm`` bounds, per record, the gradient (``protects="record"``,
    or that of strength x psi under a secret batch), else half of how far ``s`` can move it.
    """
    term, private = _term(problem, frequencies, groups, classes, notion, favourable, floor, rarest)
    secret = protects == "sensitive-attribute" and sampling in ("poisson", "wor", "wr")
    whole = protects == "record" or secret
    kept: dict[str, Any] = {"channel": channel, "protects": "record" if whole else protects}
    kept |= {} if whole else {"groups": len(term.frequencies[0])}
    release = Release(
        clip=_clips(problem, term, strength, clip_norm, dual_clip_norm, whole),
        noise_multiplier=shared_noise(noise_multiplier, dual_share),
        batch_size=batch_size,
        sampling=sampling,
        capacity=capacity,
        passes=passes,
        **kept,
    )
    ascend = server_half(
        problem,
        step_size=step_size,
        dual_step_size=dual_step_size,
        radius=None,
        decay=decay,
        decay_every=decay_every,
        output=output,
    )

    def centre(table: Array) -> Array:
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

    game = _game(problem, term, strength, with_loss=not secret)
    query = SaddleQuery(game(term.frequencies), _point, lambda work: game(work.frequencies))
    step = Silo(query, release)
    rounds = {"step": Round(step, Server(_say, tell))}
    one: tuple[str, ...] = ("step",)
    if secret:
        rounds["loss"] = _loss_round(problem, len(term.frequencies[0]))
        one = ("loss", "step")
    schedule = one * num_rounds
    if private:
        ratio = _ratio(num_rounds, sampling, passes) if histogram_ratio is None else histogram_ratio
        noise = None if noise_multiplier is None else noise_multiplier * ratio
        rounds["histogram"] = _histogram_round(term, rarest, centre, noise, kept)
        schedule = ("histogram", *schedule)
    return Algorithm(init, rounds, schedule, output_of(output))


def _term(
    problem: Problem,
    frequencies: Any,
    groups: int | None,
    classes: int,
    notion: Notion,
    favourable: int,
    floor: float,
    rarest: float,
) -> tuple[Ermi, bool]:
    """The fairness term, and whether its frequencies are yet to be released as a private histogram."""
    if frequencies is None:
        if groups is None or groups < 2:
            raise ValueError(
                f"Expected frequencies, or groups={groups} >= 2 to release them as a private histogram; declare "
                "frequencies that are public, or say how many values s takes."
            )
        if not 0 < rarest <= 1 / groups:
            raise ValueError(f"Expected 0 < rarest={rarest} <= 1/groups={1 / groups:.3g}; no group can be rarer.")
        rows = classes if notion == "equalized-odds" else 1
        table: Any = [[1.0 / groups] * groups] * rows
    else:
        table = frequencies
    term = ermi(problem.objective.model, classes, table, notion=notion, floor=floor, favourable=favourable)
    if groups is not None and len(term.frequencies[0]) != groups:
        raise ValueError(f"Expected groups={groups} frequencies in a row, got {len(term.frequencies[0])}.")
    return term, frequencies is None


def _say(state: SteffleState) -> SteffleSays:
    return SteffleSays(state.params, state.duals, state.frequencies)


def _point(work: SteffleSays) -> tuple[Params, Any]:
    return work.params, work.duals


def _game(problem: Problem, term: Ermi, strength: Number, *, with_loss: bool) -> Callable[[Any], Saddle]:
    """From frequencies, a function whose gradients are those of loss + strength psi in theta and of psi in W.

    So W ascends at its own pace, whatever the strength.
    """
    objective = problem.objective
    if objective.cost.smoothing is not None:
        raise ValueError("Expected a loss without smoothing; use logistic, softmax or squared.")

    def told(frequencies: Any) -> Saddle:
        table = jnp.asarray(frequencies, jnp.float32)

        def values(params: Params, duals: Array, records: Record, tap: Tap) -> Array:
            outputs = objective.model.apply(params, records["x"], tap)
            chances = term.chances(outputs)
            fair = term.values_at(chances, jax.lax.stop_gradient(duals), records, table)
            ascent = term.values_at(jax.lax.stop_gradient(chances), duals, records, table)
            plain = objective.cost.value(outputs, records["y"]) if with_loss else 0.0
            return plain + strength * fair + ascent

        def by_duals(params: Params, duals: Array, records: Record) -> Array:
            return term.dual_gradients_at(term.probabilities(params, records["x"]), duals, records, table)

        return Saddle(objective.model, objective.cost, term.init(), values, by_duals)

    return told


def _clips(
    problem: Problem, term: Ermi, strength: Number, clip_norm: Number, dual_clip_norm: Number | None, whole: bool
) -> Callable[[Work], PerBlock]:
    """What a record, or its ``s`` alone, may move: the given bounds, and where known the largest that can occur."""
    steep = jacobian_of(problem, term)
    longest = term.longest

    def clip(work: SteffleSays) -> PerBlock:
        inverse = 1.0 / jnp.sqrt(work.frequencies)
        rare = jnp.sort(inverse**2, axis=1)[:, -2:]
        if whole:
            # Of -2 W diag(F) + 2 p_s^(-1/2) e_s F^T.
            duals = 2.0 * (jnp.sqrt(jnp.sum(work.duals**2)) + jnp.max(inverse)) * longest
            params = jnp.asarray(clip_norm, jnp.float32)
        else:
            duals = jnp.sqrt(jnp.max(jnp.sum(rare, axis=1))) * longest
            params = jnp.asarray(clip_norm, jnp.float32)
            if steep is not None:
                rows = inverse[:, :, None] * work.duals
                gaps = rows[:, :, None, :] - rows[:, None, :, :]
                params = jnp.minimum(params, strength * steep * jnp.sqrt(jnp.max(jnp.sum(gaps**2, axis=-1))))
        bound = duals if dual_clip_norm is None else jnp.minimum(duals, dual_clip_norm)
        return {"params": params, "duals": bound}

    return clip


def jacobian_of(problem: Problem, term: Ermi) -> float | None:
    """A bound on the derivative of the probabilities, for a linear model on features of known norm."""
    cost, shape = problem.objective.cost, problem.objective.model.linear
    if problem.lipschitz is None or not isinstance(cost.slope, float | int) or shape is None:
        return None
    # The Lipschitz constant is that of the loss in its output times the norm of the features, bias included.
    return term.jacobian_bound(math.sqrt(max((problem.lipschitz / cost.slope) ** 2 - shape.bias, 0.0)))


def _loss_round(problem: Problem, groups: int) -> Round:
    """The gradient of the loss on all records, from a division that is not handed ``s``: free where s is protected."""
    release = Release(
        lambda work: 1.0, None, None, "full", channel="open", protects="sensitive-attribute", groups=groups
    )
    query = gradient_at(problem.objective, lambda work: work.params)

    def tell(state: SteffleState, message: Message) -> SteffleState:
        return state._replace(gradient=message)

    return Round(Silo(query, release, reads=("x", "y")), Server(_say, tell))


def _histogram_round(
    term: Ermi, rarest: float, centre: Callable[[Array], Array], noise: Any, kept: dict[str, Any]
) -> Round:
    """The share of records in each cell (condition, group), with noise; one record moves it by sqrt(2)/n at most."""
    cells = len(term.frequencies) * len(term.frequencies[0])
    middle = 1.0 / cells

    def query(work: Broadcast, record: Record) -> Array:
        return term.cell(record) - middle

    def tell(state: State, message: Message) -> State:
        shares = message + middle
        # Twice, so that what was raised to the floor stays there after the rows sum to one again.
        for _ in range(2):
            shares = shares / jnp.maximum(jnp.sum(jnp.maximum(shares, 0.0), axis=1, keepdims=True), 1e-6)
            shares = jnp.maximum(shares, rarest)
        table = shares / jnp.sum(shares, axis=1, keepdims=True)
        return state._replace(frequencies=table, duals=centre(table))

    half = math.sqrt(0.5) if "groups" in kept else math.sqrt(1.0 - middle)
    release = Release(lambda work: half, noise, None, "full", **kept)
    return Round(Silo(query, release), Server(_say, tell), participants="all")


def _ratio(rounds: int, sampling: Sampling, passes: int) -> float:
    """Noise of the histogram over that of a step, so that it takes its share of the budget where that is known."""
    if sampling not in ("full", "one-pass"):
        return 10.0
    releases = rounds if sampling == "full" else passes
    return float(np.sqrt((1 - _HISTOGRAM) / (_HISTOGRAM * releases)))
