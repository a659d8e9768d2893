"""Drives a consortium of real processes and writes down what came of it; run alone, if possible without a network.

``python -m tests.deploy.flower.drive FOLDER`` starts SuperLink, two nodes, two daemons (test builds: no noise) and two
shufflers, and plays two studies at once: one directly, with several kinds of round and one or two silos in each, and
one through shuffled sums. An unregistered node and one that trusts another authority try to join meanwhile.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments.parties import Consortium, Silo, train
from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.flower.commands import node_key
from tacit.deploy.server.deployment import DEPLOYED
from tacit.deploy.silo.service import NOISE_OFF
from tacit.plans.spec import Study, study_from
from tests.deploy.silo.consortium import SEED, records_of

SIZES = {"north": 30, "south": 40}
ROUNDS = 2
CHANNELS = ("direct", "shuffled-sum")


def tables(sizes: dict[str, int] = SIZES) -> dict[str, dict[str, np.ndarray]]:
    return {name: records_of(i, size) for i, (name, size) in enumerate(sizes.items())}


ALGORITHMS: dict[str, dict[str, Any]] = {
    "direct": {"name": "prox-spider", "phase_length": 2, "difference_slope": 4.0},
    "shuffled-sum": {"name": "mb-sgd"},
    "shuffled-reports": {"name": "mb-sgd"},
}
PARTICIPANTS: dict[str, list[int]] = {"direct": [1, 2]}
"""How many silos a round has: everybody, but in the direct study."""


def study_of(channel: str, rounds: int = ROUNDS, participants: list[int] | None = None) -> Study:
    common = {"num_rounds": rounds, "step_size": 0.2, "clip_norm": 0.7, "channel": channel, "sampling": "full"}
    tree: dict[str, Any] = {"name": channel, "data": {"name": "silo"}, "privacy": {"epsilon": 1.0, "delta": 1e-6}}
    if participants is not None:
        tree["run"] = {"participants": participants}
    return study_from({**tree, "algorithm": {**common, **ALGORITHMS[channel]}})


def consortium_of(root: Path, host: str = "127.0.0.1", sizes: dict[str, int] = SIZES) -> Consortium:
    root.mkdir(parents=True, exist_ok=True)
    for name, table in tables(sizes).items():
        np.savez(root / f"{name}.npz", allow_pickle=False, **table)
        (root / f"{name}.npz").chmod(0o600)
    allow = {"algorithms": ["mb-sgd", "prox-spider"], "channels": list(DEPLOYED), "min_silos": 2}
    policy = {"budget": {"epsilon": 30.0, "delta": 1e-5}, "pad_seconds": 0.0, "test": True}
    policy["allow"] = allow
    silos = [Silo(name, {"file": str(root / f"{name}.npz"), "task": "binary", "classes": 2}, policy) for name in sizes]
    return Consortium(root / "c", silos, host=host, **{NOISE_OFF: "1"})


def internet() -> bool:
    """Whether there is any way out of this machine."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return True
    return False


def intruders(consortium: Consortium, root: Path) -> None:
    """A node that nobody registered, and one that was given the certificate of another authority."""
    strange = root / "stranger.key"
    node_key(strange)
    consortium.start_node("north", key=strange, label="stranger")
    elsewhere = Authority(root / "elsewhere").certificate
    consortium.start_node("south", authority=elsewhere, label="misled")


def main(root: Path) -> None:
    begun, facts = time.monotonic(), {}
    consortium = consortium_of(root)
    facts["internet"] = internet()
    try:
        consortium.start_all()
        facts["ready"] = time.monotonic() - begun
        intruders(consortium, root)
        consortium.check = lambda: None  # type: ignore[method-assign]

        def play(channel: str) -> str:
            study = study_of(channel, participants=PARTICIPANTS.get(channel))
            quiet = Console(file=io.StringIO())
            # Nobody is given up on, however busy the machine: who takes part must be what the seed says.
            patient = {"round_seconds": 600.0, "patience": 600.0}
            return str(train(consortium, study, root / "runs", quiet, evaluate=False, seed=SEED, **patient))

        # Both at once, as real consortia may: each process leads its own.
        with ThreadPoolExecutor() as pool:
            facts["folders"] = dict(zip(CHANNELS, pool.map(play, CHANNELS), strict=True))
        facts["intruders"] = {name: _end(consortium, name) for name in ("stranger", "misled")}
        facts["pids"] = [party.process.pid for party in consortium.parties.values()]
    finally:
        consortium.stop()
    facts["seconds"] = time.monotonic() - begun
    facts["left"] = _left(root)
    (root / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _end(consortium: Consortium, name: str) -> dict[str, Any]:
    party = consortium.parties[name]
    log = party.log.read_text(encoding="utf-8", errors="replace")
    party.stop()
    return {"log": log, "joined": "Joined as node" in log}


def _left(root: Path) -> list[str]:
    """Commands of processes that still have something to do with this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(root) in command and int(entry.name) != os.getpid() and "drive" not in command:
                found.append(command[:200])
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
