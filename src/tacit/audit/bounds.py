"""From counted errors of an attack to lower bounds on epsilon that hold at a stated confidence.

*Many runs.* An attack says "world one" or "world zero" about each of many transcripts. Its two rates are estimated on
trials that had no part in building it, with exact binomial intervals, so a bound holds whatever the attack is.

- If the mechanism is (epsilon, delta)-DP then every test has ``TPR <= e^epsilon FPR + delta``. So
  ``log((TPR_low - delta) / FPR_high)`` is a lower bound on epsilon, with no assumption at all.
- If the mechanism is mu-GDP then every test has ``Phi^-1(TPR) - Phi^-1(FPR) <= mu``. So the same difference of the
  bounds refutes every smaller mu; a claim that was derived from mu is refuted together with it. Read as an epsilon,
  it is the epsilon of the least noisy Gaussian that the trials still allow.

*One run.* Each of m canaries is a record in one of two versions, chosen by a fair coin; the attacker guesses coins from
the transcript of the one run. If swapping a version is (epsilon, delta)-DP, or mu-GDP, then so many guesses cannot be
right more often than these bounds allow, however the canaries interact. A mechanism that shows everything in one run of
twenty and nothing in the others meets them nearly (at 95%), so that from counts alone no more can be proven; what helps
is many canaries that do not hide each other, and the right number of guesses (`planned_guesses`).

References:
    Clopper, Pearson. The use of confidence or fiducial limits. Biometrika 1934.
    Nasr, Hayes, Steinke, Balle, Tramer, Jagielski, Carlini, Terzis. Tight auditing of differentially private machine
    learning. arXiv:2302.07956.
    Steinke, Nasr, Jagielski. Privacy auditing with one (1) training run. arXiv:2305.08846.
    Mahloujifar, Melis, Chaudhuri. Auditing f-differential privacy in one run. arXiv:2410.22235.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special, stats


class Counts(NamedTuple):
    """How often an attack said "world one", out of ``trials`` transcripts of each world."""

    true_positives: int
    false_positives: int
    trials: int


def lower_rate(successes: int, trials: int, risk: float) -> float:
    """The Clopper-Pearson bound that lies above the true rate with probability at most ``risk``.

    >>> round(lower_rate(50, 100, 0.025), 4)
    0.3983
    """
    return 0.0 if successes == 0 else float(special.betaincinv(successes, trials - successes + 1, risk))


def upper_rate(successes: int, trials: int, risk: float) -> float:
    """The Clopper-Pearson bound that lies below the true rate with probability at most ``risk``.

    >>> round(upper_rate(0, 100, 0.05), 4)
    0.0295
    """
    return 1.0 if successes == trials else float(special.betainccinv(successes + 1, trials - successes, risk))


def _both(counts: Counts, confidence: float) -> tuple[float, float]:
    """A lower bound on the TPR and an upper bound on the FPR that hold together at this confidence."""
    risk = (1 - confidence) / 2
    low = lower_rate(counts.true_positives, counts.trials, risk)
    return low, upper_rate(counts.false_positives, counts.trials, risk)


def epsilon_lower_bound(counts: Counts, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at this delta; zero if the attack shows nothing.

    >>> round(epsilon_lower_bound(Counts(9000, 10, 10000), 1e-5, 0.95), 2)
    6.19
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


def one_run_epsilon(canaries: int, guesses: int, correct: int, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon of a mechanism that let ``correct`` of ``guesses`` coins be told.

    >>> round(one_run_epsilon(1000, 200, 180, delta=1e-5, confidence=0.95), 2)
    1.8
    """
    return _largest(lambda epsilon: _p_value(canaries, guesses, correct, epsilon, delta) <= 1 - confidence, 50.0)


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely so many correct guesses are at most under (epsilon, delta)-DP (Theorem 5.2 of Steinke et al.)."""
    chance = 1 / (1 + math.exp(-epsilon))
    below = stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance)
    spread = float(np.max(np.cumsum(below) / np.arange(1, correct + 1), initial=0.0))
    return min(1.0, float(stats.binom.sf(correct - 1, guesses, chance)) + 2 * canaries * delta * spread)


def one_run_mu(canaries: int, guesses: int, correct: int, *, confidence: float) -> float:
    """Lower bound on mu of a mu-GDP mechanism that let ``correct`` of ``guesses`` coins be told.

    >>> round(one_run_mu(1000, 1000, 700, confidence=0.95), 2)
    0.36
    """
    return _largest(lambda mu: _refuted(mu, canaries, guesses, correct, 1 - confidence), 20.0)


def _refuted(mu: float, canaries: int, guesses: int, correct: int, risk: float) -> bool:
    """Whether mu-GDP makes so many correct guesses less likely than ``risk``.

    The recursion of Mahloujifar et al. starts from an assumed probability ``risk`` of at least ``correct`` correct
    guesses. It goes down to fewer, each step by the trade-off function, and ends in a total probability; above one
    (per guess) the assumption was wrong.
    """
    share = risk * guesses / canaries
    right, wrong = share * correct / guesses, share * (guesses - correct) / guesses
    for fewer in range(correct - 1, -1, -1):
        least = max(wrong, float(special.ndtr(special.ndtri(min(right, 1.0)) - mu)))
        right += fewer / (guesses - fewer) * (least - wrong)
        wrong = least
    return right + wrong > guesses / canaries


def planned_guesses(canaries: int, mu: float, *, confidence: float) -> int:
    """How many of the clearest coins to guess, so that a run is expected to prove most of a true mu.

    Few guesses are nearly all right, as no mechanism of a smaller mu lets them be; many leave less to chance. This
    looks at independent canaries, never at a transcript: `one_run_mu` holds for a number of guesses that is settled
    before the run, and for several such numbers that share the risk.

    >>> 50 < planned_guesses(1000, 0.92, confidence=0.95) < 250
    True
    """
    settled = np.unique(np.geomspace(1, canaries, 25).astype(int))
    return int(max(settled, key=lambda guesses: _expected_mu(canaries, int(guesses), mu, confidence)))


def _expected_mu(canaries: int, guesses: int, mu: float, confidence: float) -> float:
    """What the clearest of independent coins, each seen with Gaussian noise of separation mu, prove on average."""
    limit = stats.foldnorm.isf(guesses / canaries, mu / 2)
    right = min(1.0, float(special.ndtr(mu / 2 - limit)) * canaries / guesses)
    likely = np.asarray(stats.binom.ppf((0.1, 0.3, 0.5, 0.7, 0.9), guesses, right)).astype(int)
    return math.fsum(one_run_mu(canaries, guesses, correct, confidence=confidence) for correct in likely.tolist()) / 5


def _largest(refuted: Callable[[float], bool], limit: float) -> float:
    """The largest value that is refuted, from below; zero if none is."""
    if not refuted(1e-6):
        return 0.0
    low, high = 1e-6, limit
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
