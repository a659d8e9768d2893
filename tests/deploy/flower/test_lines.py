"""The front's connections, over real sockets: strangers who are silent, slow, large or many keep no node out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time

import pytest

pytest.importorskip("h11", reason="h11 is not installed")

from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.flower import lines
from tacit.deploy.flower.lines import Lines, Reply

KNOWN = b"node"


class Served:
    """The front's lines in a thread. A header ``node`` names a known node; the reply is the size of the body."""

    def __init__(self, folder):
        authority = Authority(folder / "ca")
        pair = authority.issue("front")
        self.secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.secure.load_cert_chain(pair.certificate, pair.key)
        self.trusts = ssl.create_default_context(cafile=str(authority.certificate))
        self.trusts.check_hostname = False
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listening.getsockname()[1]
        self.lines, self.reply = Lines(self.answer, self.node, self.secure), None
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self._task = self._loop.create_task(self.lines.serve(self.listening))
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    @staticmethod
    def node(headers):
        return headers["node"].encode() if "node" in headers else None

    async def answer(self, request):
        if self.reply is not None:
            return self.reply
        joins = request.target == b"/join"
        return Reply(200, str(len(request.body)).encode(), node=KNOWN if joins else None)

    def stop(self):
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)
        self.listening.close()
        assert not self._thread.is_alive()

    def raw(self):
        return socket.create_connection(("127.0.0.1", self.port), 10.0)

    def tls(self):
        return self.trusts.wrap_socket(self.raw())


@pytest.fixture
def served(tmp_path):
    made = Served(tmp_path)
    yield made
    made.stop()


def head(size, *headers, target="/x"):
    return "\r\n".join([f"POST {target} HTTP/1.1", "host: x", f"content-length: {size}", *headers, "", ""]).encode()


def read(line, seconds=5.0):
    """Status and body of a reply; None where the other side has hung up."""
    line.settimeout(seconds)
    found = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while b"\r\n\r\n" not in found and (part := line.recv(1 << 16)):
            found += part
        if not found:
            return None
        top, _, body = found.partition(b"\r\n\r\n")
        size = next(int(row.split(b":")[1]) for row in top.split(b"\r\n") if row.lower().startswith(b"content-length"))
        while len(body) < size and (part := line.recv(1 << 16)):
            body += part
        return int(top.split()[1]), body
    return None


def asked(served, size=9, *headers):
    with served.tls() as line:
        line.sendall(head(size, *headers) + b"x" * size)
        return read(line)


def is_cut(line, seconds=5.0):
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except ssl.SSLError:
        return True
    except ConnectionError:
        return True


def test_256_silent_connections_and_half_bodies_keep_no_node_out(served):
    """All from one address, and the node comes from the same."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(served.tls()) for _ in range(lines.MOST_STRANGERS)]
        mute = [stack.enter_context(served.raw()) for _ in range(50)]
        halves = [stack.enter_context(served.tls()) for _ in range(7)]
        for line in halves:
            line.sendall(head(79 << 20) + b"x" * 60_000)
        begun = time.monotonic()
        assert asked(served) == (200, b"9")
        assert asked(served, 1 << 20, "node: a") == (200, b"1048576")
        assert time.monotonic() - begun < 5.0
        assert len(served.lines._strangers) <= lines.MOST_STRANGERS
        assert is_cut(silent[0])
        assert len(mute) == 50


def test_a_stranger_has_ten_seconds_in_all(served, monkeypatch):
    monkeypatch.setattr(lines, "STRANGER", 1.0)
    with contextlib.ExitStack() as stack:
        mute, silent, slow = served.raw(), served.tls(), served.tls()
        for line in (mute, silent, slow):
            stack.enter_context(line)
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            # A byte now and then gains no time: neither in the head, nor in a body.
            for byte in head(1000) + b"x" * 1000:
                slow.sendall(bytes([byte]))
                time.sleep(0.05)
                if time.monotonic() - begun > 4.0:
                    pytest.fail("a stranger had more than its time")
        assert all(map(is_cut, (mute, silent, slow)))
        assert asked(served) == (200, b"9")


def test_a_stranger_has_a_small_body_and_one_request(served):
    assert asked(served, lines.SMALL) == (200, str(lines.SMALL).encode())
    with served.tls() as line:
        with contextlib.suppress(OSError):
            line.sendall(head(lines.SMALL + 1) + b"x" * (lines.SMALL + 1))
        assert read(line) in ((413, b""), None)
    with served.tls() as line:
        line.sendall(head(0) + head(0))
        assert read(line) == (200, b"0")
        assert is_cut(line)


def test_who_has_joined_stays_and_is_a_node_from_then_on(served, monkeypatch):
    monkeypatch.setattr(lines, "STRANGER", 1.0)
    with served.tls() as line:
        line.sendall(head(0, target="/join"))
        assert read(line) == (200, b"0")
        time.sleep(1.5)
        for size in (1 << 20, 3):
            line.sendall(head(size) + b"x" * size)
            assert read(line) == (200, str(size).encode())


def test_a_nodes_time_is_bounded_too(served, monkeypatch):
    monkeypatch.setattr(lines, "WHOLE", 1.0)
    monkeypatch.setattr(lines, "IDLE", 0.5)
    with served.tls() as idle, served.tls() as slow:
        for line in (idle, slow):
            line.sendall(head(0, "node: a"))
            assert read(line) == (200, b"0")
        slow.sendall(head(10, "node: a") + b"x")
        assert is_cut(idle, 2.0)
        assert is_cut(slow, 3.0)


def test_the_line_that_holds_most_makes_room(served, monkeypatch):
    monkeypatch.setattr(lines, "MOST_HELD", 4 << 20)
    with served.tls() as greedy:
        greedy.sendall(head(4 << 20, "node: a") + b"x" * (3 << 20))
        time.sleep(0.5)
        assert asked(served, 2 << 20, "node: b") == (200, str(2 << 20).encode())
        assert is_cut(greedy)
    # What was held is let go.
    assert [asked(served, 3 << 20, "node: b") for _ in range(3)] == [(200, str(3 << 20).encode())] * 3


def test_many_lines_of_one_node_that_hold_little_each_make_room_too(served, monkeypatch):
    monkeypatch.setattr(lines, "MOST_HELD", 4 << 20)
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(served.tls()) for _ in range(8)]
        for line in many:
            line.sendall(head(1 << 20, "node: a") + b"x" * (7 << 16))
        time.sleep(0.5)
        assert asked(served, 2 << 20, "node: b") == (200, str(2 << 20).encode())


def test_a_body_in_chunks_is_refused_before_a_chunk_is_read(served):
    chunks = b"1\r\nx\r\n" * 60_000 + b"0\r\n\r\n"
    top = head(0, "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
    asked_for = []
    served.lines._answer = lambda request: asked_for.append(request) or served.answer(request)
    with served.tls() as line:
        with contextlib.suppress(OSError):
            line.sendall(top + chunks)
        assert read(line) in ((411, b""), None)
    assert asked_for == []


def test_of_too_many_lines_the_most_crowded_nodes_oldest_is_cut(served, monkeypatch):
    monkeypatch.setattr(lines, "MOST_NODES", 4)
    with contextlib.ExitStack() as stack:
        one, *crowd = [stack.enter_context(served.tls()) for _ in range(5)]
        for line, name in ((one, "one"), *((line, "crowd") for line in crowd)):
            line.sendall(head(0, f"node: {name}"))
            assert read(line) == (200, b"0")
        assert is_cut(crowd[0])
        for line in (one, *crowd[1:]):
            line.sendall(head(0))
            assert read(line) == (200, b"0")


def test_a_reader_that_is_slow_is_cut(served, monkeypatch):
    monkeypatch.setattr(lines, "WHOLE", 1.0)
    served.reply = Reply(200, b"x" * (32 << 20))
    with served.tls() as line:
        line.sendall(head(0, "node: a"))
        deadline = time.monotonic() + 8.0
        while served.lines._nodes and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not served.lines._nodes


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01 no tls at all",
        b"GET /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        head(4, "transfer-encoding: chunked") + b"0\r\n\r\n" + head(0, target="/y"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: x\r\na: " + b"a" * 100_000,
        b"\x00" * 1000,
    ],
)
def test_nonsense_ends_its_own_line_and_nothing_is_upgraded(served, said):
    asked_for = []
    served.lines._answer = lambda request: asked_for.append(request.target) or served.answer(request)
    with served.tls() as line:
        with contextlib.suppress(OSError):
            line.sendall(said)
        reply = read(line)
    assert reply is None or reply[0] in (200, 411)
    assert len(asked_for) <= 1
    assert asked(served) == (200, b"9")
