"""The courier, the node and the leader's transport by themselves: no state, no jax, and nonsense is silence."""

from __future__ import annotations

import contextlib
import gzip
import io
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
from flwr.proto import fleet_pb2, message_pb2, runtime_pb2

from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.flower import commands, courier, leader, node, private
from tacit.deploy.flower.commands import Control
from tacit.deploy.flower.courier import exchange
from tacit.deploy.flower.leader import LinkTransport
from tacit.deploy.flower.private import EndedError, FlowerError, Link, Parcel, Run
from tacit.deploy.wire import Hello, frame, read_frame


def test_the_node_imports_neither_jax_nor_anything_that_is_trusted():
    names = "[m for m in sys.modules if m.split('.')[0] in ('jax', 'tacit')]"
    code = f"import sys, tacit.deploy.flower.node; print({names})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    flower = {f"tacit.deploy.flower.{name}" for name in ("courier", "commands", "node", "private")}
    others = {"tacit", "tacit.deploy", "tacit.deploy.flower", "tacit.deploy.permissions", "tacit.errors"}
    assert set(eval(found)) == flower | others | {"tacit.stopping"}


def test_another_flower_is_told_with_the_version_that_is_needed(monkeypatch):
    private.check_flower()
    monkeypatch.setitem(private._EXPECTED, "flwr.common.serde:message_to_proto", "message and_more")
    with pytest.raises(FlowerError, match=r"flwr==1\.41\.\*.*message_to_proto"):
        private.check_flower()
    monkeypatch.setattr(private, "_EXPECTED", {"flwr.nowhere:thing": ""})
    with pytest.raises(FlowerError, match=r"flwr\.nowhere:thing"):
        private.check_flower()


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


def test_what_is_asked_of_a_daemon_at_once_is_bounded(door, monkeypatch):
    """One small request, carried a thousand times, would bring its long reply as often into the courier's memory."""
    path, says = door
    assert exchange(path, [frame(b"{}")] * 17) == []
    assert len(exchange(path, [frame(b"{}")] * 16)) == 16
    monkeypatch.setattr(courier, "_MOST_REPLIES", 1_000_000)
    asked = []
    says[0] = lambda raw: asked.append(raw) or frame(b"{}", bytes(400_000))
    assert exchange(path, [frame(b"{}")] * 16) == []
    assert len(asked) == 3
    assert len(exchange(path, [frame(b"{}")] * 2)) == 2


class FakeFleet:
    """Parcels to receive one after another, where an exception is raised; ``answered`` is what came back."""

    def __init__(self, *events):
        self._events, self.answered, self.joins, self.node, self.looks = list(events), [], 0, 7, []
        self.expects = False

    def join(self):
        self.joins += 1

    def beat(self):
        return True

    def receive(self):
        self.looks.append(time.monotonic())
        event = self._events.pop(0) if self._events else KeyboardInterrupt()
        if isinstance(event, BaseException):
            raise event
        return event

    def answer(self, parcel, replies):
        self.answered.append((parcel.message, list(replies)))


def refusal(status, path="/v1/fleet/pull-object"):
    request = httpx.Request("POST", f"https://x{path}")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def test_the_node_brings_replies_and_passes_over_nonsense_and_runs_that_are_over(door):
    path, _ = door
    sent = [frame(b"{}", b"x")]
    fleet = FakeFleet(Parcel("a", sent), Parcel("b", None), refusal(403), Parcel("c", sent))
    with pytest.raises(KeyboardInterrupt):
        node.carry(fleet, path, threading.Event())
    assert fleet.answered == [("a", sent), ("c", sent)]


def test_the_node_joins_again_after_any_failure_and_says_why_once(door, monkeypatch):
    monkeypatch.setattr(node, "_FIRST", 0.01)
    away = httpx.ConnectError("away")
    fleet, said = FakeFleet(away, refusal(401), refusal(500), away, KeyError("nonsense"), refusal(404)), []
    with pytest.raises(KeyboardInterrupt):
        node._keep_carrying(fleet, door[0], said.append)
    assert fleet.joins == 7
    assert [line for line in said if "away" in line] == ["Not joined: away. Trying again."] * 2
    refused = FakeFleet()
    monkeypatch.setattr(refused, "join", refusing(refused))
    said.clear()
    with pytest.raises(KeyboardInterrupt):
        node._keep_carrying(refused, door[0], said.append)
    assert len(said) == 2
    assert "not registered" in said[0]
    assert "Joined" in said[1]


def refusing(fleet, times=3):
    """A join that is refused a few times."""

    def join():
        fleet.joins += 1
        if fleet.joins <= times:
            raise refusal(412, "/v1/fleet/activate-node")

    return join


class Waits(threading.Event):
    """An event that is never set, and notes how long was waited for it."""

    def __init__(self):
        super().__init__()
        self.pauses = []

    def wait(self, timeout=None):
        self.pauses.append(timeout)
        time.sleep(timeout)
        return False


def test_the_node_looks_often_while_a_study_runs_and_seldom_when_idle(door, monkeypatch):
    for name, value in (("_STUDY", 0.5), ("_BUSY", 0.02), ("_IDLE", 0.1), ("_SLOWER", 2.0)):
        monkeypatch.setattr(node, name, value)
    fleet, lost = FakeFleet(*[None] * 6, Parcel("a", []), *[None] * 40), Waits()
    with pytest.raises(KeyboardInterrupt):
        node.carry(fleet, door[0], lost)
    assert fleet.answered == [("a", [])]
    assert lost.pauses[:6] == [0.04, 0.08, 0.1, 0.1, 0.1, 0.1]
    assert lost.pauses[6:9] == [0.02] * 3
    assert lost.pauses[-3:] == [0.1] * 3
    waiting, lost = FakeFleet(*[None] * 20), Waits()
    waiting.expects = True
    with pytest.raises(KeyboardInterrupt):
        node.carry(waiting, door[0], lost)
    assert lost.pauses == [0.05] * 20


def test_a_server_cannot_send_the_courier_elsewhere(tmp_path):
    commands.node_key(tmp_path / "node.key")
    authority = Authority(tmp_path / "ca").certificate
    with contextlib.closing(private.Fleet("localhost:1", authority, tmp_path / "node.key")) as fleet:
        redirect = httpx.Response(307, headers={"location": "https://inside/v1/fleet/activate-node"})
        asked = []
        fleet._client._client._transport = httpx.MockTransport(
            lambda request: asked.append(request.url.host) or redirect
        )
        with pytest.raises(httpx.HTTPStatusError, match="307"):
            fleet.join()
    assert asked == ["localhost"]


@pytest.mark.parametrize("packed", [True, False])
def test_a_server_cannot_fill_the_couriers_memory(tmp_path, monkeypatch, packed):
    """Over a real connection: a reply without end, and one that is a thousand times as long when it is unpacked."""
    monkeypatch.setattr(private, "_MOST_OBJECT", 1 << 22)
    commands.node_key(tmp_path / "node.key")
    sent = []

    def serve(connection):
        with connection, connection.makefile("rb") as stream:
            while stream.readline().strip():
                pass
            part = gzip.compress(bytes(1 << 24)) if packed else bytes(1 << 16)
            encoding = b"content-encoding: gzip\r\n" * packed
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n" + encoding + b"\r\n")
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                    sent.append(len(part))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        authority = Authority(tmp_path / "ca").certificate
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with contextlib.closing(private.Fleet(address, authority, tmp_path / "node.key")) as fleet:
            # The bytes matter here, not who sends them.
            fleet._client._base_url = f"http://{address}"
            for call, request in (
                (fleet._client.PullMessages, fleet_pb2.PullMessagesRequest()),
                (fleet._client.PullObject, message_pb2.PullObjectRequest()),
            ):
                thread = threading.Thread(target=lambda: serve(listening.accept()[0]), daemon=True)
                thread.start()
                with pytest.raises(httpx.DecodingError, match="packed" if packed else "at most"):
                    call(request)
                thread.join(10)
    assert sum(sent) < 1 << 24


def test_a_node_that_is_lost_stops_carrying(door):
    lost = threading.Event()
    lost.set()
    fleet = FakeFleet(Parcel("a", []))
    node.carry(fleet, door[0], lost)
    assert fleet.looks == []


class FakeRun:
    """Replies by node: frames, None for nonsense, or never; some calls fail."""

    def __init__(self, replies, *, failures=(), ended=False):
        self._replies, self._failures, self.ended, self._sent = replies, list(failures), ended, {}

    def _call(self):
        if self.ended:
            raise EndedError("ended")
        if self._failures:
            raise self._failures.pop(0)

    def nodes(self):
        self._call()
        return list(self._replies)

    def push(self, frames, seconds):
        self._call()
        self._sent = {str(i): at for i, at in enumerate(frames)}
        return dict(self._sent)

    def pull(self, ids):
        self._call()
        return {i: self._replies[self._sent[i]] for i in ids if self._replies[self._sent[i]] != "never"}

    def beat(self):
        self._call()

    def close(self):
        assert self.ended


class FakeLink:
    def __init__(self, *runs):
        self.runs = list(runs)

    def begin(self):
        if not self.runs:
            raise FlowerError("away")
        return self.runs.pop(0)


GOOD, REQUEST = frame(b'{"a": 1}', b"xyz"), frame(Hello().model_dump_json())


def test_the_transport_gives_what_came_in_time_and_survives_a_superlink_that_is_away():
    replies = {1: [GOOD], 2: "never", 3: [b"nonsense"], 4: None, 5: []}
    away = httpx.ConnectError("away")
    run = FakeRun(replies, failures=[away, away])
    transport = LinkTransport(FakeLink(run))
    assert transport.present() == []
    asked = {str(at): [REQUEST] for at in replies}
    assert transport.ask(asked, 1.0) == {}
    run._failures = []
    assert transport.ask(asked, 0.5) == {"1": [read_frame(io.BytesIO(GOOD).read)]}
    assert transport.ask(asked, 60.0, enough=lambda found: set(found) == {"1"}) == {
        "1": [read_frame(io.BytesIO(GOOD).read)]
    }
    assert transport.ask({}, 1.0) == {}
    assert transport.present() == ["1", "2", "3", "4", "5"]


class EchoRun:
    """Says to each message what was in it; the messages of node 2 come late, and one of node 3 never."""

    def __init__(self):
        self.pushed, self._looks = [], 0

    def push(self, frames, seconds):
        ids = {str(len(self.pushed) + i): at for i, at in enumerate(frames)}
        self.pushed += list(frames.items())
        return ids

    def pull(self, ids):
        self._looks += 1
        there = {number: self.pushed[int(number)] for number in ids}
        third = [number for number, (node, _) in enumerate(self.pushed) if node == 3]
        lost = {str(number) for number in third[1:]}
        return {i: own for i, (node, own) in there.items() if i not in lost and (node != 2 or self._looks % 3 == 0)}


def test_what_is_too_long_for_a_message_goes_in_several_one_after_another(monkeypatch):
    monkeypatch.setattr(leader, "MOST_FRAME", 1000)
    run, parts = (
        EchoRun(),
        [frame(b"{}", bytes([i]) * size) for i, size in enumerate((500, 400, 300, 30, 30, 30, 9, 999))],
    )
    transport = LinkTransport(FakeLink(run))
    found = transport.ask({"1": parts, "2": parts, "3": parts}, 10.0, enough=lambda there: {"1", "2"} <= set(there))
    assert found == {at: [read_frame(io.BytesIO(raw).read) for raw in parts] for at in "12"}
    assert [own for node, own in run.pushed if node == 1] == [parts[:2], parts[2:6], parts[6:7], parts[7:]]


def test_looks_are_frequent_when_replies_are_expected_and_bounded():
    looks = leader.Looks()
    pauses = [looks.begun(), *(looks.after(came=False, seconds=0.0) for _ in range(40))]
    assert pauses[0] == leader._SOON
    assert pauses == sorted(pauses)
    assert pauses[-1] == leader._LATE
    # Half a minute without a reply is forty looks; one every 0.2 s would be 150.
    assert sum(pauses) > 25
    assert looks.after(came=True, seconds=0.0) == leader._SOON
    # A SuperLink that takes long for a look gets four times as long without one, and never more than the most.
    assert looks.after(came=True, seconds=0.1) == pytest.approx(0.4)
    assert looks.after(came=True, seconds=60.0) == leader._LATE
    # The next replies are expected when the last ones came.
    looks.first(0.5)
    assert looks.begun() == pytest.approx(0.35)
    looks.first(1000.0)
    assert looks.begun() == leader._LATE


class Clock:
    """Time that passes only while somebody sleeps or asks."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(leader, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.pass_by))

    def pass_by(self, seconds):
        self.now += seconds


class Timed:
    """Replies of nodes that come after so many seconds each; a look takes some time."""

    def __init__(self, clock, after, look):
        self._clock, self._after, self._look, self.looks = clock, after, look, 0

    def push(self, frames, seconds):
        self._begun = self._clock.now
        return {str(node): node for node in frames}

    def pull(self, ids):
        self.looks += 1
        self._clock.pass_by(self._look)
        return {i: [GOOD] for i in ids if self._clock.now - self._begun >= self._after[int(i)]}


def test_a_reply_is_found_soon_and_25_silos_are_not_looked_for_all_the_time(monkeypatch):
    clock = Clock(monkeypatch)
    one = Timed(clock, {1: 0.4}, 0.005)
    transport = LinkTransport(FakeLink(one))
    for _ in range(5):
        one.looks, begun = 0, clock.now
        assert transport.ask({"1": [REQUEST]}, 60.0)
    # Once it is known how long a reply takes, it is there within a pause or two, after few looks.
    assert clock.now - begun < 0.4 + 2 * leader._SOON
    assert one.looks <= 4
    many = Timed(clock, {node: 0.3 + 0.4 * node for node in range(25)}, 0.05)
    transport, begun = LinkTransport(FakeLink(many)), clock.now
    assert len(transport.ask({str(node): [REQUEST] for node in range(25)}, 60.0)) == 25
    # A fifth of the time at most is spent in looks.
    assert many.looks * 0.05 <= 0.21 * (clock.now - begun)
    assert clock.now - begun < 9.9 + leader._LATE


def test_a_run_that_somebody_stops_is_begun_anew():
    first, second = FakeRun({1: [GOOD]}), FakeRun({1: [GOOD]})
    transport = LinkTransport(FakeLink(first, second))
    assert transport.present() == ["1"]
    first.ended = True
    assert transport.ask({"1": [REQUEST]}, 60.0) == {}
    assert list(transport.ask({"1": [REQUEST]}, 60.0)) == ["1"]
    second.ended = True
    transport.beat()
    assert transport.present() == []


@pytest.fixture
def control(tmp_path):
    commands._loopback_certificate(tmp_path / "c.pem", tmp_path / "c.key")
    return Control("localhost:1", (tmp_path / "c.pem").read_text(), b"s" * 32)


def answering(client, content=b"", status=200, **headers):
    """Let a client's requests be answered like this; the hosts that were asked."""
    asked = []

    def answer(request):
        asked.append(request.url.host)
        return httpx.Response(status, content=content, headers=headers)

    client._client._transport = httpx.MockTransport(answer)
    return asked


PUSHED = runtime_pb2.PushAppMessagesResponse
HOSTILE = {
    "no protobuf": b"\xff\xff\xff",
    "two ids for one message": PUSHED(message_ids=["a", "b"]).SerializeToString(),
    "an unknown object": PUSHED(message_ids=["a"], objects_to_push=["no"], session_id="x").SerializeToString(),
}


@pytest.mark.parametrize("way", HOSTILE)
def test_a_superlink_that_answers_nonsense_is_away_and_ends_nothing(control, capsys, way):
    with Link(control) as link:
        transport = LinkTransport(link)
        transport._run = run = Run(control, 7, 8, "token")
        answering(run._client, HOSTILE[way])
        for _ in range(2):
            assert transport.ask({"5": [REQUEST]}, 1.0) == {}
        transport.beat()
        assert transport.present() == []
        assert "The SuperLink is away" in capsys.readouterr().err
        answering(link._control, b"\xff\xff\xff")
        with pytest.raises(FlowerError, match="nonsense"):
            link.nodes()
        run.close()


def test_a_superlink_cannot_send_the_leader_elsewhere(control):
    redirect = {"status": 307, "location": "https://inside/v1"}
    with Link(control) as link:
        run = Run(control, 7, 8, "token")
        asked = [answering(client, **redirect) for client in (link._control, link._executor, run._client)]
        for call in (link.nodes, link._acquired):
            with pytest.raises(FlowerError, match="refuses: 307"):
                call()
        with pytest.raises(httpx.HTTPStatusError, match="307"):
            run.nodes()
        run.close()
    assert asked == [["localhost"]] * 3


class Mailbox:
    """A SuperLink's answers to a node and to a leader: messages by name, of which some never come as a whole."""

    def __init__(self, run, **frames):
        self.queue, self.objects, self.missing, self.confirmed = [], {}, set(), []
        for name, own in frames.items():
            with private._deflated([run._message(7, own, 60.0)]) as ([head], [tree], objects):
                record = tree.children[0].children[0].object_id
                self.objects[record] = objects[record].deflate()
                head.metadata.reply_to_message_id = name
                self.queue.append((head, tree))
                if name.startswith("never"):
                    self.missing.add(record)

    def PullMessages(self, request):  # noqa: N802
        taken, self.queue = (self.queue[:1], self.queue[1:]) if hasattr(request, "node") else (self.queue, [])
        kind = fleet_pb2.PullMessagesResponse if hasattr(request, "node") else runtime_pb2.PullAppMessagesResponse
        return kind(messages_list=[head for head, _ in taken], message_object_trees=[tree for _, tree in taken])

    def PullObject(self, request):  # noqa: N802
        if request.object_id in self.missing:
            return message_pb2.PullObjectResponse(object_found=True)
        content = self.objects[request.object_id]
        return message_pb2.PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)
        return message_pb2.ConfirmMessageReceivedResponse()

    def close(self):
        pass


def test_a_message_that_never_comes_as_a_whole_keeps_no_other_back(control, tmp_path):
    commands.node_key(tmp_path / "node.key")
    authority = Authority(tmp_path / "ca").certificate
    run = Run(control, 7, 8, "token")
    fleet = private.Fleet("localhost:1", authority, tmp_path / "node.key")
    fleet._client.close()
    fleet._client = box = Mailbox(run, never1=[b"1"], never2=[b"2"], good=[b"3"])
    begun = time.monotonic()
    found = [fleet.receive() for _ in range(4)]
    assert [parcel and parcel.frames for parcel in found] == [None, None, [b"3"], None]
    assert time.monotonic() - begun < 0.5
    assert fleet.expects
    # What comes late is carried, and what never comes is given up.
    box.missing.pop()
    assert fleet.receive().frames in ([b"1"], [b"2"])
    fleet._coming = [coming._replace(until=0.0) for coming in fleet._coming]
    assert fleet.receive().frames is None
    assert (fleet._coming, len(box.confirmed), fleet.receive()) == ([], 3, None)
    assert not fleet.expects


def test_a_reply_that_never_comes_as_a_whole_keeps_no_other_back(control):
    run = Run(control, 7, 8, "token")
    run._client.close()
    run._client = box = Mailbox(run, never=[b"1"], good=[b"2"], unasked=[b"3"])
    begun = time.monotonic()
    assert run.pull(["never", "good"]) == {"good": [b"2"]}
    assert run.pull(["never"]) == {}
    assert time.monotonic() - begun < 1.0
    box.missing.clear()
    assert run.pull(["never"]) == {"never": [b"1"]}
    assert len(box.confirmed) == 2
