"""Attack-risk readings bound every attack, and are attained where the price is exact."""

import math

import numpy as np
import pytest
from scipy import stats

from tacit.privacy import Event, PricingError, price, risk, risk_of


def event(**changes):
    base = {"kind": "g", "noise_multiplier": 5.0, "count": 20, "records": 300, "batch": 300}
    return Event(**(base | {"sampling": "full"} | changes))


def test_gaussian_reading_is_the_best_attack():
    """Simulate the optimal attack: a threshold on the likelihood ratio."""
    mu = 0.8
    reading = risk(mu=mu)
    thresholds = np.linspace(-6, 6, 2001)
    rates = stats.norm.sf(thresholds - mu), stats.norm.sf(thresholds)
    assert reading.advantage == pytest.approx(np.max(rates[0] - rates[1]), abs=1e-5)
    assert reading.tpr_at_1pct_fpr == pytest.approx(stats.norm.sf(stats.norm.isf(0.01) - mu), rel=1e-12)


def test_reading_of_epsilon_and_delta_is_the_corner_of_the_trade_off():
    reading = risk(epsilon=1.0, delta=1e-5)
    rates = np.linspace(0, 1, 100_001)
    tpr = np.minimum(math.e * rates + 1e-5, 1 - math.exp(-1) * (1 - 1e-5 - rates))
    assert reading.advantage == pytest.approx(np.max(np.minimum(tpr, 1) - rates), abs=1e-4)
    assert reading.tpr_at_1pct_fpr == pytest.approx(math.e * 0.01 + 1e-5)
    # Plain epsilon-DP: advantage tanh(epsilon/2).
    assert risk(epsilon=2.0, delta=1e-12).advantage == pytest.approx(math.tanh(1.0), abs=1e-9)


def test_the_schedule_itself_reads_lower_than_one_point_of_its_profile():
    for made in (event(), event(sampling="poisson", batch=30, noise_multiplier=1.0)):
        paid = price([made], delta=1e-6)
        whole, point = risk_of([made]), risk(epsilon=paid.epsilon, delta=1e-6)
        assert 0 < whole.advantage < point.advantage
        assert 0.01 < whole.tpr_at_1pct_fpr < point.tpr_at_1pct_fpr


def test_sampled_reading_is_exact_for_one_poisson_release():
    z, q = 1.0, 0.1
    made = event(sampling="poisson", batch=30, noise_multiplier=z, count=1)
    x = np.linspace(-20, 20, 200_001)
    s = 2 * z
    p, r = ((1 - q) * stats.norm.pdf(x, 0, s) + q * stats.norm.pdf(x, m, s) for m in (1, -1))
    true = np.trapezoid(np.maximum(p - r, 0), x)
    assert risk_of([made]).advantage == pytest.approx(true, rel=1e-3)


def test_more_noise_less_risk():
    readings = [risk_of([event(noise_multiplier=z)]) for z in (1.0, 3.0, 10.0, 100.0)]
    assert [r.advantage for r in readings] == sorted((r.advantage for r in readings), reverse=True)
    assert readings[-1].tpr_at_1pct_fpr == pytest.approx(0.01, abs=0.002)


def test_no_noise_is_certainty_and_nothing_is_a_coin():
    silent = risk_of([event(noise_multiplier=0.0)])
    assert (silent.advantage, silent.tpr_at_1pct_fpr) == (1.0, 1.0)
    assert risk(epsilon=math.inf, delta=1e-6).advantage == 1.0
    nothing = risk_of([])
    assert nothing.advantage == 0.0
    assert nothing.tpr_at_1pct_fpr == pytest.approx(0.01)
    assert "accuracy at most 50.0%" in nothing.sentence
    assert "at most 1.0% of records" in nothing.sentence


def test_one_reading_at_a_time():
    with pytest.raises(PricingError, match="either mu or"):
        risk(mu=1.0, epsilon=1.0, delta=1e-6)
    with pytest.raises(PricingError, match="together"):
        risk(epsilon=1.0)
