"""Kits, replies and rosters from somebody who wants more than to take part, and links put where root will look."""

import base64
import shutil
import ssl
import tomllib
from pathlib import Path

import pytest
import tomli_w
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.deploy.consortium import checking, pages
from tacit.deploy.consortium.accepting import accept
from tacit.deploy.consortium.joining import join
from tacit.deploy.consortium.kits import init, read_kit
from tacit.deploy.consortium.roster import admit, read_roster
from tacit.deploy.consortium.terms import account_name
from tacit.deploy.consortium.trial import _silos
from tacit.deploy.flower.private import registered_key
from tacit.errors import TacitError
from tests.deploy.consortium.setting_up import admitted, consortium_file, joined
from tests.docs.test_deployment import shake_hands


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    kits, homes = joined(root)
    path, roster = admitted(root, kits)
    return root, kits, homes, path, roster


def changed(path, out, change):
    """A TOML file with something changed in it."""
    tree = tomllib.loads(path.read_text())
    change(tree)
    out.write_text(tomli_w.dumps(tree))
    return out


@pytest.mark.parametrize("host", ["h\nExecStartPre=+/bin/sh -c id\n#", "h ; id", "h%n", "h$PATH", "-h", "h\\", "h'"])
def test_a_host_in_a_kit_says_nothing_more_to_a_unit(world, tmp_path, host):
    _, kits, _, _, _ = world
    shutil.copytree(kits["oslo"], tmp_path / "oslo")
    kit = tmp_path / "oslo" / "kit.toml"
    changed(kit, kit, lambda tree: tree["consortium"]["server"].update(host=host))
    with pytest.raises(TacitError, match="host"):
        read_kit(tmp_path / "oslo")


@pytest.mark.parametrize("home", ["/srv/a b", "/srv/a\nUser=root", "/srv/%h", '/srv/"'])
def test_units_name_plain_paths_alone(world, home):
    _, kits, _, _, _ = world
    with pytest.raises(TacitError, match="what units say"):
        pages.units(read_kit(kits["oslo"]).terms, "oslo", Path(home))


@pytest.mark.parametrize("name", ["authority", "bergen-courier", "server.proposer"])
def test_no_party_is_called_like_the_authority_or_another_partys_user(tmp_path, name):
    with pytest.raises(TacitError, match="other names"):
        init(consortium_file(tmp_path, silos=["bergen", "oslo", name]), tmp_path / "kits")


def test_another_certificate_beside_the_kit_is_not_trusted(world, tmp_path):
    root, kits, _, _, roster = world
    shutil.copytree(kits["oslo"], tmp_path / "oslo")
    (tmp_path / "oslo" / "ca.pem").write_text("another authority's")
    home, _ = join(tmp_path / "oslo", tmp_path / "home", root / "clinics" / "oslo.csv", whose="mine")
    assert (home / "ca.pem").read_text() == roster.authority


def test_join_and_accept_read_no_file_through_a_link_of_the_courier(tmp_path):
    kits, homes = joined(tmp_path)
    path, roster = admitted(tmp_path, kits)
    public = homes["oslo"] / "courier" / "node.key.pub"
    public.unlink()
    public.symlink_to(homes["oslo"] / "silo" / "records.csv")
    with pytest.raises(OSError, match=r"node\.key\.pub"):
        join(kits["oslo"], homes["oslo"], None, whose="mine")
    with pytest.raises(OSError, match=r"node\.key\.pub"):
        accept(path, homes["oslo"], roster.fingerprint)


@pytest.mark.parametrize("field", ["tacit", "node", "colour\x1b[2J"])
def test_a_reply_with_other_texts_than_it_needs_is_refused(world, tmp_path, field):
    root, kits, _, _, _ = world
    replies = shutil.copytree(root / "replies", tmp_path / "replies")
    own = replies / "oslo.reply.toml"
    changed(own, own, lambda tree: tree.update({field: "age,target\n61,1\n\x1b[2J"}))
    with pytest.raises(TacitError, match=field[:6]) as told:
        admit([replies], kits["authority"])
    assert "\x1b" not in str(told.value)


def test_a_node_key_that_no_front_could_read_is_refused(world, tmp_path):
    """A point written short has the form of a key, and stopped the front that was to let everybody's nodes in."""
    root, kits, _, _, _ = world
    point = ec.generate_private_key(ec.SECP384R1()).public_key()
    short = point.public_bytes(forms.Encoding.X962, forms.PublicFormat.CompressedPoint)
    fields = (b"ecdsa-sha2-nistp384", b"nistp384", short)
    text = base64.b64encode(b"".join(len(field).to_bytes(4, "big") + field for field in fields)).decode()
    with pytest.raises(TacitError, match="public key"):
        registered_key(f"ecdsa-sha2-nistp384 {text}".encode())
    replies = shutil.copytree(root / "replies", tmp_path / "replies")
    own = replies / "oslo.reply.toml"
    changed(own, own, lambda tree: tree.update(node=f"ecdsa-sha2-nistp384 {text}"))
    with pytest.raises(TacitError, match="oslo has no node key"):
        admit([replies], kits["authority"])


def test_two_replies_of_one_party_are_not_chosen_between(world, tmp_path):
    root, kits, _, _, _ = world
    replies = shutil.copytree(root / "replies", tmp_path / "replies")
    shutil.copy(replies / "oslo.reply.toml", replies / "zz.reply.toml")
    with pytest.raises(TacitError, match="several name oslo"):
        admit([replies], kits["authority"])


def test_the_fingerprint_covers_the_order_of_shufflers(world, tmp_path):
    _, _, homes, path, roster = world

    def turn(tree):
        tree["consortium"]["shufflers"] = dict(reversed(tree["consortium"]["shufflers"].items()))

    turned = changed(path, tmp_path / "roster.toml", turn)
    assert list(read_roster(turned).consortium.shufflers) == ["b", "a"]
    with pytest.raises(TacitError, match="another fingerprint"):
        accept(turned, homes["b"], roster.fingerprint)
    again = changed(path, tmp_path / "again.toml", lambda tree: None)
    assert read_roster(again).fingerprint == roster.fingerprint


def _add(tree):
    tree["members"]["mallory"] = dict(tree["members"]["oslo"], sign=tree["members"]["bergen"]["sign"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_add, "nobody else"),
        (lambda tree: tree["members"].pop("server"), "nobody else"),
        (lambda tree: tree["members"]["oslo"].update(kind="shuffler"), "nobody else"),
        (lambda tree: tree["members"]["oslo"].update(sign=tree["members"]["bergen"]["sign"]), "another signing key"),
        (lambda tree: tree["members"]["oslo"].update(node=tree["members"]["bergen"]["node"]), "another node key"),
        (lambda tree: tree["members"]["a"].pop("seal"), "keys and certificates of a shuffler for a"),
        (lambda tree: tree["members"]["server"]["certificates"].pop("front"), "certificates of a server"),
    ],
)
def test_a_roster_that_is_not_whole_is_refused(world, tmp_path, change, words):
    _, _, _, path, _ = world
    with pytest.raises(TacitError, match=words):
        read_roster(changed(path, tmp_path / "roster.toml", change))


def test_a_callers_certificate_is_no_servers(world):
    _, _, homes, path, roster = world
    accept(path, homes["server"], roster.fingerprint)
    own = homes["server"] / "proposer"
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(own / "server.pem", own / "server.key")
    theirs = ssl.create_default_context(cafile=str(homes["oslo"] / "ca.pem"))
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake_hands(ours, theirs, "localhost")


def test_accept_writes_into_no_folder_that_is_a_link(tmp_path):
    kits, homes = joined(tmp_path)
    path, roster = admitted(tmp_path, kits)
    keys = homes["server"] / "proposer" / "keys"
    keys.rename(tmp_path / "elsewhere")
    keys.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="keys"):
        accept(path, homes["server"], roster.fingerprint)
    assert not (tmp_path / "elsewhere" / "proposer.toml").exists()


def test_whoever_has_the_wrong_fingerprint_is_not_told_the_right_one(world):
    _, _, homes, path, roster = world
    with pytest.raises(TacitError, match="another fingerprint") as told:
        accept(path, homes["oslo"], "0000")
    assert roster.fingerprint not in str(told.value)


@pytest.mark.parametrize("told", ["\x1b[2J", "Mon, 99 Foo", "Mon, 01 Jan 2024 00:00:00 -0000", ""])
def test_a_server_without_a_clock_is_looked_at_all_the_same(monkeypatch, world, told):
    class Line:
        def __init__(self, *_, **__):
            pass

        def request(self, *_):
            pass

        close = request

        def getresponse(self):
            return self

        def getheader(self, _, other=None):
            return told or other

    monkeypatch.setattr(checking.http.client, "HTTPSConnection", Line)
    assert [row.what for row in checking._reached("h", 1, world[4].authority)] == ["port"]


def test_no_user_has_a_name_that_systems_refuse():
    longest = account_name("x" * 64)
    assert max(len(f"{longest}-courier"), len(f"{account_name('server')}-proposer")) <= 32


def test_no_file_of_a_trial_takes_the_place_of_another(tmp_path):
    for name in ("town 1.csv", "town-1.csv", "b.csv"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(TacitError, match=r"rename town"):
        _silos(tmp_path)
