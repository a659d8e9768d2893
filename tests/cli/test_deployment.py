"""The commands of a deployment that can be tried without one."""

import tomllib

import pytest
from typer.testing import CliRunner

from tacit.channel.sealing import public_key
from tacit.cli import app
from tacit.errors import TacitError
from tacit.runtime.server.terms import deployment_from
from tacit.runtime.shuffler.config import load_terms


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("options", "kind"), [((), "x25519"), (("--post-quantum",), "mlkem768-x25519")])
def test_a_shufflers_keys_are_made_once_and_its_terms_are_valid(tmp_path, options, kind):
    folder = tmp_path / "a"
    printed = invoke("shuffler", "init", folder, *options)
    seal = next(line.split()[1] for line in printed.splitlines() if line.startswith("seal"))
    assert public_key(seal).kind == kind
    assert printed.endswith(invoke("shuffler", "keys", folder))
    assert load_terms(folder).name == "a"
    assert (folder / "seal.key").stat().st_mode & 0o777 == 0o600
    assert (folder / "sign.key").stat().st_mode & 0o777 == 0o600
    assert (folder / "shuffler.toml").stat().st_mode & 0o777 == 0o600
    with pytest.raises(TacitError, match="exists"):
        invoke("shuffler", "init", folder)


def test_a_key_that_others_can_read_is_refused(tmp_path):
    invoke("shuffler", "init", tmp_path / "a")
    (tmp_path / "a" / "seal.key").chmod(0o644)
    with pytest.raises(TacitError, match="chmod 600"):
        invoke("shuffler", "keys", tmp_path / "a")


def test_a_silos_keys_stay_the_same_also_when_one_was_moved(tmp_path):
    folder = tmp_path / "clinic"
    invoke("silo", "init", folder)
    first = invoke("silo", "keys", folder)
    public = (folder / "node.key.pub").read_bytes()
    assert (folder / "node.key").stat().st_mode & 0o777 == 0o600
    (folder / "node.key").unlink()
    assert invoke("silo", "keys", folder) == first
    assert (folder / "node.key.pub").read_bytes() == public
    assert not (folder / "node.key").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("algorithm.channel=shuffled-sum", "0 shufflers"),
        ("algorithm.channel=trusted", "cannot be deployed"),
        ("privacy.epsilon=none", "one epsilon"),
        ("algorithm.name=prox-sgd", "Unknown parameter of prox-sgd 'output'; Known: .*num_rounds.*step_size"),
        ("privacy.epsilon=[1.0,1.0,1.0,1.0]", "one epsilon"),
    ],
)
def test_a_study_that_cannot_be_deployed_is_refused_before_anything_starts(tmp_path, change, message):
    options = ("--superlink", "localhost:1", "--authority", "ca.pem", "--silos", 4, "--out", tmp_path / "runs")
    with pytest.raises(TacitError, match=message):
        invoke("server", "run", "heart-disease", *options, "--set", change)
    assert not (tmp_path / "runs").exists()


def test_the_command_that_was_typed_is_kept_for_the_report(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setattr("tacit.runtime.flower.watch.follow", lambda folder, console: {})
    monkeypatch.setattr("sys.argv", ["/bin/tacit", "server", "run", "heart-disease", "--set", "title=Two words"])
    options = ("--superlink", "localhost:1", "--authority", tmp_path / "ca.pem", "--silos", 4, "--out", tmp_path / "r")
    invoke("server", "run", "heart-disease", *options)
    (path,) = (tmp_path / "r").glob("*/deployment.toml")
    terms = deployment_from(tomllib.loads(path.read_text()))
    assert terms.command == "tacit server run heart-disease --set 'title=Two words'"


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path):
    options = ("--superlink", "localhost:1", "--authority", "ca.pem", "--silos", 4)
    with pytest.raises(TacitError, match="not a run folder"):
        invoke("server", "run", "heart-disease", *options, "--resume", tmp_path)
