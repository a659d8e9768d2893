"""From counted errors of an attack to lower bounds on epsilon that hold at a stated confidence.

An attack says "world one" or "world zero" about each of many transcripts. Its two rates are estimated on trials
that had no part in building it, with exact binomial intervals, so a bound holds whatever the attack is.

- If the mechanism is (epsilon, delta)-DP then every test has ``TPR <= e^epsilon FPR + delta``. So
  ``log((TPR_low - delta) / FPR_high)`` is a lower bound on epsilon, with no assumption at all.
- If the mechanism is mu-GDP then every test has ``Phi^-1(TPR) - Phi^-1(FPR) <= mu``. So the same difference of the
  bounds refutes every smaller mu; a claim that was derived from mu is refuted together with it. Read as an epsilon,
  it is the epsilon of the least noisy Gaussian that the trials still allow.

References:
    Clopper, Pearson. The use of confidence or fiducial limits. Biometrika 1934.
    Nasr, Hayes, Steinke, Balle, Tramer, Jagielski, Carlini, Terzis. Tight auditing of differentially private machine
    learning. arXiv:2302.07956.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy import special


class Counts(NamedTuple):
    """How often an attack said "world one", out of ``trials`` transcripts of each world."""

    true_positives: int
    false_positives: int
    trials: int

    @property
    def rates(self) -> tuple[float, float]:
        """The measured true-positive and false-positive rate."""
        return self.true_positives / self.trials, self.false_positives / self.trials


def lower_rate(successes: int, trials: int, risk: float) -> float:
    """The Clopper-Pearson bound that lies above the true rate with probability at most ``risk``.

    >>> round(lower_rate(50, 100, 0.025), 4)
    0.3983
    >>> lower_rate(0, 100, 0.025)
    0.0
    """
    return 0.0 if successes == 0 else float(special.betaincinv(successes, trials - successes + 1, risk))


def upper_rate(successes: int, trials: int, risk: float) -> float:
    """The Clopper-Pearson bound that lies below the true rate with probability at most ``risk``.

    >>> round(upper_rate(0, 100, 0.05), 4)
    0.0295
    >>> upper_rate(100, 100, 0.05)
    1.0
    """
    if successes == trials:
        return 1.0
    return float(special.betainccinv(successes + 1, trials - successes, risk))


def _both(counts: Counts, confidence: float) -> tuple[float, float]:
    """A lower bound on the TPR and an upper bound on the FPR that hold together at this confidence."""
    risk = (1 - confidence) / 2
    low = lower_rate(counts.true_positives, counts.trials, risk)
    return low, upper_rate(counts.false_positives, counts.trials, risk)


def epsilon_lower_bound(counts: Counts, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at this delta; zero if the attack shows nothing.

    >>> round(epsilon_lower_bound(Counts(9000, 10, 10000), 1e-5, 0.95), 2)
    6.19
    >>> epsilon_lower_bound(Counts(5000, 5000, 10000), 1e-5, 0.95)
    0.0
    """
    low, high = _both(counts, confidence)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def mu_lower_bound(counts: Counts, confidence: float) -> float:
    """Lower bound on mu of a mu-GDP mechanism; zero if the attack shows nothing.

    >>> round(mu_lower_bound(Counts(69146, 30854, 100000), 0.95), 3)
    0.984
    """
    low, high = _both(counts, confidence)
    if low <= 0.0 or high >= 1.0:
        return 0.0
    return max(0.0, float(special.ndtri(low) - special.ndtri(high)))
