"""Estimators: scikit-learn's own checks, silos, prices, and what is read from records."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import tacit
from tacit.errors import TacitError

# Budgets that the small sets of the checks can afford: with tens of records and a small epsilon all would be noise.
LARGE = {"epsilon": 8.0, "delta": 1e-3, "random_state": 0}


# Classes and ranges are read from the checks' records, and epsilon is large: both are warned of.
@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks([tacit.PrivateClassifier(**LARGE), tacit.PrivateRegressor(**LARGE)])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def test_there_is_no_default_budget():
    with pytest.raises(TypeError, match="epsilon"):
        tacit.PrivateClassifier()


def test_silos_are_named_and_each_has_its_price(tmp_path):
    x, y = load_breast_cancer(return_X_y=True)
    silo = np.where(np.arange(len(y)) % 3 == 0, "bergen", "oslo")
    ends = x.min(axis=0), x.max(axis=0)
    model = tacit.PrivateClassifier(
        epsilon=4.0, delta=1e-5, feature_range=ends, feature_norm=2.0, classes=[0, 1], random_state=0
    ).fit(x, y, silo=silo)
    assert [(s.name, s.records) for s in model.model_.description.privacy.silos] == [("bergen", 190), ("oslo", 379)]
    assert all(3.9 < s.epsilon <= 4.0 for s in model.model_.description.privacy.silos)
    assert model.score(x, y) > 0.85
    back = tacit.load_model(model.save(tmp_path / "bundle"))
    rows = {f"x{i}": x[:9, i] for i in range(x.shape[1])}
    assert back.predict(rows).tolist() == model.predict(x[:9]).tolist()
    assert back.description.privacy.not_covered == ()


def test_what_is_not_declared_is_read_from_records_and_said(tmp_path):
    x, y = load_diabetes(return_X_y=True)
    given = {"epsilon": 8.0, "delta": 1e-5, "feature_range": (-0.2, 0.2), "random_state": 0}
    with pytest.warns(UserWarning, match="target_range"):
        model = tacit.PrivateRegressor(**given).fit(x, y)
    assert "range of the target" in model.model_.description.privacy.not_covered[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declared = tacit.PrivateRegressor(**given, target_range=(25, 346)).fit(x, y)
    assert declared.model_.description.privacy.not_covered == ()
    assert declared.predict(x).tolist() == pytest.approx(model.predict(x).tolist(), rel=1e-6)
    with pytest.raises(TacitError, match="among classes"):
        tacit.PrivateClassifier(epsilon=None, delta=1e-5, classes=[0, 1]).fit(x[:4], [0, 1, 2, 1])


def test_it_works_where_estimators_work():
    x, y = load_breast_cancer(return_X_y=True)
    model = tacit.PrivateClassifier(
        epsilon=None, delta=1e-5, feature_range=(x.min(0), x.max(0)), classes=[0, 1], random_state=0
    )
    assert cross_val_score(model, x, y, cv=2).mean() > 0.85
