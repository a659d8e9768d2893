"""Warm start: it is minibatch SGD and then SPIDER, at the price of both."""

import math

import jax
import pytest

from tacit.plans.catalogue import find
from tacit.privacy import gdp_mu, price
from tacit.privacy.plan import events_of
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tests.algorithms.table import LOGISTIC, largest_difference, start, tables

TERMS = {"clip_norm": 0.7, "batch_size": None, "sampling": "full"}
SPIDER = {"step_size": 0.3, "phase_length": 3, "difference_slope": 4.0, "difference_noise": 2.0}


def build(name="warm-spider", noise=0.0, **own):
    return find(name).build(LOGISTIC, noise_multiplier=noise, **TERMS, **own)


def test_it_is_minibatch_sgd_and_then_spider():
    silos, key = enrol(tables()), jax.random.key(0)
    warm = build("mb-sgd", step_size=0.5, num_rounds=4, output="last")
    middle = simulate(warm, start(LOGISTIC), silos, key=key).params
    end = simulate(build("prox-spider", num_rounds=5, **SPIDER), middle, silos, key=key).params
    both = build(num_rounds=9, warm_rounds=4, warm_step_size=0.5, **SPIDER)
    assert both.schedule == ("warm",) * 4 + ("gradient", "difference", "difference", "gradient", "difference")
    assert largest_difference(simulate(both, start(LOGISTIC), silos, key=key).params, end) < 1e-6
    none = build(num_rounds=5, warm_rounds=0, **SPIDER)
    assert none.schedule == build("prox-spider", num_rounds=5, **SPIDER).schedule


def test_both_parts_are_paid_for():
    both = build(num_rounds=9, warm_rounds=4, warm_noise=0.5, noise=6.0, **SPIDER)
    paid = price(events_of(both, silo_index=0, silos=3, records=24), delta=1e-5)
    squares = 4 / 3.0**2 + 2 / 6.0**2 + 3 / 12.0**2
    assert gdp_mu(paid.epsilon, 1e-5) == pytest.approx(math.sqrt(squares), rel=1e-5)


def test_what_cannot_be_is_refused():
    for warm in (-1, 9):
        with pytest.raises(ValueError, match=f"warm_rounds={warm}"):
            build(num_rounds=9, warm_rounds=warm, noise=1.0, **SPIDER)
