"""A rehearsal reads no record: it follows from sizes, widths, the bound of norms and the task alone."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.which_to_use import LEFT_OUT, METHODS, ROUNDS, SAME, STUDIES, Axis, Case, Searches, batch_of, rehearsal
from tacit.plans.catalogue import ALGORITHMS
from tacit.plans.spec import load_study
from tacit.studies.federation import federation_of


def test_a_rehearsal_does_not_depend_on_what_records_say():
    real = federation_of(load_study("heart-disease"), 0)
    silos = [
        replace(silo, **{part: jax.tree.map(np.zeros_like, getattr(silo, part)) for part in ("train", "test")})
        for silo in real.silos
    ]
    one, other = (rehearsal(federation, 0) for federation in (real, replace(real, silos=tuple(silos))))
    for a, b, silo in zip(one.silos, other.silos, real.silos, strict=True):
        for part in ("train", "test"):
            mine, same, records = (getattr(s, part) for s in (a, b, silo))
            np.testing.assert_array_equal(mine["x"], same["x"])
            np.testing.assert_array_equal(mine["y"], same["y"])
            assert mine["x"].shape[1:] == records["x"].shape[1:]
            assert len(mine["x"]) == len(records["x"]) or part == "test"
            assert set(np.unique(mine["y"])) == {0, 1}
            assert np.linalg.norm(mine["x"], axis=1).max() <= (real.feature_norm or 1.0) * (1 + 1e-6)


def test_every_general_purpose_algorithm_of_the_table_is_compared():
    """All but those that are made for something else."""
    assert {name for name, _ in METHODS.values()} | set(SAME) | set(LEFT_OUT) == set(ALGORITHMS)


def test_no_method_leaves_more_than_a_quarter_of_a_silo_unread():
    for records in (86, 1234, 3000):
        for name in METHODS:
            for rounds in (r for r in ROUNDS if 4 * r <= records):
                size = batch_of(name, records, rounds)["batch_size"]
                if size is not None:
                    times = 1 if name == "localised-mb-sgd" else rounds
                    parts = sum(size // 2**k for k in range(20)) if name == "localised-mb-sgd" else size * times
                    assert 0.7 * records <= parts <= records, (name, rounds)


@pytest.mark.parametrize("name", SAME)
def test_what_is_said_to_be_the_same_errs_alike(name, monkeypatch):
    other = SAME[name]
    terms = {key: value for key, value in METHODS[other][1].items() if key != "output"}
    monkeypatch.setitem(METHODS, name, (name, terms))
    case = Case(STUDIES[0], tiny=True)
    errors = [Searches(case, "direct", own).errors(3, [(2.0, (1, 0))], case.rehearsed)[0] for own in (name, other)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)


def test_a_search_ends_where_all_neighbours_are_worse():
    trials = Searches.__new__(Searches)
    trials.axes, trials.case = dict.fromkeys("ab", Axis(1.0, 2.0, (0, 2))), SimpleNamespace(tiny=False, rehearsed=[])
    trials.errors = lambda rounds, points, seeds: np.asarray([1 + abs(a - 5) + abs(b + 3) for _, (a, b) in points])
    [best] = trials._searched(3, [1.0]).values()
    assert (best.point, best.settled) == ((5, -3), True)
