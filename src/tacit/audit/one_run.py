"""Lower bounds from one run with many canaries.

Each of m canaries is a record in one of two versions, chosen by a fair coin; the attacker guesses coins from the
transcript of the one run. If swapping a version is (epsilon, delta)-DP, or mu-GDP, then so many guesses cannot be right
more often than these bounds allow, however the canaries interact.

References:
    Steinke, Nasr, Jagielski. Privacy auditing with one (1) training run. arXiv:2305.08846.
    Mahloujifar, Melis, Chaudhuri. Auditing f-differential privacy in one run. arXiv:2410.22235.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats


def one_run_epsilon(canaries: int, guesses: int, correct: int, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon of a mechanism that let ``correct`` of ``guesses`` coins be told.

    >>> round(one_run_epsilon(1000, 200, 180, delta=1e-5, confidence=0.95), 2)
    1.8
    >>> one_run_epsilon(1000, 200, 100, delta=1e-5, confidence=0.95)
    0.0
    """
    return _largest(lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) <= 1 - confidence, 50.0)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely so many correct guesses are at most under (epsilon, delta)-DP (Theorem 5.2 of Steinke et al.)."""
    chance = 1 / (1 + math.exp(-epsilon))
    below = stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance)
    spread = float(np.max(np.cumsum(below) / np.arange(1, correct + 1), initial=0.0))
    return min(1.0, float(stats.binom.sf(correct - 1, guesses, chance)) + 2 * canaries * delta * spread)


def one_run_mu(canaries: int, guesses: int, correct: int, *, confidence: float) -> float:
    """Lower bound on mu of a mu-GDP mechanism that let ``correct`` of ``guesses`` coins be told.

    >>> round(one_run_mu(1000, 1000, 700, confidence=0.95), 2)
    0.36
    >>> one_run_mu(1000, 1000, 500, confidence=0.95)
    0.0
    """
    return _largest(lambda mu: _refuted(mu, canaries, guesses, correct, 1 - confidence), 20.0)


def _refuted(mu: float, canaries: int, guesses: int, correct: int, risk: float) -> bool:
    """Whether mu-GDP makes so many correct guesses less likely than ``risk``.

    The recursion of Mahloujifar et al.: from an assumed probability ``risk`` of at least ``correct`` correct guesses it
    goes down to fewer, each step by the trade-off function, and ends in a total probability; above one (per guess) the
    assumption was wrong.
    """
    share = risk * guesses / canaries
    right, wrong = share * correct / guesses, share * (guesses - correct) / guesses
    for number in range(correct - 1, -1, -1):
        least = max(wrong, float(special.ndtr(special.ndtri(min(right, 1.0)) - mu)))
        right += number / (guesses - number) * (least - wrong)
        wrong = least
    return right + wrong > guesses / canaries


def _largest(refuted: Callable[[float], bool], limit: float) -> float:
    """The largest value that is refuted, from below; zero if none is."""
    if not refuted(1e-6):
        return 0.0
    low, high = 1e-6, limit
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
