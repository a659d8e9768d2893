"""``tacit consortium check``: whether a party is as it should be, and what to do where it is not.

Root looks at files as their owners, in processes of their own: what counts is what those may do.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import http.client
import json
import os
import pwd
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tacit import __version__
from tacit.data.schema import public_schema
from tacit.deploy.client import Client
from tacit.deploy.consortium import pages
from tacit.deploy.consortium.certificates import days_left
from tacit.deploy.consortium.joining import has_systemd
from tacit.deploy.consortium.kits import LEFT, Kit, description, read_kit
from tacit.deploy.consortium.roster import Roster, read_roster
from tacit.deploy.consortium.terms import SERVER, services
from tacit.deploy.permissions import check_courier, check_silo
from tacit.deploy.shuffler.client import Address, Caller, greet
from tacit.deploy.shuffler.config import load_terms
from tacit.deploy.shuffler.server import check_folder
from tacit.deploy.signing import Proposer, Signer, fingerprint
from tacit.deploy.silo.policy import files_of, load_policy
from tacit.deploy.silo.service import home_of
from tacit.errors import TacitError

_ROOM = 1 << 30
_SOON = 30.0
_SECONDS = 60.0
"""How far clocks may be apart before it is said; requests allow a day."""
_FIRST = {"silo": "silo", "server": "link", "shuffler": "shuffler"}
_SECOND = {"silo": "courier", "server": "proposer", "shuffler": "shuffler"}


class Finding(NamedTuple):
    """One thing that was looked at: ``ok``, ``note`` (works, but look) or ``wrong``, and what to do."""

    what: str
    state: Literal["ok", "note", "wrong"]
    text: str


def check(home: Path) -> list[Finding]:
    """Everything that can be seen from here, in the order in which it should be mended."""
    kit = read_kit(home)
    kind = kit.terms.parties[kit.party]
    found = [Finding("kit", "ok", f"{kit.party}, a {kind} of {kit.terms.name}")]
    if (home / LEFT).exists():
        way = f"{kit.party} has left {kit.terms.name} (see {home / LEFT}); to join again: tacit consortium join KIT"
        return [*found, Finding("left", "wrong", way)]
    if not (home / "roster.toml").exists():
        way = f"tacit consortium accept roster.toml --home {home}"
        return [
            *found,
            *_machine(kit, home),
            Finding("roster", "wrong", f"none was accepted yet; when it comes: {way}"),
        ]
    roster = read_roster(home / "roster.toml")
    found += [Finding("roster", "ok", f"fingerprint {roster.fingerprint}, the same at every party")]
    found += [*_machine(kit, home), *_versions(roster), *_certificates(kit, roster)]
    found += _as_user(home, _FIRST[kind], "owner")
    if kind != "shuffler":
        found += _as_user(home, _SECOND[kind], "second")
    return [*found, *_fingerprints(kit, roster), *_units(kit, home)]


def _machine(kit: Kit, home: Path) -> Iterator[Finding]:
    """Entropy and disk."""
    try:
        os.getrandom(32, os.GRND_NONBLOCK)
        yield Finding("entropy", "ok", "the system's generator is seeded")
    except BlockingIOError:
        yield Finding(
            "entropy", "wrong", "the system's generator is not seeded yet; wait, or install an entropy source"
        )
    free = shutil.disk_usage(home).free
    words = f"{free / (1 << 30):.1f} GiB free at {home}"
    yield Finding(
        "disk", "ok" if free > _ROOM else "note", words if free > _ROOM else f"{words}; make room for ledgers"
    )


def _versions(roster: Roster) -> Iterator[Finding]:
    """Whether all parties have joined with this version of Tacit."""
    others = sorted(f"{name} {member.tacit}" for name, member in roster.members.items() if member.tacit != __version__)
    if not others:
        yield Finding("version", "ok", f"Tacit {__version__}, as at every party that has joined")
        return
    yield Finding("version", "note", f"Tacit {__version__} here; joined with: {', '.join(others)}. Install one version")


def _certificates(kit: Kit, roster: Roster) -> Iterator[Finding]:
    """How long certificates last, by the clock here; a clock that is far off is found so too."""
    now = datetime.datetime.now(datetime.UTC)
    own = [("authority", roster.authority), *roster.members[kit.party].certificates.items()]
    for what, text in own:
        left = days_left(text, now)
        if left < 0:
            words = "has ended, or not begun by the clock here: set it right, or ask the coordinator for a new roster"
            yield Finding("certificate", "wrong", f"{what}: {words}")
        else:
            state: Literal["ok", "note"] = "ok" if left > _SOON else "note"
            yield Finding("certificate", state, f"{what}: {left:.0f} days left")
    if roster.edition > now.timestamp() + _SECONDS:
        yield Finding("clock", "wrong", "behind the moment at which the roster was written; set it right")


def _fingerprints(kit: Kit, roster: Roster) -> Iterator[Finding]:
    """Everybody's key as it is pinned here, for those who compare single ones."""
    for name, member in roster.members.items():
        own = " (this party)" if name == kit.party else ""
        yield Finding("fingerprint", "ok", f"{name}: {fingerprint(member.sign)}{own}")


def _units(kit: Kit, home: Path) -> Iterator[Finding]:
    """Whether services run, where systemd keeps them."""
    if not has_systemd():
        if (home / "containers").is_dir():
            way = f"docker compose up --detach, in {home / 'containers'}"
        else:
            apart = (home / _FIRST[kit.terms.parties[kit.party]]).stat().st_uid != os.geteuid()
            way = "; ".join(pages.by_hand(kit.terms, kit.party, home, apart=apart))
        yield Finding("services", "note", f"no systemd here; what starts them, and again after a boot: {way}")
        return
    for service in services(kit.terms, kit.party, home):
        done = subprocess.run(["systemctl", "is-active", "--quiet", service.name])
        way = f"systemctl enable --now {service.name}"
        yield Finding("services", "wrong" if done.returncode else "ok", service.name if not done.returncode else way)


def _as_user(home: Path, folder: str, part: str) -> list[Finding]:
    """What the user who owns a folder finds; root asks in a process of that user's."""
    owner = (home / folder).stat()
    if os.geteuid() == owner.st_uid:
        return list(_look(home, part))
    if os.geteuid() != 0:
        name = _user(owner.st_uid)
        return [Finding("permissions", "note", f"only root or {name} can look at {home / folder}")]
    command = [sys.executable, "-m", "tacit.deploy.consortium.checking", str(home), part]
    # Its home as the unit has it: prices are kept there, and root's is shut.
    env = {"HOME": str(home / folder), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    groups = _groups(owner.st_uid, owner.st_gid)
    as_them: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": groups}
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=env, **as_them)
    except PermissionError:
        text = f"{_user(owner.st_uid)} may not execute {sys.executable}; install Tacit for all users, as in /opt/tacit"
        return [Finding("permissions", "wrong", text)]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        return [Finding("permissions", "wrong", f"{_user(owner.st_uid)} cannot run Tacit: {last}")]
    return [Finding(*row) for row in json.loads(done.stdout)]


def _user(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"


def _groups(uid: int, gid: int) -> list[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]


def _look(home: Path, part: str) -> Iterator[Finding]:
    """All that one user of a party can see of it."""
    kit, roster = read_kit(home), read_roster(home / "roster.toml")
    looks: dict[tuple[str, str], Callable[[Kit, Roster, Path], Iterator[Finding]]] = {
        ("silo", "owner"): _silo,
        ("silo", "second"): _courier,
        ("server", "owner"): _link,
        ("server", "second"): _proposer,
        ("shuffler", "owner"): _shuffler,
    }
    yield from looks[kit.terms.parties[kit.party], part](kit, roster, home)


def _tried(what: str, act: Callable[[], str]) -> Finding:
    """What an attempt says, or why it fails."""
    try:
        return Finding(what, "ok", act())
    except (TacitError, OSError) as error:
        return Finding(what, "wrong", str(error))


def _silo(kit: Kit, roster: Roster, home: Path) -> Iterator[Finding]:
    folder = home / "silo"

    def permissions() -> str:
        policy = load_policy(folder / "policy.toml")
        check_silo(folder, files_of(folder, policy, home_of(folder, policy).counter), public=[folder / "models"])
        return f"all of {folder} is its owner's alone, but the door"

    yield _tried("permissions", permissions)
    yield _same_schema(folder / "schema.toml", roster)
    with contextlib.suppress(TacitError):
        policy = load_policy(folder / "policy.toml")
        pinned = {*policy.proposers.items(), *(policy.pairwise.peers.items() if policy.pairwise else ())}
        wanted = {(kit.terms.proposer, roster.members[SERVER].sign)}
        if policy.pairwise is not None:
            wanted |= {item for item in roster.signs("silo").items() if item[0] != kit.party}
        good = wanted <= pinned
        text = (
            "the policy pins the roster's keys"
            if good
            else "the policy pins other keys than the roster; accept it again"
        )
        yield Finding("pins", "ok" if good else "wrong", text)
    try:
        Client(folder / "door" / "silo.sock").connect().close()
        yield Finding("daemon", "ok", "it answers at its door")
    except OSError:
        yield Finding("daemon", "note", f"it does not run; start {services(kit.terms, kit.party, home)[0].name}")


def _same_schema(path: Path, roster: Roster) -> Finding:
    def act() -> str:
        digest = description(public_schema(path)).digest
        if digest != roster.schema_digest:
            raise TacitError(f"{path} has the digest {digest[:16]}..., expected {roster.schema_digest[:16]}...")
        return f"digest {digest[:16]}..., the same at every party"

    return _tried("schema", act)


def _courier(kit: Kit, roster: Roster, home: Path) -> Iterator[Finding]:
    def apart() -> str:
        return check_courier(home / "silo") or "the courier reaches the silo's door and none of its files"

    found = _tried("courier", apart)
    yield found if (home / "silo").stat().st_uid != os.geteuid() else found._replace(state="note")
    server = kit.terms.server
    yield from _reached(server.host, server.port, roster.authority)


def _reached(host: str, port: int, authority: str) -> Iterator[Finding]:
    """Whether the server's front answers here with the authority's certificate, and what its clock says."""
    context = ssl.create_default_context(cadata=authority)
    line = http.client.HTTPSConnection(host, port, timeout=10.0, context=context)
    try:
        line.request("GET", "/")
        told = line.getresponse().getheader("date", "")
    except (OSError, http.client.HTTPException) as error:
        yield Finding("port", "wrong", f"{host}:{port} cannot be reached from here: {error}. Does the server run?")
        return
    finally:
        line.close()
    yield Finding("port", "ok", f"{host}:{port} answers with the consortium's certificate")
    with contextlib.suppress(ValueError, TypeError):  # a server may say anything, or nothing
        apart = (datetime.datetime.now(datetime.UTC) - email.utils.parsedate_to_datetime(told)).total_seconds()
        far = abs(apart) > _SECONDS
        words = f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the server's"
        yield Finding("clock", "wrong" if far else "ok", words + ("; set the one that is wrong right" if far else ""))


def _link(kit: Kit, roster: Roster, home: Path) -> Iterator[Finding]:
    link = home / "link"

    def permissions() -> str:
        names = ("link.key", "loopback.key", "executor.secret", "control.toml", "superlink.sqlite", "nodes.toml")
        because = "whoever reads or changes them can lead runs at this SuperLink"
        check_silo(link, [link / name for name in names], because=because)
        return f"all of {link} is its owner's alone"

    yield _tried("permissions", permissions)
    yield from _reached("localhost", kit.terms.server.port, roster.authority)


def _proposer(kit: Kit, roster: Roster, home: Path) -> Iterator[Finding]:
    own = home / "proposer"

    def permissions() -> str:
        names = (
            own / "keys" / "proposer.key",
            own / "keys" / "proposer.toml",
            own / "server.key",
            own / "control.toml",
        )
        check_silo(own, names, because="whoever reads or changes them can lead studies in this name")
        return f"all of {own} is its owner's alone"

    yield _tried("permissions", permissions)
    yield _same_schema(own / "schema" / "schema.toml", roster)
    proposer = Proposer(kit.terms.proposer, Signer((own / "keys" / "proposer.key").read_bytes()))
    for name, part in kit.terms.shufflers.items():
        files = own / "ca.pem", own / "server.pem", own / "server.key"
        caller = Caller(Address(name, roster.members[name].sign, part.host, part.port, *files), proposer, 0.0, 10.0)

        def greeted(caller: Caller = caller, name: str = name) -> str:
            try:
                greet(caller)
            finally:
                caller.close()
            return f"shuffler {name} answers and knows this proposer"

        yield _tried("port", greeted)


def _shuffler(kit: Kit, roster: Roster, home: Path) -> Iterator[Finding]:
    folder = home / "shuffler"

    def permissions() -> str:
        terms = load_terms(folder)
        check_folder(folder, terms)
        if dict(terms.silos) != roster.signs("silo"):
            raise TacitError(f"{folder / 'shuffler.toml'} pins other silos than the roster; accept it again")
        return f"all of {folder} is its owner's alone, and the roster's silos are pinned"

    yield _tried("permissions", permissions)
    part = kit.terms.shufflers[kit.party]
    try:
        socket.create_connection(("127.0.0.1", part.port), 5.0).close()
        yield Finding("port", "ok", f"it listens on {part.port}")
    except OSError:
        yield Finding("port", "note", f"nothing listens on {part.port}; start {kit.party}'s service")


if __name__ == "__main__":
    print(json.dumps(list(_look(Path(sys.argv[1]), sys.argv[2]))))
