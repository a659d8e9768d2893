"""One curve for each schedule: its price, and all that is read beside it, are points of the same curve."""

import dataclasses
import math

import pytest

from tacit.privacy import Event, PricingError, gauss_delta, pld, price, risk, risk_of, risk_of_price
from tacit.privacy.curve import PrivacyCurve, curve_of


def event(**changes):
    base = {"kind": "g", "noise_multiplier": 1.0, "count": 20, "records": 300, "batch": 30, "sampling": "poisson"}
    return Event(**(base | changes))


FULL = event(batch=300, sampling="full", noise_multiplier=9.0)
REPORTS = event(batch=300, sampling="full", mechanism="reports", reports=3000, streams=(1.0,), noise_multiplier=2.0)
ALONE = dataclasses.replace(REPORTS, reports=1, count=1, noise_multiplier=0.05)


@pytest.mark.parametrize(
    ("events", "accountant"),
    [
        ((FULL,), "gdp"),
        ((event(),), "pld"),
        ((event(), dataclasses.replace(FULL, kind="f")), "pld"),
        ((REPORTS,), "pld"),
        ((ALONE,), "pure"),
    ],
)
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-2])
def test_price_and_risk_lie_on_one_curve_that_says_what_proved_it(events, accountant, delta):
    paid = price(events, delta=delta)
    assert (paid.accountant, paid.exact, paid.mu is None) == (accountant, accountant == "gdp", accountant != "gdp")
    curve = PrivacyCurve(events, delta)
    assert curve.price == (paid.epsilon, accountant)
    assert curve.delta_at(paid.epsilon) <= delta * (1 + 1e-9)
    assert curve.delta_at(0.999 * paid.epsilon) > delta * (1 - 1e-3)
    reading = risk_of_price(paid)
    assert reading.advantage == curve.delta_at(0.0)
    rates = [math.exp(e) * 0.01 + curve.delta_at(e) for e in (0.0, 0.1, 0.5, 1.0, 3.0)]
    assert reading.tpr_at_1pct_fpr <= min(rates) * (1 + 1e-9)
    point = risk(epsilon=paid.epsilon, delta=delta)
    assert reading.advantage <= point.advantage * (1 + 1e-6)
    assert reading.tpr_at_1pct_fpr <= point.tpr_at_1pct_fpr * (1 + 1e-6)


def test_price_and_risk_are_read_from_one_composition(monkeypatch):
    made = []

    class Counted(pld.Composition):
        def __init__(self, *arguments, **options):
            made.append(arguments)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(pld, "Composition", Counted)
    curve_of.cache_clear()
    risk_of_price(price([event()], delta=1e-6))
    assert len(made) == 1
    price([FULL], delta=1e-6)
    assert len(made) == 1


def test_a_looser_accountant_is_read_by_itself():
    """Beside an epsilon of zCDP, a reading of the tight curve would tell another truth."""
    for accountant in ("rdp", "zcdp"):
        paid = price([FULL], delta=1e-6, accountant=accountant)
        assert risk_of_price(paid) == risk(epsilon=paid.epsilon, delta=1e-6)
        assert risk_of_price(paid).advantage > 2 * risk_of([FULL]).advantage
    silent = price([event(noise_multiplier=0.0)], delta=1e-6, accountant="rdp")
    assert risk_of_price(silent).advantage == 1.0


def test_the_lowest_bound_counts_at_every_epsilon():
    """Batches of nearly everything: the grid may cost more than their amplification gains, and the Gaussian wins."""
    nearly = event(records=10**6, batch=10**6 - 1, sampling="wor", count=1)
    paid = price([nearly], delta=1e-6)
    assert (paid.accountant, paid.exact) == ("gdp", False)
    curve = PrivacyCurve((nearly,), 1e-6)
    for epsilon in (0.0, 1.0, 5.0):
        assert curve.delta_at(epsilon) <= float(gauss_delta(epsilon, 1.0))
    assert risk_of([nearly]).advantage <= risk(mu=1.0).advantage
    # A randomiser that nobody hides is as private as its own epsilon says, at any delta.
    alone = PrivacyCurve((ALONE,), 1e-6)
    assert alone.price == (20.0, "pure")
    assert alone.advantage == pytest.approx(math.tanh(10.0), rel=1e-12)


def test_what_is_refused_has_no_risk_either():
    """A reading of something else would be a second truth."""
    hopeless = event(count=10**12)
    with pytest.raises(PricingError, match="subsampled releases"):
        price([hopeless], delta=1e-6)
    with pytest.raises(PricingError, match="subsampled releases"):
        risk_of([hopeless])


def test_nothing_released_is_a_coin():
    curve = PrivacyCurve((), 1e-6)
    assert curve.price == (0.0, "gdp")
    assert (curve.delta_at(0.0), curve.true_positive_rate(0.01)) == (0.0, pytest.approx(0.01))
