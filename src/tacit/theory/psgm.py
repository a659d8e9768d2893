"""CE-PSGM, its settings and the DIFF2 baselines: Theorems 4.1, 4.2, A.2 to A.4 and Table 1 with the numbers put in.

"Efficient Private Federated Non-Convex Optimization with Shuffled Model". The paper states orders of magnitude: rates
below bound E||grad F||^2 with every hidden constant and logarithm set to one, and compare methods with each other, not
with measurements. Corrections: the step is at most 1/(2L) as the proof asks (printed 1/L), both slopes are L and the
clip is G (C_1 = C_3 = L; printed C_1 = C_2 = L), Theorem A.3 has l and not l^2 in its error (its proof and Table 1),
and DIFF2-BVR-LSGD's local term has 1/R like that of CE-PSGM-FG, which it is said to match. Theorem 4.1 promises an
epsilon up to a constant, under conditions that its own experiment violates; what is certified here is the tight price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tacit.privacy import Condition
from tacit.privacy.statements import at_least, at_most
from tacit.theory.statement import TheoryError, check_positive


@dataclass(frozen=True, kw_only=True)
class PsgmSetting:
    """A smooth non-convex problem, a federation, a budget, and the work of a round.

    ``lipschitz`` (G) and ``smoothness`` (L) hold for each record's loss; ``gap`` (D_F) is F(x_0) less the optimum;
    ``heterogeneity`` (tau <= 2L) bounds how much silos' Hessians differ. M ``silos`` of n ``records`` each make R
    ``rounds``, each of K ``local_steps`` with batches of b records (``local_batch``) and estimates from K b records, or
    from all of them in the variants with full gradients.
    """

    lipschitz: float
    smoothness: float
    gap: float
    heterogeneity: float
    records: int
    silos: int
    dimension: int
    epsilon: float
    delta: float
    rounds: int
    local_steps: int
    local_batch: int

    def __post_init__(self) -> None:
        check_positive(self, may_be_zero="heterogeneity")
        if self.heterogeneity > 2 * self.smoothness:
            raise TheoryError(
                f"Expected heterogeneity={self.heterogeneity:g} <= 2 smoothness={2 * self.smoothness:g}: Hessians of "
                "smooth losses differ by no more."
            )

    @property
    def pooled(self) -> float:
        """M n epsilon."""
        return self.silos * self.records * self.epsilon

    @property
    def batch(self) -> int:
        """Records of one silo in an estimate, K b."""
        return self.local_steps * self.local_batch


@dataclass(frozen=True, kw_only=True)
class PsgmTheory:
    """A theorem with the numbers put in: arguments of the factory, the rate term by term, and conditions."""

    algorithm: str
    source: str
    parameters: Mapping[str, Any]
    terms: Mapping[str, float]
    conditions: tuple[Condition, ...]

    @property
    def rate(self) -> float:
        """The bound on E||grad F||^2, hidden constants set to one."""
        return math.fsum(self.terms.values())


def table_1(s: PsgmSetting) -> dict[str, dict[str, float]]:
    """Every row of Table 1, term by term.

    >>> s = PsgmSetting(lipschitz=1, smoothness=1, gap=1, heterogeneity=0.01, records=10**5, silos=100, dimension=100,
    ...                 epsilon=1, delta=1e-6, rounds=1000, local_steps=32, local_batch=32)
    >>> rates = {name: sum(terms.values()) for name, terms in table_1(s).items()}
    >>> rates["ce-psgm-fg"] < rates["mb-psgm-fg"]
    True
    """
    speed = s.gap * s.smoothness / s.rounds
    noise = (s.dimension * s.gap * s.smoothness * s.lipschitz) ** (2 / 3) / s.pooled ** (4 / 3)
    server = {"server": noise, "floor": s.dimension * (s.lipschitz / s.pooled) ** 2}
    sampled = {
        "sampling": (s.gap * s.smoothness * s.lipschitz / (s.silos * s.batch)) ** (2 / 3),
        "first batch": s.lipschitz**2 / (s.silos * s.batch * s.rounds),
    }
    ell = s.pooled / math.sqrt(s.rounds * s.dimension * s.silos * s.batch)
    louder = {**server, "server": (1 + ell + ell ** (1 / 3)) * server["server"]}
    local = {
        "heterogeneity": s.gap * s.heterogeneity / s.rounds,
        "local speed": speed / s.local_steps,
        "local sampling": speed / math.sqrt(s.batch),
        "local noise": speed * math.sqrt(s.dimension / (s.local_steps * s.epsilon)) / s.local_batch,
        "turns": s.gap * s.smoothness * math.sqrt(s.dimension / (s.rounds * s.silos)) / (s.records * s.epsilon),
    }
    diff2 = s.gap * s.smoothness * math.sqrt(s.dimension / s.rounds) / s.pooled
    return {
        "diff2-gd": {"speed": speed, "differences": diff2, "server": server["server"]},
        "mb-psgm-fg": {"speed": speed, **server},
        "prox-spider": {"speed": speed, **server},
        "mb-psgm": {"speed": speed, **sampled, **louder},
        "diff2-bvr-lsgd": {**local, "server": server["server"]},
        "ce-psgm-fg": {**local, **server},
        "ce-psgm": {**local, **sampled, **louder},
    }


def local_sigma(s: PsgmSetting) -> float:
    """Theorem 4.1's noise of local steps in units of C_3 ||w_k - w_{k-1}||, its constant set to one."""
    log = -math.log(s.delta)
    turns = s.local_steps * s.rounds * log / (s.silos * s.pooled * s.pooled / s.silos**2)
    return math.sqrt(max(turns, log / (s.local_batch**2 * s.epsilon)))


def ce_psgm_from_theory(s: PsgmSetting, *, full: bool = False) -> PsgmTheory:
    """Theorems 4.2 (A.2 with full gradients; A.3 and A.4 with one local step): parameters, rate and conditions.

    The first batch is n with full gradients; else the smallest that the theorem's 1/(R b_0) <= beta^2/(Kb) allows.
    """
    name = f"{'ce' if s.local_steps > 1 else 'mb'}-psgm{'-fg' if full else ''}"
    theorem = {"ce-psgm": "4.2", "ce-psgm-fg": "A.2", "mb-psgm": "A.3", "mb-psgm-fg": "A.4"}[name]
    descent = (s.gap * s.smoothness) ** (2 / 3) / s.lipschitz ** (4 / 3)
    weights = [s.pooled ** (2 / 3) * descent / (s.dimension ** (1 / 3) * s.rounds)]
    if not full:
        weights.append((s.silos * s.batch) ** (1 / 3) * descent / s.rounds ** (2 / 3))
    momentum = max(1 / s.rounds, min(weights))
    steps = [
        math.sqrt(momentum) * s.pooled / (math.sqrt(s.dimension * s.rounds) * s.local_steps * s.smoothness),
        1 / (2 * s.smoothness),
    ]
    if not full:
        steps.append(math.sqrt(momentum * s.silos * s.local_batch / s.local_steps) / s.smoothness)
    if s.local_steps > 1:
        steps.append(math.sqrt(s.local_batch / s.local_steps) / s.smoothness)
        steps.append(1 / (math.sqrt(s.local_steps * s.dimension) * s.smoothness * local_sigma(s)))
        if s.heterogeneity > 0:
            steps.append(1 / (s.local_steps * s.heterogeneity))
    first = s.records if full else min(s.records, math.ceil(s.batch / (s.rounds * momentum**2)))
    parameters: dict[str, Any] = {
        "step_size": min(steps),
        "num_rounds": s.rounds,
        "clip_norm": s.lipschitz,
        "batch_size": None if full else s.batch,
        "sampling": "full" if full else "wor",
        "first_batch_size": None if full else first,
        "difference_slope": s.smoothness,
        "momentum": min(momentum, 1.0),
    }
    if s.local_steps > 1:
        parameters |= {"local_steps": s.local_steps, "local_batch_size": s.local_batch, "local_slope": s.smoothness}
    return PsgmTheory(
        algorithm=name,
        source=f"CE-PSGM, Theorem {theorem}",
        parameters=parameters,
        terms=table_1(s)[name],
        conditions=_conditions(s, momentum, first, full),
    )


def _conditions(s: PsgmSetting, momentum: float, first: int, full: bool) -> tuple[Condition, ...]:
    log = -math.log(s.delta)
    conditions = [at_most("beta", momentum, "", 1.0), at_most("epsilon", s.epsilon, "ln(1/delta)", log)]
    if full:
        return (*conditions, at_least("Mn", s.silos * s.records, "ln(1/delta)/epsilon", log / s.epsilon))
    return (
        *conditions,
        at_most("1/(R b_0)", 1 / (s.rounds * first), "beta^2/(Kb)", momentum**2 / s.batch),
        at_least("M min(b_0, Kb)", s.silos * min(first, s.batch), "ln(1/delta)/epsilon", log / s.epsilon),
        at_most("Kb", s.batch, "n", s.records),
    )
