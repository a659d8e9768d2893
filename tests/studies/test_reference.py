"""The quoted reference is the optimum: scikit-learn finds the same on the same features."""

import os

import jax
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, QuantileRegressor

from tacit.data import DataError
from tacit.plans.spec import load_study, study_names
from tacit.studies.reference import RIDGE, Reference
from tacit.studies.report import main_metric, score_tables, verdict
from tacit.studies.run import ALL_SILOS, pooled, prepare, run

CONVEX = [
    name
    for name in study_names()
    if load_study(name).objective.model == "linear"
    and load_study(name).algorithm.name != "steffle"
    and load_study(name).objective.loss != "piecewise-exponential"
]


UNITS = {"private": 37.5, "non_private": 35.0, "converged": 34.0}
FEWER = {"mnist-mu2": ["partition.records_per_silo=100", "algorithm.num_rounds=50"]}
"""The whole study takes minutes."""


def trained(study, *, part="train"):
    """The study, its reference on the pooled records of the first seed, and these records."""
    prepared = prepare(study)
    federation = prepared.federations[0]
    records = pooled(federation, part, prepared.builder.entry.reads_attribute)
    start = prepared.builder.problem.objective.init(jax.random.key(1))
    reference = Reference(study, prepared.builder, federation, max(prepared.records))
    return prepared, reference.train(start, records, jax.random.key(0)), records


def measured(prepared, params, part="test"):
    found = prepared.builder.problem.objective.measure(params, pooled(prepared.federations[0], part))
    return {name: float(value) for name, value in found.items()}


def optimum(prepared, params, records, test):
    """Test error, or mean squared error, of scikit-learn's model of the same objective."""
    if prepared.federations[0].task == "regression":
        return np.mean((LinearRegression().fit(records["x"], records["y"]).predict(test["x"]) - test["y"]) ** 2)
    strength, objective = RIDGE, prepared.builder.problem.objective
    if prepared.study.objective.regulariser != "zero":
        # A ball is a ridge of the strength at which the gradient at its edge is pulled back.
        flat = jax.flatten_util.ravel_pytree
        slope = flat(jax.grad(lambda w: objective.losses(w, records).mean())(params))[0]
        point = flat(params)[0]
        strength = max(float(-slope @ point / (point @ point)), RIDGE)
    model = LogisticRegression(C=1 / (strength * len(records["y"])), max_iter=300, tol=1e-5)
    return 1 - model.fit(records["x"], records["y"]).score(test["x"], test["y"])


def test_the_studies_that_ship_have_convex_ones():
    assert {"heart-disease", "insurance-linear", "mnist-logistic-parity", "mnist-mu2"} <= set(CONVEX)


@pytest.mark.parametrize("name", CONVEX)
def test_without_privacy_is_the_optimum_of_scikit_learn(name):
    try:
        prepared, reached, records = trained(load_study(name, ["run.seeds=1", *FEWER.get(name, [])]))
    except DataError as error:
        if os.environ.get("TACIT_DATA"):
            raise
        pytest.skip(str(error))
    found = measured(prepared, reached.params)
    best = optimum(prepared, reached.params, records, pooled(prepared.federations[0], "test"))
    assert abs(found.get("error", found.get("mse")) - best) <= 0.01
    if "mse" in found:
        assert found["mse"] == pytest.approx(best, rel=0.01)  # targets lie within one


def test_without_privacy_is_the_optimum_of_survival_regression():
    """A subject in a bin is a row of a Poisson regression, weighted by the time that it was watched there."""
    prepared, reached, records = trained(load_study("tcga-brca", ["run.seeds=1"]))
    bins = len(reached.params["linear"]["b"])
    starts, time = np.arange(bins) / bins, np.abs(np.asarray(records["y"], float))[:, None]
    watched = np.clip(time - starts, 0, 1 / bins)
    event = (time >= starts) & (time < starts + 1 / bins) & (np.asarray(records["y"])[:, None] > 0)
    rows, cells = np.nonzero(watched > 0)
    x = np.concatenate([np.asarray(records["x"], float)[rows], np.eye(bins)[cells]], axis=1)
    rate, weight = event[rows, cells] / watched[rows, cells], watched[rows, cells]
    alpha = RIDGE * len(records["y"]) / weight.sum()
    model = PoissonRegressor(alpha=alpha, fit_intercept=False, solver="newton-cholesky", tol=1e-9, max_iter=500)
    model.fit(x, rate, sample_weight=weight)
    least = np.sum(weight * np.exp(x @ model.coef_) - event[rows, cells] * (x @ model.coef_)) / len(records["y"])
    assert measured(prepared, reached.params, "train")["loss"] == pytest.approx(least, abs=1e-3)


def test_the_reference_is_nowhere_near_thirty_steps():
    """The rounds of a bad schedule are not what is called without privacy."""
    slow = ["run.seeds=1", "run.alone=false", "algorithm.step_size=0.01"]
    found = run(load_study("heart-disease", slow))
    records = {part: pooled(found.prepared.federations[0], part) for part in ("train", "test")}
    best = optimum(found.prepared, None, records["train"], records["test"])
    assert found.converged["test_error"][0] == pytest.approx(best, abs=0.01)
    assert found.converged["train_loss"][0] < found.non_private["train_loss"][0] - 0.1


def test_a_loss_with_kinks_reaches_its_optimum():
    study = load_study("insurance-linear", ["run.seeds=1", "objective.loss=pinball", "objective.quantile=0.5"])
    prepared, reached, records = trained(study)
    model = QuantileRegressor(quantile=0.5, alpha=0).fit(records["x"], records["y"])
    least = np.mean(np.abs(model.predict(records["x"]) - records["y"])) / 2
    assert least - 1e-4 <= measured(prepared, reached.params, "train")["loss"] <= least + 0.002


@pytest.mark.parametrize("penalty", ["l1:0.01", "squared-l2:0.05", "l2-ball:1.5"])
def test_a_regulariser_is_part_of_the_reference(penalty):
    """No point near the end has a smaller objective, by hundreds of small proximal steps from there."""
    from tacit.theory import gradient_mapping, proximal_descent, risk

    study = load_study("heart-disease", ["run.seeds=1", f"objective.regulariser={penalty}"])
    prepared, reached, records = trained(study)
    problem = prepared.builder.problem
    after = proximal_descent(problem, reached.params, records, 1.0 / problem.smoothness, 2000)
    assert float(risk(problem, reached.params, records)) <= float(risk(problem, after, records)) + 1e-4
    assert float(gradient_mapping(problem, reached.params, records, 1.0 / problem.smoothness)) < 0.01


def test_a_separable_silo_has_an_optimum():
    """Where classes can be told apart, plain logistic regression has none, and the loss on others has no bound."""
    found = run(load_study("heart-disease", ["run.seeds=3"]))
    for values in found.alone.values():
        assert np.isfinite(values["test_loss"]).all()
        assert values["test_loss"].max() < 50
    again = run(load_study("heart-disease", ["run.seeds=3"]))
    np.testing.assert_array_equal(again.alone["switzerland"]["test_error"], found.alone["switzerland"]["test_error"])


def test_a_network_is_trained_until_it_no_longer_learns():
    study = load_study("breast-cancer-mlp", ["run.seeds=1", "run.alone=false"])
    found = run(study)
    assert found.converged["test_error"][0] < 0.08
    # Stopped where records that it does not train on say so; the rounds of the study go no further down.
    assert found.converged["train_loss"][0] < 1.05 * found.non_private["train_loss"][0]
    assert found.reference["rule"].startswith("until the loss on a tenth")
    np.testing.assert_array_equal(run(study).converged["test_error"], found.converged["test_error"])


def test_the_sentences_follow_from_both_rows():
    def row(mean):
        return {"test_error": {"mean": mean, "std": 0.0}}

    result = {
        "metrics": row(0.5),
        "baselines": {"non_private": row(0.471), "converged": row(0.059), "alone": {}},
        "silos": [{"epsilon": 1.0}],
        "reference": {"rule": "until it ends"},
        "gains": {name: {"gain": {"mean": gain, "std": 0.0}} for name, gain in (("a", 0.1), ("b", -0.1))},
    }
    privacy, schedule, gain = verdict(result, main_metric(result["metrics"]))
    assert privacy.startswith("Noise costs 0.029 of test error here: 0.500 with it, 0.471 in the same")
    assert schedule.startswith(
        "Clip and schedule cost 0.412 of test error: 0.471 after these rounds without noise, 0.059"
    )
    assert "at 1 of 2 silos. Not better: b." in gain
    result["silos"][0]["epsilon"] = None
    assert verdict(result, "test_error")[0].startswith("The schedule costs")
    result["baselines"]["converged"] = {}
    assert "schedule" not in " ".join(verdict(result, "test_error"))


def test_the_rounds_without_noise_keep_their_clip():
    """With next to no noise they are the private rounds; steps for clipped gradients are too long for others."""
    short = ["algorithm.clip_norm=0.02", "algorithm.step_size=100", "run.alone=false", "run.converged=false"]
    found = run(load_study("heart-disease", ["run.seeds=1", "privacy.epsilon=1e6", *short]))
    np.testing.assert_allclose(found.non_private["train_loss"], found.metrics["train_loss"], rtol=1e-3)


def test_a_number_is_told_in_its_own_unit():
    scores = {name: {"all": {"rmse": {"mean": mean, "std": 0.0}}} for name, mean in UNITS.items()}
    result = {
        "metrics": {"test_mse": {"mean": 0.009, "std": 0.0}},
        "baselines": {"non_private": {"test_mse": {"mean": 0.008, "std": 0.0}}},
        "silos": [{"epsilon": 1.0}],
        "reference": {"rule": "until it ends"},
        "scores": {"target": "wage", "models": scores},
    }
    noise, schedule = verdict(result, "test_mse")
    assert noise.startswith("Noise costs 2.500 of the RMSE of wage here: 37.500 with it, 35.000 in the same rounds")
    assert "cost 1.000 of the RMSE of wage: 35.000 after these rounds without noise, 34.000 trained on all" in schedule


@pytest.mark.parametrize(
    ("names", "numbered"),
    [
        ([f"a long name {i}" for i in range(9)], True),
        (["no", "yes"], False),
        ([f"a long name {i}" for i in range(12)], False),
    ],
)
def test_classes_whose_names_do_not_fit_have_numbers_in_the_confusion(names, numbered):
    models = {"private": {"all": {"classes": {name: {} for name in names}}, "silos": {}}}
    told = score_tables({"scores": {"models": models}, "silos": [{"noise_multiplier": {}}]})
    assert told["by_number"] is numbered


def test_each_silo_is_told_what_it_gains():
    found = run(load_study("heart-disease", ["run.seeds=2"]))
    assert list(found.gains) == found.prepared.names
    tests = [federation.silos[0].test for federation in found.prepared.federations]
    measure = found.prepared.builder.problem.objective.measure
    models = [jax.tree.map(lambda leaf, s=s: leaf[s], found.params) for s in range(2)]
    right = [float(measure(model, test)["error"]) for model, test in zip(models, tests, strict=True)]
    np.testing.assert_allclose(found.gains["cleveland"]["together"], right)
    assert ALL_SILOS not in found.alone
