"""Studies of fairness: what is protected is explicit, and what crosses is shown."""

import os
from functools import cache

import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.plans.spec import load_study
from tacit.studies.plan import plan_json
from tacit.studies.run import prepare, run

SMALL = ("run.seeds=1", "partition.records_per_silo=300", "algorithm.num_rounds=4")


@pytest.fixture
def _files():
    if not os.environ.get("TACIT_DATA"):
        pytest.skip("TACIT_DATA is not set: the large data files are not at hand")


@cache
def planned(*overrides):
    return plan_json(prepare(load_study("credit-card-fair", [*SMALL, *overrides])).plan)


@pytest.mark.usefixtures("_files")
def test_the_plan_says_what_crosses_and_what_each_design_costs():
    found = planned()
    assert found["protects"] == "sensitive-attribute"
    said = {row["message"].split(":")[0] for row in found["crossings"]}
    assert {"Outputs", "LossGradient", "FairGradients"} <= said
    private = [row for row in found["crossings"] if "noise" in row["promise"]]
    assert [row["message"].split(":")[0] for row in private] == ["FairGradients"]
    names = [design["name"] for design in found["designs"]]
    assert (names[0], names[-1]) == ("full batch", "as printed")
    assert all(0.999 <= silo["epsilon"] <= 1.0 for silo in found["silos"])


@pytest.mark.usefixtures("_files")
def test_a_histogram_crosses_and_is_priced_where_frequencies_are_not_declared():
    found = planned("algorithm.frequencies=none", "algorithm.groups=2")
    assert any("histogram" in row["message"] for row in found["crossings"])
    kinds = {kind["kind"]: kind for kind in found["silos"][0]["kinds"]}
    assert set(kinds) == {"histogram", "step"}
    plain = planned()["silos"][0]["kinds"][0]
    assert kinds["step"]["noise_multiplier"] > plain["noise_multiplier"]


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(
    ("overrides", "records"),
    [
        (("partition.centralisation=central-sensitive",), "all"),
        (("partition.centralisation=general", "partition.sensitive_silos=2"), "half"),
    ],
)
def test_holders_of_attributes_are_the_silos_that_pay(overrides, records):
    apart, plain = planned(*overrides), planned()
    total = sum(silo["records"] for silo in plain["silos"])
    sizes = [silo["records"] for silo in apart["silos"]]
    assert sum(sizes) == total
    assert len(sizes) == (1 if records == "all" else 2)
    assert all(silo["name"].startswith("attributes") for silo in apart["silos"])


@pytest.mark.usefixtures("_files")
def test_a_run_measures_violations_and_stationarity():
    result = run(load_study("credit-card-fair", list(SMALL)))
    for name in ("error", "parity_gap", "parity_violation", "odds_gap", "opportunity_gap", "stationarity"):
        assert np.isfinite(result.metrics[f"test_{name}"]).all()
    assert 0 <= result.metrics["test_parity_violation"][0] <= result.metrics["test_parity_gap"][0] <= 1


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("algorithm.name=mb-sgd",), "strength"),
        (("partition.centralisation=general",), "sensitive_silos"),
        (("algorithm.sampling=one-pass", "algorithm.batch_size=100"), "one-pass"),
        (("data.options.sensitive_in_features=true",), "sensitive_in_features"),
    ],
)
def test_what_is_refused(overrides, message):
    with pytest.raises(TacitError, match=message):
        prepare(load_study("credit-card-fair", [*SMALL, *overrides]))


def test_other_algorithms_protect_whole_records():
    with pytest.raises(TacitError, match=r"privacy\.protects"):
        prepare(load_study("heart-disease", ["privacy.protects=sensitive-attribute", "run.seeds=1"]))
