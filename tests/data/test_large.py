"""The data sets that come from files: sizes, types, and the protocols of the papers."""

import numpy as np
import pytest

from tacit import data


def sizes(federation):
    return [tuple(len(part["y"]) for part in (s.train, s.validation, s.test)) for s in federation.silos]


def check(federation):
    for silo in federation.silos:
        for part in (silo.train, silo.validation, silo.test):
            x = part["x"]
            assert x.dtype == np.float32
            assert np.isfinite(x).all()
            assert x.shape[1:] == federation.feature_shape
            assert part["y"].dtype == (np.float32 if federation.task == "regression" else np.int32)
            squares = np.square(x, dtype=np.float64).sum(axis=tuple(range(1, x.ndim)))
            assert np.sqrt(squares.max(initial=0)) <= federation.feature_norm
    assert not federation.touches_private_data


def test_mnist_digit_pairs(shared):
    federation = data.load("mnist", directory=shared)
    assert sizes(federation) == [(1234, 155, 154)] * 25
    assert federation.feature_shape == (50,)
    assert federation.task == "binary"
    check(federation)
    norms = np.linalg.norm(federation.silos[0].train["x"], axis=1)
    assert 4 < norms.mean() < 9


@pytest.mark.parametrize("silos", [10, 100])
def test_mnist_ten_digits(silos, shared):
    federation = data.load(
        "mnist",
        partition="iid",
        silos=silos,
        features="unit-pixels",
        holdout="official",
        validation=0.0,
        directory=shared,
    )
    assert sizes(federation) == [(60_000 // silos, 0, 10_000 // silos)] * silos
    assert federation.num_classes == 10
    if silos == 100:
        check(federation)


def test_mnist_options(shared):
    federation = data.load("mnist", holdout="official", directory=shared, features="pca-5", task="digits")
    assert federation.feature_shape == (5,)
    assert sizes(federation)[0][0] == 1388
    for silo in federation.silos:
        assert set(silo.test["y"]) == set(silo.train["y"])
    for wrong, words in (
        ({"features": "pca-0"}, "features='pca-0'"),
        ({"task": "evens"}, "task='evens'"),
        ({"holdout": "all"}, "holdout='all'"),
        ({"holdout": "official", "test": 0.1}, "test=0.1"),
    ):
        with pytest.raises(data.DataError) as error:
            data.load("mnist", directory=shared, **wrong)
        assert words in str(error.value)


def test_cifar10_one_class_per_silo(shared):
    federation = data.load("cifar10", directory=shared, records_per_silo=500, holdout="official", validation=0.2)
    assert sizes(federation) == [(400, 100, 1000)] * 10
    assert [set(silo.train["y"]) for silo in federation.silos] == [{label} for label in range(10)]
    assert [set(silo.test["y"]) for silo in federation.silos] == [{label} for label in range(10)]
    assert federation.feature_shape == (32, 32, 3)
    check(federation)
    x = federation.silos[0].train["x"]
    assert x.min() >= -1
    assert x.max() <= 1


@pytest.mark.parametrize(
    ("name", "people", "features", "positive"),
    [("adult", 48_842, 107, 0.239), ("acs-income", 39_133, 102, 0.41), ("credit-card", 30_000, 87, 0.221)],
)
def test_fairness_data(name, people, features, positive, shared):
    federation = data.load(name, directory=shared)
    assert sum(sum(silo) for silo in sizes(federation)) == people
    assert len(federation.silos) == 3
    assert federation.feature_shape == (features,)
    assert federation.partition == "attribute, 3 silos, by age, level 0.75"
    y = np.concatenate([silo.train["y"] for silo in federation.silos])
    assert y.mean() == pytest.approx(positive, abs=0.01)
    assert all(set(silo.train["s"]) == {0, 1} for silo in federation.silos)
    assert len(federation.group_names) == 2
    assert not any("sex" in feature.lower() for feature in federation.feature_names)
    check(federation)
    both = data.load(name, directory=shared, sensitive_in_features=True, partition="iid")
    assert both.feature_shape == (features + 2,)


def test_acs_groups_cover_all_codes(shared):
    """Every occupation and place of birth of the sample belongs to a group of the dictionary."""
    federation = data.load("acs-income", directory=shared, partition="iid", silos=1, validation=0.0, test=0.0)
    for column in ("OCCP", "POBP", "SCHL", "RELP"):
        block = [place for place, name in enumerate(federation.feature_names) if name.startswith(column)]
        assert np.all((federation.silos[0].train["x"][:, block] > 0).sum(axis=1) == 1)


def test_race_as_the_sensitive_attribute(shared):
    federation = data.load("acs-income", directory=shared, sensitive="race")
    assert len(federation.group_names) == 9
    with pytest.raises(data.DataError, match="sensitive='age'"):
        data.load("acs-income", directory=shared, sensitive="age")


def test_california_housing(shared):
    federation = data.load("california-housing", directory=shared)
    assert sizes(federation) == [(1651, 207, 206)] * 10
    check(federation)
    y = np.concatenate([silo.train["y"] for silo in federation.silos])
    assert 0 <= y.min() <= y.max() <= 1
    levels = [
        np.std(
            [
                s.train["y"].mean()
                for s in data.load("california-housing", directory=shared, partition="sorted-target", level=level).silos
            ]
        )
        for level in (0.0, 0.5, 1.0)
    ]
    assert levels[0] < 0.02 < levels[1] < levels[2]


def test_insurance(shared):
    federation = data.load("insurance", directory=shared)
    assert {train for train, _, _ in sizes(federation)} == {106, 107}
    means = [silo.train["y"].mean() for silo in federation.silos]
    assert means == sorted(means)
    check(federation)


def test_a_partition_by_class_needs_classes(shared):
    with pytest.raises(data.DataError, match="real-valued target"):
        data.load("insurance", directory=shared, partition="label")
