"""A silo's daemon from outside: its process, its socket and its frames.

Frames are from docs/protocol.md, the silo's folder from docs/deployment.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ed25519

_KEY = ed25519.Ed25519PrivateKey.generate()  # the attacker is the proposer whom the owner trusts to ask
_PATIENCE = 600.0  # pricing and compiling take seconds, on a busy machine minutes


@dataclass(frozen=True)
class Reply:
    """One frame that a daemon sent: its header, and its arrays' bytes."""

    header: dict[str, Any]
    payload: bytes

    @property
    def arrays(self) -> list[np.ndarray]:
        """The payload cut into the arrays that the header describes."""
        found, at = [], 0
        for spec in self.header["arrays"]:
            dtype = np.dtype(spec["dtype"])
            size = dtype.itemsize * int(np.prod(spec["shape"], dtype=np.int64))
            found.append(np.frombuffer(self.payload[at : at + size], dtype).reshape(spec["shape"]))
            at += size
        if at != len(self.payload):
            raise ValueError(f"Expected a payload of {at} bytes as the header says, got {len(self.payload)}.")
        return found


class Connection:
    """One connection to a daemon's socket: requests and replies, one after another."""

    def __init__(self, path: Path):
        self._silo = path.parents[1].name
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE)
        self._socket.connect(str(path))
        self._ledger = ""
        self.welcome = self.ask({"type": "hello", "version": 3}).header
        self._ledger = self.welcome["ledger"]

    def ask(self, header: dict[str, Any], payload: bytes = b"") -> Reply:
        """Send one signed frame and read the reply inside the signed one."""
        text = _signed(json.dumps(header), payload, self._silo, self._ledger)
        self._socket.sendall(struct.pack(">II", 4 + len(text) + len(payload), len(text)) + text + payload)
        body = self._read(struct.unpack(">I", self._read(4))[0])
        length = struct.unpack(">I", body[:4])[0]
        outer = json.loads(body[4 : 4 + length])
        return Reply(json.loads(outer["reply"]) if outer["type"] == "signed-reply" else outer, body[4 + length :])

    def answer(self, study: str, number: int, arrays: list[np.ndarray]) -> Reply:
        """Ask for one round's answer to a broadcast."""
        specs = [{"shape": list(array.shape), "dtype": array.dtype.str} for array in arrays]
        header = {"type": "answer", "study": study, "round": number, "arrays": specs}
        return self.ask(header, b"".join(array.tobytes() for array in arrays))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionError(f"The daemon hung up after {len(parts)} of {size} bytes.")
            parts += part
        return bytes(parts)


def tacit(*words: str) -> str:
    """What a command of Tacit prints, as installed: no flags for XLA."""
    command = [sys.executable, "-m", "tacit", *words]
    return subprocess.run(command, env=_environment(), check=True, capture_output=True, text=True).stdout


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return kept | {"JAX_PLATFORMS": "cpu"}


class Daemon:
    """A real daemon in a process of its own, with noise, that consents to whatever fits a large budget."""

    def __init__(self, folder: Path, files: dict[str, bytes], data: str, names: list[str]):
        self.folder, self._log = folder, folder / "log"
        folder.mkdir(mode=0o700)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (folder / "policy.toml").write_text(_policy(folder, data, names))
        tacit("silo", "keys", str(folder))
        for path in folder.iterdir():
            path.chmod(0o600)
        command = [sys.executable, "-m", "tacit", "silo", "serve", str(folder)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, env=_environment(), stdout=log, stderr=subprocess.STDOUT)
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + _PATIENCE
        while not self._listens():
            if not self.alive or time.monotonic() > until:
                raise RuntimeError(f"The daemon does not serve: {self._log.read_text()}")
            time.sleep(0.05)

    def _listens(self) -> bool:
        """Whether it answers calls: its socket is there a moment before."""
        with socket.socket(socket.AF_UNIX) as call:
            return call.connect_ex(str(self.socket)) == 0

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "door" / "silo.sock"

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(_PATIENCE)

    def ledger(self) -> dict[str, Any]:
        """What `tacit ledger` shows, its chain verified."""
        return json.loads(tacit("ledger", str(self.folder), "--json"))


def _signed(request: str, payload: bytes, silo: str, ledger: str) -> bytes:
    """A signed request as docs/protocol.md has it."""
    to = {"silo": silo, "ledger": ledger}
    fields = {"type": "signed-request", "proposer": "attacker", **to, "counter": time.time_ns()}
    write = partial(json.dumps, separators=(",", ":"), ensure_ascii=False)
    unsigned = write({**fields, "request": request, "signature": ""})
    digest = hashlib.sha256(unsigned.encode()).digest() + hashlib.sha256(payload).digest()
    signature = base64.b64encode(_KEY.sign(b"tacit signed 1" + digest)).decode()
    return write({**fields, "request": request, "signature": signature}).encode()


def _policy(folder: Path, data: str, names: list[str]) -> str:
    return f"""
name = "{folder.name}"
pad_seconds = 0.0
counter = "{folder}/counter"
[proposers]
attacker = "ed25519:{base64.b64encode(_KEY.public_key().public_bytes_raw()).decode()}"
[budget]
epsilon = 40.0
delta = 0.05
[allow]
algorithms = {json.dumps(names)}
min_silos = 1
max_open = 100
[approval]
mode = "auto"
[data]
{data}
"""
