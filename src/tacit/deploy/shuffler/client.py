"""A caller's side of a shuffler: the connection, and the driving of one round over several shufflers.

Nothing here is trusted: it carries frames that silos have sealed and signed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from tacit.channel.sealing import Binding, SealError, SecretKey, open_layer, unpad
from tacit.deploy.connection import Connection
from tacit.deploy.shuffler.messages import Collect, Hello, Mode, Relay, Total, Welcome, parse_response
from tacit.deploy.wire import Error, RefusalError, frame
from tacit.errors import TacitError


@dataclass(frozen=True)
class Address:
    """Where a shuffler is, and the certificates to call it with: the authority, our own, and its key."""

    host: str
    port: int
    authority: Path
    certificate: Path
    key: Path


class Caller(Connection):
    """A connection to one shuffler, made again for up to ``patience`` seconds; every request may be repeated."""

    def __init__(self, address: Address, patience: float = 0.0, timeout: float = 60.0) -> None:
        super().__init__(patience, pause=0.05, gone="the shuffler has gone")
        self._address, self._timeout = address, timeout
        self._context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(address.authority))
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_cert_chain(address.certificate, address.key)

    def ask(self, request: Any, payload: bytes = b"") -> tuple[Any, bytes]:
        """The response to a request; a refusal raises with the shuffler's code."""
        return self.send(frame(request.model_dump_json(), payload))

    def send(self, raw: bytes) -> tuple[Any, bytes]:
        """Send a frame as it is; a refusal raises with the shuffler's code."""
        header, body = self.exchange(raw)
        response = parse_response(header)
        if isinstance(response, Error):
            raise RefusalError(response.code, response.text, response.numbers)
        return response, body

    def connect(self) -> socket.socket:
        """A connection over TLS that knows the shuffler by its certificate."""
        plain = socket.create_connection((self._address.host, self._address.port), timeout=self._timeout)
        try:
            return self._context.wrap_socket(plain, server_hostname=self._address.host)
        except OSError:
            plain.close()
            raise


def greet(caller: Caller) -> Welcome:
    """A shuffler's public facts."""
    found, _ = caller.ask(Hello())
    if not isinstance(found, Welcome):
        raise TacitError("Expected a shuffler at the other end.")
    return found


def _collect(binding: Binding, silos: Sequence[str], mode: Mode) -> Collect:
    return Collect(
        mode=mode,
        consortium=binding.consortium.hex(),
        round=binding.round,
        broadcast=binding.broadcast.hex(),
        silos=tuple(sorted(silos)),
    )


class LeftOutError(RefusalError):
    """Silos whose contributions shufflers do not take, with the reasons.

    If the round ``is_open`` at every shuffler, it can be settled again without them; otherwise some shuffler may have
    released it with them before, and nobody may be left out any more.
    """

    def __init__(self, reasons: Mapping[str, str], *, is_open: bool) -> None:
        super().__init__("left-out", "; ".join(f"{silo}: {reason}" for silo, reason in sorted(reasons.items())))
        self.reasons, self.is_open = dict(reasons), is_open


@dataclass(frozen=True)
class Batch:
    """One round's contributions to one shuffler: a frame of each silo."""

    caller: Caller
    frames: Mapping[str, bytes]


def hand_in(batches: Sequence[Batch], reasons: Mapping[str, str] | None = None) -> None:
    """Give every shuffler all contributions of a round, before any of them is asked to release it.

    What a shuffler has released cannot be undone, so whoever is refused by one of them must be found first: then
    nothing has been released, and all can be asked for the sum, or the reports, of the same smaller set of silos.
    ``reasons`` name silos that are known already to be left out.
    """
    found, is_open = dict(reasons or {}), True
    for batch in batches:
        taken = 0
        for silo, raw in batch.frames.items():
            try:
                batch.caller.send(raw)
            except RefusalError as refusal:
                if refusal.code == "round":
                    break
                found.setdefault(silo, f"{refusal.code}: {refusal}")
            else:
                taken += 1
        # A shuffler that takes something has not released the round.
        is_open = is_open and taken > 0
    if found:
        raise LeftOutError(found, is_open=is_open)


def _released(batch: Batch, request: Collect) -> tuple[Any, bytes]:
    """The release of a round; contributions are handed in again if the shuffler has lost them."""
    for attempt in range(3):
        try:
            return batch.caller.ask(request)
        except RefusalError as refusal:
            if refusal.code != "missing" or attempt == 2:
                raise
        for raw in batch.frames.values():
            batch.caller.send(raw)
    raise AssertionError("unreachable")


def sum_over(
    callers: Mapping[str, Caller],
    deposits: Mapping[str, Mapping[str, bytes]],
    binding: Binding,
    reasons: Mapping[str, str] | None = None,
) -> Int64[np.ndarray, " coordinates"]:
    """The sum of all silos' shares; ``deposits`` maps silos to the frames for each shuffler."""
    batches = {
        name: Batch(caller, {silo: frames[name] for silo, frames in deposits.items()})
        for name, caller in callers.items()
    }
    hand_in(list(batches.values()), reasons)
    total: Any = 0
    for name, batch in batches.items():
        header, payload = _released(batch, _collect(binding, list(deposits), "sum"))
        if not isinstance(header, Total) or set(header.silos) != set(deposits):
            raise TacitError(f"Expected a sum over {len(deposits)} silos from shuffler {name}.")
        with np.errstate(over="ignore"):
            total = total + np.frombuffer(payload, "<u8")
    return np.asarray(total, np.uint64).view(np.int64)


def mixed_reports(
    callers: Sequence[Caller],
    streams: Sequence[tuple[Binding, Mapping[str, bytes]]],
    server: SecretKey,
    reasons: Mapping[str, str] | None = None,
) -> list[list[bytes]]:
    """All silos' reports of each stream, in an order that only the shufflers together could undo.

    A stream is what it is bound to and a frame of each silo. A report that does not open, for a later shuffler or here,
    is empty: whoever sealed it has nothing to say, and is still one of those who spoke.
    """
    batches = [Batch(callers[0], deposits) for _, deposits in streams]
    hand_in(batches, reasons)
    found = []
    for batch, (binding, deposits) in zip(batches, streams, strict=True):
        header, payload = _released(batch, _collect(binding, list(deposits), "reports"))
        count = header.count if isinstance(header, Relay) else 0
        for caller in callers[1:]:
            header, payload = caller.ask(header, payload)
        if not isinstance(header, Relay):
            raise TacitError("Expected a shuffled batch.")
        blobs = [payload[at : at + header.size] for at in range(0, len(payload), header.size)]
        own = [_opened(blob, server, binding, layer=len(callers)) for blob in blobs]
        found.append(own + [b""] * (count - len(own)))
    return found


def _opened(blob: bytes, server: SecretKey, binding: Binding, layer: int) -> bytes:
    try:
        return unpad(open_layer(blob, server, binding, layer=layer))
    except SealError:
        return b""
