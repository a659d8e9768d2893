"""The courier and the grid by themselves: no state, no jax, and nonsense is silence."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import threading

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tacit.deploy.flower.app import GridTransport
from tacit.deploy.flower.courier import FRAMES, RECORD, exchange
from tacit.deploy.wire import Hello, frame, read_frame


def test_the_courier_imports_neither_jax_nor_anything_that_is_trusted():
    names = "[m for m in sys.modules if m.split('.')[0] in ('jax', 'tacit')]"
    code = f"import sys, tacit.deploy.flower.courier; print({names})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "jax" not in found
    assert set(eval(found)) == {"tacit", "tacit.deploy", "tacit.deploy.flower", "tacit.deploy.flower.courier"}


@pytest.fixture
def door(tmp_path):
    """A socket that answers each frame with the bytes that ``say`` makes of it."""
    path, says = tmp_path / "d.sock", [lambda raw: raw]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                while (found := read_frame(stream.read)) is not None:
                    reply = says[0](frame(*found))
                    if reply is None:
                        break
                    connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield path, says
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def test_frames_are_carried_as_they_are(door):
    path, _ = door
    sent = [frame(b"{}", bytes([i]) * 100_000) for i in range(3)]
    assert exchange(path, sent) == sent


def test_a_daemon_that_is_away_hangs_up_or_talks_nonsense_is_silence(door, tmp_path):
    path, says = door
    assert exchange(tmp_path / "nowhere", [frame(b"{}")]) == []
    says[0] = lambda raw: None
    assert exchange(path, [frame(b"{}")]) == []
    says[0] = lambda raw: b"\xff\xff\xff\xff"
    assert exchange(path, [frame(b"{}")]) == []


class FakeGrid:
    """Replies by node: bytes, an error, or never."""

    def __init__(self, replies, failures=0):
        self._replies, self.failures, self._sent = replies, failures, {}

    def get_node_ids(self):
        if self.failures:
            raise httpx.ConnectError("away")
        return list(self._replies)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            numbers.append(str(len(self._sent)))
            self._sent[numbers[-1]] = message
        return numbers

    def pull_messages(self, numbers):
        if self.failures:
            self.failures -= 1
            raise httpx.ReadTimeout("slow")
        found = []
        for number in [n for n in numbers if n in self._sent]:
            request = self._sent[number]
            reply = self._replies[request.metadata.dst_node_id]
            if reply is None:
                continue
            self._sent.pop(number)
            request.metadata.__dict__["_message_id"] = number
            content = reply if isinstance(reply, Error) else RecordDict({RECORD: ConfigRecord({FRAMES: reply})})
            found.append(Message(content, reply_to=request))
        return found


def test_the_grid_gives_what_came_in_time_and_survives_a_superlink_that_is_away(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    good, request = frame(b'{"a": 1}', b"xyz"), frame(Hello().model_dump_json())
    replies = {1: [good], 2: None, 3: [b"nonsense"], 4: Error(code=0, reason="courier died"), 5: []}
    transport = GridTransport(FakeGrid(replies, failures=2))
    assert transport.present() == []
    found = transport.ask({str(node): [request] for node in replies}, 2.0)
    assert found == {"1": [read_frame(io.BytesIO(good).read)]}
    assert transport.ask({}, 1.0) == {}
    assert transport.present() == ["1", "2", "3", "4", "5"]
