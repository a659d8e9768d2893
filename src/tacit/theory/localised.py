"""Parameters and bound of localised accelerated minibatch SGD, for the population risk of silos that differ.

Gao, Lowy, Zhou and Wright (arXiv:2407.09690) state the rate

    L D (1/sqrt(nN) + sqrt(d ln(1/delta)) / (epsilon n sqrt(N)))

for silos of any distributions, in about sqrt(beta D/L) (nN)^(1/4) rounds where noise is small. The constants here are
not theirs. They follow from this proof.

Phase i = 1 ... tau begins at w_{i-1} and has n_i records of each of N silos that no earlier phase has read. Let F_i be
their mean loss, u_i the minimum of F_i + (lambda_i/2)|w - w_{i-1}|^2, and u_0 an optimum of the population risk F.

1. Replacing one record moves u_i by at most 2L/(lambda_i n_i N). By that stability, and as u_i is a minimum,
   E F(u_i) - F(u) <= (lambda_i/2) E|u - w_{i-1}|^2 + 2L^2/(lambda_i n_i N) for every u that the records of phase i have
   no part in. No step of this compares the distributions of two silos.
2. With u = u_{i-1}, added up over phases, and F(w_tau) - F(u_tau) <= L|w_tau - u_tau|:
   E F(w_tau) - F(u_0) <= lambda_1 D^2/2 + sum_i 2L^2/(lambda_i n_i N) + sum_{i>1} (lambda_i/2) e_{i-1} + L sqrt(e_tau),
   where e_i bounds E|w_i - u_i|^2.
3. |u_i - w_{i-1}| <= L/lambda_i, as the gradient of F_i is at most L. A run of AC-SA from within such a distance comes
   to an objective within g (`tacit.theory.convex.acsa`, of smoothness beta + lambda_i) and so to a squared distance of
   at most 2g/lambda_i; restarts go on from there. Its variance is that of the noise alone: a round reads a whole part.

A record is in one part, so that T rounds of a phase cost it T releases, and noise of sqrt(T)/mu sensitivities is what a
budget of mu allows. Rounds, restarts, phases and lambda_1 are those of the least bound on a grid; of nearly equal ones
those of the fewest rounds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from tacit.theory.convex import _Noise, _smooth, _statement, acsa, rate
from tacit.theory.statement import ConvexSetting, Statement, TheoryError

RATIO = 4.0
"""Of lambda from phase to phase: parts halve, and yet the error of a phase counts less than that of the one before."""

_NEAR = 1.2  # bounds that count as equal


class _Plan(NamedTuple):
    """What is chosen, the steps of all stages, and the bound."""

    rounds: int
    restarts: int
    phases: int
    strength: float
    steps: tuple[float, ...]
    bound: float


def localised_mb_sgd_from_theory(setting: ConvexSetting, *, num_rounds: int | None = None) -> Statement:
    """Localised accelerated minibatch SGD with the least noise that the budget allows, in at most ``num_rounds``.

    >>> s = ConvexSetting(lipschitz=1, radius=1, smoothness=1, records=10**5, silos=50, dimension=10, epsilon=1,
    ...                   delta=1e-7)
    >>> found = localised_mb_sgd_from_theory(s)
    >>> found.failed, found.lower_bound < found.bound < 0.05, found.parameters["num_rounds"] < 10**4
    ((), True, True)
    """
    s = _smooth(setting, "population")
    if s.records < 2 or s.present != s.silos:
        raise TheoryError(f"Expected records={s.records} >= 2 and every silo in every round for localised-mb-sgd.")
    plan = _chosen(s, math.inf if num_rounds is None else num_rounds)
    size, multiplier = s.records // 2, math.sqrt(plan.rounds) / s.mu
    terms = {"batch_size": size, "sampling": "one-pass", "noise_multiplier": multiplier}
    own: dict[str, Any] = {
        "step_size": np.asarray(plan.steps),
        "num_rounds": plan.rounds * plan.phases,
        "phases": plan.phases,
        "restarts": plan.restarts,
        "strength": plan.strength,
        "clip_norm": s.lipschitz,
    }
    noise = _Noise(terms, multiplier * 2 * s.lipschitz / size, size, ())
    found = _statement("localised-mb-sgd", "", setting, s, own, noise, "population", plan.bound)
    smoothed = " on the Moreau envelope" if found.smoothing else ""
    return dataclasses.replace(found, source=f"Gao, Lowy, Zhou and Wright (localised), our constants{smoothed}")


def _chosen(s: ConvexSetting, most: float) -> _Plan:
    """The plan of the least bound on a grid, or one of fewer rounds that is nearly as good."""
    usual = rate(s, "population") / s.radius**2
    strengths = [usual * 2.0**k for k in range(-3, 7)]
    rounds = [2**k for k in range(13)]
    phases = range(1, max(2, min(12, int(math.log2(s.records)))))
    grid = itertools.product(rounds, (1, 2, 4, 8), phases, strengths)
    plans = [_planned(s, *point) for point in grid if point[1] <= point[0] <= most / point[2]]
    least = min(plan.bound for plan in plans)
    return min((p for p in plans if p.bound <= _NEAR * least), key=lambda p: (p.rounds * p.phases, p.bound))


def _planned(s: ConvexSetting, rounds: int, restarts: int, phases: int, strength: float) -> _Plan:
    """The bound of the module's docstring, and the steps that it is for."""
    assert s.smoothness is not None
    total, steps, error = strength * s.radius**2 / 2, [], 0.0
    for phase in range(phases):
        size, pull = (s.records // 2) >> phase, strength * RATIO**phase
        if size < 1:
            return _Plan(rounds, restarts, phases, strength, (), math.inf)
        variance = s.dimension * rounds * (2 * s.lipschitz / (size * s.mu)) ** 2 / s.silos
        total += 2 * s.lipschitz**2 / (pull * size * s.silos) + (pull * error / 2 if phase else 0.0)
        error = (s.lipschitz / pull) ** 2
        for _ in range(restarts):
            inverse, gap = acsa(s.smoothness + pull, error, rounds // restarts, variance)
            steps.append(1 / inverse)
            error = min(error, 2 * gap / pull)
    return _Plan(rounds, restarts, phases, strength, tuple(steps), total + s.lipschitz * math.sqrt(error))
