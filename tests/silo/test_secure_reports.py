"""A real silo's reports: exact coins, right on average, as many as the batch has places."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.algorithm import Release, Silo
from tacit.privacy.randomisers import direction, terms_of
from tacit.silo.secure_reports import (
    ReportResponder,
    ReportTerms,
    mean_of_reports,
    report_terms,
    reports_of,
    threshold,
    unit_statistics,
)


def silo_with(clip=1.0, batch=None, sampling="full"):
    release = Release(lambda w: clip, 1.0, batch, sampling, channel="shuffled-reports")
    return Silo(lambda work, record: record["x"] + work, release)


@given(st.floats(1e-6, 30.0))
def test_the_coin_never_leans_further_than_it_was_priced(epsilon):
    kept = threshold(epsilon)
    odds = Fraction(kept, 2**64 - kept)
    # exp by its series in fractions, cut off below: a lower bound on exp(epsilon).
    exact, term, x = Fraction(1), Fraction(1), Fraction(epsilon)
    for n in range(1, 160):
        term = term * x / n
        exact += term
    assert 1 <= odds <= exact
    # Nothing to speak of is given away either, until the margin is as large as the rest.
    assert epsilon > 20 or abs(math.log(odds) - epsilon) < 1e-2 * max(epsilon, 1e-9)


def test_the_sign_is_randomised_response_given_the_seed():
    unit, epsilon = np.array([[0.6, -0.8, 0.0]]), 1.5
    reports = reports_of(np.repeat(unit, 8_000, axis=0), epsilon)
    agrees = 0
    for report in reports:
        seed, sign = int.from_bytes(report[:8], "big"), report[8]
        assert sign in (0, 1)
        agrees += (direction(seed, 3) @ unit[0] >= 0) == bool(sign)
    chance = terms_of("duchi", 3, epsilon).chance
    assert abs(agrees - 8_000 * chance) < 5 * math.sqrt(8_000 * chance * (1 - chance))


def test_seeds_do_not_depend_on_the_vector():
    seeds = [int.from_bytes(r[:8], "big") / 2**64 for r in reports_of(np.tile([[1.0, 0.0]], (4000, 1)), 20.0)]
    assert len(set(seeds)) == 4000
    assert stats.kstest(seeds, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("norm", [0.0, 0.3, 1.0])
def test_the_mean_of_reports_is_that_of_the_vectors(norm):
    dimension, number, epsilon = 4, 8_000, 2.0
    unit = norm * np.full(dimension, 0.5)
    reports = reports_of(np.tile(unit, (number, 1)), epsilon)
    terms = {"": ReportTerms(epsilon, dimension)}
    mean = np.asarray(mean_of_reports({"": reports}, silo_with(clip=3.0), None, jnp.zeros(dimension), terms))
    spread = 3.0 * terms_of("duchi", dimension, epsilon).deviation / math.sqrt(number)
    assert np.max(np.abs(mean - 3.0 * unit)) < 5 * spread
    assert np.linalg.norm(mean - 3.0 * unit) > 0.05 * spread


@pytest.mark.parametrize(("batch", "sampling"), [(None, "full"), (7, "wor")])
def test_there_are_as_many_reports_as_places_whatever_the_records(batch, sampling):
    records = {"x": jnp.asarray(np.full((20, 3), np.nan, np.float32))}
    terms = {"": report_terms(0.5, 3)}
    responder = ReportResponder(silo_with(batch=batch, sampling=sampling), records, place=0, terms=terms)
    found = responder.answer(jnp.zeros(3), (), key=jax.random.key(0), position=0, order=None)
    assert len(found[""]) == (batch or 20)
    assert {len(report) for report in found[""]} == {9}


@pytest.mark.parametrize("clip", [0.5, 0.0, np.nan, np.inf])
def test_units_are_clipped_and_nothing_is_left_of_what_is_not_finite(clip):
    records = {"x": jnp.asarray([[3.0, 4.0], [0.1, 0.0], [np.nan, 1.0], [np.inf, 0.0]], jnp.float32)}
    units = np.asarray(unit_statistics(silo_with(clip=clip), jnp.zeros(2), records)[""])
    expected = [[0.6, 0.8], [0.2, 0.0], [0.0, 0.0], [0.0, 0.0]] if clip == 0.5 else np.zeros((4, 2))
    assert np.allclose(units, expected, atol=1e-5)
    assert np.max(np.linalg.norm(units.astype(np.float64), axis=1)) <= 1.0


def test_nonsense_among_reports_counts_as_zero():
    terms = {"": ReportTerms(2.0, 2)}
    good = reports_of(np.ones((1, 2)) / 2, 2.0)
    alone, beside = (
        np.asarray(mean_of_reports({"": some}, silo_with(), None, jnp.zeros(2), terms))
        for some in (good, [*good, b"x"])
    )
    assert np.allclose(alone, 2 * beside)
