"""The commands of a deployment that can be tried without one."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.channel.sealing import public_key
from tacit.cli import AUTHORITY, app, need_file
from tacit.deploy.server.deployment import deployment_from
from tacit.deploy.shuffler.config import load_terms
from tacit.errors import TacitError


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
def test_a_study_that_cannot_be_deployed_is_refused_before_anything_starts(
    tmp_path, authority, proposer, change, message
):
    options = (
        "--superlink",
        "localhost:1",
        "--authority",
        authority,
        "--silos",
        4,
        "--keys",
        proposer,
        "--out",
        tmp_path / "runs",
    )
    with pytest.raises(TacitError, match=message):
        invoke("server", "run", "heart-disease", *options, "--set", change)
    assert not (tmp_path / "runs").exists()


def test_the_command_that_was_typed_is_kept_for_the_report(tmp_path, authority, proposer, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setattr("tacit.deploy.flower.watch.follow", lambda folder, console: {})
    monkeypatch.setattr("sys.argv", ["/bin/tacit", "server", "run", "heart-disease", "--set", "title=Two words"])
    options = (
        "--superlink",
        "localhost:1",
        "--authority",
        authority,
        "--silos",
        4,
        "--keys",
        proposer,
        "--out",
        tmp_path / "r",
    )
    invoke("server", "run", "heart-disease", *options)
    (path,) = (tmp_path / "r").glob("*/deployment.toml")
    terms = deployment_from(tomllib.loads(path.read_text()))
    assert terms.command == "tacit server run heart-disease --set 'title=Two words'"


def test_a_study_is_aborted_by_leading_its_folder_with_that_word(tmp_path, authority, monkeypatch):
    led = []
    monkeypatch.setattr(
        "tacit.deploy.flower.watch.follow", lambda folder, console: led.append(sorted(folder.iterdir()))
    )
    options = ("--superlink", "localhost:1", "--authority", authority)
    with pytest.raises(TacitError, match="a study that was proposed"):
        invoke("server", "abort", tmp_path, *options)
    (tmp_path / "checkpoint.npz").touch()
    invoke("server", "abort", tmp_path, *options)
    assert tmp_path / "abort" in led[0]


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path, authority, proposer):
    options = ("--superlink", "localhost:1", "--authority", authority, "--silos", 4, "--keys", proposer)
    with pytest.raises(TacitError, match="not a run folder"):
        invoke("server", "run", "heart-disease", *options, "--resume", tmp_path)


def make_proposer(folder):
    invoke("server", "keys", folder, "--name", "university")
    with (folder / "proposer.toml").open("a") as file:
        file.write('clinic = "ed25519:AAAA"\n')
    return folder


@pytest.fixture
def proposer(tmp_path):
    return make_proposer(tmp_path / "proposer")


LINK = ("--superlink", "localhost:1")
CALLED = {
    "silo join": ("silo", "join", "clinic", *LINK),
    "server link": ("server", "link", "state", "--certificate", "there", "--key", "there"),
    "server register": ("server", "register", "clinic", "there", *LINK),
    "server run": ("server", "run", "heart-disease", *LINK, "--silos", 4, "--keys", "proposer"),
}


@pytest.fixture
def nothing_starts(tmp_path, monkeypatch):
    """A folder with a silo and a file "there"; whatever would start something fails."""
    monkeypatch.chdir(tmp_path)
    invoke("silo", "init", "clinic")
    invoke("silo", "keys", "clinic")
    (tmp_path / "there").touch()
    make_proposer(tmp_path / "proposer")
    for name in ("commands.keep_running", "commands.register", "watch.follow"):
        monkeypatch.setattr(f"tacit.deploy.flower.{name}", lambda *_: pytest.fail("it was started"))
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("it was started"))
    return tmp_path


def refuses(folder, words, *arguments):
    before = sorted(folder.rglob("*"))
    with pytest.raises(TacitError, match=words):
        invoke(*arguments)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("command", CALLED)
def test_files_that_are_not_there_are_named_with_their_option_before_anything_starts(nothing_starts, command):
    absent = r"No file at ca\.pem; give --authority .*see Certificates in docs/deployment\.md"
    refuses(nothing_starts, absent, *CALLED[command], "--authority", "ca.pem")
    refuses(nothing_starts, "got the folder clinic; give --auth", *CALLED[command], "--authority", "clinic")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("silo", "join", "clinic", *LINK, "--key", "gone"), "No file at gone; make it with: tacit silo keys clinic"),
        (("server", "link", "state", "--certificate", "gone", "--key", "there"), "No file at gone; give --certificate"),
        (("server", "link", "state", "--certificate", "there", "--key", "gone"), "No file at gone; give --key"),
        (("server", "register", "clinic", "gone", *LINK), "No file at gone; give the public key.*tacit silo keys"),
        ((*CALLED["server run"], "--shufflers", "gone"), "No file at gone; give --shufflers"),
        ((*CALLED["server run"], "--shufflers", "clinic/policy.toml", "--silos", 0), "silos: .*greater than or equal"),
    ],
)
def test_every_other_file_is_looked_for_too(nothing_starts, command, words):
    refuses(nothing_starts, words, *command, "--authority", "there")


def test_shufflers_are_listed_in_toml(nothing_starts):
    (nothing_starts / "list.toml").write_text("[shufflers]\nname = 'a'")
    for name, words in (("list.toml", "two brackets"), ("clinic/sign.key", "not valid TOML")):
        refuses(nothing_starts, words, *CALLED["server run"], "--authority", "there", "--shufflers", name)


def test_a_file_that_this_user_may_not_read_is_told(monkeypatch, authority):
    def shut(*_):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.open", shut)
    with pytest.raises(TacitError, match=r"may not read .*ca\.pem; allow it .*, or give --authority"):
        need_file(authority, AUTHORITY)


def test_the_section_that_errors_name_is_in_the_docs():
    docs = Path(__file__).parents[2] / "docs" / "deployment.md"
    assert "\n## Certificates\n" in docs.read_text(encoding="utf-8")
