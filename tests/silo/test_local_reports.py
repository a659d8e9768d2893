"""A real silo's reports: exact coins, right on average, as many as the batch has slots."""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.algorithm import Release, Silo
from tacit.channel.shuffled_reports import MOST_LOCAL, ReportTerms, mean_of_reports, report_terms
from tacit.privacy.randomisers import direction, terms_of
from tacit.silo import door as shipped
from tacit.silo import local_reports
from tacit.silo.door import Door, DoorError
from tacit.silo.local_reports import (
    LocalReports,
    reports_of,
    threshold,
)
from tacit.silo.release import usable_clips


def silo_with(clip=1.0, batch=None, sampling="full"):
    release = Release(lambda work: clip, 1.0, batch, sampling, channel="shuffled-reports")
    return Silo(lambda work, record: record["x"], release)


def reported(silo, records, terms, *, weight=1.0, position=0, order=None):
    door = Door(silo, records, silo_index=0, form=True)
    return door.release(None, door.batch(position, order), LocalReports(door.engine, terms, weight))


@given(st.floats(1e-6, MOST_LOCAL))
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


@pytest.mark.parametrize("unit", [[0.6, -0.8], [0.0, 0.0], [np.nan, 1.0], [np.inf, 0.0], [1e300, -1e300]])
def test_whatever_was_computed_the_last_coin_decides(unit, monkeypatch):
    """With the words of the system fixed but for the last coin: the sign is turned exactly from the threshold on."""
    kept = threshold(1.0)

    def sign(coin):
        words = [(5).to_bytes(8, "big"), (2**63).to_bytes(8, "big"), coin.to_bytes(8, "big")]
        monkeypatch.setattr(local_reports, "random_bytes", lambda size: b"".join(words))
        with np.errstate(all="ignore"):
            return reports_of(np.array([unit]), 1.0)[0][8]

    inside, outside = {sign(0), sign(kept - 1)}, {sign(kept), sign(2**64 - 1)}
    assert inside | outside == {0, 1}
    assert not inside & outside


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
    own = {"each": 1 / number}
    mean = np.asarray(
        mean_of_reports(
            {"": reports}, usable_clips(silo_with(clip=3.0).release, None), jnp.zeros(dimension), terms, **own
        )
    )
    spread = 3.0 * terms_of("duchi", dimension, epsilon).deviation / math.sqrt(number)
    assert np.max(np.abs(mean - 3.0 * unit)) < 5 * spread
    assert np.linalg.norm(mean - 3.0 * unit) > 0.05 * spread


@pytest.mark.parametrize(("batch", "sampling"), [(None, "full"), (7, "wor"), (6, "one-pass")])
@pytest.mark.parametrize("chunk", [1, 3, 2**13])
def test_there_are_as_many_reports_as_slots_whatever_the_records(batch, sampling, chunk, monkeypatch):
    monkeypatch.setattr(shipped, "_MOST_AT_ONCE", chunk)
    records = {"x": np.full((20, 3), np.nan, np.float32)}
    order = np.arange(20)
    found = reported(
        silo_with(batch=batch, sampling=sampling), records, {"": report_terms(0.5, 3)}, order=order, position=18
    )
    assert len(found[""]) == (batch or 20)
    assert {len(report) for report in found[""]} == {9}


def units_in(monkeypatch, silo, records, *, weight=1.0, position=0, order=None):
    """The vectors that the randomiser is handed."""
    seen = []

    def note(units, local_epsilon):
        seen.append(units)
        return reports_of(units, local_epsilon)

    monkeypatch.setattr(local_reports, "reports_of", note)
    dimension = records["x"].shape[1]
    reported(silo, records, {"": report_terms(0.5, dimension)}, weight=weight, position=position, order=order)
    return np.concatenate(seen)


@pytest.mark.parametrize("clip", [0.5, 0.0, np.nan, np.inf, 1e30])
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_units_are_clipped_and_weighed_and_nothing_is_left_of_what_is_not_finite(clip, weight, monkeypatch):
    records = {"x": np.asarray([[3.0, 4.0], [0.1, 0.0], [np.nan, 1.0], [np.inf, 0.0]], np.float32)}
    units = units_in(monkeypatch, silo_with(clip=clip), records, weight=weight)
    expected = [[0.6, 0.8], [0.2, 0.0], [0.0, 0.0], [0.0, 0.0]] if clip == 0.5 else np.zeros((4, 2))
    np.testing.assert_allclose(units, weight * np.asarray(expected), atol=1e-6)


def test_slots_without_a_record_report_as_zero_does(monkeypatch):
    records = {"x": np.ones((5, 2), np.float32)}
    silo = silo_with(batch=4, sampling="one-pass")
    units = units_in(monkeypatch, silo, records, position=3, order=np.arange(5))
    assert units.any(axis=1).tolist() == [True, True, False, False]


def test_each_block_is_a_stream_of_its_own():
    release = Release(lambda w: {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 1.0}, None, "full", channel="shuffled-reports")
    silo = Silo(lambda work, record: {"a": record["x"], "b": 4 * record["x"][:1]}, release)
    records = {"x": np.tile(np.asarray([[0.3, 0.4]], np.float32), (6000, 1))}
    terms = {"a": report_terms(0.2, 2), "b": report_terms(0.4, 1)}
    found = reported(silo, records, terms)
    assert len({r[:8] for own in found.values() for r in own}) == 12_000
    shape = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    mean = mean_of_reports(found, usable_clips(silo.release, None), shape, terms, each=1 / 6000)
    np.testing.assert_allclose(mean["a"], [0.3, 0.4], atol=6 * terms_of("duchi", 2, 5.0).deviation / 6000**0.5)
    np.testing.assert_allclose(mean["b"], [1.2], atol=12 * terms_of("duchi", 1, 2.5).deviation / 6000**0.5)


def test_a_clip_for_each_silo_is_refused():
    silo = silo_with(clip=np.asarray([1.0, 2.0]))
    with pytest.raises(DoorError, match="one clip for all silos"):
        reported(silo, {"x": np.ones((3, 2), np.float32)}, {"": report_terms(0.5, 2)})


def test_nonsense_among_reports_counts_as_zero():
    terms = {"": ReportTerms(2.0, 2)}
    good = reports_of(np.ones((1, 2)) / 2, 2.0)
    alone, beside = (
        np.asarray(mean_of_reports({"": some}, usable_clips(silo_with().release, None), jnp.zeros(2), terms, each=0.5))
        for some in (good, [*good, b"x", bytes(8) + b"\x02"])
    )
    assert np.any(alone)
    assert np.array_equal(alone, beside)
