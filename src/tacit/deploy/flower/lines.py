"""Connections over TLS and the HTTP requests on them; nobody who is slow or unknown keeps nodes out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import NamedTuple

import h11

STRANGER = 10.0
"""Seconds that a stranger has from the first byte on: for the handshake, one request, and its reply."""

IDLE = 20.0
"""Seconds that a node may be silent between two requests."""

WHOLE = 120.0
"""Seconds that a node's request, or the reply to it, may take from its first byte to its last."""

MOST_STRANGERS, MOST_NODES = 256, 384
MOST_HEAD = 1 << 14
SMALL = 1 << 16
"""Bytes of a request's head, and of a stranger's body."""

MOST_BODY, MOST_HELD = 80 << 20, 512 << 20
"""Bytes of a node's body, and of all that is held for nodes at once, both ways."""

_PART = 1 << 16
_GOODBYE = 3.0


class Request(NamedTuple):
    """A request as it came, names of headers in lower case; ``node`` is who has signed it, if they are known."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    node: bytes | None = None


class Reply(NamedTuple):
    """What is replied; ``node`` is who has asked, where it is clear from the reply that they are one."""

    status: int
    content: bytes = b""
    kind: str = "text/plain"
    node: bytes | None = None


Answer = Callable[[Request], Awaitable[Reply]]
Names = Callable[[Mapping[str, str]], bytes | None]


class Lines:
    """Reads requests and sends what ``answer`` says of them.

    Whoever connects is a stranger until the headers of a request ``name`` a node, or a reply does. A stranger has
    `STRANGER` seconds for one request, with a body of at most `SMALL` bytes. For one stranger too many, the oldest from
    the address that has the most is cut off; for one line of a node too many, the oldest of the node that has the most.
    If more than `MOST_HELD` bytes are held for nodes, a line of the node that holds most of them is cut off. A body has
    its length said before it: one that comes in chunks, which may be of a byte each, is refused.

    Formal guarantee: strangers keep no line and no memory from nodes, and nobody waits for the bytes of another.
    """

    def __init__(self, answer: Answer, names: Names, secure: ssl.SSLContext) -> None:
        self._answer, self._names, self._secure = answer, names, secure
        self._strangers: dict[_Line, None] = {}
        self._nodes: dict[_Line, None] = {}

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled."""
        listening.setblocking(False)
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            while True:
                try:
                    connection, peer = await loop.sock_accept(listening)
                except OSError:
                    # The caller has hung up already, or there are too many open files.
                    await asyncio.sleep(0.01)
                    continue
                line = _Line(connection, str(peer[0]).encode())
                self._enter(line, self._strangers, MOST_STRANGERS)
                line.task = task = loop.create_task(self._attend(line))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _enter(self, line: _Line, crowd: dict[_Line, None], most: int) -> None:
        """Make room for a line, and let it in."""
        if len(crowd) >= most:
            crowded = Counter(own.group for own in crowd).most_common(1)[0][0]
            self._cut(next(own for own in crowd if own.group == crowded))
        crowd[line] = None

    def _cut(self, line: _Line) -> None:
        self._strangers.pop(line, None)
        self._nodes.pop(line, None)
        if line.task is not None:
            line.task.cancel()

    def _admit(self, line: _Line, node: bytes) -> None:
        """Make a stranger a node."""
        if line in self._strangers:
            del self._strangers[line]
            line.group = node
            self._enter(line, self._nodes, MOST_NODES)

    def _hold(self, line: _Line, size: int) -> None:
        line.held += size
        while line in self._nodes and sum(own.held for own in self._nodes) > MOST_HELD:
            held = Counter[bytes]()
            for own in self._nodes:
                held[own.group] += own.held
            most = held.most_common(1)[0][0]
            self._cut(max((own for own in self._nodes if own.group == most), key=lambda own: own.held))

    async def _attend(self, line: _Line) -> None:
        try:
            # Time is up, or the other side has hung up or speaks something else.
            with contextlib.suppress(OSError, EOFError, h11.ProtocolError):
                async with asyncio.timeout(STRANGER) as clock:
                    await line.open(self._secure)
                    while await self._exchange(line, clock):
                        pass
        except asyncio.CancelledError:
            line.abort()
            raise
        finally:
            self._strangers.pop(line, None)
            self._nodes.pop(line, None)
            line.close()

    async def _exchange(self, line: _Line, clock: asyncio.Timeout) -> bool:
        """One request and its reply; whether there may be another."""
        if line in self._nodes:
            _within(clock, IDLE)
            await line.first_byte()
            _within(clock, WHOLE)
        head = await line.head()
        if head is None:
            return False
        node = self._names({name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers})
        if node is not None:
            self._admit(line, node)
            _within(clock, WHOLE)
        if any(name == b"transfer-encoding" for name, _ in head.headers):
            await line.send(Reply(411), is_over=True)
            return False
        is_known = line in self._nodes
        body = await self._body(line, MOST_BODY if is_known else SMALL)
        request = Request(head.method, head.target, list(head.headers), body or b"", node)
        reply = Reply(413) if body is None else await self._answer(request)
        if reply.node is not None:
            self._admit(line, reply.node)
        if line in self._nodes:
            self._hold(line, len(reply.content))
            _within(clock, WHOLE)
        is_over = body is None or line not in self._nodes
        await line.send(reply, is_over=is_over)
        line.held = 0
        return not is_over and line.next()

    async def _body(self, line: _Line, most: int) -> bytes | None:
        """A request's body, or ``None`` where it is too large."""
        parts, size = list[bytes](), 0
        async for part in line.body():
            size += len(part)
            if size > most:
                return None
            parts.append(part)
            self._hold(line, len(part))
        return b"".join(parts)


def _within(clock: asyncio.Timeout, seconds: float) -> None:
    clock.reschedule(asyncio.get_running_loop().time() + seconds)


class _Line:
    """A connection: of a stranger from an address, or of a node (``group``)."""

    def __init__(self, connection: socket.socket, group: bytes) -> None:
        self.group, self.held = group, 0
        self.task: asyncio.Task[None] | None = None
        self._socket = connection
        self._reader = asyncio.StreamReader(limit=_PART)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, secure: ssl.SSLContext) -> None:
        """Shake hands."""
        loop, protocol = asyncio.get_running_loop(), asyncio.StreamReaderProtocol(self._reader)
        self._socket.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, self._socket, ssl=secure, ssl_handshake_timeout=STRANGER, ssl_shutdown_timeout=_GOODBYE
        )
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)

    async def first_byte(self) -> None:
        """Wait until something comes."""
        if not self._http.trailing_data[0]:
            await self._read()

    async def _read(self) -> None:
        self._http.receive_data(await self._reader.read(_PART))

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._read()
        return event

    async def head(self) -> h11.Request | None:
        """The head of the next request; ``None`` where the caller has hung up."""
        event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def body(self) -> AsyncIterator[bytes]:
        """The parts of the body."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise EOFError

    async def send(self, reply: Reply, *, is_over: bool) -> None:
        """Send all of a reply."""
        assert self._writer is not None
        headers = [("content-type", reply.kind), ("content-length", str(len(reply.content)))]
        # By which a silo finds out that its clock is wrong (`tacit consortium check`).
        headers += [("date", formatdate(usegmt=True))]
        headers += [("connection", "close")] if is_over else []
        start = h11.Response(status_code=reply.status, headers=headers)
        self._writer.write(self._http.send(start) or b"")
        for at in range(0, len(reply.content), _PART):
            self._writer.write(self._http.send(h11.Data(data=reply.content[at : at + _PART])) or b"")
            await self._writer.drain()
        self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
        await self._writer.drain()

    def next(self) -> bool:
        """Whether another request may follow."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def abort(self) -> None:
        """Hang up at once."""
        if self._writer is not None:
            self._writer.transport.abort()

    def close(self) -> None:
        """Hang up; what was sent still leaves."""
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
