"""A limit on participations is one limit for all kinds: priced at the dearest allocation, never below it."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import Event, PricingError, calibrate, capped, gaussian_mu, gdp_epsilon, price, risk_of
from tacit.privacy.pld import Composition
from tacit.privacy.schedule import limit_of, loss_parts, worst_allocation

DELTA = 1e-5


def event(z, count, kind="g", **changes):
    terms = {"records": 100, "batch": 100, "sampling": "full", **changes}
    return Event(kind=kind, noise_multiplier=z, count=count, **terms)


def allocations(events, cap):
    """Every way to spend a limit on rounds of these events."""
    for chosen in itertools.product(*(range(e.count // e.steps + 1) for e in events)):
        if sum(chosen) <= cap:
            yield [dataclasses.replace(e, count=n * e.steps) for e, n in zip(events, chosen, strict=True)]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(1.0, 30.0), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4),
    cap=st.integers(0, 12),
)
def test_gaussian_kinds_cost_exactly_their_dearest_allocation(rows, cap):
    events = [event(z, rounds * steps, str(i), steps=steps) for i, (z, rounds, steps) in enumerate(rows)]
    worst = max(gaussian_mu(made) for made in allocations(events, cap))
    found = price(capped(events, cap), delta=DELTA)
    assert found.mu == pytest.approx(worst, rel=1e-12, abs=1e-300)
    assert found.exact
    assert found.epsilon == pytest.approx(gdp_epsilon(worst, DELTA), rel=1e-9)
    assert [e.count for e in found.events] == [min(e.count, cap * e.steps) for e in events]


MIXED = {
    "less noise, one way to sample": [
        event(2.0, 6, "a", batch=10, sampling="wor"),
        event(3.0, 6, "b", batch=10, sampling="wor"),
    ],
    "full and sampled": [event(4.0, 3, "a"), event(4.0, 6, "b", batch=30, sampling="poisson")],
    "cannot be compared": [event(8.0, 4, "a"), event(1.0, 5, "b", batch=10, sampling="poisson")],
    "with replacement": [event(4.0, 4, "a"), event(4.0, 5, "b", batch=10, sampling="wr")],
    "several steps": [event(4.0, 8, "a", steps=2), event(4.0, 5, "b", batch=30, sampling="wor")],
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("cap", [1, 4, 7])
def test_sampled_kinds_cost_no_less_than_any_allocation(name, cap):
    events = MIXED[name]
    found = price(capped(events, cap), delta=DELTA).epsilon
    # Two grids of losses differ by less than this.
    assert found >= max(price(made, delta=DELTA).epsilon for made in allocations(events, cap)) * (1 - 2e-3)
    apart = [dataclasses.replace(e, count=min(e.count, cap * e.steps)) for e in events]
    assert found <= price(apart, delta=DELTA).epsilon * (1 + 1e-9)


@pytest.mark.parametrize("name", ["less noise, one way to sample", "full and sampled"])
def test_kinds_that_can_be_compared_cost_one_allocation(name):
    events, cap = MIXED[name], 7
    counted = worst_allocation(capped(events, cap))
    assert sum(e.count for e in counted) == cap
    apart = [dataclasses.replace(e, count=min(e.count, cap)) for e in events]
    assert price(capped(events, cap), delta=DELTA).epsilon < 0.99 * price(apart, delta=DELTA).epsilon
    assert all(e.participations is None for e in counted)


def test_the_dear_kind_dominates_in_every_profile():
    """What the exchange rests on: an allocation with one more dear round has a larger delta at every epsilon."""
    dear, cheap = event(4.0, 1, "a"), event(4.0, 1, "b", batch=30, sampling="poisson")
    for less, more in (([cheap], [dear]), ([cheap, cheap], [dear, cheap])):
        one, two = (Composition(loss_parts(parts), DELTA) for parts in (less, more))
        assert all(one.delta_at(x) <= two.delta_at(x) * (1 + 1e-3) + 1e-10 for x in (0.0, 0.1, 0.3, 0.6, 1.0))


def test_passes_and_running_sums_count_whole_beside_a_limit():
    passing, running = event(3.0, 8, "p", batch=10, sampling="one-pass"), event(50.0, 6, "s", mechanism="cumulative")
    found = price(capped([passing, running, event(9.0, 9)], 6), delta=DELTA)
    assert found.mu == pytest.approx((1 / 9 + 91 / 2500 + 6 / 81) ** 0.5)
    assert not found.exact
    assert price(capped([passing, running, event(9.0, 9)], 30), delta=DELTA).exact


def test_a_limit_that_binds_nothing_changes_nothing():
    events = [event(9.0, 5), event(7.0, 4, "h", batch=10, sampling="wor")]
    assert price(capped(events, 9), delta=DELTA).epsilon == price(events, delta=DELTA).epsilon
    assert worst_allocation(events) == tuple(events)
    assert limit_of(events) is None


def test_noise_is_found_for_the_dearest_allocation():
    events = capped([event(1.0, 40), event(1.5, 40, "h")], 50)
    tuned = calibrate(events, epsilon=1.0, delta=DELTA)
    assert 0.999 < price(tuned, delta=DELTA).epsilon <= 1.0
    loose = calibrate([dataclasses.replace(e, participations=None) for e in events], epsilon=1.0, delta=DELTA)
    assert tuned[0].noise_multiplier < 0.95 * loose[0].noise_multiplier
    assert risk_of(tuned).advantage < risk_of([dataclasses.replace(e, participations=None) for e in tuned]).advantage


def test_two_limits_in_one_schedule_are_refused():
    with pytest.raises(PricingError, match="one limit of participations in a schedule, got 2, 3"):
        price([event(9.0, 5, participations=2), event(9.0, 5, "h", participations=3)], delta=DELTA)
    with pytest.raises(PricingError, match="participations=-1 >= 0"):
        event(9.0, 5, participations=-1)
    with pytest.raises(PricingError, match="steps=0 >= 1"):
        event(9.0, 5, steps=0)
