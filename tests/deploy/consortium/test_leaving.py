"""Who leaves is asked nothing any more, and what was spent stays spent."""

import subprocess
import tomllib

import pytest
import tomli_w
from click.testing import CliRunner
from typer.main import get_command

from tacit.cli import app
from tacit.cli.status import approve
from tacit.deploy.client import Client
from tacit.deploy.consortium import joining, pages
from tacit.deploy.consortium.accepting import MARK, accept
from tacit.deploy.consortium.checking import check
from tacit.deploy.consortium.joining import join, reply_text
from tacit.deploy.consortium.kits import init, read_kit
from tacit.deploy.consortium.leaving import leave
from tacit.deploy.shuffler.config import load_terms
from tacit.deploy.signing import Proposer, Signer
from tacit.deploy.silo.policy import load_description, load_policy, load_records
from tacit.deploy.silo.service import SiloService, home_of
from tacit.deploy.wire import Hello, Propose, RefusalError
from tacit.errors import TacitError
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect, waiting
from tests.deploy.consortium.setting_up import admitted, joined
from tests.deploy.silo.consortium import LocalClient, plan_of


@pytest.fixture
def world(tmp_path):
    kits, homes = joined(tmp_path)
    path, roster = admitted(tmp_path, kits)
    for home in homes.values():
        accept(path, home, roster.fingerprint)
    return kits, homes, roster


def served(home):
    folder = home / "silo"
    policy = load_policy(folder / "policy.toml")
    records = load_records(policy, folder)
    return SiloService(policy, records, home_of(folder, policy), description=load_description(policy, folder, records))


def asking(service, homes):
    """The proposer of the roster, as the daemon hears it."""
    key = homes["server"] / "proposer" / "keys" / "proposer.key"
    client = LocalClient(service)
    Client.__init__(
        client, service.home.socket, proposer=Proposer("university", Signer(key.read_bytes())), silo=service.policy.name
    )
    return client


def test_a_silo_that_leaves_hears_nobody_and_its_ledger_stays(world, tmp_path):
    _, homes, _ = world
    home, folder = homes["oslo"], homes["oslo"] / "silo"
    service = served(home)
    client = asking(service, homes)
    told, _ = client.ask(Hello())
    facts = {"features": told.features, "task": told.task, "classes": told.classes, "silos": 3}
    facts |= {"schema_digest": told.schema_digest, "proposer": "university"}
    opened, asked = (plan_of({"name": "mb-sgd"}, name=name, **facts) for name in ("opened", "asked"))
    client.ask(Propose(plan=opened))
    approve(folder, opened.study)
    client.ask(Propose(plan=opened))
    client.ask(Propose(plan=asked))
    counter = home / "counter" / "counter"
    before = inspect(folder / "ledger.sqlite"), counter.read_bytes(), (folder / "records.csv").read_bytes()
    for _ in range(2):
        left = leave(home, "the board decided so")
    assert (inspect(folder / "ledger.sqlite"), counter.read_bytes(), (folder / "records.csv").read_bytes()) == before
    assert any("unregister oslo" in line for line in left.others)
    assert any("spent stays spent" in line for line in left.remains)
    with pytest.raises(RefusalError) as refused:
        client.ask(Hello())
    assert refused.value.code == "proposer"
    service.close()
    # What was decided is written down when the daemon next starts.
    served(home).close()
    entries = inspect(folder / "ledger.sqlite")
    assert entries[: len(before[0])] == before[0]
    assert not any(account.live for account in replay(entries).values())
    assert waiting(folder / "ledger.sqlite") == {}
    assert [e.data["note"] for e in entries if e.data.get("note")] == ["the board decided so"] * 2
    assert [row.what for row in check(home) if row.state == "wrong"] == ["left"]


def test_who_joins_again_has_the_same_ledger_and_another_node_key(world, tmp_path):
    kits, homes, roster = world
    home = homes["oslo"]
    served(home).close()
    first = inspect(home / "silo" / "ledger.sqlite")
    leave(home)
    with pytest.raises(TacitError, match="join again first"):
        accept(tmp_path / "roster.toml", home, roster.fingerprint)
    _, reply = join(kits["oslo"], home, None, whose="mine")
    (tmp_path / "replies" / "oslo.reply.toml").write_text(reply_text(reply))
    with pytest.raises(TacitError, match=r"another key of oslo than the one made here \(node\)"):
        accept(tmp_path / "roster.toml", home, roster.fingerprint)
    path, fresh = admitted(tmp_path, kits)
    accept(path, home, fresh.fingerprint)
    assert load_policy(home / "silo" / "policy.toml").proposers == {"university": roster.members["server"].sign}
    served(home).close()
    assert inspect(home / "silo" / "ledger.sqlite")[: len(first)] == first


def test_the_others_go_on_without_who_has_left(world, tmp_path):
    kits, homes, _ = world
    leave(homes["oslo"])
    path = tmp_path / "clinics" / "consortium.toml"
    path.write_text(path.read_text().replace('"oslo",', ""))
    assert sorted(init(path, tmp_path / "kits")) == ["authority"]
    path, roster = admitted(tmp_path, kits)
    for name in ("server", "bergen", "tromso", "a", "b"):
        accept(path, homes[name], roster.fingerprint)
    assert sorted(load_policy(homes["bergen"] / "silo" / "policy.toml").pairwise.peers) == ["tromso"]
    assert "oslo" not in load_terms(homes["a"] / "shuffler").silos
    assert "oslo" not in tomllib.loads((homes["server"] / "link" / "nodes.toml").read_text())["nodes"]


def test_a_shuffler_that_leaves_hears_no_caller_and_a_server_says_what_follows(world):
    _, homes, _ = world
    done = CliRunner().invoke(get_command(app), ["consortium", "leave", str(homes["a"])], input="y\n")
    assert (done.exit_code, "Shall a leave clinics?" in done.output) == (0, True), done.output
    assert load_terms(homes["a"] / "shuffler").callers == {}
    assert "accepts a roster with another server" in leave(homes["server"]).others[0]


def test_proposers_that_an_owner_has_named_by_hand_are_not_left_behind(world):
    _, homes, _ = world
    path = homes["oslo"] / "silo" / "policy.toml"
    above, mark, below = path.read_text().partition("# Pinned")
    pins = tomllib.loads(mark + below)
    others = tomli_w.dumps({name: table for name, table in pins.items() if name != "proposers"})
    path.write_text(f'{above}[proposers]\nelse = "{Signer(bytes(32)).public}"\n\n{MARK}\n{others}')
    with pytest.raises(TacitError, match="names proposers that no roster has pinned: else"):
        leave(homes["oslo"])
    assert not (homes["oslo"] / "left.toml").exists()


def test_units_of_this_home_are_stopped_and_removed_and_no_others(world, tmp_path, monkeypatch):
    _, homes, _ = world
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.fchown", lambda *_: None)
    monkeypatch.setattr(joining, "UNITS", tmp_path / "units")
    monkeypatch.setattr(joining, "has_systemd", lambda: True)
    typed = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: typed.append(command))
    (tmp_path / "units").mkdir()
    for place, home in (("oslo", homes["oslo"]), ("bergen", tmp_path / "elsewhere")):
        for name, text in pages.units(read_kit(homes[place]).terms, place, home).items():
            (tmp_path / "units" / name).write_text(text)
    for name in ("oslo", "bergen"):
        leave(homes[name])
    names = ["tacit-oslo", "tacit-oslo-courier", "tacit-oslo-watch"]
    assert typed == [["systemctl", "disable", "--now", *names], ["systemctl", "daemon-reload"]]
    assert sorted(path.stem for path in (tmp_path / "units").iterdir()) == [
        *("tacit-bergen", "tacit-bergen-courier", "tacit-bergen-watch")
    ]
