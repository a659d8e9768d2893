"""The commands of a deployment that can be tried without one."""

import contextlib
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tacit
from tacit.channel.sealing import public_key
from tacit.cli import AUTHORITY, app, need_file
from tacit.cli.server import _register
from tacit.deploy.flower.private import FlowerError
from tacit.deploy.server.deployment import check_proposer, deployment_from
from tacit.deploy.shuffler.config import load_terms
from tacit.deploy.shuffler.server import server_context
from tacit.deploy.signing import verifying_key
from tacit.deploy.silo.policy import load_policy
from tacit.errors import TacitError
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.spec import load_study


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def authority(tmp_path):
    path = tmp_path / "ca.pem"
    path.touch()
    return path


@pytest.mark.parametrize(("options", "kind"), [((), "x25519"), (("--post-quantum",), "mlkem768-x25519")])
def test_a_shufflers_keys_are_made_once_and_its_terms_are_valid(tmp_path, options, kind):
    folder = tmp_path / "a"
    printed = invoke("shuffler", "init", folder, *options)
    seal = next(line.split()[1] for line in printed.splitlines() if line.startswith("seal"))
    assert public_key(seal).kind == kind
    assert printed.endswith(invoke("shuffler", "keys", folder))
    assert (load_terms(folder).name, load_terms(folder).callers) == ("a", {})
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
def test_a_study_that_cannot_be_deployed_is_refused_before_anything_starts(
    tmp_path, control, proposer, change, message
):
    options = ("--control", control, "--silos", 4, "--keys", proposer, "--out", tmp_path / "runs")
    with pytest.raises(TacitError, match=message):
        invoke("server", "run", "heart-disease", *options, "--set", change)
    assert not (tmp_path / "runs").exists()


def test_the_command_that_was_typed_is_kept_for_the_report(tmp_path, control, proposer, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setattr("tacit.deploy.flower.watch.follow", lambda folder, control, console: {})
    monkeypatch.setattr("sys.argv", ["/bin/tacit", "server", "run", "heart-disease", "--set", "title=Two words"])
    options = ("--control", control, "--silos", 4, "--keys", proposer, "--out", tmp_path / "r")
    invoke("server", "run", "heart-disease", *options)
    (path,) = (tmp_path / "r").glob("*/deployment.toml")
    terms = deployment_from(tomllib.loads(path.read_text()))
    assert terms.command == "tacit server run heart-disease --set 'title=Two words'"


def test_a_study_is_aborted_over_the_superlink(tmp_path, control, monkeypatch):
    with pytest.raises(TacitError, match="a study that was proposed"):
        invoke("server", "abort", tmp_path, "--control", control)
    (tmp_path / "checkpoint.npz").touch()
    asked = []
    monkeypatch.setattr("tacit.deploy.flower.leader.connected", lambda path: contextlib.nullcontext("transport"))
    monkeypatch.setattr(
        "tacit.deploy.server.ending.abort", lambda *words: asked.append(words) or {"clinic": "ended after 2 answers"}
    )
    assert "clinic: ended after 2 answers" in invoke("server", "abort", tmp_path, "--control", control)
    assert asked == [(tmp_path, "transport")]


def test_a_bundle_alone_is_asked_about_in_a_run_folder_of_its_own(tmp_path, control, proposer, monkeypatch):
    problem = Problem(Objective(linear(2, 1), logistic()))
    records = {"x": np.zeros((20, 2), np.float32), "y": np.arange(20) % 2}
    recipe, budget = tacit.mb_sgd(step_size=0.1, num_rounds=1), tacit.Budget(epsilon=1.5, delta=1e-6)
    tacit.fit(problem, [records] * 2, recipe, budget=budget, clip_norm=1.0).save(tmp_path / "bundle")
    asked = []

    def answered(folder, transport, section, *, tell, again):
        assert not again
        asked.append((folder, section))
        raise TacitError("nobody is there")

    monkeypatch.setattr("tacit.deploy.flower.leader.connected", lambda path: contextlib.nullcontext("transport"))
    monkeypatch.setattr("tacit.deploy.server.study.evaluate_again", answered)
    options = ("server", "evaluate", tmp_path / "bundle", "--control", control, "--out", tmp_path / "runs")
    with pytest.raises(TacitError, match="give --keys and --silos too"):
        invoke(*options)
    with pytest.raises(TacitError, match="nobody is there"):
        invoke(*options, "--keys", proposer, "--silos", 2, "--group", "sex")
    [(folder, section)] = asked
    study = load_study(folder / "study.toml")
    assert study.privacy.epsilon == pytest.approx(1.5, rel=0.01)
    assert (study.privacy.delta, study.algorithm.name, section["groups"]) == (1e-6, "validation", ("sex",))
    assert deployment_from(tomllib.loads((folder / "deployment.toml").read_text())).silos == 2
    with pytest.raises(TacitError, match="nobody is there"):
        invoke("server", "evaluate", folder, "--control", control)
    with pytest.raises(TacitError, match="leave these options out"):
        invoke("server", "evaluate", folder, "--control", control, "--silos", 2)
    assert [own for own, _ in asked] == [folder, folder]


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path, control, proposer):
    options = ("--control", control, "--silos", 4, "--keys", proposer)
    with pytest.raises(TacitError, match="not a run folder"):
        invoke("server", "run", "heart-disease", *options, "--resume", tmp_path)


def make_proposer(folder):
    printed = invoke("server", "keys", folder, "--name", "university")
    [policy, terms] = [tomllib.loads(part) for part in re.findall(r"(?m)^\[[a-z]+\]\n.*$", printed)]
    assert policy["proposers"] == terms["callers"]
    verifying_key(terms["callers"]["university"])
    with (folder / "proposer.toml").open("a") as file:
        file.write('clinic = "ed25519:AAAA"\n')
    return folder


@pytest.fixture
def proposer(tmp_path):
    return make_proposer(tmp_path / "proposer")


@pytest.fixture
def control(tmp_path):
    pytest.importorskip("flwr")
    from tacit.deploy.flower.commands import link_files

    return link_files(tmp_path / "state", 1).control


LINK = ("--superlink", "localhost:1", "--authority", "there")
CALLED = {
    "silo join": ("silo", "join", "clinic", *LINK[:2]),
    "server register": ("server", "register", "clinic", "there"),
    "server unregister": ("server", "unregister", "clinic"),
    "server silos": ("server", "silos", "--keys", "proposer"),
    "server run": ("server", "run", "heart-disease", "--silos", 4, "--keys", "proposer"),
}


@pytest.fixture
def nothing_starts(tmp_path, monkeypatch):
    """A folder with a silo and a file "there"; whatever would start something fails."""
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    invoke("silo", "init", "clinic")
    invoke("silo", "keys", "clinic")
    (tmp_path / "there").touch()
    make_proposer(tmp_path / "proposer")
    for name in ("node.serve", "front.serve", "private.Link", "watch.follow"):
        monkeypatch.setattr(f"tacit.deploy.flower.{name}", lambda *_, **__: pytest.fail("it was started"))
    return tmp_path


def refuses(folder, words, *arguments):
    before = sorted(folder.rglob("*"))
    with pytest.raises(TacitError, match=words):
        invoke(*arguments)
    assert sorted(folder.rglob("*")) == before


def test_an_authority_that_is_not_there_is_named_before_anything_starts(nothing_starts):
    absent = r"No file at ca\.pem; give --authority .*see Certificates in docs/deployment\.md"
    refuses(nothing_starts, absent, *CALLED["silo join"], "--authority", "ca.pem")
    refuses(nothing_starts, "got the folder clinic; give --auth", *CALLED["silo join"], "--authority", "clinic")


@pytest.mark.parametrize("command", [name for name in CALLED if name.startswith("server")])
def test_a_control_file_that_is_not_there_or_is_open_to_others_is_told_before_anything_starts(nothing_starts, command):
    refuses(nothing_starts, r"No file at gone; give --control the control\.toml", *CALLED[command], "--control", "gone")
    (nothing_starts / "there").chmod(0o644)
    refuses(nothing_starts, "chmod 600 there", *CALLED[command], "--control", "there")
    (nothing_starts / "there").chmod(0o600)
    refuses(nothing_starts, r"not a control\.toml", *CALLED[command], "--control", "there")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("silo", "join", "clinic", *LINK, "--key", "gone"), "No file at gone; make it with: tacit silo keys clinic"),
        (("server", "link", "state", "--certificate", "gone", "--key", "there"), "No file at gone; give --certificate"),
        (("server", "link", "state", "--certificate", "there", "--key", "gone"), "No file at gone; give --key"),
        (
            ("server", "link", "state", "--certificate", "there", "--key", "there", "--port", 9093),
            "Expected two ports, got --port=9093 and --control-port=9093",
        ),
        (
            ("server", "register", "clinic", "gone", "--control", "there"),
            "No file at gone; give the public key.*tacit silo keys",
        ),
        ((*CALLED["server run"], "--control", "there", "--shufflers", "gone"), "No file at gone; give --shufflers"),
    ],
)
def test_every_other_file_is_looked_for_too(nothing_starts, command, words):
    refuses(nothing_starts, words, *command)


def test_silos_are_as_many_as_are_named_and_pinned(nothing_starts, control):
    run = (*CALLED["server run"][:3], "--keys", "proposer", "--control", control)
    refuses(nothing_starts, "silos: .*greater than or equal", *run, "--silos", 0)
    refuses(nothing_starts, "--only to name --silos=2 silos, got 1", *run, "--silos", 2, "--only", "clinic")
    refuses(nothing_starts, r"under \[silos\]; missing: mine", *run, "--silos", 2, "--only", "clinic, mine")


def test_a_link_writes_files_that_are_its_owners_alone_and_listens_on_loopback(nothing_starts, monkeypatch, capfd):
    called = []
    monkeypatch.setattr("tacit.deploy.flower.front.serve", lambda files, **where: called.append((files, where)))
    invoke("server", "link", "state", "--certificate", "there", "--key", "there")
    invoke("server", "link", "state", "--certificate", "there", "--key", "there", "--host", "0.0.0.0")
    (files, first), (_, second) = called
    assert (first["host"], second["host"], first["control_port"]) == ("127.0.0.1", "0.0.0.0", 9093)
    assert {path.stat().st_mode & 0o777 for path in (files.key, files.secret, files.control)} == {0o600}
    assert files.control.parent.stat().st_mode & 0o777 == 0o700
    files.control.parent.chmod(0o755)
    with pytest.raises(TacitError, match="chmod 710"):
        invoke("server", "link", "state", "--certificate", "there", "--key", "there")


def test_shufflers_are_listed_in_toml(nothing_starts):
    (nothing_starts / "list.toml").write_text("[shufflers]\nname = 'a'")
    for name, words in (("list.toml", "two brackets"), ("clinic/sign.key", "not valid TOML")):
        refuses(nothing_starts, words, *CALLED["server run"], "--control", "there", "--shufflers", name)


def test_a_file_that_this_user_may_not_read_is_told(monkeypatch, authority):
    def shut(*_):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.open", shut)
    with pytest.raises(TacitError, match=r"may not read .*ca\.pem; allow it .*, or give --authority"):
        need_file(authority, AUTHORITY)


def test_the_section_that_errors_name_is_in_the_docs():
    docs = Path(__file__).parents[2] / "docs" / "deployment.md"
    assert "\n## Certificates\n" in docs.read_text(encoding="utf-8")


FACTS = ("tacit", "records", "schema")


def test_nodes_are_listed_and_two_silos_of_one_name_are_told_so(nothing_starts, control, monkeypatch):
    from tacit.deploy.flower import silos

    def row(name, silo, node):
        facts = {"tacit": "[/0.1]", "records": 5, "schema": "5c3e" * 4} if silo else dict.fromkeys(FACTS)
        return {"node": node, "name": name, "online": silo is not None, "silo": silo, "note": "", **facts}

    def found(*_):
        return silos._told_apart([row("b", "a", "2"), row("a", "a", "1"), row("c", "d", "3"), row("e", None, "4")])

    monkeypatch.setattr("tacit.deploy.flower.silos.silos_of", found)
    monkeypatch.setenv("COLUMNS", "200")
    command = (*CALLED["server silos"], "--control", control)
    rows = json.loads(invoke(*command, "--json"))
    assert [entry["name"] for entry in rows] == ["a", "b", "c", "e"]
    assert all("two nodes speak for silos of this name" in entry["note"] for entry in rows[:2])
    assert [entry["note"] for entry in rows[2:]] == ["registered as c, but speaks for d", ""]
    printed = invoke(*command)
    # What others say is text, and no markup.
    assert "[/0.1]" in printed
    assert "5c3e5c3e5c3e5c3e" in printed


def test_a_silo_has_the_name_that_it_is_given_and_folders_of_its_own(tmp_path):
    printed = invoke("silo", "init", tmp_path / "clinic", "--name", "bergen")
    assert "called bergen" in printed
    assert load_policy(tmp_path / "clinic" / "policy.toml").name == "bergen"
    for name in ("approved", "decided"):
        assert (tmp_path / "clinic" / name).stat().st_mode & 0o777 == 0o700
    with pytest.raises(TacitError, match="letters, digits"):
        invoke("silo", "init", tmp_path / "other", "--name", 'a" b')
    assert not (tmp_path / "other").exists()


def test_whoever_does_not_own_a_silos_folder_makes_no_files_in_it(tmp_path, monkeypatch):
    invoke("silo", "init", tmp_path / "clinic")
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    for command in (("keys",), ("place",), ("move", "--here"), ("write-off", "--yes")):
        with pytest.raises(TacitError, match=r"runuser -u|setpriv --reuid"):
            invoke("silo", *command[:1], tmp_path / "clinic", *command[1:])
    assert sorted(path.name for path in (tmp_path / "clinic").iterdir()) == ["approved", "decided", "policy.toml"]


def test_a_node_key_that_was_shut_out_is_explained(tmp_path):
    class Link:
        def register(self, name, public):
            raise FlowerError("The SuperLink refuses: Public key already in use")

    (tmp_path / "clinic.pub").write_text("ecdsa ...")
    with pytest.raises(TacitError, match=r"takes no key twice.*clinic's owner makes a new one"):
        _register(Link(), "clinic", tmp_path / "clinic.pub")


def test_a_shufflers_certificates_that_cannot_be_read_are_named(tmp_path):
    invoke("shuffler", "init", tmp_path / "a")
    terms = load_terms(tmp_path / "a")
    with pytest.raises(TacitError, match=r"a/shuffler\.pem, or its key"):
        server_context(terms, tmp_path / "a")


def test_a_run_folder_is_resumed_by_its_own_proposer_only(tmp_path):
    (tmp_path / "deployment.toml").write_text('proposer = "university"\n')
    check_proposer(tmp_path, "university")
    with pytest.raises(TacitError, match=r"proposed by university.*--keys"):
        check_proposer(tmp_path, "hospital")


def test_nobody_is_asked_for_what_could_not_be_kept(tmp_path, monkeypatch):
    """Silos pay when they answer: a run folder of another user, or with such a result in it, is refused before."""
    from tacit.cli import server

    (tmp_path / "validation.json").write_text("{}")
    server._check_writable(tmp_path)
    server._check_writable(tmp_path / "new")
    monkeypatch.setattr(server.os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(TacitError, match="as the user who led the study"):
        server._check_writable(tmp_path)
