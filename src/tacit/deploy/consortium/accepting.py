"""``tacit consortium accept``: pin the keys of a roster, once its fingerprint was compared."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from tacit.data.schema import public_schema
from tacit.deploy.consortium.accounts import Account, Accounts, put, text_of
from tacit.deploy.consortium.certificates import belongs
from tacit.deploy.consortium.kits import LEFT, Kit, description, read_kit
from tacit.deploy.consortium.roster import Member, Roster, Use, edition_in, read_roster, roster_text
from tacit.deploy.consortium.terms import SERVER, ConsortiumError
from tacit.deploy.permissions import read_secret
from tacit.deploy.sections import values_in
from tacit.deploy.shuffler.config import load_keys, terms_from
from tacit.deploy.signing import Signer
from tacit.deploy.silo.policy import policy_from

_NOT_SAID = str.maketrans("", "", " \t\n,")
MARK = "# Pinned by the roster. `tacit consortium accept` writes everything below this line anew."


def misheard(typed: str, roster: Roster) -> list[int]:
    """Which rows of a roster's fingerprint, from 1, are not as somebody has typed them, with or without spaces.

    None are only where all of it was typed, and nothing else.
    """
    said, rows = typed.lower().translate(_NOT_SAID), [row.translate(_NOT_SAID) for row in roster.rows]
    size, last = len(rows[0]), len(rows)
    found = {place: said[(place - 1) * size : None if place == last else place * size] for place in range(1, last + 1)}
    return [place for place, part in found.items() if part != rows[place - 1]]


def accept(path: Path, home: Path, fingerprint: str) -> Roster:
    """Pin the keys of a roster at a party; ``fingerprint`` is what its owner was told by telephone.

    Formal guarantee: nothing is written unless the fingerprint is the roster's, the roster is of this party's
    consortium, authority and schema, and every key that it names as this party's is one whose private half lies here.
    """
    roster, kit = read_roster(path), read_kit(home)
    if (home / LEFT).exists():
        raise ConsortiumError(f"{kit.party} has left {kit.terms.name}; join again first: tacit consortium join KIT")
    wrong = misheard(fingerprint, roster)
    if wrong:
        which = "in every row" if len(wrong) == len(roster.rows) else f"in row {' and '.join(map(str, wrong))}"
        raise ConsortiumError(
            f"{path} has another fingerprint than you were told, {which}. If you may have misheard, have it read out "
            "again; else somebody has exchanged the file: ask for it again, by another way."
        )
    _check(roster, kit, home)
    kind, owners = kit.terms.parties[kit.party], owners_of(home, kit)
    write = {"silo": _silo, "server": _server, "shuffler": _shuffler}[kind]
    write(roster, kit, home, owners)
    (home / "roster.toml").write_text(roster_text(roster), encoding="utf-8")
    (home / "roster.toml").chmod(0o644)
    return roster


def owners_of(home: Path, kit: Kit) -> Accounts:
    """Who owns a party's files, as its folders say."""
    first, second = {"silo": ("silo", "courier"), "server": ("link", "proposer"), "shuffler": ("shuffler",) * 2}[
        kit.terms.parties[kit.party]
    ]
    found = [(home / name).stat() for name in (first, second)]
    if os.geteuid() not in (0, found[0].st_uid):
        raise ConsortiumError(f"Expected root, or the user who owns {home / first}; files are written there.")
    return Accounts(*(Account(one.st_uid, one.st_gid, str(one.st_uid)) for one in found))


def _check(roster: Roster, kit: Kit, home: Path) -> None:
    """Refuse a roster of others, an older one, or one with keys for this party that it has not made."""
    own = roster.members.get(kit.party)
    if own is None or roster.consortium.name != kit.terms.name or own.kind != kit.terms.parties[kit.party]:
        raise ConsortiumError(f"The roster of {roster.consortium.name} has no {kit.party} of {kit.terms.name}.")
    if roster.authority != kit.authority:
        raise ConsortiumError("The roster has another authority than this party's kit (ca.pem); ask the coordinator.")
    if roster.schema_digest != kit.schema_digest:
        raise ConsortiumError("The roster is for another schema than this party's kit; ask the coordinator.")
    if roster.edition < edition_in(home / "roster.toml"):
        raise ConsortiumError("The roster is older than the one that was accepted here; ask for the newest.")
    wrong = _foreign(own, home)
    if wrong:
        raise ConsortiumError(
            f"The roster has another key of {kit.party} than the one made here ({wrong}). Tell the coordinator, "
            "who has certified a stranger's; send the reply again by another way (tacit consortium join writes it)."
        )


def _foreign(own: Member, home: Path) -> str | None:
    """Which key of this party in the roster is not the one that lies here."""
    if own.kind == "silo":
        node = text_of(home / "courier" / "node.key.pub")
        keys = {"sign": _sign(home / "silo") == own.sign, "node": node == own.node}
        certificates: dict[Use, Path] = {}
    elif own.kind == "server":
        keys = {"sign": Signer(read_secret(home / "proposer" / "keys" / "proposer.key")).public == own.sign}
        certificates = {"front": home / "link" / "link.key", "caller": home / "proposer" / "server.key"}
    else:
        made = load_keys(home / "shuffler")
        keys = {"sign": made.sign.public == own.sign, "seal": str(made.seal.public) == own.seal}
        certificates = {"shuffler": home / "shuffler" / "shuffler.key"}
    keys |= {what: belongs(own.certificates[what], key) for what, key in certificates.items()}
    return next((what for what, mine in keys.items() if not mine), None)


def _sign(folder: Path) -> str:
    return Signer(read_secret(folder / "sign.key")).public


def _pinned(text: str, pins: dict[str, Any]) -> str:
    """An owner's file with these tables at its end, in place of those that an earlier roster had pinned."""
    above = text.partition(MARK)[0].rstrip()
    return f"{above}\n\n{MARK}\n{tomli_w.dumps(pins)}"


def without(text: str, table: str, *, empty: bool = False) -> str:
    """An owner's file without a table that a roster has pinned, or with an ``empty`` one; everything else stays."""
    above, mark, below = text.partition(MARK)
    if not mark:
        return text
    rest = {name: value for name, value in tomllib.loads(below).items() if name != table}
    return _pinned(above, rest | ({table: {}} if empty else {}))


def _silo(roster: Roster, kit: Kit, home: Path, owners: Accounts) -> None:
    """Who may propose, who shares noise with this silo, and whose shufflers it seals to."""
    folder, terms = home / "silo", roster.consortium
    if description(public_schema(folder / "schema.toml")).digest != roster.schema_digest:
        raise ConsortiumError(f"{folder / 'schema.toml'} is not the consortium's any more; join again with the kit.")
    pins: dict[str, Any] = {"proposers": {terms.proposer: roster.members[SERVER].sign}}
    if "pairwise" in terms.channels:
        others = {name: key for name, key in roster.signs("silo").items() if name != kit.party}
        pins["pairwise"] = {"peers": others}
    if terms.shuffled:
        pins["shuffle"] = {"shufflers": {n: m.seal for n, m in roster.members.items() if m.kind == "shuffler"}}
    text = _pinned((folder / "policy.toml").read_text(encoding="utf-8"), pins)
    policy_from(values_in(text.encode(), folder / "policy.toml", ConsortiumError))
    put(folder / "policy.toml", text, owners.first)


def _shuffler(roster: Roster, kit: Kit, home: Path, owners: Accounts) -> None:
    """Who may call, who is a silo, and which shuffler comes before this one."""
    folder, names = home / "shuffler", list(roster.consortium.shufflers)
    before = names[: names.index(kit.party)][-1:]
    pins = {
        "callers": {roster.consortium.proposer: roster.members[SERVER].sign},
        "silos": roster.signs("silo"),
        "before": {name: roster.members[name].sign for name in before},
    }
    text = _pinned((folder / "shuffler.toml").read_text(encoding="utf-8"), pins)
    terms_from(values_in(text.encode(), folder / "shuffler.toml", ConsortiumError))
    put(folder / "shuffler.pem", roster.members[kit.party].certificates["shuffler"], owners.first, 0o644)
    put(folder / "shuffler.toml", text, owners.first)


def _server(roster: Roster, kit: Kit, home: Path, owners: Accounts) -> None:
    """The front's certificate and its nodes; whose replies the proposer believes, and how to call shufflers."""
    link, own, member = home / "link", home / "proposer", roster.members[SERVER]
    put(link / "link.pem", member.certificates["front"], owners.first, 0o644)
    nodes = {name: found.node for name, found in roster.members.items() if found.node is not None}
    put(link / "nodes.toml", tomli_w.dumps({"nodes": nodes}), owners.first)
    put(own / "ca.pem", roster.authority, owners.second, 0o644)
    put(own / "server.pem", member.certificates["caller"], owners.second, 0o644)
    known = {"name": roster.consortium.proposer, "silos": roster.signs("silo")}
    put(own / "keys" / "proposer.toml", tomli_w.dumps(known), owners.second)
    entries = [
        {
            "name": name,
            "sign": roster.members[name].sign,
            "host": part.host,
            "port": part.port,
            "authority": str(own / "ca.pem"),
            "certificate": str(own / "server.pem"),
            "key": str(own / "server.key"),
        }
        for name, part in roster.consortium.shufflers.items()
    ]
    if entries:
        put(own / "shufflers.toml", tomli_w.dumps({"shufflers": entries}), owners.second)
