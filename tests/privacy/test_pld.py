"""Composition through privacy loss distributions: against dp_accounting, closed forms and finer grids."""

import math
from functools import partial

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from tacit.privacy import Event, PricingError, gauss_delta, gdp_epsilon, price
from tacit.privacy.pld import PROFILE_ERROR, Composition, connect_dots, loss_scale, profile_range
from tacit.privacy.profiles import (
    _binomial_tail,
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


@pytest.mark.parametrize(
    ("n", "k", "z", "rounds"),
    # In the last a record is hardly ever drawn, and then shows: one large loss decides.
    [(1234, 8, 0.44, 50), (1234, 87, 2.15, 50), (500, 50, 1.0, 200), (10**4, 1, 0.25, 300)],
)
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


@pytest.mark.parametrize("count", [1, 2, 50, 10**4, 10**6])
@pytest.mark.parametrize("total", [1e-6, 0.05, 1.0, 20.0])
def test_gaussian_rounds_compose_to_the_closed_form(total, count):
    """Never below it, at any delta, and a few ten-thousandths above: the grid, all margins, and nothing else."""
    composed = Composition([(partial(gauss_delta, mu=total / math.sqrt(count)), count)], delta=1e-9)
    for delta in (1e-9, 1e-6, 1e-2):
        exact = gdp_epsilon(total, delta)
        assert exact <= composed.epsilon_at(delta) <= exact * 1.0003
        assert composed.delta_at(exact) >= float(gauss_delta(exact, total))


def test_one_gaussian_beside_millions_of_small_ones():
    """Each kind has a grid of its own; one for all would add a third to the variance of the small ones."""
    small, large = 1 / math.sqrt(10**7), 1.0
    parts = [(partial(gauss_delta, mu=small), 10**7), (partial(gauss_delta, mu=large), 1)]
    exact = gdp_epsilon(math.sqrt(2), 1e-9)
    assert exact <= Composition(parts, delta=1e-9).epsilon_at(1e-9) <= exact * 1.0003


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


def exact_poisson(epsilon, z, q):
    e, q, c = mpmath.mpf(epsilon), mpmath.mpf(q), 1 / (2 * mpmath.mpf(z))
    x = (e / 2 + mpmath.asinh(mpmath.sinh(e / 2) * (1 - q) / q * mpmath.exp(c * c / 2))) / c
    upper, middle, lower = (mpmath.erfc(y / mpmath.sqrt(2)) / 2 for y in (x - c, x, x + c))
    return q * (upper - mpmath.exp(e) * lower) - (1 - q) * mpmath.expm1(e) * middle


@pytest.mark.parametrize("z", [0.01, 0.1, 1.0, 30.0, 1e3, 1e5])
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.5, 0.999999])
def test_profiles_are_as_exact_as_the_composition_counts_on(z, rate):
    """Relatively, down to deltas that only a million releases make matter: nothing is subtracted."""
    scale = loss_scale(partial(poisson, multiplier=z, rate=rate))
    with mpmath.workdps(60):
        for epsilon in scale * np.array([1e-6, 0.1, 1.0, 5.0, 9.0, 40.0]):
            exact = exact_poisson(float(epsilon), z, rate)
            if exact > 1e-30:
                found = float(poisson(np.array([epsilon]), multiplier=z, rate=rate)[0])
                assert abs(found / exact - 1) < PROFILE_ERROR / 10


@pytest.mark.parametrize(("trials", "chance"), [(87, 1 / 1234), (10**6, 1e-6), (10**6, 0.5), (10**7, 0.01)])
def test_binomial_tails_are_as_exact_as_the_composition_counts_on(trials, chance):
    mean, spread = trials * chance, math.sqrt(trials * chance * (1 - chance))
    with mpmath.workdps(40):
        p = mpmath.mpf(chance)
        for k in sorted({math.floor(mean + x * spread) for x in (0, 2, 6, 10)}):
            j, exact = k + 1, mpmath.mpf(0)
            ways = mpmath.loggamma(trials + 1) - mpmath.loggamma(j + 1) - mpmath.loggamma(trials - j + 1)
            term = mpmath.exp(ways + j * mpmath.log(p) + (trials - j) * mpmath.log1p(-p))
            while term > exact * mpmath.mpf(10) ** -20:
                exact += term
                term *= mpmath.mpf(trials - j) / (j + 1) * p / (1 - p)
                j += 1
            assert abs(_binomial_tail(k, trials, chance) / exact - 1) < PROFILE_ERROR / 2


@pytest.mark.parametrize(
    "profile",
    [
        partial(gauss_delta, mu=0.01),
        partial(gauss_delta, mu=8.0),
        partial(poisson, multiplier=0.1, rate=1e-4),
        partial(with_replacement, multiplier=0.5, draws=50, records=100),
    ],
)
def test_connected_dots_dominate_the_profile_in_exact_arithmetic(profile):
    """Masses are what they are, rounding and all: their own profile is computed without any, and is not below."""
    farthest = profile_range(profile, 1e-18)
    step = farthest / 300
    masses, beyond = connect_dots(profile, farthest, step)
    middle = len(masses) // 2
    assert math.fsum(masses) + beyond >= 1 - 1e-15
    assert masses[:middle][::-1] == pytest.approx(masses[middle + 1 :] * np.exp(-step * np.arange(1, middle + 1)))
    with mpmath.workdps(40):
        for i in range(0, middle, 37):
            terms = (-mpmath.expm1(mpmath.mpf(step) * (i - j)) * masses[middle + j] for j in range(i + 1, middle + 1))
            assert mpmath.fsum(terms) + beyond >= float(profile(np.array([i * step]))[0])


def saddle_point_delta(epsilon, z, q, count):
    """An estimate that shares nothing with the accountant: moments of the loss by quadrature, no grid of losses."""
    c = 0.5 / z
    x = np.linspace(-40.0, 40.0, 400_001)
    normal = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    one, other = ((1 - q) + q * np.exp(sign * c * x - 0.5 * c * c) for sign in (1, -1))
    loss = np.log(one) - np.log(other)

    def exponent(log_t):
        t = math.exp(log_t)
        moment = math.log1p(float(np.trapezoid(normal * one * np.expm1(t * loss), x)))
        return count * moment - t * epsilon - log_t - math.log1p(t)

    # Beyond these tilts moments of single losses overflow.
    best = minimize_scalar(
        exponent, bounds=(-4.0, math.log(600 / loss.max())), method="bounded", options={"xatol": 1e-9}
    ).x
    h = 1e-2
    # At the saddle the first derivative is zero, so that this is t^2 times the second derivative in t.
    curvature = (exponent(best + h) - 2 * exponent(best) + exponent(best - h)) / h**2
    return math.exp(exponent(best)) * math.exp(best) / math.sqrt(2 * math.pi * curvature)


@pytest.mark.parametrize(
    ("batch", "z", "count"),
    [(500_000, 1000.0, 10**6), (1000, 1.0, 10**6), (1000, 1.0, 10**7), (100, 2.0, 10**5)],
)
def test_millions_of_releases_are_priced_tightly(batch, z, count):
    """The transform of the first once went below zero, and the second was priced without amplification: 505,997."""
    event = Event(kind="g", noise_multiplier=z, count=count, records=10**6, batch=batch, sampling="poisson")
    paid = price([event], delta=1e-9)
    assert paid.accountant == "pld"
    assert saddle_point_delta(paid.epsilon, z, batch / 10**6, count) == pytest.approx(1e-9, rel=0.1)
    assert paid.epsilon < 30


def test_little_noise_is_priced_with_its_amplification():
    event = Event(kind="g", noise_multiplier=0.01, count=10, records=1000, batch=500, sampling="wor")
    paid = price([event], delta=1e-6)
    assert 1000 < paid.epsilon <= gdp_epsilon(100 * math.sqrt(10), 1e-6) * (1 + 1e-9)
    long = Event(kind="g", noise_multiplier=0.03, count=10**5, records=8000, batch=322, sampling="wor")
    paid = price([long], delta=1e-6)
    assert paid.accountant == "pld"
    assert paid.epsilon < 0.1 * gdp_epsilon(math.sqrt(10**5) / 0.03, 1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 10**12}, r"at most 100000000000 subsampled releases.*got 1000000000000.*sampling=\"full\""),
        ({"count": 5 * 10**10}, r"losses of 50000000000 releases.*costs \d+% of epsilon.*sampling=\"full\""),
        ({"noise_multiplier": 1e-6}, r"privacy losses below 1e\+09.*almost no noise"),
    ],
)
def test_what_cannot_be_computed_tightly_is_refused_with_a_way_out(changes, message):
    base = {"kind": "g", "noise_multiplier": 1.0, "count": 10, "records": 1000, "batch": 10, "sampling": "poisson"}
    with pytest.raises(PricingError, match=message):
        price([Event(**(base | changes))], delta=1e-6)
