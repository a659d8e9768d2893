"""A claim of the literature that is provably exceeded.

The experiments of Lowy and Razaviyayn (arXiv:2106.09779) print the noise

    sigma^2 = 8 L^2 R ln(1/delta) / (n epsilon)^2

with batches of ``K = n sqrt(18/(4R))``, and the released code draws batches with replacement. A record and its
opposite, among records that are all alike, then give each round the worlds ``sum_k Bin(K, 1/n)(k) N(k/z, 1)`` and
``N(0, 1)``, with z the printed noise over 2L/K. These are the attacker's exact distributions, so
``delta(epsilon) = E_P[(1 - e^(epsilon - L))_+]`` with L the log-likelihood ratio: each trial of world P is a coin with
that chance of success, and the exact binomial bound of so many coins is a lower bound on delta(epsilon). Where it
exceeds the claimed delta, epsilon is exceeded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from tacit.audit.bounds import lower_rate
from tacit.privacy.statements import Setting
from tacit.privacy.theorems import multi_pass_experiments

RECORDS, ROUNDS, BATCH = 1234, 50, 370
EPSILONS = (6.0, 12.0, 18.0)
_CHUNK = 50_000


@dataclass(frozen=True)
class Exceeded:
    """A printed claim beside what an attack proves; the claim is refuted where the lower bound is larger."""

    epsilon_claimed: float
    epsilon_lower_bound: float
    delta: float
    confidence: float
    trials: int
    noise_multiplier: float
    records: int
    batch: int
    rounds: int
    source: str = "Experiments of arXiv:2106.09779 with replacement"

    @property
    def violated(self) -> bool:
        """Whether the claim is provably exceeded."""
        return self.epsilon_lower_bound > self.epsilon_claimed

    def as_json(self) -> dict[str, Any]:
        """The finding as plain data."""
        return {**asdict(self), "violated": self.violated}


def printed_claim(
    epsilon: float, *, trials: int, seed: int, confidence: float = 0.95, records: int = RECORDS, batch: int = BATCH
) -> Exceeded:
    """Attack the printed noise for this epsilon, at delta = 1/n^2, with batches drawn with replacement."""
    delta = 1 / records**2
    setting = Setting(records=records, num_rounds=ROUNDS, batch_size=batch, epsilon=epsilon, delta=delta, sampling="wr")
    [event] = multi_pass_experiments(setting).events
    generator = np.random.default_rng(seed)
    z = event.noise_multiplier
    rehearsal = _losses(generator, trials, records, batch, event.count, z)
    chosen = promising(rehearsal, delta, confidence)
    fresh = _losses(generator, trials, records, batch, event.count, z)
    bound = chosen if proven(generator, fresh, chosen, confidence) > delta else 0.0
    return Exceeded(epsilon, bound, delta, confidence, trials, z, records, batch, event.count)


def promising(losses: np.ndarray, delta: float, confidence: float) -> float:
    """The largest epsilon that as many fresh trials will prove, nearly for sure; rare losses are trusted by half."""
    candidates = np.linspace(0.0, float(losses.max()), 2000)
    for epsilon in candidates[::-1]:
        expected = float(-np.sum(np.expm1(np.minimum(epsilon - losses, 0.0))))
        sure = int(stats.poisson.ppf(1e-3, 0.5 * expected)) if expected > 0 else 0
        if lower_rate(sure, len(losses), 1 - confidence) > delta:
            return float(epsilon)
    return 0.0


def proven(generator: np.random.Generator, losses: np.ndarray, epsilon: float, confidence: float) -> float:
    """A lower bound on delta(epsilon): each loss is a coin, and coins are counted."""
    chances = -np.expm1(np.minimum(epsilon - losses, 0.0))
    successes = int(np.sum(generator.random(len(losses)) < chances))
    return lower_rate(successes, len(losses), 1 - confidence)


def _losses(
    generator: np.random.Generator, trials: int, records: int, batch: int, rounds: int, multiplier: float
) -> np.ndarray:
    """Log-likelihood ratios of whole transcripts drawn from the world with the record."""
    most = int(stats.binom.isf(1e-12, batch, 1 / records)) + 1
    times = np.arange(most + 1)
    with np.errstate(divide="ignore"):
        weights = stats.binom.logpmf(times, batch, 1 / records) - times**2 / (2 * multiplier**2)
    found = []
    for first in range(0, trials, _CHUNK):
        size = min(_CHUNK, trials - first)
        total = np.zeros(size)
        for _ in range(rounds):
            drawn = generator.binomial(batch, 1 / records, size) / multiplier + generator.standard_normal(size)
            terms = weights + drawn[:, None] * times / multiplier
            top = terms.max(axis=1)
            total += top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
        found.append(total)
    return np.concatenate(found)
