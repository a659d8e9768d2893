"""Exact Gaussian conversions against closed forms, high-precision arithmetic and integration."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import PricingError, gauss_delta, gdp_epsilon, gdp_mu
from tacit.privacy.gaussian import gdp_tpr, log_gauss_delta


def reference_log_delta(epsilon, mu):
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)

        def sf(x):
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return float(mpmath.log(sf(e / m - m / 2) - mpmath.exp(e) * sf(e / m + m / 2)))


RESOLVED_BY_60_DIGITS = [
    (epsilon, mu)
    for epsilon in (0.0, 1e-8, 1e-3, 0.1, 1.0, 5.0, 30.0, 1000.0)
    for mu in (1e-6, 1e-3, 0.049, 0.051, 0.232, 1.0, 5.0, 55.0, 65.0, 200.0)
    if epsilon / mu <= 1e5
]


@pytest.mark.parametrize(("epsilon", "mu"), RESOLVED_BY_60_DIGITS)
def test_log_delta_is_accurate_from_tiny_to_huge(epsilon, mu):
    expected = reference_log_delta(epsilon, mu)
    assert float(log_gauss_delta(epsilon, mu)) == pytest.approx(expected, rel=1e-11, abs=1e-11)


def test_delta_is_the_integral_of_the_positive_part():
    x = np.linspace(-12, 14, 400_001)
    for mu in (0.3, 1.0, 2.5):
        for epsilon in (0.0, 0.5, 2.0):
            p, q = np.exp(-((x - mu) ** 2) / 2), np.exp(-(x**2) / 2)
            gap = np.maximum(p - math.exp(epsilon) * q, 0) / math.sqrt(2 * math.pi)
            assert float(gauss_delta(epsilon, mu)) == pytest.approx(np.trapezoid(gap, x), abs=1e-8)


def test_published_constants():
    assert gdp_mu(1.0, 1 / 1234**2) == pytest.approx(0.23200, abs=5e-6)
    assert 1 / gdp_mu(1.0, 1 / 1234**2) == pytest.approx(4.3103, abs=5e-5)
    # DP-mu^2's experiments at rho = 4, 8, 16 and delta = 1e-5.
    for rho, epsilon in ((4.0, 24.4), (8.0, 65.3), (16.0, 195.0)):
        assert gdp_epsilon(rho, 1e-5) == pytest.approx(epsilon, rel=0.01)


@given(epsilon=st.floats(1e-6, 1e3), log_delta=st.floats(-600, -0.1))
def test_conversions_are_inverse_and_on_the_private_side(epsilon, log_delta):
    delta = math.exp(log_delta)
    mu = gdp_mu(epsilon, delta)
    back = gdp_epsilon(mu, delta)
    assert float(log_gauss_delta(epsilon, mu)) <= math.log(delta)
    assert float(log_gauss_delta(back, mu)) <= math.log(delta)
    assert back == pytest.approx(epsilon, rel=1e-8, abs=1e-10)


@settings(max_examples=50)
@given(mu=st.floats(1e-3, 50), factor=st.floats(1.001, 3), delta=st.floats(1e-12, 0.4))
def test_epsilon_grows_with_mu_and_falls_with_delta(mu, factor, delta):
    assert gdp_epsilon(mu * factor, delta) >= gdp_epsilon(mu, delta)
    assert gdp_epsilon(mu, delta / factor) >= gdp_epsilon(mu, delta)


def test_free_and_refused():
    assert gdp_epsilon(0.0, 1e-6) == 0.0
    assert gdp_epsilon(1e-9, 1e-6) == 0.0
    for bad in (0.0, 1.0, -1e-6, math.nan, 2.0):
        with pytest.raises(PricingError, match="delta"):
            gdp_epsilon(1.0, bad)
    with pytest.raises(PricingError, match="epsilon=-1"):
        gdp_mu(-1.0, 1e-6)
    with pytest.raises(PricingError, match="mu=nan"):
        gdp_epsilon(math.nan, 1e-6)


def test_tpr_is_the_gaussian_trade_off():
    rng = np.random.default_rng(0)
    null, alternative = rng.standard_normal(400_000), rng.standard_normal(400_000) + 1.5
    threshold = np.quantile(null, 0.99)
    assert gdp_tpr(1.5, 0.01) == pytest.approx(np.mean(alternative > threshold), abs=0.005)
