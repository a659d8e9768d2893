"""Shufflers behind real TLS sockets, and silos that can sign; shared by tests and long runs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tacit.channel.sealing import _SUITES, Binding, PublicKey, new_secret
from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.shuffler.client import Address, Caller
from tacit.deploy.shuffler.config import Keys, make_keys, terms_from
from tacit.deploy.shuffler.messages import parse_response
from tacit.deploy.shuffler.server import ShufflerServer, server_context
from tacit.deploy.shuffler.service import ShufflerService
from tacit.deploy.signing import Proposer, Signer, digest_of, new_signing_key, opened_reply, shuffler_address
from tacit.deploy.wire import Error, RefusalError, frame, read_frame, unframed
from tests.deploy.silo.consortium import silo_key

CALLER = Proposer("tester", Signer(hashlib.sha256(b"tester").digest()))
"""Who leads studies in tests, at silos and shufflers alike."""


class Party:
    """A shuffler in a thread of this process; ``restart`` is what a crash looks like from outside."""

    def __init__(self, folder: Path, authority: Authority, silos: dict[str, Signer], **changes: Any) -> None:
        self.folder, self._authority = folder, authority
        folder.mkdir(parents=True, mode=0o700)
        self.keys: Keys = make_keys(folder, changes.pop("kind", "x25519"))
        pair = authority.issue(folder.name)
        tree: dict[str, Any] = {
            "name": folder.name,
            "port": 0,
            "min_silos": 2,
            "callers": {CALLER.name: CALLER.signer.public},
            "silos": {name: signer.public for name, signer in silos.items()},
            "tls": {
                "certificate": str(pair.certificate),
                "key": str(pair.key),
                "callers": str(authority.certificate),
            },
        }
        self.terms = terms_from({**tree, **changes})
        self.caller_pair = authority.issue("caller")
        self._callers: list[Caller] = []
        self.start()

    def start(self) -> None:
        self.service = ShufflerService(self.terms, self.keys, self.folder)
        self._entrance = ShufflerServer(self.service, server_context(self.terms, self.folder))
        self.port = self._entrance.port
        threading.Thread(target=self._entrance.serve, daemon=True).start()

    def stop(self) -> None:
        for caller in self._callers:
            caller.close()
        self._entrance.close()
        self.service.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def address(self, authority: Path | None = None, pair: Any = None) -> Address:
        own, signed = pair or self.caller_pair, self.keys.sign.public
        trusted = authority or self._authority.certificate
        return Address(self.terms.name, signed, "127.0.0.1", self.port, trusted, own.certificate, own.key)

    def entry(self) -> dict[str, Any]:
        """As a deployment lists it."""
        at = self.address()
        files = {"authority": str(at.authority), "certificate": str(at.certificate), "key": str(at.key)}
        return {"name": at.name, "sign": at.sign, "host": at.host, "port": at.port, **files}

    def caller(self, patience: float = 0.0) -> Caller:
        self._callers.append(Caller(self.address(), CALLER, patience))
        return self._callers[-1]


@contextlib.contextmanager
def two_parties(root: Path, names: Iterable[str]) -> Iterator[tuple[list[Party], dict[str, str]]]:
    """Two shufflers, one after the other, that hear these silos of the tests, and their keys for sealing."""
    silos, authority = {name: Signer(silo_key(name)) for name in names}, Authority(root / "certificates")
    first = Party(root / "a", authority, silos)
    parties = [first, Party(root / "b", authority, silos, layer=1, before={"a": first.keys.sign.public})]
    try:
        yield parties, {party.terms.name: str(party.keys.seal.public) for party in parties}
    finally:
        for party in parties:
            party.stop()


def signers(number: int) -> dict[str, Signer]:
    return {f"s{i}": Signer(new_signing_key()) for i in range(number)}


class SiloView:
    """A caller of an office in this process, without a socket between them."""

    def __init__(self, service: ShufflerService) -> None:
        self.service = service

    def ask(self, request: Any, payload: bytes = b"") -> tuple[Any, bytes]:
        return self.send(frame(request.model_dump_json(), payload))

    def send(self, raw: bytes) -> tuple[Any, bytes]:
        header, payload = unframed(raw)
        to = shuffler_address(self.service.terms.name)
        return self.carry(CALLER.request(header.decode(), payload, silo=to))

    def carry(self, signed: bytes) -> tuple[Any, bytes]:
        """Hand in a frame that is signed already."""
        found = read_frame(io.BytesIO(signed).read)
        assert found is not None
        answer = read_frame(io.BytesIO(self.service.handle(*found)).read)
        assert answer is not None
        pinned = {shuffler_address(self.service.terms.name): self.service._keys.sign.public}
        response = parse_response(opened_reply(*answer, request=digest_of(*found), silos=pinned)[1])
        if isinstance(response, Error):
            raise RefusalError(response.code, response.text, response.numbers)
        return response, answer[1]

    @property
    def released(self) -> int:
        return int(self.service._released.execute("SELECT count(*) FROM released").fetchone()[0])

    @property
    def seal(self) -> PublicKey:
        return self.service._keys.seal.public


def desk(folder: Path, silos: dict[str, Signer], **changes: Any) -> SiloView:
    """An office with keys of its own; ``folder`` has its name."""
    folder.mkdir(parents=True)
    tree = {
        "name": folder.name,
        "min_silos": 2,
        "callers": {CALLER.name: CALLER.signer.public},
        "silos": {name: signer.public for name, signer in silos.items()},
        "tls": {"certificate": "x", "key": "x", "callers": "x"},
    }
    keys = Keys(new_secret(), Signer(new_signing_key()))
    return SiloView(ShufflerService(terms_from({**tree, **changes}), keys, folder))


@contextlib.contextmanager
def two_desks(folder: Path, silos: dict[str, Signer]) -> Iterator[dict[str, SiloView]]:
    """A cascade of two."""
    first = desk(folder / "a", silos)
    found = {"a": first, "b": desk(folder / "b", silos, layer=1, before={"a": first.service._keys.sign.public})}
    yield found
    for own in found.values():
        own.service.close()


def wrapped(inside: bytes, key: PublicKey, binding: Binding, layer: int = 0) -> bytes:
    """One layer around any bytes at all, which `seal` would not make."""
    return bytes(_SUITES[key.kind].encrypt(inside, key.key, info=binding.info(layer)))
