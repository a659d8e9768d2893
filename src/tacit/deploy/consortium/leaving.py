"""``tacit consortium leave``: nobody is heard here any more, nothing starts by itself, and what was spent stays spent.

Records, ledger, counter, signing key and models stay where they are: the ledger is what says how much was ever told
about these records, whoever asks next.
"""

from __future__ import annotations

import datetime
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import tomli_w

from tacit.deploy.client import Client
from tacit.deploy.consortium import joining, pages
from tacit.deploy.consortium.accepting import owners_of, without
from tacit.deploy.consortium.accounts import Accounts, folder, put
from tacit.deploy.consortium.certificates import write_public
from tacit.deploy.consortium.kits import LEFT, Kit, read_kit
from tacit.deploy.consortium.terms import SERVER, ConsortiumError, account_name, services, watcher
from tacit.deploy.sections import values_in
from tacit.deploy.shuffler.config import terms_from
from tacit.deploy.silo.owner import decision
from tacit.deploy.silo.policy import policy_from
from tacit.deploy.silo.service import home_of
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect, waiting


class Left(NamedTuple):
    """What was done at a party that has left, what is still there, and what others have to do, in sentences."""

    done: list[str]
    remains: list[str]
    others: list[str]


def leave(home: Path, note: str = "") -> Left:
    """Leave the consortium of a party's home; to do it again changes nothing.

    Formal guarantee: afterwards a silo's policy names no proposer, and a shuffler's terms no caller, so that every
    request is refused, whatever still runs; and no byte of ledger, counter or records was changed.
    """
    kit = read_kit(home)
    units = _units_of(kit, home)
    kind, owners = kit.terms.parties[kit.party], owners_of(home, kit)
    done = list({"silo": _silo, "server": _server, "shuffler": _shuffler}[kind](kit, home, owners, note))
    done += _stopped(kit, home, units)
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    write_public(home / LEFT, tomli_w.dumps({"party": kit.party, "consortium": kit.terms.name, "left": when}))
    return Left(done, list(_remains(kit, home)), list(_others(kit)))


def _silo(kit: Kit, home: Path, owners: Accounts, note: str) -> Iterator[str]:
    """Hear nobody, close what is open, and forget the key by which the courier is let in."""
    own = home / "silo"
    text = without((own / "policy.toml").read_text(encoding="utf-8"), "proposers")
    policy = policy_from(values_in(text.encode(), own / "policy.toml", ConsortiumError))
    _check_nobody(own / "policy.toml", "proposers", policy.proposers)
    put(own / "policy.toml", text, owners.first)
    yield "The policy names no proposer any more: every request is refused, from now on."
    ledger = home_of(own, policy).ledger
    live = [study for study, account in replay(inspect(ledger)).items() if account.live] if ledger.exists() else []
    asked = list(waiting(ledger)) if ledger.exists() else []
    folder(own / "decided", owners.first)
    for study, verb in [*((study, "close") for study in live), *((study, "reject") for study in asked)]:
        put(own / "decided" / f"{study}.{verb}", decision("", note or f"left {kit.terms.name}"), owners.first)
    if live or asked:
        ended = f"Open studies closed: {len(live)}, proposals rejected: {len(asked)}"
        yield f"{ended}; the ledger says so when the daemon next starts."
    for name in ("node.key", "node.key.pub"):
        (home / "courier" / name).unlink(missing_ok=True)
    yield "The courier's key is deleted: nobody joins the server with it again."


def _server(kit: Kit, home: Path, owners: Accounts, note: str) -> Iterator[str]:
    """Nothing is pinned at a server by which it could be asked."""
    yield "Studies that are still open at silos are not ended: their owners close them, or they expire there."


def _shuffler(kit: Kit, home: Path, owners: Accounts, note: str) -> Iterator[str]:
    """Hear no caller."""
    path = home / "shuffler" / "shuffler.toml"
    text = without(path.read_text(encoding="utf-8"), "callers", empty=True)
    _check_nobody(path, "callers", terms_from(values_in(text.encode(), path, ConsortiumError)).callers)
    put(path, text, owners.first)
    yield "The terms name no caller any more: every request is refused, from now on."


def _check_nobody(path: Path, table: str, names: Iterable[str]) -> None:
    """Refuse to leave while a table that the owner wrote names somebody."""
    if listed := ", ".join(names):
        raise ConsortiumError(
            f"{path} names {table} that no roster has pinned: {listed}. Take them out of [{table}] first: whoever "
            "leaves hears nobody."
        )


def _units_of(kit: Kit, home: Path) -> list[Path]:
    """The installed units of this home; those of another home whose party has the same name are not among them."""
    own = [*services(kit.terms, kit.party, home), watcher(kit.terms, kit.party, home)]
    files = [joining.UNITS / f"{service.name}.service" for service in own]
    found = [path for path in files if path.is_file() and f" {home}/" in path.read_text(encoding="utf-8")]
    if found and os.geteuid() != 0:
        raise ConsortiumError(f"Expected root, to stop and remove {', '.join(map(str, found))}.")
    return found


def _stopped(kit: Kit, home: Path, units: list[Path]) -> Iterator[str]:
    """Stop a party's services and take its units away; what has to be stopped by hand is said."""
    names, runs = [path.stem for path in units], bool(units) and joining.has_systemd()
    if runs:
        subprocess.run(["systemctl", "disable", "--now", *names], check=False)
    for path in units:
        path.unlink()
    if runs:
        subprocess.run(["systemctl", "daemon-reload"], check=False)
    if units:
        yield f"Units are {'stopped and ' * runs}removed: {', '.join(names)}."
    if (home / "containers").is_dir():
        yield f"Containers are yours to stop: docker compose down, in {home / 'containers'}."
    elif (home / "silo").is_dir() and _answers(home / "silo"):
        yield "The daemon still runs, and refuses everything: stop it, and the courier, where you have started them."
    elif not runs:
        yield "Nothing was stopped, because no unit ran it: stop what you have started yourself."


def _answers(silo: Path) -> bool:
    try:
        Client(silo / "door" / "silo.sock").connect().close()
    except OSError:
        return False
    return True


def _remains(kit: Kit, home: Path) -> Iterator[str]:
    """What is still at the party."""
    kind = kit.terms.parties[kit.party]
    if kind == "silo":
        yield f"{home / 'silo'}: records, ledger, signing key and models; the counter where policy.toml says."
        yield (
            "What was spent stays spent. Keep ledger and counter for as long as anybody may ask about these records "
            "again; `tacit ledger` reads them as before."
        )
    elif kind == "server":
        yield f"{home / 'proposer'}: the proposer's key, runs and models; {home / 'link'}: the SuperLink's files."
    else:
        yield f"{home / 'shuffler'}: keys, and which rounds were released; delete them if you will not join again."
    yield "The users of this party, who own these files. To join again: tacit consortium join KIT"


def _others(kit: Kit) -> Iterator[str]:
    """What everybody else has to do."""
    kind, name = kit.terms.parties[kit.party], kit.party
    if kind == "server":
        yield f"Every silo and shuffler of {kit.terms.name} leaves too, or accepts a roster with another server."
        return
    where = "`silos`" if kind == "silo" else f"[shufflers.{name}]"
    again = "`tacit consortium init` and `admit` again"
    yield f"The coordinator takes {name} out of {where} in consortium.toml, and runs {again}."
    yield "Everybody accepts the new roster; then server and shufflers are restarted."
    if kind == "silo":
        as_link = f"runuser -u {account_name(SERVER)} -- tacit server unregister {name}"
        yield f"The server shuts the node out: {as_link} --control {pages.HOMES / SERVER / 'link' / 'control.toml'}"
        yield "Studies take another number after --silos; owners look whether min_silos of their policies still fits."
    else:
        yield "Studies through shufflers need two that are left."
