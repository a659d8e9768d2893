"""Training from Python: what is taken, what is refused, and what is told of how training went."""

import jax
import numpy as np
import pytest

import tacit
from tacit.data import load
from tacit.errors import TacitError
from tacit.objectives import Objective, linear, logistic
from tacit.silo import enrol
from tests.algorithms.table import LOGISTIC, least_squares, tables

BUDGET = tacit.Budget(epsilon=2.0, delta=1e-4)
SGD = tacit.mb_sgd(step_size=0.5, num_rounds=4)


def same(a, b):
    return all(bool((u == v).all()) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_name_is_answered_with_the_function_to_call():
    for given, call in (
        ("mb-sgd", r"tacit\.mb_sgd\(step_size=\.\.\., num_rounds=\.\.\.\), got 'mb-sgd'; names are for studies"),
        ("local-sgd", r"tacit\.local_sgd\(step_size=\.\.\., num_rounds=\.\.\., local_steps=\.\.\.\)"),
        ("unheard-of", r"tacit\.mb_sgd\("),
        (None, r"tacit\.mb_sgd\("),
    ):
        with pytest.raises(TacitError, match=call):
            tacit.fit(LOGISTIC, tables(), given, budget=BUDGET, clip_norm=1.0)


def test_a_budget_needs_a_clip_and_none_needs_nothing():
    with pytest.raises(TacitError, match="clip_norm"):
        tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET)
    assert tacit.fit(LOGISTIC, tables(), SGD, budget=None).silos[0].price is None


def test_any_function_of_a_problem_and_terms_is_an_algorithm():
    seen = []

    def own(problem, terms):
        seen.append(terms)
        return SGD(problem, terms)

    terms = {"clip_norm": 0.7, "batch_size": 5, "sampling": "wor", "seed": 3}
    found = tacit.fit(LOGISTIC, tables(), own, budget=BUDGET, **terms)
    assert same(found.params, tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, **terms).params)
    assert {(t.clip_norm, t.batch_size, t.sampling, t.channel, t.protects) for t in seen} == {
        (0.7, 5, "wor", "direct", "record")
    }
    assert seen[0].noise_multiplier == 1.0
    assert seen[-1].noise_multiplier.shape == (3,)


def test_batches_are_poisson_unless_something_else_is_said():
    found = tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, clip_norm=1.0, batch_size=5, measure_every=0)
    assert [event.sampling for silo in found.silos for event in silo.events] == ["poisson"] * 3


def test_the_trace_is_the_loss_on_the_training_records_by_round():
    made, problem, _ = least_squares(sizes=(30, 20))
    gd = tacit.prox_spider(step_size=0.7, num_rounds=5, phase_length=2, difference_slope=None)
    found = tacit.fit(problem, made, gd, budget=None, measure_every=2)
    assert found.trace["round"].tolist() == [2, 4, 5]
    assert set(found.trace) == {"round", "loss", "mse", "estimate_norm", "step_norm"}
    records = {k: np.concatenate([t[k] for t in made]) for k in ("x", "y")}
    last = problem.objective.measure(found.params, records)
    assert found.trace["loss"][-1] == pytest.approx(float(last["loss"]), rel=1e-5)
    assert np.all(np.diff(found.trace["loss"]) < 0)
    assert found.trace["step_norm"][-1] == pytest.approx(0.7 * found.trace["estimate_norm"][-1], rel=1e-4)


def test_measuring_changes_nothing_and_can_be_left_out():
    terms = {"budget": BUDGET, "clip_norm": 1.0}
    watched = tacit.fit(LOGISTIC, tables(), SGD, **terms)
    silent = tacit.fit(LOGISTIC, tables(), SGD, measure_every=0, **terms)
    assert same(watched.params, silent.params)
    assert set(watched.trace) == {"round", "loss", "error"}
    assert silent.trace == {}


def test_a_long_run_is_measured_about_fifty_times():
    found = tacit.fit(LOGISTIC, tables(), tacit.mb_sgd(step_size=0.1, num_rounds=130), budget=None)
    assert len(found.trace["loss"]) == 65
    assert found.trace["round"][-1] == 130


def test_an_algorithm_says_something_of_itself():
    found = tacit.fit(LOGISTIC, tables(), tacit.sgda(step_size=0.1, num_rounds=3, radius=0.05), budget=None)
    assert found.trace["duals_norm"].shape == (3,)
    assert found.trace["duals_norm"][-1] == pytest.approx(0.05)


def test_the_sensitive_attribute_alone_can_be_protected():
    fair = tacit.steffle(step_size=0.1, num_rounds=3, strength=0.5, frequencies=(0.4, 0.6))
    found = tacit.fit(LOGISTIC, tables(), fair, budget=BUDGET, clip_norm=1.0, protects="sensitive-attribute")
    assert {event.protects for silo in found.silos for event in silo.events} == {"sensitive-attribute"}
    with pytest.raises(ValueError, match="whole records"):
        tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, clip_norm=1.0, protects="sensitive-attribute")


def test_a_federation_hands_the_attribute_to_those_who_read_it(monkeypatch):
    federation = load("synthetic", sizes=[30, 30], features=3, groups=2)
    problem = tacit.Problem(Objective(linear(3, 1), logistic()))
    seen = []

    def watched(tables, names):
        seen.append(set(tables[0]))
        return enrol(tables, names)

    monkeypatch.setattr("tacit.fitting.enrol", watched)
    fair = tacit.steffle(step_size=0.1, num_rounds=1, strength=0.5, frequencies=(0.5, 0.5))
    for algorithm in (SGD, fair, lambda problem, terms: SGD(problem, terms)):
        tacit.fit(problem, federation, algorithm, budget=BUDGET, clip_norm=1.0, measure_every=0)
    assert seen == [{"x", "y"}, {"x", "y", "s"}, {"x", "y", "s"}]
