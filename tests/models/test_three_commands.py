"""From a folder of CSV files to predictions on new rows: init, run, predict. Two classes, ten classes, a number."""

import csv
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn import datasets
from typer.testing import CliRunner

import tacit
from tacit.cli import app

NAMES = ("bergen", "oslo")
QUICK = ("--set", "run.seeds=1", "--set", "run.alone=false", "--set", "algorithm.num_rounds=20")
SETS = {
    "breast cancer": (datasets.load_breast_cancer, ("malignant", "benign"), 0.8),
    "digits": (datasets.load_digits, tuple("0123456789"), 0.6),
    "diabetes": (datasets.load_diabetes, None, None),
}


def write(path: Path, header: list[str], rows: list[list]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def called(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, f"{arguments}\n{done.output}\n{done.exception!r}"
    return done.stdout


@pytest.fixture(scope="module", params=SETS)
def world(request, tmp_path_factory):
    """Two silos' files, new rows with their labels apart, and the folder of a run."""
    load, classes, least = SETS[request.param]
    root = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    bunch = load(scaled=False) if classes is None else load()
    names = [f"c{i}" for i in range(bunch.data.shape[1])]
    labels = [float(y) if classes is None else classes[int(y)] for y in bunch.target]
    order = np.random.default_rng(0).permutation(len(labels))
    rows = [[*(float(v) for v in bunch.data[i]), labels[i]] for i in order]
    held, rest = rows[:60], rows[60:]
    (root / "silos").mkdir()
    for place, name in enumerate(NAMES):
        write(root / "silos" / f"{name}.csv", [*names, "outcome"], rest[place::2])
    write(root / "labelled.csv", [*names, "outcome"], held)
    # New rows have other columns first, and no label.
    write(root / "new.csv", names[::-1], [row[:-1][::-1] for row in held])
    ranges = [f"--range=c{i}={low:g}:{high:g}" for i, (low, high) in enumerate(spans(bunch.data))]
    target = "--range=outcome=0:350" if classes is None else f"--levels=outcome={','.join(classes)}"
    called("init", str(root / "silos"), "--target", "outcome", target, *ranges, "--epsilon", "8")
    called("run", str(root / "silos" / "study.toml"), "--out", str(root / "runs"), *QUICK)
    [run] = (root / "runs").iterdir()
    return root, run, classes, least, [row[-1] for row in held]


def spans(data: np.ndarray) -> list[tuple[float, float]]:
    """Ranges that an owner would know; a column that never changes has one too."""
    low, high = data.min(axis=0), data.max(axis=0)
    return list(zip(low.tolist(), np.where(high > low, high, low + 1).tolist(), strict=True))


def test_three_commands_from_files_to_predictions(world):
    root, run, classes, least, labels = world
    called("predict", str(run), str(root / "new.csv"), "--out", str(root / "predicted.csv"))
    with (root / "predicted.csv").open(encoding="utf-8") as file:
        found = [row["prediction"] for row in csv.DictReader(file)]
    assert len(found) == 60
    if classes is None:
        spread = np.abs(np.array(found, float) - np.array(labels)).mean()
        assert spread < np.abs(np.mean(labels) - np.array(labels)).mean()
        assert min(map(float, found)) > 25
        assert max(map(float, found)) < 400
    else:
        assert set(found) <= set(classes)
        assert np.mean(np.array(found) == np.array(labels)) > least


def test_evaluate_equals_what_predictions_say(world):
    root, run, classes, _, labels = world
    said = json.loads(called("evaluate", str(run), str(root / "labelled.csv"), "--json"))
    assert said["private"] is False
    assert "no epsilon covers" in said["says"]
    predicted = json.loads(called("predict", str(run), str(root / "new.csv"), "--json"))["predictions"]
    if classes is None:
        expected = float(np.sqrt(np.mean((np.array(predicted) - np.array(labels)) ** 2)))
        assert said["metrics"]["rmse"] == pytest.approx(expected)
        assert said["metrics"]["rmse"] < said["metrics"]["mean_rmse"]
    else:
        assert said["metrics"]["accuracy"] == pytest.approx(np.mean([str(p) for p in predicted] == np.array(labels)))
        assert said["metrics"]["accuracy"] > said["metrics"]["majority_accuracy"]
    assert "no epsilon covers it" in called("evaluate", str(run), str(root / "labelled.csv"))


def test_probabilities_are_of_the_classes_in_order(world):
    root, run, classes, _, _ = world
    if classes is None:
        done = CliRunner().invoke(app, ["predict", str(run), str(root / "new.csv"), "--proba"])
        assert isinstance(done.exception, tacit.models.BundleError)
        return
    said = json.loads(called("predict", str(run), str(root / "new.csv"), "--proba", "--json"))
    assert said["classes"] == list(classes)
    shares = np.array(said["probabilities"])
    assert np.allclose(shares.sum(axis=1), 1)
    assert [classes[i] for i in shares.argmax(axis=1)] == [str(p) for p in said["predictions"]]
    head = called("predict", str(run), str(root / "new.csv"), "--proba").splitlines()[0]
    assert head == ",".join(["prediction", *(f"probability {name}" for name in classes)])


def test_a_bundle_that_was_moved_predicts_the_same_bytes_in_a_fresh_process(world, tmp_path):
    root, run, classes, _, _ = world
    proba = "" if classes is None else "; p = m.predict_proba(rows); print(hashlib.sha256(p.tobytes()).hexdigest())"
    code = (
        "import hashlib, sys, tacit; m = tacit.load_model(sys.argv[1]); rows = sys.argv[2]; "
        f"print(hashlib.sha256(m.predict(rows).tobytes()).hexdigest()){proba}"
    )
    shutil.copytree(run / "model", tmp_path / "elsewhere" / "bundle")
    shutil.copy(root / "new.csv", tmp_path / "elsewhere" / "rows.csv")
    command = [sys.executable, "-c", code, "bundle", "rows.csv"]
    away = subprocess.run(command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=True)
    model = tacit.load_model(run)
    here = [model.predict(root / "new.csv")] + ([] if classes is None else [model.predict_proba(root / "new.csv")])
    assert away.stdout.split() == [hashlib.sha256(values.tobytes()).hexdigest() for values in here]


def test_the_weights_are_read_without_tacit(world):
    root, run, classes, _, _ = world
    tensors = load_file(run / "model" / "model.safetensors")
    assert set(tensors) == {"linear.w", "linear.b"}
    model = tacit.load_model(run)
    x = model.encode(root / "new.csv").x
    outputs = x @ tensors["linear.w"] + tensors["linear.b"]
    assert np.allclose(outputs, model.outputs(x), atol=1e-5)
    about = json.loads((run / "model" / "model.json").read_text(encoding="utf-8"))
    assert about["target"].get("classes") == ([] if classes is None else list(classes))
    assert {silo["name"] for silo in about["privacy"]["silos"]} == set(NAMES)
    assert all(0 < silo["epsilon"] <= 8 for silo in about["privacy"]["silos"])
    assert about["privacy"]["guarantee"].startswith("ISRL-DP")
    assert about["training"]["tacit"] == tacit.__version__
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "| bergen |" in card
    assert "outcome" in card
