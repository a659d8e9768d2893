"""The socket server of daemons and shufflers, in which nobody who is slow or unknown keeps others out."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping

from tacit.deploy.wire import MOST_FRAME, RefusalError, read_frame, refuse

SILENCE = 60.0
"""Seconds that a caller may be silent between two frames."""

HANDSHAKE = 10.0
"""Seconds that a stranger over TLS has, from the first byte on, to shake hands and to send what a pinned key signed."""

WHOLE_FRAME = 120.0
"""Seconds that a frame may take from its first byte to its last, in either direction."""

MOST_HELD = 2 * MOST_FRAME
"""How many bytes all strangers together may have sent that are not answered yet."""

MOST_OF_CALLERS = 4 * MOST_FRAME
"""How many bytes all callers together may have sent that are not answered yet."""

MOST_IN_AN_HOUR = 25
"""How many refusals of one code are logged in an hour; a server could cause thousands in a second."""

_HOUR = 3600.0
_LONGEST = 400


class Listener:
    """Hands every frame to ``handle`` and sends back the frame that it returns, with one thread for each connection.

    Whoever connects is a stranger until a frame of theirs is one that the listener ``knows``, and then a caller. There
    are ``most`` strangers and ``most`` callers at once. For one stranger too many, the oldest from the address that has
    the most is cut off; for one caller too many, the one that has been idle for longest. If all callers are at work,
    the new one is told ``busy`` and cut off.

    ``secure`` wraps a fresh connection in TLS, before its handshake; then strangers have `HANDSHAKE` seconds in all.
    ``first`` is how many bytes a stranger's frame may have. All strangers together may have ``held`` bytes in memory;
    for more, the oldest one that has sent some is cut off. As many bytes again, of ``most`` strangers, are looked at by
    ``handle`` at once: who is cut off meanwhile counts until it is through, and one more is ``busy``. Callers have
    `MOST_OF_CALLERS`; who sends more is ``busy``.

    Formal guarantee: strangers keep no slot from callers, nobody waits for the handshake of another, and of what
    strangers send, no more than twice ``held`` bytes and one read of each are kept at once; of what callers send,
    `MOST_OF_CALLERS` and one read of each. Of a frame that was answered nothing is kept.
    """

    def __init__(
        self,
        listening: socket.socket,
        handle: Callable[[bytes, bytes], bytes],
        *,
        knows: Callable[[bytes, bytes], bool],
        most: int,
        log: logging.Logger,
        secure: Callable[[socket.socket], ssl.SSLSocket] | None = None,
        first: int = MOST_FRAME,
        held: int = MOST_HELD,
    ) -> None:
        self._socket, self._handle, self._knows = listening, handle, knows
        self._most, self._secure, self._first, self._held = most, secure, first, held
        self._refusals = RefusalLog(log)
        self._lock = threading.Lock()
        self._strangers: dict[_Line, None] = {}
        self._callers: dict[_Line, None] = {}
        self._looked_at: set[_Line] = set()
        self._closed = False

    def serve(self) -> None:
        """Serve until closed."""
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                # The caller has hung up already, or there are too many open files.
                time.sleep(0.01)
                continue
            try:
                self._begin(connection, str(peer[0]) if isinstance(peer, tuple) else "")
            except (OSError, RuntimeError):
                # It has hung up already, or there are too many threads.
                connection.close()

    def _begin(self, connection: socket.socket, address: str) -> None:
        line = _Line(connection if self._secure is None else self._secure(connection), address, self._make_room)
        with self._lock:
            if len(self._strangers) >= self._most:
                crowded = Counter(own.address for own in self._strangers).most_common(1)[0][0]
                self._cut(next(own for own in self._strangers if own.address == crowded))
            self._strangers[line] = None
        try:
            threading.Thread(target=self._attend, args=(line,), daemon=True).start()
        except RuntimeError:
            self._leave(line)
            raise

    def _make_room(self, grown: _Line) -> None:
        """Refuse a caller for whom there is no room; of strangers cut the oldest off, until the others have it."""
        with self._lock:
            if grown.known:
                self._check_callers()
                return
            for line in list(self._strangers):
                if sum(own.held for own in self._strangers) <= self._held:
                    return
                if line.held:
                    self._cut(line)

    def _check_callers(self, *more: _Line) -> None:
        """Refuse where callers, and those who are about to be one, hold too much."""
        if sum(own.held for own in (*self._callers, *more)) > MOST_OF_CALLERS:
            raise RefusalError("busy", f"expected at most {MOST_OF_CALLERS} bytes of all callers at once")

    def _cut(self, line: _Line) -> None:
        self._strangers.pop(line, None)
        self._callers.pop(line, None)
        line.cut = True
        with contextlib.suppress(OSError):
            # Not the SSL socket's own shutdown: it drops state that another thread is using.
            socket.socket.shutdown(line.connection, socket.SHUT_RDWR)

    def _leave(self, line: _Line) -> None:
        with self._lock:
            self._strangers.pop(line, None)
            self._callers.pop(line, None)
        line.connection.close()

    def _attend(self, line: _Line) -> None:
        """Answer frames until the caller hangs up."""
        try:
            with contextlib.suppress(OSError):
                if isinstance(line.connection, ssl.SSLSocket) and not self._shake_hands(line, line.connection):
                    return
                try:
                    while (request := line.next_frame(MOST_FRAME if line.known else self._first)) is not None:
                        if not line.known and self._knows(*request):
                            self._admit(line)
                        with self._looking_at(line):
                            reply = self._handle(*request)
                        del request
                        line.forget()
                        line.send(reply)
                        del reply
                        self._rest(line)
                except RefusalError as refusal:
                    # Busy, or the stream is out of step: refuse and hang up.
                    line.send(refuse(refusal.code, str(refusal)))
        finally:
            self._leave(line)

    @contextlib.contextmanager
    def _looking_at(self, line: _Line) -> Iterator[None]:
        """Count a stranger while its frame is looked at, or refuse it where there is no room."""
        with self._lock:
            if not line.known:
                if (
                    len(self._looked_at) >= self._most
                    or sum(own.held for own in self._looked_at) + line.held > self._held
                ):
                    raise RefusalError("busy", "expected fewer requests of strangers at once; try again later")
                self._looked_at.add(line)
        try:
            yield
        finally:
            with self._lock:
                self._looked_at.discard(line)

    def _shake_hands(self, line: _Line, secured: ssl.SSLSocket) -> bool:
        line.until = time.monotonic() + HANDSHAKE
        try:
            secured.settimeout(HANDSHAKE)
            secured.do_handshake()
        except OSError as error:
            if not line.cut:
                reason = getattr(error, "reason", None) or type(error).__name__
                self._refusals.note(f"handshake with {line.address} rejected: {reason}")
            return False
        return True

    def _admit(self, line: _Line) -> None:
        """Make a stranger a caller, or refuse where all callers are at work."""
        with self._lock:
            self._strangers.pop(line, None)
            if line.cut:
                raise ConnectionAbortedError
            self._check_callers(line)
            if len(self._callers) >= self._most:
                idle = next((own for own in self._callers if not own.at_work), None)
                if idle is None:
                    raise RefusalError("busy", f"expected at most {self._most} callers at once; try again later")
                self._cut(idle)
            self._callers[line] = None
            line.known, line.until = True, None

    def _rest(self, line: _Line) -> None:
        """Note that a caller is idle; those that have been idle for longest come first."""
        with self._lock:
            if line in self._callers:
                del self._callers[line]
                self._callers[line] = None
            line.at_work = False

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class _Line:
    """A connection and its frames as they come in; the clock of a frame starts with its first byte.

    ``until`` is when a stranger is cut off, or ``None``. A line is ``at_work`` from the first byte of a request to the
    last byte of its reply; until then it has ``held`` so many bytes of it. ``grown`` is told whenever these are more.
    """

    def __init__(self, connection: socket.socket, address: str, grown: Callable[[_Line], None]) -> None:
        self.connection, self.address, self._grown, self.held = connection, address, grown, 0
        self.known = self.at_work = self.cut = False
        self.until: float | None = None
        self._kept = bytearray()
        self._deadline: float | None = None

    def next_frame(self, most: int) -> tuple[bytes, bytes] | None:
        """Header and payload, or ``None`` where the caller has hung up."""
        self._deadline, self.held = self.until, len(self._kept)
        if self._kept:
            self._begin()
        return read_frame(self._read, most)

    def forget(self) -> None:
        """Hold nothing any more of a frame that was answered."""
        self.held = len(self._kept)

    def _begin(self) -> None:
        self.at_work = True
        self._deadline = self.until or time.monotonic() + WHOLE_FRAME

    def _read(self, count: int) -> bytearray:
        """Exactly ``count`` bytes, or fewer at the end; they are not copied unless more has come."""
        while len(self._kept) < count:
            self.connection.settimeout(SILENCE if self._deadline is None else _left(self._deadline))
            part = self.connection.recv(1 << 16)
            if not part:
                break
            if not self.at_work:
                self._begin()
            self._kept += part
            self.held += len(part)
            self._grown(self)
            if self.cut:
                raise ConnectionAbortedError
        taken, self._kept = (self._kept, bytearray()) if len(self._kept) <= count else _cut(self._kept, count)
        return taken

    def send(self, raw: bytes) -> None:
        """Send all of a frame in time."""
        deadline, left = self.until or time.monotonic() + WHOLE_FRAME, memoryview(raw)
        while left:
            self.connection.settimeout(_left(deadline))
            left = left[self.connection.send(left[: 1 << 20]) :]


def _cut(content: bytearray, count: int) -> tuple[bytearray, bytearray]:
    return content[:count], content[count:]


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class RefusalLog:
    """Logs refusals as they are made."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock, self._begun = log, clock, clock()
        self._counts = Counter[str]()
        self._recent: dict[str, deque[str]] = {}
        self._lock = threading.Lock()

    def refuse(self, code: str, text: str, numbers: Mapping[str, float] | None = None) -> bytes:
        """The frame of a refusal; it is logged unless the same was logged lately."""
        named = ", ".join(f"{name} {value:.6g}" for name, value in (numbers or {}).items())
        self.note(f"refused, {code}: {text}" + (f" ({named})" if named else ""), code)
        return refuse(code, text, numbers)

    def note(self, text: str, code: str = "") -> None:
        """Log a line, unless it was logged lately or there were too many of its code; one code hides no other."""
        line = text.encode("unicode_escape").decode("ascii")[:_LONGEST]
        with self._lock:
            if self._clock() - self._begun >= _HOUR:
                self._begun = self._clock()
                self._counts.clear()
                self._recent.clear()
            recent = self._recent.setdefault(code, deque(maxlen=MOST_IN_AN_HOUR))
            if line in recent or self._counts[code] > MOST_IN_AN_HOUR:
                return
            self._counts[code] += 1
            recent.append(line)
            if self._counts[code] > MOST_IN_AN_HOUR:
                line = f"more than {MOST_IN_AN_HOUR} lines like this within an hour; no more are logged: {line}"
        self._log.warning("%s", line)


def serve_until_stopped(listener: Listener, log: logging.Logger, line: str) -> None:
    """Serve until SIGTERM or an interrupt."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: listener.close())
    log.info("%s", line)
    with contextlib.suppress(KeyboardInterrupt):
        listener.serve()


class JsonLines(logging.Formatter):
    """A log as JSON, one object a line: time (UTC), service, level, text."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        facts = {"time": when, "service": record.name, "level": record.levelname, "text": record.getMessage()}
        return json.dumps(facts)


def log_to_terminal(log: logging.Logger) -> None:
    """Show a service's log on the terminal, with the time; as JSON where ``TACIT_LOG=json``."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if os.environ.get("TACIT_LOG") == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
    log.setLevel(logging.INFO)
