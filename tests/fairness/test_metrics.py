"""Violations are their definitions, and fairlearn's where the two coincide."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.fairness import chi_squared, violations

fairlearn = pytest.importorskip("fairlearn.metrics", reason="fairlearn is a development dependency")


def drawn(seed, n=120, classes=2, groups=2):
    rng = np.random.default_rng(seed)
    s, y = rng.integers(0, groups, n), rng.integers(0, classes, n)
    guess = np.where(rng.random(n) < 0.3 + 0.2 * s, y, rng.integers(0, classes, n))
    return guess, s, y


@pytest.mark.parametrize("groups", [2, 4])
def test_binary_violations_are_those_of_fairlearn(groups):
    for seed in range(5):
        guess, s, y = drawn(seed, groups=groups)
        found = violations(*map(jnp.asarray, (guess, s, y)), classes=2, group_count=groups)
        theirs = {"y_true": y, "y_pred": guess, "sensitive_features": s}
        assert float(found["parity_gap"]) == pytest.approx(fairlearn.demographic_parity_difference(**theirs), abs=1e-6)
        assert float(found["odds_gap"]) == pytest.approx(fairlearn.equalized_odds_difference(**theirs), abs=1e-6)
        assert float(found["opportunity_gap"]) == pytest.approx(
            fairlearn.equal_opportunity_difference(**theirs), abs=1e-6
        )
        overall = fairlearn.demographic_parity_difference(**theirs, method="to_overall")
        assert float(found["parity_violation"]) == pytest.approx(overall, abs=1e-6)


def by_hand(guess, s, y, classes):
    kinds = np.unique(s)

    def rate(event, given):
        return event[given].mean() if given.any() else None

    def gap(values):
        values = [v for v in values if v is not None]
        return max(values) - min(values) if values else 0.0

    parity = max(gap([rate(guess == u, s == r) for r in kinds]) for u in range(classes))
    overall = max(abs(rate(guess == u, s == r) - (guess == u).mean()) for u in range(classes) for r in kinds)
    odds = max(
        gap([rate(guess == u, (s == r) & kept) for r in kinds]) for u in range(classes) for kept in (y == u, y != u)
    )
    return {"parity_violation": overall, "parity_gap": parity, "odds_gap": odds}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.sampled_from([2, 3]), st.sampled_from([2, 3, 5]))
def test_many_classes_and_groups(seed, classes, groups):
    guess, s, y = drawn(seed, 60, classes, groups)
    found = violations(*map(jnp.asarray, (guess, s, y)), classes=classes, group_count=groups)
    for name, expected in by_hand(guess, s, y, classes).items():
        assert float(found[name]) == pytest.approx(expected, abs=1e-6)


def test_an_empty_group_takes_no_part():
    guess, s, y = drawn(0)
    two = violations(*map(jnp.asarray, (guess, s, y)), classes=2, group_count=2)
    three = violations(*map(jnp.asarray, (guess, s, y)), classes=2, group_count=3)
    for name, value in two.items():
        assert float(three[name]) == pytest.approx(float(value), abs=1e-7)


def test_the_divergence_vanishes_exactly_under_independence():
    s = jnp.asarray([0, 1] * 10)
    same = jnp.tile(jnp.asarray([[0.3, 0.7], [0.3, 0.7]]), (10, 1))
    apart = jnp.tile(jnp.asarray([[1.0, 0.0], [0.0, 1.0]]), (10, 1))
    assert abs(float(chi_squared(same, s, group_count=2))) < 1e-6
    assert float(chi_squared(apart, s, group_count=2)) == pytest.approx(1.0)
