"""The shuffler's door: TLS 1.3 with certificates on both sides, in front of an office."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import ssl
import threading
from pathlib import Path

from tacit.runtime.daemon.protocol import MOST_FRAME, RefusalError, frame, read_frame
from tacit.runtime.shuffler.config import ShufflerError, Terms, load_keys, load_terms
from tacit.runtime.shuffler.office import Office, refuse

_log = logging.getLogger("tacit.shuffler")
_MOST_CALLERS = 64
_PATIENCE = 60.0


def server_context(terms: Terms, folder: Path) -> ssl.SSLContext:
    """TLS 1.3; a caller without a certificate of the right authority is not let in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(folder / terms.tls.certificate, folder / terms.tls.key)
        context.load_verify_locations(folder / terms.tls.callers)
    except OSError as error:
        raise ShufflerError(f"tls: a certificate cannot be read: {error}.") from None
    return context


class Entrance:
    """Listens on a TCP port and hands frames to an office, one thread for each caller."""

    def __init__(self, office: Office, context: ssl.SSLContext, folder: Path) -> None:
        terms = office.terms
        self._office, self._context = office, context
        self._seats = threading.BoundedSemaphore(_MOST_CALLERS)
        self._record = None if terms.record is None else (folder / terms.record).open("ab", buffering=0)
        try:
            self._socket = socket.create_server((terms.host, terms.port), backlog=_MOST_CALLERS)
        except OSError as error:
            raise ShufflerError(f"{terms.host}:{terms.port} cannot be listened on: {error}.") from None
        self.port = int(self._socket.getsockname()[1])

    def serve(self) -> None:
        """Serve until closed."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._seats.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_PATIENCE)
                with contextlib.suppress(OSError), self._context.wrap_socket(connection, server_side=True) as secure:
                    self._converse(secure)
        finally:
            self._seats.release()

    def _converse(self, connection: ssl.SSLSocket) -> None:
        with connection.makefile("rb") as stream:
            while True:
                try:
                    found = read_frame(stream.read, MOST_FRAME)
                except RefusalError as refusal:
                    connection.sendall(refuse(refusal.code, str(refusal)))
                    return
                if found is None:
                    return
                if self._record is not None:
                    self._record.write(frame(*found))
                connection.sendall(self._office.handle(*found))

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._record is not None:
            self._record.close()


def serve(folder: Path) -> None:
    """Run the shuffler whose terms lie in ``folder``, until it is told to stop."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    _log.setLevel(logging.INFO)
    terms = load_terms(folder)
    office = Office(terms, load_keys(folder), folder / "shuffler.sqlite")
    entrance = Entrance(office, server_context(terms, folder), folder)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: entrance.close())
    _log.info("shuffler %s serves on %s:%d for %d silos", terms.name, terms.host, entrance.port, len(terms.silos))
    try:
        entrance.serve()
    except KeyboardInterrupt:
        pass
    finally:
        entrance.close()
        office.close()
