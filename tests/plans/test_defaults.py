"""One function gives the settings to start from; commands, `fit` and the estimators have them from it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli import app
from tacit.data import load
from tacit.errors import TacitError
from tacit.estimators import PrivateClassifier, PrivateRegressor
from tacit.objectives import Objective, linear, logistic, mlp, softmax
from tacit.plans.defaults import CALM, CALM_BELOW, LINEAR, NETWORK, Settings, defaults, defaults_of, mean_noise
from tacit.plans.spec import load_study
from tacit.studies.federation import federation_of
from tacit.studies.noise import mean_over_clip
from tacit.studies.plan import min_silos_of
from tacit.studies.run import prepare
from tacit.studies.starting import settings_for

BUDGET = tacit.Budget(epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("weights", ["records", "equal"])
@pytest.mark.parametrize(
    "channel", [("direct",), ("trusted",), ("pairwise", "pairwise.colluding=2"), ("shuffled-sum", "run.honest=0.75")]
)
def test_the_noise_in_the_mean_is_that_of_the_plan(channel, weights):
    name, *more = channel
    given = [f"algorithm.channel={name}", f"run.weights={weights}", "run.seeds=1", "algorithm.num_rounds=16", *more]
    prepared = prepare(load_study("heart-disease", given))
    study = prepared.study
    planned = mean_over_clip(study, prepared.plan.silos, prepared.builder.noised(1.0), min_silos_of(study, 4))
    found = mean_noise(
        prepared.records,
        epsilon=study.privacy.epsilon,
        delta=study.privacy.delta,
        channel=name,
        weights=prepared.records if weights == "records" else None,
        honest=study.run.honest,
        colluding=study.pairwise.colluding,
    )
    # Sixteen rounds have four times the noise of one; binomial noise is a little more than Gaussian.
    assert 4 * found == pytest.approx(planned["gradient"], rel=0.05 if name == "shuffled-sum" else 2e-3)


def test_a_channel_whose_noise_nobody_knows_has_no_default():
    with pytest.raises(TacitError, match="noise is known in advance, got 'shuffled-reports'; give step_size"):
        mean_noise([10], epsilon=1.0, delta=1e-6, channel="shuffled-reports")


@pytest.mark.parametrize("task", LINEAR)
def test_more_noise_never_has_longer_steps_and_none_has_the_cap(task):
    """Steps of adam and plain ones are not compared."""
    free, *noisy = (
        defaults(task, parameters=20, feature_norm=1.0, noise=noise) for noise in (0.0, 1e-5, 0.01, 0.05, 0.3, 1.0)
    )
    assert free.step_size == (CALM | {t: LINEAR[t] for t in LINEAR if t not in CALM})[task].cap
    assert noisy[0] == free
    for server in {one.server for one in noisy}:
        steps = [one.step_size for one in noisy if one.server == server]
        assert steps == sorted(steps, reverse=True)


def test_little_noise_over_all_parameters_has_more_rounds():
    calm, loud = (
        defaults("multiclass", parameters=100, feature_norm=1.0, noise=CALM_BELOW * s / 10) for s in (0.99, 1.01)
    )
    assert (calm.num_rounds, calm.server, calm.clip_norm) == (100, "adam", 1.0)
    assert (loud.num_rounds, loud.server, loud.clip_norm) == (30, "sgd", 0.3)
    # Noise moves parameters by about kappa: a hundred steps of this length, each of them all noise.
    assert calm.step_size * 100 * CALM_BELOW * 0.99 == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("task", LINEAR)
def test_longer_features_scale_clip_and_step(task):
    """Features of norm 7 have b = 5: gradients are five times as long, and parameters a fifth."""
    one, seven = (defaults(task, parameters=20, feature_norm=norm, noise=0.05) for norm in (1.0, 7.0))
    power = 1 if one.server == "adam" else 2
    assert seven.clip_norm == pytest.approx(5 * one.clip_norm, rel=0.01)
    assert seven.step_size == pytest.approx(one.step_size / 5**power, rel=0.1)


def test_networks_and_foreign_losses():
    network = tacit.Problem(Objective(mlp((4, 3, 2)), softmax()))
    assert defaults_of(network, [50, 60], BUDGET) == NETWORK["multiclass"]
    own = tacit.Problem(Objective(linear(4, 1), tacit.objectives.Loss(lambda outputs, y: (outputs[:, 0] - y) ** 2)))
    with pytest.raises(TacitError, match="a loss that Tacit has no defaults for"):
        defaults_of(own, [50, 60], BUDGET)


def settings_of(study):
    own = {**study.algorithm.own, **study.algorithm.model_dump()}
    return Settings(**{name: own[name] for name in Settings._fields})


@pytest.fixture
def clinics(tmp_path):
    folder = tmp_path / "clinics"
    done = CliRunner().invoke(app, ["init", str(folder), "--example", "clinics", "--epsilon", "2"])
    assert done.exit_code == 0, done.output
    return folder


def test_init_choose_fit_and_the_estimators_agree(clinics, monkeypatch):
    """They say the same of the same records, by number: rounds, step, clip, output and server."""
    study = load_study(clinics / "study.toml", ["run.seeds=1"])
    written, federation = settings_of(study), federation_of(study, 0)
    records = [len(silo.train["y"]) for silo in federation.silos]
    assert settings_for(study, federation, records) == written
    said = CliRunner().invoke(app, ["choose", "--study", str(clinics / "study.toml"), "--json"])
    assert json.loads(said.stdout)["practice"] == written._asdict()

    seen = []

    real = tacit.fitting._defaults

    def keep(*given):
        seen.append(real(*given))
        return seen[-1]

    monkeypatch.setattr("tacit.fitting._defaults", keep)
    problem = tacit.Problem(Objective(linear(*federation.feature_shape, 1), logistic()))
    budget = tacit.Budget(epsilon=2.0, delta=study.privacy.delta)
    tacit.fit(problem, federation, budget=budget, weights=records, measure_every=0)
    silo = np.repeat([own.name for own in federation.silos], records)
    x, y = (np.concatenate([own.train[key] for own in federation.silos]) for key in ("x", "y"))
    PrivateClassifier(epsilon=2.0, delta=study.privacy.delta, classes=[0, 1], random_state=0).fit(x, y, silo=silo)
    for recipe, clip in seen:
        own = {**recipe.parameters, "server": recipe.server, "clip_norm": clip}
        assert Settings(**own) == written
    assert len(seen) == 2


def test_a_fit_without_an_algorithm_learns():
    hospitals = load("heart-disease")
    problem = tacit.Problem(Objective(linear(*hospitals.feature_shape, 1), logistic()))
    found = tacit.fit(problem, hospitals, budget=tacit.Budget(epsilon=4.0, delta=1e-5))
    assert found.silos[0].price.epsilon == pytest.approx(4.0, rel=1e-3)
    assert found.scores(hospitals)["all"]["accuracy"] > 0.7


def test_a_clip_of_ones_own_keeps_its_step_in_proportion():
    own, usual = (
        defaults("regression", parameters=10, feature_norm=1.0, noise=0.1, clip_norm=clip) for clip in (0.5, None)
    )
    assert own.clip_norm == 0.5
    assert own.step_size == pytest.approx(usual.step_size * usual.clip_norm / 0.5, rel=0.01)


def test_numbers_are_learnt_from_the_defaults_too():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, size=(900, 3))
    y = 5 + 4 * x[:, 0] - 2 * x[:, 1]
    model = PrivateRegressor(epsilon=8.0, delta=1e-6, target_range=(0, 10), random_state=0).fit(x, y)
    assert model.score(x, y) > 0.5
