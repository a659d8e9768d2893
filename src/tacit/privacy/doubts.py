"""Budgets that are honest and still promise little: said where they are priced and where they are spent."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_EPSILON = 10.0
"""Above this a budget is said to promise little."""
MOST_DELTA = 0.1
"""A delta as large as this is refused: with that probability nothing is promised."""


def doubts(epsilons: Sequence[float | None], delta: float, records: Sequence[int]) -> list[str]:
    """Plain warnings about a budget; none where nothing is private.

    >>> doubts([1.0], 1e-6, [100])
    []
    >>> doubts([12.0], 0.02, [100])[0]
    'epsilon = 12 promises little: one record may change the odds of anything that others see by a factor of 2e+05.'
    """
    priced = [epsilon for epsilon in epsilons if epsilon is not None]
    if not priced:
        return []
    warnings, worst, smallest = [], max(priced), min(records)
    if worst > MOST_EPSILON:
        factor = f"a factor of {math.exp(worst):.0e}" if worst < 600 else "any factor"
        warnings.append(
            f"epsilon = {worst:.4g} promises little: one record may change the odds of anything that others see by "
            f"{factor}."
        )
    if delta * smallest > 1:
        warnings.append(
            f"delta = {delta:g} is above 1/{smallest}, one over the records of the smallest silo: publishing one "
            f"of its records at random would satisfy it. Choose delta well below, such as {1 / smallest**2:.0e}."
        )
    return warnings
