"""What noisy counts by (score, truth) say of a model, beside the exact scores and over many draws."""

import numpy as np
import pytest
from sklearn import metrics

from tacit.counting.estimate import Noisy
from tacit.counting.performance import OVER_SHARED, own_performance, performance
from tacit.counting.request import StatisticsError, block
from tacit.counting.scored import scored

GROUP = [{"name": "sex", "kind": "category", "levels": ["f", "m"], "place": 0}]


def people(rng, count):
    """Scores, classes and a group, such that scores are calibrated."""
    group = rng.random(count) < 0.4
    score = 1 / (1 + np.exp(-rng.normal(0.3 * group, 1.2, count)))
    return score, (rng.random(count) < score).astype(int), group.astype(int)


def cells(wanted, score, label, group):
    """The exact cells of both tables of two classes."""
    table = wanted.first[0]
    bins = len(table.axes[0].cells)
    place = np.clip(np.searchsorted(table.axes[0].edges, score, side="right") - 1, 0, bins - 1) * 2 + label
    overall = np.bincount(place, minlength=table.size) / len(score)
    by = np.bincount(group * table.size + place, minlength=wanted.by[0][0].size) / len(score)
    return overall, by


WANTED = scored("binary", 2, groups=["sex"], columns=GROUP)


def named(rows):
    return {(row.group, row.cell, row.measure): row for row in rows}


def test_without_noise_the_numbers_are_scikit_learns():
    rng = np.random.default_rng(0)
    score, label, group = people(rng, 4000)
    rows = named(performance(WANTED, [Noisy(own, 0.0, 4000) for own in cells(WANTED, score, label, group)]))
    guess = score >= 0.5
    binned = np.digitize(score, WANTED.first[0].axes[0].edges[1:-1])
    value = lambda *name: float(rows[name].value)  # noqa: E731
    assert value("", "", "accuracy") == pytest.approx(metrics.accuracy_score(label, guess))
    assert value("", "", "AUC") == pytest.approx(metrics.roc_auc_score(label, binned))
    assert value("", "", "AUC") == pytest.approx(metrics.roc_auc_score(label, score), abs=0.002)
    assert value("", "", "sensitivity") == pytest.approx(metrics.recall_score(label, guess))
    assert value("", "", "precision") == pytest.approx(metrics.precision_score(label, guess))
    assert value("", "predicted 1, is 0", "count") == pytest.approx(metrics.confusion_matrix(label, guess)[0, 1])
    assert value("", "", "gain over the commonest class") == pytest.approx(
        metrics.accuracy_score(label, guess) - max(label.mean(), 1 - label.mean())
    )
    women = group == 0
    assert value("sex = f", "", "selected") == pytest.approx(guess[women].mean())
    apart = abs(guess[women].mean() - guess[~women].mean())
    assert value("sex", "largest difference", "selected") == pytest.approx(apart)
    assert value("", "score 0.7 to 0.8", "share of class 1") == pytest.approx(
        label[(score >= 0.7) & (score < 0.8)].mean()
    )


def test_intervals_contain_the_population_with_noise_and_sampling():
    """800 draws of 600 records, in cells with noise of epsilon about 2."""
    rng = np.random.default_rng(1)
    truth = named(performance(WANTED, [Noisy(c, 0.0, 10**9) for c in cells(WANTED, *people(rng, 2_000_000))]))
    draws = [cells(WANTED, *people(rng, 600)) for _ in range(800)]
    noise = 2.0 * np.sqrt(2) / 600
    noisy = [
        Noisy(np.stack(own) + rng.normal(0, noise, (800, len(own[0]))), noise, 600) for own in zip(*draws, strict=True)
    ]
    rows = named(performance(WANTED, noisy))
    for name in [
        ("", "", "accuracy"),
        ("", "", "AUC"),
        ("", "", "sensitivity"),
        ("", "", "precision"),
        ("", "", "gain over the commonest class"),
        ("", "", "mean score less share of class 1"),
        ("sex = f", "", "selected"),
        ("sex = f", "", "accuracy"),
    ]:
        row, true = rows[name], float(truth[name].value)
        assert 0.925 <= np.mean((row.low <= true) & (true <= row.high)) <= 0.985, name
        assert np.isfinite(row.value).mean() > 0.99, name


def powers(s):
    from math import comb

    rows = np.stack([comb(4, a) * s**a * (1 - s) ** (4 - a) for a in range(5)], axis=-1).mean(axis=-2)
    return np.concatenate([rows, np.zeros((*rows.shape[:-1], 1))], axis=-1)


def test_residuals_of_numbers():
    wanted, rng = scored("regression", 2, residual=0.5), np.random.default_rng(2)

    def draw(*shape):
        target = rng.beta(4, 4, shape)
        return np.clip(rng.normal(0.02, 0.08, shape), -0.5, 0.5), target

    far, target = draw(4_000_000)
    rmse, r2 = np.sqrt((far**2).mean()), 1 - (far**2).mean() / target.var()
    exact = named(performance(wanted, [Noisy(powers(far + 0.5), 0.0, 10**9), Noisy(powers(target), 0.0, 10**9)]))
    assert float(exact["", "", "RMSE"].value) == pytest.approx(rmse, rel=1e-6)
    assert float(exact["", "", "R2"].value) == pytest.approx(r2, rel=1e-6)
    far, target = draw(1000, 800)
    noise = 1.0 * np.sqrt(2) / 800
    noisy = [Noisy(powers(s) + rng.normal(0, noise, (1000, 6)), noise, 800) for s in (far + 0.5, target)]
    rows = named(performance(wanted, noisy))
    for name, true in (("RMSE", rmse), ("R2", r2), ("mean residual", 0.02)):
        row = rows["", "", name]
        assert 0.92 <= np.mean((row.low <= true) & (true <= row.high)) <= 0.985, name


def test_what_an_own_model_gains_is_told_by_pairs_of_the_same_records():
    """Its interval has the variance of the difference, which is smaller than that of two models' own numbers."""
    rng, count, draws, noise = np.random.default_rng(6), 300, 1000, 1.5 * np.sqrt(6) / 300
    chances = np.array([0.1, 0.1, 0.04, 0.76])  # (shared right, own right): neither, own alone, shared alone, both
    paired = rng.multinomial(count, chances, draws) / count + rng.normal(0, noise, (draws, 4))
    table = np.tile(scored("binary", 2).first[0].size * [0.0], (draws, 1))
    wanted = scored("binary", 2, own=True)
    [row] = [
        row
        for row in own_performance(wanted, [*[Noisy(table, noise, count)] * 2, Noisy(paired, noise, count)])
        if row.measure == OVER_SHARED
    ]
    assert 0.925 <= np.mean((row.low <= 0.06) & (row.high >= 0.06)) <= 0.98
    numbers = scored("regression", 2, residual=0.5, own=True)
    apart = np.clip(rng.normal(0.02, 0.05, (draws, count)), -0.25, 0.25)
    powered = powers((apart / 0.25 + 1) / 2) + rng.normal(0, noise, (draws, 6))
    far = Noisy(np.tile(powers(np.full(5, 0.5)), (draws, 1)), noise, count)
    row = own_performance(numbers, [*[far] * 4, Noisy(powered, noise, count)])[0]
    assert row.measure == OVER_SHARED
    assert 0.925 <= np.mean((row.low <= 0.02) & (row.high >= 0.02)) <= 0.98


def test_several_classes():
    wanted = scored("multiclass", 3)
    rng = np.random.default_rng(3)
    said, true = rng.integers(0, 3, 900), rng.integers(0, 3, 900)
    confusion = np.bincount(said * 3 + true, minlength=9) / 900
    sure = np.bincount(2 * rng.integers(7, 20, 900) + (said == true), minlength=40) / 900
    rows = named(performance(wanted, [Noisy(confusion, 0.0, 900), Noisy(sure, 0.0, 900)]))
    assert float(rows["", "", "accuracy"].value) == pytest.approx((said == true).mean())
    assert float(rows["", "class 1", "sensitivity"].value) == pytest.approx(metrics.recall_score(true == 1, said == 1))


def patients(rng, *shape):
    """Cells of a survival table of draws of patients, by risk, time and event."""
    risk = rng.normal(size=shape)
    time = rng.exponential(np.exp(-0.7 * risk)) * 0.6
    seen = rng.uniform(0.1, 1.6, shape)
    event, last = (time < seen) & (time < 1), np.minimum(np.minimum(time, seen), 1.0)
    bins = np.minimum((10 / (1 + np.exp(-risk))).astype(int), 9)
    place = (bins * 9 + (last * 8).astype(int)) * 2 + event
    flat = place.reshape(-1, shape[-1])
    return np.stack([np.bincount(own, minlength=180) / shape[-1] for own in flat]).reshape(*shape[:-1], 180)


@pytest.mark.parametrize(("records", "multiplier"), [(2000, 4.0), (2000, 0.5), (400, 1.0)])
def test_the_interval_of_a_concordance_contains_that_of_the_population(records, multiplier):
    """1,000 draws: noise of epsilon about 1, 8 and 4, also where noise is most of the error."""
    wanted, rng = scored("survival", 2), np.random.default_rng(5)
    name = ("", "", "concordance")
    true = float(named(performance(wanted, [Noisy(patients(rng, 1_000_000), 0.0, 10**9)]))[name].value)
    assert 0.6 < true < 0.8
    noise = multiplier * np.sqrt(2) / records
    drawn = patients(rng, 1000, records)
    row = named(performance(wanted, [Noisy(drawn + rng.normal(0, noise, drawn.shape), noise, records)]))[name]
    seen = np.isfinite(row.value)
    assert seen.mean() > 0.95
    assert 0.925 <= np.mean((row.low <= true) & (true <= row.high)) <= 0.985


def test_a_concordance_of_noise_alone_is_not_told():
    wanted, rng = scored("survival", 2), np.random.default_rng(6)
    drawn = patients(rng, 200, 30)
    row = named(performance(wanted, [Noisy(drawn + rng.normal(0, 0.2, drawn.shape), 0.2, 30)]))[("", "", "concordance")]
    assert np.isnan(row.value).mean() > 0.95
    told = np.isnan(row.value)
    assert (row.low[told] == 0).all()
    assert (row.high[told] == 1).all()


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(StatisticsError, match="category to group by"):
        scored("binary", 2, groups=["age"], columns=GROUP)
    with pytest.raises(StatisticsError, match="threshold"):
        scored("binary", 2, threshold=1.5)
    assert [block(i) for i in range(len(WANTED.tables))] == ["s00", "s01"]
