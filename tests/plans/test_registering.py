"""Algorithms, losses and models of one's own: studies name them, bundles keep them, silos refuse them."""

import subprocess
import sys

import numpy as np
import pytest
import tomli_w

import tacit
from tacit.algorithm import Algorithm, Round, Server, Silo, Terms, recipe
from tacit.algorithms.mb_sgd import mb_sgd
from tacit.data import load
from tacit.deploy.server.deployment import check_study
from tacit.deploy.silo.consent import consider
from tacit.deploy.silo.policy import AllowSection
from tacit.deploy.wire import Plan, RefusalError
from tacit.errors import TacitError
from tacit.objectives import Model, Objective, gradient_at, linear, losses, mlp, models, squared
from tacit.plans import catalogue
from tacit.plans.assemble import record_shape
from tacit.plans.spec import StudyError, parse_study
from tacit.studies.run import prepare, run

MODULE = '''
import tacit
from tacit.algorithm import recipe
from tacit.algorithms.mb_sgd import mb_sgd
from tacit.objectives import logistic, mlp


@tacit.register_algorithm
@recipe
def plain_descent(problem, terms, *, step_size, num_rounds):
    """Minibatch SGD that ends at its last point."""
    return mb_sgd(step_size=step_size, num_rounds=num_rounds, output="last")(problem, terms)


tacit.register_model("narrow", lambda features, outputs, width: mlp((*features, width, outputs)))
tacit.register_loss("half-logistic", lambda: logistic(), tasks=["binary"])
'''
STUDY = {
    "name": "mine",
    "plugins": {"modules": ["my_descent"]},
    "data": {"name": "synthetic", "options": {"sizes": [40, 50], "features": 3}},
    "objective": {"model": "narrow", "model_options": {"width": 4}, "loss": "half-logistic"},
    "algorithm": {"name": "plain-descent", "step_size": 0.5, "num_rounds": 3, "clip_norm": 1.0},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
    "run": {"alone": False, "converged": False},
}

SGD = tacit.mb_sgd(step_size=0.5, num_rounds=2)


@pytest.fixture
def forgetful():
    """What is registered in a test is forgotten after it."""
    tables = (catalogue._OWN, models._OWN_MODELS, losses.OWN_LOSSES)
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


@pytest.fixture
def study(forgetful, tmp_path, monkeypatch):
    (tmp_path / "my_descent.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_descent", raising=False)
    yield parse_study(tomli_w.dumps(STUDY))
    sys.modules.pop("my_descent", None)


def test_a_study_names_what_its_plugins_register(study):
    prepared = prepare(study)
    assert prepared.builder.problem.objective.model.architecture.name == "narrow"
    assert max(silo.price.epsilon for silo in prepared.plan.silos) <= 2.0
    assert np.isfinite(next(iter(run(study).metrics.values()))).all()


def test_a_bundle_of_a_registered_model_is_loaded_where_it_is_registered(study, tmp_path):
    problem = prepare(study).builder.problem
    found = tacit.fit(problem, load("synthetic", sizes=[40, 50], features=3), SGD, budget=None)
    found.save(tmp_path / "bundle")
    rows = np.zeros((2, 3), np.float32)
    assert tacit.load_model(tmp_path / "bundle").predict(rows).tolist() == found.predict(rows).tolist()
    models._OWN_MODELS.clear()
    with pytest.raises(TacitError, match=r"Unknown model 'narrow'.*Install the package that registers it"):
        tacit.load_model(tmp_path / "bundle")


def test_real_silos_are_not_asked_to_run_foreign_code(study):
    with pytest.raises(StudyError, match="narrow is of your own, and silos run no code but Tacit's and what"):
        check_study(study, 0)
    shipped = study.objective.model_copy(update={"model": "linear", "loss": "logistic", "model_options": {}})
    with pytest.raises(StudyError, match="plain-descent is of your own"):
        check_study(study.model_copy(update={"objective": shipped}), 0)


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("algorithm", {"name": "plain-descent"}, "an algorithm"),
        ("objective", {"model": "narrow", "model_options": {"width": 4}}, "a model among linear, mlp, cnn"),
        ("objective", {"loss": "half-logistic"}, "a loss among logistic"),
    ],
)
def test_a_silo_refuses_names_outside_its_own_tables_even_where_they_are_registered(study, part, changes, words):
    sections = {
        "objective": {"model": "linear"},
        "algorithm": {"name": "mb-sgd", "step_size": 0.5, "num_rounds": 3, "clip_norm": 1.0},
    }
    allow = AllowSection(algorithms=("mb-sgd",), min_silos=1)
    told = {"name": "mine", "nonce": "0" * 16, "features": (3,), "task": "binary", "classes": 2, "silos": 2}
    told |= {"epsilon": 1.0, "delta": 1e-6, "silo_index": 0, "max_participations": None, "everyone": True}
    terms = {"records": 40, "record": record_shape((3,), "binary"), "allow": allow}
    assert consider(Plan(**told, **sections, schema_digest=None), **terms).price.epsilon <= 1.0
    sections[part] = {**sections[part], **changes}
    with pytest.raises(RefusalError, match=words):
        consider(Plan(**told, **sections, schema_digest=None), **terms)
    with pytest.raises(ValueError, match="Unknown algorithm 'plain-descent'"):
        AllowSection(algorithms=("plain-descent",), min_silos=1)


def test_a_plan_imports_nothing(study):
    """Only the file of a study does: what a server sends is built from a silo's own tables."""
    code = (
        "import sys; from tacit.plans.spec import study_from; study_from({tree}); sys.exit('my_descent' in sys.modules)"
    )
    tree = {**STUDY, "objective": {}, "algorithm": {**STUDY["algorithm"], "name": "mb-sgd"}}
    subprocess.run([sys.executable, "-c", code.replace("{tree}", repr(tree))], check=True)


def test_what_mixes_records_is_refused_in_studies_and_in_fit(study, forgetful):
    def centred(features, outputs):
        plain = linear(*features, outputs)
        return Model(plain.init, lambda params, x, tap: plain.apply(params, x - x.mean(axis=0), tap))

    tacit.register_model("centred", centred)
    tree = {**STUDY, "objective": {"model": "centred"}}
    with pytest.raises(TacitError, match="mixes records"):
        prepare(parse_study(tomli_w.dumps(tree)))
    mixed = models.built(models.Architecture("centred", {"features": (3,), "outputs": 1}))
    rows = [{"x": np.eye(3), "y": np.ones(3)}]
    with pytest.raises(TacitError, match="mixes records"):
        tacit.fit(tacit.Problem(Objective(mixed, squared())), rows, SGD, budget=None)


def test_names_of_tacit_stay_what_they_are(forgetful):
    with pytest.raises(TacitError, match="'linear', which Tacit has; choose another"):
        tacit.register_model("linear", lambda features, outputs: linear(*features, outputs))
    with pytest.raises(TacitError, match="'squared', which Tacit has"):
        tacit.register_loss("squared", squared, tasks=["regression"])
    with pytest.raises(TacitError, match="'mb-sgd', which Tacit has"):
        tacit.register_algorithm(mb_sgd)
    with pytest.raises(TacitError, match="Unknown task 'binray'; did you mean 'binary'"):
        tacit.register_loss("mine", squared, tasks=["binray"])
    with pytest.raises(TacitError, match="decorate it with @recipe"):
        tacit.register_algorithm(lambda problem, terms: None)
    tacit.register_model("wrong", lambda features, outputs: "a model")
    with pytest.raises(TacitError, match="to make a tacit.objectives.Model, got str".replace(".", r"\.")):
        models.built(models.Architecture("wrong", {"features": (3,), "outputs": 1}))


def test_a_registered_model_may_be_used_as_any_other(forgetful):
    @tacit.register_algorithm
    @recipe
    def one_step(problem, terms: Terms, *, step_size: float) -> Algorithm:
        """One step of gradient descent."""
        silo = Silo(gradient_at(problem.objective), terms.release())
        tell = Server(lambda params: params, lambda params, mean: problem.descend(params, mean, step_size))
        return Algorithm(lambda params: params, {"gradient": Round(silo, tell)}, ("gradient",), lambda params: params)

    assert catalogue.find("one-step").recipe is one_step
    assert "one_step" not in dir(tacit)
    problem = tacit.Problem(Objective(mlp((3, 2, 1)), squared()))
    rows = [{"x": np.ones((20, 3)), "y": np.ones(20)}]
    found = tacit.fit(
        problem, rows, one_step(step_size=0.1), budget=tacit.Budget(epsilon=1.0, delta=1e-5), clip_norm=1.0
    )
    assert found.silos[0].events[0].count == 1
