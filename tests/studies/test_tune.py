"""Tuning inside the budget: the price of what the server sees, and what may be told."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.plans.spec import StudyError, load_study
from tacit.privacy import gdp_epsilon, price
from tacit.privacy.gaussian import gauss_delta
from tacit.privacy.selection import selection_epsilon
from tacit.studies.tune import AGAINST, _scores, _unit_events, plan_json, plan_tuning, tune, tuned_json

GRID = {"algorithm.step_size": [1.0, 4.0, 8.0]}


def study(*overrides):
    return load_study("heart-disease", ["run.seeds=2", "algorithm.num_rounds=4", *overrides])


def built_events(plan, place):
    """The releases of one candidate at the noise that it is run with."""
    return [e.scaled(float(plan.noise[place])) for e in _unit_events(plan.prepared, place, {})]


def test_a_server_that_sees_every_run_is_paid_for():
    plan = plan_tuning(study(), GRID)
    assert plan.against == "silos"
    for place, silo in enumerate(plan.silos):
        all_runs = [dataclasses.replace(e, count=3 * e.count) for e in built_events(plan, place)]
        assert 0.999 < price(all_runs, delta=plan.delta).epsilon <= 1.0 + 1e-9
        assert silo.epsilon == silo.silos == silo.public == pytest.approx(1.0)
    # The scores: three releases of separation 1/z on validation records, disjoint from those trained on.
    assert gdp_epsilon(math.sqrt(3) * plan.separation, plan.delta) == pytest.approx(1.0)


def test_sampled_candidates_are_composed():
    plan = plan_tuning(study("algorithm.sampling=poisson", "algorithm.batch_size=20"), GRID)
    for place, silo in enumerate(plan.silos):
        all_runs = [dataclasses.replace(e, count=3 * e.count) for e in built_events(plan, place)]
        trained = price(all_runs, delta=plan.delta).epsilon
        validated = gdp_epsilon(math.sqrt(3) * plan.separation, plan.delta)
        assert trained <= 1.0 + 1e-6
        # A validation record pays for the scores, and no less because batches of training are sampled.
        assert silo.epsilon >= validated * (1 - 1e-9)
        assert silo.epsilon_of_one >= gdp_epsilon(plan.separation, plan.delta)
        assert silo.epsilon_of_one < silo.epsilon <= 1.0 + 1e-9


TRUSTED = "algorithm.channel=trusted"


def test_silos_that_watch_a_trusted_server_train_are_paid_for_unless_it_is_said():
    plan = plan_tuning(study(TRUSTED), GRID)
    assert (plan.against, plan.tries) == ("silos", None)
    for place, silo in enumerate(plan.silos):
        all_runs = [dataclasses.replace(e, count=3 * e.count) for e in built_events(plan, place)]
        assert 0.999 < price(all_runs, delta=plan.delta).epsilon <= 1.0 + 1e-9
        assert silo.silos == pytest.approx(1.0)
    assert plan_json(plan)["budget_covers"] == AGAINST["silos"]


def test_scores_of_a_pairwise_study_share_one_noise():
    """The noise in a score is what the plan says: that of a trusted server, but for the silo that may collude."""
    plans = {c: plan_tuning(study(f"algorithm.channel={c}"), GRID) for c in ("direct", "pairwise", "trusted")}
    central = plans["trusted"].score_deviation
    assert plans["direct"].score_deviation == pytest.approx(central * math.sqrt(4))
    assert plans["pairwise"].score_deviation == pytest.approx(central * math.sqrt(4 / 3))
    plan = plans["pairwise"]
    params = plan.prepared.builder.problem.objective.init(jax.random.key(0))
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * 100), params)
    assert np.std(_scores(plan, many, 100, 0)) == pytest.approx(plan.score_deviation, rel=0.25)


def test_the_price_of_the_best_alone_stands_beside_what_the_silos_see():
    plan = plan_tuning(study(TRUSTED), GRID, against="public", mean_tries=10.0)
    assert plan.tries.mean == pytest.approx(10.0)
    for place, silo in enumerate(plan.silos):
        mu = price(built_events(plan, place), delta=plan.delta).mu
        assert mu <= plan.separation
        assert silo.public == pytest.approx(selection_epsilon(plan.separation, plan.tries, delta=plan.delta))
        assert 0.999 < silo.public <= 1.0
        # A silo sees K and all K runs: the exact mixture over K is what that costs.
        chances = [(k, plan.tries.chance(k)) for k in range(1, 2500)]
        separations = [(chance, plan.separation * math.sqrt(k)) for k, chance in chances if chance > 1e-20]
        seen = sum(chance * float(gauss_delta(silo.silos, mu)) for chance, mu in separations)
        assert seen == pytest.approx(plan.delta, rel=1e-3)
        assert silo.epsilon == silo.silos > 5 * silo.public
    told = plan_json(plan)
    assert told["budget_covers"] == AGAINST["public"]
    assert told["silos"][0]["epsilon"] == plan.silos[0].silos
    assert told["silos"][0]["epsilon_against"] == {
        AGAINST["silos"]: plan.silos[0].silos,
        AGAINST["public"]: plan.silos[0].public,
    }
    assert told["tries"]["drawn"].startswith("simulated")
    # Hiding nine losers is worth a lot: each run may be louder than if all ten were seen.
    seen = plan_tuning(study(), {"algorithm.step_size": [float(i) for i in range(1, 11)]})
    assert plan.separation > 1.3 * seen.separation


ONE_SILO = ("data.name=breast-cancer", "partition.silos=1", "partition.kind=iid")


def test_one_silo_alone_has_no_other_silos_to_pay_for():
    one = plan_tuning(study(TRUSTED, *ONE_SILO), GRID)
    assert one.against == "public"
    [silo] = one.silos
    assert silo.silos is None
    assert silo.epsilon == silo.public == pytest.approx(1.0, rel=1e-3)
    assert list(plan_json(one)["silos"][0]["epsilon_against"]) == [AGAINST["public"]]


def test_the_best_error_wins_and_what_may_be_told_holds_nothing_exact():
    plan = plan_tuning(study("privacy.epsilon=20"), GRID)
    shown = []
    race = tune(plan, lambda *row: shown.append(row))
    assert shown == [("candidates", done, 3) for done in (1, 2, 3)]
    told = tuned_json(race)
    errors = [row["private_validation_error"] for row in told["candidates"]]
    assert len(errors) == 3
    assert told["private_validation_error"] == min(errors)
    assert told["chosen"] == told["candidates"][errors.index(min(errors))]["point"]
    assert 0 < told["metrics"]["test_error"]["mean"] < 0.5
    # Exact errors of training and validation records are known to the simulation, and not told.
    assert {"train_error", "validation_error"} < set(race.metrics)
    assert all(name.startswith("test_") for name in told["metrics"])
    exact = {value for name, value in race.metrics.items() if not name.startswith("test_")}
    assert not exact & set(_numbers(told))
    assert "not priced" in told["metrics_measured_on"]


def test_neither_losers_nor_their_number_are_told_to_the_public():
    plan, shown = plan_tuning(study(TRUSTED, "privacy.epsilon=20"), GRID, against="public"), []
    race = tune(plan, lambda *row: shown.append(row))
    assert len(tuned_json(race)["candidates"]) == 1
    assert [row[1:] for row in shown] == [(0, None)]


def _numbers(told):
    if isinstance(told, dict | list):
        for part in told.values() if isinstance(told, dict) else told:
            yield from _numbers(part)
    elif isinstance(told, float):
        yield told


@pytest.mark.parametrize(
    ("overrides", "grid", "terms", "words"),
    [
        (("privacy.epsilon=none",), GRID, {}, "one epsilon"),
        ((), {"algorithm.num_rounds": [1.0]}, {}, "expected values for keys among"),
        ((), {"algorithm.step_size": [1.0, 0.0]}, {}, "--grid algorithm.step_size: .*got 0.0; .*greater than 0"),
        ((), {"algorithm.server": ["adam", "adm"]}, {}, "--grid algorithm.server: .*among sgd, momentum.*got 'adm'"),
        ((), GRID, {"mean_tries": 5.0}, "sees all 3 candidates"),
        ((), GRID, {"against": "public"}, "not trusted sees all 3 candidates"),
        ((TRUSTED,), GRID, {"mean_tries": 5.0}, "4 silos see every candidate.*--against public"),
        ((TRUSTED, "algorithm.sampling=poisson", "algorithm.batch_size=9"), GRID, {"against": "public"}, "full"),
        (("partition.validation=0.0",), GRID, {}, "no validation records"),
        (("algorithm.channel=shuffled-reports",), GRID, {}, "no shuffled reports"),
    ],
)
def test_what_has_no_price_is_refused(overrides, grid, terms, words):
    with pytest.raises(StudyError, match=words):
        plan_tuning(study(*overrides), grid, **terms)


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


def test_servers_are_candidates_like_any_other():
    plan = plan_tuning(study(), {"algorithm.server": ["sgd", "adam"], "algorithm.step_size": [0.1, 4.0]})
    assert plan.silos == plan_tuning(study(), {"algorithm.step_size": [1.0, 2.0, 3.0, 4.0]}).silos, "the same price"
    told = tuned_json(tune(plan))
    assert {row["point"]["algorithm.server"] for row in told["candidates"]} == {"sgd", "adam"}
    assert len({row["private_validation_error"] for row in told["candidates"]}) == 4
    assert told["chosen"]["algorithm.server"] in ("sgd", "adam")
