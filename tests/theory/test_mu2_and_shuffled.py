"""DP-mu^2's theorems, and what shuffling buys."""

import dataclasses

import pytest

from tacit.privacy import Event, PricingError, gdp_epsilon, price
from tacit.theory import ConvexSetting, mu2_sgd_from_theory
from tests.theory.shuffled import shuffled_mb_sgd

PAPER = ConvexSetting(
    lipschitz=39.6, smoothness=392.5, radius=0.05, records=600, silos=100, dimension=7850, epsilon=24.4, delta=1e-5
)


def test_mu2_has_the_papers_parameters():
    """Its MNIST experiment: G = 39.6, L = 392.5, D = 0.1, hence S = 118.1."""
    found = mu2_sgd_from_theory(PAPER, rho=4.0)
    terms = found.parameters
    assert terms["clip_norm"] == pytest.approx(118.1)
    sigma = terms["noise_multiplier"] * 2 * terms["clip_norm"]
    assert sigma**2 == pytest.approx(4 * 118.1**2 * 600 / 4.0**2)
    quiet = 4.0 * 0.1 * 10 / (2 * 118.1 * 600 * 7850**0.5)
    assert terms["step_size"] == pytest.approx(min(quiet, 1 / (4 * 392.5 * 600)))
    direct = (39.6 + 78.5) / 600 + 2 * 118.1 * 7850**0.5 / (4 * 600 * 10) + (39.6 + 78.5) / 60000**0.5
    assert found.bound == pytest.approx(0.4 * direct)


def test_a_trusted_server_needs_less_noise():
    direct, trusted = (mu2_sgd_from_theory(PAPER, rho=4.0, channel=c) for c in ("direct", "trusted"))
    assert trusted.bound < direct.bound
    assert trusted.lower_bound < direct.lower_bound
    assert trusted.parameters["noise_multiplier"] == direct.parameters["noise_multiplier"]


def test_rho_is_what_the_budget_allows():
    found = mu2_sgd_from_theory(dataclasses.replace(PAPER, epsilon=1.0))
    rho = 600**0.5 / found.parameters["noise_multiplier"]
    assert gdp_epsilon(rho, 1e-5) == pytest.approx(1.0, rel=1e-6)
    assert [round(gdp_epsilon(r, 1e-5)) for r in (4.0, 8.0, 16.0)] == [24, 65, 195]


def gradient(noise, **changes):
    terms = {"count": 50, "records": 1234, "batch": 1234, "sampling": "full"}
    return Event(kind="g", noise_multiplier=noise, **{**terms, **changes})


def test_shuffling_silos_of_many_records_buys_nothing():
    for silos in (3, 25, 1000):
        found = shuffled_mb_sgd(gradient(30.5), silos=silos, delta=1e-6)
        assert not found.helps
        assert found.epsilon_shuffled == found.epsilon_direct == price([gradient(30.5)], delta=1e-6).epsilon
        assert "buys nothing" in found.statement


def test_shuffling_helps_silos_of_one_record_if_there_are_very_many():
    one = gradient(30.0, records=1, batch=1, count=4)
    found = shuffled_mb_sgd(one, silos=1_000_000, delta=1e-6)
    assert found.helps
    assert found.hiding < found.needed
    assert "trusts the shuffler" in found.statement
    assert not shuffled_mb_sgd(one, silos=100, delta=1e-6).helps


def test_a_poisson_batch_may_hold_the_whole_silo():
    batch = gradient(30.0, records=50, batch=1, sampling="poisson", count=4)
    capped = gradient(30.0, records=50, batch=1, sampling="poisson", capacity=2, count=4)
    assert shuffled_mb_sgd(batch, silos=10, delta=1e-6).hiding > shuffled_mb_sgd(capped, silos=10, delta=1e-6).hiding
    with pytest.raises(PricingError, match="whole-silo"):
        shuffled_mb_sgd(gradient(30.0, sampling="wr"), silos=10, delta=1e-6)
