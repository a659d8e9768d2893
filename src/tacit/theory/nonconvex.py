"""Parameters and bounds of noisy proximal SGD, SVRG and SPIDER for losses that need not be convex.

Lowy, Ghafelebashi and Razaviyayn, "Private Non-Convex Federated Learning Without a Trusted Server"
(arXiv:2203.06735), Theorems 2.1 (E.1), 2.2 (E.2), 3.1 (F.1), 3.2 (F.2) and 3.3. The paper states orders of magnitude;
``bound`` is the same statement with its constants, re-derived from its proofs, with these corrections:

- Theorem F.1 asks q <= 1/(tau_2 eta)^2, for which its A may be negative; with x = q (tau_2 eta)^2 < 1/2 its own
  lines give A = eta (1/4 - x/2), and the bound below is what follows from that.
- Theorem E.2 takes R = 12 kappa, which needs a step 1/beta where its proof needs eta <= 1/(5 beta): a stage that
  halves the excess needs R = 6/(eta mu) >= 30 kappa rounds.
- Sampling M of N silos has a variance of the order L^2/M, not L^2/(Mn), and amplifies nothing.

Noise is the least that the budget allows. Through the shuffled sum all silos share one noise, which is priced as a
central Gaussian with 15% more deviation for its rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from tacit.privacy import Condition, gdp_mu
from tacit.privacy.statements import at_least, at_most
from tacit.theory.statement import Statement, TheoryError, check_positive

PAPER = "Lowy, Ghafelebashi and Razaviyayn (non-convex)"
Route = Literal["direct", "shuffled-sum"]
_ROUNDING = 1.15


@dataclass(frozen=True, kw_only=True)
class NonconvexSetting:
    """A composite problem, a federation and a budget.

    ``lipschitz`` (L) and ``smoothness`` (beta) hold for each record's smooth part; ``gap`` (Delta) bounds the excess
    risk of the initial point; ``pl`` (mu) is the proximal-PL constant where there is one. There are ``silos`` (N) of
    ``records`` (n) each, of whom ``participants`` (M; ``None``: all) come to a round. ``channel`` is ``"direct"``
    (ISRL-DP) or ``"shuffled-sum"`` (SDP).

    >>> s = NonconvexSetting(lipschitz=1, smoothness=1, gap=1, records=1000, silos=25, dimension=50, epsilon=1,
    ...                      delta=1e-6)
    >>> round(s.mu, 3), s.present
    (0.237, 25)
    """

    lipschitz: float
    smoothness: float
    gap: float
    records: int
    silos: int
    dimension: int
    epsilon: float
    delta: float
    pl: float | None = None
    participants: float | None = None
    channel: Route = "direct"

    def __post_init__(self) -> None:
        check_positive(self)
        if self.present > self.silos:
            raise TheoryError(f"Expected participants={self.participants} <= silos={self.silos}.")
        if self.pl is not None and self.pl > self.smoothness:
            raise TheoryError(f"Expected pl={self.pl:g} <= smoothness={self.smoothness:g}.")
        if self.channel == "shuffled-sum" and self.present < self.silos:
            raise TheoryError('Expected every silo in every round for channel="shuffled-sum".')

    @property
    def present(self) -> float:
        """How many silos come to a round: M, the reciprocal of the mean of 1/M_r where the number is random."""
        return self.silos if self.participants is None else self.participants

    @property
    def absent(self) -> float:
        """The share (N - M)/(N - 1) of a silo's deviation that sampling silos leaves in the variance of a mean."""
        return (self.silos - self.present) / max(self.silos - 1, 1)

    @cached_property
    def mu(self) -> float:
        """The budget as a Gaussian separation: all releases together must be mu-GDP."""
        return gdp_mu(self.epsilon, self.delta)

    @property
    def kappa(self) -> float:
        """The condition number beta/mu."""
        if self.pl is None:
            raise TheoryError("Expected pl, the proximal-PL constant; for none use prox_spider_from_theory.")
        return self.smoothness / self.pl

    def variance(self, sensitivity: float, multiplier: float) -> float:
        """E||noise of the mean message||^2 for silo means of this replace-one sensitivity."""
        one = self.dimension * (multiplier * sensitivity) ** 2
        if self.channel == "direct":
            return one / self.present
        return one * (_ROUNDING / self.present) ** 2

    @property
    def unit(self) -> float:
        """sqrt(d ln(1/delta)) / (eps n sqrt(M)), or / (eps n M) where the shuffler hides who said what."""
        heads = math.sqrt(self.present) if self.channel == "direct" else self.present
        return math.sqrt(self.dimension * -math.log(self.delta)) / (self.epsilon * self.records * heads)


def prox_sgd_from_theory(s: NonconvexSetting) -> Statement:
    """Theorem 2.1: one pass of noisy proximal SGD; the bound is on the population excess risk of proximal-PL losses.

    >>> s = NonconvexSetting(lipschitz=1, smoothness=1, pl=0.5, gap=1, records=20000, silos=25, dimension=20,
    ...                      epsilon=2, delta=1e-6)
    >>> found = prox_sgd_from_theory(s)
    >>> found.parameters["num_rounds"], found.bound < 0.02, found.failed
    (50, True, ())
    """
    kappa, floor = s.kappa, s.lipschitz**2
    useful = (s.pl or 0.0) * s.gap / floor * min(s.present * s.records, s.unit**-2)
    rounds = min(max(1, math.ceil(2 * kappa * math.log(max(useful, math.e)))), s.records)
    batch = s.records // rounds
    noise = s.variance(2 * s.lipschitz / batch, 1 / s.mu)
    spread = noise + floor / (s.present * batch) + s.absent * floor / s.present
    bound = s.gap * (1 - 1 / (2 * kappa)) ** rounds + 4 / (s.pl or 1.0) * spread
    return Statement(
        algorithm="prox-sgd",
        source=f"{PAPER}, Theorem 2.1",
        parameters={
            "step_size": 1 / (2 * s.smoothness),
            "num_rounds": rounds,
            "clip_norm": s.lipschitz,
            "noise_multiplier": 1 / s.mu,
            "batch_size": batch,
            "sampling": "one-pass",
            "channel": s.channel,
        },
        bound=bound,
        rate=floor / (s.pl or 1.0) * (kappa**2 * s.unit**2 + kappa / (s.present * s.records)),
        lower_bound=floor / s.smoothness * s.unit**2 + floor / s.smoothness / (s.present * s.records),
        risk="population",
        conditions=(at_least("records", s.records, "kappa", kappa), _useful(bound, s.gap)),
        lower_conditions=_lower_conditions(s),
    )


def pl_svrg_from_theory(
    s: NonconvexSetting, *, phase_length: int = 2, seed: int = 0, most_rounds: int | None = None
) -> Statement:
    """Theorem 2.2 with full batches: the bound is on the empirical excess risk of proximal-PL losses.

    ``seed`` draws the iterate that each stage hands on, uniformly as the theorem asks. There are as many stages as make
    the bound least within ``most_rounds`` (one stage at least).
    """
    step = 1 / (5 * s.smoothness)
    length = phase_length * math.ceil(30 * s.kappa / phase_length)
    candidates = []
    for stages in range(1, 60 if most_rounds is None else max(2, min(60, most_rounds // length + 1))):
        multiplier = math.sqrt(stages * length) / s.mu
        noise = s.variance(2 * s.lipschitz / s.records, multiplier)
        noise += s.variance(4 * s.lipschitz / s.records, multiplier) if phase_length > 1 else 0.0
        floor = 3 / (s.pl or 1.0) * (noise / 2 + s.absent * s.lipschitz**2 / s.present)
        shrinkage = 3 / (step * (s.pl or 1.0) * length)
        candidates.append((s.gap * shrinkage**stages + floor / (1 - shrinkage), stages, multiplier))
    bound, stages, multiplier = min(candidates)
    picks = np.random.default_rng(seed).integers(0, length, stages)
    return Statement(
        algorithm="pl-svrg" if stages > 1 else "prox-svrg",
        source=f"{PAPER}, Theorem 2.2",
        parameters={
            "step_size": step,
            "num_rounds": stages * length,
            "restarts": stages,
            "phase_length": phase_length,
            "picks": tuple(int(k) for k in picks),
            "clip_norm": s.lipschitz,
            "noise_multiplier": multiplier,
            "difference_noise": 1.0,
            "batch_size": None,
            "sampling": "full",
            "channel": s.channel,
        },
        bound=bound,
        rate=s.kappa * s.lipschitz**2 / (s.pl or 1.0) * s.unit**2,
        lower_bound=s.lipschitz**2 / s.smoothness * s.unit**2,
        risk="empirical",
        conditions=(_useful(bound, s.gap),),
        lower_conditions=_lower_conditions(s),
    )


def prox_spider_from_theory(s: NonconvexSetting, *, seed: int = 0, most_rounds: int = 10**7) -> Statement:
    """Theorems 3.1 and 3.2: the bound is on the expected squared norm of the proximal gradient mapping.

    Rounds (up to ``most_rounds``), phase and the share of noise for differences make the bound least, full batch. The
    iterate that is the output is drawn uniformly by ``seed``.

    >>> s = NonconvexSetting(lipschitz=1, smoothness=1, gap=1, records=20000, silos=25, dimension=20, epsilon=2,
    ...                      delta=1e-6)
    >>> found = prox_spider_from_theory(s)
    >>> found.parameters["phase_length"] > 1, found.lower_bound < found.bound < 0.5
    (True, True)
    """
    step = 1 / (2 * s.smoothness)
    bound, rounds, phase, ratio, multiplier = min(_spider_bounds(s, step, most_rounds))
    return Statement(
        algorithm="prox-spider",
        source=f"{PAPER}, Theorem {'3.1' if s.channel == 'direct' else '3.2'}",
        parameters={
            "step_size": step,
            "num_rounds": rounds,
            "phase_length": phase,
            "clip_norm": s.lipschitz,
            "difference_slope": s.smoothness,
            "noise_multiplier": multiplier,
            "difference_noise": ratio,
            "batch_size": None,
            "sampling": "full",
            "output": "random",
            "output_seed": seed,
            "channel": s.channel,
        },
        bound=bound,
        rate=(math.sqrt(s.lipschitz * s.smoothness * s.gap) * s.unit) ** (4 / 3) + s.lipschitz**2 * s.unit**2,
        lower_bound=stationarity_lower_bound(s),
        risk="empirical",
        conditions=(
            at_most("epsilon", s.epsilon, "2 ln(1/delta)", -2 * math.log(s.delta)),
            _useful(bound, s.lipschitz**2),
        ),
        lower_conditions=_lower_conditions(s),
    )


def _spider_bounds(
    s: NonconvexSetting, step: float, most_rounds: int
) -> Iterator[tuple[float, int, int, float, float]]:
    """(bound, rounds, phase, ratio of noises, multiplier) over a grid; silos that are absent add their deviation."""
    for rounds in np.unique(np.geomspace(1, most_rounds, 71).astype(int)):
        for phase in np.unique(np.geomspace(1, rounds, 25).astype(int)):
            anchors = -(-rounds // phase)
            for ratio in (0.5, 1.0, 2.0, 4.0, 8.0) if phase > 1 else (1.0,):
                multiplier = math.sqrt(anchors + (rounds - anchors) / ratio**2) / s.mu
                tau = s.variance(2 * s.lipschitz / s.records, multiplier) + s.absent * s.lipschitz**2 / s.present
                slope = s.variance(2 * s.smoothness / s.records, ratio * multiplier)
                slope += 4 * s.absent * s.smoothness**2 / s.present
                x = (phase * slope if phase > 1 else 0.0) * step**2
                if x < 0.5:
                    mean = (s.gap / rounds + step * tau / 2) / (step * (0.25 - x / 2))
                    yield float((2 + 2 * x) * mean + 2 * tau), int(rounds), int(phase), ratio, multiplier


def stationarity_lower_bound(s: NonconvexSetting) -> float:
    """Theorem 3.3: no algorithm of its class has a smaller E||grad||^2 on every problem, hidden constant set to one."""
    return s.lipschitz**2 * min(1.0, s.unit**2)


def _lower_conditions(s: NonconvexSetting) -> tuple[Condition, ...]:
    return (
        at_most("epsilon", s.epsilon, "sqrt(N)" if s.channel == "direct" else "", math.sqrt(s.silos)),
        at_most("delta", s.delta, "1/(nN)", 1 / (s.records * s.silos)),
    )


def _useful(bound: float, trivial: float) -> Condition:
    return at_most("bound", bound, "that of the initial point", trivial)
