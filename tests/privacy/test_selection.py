"""The best of K runs, enumerated exactly on small mechanisms, against the theorems that price it."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from tacit.privacy import PricingError, gdp_epsilon
from tacit.privacy.gaussian import gauss_delta
from tacit.privacy.selection import (
    MOST_TRIES,
    NegativeBinomial,
    epsilon_of_rdp,
    selected_rdp,
    selection_epsilon,
    selection_mu,
    watched_epsilon,
)

ORDERS = (1.05, 1.5, 2.0, 4.0, 16.0)
TRIES = (
    NegativeBinomial(1.0, 0.1),
    NegativeBinomial(0.0, 0.02),
    NegativeBinomial(-0.5, 0.01),
    NegativeBinomial(2.0, 0.3),
)


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    kept = p > 0
    return float(logsumexp(order * np.log(p[kept]) + (1 - order) * np.log(q[kept]))) / (order - 1)


@functools.cache
def table_of(tries) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of runs and their chances, as far as they matter."""
    numbers = np.arange(0, 4000)
    return numbers, np.array([tries.chance(int(number)) for number in numbers])


def both_ways(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return max(renyi(p, q, order), renyi(q, p, order))


def best_of(single: np.ndarray, tries) -> np.ndarray:
    """The distribution of the largest of K outcomes 0, 1, ...; the last entry is that of no run at all."""
    below = np.concatenate([[0.0], np.cumsum(single)])
    below[-1] = 1.0
    outcome = np.zeros(len(single) + 1)
    outcome[-1] = tries.chance(0)
    numbers, chances = table_of(tries)
    outcome[:-1] = chances[1:] @ np.diff(below[None, :] ** numbers[1:, None], axis=1)
    return outcome / outcome.sum()


def check(p: np.ndarray, q: np.ndarray, tries) -> float:
    """The bound holds at every order; returns how much of it is used at best."""
    used, best_p, best_q = 0.0, best_of(p, tries), best_of(q, tries)
    for order in ORDERS:
        bound = selected_rdp(order, lambda a: both_ways(p, q, a), tries)
        actual = both_ways(best_p, best_q, order)
        assert actual <= bound + 1e-9
        used = max(used, actual / max(bound, 1e-12))
    return used


@pytest.mark.parametrize("tries", TRIES, ids=str)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_best_of_randomised_responses_is_within_the_bound(tries, epsilon):
    truth = 1 / (1 + math.exp(-epsilon))
    p, q = np.array([truth, 1 - truth]), np.array([1 - truth, truth])
    assert check(p, q, tries) > 0.02


@settings(max_examples=25, deadline=None)
@given(
    raw=st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)), min_size=2, max_size=5),
    place=st.integers(0, len(TRIES) - 1),
)
def test_any_small_mechanism_is_within_the_bound(raw, place):
    p, q = (np.array(column) / sum(column) for column in zip(*raw, strict=True))
    check(p, q, TRIES[place])


def test_choosing_is_not_free():
    """Rare good outcomes that one world has more often: the best of many tells more than one run does."""
    p, q = np.array([0.99, 0.01]), np.array([0.98, 0.02])
    tries = NegativeBinomial(1.0, 0.01)
    assert both_ways(best_of(p, tries), best_of(q, tries), 2.0) > 5 * both_ways(p, q, 2.0)


@pytest.mark.parametrize("tries", TRIES, ids=str)
def test_distributions_of_tries(tries):
    numbers, chances = table_of(tries)
    assert chances.sum() == pytest.approx(1, abs=1e-9)
    assert (numbers * chances).sum() == pytest.approx(tries.mean, rel=1e-6)
    generator = np.random.default_rng(0)
    drawn = np.array([tries.draw(generator) for _ in range(3000)])
    spread = math.sqrt((numbers**2 * chances).sum() - tries.mean**2)
    assert abs(drawn.mean() - tries.mean) < 5 * spread / math.sqrt(3000)


def test_gaussian_runs_cost_between_one_and_all():
    tries, delta = NegativeBinomial.of_mean(20.0), 1e-6
    cost = selection_epsilon(0.2, tries, delta=delta)
    assert gdp_epsilon(0.2, delta) < cost < gdp_epsilon(0.2 * math.sqrt(20), delta)
    # Theorem 2 at one order and one hat-order, by hand, is never less than the minimum over both.
    rho, order, hat = 0.02, 12.0, 8.0
    by_hand = rho * order + (1 - 1 / hat) * rho * hat + math.log(1 / tries.gamma) / hat + math.log(20) / 11
    assert selected_rdp(order, lambda a: rho * a, tries) <= by_hand + 1e-12
    assert epsilon_of_rdp(lambda a: selected_rdp(a, lambda b: rho * b, tries), delta) == pytest.approx(cost)


def test_noise_fits_the_budget():
    tries = NegativeBinomial.of_mean(8.0)
    mu = selection_mu(2.0, tries, delta=1e-6)
    assert 1.99 < selection_epsilon(mu, tries, delta=1e-6) <= 2.0


def test_what_cannot_be_priced_is_refused():
    with pytest.raises(PricingError, match="lower the number of runs"):
        selection_mu(1e-7, NegativeBinomial.of_mean(1000.0), delta=1e-9)
    with pytest.raises(PricingError, match="order=1"):
        selected_rdp(1.0, lambda a: a, NegativeBinomial(1.0, 0.5))
    with pytest.raises(PricingError, match="more than one run"):
        NegativeBinomial.of_mean(1.0)
    with pytest.raises(PricingError, match="eta"):
        NegativeBinomial(-1.0, 0.5)


@pytest.mark.parametrize("tries", TRIES, ids=str)
def test_the_tail_is_bounded_from_above(tries):
    numbers, chances = table_of(tries)
    for number in (0, 1, 3, 20, 200):
        tail = chances[numbers > number].sum()
        assert tail - 1e-12 <= tries.beyond(number) <= 40 * tail + 1e-12


@pytest.mark.parametrize(("mean", "known"), [(4.0, 3.57), (10.0, 7.06), (50.0, 25.5)])
def test_whoever_watches_the_runs_learns_more_than_the_best_tells(mean, known):
    """What is sold for epsilon one against those who see the winner alone, against those who see K and the losers."""
    tries, delta = NegativeBinomial.of_mean(mean), 1e-6
    mu = selection_mu(1.0, tries, delta=delta)
    watched = watched_epsilon(mu, tries, delta=delta)
    assert watched == pytest.approx(known, rel=2e-3)

    def exact(epsilon: float) -> float:
        return sum(tries.chance(k) * float(gauss_delta(epsilon, mu * math.sqrt(k))) for k in range(1, 8000))

    assert exact(watched) <= delta < exact(watched * (1 - 1e-4))


def test_watching_a_number_that_hardly_varies_is_composition():
    """K is one, but for a chance that is smaller than delta pays for."""
    tries = NegativeBinomial(1.0, 1 - 1e-9)
    assert watched_epsilon(0.5, tries, delta=1e-6) == pytest.approx(gdp_epsilon(0.5, 1e-6), rel=1e-4)
    assert watched_epsilon(1e-9, tries, delta=1e-6) == 0.0


def test_numbers_of_runs_that_are_cut_are_charged_or_refused():
    many = NegativeBinomial.of_mean(1e5)
    assert many.beyond(MOST_TRIES) > 0.01
    for priced in (selection_epsilon, watched_epsilon):
        with pytest.raises(PricingError, match="lower the number of runs"):
            priced(0.1, many, delta=1e-6)
    with pytest.raises(PricingError, match="lower the number of runs"):
        selection_mu(3.0, many, delta=1e-6)
    some = NegativeBinomial.of_mean(6000.0)  # For its tail a large delta pays, and a small one does not.
    assert 1e-9 < some.beyond(MOST_TRIES) < 1e-5
    assert selection_epsilon(0.01, some, delta=0.1) > 0
    with pytest.raises(PricingError, match="too much of delta"):
        selection_epsilon(0.01, some, delta=1e-6)
