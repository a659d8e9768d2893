"""CE-PSGM: a private STORM estimate of the gradient, then private SARAH steps at one silo in turn.

"Efficient Private Federated Non-Convex Optimization with Shuffled Model", Algorithm 1, after CE-LSGD (Patel et al.
2022) and STORM (Cutkosky and Orabona 2019). In round r = 0, 1, ..., R - 1, with x_{-1} = x_0:

    each record        says  clip(grad f(x_r) - grad f(x_{r-1}), C_1 ||x_r - x_{r-1}||)  and  clip(grad f(x_r), C_2)
    server             v_r = (1 - beta)(v_{r-1} + mean difference) + beta mean gradient,      beta = 1 at r = 0
    silo r mod M       w_0 = x_r, w_1 = x_r - eta v_r;  for k = 1, ..., H - 1:
                       v <- v + mean of clip(grad f(w_k) - grad f(w_{k-1}), C_3 ||w_k - w_{k-1}||) + noise
                       w_{k+1} = w_k - eta v
    server             x_{r+1} = w_H; the output is x_R (the paper's is a random iterate)

    paper             here
    -----             ----
    R, H              num_rounds, local_steps (the first needs no record: its difference is zero)
    B_1, B_0          batch_size, first_batch_size
    B_2               local_batch_size
    beta              momentum
    C_1, C_2, C_3     difference_slope, clip_norm, local_slope
    epsilon_0         1 / noise_multiplier, through shuffled reports
    sigma             noise_multiplier x local_noise x 2 C_3 ||w_k - w_{k-1}|| / B_2

Both clips of differences are at most 2 C_2 here, which a difference of clipped gradients is anyway. The gradient is
taken at x_r: the paper prints x_{r-1}, with which its proof does not go through. The server estimate
travels through any channel: shuffled reports are the paper's; ``"trusted"`` and ``"shuffled-sum"`` add central noise,
``"direct"`` each silo's own. Local steps are always noised by the silo itself. Special cases:

    CE-PSGM-FG        sampling "full"
    MB-PSGM(-FG)      local_steps = 1: the server makes the only step
    DIFF2-GD, DIFF2-BVR-LSGD    Murata and Suzuki 2023 (arXiv:2302.03884): a trusted server, no momentum, and a fresh
                      gradient every ``phase_length`` rounds

Every clip follows from the broadcast, or from what the silo has released, alone: all messages together are
differentially private for each record whatever the server broadcasts. Both streams of a round are about one batch and
are priced as one release. Through shuffled reports the guarantee is shuffle DP; what is left without the shuffler is in
the plan.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import (
    Algorithm,
    Channel,
    Memory,
    Message,
    Number,
    Params,
    Randomiser,
    Record,
    Release,
    Round,
    Sampling,
    Server,
    Silo,
    Statistic,
    Work,
)
from tacit.algorithms.prox_spider import TwoPoints, check_phase, difference_clip, scaled
from tacit.objectives import Problem, gradient_at, gradient_difference, gradients


class PsgmState(NamedTuple):
    """The iterate, the one before it, and the running estimate of the gradient."""

    params: Params
    before: Params
    estimate: Params


class LocalWork(NamedTuple):
    """Where the silo in turn is: the point, the one before it, and its estimate of the gradient there."""

    new: Params
    old: Params
    estimate: Params


def ce_psgm(
    problem: Problem,
    *,
    step_size: Number,
    num_rounds: int,
    clip_norm: Number,
    noise_multiplier: Number,
    batch_size: Number | None,
    sampling: Sampling,
    difference_slope: Number,
    local_steps: int,
    momentum: Number = 0.1,
    phase_length: int | None = None,
    first_batch_size: Number | None = None,
    local_batch_size: Number | None = None,
    local_slope: Number | None = None,
    local_noise: Number = 1.0,
    difference_noise: Number = 1.0,
    capacity: Number | None = None,
    channel: Channel = "shuffled-reports",
    randomiser: Randomiser = "auto",
) -> Algorithm:
    """CE-PSGM; ``local_steps=1`` is MB-PSGM.

    ``momentum`` is the weight of fresh gradients, between 0 and 1; without any (0, known in advance) only differences
    are said between fresh starts. ``phase_length`` starts afresh every so many rounds (``None``: at the first only).
    ``first_batch_size`` and ``local_batch_size`` are ``batch_size`` unless they are given; batches of local steps are
    drawn without replacement. Differences have ``difference_noise`` times the noise multiplier of gradients, and local
    steps ``local_noise`` times. ``local_slope`` is ``difference_slope`` unless it is given.
    """
    _check(num_rounds, local_steps, phase_length, momentum)
    step = jnp.asarray(step_size, jnp.float32)
    terms: dict[str, Any] = {"capacity": capacity, "channel": channel, "randomiser": randomiser}
    first = batch_size if first_batch_size is None else first_batch_size

    def start(params: Params) -> PsgmState:
        return PsgmState(params, params, jax.tree.map(jnp.zeros_like, params))

    def stepped(state: PsgmState, estimate: Params) -> PsgmState:
        """With one local step the server makes it; with more, the silo in turn goes on from here."""
        if local_steps > 1:
            return state._replace(estimate=estimate)
        return PsgmState(_step(problem, state.params, estimate, step), state.params, estimate)

    def tell_estimate(state: PsgmState, said: Message) -> PsgmState:
        if _is_none(momentum):
            return stepped(state, jax.tree.map(jnp.add, state.estimate, said))
        kept = jax.tree.map(jnp.add, state.estimate, said["difference"])
        return stepped(state, _mixed(momentum, said["gradient"], kept))

    def tell_local(state: PsgmState, params: Params) -> PsgmState:
        return PsgmState(params, state.params, state.estimate)

    gradients = Release(lambda work: clip_norm, noise_multiplier, first, sampling, **terms)
    rounds = {
        "gradient": Round(Silo(gradient_at(problem.objective), gradients), Server(lambda s: s.params, stepped)),
        "estimate": Round(
            _estimate(problem, clip_norm, difference_slope, noise_multiplier, difference_noise, momentum)(
                batch_size, sampling, terms
            ),
            Server(lambda s: TwoPoints(s.params, s.before), tell_estimate),
        ),
    }
    if local_steps > 1:
        slope = difference_slope if local_slope is None else local_slope
        size = batch_size if local_batch_size is None else local_batch_size
        terms_of_steps = scaled(noise_multiplier, local_noise), size, channel == "open"
        local = _local(problem, step, local_steps, difference_clip(clip_norm, slope), *terms_of_steps)
        rounds["local"] = Round(local, Server(lambda s: s, tell_local), "in turn")
    schedule = _schedule(num_rounds, local_steps, phase_length)
    kinds = {kind: rounds[kind] for kind in sorted(set(schedule))}
    return Algorithm(start, kinds, schedule, lambda state: state.params)


def _estimate(
    problem: Problem, clip_norm: Number, slope: Number, noise: Number, difference_noise: Number, momentum: Number
) -> Any:
    """The silo half of a round after the first: differences, and fresh gradients where momentum weighs them."""
    new, old = (lambda work: work.new), (lambda work: work.old)
    difference = gradient_difference(problem.objective, new, old)
    loud, distance_clip = scaled(noise, difference_noise), difference_clip(clip_norm, slope)

    def both(work: Work, record: Record) -> Statistic:
        fresh, stale = gradients(problem.objective, (work.new, work.old), record)
        return {"difference": jax.tree.map(jnp.subtract, fresh, stale), "gradient": fresh}

    def silo(batch_size: Number | None, sampling: Sampling, terms: dict[str, Any]) -> Silo:
        if _is_none(momentum):
            return Silo(difference, Release(distance_clip, loud, batch_size, sampling, **terms))
        multipliers = None if noise is None else {"difference": loud, "gradient": noise}

        def clips(work: Work) -> dict[str, Any]:
            return {"difference": distance_clip(work), "gradient": clip_norm}

        return Silo(both, Release(clips, multipliers, batch_size, sampling, **terms))

    return silo


def _local(
    problem: Problem, step: Array, local_steps: int, clip: Any, noise: Number, size: Number | None, plain: bool
) -> Silo:
    """The silo half of the local phase: the first step is free, every other one is a release of a difference."""

    def start(state: PsgmState, memory: Memory) -> LocalWork:
        return LocalWork(_step(problem, state.params, state.estimate, step), state.params, state.estimate)

    def absorb(work: LocalWork, change: Statistic) -> LocalWork:
        estimate = jax.tree.map(jnp.add, work.estimate, change)
        return LocalWork(_step(problem, work.new, estimate, step), work.new, estimate)

    release = Release(clip, noise, size, "full" if size is None else "wor", channel="open" if plain else "direct")
    query = gradient_difference(problem.objective, lambda work: work.new, lambda work: work.old)
    return Silo(query, release, local_steps - 1, start, absorb, lambda work, memory: (work.new, memory))


def _step(problem: Problem, params: Params, estimate: Params, step: Array) -> Params:
    return problem.regulariser.prox(jax.tree.map(lambda w, v: w - step * v, params, estimate), step)


def _mixed(momentum: Number, fresh: Params, kept: Params) -> Params:
    return jax.tree.map(lambda g, v: momentum * g + (1 - momentum) * v, fresh, kept)


def _is_none(momentum: Number) -> bool:
    """Whether it is known in advance that fresh gradients have no weight."""
    return isinstance(momentum, int | float) and momentum == 0


def _schedule(num_rounds: int, local_steps: int, phase_length: int | None) -> tuple[str, ...]:
    starts = [r == 0 if phase_length is None else r % phase_length == 0 for r in range(num_rounds)]
    after = ("local",) if local_steps > 1 else ()
    return tuple(kind for fresh in starts for kind in (("gradient" if fresh else "estimate"), *after))


def _check(num_rounds: int, local_steps: int, phase_length: int | None, momentum: Number) -> None:
    check_phase(1 if phase_length is None else phase_length, num_rounds, None)
    if local_steps < 1:
        raise ValueError(f"Expected local_steps={local_steps} >= 1; one is MB-PSGM.")
    if isinstance(momentum, int | float) and not 0 <= momentum <= 1:
        raise ValueError(f"Expected 0 <= momentum={momentum} <= 1.")


def _preset(text: str, *, every_record: bool = False, channel: Channel = "shuffled-reports", **fixed: Any) -> Any:
    """CE-PSGM with some of its parameters settled; what is settled is no parameter any more."""

    def build(problem: Problem, **given: Any) -> Algorithm:
        twice = sorted(set(given) & set(fixed))
        if twice:
            raise TypeError(f"Expected no {twice[0]}: this preset settles it; use ce_psgm.")
        if every_record and given.get("sampling") != "full":
            raise ValueError('Expected sampling="full": the estimates use every record; use the preset without -fg.')
        return ce_psgm(problem, **{"channel": channel, **given, **fixed})

    signature = inspect.signature(ce_psgm)
    kept = [
        parameter.replace(default=channel) if name == "channel" else parameter
        for name, parameter in signature.parameters.items()
        if name not in fixed
    ]
    build.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    build.__doc__ = text
    return build


ce_psgm_fg = _preset("CE-PSGM-FG: estimates from every record.", every_record=True)
mb_psgm = _preset("MB-PSGM: no local steps.", local_steps=1)
mb_psgm_fg = _preset("MB-PSGM-FG: no local steps, estimates from every record.", every_record=True, local_steps=1)
diff2_gd = _preset(
    "DIFF2-GD: differences and fresh starts at a trusted server.", channel="trusted", local_steps=1, momentum=0.0
)
diff2_bvr_lsgd = _preset("DIFF2-BVR-LSGD: DIFF2 with local steps at one silo in turn.", channel="trusted", momentum=0.0)
