"""Who says what: Ed25519 keys, requests signed by a pinned proposer, replies signed by a pinned silo or shuffler.

A signed frame is a header of its own around the header and payload of a request or reply. Its signature covers all of
it. A request names its proposer, the silo and the ledger that it is for, and a counter; a reply names the silo and the
digest of the request that it answers. So whoever carries frames can delay and drop them, and nothing else. Where a silo
is named here, ``shuffler/NAME`` stands for a shuffler, which no silo can be called.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519
from pydantic import AfterValidator

from tacit.deploy.wire import (
    Hello,
    RefusalError,
    SignedReply,
    SignedRequest,
    Strict,
    frame,
    parse_request,
    parse_signed_reply,
    spoken,
)
from tacit.errors import TacitError

_KIND = "ed25519"

MOST_AHEAD = 86_400 * 10**9
"""How far a counter may be ahead of the clock here, in nanoseconds; a larger one would shut all that follow out."""

NOT_ASKED = frozenset({"unsigned", "proposer", "signature", "addressed", "ahead", "replayed", "terms"})
"""The codes of a signed frame that is refused before its request is read."""


class SignatureError(TacitError):
    """A signature that is not that of the key, or a key that is none."""


class Signer:
    """Who somebody is: an Ed25519 key that signs what they send."""

    def __init__(self, raw: bytes) -> None:
        self._key = ed25519.Ed25519PrivateKey.from_private_bytes(raw)

    @property
    def public(self) -> str:
        """The key to check signatures with, as text."""
        return f"{_KIND}:" + base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, header: bytes, payload: bytes) -> str:
        """A signature of header and payload together."""
        return base64.b64encode(self._key.sign(_signed(header, payload))).decode()


def new_signing_key() -> bytes:
    """A fresh signing key."""
    return ed25519.Ed25519PrivateKey.generate().private_bytes_raw()


def check_signature(public: str, signature: str, header: bytes, payload: bytes) -> None:
    """Raise unless the holder of the key signed exactly this."""
    try:
        raw = base64.b64decode(signature, validate=True)
        if base64.b64encode(raw).decode() != signature:
            # Its last letter has bits that mean nothing.
            raise ValueError(signature)
        verifying_key(public).verify(raw, _signed(header, payload))
    except (InvalidSignature, ValueError):
        raise SignatureError("The signature is not that of the key.") from None


def verifying_key(public: str) -> ed25519.Ed25519PublicKey:
    """The key in a text, or a ValueError."""
    kind, _, body = public.partition(":")
    if kind != _KIND:
        raise ValueError(f"expected a key such as {_KIND}:..., as the keys commands of server, silo and shuffler print")
    return ed25519.Ed25519PublicKey.from_public_bytes(base64.b64decode(body, validate=True))


def fingerprint(public: str) -> str:
    """A key in eight groups of four digits, to compare by telephone: the first 128 bits of its SHA-256.

    >>> fingerprint(Signer(bytes(32)).public)
    '139e 3940 e64b 5491, 7220 88d9 a0d7 4162'
    """
    return spoken(hashlib.sha256(verifying_key(public).public_bytes_raw()).hexdigest()[:32])


def _is_key(public: str) -> str:
    verifying_key(public)
    return public


KeyText = Annotated[str, AfterValidator(_is_key)]
"""A public key as text, in a file of settings; what is none is refused when the file is read."""


def _signed(header: bytes, payload: bytes) -> bytes:
    return b"tacit signed 1" + hashlib.sha256(header).digest() + hashlib.sha256(payload).digest()


class Proposer(NamedTuple):
    """Who proposes plans and leads studies: a name that policies know, and the key that they pin to it."""

    name: str
    signer: Signer

    def request(
        self, request: Strict | str, payload: bytes = b"", *, silo: str, ledger: str = "", counter: int | None = None
    ) -> bytes:
        """A request as a signed frame for this silo and its ledger; later requests have larger counters."""
        text = request if isinstance(request, str) else request.model_dump_json()
        count = time.time_ns() if counter is None else counter
        signed = SignedRequest(proposer=self.name, silo=silo, ledger=ledger, counter=count, request=text, signature="")
        return _sealed(signed, self.signer, payload)


def shuffler_address(name: str) -> str:
    """What signed frames call a shuffler, so that nothing said to or by a silo of its name is taken for its own."""
    return f"shuffler/{name}"


def opened_request(
    signed: SignedRequest,
    payload: bytes,
    *,
    silo: str,
    ledger: str,
    proposers: Mapping[str, str],
    parse: Callable[[bytes], Any] = parse_request,
) -> Any:
    """The request inside a signed one, as ``parse`` reads it; only a silo's `Hello` may be addressed to nobody.

    Formal guarantee: what is returned was signed, with this payload and counter and for this silo, by the holder of the
    key that is pinned to the proposer; and for this ledger, unless it is a `Hello`. Its counter shuts no later request
    out for more than a day.
    """
    public = proposers.get(signed.proposer)
    if public is None:
        raise RefusalError("proposer", "expected a proposer whose key is pinned here")
    try:
        check_signature(public, signed.signature, _unsigned(signed), payload)
    except SignatureError:
        raise RefusalError("signature", "expected a request that the proposer has signed") from None
    if signed.counter > time.time_ns() + MOST_AHEAD:
        raise RefusalError("ahead", "expected a counter within a day of the clock here: one of two clocks is wrong")
    request = parse(signed.request.encode())
    open_to = ("",) if isinstance(request, Hello) else ()
    if signed.silo not in (silo, *open_to):
        raise RefusalError("addressed", f"expected a request to {silo}")
    if signed.ledger not in (ledger, *open_to):
        raise RefusalError("addressed", f"expected a request to the ledger that {silo} has now; ask with hello which")
    return request


def signed_reply(header: bytes, payload: bytes, *, request: bytes, silo: str, signer: Signer) -> bytes:
    """A reply as a signed frame; ``request`` is the digest of what it answers."""
    signed = SignedReply(silo=silo, request=request.hex(), reply=header.decode(), signature="")
    return _sealed(signed, signer, payload)


def opened_reply(header: bytes, payload: bytes, *, request: bytes, silos: Mapping[str, str]) -> tuple[str, bytes]:
    """The silo that signed a reply, and the header inside; a `RefusalError` where no pinned silo did.

    Formal guarantee: the reply was signed, with this payload, as the answer to the request of this digest, by the
    holder of the key that is pinned to the silo.
    """
    signed = parse_signed_reply(header)
    if signed.silo not in silos:
        raise RefusalError("silo", f"a silo that is not pinned answers: {signed.silo}")
    try:
        check_signature(silos[signed.silo], signed.signature, _unsigned(signed), payload)
    except SignatureError:
        raise RefusalError("signature", f"a reply that {signed.silo} has not signed") from None
    if signed.request != request.hex():
        raise RefusalError("signature", f"a reply of {signed.silo} to another request")
    return signed.silo, signed.reply.encode()


def digest_of(header: bytes, payload: bytes) -> bytes:
    """What a reply is bound to: the request as it was sent."""
    return hashlib.sha256(_signed(header, payload)).digest()


def _unsigned(signed: Any) -> bytes:
    return bytes(signed.model_copy(update={"signature": ""}).model_dump_json().encode())


def _sealed(signed: Any, signer: Signer, payload: bytes) -> bytes:
    return frame(signed.model_copy(update={"signature": signer.sign(_unsigned(signed), payload)}), payload)
