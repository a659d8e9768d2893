"""Shufflers behind real TLS sockets, and silos that can sign; shared by tests and long runs."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.certificates import Authority
from tacit.channel.sealing import _SUITES, Binding, PublicKey, new_secret
from tacit.deploy.shuffler.client import Address, Caller
from tacit.deploy.shuffler.config import Keys, make_keys, terms_from
from tacit.deploy.shuffler.messages import parse_response
from tacit.deploy.shuffler.server import ShufflerServer, server_context
from tacit.deploy.shuffler.service import ShufflerService
from tacit.deploy.signing import Signer, new_signing_key
from tacit.deploy.wire import Error, RefusalError, frame, read_frame


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
        self.service = ShufflerService(self.terms, self.keys, self.folder / "shuffler.sqlite")
        self._entrance = ShufflerServer(self.service, server_context(self.terms, self.folder), self.folder)
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
        own = pair or self.caller_pair
        return Address("127.0.0.1", self.port, authority or self._authority.certificate, own.certificate, own.key)

    def caller(self) -> Caller:
        self._callers.append(Caller(self.address()))
        return self._callers[-1]


def signers(number: int) -> dict[str, Signer]:
    return {f"s{i}": Signer(new_signing_key()) for i in range(number)}


class SiloView:
    """A caller of an office in this process, without a socket between them."""

    def __init__(self, service: ShufflerService) -> None:
        self.service = service

    def ask(self, request: Any, payload: bytes = b"") -> tuple[Any, bytes]:
        return self.send(frame(request.model_dump_json(), payload))

    def send(self, raw: bytes) -> tuple[Any, bytes]:
        found = read_frame(io.BytesIO(raw).read)
        assert found is not None
        answer = read_frame(io.BytesIO(self.service.handle(*found)).read)
        assert answer is not None
        response = parse_response(answer[0])
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
        "silos": {name: signer.public for name, signer in silos.items()},
        "tls": {"certificate": "x", "key": "x", "callers": "x"},
    }
    keys = Keys(new_secret(), Signer(new_signing_key()))
    return SiloView(ShufflerService(terms_from({**tree, **changes}), keys, folder / "shuffler.sqlite"))


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
