"""Mistakes at ``tacit predict``, ``evaluate`` and ``export`` end in one line that names the way out."""

import csv
import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.data.csv_silos import encoding_of, target_of
from tacit.data.schema import schema_from, schema_text
from tacit.errors import TacitError
from tacit.models import load_model
from tacit.objectives import Objective, linear, logistic
from tests.models.test_trained import SCHEMA, model_of


@pytest.fixture
def bundle(tmp_path):
    rules = schema_from(SCHEMA, "test")
    about = {"encoding": encoding_of(rules), "target": target_of(rules), "task": "binary"}
    return model_of(Objective(linear(6, 1), logistic()), (6,), **about).save(tmp_path / "bundle")


def called(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def refused(match, *arguments):
    done = called(*arguments)
    assert isinstance(done.exception, TacitError), done.output
    assert match in str(done.exception)


def file(tmp_path, text, name="rows.csv"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def test_mistakes_are_told(bundle, tmp_path):
    rows = file(tmp_path, "age,sex,town\n1,f,1\n")
    refused("No file at", "predict", bundle, tmp_path / "none.csv")
    refused("is not a bundle", "predict", tmp_path, rows)
    refused("no rows to predict", "predict", bundle, file(tmp_path, "age,sex,town\n", "empty.csv"))
    refused("column 'town'", "predict", bundle, file(tmp_path, "age,sex\n1,f\n", "short.csv"))
    refused("column 'ill', the label", "evaluate", bundle, rows)
    label = "l.csv, line 2: expected the label 'ill' to be one of no, yes, got 'perhaps'"
    refused(label, "evaluate", bundle, file(tmp_path, "age,sex,town,ill\n1,f,1,perhaps\n", "l.csv"))
    refused("there is no folder", "predict", bundle, rows, "--out", tmp_path / "none" / "predicted.csv")
    refused("did you mean 'town'", "predict", bundle, rows, "--keep", "towm")
    schema = file(tmp_path, schema_text(schema_from(SCHEMA, "test")), "schema.toml")
    refused("columns of its own", "predict", bundle, rows, "--schema", schema)


def test_what_was_done_to_cells_is_said_beside_the_predictions(bundle, tmp_path):
    rows = file(tmp_path, "town,age,sex,who\n1,200,f,me\n7,,m,you\n")
    done = called("predict", bundle, rows)
    assert done.stdout.splitlines()[0] == "prediction"
    assert len(done.stdout.splitlines()) == 3
    said = json.loads(called("predict", bundle, rows, "--json").stdout)
    assert said["notes"] == [
        "1 cell of 'age' missing: the middle of [0, 100]",
        "1 cell of 'age' outside [0, 100]: moved to its ends",
        "1 cell of 'town' not among its levels: zeros",
        "1 column not used: who",
    ]
    for note in said["notes"]:
        assert f"note: {note}" in done.stderr
    kept = list(csv.reader(called("predict", bundle, rows, "--keep", "who", "--proba").stdout.splitlines()))
    assert kept[0] == ["who", "prediction", "probability no", "probability yes"]
    assert [row[0] for row in kept[1:]] == ["me", "you"]
    assert all(float(row[2]) + float(row[3]) == pytest.approx(1.0) for row in kept[1:])
    assert max(len(row[2]) for row in kept[1:]) <= 10  # what float32 holds


def test_a_model_without_columns_takes_the_silos_schema(tmp_path):
    bundle = model_of(Objective(linear(6, 1), logistic()), (6,)).save(tmp_path / "bundle")
    rows = file(tmp_path, "age,sex,town\n1,f,1\n")
    refused("--schema", "predict", bundle, rows)
    schema = file(tmp_path, schema_text(schema_from(SCHEMA, "test")), "schema.toml")
    said = json.loads(called("predict", bundle, rows, "--schema", schema, "--json", "--proba").stdout)
    assert said["predictions"][0] == said["classes"][int(np.argmax(said["probabilities"][0]))]
    assert said["classes"] == ["no", "yes"]


def test_a_tuned_model_has_the_price_of_tuning(tmp_path):
    done = called(
        "tune",
        "heart-disease",
        "--grid",
        "algorithm.step_size=[4,8]",
        "--set",
        "algorithm.num_rounds=4",
        "--out",
        tmp_path,
        "--json",
    )
    assert done.exit_code == 0, done.output
    told = {silo["name"]: silo["epsilon"] for silo in json.loads(done.stdout)["silos"]}
    [run] = tmp_path.iterdir()
    privacy = load_model(run).description.privacy
    assert {silo.name: silo.epsilon for silo in privacy.silos} == told
    assert "model.npz" not in {path.name for path in run.iterdir()}


def test_a_silos_own_model_is_used_by_the_silos_name(bundle, tmp_path):
    shared = load_model(bundle)
    turned = jax.tree.map(np.negative, shared.params)
    place = replace(shared, personal={"north": turned, "south": shared.params}).save(tmp_path / "own")
    rows = file(tmp_path, "age,sex,town\n1,f,1\n90,m,3\n")
    told = {
        silo: json.loads(called("predict", place, rows, "--proba", "--json", *silo).stdout)["probabilities"]
        for silo in ((), ("--silo", "north"), ("--silo", "south"))
    }
    assert told[()] == told["--silo", "south"]
    np.testing.assert_allclose(np.asarray(told["--silo", "north"])[:, ::-1], told[()], atol=1e-6)
    refused("Unknown silo", "predict", place, rows, "--silo", "west")
    refused("all silos share", "predict", bundle, rows, "--silo", "north")
