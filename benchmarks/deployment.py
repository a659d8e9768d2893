"""``python -m benchmarks.deployment``: what a round costs at real silos and shufflers, without what Flower adds.

Four hospitals' daemons and two shufflers, each a process of its own; the server reaches daemons over their sockets.
Compare with the seconds per round that ``make consortium`` prints: the rest is Flower's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from experiments.consortium import demo_study, hospital
from experiments.parties import Consortium
from tacit.data.heart_disease import HOSPITALS
from tacit.deploy.server.checkpoint import Checkpoint
from tacit.deploy.server.coordinator import Coordinator, Patience, fresh_state, meet
from tacit.deploy.server.deployment import plan_for
from tacit.deploy.server.shuffles import Sums
from tacit.deploy.server.transport import SignedTransport, SocketTransport
from tacit.deploy.shuffler.client import Caller, greet


def _caller(consortium: Consortium, name: str) -> Caller:
    return Caller(consortium.address(name), consortium.proposer, 10.0)


def seconds_per_round(consortium: Consortium, channel: str, rounds: int) -> list[float]:
    sockets = [consortium.folder(name) / "door" / "silo.sock" for name in HOSPITALS]
    patience, plain = Patience(60.0, 120.0), SocketTransport(sockets)
    transport = SignedTransport(plain, consortium.proposer, consortium.proposer_entries["pins"])
    met = meet(transport, len(sockets), patience, lambda event, facts: None)
    names = tuple(sorted(met))
    shuffled = channel == "shuffled-sum"
    callers = {name: _caller(consortium, name) for name in consortium.shufflers} if shuffled else {}
    seals = {name: greet(caller).seal for name, caller in callers.items()}
    plan = plan_for(demo_study(channel, rounds), [met[name][1] for name in names], seals)
    records = tuple(met[name][1].records for name in names)
    point = Checkpoint(plan, names, records, fresh_state(plan, records))
    sums = Sums(plan, names, callers) if shuffled else None
    addresses = {name: at for name, (at, _) in met.items()}
    path = consortium.root / f"{channel}.npz"
    Coordinator(point, path, transport, addresses, patience=patience, shuffled=sums).run()
    for caller in callers.values():
        caller.close()
    plain.close()
    return [row["seconds"] for row in point.history]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        consortium = Consortium(Path(folder) / "c", [hospital(name) for name in HOSPITALS])
        try:
            consortium.start_silos()
            consortium.start_shufflers()
            consortium.ready()
            for channel in ("direct", "shuffled-sum"):
                first, *rest = seconds_per_round(consortium, channel, chosen.rounds)
                print(f"{channel}: first round {first:.2f} s, then {statistics.median(rest):.3f} s in the middle")
        finally:
            consortium.stop()


if __name__ == "__main__":
    main()
