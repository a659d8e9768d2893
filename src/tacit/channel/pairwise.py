"""Pairwise sums: masks that two silos each share, so that nobody reads anything but the sum over a round's silos.

    keys      `new_study_key`, `public_key`     an X25519 key of each silo for each study
    bind      `in_order`, `context_of`          the checked roster; a digest of everything that all silos must agree on
    encode    `masks_of`                        what a silo adds to its integers, modulo 2^64
    decode    `mean_of_total`                   the mean that the sum of all messages stands for, in which masks cancel

Silos i and j share the secret X25519(i, j). For each context the stream of AES-256 in counter mode, under the key
HKDF-SHA256(secret, context and both public keys), is their mask m_ij. Of two silos the one with the smaller public key
adds it, the other one takes it off.

Formal guarantee: if X25519, HKDF and AES are what they are believed to be, and the silos of H keep their keys to
themselves, then their messages for one context and one roster are, to everybody else, uniform given the sum over H,
whatever integers are under the masks. Messages for different contexts have independent masks, so that those that do not
belong together add up to something uniform.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from tacit.errors import TacitError

try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import x25519
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:  # pragma: no cover
    raise TacitError("Pairwise sums need the package cryptography; install: pip install 'tacit[silo]'.") from None

PROTOCOL = "tacit pairwise 1"
KEY_BYTES = 32

_PRIME = 2**255 - 19
_CHUNK = 1 << 14  # coordinates at a time


class PairwiseError(TacitError):
    """A key or a roster that must not be used; the message says which rule it breaks."""


class Member(NamedTuple):
    """A silo of a roster: its name, its identity key (Ed25519) and its key for the study (X25519), as raw bytes."""

    silo: str
    identity: bytes
    key: bytes


class BlockSum(NamedTuple):
    """What all silos of a round agree on for one block: the noise of the sum over its sensitivity, and coordinates."""

    noise_multiplier: float
    dimension: int


SumTerms = Mapping[str, BlockSum]
"""The terms of each block; a statistic without blocks is one whose name is empty."""


def new_study_key() -> bytes:
    """A fresh secret key from the operating system's entropy."""
    return x25519.X25519PrivateKey.generate().private_bytes_raw()


def public_key(secret: bytes) -> bytes:
    """The public half of a secret key."""
    return x25519.X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def check_key(raw: bytes) -> None:
    """Raise unless these bytes are the one canonical encoding of an X25519 key that keeps secrets.

    Two encodings of one point would share a secret and be ordered as if they were two keys; the secret with a point of
    low order is known to everybody.
    """
    if len(raw) != KEY_BYTES:
        raise PairwiseError(f"Expected a study key of {KEY_BYTES} bytes, got {len(raw)}.")
    if int.from_bytes(raw, "little") >= _PRIME:
        raise PairwiseError("Expected a study key in its canonical encoding, below 2^255 - 19.")
    try:
        _shared(bytes(KEY_BYTES), raw)
    except ValueError:
        raise PairwiseError("Expected a study key that keeps secrets, got one of low order.") from None


def _shared(secret: bytes, public: bytes) -> bytes:
    """The shared secret; a ValueError where it is all zeros."""
    own = x25519.X25519PrivateKey.from_private_bytes(secret)
    return own.exchange(x25519.X25519PublicKey.from_public_bytes(public))


def in_order(roster: Iterable[Member], own: Member) -> tuple[Member, ...]:
    """The roster in the order of its study keys, or a `PairwiseError`.

    Formal guarantee: all members have different names, identities and canonical keys, and ``own`` is one of them,
    exactly once. So nobody counts twice, and the masks of every two members differ.
    """
    members = sorted(roster, key=lambda member: member.key)
    for member in members:
        check_key(member.key)
    for what in ("silo", "identity", "key"):
        values = [getattr(member, what) for member in members]
        if len(set(values)) != len(values):
            raise PairwiseError(f"Expected every {what} once in a roster, got one of them twice.")
    if own not in members:
        raise PairwiseError("Expected a roster with this silo in it, under its own name and keys.")
    return tuple(members)


def context_of(
    *,
    version: int,
    study: bytes,
    noise: bool,
    terms: SumTerms,
    kind: str,
    round_index: int,
    attempt: int,
    roster: Sequence[Member],
    broadcast: bytes,
) -> bytes:
    """A digest of everything that silos must agree on for their masks to cancel.

    ``study`` is the digest of the plan, its nonce and all that its silos share; ``noise`` says that this is no test
    build; ``roster`` is in order; ``broadcast`` is the digest of what was asked.
    """
    blocks = [(name, float(own.noise_multiplier).hex(), str(own.dimension)) for name, own in sorted(terms.items())]
    members = [part for m in roster for part in (m.silo.encode(), m.identity, m.key)]
    numbers = struct.pack(">qq?qqqq", version, len(blocks), noise, round_index, attempt, len(roster), len(kind))
    fields = [PROTOCOL.encode(), numbers, study, kind.encode(), broadcast, *members]
    fields += [text.encode() for block in blocks for text in block]
    # Every field with its length: no two lists of fields give the same bytes.
    joined = b"".join(struct.pack(">Q", len(part)) + part for part in fields)
    return hashlib.sha256(joined).digest()


def masks_of(
    secret: bytes, roster: Sequence[Member], context: bytes, coordinates: int
) -> UInt64[np.ndarray, " coordinates"]:
    """What the holder of ``secret`` adds to its integers: the masks shared with everybody else in the roster."""
    own, total = public_key(secret), np.zeros(coordinates, np.uint64)
    others = [member.key for member in roster if member.key != own]
    streams = [(_cipher(secret, own, key, context), np.add if own < key else np.subtract) for key in others]
    zeros, stream = bytes(8 * _CHUNK), bytearray(8 * _CHUNK + 15)
    # All masks of a chunk while it is in the processor's cache.
    for first in range(0, coordinates, _CHUNK):
        part = total[first : first + _CHUNK]
        for cipher, apply in streams:
            cipher.update_into(zeros[: 8 * part.size], stream)
            with np.errstate(over="ignore"):
                apply(part, np.frombuffer(stream, "<u8", part.size), out=part)
    return total


def _cipher(secret: bytes, own: bytes, other: bytes, context: bytes) -> CipherContext:
    """The stream that two silos share for a context; a secret that is all zeros is refused."""
    try:
        shared = _shared(secret, other)
    except ValueError:
        raise PairwiseError("Expected a shared secret, got zeros: a key of low order.") from None
    info = b"tacit pairwise mask 1" + context + min(own, other) + max(own, other)
    key = HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)
    # A key is used for one context and two silos, so the counter may begin at zero.
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()


def mean_of_total(
    total: Int64[np.ndarray, " coordinates"], terms: SumTerms, clips: Mapping[str, float], *, unit: int, each: float
) -> dict[str, Float64[np.ndarray, " dimension"]]:
    """The mean of each block that a sum stands for.

    The clip of a block is ``unit`` steps of the integers; a record of weight one counts ``each``.
    """
    at, means = 0, {}
    for name, own in sorted(terms.items()):
        means[name] = total[at : at + own.dimension].astype(np.float64) * (clips[name] / unit * each)
        at += own.dimension
    return means
