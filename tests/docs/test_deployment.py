"""The deployment guide says what is true: policies parse, commands exist with these options, codes are explained."""

import contextlib
import os
import re
import shutil
import ssl
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from tacit.cli import app
from tacit.deploy.consortium.terms import consortium_from
from tacit.deploy.permissions import check_silo
from tacit.deploy.server.deployment import check_study, deployment_from
from tacit.deploy.shuffler.config import terms_from
from tacit.deploy.signing import Signer, new_signing_key
from tacit.deploy.silo.policy import files_of, load_policy, policy_from
from tacit.errors import TacitError
from tacit.plans.spec import load_study
from tacit.privacy.anonymity import colluding_silos

QUIET = {"standalone_mode": False}
TEXT = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")


def test_the_policy_and_the_shufflers_of_the_guide_are_valid():
    # Every key is another one.
    text = re.sub(r"ed25519:\.\.\.", lambda _: Signer(new_signing_key()).public, TEXT)
    found = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    kits, terms, policy, together, counted, _, shufflers = (tomllib.loads(block) for block in found)
    assert consortium_from(kits).parties == {"server": "server", **dict.fromkeys(("bergen", "oslo", "tromso"), "silo")}
    assert sorted(policy_from(together).pairwise.peers) == ["hospital", "practice"]
    assert (
        load_study("heart-disease", [f"pairwise.{k}={v}" for k, v in counted["pairwise"].items()]).pairwise.colluding
        == 1
    )
    assert set(terms_from(terms).callers) == {"university"}
    assert policy_from(policy).shuffle.colluding == 1
    led = {"proposer": "university", "key": "proposer.key", "pins": {}}
    assert deployment_from({"silos": 4, "folder": "x", **led, **shufflers}).shufflers[0].port == 9400


def test_the_study_of_the_guide_is_priced_by_its_schema_alone(tmp_path):
    [text] = [block for block in re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL) if "[objective]" in block]
    words = "name,range,levels,unit,target\nage,0:110,,years,\nsex,,f|m,,\nill,,no|yes,,yes\n"
    (tmp_path / "dictionary.csv").write_text(words)
    (tmp_path / "study.toml").write_text(text.replace("/srv/tacit-proposer/schema", str(tmp_path)))
    run = get_command(app).main
    run(["init", "--schema-only", str(tmp_path / "dictionary.csv"), "-o", str(tmp_path / "schema.toml")], **QUIET)
    run(["plan", str(tmp_path / "study.toml"), "--records", "300,200,150,100"], **QUIET)
    study = load_study(tmp_path / "study.toml")
    check_study(study, 0)
    # The policy of the guide lets one of four silos collude.
    assert colluding_silos(4, study.run.honest) == 1
    assert colluding_silos(3, 0.667) == 1


def commands():
    joined = TEXT.replace("\\\n", " ")
    return sorted(
        set(re.findall(r"tacit (silo|server|shuffler|consortium) ([a-z]+(?:-[a-z]+)*)((?:[^\n`#]*--[a-z-]+)*)", joined))
    )


@pytest.mark.parametrize(("group", "name", "rest"), commands())
def test_every_command_of_the_guide_exists_with_its_options(group, name, rest):
    command = get_command(app).commands[group].commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", rest)) <= known


def test_commands_without_a_group_exist_with_their_options():
    found = re.findall(r"(?<![\w-])tacit ([a-z]+)((?:[^\n`#]*--[a-z-]+)*)", TEXT.replace("\\\n", " "))
    known, seen = get_command(app).commands, set()
    for name, rest in found:
        if name in known and not hasattr(known[name], "commands"):
            options = {option for parameter in known[name].params for option in parameter.opts}
            assert set(re.findall(r"--[a-z-]+", rest.partition(" tacit ")[0])) <= options, (name, rest)
            seen.add(name)
    assert {"init", "ledger", "plan", "predict", "evaluate", "algorithms"} <= seen


def test_the_commands_were_found():
    assert {("silo", "join"), ("server", "run"), ("shuffler", "serve")} <= {(g, n) for g, n, _ in commands()}


@pytest.mark.parametrize("group", ["silo", "server", "shuffler", "consortium"])
def test_every_subcommand_has_an_example(group):
    for name, command in get_command(app).commands[group].commands.items():
        assert f"Example: tacit {group} {name}" in command.help


def test_flower_is_started_with_everything_off_and_authentication_on():
    from tacit.deploy.flower import commands as flower

    for name, value in flower._OFF.items():
        assert f"{name}={value}" in TEXT
    pytest.importorskip("flwr")
    command = flower.superlink_command(flower.LinkFiles(*map(Path, ("c", "k", "s", "t", "d"))), port=1)
    assert "--enable-supernode-auth" in command
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--isolation") + 1] == "process"
    assert command[command.index("--superexec-auth-secret-file") + 1] == "s"
    assert "--insecure" not in command
    assert set(command[1:]) & set(TEXT.split()) >= {o for o in command if o.startswith("--")}
    assert flower.environment(Path("home"))["FLWR_TELEMETRY_ENABLED"] == "0"


def test_the_commands_of_the_guide_leave_permissions_that_a_daemon_accepts(tmp_path, monkeypatch):
    """As they are printed, but for the place and the users, under the usual umask."""
    lines = re.findall(r"^    (install [^\n]*|tacit silo init [^\n]*)$", TEXT, flags=re.MULTILINE)
    assert len(lines) == 23
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    try:
        (tmp_path / "srv").mkdir()
        parties = [f"{name}.{end}" for name in ("link", "server", "shuffler") for end in ("pem", "key")]
        for name in ("records.npz", "clinic.csv", "schema.toml", "ca.pem", *parties):
            (tmp_path / name).touch(mode=0o644)
        for line in lines:
            own = re.sub(r" -[og] \S+", "", line).replace("/srv", str(tmp_path / "srv"))
            own = own.replace("/etc", str(tmp_path / "etc")).split()
            if own[0] == "install":
                if "control.toml" in line:
                    (tmp_path / "srv" / "tacit-server" / "control.toml").touch()
                subprocess.run(own, check=True)
            elif "--records" not in own:
                get_command(app).main(own[1:], standalone_mode=False)
    finally:
        os.umask(before)
    folder = tmp_path / "srv" / "tacit-silo" / "clinic"
    assert folder.stat().st_mode & 0o777 == 0o710
    counter = tmp_path / "srv" / "tacit-counter" / "clinic"
    apart = [folder.parent / "clinic.csv", folder.parent / "schema.toml"]
    check_silo(folder, [*files_of(folder, load_policy(folder / "policy.toml"), counter), *apart])
    folder.joinpath("records.npz").chmod(0o644)
    with pytest.raises(TacitError, match="chmod 600"):
        check_silo(folder, files_of(folder, load_policy(folder / "policy.toml"), counter))


def test_the_certificates_of_the_guide_are_accepted(tmp_path):
    """The commands are run as they are printed, and the result passes a strict handshake under the name they give."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    script = "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL))
    assert script.count("openssl ") == 3
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "link.key").stat().st_mode & 0o077 == 0
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(tmp_path / "link.pem", tmp_path / "link.key")
    theirs = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(ours, theirs, "server.example.org") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ours, theirs, "elsewhere.example.org")


def shake_hands(ours, theirs, name):
    """A handshake in memory; returns the version that both agreed on."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = theirs.wrap_bio(back, there, server_hostname=name)
    server = ours.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.version()
