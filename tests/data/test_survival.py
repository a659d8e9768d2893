"""Times and events in CSV files: what a schema says of them, what they become, and what is refused."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.counting.request import columns_of
from tacit.data.csv_silos import cells_of, encode_file, read_csv, strays, target_of
from tacit.data.dictionary import schema_of_dictionary
from tacit.data.federation import DataError
from tacit.data.schema import described_schema, schema_from
from tacit.deploy.descriptions import differences
from tacit.deploy.silo.consent import check_times
from tacit.deploy.wire import Description, RefusalError
from tacit.plans.spec import StudyError, load_study
from tacit.studies.federation import federation_of
from tests.deploy.silo.consortium import plan_of

TREE = {
    "target": {
        "column": "days",
        "low": 0.0,
        "high": 3650.0,
        "unit": "days",
        "event": "died",
        "event_levels": ["no", "yes"],
    },
    "columns": {
        "age": {"kind": "number", "low": 0.0, "high": 110.0},
        "sex": {"kind": "category", "levels": ["f", "m"]},
    },
}
SCHEMA = schema_from(TREE, "test")


def patients(seed: int, count: int) -> str:
    """A file of patients of whom the old die earlier; some are lost before."""
    rng = np.random.default_rng(seed)
    age, sex = rng.uniform(30, 90, count).round(), rng.choice(["f", "m"], count)
    time, lost = rng.exponential(4000 * np.exp(-(age - 60) / 12)), rng.uniform(500, 6000, count)
    rows = zip(age, sex, np.minimum(time, lost).round(), np.where(time < lost, "yes", "no"), strict=True)
    return "age,sex,days,died\n" + "".join(f"{a:g},{s},{t:g},{e}\n" for a, s, t, e in rows)


def read(tmp_path, *lines):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["died,days,age,sex", *lines]) + "\n")
    return read_csv(path)


def test_times_are_signed_shares_of_the_horizon(tmp_path):
    file = read(tmp_path, "yes,365,50,f", "no,365,50,f", "yes,3650,50,m", "yes,9999,50,m", "no,0,50,m")
    _, y = encode_file(file, SCHEMA)
    assert y.tolist() == pytest.approx([0.1, -0.1, -1.0, -1.0, -1e-4])
    assert (y.dtype, strays(file, SCHEMA)) == (np.float32, [])
    names = [own.facts["name"] for own in cells_of(file, SCHEMA)]
    assert names == [column["name"] for column in columns_of(SCHEMA.description())] == ["age", "sex", "days", "died"]
    assert cells_of(file, SCHEMA)[-1].values.tolist() == [1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("maybe,1,50,f", "'died' to be one of no, yes"),
        (",1,50,f", "'died' is missing"),
        ("yes,,50,f", "'days' is missing"),
        ("yes,-1,50,f", "a time of 0 or more"),
    ],
)
def test_a_record_without_a_time_or_an_event_is_named_by_its_line(tmp_path, line, words):
    with pytest.raises(DataError, match=f"line 3: .*{words}") as refused:
        encode_file(read(tmp_path, "no,1,50,f", line), SCHEMA)
    assert "maybe" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"low": 1.0}, "low=0"),
        ({"event": None}, "event and event_levels together"),
        ({"event": "days"}, "another column"),
        ({"event": "age"}, "cannot be a feature too"),
        ({"event_levels": ["yes", "yes"]}, "two different levels"),
        ({"classes": ["a", "b"], "low": None, "high": None, "unit": None}, "low=0"),
    ],
)
def test_a_schema_of_no_time_is_refused(changes, words):
    target = {key: value for key, value in {**TREE["target"], **changes}.items() if value is not None}
    with pytest.raises(DataError, match=words):
        schema_from({**TREE, "target": target}, "test")


def test_silos_must_agree_on_the_event():
    own = Description.model_validate(SCHEMA.description())
    assert target_of(described_schema(own.model_dump())) == target_of(SCHEMA)
    turned = {**TREE["target"], "event_levels": ["yes", "no"]}
    other = Description.model_validate(schema_from({**TREE, "target": turned}, "test").description())
    [line] = differences(other, own)
    assert "levels of the event" in line
    assert other.digest != own.digest


def test_a_silo_trains_hazards_on_times_of_events_and_nothing_else():
    told = Description.model_validate(SCHEMA.description())
    check_times(plan_of({"name": "mb-sgd"}, {"loss": "piecewise-exponential"}), told)
    check_times(plan_of({"name": "statistics"}), told)
    for objective in ({}, {"loss": "squared"}):
        with pytest.raises(RefusalError, match="time of an event"):
            check_times(plan_of({"name": "mb-sgd"}, objective), told)


def test_a_dictionary_marks_the_event(tmp_path):
    path = tmp_path / "dictionary.csv"
    lines = ["name,range,levels,unit,target,event", "age,0:110,,,,", "sex,,f|m,,,", "days,0:3650,,days,yes,"]
    path.write_text("\n".join([*lines, "died,,no|yes,,,yes"]) + "\n")
    assert schema_of_dictionary(path).target == SCHEMA.target
    path.write_text("\n".join([*lines[:-1], "days,0:3650,,days,yes,yes"]) + "\n")
    with pytest.raises(DataError, match="another column than the target"):
        schema_of_dictionary(path)


def called(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_from_files_to_predictions(tmp_path):
    """As a new user would: init, a curve, a study, and what the model says of new rows."""
    folder = tmp_path / "clinics"
    folder.mkdir()
    for seed, name in enumerate("ab"):
        (folder / f"{name}.csv").write_text(patients(seed, 300))
    known = ["--range", "days=0:3650", "--levels", "died=no,yes", "--range", "age=0:110", "--levels", "sex=f,m"]
    called("init", folder, "--target", "days", "--event", "died", *known, "--epsilon", "8")
    study = load_study(folder / "study.toml")
    assert study.objective.loss == "piecewise-exponential"
    told = json.loads(called("statistics", folder, "--survival", "days,died", "--epsilon", "4", "--json"))
    assert told["statistics"][0]["rows"]
    called(
        "run",
        folder / "study.toml",
        "--set",
        "run.seeds=1",
        "--set",
        "run.alone=false",
        "--model",
        tmp_path / "model",
        "--out",
        tmp_path,
    )
    (tmp_path / "new.csv").write_text("age,sex\n40,f\n80,f\n")
    said = json.loads(called("predict", tmp_path / "model", tmp_path / "new.csv", "--json"))
    young, old = said["predictions"]
    assert young < old, "relative risk"
    assert said["times"] == [730.0, 1460.0, 2190.0, 2920.0, 3650.0]
    lives = np.asarray(said["survival"])
    assert ((lives > 0) & (lives < 1)).all()
    assert (np.diff(lives, axis=1) < 0).all()
    # Proportional hazards: the logarithm of one curve is the relative risk times that of the other.
    np.testing.assert_allclose(np.log(lives[1]) / np.log(lives[0]), old / young, rtol=1e-5)
    text = called("predict", tmp_path / "model", tmp_path / "new.csv")
    assert text.splitlines()[0] == "prediction," + ",".join(f"survival at {t:g}" for t in said["times"])
    metrics = json.loads(called("evaluate", tmp_path / "model", folder / "a.csv", "--json"))["metrics"]
    assert metrics["records"] == 300
    assert metrics["concordance"] > 0.6
    wrong = load_study(folder / "study.toml", ["objective.loss=squared"])
    with pytest.raises(StudyError, match="time of an event"):
        federation_of(wrong, 0)


def test_a_silo_counts_nothing_that_may_be_negative_by_its_schema():
    tree = {"target": {"column": "visits", "low": 0.0, "high": 50.0}, "columns": TREE["columns"]}
    for low, refused in ((0.0, False), (-5.0, True)):
        told = Description.model_validate(
            schema_from({**tree, "target": {**tree["target"], "low": low}}, "test").description()
        )
        plan = plan_of({"name": "mb-sgd"}, {"loss": "poisson"})
        if refused:
            with pytest.raises(RefusalError, match="the range of visits begins at -5"):
                check_times(plan, told)
        else:
            check_times(plan, told)
