"""Intervals hold what they promise: over repetitions they contain the population's value, noise included."""

import jax
import numpy as np
import pytest

from experiments.patients import COLUMNS, MEAN_LIFE, STATISTICS, patients
from tacit.algorithms.statistics import row_of
from tacit.counting.estimate import Noisy, hypotheses_of, rows_of
from tacit.counting.request import noise_ratios, parsed

TABLES = parsed(COLUMNS, STATISTICS)
RECORDS, REPETITIONS = 2000, 300


@jax.jit
def means(columns):
    return [jax.vmap(lambda record, table=table: row_of(table, record))(columns).mean(axis=0) for table in TABLES]


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    rows = [means(patients(rng, RECORDS)) for _ in range(REPETITIONS)]
    whole = np.random.default_rng(1)
    truth = [means(patients(whole, 100_000)) for _ in range(20)]
    return [np.stack(own).astype(np.float64) for own in zip(*rows, strict=True)], [
        np.mean(own, axis=0) for own in zip(*truth, strict=True)
    ]


def noised(place: int, exact: np.ndarray, multiplier: float) -> Noisy:
    noise = multiplier * list(noise_ratios(TABLES).values())[place] * 2**0.5 / RECORDS
    return Noisy(exact + noise * np.random.default_rng(place).normal(size=exact.shape), noise, RECORDS)


@pytest.mark.parametrize("multiplier", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("place", range(len(TABLES)), ids=[table.request.kind for table in TABLES])
def test_intervals_contain_the_population_value(place, multiplier, drawn):
    """300 repetitions: 95% give 285 +- 3.8; every row must lie within four deviations, and their mean within 1.5%."""
    exact, truth = drawn
    found = rows_of(TABLES[place], noised(place, exact[place], multiplier))
    wanted = rows_of(TABLES[place], Noisy(truth[place], 0.0, 10**9))
    covered = []
    for row, true in zip(found, wanted, strict=True):
        value = np.exp(-float(row.cell) / MEAN_LIFE) if row.measure == "survival" else float(true.value)
        told = np.isfinite(row.value).mean()
        if row.group in ("other", "missing") or row.measure == "count" or value < 0.005 or told < 0.95:
            continue
        covered.append(np.mean((row.low <= value) & (value <= row.high)))
        assert covered[-1] >= 0.95 - 4 * 0.0126, (row.group, row.cell, row.measure)
        assert np.nanmedian(np.abs(row.value - value)) < np.median(row.high - row.low)
    assert covered
    assert 0.935 <= np.mean(covered) <= 0.985


@pytest.mark.parametrize("place", [0, 1, 2])
def test_counts_are_those_of_the_records_but_for_the_noise(place, drawn):
    exact = drawn[0][place]
    found = [row for row in rows_of(TABLES[place], noised(place, exact, 2.0)) if row.measure == "count"]
    inside = [
        np.mean((row.low <= RECORDS * c) & (RECORDS * c <= row.high)) for row, c in zip(found, exact.T, strict=True)
    ]
    assert min(inside) >= 0.9
    without = [row for row in rows_of(TABLES[place], Noisy(exact, 0.0, RECORDS)) if row.measure == "count"]
    np.testing.assert_allclose(np.stack([row.value for row in without], 1), RECORDS * exact, atol=0.01)


@pytest.mark.parametrize("multiplier", [0.0, 1.0, 4.0])
def test_the_log_rank_test_keeps_its_level_with_noise(multiplier, drawn):
    """Both sexes live as long: 5% of 300 is 15 +- 3.8."""
    [test] = hypotheses_of(TABLES[-1], noised(len(TABLES) - 1, drawn[0][-1], multiplier))
    assert 2 <= np.sum(test.p_value < 0.05) <= 30
    assert test.freedom == 1


def test_the_log_rank_test_without_its_noise_would_reject_too_often(drawn):
    noisy = noised(len(TABLES) - 1, drawn[0][-1], 4.0)
    [wrong] = hypotheses_of(TABLES[-1], noisy._replace(noise=1e-9))
    assert np.mean(wrong.p_value < 0.05) > 0.15


def test_the_log_rank_test_finds_a_difference():
    rng = np.random.default_rng(3)
    columns = patients(rng, 4000)
    columns[:, 3] = np.where(columns[:, 2] == 1, columns[:, 3] * 0.6, columns[:, 3])
    cells = np.asarray(means(columns)[-1], np.float64)
    [test] = hypotheses_of(TABLES[-1], Noisy(cells, 6 / 4000, 4000))
    assert test.p_value < 1e-4


def test_kaplan_meier_without_noise_is_that_of_the_records():
    """In bins so fine that each holds one time, the life table is the estimator of Kaplan and Meier."""
    time, event = np.array([1, 2, 2, 3, 5, 5, 7, 9]), np.array([1, 0, 1, 1, 0, 1, 0, 1])
    columns = np.stack([np.zeros(8), np.zeros(8), np.zeros(8), (time + 0.5) / 10, event], axis=1).astype(np.float32)
    request = {"kind": "survival", "columns": ["time", "event"], "bins": 10}
    [table] = parsed(COLUMNS, [request])
    # A hundred of each, so that the curve does not end early; censored ones count half of their bin.
    cells = np.asarray(jax.vmap(lambda r: row_of(table, r))(columns).mean(axis=0), np.float64)
    found = [float(row.value) for row in rows_of(table, Noisy(cells, 0.0, 800))]
    expected, alive = [], 1.0
    for bin_ in range(10):
        here = time == bin_
        at_risk = np.sum(time >= bin_) - 0.5 * np.sum(here & (event == 0))
        alive *= 1 - np.sum(here & (event == 1)) / max(at_risk, 1e-9)
        expected.append(alive)
    np.testing.assert_allclose(found[:9], expected[:9], atol=1e-5)


def test_a_group_of_too_few_is_shown_with_everything_possible(drawn):
    noisy = noised(3, drawn[0][3], 4.0)
    other = [row for row in rows_of(TABLES[3], noisy) if row.group == "other" and row.measure == "mean"]
    [row] = other
    quiet = np.isnan(row.value)
    assert quiet.mean() > 0.9
    assert (row.low[quiet] == 0).all()
    assert (row.high[quiet] == 100).all()
