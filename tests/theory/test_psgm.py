"""Theorems of CE-PSGM: what the rates say about each other, and what the parameters build."""

import dataclasses

import pytest

from tacit.plans.catalogue import find
from tacit.privacy import Event, calibrate
from tacit.privacy.theorems import lemma_conditions
from tacit.theory import PsgmSetting, TheoryError, ce_psgm_from_theory, table_1
from tests.algorithms.table import LOGISTIC

SETTING = PsgmSetting(
    lipschitz=1.0,
    smoothness=1.0,
    gap=1.0,
    heterogeneity=0.01,
    records=10**5,
    silos=100,
    dimension=100,
    epsilon=1.0,
    delta=1e-6,
    rounds=1000,
    local_steps=32,
    local_batch=32,
)


def rate(setting, name):
    return sum(table_1(setting)[name].values())


def test_local_steps_win_where_silos_are_alike_and_lose_their_gain_where_they_differ():
    alike = SETTING
    apart = dataclasses.replace(SETTING, heterogeneity=2.0)
    assert rate(alike, "ce-psgm-fg") < rate(alike, "mb-psgm-fg")
    assert rate(apart, "ce-psgm-fg") > rate(apart, "mb-psgm-fg")
    assert rate(alike, "mb-psgm-fg") == rate(apart, "mb-psgm-fg")


def test_mini_batches_cost_what_full_gradients_do_not():
    for pair in (("mb-psgm", "mb-psgm-fg"), ("ce-psgm", "ce-psgm-fg")):
        assert rate(SETTING, pair[0]) > rate(SETTING, pair[1])
    assert rate(SETTING, "diff2-gd") - rate(SETTING, "mb-psgm-fg") == pytest.approx(
        table_1(SETTING)["diff2-gd"]["differences"] - table_1(SETTING)["mb-psgm-fg"]["floor"]
    )


def test_without_privacy_only_optimisation_is_left():
    free = dataclasses.replace(SETTING, epsilon=1e9, heterogeneity=0.0)
    assert rate(free, "mb-psgm-fg") == pytest.approx(1 / 1000)
    assert rate(free, "ce-psgm-fg") == pytest.approx(1 / 1000 / 32 + 1 / 1000 / 32, rel=1e-3)


@pytest.mark.parametrize("full", [True, False])
def test_parameters_build_the_algorithm_and_obey_the_theorem(full):
    found = ce_psgm_from_theory(SETTING, full=full)
    assert found.algorithm == ("ce-psgm-fg" if full else "ce-psgm")
    assert found.rate == pytest.approx(rate(SETTING, found.algorithm))
    assert 0 < found.parameters["step_size"] <= 0.5
    assert 1 / 1000 <= found.parameters["momentum"] <= 1
    built = find("ce-psgm").build(LOGISTIC, noise_multiplier=1.0, **found.parameters)
    assert built.rounds["local"].silo.local_steps == 31
    assert len(built.schedule) == 2000


def test_one_local_step_is_the_mini_batch_theorem():
    found = ce_psgm_from_theory(dataclasses.replace(SETTING, local_steps=1), full=True)
    assert (found.algorithm, found.source[-3:]) == ("mb-psgm-fg", "A.4")
    assert set(find("mb-psgm-fg").build(LOGISTIC, noise_multiplier=1.0, **found.parameters).rounds) == {
        "gradient",
        "estimate",
    }


def test_the_papers_experiment_is_certified_and_outside_its_lemma():
    """Ten silos of 1651 records and 500 rounds of full gradients: the local epsilon that epsilon = 0.8 buys."""
    shared = {"noise_multiplier": 1.0, "records": 1651, "batch": 1651, "sampling": "full", "mechanism": "reports"}
    first = Event(kind="gradient", count=1, streams=(1.0,), reports=16510, **shared)
    later = Event(kind="estimate", count=499, streams=(1.0, 1.0), reports=16510, **shared)
    local_epsilon = 1 / calibrate([first, later], epsilon=0.8, delta=1e-5)[0].noise_multiplier
    assert local_epsilon == pytest.approx(0.744, rel=5e-3)
    assert not all(c.holds for c in lemma_conditions(local_epsilon, silos=10, records=1651, batch=1651))


@pytest.mark.parametrize("changes", [{"heterogeneity": 3.0}, {"delta": 1.0}, {"rounds": 0}])
def test_nonsense_is_refused(changes):
    with pytest.raises(TheoryError, match="Expected"):
        dataclasses.replace(SETTING, **changes)
