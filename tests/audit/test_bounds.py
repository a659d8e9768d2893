"""Bounds that hold at their confidence, whatever the attack."""

import functools

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
    planned_guesses,
    upper_rate,
)
from tacit.privacy import gdp_epsilon, gdp_mu


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


DELTA = 1e-5


def one_run(rng, mu, claim, canaries=2000):
    """Bounds on mu and, directly, on epsilon from independent canaries seen at mu, guessed as `audit_training` does."""
    seen = mu / 2 + rng.normal(size=canaries)
    right = (seen > 0)[np.argsort(-np.abs(seen))]
    made = [(canaries, guesses, int(right[:guesses].sum())) for guesses in plan(canaries, claim)]
    direct = [one_run_epsilon(*own, delta=DELTA, confidence=0.975) for own in made]
    return max(proven(*own) for own in made), max(direct)


@functools.cache
def plan(canaries, claim):
    return tuple(planned_guesses(canaries, own, confidence=0.975) for own in (claim, 2 * claim))


@functools.cache
def proven(canaries, guesses, correct, confidence=0.975):
    return one_run_mu(canaries, guesses, correct, confidence=confidence)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_planned_guesses_hold_and_prove_most_of_a_known_truth(epsilon):
    rng, mu = np.random.default_rng(4), gdp_mu(epsilon, DELTA)
    found = np.asarray([one_run(rng, mu, mu) for _ in range(100)])
    assert np.mean(found[:, 0] > mu) <= 0.05
    assert np.mean(found[:, 1] > epsilon) <= 0.05
    shares = [gdp_epsilon(bound, DELTA) / epsilon for bound in found[:, 0] if bound > 0]
    all_right = int(2000 * special.ndtr(mu / 2))
    everything = gdp_epsilon(proven(2000, 2000, all_right, 0.95), DELTA) / epsilon
    assert sum(shares) / len(found) > max(0.4, 1.3 * everything)


@pytest.mark.parametrize(("epsilon", "least"), [(1.0, 0.5), (4.0, 0.95), (8.0, 0.95)])
def test_half_the_noise_is_caught_in_one_run(epsilon, least):
    rng, mu = np.random.default_rng(5), gdp_mu(epsilon, DELTA)
    assert np.mean([one_run(rng, 2 * mu, mu)[0] > mu for _ in range(60)]) >= least


@pytest.mark.parametrize("chance", [0.03, 0.05, 0.1])
@pytest.mark.parametrize("right", [0.75, 0.9])
def test_a_mechanism_that_shows_everything_at_once_is_not_refuted(chance, right):
    """All coins at once, each right with this probability, in a share ``chance`` of the runs, and nothing else.

    It meets the bound nearly: a looser count of the risk would be found out here.
    """
    rng, canaries, runs = np.random.default_rng(6), 400, 4000
    mu = float(special.ndtri(chance * right) - special.ndtri(chance * (1 - right)))
    told = np.where(rng.random(runs) < chance, right, 0.5)
    bounds = {k: proven(canaries, canaries, k, 0.95) for k in range(canaries // 2, canaries + 1, 4)}
    counts = rng.binomial(canaries, told) // 4 * 4
    found = np.asarray([bounds.get(int(k), 0.0) for k in counts])
    # Four deviations of a count of runs above the risk.
    assert np.mean(found > mu) <= 0.05 + 4 * np.sqrt(0.05 / runs)
    assert one_run_mu(canaries, canaries, int(right * canaries), confidence=1 - chance) > 0.97 * mu


def test_a_rule_looks_for_either_world():
    one, zero = np.zeros(1000), np.r_[np.zeros(500), -np.ones(500)]
    rule = best_rule(one, zero, 1000, lambda c, level: epsilon_lower_bound(c, 1e-5, level), calibrated=False)
    assert rule.side == -1
    assert rule.count(one, zero) == Counts(500, 0, 1000)
    assert Rule(1, -0.5).count(one, zero) == Counts(1000, 500, 1000)
