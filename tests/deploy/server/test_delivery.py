"""The model of a deployed study at its silos: daemons of their own, with CSV files and one schema."""

import json

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from tacit import load_model
from tacit.cli import app
from tacit.deploy.permissions import write_secret
from tacit.deploy.server import delivery
from tacit.deploy.server.delivery import deliver_again
from tacit.deploy.server.study import lead
from tacit.deploy.server.transport import SocketTransport
from tacit.deploy.silo.models import kept_models
from tacit.errors import TacitError
from tacit.models.rows import RowsWarning
from tests.deploy.silo.consortium import Daemon, fork_server, led_by, policy_tree, silo_key

NAMES = ("bergen", "oslo")
SCHEMA = """
norm = 1.0
[target]
column = "ill"
classes = ["no", "yes"]
[columns.age]
kind = "number"
low = 0
high = 100
unit = "years"
missing = true
[columns.ward]
kind = "category"
levels = ["a", "b", "c"]
[columns.smokes]
kind = "category"
levels = ["no", "yes"]
"""
NEW = "smokes,ward,age,extra\nyes,c,88,1\nno,,12,2\nno,z,,3\n"


class Lossy(SocketTransport):
    """Loses the bundle that goes to one silo."""

    lost = ""

    def ask(self, requests, seconds, enough=None):
        kept = {at: f for at, f in requests.items() if not (self.lost and self.lost in at and self._is_bundle(f))}
        return super().ask(kept, min(seconds, 5.0), enough)

    @staticmethod
    def _is_bundle(frames):
        return any(b'\\"bundle\\"' in raw[:2000] for raw in frames)


def make_silo(folder, number):
    folder.mkdir(mode=0o700)
    rng = np.random.default_rng(number)
    ages = rng.integers(0, 100, 60)
    rows = [f"{a},{'abc'[a % 3]},{'yes' if a % 2 else 'no'},{'yes' if a > 50 else 'no'}" for a in ages]
    write_secret(folder / "records.csv", "age,ward,smokes,ill\n" + "\n".join(rows) + "\n")
    write_secret(folder / "schema.toml", SCHEMA)
    data = {"file": "records.csv", "columns": "schema.toml", "task": "binary", "classes": 2}
    write_secret(folder / "policy.toml", tomli_w.dumps(policy_tree(folder.name, data=data)))
    write_secret(folder / "sign.key", silo_key(folder.name))


@pytest.fixture(scope="module")
def led(tmp_path_factory):
    """A study between two daemons, led to its end; the second one did not get the model."""
    root = tmp_path_factory.mktemp("d")
    context, daemons = fork_server(), []
    for number, name in enumerate(NAMES):
        make_silo(root / name, number)
        daemons.append(Daemon(root / name, context))
    for daemon in daemons:
        daemon.ready()
    run = root / "run"
    run.mkdir()
    algorithm = {"name": "mb-sgd", "num_rounds": 4, "step_size": 1.0, "clip_norm": 1.0, "sampling": "full"}
    tree = {"name": "ward", "data": {"name": "silo"}, "algorithm": algorithm}
    (run / "study.toml").write_text(tomli_w.dumps({**tree, "privacy": {"epsilon": 4.0, "delta": 1e-6}}))
    terms = {"silos": 2, "folder": str(run), "round_seconds": 5.0, "patience": 60.0, "command": "tacit server run"}
    (run / "deployment.toml").write_text(tomli_w.dumps({**terms, **led_by(run, *NAMES)}))
    transport = Lossy([daemon.home.socket for daemon in daemons])
    transport.lost = "oslo"
    lead(run, transport)
    yield root, run, transport
    for daemon in daemons:
        daemon.stop()
    transport.close()


def journal(run, event):
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    return [row for row in rows if row["event"] == event]


def test_the_bundle_reaches_the_silos_and_who_missed_it_gets_it_later(led):
    root, run, transport = led
    own = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    assert journal(run, "delivered")[0]["silos"] == ["bergen"]
    assert journal(run, "delivered")[0]["unreached"] == ["oslo"]
    assert "tacit server deliver" in journal(run, "warning")[-1]["text"]
    assert journal(run, "finished")
    assert [len(kept_models(root / name)) for name in NAMES] == [1, 0]
    transport.lost = ""
    assert deliver_again(run, transport) == {"bergen": "has the model", "oslo": "has the model"}
    # Leading it once more changes nothing of it.
    lead(run, transport)
    assert {path.name: path.read_bytes() for path in (run / "model").iterdir()} == own
    for name in NAMES:
        [row] = kept_models(root / name)
        place = root / name / "models" / row["name"]
        assert {file: (place / file).read_bytes() for file in own} == own
        assert 3.9 < row["epsilon"] <= 4.0


def test_a_large_model_is_waited_for_longer(led, monkeypatch):
    _, run, transport = led
    size = sum(path.stat().st_size for path in (run / "model").iterdir())
    waited, ask = [], Lossy.ask

    def timed(self, requests, seconds, enough=None):
        waited.append(seconds)
        return ask(self, requests, seconds, enough)

    monkeypatch.setattr(Lossy, "ask", timed)
    deliver_again(run, transport)
    monkeypatch.setattr(delivery, "_PACE", size / 100.0)
    before = max(waited)
    deliver_again(run, transport)
    assert before < 11.0
    assert 90.0 < max(waited) <= 110.0


def test_a_silo_predicts_and_evaluates_by_the_models_name(led, tmp_path):
    """Columns come from the schema that silos have described: the server has no file of it."""
    root, run, transport = led
    transport.lost = ""
    deliver_again(run, transport)
    (tmp_path / "new.csv").write_text(NEW)
    runner = CliRunner()
    asked = ["predict", "ward", str(tmp_path / "new.csv"), "--silo", str(root / "oslo"), "--json"]
    found = json.loads(runner.invoke(app, asked).stdout)
    model = load_model(run)
    with pytest.warns(RowsWarning, match="not among its levels"):
        assert found["predictions"] == model.predict(tmp_path / "new.csv").tolist()
    assert found["target"] == "ill"
    assert set(found["predictions"]) <= {"no", "yes"}
    assert len(found["notes"]) >= 2
    measured = ["evaluate", "ward", str(root / "bergen" / "records.csv"), "--silo", str(root / "bergen"), "--json"]
    assert json.loads(runner.invoke(app, measured).stdout)["metrics"]["accuracy"] > 0.4
    with pytest.raises(TacitError, match="has no model 'wards'"):
        runner.invoke(app, ["predict", "wards", asked[2], "--silo", asked[4]], catch_exceptions=False)


def test_a_study_that_is_not_through_has_nothing_to_deliver(led, tmp_path, monkeypatch):
    _, run, transport = led
    monkeypatch.setattr(delivery, "FOLDER", "elsewhere")
    with pytest.raises(TacitError, match="no whole bundle"):
        deliver_again(run, transport)
    with pytest.raises(TacitError, match="holds no study that was proposed"):
        deliver_again(tmp_path, transport)
