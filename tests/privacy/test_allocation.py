"""Random allocation: the price against brute force, closed forms, and what it must never go below."""

import itertools
import math

import numpy as np
import pytest

from tacit.algorithm import Release
from tacit.privacy import Event, PricingError, calibrate, price
from tacit.privacy.allocation import EPOCH_FAILURE, _psi, batches_of, dominating_rate, is_amplified
from tacit.privacy.filter import cost, rule_for
from tacit.privacy.gaussian import gauss_delta
from tacit.privacy.plan import events_of
from tacit.privacy.profiles import allocated, poisson
from tacit.silo.spending import joint_price
from tests.algorithms.table import CASES, LOGISTIC


def epochs(multiplier, *, records=1000, batch=10, passes=1, **changed):
    terms = {"kind": "g", "noise_multiplier": multiplier, "records": records, "batch": batch, "sampling": "allocation"}
    return Event(**{**terms, "count": passes * batches_of(records, batch), "passes": passes, **changed})


def measured_delta(epsilon, *, batches, multiplier, trials, seed):
    """The hockey-stick divergence of one epoch with antipodal records, by simulation: E_P (1 - e^epsilon Q/P)+."""
    rng, s = np.random.default_rng(seed), 0.5 / multiplier
    noise = rng.standard_normal((trials, batches))
    noise[np.arange(trials), rng.integers(0, batches, trials)] += s
    here = np.exp(s * noise - s * s / 2).mean(axis=1)
    there = np.exp(-s * noise - s * s / 2).mean(axis=1)
    values = np.maximum(1 - math.exp(epsilon) * there / here, 0)
    return values.mean(), values.std() / math.sqrt(trials)


@pytest.mark.parametrize(("batches", "multiplier", "epsilon"), [(200, 1.0, 0.1), (400, 0.8, 0.1)])
def test_the_price_of_an_epoch_is_above_what_it_tells_and_near_it(batches, multiplier, epsilon):
    event = epochs(multiplier, records=batches, batch=1)
    assert is_amplified(batches, multiplier)
    claimed = price([event], delta=0.09)
    found, error = measured_delta(claimed.epsilon, batches=batches, multiplier=multiplier, trials=20_000, seed=0)
    assert found <= 0.09 + 4 * error
    found, error = measured_delta(epsilon, batches=batches, multiplier=multiplier, trials=40_000, seed=1)
    assert found > 4 * error
    at_found = price([event], delta=found - 4 * error).epsilon
    assert epsilon <= at_found <= 3 * epsilon


def test_the_rate_stays_above_one_in_so_many_and_comes_near_it():
    rates = [batches * dominating_rate(batches, 3.0) for batches in (50, 200, 1000, 10_000)]
    assert all(1 < b <= a for a, b in itertools.pairwise(rates))
    assert rates[-1] < 1.02
    by_noise = [dominating_rate(300, z) for z in (0.5, 1.0, 2.0, 8.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert dominating_rate(300, 1e-3) == 1.0


def test_a_rate_is_exceeded_no_more_often_than_is_paid_for():
    """The same bound at a failure that simulation can see: it holds, and is not far off."""
    batches, s, failure, trials = 100, 0.5, 0.05, 20_000
    ks = np.geomspace(0.05, 5, 60)
    reach = min((math.log(1 / failure) + batches * _psi(k, s)) / k for k in ks)
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((trials, batches))
    inside = rng.integers(0, batches, trials)
    ratios = np.exp(s * noise - s * s / 2)
    ratios[np.arange(trials), inside] *= 0.0  # the worst that the batch of the record can add
    left = batches - np.arange(batches)
    worst = (left + np.concatenate([np.zeros((trials, 1)), np.cumsum(ratios, axis=1)[:, :-1]], axis=1)).min(axis=1)
    exceeded = np.mean(worst < batches - 1 - reach)
    assert 0.001 < exceeded <= failure


def test_the_exponential_moment_is_bounded_from_above():
    rng = np.random.default_rng(0)
    for k, s in ((0.3, 0.5), (2.0, 0.2), (1.0, 1.0)):
        sampled = np.exp(k * (1 - np.exp(s * rng.standard_normal(400_000) - s * s / 2)))
        exact = math.log(sampled.mean())
        assert exact - 5 * sampled.std() / math.sqrt(400_000) <= _psi(k, s) <= exact * 1.05 + 1e-3


def test_an_epoch_costs_no_more_than_a_pass_with_known_batches():
    known = Event(kind="g", noise_multiplier=2.0, count=4, records=40, batch=10, sampling="one-pass")
    few = epochs(2.0, records=40, batch=10)
    assert not is_amplified(4, 2.0)
    assert price([few], delta=1e-6).epsilon == pytest.approx(price([known], delta=1e-6).epsilon)
    many = [price([epochs(2.0, records=n, batch=1, passes=3)], delta=1e-6).epsilon for n in (10, 40, 100, 400, 2000)]
    assert many == sorted(many, reverse=True)
    assert many[-1] < 0.25 * many[0]


def test_poisson_sampling_at_the_same_mean_is_a_little_cheaper():
    for records in (100, 1000):
        ours = price([epochs(1.5, records=records, batch=1)], delta=1e-6).epsilon
        theirs = price([epochs(1.5, records=records, batch=1, sampling="poisson")], delta=1e-6).epsilon
        assert theirs < ours < 2 * theirs


def test_profiles_carry_the_failure_and_full_batches():
    x = np.linspace(0, 3, 7)
    rate = dominating_rate(100, 1.0)
    plain = poisson(x, multiplier=1.0, rate=rate)
    loose = allocated(x, multiplier=1.0, records=1000, batch=10, capacity=None)
    tight = allocated(x, multiplier=1.0, records=1000, batch=10, capacity=12)
    assert np.all(loose >= plain)
    far = np.array([1e3])  # where nothing else is left
    assert allocated(far, multiplier=1.0, records=1000, batch=10, capacity=None)[0] == 2 * EPOCH_FAILURE
    assert np.all(tight > loose + 0.1)  # twelve are often too few: every release may disclose
    assert np.all(allocated(x, multiplier=1e-3, records=1000, batch=10, capacity=12) >= gauss_delta(x, 1e3) - 1e-12)


def test_a_filter_adds_epochs_up_and_charges_known_batches_whole():
    rule = rule_for("renyi", 4.0, 1e-6)
    one, two = (cost(rule, [epochs(2.0, passes=passes)]).loss for passes in (1, 2))
    assert two == pytest.approx(2 * one)
    assert one < 0.3 * cost(rule, [epochs(2.0, records=40, batch=10)]).loss
    with pytest.raises(PricingError, match="rule"):
        cost(rule_for("gdp", 4.0, 1e-6), [epochs(2.0)])


@pytest.mark.parametrize("start", [0.01, 1.0, 30.0])
def test_calibration_meets_the_budget_wherever_it_starts(start):
    [tuned] = calibrate([epochs(start, records=20, batch=1, passes=10)], epsilon=1.0, delta=1e-6)
    assert 0.999 < price([tuned], delta=1e-6).epsilon <= 1.0


def test_more_noise_is_never_dearer():
    prices = [price([epochs(z, records=12, batch=1, passes=400)], delta=1e-6).epsilon for z in (20, 50, 60, 100, 400)]
    assert prices == sorted(prices, reverse=True)


def test_epochs_of_several_studies_add_up():
    """Two studies of a part of an epoch each may have a record twice."""
    part = epochs(2.0, records=400, batch=1, count=20)
    both = joint_price([[part], [part]], delta=1e-6)
    [merged] = both.events
    assert (merged.count, merged.passes) == (40, 2)
    assert both.epsilon > price([part], delta=1e-6).epsilon
    whole = epochs(2.0, records=400, batch=1)
    assert joint_price([[whole], [whole]], delta=1e-6).epsilon == pytest.approx(
        price([epochs(2.0, records=400, batch=1, passes=2)], delta=1e-6).epsilon, rel=1e-3
    )


def test_epochs_share_a_schedule_with_no_pass():
    drawn = {"batch_size": 5, "difference_sampling": "allocation", "difference_batch_size": 10}
    for sampling in ("one-pass", "allocation"):
        built = CASES["prox-spider"].build(LOGISTIC, sampling=sampling, **drawn)
        with pytest.raises(PricingError, match="one kind of round"):
            events_of(built, silo_index=0, silos=1, records=40)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"count": 101}, "batches of an epoch"),
        ({"mechanism": "cumulative"}, "does not amplify"),
        ({"mechanism": "reports", "reports": 10, "streams": (1.0,)}, "number is fixed"),
        ({"capacity": 9}, "raise the capacity"),
        ({"protects": "sensitive-attribute"}, "whole records"),
    ],
)
def test_what_cannot_be_priced_is_refused(changed, rule):
    with pytest.raises(PricingError, match=rule):
        epochs(2.0, **changed)


@pytest.mark.parametrize("sampling", ["poisson", "allocation"])
def test_rows_of_counts_need_batches_that_are_priced_for_them(sampling):
    """Two rows without negative entries are sqrt(2) clips apart, and each is a whole clip from a batch without them."""
    with pytest.raises(ValueError, match="rows of counts"):
        Release(lambda work: 1.0, 1.0, 5, sampling, nonnegative=True)


def drawn(batches, multiplier, epsilon):
    """A message x of N(0) in each batch, its mass, and what it adds to T (P - e^epsilon Q), of antipodal records."""
    x, s = np.linspace(-9, 9, 1201), 0.5 / multiplier
    mass = np.exp(-(x**2) / 2)
    here, there = np.exp(s * x - s * s / 2), np.exp(-s * x - s * s / 2)
    return mass / mass.sum(), here, math.exp(epsilon) * there


def epoch_delta(epsilon, *, batches, multiplier):
    """The exact hockey stick of an epoch: likelihoods are means over batches, so that their sums are convolved."""
    mass, here, there = drawn(batches, multiplier, epsilon)
    values = here - there
    low, step, cells = values.min(), (np.ptp(values) + 1e-9) / 2000, 1 << 15
    place = (values - low) / step
    below = place.astype(int)
    once = np.bincount(below, mass * (1 - place + below), cells) + np.bincount(below + 1, mass * (place - below), cells)
    total = np.fft.irfft(np.fft.rfft(once) ** batches, cells)
    return float(np.maximum(low * batches + step * np.arange(cells), 0) @ np.maximum(total, 0)) / batches


def best_server(epsilon, *, batches, multiplier):
    """The same for a server that asks, asks for one world's record alone, or skips a round, by what it has heard."""
    mass, here, there = drawn(batches, multiplier, epsilon)
    nothing = np.ones_like(here)
    options = [here - there, here - math.exp(epsilon) * nothing, nothing - there, nothing * (1 - math.exp(epsilon))]
    far = batches * max(np.abs(own[mass > 1e-12]).max() for own in options)
    grid = np.linspace(-far, far, 2001)
    value = np.maximum(grid, 0) / batches
    for _ in range(batches):
        value = np.max([np.interp(grid[:, None] + own, grid, value) @ mass for own in options], axis=0)
    return float(np.interp(0.0, grid, value))


@pytest.mark.parametrize("multiplier", [3.0, 12.0])
def test_an_epoch_of_one_batch_is_a_gaussian(multiplier):
    exact = gauss_delta(np.array([0.05]), 1 / multiplier)[0]
    assert epoch_delta(0.05, batches=1, multiplier=multiplier) == pytest.approx(exact, rel=1e-4)


AMPLIFIED = [(5, 20.0), (6, 10.0), (7, 8.0), (8, 6.0)]


@pytest.mark.parametrize(("batches", "multiplier"), AMPLIFIED)
def test_a_few_batches_that_are_amplified_cost_what_no_server_exceeds(batches, multiplier):
    """Integrated, not simulated: what is priced is the secret place, and less than a known one."""
    assert is_amplified(batches, multiplier)
    epsilon, own = 0.1 / multiplier, {"batches": batches, "multiplier": multiplier}
    plain, best = epoch_delta(epsilon, **own), best_server(epsilon, **own)
    assert plain > 1e-3
    assert best == pytest.approx(plain, rel=1e-2), "to ask in every round is best"
    event = epochs(multiplier, records=batches, batch=1)
    assert epsilon <= price([event], delta=max(plain, best)).epsilon
    known = epochs(multiplier, records=batches, batch=1, sampling="one-pass")
    assert price([event], delta=1e-6).epsilon < price([known], delta=1e-6).epsilon


@pytest.mark.parametrize(("batches", "multiplier"), AMPLIFIED[::3])
def test_two_epochs_of_a_few_batches_cost_what_they_tell(batches, multiplier):
    """The second epoch is as the first, for whatever the first has said: its hockey stick at what is left."""
    losses = np.linspace(-6, 6, 241) / multiplier
    profile = np.array([epoch_delta(loss, batches=batches, multiplier=multiplier) for loss in losses])
    above = np.append(-np.diff(profile) / np.diff(np.exp(losses)), 0.0)
    mass = np.append(1 - above[0], above[:-1] - above[1:]) * np.exp(losses)
    epsilon = 0.1 / multiplier
    twice = float(np.interp(epsilon - losses, losses, profile) @ mass)
    assert twice > 1.2 * epoch_delta(epsilon, batches=batches, multiplier=multiplier)
    assert epsilon <= price([epochs(multiplier, records=batches, batch=1, passes=2)], delta=twice).epsilon
