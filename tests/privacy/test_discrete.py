"""The discrete Gaussian and rounding, against exact sums over the integers."""

import itertools
import math

import numpy as np
import pytest

from tacit.privacy import Event, PricingError, calibrate, gauss_delta, gdp_epsilon, price
from tacit.privacy.discrete import _SMOOTHING, effective_multiplier, mu_one
from tacit.privacy.profiles import profile_of

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])


def event(**changes):
    base = {"kind": "g", "noise_multiplier": 4.0, "count": 1, "records": 100, "batch": 100}
    grid = {"mechanism": "discrete-gaussian", "grid_sigma": 50.0, "dimension": 1, "sampling": "full"}
    return Event(**(base | grid | changes))


def pmf(sigma, centre, support):
    """The discrete Gaussian with an integer centre, on integers wide enough to hold all its mass."""
    weights = np.exp(-((support - centre) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def hockey_stick(p, q):
    return np.array([np.maximum(p - math.exp(e) * q, 0).sum() for e in EPSILONS])


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.3, 7.0])
def test_integer_shifts_are_dominated_by_gdp(sigma):
    support = np.arange(-150, 151)
    for shift in (1, 2, 3, 5, 11):
        p, q = pmf(sigma, 0, support), pmf(sigma, shift, support)
        bound = gauss_delta(EPSILONS, shift * mu_one(sigma))
        assert np.all(hockey_stick(p, q) <= bound + 1e-12)
        assert np.all(hockey_stick(q, p) <= bound + 1e-12)


def test_shift_vectors_compose_over_coordinates():
    sigma, support = 1.7, np.arange(-25, 26)
    for shift in itertools.product((0, 1, 3), repeat=2):
        p = np.outer(pmf(sigma, 0, support), pmf(sigma, 0, support))
        q = np.outer(pmf(sigma, shift[0], support), pmf(sigma, shift[1], support))
        norm = math.hypot(*shift)
        bound = gauss_delta(EPSILONS, norm * mu_one(sigma)) if norm else np.zeros(len(EPSILONS))
        assert np.all(hockey_stick(p, q) <= bound + 1e-14)


def test_mu_one_tends_to_one_over_sigma_from_above():
    excess = [s * mu_one(s) - 1 for s in (0.5, 1.0, 2.0, 5.0, 20.0, 200.0)]
    assert excess == sorted(excess, reverse=True)
    assert excess[0] > 0.2
    assert 0 < excess[-1] < 2e-6
    # The largest increment is at the centre, where it is 2 Phi^-1(1/2 + p(0)/2), about (1 + 1/(24 s^2))/s.
    assert excess[3] == pytest.approx(1 / (24 * 25), rel=0.01)


@pytest.mark.parametrize("t", [0.25, 0.5, 1.0, _SMOOTHING])
def test_smoothing_turns_a_continuous_gaussian_into_a_discrete_one(t):
    """Randomised rounding of N(centre, s^2 - t^2) gives every probability of the discrete Gaussian."""
    s, centre = 4.0, 3
    x = np.linspace(-60, 60, 240_001)
    density = np.exp(-((x - centre) ** 2) / (2 * (s * s - t * t))) / math.sqrt(2 * math.pi * (s * s - t * t))
    near = np.arange(-80, 81)
    normaliser = np.exp(-((near[:, None] - x[None, ::100]) ** 2) / (2 * t * t)).sum(axis=0)
    normaliser = np.interp(x, x[::100], normaliser)
    worst = 0.0
    for y in range(-10, 17):
        mass = np.trapezoid(density * np.exp(-((y - x) ** 2) / (2 * t * t)) / normaliser, x)
        exact = pmf(s, centre, near)[y + 80]
        worst = max(worst, abs(mass / exact - 1))
    assert worst <= 5 * math.exp(-2 * math.pi**2 * t * t) + 1e-6
    if t == 0.25:
        assert worst > 1e-3  # the test can fail: a narrower rounding is visibly wrong


def test_rounding_is_priced():
    """Worst rounding: the statistic moves by Delta, its rounding by up to Delta + sqrt(d) grid units."""
    sigma, delta_units, d = 6.0, 2.2, 1
    made = event(noise_multiplier=sigma / delta_units, grid_sigma=sigma, dimension=d)
    support = np.arange(-80, 81)
    worst = np.zeros(len(EPSILONS))
    for start in np.linspace(-0.5, 0.5, 41):
        shift = int(np.rint(start + delta_units)) - int(np.rint(start))
        worst = np.maximum(worst, hockey_stick(pmf(sigma, 0, support), pmf(sigma, shift, support)))
    mu = 1 / effective_multiplier(made)
    assert np.all(worst <= gauss_delta(EPSILONS, mu))
    # Without the rounding term the same worst case would be missed.
    assert np.any(worst > gauss_delta(EPSILONS, delta_units * mu_one(sigma)))
    assert price([made], delta=1e-6).epsilon == pytest.approx(gdp_epsilon(mu, 1e-6))
    assert not price([made], delta=1e-6).exact


@pytest.mark.parametrize("sampling", ["poisson", "wor", "wr"])
def test_sampled_batches_of_integers_are_dominated(sampling):
    """Three records, batches of one, integer noise: every mixture, both orders, any rounding."""
    n, k, sigma, clip_units = 3, 1, 6.0, 5.4
    z = sigma / (2 * clip_units)
    made = event(noise_multiplier=z, grid_sigma=sigma, records=n, batch=k, sampling=sampling, count=1, dimension=1)
    bound = profile_of(made, effective_multiplier(made))(EPSILONS)
    support = np.arange(-90, 91)
    rng = np.random.default_rng(3)
    worst = np.zeros(len(EPSILONS))
    for _ in range(60):
        others = rng.uniform(-clip_units, clip_units, n - 1)
        worlds = [release(np.array([x, *others]), sampling, sigma, support) for x in (clip_units, -clip_units)]
        worst = np.maximum(worst, np.maximum(hockey_stick(*worlds), hockey_stick(*worlds[::-1])))
    assert np.all(worst <= bound + 1e-12)


def release(records, sampling, sigma, support):
    n = len(records)
    if sampling in ("wor", "wr"):
        return sum(pmf(sigma, int(np.rint(x)), support) for x in records) / n
    total = np.zeros(len(support))
    for bits in itertools.product((0, 1), repeat=n):
        chance = (1 / n) ** sum(bits) * (1 - 1 / n) ** (n - sum(bits))
        total += chance * pmf(sigma, int(np.rint(np.dot(bits, records))), support)
    return total


def test_a_fine_grid_costs_nothing():
    d = 10_000
    sensitivity = 0.02
    width = 1e-4 * sensitivity / math.sqrt(d)
    for sampling, batch in (("full", 100), ("poisson", 10), ("wor", 10)):
        fine = event(grid_sigma=4.0 * sensitivity / width, dimension=d, sampling=sampling, batch=batch, count=20)
        plain = event(mechanism="gaussian", grid_sigma=None, dimension=None, sampling=sampling, batch=batch, count=20)
        ours, ideal = (price([e], delta=1e-6).epsilon for e in (fine, plain))
        assert ideal <= ours <= ideal * 1.0005


def test_both_dominations_agree_where_they_meet():
    below, above = (event(noise_multiplier=4.0, grid_sigma=g) for g in (199.9, 200.1))
    assert effective_multiplier(below) == pytest.approx(effective_multiplier(above), rel=1e-3)


def test_coarse_grids_are_refused_under_sampling():
    with pytest.raises(PricingError, match=r"grid_sigma=3.0 >= 4.0.*finer grid"):
        price([event(grid_sigma=3.0, sampling="poisson", batch=10)], delta=1e-6)


def test_calibration_scales_noise_on_the_same_grid():
    made = event(grid_sigma=2.0e4, noise_multiplier=1.0, count=30, dimension=400)
    [tuned] = calibrate([made], epsilon=1.0, delta=1e-6)
    assert tuned.grid_sigma / tuned.noise_multiplier == pytest.approx(2.0e4)
    assert 0.999 <= price([tuned], delta=1e-6).epsilon <= 1.0
