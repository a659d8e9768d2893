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

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
from fastapi.routing import APIRoute, iter_route_contexts
from flwr.superlink.main import create_app

from experiments.certificates import Authority
from experiments.parties import TACIT, below, free_port
from tacit.deploy.flower import front
from tacit.deploy.flower.private import FLEET_PATHS


def ask(
    method="POST", path="/v1/fleet/pull-messages", *, content=b"x", headers=(), raw_path=None, query=b"", fails=False
):
    """Status and body that the front gives, and what the SuperLink behind it got."""
    got = []

    def superlink(request):
        got.append(request)
        if fails:
            raise httpx.ConnectError("away")
        return httpx.Response(
            200, content=b"fine", headers={"content-type": "application/x-protobuf", "set-cookie": "a"}
        )

    async def run():
        upstream = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://127.0.0.1:1")
        events, sent = [{"type": "http.request", "body": content, "more_body": False}], []
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode() if raw_path is None else raw_path,
            "query_string": query,
            "headers": list(headers),
        }

        async def receive():
            return events.pop(0)

        async def send(event):
            sent.append(event)

        await front.Front(upstream)(scope, receive, send)
        await upstream.aclose()
        return sent

    start, body = asyncio.run(run())
    return start, body["body"], got


@pytest.mark.parametrize("path", sorted(FLEET_PATHS))
def test_what_nodes_need_passes_with_their_headers_alone(path):
    headers = [(b"flwr-signature", b"s"), (b"content-type", b"application/x-protobuf"), (b"flwr-superexec-ts", b"t")]
    headers += [(b"authorization", b"Bearer x"), (b"host", b"elsewhere"), (b"transfer-encoding", b"chunked")]
    start, body, [request] = ask(path=path, headers=headers)
    assert (start["status"], body) == (200, b"fine")
    assert dict(start["headers"])[b"content-type"] == b"application/x-protobuf"
    assert b"set-cookie" not in dict(start["headers"])
    assert (request.method, request.url.path, request.content) == ("POST", path, b"x")
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
            start, body, got = ask(method, path)
            assert (start["status"], body, got) == (404, b"", []), path


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/v1/fleet/pull-messages/../../control/start-run", None),
        ("/v1/fleet/pull-messages", b"/v1/fleet/%70ull-messages"),
        ("/v1/fleet/pull-messages", b"/v1/control/start-run"),
        ("//v1/fleet/pull-messages", None),
        ("/v1/fleet/pull-messages/", None),
        ("/v1/fleet/Pull-messages", None),
        ("/v1/fleet/pull-messages;a", None),
        ("", b"https://127.0.0.1:1/v1/fleet/pull-messages"),
    ],
)
def test_no_other_spelling_passes(path, raw):
    start, _, got = ask(path=path, raw_path=raw)
    assert (start["status"], got) == (404, [])


def test_neither_other_methods_nor_questions_pass():
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "post"):
        assert ask(method)[2] == []
    assert ask(query=b"a=1")[2] == []


def test_a_body_that_is_too_large_is_refused_and_a_superlink_that_is_away_is_told(monkeypatch):
    monkeypatch.setattr(front, "_MOST_BODY", 10)
    start, _, got = ask(content=b"x" * 11)
    assert (start["status"], got) == (413, [])
    assert ask(content=b"x" * 10)[0]["status"] == 200
    assert ask(fails=True)[0]["status"] == 503
    monkeypatch.setattr(front, "_MOST_HELD", 9)
    start, _, got = ask(content=b"x" * 10)
    assert (start["status"], got) == (503, [])


def test_what_was_held_is_let_go():
    held = []

    async def run():
        upstream = httpx.AsyncClient(
            transport=httpx.MockTransport(lambda request: held.append(own._held) or httpx.Response(200)),
            base_url="https://x",
        )
        own = front.Front(upstream)
        scope = {
            "type": "http",
            "method": "POST",
            "raw_path": b"/v1/fleet/push-object",
            "query_string": b"",
            "headers": [],
        }
        for last in ({"type": "http.request", "body": b"67"}, {"type": "http.disconnect"}):
            events = [{"type": "http.request", "body": b"12345", "more_body": True}, last]

            async def receive(events=events):
                return events.pop(0)

            async def send(event):
                held.append(own._held)

            await own(scope, receive, send)
            held.append(own._held)
        await upstream.aclose()

    asyncio.run(run())
    assert held == [7, 7, 7, 0, 5, 5, 0]


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
