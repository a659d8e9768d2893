"""Renyi divergences of single releases: never below the truth, and hardly above it."""

import dataclasses
import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy import special

from tacit.privacy import Event, PricingError
from tacit.privacy.filter import conversion, masses, profile_divergence, release_divergence
from tacit.privacy.gaussian import gauss_delta
from tacit.privacy.profiles import poisson

ORDERS = [1.2, 2.0, 3.0, 7.5, 16.0]
TAIL = 1e-15


def event(z, **changes):
    terms = {"count": 1, "records": 20, "batch": 20, "sampling": "full", **changes}
    return Event(kind="g", noise_multiplier=z, **terms)


def divergence(p, q, order):
    """Of two densities or mass functions, given by their logarithms on the same points."""
    return float(special.logsumexp(order * p + (1 - order) * q) / (order - 1))


def mixture(x, weights, centres, deviation):
    """Logarithm of the mass of a mixture of Gaussians at the points of a fine grid."""
    terms = np.log(weights)[:, None] - (x - np.asarray(centres)[:, None]) ** 2 / (2 * deviation**2)
    step = math.log(x[1] - x[0]) - math.log(deviation * math.sqrt(2 * math.pi))
    return special.logsumexp(terms, axis=0) + step


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("z", [0.7, 3.0, 40.0])
def test_a_gaussian_has_order_over_two_z_squared(z, order):
    truth = order / (2 * z * z)
    assert release_divergence(event(z), order, TAIL) == pytest.approx(truth, rel=1e-12)
    read = profile_divergence(partial(gauss_delta, mu=1 / z), order, 1e-280)
    assert truth <= read <= truth * (1 + 1e-4)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rate", "z"), [(0.05, 2.0), (0.25, 1.0), (0.5, 3.0), (0.9, 0.8)])
def test_poisson_batches_are_as_numerical_integration_says_in_both_directions(rate, z, order):
    """The pair is (1-q) N(0) + q N(+-1) with deviation 2 z."""
    x = np.linspace(-60 * z - 20, 60 * z + 20, 400_001)
    up, down = (mixture(x, [1 - rate, rate], [0.0, sign], 2 * z) for sign in (1.0, -1.0))
    truth = max(divergence(up, down, order), divergence(down, up, order))
    release = event(z, batch=round(20 * rate), sampling="poisson")
    # Read to the end of the profile, nothing is left out.
    read = profile_divergence(partial(poisson, multiplier=z, rate=rate), order, 1e-250)
    assert truth * (1 - 1e-9) <= read <= truth * (1 + 1e-4)
    assert release_divergence(release, order, TAIL) <= read * (1 + 1e-9)


def worlds(records, batch, sampling, capacity=None):
    """Every batch of a small silo as how often each record is in it, with its probability."""
    if sampling == "wor":
        found = [tuple(i in chosen for i in range(records)) for chosen in itertools.combinations(range(records), batch)]
        return {held: 1 / len(found) for held in found}
    law = {}
    if sampling == "wr":
        for draws in itertools.product(range(records), repeat=batch):
            held = tuple(draws.count(i) for i in range(records))
            law[held] = law.get(held, 0.0) + records**-batch
        return law
    rate = batch / records
    for held in itertools.product((0, 1), repeat=records):
        weight = math.prod(rate if one else 1 - rate for one in held)
        inside = [i for i in range(records) if held[i]]
        kept = list(itertools.combinations(inside, min(len(inside), capacity or records)))
        for chosen in kept:
            key = tuple(int(i in chosen) for i in range(records))
            law[key] = law.get(key, 0.0) + weight / len(kept)
    return law


@pytest.mark.parametrize(
    ("records", "batch", "sampling", "capacity"),
    [(3, 1, "wor", None), (4, 2, "wor", None), (3, 2, "wr", None), (4, 3, "wr", None), (4, 1, "poisson", 2)],
)
@pytest.mark.parametrize("order", [2.0, 5.0])
def test_no_small_silo_is_less_private_than_that(records, batch, sampling, capacity, order):
    """All batches of a silo of a few records, whatever the other records are, both directions."""
    z = 0.9
    terms = {"records": records, "batch": batch, "sampling": sampling, "capacity": capacity}
    # Nothing is left out, so that the whole divergence is compared.
    claimed = release_divergence(event(z, **terms), order, 1e-200)
    law = worlds(records, batch, sampling, capacity)
    # Each record adds between -1 and 1 to a sum of sensitivity 2, noised with deviation 2 z.
    x = np.linspace(-40.0, 40.0, 40_001)
    for others in itertools.product((-1.0, 0.0, 1.0), repeat=records - 1):
        sums = {
            own: [sum(n * v for n, v in zip(held, (own, *others), strict=True)) for held in law] for own in (-1.0, 1.0)
        }
        one, two = (mixture(x, list(law.values()), sums[own], 2 * z) for own in (1.0, -1.0))
        assert max(divergence(one, two, order), divergence(two, one, order)) <= claimed * (1 + 1e-9)


@pytest.mark.parametrize("order", [2.0, 8.0])
@pytest.mark.parametrize("reports", [2, 6])
def test_shuffled_randomised_response_is_no_less_private_than_that(reports, order):
    """Of binary randomised response everything that a shuffle tells is how many ones there are."""
    local = 1.0
    release = event(1 / local, mechanism="reports", reports=reports, streams=(1.0,))
    claimed = release_divergence(release, order, TAIL)
    lie = 1 / (1 + math.exp(local))
    for ones in range(reports):
        told = []
        for own in (0, 1):
            chances = [1 - lie] * (ones + own) + [lie] * (reports - ones - own)
            law = np.array([1.0])
            for chance in chances:
                law = np.convolve(law, [1 - chance, chance])
            told.append(np.log(law))
        assert max(divergence(*told, order), divergence(*told[::-1], order)) <= claimed
    assert claimed <= min(local, order * local**2 / 2) * (1 + 1e-3)


def test_streams_add_up_and_sampling_comes_after_them():
    terms = {"mechanism": "reports", "reports": 50, "streams": (1.0, 2.0)}
    both = release_divergence(event(2.0, **terms), 4.0, TAIL)
    alone = [release_divergence(event(2.0 * r, **{**terms, "streams": (1.0,)}), 4.0, TAIL) for r in (1.0, 2.0)]
    assert both == pytest.approx(sum(alone), rel=1e-9)
    assert masses(event(2.0, **terms)) == 2
    sampled = event(2.0, **terms, sampling="wor", batch=5)
    assert 0 < release_divergence(sampled, 4.0, TAIL) < 0.3 * both
    assert masses(sampled) == 1


@pytest.mark.parametrize("order", [8.0, 16.0, 32.0])
def test_what_is_left_out_of_a_divergence_is_paid_in_delta(order):
    """Where the true divergence lies beyond the tail, the rest and the tail together still bound the release."""
    rate, z, tail = 0.01, 0.43, 1e-10
    x = np.linspace(-60.0, 60.0, 400_001)
    up, down = (mixture(x, [1 - rate, rate], [0.0, sign], 2 * z) for sign in (1.0, -1.0))
    release = event(z, records=1000, batch=10, sampling="poisson")
    found = release_divergence(release, order, tail)
    assert found < 0.9 * divergence(up, down, order)
    law, loss = np.exp(up), up - down
    for epsilon in np.linspace(0.0, 8.0, 60):
        truth = float(law @ np.maximum(-np.expm1(np.minimum(epsilon - loss, 0.0)), 0.0))
        # The conversion solved for delta.
        bound = math.exp((order - 1) * (found - epsilon + math.log1p(-1 / order))) / order
        assert truth <= bound + tail
        if bound < 1:
            assert found + conversion(order, bound) == pytest.approx(epsilon, abs=1e-9)


def test_sampling_never_costs_more_than_its_base():
    for sampling in ("wor", "poisson"):
        little = event(0.02, batch=10, sampling=sampling)
        assert release_divergence(little, 3.0, TAIL) <= 3.0 / (2 * 0.02**2)
    drawn = event(0.5, records=4, batch=3, sampling="wr")
    assert release_divergence(drawn, 3.0, TAIL) <= 3.0 * 9 / (2 * 0.25)


def test_no_noise_has_no_divergence_and_orders_are_above_one():
    assert release_divergence(event(0.0), 2.0, TAIL) == math.inf
    with pytest.raises(PricingError, match=r"order=1\.0 > 1"):
        release_divergence(event(1.0), 1.0, TAIL)


def test_a_profile_that_never_falls_to_the_tail_is_infinite():
    assert profile_divergence(lambda x: np.full(np.shape(x), 1e-3), 2.0, TAIL) == math.inf
    assert profile_divergence(lambda x: np.zeros(np.shape(x)), 2.0, TAIL) == 0.0


def test_kind_count_and_limit_do_not_change_one_release():
    one = event(1.5, batch=5, sampling="poisson")
    many = dataclasses.replace(one, kind="h", count=40, participations=7, steps=2)
    assert release_divergence(one, 3.0, TAIL) == release_divergence(many, 3.0, TAIL)
