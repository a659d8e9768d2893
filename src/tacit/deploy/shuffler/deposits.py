"""What a silo hands to its shufflers: its reports, or its share of a sum split so that no shuffler alone sees it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from tacit.channel.sealing import Binding, PublicKey, seal
from tacit.channel.shuffled_sum import parts_of
from tacit.deploy.shuffler.messages import Deposit, Mode, fields_of, parse_request
from tacit.deploy.signing import Signer
from tacit.deploy.wire import RefusalError, frame, read_frame
from tacit.errors import TacitError

Integers = Int64[np.ndarray, " coordinates"]


class Sender(NamedTuple):
    """The silo that deposits, its index in the plan, and how many silos it asks to contribute."""

    silo: str
    silo_index: int
    min_silos: int


def report_deposit(
    reports: Sequence[bytes],
    sender: Sender,
    signer: Signer,
    binding: Binding,
    *,
    size: int,
    shufflers: Mapping[str, PublicKey],
    server: PublicKey,
) -> bytes:
    """All reports of a silo for one round, sealed for a cascade of shufflers and the server, as one frame.

    Formal guarantee: each report is padded to ``size`` bytes, so that nothing tells reports apart but what the server
    reads in them; a shuffler takes all of them or none.
    """
    if not reports:
        raise TacitError("Expected at least one report; a silo that has none to give does not take part.")
    route = [*shufflers.values(), server]
    header = header_of("reports", next(iter(shufflers)), binding, sender)
    return _frame(header, [seal(report, route, header.binding, size=size) for report in reports], signer)


def sum_deposits(
    share: Integers, sender: Sender, signer: Signer, binding: Binding, *, shufflers: Mapping[str, PublicKey]
) -> list[bytes]:
    """A silo's share of a sum, as one frame for each aggregating shuffler.

    Formal guarantee: all shufflers but one, together with the server, learn nothing about the share but what the sum
    over all silos tells.
    """
    frames = []
    for (name, key), part in zip(shufflers.items(), parts_of(share, len(shufflers)), strict=True):
        raw = np.ascontiguousarray(part, "<u8").tobytes()
        header = header_of("sum", name, binding, sender)
        frames.append(_frame(header, [seal(raw, [key], header.binding, size=len(raw))], signer))
    return frames


def header_of(mode: Mode, shuffler: str, binding: Binding, sender: Sender) -> Deposit:
    """The header of a deposit, before its blobs are counted and it is signed."""
    return Deposit(mode=mode, shuffler=shuffler, count=1, size=1, **sender._asdict(), **fields_of(binding))


def check_deposit(raw: bytes, expected: Deposit) -> None:
    """Refuse bytes of a silo that are not one frame with exactly this deposit, whatever its signature.

    The server sends them on under its own certificate. Without this check a silo could make it ask a shuffler for
    something else, or contribute what one shuffler takes and another refuses.
    """
    whole = read_frame(io.BytesIO(raw).read)
    if whole is None or frame(*whole) != raw:
        raise RefusalError("bad-frame", "expected one frame and nothing else")
    header, payload = parse_request(whole[0]), whole[1]
    if not isinstance(header, Deposit):
        raise RefusalError("bad-message", "expected a deposit")
    for name in Deposit.model_fields:
        if name != "signature" and getattr(header, name) != getattr(expected, name):
            raise RefusalError("bad-message", f"expected {name}={getattr(expected, name)} in its deposit")
    if len(payload) != header.count * header.size:
        raise RefusalError("size", "the payload is not as long as its reports")


def _frame(header: Deposit, blobs: list[bytes], signer: Signer) -> bytes:
    payload = b"".join(blobs)
    whole = header.model_copy(update={"count": len(blobs), "size": len(blobs[0])})
    return frame(whole.signed(signer, payload), payload)
