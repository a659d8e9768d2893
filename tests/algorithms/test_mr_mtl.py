"""Personal models: the paper's recursion, the optimum that it goes to, whose model is whose, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.algorithm import Terms
from tacit.data import load
from tacit.models import BundleError, load_model
from tacit.objectives import Objective, Problem, linear, logistic, squared
from tacit.plans.catalogue import find
from tacit.plans.spec import StudyError, study_from
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import participation
from tacit.studies.run import prepare, run_prepared
from tacit.studies.tune import plan_tuning

STEP, STRENGTH = 0.3, 0.7
SIZES = (40, 25, 33)


def different(seed=0, features=3):
    """Silos whose solutions differ."""
    rng = np.random.default_rng(seed)
    made = []
    for n in SIZES:
        x = rng.normal(size=(n, features))
        y = x @ rng.normal(size=features) + 0.1 * rng.normal(size=n)
        made.append({"x": x.astype(np.float32), "y": y.astype(np.float32)})
    return made, Problem(Objective(linear(features, 1, bias=False), squared()))


def trained(made, problem, *, weights=None, name="mr-mtl", rounds=5, clip=1e6, noise=0.0, who=None, **own):
    terms = {"step_size": STEP, "clip_norm": clip, "noise_multiplier": noise, "batch_size": None, "sampling": "full"}
    algorithm = find(name).build(problem, num_rounds=rounds, **terms, **own)
    params = problem.objective.init(jax.random.key(0))
    chosen = participation(len(made), who, weights)
    found = simulate(algorithm, params, enrol(made), key=jax.random.key(1), who=chosen, noise="each")
    own_models = None if found.personal is None else np.asarray(found.personal["linear"]["w"])[..., 0]
    return np.asarray(found.params["linear"]["w"])[:, 0], own_models


def moments(made):
    """Curvature and linear term of each silo's mean square loss."""
    tables = [(t["x"].astype(float), t["y"].astype(float)) for t in made]
    scale = float(jax.grad(lambda p: squared().value(p, jnp.zeros(1))[0])(jnp.ones((1, 1)))[0, 0])
    return [(scale * x.T @ x / len(y), scale * x.T @ y / len(y)) for x, y in tables]


def test_it_is_the_papers_recursion():
    """Silos say models there, and the server takes their mean."""
    made, problem = different()
    start = np.asarray(problem.objective.init(jax.random.key(0))["linear"]["w"], float)[:, 0]
    own, weights = [start] * 3, np.asarray(SIZES) / sum(SIZES)
    for _ in range(5):
        mean = weights @ np.stack(own)
        steps = [a @ w - b + STRENGTH * (w - mean) for (a, b), w in zip(moments(made), own, strict=True)]
        own = [w - STEP * step for w, step in zip(own, steps, strict=True)]
    mean, found = trained(made, problem, strength=STRENGTH, weights=list(SIZES))
    np.testing.assert_allclose(found, np.stack(own), atol=1e-5)
    np.testing.assert_allclose(mean, weights @ np.stack(own), atol=1e-5)


def test_without_noise_it_goes_to_the_optimum_of_all_models_together():
    made, problem = different()
    d, pull = 3, STRENGTH * (np.eye(3) - np.full((3, 3), 1 / 3))
    curvature, linear_term = np.kron(pull, np.eye(d)), np.zeros(3 * d)
    for i, (a, b) in enumerate(moments(made)):
        own = slice(i * d, (i + 1) * d)
        curvature[own, own] += a
        linear_term[own] = b
    _, found = trained(made, problem, strength=STRENGTH, rounds=300)
    np.testing.assert_allclose(found, np.linalg.solve(curvature, linear_term).reshape(3, d), atol=1e-4)


def test_the_mean_is_that_of_the_silos_models_with_clip_and_noise():
    made, problem = different()
    mean, found = trained(made, problem, strength=STRENGTH, clip=0.5, noise=2.0, rounds=20)
    np.testing.assert_allclose(mean, found.mean(axis=0), atol=1e-5)
    assert np.ptp(found, axis=0).max() > 0.1


def test_strength_zero_is_every_silo_alone():
    made, problem = different()
    _, found = trained(made, problem, strength=0.0)
    alone, _ = trained(made[1:2], problem, name="mb-sgd", output="last")
    np.testing.assert_allclose(found[1], alone, atol=1e-6)


def test_everyone_is_in_every_round():
    made, problem = different()
    every, some = (trained(made, problem, strength=STRENGTH, noise=1.0, who=who) for who in (None, 1))
    np.testing.assert_array_equal(every[1], some[1])


def test_what_cannot_be_is_refused():
    problem = different()[1]
    with pytest.raises(ValueError, match="strength=-1"):
        tacit.mr_mtl(step_size=1.0, num_rounds=1, strength=-1)(problem, Terms(1.0, 1.0, None, "full"))
    for channel in ("pairwise", "trusted", "shuffled-sum"):
        with pytest.raises(ValueError, match="direct channel"):
            tacit.mr_mtl(step_size=1.0, num_rounds=1)(problem, Terms(1.0, 1.0, None, "full", channel=channel))


@pytest.fixture(scope="module")
def fitted():
    """Two silos that answer the same question in opposite ways."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    silos = {"north": {"x": x, "y": (x[:, 0] > 0).astype(int)}, "south": {"x": x, "y": (x[:, 0] < 0).astype(int)}}
    problem = Problem(Objective(linear(2, 1), logistic()))
    recipe = tacit.mr_mtl(step_size=1.0, num_rounds=30, strength=0.1)
    return tacit.fit(problem, silos, recipe, budget=tacit.Budget(epsilon=4.0, delta=1e-5), clip_norm=1.0), silos


def test_fit_knows_whose_model_is_whose(fitted):
    result, silos = fitted
    assert [silo.price.epsilon <= 4.0 for silo in result.silos] == [True, True]
    for name, table in silos.items():
        assert result.of(name).evaluate(table["x"], table["y"])["accuracy"] > 0.9
    scores = result.scores(silos)
    by = [scores["silos"][name]["accuracy"] for name in silos]
    assert scores["all"]["accuracy"] == pytest.approx(np.mean(by))
    assert scores["all"]["accuracy"] > 0.9 > result.model.evaluate(silos["north"]["x"], silos["north"]["y"])["accuracy"]
    assert "2 silos with a model of its own" in repr(result.model)
    with pytest.raises(BundleError, match="did you mean 'north'"):
        result.of("nort")
    with pytest.raises(BundleError, match="all silos share"):
        result.of("north").of("north")


def test_a_bundle_has_the_models_of_all_silos_by_name(fitted, tmp_path):
    result, silos = fitted
    place = result.save(tmp_path / "bundle")
    again, x = load_model(place), silos["south"]["x"]
    for name in silos:
        np.testing.assert_array_equal(again.of(name).predict(x), result.of(name).predict(x))
    np.testing.assert_array_equal(again.predict(x), result.predict(x))
    assert "personal.safetensors" in (place / "README.md").read_text()
    again.of("south").save(place, overwrite=True)
    assert not (place / "personal.safetensors").exists()
    np.testing.assert_array_equal(load_model(place).predict(x), result.of("south").predict(x))


def test_a_damaged_file_of_models_is_refused(fitted, tmp_path):
    place = fitted[0].save(tmp_path / "bundle")
    good = (place / "personal.safetensors").read_bytes()
    for bad in (good[:20], good.replace(b"silos", b"other")):
        (place / "personal.safetensors").write_bytes(bad)
        with pytest.raises(BundleError, match="copy the bundle again"):
            load_model(place)


def test_a_study_measures_every_model_on_its_silos_records(tmp_path):
    tree = {
        "name": "own",
        "data": {"name": "heart-disease"},
        "objective": {"model": "linear", "loss": "logistic"},
        "algorithm": {"name": "mr-mtl", "step_size": 1.0, "num_rounds": 10, "clip_norm": 0.5, "strength": 0.5},
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "run": {"seeds": 1, "alone": False, "converged": False},
    }
    prepared = prepare(study_from(tree))
    result = run_prepared(prepared)
    objective, federation = prepared.builder.problem.objective, load("heart-disease")
    wrong = count = 0.0
    for i, silo in enumerate(federation.silos):
        own = jax.tree.map(lambda leaf, i=i: leaf[0, i], result.personal)
        wrong += float(objective.measure(own, silo.test)["error"]) * len(silo.test["y"])
        count += len(silo.test["y"])
    assert float(result.metrics["test_error"][0]) == pytest.approx(wrong / count, abs=1e-6)
    assert float(result.trace["test_error"][0, -1]) != pytest.approx(wrong / count, abs=1e-6)
    with pytest.raises(StudyError, match="makes one for each"):
        plan_tuning(study_from(tree), {"algorithm.step_size": [1.0, 2.0]})
