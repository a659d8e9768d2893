"""FedProx-SVRG, and FedProx-PL-SVRG with restarts.

Lowy, Ghafelebashi and Razaviyayn, "Private Non-Convex Federated Learning Without a Trusted Server", Algorithms 1 and 2
(arXiv:2203.06735); through the shuffled-sum channel they are Algorithms 8 and 9. In an epoch that starts at the
anchor a = w^0, for t = 0, ..., Q-1:

    anchor (t = 0)        g = mean_i [(1/n) sum over all records of clip_C(grad f(a; record)) + noise]
    difference (t > 0)    D_t = min(2C, C_s ||w^t - a||)
                          v^t = g + mean_i [(1/K) sum over the batch of clip_{D_t}(grad f(w^t; .) - grad f(a; .)) + ...]
    server                w^{t+1} = prox_{eta h}(w^t - eta v^t),      v^0 = g
    next epoch            a = w^Q
    next stage            starts at the iterate of this stage whose index was drawn in advance (or the last)

    paper     here
    -----     ----
    S         restarts
    E Q       num_rounds / restarts (every update is a round)
    Q         phase_length
    K         difference_batch_size
    L         clip_norm

Every message is the Gaussian mechanism on a clipped mean, so all of them together are differentially private for each
record whatever the server broadcasts. The difference at t = 0 is zero whatever the records are: it is not released
and costs nothing. The paper clips to 2C only; a ``difference_slope`` lets the noise shrink with the distance.
"""

from collections.abc import Sequence
from typing import NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm, Fixed, Number, Params, Round, Sampling, Server, Silo, Terms, preset, recipe
from tacit.algorithms.differences import TwoPoints, check_phase, difference_silo, scheduled
from tacit.algorithms.noise_split import anchored, difference_ratio
from tacit.algorithms.output import keep_at
from tacit.objectives import Problem, gradient_at


class SvrgState(NamedTuple):
    """The iterate, the anchor with its noisy gradient, the picked iterate of this stage, and the index of the round."""

    params: Params
    anchor: Params
    gradient: Params
    picked: Params
    round_index: jax.Array


class Options(TypedDict, total=False):
    """What FedProx-PL-SVRG leaves open, as in `prox_svrg`."""

    step_size: Required[Number]
    num_rounds: Required[int]
    phase_length: Required[int]
    difference_slope: Number | None
    difference_noise: Number | None
    difference_sampling: Sampling | None
    difference_batch_size: Number | None
    difference_capacity: Number | None
    picks: Sequence[int] | None


@recipe
def prox_svrg(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, phase_length: int,
              restarts: int = 1, picks: Sequence[int] | None = None, difference_slope: Number | None = None,
              difference_noise: Number | None = None, difference_sampling: Sampling | None = None,
              difference_batch_size: Number | None = None, difference_capacity: Number | None = None,
              ) -> Algorithm:  # fmt: skip
    """FedProx-SVRG; ``phase_length=1`` is noisy proximal minibatch SGD, and ``restarts > 1`` FedProx-PL-SVRG.

    Differences are clipped, noised and sampled as in ``prox_spider``. ``num_rounds`` counts the rounds of all stages,
    ``restarts`` of equal length. ``picks`` are, for each stage, the index within it of the iterate that it hands on
    (0 is its start; ``None``: its last); the paper draws them uniformly.
    """
    length, wanted = _stages(num_rounds, restarts, picks)
    check_phase(phase_length)
    steps = jnp.broadcast_to(jnp.asarray(step_size, jnp.float32), (num_rounds,))

    def init(params: Params) -> SvrgState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SvrgState(params, params, zeros, params, jnp.zeros((), jnp.int32))

    def start_of(state: SvrgState) -> Params:
        return keep_at(state.round_index % length, 0, state.picked, state.params)

    def move(state: SvrgState, estimate: Params) -> SvrgState:
        step, within = steps[state.round_index], state.round_index % length + 1
        params = problem.descend(state.params, estimate, step)
        picked = keep_at(within, wanted[state.round_index // length], params, state.picked)
        return state._replace(params=params, picked=picked, round_index=state.round_index + 1)

    def tell_anchor(state: SvrgState, gradient: Params) -> SvrgState:
        start = start_of(state)
        picked = keep_at(state.round_index % length, 0, start, state.picked)
        return move(state._replace(params=start, anchor=start, gradient=gradient, picked=picked), gradient)

    def tell_difference(state: SvrgState, change: Params) -> SvrgState:
        return move(state, jax.tree.map(jnp.add, state.gradient, change))

    def ask_difference(state: SvrgState) -> TwoPoints:
        return TwoPoints(state.params, state.anchor)

    others = terms.drawn(difference_batch_size, difference_sampling, difference_capacity)
    schedule = tuple("anchor" if r % length % phase_length == 0 else "difference" for r in range(num_rounds))
    least = difference_ratio(*anchored(schedule, "anchor"), difference_slope, terms, others)
    anchor = Silo(gradient_at(problem.objective), terms.release())
    ratio = least if difference_noise is None else difference_noise
    difference = difference_silo(problem, others, difference_slope, ratio)
    rounds = {
        "anchor": Round(anchor, Server(start_of, tell_anchor)),
        "difference": Round(difference, Server(ask_difference, tell_difference)),
    }
    last = picks is None
    return Algorithm(init, scheduled(rounds, schedule), schedule, lambda s: s.params if last else s.picked)


@preset(prox_svrg)
def pl_svrg(problem: Problem, terms: Terms, *, restarts: int, **options: Unpack[Options]) -> Fixed:
    """FedProx-PL-SVRG for proximal-PL losses: FedProx-SVRG, restarted at least once."""
    if restarts < 2:
        raise ValueError(f"Expected restarts={restarts} >= 2; one stage is prox-svrg.")
    return {}


def _stages(num_rounds: int, restarts: int, picks: Sequence[int] | None) -> tuple[int, jax.Array]:
    """The rounds of a stage, and the index of the iterate that each stage hands on."""
    if restarts < 1 or num_rounds % restarts:
        raise ValueError(f"Expected num_rounds={num_rounds} to be a multiple of restarts={restarts} >= 1.")
    length = num_rounds // restarts
    wanted = np.full(restarts, length) if picks is None else np.asarray(picks)
    if wanted.shape != (restarts,) or wanted.min() < 0 or wanted.max() > length:
        raise ValueError(f"Expected {restarts} picks from 0 to {length}, one per stage, got {picks}.")
    return length, jnp.asarray(wanted, jnp.int32)
