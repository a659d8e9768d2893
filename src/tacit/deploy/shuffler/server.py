"""The shuffler's process: a TCP port with TLS 1.3 and certificates on both sides, in front of its service.

A certificate of the authority lets nobody do anything but ask; who is heard, pinned keys decide.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from functools import partial
from pathlib import Path

from tacit.deploy.listener import Listener, log_to_terminal, serve_until_stopped
from tacit.deploy.permissions import check_silo
from tacit.deploy.shuffler.config import ShufflerError, Terms, load_keys, load_terms, terms_text
from tacit.deploy.shuffler.service import ShufflerService
from tacit.deploy.wire import MOST_HEADER

_log = logging.getLogger("tacit.shuffler")
_MOST_CALLERS = 64
_FIRST_FRAME = 2 * MOST_HEADER


def server_context(terms: Terms, folder: Path) -> ssl.SSLContext:
    """TLS 1.3 that refuses callers without a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key, callers = (folder / n for n in (terms.tls.certificate, terms.tls.key, terms.tls.callers))
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ShufflerError(f"tls: {certificate}, or its key {key}, cannot be read: {error}.") from None
    try:
        context.load_verify_locations(callers)
    except OSError as error:
        raise ShufflerError(f"tls.callers: {callers} cannot be read: {error}.") from None
    return context


class ShufflerServer(Listener):
    """Listens on a TCP port and hands frames to the service."""

    def __init__(self, service: ShufflerService, context: ssl.SSLContext) -> None:
        terms = service.terms
        try:
            listening = socket.create_server((terms.host, terms.port), backlog=_MOST_CALLERS)
        except OSError as error:
            raise ShufflerError(f"{terms.host}:{terms.port} cannot be listened on: {error}.") from None
        self.port = int(listening.getsockname()[1])
        secure = partial(context.wrap_socket, server_side=True, do_handshake_on_connect=False)
        super().__init__(
            listening,
            service.handle,
            knows=service.knows,
            most=_MOST_CALLERS,
            log=_log,
            secure=secure,
            first=_FIRST_FRAME,
        )


def check_folder(folder: Path, terms: Terms) -> None:
    """Raise where anybody but the owner could read the keys, or change who is a silo and who may call."""
    database = ("shuffler.sqlite", "shuffler.sqlite-wal", "shuffler.sqlite-shm")
    named = [name for name in (terms.tls.key, terms.record) if name is not None]
    private = [folder / name for name in ("shuffler.toml", "seal.key", "sign.key", *database, *named)]
    public = [folder / terms.tls.certificate, folder / terms.tls.callers]
    check_silo(folder, private, public=public, because="whoever changes it decides who is a silo and who may call")


def serve(folder: Path) -> None:
    """Run the shuffler of a folder until it is stopped; it does not start where others can use its files."""
    log_to_terminal(_log)
    os.umask(0o077)
    # The text first: an edit that comes in between is seen with the first request.
    text, terms = terms_text(folder), load_terms(folder)
    check_folder(folder, terms)
    if not terms.callers:
        _log.warning("shuffler.toml names no callers: every request is refused; see [callers] in docs/deployment.md")
    service = ShufflerService(terms, load_keys(folder), folder, terms_read=text)
    server = ShufflerServer(service, server_context(terms, folder))
    line = f"shuffler {terms.name} serves on {terms.host}:{server.port} for {len(terms.silos)} silos"
    try:
        serve_until_stopped(server, _log, line)
    finally:
        server.close()
        service.close()
