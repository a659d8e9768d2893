"""Pricing of whole schedules: exact Gaussians, one pass, running sums, mixtures, and what is refused."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import Event, PricingError, capped, gaussian_mu, gdp_epsilon, price, spent

DELTA = 1e-6


def event(**changes):
    base = {"kind": "g", "noise_multiplier": 5.0, "count": 10, "records": 100, "batch": 100}
    return Event(**(base | {"sampling": "full"} | changes))


def epsilon(*events, delta=DELTA, **options):
    return price(events, delta=delta, **options).epsilon


def test_full_batches_add_inverse_squares():
    paid = price([event(), event(kind="h", noise_multiplier=2.0, count=3)], delta=DELTA)
    mu = math.sqrt(10 / 25 + 3 / 4)
    assert paid.mu == pytest.approx(mu, rel=1e-14)
    assert paid.epsilon == pytest.approx(gdp_epsilon(mu, DELTA), rel=1e-12)
    assert (paid.accountant, paid.exact) == ("gdp", True)


def test_nothing_is_free_and_no_noise_is_infinite():
    assert epsilon() == 0.0
    assert epsilon(event(count=0)) == 0.0
    assert epsilon(event(count=0, noise_multiplier=0.0)) == 0.0
    for accountant in ("tight", "rdp", "zcdp"):
        assert epsilon(event(noise_multiplier=0.0), event(), accountant=accountant) == math.inf
    silent = event(noise_multiplier=0.0, sampling="poisson", batch=1, count=1)
    assert epsilon(silent) == math.inf


def test_one_pass_costs_one_release_and_the_worst_of_several():
    batches = event(sampling="one-pass", batch=5, count=20)
    assert gaussian_mu([batches]) == pytest.approx(1 / 5)
    first = event(sampling="one-pass", batch=5, count=10, noise_multiplier=4.0)
    second = event(kind="h", sampling="one-pass", batch=10, count=5, noise_multiplier=2.0)
    assert gaussian_mu([first, second]) == pytest.approx(1 / 2)
    # Other releases compose with the pass.
    assert gaussian_mu([first, second, event(kind="f", count=4)]) == pytest.approx(math.sqrt(1 / 4 + 4 / 25))


def test_several_one_pass_kinds_must_fit_one_pass():
    first = event(sampling="one-pass", batch=5, count=12)
    second = event(kind="h", sampling="one-pass", batch=5, count=9)
    with pytest.raises(PricingError, match=r"count=12 x batch=5 \+ count=9 x batch=5 = 105 <= passes=1"):
        price([first, second], delta=DELTA)
    with pytest.raises(PricingError, match="one number of passes"):
        price([first, event(kind="h", sampling="one-pass", batch=5, count=1, passes=2)], delta=DELTA)


def test_several_passes_cost_their_square_root():
    epochs = event(sampling="one-pass", batch=10, count=40, passes=4)
    assert gaussian_mu([epochs]) == pytest.approx(math.sqrt(4) / 5)
    # A record cannot be in more batches than there are.
    assert gaussian_mu([event(sampling="one-pass", batch=10, count=2, passes=4)]) == pytest.approx(math.sqrt(2) / 5)


@pytest.mark.parametrize(("sampling", "passes", "batch"), [("one-pass", 1, 10), ("one-pass", 3, 30), ("full", 1, 100)])
def test_running_sums_cost_the_worst_record(sampling, passes, batch):
    """Brute force over all sets of increments that one record may enter."""
    rounds, z = 8, 5.0
    entries = rounds if sampling == "full" else passes
    made = event(sampling=sampling, mechanism="cumulative", batch=batch, count=rounds, passes=passes)
    worst = 0.0
    for bits in np.ndindex(*[2] * rounds):
        if sum(bits) <= entries:
            worst = max(worst, float(np.sum(np.cumsum(bits) ** 2)) / z**2)
    assert gaussian_mu([made]) == pytest.approx(math.sqrt(worst), rel=1e-12)


def test_running_sum_and_plain_batches_share_the_pass():
    running = event(sampling="one-pass", mechanism="cumulative", batch=5, count=10)
    plain = event(kind="h", sampling="one-pass", batch=5, count=10, noise_multiplier=1.0)
    assert gaussian_mu([running, plain]) == pytest.approx(max(math.sqrt(10) / 5, 1.0))
    twice = [running, event(kind="h", sampling="one-pass", mechanism="cumulative", batch=5, count=10)]
    assert gaussian_mu(twice) == pytest.approx(math.sqrt(20) / 5)
    with pytest.raises(PricingError, match='at most one event with mechanism "cumulative"'):
        price([event(mechanism="cumulative"), event(kind="h", mechanism="cumulative")], delta=DELTA)
    with pytest.raises(PricingError, match='at most one event with mechanism "cumulative"'):
        price([dataclasses.replace(e, protects="silo") for e in twice], delta=DELTA)


def test_mixed_schedules_lie_between_their_parts_and_their_sum():
    full = event(count=5, noise_multiplier=8.0)
    sampled = event(kind="s", sampling="poisson", batch=10, count=50, noise_multiplier=1.0)
    drawn = event(kind="w", sampling="wr", batch=10, count=20, noise_multiplier=3.0)
    parts = [epsilon(e, delta=DELTA / 3) for e in (full, sampled, drawn)]
    together = epsilon(full, sampled, drawn)
    assert max(epsilon(e) for e in (full, sampled, drawn)) <= together <= sum(parts)


def test_splitting_a_count_changes_nothing():
    sampled = event(sampling="wor", batch=10, count=60, noise_multiplier=1.5)
    halves = [event(kind=k, sampling="wor", batch=10, count=c, noise_multiplier=1.5) for k, c in (("a", 20), ("b", 40))]
    assert epsilon(*halves) == pytest.approx(epsilon(sampled), rel=1e-3)


def test_a_batch_of_everything_is_the_full_batch():
    exact = price([event()], delta=DELTA)
    for sampling in ("wor", "poisson"):
        paid = price([event(sampling=sampling)], delta=DELTA)
        assert (paid.epsilon, paid.accountant, paid.exact) == (exact.epsilon, "gdp", True)
    assert epsilon(event(sampling="wr")) > exact.epsilon


def test_sampling_amplifies_in_the_known_order():
    cost = {s: epsilon(event(sampling=s, batch=10, noise_multiplier=1.0)) for s in ("poisson", "wor", "wr")}
    assert cost["poisson"] < cost["wor"] < cost["wr"]
    assert cost["wr"] < epsilon(event(noise_multiplier=1.0))


def test_a_sensitive_attribute_is_not_amplified_by_a_secret_batch():
    """The batch counts as known: the price is the mixture over how often the record was drawn."""
    from scipy import stats

    from tacit.privacy import gauss_delta

    made = event(sampling="wor", batch=10, count=30, noise_multiplier=2.0, protects="sensitive-attribute")
    paid = price([made], delta=DELTA)
    mixture = sum(
        stats.binom.pmf(k, 30, 0.1) * float(gauss_delta(paid.epsilon, math.sqrt(k) / 2)) for k in range(1, 31)
    )
    assert mixture == pytest.approx(DELTA, rel=0.01)
    assert paid.epsilon > epsilon(event(sampling="wor", batch=10, count=30, noise_multiplier=2.0))
    twice = event(sampling="wr", batch=10, count=30, noise_multiplier=2.0, protects="sensitive-attribute")
    assert epsilon(twice) > paid.epsilon


def test_protecting_the_silo_pays_for_every_release():
    for sampling, batch in (("full", 100), ("poisson", 10), ("wor", 10), ("wr", 10), ("one-pass", 10)):
        made = event(sampling=sampling, batch=batch, count=10, protects="silo")
        assert price([made], delta=DELTA).mu == pytest.approx(math.sqrt(10) / 5)


def test_one_silo_one_guarantee():
    with pytest.raises(PricingError, match="one value of records in a schedule, got 100, 50"):
        price([event(), event(records=50, batch=50)], delta=DELTA)
    with pytest.raises(PricingError, match="one value of protects"):
        price([event(), event(protects="silo")], delta=DELTA)
    with pytest.raises(PricingError, match="Event"):
        price(["round"], delta=DELTA)
    with pytest.raises(PricingError, match="accountant='paper' to be one of tight, rdp, zcdp; for the noise"):
        price([event()], delta=DELTA, accountant="paper")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, math.nan, math.inf, "small"])
def test_delta_must_be_a_probability(delta):
    with pytest.raises(PricingError, match="delta"):
        price([event()], delta=delta)


@settings(max_examples=15, deadline=None)
@given(
    z=st.floats(0.3, 30),
    count=st.integers(1, 200),
    batch=st.integers(1, 99),
    sampling=st.sampled_from(["wor", "wr", "poisson"]),
    grow=st.floats(1.1, 3.0),
)
def test_prices_are_monotone(z, count, batch, sampling, grow):
    def at(z=z, count=count, batch=batch, delta=DELTA):
        return epsilon(event(noise_multiplier=z, count=count, batch=batch, sampling=sampling), delta=delta)

    base, slack = at(), 2e-3
    assert at(z=z * grow) <= base * (1 + slack)
    assert at(count=count + 1 + count // 2) >= base * (1 - slack)
    assert at(batch=min(99, batch + 10)) >= base * (1 - slack)
    assert at(delta=DELTA * 5) <= base * (1 + slack)
    if sampling != "wr":
        assert base <= epsilon(event(noise_multiplier=z, count=count)) * (1 + 1e-12)


def test_price_is_reserved_at_the_cap_and_spending_reported_beside_it():
    plan = [event(), event(kind="h", count=4, noise_multiplier=9.0)]
    reserved = price(capped(plan, 6), delta=DELTA)
    assert [e.count for e in reserved.events] == [6, 4]
    real = spent(reserved.events, {"g": 3}, delta=DELTA)
    assert real.epsilon == pytest.approx(epsilon(event(count=3)))
    assert real.epsilon < reserved.epsilon < epsilon(*plan)
    assert capped(plan, None) == tuple(plan)
    with pytest.raises(PricingError, match=r"participations=7 <= count=6 of kind 'g'"):
        spent(reserved.events, {"g": 7}, delta=DELTA)
    with pytest.raises(PricingError, match="got other"):
        spent(reserved.events, {"other": 1}, delta=DELTA)
    with pytest.raises(PricingError, match="max_participations=-1"):
        capped(plan, -1)
