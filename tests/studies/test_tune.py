"""Tuning inside the budget: the price of what the server sees, and what may be told."""

import dataclasses
import math

import pytest

from tacit.privacy import gdp_epsilon, price
from tacit.privacy.selection import selection_epsilon
from tacit.studies.spec import StudyError, load_study
from tacit.studies.tune import _unit_events, plan_tuning, tune, tuned_json

GRID = {"algorithm.step_size": [1.0, 4.0, 8.0]}


def study(*overrides):
    return load_study("heart-disease", ["run.seeds=2", "algorithm.num_rounds=4", *overrides])


def built_events(plan, place):
    """The releases of one candidate at the noise that it is run with."""
    return [e.scaled(float(plan.noise[place])) for e in _unit_events(plan.prepared, place, {})]


def test_a_server_that_sees_every_run_is_paid_for():
    plan = plan_tuning(study(), GRID)
    assert plan.mode == "every run is seen"
    for place, silo in enumerate(plan.silos):
        all_runs = [dataclasses.replace(e, count=3 * e.count) for e in built_events(plan, place)]
        assert 0.999 < price(all_runs, delta=plan.delta).epsilon <= 1.0 + 1e-9
        assert silo.epsilon == pytest.approx(1.0)
    # The scores: three releases of separation 1/z on validation records, disjoint from those trained on.
    assert gdp_epsilon(math.sqrt(3) * plan.separation, plan.delta) == pytest.approx(1.0)


def test_sampled_candidates_are_composed():
    plan = plan_tuning(study("algorithm.sampling=poisson", "algorithm.batch_size=20"), GRID)
    for place, silo in enumerate(plan.silos):
        all_runs = [dataclasses.replace(e, count=3 * e.count) for e in built_events(plan, place)]
        assert price(all_runs, delta=plan.delta).epsilon <= 1.0 + 1e-6
        assert silo.epsilon_of_one < silo.epsilon <= 1.0


def test_a_trusted_server_pays_for_the_best_of_a_random_number():
    plan = plan_tuning(study("algorithm.channel=trusted"), GRID, mean_tries=10.0)
    assert plan.mode == "only the best is told"
    assert plan.tries.mean == pytest.approx(10.0)
    for place, silo in enumerate(plan.silos):
        mu = price(built_events(plan, place), delta=plan.delta).mu
        assert mu <= plan.separation
        assert silo.epsilon == pytest.approx(selection_epsilon(plan.separation, plan.tries, delta=plan.delta))
        assert 0.999 < silo.epsilon <= 1.0
    # Hiding nine losers is worth a lot: each run may be louder than if all ten were seen.
    seen = plan_tuning(study(), {"algorithm.step_size": [float(i) for i in range(1, 11)]})
    assert plan.separation > 1.3 * seen.separation


def test_the_best_score_wins_and_losers_of_a_trusted_server_are_not_told():
    open_race = tuned_json(tune(plan_tuning(study("privacy.epsilon=20"), GRID)))
    scores = [row["score"] for row in open_race["candidates"]]
    assert len(scores) == 3
    assert open_race["score"] == min(scores)
    assert open_race["chosen"] == open_race["candidates"][scores.index(min(scores))]["point"]
    assert 0 < open_race["metrics"]["test_error"]["mean"] < 0.5
    secret = tuned_json(tune(plan_tuning(study("algorithm.channel=trusted", "privacy.epsilon=20"), GRID)))
    assert len(secret["candidates"]) == 1


@pytest.mark.parametrize(
    ("overrides", "grid", "tries", "words"),
    [
        (("privacy.epsilon=none",), GRID, None, "one epsilon"),
        ((), {"algorithm.num_rounds": [1.0]}, None, "expected values for keys among"),
        ((), GRID, 5.0, "sees all 3 candidates"),
        (("algorithm.channel=trusted", "algorithm.sampling=poisson", "algorithm.batch_size=9"), GRID, None, "full"),
        (("partition.validation=0.0",), GRID, None, "no validation records"),
        (("algorithm.channel=shuffled-reports",), GRID, None, "no shuffled reports"),
    ],
)
def test_what_has_no_price_is_refused(overrides, grid, tries, words):
    with pytest.raises(StudyError, match=words):
        plan_tuning(study(*overrides), grid, mean_tries=tries)


def test_a_grid_that_changes_what_is_released_is_refused():
    spider = study(
        "algorithm.name=prox-spider",
        "algorithm.output=none",
        "algorithm.phase_length=2",
        "algorithm.difference_slope=1.0",
        "algorithm.difference_noise=1.0",
    )
    with pytest.raises(StudyError, match="changes what is released"):
        plan_tuning(spider, {"algorithm.difference_noise": [1.0, 0.1]})
