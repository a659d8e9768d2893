"""A shuffler's port before strangers, with certificates and without: nobody takes a seat, and nobody drips for ever."""

import contextlib
import logging
import socket
import ssl
import time

import pytest

from tacit.deploy import listener
from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.shuffler.client import Caller, greet
from tacit.deploy.shuffler.messages import Hello
from tacit.deploy.shuffler.server import _MOST_CALLERS
from tacit.deploy.wire import frame
from tests.deploy.shuffler.parties import CALLER, Party, signers


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


def half_a_hello():
    """The first bytes of a handshake, cut off in the middle."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="a")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    raw = outgoing.read()
    return raw[: len(raw) // 2]


def member(party, sent=b""):
    """Somebody with a certificate of the authority and no pinned key."""
    address = party.address()
    context = ssl.create_default_context(cafile=str(address.authority))
    context.load_cert_chain(address.certificate, address.key)
    plain = socket.create_connection(("127.0.0.1", party.port), timeout=5.0)
    try:
        line = context.wrap_socket(plain, server_hostname="127.0.0.1")
    except OSError:
        plain.close()
        raise
    line.sendall(sent)
    return line


def stranger(party, sent=b""):
    line = socket.create_connection(("127.0.0.1", party.port), timeout=5.0)
    line.sendall(sent)
    return line


SLOW = {
    "nothing": stranger,
    "half a hello": lambda party: stranger(party, half_a_hello()),
    "a certificate and nothing": member,
    "a certificate and half a frame": lambda party: member(party, (1 << 16).to_bytes(4, "big") + b"\0\0\4"),
    "a certificate and an unsigned frame": lambda party: member(party, frame(b'{"type":"hello"}')),
}


def test_who_repeats_a_request_of_the_servers_is_no_caller(party):
    """As somebody would who once stood between server and shuffler."""
    old = CALLER.request(Hello(), silo="shuffler/a")
    with contextlib.ExitStack() as crowd:
        for number in range(70):
            line = crowd.enter_context(member(party, old))
            assert b"signed-reply" in line.recv(5000)
            if number == 0:
                inside = party.caller()
                greet(inside)
        assert len(party._entrance._callers) <= 2
        assert greet(inside).name == "a"
        assert greet(party.caller(5.0)).name == "a"


@pytest.mark.parametrize("kind", SLOW)
def test_seventy_slow_ones_do_not_shut_the_server_out(party, kind):
    inside = party.caller()
    greet(inside)
    with contextlib.ExitStack() as crowd:
        for _ in range(70):
            crowd.enter_context(SLOW[kind](party))
        begun = time.monotonic()
        assert greet(party.caller(5.0)).name == "a"
        assert greet(inside).name == "a"
        assert time.monotonic() - begun < 3.0
        assert len(party._entrance._strangers) <= _MOST_CALLERS


def test_a_member_without_a_pinned_key_is_cut_off_soon(party, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE", 1.0)
    with member(party) as line:
        found = dripped_until_closed(line, zeros(), 5.0)
    assert found is not None
    assert found < 3.0


def test_a_member_without_a_pinned_key_fills_no_memory(party):
    with member(party, (1 << 26).to_bytes(4, "big") + (100).to_bytes(4, "big")) as line:
        assert b"bad-frame" in line.recv(1000)


def test_rejected_handshakes_are_logged_and_flood_no_log(party, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "tacit.shuffler")
    pair = Authority(tmp_path / "other").issue("caller")
    for _ in range(5):
        with pytest.raises(OSError):
            greet(Caller(party.address(pair=pair), CALLER))
        with stranger(party, b"GET / HTTP/1.1\r\n\r\n") as line, contextlib.suppress(OSError):
            line.recv(100)
    found = [line for line in caplog.messages if line.startswith("handshake with 127.0.0.1 rejected: ")]
    assert 2 <= len(found) == len(set(found)) <= 4
    assert any("CERT" in line for line in found)


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
