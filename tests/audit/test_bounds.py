"""Bounds that hold at their confidence, whatever the attack."""

import numpy as np
import pytest
from scipy import special, stats

from tacit.audit.attack import Rule, best_rule
from tacit.audit.bounds import (
    Counts,
    epsilon_lower_bound,
    lower_rate,
    mu_lower_bound,
    one_run_epsilon,
    one_run_mu,
    upper_rate,
)


@pytest.mark.parametrize(("successes", "trials"), [(0, 50), (1, 50), (20, 50), (50, 50)])
def test_rates_are_exact_binomial_bounds(successes, trials):
    interval = stats.binomtest(successes, trials).proportion_ci(0.95, "exact")
    assert lower_rate(successes, trials, 0.025) == pytest.approx(interval.low, abs=1e-9)
    assert upper_rate(successes, trials, 0.025) == pytest.approx(interval.high, abs=1e-9)


def test_a_gaussian_is_never_refuted_more_often_than_the_risk():
    rng = np.random.default_rng(0)
    mu, trials = 0.7, 2000
    tpr = special.ndtr(mu / 2)
    bounds = [
        mu_lower_bound(Counts(rng.binomial(trials, tpr), rng.binomial(trials, 1 - tpr), trials), 0.9)
        for _ in range(400)
    ]
    assert np.mean(np.asarray(bounds) > mu) < 0.1
    assert np.mean(bounds) > 0.8 * mu


def test_randomised_response_is_never_refuted_more_often_than_the_risk():
    rng = np.random.default_rng(1)
    epsilon, trials = 1.5, 5000
    truth = special.expit(epsilon)
    bounds = [
        epsilon_lower_bound(Counts(rng.binomial(trials, truth), rng.binomial(trials, 1 - truth), trials), 1e-6, 0.9)
        for _ in range(400)
    ]
    assert np.mean(np.asarray(bounds) > epsilon) < 0.1
    assert np.mean(bounds) > 0.9 * epsilon


def test_delta_is_taken_off():
    counts = Counts(200, 0, 10_000)
    assert epsilon_lower_bound(counts, 0.1, 0.95) == 0.0
    assert epsilon_lower_bound(counts, 1e-5, 0.95) > 3


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_one_run_bounds_hold_for_independent_coins(mu):
    rng = np.random.default_rng(2)
    canaries, guesses, found = 300, 100, []
    for _ in range(60):
        coins = rng.choice([-1, 1], canaries)
        seen = coins * mu / 2 + rng.normal(size=canaries)
        clearest = np.argsort(-np.abs(seen))[:guesses]
        correct = int(np.sum(np.sign(seen) == coins, where=np.isin(np.arange(canaries), clearest)))
        found.append(one_run_mu(canaries, guesses, correct, confidence=0.9))
    assert np.mean(np.asarray(found) > mu) <= 0.1
    assert np.mean(found) > 0.25 * mu


def test_one_run_randomised_response_is_not_refuted():
    rng = np.random.default_rng(3)
    epsilon = 1.0
    right = rng.binomial(500, special.expit(epsilon), 200)
    found = [one_run_epsilon(500, 500, int(c), delta=0.0, confidence=0.9) for c in right]
    assert np.mean(np.asarray(found) > epsilon) < 0.1
    assert np.mean(found) > 0.7 * epsilon


def test_a_rule_looks_for_either_world():
    one, zero = np.zeros(1000), np.r_[np.zeros(500), -np.ones(500)]
    rule = best_rule(one, zero, 1000, lambda c, level: epsilon_lower_bound(c, 1e-5, level), calibrated=False)
    assert rule.side == -1
    assert rule.count(one, zero) == Counts(500, 0, 1000)
    assert Rule(1, -0.5).count(one, zero) == Counts(1000, 500, 1000)
