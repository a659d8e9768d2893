"""Faults that released experiment code has had, each with a test that would catch it here."""

from dataclasses import replace

import numpy as np
import pytest

from tacit import data
from tacit.data import heart_disease, tabular
from tacit.data.build import Division, build
from tacit.data.encode import Scaled
from tacit.data.federation import Encoding, Step, Table

PARTS = ("train", "validation", "test")


def error_of_logistic_regression(federation, train=None):
    from sklearn.linear_model import LogisticRegression

    def pool(part, key):
        return np.concatenate([getattr(silo, part)[key] for silo in federation.silos])

    model = LogisticRegression(max_iter=2000)
    model.fit(pool("train", "x") if train is None else train, pool("train", "y"))
    return np.mean(model.predict(pool("test", "x")) != pool("test", "y"))


def numbered(size, reserve=0, fit=None):
    """A table whose raw records are their own row numbers, so that a test can follow each of them."""
    encoding = Encoding((Scaled(),), (Step("none", True, "Row numbers."),), None)
    return Table(
        x=np.arange(size, dtype=np.float64)[:, None],
        y=(np.arange(size) % 2).astype(np.int32),
        fit=fit or (lambda _reserve, _train: encoding),
        task="binary",
        citation="",
        class_names=("a", "b"),
        attributes={"number": np.arange(size)},
        reserve=reserve,
    )


def division(kind="iid", **changes):
    base = Division(kind=kind, silos=4, level=0.5, attribute=None, records=None, validation=0.1, test=0.2, seed=0)
    return replace(base, **changes)


def row_numbers(federation):
    return {part: [set(getattr(silo, part)["x"].ravel()) for silo in federation.silos] for part in PARTS}


@pytest.mark.parametrize("kind", ["iid", "attribute", "dirichlet", "one-class", "sorted-target"])
@pytest.mark.parametrize("records", [None, 50])
def test_no_record_is_in_two_places(kind, records):
    """Fault: silos resampled with replacement before the split, so that "test" records were trained on."""
    level = 5.0 if kind == "dirichlet" else 0.7
    federation = build("numbers", numbered(1000), division(kind, level=level, records=records, seed=1))
    places = [numbers for part in PARTS for numbers in row_numbers(federation)[part]]
    assert len(set().union(*places)) == sum(len(numbers) for numbers in places)


def test_reserved_records_are_in_no_silo():
    """Fault: a projection fitted on images that are later tested on."""
    seen = {}

    def fit(reserve, train):
        seen["reserve"], seen["train"] = set(reserve.ravel()), set(train.ravel())
        return numbered(1).fit(reserve, train)

    federation = build("numbers", numbered(1000, reserve=300, fit=fit), division())
    numbers = row_numbers(federation)
    assert len(seen["reserve"]) == 300
    assert seen["reserve"].isdisjoint(set().union(*(n for part in PARTS for n in numbers[part])))
    assert seen["train"] == set().union(*numbers["train"])


def test_statistics_never_see_held_out_records():
    """Fault: standardisation fitted on test records. Change them wildly: training features stay as they are."""
    table = tabular.read_breast_cancer(None, True, scaling="standard")
    plan = division("iid", silos=3)
    before = build("before", table, plan)
    rows = np.arange(len(table.y), dtype=np.float64)[:, None]
    follow = build("rows", replace(numbered(len(table.y)), x=rows, y=table.y), plan)
    held = [int(n) for part in ("validation", "test") for numbers in row_numbers(follow)[part] for n in numbers]
    changed = table.x.copy()
    changed[held] = changed[held] * 1000 - 7
    after = build("after", replace(table, x=changed), plan)
    for one, other in zip(before.silos, after.silos, strict=True):
        np.testing.assert_array_equal(one.train["x"], other.train["x"])
        assert not np.array_equal(one.test["x"], other.test["x"])


def test_a_record_looks_the_same_in_every_silo():
    """Fault: silos standardised one by one. Whoever holds a record, its features are the same."""
    for scaling in ("bounds", "standard"):
        looks = []
        for kind in ("label", "iid"):
            federation = data.load("breast-cancer", partition=kind, scaling=scaling, validation=0.0, test=0.0)
            looks.append(np.sort(np.concatenate([silo.train["x"][:, 0] for silo in federation.silos])))
        np.testing.assert_allclose(looks[0], looks[1], rtol=1e-6)


def test_class_wise_standardisation_would_be_noticed():
    """One-class silos standardised by themselves lose the class means; ours keep the classes apart."""
    federation = data.load("breast-cancer")
    assert error_of_logistic_regression(federation) < 0.08
    apart = [silo.train["x"] for silo in federation.silos]
    ruined = np.concatenate([(x - x.mean(axis=0)) / x.std(axis=0) for x in apart])
    assert error_of_logistic_regression(federation, ruined) > 0.2
    means = [silo.train["x"].mean(axis=0) for silo in federation.silos]
    assert np.linalg.norm(means[0] - means[1]) > 0.5


def test_private_steps_are_confessed():
    """Fault: frequencies and normalisation pooled without noise, and the result called private."""
    assert not data.load("breast-cancer").touches_private_data
    federation = data.load("breast-cancer", scaling="standard")
    assert federation.touches_private_data
    assert [step.name for step in federation.steps if not step.public] == ["standardisation"]


def test_changing_one_record_changes_no_other():
    """Public preprocessing treats each record by itself, so replace-one adjacency survives it."""
    table = heart_disease.read(None, True)
    plan = division("natural")
    before = build("before", table, plan)
    changed = table.x.copy()
    changed[0] = np.nan
    after = build(
        "after", replace(table, x=changed, y=np.where(np.arange(len(table.y)) == 0, 1 - table.y, table.y)), plan
    )
    differing = sum(
        int((getattr(one, part)["x"] != getattr(other, part)["x"]).any(axis=1).sum())
        for one, other in zip(before.silos, after.silos, strict=True)
        for part in PARTS
    )
    assert differing == 1


def test_group_codes_agree_between_silos(shared):
    """Fault: each silo numbering the groups that it happens to have."""
    federation = data.load("adult", partition="attribute", level=1.0, sensitive="race", directory=shared)
    assert federation.group_names[0] == "White"
    for silo in federation.silos:
        assert np.bincount(silo.train["s"], minlength=5).argmax() == 0
        assert silo.train["s"].max() < 5


def test_mnist_images_are_in_one_place_only(shared):
    """The digit-pair silos share no image, and no test image was trained on (measured 98% in released code)."""
    federation = data.load("mnist", features="pixels", directory=shared)
    hashes = [
        hash(image.tobytes()) for silo in federation.silos for part in PARTS for image in getattr(silo, part)["x"]
    ]
    assert len(hashes) == 25 * 1543
    assert len(set(hashes)) == len(hashes)
