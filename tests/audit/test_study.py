"""The audit of a study, from its plan to the command line."""

import json

import pytest
import typer
from typer.testing import CliRunner

from tacit.audit import study
from tacit.audit.mechanism import AuditError
from tacit.audit.study import audit_study, write_audit
from tacit.cli.audit import audit_command
from tacit.errors import TacitError
from tacit.plans.spec import load_study
from tacit.silo import door, integers, pairwise
from tacit.studies.folder import write
from tacit.studies.run import prepare
from tacit.studies.run import run as run_study

KEYS = {"epsilon_claimed", "epsilon_lower_bound", "confidence", "trials", "tightness"}
# A large epsilon shows in few trials.
SMALL = ["algorithm.num_rounds=2", "privacy.epsilon=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = run_study(load_study("heart-disease", [*SMALL, "run.seeds=1", "run.alone=false"]))
    path = tmp_path_factory.mktemp("run")
    write(made, path)
    return path


def test_a_study_is_attacked_with_its_own_schedule_and_noise(folder):
    found = audit_study(load_study("heart-disease", SMALL), trials=1500, canaries=("opposite",))
    assert found.keys() >= KEYS
    assert found["path"] == "door"
    assert found["epsilon_claimed"] == pytest.approx(4.0, rel=1e-3)
    assert found["tightness"] > 0.15
    # At 95% one run in twenty is beyond by chance.
    assert found["epsilon_lower_bound"] < 1.5 * found["epsilon_claimed"]
    [moved] = found["sensitivity"]
    assert moved["path"] == "door"
    assert 0.9 < moved["largest_share"] <= 1.0
    page = write_audit(folder, found).read_text()
    assert "of what is priced" in page
    assert "The guarantee, attacked" in page
    assert f"{found['epsilon_lower_bound']:.3f}" in page
    assert "data:image/png" not in page
    assert json.loads((folder / "audit.json").read_text())["silo"] == found["silo"]
    assert "data:image/png" in write_audit(folder, found, picture=True).read_text()


@pytest.mark.parametrize(
    ("channel", "path"), [("pairwise", "door"), ("shuffled-sum", "door"), ("trusted", "simulated")]
)
def test_a_study_is_attacked_where_it_would_be_answered(channel, path):
    """In the sum of all honest silos' shares, as their daemons build them; no daemon takes a trusted server."""
    study = load_study("heart-disease", ["algorithm.num_rounds=1", "privacy.epsilon=4", f"algorithm.channel={channel}"])
    found = audit_study(study, trials=1000, canaries=("opposite",))
    assert found["path"] == path
    assert found["results"][0]["label"].endswith("simulated") == (path == "simulated")
    assert found["tightness"] > 0.15


def test_shares_that_are_too_small_are_found(monkeypatch):
    """The honest silos' sum, all that the server and those that collude can read, with half of its noise."""
    own = ["algorithm.num_rounds=1", "privacy.epsilon=4", "algorithm.channel=pairwise", "pairwise.colluding=2"]
    study = load_study("heart-disease", [*own, "pairwise.min_silos=4"])
    honest = audit_study(study, trials=4000, canaries=("opposite",))
    assert not honest["violated"]
    assert 0.3 < honest["tightness"] < 1.0
    right = pairwise.share_scale
    monkeypatch.setattr(pairwise, "share_scale", lambda *terms: right(*terms) / 2)
    assert audit_study(study, trials=4000, canaries=("opposite",))["violated"]


def test_a_record_that_hostile_points_move_too_far_is_found(monkeypatch):
    """What is added is not what was checked, but twice that."""
    right = door.checked_sum

    def doubled(stored, present, limit, *, nonnegative):
        made = right(stored, present, limit, nonnegative=nonnegative)
        return integers.Sums(2 * made.formed, {name: 2 * layer for name, layer in made.layers.items()})

    monkeypatch.setattr(door, "checked_sum", doubled)
    monkeypatch.setattr(study, "_POINTS", 100)
    [moved] = study.search_points(prepare(load_study("heart-disease", SMALL)), 0, 0)
    assert moved.violated
    assert moved.as_json()["largest_share"] > 1.5


@pytest.mark.parametrize("name", ["breast-cancer-mlp", "tcga-brca"])
def test_hostile_points_are_tried_on_the_studys_own_model(name, monkeypatch):
    """Networks, classes and times: no record gets past the check."""
    monkeypatch.setattr(study, "_POINTS", 100)
    for moved in study.search_points(prepare(load_study(name)), 0, 0):
        assert 0.5 < moved.largest <= 1.0, moved


def test_the_confidence_is_shared_among_canaries():
    found = audit_study(load_study("heart-disease", SMALL), trials=1000, canaries=("opposite", "overflow"))
    assert [row["confidence"] for row in found["results"]] == [0.975, 0.975]
    assert found["confidence"] == 0.95
    assert found["epsilon_lower_bound"] == max(row["epsilon_lower_bound"] for row in found["results"])


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [(["privacy.epsilon=none"], {}, "private study"), ([], {"kind": "gradeint"}, "did you mean 'gradient'")],
)
def test_what_cannot_be_audited_is_refused(overrides, changes, message):
    with pytest.raises(AuditError, match=message):
        audit_study(load_study("heart-disease", overrides), trials=2000, **changes)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(AuditError, match="tacit run"):
        write_audit(tmp_path / "nowhere", {})


@pytest.fixture
def run():
    app = typer.Typer()
    app.command("audit")(audit_command)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_the_command_prints_one_json_object(run, monkeypatch, folder):
    plain = audit_study
    monkeypatch.setattr("tacit.audit.study.audit_study", lambda *a, **k: plain(*a, **k, canaries=("opposite",)))
    done = run("heart-disease", "--set", SMALL[0], "--trials", "1000", "--into", str(folder), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output).keys() >= KEYS
    assert (folder / "audit.json").is_file()


def test_a_violation_ends_with_an_error(run, monkeypatch):
    row = {"canary": "faint", "epsilon_claimed": 1.0, "epsilon_lower_bound": 2.0, "tightness": 2.0, "trials": 10}
    moved = {"kind": "gradient", "largest_share": 1.5, "tries": 7, "path": "door", "violated": True}
    found = {"study": "s", "silo": "a", "kind": None, "delta": 1e-5, "violated": True, "results": [row], **row}
    found["sensitivity"] = [moved]
    monkeypatch.setattr("tacit.audit.study.audit_study", lambda *a, **k: found)
    done = run("heart-disease")
    assert done.exit_code == 1
    assert "Violated" in done.output
    assert "1.5" in done.output


def test_an_unknown_study_is_refused(run):
    done = run("hart-disease")
    assert isinstance(done.exception, TacitError)
