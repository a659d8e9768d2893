"""Rounds at real daemons: what they take through each channel, and what silos that do not answer cost.

Every silo is a daemon of its own, with the records of one silo of a study; the server reaches daemons over their
sockets, without Flower. No channel has another server, other daemons or other records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.parties import Consortium, Silo
from tacit.algorithm import SHUFFLED_CHANNELS
from tacit.deploy.server.checkpoint import Checkpoint
from tacit.deploy.server.coordinator import Coordinator, Patience, fresh_state, meet
from tacit.deploy.server.deployment import plan_for
from tacit.deploy.server.shuffles import Sums
from tacit.deploy.server.transport import Enough, Frames, Replies, SignedTransport, SocketTransport, Transport
from tacit.deploy.shuffler.client import Caller, greet
from tacit.deploy.wire import unframed
from tacit.plans.spec import Study
from tacit.studies.federation import federation_of

PATIENCE = Patience(60.0, 120.0)


def silos_of(study: Study, **policy: Any) -> list[Silo]:
    """The silos of a study with their training records, as daemons hold them."""
    federation = federation_of(study, study.run.seed_list[0])
    data: dict[str, Any] = {"file": "records.npz", "task": federation.task}
    if federation.num_classes is not None:
        data["classes"] = federation.num_classes
    named = [(silo.name.replace(" ", "-"), silo.train) for silo in federation.silos]
    return [Silo(name, data, dict(policy), {k: own[k] for k in ("x", "y")}) for name, own in named]


class Absent:
    """A transport through which a share of the answers to pairwise sums is missing, each by itself.

    A silo that is missing is so for the whole attempt, however often it is asked, and was there when keys were asked
    for: that is what costs an attempt.
    """

    def __init__(self, transport: Transport, share: float, seed: int) -> None:
        self._transport, self._share, self._rng = transport, share, np.random.default_rng(seed)
        self._missing: dict[tuple[str, int, int], bool] = {}

    def present(self) -> list[str]:
        """As those of the transport."""
        return self._transport.present()

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """Ask those that are there."""
        reached = {at: frames for at, frames in requests.items() if not self._is_missing(at, frames)}
        return self._transport.ask(reached, seconds, enough)

    def _is_missing(self, at: str, frames: Frames) -> bool:
        asked = json.loads(unframed(frames[0])[0])
        if asked["type"] != "answer-together":
            return False
        key = at, asked["round"], asked["attempt"]
        if key not in self._missing:
            self._missing[key] = bool(self._rng.random() < self._share)
        return self._missing[key]


def play(consortium: Consortium, study: Study, *, missing: float = 0.0, seed: int = 0) -> list[dict[str, Any]]:
    """Lead a study to its end: what its checkpoint says of each round."""
    sockets = [consortium.folder(silo.name) / "door" / "silo.sock" for silo in consortium.silos]
    plain = SocketTransport(sockets)
    signed = SignedTransport(plain, consortium.proposer, consortium.proposer_entries["pins"])
    met = meet(signed, len(sockets), PATIENCE, lambda event, facts: None)
    names = tuple(sorted(met))
    shuffled = study.algorithm.channel in SHUFFLED_CHANNELS
    callers = {name: _caller(consortium, name) for name in consortium.shufflers} if shuffled else {}
    seals = {name: greet(caller).seal for name, caller in callers.items()}
    plan = plan_for(study, [met[name][1] for name in names], seals, proposer=consortium.proposer.name)
    records = tuple(met[name][1].records for name in names)
    point = Checkpoint(plan, names, records, fresh_state(plan, records))
    sums = Sums(plan, names, callers) if shuffled else None
    addresses = {name: at for name, (at, _) in met.items()}
    path = Path(consortium.root) / f"{plan.study}.npz"
    transport = Absent(signed, missing, seed)
    try:
        Coordinator(point, path, transport, addresses, patience=PATIENCE, shuffled=sums).run()
    finally:
        for caller in callers.values():
            caller.close()
        plain.close()
    return point.history


def _caller(consortium: Consortium, name: str) -> Caller:
    return Caller(consortium.address(name), consortium.proposer, 10.0)
