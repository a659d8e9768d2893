"""A run that is stopped goes on to the same end, and shows where it is; finished runs can be logged to MLflow."""

import json
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tacit.cli import app
from tacit.cli.live import RunView
from tacit.errors import TacitError
from tacit.plans.spec import load_study
from tacit.simulate.compiled import Stage
from tacit.simulate.participation import participation, roster
from tacit.simulate.program import Carry
from tacit.studies import stages
from tacit.studies.folder import new_folder, stages_of, start, write
from tacit.studies.report import write_report
from tacit.studies.run import prepare, run_prepared
from tacit.studies.stages import Sight
from tacit.studies.tracking import log_run

GRID = 'run.grid={"algorithm.step_size"=[1.0, 2.0]}'
SMALL = ["run.seeds=2", "run.alone=false", "algorithm.num_rounds=20", "run.measure_every=4", "run.participants=3", GRID]


@pytest.fixture(scope="module")
def prepared():
    return prepare(load_study("heart-disease", SMALL))


@pytest.fixture(scope="module")
def whole(prepared):
    seen: list[Sight] = []
    return run_prepared(prepared, seen.append), seen


def test_the_sights_tell_rounds_loss_and_what_has_been_spent(prepared, whole):
    result, seen = whole
    training = [sight for sight in seen if sight.label == "training"]
    assert [sight.done for sight in training] == list(range(2, 21, 2))
    assert training[0].loss is None
    np.testing.assert_allclose(training[-1].loss, result.metrics["train_loss"].mean(), rtol=1e-6)
    spent = [sight.epsilon for sight in training if sight.epsilon is not None]
    assert spent == sorted(spent)
    assert spent[-1] == max(result.epsilon_spent) < max(silo.price.epsilon for silo in prepared.plan.silos)
    grid = [sight for sight in seen if sight.label == "grid"]
    assert grid[-1].loss.shape == (2,)
    assert all(sight.epsilon is None for sight in seen if sight.label != "training")


def test_a_stopped_run_goes_on_to_the_same_result_and_no_other(prepared, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "_PATIENCE", 0.0)
    stopped, played = ("these rounds, no noise", 12), []

    def stop(sight: Sight) -> None:
        if (sight.label, sight.done) == stopped:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_prepared(prepared, stop, tmp_path)
    again = run_prepared(prepared, lambda sight: played.append((sight.label, sight.done)), tmp_path)
    assert played[0] == stopped
    for name, values in whole[0].trace.items():
        np.testing.assert_array_equal(again.trace[name], values)
    for name, values in whole[0].non_private.items():
        np.testing.assert_array_equal(again.non_private[name], values)
    assert again.grid == whole[0].grid

    with pytest.raises(TacitError, match="another study"):
        run_prepared(prepare(load_study("heart-disease", [*SMALL, "run.seeds=1"])), None, tmp_path)
    (tmp_path / "training.npz").write_bytes(b"half a file")
    with pytest.raises(TacitError, match="delete it"):
        run_prepared(prepared, None, tmp_path)


def test_the_command_goes_on_with_a_stopped_run_and_refuses_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["run.seeds=1", "run.alone=false", "algorithm.num_rounds=4"]
    ready = prepare(load_study("heart-disease", overrides))
    folder = new_folder(tmp_path, ready.study)
    start(folder, ready.study)
    runner = CliRunner()
    done = runner.invoke(app, ["run", "--resume", str(folder), "--json"])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["run_dir"] == str(folder)
    assert (folder / "not-private" / "report.html").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name]
    for wrong, text in (
        (["run"], "tacit studies"),
        (["run", "heart-disease", "--resume", str(folder)], "leave out STUDY"),
        (["run", "--resume", str(folder), "--set", "run.seeds=2"], "leave out STUDY"),
        (["run", "--resume", str(folder)], "is finished"),
        (["run", "--resume", str(tmp_path)], "holds no stopped run"),
    ):
        found = runner.invoke(app, wrong)
        assert isinstance(found.exception, TacitError)
        assert text in str(found.exception)


def test_a_stage_may_hold_keys(tmp_path):
    carry = Carry({"key": jax.random.split(jax.random.key(7), 3), "w": jnp.arange(4.0)}, ())
    stages.save_stage(tmp_path / "part.npz", Stage(3, carry, {"train_loss": np.ones((1, 1, 3))}))
    fresh = Carry({"key": jax.random.split(jax.random.key(0), 3), "w": jnp.zeros(4)}, ())
    found = stages.load_stage(tmp_path / "part.npz", Stage(0, fresh, {}))
    assert found.done == 3
    np.testing.assert_array_equal(
        jax.random.key_data(found.carry.state["key"]), jax.random.key_data(carry.state["key"])
    )
    np.testing.assert_array_equal(found.carry.state["w"], carry.state["w"])


def test_the_roster_counts_answers_of_the_first_rounds(prepared):
    algorithm = prepared.builder.build(**prepared.plan.parameters)
    found = roster(jax.random.key(0), algorithm, participation(4, 3), 4)
    assert found.answers(4, 5).sum() == 15
    assert found.answers(4).sum() == 60


def test_the_live_view_shows_every_part_and_the_grid():
    points = [{"algorithm.step_size": 1.0}, {"algorithm.step_size": 2.0}]
    view = RunView("study", ["training", "these rounds, no noise", "grid"], points, 1.0)
    view._clock = iter([0.0, 10.0, 10.0, 20.0, 20.0]).__next__
    view.see(Sight("training", 10, 50, np.asarray([0.7]), 0.2))
    view.see(Sight("training", 30, 50, np.asarray([0.5123]), 0.64))
    view.see(Sight("grid", 2, 50, np.asarray([0.9, 0.8]), None))
    console = Console(record=True, width=120)
    console.print(view)
    text = console.export_text()
    for part in ("30/50", "0.5123", "0.640 of 1.000", "20 s", "waiting", "algorithm.step_size", "0.9000"):
        assert part in text, text


class FakeMlflow(types.ModuleType):
    """Takes down what is logged."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.params: dict = {}
        self.metrics: dict = {}
        self.files: list = []

    def set_tracking_uri(self, uri):
        self.uri = uri

    def set_experiment(self, name):
        self.experiment = name

    def start_run(self, run_name):
        from contextlib import nullcontext

        return nullcontext(types.SimpleNamespace(info=types.SimpleNamespace(run_id="7")))

    def log_params(self, params):
        self.params |= params

    def set_tags(self, tags):
        self.tags = tags

    def log_metrics(self, metrics, step=None):
        self.metrics |= {(name, step): value for name, value in metrics.items()}

    def log_artifact(self, path):
        self.files.append(path)

    def log_artifacts(self, folder, name):
        self.files += [f"{folder}/{path.name}" for path in Path(folder).iterdir()]


def test_a_run_is_logged_to_mlflow(prepared, whole, tmp_path, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    result = whole[0]
    folder = new_folder(tmp_path, prepared.study)
    start(folder, prepared.study)
    write(result, folder)
    assert not stages_of(folder).exists()
    write_report(folder)
    assert log_run(folder, "sqlite:///x.db") == "7"
    assert (fake.uri, fake.experiment) == ("sqlite:///x.db", "tacit")
    assert fake.params["algorithm.name"] == "mb-sgd"
    assert fake.metrics["epsilon/cleveland", None] == pytest.approx(1.0)
    assert fake.metrics["private/test_error", 20] == pytest.approx(result.metrics["test_error"].mean(), rel=1e-5)
    assert fake.metrics["non_private/train_loss", 4] == pytest.approx(
        result.open_trace["train_loss"][:, 0].mean(), rel=1e-5
    )
    assert {path.rsplit("/", 1)[1] for path in fake.files} >= {"not-private", "result.json"}


def test_mlflow_that_is_not_there_names_its_fix(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(TacitError, match=r"tacit\[mlflow\]"):
        log_run(tmp_path, "sqlite:///x.db")
