"""zCDP and RDP views: valid, looser than the tight price, and honest about what they cannot do."""

import math

import pytest

from tacit.privacy import Event, PricingError, gdp_epsilon, price
from tacit.privacy.views import zcdp_epsilon, zcdp_rho


def event(**changes):
    base = {"kind": "g", "noise_multiplier": 20.0, "count": 50, "records": 1234, "batch": 1234}
    return Event(**(base | {"sampling": "full"} | changes))


def test_rho_is_half_the_sum_of_inverse_squares():
    assert zcdp_rho([event(), event(kind="h", noise_multiplier=10.0, count=2)]) == pytest.approx(
        (50 / 400 + 2 / 100) / 2
    )


@pytest.mark.parametrize("rho", [1e-6, 0.01, 0.5, 5.0, 200.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
def test_zcdp_lies_between_the_exact_price_and_the_textbook_bound(rho, delta):
    epsilon = zcdp_epsilon(rho, delta)
    assert gdp_epsilon(math.sqrt(2 * rho), delta) <= epsilon
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_views_are_valid_upper_bounds():
    for made in (event(), event(sampling="wor", batch=87, noise_multiplier=2.66)):
        tight = price([made], delta=1e-6).epsilon
        rdp = price([made], delta=1e-6, accountant="rdp")
        assert rdp.accountant == "rdp"
        assert tight < rdp.epsilon < 4 * tight
    assert price([event()], delta=1e-6).epsilon < price([event()], delta=1e-6, accountant="zcdp").epsilon


def test_rdp_of_sampling_without_replacement_is_loose():
    """About 2 where the profile gives 0.97 (n = 1234, K = 87, R = 50, sigma = 0.0612 C)."""
    made = event(sampling="wor", batch=87, noise_multiplier=0.0612 * 87 / 2)
    assert price([made], delta=1 / 1234**2, accountant="rdp").epsilon == pytest.approx(2.0, abs=0.02)


@pytest.mark.parametrize("accountant", ["rdp", "zcdp"])
@pytest.mark.parametrize("sampling", ["wr", "poisson"])
def test_views_refuse_what_they_cannot_bound(accountant, sampling):
    with pytest.raises(PricingError, match=f'accountant, not "{sampling}".*accountant="tight"'):
        price([event(sampling=sampling, batch=10)], delta=1e-6, accountant=accountant)


def test_one_pass_and_running_sums_have_views_too():
    once = event(sampling="one-pass", batch=20, count=50, noise_multiplier=5.0)
    assert zcdp_rho([once]) == pytest.approx(1 / 50)
    running = event(sampling="one-pass", mechanism="cumulative", batch=20, count=50, noise_multiplier=5.0)
    assert zcdp_rho([running]) == pytest.approx(1.0)
