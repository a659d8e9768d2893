"""Central, user-level and add-or-remove readings of a record-level guarantee."""

import math

import numpy as np
import pytest

from tacit.privacy import (
    SILO_SAMPLING,
    Event,
    PricingError,
    add_remove_multiplier,
    calibrate_user_level,
    gaussian_mu,
    gdp_epsilon,
    gdp_mu,
    price,
    record_budget_for_user_level,
    replace_from_add_remove,
    to_central,
    to_user_level,
    user_level,
    user_level_mu,
)


def event(**changes):
    base = {"kind": "g", "noise_multiplier": 50.0, "count": 8, "records": 40, "batch": 40}
    return Event(**(base | {"sampling": "full"} | changes))


def test_central_dp_has_the_same_numbers():
    assert (to_central(1.3, 1e-6).epsilon, to_central(1.3, 1e-6).delta) == (1.3, 1e-6)


def test_group_privacy():
    whole = to_user_level(0.02, 1e-9, 50)
    assert whole.epsilon == pytest.approx(1.0)
    assert whole.delta == pytest.approx(50 * math.exp(49 * 0.02) * 1e-9)
    assert to_user_level(3.0, 1e-6, 1000).delta == 1.0
    # A silo of one record is the record.
    assert (to_user_level(0.7, 1e-6, 1).epsilon, to_user_level(0.7, 1e-6, 1).delta) == (
        0.7,
        pytest.approx(1e-6),
    )


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
    by_group = to_user_level(paid.epsilon, paid.delta, 40)
    direct = user_level(made, delta=by_group.delta)
    assert direct.epsilon < gain * by_group.epsilon


def test_both_guarantees_together():
    plan = [event(noise_multiplier=1.0), event(kind="s", sampling="wor", batch=5, noise_multiplier=2.0)]
    tuned = calibrate_user_level(plan, epsilon=1.0, delta=1e-6)
    assert 0.999 <= user_level(tuned, delta=1e-6).epsilon <= 1.0
    assert price(tuned, delta=1e-6).epsilon < 0.2
    assert tuned[1].noise_multiplier == pytest.approx(2 * tuned[0].noise_multiplier)


def test_the_papers_route_to_both_guarantees_needs_more_noise():
    small = record_budget_for_user_level(1.0, 1e-6, 40)
    assert small.epsilon == pytest.approx(1 / 40)
    assert small.delta >= 1e-6 / (4 * 40)  # the paper's simplification is on the private side
    by_group = math.sqrt(8) / gdp_mu(small.epsilon, small.delta)
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


def test_add_or_remove_and_replace():
    """A Gaussian sum: sigma/C = 2z, and removing then adding is dominated by the stated conversion."""
    z, delta = 3.0, 1e-6
    by_add_remove = gdp_epsilon(1 / add_remove_multiplier(z), delta)
    exact = gdp_epsilon(1 / z, delta)
    stated = replace_from_add_remove(by_add_remove, delta)
    assert by_add_remove < exact
    assert gdp_epsilon(1 / z, stated.delta) <= stated.epsilon


def test_the_statement_about_silos_is_plain():
    assert "amplifies nothing" in SILO_SAMPLING
    assert "hidden or not" in SILO_SAMPLING
