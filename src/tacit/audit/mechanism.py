"""The mechanism audit: a lower bound on epsilon beside the epsilon that is claimed, for any algorithm.

Three sets of trials that share nothing: one to fit the attack, one to choose its threshold, one to count. The
confidence is that of the last alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from tacit.algorithm import Algorithm
from tacit.audit.attack import Model, Scene, best_rule, fit, strongest
from tacit.audit.bounds import Counts, epsilon_lower_bound, mu_lower_bound
from tacit.audit.worst_case import Canary
from tacit.errors import TacitError, unknown
from tacit.privacy import Price, gdp_epsilon

CONFIDENCES = (0.95, 0.99, 0.9999)
FEWEST_TRIALS = 1000
_CHUNK = 4096


class AuditError(TacitError):
    """An audit that cannot be made as asked."""


class Target(Protocol):
    """A silo that can be attacked."""

    @property
    def path(self) -> str:
        """``"door"``, or ``"simulated"`` where no daemon takes such a study."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with its noise."""

    def claim(self, kind: str | None) -> Price:
        """What is claimed about its releases, or about those of one kind."""

    def scenes(self, *, canary: Canary, kind: str | None, seed: int) -> Sequence[Scene]:
        """The worst scenes that are known for it; ``kind`` listens to one kind of round only."""


@dataclass(frozen=True)
class AuditResult:
    """What an attack found beside what was claimed.

    ``route`` is ``"gdp"`` where the bound went through mu, ``"direct"`` where it needed no assumption. ``bounds`` maps
    each confidence to its lower bound. ``path`` is that of the `Target`.
    """

    label: str
    path: str
    sampling: tuple[str, ...]
    canary: str
    route: str
    delta: float
    epsilon_claimed: float
    bounds: dict[float, float]
    confidence: float
    trials: int
    counts: Counts

    @property
    def epsilon_lower_bound(self) -> float:
        """The lower bound at the chosen confidence."""
        return self.bounds[self.confidence]

    @property
    def tightness(self) -> float | None:
        """Lower bound over claim; none where the claim is infinite."""
        usable = math.isfinite(self.epsilon_claimed) and self.epsilon_claimed != 0
        return self.epsilon_lower_bound / self.epsilon_claimed if usable else None

    @property
    def violated(self) -> bool:
        """Whether the attack proves more loss than is claimed."""
        return self.epsilon_lower_bound > self.epsilon_claimed

    def as_json(self) -> dict[str, Any]:
        """The result as plain data; an infinite claim is null."""
        return {
            "label": self.label,
            "path": self.path,
            "sampling": list(self.sampling),
            "canary": self.canary,
            "route": self.route,
            "delta": self.delta,
            "epsilon_claimed": self.epsilon_claimed if math.isfinite(self.epsilon_claimed) else None,
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "lower_bounds": {f"{c:g}": bound for c, bound in self.bounds.items()},
            "confidence": self.confidence,
            "trials": self.trials,
            "tightness": self.tightness,
            "true_positive_rate": self.counts.true_positives / self.counts.trials,
            "false_positive_rate": self.counts.false_positives / self.counts.trials,
            "violated": self.violated,
        }


def audit_mechanism(
    target: Target,
    *,
    trials: int,
    seed: int,
    label: str,
    canary: Canary = "opposite",
    kind: str | None = None,
    claim: Price | None = None,
    confidence: float = 0.95,
) -> AuditResult:
    """Attack the transcript of one silo in a schedule that was built for the attacker's problem.

    Formal guarantee: whatever the algorithm and the attack, if the silo's messages are as private as ``claim``
    (default: what the target itself claims), the lower bound exceeds the claimed epsilon with probability at most
    ``1 - confidence``. At a door that is over the system's entropy, and ``seed`` is not used; in the simulator it is
    over the seed.
    """
    if trials < FEWEST_TRIALS:
        raise AuditError(f"Expected trials={trials} >= {FEWEST_TRIALS}; fewer prove nothing.")
    if not 0.5 <= confidence < 1:
        raise AuditError(f"Expected 0.5 <= confidence={confidence} < 1; a common choice is 0.95.")
    if kind is not None and kind not in target.algorithm.rounds:
        raise AuditError(unknown("kind of round", kind, target.algorithm.rounds))
    claim = target.claim(kind) if claim is None else claim
    route = "gdp" if claim.mu is not None and math.isfinite(claim.mu) else "direct"
    scene = strongest(target.scenes(canary=canary, kind=kind, seed=seed))
    model = fit(scene, max(400, min(trials // 40, 5000)))
    # Rare events decide the direct route, so its threshold deserves more trials.
    one, zero = _scores(scene, model, max(400, trials // (8 if route == "direct" else 20)))
    strength = partial(_strength, route, claim.delta)
    rule = best_rule(one, zero, trials // 2, strength, calibrated=model.weights is None)
    counts = rule.count(*_scores(scene, model, trials // 2))
    levels = sorted({*CONFIDENCES, confidence})
    return AuditResult(
        label=label if target.path == "door" else f"{label}, {target.path}",
        path=target.path,
        sampling=tuple(sorted({e.sampling for e in claim.events if kind in (None, e.kind)})),
        canary=canary,
        route=route,
        delta=claim.delta,
        epsilon_claimed=claim.epsilon,
        bounds={level: _bound(route, claim.delta, level, counts) for level in levels},
        confidence=confidence,
        trials=2 * counts.trials,
        counts=counts,
    )


def _bound(route: str, delta: float, confidence: float, counts: Counts) -> float:
    strength = _strength(route, delta, counts, confidence)
    return strength if route == "direct" else gdp_epsilon(strength, delta)


def _strength(route: str, delta: float, counts: Counts, confidence: float) -> float:
    """What a threshold is chosen by; mu and epsilon rise together, and mu is quick."""
    if route == "direct":
        return epsilon_lower_bound(counts, delta, confidence)
    return mu_lower_bound(counts, confidence)


def _scores(scene: Scene, model: Model, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """The attack's numbers on fresh transcripts of world one and world zero, in chunks that fit into memory."""
    sizes = [min(_CHUNK, trials - first) for first in range(0, trials, _CHUNK)]
    one, zero = (np.concatenate([model.scores(scene.draw(w, size)) for size in sizes]) for w in (0, 1))
    return one, zero
