"""Shuffled reports: the profile against exhaustive enumeration, and against the numbers that are known."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tacit.plans.catalogue import paper_noise
from tacit.privacy import (
    Event,
    PricingError,
    calibrate,
    colluding,
    price,
    risk_of,
    spent,
)
from tacit.privacy.conversions import user_level
from tacit.privacy.pld import Composition
from tacit.privacy.reports import reports_profile, shuffled_profile, streams_profile
from tacit.privacy.theorems import LEMMA_C, lemma_conditions
from tests.theory.shuffled import closed_form_epsilon

EPSILONS = np.array([0.0, 0.02, 0.1, 0.3, 0.7, 1.2, 2.0])


def stated_pair(local_epsilon, n):
    """The dominating pair written out count by count."""
    e = math.exp(local_epsilon)
    alpha = 1 / (e + 1)
    p, q = {}, {}
    for clones in range(n):
        weight = math.comb(n - 1, clones) * (2 * alpha) ** clones * max(1 - 2 * alpha, 0.0) ** (n - 1 - clones)
        for ones in range(clones + 1):
            w = weight * math.comb(clones, ones) / 2**clones
            for here, there, in_p, in_q in ((1, 0, e, 1), (0, 1, 1, e)):
                key = ones + here, clones - ones + there
                p[key] = p.get(key, 0) + w * in_p * alpha
                q[key] = q.get(key, 0) + w * in_q * alpha
    return p, q


def divergence(p, q, epsilon):
    return sum(max(p[key] - math.exp(epsilon) * q.get(key, 0.0), 0.0) for key in p)


@pytest.mark.parametrize("local_epsilon", [0.1, 0.7, 2.0, 4.0])
@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_the_sum_over_clones_is_the_stated_pair(local_epsilon, n):
    p, q = stated_pair(local_epsilon, n)
    found = shuffled_profile(local_epsilon, n)(EPSILONS)
    exact = np.array([divergence(p, q, e) for e in EPSILONS])
    inside = local_epsilon > EPSILONS
    np.testing.assert_allclose(found[inside], exact[inside], rtol=1e-6, atol=1e-14)
    assert np.all(found >= exact - 1e-15)


def randomisers(rng, local_epsilon, inputs, outputs):
    """A random local randomiser: rows are inputs, and every column stays within a factor e."""
    base = rng.uniform(1.0, math.exp(local_epsilon), (inputs, outputs))
    corners = np.where(rng.random((inputs, outputs)) < 0.5, 1.0, math.exp(local_epsilon))
    rows = corners if rng.random() < 0.7 else base
    rows = rows * rng.dirichlet(np.ones(outputs))
    rows /= rows.sum(axis=1, keepdims=True)
    return rows, float(np.max(np.log(rows.max(axis=0) / rows.min(axis=0))))


def shuffled(rows, records):
    """The exact law of the counts of outputs when these records report through ``rows`` and are shuffled."""
    law = {}
    for outcome in itertools.product(range(rows.shape[1]), repeat=len(records)):
        chance = math.prod(rows[record, out] for record, out in zip(records, outcome, strict=True))
        key = tuple(np.bincount(outcome, minlength=rows.shape[1]))
        law[key] = law.get(key, 0.0) + chance
    return law


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 4]), st.sampled_from([0.3, 1.0, 2.5]))
def test_no_shuffle_of_a_real_randomiser_exceeds_the_profile(seed, n, level):
    rng = np.random.default_rng(seed)
    rows, local_epsilon = randomisers(rng, level, 3, 3)
    assume(local_epsilon > 1e-6)
    others = tuple(int(i) for i in rng.integers(0, 3, n - 1))
    p, q = shuffled(rows, (0, *others)), shuffled(rows, (1, *others))
    bound = shuffled_profile(local_epsilon, n)(EPSILONS)
    for one, two in ((p, q), (q, p)):
        assert np.all(np.array([divergence(one, two, e) for e in EPSILONS]) <= bound + 1e-12)


def sampled_law(rows, silos, batch, streams):
    """Every silo draws ``batch`` of its records; each stream shuffles all reports about the batches by itself."""
    law = {}
    choices = [list(itertools.combinations(silo, batch)) for silo in silos]
    draws = list(itertools.product(*choices))
    for draw in draws:
        single = shuffled(rows, tuple(itertools.chain(*draw)))
        for views in itertools.product(single.items(), repeat=streams):
            key = tuple(view for view, _ in views)
            law[key] = law.get(key, 0.0) + math.prod(chance for _, chance in views) / len(draws)
    return law


@pytest.mark.parametrize(("n", "batch", "streams"), [(2, 1, 1), (3, 1, 2), (3, 2, 1), (2, 1, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_sampling_and_two_streams_on_tiny_systems(n, batch, streams, seed):
    rng = np.random.default_rng(seed)
    rows, local_epsilon = randomisers(rng, 2.0, 3, 2)
    for _ in range(6):
        silos = [list(rng.integers(0, 3, n)) for _ in range(2)]
        other = [[(int(silos[0][0]) + 1) % 3, *silos[0][1:]], silos[1]]
        p, q = (sampled_law(rows, tables, batch, streams) for tables in (silos, other))
        bound = reports_profile((local_epsilon,) * streams, 2 * batch, batch / n)(EPSILONS)
        for one, two in ((p, q), (q, p)):
            assert np.all(np.array([divergence(one, two, e) for e in EPSILONS]) <= bound + 1e-12)


def test_two_streams_of_one_batch_are_not_two_batches():
    """One silo of two records, one drawn, randomised response at 2: the truth is above what separate batches cost."""
    e = math.exp(2.0)
    rows = np.array([[e, 1.0], [1.0, e]]) / (1 + e)
    p, q = sampled_law(rows, [[0, 1]], 1, 2), sampled_law(rows, [[1, 1]], 1, 2)
    truth = max(divergence(p, q, 3.0), divergence(q, p, 3.0))
    together = reports_profile((2.0, 2.0), 1, 0.5)(np.array([3.0]))[0]
    apart = Composition([(reports_profile((2.0,), 1, 0.5), 2)], 1e-5).delta_at(3.0)
    assert apart < truth <= together
    assert truth == pytest.approx(0.1096, abs=5e-4)


def test_streams_compose_like_their_pairs():
    """Two independent shuffles of the dominating pair, convolved exactly."""
    pairs = [stated_pair(e, 8) for e in (0.5, 1.0)]
    p, q = ({(a, b): one[a] * two[b] for a in one for b in two} for one, two in zip(*pairs, strict=True))
    found = streams_profile((0.5, 1.0), 8)(EPSILONS)
    exact = np.array([divergence(p, q, e) for e in EPSILONS])
    assert np.all(found >= exact - 1e-15)
    np.testing.assert_allclose(found, exact, rtol=0.02, atol=1e-6)


def event(**changes):
    terms = {
        "kind": "g",
        "noise_multiplier": 1.0,
        "count": 500,
        "records": 1651,
        "batch": 1651,
        "sampling": "full",
        "mechanism": "reports",
        "reports": 16510,
        "streams": (1.0, 1.0),
    }
    return Event(**{**terms, **changes})


def test_the_experiment_of_the_paper_is_certified_at_a_smaller_local_epsilon():
    """999 shuffles of 16,510 reports at epsilon 0.8, delta 1e-5 allow a local epsilon of 0.744."""
    [first, both] = calibrate([event(kind="a", count=1, streams=(1.0,)), event(count=499)], epsilon=0.8, delta=1e-5)
    assert 1 / both.noise_multiplier == pytest.approx(0.744, rel=5e-3)
    assert price([first, both], delta=1e-5).epsilon <= 0.8


def test_fewer_honest_reports_cost_more_and_a_colluding_shuffler_costs_most():
    local = 1 / 0.744
    prices = [
        price([event(noise_multiplier=local, reports=n, count=999, streams=(1.0,))], delta=1e-5).epsilon
        for n in (16510, 8255, 1651)
    ]
    np.testing.assert_allclose(prices, [0.797, 1.167, 2.861], rtol=5e-3)
    alone = colluding([event(noise_multiplier=local, count=2, streams=(1.0,))], delta=1e-5).epsilon
    assert alone == pytest.approx(2 * 0.744, rel=1e-4)


def test_sampling_amplifies_streams_once():
    sampled = event(batch=16, sampling="wor", reports=160, noise_multiplier=0.5)
    assert price([sampled], delta=1e-5).epsilon == pytest.approx(0.3002, rel=2e-3)


def test_gaussian_local_steps_compose_with_reports():
    reports = event(count=50, streams=(1.0,))
    steps = Event(kind="local", noise_multiplier=2.0, count=20, records=1651, batch=40, sampling="wor")
    together = price([reports, steps], delta=1e-5).epsilon
    apart = [price([e], delta=1e-5).epsilon for e in (reports, steps)]
    assert max(apart) < together < sum(apart)
    assert spent([reports, steps], {"g": 50}, delta=1e-5).epsilon == pytest.approx(apart[0], rel=1e-3)


def test_one_pass_pays_for_one_batch():
    once = event(sampling="one-pass", batch=1, count=1651, streams=(1.0,), reports=10)
    assert price([once], delta=1e-5).epsilon == pytest.approx(
        price([event(count=1, reports=10, streams=(1.0,))], delta=1e-5).epsilon, rel=1e-6
    )


def test_closed_form_is_above_the_profile_and_refuses_outside_its_condition():
    for local_epsilon in (0.5, 1.0, 2.0):
        bound = closed_form_epsilon(local_epsilon, 100_000, 1e-6)
        assert shuffled_profile(local_epsilon, 100_000)(np.array([bound]))[0] < 1e-6
    with pytest.raises(PricingError, match="closed form"):
        closed_form_epsilon(5.0, 1000, 1e-6)


def test_the_papers_lemma_refuses_its_own_experiment():
    failed = [c.text for c in lemma_conditions(1.0, silos=10, records=1651, batch=1651) if not c.holds]
    assert failed[0] == "gamma=B/n=1 <= 0.1"
    assert any("MB ln" in text for text in failed)
    for epsilon in (0.4, 0.8, 1.6):
        printed = paper_noise("mb-psgm-fg", records=1651, num_rounds=500, epsilon=epsilon, delta=1e-5, silos=10)
        assert not all(c.holds for c in printed.conditions)


def test_the_papers_lemma_is_valid_and_loose_where_it_holds():
    """A hundred silos of ten thousand records: the lemma's epsilon is far above what the same reports cost."""
    silos, records, batch, rounds, delta = 100, 10_000, 500, 100, 1e-5
    assert all(c.holds for c in lemma_conditions(1.0, silos=silos, records=records, batch=batch))
    slope = rounds * 26 * (batch / records) ** 2 * LEMMA_C * math.e / (silos * batch)
    most = silos * batch * math.log(records / batch) / (4 * LEMMA_C * math.e)
    alpha = min(1 + math.sqrt(-math.log(delta) / slope), most)
    stated = slope * alpha - math.log(delta) / (alpha - 1)
    reports = event(count=100, records=10_000, batch=500, sampling="wor", reports=50_000)
    assert price([reports], delta=1e-5).epsilon < stated / 20


def test_other_accountants_and_readings():
    for accountant in ("rdp", "zcdp"):
        with pytest.raises(PricingError, match="tight"):
            price([event()], delta=1e-5, accountant=accountant)
    assert math.isinf(user_level([event()], delta=1e-5).epsilon)
    assert 0 < risk_of([event(count=1)]).advantage < 0.01
    assert math.isinf(price([event(noise_multiplier=0.0)], delta=1e-5).epsilon)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reports": None}, "honest reports"),
        ({"streams": None}, "each stream"),
        ({"sampling": "poisson", "batch": 10}, "number is fixed"),
        ({"mechanism": "gaussian"}, "leave them out"),
        ({"protects": "silo"}, "protects"),
        ({"reports": 0}, "reports=0"),
    ],
)
def test_what_cannot_be_priced_is_refused(changes, message):
    with pytest.raises(PricingError, match=message):
        event(**changes)
