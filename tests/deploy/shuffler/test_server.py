"""A shuffler's port before strangers: without a certificate nobody takes a seat, and nobody drips for ever."""

import contextlib
import socket
import time

import pytest

from experiments.certificates import Authority
from tacit.deploy import listener
from tacit.deploy.shuffler.client import greet
from tacit.deploy.shuffler.server import _MOST_CALLERS
from tests.deploy.shuffler.parties import Party, signers


@pytest.fixture
def party(tmp_path):
    found = Party(tmp_path / "a", Authority(tmp_path / "authority"), signers(2))
    yield found
    found.stop()


def dripped_until_closed(connection, chunks, seconds):
    """Send bytes one by one; the time after which the other side has hung up, or None if it has not."""
    begun = time.monotonic()
    connection.settimeout(0.05)
    while time.monotonic() - begun < seconds:
        try:
            connection.send(next(chunks))
            if not connection.recv(1):
                return time.monotonic() - begun
        except TimeoutError:
            continue
        except OSError:
            return time.monotonic() - begun
    return None


def zeros():
    while True:
        yield b"\0"


def test_strangers_keep_no_caller_out(party):
    with contextlib.ExitStack() as strangers:
        for _ in range(_MOST_CALLERS + 40):
            strangers.enter_context(socket.create_connection(("127.0.0.1", party.port)))
        assert greet(party.caller()).name == "a"
        assert len(party._entrance._strangers) <= _MOST_CALLERS
        # And a caller that is in stays in.
        caller = party.caller()
        greet(caller)
        for _ in range(_MOST_CALLERS + 40):
            strangers.enter_context(socket.create_connection(("127.0.0.1", party.port)))
        assert greet(caller).name == "a"


def test_a_handshake_that_drips_is_broken_off(party, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE", 0.5)
    # The head of a record of TLS that announces 16384 bytes, which come one by one.
    with socket.create_connection(("127.0.0.1", party.port)) as stranger:
        stranger.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03")
        found = dripped_until_closed(stranger, zeros(), 5.0)
    assert found is not None
    assert 0.3 < found < 3.0


def test_a_frame_that_drips_is_broken_off(party, monkeypatch):
    monkeypatch.setattr(listener, "WHOLE_FRAME", 0.5)
    caller = party.caller()
    with caller.connect() as connection:
        connection.sendall((1 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big"))
        found = dripped_until_closed(connection, zeros(), 5.0)
    assert found is not None
    assert 0.3 < found < 3.0
    assert greet(party.caller()).name == "a"


def test_seats_are_given_back(party):
    for _ in range(2 * _MOST_CALLERS):
        caller = party.caller(5.0)
        greet(caller)
        caller.close()
