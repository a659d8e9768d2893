"""Noise for a budget: never over it, hardly under it, quickly."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import Event, PricingError, calibrate, gdp_mu, price

DELTA = 1e-6


def event(**changes):
    base = {"kind": "g", "noise_multiplier": 1.0, "count": 50, "records": 1234, "batch": 1234}
    return Event(**(base | {"sampling": "full"} | changes))


@settings(max_examples=100)
@given(
    epsilon=st.floats(1e-3, 50),
    log_delta=st.floats(-100, -1),
    counts=st.lists(st.integers(1, 500), min_size=1, max_size=3),
    ratio=st.floats(0.1, 10),
)
def test_exact_schedules_spend_the_whole_budget(epsilon, log_delta, counts, ratio):
    delta = math.exp(log_delta)
    plan = [event(kind=str(i), count=c, noise_multiplier=ratio**i) for i, c in enumerate(counts)]
    tuned = calibrate(plan, epsilon=epsilon, delta=delta)
    paid = price(tuned, delta=delta)
    assert paid.exact
    assert 0.99 * epsilon <= paid.epsilon <= epsilon
    for before, after in zip(plan, tuned, strict=True):
        scale = after.noise_multiplier / before.noise_multiplier
        assert scale == pytest.approx(tuned[0].noise_multiplier / plan[0].noise_multiplier)


@settings(max_examples=10, deadline=None)
@given(
    epsilon=st.sampled_from([0.1, 0.5, 1.0, 4.0, 10.0]),
    sampling=st.sampled_from(["wor", "wr", "poisson"]),
    batch=st.integers(2, 1000),
    count=st.sampled_from([1, 10, 100, 1000]),
)
def test_sampled_schedules_spend_nearly_all_of_it(epsilon, sampling, batch, count):
    [tuned] = calibrate([event(sampling=sampling, batch=batch, count=count)], epsilon=epsilon, delta=DELTA)
    assert 0.995 * epsilon <= price([tuned], delta=DELTA).epsilon <= epsilon


def test_known_noise():
    """n = 1234, R = 50, epsilon = 1, delta = 1/n^2: sigma/C for batches of 8, 87 and n."""
    known = {
        8: {"wr": 0.228, "wor": 0.219, "poisson": 0.110},
        87: {"wr": 0.0609, "wor": 0.0599, "poisson": 0.0495},
        1234: {"full": 0.0494},
    }
    for batch, schemes in known.items():
        for sampling, sigma in schemes.items():
            [tuned] = calibrate([event(sampling=sampling, batch=batch)], epsilon=1.0, delta=1 / 1234**2)
            assert tuned.noise_multiplier * 2 / batch == pytest.approx(sigma, rel=0.01)


def test_mixed_schedules_keep_their_ratios():
    plan = [
        event(count=5, noise_multiplier=3.0),
        event(kind="s", sampling="poisson", batch=100, noise_multiplier=1.0),
        event(kind="idle", count=0, noise_multiplier=7.0),
    ]
    tuned = calibrate(plan, epsilon=1.0, delta=DELTA)
    assert 0.995 <= price(tuned, delta=DELTA).epsilon <= 1.0
    assert tuned[0].noise_multiplier == pytest.approx(3 * tuned[1].noise_multiplier)
    assert tuned[2] == plan[2]


def test_one_pass_and_running_sums_are_calibrated_exactly():
    mu = gdp_mu(1.0, DELTA)
    [once] = calibrate([event(sampling="one-pass", batch=24)], epsilon=1.0, delta=DELTA)
    assert once.noise_multiplier == pytest.approx(1 / mu, rel=1e-9)
    [running] = calibrate([event(sampling="one-pass", batch=24, mechanism="cumulative")], epsilon=1.0, delta=DELTA)
    assert running.noise_multiplier == pytest.approx(math.sqrt(50) / mu, rel=1e-9)


def test_other_accountants_ask_for_more_noise():
    tight, rdp, zcdp = (
        calibrate([event()], epsilon=1.0, delta=DELTA, accountant=a)[0].noise_multiplier
        for a in ("tight", "rdp", "zcdp")
    )
    assert tight < rdp
    assert tight < zcdp
    [by_rdp] = calibrate([event()], epsilon=1.0, delta=DELTA, accountant="rdp")
    assert price([by_rdp], delta=DELTA, accountant="rdp").epsilon <= 1.0


def test_speed():
    start = time.process_time()
    calibrate([event(count=1000)], epsilon=1.0, delta=DELTA)
    assert time.process_time() - start < 1.0
    start = time.process_time()
    calibrate([event(sampling="wr", batch=87, count=1000)], epsilon=1.0, delta=DELTA)
    assert time.process_time() - start < 10.0


def test_refusals():
    with pytest.raises(PricingError, match="noise_multiplier > 0 for every kind; only ratios"):
        calibrate([event(noise_multiplier=0.0)], epsilon=1.0, delta=DELTA)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(PricingError, match="epsilon"):
            calibrate([event()], epsilon=bad, delta=DELTA)
    with pytest.raises(PricingError, match=r"chance that a record is sampled at all.*Lower delta"):
        calibrate([event(records=10**6, batch=1, sampling="poisson", count=1)], epsilon=1.0, delta=1e-3)
    assert calibrate([], epsilon=1.0, delta=DELTA) == ()
    idle = event(count=0)
    assert calibrate([idle], epsilon=1.0, delta=DELTA) == (idle,)
