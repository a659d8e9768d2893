"""The front of a SuperLink: nodes pass, and nothing else does, however it is spelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
from fastapi.routing import APIRoute, iter_route_contexts
from flwr.proto import fleet_pb2, message_pb2
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.main import create_app
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.consortium.processes import TACIT, below, free_port
from tacit.deploy.flower import front
from tacit.deploy.flower.commands import node_key
from tacit.deploy.flower.lines import Reply, Request
from tacit.deploy.flower.private import FLEET_PATHS, PULL_PATH, Registered, registered_key
from tests.deploy.flower.messages import pushed, tree_of


def ask(method="POST", path="/v1/fleet/pull-messages", *, content=b"x", headers=(), fails=False, status=200):
    """What the front replies, and what the SuperLink behind it got."""
    got = []

    def superlink(request):
        got.append(request)
        if fails:
            raise httpx.ConnectError("away")
        return httpx.Response(
            status, content=b"fine", headers={"content-type": "application/x-protobuf", "set-cookie": "a"}
        )

    async def run():
        async with upstream_of(superlink) as upstream:
            target = path if isinstance(path, bytes) else path.encode()
            return await front.Front(upstream).answer(Request(method.encode(), target, list(headers), content))

    return asyncio.run(run()), got


def upstream_of(superlink):
    return httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://127.0.0.1:1")


def test_nodes_take_turns_to_look_for_messages_and_nothing_else_waits(monkeypatch):
    """Dozens of nodes that look often leave the SuperLink time; one with many lines keeps nobody waiting."""
    monkeypatch.setattr(front, "_PULLS", 20.0)
    began, times = time.monotonic(), {}

    def superlink(request):
        times.setdefault(request.content, []).append(time.monotonic() - began)
        return httpx.Response(200, content=b"fine")

    async def run():
        async with upstream_of(superlink) as upstream:
            own = front.Front(upstream)

            def look(node, body, path=PULL_PATH.encode()):
                return asyncio.ensure_future(own.answer(Request(b"POST", path, [], body, node)))

            asked = [look(b"greedy", b"greedy") for _ in range(20)]
            asked += [look(b"node %d" % i, b"nodes") for i in range(10)]
            asked += [look(None, b"stranger"), look(b"node", b"push", b"/v1/fleet/push-object")]
            await asyncio.gather(*asked)

    asyncio.run(run())
    assert max(times[b"stranger"] + times[b"push"]) < 0.3
    assert 0.4 < times[b"nodes"][-1] < 1.2
    assert len(times[b"greedy"]) == 20
    assert times[b"greedy"][-1] > 1.2


def test_a_node_that_hangs_up_while_it_waits_takes_no_time_from_others(monkeypatch):
    monkeypatch.setattr(front, "_PULLS", 20.0)

    async def run():
        async with upstream_of(lambda request: httpx.Response(200, content=b"fine")) as upstream:
            own = front.Front(upstream)

            def look(node):
                return asyncio.ensure_future(own.answer(Request(b"POST", PULL_PATH.encode(), [], b"", node)))

            for _ in range(200):
                gone = [look(b"greedy") for _ in range(4)]
                await asyncio.sleep(0)
                for line in gone:
                    line.cancel()
            began = time.monotonic()
            await look(b"honest")
            return time.monotonic() - began

    assert asyncio.run(run()) < 0.5


def test_a_node_that_makes_itself_unknown_looks_in_turn_all_the_same(monkeypatch):
    """It asks for something that the SuperLink refuses it, and looks as a stranger would."""
    monkeypatch.setattr(front, "_PULLS", 20.0)
    good, _ = signed_headers(generate_key_pairs()[0])
    raw = [(name.lower().encode(), value.encode()) for name, value in good.items()]
    times = []

    def superlink(request):
        if request.content == b"wrong":
            return httpx.Response(401)
        times.append(time.monotonic())
        return httpx.Response(200, content=b"fine")

    async def run():
        async with upstream_of(superlink) as upstream:
            own = front.Front(upstream)

            async def asked(path, body):
                node = own.node({name.decode(): value.decode() for name, value in raw})
                return await own.answer(Request(b"POST", path.encode(), raw, body, node))

            await asked(PULL_PATH, b"")
            assert (await asked("/v1/fleet/send-node-heartbeat", b"wrong")).status == 401
            for _ in range(5):
                await asked("/v1/fleet/send-node-heartbeat", b"wrong")
                await asked(PULL_PATH, b"")

    asyncio.run(run())
    assert times[-1] - times[1] > 0.9 * 4 / 20.0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        pushed() + fleet_pb2.PushMessagesRequest(message_object_trees=[tree_of(0)] * 1000).SerializeToString(),
        pushed() + fleet_pb2.PushMessagesRequest(messages_list=[message_pb2.Message()] * 1000).SerializeToString(),
        pushed(reply_to_message_id="", src_node_id=1, dst_node_id=8),
        pushed(dst_node_id=8),
        pushed(src_node_id=8),
        pushed(reply_to_message_id=""),
        pushed() + pushed(src_node_id=8),
        pushed() + b"x",
        pushed(message_type="x" * (1 << 20)),
        pushed(records=(0, 0)),
        pushed(records=(1,)),
    ],
    ids=[
        "empty",
        "many trees",
        "many messages",
        "as the server",
        "to a node",
        "as a node",
        "no reply",
        "a second one",
        "nonsense",
        "long",
        "two records",
        "more in a record",
    ],
)
def test_a_node_pushes_nothing_but_its_replies_to_the_server(body):
    """Flower takes from every node a message to any other one, in the server's name."""
    assert ask(path="/v1/fleet/push-messages", content=body) == (Reply(403), [])


@pytest.mark.parametrize("path", sorted(FLEET_PATHS))
def test_what_nodes_need_passes_with_their_headers_alone(path):
    headers = [(b"flwr-signature", b"s"), (b"content-type", b"application/x-protobuf"), (b"flwr-superexec-ts", b"t")]
    headers += [(b"authorization", b"Bearer x"), (b"host", b"elsewhere"), (b"transfer-encoding", b"chunked")]
    body = pushed() if path.endswith("push-messages") else b"x"
    reply, [request] = ask(path=path, headers=headers, content=body)
    assert reply == Reply(200, b"fine", "application/x-protobuf")
    assert (request.method, request.url.path, request.content) == ("POST", path, body)
    assert request.headers["flwr-signature"] == "s"
    assert request.headers["host"] == "127.0.0.1:1"
    assert not {"authorization", "transfer-encoding"} & set(request.headers)


def routes():
    app = create_app()
    return sorted({route.route.path for route in iter_route_contexts(app.routes) if isinstance(route.route, APIRoute)})


def test_every_other_route_of_a_superlink_is_not_there():
    known = routes()
    shut = [path for path in known if path not in FLEET_PATHS]
    assert set(known) >= FLEET_PATHS
    assert {"/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"} <= set(shut)
    assert {"/v1/fleet/get-fab", "/v1/fleet/get-run", "/v1/fleet/register-node"} <= set(shut)
    for path in [*shut, "/docs", "/openapi.json", "/"]:
        for method in ("POST", "GET"):
            assert ask(method, path) == (Reply(404), []), path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet/%70ull-messages",
        "/v1/control/start-run",
        "//v1/fleet/pull-messages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/Pull-messages",
        "/v1/fleet/pull-messages;a",
        "/v1/fleet/pull-messages?a=1",
        "/v1/fleet/pull-messages?",
        "/v1/fleet/pull-messages#a",
        "https://127.0.0.1:1/v1/fleet/pull-messages",
        b"/v1/fleet/pull-messages\xff",
    ],
)
def test_no_other_spelling_passes(path):
    assert ask(path=path) == (Reply(404), [])


def test_no_other_method_passes_and_no_header_that_is_there_twice():
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "post"):
        assert ask(method) == (Reply(404), [])
    twice = [(b"flwr-public-key", b"YQ=="), (b"flwr-public-key", b"Yg==")]
    assert ask(headers=twice) == (Reply(400), [])


def test_a_superlink_that_is_away_is_told():
    assert ask(fails=True)[0] == Reply(503)


def signed_headers(key):
    """What a node's request is signed with, and its public key."""
    context = SimpleNamespace(request=httpx.Request("POST", "https://x"))
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda _: None)
    return dict(context.request.headers), public_key_to_bytes(key.public_key())


def test_a_node_is_who_has_signed_and_whom_the_superlink_has_served():
    (good, public), (bad, _) = (signed_headers(generate_key_pairs()[0]) for _ in range(2))
    raw = [(name.encode(), value.encode()) for name, value in good.items()]
    status = [401]

    async def run():
        async with upstream_of(lambda request: httpx.Response(status[0])) as upstream:
            own = front.Front(upstream)

            async def answered(code, node=None):
                status[0] = code
                return (await own.answer(Request(b"POST", b"/v1/fleet/pull-messages", raw, b"", node))).node

            assert await answered(401) is None
            assert own.node(good) is None
            assert await answered(200) == public
            assert own.node(good) == public
            # The key alone is no signature, nor is another's, nor an old one.
            for wrong in (
                {},
                {"flwr-signature": bad["flwr-signature"]},
                {"flwr-timestamp": "2020-01-01T00:00:00+00:00"},
            ):
                assert own.node({"flwr-public-key": good["flwr-public-key"]} if not wrong else good | wrong) is None
            # Who only names the key of a node cannot have it forgotten.
            assert await answered(401) is None
            assert own.node(good) == public
            assert await answered(401, public) is None
            assert own.node(good) is None

    asyncio.run(run())


@pytest.fixture
def link(tmp_path):
    """Starts `tacit server link` and waits until nodes can reach it; gives the process and its two ports."""
    pair = Authority(tmp_path / "ca").issue("front")
    ports, started = (free_port(), free_port()), []

    def start():
        command = [*TACIT, "server", "link", str(tmp_path / "state"), "--port", str(ports[0])]
        command += ["--certificate", str(pair.certificate), "--key", str(pair.key), "--control-port", str(ports[1])]
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        started.append(process)
        assert until(lambda: answers(ports[0]) or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "log").read_text()
        return process, *ports

    yield start
    for process in started:
        process.kill()
        process.wait()


def answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1.0).close()
        return True
    return False


def until(holds, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds()


def listening(port):
    """The addresses that somebody listens on at a port, as the kernel writes them."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}


def test_a_link_listens_on_loopback_and_ends_as_a_whole(link, tmp_path):
    process, port, control_port = link()
    assert listening(port) == listening(control_port) == {"0100007F"}
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert {mode for name, mode in modes.items() if name != "loopback.pem"} == {0o600}, modes
    # Killed, the front takes the SuperLink with it; otherwise the port would stay taken.
    process.kill()
    assert until(lambda: not answers(control_port), 15.0)
    process, *_ = link()
    [superlink] = [pid for pid, command in below(process.pid).items() if "flower-superlink" in command]
    os.kill(superlink, signal.SIGKILL)
    assert process.wait(30) == 2
    assert "The SuperLink has ended" in (tmp_path / "log").read_text()
    process, *_ = link()
    process.terminate()
    assert process.wait(30) == 0
    assert not answers(port)
    assert not answers(control_port)


def test_a_new_roster_lets_new_keys_in_and_shuts_the_old_ones_of_a_name_out(tmp_path, monkeypatch, capsys):
    """A stranger's node of a silo's name goes too; one that no roster names is told of, and stays."""
    for name in ("a", "b", "old", "gone"):
        node_key(tmp_path / name)
    keys = {name: (tmp_path / f"{name}.pub").read_text() for name in ("a", "b", "old", "gone")}
    kept = {name: registered_key(key.encode()) for name, key in keys.items()}
    rows = [("a", "a"), ("b", "old"), ("gone", "gone")]
    done = []

    class FakeLink(contextlib.AbstractContextManager):
        def __init__(self, control):
            self.register, self.unregister = lambda name, key: done.append((name, key.decode())), done.append

        def __exit__(self, *_):
            return None

        def nodes(self):
            return [Registered(place, name, False, kept[key]) for place, (name, key) in enumerate(rows)]

    monkeypatch.setattr(front, "Link", FakeLink)
    monkeypatch.setattr(front, "read_control", lambda path: None)
    (tmp_path / "nodes.toml").write_text(tomli_w.dumps({"nodes": {"a": keys["a"], "b": keys["b"]}}))
    front._let_in(SimpleNamespace(control=tmp_path / "control.toml"))
    assert done == [1, ("b", keys["b"])]
    # A key that a silo of the roster has is not shut out, whoever was registered with it before.
    rows, done[:] = [("a", "b")], []
    front._let_in(SimpleNamespace(control=tmp_path / "control.toml"))
    assert done == [("a", keys["a"])]
    assert f"tacit server unregister gone --control {tmp_path / 'control.toml'}" in capsys.readouterr().out
