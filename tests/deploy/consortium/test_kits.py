"""Kits hold no secret, keys stay where they are made, and nobody pins a key that its owner has not made."""

import os
import pwd
import re
import shutil
import ssl
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
import tomli_w
import yaml
from click.testing import CliRunner
from typer.main import get_command

from tacit import __version__
from tacit.cli import app
from tacit.cli.status import _commands
from tacit.deploy.consortium import pages
from tacit.deploy.consortium.accepting import MARK, accept, misheard
from tacit.deploy.consortium.checking import check
from tacit.deploy.consortium.joining import join, starting
from tacit.deploy.consortium.kits import init
from tacit.deploy.consortium.roster import admit, read_roster, roster_text
from tacit.deploy.consortium.terms import consortium_from, services, watcher
from tacit.deploy.permissions import check_silo
from tacit.deploy.shuffler.config import load_terms
from tacit.deploy.signing import Signer, new_signing_key
from tacit.deploy.silo.policy import files_of, load_policy
from tacit.errors import TacitError
from tests.deploy.consortium.setting_up import SILOS, admitted, consortium_file, joined, set_up
from tests.docs.test_deployment import shake_hands

PARTIES = ("server", *SILOS, "a", "b")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("consortium")
    kits, homes = joined(root)
    path, roster = admitted(root, kits)
    for home in homes.values():
        accept(path, home, roster.fingerprint)
    return root, kits, homes, path, roster


def secrets_in(folder):
    """The bytes of every file that only its owner may read and that is a key, by its path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = ("sign.key", "seal.key", "node.key", "link.key", "loopback.key", "shuffler.key", "server.key")
    names += ("proposer.key", "executor.secret", "ca.key")
    return {path: path.read_bytes() for path in files if path.name in names}


def test_no_kit_reply_or_roster_holds_a_secret_of_anybody(world):
    root, kits, homes, _, _ = world
    owned = {name: secrets_in(folder) for name, folder in {**homes, "authority": kits["authority"]}.items()}
    assert {name: len(found) for name, found in owned.items()} == {
        "authority": 1,
        "server": 5,
        **dict.fromkeys(SILOS, 2),
        **dict.fromkeys("ab", 3),
    }
    public = [*root.glob("replies/*"), root / "roster.toml"]
    for name in PARTIES:
        public += [path for path in kits[name].rglob("*") if path.is_file()]
    assert len(public) > 40
    for path in public:
        text = path.read_bytes()
        assert b"PRIVATE KEY" not in text, path
        for found in owned.values():
            for secret in found.values():
                assert secret not in text, path
                assert secret.hex().encode() not in text, path


def test_no_home_holds_a_secret_of_another_party(world):
    _, kits, homes, _, _ = world
    everything = {name: secrets_in(folder) for name, folder in {**homes, "authority": kits["authority"]}.items()}
    for name, folder in homes.items():
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        for other, found in everything.items():
            if other != name:
                assert not [1 for secret in found.values() for text in files if secret in text], (name, other)


def test_only_owners_can_read_what_join_and_accept_have_written(world):
    _, _, homes, _, _ = world
    for home in homes.values():
        for path in home.rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            public = path.suffix in (".pem", ".pub") or path.parent == home
            assert mode & 0o077 == 0 or public or (path.name == "silo" and mode == 0o710), path
            assert not mode & 0o022, path
    for name in SILOS:
        folder = homes[name] / "silo"
        check_silo(folder, files_of(folder, load_policy(folder / "policy.toml"), homes[name] / "counter" / "counter"))


def test_permissions_after_join_pass_check(world):
    _, _, homes, _, roster = world
    for name, home in homes.items():
        found = check(home)
        # Nothing runs here, and the addresses are made up.
        assert {row.what for row in found if row.state == "wrong"} <= {"port"}, (name, found)
        assert [row for row in found if row.what == "permissions" and row.state == "ok"], (name, found)
        assert roster.fingerprint in next(row.text for row in found if row.what == "roster")
    assert {"entropy", "disk", "version", "certificate", "schema", "pins", "courier", "port", "fingerprint"} <= {
        row.what for row in check(homes["oslo"])
    }


def test_check_finds_what_is_wrong(world, tmp_path):
    homes = set_up(tmp_path, channels=["direct"], shufflers=None)
    (homes["oslo"] / "silo" / "records.csv").chmod(0o644)
    wrong = [row for row in check(homes["oslo"]) if row.state == "wrong"]
    assert [row.what for row in wrong if "chmod 600" in row.text] == ["permissions"]
    schema = homes["bergen"] / "silo" / "schema.toml"
    schema.write_text(schema.read_text().replace("high = 100", "high = 120"))
    assert "schema" in {row.what for row in check(homes["bergen"]) if row.state == "wrong"}
    policy = homes["tromso"] / "silo" / "policy.toml"
    policy.write_text(policy.read_text().partition(MARK)[0])
    assert "pins" in {row.what for row in check(homes["tromso"]) if row.state == "wrong"}


def test_root_looks_with_the_home_of_the_partys_user_and_decides_as_that_user(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root looks as others")
    homes = set_up(tmp_path, channels=["direct"], shufflers=None)
    for name in ("silo", "courier"):
        os.chown(homes["oslo"] / name, 10001, 10001)
    asked = []

    def run(command, **terms):
        asked.append(terms)
        return subprocess.CompletedProcess(command, 0, "[]", "")

    monkeypatch.setattr("tacit.deploy.consortium.checking.subprocess.run", run)
    check(homes["oslo"])
    looked = [terms for terms in asked if "env" in terms]
    assert [terms["env"]["HOME"] for terms in looked] == [str(homes["oslo"] / name) for name in ("silo", "courier")]
    assert {terms["user"] for terms in looked} == {10001}
    row = {"approved": False, "study": "9" * 64}
    os.chown(homes["tromso"] / "silo", pwd.getpwnam("nobody").pw_uid, -1)
    as_number = "setpriv --reuid 10001 --regid 10001 --clear-groups tacit"
    for name, words in (("oslo", as_number), ("tromso", "runuser -u nobody -- tacit"), ("bergen", "tacit")):
        folder = homes[name] / "silo"
        assert _commands(row, folder)["approve"] == f"{words} silo approve {folder} {row['study']}"


def test_everybody_pins_the_others_keys_and_nobody_elses(world):
    _, _, homes, _, roster = world
    signs = {name: member.sign for name, member in roster.members.items()}
    for name in SILOS:
        policy = load_policy(homes[name] / "silo" / "policy.toml")
        assert policy.proposers == {"university": signs["server"]}
        assert policy.pairwise.peers == {other: signs[other] for other in SILOS if other != name}
        assert policy.shuffle.shufflers == {other: roster.members[other].seal for other in "ab"}
        assert Signer((homes[name] / "silo" / "sign.key").read_bytes()).public == signs[name]
    terms = load_terms(homes["b"] / "shuffler")
    assert terms.silos == {name: signs[name] for name in SILOS}
    assert (terms.callers, terms.before, terms.layer) == ({"university": signs["server"]}, {"a": signs["a"]}, 1)
    known = tomllib.loads((homes["server"] / "proposer" / "keys" / "proposer.toml").read_text())
    assert known == {"name": "university", "silos": {name: signs[name] for name in SILOS}}


def test_certificates_are_for_the_hosts_of_the_coordinator_alone(world):
    _, _, homes, _, _ = world
    link = homes["server"] / "link"
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(link / "link.pem", link / "link.key")
    theirs = ssl.create_default_context(cafile=str(homes["oslo"] / "ca.pem"))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(ours, theirs, "server.example.org") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ours, theirs, "a.example.org")


def test_a_roster_with_another_key_is_refused_by_its_owner_and_by_the_telephone(world, tmp_path):
    _, _, homes, path, roster = world
    stolen = roster.members["oslo"].model_copy(update={"sign": Signer(new_signing_key()).public})
    forged = roster.model_copy(update={"members": {**roster.members, "oslo": stolen}})
    (tmp_path / "roster.toml").write_text(roster_text(forged))
    before = (homes["bergen"] / "silo" / "policy.toml").read_bytes()
    # Whoever was told the true fingerprint notices; whoever was told the false one is the owner of the key.
    with pytest.raises(TacitError, match="another fingerprint"):
        accept(tmp_path / "roster.toml", homes["bergen"], roster.fingerprint)
    with pytest.raises(TacitError, match="another key of oslo"):
        accept(tmp_path / "roster.toml", homes["oslo"], forged.fingerprint)
    assert (homes["bergen"] / "silo" / "policy.toml").read_bytes() == before
    assert read_roster(path).fingerprint == roster.fingerprint


def test_a_fingerprint_is_typed_as_it_is_heard_and_a_wrong_row_is_named(world):
    _, _, homes, path, roster = world
    rows = roster.rows
    assert [len(row.split()) for row in rows] == [4, 4, 4]
    for typed in (roster.fingerprint, "".join(rows).upper(), "\n".join(rows), roster.fingerprint.replace(" ", "")):
        assert misheard(typed, roster) == []
    other = rows[1][:-1] + ("0" if rows[1][-1] != "0" else "1")
    assert misheard(" ".join([rows[0], other, rows[2]]), roster) == [2]
    assert misheard(roster.fingerprint + "0", roster) == [3]
    assert misheard("", roster) == misheard("0" + roster.fingerprint, roster) == [1, 2, 3]
    with pytest.raises(TacitError, match="in row 2"):
        accept(path, homes["oslo"], " ".join([rows[0], other, rows[2]]))
    for typed in ("\n".join(rows), roster.fingerprint):
        command = ["consortium", "accept", str(path), "--home", str(homes["oslo"])]
        done = CliRunner().invoke(get_command(app), command, input=f"{typed}\n", catch_exceptions=False)
        assert (done.exit_code, "Pinned the keys" in done.output) == (0, True), done.output


@pytest.mark.parametrize("runs", [True, False])
def test_who_joins_is_told_what_starts_the_services(world, tmp_path, monkeypatch, runs):
    _, kits, homes, _, _ = world
    monkeypatch.setattr("tacit.deploy.consortium.joining.has_systemd", lambda: runs)
    monkeypatch.setattr("tacit.deploy.consortium.joining.UNITS", tmp_path / "none")
    for party in PARTIES:
        own, _ = own_services(kits[party], party)
        told = starting(homes[party], "users")
        if runs:
            assert told[0].endswith(f"systemctl enable --now {' '.join(service.name for service in own)}")
            continue
        assert told[0].startswith("No units were installed, and no systemd runs here")
        typed = [line.strip().replace(str(homes[party]), str(pages.HOMES / party)).split(" -- ") for line in told[1:]]
        assert [user for user, _ in typed] == [f"runuser -u {service.user}" for service in own]
        assert [words.split()[1:] for _, words in typed] == [list(service.words) for service in own]
        assert not any("runuser" in line for line in starting(homes[party], "mine"))
        assert "docker compose up" in starting(homes[party], "containers")[0]


@pytest.mark.parametrize("field", ["authority", "schema_digest", "edition"])
def test_a_roster_of_others_or_of_before_is_refused(world, tmp_path, field):
    _, _, homes, _, roster = world
    changed = roster.model_copy(update={field: 1 if field == "edition" else "x"})
    (tmp_path / "roster.toml").write_text(roster_text(changed))
    with pytest.raises(TacitError, match=r"authority|schema|older"):
        accept(tmp_path / "roster.toml", homes["a"], changed.fingerprint)


@pytest.mark.parametrize("share", [None, 0.0])
def test_records_are_set_aside_unless_the_terms_say_otherwise(tmp_path, share):
    homes = set_up(tmp_path, validation=share)
    policy = load_policy(homes["oslo"] / "silo" / "policy.toml")
    assert policy.data.validation == (0.2 if share is None else 0.0)
    assert ("validation" in policy.allow.algorithms) == (share is None)


def test_what_an_owner_has_edited_stays_when_a_new_roster_comes(tmp_path):
    kits, homes = joined(tmp_path)
    path, roster = admitted(tmp_path, kits)
    policy = homes["oslo"] / "silo" / "policy.toml"
    policy.write_text(policy.read_text().replace("epsilon = 4.0", "epsilon = 2.5  # as the board decided"))
    for _ in range(2):
        accept(path, homes["oslo"], roster.fingerprint)
    assert load_policy(policy).budget.epsilon == 2.5
    assert policy.read_text().count(MARK) == 1
    assert "as the board decided" in policy.read_text()


def test_somebody_new_gets_a_kit_and_everybody_else_keeps_theirs(tmp_path):
    kits, homes = joined(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "kits").rglob("*") if path.is_file()}
    path = tmp_path / "clinics" / "consortium.toml"
    path.write_text(path.read_text().replace('"tromso",', '"tromso", "bodo",'))
    made = init(path, tmp_path / "kits")
    assert sorted(made) == ["authority", "bodo"]
    changed = {path.name for path, text in before.items() if path.read_bytes() != text}
    assert changed <= {"consortium.toml", "README.md"}
    home, reply = join(made["bodo"], tmp_path / "homes" / "bodo", tmp_path / "clinics" / "oslo.csv", whose="mine")
    (tmp_path / "replies" / "bodo.reply.toml").write_text(tomli_w.dumps(reply))
    path, roster = admitted(tmp_path, kits)
    for place in (*homes.values(), home):
        accept(path, place, roster.fingerprint)
    assert "bodo" in load_policy(homes["oslo"] / "silo" / "policy.toml").pairwise.peers
    assert "bodo" in load_terms(homes["a"] / "shuffler").silos
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(TacitError, match="not empty"):
        init(tmp_path / "clinics" / "consortium.toml", tmp_path / "else")


def test_joining_again_keeps_keys_and_records(tmp_path):
    kits, homes = joined(tmp_path)
    first = (tmp_path / "replies" / "oslo.reply.toml").read_text()
    key = (homes["oslo"] / "silo" / "sign.key").read_bytes()
    place, reply = join(kits["oslo"], homes["oslo"], None, whose="mine")
    assert (place, reply) == (homes["oslo"], tomllib.loads(first))
    assert (homes["oslo"] / "silo" / "sign.key").read_bytes() == key


def test_a_request_that_another_key_has_signed_is_not_certified(tmp_path):
    kits, _ = joined(tmp_path)
    path = tmp_path / "replies" / "server.reply.toml"
    text = path.read_text()
    at = text.index("-----END") - 40
    path.write_text(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :])
    with pytest.raises(TacitError, match="signed with its own key"):
        admit([tmp_path / "replies"], kits["authority"])


def test_replies_of_all_parties_are_needed(tmp_path):
    kits, _ = joined(tmp_path)
    (tmp_path / "replies" / "oslo.reply.toml").unlink()
    with pytest.raises(TacitError, match=r"missing: oslo\."):
        admit([tmp_path / "replies"], kits["authority"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"silos": ["oslo", "server", "bergen"]}, "other names"),
        ({"silos": ["Oslo", "oslo", "bergen"]}, "other names"),
        ({"shufflers": {"a": {"host": "a"}}}, "at least twice"),
        ({"channels": ["direct"]}, "leave .shufflers. out"),
        ({"colluding": 3}, "colluding=3 < 3"),
        ({"colluding": 0}, "colluding >= 1"),
        ({"channels": ["pairwise", "shuffled-reports"]}, "leaves as a shuffled sum"),
        ({"colour": "blue"}, "Unknown key"),
        ({"server": {"host": "x", "prot": 1}}, "did you mean 'port'"),
    ],
)
def test_terms_that_cannot_be_meant_are_refused(tmp_path, changes, words):
    with pytest.raises(TacitError, match=words):
        init(consortium_file(tmp_path, **changes), tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


def test_a_silo_joins_with_its_records_and_says_what_is_wrong_with_them(tmp_path):
    kits = init(consortium_file(tmp_path), tmp_path / "kits")
    with pytest.raises(TacitError, match="--records"):
        join(kits["oslo"], tmp_path / "home", None, whose="mine")
    (tmp_path / "bad.csv").write_text("age\n5\n")
    with pytest.raises(TacitError, match=r"bad\.csv"):
        join(kits["oslo"], tmp_path / "home", tmp_path / "bad.csv", whose="mine")
    assert not (tmp_path / "home").exists()


def own_services(kit, party):
    tree = tomllib.loads((kit / "kit.toml").read_text())
    terms, home = consortium_from(tree["consortium"]), pages.HOMES / party
    return services(terms, party, home), watcher(terms, party, home)


def unit_of(kit, service):
    text = (kit / "units" / f"{service.name}.service").read_text()
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_units_start_the_commands_of_their_services_shut_in(world):
    _, kits, _, _, _ = world
    for party in PARTIES:
        own, watches = own_services(kits[party], party)
        assert len(list((kits[party] / "units").iterdir())) == len(own) + 1
        for service in (*own, watches):
            lines = unit_of(kits[party], service)
            assert lines["ExecStart"].split() == [pages.INSTALLED, *service.words]
            assert lines["User"] == service.user
            assert lines["WantedBy"] == "multi-user.target"
            assert {lines[key] for key in ("NoNewPrivileges", "PrivateUsers", "ProtectHome")} == {"yes"}
            assert lines["ProtectSystem"] == "strict"
            assert lines.get("PrivateNetwork") == ("yes" if service.network == "none" else None)
            assert lines.get("ReadWritePaths", "").split() == list(map(str, service.writes))


def test_a_watcher_can_open_neither_records_nor_keys_and_reaches_no_other_machine(world):
    _, kits, homes, _, _ = world
    for party in PARTIES:
        watches = own_services(kits[party], party)[1]
        lines = unit_of(kits[party], watches)
        assert (lines["IPAddressDeny"], lines["IPAddressAllow"]) == ("any", "localhost")
        assert lines["EnvironmentFile"] == f"-{pages.HOMES / party / 'watch.env'}"
        kit = tomllib.loads((kits[party] / "kit.toml").read_text())
        settings = pages.watching(consortium_from(kit["consortium"]), party, pages.HOMES / party).splitlines()
        assert watches.name in settings[0]
        words = get_command(app).commands[watches.words[0]].commands["watch"].params
        assert {line[2:].split("=")[0] for line in settings[1:]} == {one.envvar for one in words if one.envvar}
        hidden = [Path(word.removeprefix("-")) for word in lines["InaccessiblePaths"].split()]
        # All that is a secret of the user whom it runs as, or a record.
        part = watches.writes[0].relative_to(pages.HOMES / party).parts[0]
        secrets = [path.relative_to(homes[party]) for path in secrets_in(homes[party] / part)]
        secrets += [Path("silo/records.csv")] * (party in SILOS)
        for secret in secrets:
            assert any((pages.HOMES / party / secret).is_relative_to(path) for path in hidden), secret


COMPOSED = {"image", "build", "command", "user", "restart", "read_only", "tmpfs", "environment", "cap_drop"}
COMPOSED |= {"security_opt", "volumes"}


def test_the_compose_file_starts_the_commands_of_the_services_shut_in(world):
    """Against the structure of compose files, as its specification names it: nothing else is in them."""
    _, kits, _, _, _ = world
    for party in PARTIES:
        own, _ = own_services(kits[party], party)
        tree = yaml.safe_load((kits[party] / "compose.yaml").read_text())
        assert sorted(tree) == ["name", "services"]
        assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", tree["name"])
        assert sorted(tree["services"]) == sorted(service.name for service in own)
        for service in own:
            container = tree["services"][service.name]
            assert COMPOSED <= set(container) <= COMPOSED | {"network_mode", "ports"}
            assert container["image"] == f"tacit:{__version__}"
            assert (kits[party] / container["build"]["dockerfile"]).is_file()
            assert container["build"]["context"] == "."
            assert container["command"] == list(service.words)
            assert container["user"] in ("10001:10001", "10002:10001")
            assert container["user"].startswith("10001") == service.first
            assert (container["read_only"], container["restart"], container["cap_drop"]) == (True, "always", ["ALL"])
            assert container["security_opt"] == ["no-new-privileges:true"]
            mounts = [volume.split(":") for volume in container["volumes"]]
            assert all(len(parts) in (2, 3) and parts[0] == parts[1] for parts in mounts)
            assert all(Path(parts[0]).is_relative_to(pages.HOMES / party) for parts in mounts)
            assert {parts[0] for parts in mounts if parts[2:] != ["ro"]} == set(map(str, service.writes))
            home = Path(container["environment"]["HOME"])
            assert home in service.writes or str(home) in container["tmpfs"]
            for path in [word for word in service.words if word.startswith("/")]:
                assert any(Path(path).is_relative_to(parts[0]) for parts in mounts), path


def test_containers_open_the_ports_of_front_and_shufflers_and_no_other(world):
    _, kits, _, _, _ = world
    for party in PARTIES:
        own, _ = own_services(kits[party], party)
        tree = yaml.safe_load((kits[party] / "compose.yaml").read_text())
        modes = {name: found.get("network_mode") for name, found in tree["services"].items()}
        open_ports = [port for found in tree["services"].values() for port in found.get("ports", [])]
        assert {service.name for service in own if service.network == "none"} == {
            name for name, mode in modes.items() if mode == "none"
        }
        if party == "server":
            # On the host's network, where the SuperLink's own port listens on loopback: a published one would not.
            assert (list(modes.values()), open_ports) == (["host"], [])
            words = own[0].words
            assert words[words.index("--host") + 3] != words[words.index("--control-port") + 1]
        else:
            assert "host" not in modes.values()
            assert open_ports == {"a": ["9400:9400"], "b": ["9401:9401"]}.get(party, [])


def test_the_image_installs_a_file_and_no_package_of_another_with_this_name(world):
    _, kits, _, _, _ = world
    lines = (kits["oslo"] / "Containerfile").read_text().splitlines()
    [install] = [line for line in lines if "pip install" in line]
    assert f'"/tmp/tacit-{__version__}-py3-none-any.whl[flower]"' in install
    assert f"COPY tacit-{__version__}-py3-none-any.whl /tmp/" in lines
    assert 'ENTRYPOINT ["tacit"]' in lines


def test_who_joins_with_containers_gets_files_of_this_tacit_and_not_of_the_kit(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root gives files to containers' users")
    kits = init(consortium_file(tmp_path), tmp_path / "kits")
    (kits["oslo"] / "compose.yaml").write_text("services: {}")
    home, _ = join(kits["oslo"], tmp_path / "oslo", tmp_path / "clinics" / "oslo.csv", whose="containers")
    made = home / "containers"
    tree = yaml.safe_load((made / "compose.yaml").read_text())
    assert len(tree["services"]) == 2
    # Nothing else is handed to whoever builds the image.
    assert {path.name for path in made.iterdir()} == {"compose.yaml", "Containerfile"}
    assert (made / "Containerfile").read_text() == (kits["oslo"] / "Containerfile").read_text()
    assert {(home / name).stat().st_uid for name in ("silo", "courier")} == {10001, 10002}
    assert (made / "compose.yaml").stat().st_uid == 0


def test_a_readme_has_at_most_five_commands(world):
    _, kits, _, _, _ = world
    for party in PARTIES:
        lines = (kits[party] / "README.md").read_text().splitlines()
        commands = [line.strip() for line in lines if line.startswith("       ")]
        assert 4 <= len(commands) <= 5, party
        assert commands[0].startswith("tacit consortium join .")


def test_systemd_finds_nothing_wrong_with_the_units(world, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    _, kits, _, _, _ = world
    for path in [path for party in ("oslo", "server", "a") for path in kits[party].glob("units/*.service")]:
        own = tmp_path / path.name
        # The user and the command are not on this machine.
        own.write_text(path.read_text().replace(pages.INSTALLED, "/bin/true").replace("User=tacit", "User=root\n#"))
        done = subprocess.run(["systemd-analyze", "verify", str(own)], capture_output=True, text=True)
        said = [line for line in done.stderr.splitlines() if path.name in line]
        assert not said, said
