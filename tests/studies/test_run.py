"""A study from file to folder: the demo itself, on fewer seeds."""

import json

import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.models import load_model
from tacit.plans.spec import load_study
from tacit.privacy import price
from tacit.studies.folder import new_folder, write
from tacit.studies.report import write_report
from tacit.studies.run import noise_at, pooled, prepare, run


@pytest.fixture(scope="module")
def result():
    return run(load_study("heart-disease", ["run.seeds=4"]))


def test_the_price_is_the_requested_one_at_every_silo(result):
    for silo, spent in zip(result.prepared.plan.silos, result.epsilon_spent, strict=True):
        assert 0.999 <= silo.price.epsilon <= 1.0
        assert spent == silo.price.epsilon
        assert price(silo.events, delta=1e-5).epsilon == silo.price.epsilon


def test_together_beats_most_hospitals_alone(result):
    private, public = (m["test_error"].mean() for m in (result.metrics, result.non_private))
    alone = [values["test_error"].mean() for values in result.alone.values()]
    assert public <= private < 0.24
    assert sum(private < error for error in alone) >= 2


def test_the_run_is_deterministic(result):
    again = run(load_study("heart-disease", ["run.seeds=4", "run.alone=false"]))
    np.testing.assert_array_equal(again.metrics["test_error"], result.metrics["test_error"])


def test_the_folder_and_the_report_hold_everything(result, tmp_path):
    study = result.prepared.study
    folder = new_folder(tmp_path, study)
    assert new_folder(tmp_path, study) != folder
    written = write(result, folder)
    assert set(written) >= {
        "study",
        "algorithm",
        "channel",
        "seeds",
        "silos",
        "metrics",
        "baselines",
        "seconds",
        "run_dir",
    }
    assert load_study(folder / "study.toml") == study
    assert json.loads((folder / "result.json").read_text())["silos"][0]["name"] == "cleveland"
    model = load_model(folder)
    assert model.params["linear"]["w"].shape == (13, 1)  # one model, not one for each seed
    test = pooled(result.prepared.federations[0], "test")
    found = model.evaluate(test["x"], np.array(["healthy", "ill"])[test["y"]])
    assert 1 - found["accuracy"] == pytest.approx(result.metrics["test_error"][0], abs=1e-6)
    [row] = [row for row in result.scores if (row.model, row.seed, row.silo) == ("private", 0, "")]
    assert found == row.values  # one number, from one source
    assert json.loads((folder / "not-private" / "result.json").read_text()) == json.loads(json.dumps(written))
    rows = (folder / "not-private" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 4 * len(result.rounds)
    page = write_report(folder).read_text()
    for text in ("cleveland", "switzerland", "<svg", "1.000", "Provenance"):
        assert text in page
    assert "src=" not in page
    assert "https://" not in page.replace("http://www.w3.org", "").replace("https://matplotlib.org", "")


def test_partial_participation_in_poisson_batches_spends_less_than_it_reserves():
    few = ["run.seeds=1", "run.alone=false", "run.participants=2", "algorithm.num_rounds=10"]
    found = run(load_study("heart-disease", [*few, "algorithm.sampling=poisson", "algorithm.batch_size=30"]))
    for silo, spent in zip(found.prepared.plan.silos, found.epsilon_spent, strict=True):
        assert spent < silo.price.epsilon <= 1.0
    event = found.prepared.plan.silos[0].events[0]
    assert (event.sampling, event.batch, event.capacity) == ("poisson", 30, 52)


# As many seeds as `result` has: the programs that are the same are compiled once.
def test_a_study_without_epsilon_is_not_private(result):
    found = run(load_study("heart-disease", ["privacy.epsilon=none", "run.seeds=4", "run.alone=false"]))
    assert found.prepared.plan.silos[0].price is None
    assert found.epsilon_spent == [None] * 4
    np.testing.assert_array_equal(found.metrics["test_error"], found.non_private["test_error"])
    assert (found.metrics["train_loss"] < result.non_private["train_loss"]).all()  # it has no clip either


def test_a_grid_runs_every_point_and_shows_the_price_of_privacy():
    grid = 'run.grid={"privacy.epsilon"=[0.05, 8.0], "algorithm.step_size"=[4.0, 8.0]}'
    found = run(load_study("heart-disease", ["run.seeds=4", "run.alone=false", grid]))
    assert found.grid[0]["point"] == {"privacy.epsilon": 0.05, "algorithm.step_size": 4.0}
    losses = [row["metrics"]["train_loss"]["mean"] for row in found.grid]
    assert max(losses[2:]) < min(losses[:2])


def test_a_server_optimiser_costs_nothing_and_may_be_a_grid(result):
    grid = 'run.grid={"algorithm.server"=["sgd", "adam"]}'
    rates = ["algorithm.step_size=0.1", "run.alone=false", "run.converged=false"]
    found = run(load_study("heart-disease", ["run.seeds=1", "algorithm.server=adam", *rates, grid]))
    assert found.prepared.plan.silos == result.prepared.plan.silos
    plain, adam = (row["metrics"]["train_loss"]["mean"] for row in found.grid)
    assert found.metrics["train_loss"][0] == pytest.approx(adam, abs=1e-6)
    assert abs(plain - adam) > 1e-3
    with pytest.raises(TacitError, match="Expected a server that takes a plain step for server='adam'"):
        prepare(
            load_study("heart-disease", ["algorithm.name=mu2-sgd", "algorithm.server=adam", "algorithm.output=none"])
        )


def test_stationarity_is_measured_where_asked_for(result):
    assert "train_excess_risk" not in result.metrics
    overrides = ["run.seeds=1", "run.alone=false", "run.stationarity=true", "algorithm.output=last"]
    penalty = "objective.regulariser=squared-l2:0.05"
    found = run(load_study("heart-disease", [*overrides, penalty]))
    for name in ("train_gradient_mapping", "train_excess_risk"):
        private, public = found.metrics[name][0], found.non_private[name][0]
        assert private > public >= -1e-6
    # The risk is strongly convex: half the squared gradient mapping over the modulus bounds the excess.
    mapping, excess = found.metrics["train_gradient_mapping"][0], found.metrics["train_excess_risk"][0]
    assert 0 < excess <= mapping**2 / 0.05
    network = ["objective.model=mlp", "objective.hidden=[3]", "algorithm.num_rounds=2", "privacy.epsilon=none"]
    found = run(load_study("heart-disease", [*overrides, *network]))
    assert found.metrics["train_gradient_mapping"][0] > 0
    assert "train_excess_risk" not in found.metrics


def test_a_grid_over_what_is_released_prices_every_point():
    """Noisier differences leave more of the budget to gradients; each point has the noise of its own releases."""
    prepared, alone = (
        prepare(load_study("breast-cancer-mlp", ["run.seeds=1", f"algorithm.difference_noise={value}"]))
        for value in (1.0, 4.0)
    )
    noise = [noise_at(prepared, {"algorithm.difference_noise": value}) for value in (1.0, 4.0)]
    np.testing.assert_allclose(noise[1], alone.plan.noise, rtol=1e-6)
    assert np.all(noise[1] < 0.9 * noise[0])
