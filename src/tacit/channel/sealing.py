"""Sealing: reports that only the right party can open, of one size, and bound to one round of one study.

HPKE (RFC 9180) as the package `cryptography` implements it, with X25519, or with the hybrid of ML-KEM-768 and X25519,
which stays shut if either of the two holds. A report is padded to a fixed size and sealed once for every party on its
way, the last one innermost; each opens one layer:

    seal(report, [shuffler a, shuffler b, server]) = HPKE_a(HPKE_b(HPKE_server(report)))

The binding (study, round, hash of the broadcast, layer) enters every layer's key, so that a report that was made for
another round, or for another broadcast, does not open. The outermost layer is bound to its sender too: what one party
sealed cannot be handed in by another.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tacit.errors import TacitError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric import mlkem, x25519
    from cryptography.hazmat.primitives.hpke import (
        AEAD,
        KDF,
        KEM,
        MLKEM768X25519PrivateKey,
        MLKEM768X25519PublicKey,
        Suite,
    )
except ImportError:  # pragma: no cover
    raise TacitError("Sealing needs the package cryptography; install: pip install 'tacit[shuffler]'.") from None

Kind = Literal["x25519", "mlkem768-x25519"]
KINDS: tuple[Kind, ...] = ("x25519", "mlkem768-x25519")

_SUITES = {
    "x25519": Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305),
    "mlkem768-x25519": Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305),
}
_TAG = 16
_OVERHEAD = {"x25519": 32 + _TAG, "mlkem768-x25519": 1088 + 32 + _TAG}
_RAW = 32
_MLKEM_PUBLIC, _MLKEM_SEED = 1184, 64


class SealError(TacitError):
    """Something that does not open, is not signed by whom it should be, or is of the wrong size."""


class Binding(NamedTuple):
    """What a report belongs to: digest of the study that all silos share, round, and hash of the broadcast.

    ``sender`` says who hands it in, to whom and as what; only the first party on the way may know.
    """

    consortium: bytes
    round: int
    broadcast: bytes
    sender: str = ""

    def info(self, layer: int) -> bytes:
        """The bytes that enter the key of one layer."""
        sender = self.sender.encode() if layer == 0 else b""
        fields = (self.consortium, struct.pack(">q", self.round), self.broadcast, struct.pack(">i", layer), sender)
        return b"tacit report 2" + b"".join(struct.pack(">I", len(part)) + part for part in fields)


@dataclass(frozen=True)
class PublicKey:
    """A key that anybody may seal to; as text ``kind:base64``."""

    kind: Kind
    raw: bytes

    def __str__(self) -> str:
        return f"{self.kind}:{base64.b64encode(self.raw).decode()}"

    @property
    def overhead(self) -> int:
        """By how many bytes a layer makes a report longer."""
        return _OVERHEAD[self.kind]

    @property
    def key(self) -> Any:
        """As the package knows it."""
        if self.kind == "x25519":
            return x25519.X25519PublicKey.from_public_bytes(self.raw)
        return MLKEM768X25519PublicKey(
            mlkem.MLKEM768PublicKey.from_public_bytes(self.raw[:_MLKEM_PUBLIC]),
            x25519.X25519PublicKey.from_public_bytes(self.raw[_MLKEM_PUBLIC:]),
        )


@dataclass(frozen=True)
class SecretKey:
    """A key that opens what was sealed to its public half; keep ``raw`` in a file that nobody else can read."""

    kind: Kind
    raw: bytes

    def __repr__(self) -> str:
        return f"SecretKey({self.kind})"

    @property
    def public(self) -> PublicKey:
        """The half to hand out."""
        outer = x25519.X25519PrivateKey.from_private_bytes(self.raw[-_RAW:]).public_key().public_bytes_raw()
        if self.kind == "x25519":
            return PublicKey(self.kind, outer)
        inner = mlkem.MLKEM768PrivateKey.from_seed_bytes(self.raw[:_MLKEM_SEED]).public_key().public_bytes_raw()
        return PublicKey(self.kind, inner + outer)

    @property
    def key(self) -> Any:
        """As the package knows it."""
        own = x25519.X25519PrivateKey.from_private_bytes(self.raw[-_RAW:])
        if self.kind == "x25519":
            return own
        return MLKEM768X25519PrivateKey(mlkem.MLKEM768PrivateKey.from_seed_bytes(self.raw[:_MLKEM_SEED]), own)


def new_secret(kind: Kind = "x25519") -> SecretKey:
    """A fresh key from the operating system's entropy."""
    own = x25519.X25519PrivateKey.generate().private_bytes_raw()
    if kind == "x25519":
        return SecretKey(kind, own)
    return SecretKey(kind, mlkem.MLKEM768PrivateKey.generate().private_bytes_raw() + own)


def _contributes(raw: bytes) -> bool:
    """Whether what is sealed to this X25519 key stays secret; to a point of low order it does not."""
    try:
        x25519.X25519PrivateKey.from_private_bytes(bytes(_RAW)).exchange(x25519.X25519PublicKey.from_public_bytes(raw))
    except ValueError:
        return False
    return True


def public_key(text: str) -> PublicKey:
    """A public key from its text, or an error that says what is wrong with it.

    Points of low order, such as all zeros, are refused: anybody could open what is sealed to them.
    """
    kind, _, body = text.partition(":")
    lengths = {"x25519": _RAW, "mlkem768-x25519": _MLKEM_PUBLIC + _RAW}
    for known in KINDS:
        if kind == known:
            try:
                raw = base64.b64decode(body, validate=True)
            except ValueError:
                raw = b""
            if len(raw) == lengths[known]:
                found = PublicKey(known, raw)
                try:
                    _ = found.key
                except ValueError:
                    break
                if not _contributes(raw[-_RAW:]):
                    raise SealError(f"Expected a public key that keeps secrets, got one of low order: {text[:24]!r}.")
                return found
    raise SealError(f"Expected a public key such as x25519:BASE64 (kinds: {', '.join(KINDS)}), got {text[:24]!r}.")


def sealed_size(size: int, keys: Sequence[PublicKey]) -> int:
    """How long a report of at most ``size`` bytes is when it is sealed for these keys.

    >>> sealed_size(100, [new_secret().public, new_secret().public])
    200
    """
    return size + 4 + sum(key.overhead for key in keys)


def seal(report: bytes, keys: Sequence[PublicKey], binding: Binding, *, size: int, first: int = 0) -> bytes:
    """Pad a report to ``size`` bytes and seal it, the last key innermost; ``first`` is the number of the outer layer.

    Formal guarantee: whoever lacks one of the secret keys learns nothing but ``size`` from the bytes; nobody can open
    them for another binding.
    """
    if len(report) > size:
        raise SealError(f"Expected a report of at most {size} bytes, got {len(report)}.")
    blob = struct.pack(">I", len(report)) + report + bytes(size - len(report))
    for layer in reversed(range(len(keys))):
        key = keys[layer]
        blob = _SUITES[key.kind].encrypt(blob, key.key, info=binding.info(first + layer))
    return blob


def open_layer(blob: bytes, key: SecretKey, binding: Binding, *, layer: int) -> bytes:
    """Take one layer off, or raise: another key, another binding, another layer, or changed bytes."""
    try:
        return _SUITES[key.kind].decrypt(blob, key.key, info=binding.info(layer))
    except (InvalidTag, ValueError):
        raise SealError("A sealed report does not open: another key, round or broadcast, or changed bytes.") from None


def unpad(blob: bytes) -> bytes:
    """The report inside its padding."""
    if len(blob) < 4:
        raise SealError("Expected a padded report, got too few bytes.")
    length = int(struct.unpack(">I", blob[:4])[0])
    if length > len(blob) - 4 or any(blob[4 + length :]):
        raise SealError("Expected a padded report, got something else.")
    return blob[4 : 4 + length]
