"""Parameters and bounds of DP-mu^2.

Reshef and Levy, "Private and Federated Stochastic Convex Optimization: Efficient Strategies for Centralized Systems",
Theorems 5.2 (untrusted server) and 6.2 (trusted server). Their D is the diameter of the set: twice our radius.
"""

from __future__ import annotations

import math
from typing import Literal

from tacit.theory.convex import lower_bound, lower_bound_conditions
from tacit.theory.statement import ConvexSetting, Statement, TheoryError, says_something

PAPER = "Reshef and Levy (DP-mu^2)"


def mu2_sgd_from_theory(
    setting: ConvexSetting,
    *,
    channel: Literal["direct", "trusted"] = "direct",
    batch_size: int = 1,
    rho: float | None = None,
) -> Statement:
    """DP-mu^2 in one pass: T = n/K rounds, S = G + 2LD, sigma = 2S sqrt(T)/(K rho), and the theorem's step and bound.

    ``rho`` is the separation of the running sums; by default what the budget allows. The theorem's sigma, sigma_L and
    G*, which are not known, are at their largest: G, L and G.

    >>> s = ConvexSetting(lipschitz=39.6, smoothness=392.5, radius=0.05, records=600, silos=100, dimension=7850,
    ...                   epsilon=24.4, delta=1e-5)
    >>> found = mu2_sgd_from_theory(s, rho=4.0)
    >>> round(found.parameters["clip_norm"], 1), found.parameters["num_rounds"]
    (118.1, 600)
    """
    s = setting
    if s.smoothness is None:
        raise TheoryError("Expected smoothness for DP-mu^2; give beta, or smooth the loss first.")
    if s.present != s.silos:
        raise TheoryError(
            f"Expected participants={s.present} = silos={s.silos}: the theorem has every silo each round."
        )
    rounds, diameter, rho = s.records // batch_size, 2 * s.radius, s.mu if rho is None else rho
    if rounds < 1:
        raise TheoryError(f"Expected batch_size={batch_size} <= records={s.records}; one pass needs a batch.")
    largest = s.lipschitz + 2 * s.smoothness * diameter
    # How many independent noises are averaged: one per silo, or one in all of a sum of all silos.
    shared = math.sqrt(s.silos) if channel == "direct" else s.silos
    quiet = rho * shared * batch_size / (2 * largest * math.sqrt(s.dimension))
    step = min(quiet * diameter / rounds, 1 / (4 * s.smoothness * rounds))
    spread = s.lipschitz + 2 * diameter * s.smoothness
    sampled = spread / math.sqrt(rounds * s.silos * batch_size)
    bound = 4 * diameter * (largest / rounds + 1 / (quiet * rounds) + sampled)
    return Statement(
        algorithm="mu2-sgd",
        source=f"{PAPER}, Theorem {'5.2' if channel == 'direct' else '6.2'}",
        parameters={
            "step_size": step,
            "num_rounds": rounds,
            "clip_norm": largest,
            "noise_multiplier": math.sqrt(rounds) / rho,
            "batch_size": batch_size,
            "sampling": "one-pass",
            "channel": channel,
        },
        bound=bound,
        rate=_rate(s, shared),
        lower_bound=lower_bound(s) if channel == "direct" else _central_lower_bound(s),
        risk="population",
        conditions=(says_something(bound, s),),
        lower_conditions=lower_bound_conditions(s) if channel == "direct" else (),
    )


def _rate(s: ConvexSetting, shared: float) -> float:
    """O(1/sqrt(nM) + sqrt(d)/(eps n sqrt(M))), or with M in place of its root if the server is trusted."""
    scale = 2 * s.radius * (s.lipschitz + 4 * (s.smoothness or 0.0) * s.radius)
    return scale * (1 / math.sqrt(s.records * s.silos) + math.sqrt(s.dimension) / (s.epsilon * s.records * shared))


def _central_lower_bound(s: ConvexSetting) -> float:
    """The central lower bound of private stochastic convex optimisation (Bassily et al. 2019), constant one."""
    pooled = s.records * s.silos
    return s.lipschitz * s.radius * (1 / math.sqrt(pooled) + min(1.0, math.sqrt(s.dimension) / (s.epsilon * pooled)))
