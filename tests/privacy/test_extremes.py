"""The accountant at its limits: no traceback, no NaN, monotone prices, between bounds that need no composition."""

import itertools
import math

import pytest

from tacit.privacy import Event, calibrate, price
from tests.privacy.extremes import Grid, check_order, epsilon_of, mixed, reports, sampled, search

# Of every axis its ends and a middle; soak/accountant.py has them all.
COUNTS, RATES, NOISES = (1, 1_000, 100_000), (1e-6, 1e-2, 0.999), (0.1, 1.0, 1e5)


@pytest.mark.parametrize("sampling", ["poisson", "wor", "wr"])
def test_prices_of_extreme_schedules(sampling):
    found = dict(search(Grid(COUNTS, RATES, NOISES, (1e-9, 1e-2), (sampling,))))
    assert len(found) == 54
    assert not any(math.isnan(epsilon) for epsilon in found.values())
    assert max(found.values()) > 1e6
    assert min(found.values()) == 0.0


def test_prices_of_extreme_mixtures():
    found = dict(search(Grid((1, 100_000), (1e-6, 0.5), (0.1, 1e3), (1e-9, 1e-2), ("mixed",))))
    assert not any(math.isnan(epsilon) for epsilon in found.values())


def test_prices_of_extreme_reports():
    for rate in (0.01, 1.0):
        for anonymity, noise in itertools.product((1, 1_000), (0.1, 10.0)):
            line = [epsilon_of(reports(count, anonymity, noise, rate), 1e-9) for count in (10, 1_000, 1_000_000)]
            assert not any(math.isnan(epsilon) for epsilon in line)
            check_order(line, "reports by count")


def test_very_large_counts_are_priced_or_refused():
    line = [epsilon_of(sampled("poisson", 10**k, 1e-3, 1.0), 1e-6) for k in (3, 5, 7, 12)]
    check_order(line, "poisson by count")
    assert [math.isnan(epsilon) for epsilon in line] == [False, False, False, True]


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("count", [1, 100_000])
def test_extreme_budgets_are_met(epsilon, count):
    for rate in (1e-4, 0.5):
        [tuned] = calibrate(sampled("poisson", count, rate, 1.0), epsilon=epsilon, delta=1e-9)
        assert 0.999 * epsilon <= price([tuned], delta=1e-9).epsilon <= epsilon


def test_a_mixture_costs_no_less_than_its_parts():
    events = mixed(10_000, 1e-3, 1.0)
    together = price(events, delta=1e-6).epsilon
    for event in events:
        assert price([event], delta=1e-6).epsilon <= together * (1 + 1e-3)


def test_the_search_finds_what_it_looks_for():
    with pytest.raises(AssertionError, match="by noise"):
        check_order([1.0, 0.9], "poisson by noise")
    check_order([1.0, math.nan, 1.0], "poisson by noise")
    silent = Event(kind="g", noise_multiplier=0.0, count=1, records=9, batch=3, sampling="poisson")
    with pytest.raises(AssertionError):
        epsilon_of([silent], 1e-6)
