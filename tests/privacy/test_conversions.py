"""The user-level reading of a record-level guarantee."""

import math

import numpy as np
import pytest

from tacit.privacy import (
    SILO_SAMPLING,
    Event,
    PricingError,
    calibrate_user_level,
    gaussian_mu,
    gdp_mu,
    price,
    user_level,
)
from tacit.privacy.conversions import user_level_mu


def event(**changes):
    base = {"kind": "g", "noise_multiplier": 50.0, "count": 8, "records": 40, "batch": 40}
    return Event(**(base | {"sampling": "full"} | changes))


def test_a_full_batch_costs_n_times_mu():
    assert user_level_mu([event()]) == pytest.approx(40 * gaussian_mu([event()]))


@pytest.mark.parametrize(
    ("sampling", "batch", "largest"), [("wor", 5, 5), ("wr", 5, 5), ("poisson", 5, 40), ("one-pass", 5, 5)]
)
def test_mini_batches_move_by_what_they_may_hold(sampling, batch, largest):
    made = event(sampling=sampling, batch=batch)
    assert user_level_mu([made]) == pytest.approx(math.sqrt(8) * largest / 50)
    if sampling == "poisson":
        limited = event(sampling=sampling, batch=batch, capacity=9)
        assert user_level_mu([limited]) == pytest.approx(math.sqrt(8) * 9 / 50)


def test_running_sums_move_by_every_increment():
    made = event(sampling="one-pass", mechanism="cumulative", batch=5)
    shifts = np.arange(1, 9) * 5
    assert user_level_mu([made]) == pytest.approx(math.sqrt(np.sum(shifts**2)) / 50)
    half = event(sampling="one-pass", mechanism="cumulative", batch=5, count=4)
    with pytest.raises(PricingError, match="merge them into one"):
        user_level_mu([half, half])


@pytest.mark.parametrize(("sampling", "batch", "gain"), [("full", 40, 0.8), ("wor", 5, 1.0), ("one-pass", 5, 0.4)])
def test_direct_reading_beats_group_privacy(sampling, batch, gain):
    made = [event(noise_multiplier=50.0, sampling=sampling, batch=batch)]
    paid = price(made, delta=1e-9)
    by_group = 40 * math.exp(39 * paid.epsilon) * paid.delta
    assert user_level(made, delta=by_group).epsilon < gain * 40 * paid.epsilon


def test_both_guarantees_together():
    plan = [event(noise_multiplier=1.0), event(kind="s", sampling="wor", batch=5, noise_multiplier=2.0)]
    tuned = calibrate_user_level(plan, epsilon=1.0, delta=1e-6)
    assert 0.999 <= user_level(tuned, delta=1e-6).epsilon <= 1.0
    assert price(tuned, delta=1e-6).epsilon < 0.2
    assert tuned[1].noise_multiplier == pytest.approx(2 * tuned[0].noise_multiplier)


def test_the_papers_route_to_both_guarantees_needs_more_noise():
    """The record-level budget from which group privacy gives this one (appendix G)."""
    delta = 1e-6 / (40 * math.exp(39 / 40))
    assert delta >= 1e-6 / (4 * 40)  # the paper's simplification is on the private side
    by_group = math.sqrt(8) / gdp_mu(1 / 40, delta)
    [direct] = calibrate_user_level([event()], epsilon=1.0, delta=1e-6)
    assert direct.noise_multiplier < by_group


def test_user_level_refusals():
    with pytest.raises(PricingError, match="noise for a sensitive attribute"):
        user_level_mu([event(protects="sensitive-attribute")])
    assert user_level([event(noise_multiplier=0.0)], delta=1e-6).epsilon == math.inf
    with pytest.raises(PricingError, match="noise_multiplier > 0"):
        calibrate_user_level([event(noise_multiplier=0.0)], epsilon=1.0, delta=1e-6)
    assert calibrate_user_level([], epsilon=1.0, delta=1e-6) == ()


def test_a_silo_event_is_already_about_the_silo():
    made = event(protects="silo")
    assert user_level_mu([made]) == pytest.approx(price([made], delta=1e-6).mu)


def test_the_statement_about_silos_is_plain():
    assert "amplifies nothing" in SILO_SAMPLING
    assert "hidden or not" in SILO_SAMPLING
