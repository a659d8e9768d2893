"""The roster: everybody's public keys in one file, whose fingerprint all parties compare by telephone.

Formal guarantee: if every party finds its own keys in the roster that it accepts (`accepting.accept` refuses others),
and all accept a roster of one fingerprint, then the key that each pins for another is the one that this other has made.
So neither the coordinator, nor who carries the files, can put a key of its own in between.
"""

from __future__ import annotations

import hashlib
import json
import time
import tomllib
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from pydantic import Field, model_validator

from tacit import __version__
from tacit.channel.sealing import SealError, public_key
from tacit.data.schema import public_schema
from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.consortium.kits import description
from tacit.deploy.consortium.terms import SERVER, Consortium, ConsortiumError, Kind, load_consortium
from tacit.deploy.sections import Section, checked, read_toml
from tacit.deploy.signing import KeyText
from tacit.deploy.wire import Name, spoken

Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,40}$")]
NodeKey = Annotated[str, Field(pattern=r"^ecdsa-sha2-nistp384 [A-Za-z0-9+/=]{1,400}$")]
Use = Literal["front", "caller", "shuffler"]
_CERTIFIED: dict[Kind, set[Use]] = {"silo": set(), "server": {"front", "caller"}, "shuffler": {"shuffler"}}


class Reply(Section):
    """What a party says of itself when it joins: public keys, and requests for the certificates that it needs."""

    party: Name
    kind: Kind
    consortium: Name
    tacit: Version
    schema_digest: str
    sign: KeyText
    seal: str | None = None
    node: NodeKey | None = None
    requests: dict[Use, str] = Field(default_factory=dict)


class Member(Section):
    """A party in the roster: its public keys, and the certificates that the authority has signed for it."""

    kind: Kind
    sign: KeyText
    tacit: Version
    seal: str | None = None
    node: NodeKey | None = None
    certificates: dict[Use, str] = Field(default_factory=dict)


class Roster(Section):
    """Everybody's public keys. ``edition`` is when it was written, in seconds: an older one never replaces a newer."""

    edition: int
    tacit: Version
    authority: str
    schema_digest: str
    consortium: Consortium
    members: dict[Name, Member]

    @model_validator(mode="after")
    def _is_whole(self) -> Roster:
        """Its members are the parties of its consortium, each with a signing key of its own and what its kind needs."""
        found = {name: member.kind for name, member in self.members.items()}
        if found != self.consortium.parties:
            raise ValueError("expected the parties of the consortium as members, and nobody else")
        if len({member.sign for member in self.members.values()}) < len(found):
            raise ValueError("expected another signing key of every party, but two have the same one")
        nodes = [b64decode(member.node.split()[1]) for member in self.members.values() if member.node is not None]
        if len(set(nodes)) < len(nodes):
            raise ValueError("expected another node key of every silo, but two have the same one")
        for name, member in self.members.items():
            has = (member.node is not None, member.seal is not None, set(member.certificates))
            if has != (member.kind == "silo", member.kind == "shuffler", _CERTIFIED[member.kind]):
                raise ValueError(f"expected the keys and certificates of a {member.kind} for {name}")
        return self

    @property
    def fingerprint(self) -> str:
        """All of it in twelve groups of four digits, to compare by telephone: the first 192 bits of its SHA-256.

        So many because a coordinator who cheats may look for two rosters with one fingerprint, which takes half as many
        bits of work. The order of names counts too: that of shufflers is the order of their cascade.
        """
        text = json.dumps(self.model_dump(mode="json", by_alias=True))
        return spoken(hashlib.sha256(b"tacit roster 1\0" + text.encode()).hexdigest()[:48])

    @property
    def rows(self) -> list[str]:
        """The fingerprint in rows of four groups, as it is read out and typed."""
        return self.fingerprint.split(", ")

    def signs(self, kind: Kind) -> dict[str, str]:
        """The signing keys of all parties of a kind."""
        return {name: member.sign for name, member in self.members.items() if member.kind == kind}


def admit(replies: Sequence[Path], authority: Path) -> Roster:
    """Sign what the parties ask for, and put their public keys into one roster."""
    terms = load_consortium(authority / "consortium.toml")
    digest = description(public_schema(authority / "schema.toml")).digest
    said = list(map(read_reply, _files(replies)))
    found = {reply.party: reply for reply in said}
    if len(found) < len(said):
        twice = sorted({reply.party for reply in said if found[reply.party] is not reply})
        raise ConsortiumError(
            f"Expected one reply of each party; several name {', '.join(twice)}. Ask which is theirs."
        )
    missing = [name for name in terms.parties if name not in found]
    if missing:
        raise ConsortiumError(f"Expected replies of all parties; missing: {', '.join(missing)}. Ask them to join.")
    signing = Authority(authority, f"authority of {terms.name}")
    members = {}
    for name, kind in terms.parties.items():
        _check(found[name], kind, terms, digest)
        members[name] = _member(found[name], kind, terms, signing)
    made = {
        "edition": int(time.time()),
        "tacit": __version__,
        "authority": signing.certificate.read_text(encoding="ascii"),
        "schema_digest": digest,
        "consortium": terms,
        "members": members,
    }
    return checked(Roster, made, ConsortiumError, "The roster of these replies")


def _files(paths: Sequence[Path]) -> list[Path]:
    found = [file for path in paths for file in (sorted(path.glob("*.reply.toml")) if path.is_dir() else [path])]
    if not found:
        raise ConsortiumError(f"No replies (NAME.reply.toml) in {', '.join(map(str, paths))}.")
    return found


def read_reply(path: Path) -> Reply:
    """A party's reply, or an error that names the field."""
    tree = read_toml(path, ConsortiumError, f"No reply at {path}; the party makes it with: tacit consortium join")
    return checked(Reply, tree, ConsortiumError, str(path))


def _check(reply: Reply, kind: Kind, terms: Consortium, digest: str) -> None:
    """Refuse a reply to another kit, or without what its kind needs."""
    if (reply.kind, reply.consortium) != (kind, terms.name):
        raise ConsortiumError(f"The reply of {reply.party} is for a {reply.kind} of {reply.consortium}.")
    if reply.schema_digest != digest:
        raise ConsortiumError(f"{reply.party} has joined with another schema; hand the kit over again.")
    if set(reply.requests) != _CERTIFIED[kind] or (kind == "silo") != (reply.node is not None):
        raise ConsortiumError(f"The reply of {reply.party} is not that of a {kind}; ask for a new one.")
    try:
        if reply.node is not None:
            load_ssh_public_key(reply.node.encode())
    except (ValueError, NotImplementedError, UnsupportedAlgorithm):
        raise ConsortiumError(f"The reply of {reply.party} has no node key that is one; ask for a new one.") from None
    try:
        if (kind == "shuffler") != (reply.seal is not None) or (reply.seal and not public_key(reply.seal)):
            raise SealError(reply.party)
    except SealError:
        raise ConsortiumError(
            f"The reply of {reply.party} has no sealing key that is one; ask for a new one."
        ) from None


def _member(reply: Reply, kind: Kind, terms: Consortium, authority: Authority) -> Member:
    """A party of the roster; hosts come from the coordinator's own file, not from the reply."""
    places: dict[Use, str] = {"front": terms.server.host, "caller": SERVER}
    places |= {"shuffler": terms.shufflers[reply.party].host} if kind == "shuffler" else {}
    certificates = {
        what: authority.sign(request, f"{reply.party} {what}", sorted({places[what], "localhost"}), what == "caller")
        for what, request in reply.requests.items()
    }
    own = reply.model_dump(include={"kind", "sign", "tacit", "seal", "node"})
    return Member(certificates=certificates, **own)


def roster_text(roster: Roster) -> str:
    """A roster as a file to send."""
    return tomli_w.dumps(roster.model_dump(mode="json", exclude_none=True, by_alias=True))


def read_roster(path: Path) -> Roster:
    """A roster from its file, or an error that names the field."""
    tree: dict[str, Any] = read_toml(path, ConsortiumError, f"No roster at {path}; the coordinator sends it.")
    return checked(Roster, tree, ConsortiumError, str(path))


def edition_in(path: Path) -> int:
    """The edition of the roster in a file; 0 where there is none."""
    return int(tomllib.loads(path.read_text(encoding="utf-8"))["edition"]) if path.exists() else 0
