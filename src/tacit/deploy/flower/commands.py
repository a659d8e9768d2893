"""Flower's own commands, set up for a consortium; nothing here needs the internet.

TLS and the authentication of SuperNodes are on. Telemetry, update checks and installing at run time are off.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.deploy.permissions import write_secret
from tacit.errors import TacitError

CONNECTION = "tacit"

_OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}

_PYPROJECT = """\
[project]
name = "tacit-study"
version = "1.0.0"
description = "Carries a study between a server and silos that defend themselves."
dependencies = []

[tool.flwr.app]
publisher = "tacit"

[tool.flwr.app.components]
serverapp = "tacit_server:app"
clientapp = "tacit_courier:app"

[tool.flwr.app.config]
folder = ""
"""


def environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process; ``home`` is where it keeps its files."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # Polls often: starting a courier takes most of a round's time already.
    return {**os.environ, **_OFF, "FLWR_HOME": str(home), "PATH": path, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}


def flower(name: str) -> str:
    """The path of one of Flower's commands, or how to get it."""
    found = shutil.which(name, path=environment(Path())["PATH"])
    if found is None:
        raise TacitError(f"{name} is not installed; install it with: pip install 'tacit[flower]'.")
    return found


def superlink_command(
    *, host: str, port: int, authority: Path, certificate: Path, key: Path, database: Path
) -> list[str]:
    """A SuperLink with TLS, authentication of SuperNodes, and state that survives a restart."""
    return [
        *(flower("flower-superlink"), "--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
        *("--enable-supernode-auth", "--database", str(database), "--disable-runtime-dependency-installation"),
    ]


def supernode_command(*, superlink: str, authority: Path, key: Path, socket: Path, port: int) -> list[str]:
    """A SuperNode with its key, and with the daemon's socket for its courier; ``port`` is for its own use."""
    if '"' in str(socket):
        raise TacitError(f"Expected a path without quotation marks, got {socket}.")
    return [
        *(flower("flower-supernode"), "--superlink", superlink, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key), "--node-config", f'socket="{socket}"'),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def node_key(path: Path) -> None:
    """Make a SuperNode's key as OpenSSH writes it, with its public half beside it."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(path, key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption()))
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public)


def keep_running(command: Sequence[str], env: Mapping[str, str], pause: float = 5.0) -> None:
    """Run a command until SIGTERM, and start it again whenever it ends.

    A SuperNode ends when the SuperLink refuses it. For a minute after a SuperNode has crashed, it is refused.
    """
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set():
        process = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL)
        try:
            while process.poll() is None and not stopping.wait(0.2):
                pass
        finally:
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        stopping.wait(pause)


def write_connection(home: Path, *, superlink: str, authority: Path) -> None:
    """Write where the SuperLink is, for Flower's command line."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{superlink}"\n'
        f'root-certificates = "{authority.resolve()}"\n'
    )
    (home / "config.toml").write_text(text, encoding="utf-8")


def write_app(folder: Path) -> Path:
    """Write the app that Flower ships: two lines that find Tacit where it is installed."""
    app = folder / "app"
    app.mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(_PYPROJECT, encoding="utf-8")
    for name, module in (("tacit_server", "app"), ("tacit_courier", "courier")):
        # Flower looks for an assignment in the text, before anything is imported.
        text = f"from tacit.deploy.flower import {module}\n\napp = {module}.app\n"
        (app / f"{name}.py").write_text(text, encoding="utf-8")
    return app


def call(home: Path, arguments: Sequence[str], seconds: float = 120.0) -> str:
    """Run ``flwr`` and return what it prints."""
    command = [flower("flwr"), *arguments]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise TacitError(f"flwr {' '.join(arguments[:2])} failed: {(done.stdout + done.stderr).strip()[-800:]}")
    return done.stdout


def register(home: Path, public_key: Path, name: str) -> None:
    """Let a SuperNode in, by its public key."""
    call(home, ["supernode", "register", str(public_key), CONNECTION, "--name", name])


def start_run(home: Path, app: Path, folder: Path) -> str:
    """Start a study and return Flower's id of the run."""
    config = f'folder="{folder.resolve()}"'
    found = _last_json(call(home, ["run", str(app), CONNECTION, "--run-config", config, "--format", "json"]))
    if not found.get("run-id"):
        raise TacitError(f"Flower did not start the run: {found.get('error-message', found)}")
    return str(found["run-id"])


def run_status(home: Path, run_id: str) -> str:
    """The state of a run, such as ``running`` or ``finished:completed``."""
    listed = _last_json(call(home, ["ls", CONNECTION, "--run-id", run_id, "--format", "json"]))
    runs = listed.get("runs") or [{}]
    return str(runs[0].get("status", "unknown"))


def stop_run(home: Path, run_id: str) -> None:
    """Stop a run."""
    call(home, ["stop", run_id, CONNECTION])


def _last_json(text: str) -> dict[str, Any]:
    """The JSON object that a command printed after other text."""
    at = text.find("{")
    try:
        found = json.JSONDecoder().raw_decode(text[at:])[0] if at >= 0 else {}
    except json.JSONDecodeError:
        found = {}
    return found if isinstance(found, dict) else {}
