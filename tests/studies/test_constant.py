"""A model is held against one prediction for every record, and told so where it is not better."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.objectives import hinge, logistic, softmax, squared
from tacit.studies.constant import constant_label, constant_metrics, nothing_learnt
from tacit.studies.report import verdict, write_report


def result(mine, constant, metric="test_error", epsilon=1.0, std=0.0, loss=0.5, channel="direct"):
    return {
        "metrics": {metric: {"mean": mine, "std": std}, "test_loss": {"mean": loss, "std": 0.0}},
        "baselines": {"constant": {metric: {"mean": constant, "std": 0.0}, "test_loss": {"mean": 0.69, "std": 0.0}}},
        "silos": [{"epsilon": epsilon}],
        "channel": channel,
    }


def test_the_constant_comes_from_training_targets_and_is_measured_elsewhere():
    seeds = [
        {"train": {"y": np.array([1, 1, 0])}, "test": {"y": np.array([0, 1, 0, 0])}, "validation": {"y": np.array([])}},
        {"train": {"y": np.array([0, 0, 2])}, "test": {"y": np.array([0, 2, 1, 0])}, "validation": {"y": np.array([])}},
    ]
    found = constant_metrics(["error"], seeds)
    assert set(found) == {"train_error", "test_error"}
    np.testing.assert_allclose(found["test_error"], [0.75, 0.5])
    numbers = [{"train": {"y": np.array([1.0, 3.0])}, "test": {"y": np.array([2.0, 4.0])}}]
    np.testing.assert_allclose(constant_metrics(["mse", "coverage"], numbers)["test_mse"], [2.0])
    assert constant_metrics(["coverage"], numbers) == {}


@pytest.mark.parametrize(("mine", "said"), [(0.3, False), (0.4, True), (0.45, True)])
def test_a_model_that_is_not_better_is_told(mine, said):
    sentence = nothing_learnt(result(mine, 0.4), "test_error")
    assert (sentence is not None) is said
    if sentence is not None:
        assert "learnt nothing useful at this price" in sentence
        assert nothing_learnt(result(0.39, 0.4, std=0.02), "test_error").startswith(
            "The model is not clearly better than"
        )
        assert f"error is {mine:.3f}, and predicting the majority class for every record has 0.400" in sentence


@pytest.mark.parametrize(("std", "said"), [(0.04, False), (0.06, True), (0.2, True)])
def test_within_one_deviation_over_seeds_counts_as_nothing(std, said):
    sentence = nothing_learnt(result(0.35, 0.4, std=std), "test_error")
    assert (sentence is not None) is said
    assert not said or f"0.350 ± {std:.3f}" in sentence


@pytest.mark.parametrize(("loss", "said"), [(0.5, False), (0.7, True), (624.0, True), (float("nan"), True)])
def test_a_loss_above_that_of_the_constant_is_told_whatever_the_error(loss, said):
    sentence = nothing_learnt(result(0.3, 0.4, loss=loss), "test_error")
    assert (sentence is not None) is said
    assert not said or ("of no use at this price" in sentence and "0.690" in sentence)


def test_no_number_is_not_better_and_remedies_are_named():
    sentence = nothing_learnt(result(float("nan"), 0.4), "test_error")
    for remedy in ("clip_norm", "step_size", "privacy.epsilon", "fewer columns", "shuffled sum"):
        assert remedy in sentence
    assert "shuffled sum" not in nothing_learnt(result(0.5, 0.4, channel="shuffled-sum"), "test_error")


@pytest.mark.parametrize(
    ("loss", "outputs", "y", "least"),
    [
        (logistic(), 1, [1, 1, 1, 0], -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))),
        (squared(), 1, [1.0, 3.0], 0.5),
        (hinge(), 1, [1, 1, 1, 0], 0.5),
        (softmax(), 2, [1, 1, 1, 0] * 1000, -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))),
    ],
)
def test_the_loss_of_the_constant_is_the_least_of_one_output(loss, outputs, y, least):
    found = constant_metrics([], [{"train": {"y": np.array(y)}}], loss.value, outputs)
    np.testing.assert_allclose(found["train_loss"], [least], rtol=1e-4)


def test_the_words_fit_the_target_and_the_price():
    regression = result(0.5, 0.4, "test_mse", epsilon=None)
    assert constant_label(regression) == "always the mean target, no training"
    sentence = nothing_learnt(regression, "test_mse")
    assert "mean squared error" in sentence
    assert "at this price" not in sentence
    # What a server of a deployment knows: no targets at all.
    served = {**regression, "baselines": {"non_private": {}, "alone": {}}}
    assert constant_label(served) is None
    assert nothing_learnt(served, "test_mse") is None


def test_a_run_shows_the_row_and_says_when_nothing_was_learnt(tmp_path):
    terms = ["run.seeds=1", "algorithm.num_rounds=2", "run.alone=false", "algorithm.step_size=0.5"]
    options = [part for term in terms for part in ("--set", term)]

    def shown(epsilon, name):
        out = tmp_path / name
        command = ["run", "heart-disease", *options, "--set", f"privacy.epsilon={epsilon}", "--out", str(out)]
        done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        [folder] = out.iterdir()
        written = json.loads((folder / "not-private" / "result.json").read_text(encoding="utf-8"))
        return " ".join(done.output.split()), written, write_report(folder).read_text(encoding="utf-8")

    said, written, page = shown(1000, "good")
    constant = written["baselines"]["constant"]["test_error"]["mean"]
    assert 0 < written["metrics"]["test_error"]["mean"] < constant < 0.6
    for text in (said, page):
        assert "always the majority class, no training" in text
        assert f"{constant:.3f}" in text
        assert "± 0.000" not in text  # one seed has no deviation
        assert "learnt nothing useful" not in text
        assert "epsilon = 1000 promises little" in text
    said, written, page = shown(0.001, "useless")
    assert written["metrics"]["test_error"]["mean"] >= written["baselines"]["constant"]["test_error"]["mean"]
    for text in (said, page):
        assert "The model has learnt nothing useful at this price" in text


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (
            0.4,
            "Noise costs 0.100 of test error here: 0.400 with it, 0.300 in the same rounds without (one",
        ),
        (
            0.29,
            "nothing that shows here: test error is 0.290 with it, and 0.300 in the same rounds without",
        ),
        (0.25, "do better with noise than without"),
    ],
)
def test_the_verdict_calls_no_gain_a_cost(mine, words):
    found = result(mine, 0.5, std=0.02)
    found["baselines"] |= {"non_private": {"test_error": {"mean": 0.3, "std": 0.01}}, "alone": {}}
    (said,) = verdict(found, "test_error")
    assert words in said
    assert "cost -" not in said
    assert ("do better" in said) is (mine == 0.25)
