"""The front of a SuperLink: all of it that the network reaches.

A SuperLink has one port for everything, and Flower's open edition asks nobody on it who they are, but nodes. So it
listens on loopback. This front listens on the network with TLS, and passes on only what nodes ask of the fleet API.
Everything else gets 404: starting runs, registering nodes, executing, and fetching apps.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import httpx

from tacit.deploy.flower.commands import (
    LOOPBACK,
    LinkFiles,
    await_end,
    environment,
    read_control,
    superlink_command,
)
from tacit.deploy.flower.lines import Lines, Reply, Request
from tacit.deploy.flower.private import (
    FLEET_PATHS,
    PULL_PATH,
    PUSH_PATH,
    FlowerError,
    Link,
    Registered,
    claimed_node,
    is_reply,
    is_signed_by,
    registered_key,
)
from tacit.deploy.sections import read_toml
from tacit.errors import TacitError, printable

_MOST_STRANGERS = 8
"""How many requests of strangers the SuperLink has at once."""

_PULLS = 40.0
"""How many times a second all nodes together look for messages.

A look costs the SuperLink some ten milliseconds: dozens of nodes that look often would leave it no time for messages.
"""

_MOST_PUSHED = 1 << 20
"""Bytes of the heads that a node pushes; what is in its messages comes in requests of its own."""

_BACKLOG = 1024
_START_SECONDS = 60.0
_GRACE = 10.0
_Process = subprocess.Popen[bytes]
_PASSED = ("content-type", "accept", "flwr-", "x-flwr-")


class Front:
    """Passes the requests of nodes to a SuperLink, and nothing else.

    Formal guarantee: whatever is asked, the SuperLink gets at most a POST to one of `FLEET_PATHS`, made anew. No node
    sends anything to another one: of messages, only replies to the server pass.

    Only the SuperLink knows who is a node: it does what nodes ask, and refuses others. So the front knows a node by its
    public key once the SuperLink has done something for it.
    """

    def __init__(self, upstream: httpx.AsyncClient, paths: frozenset[str] = FLEET_PATHS) -> None:
        self._upstream, self._paths = upstream, paths
        self._known: set[bytes] = set()
        self._strangers = asyncio.Semaphore(_MOST_STRANGERS)
        self._next, self._turn, self._looking = 0.0, asyncio.Lock(), dict[bytes, asyncio.Lock]()

    def node(self, headers: Mapping[str, str]) -> bytes | None:
        """The public key of the known node that has signed the headers of a request."""
        key = claimed_node(headers)
        return key if key is not None and key in self._known and is_signed_by(key, headers) else None

    async def answer(self, request: Request) -> Reply:
        """Ask the SuperLink, and reply what it says."""
        path = next((path for path in self._paths if request.target == path.encode()), None)
        if path is None or request.method != b"POST":
            return Reply(404)
        headers = [(name, value) for name, value in request.headers if name.decode("latin-1").startswith(_PASSED)]
        if len({name for name, _ in headers}) < len(headers):
            return Reply(400)
        if path == PUSH_PATH and (len(request.body) > _MOST_PUSHED or not is_reply(request.body)):
            return Reply(403)
        async with contextlib.AsyncExitStack() as stack:
            if path == PULL_PATH and (key := request.node or self._once(headers)) is not None:
                await stack.enter_async_context(self._looking.setdefault(key, asyncio.Lock()))
                await self._in_turn()
            if request.node is None:
                await stack.enter_async_context(self._strangers)
            try:
                found = await self._upstream.post(path, content=request.body, headers=headers)
            except httpx.HTTPError:
                return Reply(503)
        kind = found.headers.get("content-type", "application/octet-stream")
        return Reply(found.status_code, found.content, kind, self._noted(request, headers, found.status_code))

    def _once(self, headers: list[tuple[bytes, bytes]]) -> bytes | None:
        """The public key of a node that is or was known: who is forgotten for a moment looks in turn all the same."""
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        key = claimed_node(named)
        return key if key in self._looking and is_signed_by(key, named) else None

    async def _in_turn(self) -> None:
        """Wait until a node may look for messages; each has one look in the queue, so nobody waits for long.

        A look counts once it is made: who hangs up while it waits takes no time from the others.
        """
        async with self._turn:
            now = asyncio.get_running_loop().time
            await asyncio.sleep(self._next - now())
            self._next = now() + 1 / _PULLS

    def _noted(self, request: Request, headers: list[tuple[bytes, bytes]], status: int) -> bytes | None:
        """Who has asked, if the SuperLink has done it; a node that it refuses is none any more."""
        if status == httpx.codes.OK:
            key = claimed_node({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
            if key is not None:
                self._known.add(key)
                self._looking.setdefault(key, asyncio.Lock())
            return key
        if status == httpx.codes.UNAUTHORIZED and request.node is not None:
            self._known.discard(request.node)
        return None


def serve(files: LinkFiles, *, host: str, port: int, control_port: int, certificate: Path, key: Path) -> None:
    """Run a SuperLink and its front until SIGTERM or SIGINT, or until either ends."""
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        secure.load_cert_chain(certificate, key)
    except OSError as error:
        raise TacitError(f"Expected a certificate at {certificate} and its key at {key}, in PEM: {error}.") from None
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
        _let_in(files)
        with _listening(host, port) as listening:
            copy = f"--control {files.control}, or the copy of it that their proposer's user has"
            print(f"Nodes join at {host}:{port}. Studies are led with {copy}.", flush=True)
            asyncio.run(_serve(listening, secure, files, control_port, superlink))
    except KeyboardInterrupt:
        pass
    finally:
        ended = superlink.poll()
        superlink.terminate()
        await_end(superlink, _GRACE)
    if ended is not None:
        raise TacitError(f"The SuperLink has ended with code {ended}.")


def _wait_for(superlink: _Process, port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while superlink.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((LOOPBACK, port), 1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TacitError(f"The SuperLink did not start on {LOOPBACK}:{port}; its log is above.")


def _let_in(files: LinkFiles) -> None:
    """Register the nodes of a roster that are not yet; a key that was shut out stays so, and that is said.

    A node whose silo has another key by now is shut out. One that is not in the roster may be somebody's who was
    registered by hand: how to shut it out is said.
    """
    path = files.control.with_name("nodes.toml")
    if not path.exists():
        return
    wanted = read_toml(path, TacitError, "").get("nodes", {})
    with Link(read_control(files.control)) as link:
        known = link.nodes()
        for name in sorted({printable(row.name) for row in known} - set(wanted)):
            way = f"tacit server unregister {name} --control {files.control}"
            print(f"{name} is let in and not in the roster; if it has left: {way}", flush=True)
        keys = set[bytes]()
        for public in wanted.values():
            with contextlib.suppress(FlowerError):
                keys.add(registered_key(str(public).encode()))
        for name in sorted(wanted):
            try:
                _register(link, name, str(wanted[name]).encode(), known, keys)
            except FlowerError as error:
                print(f"The node of {name} is not let in: {error}", flush=True)


def _register(link: Link, name: str, public: bytes, known: Sequence[Registered], keys: Container[bytes]) -> None:
    """Let the node of a key in, and shut those out that have the name and another key, which nobody has in the roster.

    A key that was shut out never comes back, so none is that belongs to somebody.
    """
    own = registered_key(public)
    for row in known:
        if row.name == name and row.key not in keys:
            link.unregister(row.node)
            print(f"{name} has another key in the roster than a node of this name, which is shut out.", flush=True)
    if own not in [row.key for row in known]:
        link.register(name, public)
        print(f"{name} may join.", flush=True)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise TacitError(f"Expected a free port on an address of this machine at {host}:{port}: {error}.") from None


async def _serve(
    listening: socket.socket, secure: ssl.SSLContext, files: LinkFiles, control_port: int, superlink: _Process
) -> None:
    """Pass on what nodes ask, until a signal comes or the SuperLink ends."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def end_together() -> None:
        superlink.wait()
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=end_together, daemon=True).start()
    context = ssl.create_default_context(cafile=str(files.certificate))
    base = f"https://{LOOPBACK}:{control_port}"
    async with httpx.AsyncClient(base_url=base, verify=context, timeout=60.0) as upstream:
        front = Front(upstream)
        serving = loop.create_task(Lines(front.answer, front.node, secure).serve(listening))
        await stop.wait()
        serving.cancel()
        await asyncio.wait({serving})


def _end_with_parent() -> None:
    """Let the kernel end the SuperLink where its front is killed; otherwise the port would stay taken."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, signal.SIGTERM)
