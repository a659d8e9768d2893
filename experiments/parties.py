"""A whole consortium on one machine: SuperLink, nodes, silo daemons and shufflers, each a process of its own.

Folders, keys and certificates are made for the occasion. `experiments.consortium` trains two studies over it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from tacit.deploy.consortium.certificates import Authority, Pair
from tacit.deploy.flower.commands import environment, node_key, read_control
from tacit.deploy.flower.private import Link
from tacit.deploy.permissions import read_secret, write_secret
from tacit.deploy.server.deployment import DEPLOYED
from tacit.deploy.shuffler.client import Address, Caller, greet
from tacit.deploy.shuffler.config import Keys, make_keys
from tacit.deploy.signing import Proposer, Signer, new_signing_key
from tacit.errors import TacitError

_PATIENCE = 90.0
_GRACE = 15.0
PROPOSER = "demo"
TACIT = [sys.executable, "-c", "from tacit.cli import main; main()"]


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def below(pid: int) -> dict[int, str]:
    """The processes that a process has started, and those that these have, with their commands."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    found: dict[int, str] = {}
    front = {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front and child not in found}
        found |= {child: commands[child] for child in front}
    return found


class Party:
    """One process with a session of its own, so that everything it starts can be ended with it."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name, self._command, self.log, self._env = name, list(command), log, dict(env)
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            tail = self.log.read_text(encoding="utf-8", errors="replace")[-800:]
            raise TacitError(f"{self.name} has ended with code {self.process.returncode}: {tail}")

    def kill(self) -> None:
        """End it, and what it started, as a power cut would."""
        self._end(below(self.process.pid))

    def ask_to_end(self) -> dict[int, str]:
        """Ask it to end; returns what it had started."""
        started = below(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        return started

    def stop(self, started: Mapping[int, str] | None = None) -> None:
        """Ask it to end, unless that was done, and insist."""
        started = self.ask_to_end() if started is None else started
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE)
        self._end(started)

    def _end(self, started: Mapping[int, str]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_GRACE)
        # A SuperLink has a session of its own.
        deadline = time.monotonic() + _GRACE
        left = [pid for pid, command in started.items() if _is_still(pid, command)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(_is_still(pid, started[pid]) for pid in left) and time.monotonic() < deadline:
            time.sleep(0.05)


def _is_still(pid: int, command: str) -> bool:
    try:
        found = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return False
    return bool(found) and found == command


@dataclass
class Silo:
    """What a silo of the consortium consists of: a name, its policy's [data], and records to write into its folder."""

    name: str
    data: dict[str, Any]
    policy: dict[str, Any] = field(default_factory=dict)
    records: Mapping[str, np.ndarray] = field(default_factory=dict)


class Consortium:
    """Makes folders, keys and certificates under ``root``, and runs the processes."""

    def __init__(
        self,
        root: Path,
        silos: Sequence[Silo],
        shufflers: Sequence[str] = ("a", "b"),
        *,
        host: str = "127.0.0.1",
        **env: str,
    ) -> None:
        self.root, self.silos, self.host, self.env = root, list(silos), host, env
        self.parties: dict[str, Party] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (root / "logs").mkdir(exist_ok=True)
        self.authority = Authority(root / "certificates")
        self.caller: Pair = self.authority.issue("server")
        self.port = free_port()
        self.control = root / "link" / "control.toml"
        self._signers = {silo.name: new_signing_key() for silo in silos}
        write_secret(root / "proposer.key", new_signing_key())
        self.proposer = Proposer(PROPOSER, Signer(read_secret(root / "proposer.key")))
        self.shufflers: dict[str, tuple[int, str]] = {}
        self._signs: dict[str, str] = {}
        before: dict[str, str] = {}
        for layer, name in enumerate(shufflers):
            port, keys = self._make_shuffler(name, layer, before)
            self.shufflers[name], before = (port, str(keys.seal.public)), {name: keys.sign.public}
            self._signs |= before
        for silo in silos:
            self._make_silo(silo)

    @property
    def superlink(self) -> str:
        """Where the SuperLink is."""
        return f"{self.host}:{self.port}"

    def folder(self, name: str) -> Path:
        """The folder of a silo or shuffler."""
        return self.root / name

    def _make_shuffler(self, name: str, layer: int, before: Mapping[str, str]) -> tuple[int, Keys]:
        """A shuffler's folder; for reports they are a cascade, in which each takes what the one before releases."""
        folder = self.folder(f"shuffler-{name}")
        folder.mkdir(mode=0o700)
        keys, pair, port = make_keys(folder, "x25519"), self.authority.issue(f"shuffler-{name}"), free_port()
        tree = {
            "name": name,
            "port": port,
            "min_silos": 2,
            "layer": layer,
            "before": dict(before),
            "record": "received.bin",
            "callers": {PROPOSER: self.proposer.signer.public},
            "silos": {silo: Signer(raw).public for silo, raw in self._signers.items()},
            "tls": {
                "certificate": str(pair.certificate),
                "key": str(pair.key),
                "callers": str(self.authority.certificate),
            },
        }
        write_secret(folder / "shuffler.toml", tomli_w.dumps(tree))
        return port, keys

    def _make_silo(self, silo: Silo) -> None:
        folder = self.folder(silo.name)
        folder.mkdir(mode=0o700)
        seals = {name: seal for name, (_, seal) in self.shufflers.items()}
        tree: dict[str, Any] = {
            "name": silo.name,
            "budget": {"epsilon": 4.0, "delta": 1e-5},
            "allow": {"algorithms": ["mb-sgd"], "channels": list(DEPLOYED), "min_silos": 2},
            "approval": {"mode": "auto"},
            "shuffle": {"shufflers": seals, "colluding": 0, "max_local_epsilon": 8.0},
            "pairwise": {"peers": {n: key for n, key in self._pins.items() if n != silo.name}},
            "data": silo.data,
            "counter": f"../counter-{silo.name}",
            "pad_seconds": 0.1,
            "proposers": {PROPOSER: self.proposer.signer.public},
            **silo.policy,
        }
        if not seals:
            del tree["shuffle"]
            tree["allow"] = {**tree["allow"], "channels": ["direct", "pairwise"]}
        if len(self._signers) == 1:
            del tree["pairwise"]
            tree["allow"] = {**tree["allow"], "channels": [c for c in tree["allow"]["channels"] if c != "pairwise"]}
        write_secret(folder / "sign.key", self._signers[silo.name])
        node_key(folder / "node.key")
        write_secret(folder / "policy.toml", tomli_w.dumps(tree))
        if silo.records:
            np.savez(folder / "records.npz", allow_pickle=False, **silo.records)
            (folder / "records.npz").chmod(0o600)

    def address(self, name: str) -> Address:
        """How to call a shuffler."""
        port, authority = self.shufflers[name][0], self.authority.certificate
        return Address(name, self._signs[name], "127.0.0.1", port, authority, *self.caller)

    @property
    def proposer_entries(self) -> dict[str, Any]:
        """Who leads studies, and whose replies are believed, as a deployment lists them."""
        return {"proposer": PROPOSER, "key": str(self.root / "proposer.key"), "pins": self._pins}

    @property
    def _pins(self) -> dict[str, str]:
        return {name: Signer(raw).public for name, raw in self._signers.items()}

    def shuffler_entries(self) -> list[dict[str, Any]]:
        """The shufflers as a deployment lists them."""
        return [
            {
                "name": name,
                "sign": self._signs[name],
                "host": "127.0.0.1",
                "port": port,
                "authority": str(self.authority.certificate),
                "certificate": str(self.caller.certificate),
                "key": str(self.caller.key),
            }
            for name, (port, _) in self.shufflers.items()
        ]

    def start(self, name: str, command: Sequence[str], home: str) -> Party:
        """Start a party with a log of its own."""
        env = {**environment(self.root / "homes" / home), **self.env}
        (self.root / "homes" / home).mkdir(parents=True, exist_ok=True)
        party = Party(name, command, self.root / "logs" / f"{name}.log", env)
        self.parties[name] = party
        return party

    def start_silos(self) -> None:
        """Start the daemons."""
        for silo in self.silos:
            options = ["--insecure-test-noise-off"] if silo.policy.get("test") else []
            self.start(silo.name, [*TACIT, "silo", "serve", str(self.folder(silo.name)), *options], silo.name)

    def start_shufflers(self) -> None:
        """Start the shufflers."""
        for name in self.shufflers:
            command = [*TACIT, "shuffler", "serve", str(self.folder(f"shuffler-{name}"))]
            self.start(f"shuffler-{name}", command, f"shuffler-{name}")

    def start_all(self) -> None:
        """Start everything at once, and wait until everybody serves."""
        self.start_link()
        self.start_silos()
        self.start_shufflers()
        self.start_nodes()
        self.ready()

    def start_link(self) -> None:
        """Start the SuperLink and its front."""
        pair = self.authority.issue("superlink", ("localhost", "127.0.0.1", self.host))
        command = [
            *(*TACIT, "server", "link", str(self.control.parent), "--host", self.host, "--port", str(self.port)),
            *("--certificate", str(pair.certificate), "--key", str(pair.key), "--control-port", str(free_port())),
        ]
        self.start("superlink", command, "superlink")

    def start_nodes(self) -> None:
        """Let the silos' nodes in, and start them."""
        self._wait("superlink", lambda: socket.create_connection((self.host, self.port), 1.0).close())
        with Link(read_control(self.control)) as link:
            for silo in self.silos:
                link.register(silo.name, (self.folder(silo.name) / "node.key.pub").read_bytes())
        for silo in self.silos:
            self.start_node(silo.name)

    def start_node(
        self,
        name: str,
        *,
        key: Path | None = None,
        authority: Path | None = None,
        label: str | None = None,
        before: Sequence[str] = (),
    ) -> Party:
        """Start a silo's node; ``before`` is a command to start it with."""
        folder, label = self.folder(name), label or f"node-{name}"
        command = [
            *(*TACIT, "silo", "join", str(folder), "--superlink", self.superlink),
            *("--authority", str(authority or self.authority.certificate), "--key", str(key or folder / "node.key")),
        ]
        return self.start(label, [*before, *command], label)

    def ready(self) -> None:
        """Wait until daemons and shufflers serve."""
        for silo in self.silos:
            self._wait(silo.name, lambda silo=silo: (self.folder(silo.name) / "door" / "silo.sock").stat())
        for name in self.shufflers:
            self._wait(f"shuffler-{name}", lambda name=name: self._knock(name))

    def _knock(self, name: str) -> None:
        caller = Caller(self.address(name), self.proposer)
        try:
            greet(caller)
        finally:
            caller.close()

    def _wait(self, name: str, attempt: Any) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                attempt()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise TacitError(f"{name} did not start in {_PATIENCE:.0f} s; see its log.") from None
                self.parties[name].check()
                time.sleep(0.1)

    def check(self) -> None:
        """Raise if any party has ended."""
        for party in self.parties.values():
            party.check()

    def stop(self) -> None:
        """Stop everything, nodes first."""
        ordered = sorted(self.parties.values(), key=lambda party: not party.name.startswith("node-"))
        asked = [(party, party.ask_to_end()) for party in ordered]
        for party, started in asked:
            party.stop(started)
        self.parties.clear()
