"""The server's side of shufflers: connections, and one round over several of them.

No silo trusts this side: it carries frames that silos have sealed and signed. Shufflers hear it because its proposer's
key is pinned there, and it believes what is signed with the keys that it has pinned to them.
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.channel.sealing import Binding, SealError, SecretKey, open_layer, unpad
from tacit.channel.shuffled_sum import joined
from tacit.deploy.client import Connection, refusal_of
from tacit.deploy.shuffler.deposits import Integers
from tacit.deploy.shuffler.messages import Collect, Hello, Mode, Relay, Total, Welcome, fields_of, parse_response
from tacit.deploy.signing import NOT_ASKED, Proposer, SignatureError, digest_of, opened_reply, shuffler_address
from tacit.deploy.wire import Error, RefusalError, frame, unframed
from tacit.errors import TacitError

_OVERTAKEN = 8


@dataclass(frozen=True)
class Address:
    """A shuffler's name, its public key for signatures, where it is, and the certificate and key to call it with."""

    name: str
    sign: str
    host: str
    port: int
    authority: Path
    certificate: Path
    key: Path


def _context_of(address: Address) -> ssl.SSLContext:
    """TLS 1.3 with certificates on both sides; files that cannot be read are named."""
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(address.authority))
    except OSError as error:
        raise TacitError(
            f"The authority of shuffler {address.name}, {address.authority}, is unusable: {error}."
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(address.certificate, address.key)
    except OSError as error:
        own = f"{address.certificate}, or its key {address.key},"
        raise TacitError(f"The certificate to call shuffler {address.name} with, {own} is unusable: {error}.") from None
    return context


class Caller(Connection):
    """A connection to one shuffler, over TLS 1.3 with certificates on both sides; ``proposer`` signs what is asked.

    Formal guarantee: whatever is returned was signed, as the answer to what was asked, with the key that the address
    pins to the shuffler.
    """

    parse = staticmethod(parse_response)

    def __init__(self, address: Address, proposer: Proposer, patience: float = 0.0, timeout: float = 60.0) -> None:
        super().__init__(patience)
        self._address, self._proposer, self._timeout = address, proposer, timeout
        self._to = shuffler_address(address.name)
        self._context = _context_of(address)

    def send(self, raw: bytes) -> tuple[Any, bytes]:
        """Sign the request of a frame and send it; otherwise like ``ask``."""
        for _ in range(_OVERTAKEN):
            try:
                return super().send(raw)
            except RefusalError as refusal:
                if refusal.code != "replayed":
                    raise
                # Another study of this proposer has overtaken the request, which has a larger counter next time.
        return super().send(raw)

    def connect(self) -> socket.socket:
        """A connection over TLS that knows the shuffler by its certificate, and has been greeted by it."""
        plain = socket.create_connection((self._address.host, self._address.port), timeout=self._timeout)
        try:
            line = self._context.wrap_socket(plain, server_hostname=self._address.host)
        except OSError:
            plain.close()
            raise
        try:
            # The first frame shows who calls, so it is a small one.
            with line.makefile("rb") as stream:
                response = self.parse(self._sent(line, stream, frame(Hello()))[0])
            if isinstance(response, Error):
                raise refusal_of(response)
        except (OSError, TacitError):
            line.close()
            raise
        return line

    def _sent(self, line: socket.socket, stream: io.BufferedReader, raw: bytes) -> tuple[bytes, bytes]:
        header, payload = unframed(raw)
        asked = self._proposer.request(header.decode(errors="replace"), payload, silo=self._to)
        reply, body = super()._sent(line, stream, asked)
        try:
            pinned = {self._to: self._address.sign}
            return opened_reply(reply, body, request=digest_of(*unframed(asked)), silos=pinned)[1], body
        except RefusalError as refusal:
            self.close()
            raise SignatureError(
                f"Shuffler {self._address.name}: expected a reply signed with {self._address.sign}, its key `sign` in "
                f"the list of shufflers; got {refusal}."
            ) from None


def greet(caller: Caller) -> Welcome:
    """A shuffler's public facts."""
    welcome, _ = caller.ask(Hello())
    if not isinstance(welcome, Welcome):
        raise TacitError("Expected a shuffler at the other end.")
    return welcome


def _collect(binding: Binding, silos: Sequence[str], mode: Mode) -> Collect:
    return Collect(mode=mode, silos=tuple(sorted(silos)), **fields_of(binding))


class LeftOutError(RefusalError):
    """Silos whose contributions shufflers do not take, with the reasons.

    If the round ``is_open`` at every shuffler, it can be settled again without them. Otherwise some shuffler may have
    released it with them, and nobody may be left out any more.
    """

    def __init__(self, reasons: Mapping[str, str], *, is_open: bool) -> None:
        super().__init__("left-out", "; ".join(f"{silo}: {reason}" for silo, reason in sorted(reasons.items())))
        self.reasons, self.is_open = dict(reasons), is_open


class Batch(NamedTuple):
    """One round's contributions to one shuffler: a frame of each silo."""

    caller: Caller
    frames: Mapping[str, bytes]


def hand_in(batches: Sequence[Batch], reasons: Mapping[str, str] | None = None) -> None:
    """Give every shuffler all contributions of a round, before any of them is asked to release it.

    A release cannot be undone. So silos that one shuffler refuses are found before the first release, and all shufflers
    can be asked for the same smaller set of silos. ``reasons`` name silos that are left out already.
    """
    left_out, is_open = dict(reasons or {}), True
    for batch in batches:
        taken = 0
        for silo, raw in batch.frames.items():
            try:
                batch.caller.send(raw)
            except RefusalError as refusal:
                if refusal.code in NOT_ASKED:
                    raise
                if refusal.code == "round":
                    break
                left_out.setdefault(silo, f"{refusal.code}: {refusal}")
            else:
                taken += 1
        # A shuffler that takes something has not released the round.
        is_open = is_open and taken > 0
    if left_out:
        raise LeftOutError(left_out, is_open=is_open)


def _released(batch: Batch, request: Collect) -> tuple[Any, bytes]:
    """The release of a round; if the shuffler has lost deposits, they are handed in again, up to twice."""
    for _ in range(2):
        try:
            return batch.caller.ask(request)
        except RefusalError as refusal:
            if refusal.code != "missing":
                raise
        for raw in batch.frames.values():
            batch.caller.send(raw)
    return batch.caller.ask(request)


def sum_over(
    callers: Mapping[str, Caller],
    deposits: Mapping[str, Mapping[str, bytes]],
    binding: Binding,
    reasons: Mapping[str, str] | None = None,
) -> Integers:
    """The sum of all silos' shares; ``deposits`` maps silos to the frames for each shuffler."""
    batches = {
        name: Batch(caller, {silo: frames[name] for silo, frames in deposits.items()})
        for name, caller in callers.items()
    }
    hand_in(list(batches.values()), reasons)
    totals = []
    for name, batch in batches.items():
        header, payload = _released(batch, _collect(binding, list(deposits), "sum"))
        if not isinstance(header, Total) or set(header.silos) != set(deposits):
            raise TacitError(f"Expected a sum over {len(deposits)} silos from shuffler {name}.")
        totals.append(np.frombuffer(payload, "<u8"))
    return joined(totals)


def mixed_reports(
    callers: Sequence[Caller],
    streams: Sequence[tuple[Binding, Mapping[str, bytes]]],
    server: SecretKey,
    reasons: Mapping[str, str] | None = None,
) -> list[list[bytes]]:
    """All silos' reports of each stream, in an order that only the shufflers together could undo.

    A stream is its binding and a frame of each silo. A report that does not open, for a later shuffler or here, comes
    back empty, so that it still counts.
    """
    batches = [Batch(callers[0], deposits) for _, deposits in streams]
    hand_in(batches, reasons)
    mixed = []
    for batch, (binding, deposits) in zip(batches, streams, strict=True):
        header, payload = _released(batch, _collect(binding, list(deposits), "reports"))
        count = header.count if isinstance(header, Relay) else 0
        for caller in callers[1:]:
            header, payload = caller.ask(header, payload)
        if not isinstance(header, Relay):
            raise TacitError("Expected a shuffled batch.")
        blobs = [payload[at : at + header.size] for at in range(0, len(payload), header.size)]
        reports = [_opened(blob, server, binding, layer=len(callers)) for blob in blobs]
        mixed.append(reports + [b""] * (count - len(reports)))
    return mixed


def _opened(blob: bytes, server: SecretKey, binding: Binding, layer: int) -> bytes:
    try:
        return unpad(open_layer(blob, server, binding, layer=layer))
    except SealError:
        return b""
