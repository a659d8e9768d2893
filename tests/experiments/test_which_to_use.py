"""A rehearsal reads no record: it follows from sizes, widths, the bound of norms and the task alone."""

from dataclasses import replace

import jax
import numpy as np

from experiments.which_to_use import METHODS, rehearsal
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
    """All but those about fairness, and those whose models are the silos' own."""
    others = {"sgda", "steffle", "fedfdp", "lagrangian-dual", "mr-mtl"}
    assert {name for name, _ in METHODS.values()} == set(ALGORITHMS) - others
