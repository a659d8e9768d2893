"""Random bytes: the system's own, or a stream under a fresh key of the system's, held to RFC 8439."""

import os
import struct

import numpy as np
import pytest

from tacit import entropy
from tacit.entropy import random_bytes


def quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for first, second, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[first] = (state[first] + state[second]) & 0xFFFFFFFF
        mixed = state[third] ^ state[first]
        state[third] = ((mixed << turn) | (mixed >> (32 - turn))) & 0xFFFFFFFF


def chacha20_block(key: bytes, counter: int) -> bytes:
    """RFC 8439, section 2.3, with a nonce of zeros."""
    begun = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
    state = list(begun)
    for _ in range(10):
        for column in range(4):
            quarter_round(state, *(column + 4 * row for row in range(4)))
        for column in range(4):
            quarter_round(state, *((column + row) % 4 + 4 * row for row in range(4)))
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, begun, strict=True)))


def test_the_reference_is_that_of_the_standard():
    # RFC 8439, appendix A.1, test vectors 1 and 2.
    assert chacha20_block(bytes(32), 0).hex().startswith("76b8e0ada0f13d90405d6ae55386bd28")
    assert chacha20_block(bytes(32), 1).hex().startswith("9f07e7be5551387a98ba977c732d080d")


def test_many_bytes_are_the_stream_of_a_key_that_the_system_drew(monkeypatch):
    asked = []

    def system(count):
        asked.append(count)
        return bytes(range(count))

    monkeypatch.setattr(os, "urandom", system)
    drawn = random_bytes(5000)
    assert asked == [32]
    assert drawn == b"".join(chacha20_block(bytes(range(32)), counter) for counter in range(79))[:5000]


def test_every_call_has_a_key_of_its_own(monkeypatch):
    keys, real = [], os.urandom

    def system(count):
        keys.append(real(count))
        return keys[-1]

    monkeypatch.setattr(os, "urandom", system)
    streams = [random_bytes(1 << 13) for _ in range(50)]
    assert len(set(keys)) == 50
    assert len({stream[:16] for stream in streams}) == 50


@pytest.mark.parametrize("count", [0, 1, 4096])
def test_few_bytes_are_the_systems_own(monkeypatch, count):
    monkeypatch.setattr(os, "urandom", lambda asked: b"\x07" * asked)
    assert random_bytes(count) == b"\x07" * count


@pytest.mark.parametrize("count", [4096, 4097, 1 << 22])
def test_every_bit_of_a_byte_is_a_fair_coin(count):
    bits = np.unpackbits(np.frombuffer(random_bytes(count), np.uint8)).reshape(-1, 8)
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 6 * 0.5 / np.sqrt(len(bits)))


def test_no_key_is_stretched_too_far():
    with pytest.raises(ValueError, match="in parts"):
        random_bytes(entropy._STREAM_BYTES + 1)
