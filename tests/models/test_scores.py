"""Scores are scikit-learn's, in the target's own unit, and lie apart from what may be published."""

import csv
import io
import json
import shutil
import subprocess

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from sklearn import metrics
from typer.testing import CliRunner

import tacit
from tacit.cli import app, print_table
from tacit.data import load
from tacit.models.scores import averaged, class_scores, in_unit, number_scores, outputs_of
from tacit.objectives import Objective, hinge, linear, logistic, softmax
from tacit.plans.spec import load_study
from tacit.studies import folder as folders
from tacit.studies import run as run_module
from tacit.studies.folder import new_folder, write
from tacit.studies.plan import plan_of
from tacit.studies.report import write_report
from tacit.studies.run import pooled, prepare, run

SMALL = ["run.seeds=2", "algorithm.num_rounds=6"]


@pytest.fixture(scope="module")
def result():
    return run(load_study("heart-disease", SMALL))


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    found = new_folder(tmp_path_factory.mktemp("runs"), result.prepared.study)
    write(result, found)
    return found


def test_scores_of_classes_are_those_of_scikit_learn(result):
    [row] = [row for row in result.scores if (row.model, row.seed, row.silo) == ("private", 0, "")]
    test = pooled(result.prepared.federations[0], "test")
    weights = {name: leaf[0] for name, leaf in result.params["linear"].items()}
    logit = test["x"].astype(float) @ weights["w"][:, 0] + weights["b"][0]
    chance = 1 / (1 + np.exp(-logit))
    assert row.values["accuracy"] == metrics.accuracy_score(test["y"], logit > 0)
    assert 1 - row.values["accuracy"] == pytest.approx(result.metrics["test_error"][0])
    assert row.values["auc"] == pytest.approx(metrics.roc_auc_score(test["y"], chance), abs=1e-6)
    assert row.values["log_loss"] == pytest.approx(result.metrics["test_loss"][0], abs=1e-5)
    assert row.values["confusion"] == metrics.confusion_matrix(test["y"], logit > 0).tolist()
    assert row.values["classes"]["ill"]["recall"] == pytest.approx(metrics.recall_score(test["y"], logit > 0))
    assert row.values["classes"]["ill"]["records"] == test["y"].sum()


def test_silos_have_scores_of_their_own(result):
    names = {row.silo for row in result.scores if row.model == "private"}
    assert names == {"", *result.prepared.names}
    assert {row.model for row in result.scores} == {"private", "non_private", "converged"}
    counts = [row.values["records"] for row in result.scores if row.model == "private" and row.seed == 0]
    assert counts[0] == sum(counts[1:])


def test_calibration_is_zero_for_right_chances_and_not_for_wrong_ones():
    generator = np.random.default_rng(0)
    logit = generator.normal(size=200_000) * 2
    y = (generator.random(200_000) < 1 / (1 + np.exp(-logit))).astype(int)
    right = class_scores(logit[:, None], y, ["no", "yes"], True)
    sure = class_scores(4 * logit[:, None], y, ["no", "yes"], True)
    assert right["calibration_error"] < 0.005
    assert sure["calibration_error"] > 0.1
    assert right["auc"] == pytest.approx(sure["auc"])
    assert sum(row["records"] for row in right["reliability"]) == 200_000


def test_several_classes_and_a_class_that_is_missing():
    generator = np.random.default_rng(1)
    outputs, y = generator.normal(size=(300, 3)), generator.integers(0, 2, 300)
    found = class_scores(outputs, y, ["a", "b", "c"], True)
    assert found["classes"]["c"]["recall"] is None
    assert found["classes"]["c"]["auc"] is None
    assert np.shape(found["confusion"]) == (3, 3)
    likely = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, likely, labels=[0, 1, 2]))
    assert found["auc"] == pytest.approx(np.mean([found["classes"][k]["auc"] for k in "ab"]))
    only = class_scores(outputs, np.zeros(300, int), ["a", "b", "c"], True)
    assert only["auc"] is None


def test_a_hinge_gives_no_probabilities():
    found = class_scores(np.array([[-1.0], [2.0]]), np.array([0, 1]), ["no", "yes"], False)
    assert found["auc"] == 1.0
    assert "log_loss" not in found
    tables = [{"x": np.eye(4, dtype=np.float32), "y": np.array([0, 1, 1, 0])}]
    for loss, outputs, probable in ((logistic(), 1, True), (softmax(), 3, True), (hinge(), 1, False)):
        problem = tacit.Problem(Objective(linear(4, outputs), loss))
        with pytest.warns(UserWarning, match="4 training records"):
            fit = tacit.fit(problem, tables, tacit.mb_sgd(step_size=1.0, num_rounds=1), budget=None)
        # Of three outputs the third is a class of the model, also where no record has it.
        found = fit.scores(tables)["all"]
        assert ("log_loss" in found) == probable
        assert found == fit.evaluate(tables[0]["x"], tables[0]["y"])


def test_numbers_are_in_the_unit_of_the_target():
    generator = np.random.default_rng(2)
    y = generator.random(50)
    outputs = (y + 0.1 * generator.normal(size=50))[:, None]
    found = number_scores(in_unit(outputs[:, 0], (1000.0, 5000.0)), in_unit(y, (1000.0, 5000.0)))
    own, guess = 1000 + 4000 * y, 1000 + 4000 * outputs[:, 0]
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(own, guess))
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(own, guess))
    assert found["r2"] == pytest.approx(metrics.r2_score(own, guess))
    assert found["mean_rmse"] == pytest.approx(metrics.root_mean_squared_error(own, np.full(50, own.mean())))
    assert number_scores(outputs[:1, 0], y[:1])["r2"] is None
    assert number_scores(np.full(2, np.nan), y[:2])["rmse"] is None


def test_a_fit_scores_itself():
    hospitals = load("heart-disease")
    problem = tacit.Problem(Objective(linear(*hospitals.feature_shape, 1), logistic()))
    fit = tacit.fit(problem, hospitals, tacit.mb_sgd(step_size=4.0, num_rounds=5), budget=None)
    found = fit.scores(hospitals)
    test = np.concatenate([silo.test["y"] for silo in hospitals.silos])
    assert found["all"]["records"] == len(test)
    assert list(found["silos"]) == [silo.name for silo in hospitals.silos]
    tables = [silo.test for silo in hospitals.silos]
    assert fit.scores(tables)["all"]["accuracy"] == found["all"]["accuracy"]
    outputs = outputs_of(problem.objective.model, fit.params, tables[0]["x"])
    assert found["silos"]["cleveland"]["accuracy"] == np.mean((outputs[:, 0] > 0) == tables[0]["y"])


def test_seeds_are_averaged_and_counts_are_added():
    one = {"auc": 0.5, "confusion": [[1, 2], [3, 4]], "classes": {"a": {"recall": None}}}
    two = {"auc": None, "confusion": [[1, 0], [0, 1]], "classes": {"a": {"recall": 0.25}}}
    found = averaged([one, two])
    assert found["auc"] == {"mean": 0.5, "std": 0.0}
    assert found["confusion"] == [[2, 2], [3, 5]]
    assert found["classes"]["a"]["recall"]["mean"] == 0.25


def test_the_folder_keeps_what_was_measured_apart(folder, result):
    apart = folder / "not-private"
    assert "No epsilon covers it" in (apart / "README.md").read_text()
    with (apart / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["silo"] for row in rows} == {"all", *result.prepared.names}
    assert {"accuracy", "auc", "ill.recall", "confusion.1.0", "calibration_error"} <= {row["score"] for row in rows}
    whole = json.loads((apart / "result.json").read_text())
    assert whole["scores"]["models"]["private"]["all"]["auc"]["mean"] > 0.5
    assert set(whole["baselines"]) >= {"non_private", "converged", "alone"}
    # What is measured is in that folder and nowhere else.
    measured = [f"{value:.6g}"[:7] for value in result.metrics["test_loss"]] + [f"{result.metrics['test_loss'].mean()}"]
    for path in folder.iterdir():
        if path.suffix in (".json", ".toml", ".csv", ".html"):
            assert not any(number in path.read_text() for number in measured), path


def test_a_published_page_has_nothing_that_was_measured(folder, tmp_path):
    run_folder = tmp_path / "run"
    shutil.copytree(folder, run_folder)
    found = CliRunner().invoke(app, ["report", str(run_folder), "--publish"])
    assert found.exit_code == 0, found.exception
    page = (run_folder / "published.html").read_text()
    assert found.stdout.strip() == str(run_folder / "published.html")
    assert "What is left out" in page
    for absent in (
        "How well it works",
        "Confusion",
        "Clip and schedule cost",
        "test_error",
        "Test error",
        "AUC",
        "Reliability",
    ):
        assert absent not in page
    assert "largest epsilon" in page
    # The page can be written where the folder of what was measured is not: it never reads from there.
    shutil.rmtree(run_folder / "not-private")
    write_report(run_folder, publish=True)
    whole = write_report(folder).read_text()
    for present in ("How well it works", "Clip and schedule cost", "AUC", "Reliability", "gain by training together"):
        assert present in whole


def test_cells_know_their_headings(folder):
    page = write_report(folder).read_text()
    assert '<td data-head="epsilon">1.000</td>' in page
    assert page.count("<td>") == 0


@pytest.mark.parametrize("width", [80, 50, 30])
def test_a_table_is_never_cut(width):
    cells = ["0.206 ± 0.027", "1098.214 ± 2998.064", "1.0e-05", "gradient 20.434, difference 1234.500"]
    table = Table("who trains", *(f"test thing number {i}" for i in range(7)), title="scores")
    table.add_row("all silos, these rounds, no noise", *cells, *cells[:3])
    table.add_row("Universitätsklinikum", *cells, *cells[:3])
    out = io.StringIO()
    print_table(table, Console(file=out, width=width))
    text = out.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for cell in ("0.206 ± 0.027", "1098.214 ± 2998.064", "1.0e-05", "20.434,", "1234.500"):
        assert text.count(cell) >= 2, text


def test_a_silo_with_two_records_is_warned_about(tmp_path):
    prepared = prepare(load_study("heart-disease", SMALL))
    assert prepared.plan.warnings == []
    few = plan_of(
        prepared.study,
        prepared.builder,
        prepared.names,
        [2, 205, 86, 140],
        run_module._record(prepared.federations[0]),
        (),
    )
    assert any("cleveland has 2 training records" in line for line in few.warnings)
    tables = [{"x": np.eye(3, dtype=np.float32)[:n], "y": np.arange(n, dtype=np.int32) % 2} for n in (2, 3)]
    problem = tacit.Problem(Objective(linear(3, 1), logistic()))
    with pytest.warns(UserWarning, match="silo 0 has 2 training records, silo 1 has 3"):
        tacit.fit(problem, tables, tacit.mb_sgd(step_size=1.0, num_rounds=1), budget=None)


def test_provenance_names_the_revision_of_tacit_and_not_of_the_users_repository(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "folder.py").write_text("installed here\n")
    (tmp_path / "own.txt").write_text("mine\n")
    for words in (
        ("init", "-q"),
        ("add", "own.txt"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"),
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    theirs = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.strip()
    found = folders._revision(tmp_path / "lib")
    assert found is None or not found.startswith(theirs[:7])
    commit = "0123456789abcdef0123456789abcdef01234567"

    class Installed:
        def read_text(self, name):
            return json.dumps({"url": "x", "vcs_info": {"vcs": "git", "commit_id": commit}})

    monkeypatch.setattr(folders, "distribution", lambda name: Installed())
    assert folders._revision(tmp_path / "lib") == commit[:12]
    assert "tacit_revision" in folders.provenance("x")
