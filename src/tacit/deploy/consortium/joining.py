"""``tacit consortium join``: a party's users, folders and private keys, made where they stay, and its public reply."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from tacit import __version__
from tacit.data.csv_silos import silo_records
from tacit.data.schema import public_schema
from tacit.deploy.consortium import pages
from tacit.deploy.consortium.accounts import Accounts, Whose, accounts_for, folder, give, put, text_of
from tacit.deploy.consortium.certificates import requested, write_public
from tacit.deploy.consortium.kits import LEFT, Kit, data_section, description, read_kit, read_text
from tacit.deploy.consortium.terms import ConsortiumError, services
from tacit.deploy.flower.commands import link_files, node_key
from tacit.deploy.permissions import read_secret, write_secret
from tacit.deploy.shuffler.config import load_keys, make_keys
from tacit.deploy.signing import Signer, new_signing_key

UNITS = Path("/etc/systemd/system")


def join(
    source: Path,
    home: Path | None,
    records: Path | None,
    *,
    whose: Whose = "users",
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Path, dict[str, Any]]:
    """Set up a party with its kit; returns its home and its reply, which holds public keys only.

    What is there already is kept: a second time writes the same reply. For ``users`` of the system these are made, and
    units installed.
    """
    kit = read_kit(source)
    place = (pages.HOMES / kit.party if home is None else home).resolve()
    kind = kit.terms.parties[kit.party]
    if (kind == "silo") != (records is not None) and not (place / "kit.toml").exists():
        need = "Expected --records FILE.csv" if kind == "silo" else "Expected no --records"
        raise ConsortiumError(f"{need}: {kit.party} is a {kind}.")
    if (place / "kit.toml").exists() and read_kit(place).authority != kit.authority:
        raise ConsortiumError(f"{place} is the home of a party of another consortium; choose another --home.")
    schema = public_schema(source / "schema.toml")
    if description(schema).digest != kit.schema_digest:
        raise ConsortiumError(f"{source / 'schema.toml'} is not the schema of kit.toml; ask for the kit again.")
    if records is not None:
        # What is wrong with a file is found now, in words that quote none of its cells.
        silo_records(records, source / "schema.toml", tell=tell)
    has_units = whose == "users" and UNITS.is_dir()
    units = pages.units(kit.terms, kit.party, place, pages.installed()) if has_units else {}
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    place.mkdir(exist_ok=True, mode=0o755)
    owners = accounts_for(kit.party, kind, place, whose)
    make = {"silo": _silo, "server": _server, "shuffler": _shuffler}[kind]
    keys = make(kit, source, place, owners, records)
    write_public(place / "kit.toml", read_text(source / "kit.toml", "The kit"))
    (place / LEFT).unlink(missing_ok=True)
    # The authority that the roster is compared with, whatever lies beside it in the kit.
    write_public(place / "ca.pem", kit.authority)
    for name, text in units.items():
        write_public(UNITS / name, text)
    if whose == "containers":
        # As Tacit writes them here: what lies in the kit may have been changed on its way. In a folder of their own,
        # because whoever builds an image is handed all of it.
        (place / "containers").mkdir(exist_ok=True, mode=0o755)
        for name, text in pages.containers(kit.terms, kit.party, place).items():
            write_public(place / "containers" / name, text)
    if units and not (place / pages.WATCH).exists():
        # An address to send word to may be a secret.
        write_secret(place / pages.WATCH, pages.watching(kit.terms, kit.party, place))
    facts = {"party": kit.party, "kind": kind, "consortium": kit.terms.name, "tacit": __version__}
    return place, {**facts, "schema_digest": kit.schema_digest, **keys}


def has_systemd() -> bool:
    """Whether systemd runs this machine; its folders alone may be there without it."""
    return shutil.which("systemctl") is not None and Path("/run/systemd/system").is_dir()


def starting(home: Path, whose: Whose) -> list[str]:
    """How the services of a party that has joined are started here, in lines; what no unit does is said."""
    kit = read_kit(home)
    if whose == "containers":
        where = home / "containers"
        return [f"No units were installed. Put {pages.WHEEL} into {where}; then there: docker compose up --detach"]
    names = " ".join(service.name for service in services(kit.terms, kit.party, home))
    if whose == "users" and has_systemd():
        return [f"Units are installed. Once the roster is accepted: systemctl enable --now {names}"]
    units = "Units are installed" if whose == "users" and UNITS.is_dir() else "No units were installed"
    why = "nothing starts by itself on trial" if whose == "mine" else "no systemd runs here to start them"
    first = f"{units}, and {why}. Once the roster is accepted, keep this running, in place of systemctl:"
    return [first, *(f"    {line}" for line in pages.by_hand(kit.terms, kit.party, home, apart=whose == "users"))]


def _signing(path: Path) -> str:
    """The public half of a signing key, made if it is not there."""
    if not path.exists():
        write_secret(path, new_signing_key())
    return Signer(read_secret(path)).public


def _silo(kit: Kit, source: Path, home: Path, owners: Accounts, records: Path | None) -> dict[str, Any]:
    """A silo's folders: records and keys, the counter apart from the ledger, and the courier's own."""
    own = folder(home / "silo", owners.first, 0o710)
    for name in ("approved", "decided"):
        folder(own / name, owners.first)
    folder(home / "counter", owners.first)
    courier = folder(home / "courier", owners.second)
    sign = _signing(own / "sign.key")
    give(own / "sign.key", owners.first)
    if not os.path.lexists(courier / "node.key.pub"):
        node_key(courier / "node.key")
    give(courier / "node.key", owners.second)
    put(own / "schema.toml", read_text(source / "schema.toml", "The schema"), owners.first)
    if records is not None and not (own / "ledger.sqlite").exists():
        put(own / "records.csv", records.read_bytes(), owners.first)
    if not (own / "policy.toml").exists():
        text = _policy(kit, source)
        put(own / "policy.toml", text, owners.first)
    return {"sign": sign, "node": text_of(courier / "node.key.pub")}


def _policy(kit: Kit, source: Path) -> str:
    """The kit's policy, as it was handed over or edited since."""
    if (source / "policy.toml").exists():
        return read_text(source / "policy.toml", "The policy")
    data = data_section(public_schema(source / "schema.toml"), kit.terms.validation)
    return pages.policy(kit.terms, kit.party, data=data)


def _server(kit: Kit, source: Path, home: Path, owners: Accounts, _: Path | None) -> dict[str, Any]:
    """The link's folder and the proposer's; the process that faces the network cannot read the proposer's key."""
    link, own = folder(home / "link", owners.first), folder(home / "proposer", owners.second)
    keys, schema = folder(own / "keys", owners.second), folder(own / "schema", owners.second)
    folder(own / "runs", owners.second)
    sign = _signing(keys / "proposer.key")
    files = link_files(link, kit.terms.server.control_port)
    requests = {
        "front": requested(link / "link.key", "front"),
        "caller": requested(own / "server.key", "caller"),
    }
    for path in (files.certificate, files.key, files.secret, files.control, link / "link.key"):
        give(path, owners.first)
    for path in (keys / "proposer.key", own / "server.key"):
        give(path, owners.second)
    put(own / "control.toml", read_secret(files.control), owners.second)
    put(schema / "schema.toml", read_text(source / "schema.toml", "The schema"), owners.second)
    if (source / "study.toml").exists() and not (own / "study.toml").exists():
        put(own / "study.toml", read_text(source / "study.toml", "The study"), owners.second)
    return {"sign": sign, "requests": requests}


def _shuffler(kit: Kit, source: Path, home: Path, owners: Accounts, _: Path | None) -> dict[str, Any]:
    """A shuffler's folder; what is public in it is its own too, so that nobody else can replace it."""
    own = folder(home / "shuffler", owners.first)
    keys = load_keys(own) if (own / "sign.key").exists() else make_keys(own, "x25519")
    requests = {"shuffler": requested(own / "shuffler.key", kit.party)}
    for name in ("seal.key", "sign.key", "shuffler.key"):
        give(own / name, owners.first)
    put(own / "ca.pem", kit.authority, owners.first, 0o644)
    if not (own / "shuffler.toml").exists():
        put(own / "shuffler.toml", read_text(source / "shuffler.toml", "The terms"), owners.first)
    return {"sign": keys.sign.public, "seal": str(keys.seal.public), "requests": requests}


def reply_text(reply: dict[str, Any]) -> str:
    """A reply as a file to send."""
    return tomli_w.dumps(reply)
