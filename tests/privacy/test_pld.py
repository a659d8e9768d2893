"""Composition through privacy loss distributions: against dp_accounting, closed forms and finer grids."""

import math
from functools import partial

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import Event, PricingError, gauss_delta, gdp_epsilon, price
from tacit.privacy.pld import Composition
from tacit.privacy.profiles import (
    poisson,
    profile_of,
    truncated_poisson,
    with_replacement,
    without_replacement,
)

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
EPSILONS = np.array([0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 8.0])


@pytest.mark.parametrize("z", [0.2, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5, 1.0])
def test_poisson_profile_is_dp_accountings(z, rate):
    theirs = GaussianPrivacyLoss(2 * z, sampling_prob=rate, adjacency_type=AdjacencyType.REPLACE)
    expected = np.asarray(theirs.get_delta_for_epsilon(EPSILONS))
    assert poisson(EPSILONS, multiplier=z, rate=rate) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("n", "k", "capacity", "z"), [(60, 6, 8, 1.0), (60, 6, 12, 0.6), (1234, 20, 30, 1.0)])
def test_truncated_poisson_is_dp_accountings(n, k, capacity, z):
    theirs = library.from_truncated_subsampled_gaussian_mechanism(
        n, k / n, capacity, 2 * z, value_discretization_interval=1e-3, neighboring_relation=REPLACE
    )
    expected = [theirs.get_delta_for_epsilon(e) for e in EPSILONS]
    ours = truncated_poisson(EPSILONS, multiplier=z, rate=k / n, records=n, capacity=capacity)
    assert ours == pytest.approx(expected, rel=1e-3, abs=1e-10)


def test_truncated_poisson_tends_to_poisson():
    plain = poisson(EPSILONS, multiplier=1.0, rate=0.02)
    gaps = [
        np.max(truncated_poisson(EPSILONS, multiplier=1.0, rate=0.02, records=1000, capacity=c) - plain)
        for c in (20, 30, 40, 60, 1000)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 1e-3
    assert gaps[3] < 1e-9
    assert gaps[4] == 0.0


@pytest.mark.parametrize(("n", "k", "z", "rounds"), [(1234, 8, 0.44, 50), (1234, 87, 2.15, 50), (500, 50, 1.0, 200)])
def test_poisson_epsilon_agrees_with_dp_accounting(n, k, z, rounds):
    theirs = PLDAccountant(REPLACE, value_discretization_interval=2e-4)
    theirs.compose(dp_accounting.PoissonSampledDpEvent(k / n, dp_accounting.GaussianDpEvent(2 * z)), rounds)
    event = Event(kind="g", noise_multiplier=z, count=rounds, records=n, batch=k, sampling="poisson")
    assert price([event], delta=1e-6).epsilon == pytest.approx(theirs.get_epsilon(1e-6), rel=2e-3)


def test_the_two_conventions_of_dp_accounting():
    """Under replace-one, PLDAccountant reads sigma/C and RdpAccountant reads sigma/(2C/K)."""
    delta = 1 / 1234**2
    event = Event(kind="g", noise_multiplier=10.0, count=50, records=9, batch=9, sampling="full")
    exact = price([event], delta=delta).epsilon
    pld, wrong = (PLDAccountant(REPLACE, value_discretization_interval=1e-3) for _ in range(2))
    pld.compose(dp_accounting.GaussianDpEvent(20.0), 50)
    wrong.compose(dp_accounting.GaussianDpEvent(10.0), 50)
    assert exact == pytest.approx(3.37, abs=0.006)
    assert pld.get_epsilon(delta) == pytest.approx(exact, rel=1e-3)
    assert wrong.get_epsilon(delta) == pytest.approx(7.41, abs=0.01)
    assert price([event], delta=delta, accountant="rdp").epsilon == pytest.approx(3.60, abs=0.006)


@pytest.mark.parametrize(("mu", "rounds"), [(0.03, 50), (0.5, 7), (3.0, 3), (1e-4, 1000)])
def test_gaussian_rounds_compose_to_the_closed_form(mu, rounds):
    composed = Composition([(partial(gauss_delta, mu=mu), rounds)], delta=1e-6)
    exact = gdp_epsilon(mu * math.sqrt(rounds), 1e-6)
    assert exact <= composed.epsilon_at(1e-6) <= exact * 1.001 + 1e-6


@pytest.mark.parametrize("name", ["wor", "wr", "poisson"])
@pytest.mark.parametrize(
    ("n", "k", "z", "rounds"), [(1234, 8, 4.0, 50), (1234, 87, 0.8, 1000), (10**6, 10, 0.5, 10**4)]
)
def test_the_grid_costs_less_than_a_thousandth(name, n, k, z, rounds):
    event = Event(kind="g", noise_multiplier=z, count=rounds, records=n, batch=k, sampling=name)
    parts = [(profile_of(event, z), rounds)]
    coarse = Composition(parts, 1e-6).epsilon_at(1e-6)
    fine = Composition(parts, 1e-6, refine=2).epsilon_at(1e-6)
    assert fine <= coarse * (1 + 1e-6)
    assert coarse <= fine * 1.001


def test_known_values_of_a_study():
    """n = 1234, R = 50, delta = 1/n^2, K = 87 at sigma = 0.0612 C."""
    for sampling, epsilon in (("wr", 0.99), ("wor", 0.97), ("poisson", 0.80)):
        event = Event(kind="g", noise_multiplier=0.0612 * 87 / 2, count=50, records=1234, batch=87, sampling=sampling)
        assert price([event], delta=1 / 1234**2).epsilon == pytest.approx(epsilon, abs=0.006)


@settings(max_examples=40, deadline=None)
@given(
    z=st.floats(0.2, 20),
    factor=st.floats(1.0, 4.0),
    k=st.integers(1, 60),
    name=st.sampled_from(["wor", "wr", "poisson"]),
)
def test_profiles_fall_with_noise_and_epsilon_and_grow_with_the_batch(z, factor, k, name):
    def profile(multiplier, batch):
        event = Event(kind="g", noise_multiplier=1.0, count=1, records=60, batch=batch, sampling=name)
        return profile_of(event, multiplier)(EPSILONS)

    base = profile(z, k)
    assert np.all(np.diff(base) <= 1e-15)
    assert np.all(profile(z * factor, k) <= base + 1e-13)
    # A larger batch at the same sigma/sensitivity is more likely to hold the record.
    assert np.all(profile(z, min(60, k + 7)) >= base - 1e-13)


@settings(max_examples=25, deadline=None)
@given(z=st.floats(0.15, 10), k=st.integers(1, 40), name=st.sampled_from(["wor", "wr", "poisson"]))
def test_profiles_are_convex_in_exp_epsilon(z, k, name):
    """Connecting dots needs convexity, together with the point (0, 1) and the mirrored half."""
    event = Event(kind="g", noise_multiplier=1.0, count=1, records=40, batch=k, sampling=name)
    a = np.linspace(1.0, 30.0, 400)
    d = profile_of(event, z)(np.log(a))
    assert np.all(np.diff(d, 2) >= -1e-12)
    slope_at_one = (d[1] - d[0]) / (a[1] - a[0])
    mirrored_slope = -(1 - d[0]) - slope_at_one  # derivative of 1 - a + a H(1/a) at 1, from below
    assert mirrored_slope <= slope_at_one + 1e-9


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0])
def test_one_draw_with_replacement_is_one_without(z):
    wr = with_replacement(EPSILONS, multiplier=z, draws=1, records=20)
    assert wr == pytest.approx(without_replacement(EPSILONS, multiplier=z, rate=1 / 20), rel=1e-10, abs=1e-15)


def test_tiny_deltas_are_refused_with_a_way_out():
    event = Event(kind="g", noise_multiplier=1.0, count=5, records=100, batch=10, sampling="poisson")
    with pytest.raises(PricingError, match=r'delta=1e-10 >= 1e-09.*sampling="full".*larger delta'):
        price([event], delta=1e-10)


def test_hopeless_noise_is_still_priced_by_the_unamplified_bound():
    event = Event(kind="g", noise_multiplier=0.01, count=10, records=1000, batch=500, sampling="wor")
    paid = price([event], delta=1e-6)
    assert paid.epsilon <= gdp_epsilon(100 * math.sqrt(10), 1e-6) * (1 + 1e-9)
    assert paid.epsilon > 1000
    long = Event(kind="g", noise_multiplier=0.03, count=10**5, records=8000, batch=322, sampling="wor")
    assert price([long], delta=1e-6).accountant == "gdp"
