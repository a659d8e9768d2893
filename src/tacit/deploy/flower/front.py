"""The front of a SuperLink: all of it that the network reaches.

A SuperLink has one port for everything, and Flower's open edition asks nobody on it who they are, but nodes. So it
listens on loopback. This front listens on the network with TLS, and passes on only what nodes ask of the fleet API.
Everything else gets 404: starting runs, registering nodes, executing, and fetching apps.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tacit.deploy.flower.commands import LOOPBACK, LinkFiles, environment, superlink_command
from tacit.deploy.flower.private import FLEET_PATHS
from tacit.errors import TacitError

_MOST_BODY, _MOST_HELD = 80 << 20, 512 << 20
"""Bytes of one request, and of all at once: nobody has shown a key before a request was read."""

_MOST_CALLS = 256
_START_SECONDS = 60.0
_GRACE = 10.0
_PASSED = ("content-type", "accept", "flwr-", "x-flwr-")

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Front:
    """Passes the requests of nodes to a SuperLink, and nothing else.

    Formal guarantee: whatever is asked, the SuperLink gets at most a POST to one of `FLEET_PATHS`, made anew.
    """

    def __init__(self, upstream: httpx.AsyncClient, paths: frozenset[str] = FLEET_PATHS) -> None:
        self._upstream, self._paths, self._held = upstream, paths, 0

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path = next((path for path in self._paths if scope["raw_path"] == path.encode()), None)
        if path is None or scope["method"] != "POST" or scope["query_string"]:
            await _reply(send, 404, b"")
            return
        parts: list[bytes] = []
        try:
            status = await self._read(receive, parts)
            if status is None:
                await self._pass(path, b"".join(parts), scope, send)
            else:
                await _reply(send, status, b"")
        finally:
            self._held -= sum(map(len, parts))

    async def _read(self, receive: Receive, parts: list[bytes]) -> int | None:
        """Read a request's body; a status where it is too large, or the caller has gone."""
        size, more = 0, True
        while more:
            event = await receive()
            if event["type"] != "http.request":
                return 400
            more = bool(event.get("more_body", False))
            parts.append(event.get("body", b""))
            size, self._held = size + len(parts[-1]), self._held + len(parts[-1])
            if size > _MOST_BODY or self._held > _MOST_HELD:
                return 413 if size > _MOST_BODY else 503
        return None

    async def _pass(self, path: str, body: bytes, scope: Mapping[str, Any], send: Send) -> None:
        """Ask the SuperLink, and reply what it says."""
        headers = [(name, value) for name, value in scope["headers"] if name.decode("latin-1").startswith(_PASSED)]
        try:
            found = await self._upstream.post(path, content=body, headers=headers)
        except httpx.HTTPError:
            await _reply(send, 503, b"")
            return
        kind = found.headers.get("content-type", "application/octet-stream")
        await _reply(send, found.status_code, found.content, kind.encode("latin-1"))


async def _reply(send: Send, status: int, content: bytes, kind: bytes = b"text/plain") -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def serve(files: LinkFiles, *, host: str, port: int, control_port: int, certificate: Path, key: Path) -> None:
    """Run a SuperLink and its front until SIGTERM or SIGINT, or until either ends."""
    context = ssl.create_default_context(cafile=str(files.certificate))
    upstream = httpx.AsyncClient(base_url=f"https://{LOOPBACK}:{control_port}", verify=context, timeout=60.0)
    config = uvicorn.Config(
        Front(upstream),
        host=host,
        port=port,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        limit_concurrency=_MOST_CALLS,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    front = uvicorn.Server(config)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = superlink_command(files, port=control_port)
    superlink = subprocess.Popen(
        command,
        env=environment(files.database.parent),
        stdin=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
        start_new_session=True,
        # Its database holds the tokens of runs.
        umask=0o077,
    )
    try:
        _wait_for(superlink, control_port)
        print(f"Nodes join at {host}:{port}. Studies are led with --control {files.control}", flush=True)
        threading.Thread(target=_end_together, args=(superlink, front), daemon=True).start()
        front.run()
    except KeyboardInterrupt:
        pass
    finally:
        ended = superlink.poll()
        _end(superlink)
    if ended is not None:
        raise TacitError(f"The SuperLink has ended with code {ended}.")


def _wait_for(superlink: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while superlink.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((LOOPBACK, port), 1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TacitError(f"The SuperLink did not start on {LOOPBACK}:{port}; its log is above.")


def _end_together(superlink: subprocess.Popen[bytes], front: uvicorn.Server) -> None:
    superlink.wait()
    front.should_exit = True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_parent() -> None:
    """Let the kernel end the SuperLink where its front is killed; otherwise the port would stay taken."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, signal.SIGTERM)
