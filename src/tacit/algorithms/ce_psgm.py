"""CE-PSGM: a private STORM estimate of the gradient, then private SARAH steps at one silo in turn.

"Efficient Private Federated Non-Convex Optimization with Shuffled Model", Algorithm 1, after CE-LSGD (Patel et al.
2022) and STORM (Cutkosky and Orabona 2019). In round r = 0, 1, ..., R - 1, with x_{-1} = x_0:

    each record        says  clip(grad f(x_r) - grad f(x_{r-1}), C_1 ||x_r - x_{r-1}||)  and  clip(grad f(x_r), C_2)
    server             v_r = (1 - beta)(v_{r-1} + mean difference) + beta mean gradient,      beta = 1 at r = 0
    silo r mod M       w_0 = x_r, w_1 = x_r - eta v_r;  for k = 1, ..., H - 1:
                       v <- v + mean of clip(grad f(w_k) - grad f(w_{k-1}), C_3 ||w_k - w_{k-1}||) + noise
                       w_{k+1} = w_k - eta v
    server             x_{r+1} = w_H
    output             x_R, or w_k of round r for one of all (r, k), drawn uniformly in advance

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

from typing import Any, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Fixed, Number, Params, Randomiser, Round, Server, Silo, Terms, preset, recipe
from tacit.algorithms.differences import TwoPoints, check_phase, info_of, scheduled
from tacit.algorithms.noise_split import psgm_ratios
from tacit.algorithms.output import Output, index_of, keep_at
from tacit.algorithms.psgm_silo import estimate_silo, is_none, local_silo, local_terms
from tacit.objectives import Problem, gradient_at


class LocalPoint(NamedTuple):
    """What the server says to the silo in turn: the iterate, the one before it, and the estimate."""

    params: Params
    before: Params
    estimate: Params


class PsgmState(NamedTuple):
    """The iterate, the one before it, the running estimate of the gradient, the kept iterate, and rounds so far."""

    params: Params
    before: Params
    estimate: Params
    kept: Params
    round_index: jax.Array


class Options(TypedDict, total=False):
    """What every special case leaves open, as in `ce_psgm`."""

    step_size: Required[Number]
    num_rounds: Required[int]
    difference_slope: Required[Number]
    phase_length: int | None
    first_batch_size: Number | None
    difference_noise: Number | None
    randomiser: Randomiser
    output: Output
    output_seed: Number


class LocalOptions(Options, total=False):
    """What special cases with local steps leave open besides."""

    local_batch_size: Number | None
    local_slope: Number | None
    local_noise: Number | None


@recipe
def ce_psgm(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, local_steps: int,
            momentum: Number = 0.1, difference_slope: Number, difference_noise: Number | None = None,
            phase_length: int | None = None, first_batch_size: Number | None = None, randomiser: Randomiser = "auto",
            local_batch_size: Number | None = None, local_slope: Number | None = None, output: Output = "last",
            local_noise: Number | None = None, output_seed: Number = 0) -> Algorithm:  # fmt: skip
    """CE-PSGM; ``local_steps=1`` is MB-PSGM. The paper's channel is ``"shuffled-reports"``.

    ``momentum`` is the weight of fresh gradients, between 0 and 1; at 0 (known in advance) only differences are
    released between fresh starts. ``phase_length`` starts afresh every so many rounds (``None``: at the first only).
    ``first_batch_size`` and ``local_batch_size`` are ``batch_size`` unless they are given; batches of local steps are
    drawn without replacement. Differences have ``difference_noise`` times the noise multiplier of gradients, and local
    steps ``local_noise`` times; left out, they make the noise of all estimates least (`tacit.algorithms.noise_split`;
    ``terms.silos`` matters for local steps). ``local_slope`` is ``difference_slope`` unless it is
    given. ``output`` is the ``"last"`` iterate, one of all R H at ``"random"`` as in the paper (drawn in advance by
    ``output_seed``), or the index of one. Where it may lie between two rounds, the silo in turn says it besides its
    last point.
    """
    _check(num_rounds, local_steps, phase_length, momentum)
    _check_local(local_steps, local_batch_size=local_batch_size, local_slope=local_slope, local_noise=local_noise)
    step, last = jnp.asarray(step_size, jnp.float32), output == "last"
    # Iterates are numbered from the start, 0: that of local step k in round r is r H + k.
    wanted = index_of(output, output_seed, 1, num_rounds * local_steps)
    keep_round, keep_step = (None, None) if last else ((wanted - 1) // local_steps, (wanted - 1) % local_steps + 1)
    own = local_terms(terms, local_batch_size)
    shape = num_rounds, phase_length, local_steps, momentum
    ratio, louder = psgm_ratios(terms, own, shape, difference_slope, difference_noise, local_noise)
    first = terms if first_batch_size is None else terms.drawn(first_batch_size, terms.sampling, terms.capacity)
    gradient = Silo(gradient_at(problem.objective), first.release(randomiser=randomiser))
    estimate = estimate_silo(problem, terms, difference_slope, ratio, momentum, randomiser)
    servers = _servers(problem, step, momentum, local_steps, keep_round)
    rounds = {"gradient": Round(gradient, servers["gradient"]), "estimate": Round(estimate, servers["estimate"])}
    if local_steps > 1:
        slope = difference_slope if local_slope is None else local_slope
        local = local_silo(problem, own, step, local_steps - 1, slope, louder, keep_step)
        rounds["local"] = Round(local, servers["local"], "in turn")
    schedule = _schedule(num_rounds, local_steps, phase_length)
    kinds, info = scheduled(rounds, schedule), info_of(_two_points)
    return Algorithm(_start, kinds, schedule, lambda state: state.params if last else state.kept, info=info)


def _start(params: Params) -> PsgmState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return PsgmState(params, params, zeros, params, jnp.zeros((), jnp.int32))


def _two_points(state: PsgmState) -> TwoPoints:
    return TwoPoints(state.params, state.before)


def _servers(problem: Problem, step: jax.Array, momentum: Number, local_steps: int, keep: Any) -> dict[str, Server]:
    """The server half of each kind of round; ``keep`` is the round of which a point is kept (``None``: of none)."""

    def moved(state: PsgmState, params: Params, kept: Params, estimate: Params) -> PsgmState:
        kept = kept if keep is None else keep_at(state.round_index, keep, kept, state.kept)
        return PsgmState(params, state.params, estimate, kept, state.round_index + 1)

    def stepped(state: PsgmState, estimate: Params) -> PsgmState:
        """With one local step the server makes it; with more, the silo in turn goes on from here."""
        if local_steps > 1:
            return state._replace(estimate=estimate)
        params = problem.descend(state.params, estimate, step)
        return moved(state, params, params, estimate)

    def tell_estimate(state: PsgmState, message: Any) -> PsgmState:
        if is_none(momentum):
            return stepped(state, jax.tree.map(jnp.add, state.estimate, message))
        kept = jax.tree.map(jnp.add, state.estimate, message["difference"])
        return stepped(state, jax.tree.map(lambda g, v: momentum * g + (1 - momentum) * v, message["gradient"], kept))

    def ask_local(state: PsgmState) -> LocalPoint:
        return LocalPoint(state.params, state.before, state.estimate)

    def tell_local(state: PsgmState, said: Any) -> PsgmState:
        new, kept = (said, said) if keep is None else said
        return moved(state, new, kept, state.estimate)

    return {
        "gradient": Server(lambda state: state.params, stepped),
        "estimate": Server(_two_points, tell_estimate),
        "local": Server(ask_local, tell_local),
    }


def _schedule(num_rounds: int, local_steps: int, phase_length: int | None) -> tuple[str, ...]:
    starts = [r == 0 if phase_length is None else r % phase_length == 0 for r in range(num_rounds)]
    after = ("local",) if local_steps > 1 else ()
    return tuple(kind for fresh in starts for kind in (("gradient" if fresh else "estimate"), *after))


def _check(num_rounds: int, local_steps: int, phase_length: int | None, momentum: Number) -> None:
    check_phase(1 if phase_length is None else phase_length)
    if local_steps < 1:
        raise ValueError(f"Expected local_steps={local_steps} >= 1; one is MB-PSGM.")
    if isinstance(momentum, int | float) and not 0 <= momentum <= 1:
        raise ValueError(f"Expected 0 <= momentum={momentum} <= 1.")


def _check_local(local_steps: int, **given: Any) -> None:
    """Raise where local steps that nobody makes are given parameters."""
    for name, value in given.items():
        if local_steps == 1 and value is not None:
            raise ValueError(f"Expected {name} only with local_steps above 1, got local_steps=1; leave {name} out.")


@preset(ce_psgm, sampling="full")
def ce_psgm_fg(
    problem: Problem, terms: Terms, *, local_steps: int, momentum: Number = 0.1, **options: Unpack[LocalOptions]
) -> Fixed:
    """CE-PSGM-FG: estimates from every record."""
    return {}


@preset(ce_psgm)
def mb_psgm(problem: Problem, terms: Terms, *, momentum: Number = 0.1, **options: Unpack[Options]) -> Fixed:
    """MB-PSGM: no local steps."""
    return {"local_steps": 1}


@preset(ce_psgm, sampling="full")
def mb_psgm_fg(problem: Problem, terms: Terms, *, momentum: Number = 0.1, **options: Unpack[Options]) -> Fixed:
    """MB-PSGM-FG: no local steps, estimates from every record."""
    return {"local_steps": 1}


@preset(ce_psgm)
def diff2_gd(problem: Problem, terms: Terms, **options: Unpack[Options]) -> Fixed:
    """DIFF2-GD: differences and fresh starts. The paper's channel is ``"trusted"``."""
    return {"local_steps": 1, "momentum": 0.0}


@preset(ce_psgm)
def diff2_bvr_lsgd(problem: Problem, terms: Terms, *, local_steps: int, **options: Unpack[LocalOptions]) -> Fixed:
    """DIFF2-BVR-LSGD: DIFF2 with local steps at one silo in turn. The paper's channel is ``"trusted"``."""
    return {"momentum": 0.0}
