"""Heart disease: four hospitals, public preprocessing, and a signal worth sharing."""

import numpy as np
import pytest

from tacit import data
from tacit.data import heart_disease
from tacit.data.layout import described


def pool(federation, part, key):
    return np.concatenate([getattr(silo, part)[key] for silo in federation.silos])


def test_hospitals():
    federation = data.load("heart-disease")
    totals = {
        silo.name: len(silo.train["y"]) + len(silo.validation["y"]) + len(silo.test["y"]) for silo in federation.silos
    }
    assert totals == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    ill = sum(pool(federation, part, "y").sum() for part in ("train", "validation", "test"))
    assert ill == 139 + 106 + 115 + 149
    assert federation.task == "binary"
    assert federation.num_classes == 2
    assert "CC BY 4.0" in federation.citation


def test_features_are_finite_bounded_and_public():
    federation = data.load("heart-disease", features="full")
    assert federation.feature_shape == (len(federation.feature_names),) == (20,)
    x = pool(federation, "train", "x")
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    assert np.linalg.norm(x.astype(np.float64), axis=1).max() <= federation.feature_norm
    assert not federation.touches_private_data


def test_zero_cholesterol_is_missing():
    table = heart_disease.read(None, True)
    cholesterol = table.x[:, described("heart_disease")["columns"].index("chol")]
    assert np.isnan(cholesterol[table.natural == 2]).all()
    assert np.nanmin(cholesterol) > 50


@pytest.mark.parametrize("features", ["compact", "full"])
def test_a_missing_value_is_neutral(features):
    table = heart_disease.read(None, True, features=features)
    encoding = table.fit(table.x, table.x)
    values = encoding.apply(np.full((1, 13), np.nan))[0]
    told = np.array([name.endswith(" missing") for name in encoding.names])
    assert told.sum() == (1 if features == "compact" else 5)
    assert np.all(values[told] > 0.4)
    assert np.all(values[~told] == 0)


def test_pooled_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    errors = []
    for seed in range(8):
        federation = data.load("heart-disease", seed=seed)
        model = LogisticRegression().fit(pool(federation, "train", "x"), pool(federation, "train", "y"))
        errors.append(np.mean(model.predict(pool(federation, "test", "x")) != pool(federation, "test", "y")))
    assert np.mean(errors) <= 0.21
