"""Fairness metrics: how far predictions depend on a group. A leaf: it sees predictions, never a model."""

from tacit.fairness.metrics import (
    chi_squared,
    demographic_parity_gap,
    demographic_parity_violation,
    equal_opportunity_gap,
    equalized_odds_gap,
    violations,
)

__all__ = [
    "chi_squared",
    "demographic_parity_gap",
    "demographic_parity_violation",
    "equal_opportunity_gap",
    "equalized_odds_gap",
    "violations",
]
