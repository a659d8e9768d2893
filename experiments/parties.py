"""A whole consortium on one machine: SuperLink, nodes, silo daemons and shufflers, each a process of its own.

Folders, keys and certificates are made for the occasion, with any policy and any array as records, for tests,
benchmarks and soaks. What people try is `tacit consortium try`, which sets everything up from kits.
"""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from rich.console import Console

from tacit.algorithm import SHUFFLED_CHANNELS
from tacit.data import load
from tacit.deploy.consortium.certificates import Authority, Pair
from tacit.deploy.consortium.processes import TACIT, Party, Processes, free_port
from tacit.deploy.flower.commands import node_key, read_control
from tacit.deploy.flower.private import Link
from tacit.deploy.flower.watch import follow
from tacit.deploy.permissions import read_secret, write_secret
from tacit.deploy.server.deployment import DEPLOYED
from tacit.deploy.shuffler.client import Address, Caller, greet
from tacit.deploy.shuffler.config import Keys, make_keys
from tacit.deploy.signing import Proposer, Signer, new_signing_key
from tacit.deploy.wire import read_frame
from tacit.plans.spec import Study, load_study
from tacit.studies.folder import new_folder, write_study

PROPOSER = "demo"


@dataclass
class Silo:
    """What a silo of the consortium consists of: a name, its policy's [data], and records to write into its folder."""

    name: str
    data: dict[str, Any]
    policy: dict[str, Any] = field(default_factory=dict)
    records: Mapping[str, np.ndarray] = field(default_factory=dict)


class Consortium(Processes):
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
        super().__init__(root, **env)
        self.silos, self.host = list(silos), host
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
        self.wait("superlink", lambda: socket.create_connection((self.host, self.port), 1.0).close())
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
            self.wait(silo.name, (self.folder(silo.name) / "door" / "silo.sock").stat)
        for name in self.shufflers:
            self.wait(f"shuffler-{name}", partial(self._knock, name))

    def _knock(self, name: str) -> None:
        caller = Caller(self.address(name), self.proposer)
        try:
            greet(caller)
        finally:
            caller.close()


def hospital(name: str) -> Silo:
    """A hospital of the heart-disease data that ships with Tacit."""
    [records] = [silo.train for silo in load("heart-disease").silos if silo.name == name]
    own = {column: records[column] for column in ("x", "y")}
    return Silo(name, {"file": "records.npz", "task": "binary", "classes": 2}, records=own)


def demo_study(channel: str, rounds: int) -> Study:
    """The heart-disease study with few rounds, through one of the channels."""
    own = [f"algorithm.num_rounds={rounds}", f"algorithm.channel={channel}", f"name=heart-disease-{channel}"]
    return load_study("heart-disease", own)


def train(consortium: Consortium, study: Study, out: Path, console: Console, **changes: Any) -> Path:
    """Run a study over the consortium and return its run folder."""
    folder = new_folder(out, study).resolve()
    write_study(folder, study)
    shuffled = study.algorithm.channel in SHUFFLED_CHANNELS
    terms = {
        "silos": len(consortium.silos),
        "folder": str(folder),
        "round_seconds": 120.0,
        "patience": 300.0,
        "evaluate": True,
        "record": True,
        "shufflers": consortium.shuffler_entries() if shuffled else [],
        "command": "python -m experiments.parties",
        **consortium.proposer_entries,
        **changes,
    }
    (folder / "deployment.toml").write_text(tomli_w.dumps(terms), encoding="utf-8")
    follow(folder, consortium.control, console, consortium.check)
    return folder


def frames_in(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Header and payload of every frame that was kept in a file."""
    stream = io.BytesIO(path.read_bytes()) if path.exists() else io.BytesIO()
    while (found := read_frame(stream.read)) is not None:
        yield json.loads(found[0]), found[1]
