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
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from tacit.errors import TacitError

try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import x25519
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:  # pragma: no cover
    raise TacitError("Pairwise sums need the package cryptography; install: pip install 'tacit[silo]'.") from None

PROTOCOL = "tacit pairwise 2"
KEY_BYTES = 32

_PRIME = 2**255 - 19
LOW_ORDER = frozenset(
    point.to_bytes(KEY_BYTES, "little")
    for point in (
        0,
        1,
        _PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    )
)
"""Points whose secret with every key is all zeros: those of order 1, 2, 4 and 8, of the curve and of its twist."""

_CHUNK = 1 << 14  # coordinates at a time
_PART = 1 << 17  # the fewest coordinates for which a thread is started
_THREADS = min(4, os.cpu_count() or 1)


class PairwiseError(TacitError):
    """A key or a roster that must not be used; the message says which rule it breaks."""


class Member(NamedTuple):
    """A silo of a roster: its name, its identity key (Ed25519) and its key for the study (X25519), as raw bytes."""

    silo: str
    identity: bytes
    key: bytes


class BlockSum(NamedTuple):
    """What all silos of a round agree on for one block.

    The noise of the sum over its sensitivity, the sensitivity over the bound of a record, and the coordinates.
    """

    noise_multiplier: float
    sensitivity: float
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
    if raw in LOW_ORDER:
        raise PairwiseError("Expected a study key that keeps secrets, got one of low order.")


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
    blocks = [
        (name, float(own.noise_multiplier).hex(), float(own.sensitivity).hex(), str(own.dimension))
        for name, own in sorted(terms.items())
    ]
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
    private, own = x25519.X25519PrivateKey.from_private_bytes(secret), public_key(secret)
    others = [member.key for member in roster if member.key != own]
    pairs = [_Pair(_mask_key(private, own, key, context), np.add if own < key else np.subtract) for key in others]
    total = np.zeros(coordinates, np.uint64)
    size = max(_PART, -(-coordinates // (_THREADS * _CHUNK)) * _CHUNK)
    parts = [(pairs, first, total[first : first + size]) for first in range(0, coordinates, size)]
    if len(parts) == 1:
        _add_masks(*parts[0])
    else:  # ciphers and additions of long arrays leave the interpreter to other threads
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(_add_masks, *zip(*parts, strict=True)))
    return total


class _Pair(NamedTuple):
    """The key of a mask that two silos share, and whether this one adds it or takes it off."""

    key: bytes
    apply: np.ufunc


def _mask_key(private: x25519.X25519PrivateKey, own: bytes, other: bytes, context: bytes) -> bytes:
    """The key that two silos share for a context; a secret that is all zeros is refused."""
    try:
        shared = private.exchange(x25519.X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise PairwiseError("Expected a shared secret, got zeros: a key of low order.") from None
    info = b"tacit pairwise mask 1" + context + min(own, other) + max(own, other)
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)


def _add_masks(pairs: Sequence[_Pair], first: int, part: UInt64[np.ndarray, " some"]) -> None:
    """Add the masks of all pairs to the coordinates from ``first`` on, a multiple of two."""
    # A key is used for one context and two silos, so the counter may begin at zero; a block has two coordinates.
    counter = modes.CTR((first // 2).to_bytes(16, "big"))
    streams = [(Cipher(algorithms.AES256(pair.key), counter).encryptor(), pair.apply) for pair in pairs]
    zeros, buffer = bytes(8 * _CHUNK), bytearray(8 * _CHUNK + 15)
    masks = np.frombuffer(buffer, "<u8", _CHUNK)
    # All masks of a chunk while it is in the processor's cache.
    for at in range(0, part.size, _CHUNK):
        chunk = part[at : at + _CHUNK]
        nothing, mask = zeros[: 8 * chunk.size], masks[: chunk.size]
        for stream, apply in streams:
            stream.update_into(nothing, buffer)
            apply(chunk, mask, out=chunk)


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
