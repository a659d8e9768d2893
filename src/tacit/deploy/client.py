"""The other side of the door: a connection to a daemon, which an attacker could replace without harm to any record."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tacit.deploy.connection import Connection
from tacit.deploy.wire import Error, RefusalError, frame, parse_response


class Client(Connection):
    """A connection to one silo's daemon.

    A lost connection is made again for up to ``patience`` seconds and the request is repeated: the daemon gives the
    stored reply to a request that it has answered, so that repeating is always safe.
    """

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        super().__init__(patience, pause=0.02, gone="the daemon has gone")
        self._path = path

    def ask(self, request: BaseModel, payload: bytes = b"") -> tuple[Any, bytes]:
        """The response to a request and its payload; a refusal raises with the silo's code and numbers."""
        header, body = self.exchange(frame(request.model_dump_json(), payload))
        response = parse_response(header)
        if isinstance(response, Error):
            raise RefusalError(response.code, response.text, response.numbers)
        return response, body

    def connect(self) -> socket.socket:
        """A connection to the daemon's socket."""
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.connect(str(self._path))
        except OSError:
            plain.close()
            raise
        return plain
